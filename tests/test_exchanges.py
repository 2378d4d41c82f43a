"""A snapshot is a run's by every word of its metadata: what is listed twice, hidden or described otherwise is somebody else's.

And no more than that: an operator may change how the table is described or partitioned while a candidate waits. The table is the
benchmarks' small one, without Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock
from uuid import uuid4

import pyiceberg.manifest
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestEntryStatus, ManifestFile, PartitionFieldSummary
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform, YearTransform
from pyiceberg.types import IntegerType, StringType
from test_others_writing import (
    UNDOINGS,
    described_anew,
    ended,
    history,
    in_the_words_of,
    nowhere,
    rebuilt_by_another,
    written_by_another_in_corrections,
)
from test_own_changes import file_of_another
from test_taking_back import (
    APRIL,
    BESIDE,
    LATER,
    PUBLISHED,
    ROLLED_BACK,
    dying_at,
    expired_by_another_program,
    published,
    readers,
    state,
    validated,
)

from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.publication.accepting import accept
from backfill_assets.publication.publisher import prepare, publish
from backfill_assets.publication.undoing import reinstate, rollback
from benchmarks.small_table import CORRECTIONS, READINGS, rows
from manifests.errors import PublicationRefused
from manifests.lifecycle import PUBLISH, REINSTATE, ROLLBACK, RunState
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.data_files import gated_data_files
from resources.lakehouse.live_files import all_files
from resources.lakehouse.pyiceberg_private import Replacement

pytestmark = [pytest.mark.matrix, pytest.mark.usefixtures("looked_at_again_at_once")]

__all__ = ["history"]

# --- snapshots in a run's words ---------------------------------------------------------------------------------------

Forge = Callable[[Table, Sequence[DataFile], Sequence[DataFile], dict[str, str]], None]


def twice(table: Table, gone: Sequence[DataFile], came: Sequence[DataFile], said: dict[str, str]) -> None:
    commit_replacement(table, AlwaysTrue(), gone, [*came, *map(described_anew, came)], said)


def out_of_bounds(table: Table, gone: Sequence[DataFile], came: Sequence[DataFile], said: dict[str, str]) -> None:
    commit_replacement(table, AlwaysTrue(), gone, [described_anew(file, **nowhere(table, file)) for file in came], said)


def without_the_other_months(
    table: Table, gone: Sequence[DataFile], came: Sequence[DataFile], said: dict[str, str]
) -> None:
    with mock.patch.object(Replacement, "_existing_manifests", return_value=[]):
        commit_replacement(table, AlwaysTrue(), gone, came, said)


def with_a_manifest_of_nobody(
    table: Table, gone: Sequence[DataFile], came: Sequence[DataFile], said: dict[str, str]
) -> None:
    """List a file more, in a manifest that says it came with another snapshot."""
    existing = Replacement._existing_manifests

    def and_another(self: Replacement) -> list[ManifestFile]:
        output = table.io.new_output(f"{table.location()}/metadata/{uuid4()}.avro")
        with pyiceberg.manifest.write_manifest(2, table.spec(), table.schema(), output, 12345, "null") as writer:
            writer.existing(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.EXISTING,
                    snapshot_id=12345,
                    sequence_number=1,
                    file_sequence_number=1,
                    data_file=file_of_another(table),
                )
            )
        manifest = writer.to_manifest_file()
        manifest.sequence_number = manifest.min_sequence_number = 1
        return [*existing(self), manifest]

    with mock.patch.object(Replacement, "_existing_manifests", and_another):
        commit_replacement(table, AlwaysTrue(), gone, came, said)


def in_a_manifest_that_nobody_opens(
    table: Table, gone: Sequence[DataFile], came: Sequence[DataFile], said: dict[str, str]
) -> None:
    with hidden_from_readers():
        commit_replacement(table, AlwaysTrue(), gone, came, said)


def hidden_from_readers() -> Any:
    """Have the list of manifests say that there is nothing in them but rows of a month that nobody asks for."""
    month = to_bytes(IntegerType(), 1)
    return mock.patch.object(
        pyiceberg.manifest,
        "construct_partition_summaries",
        return_value=[PartitionFieldSummary(False, False, month, month)],
    )


def exchange_of(platform: Platform, action: str) -> tuple[Table, list[DataFile], list[DataFile]]:
    """Return the table, and the files that an action of `run` would take out of it and bring into it."""
    table = platform.lakehouse.table(READINGS)
    staged = [file for chunk in platform.ledger.chunks("run") for file in chunk.files]
    now, own = all_files(table, table.current_snapshot()), {file.path for file in staged}
    if action == ROLLBACK:
        base = platform.ledger.run("run").plan.base_snapshot_id
        assert base is not None
        there = {file.file_path for file in now}
        then = all_files(table, table.snapshot_by_id(base))
        return (
            table,
            [file for file in now if file.file_path in own],
            [file for file in then if file.file_path not in there],
        )
    replaced = [file for file in now if "chunk=2020-02" in file.file_path or "chunk=2020-03" in file.file_path]
    return table, replaced, gated_data_files(table, staged)


@pytest.mark.parametrize("ended_by", ["the same command", "the doctor"])
@pytest.mark.parametrize(
    "forge",
    [
        twice,
        out_of_bounds,
        without_the_other_months,
        with_a_manifest_of_nobody,
        in_a_manifest_that_nobody_opens,
    ],
)
@pytest.mark.parametrize("action", [PUBLISH, ROLLBACK, REINSTATE])
def test_the_right_files_do_not_make_a_snapshot_the_runs_own(
    history: Platform, action: str, forge: Forge, ended_by: str
) -> None:
    validated(history, "run")
    if action == PUBLISH:
        before = RunState.VALIDATED
        with dying_at(history, "publishing.leased"):
            publish(history, "run")
    else:
        publish(history, "run")
        before = PUBLISHED
        if action == REINSTATE:
            rollback(history, "run")
            before = ROLLED_BACK
        with dying_at(history, "undoing.begun"):
            UNDOINGS[action](history, "run")
    done = len(history.ledger.landed("run"))
    forge(*exchange_of(history, action), in_the_words_of(history, action))
    forged = history.lakehouse.snapshot_id(READINGS)
    ended(history, ended_by, publish if action == PUBLISH else UNDOINGS[action])
    assert len(history.ledger.landed("run")) == done
    assert forged not in {one.snapshot_id for one in history.ledger.publications("run")}
    assert state(history, "run") in {before, RunState.REJECTED}


def interrupted(platform: Platform, action: str) -> None:
    """Have `run` begin an action, and die before it commits."""
    validated(platform, "run")
    if action == PUBLISH:
        with dying_at(platform, "publishing.leased"):
            publish(platform, "run")
        return
    publish(platform, "run")
    if action == REINSTATE:
        rollback(platform, "run")
    with dying_at(platform, "undoing.begun"):
        UNDOINGS[action](platform, "run")


def miscounted(table: Table, gone: Sequence[DataFile], came: Sequence[DataFile], said: dict[str, str]) -> None:
    described = [described_anew(file, record_count=file.record_count + 1) for file in came]
    commit_replacement(table, AlwaysTrue(), gone, described, said)


@pytest.mark.parametrize("forge", [twice, miscounted])
@pytest.mark.parametrize("action", [PUBLISH, ROLLBACK, REINSTATE])
def test_verify_names_what_an_interrupted_action_would_not_have_listed(
    history: Platform, action: str, forge: Forge
) -> None:
    interrupted(history, action)
    assert verify(history).everything == []
    forge(*exchange_of(history, action), in_the_words_of(history, action))
    named = [str(one.what) for one in verify(history).everything]
    expected = "is listed more than once" if forge is twice else "readers get other files than those accepted"
    assert [what for what in named if what.startswith(expected)], named


@pytest.mark.parametrize("action", [PUBLISH, ROLLBACK, REINSTATE])
def test_the_right_files_rightly_described_are_the_action(history: Platform, action: str) -> None:
    """What the forgeries above differ from: the same exchange, and nothing else."""
    interrupted(history, action)
    table, gone, came = exchange_of(history, action)
    commit_replacement(table, AlwaysTrue(), gone, came, in_the_words_of(history, action))
    assert verify(history).everything == []
    committed = history.lakehouse.snapshot_id(READINGS)
    mend(history)
    assert history.ledger.landed("run")[-1].snapshot_id == committed
    assert state(history, "run") is (ROLLED_BACK if action == ROLLBACK else PUBLISHED)


@pytest.mark.parametrize(
    ("mode", "options"),
    [("REPLACE_PARTITIONS", {}), ("MERGE_BY_KEY", {"merge": {"entities": ["m1", "m2"]}}), ("CORRECTION_EVENTS", {})],
)
def test_a_rollback_that_landed_is_recorded_although_its_base_has_expired(
    history: Platform, mode: str, options: dict[str, Any]
) -> None:
    published(history, "run", mode=mode, **options)
    plan = history.ledger.run("run").plan
    with dying_at(history, "undoing.committed"):
        rollback(history, "run")
    for table, base in ((READINGS, plan.base_snapshot_id), (CORRECTIONS, plan.corrections_base_snapshot_id)):
        if base is not None and history.lakehouse.has_snapshot(table, base):
            expired_by_another_program(history, base, table)
    mend(history)
    assert state(history, "run") is ROLLED_BACK
    assert len(history.ledger.landed("run")) == 2


def test_what_another_engine_has_listed_wrongly_before_is_not_the_runs_doing(history: Platform) -> None:
    """Manifests with summaries that leave rows out: they were there before, and the run's own commit is its own."""
    table = history.lakehouse.table(READINGS)
    with hidden_from_readers():
        commit_replacement(table, AlwaysTrue(), [], [file_of_another(table)], {})
    validated(history, "run", scope=APRIL)
    with dying_at(history, "publishing.committed"):
        publish(history, "run")
    committed = history.lakehouse.snapshot_id(READINGS)
    mend(history)
    assert (history.ledger.landed("run")[-1].snapshot_id, state(history, "run")) == (committed, PUBLISHED)


