"""What readers get is what was accepted: forged metadata is found and named, and what lawful people do is no alarm."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as arrow
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.table import Table
from small_worlds import copy_of

from backfill_assets import faults
from backfill_assets.audit import unknown_files
from backfill_assets.audit.verification import verify
from backfill_assets.evidence import bundle_contents, record_writing, records, seals
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.publication.accepting import accept
from backfill_assets.publication.modes import change_of
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from benchmarks import forged_snapshots, small_table
from benchmarks.forgeries import Forged, Forger
from benchmarks.histories import History
from benchmarks.small_table import HISTORY, READINGS, manifest, planned, staged
from benchmarks.tampering import OF_TABLES, Copies, change_tables, installation, lawful_histories
from resources.lakehouse import snapshots
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.facade import EVIDENCE_PROPERTY, RUN_PROPERTY, local_path
from resources.lakehouse.snapshots import Entry, Seen, table_facts
from resources.ledger.tables import publications

pytestmark = pytest.mark.matrix

SEED = 20120131


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Platform, Copies]]:
    """Runs of several modes over one table, published, accepted under a name, and rolled back."""
    folder = tmp_path_factory.mktemp("readers")
    with installation(folder) as platform:
        yield platform, Copies(platform, folder)


@pytest.fixture
def platform(made: tuple[Platform, Copies]) -> Iterator[Platform]:
    yield made[0]
    made[1].put_back()


@pytest.fixture
def unsealed() -> Iterator[Platform]:
    """A run that was sealed and recorded without its tables' columns and metadata files, as by earlier versions."""
    with small_table.declared():
        found = copy_of(with_an_unsealed_run)
        yield found
        small_table.closed(found)


def with_an_unsealed_run(platform: Platform) -> None:
    def files(*arguments: Any) -> dict[str, Any]:
        return {name: said for name, said in bundle(*arguments).items() if name != seals.SCHEMA_FILE}

    bundle = bundle_contents.bundle_files
    small_table.initialise(platform)
    planned(platform, manifest("old", "REPLACE_PARTITIONS", HISTORY))
    staged(platform, "old")
    with (
        mock.patch("backfill_assets.publication.publisher.bundle_files", files),
        mock.patch.object(record_writing, "commits_of", return_value=[]),
    ):
        publish(platform, "old")


def said(platform: Platform, *, data: bool = True) -> list[str]:
    return [f"{one.where}: {one.what}" for one in verify(platform, data=data).everything]


def test_what_nobody_touched_is_what_readers_get(platform: Platform) -> None:
    done = verify(platform, data=True)
    assert done.everything == []
    published = done.runs[:6]
    assert all(run.notes == () for run in published)
    assert [run.chunks_read for run in published] == [4, 2, 1, 2, 1, 1]


def test_each_kind_of_forgery_of_a_table_is_found_and_named(made: tuple[Platform, Copies]) -> None:
    outcome = change_tables(*made, len(OF_TABLES), SEED)
    assert (outcome.unnoticed, outcome.unnamed) == ([], [])
    assert set(outcome.made.values()) == {1}
    assert verify(made[0], data=True).everything == []  # each was put back


def test_lawful_histories_raise_no_alarm() -> None:
    steps, alarms = lawful_histories(2, SEED)
    assert alarms == []
    assert steps > 4


@pytest.mark.parametrize(
    ("forgery", "names"),
    [
        (Forger.swapped_columns, "readers find it under another name"),
        (Forger.partition_value, "partition day_month"),
        (Forger.narrowed_bounds, " bound of "),
        (Forger.record_count, "record_count"),
        (Forger.changed_copy, "readers get rows of another digest"),
        (Forger.appended, "never committed it"),
        (forged_snapshots.another_host, " store: "),
        (forged_snapshots.all_not_a_number, " NaN count of "),
        (forged_snapshots.rows_of_another_day, "readers get other files than those accepted"),
        (forged_snapshots.rewritten_under_another_run, " lineage "),
        (forged_snapshots.ids_given_again, "the next one is given twice"),
    ],
)
def test_what_was_published_before_metadata_was_sealed_is_held_against_its_rows(
    unsealed: Platform, forgery: Callable[[Forger], Forged], names: str
) -> None:
    (run,) = verify(unsealed, data=True).runs
    assert run.problems == ()
    assert "did not seal columns and metadata files" in run.notes[0]
    forgery(Forger(unsealed, random.Random(SEED)))
    assert any(names in one for one in said(unsealed))


