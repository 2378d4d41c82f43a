"""What a publication asks and reads, counted: nothing of it may grow faster than its chunks, nor what each chunk takes.

The table is the benchmarks' of hours and tenants, without Spark.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from backfill_assets.evidence import record_writing
from backfill_assets.installation import Platform
from backfill_assets.publication import publisher
from backfill_assets.publication.publisher import prepare, publish
from benchmarks import many_chunks, small_table
from manifests.lifecycle import PUBLISH, RunState
from manifests.reading import manifest_from
from resources.lakehouse import footer_statistics, gated_contents
from resources.ledger import cells, chunks, explained, journal, journaling, rows
from resources.ledger.moments import Moment

HOURS = 24


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    many_chunks.initialise(tmp_path / "home")
    with many_chunks.opened(tmp_path / "home") as opened:
        yield opened


def ready(platform: Platform, run_id: str, first: int, tenants: int) -> str:
    """Have a run over a day of some tenants staged and gated."""
    wanted = many_chunks.TENANTS[first : first + tenants]
    small_table.planned(platform, many_chunks.manifest(run_id, many_chunks.FIRST, 1, wanted))
    small_table.staged(platform, run_id)
    return run_id


def counted(platform: Platform, run_id: str) -> Counter[str]:
    """Publish a run, and return how often was done what takes time."""
    found: Counter[str] = Counter()

    def listen(*_: Any) -> None:
        found["statement"] += threading.current_thread() is threading.main_thread()  # others go by the clock

    sa.event.listen(platform.ledger.engine, "before_cursor_execute", listen)
    with pytest.MonkeyPatch.context() as patch:

        def count(what: str, *places: tuple[Any, str]) -> None:
            for module, name in places:
                real = getattr(module, name)

                def counting(*arguments: Any, real: Any = real, **named: Any) -> Any:
                    found[what] += 1
                    return real(*arguments, **named)

                patch.setattr(module, name, counting)

        count("staged file read once more", (gated_contents, "proven_sha256"))
        count("bundle put together", (publisher, "bundle_files"))
        count("text parsed", (cells, "data_of"), (rows, "data_of"))
        count("chunk made of its row", (chunks, "_chunk_record"))
        count("described by PyIceberg", (footer_statistics, "data_file_statistics_from_parquet_metadata"))
        count("reading of a run's entries", (journal, "explain_run"), (explained, "explain_run"))
        count("reading of entries and links", (journal, "explain"))
        count("walk of the hashes", (journal, "_follow_each_other"))
        count("rows held against the journal", (journal, "unexplained"), (explained, "unexplained"))
        try:
            publish(platform, run_id)
        finally:
            sa.event.remove(platform.ledger.engine, "before_cursor_execute", listen)
    assert platform.ledger.run(run_id).state is RunState.PUBLISHED
    return found


def test_what_a_publication_asks_does_not_grow_with_its_chunks_and_each_is_read_a_few_times(platform: Platform) -> None:
    small, large = (counted(platform, ready(platform, *one)) for one in (("few", 0, 1), ("many", 1, 4)))

    of_chunks = {"text parsed", "chunk made of its row"}
    for what in (large.keys() | small.keys()) - of_chunks:
        assert large[what] == small[what], what
    more = 3 * HOURS
    assert large["chunk made of its row"] - small["chunk made of its row"] == 2 * more  # as gated, and as sealed
    assert large["text parsed"] - small["text parsed"] <= 7 * more
    assert large["described by PyIceberg"] == 1  # the first file of the schema
    assert large["staged file read once more"] == 0  # their contents are hashed as their footers are read
    assert large["bundle put together"] == 1


def test_what_was_sealed_with_a_candidate_is_not_put_together_once_more(platform: Platform) -> None:
    text = small_table.manifest_data("run", "SHADOW_SWAP", ("", ""))
    text["target"] = {
        **text["target"],
        "table": many_chunks.HOURLY,
        "publishRange": dict.fromkeys(("start", "end"), many_chunks.FIRST.isoformat()),
        "values": list(many_chunks.TENANTS[:1]),
    }
    small_table.planned(platform, manifest_from(text))
    small_table.staged(platform, "run")
    assert prepare(platform, "run") == "candidate-run"
    sealed = platform.evidence.verify("run")

    found = counted(platform, "run")

    assert found["bundle put together"] == 0
    assert found["staged file read once more"] == 0
    (entry,) = platform.ledger.landed("run")
    assert entry.evidence_root == sealed == platform.evidence.verify("run")


def test_the_journal_is_read_for_the_policy_for_the_run_and_for_its_record_and_no_more(platform: Platform) -> None:
    found = counted(platform, ready(platform, "run", 0, 1))

    assert found["walk of the hashes"] == 1  # up to the newest link: of the policy in force
    assert found["reading of a run's entries"] == 2  # of the policy, and of the run when its record is written
    assert (
        found["reading of entries and links"] == 2
    )  # of the policy, from the newest link on; of the run, from its first one on
    assert found["rows held against the journal"] == 3


def test_chunks_that_change_hands_are_asked_for_together(platform: Platform) -> None:
    for run_id, first, tenants in (("few", 0, 1), ("many", 1, 4)):
        publish(platform, ready(platform, run_id, first, tenants))

    small, large = (counted(platform, ready(platform, *again)) for again in (("few-again", 0, 1), ("many-again", 1, 4)))

    assert large["statement"] == small["statement"]
    assert platform.ledger.run("many").state is RunState.SUPERSEDED
    held = platform.ledger.accepted(many_chunks.HOURLY)
    assert Counter(held.values()) == {"few-again": HOURS, "many-again": 4 * HOURS}


def test_what_others_commit_while_a_record_is_written_is_asked_for_after_it(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a server a lock of a run keeps nobody from adding rows of it, and each statement sees what was committed before it."""
    record = platform.ledger.run(ready(platform, "run", 0, 1))
    publish(platform, record.run_id)
    (entry,) = platform.ledger.landed(record.run_id)
    real = record_writing._record

    def overtaken(platform: Platform, moment: Moment, run_id: str, *arguments: Any) -> bool:
        found = real(platform, moment, run_id, *arguments)
        if run_id == record.run_id:
            journaling._write(moment._connection, run_id, {"stops": {"columns": ["id"], "rows": {}}}, 0)
        return found

    monkeypatch.setattr(record_writing, "_record", overtaken)
    known = record_writing.tell(platform, record, PUBLISH, entry.as_record(), 1)
    with platform.ledger.holding() as moment:
        assert moment.newest_entry(record.run_id) > known