@pytest.mark.parametrize(("mode", "options"), [("SHADOW_SWAP", {}), ("VERSIONED", LATER)])
def test_a_candidate_in_manifests_that_readers_do_not_open_is_not_published(
    history: Platform, mode: str, options: dict[str, Any]
) -> None:
    validated(history, "run", mode, **options)
    prepare(history, "run")
    with hidden_from_readers():
        rebuilt_by_another(history, lambda _table, came, _stay: (came, []))
    with pytest.raises(PublicationRefused, match="is not what was gated"):
        publish(history, "run")


def test_a_version_is_accepted_although_another_program_says_that_it_was_reinstated(history: Platform) -> None:
    published(history, "run", mode="VERSIONED", **LATER)
    said = {"backfill.run-id": "run", "backfill.action": REINSTATE, "backfill.sequence": "2"}
    commit_replacement(history.lakehouse.table(READINGS), AlwaysTrue(), [], [], said)
    with pytest.raises(PublicationRefused):  # main is no longer what the version was made on
        accept(history, "run")
    assert "run" not in history.ledger.accepted(READINGS).values()
    assert readers(history)["2020-02"] == "base-run"


@pytest.mark.parametrize("action", [PUBLISH, ROLLBACK, REINSTATE])
def test_an_empty_snapshot_of_corrections_is_no_half_of_a_change(history: Platform, action: str) -> None:
    validated(history, "run", **BESIDE)
    if action != PUBLISH:
        publish(history, "run")
    if action == REINSTATE:
        rollback(history, "run")
    act = publish if action == PUBLISH else UNDOINGS[action]
    with dying_at(history, "publishing.halfway" if action == PUBLISH else "undoing.halfway"):
        act(history, "run")
    written_by_another_in_corrections(history, in_the_words_of(history, action))
    mend(history)
    assert state(history, "run") is (ROLLED_BACK if action == ROLLBACK else PUBLISHED)
    there = Counter(rows(history, CORRECTIONS))
    assert max(there.values(), default=1) == 1
    assert bool(there) is (action != ROLLBACK)