def test_a_column_that_the_table_gets_later_is_no_alarm(platform: Platform) -> None:
    History(platform, random.Random(SEED)).with_a_column()
    assert said(platform) == []


def test_rows_rewritten_by_another_program_are_read_and_compared(platform: Platform) -> None:
    History(platform, random.Random(SEED)).compacted()
    plain, read = verify(platform), verify(platform, data=True)
    assert plain.everything == read.everything == []
    assert any("--data says whether they are the same" in note for run in plain.runs for note in run.notes)
    assert not any("--data" in note for run in read.runs for note in run.notes)


def test_what_was_sealed_without_the_layout_of_its_columns_is_no_alarm(tmp_path: Path) -> None:
    def facts(table: Table) -> dict[str, Any]:
        found = dict(table_facts(table))
        return {name: said for name, said in found.items() if name not in {"layout", "formatVersion"}}

    with (
        small_table.declared(),
        mock.patch.object(seals, "table_facts", facts),
        mock.patch.object(snapshots, "table_facts", facts),
    ):
        platform = small_table.opened(tmp_path / "home")
        small_table.initialise(platform)
        planned(platform, manifest("old", "REPLACE_PARTITIONS", HISTORY))
        staged(platform, "old")
        publish(platform, "old")
        assert verify(platform, data=True).everything == []
        forged_snapshots.columns_in_another_order(Forger(platform, random.Random(SEED)))
        assert said(platform) == []  # nobody knows their order
        small_table.closed(platform)


# --- files of other programs ------------------------------------------------------------------------------------------


def test_files_of_others_on_days_of_nobody_are_no_alarm(platform: Platform) -> None:
    History(platform, random.Random(SEED)).written_beside()
    (foreign,) = _foreign(platform)
    assert said(platform) == []
    _deleted_from(platform, foreign)
    assert said(platform) == []


def test_a_file_of_others_that_cannot_be_opened_is_named(platform: Platform) -> None:
    History(platform, random.Random(SEED)).written_beside()
    (foreign,) = _foreign(platform)
    Path(foreign.place).write_bytes(b"nothing that anybody could read")
    assert said(platform, data=False) == []
    where = f"{READINGS} {foreign.place}: belongs to no known run, and cannot be opened"
    assert all(one.startswith(where) for one in said(platform))
    assert said(platform)


def test_each_file_of_others_is_opened_once_and_none_of_a_run(platform: Platform) -> None:
    History(platform, random.Random(SEED)).written_beside()
    (foreign,) = _foreign(platform)
    opened: list[str] = []

    def look(seen: Seen, entry: Entry, *fields: int | None) -> unknown_files.Holds:
        opened.append(entry.place)
        return really(seen, entry, *fields)

    really = unknown_files._opened
    with mock.patch.object(unknown_files, "_opened", look):
        assert said(platform) == []
    assert opened == [foreign.place]


def test_corrections_that_were_taken_back_are_named_where_somebody_shows_them_again(platform: Platform) -> None:
    how, scope, options = MODES["instead"]
    planned(platform, manifest("next", how, scope, computed_by="1", **options))
    staged(platform, "next")
    publish(platform, "next")
    rollback(platform, "next")
    assert said(platform) == []
    (chunk,) = platform.ledger.chunks("next")
    table = platform.lakehouse.table(small_table.CORRECTIONS)
    new = [parquet_file_to_data_file(table.io, table.metadata, file.path) for file in chunk.derived]
    commit_replacement(table, AlwaysTrue(), [], new, {})
    assert any("is not what readers get of these corrections" in one for one in said(platform, data=False))


def _foreign(platform: Platform) -> list[Entry]:
    found = Seen(platform.lakehouse.table(READINGS)).entries.values()
    return [entry for entries in found for entry in entries if "/run=" not in entry.place]


def _deleted_from(platform: Platform, entry: Entry) -> None:
    forger = Forger(platform, random.Random(SEED))
    with mock.patch.object(forged_snapshots, "a_file", return_value=entry):
        forged_snapshots.delete_rows(forger, READINGS)


def test_the_metadata_files_of_each_change_are_in_the_evidence(platform: Platform) -> None:
    found = records.records_of(platform, "run-5")
    commits = [one for record in found for one in record.content.get("committed", [])]
    assert [one["summary"]["backfill.action"] for one in commits] == ["publish", "rollback"]
    for one in commits:
        files = [one["manifestList"], *one["manifests"], one["metadata"]]
        assert all(len(file["sha256"]) == 64 for file in files)
        assert one["manifests"]
        assert one["fields"]["1"][0] == "meter"
    both = [one for record in records.records_of(platform, "run-4") for one in record.content.get("committed", [])]
    assert [one["table"] for one in both] == ["silver.readings_corrections", READINGS]


# --- actions that are not on record yet -------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@contextmanager
def killed_at(point: str) -> Iterator[None]:
    def reach(here: str) -> None:
        if here == point:
            raise Killed

    with mock.patch.object(faults, "reach", reach), pytest.raises(Killed):
        yield


MERGE = {"merge": {"entities": ["m0", "m3"]}}
MODES: dict[str, tuple[str, tuple[str, str], dict[str, Any]]] = {
    "replaced": ("REPLACE_PARTITIONS", ("2020-01-01", "2020-03-31"), {}),
    "merged": ("MERGE_BY_KEY", ("2020-01-01", "2020-02-29"), MERGE),
    "swapped": ("SHADOW_SWAP", small_table.SCOPE, {}),
    "versioned": ("VERSIONED", small_table.SCOPE, {"version": "v9"}),
    "version-later": ("VERSIONED", small_table.SCOPE, {"version": "v9", "acceptance": "LATER"}),
    "beside": ("CORRECTION_EVENTS", ("2020-02-01", "2020-02-29"), {"corrections": "BESIDE"}),
    "instead": ("CORRECTION_EVENTS", ("2020-02-01", "2020-02-29"), {"corrections": "INSTEAD"}),
    "appended": ("APPEND_ONLY", ("2020-07-01", "2020-08-31"), {}),
}
PUBLISHING = [f"publishing.{name}" for name in ("tagged", "prepared", "halfway", "committed")]


def reached(action: Callable[[], object], point: str) -> bool:
    """Have an action killed at a point; return whether it got there, or did not pass it and is done."""
    try:
        with killed_at(point):
            action()
    except pytest.fail.Exception:
        return False
    return True


@pytest.mark.parametrize("point", PUBLISHING)
@pytest.mark.parametrize("mode", MODES)
def test_what_an_interrupted_publication_has_done_so_far_is_no_alarm(platform: Platform, mode: str, point: str) -> None:
    how, scope, options = MODES[mode]
    planned(platform, manifest("next", how, scope, computed_by="2", **options))
    staged(platform, "next")
    if reached(lambda: publish(platform, "next"), point):
        reached(lambda: publish(platform, "next"), point)  # again, by a process that ends there as well
        assert said(platform) == []
        publish(platform, "next")
        assert said(platform, data=False) == []


@pytest.mark.parametrize("point", ["undoing.halfway", "undoing.committed"])
@pytest.mark.parametrize("mode", MODES)
def test_what_an_interrupted_undoing_has_done_so_far_is_no_alarm(platform: Platform, mode: str, point: str) -> None:
    how, scope, options = MODES[mode]
    planned(platform, manifest("next", how, scope, computed_by="2", **options))
    staged(platform, "next")
    publish(platform, "next")
    for action in (rollback, reinstate):
        if reached(lambda action=action: action(platform, "next"), point):
            assert said(platform) == [], action.__name__
            action(platform, "next")
    assert said(platform, data=False) == []