# --- what an operator may change meanwhile ----------------------------------------------------------------------------


def property_set(name: str, value: str) -> Callable[[Table], None]:
    def change(table: Table) -> None:
        with table.transaction() as transaction:
            transaction.set_properties({name: value})

    return change


def field_added(column: str, transform: Any) -> Callable[[Table], None]:
    def change(table: Table) -> None:
        with table.update_spec() as update:
            update.add_field(column, transform, f"{column}_of_a_kind")

    return change


def by_year_instead(table: Table) -> None:
    with table.update_spec() as update:
        update.remove_field("day_month")
        update.add_field("day", YearTransform(), "day_year")


def column_added(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("note", StringType())


CHANGES = {
    "no figures of a column": property_set("write.metadata.metrics.column.value", "none"),
    "short bounds": property_set("write.metadata.metrics.default", "truncate(1)"),
    "counts alone": property_set("write.metadata.metrics.default", "counts"),
    "identity": field_added("processing_mode", IdentityTransform()),
    "bucket": field_added("meter", BucketTransform(4)),
    "truncate": field_added("meter", TruncateTransform(1)),
    "by year": by_year_instead,
    "a column": column_added,
}


@pytest.mark.parametrize("when", ["before the publication", "before the acceptance"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_candidate_outlives_what_is_changed_of_the_table_while_it_waits(
    history: Platform, change: str, when: str
) -> None:
    accepted = when == "before the acceptance"
    validated(history, "run", "VERSIONED" if accepted else "SHADOW_SWAP", **(LATER if accepted else {}))
    prepare(history, "run")
    if accepted:
        publish(history, "run")
    CHANGES[change](history.lakehouse.table(READINGS))
    act = accept if accepted else publish
    if act is publish and change == "a column":
        shown = readers(history)
        with pytest.raises(PublicationRefused, match="was planned for schema 0 of silver.readings, and it has schema 1"):
            publish(history, "run")
        assert (state(history, "run"), readers(history)) == (RunState.VALIDATED, shown)
        return
    with dying_at(history, "accepting.committed" if accepted else "publishing.committed"):
        act(history, "run")
    mend(history)
    assert (state(history, "run"), readers(history)["2020-02"]) == (PUBLISHED, "run")
    for undo, shown in ((rollback, "base-run"), (reinstate, "run")):
        with dying_at(history, "undoing.committed"):
            undo(history, "run")
        mend(history)
        assert readers(history)["2020-02"] == shown
    assert state(history, "run") is PUBLISHED