def test_what_an_interrupted_acceptance_has_done_is_no_alarm(platform: Platform) -> None:
    how, scope, options = MODES["version-later"]
    planned(platform, manifest("next", how, scope, computed_by="2", **options))
    staged(platform, "next")
    publish(platform, "next")
    with killed_at("accepting.committed"):
        accept(platform, "next")
    assert said(platform) == []
    accept(platform, "next")
    assert said(platform) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_record_whose_process_ended_before_its_link_gets_it_whatever_it_is_of(platform: Platform, mode: str) -> None:
    how, scope, options = MODES[mode]
    planned(platform, manifest("next", how, scope, computed_by="2", **options))
    staged(platform, "next")
    for action in (publish, rollback, reinstate, *([accept] if "acceptance" in options else [])):
        with killed_at("recording.written"):
            action(platform, "next")
        assert mend(platform)[1] == [], action.__name__
        assert said(platform, data=False) == [], action.__name__


def test_what_was_done_and_told_is_not_told_again_whatever_came_after_it(platform: Platform) -> None:
    how, scope, options = MODES["version-later"]
    planned(platform, manifest("next", how, scope, computed_by="2", **options))
    staged(platform, "next")
    for action in (publish, rollback, reinstate, accept):
        action(platform, "next")
    told = [one.name for one in records.records_of(platform, "next")]
    for action in (publish, reinstate, accept):
        action(platform, "next")
    assert [one.name for one in records.records_of(platform, "next")] == told
    assert said(platform, data=False) == []


def test_what_misleads_readers_of_the_corrections_or_of_a_target_beside_them_is_named(platform: Platform) -> None:
    how, scope, options = MODES["instead"]
    planned(platform, manifest("next", how, scope, computed_by="2", **options))
    staged(platform, "next")
    publish(platform, "next")
    assert said(platform, data=False) == []
    for name, edit in ((small_table.CORRECTIONS, _log_ends_elsewhere), (READINGS, _base_has_an_age)):
        file = Path(local_path(platform.lakehouse.table(name).metadata_location))
        content = json.loads(file.read_bytes())
        edit(content)
        file.write_text(json.dumps(content))
    of_the_first, of_the_last = ({one.where for one in verify(platform, [run]).everything} for run in ("run-4", "next"))
    assert f"{small_table.CORRECTIONS} snapshot log" in of_the_first
    assert f"{READINGS} ref before-next max-ref-age-ms" in of_the_last


def _log_ends_elsewhere(content: dict[str, Any]) -> None:
    content["snapshot-log"].pop()


def _base_has_an_age(content: dict[str, Any]) -> None:
    content["refs"]["before-next"]["max-ref-age-ms"] = 1


def test_what_an_interrupted_publication_did_to_a_chunk_that_others_had_compacted_is_no_alarm(
    platform: Platform,
) -> None:
    for seed in range(3):
        History(platform, random.Random(seed)).compacted()
    assert said(platform) == []
    how, scope, options = MODES["replaced"]
    planned(platform, manifest("next", how, scope, computed_by="1", **options))
    staged(platform, "next")
    with killed_at("publishing.committed"):
        publish(platform, "next")
    assert said(platform) == []


def _row(platform: Platform, day: date) -> arrow.Table:
    schema = schema_to_pyarrow(platform.lakehouse.table(READINGS).schema())
    constants = dict.fromkeys(("run_id", "processing_mode", "transform_version"), "waiting")
    row = {"meter": "m9", "day": day, "value": 666, "input_snapshot_id": 1, **constants}
    return arrow.Table.from_pylist([row], schema=schema)


def _claim(platform: Platform) -> dict[str, str]:
    """Return what a snapshot of the run that waits says of itself, once it is sealed."""
    change = change_of(platform, platform.ledger.run("waiting"), platform.ledger.chunks("waiting"))
    return change.properties("publish", 1, platform.evidence.verify("waiting"))


def _elsewhere(platform: Platform, claim: Mapping[str, str]) -> None:
    platform.lakehouse.table(READINGS).append(_row(platform, date(2020, 1, 9)), snapshot_properties=dict(claim))


def _beside(platform: Platform, claim: Mapping[str, str]) -> None:
    platform.lakehouse.table(READINGS).append(_row(platform, date(2020, 5, 9)), snapshot_properties=dict(claim))


def _committed(platform: Platform, claim: Mapping[str, str], places: Sequence[str], gone: Sequence[Any] = ()) -> None:
    table = platform.lakehouse.table(READINGS)
    new = [parquet_file_to_data_file(table.io, table.metadata, place) for place in places]
    commit_replacement(table, AlwaysTrue(), list(gone), new, dict(claim))


def _own(platform: Platform) -> list[str]:
    return [file.path for chunk in platform.ledger.chunks("waiting") for file in chunk.files]


def _not_all(platform: Platform, claim: Mapping[str, str]) -> None:
    _committed(platform, claim, _own(platform)[:-1])


def _and_more(platform: Platform, claim: Mapping[str, str]) -> None:
    entry = Forger(platform, random.Random(SEED))._entry()
    copy, _ = Forger(platform, random.Random(SEED))._copy(entry)
    _committed(platform, claim, [*_own(platform), f"file://{copy}"])


def _and_without_another(platform: Platform, claim: Mapping[str, str]) -> None:
    entry = Forger(platform, random.Random(SEED))._entry()
    _committed(platform, claim, _own(platform), [entry.file])


@pytest.mark.parametrize("forge", [_elsewhere, _beside, _not_all, _and_more, _and_without_another])
@pytest.mark.parametrize("how", ["by name", "by all it says"])
def test_a_snapshot_that_names_an_interrupted_run_and_is_not_its_own_is_named(
    platform: Platform, forge: Callable[[Platform, Mapping[str, str]], None], how: str
) -> None:
    with killed_at("publishing.tagged"):
        publish(platform, "waiting")
    assert said(platform) == []
    claim = _claim(platform)
    forge(platform, {RUN_PROPERTY: "waiting"} if how == "by name" else claim)
    main = platform.lakehouse.table(READINGS).current_snapshot()
    assert main is not None
    found = said(platform, data=False)
    assert any("never committed it" in one and str(main.snapshot_id) in one for one in found)
    changes_readers = forge in {_elsewhere, _and_more, _and_without_another}
    assert changes_readers is any("readers get other files than those accepted" in one for one in found)


def test_a_snapshot_that_was_there_before_a_run_set_out_to_publish_is_not_excused_by_it(platform: Platform) -> None:
    with killed_at("publishing.tagged"):
        publish(platform, "waiting")
    _committed(platform, _claim(platform), _own(platform))
    with platform.ledger.engine.begin() as connection:
        connection.execute(
            publications.update()
            .where(publications.c.run_id == "waiting")
            .values(started_at=datetime.now(UTC) + timedelta(hours=1))
        )
    assert any("never committed it" in one for one in said(platform))


def test_an_intent_that_somebody_has_written_into_the_ledger_excuses_nothing(platform: Platform) -> None:
    with killed_at("publishing.sealed"):
        publish(platform, "waiting")
    claim = _claim(platform)
    with closing(sqlite3.connect(platform.settings.home / "ledger.db")) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(publications)") if row[1] != "id"]
        names = ", ".join(columns)
        cells = {"run_id": "'waiting'", "state": "'INTENT'", "evidence_root": f"'{claim[EVIDENCE_PROPERTY]}'"}
        values = ", ".join(cells.get(name, name) for name in columns)
        connection.execute(f"INSERT INTO publications ({names}) SELECT {values} FROM publications WHERE id = 1")
        connection.commit()
    _committed(platform, claim, _own(platform))
    found = said(platform)
    assert any("never committed it" in one for one in found)
    assert any(one.startswith("ledger publications ") for one in found)


def test_a_version_that_names_another_snapshot_is_named_while_its_run_is_interrupted(platform: Platform) -> None:
    with killed_at("undoing.halfway"):
        rollback(platform, "run-3")
    assert said(platform) == []
    table = platform.lakehouse.table(READINGS)
    oldest = table.snapshots()[0].snapshot_id
    table.manage_snapshots().remove_tag("v1").commit()
    platform.lakehouse.table(READINGS).manage_snapshots().create_tag(oldest, "v1").commit()
    assert any("version " in one and "does not name the snapshot" in one for one in said(platform))
