"""The doctor finds what disagrees, repairs what is safe, and leaves a healthy installation alone."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from pyiceberg.manifest import clear_manifest_cache
from support import moved
from worlds import FEW_GATES, TARGET, World, keep, killed_at, make_world

from backfill_assets.audit.verification import verify
from backfill_assets.cli.base import EXIT_FAILED
from backfill_assets.cli.command import cli
from backfill_assets.gates.judging import gate_chunks, gate_run
from backfill_assets.operations.doctor import attempts as doctor_attempts
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from backfill_assets.staging.executor import stage_chunks
from benchmarks.changed_bytes import overwrite
from manifests.errors import PublicationRefused, Refused, TransitionRefused
from manifests.lifecycle import RunState
from resources.lakehouse.facade import RUN_PROPERTY, local_path
from resources.lakehouse.storage import Storage, place_of
from resources.ledger.facade import ChunkState
from resources.ledger.tables import attempts, freezes, leases, publications, runs
from resources.ledger.transactions import system_clock as now
from resources.processes import name_of

pytestmark = pytest.mark.matrix

YEAR = (date(2010, 1, 1), date(2010, 12, 31))


@pytest.fixture(scope="module")
def put_back(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], World]:
    folder = tmp_path_factory.mktemp("doctor")
    world = make_world(folder / "home", cases=150, start=YEAR[0], end=YEAR[1], gates=FEW_GATES)
    world.published(world.manifest("history", version="2.4.1"))
    world.published(world.manifest("fixed", target=world.scope(date(2010, 3, 1), date(2010, 5, 31))))
    world.validated(world.manifest("validated", target=world.scope(date(2010, 9, 1), date(2010, 10, 31))))
    staged = world.approved(world.manifest("staged", target=world.scope(date(2010, 6, 1), date(2010, 7, 31))))
    stage_chunks(world.platform, "staged", [chunk.key for chunk in staged.plan.chunks])
    gate_chunks(world.platform, "staged")
    return keep(world, folder / "copy")


@pytest.fixture
def world(put_back: Callable[[], World]) -> World:
    return put_back()


def kinds(found: list[Disagreement]) -> list[str]:
    return [one.kind for one in found]


def only(found: list[Disagreement]) -> Disagreement:
    assert len(found) == 1, [one.shown() for one in found]
    return found[0]


def change(world: World, statement: sa.Executable) -> None:
    with world.platform.ledger.engine.begin() as connection:
        connection.execute(statement)


def file_of(world: World, run_id: str, index: int = 0) -> Path:
    return Path(local_path(world.platform.ledger.chunks(run_id)[index].files[0].path))


def state(world: World, run_id: str) -> RunState:
    return world.platform.ledger.run(run_id).state


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def of_the_dead() -> dict[str, Any]:
    pid = dead_pid()
    return {"pid": pid, "process": name_of(pid)}


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_nothing_disagrees_in_a_healthy_installation_and_looking_changes_nothing(world: World) -> None:
    assert examine(world.platform) == []  # and opens the databases, which makes their journals
    before = content(world.home / "warehouse") | content(world.home / "evidence")
    with world.platform.ledger.engine.connect() as connection:
        rows = {
            table: connection.execute(sa.text(f"select * from {table}")).all() for table in ("runs", "publications")
        }
    assert mend(world.platform) == ([], [])
    assert content(world.home / "warehouse") | content(world.home / "evidence") == before
    with world.platform.ledger.engine.connect() as connection:
        assert rows == {table: connection.execute(sa.text(f"select * from {table}")).all() for table in rows}


def test_a_publication_that_landed_unrecorded_is_recorded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with killed_at("publishing.committed", monkeypatch):
        publish(world.platform, "validated")
    snapshots = world.snapshots()
    found = examine(world.platform)
    assert "publication-unrecorded" in kinds(found)
    assert "accepted-files-differ" not in kinds(found)  # it is recorded first, and nothing is restated for it
    assert state(world, "validated") is RunState.VALIDATED  # it was only looked at
    repaired, left = mend(world.platform)
    assert left == []
    assert "publication-unrecorded" in [one.found.kind for one in repaired]
    assert state(world, "validated") is RunState.PUBLISHED
    assert world.snapshots() == snapshots  # nothing was published twice
    states = [entry.state for entry in world.platform.ledger.publications("validated")]
    assert states == ["COMMITTED"]  # under the very intent whose process ended
    assert examine(world.platform) == []


def test_a_rollback_that_landed_unrecorded_is_recorded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = world.rows()
    with killed_at("undoing.committed", monkeypatch):
        rollback(world.platform, "fixed")
    undone = world.rows()
    assert not undone.equals(before)
    repaired, left = mend(world.platform)
    assert (left, state(world, "fixed")) == ([], RunState.ROLLED_BACK)
    assert len(repaired) == 1  # recorded; that has closed the first intent, too
    assert world.platform.ledger.accepted(TARGET)["2010-03"] == "history"
    # and the same of its undoing, and of another rollback
    for change, after, rows in ((reinstate, RunState.PUBLISHED, before), (rollback, RunState.ROLLED_BACK, undone)):
        with killed_at("undoing.committed", monkeypatch):
            change(world.platform, "fixed")
        assert state(world, "fixed") is not after
        assert mend(world.platform)[1] == []
        assert state(world, "fixed") is after
        assert world.rows().equals(rows)
    assert len(world.snapshots()) == 5


def test_a_publication_recorded_and_not_told_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with killed_at("publishing.recorded", monkeypatch):
        publish(world.platform, "validated")
    assert only(examine(world.platform)).kind == "evidence-not-told"
    repaired, left = mend(world.platform)
    assert (len(repaired), left) == (1, [])
    assert (world.home / "evidence" / "validated" / "records" / "publish.json").is_file()


def test_an_intent_that_did_not_land_is_in_doubt_while_its_run_may_still_be_published(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_at("publishing.tagged", monkeypatch):
        publish(world.platform, "validated")
    assert only(examine(world.platform)).kind == "intent-left-open"  # its lease has ended
    change(world, publications.update().where(publications.c.state == "INTENT").values(token=None))  # who is at it?
    found = only(examine(world.platform))
    assert (found.kind, found.sure, found.repair) == ("intent-in-doubt", "possible", None)
    assert mend(world.platform)[0] == []
    moved(world.platform.ledger, "validated", RunState.CANCELLED, "ana", "nobody wants it")
    assert only(examine(world.platform)).repair is not None
    assert mend(world.platform)[1] == []
    assert [entry.state for entry in world.platform.ledger.publications("validated")] == ["REFUSED"]


def test_an_intent_of_a_lease_whose_process_is_dead_is_closed_and_the_run_can_be_published(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_at("publishing.tagged", monkeypatch):
        publish(world.platform, "validated")
    lease = {
        "target": TARGET,
        "start_day": YEAR[0],
        "end_day": YEAR[1],
        "run_id": "validated",
        "action": "publish",
        "host": socket.gethostname(),
        "acquired_at": now(),
        "expires_at": now() + timedelta(hours=1),
    }
    change(world, leases.insert().values(id=7, pid=os.getpid(), **lease))
    change(world, publications.update().where(publications.c.state == "INTENT").values(token=7))
    assert only(examine(world.platform)).kind == "intent-in-doubt"  # its process lives: we are it
    change(world, leases.update().values(**of_the_dead(), ended_at=now()))
    repaired, left = mend(world.platform)
    assert (len(repaired), left) == (1, [])
    publish(world.platform, "validated")
    assert examine(world.platform) == []


def test_what_landed_of_a_run_that_was_cancelled_is_said_and_left_to_people(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_at("publishing.committed", monkeypatch):
        publish(world.platform, "validated")
    moved(world.platform.ledger, "validated", RunState.CANCELLED, "ana", "it did not work")
    repaired, left = mend(world.platform)
    assert repaired == []
    assert kinds(left)[0] == "publication-unrecorded"
    assert "readers see what a CANCELLED run wrote" in left[0].fix


def test_snapshots_that_no_run_made_are_named(world: World) -> None:
    table = world.platform.lakehouse.table(TARGET)
    table.append(table.scan(limit=1).to_arrow())
    foreign = table.current_snapshot().snapshot_id
    table.append(table.scan(limit=1).to_arrow(), snapshot_properties={RUN_PROPERTY: "from-elsewhere"})
    found = {one.kind: one for one in examine(world.platform)}
    assert str(foreign) in found["foreign-write"].where
    assert "from-elsewhere" in found["unknown-run"].what
    assert "holds 2 others" in found["accepted-files-differ"].what
    assert mend(world.platform)[0] == []


def test_a_chunk_that_lost_its_accepted_files_to_somebody_is_named(world: World) -> None:
    world.platform.lakehouse.table(TARGET).delete("business_date < '2010-02-01'")
    found = [one for one in examine(world.platform) if one.kind == "accepted-files-differ"]
    assert "2010-01" in only(found).where
    assert "accepted from run history; the table lacks 1 of the run's files and holds 0 others" in only(found).what


def test_an_attempt_of_a_dead_process_is_ended_and_the_run_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = world.approved(world.manifest("dying", target=world.scope(date(2010, 11, 1), date(2010, 12, 31))))
    keys = [chunk.key for chunk in record.plan.chunks]
    with killed_at("staging.written", monkeypatch):
        stage_chunks(world.platform, "dying", keys)
    assert examine(world.platform) == []  # its process, this one, lives
    change(world, attempts.update().where(attempts.c.run_id == "dying").values(**of_the_dead()))
    found = only(examine(world.platform))
    assert (found.kind, found.sure, found.where) == ("attempt-of-dead-process", "certain", "dying attempt 1")
    assert found.fix == "record that it ended; `backfill run dying` goes on from what is staged"
    with monkeypatch.context() as patch:
        patch.setattr(doctor_attempts, "COMPUTABLE", set(RunState) - {state(world, "dying")})
        assert only(examine(world.platform)).fix == "record that it ended"  # nobody goes on with a run that is over
    repaired, left = mend(world.platform)
    assert (len(repaired), left) == (1, [])
    (attempt,) = world.platform.ledger.attempts("dying")
    assert (attempt.state, attempt.error) == ("FAILED", "process ended")
    with pytest.raises(TransitionRefused, match="attempt 1 of run 'dying' was ended"):
        world.platform.ledger.stage("dying", 1, {key: [] for key in keys})  # it lived after all: its files are not used
    assert [chunk.state for chunk in world.platform.ledger.chunks("dying")] == [ChunkState.PLANNED] * 2
    world.stage(record)
    assert state(world, "dying") is RunState.VALIDATED


def test_an_attempt_on_another_machine_is_only_asked_about(world: World) -> None:
    elsewhere = {"state": "RUNNING", "host": "another-machine", "pid": 1}
    only_staged = attempts.update().where(attempts.c.run_id == "staged")
    change(world, only_staged.values(**elsewhere))
    assert examine(world.platform) == []
    change(world, only_staged.values(started_at=now() - timedelta(days=2)))
    found = only(examine(world.platform))
    assert (found.kind, found.repair) == ("attempt-elsewhere", None)


def remove(file: Path) -> None:
    file.unlink()


def shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def spoil(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-8] + b"\0" * 8)


@pytest.mark.parametrize(
    ("damage", "said"), [(remove, "is missing"), (shorten, "bytes, not"), (spoil, "cannot be read")]
)
def test_a_damaged_staged_chunk_is_computed_again(world: World, damage: Callable[[Path], None], said: str) -> None:
    digests = world.digests("staged")
    damage(file_of(world, "staged", 1))
    found = only(examine(world.platform))
    assert (found.kind, found.where) == ("staged-file-damaged", "staged chunk 2010-07")
    assert said in found.what
    repaired, left = mend(world.platform)
    assert (len(repaired), left) == (1, [])
    assert state(world, "staged") is RunState.RUNNING
    first, second = world.platform.ledger.chunks("staged")
    assert (first.state, second.state, second.files) == (ChunkState.PASSED, ChunkState.PLANNED, ())
    outcome = stage_chunks(world.platform, "staged", ["2010-06", "2010-07"])
    assert (outcome.computed, outcome.skipped) == (["2010-07"], ["2010-06"])
    gate_chunks(world.platform, "staged")
    gate_run(world.platform, "staged")
    assert world.digests("staged") == digests
    publish(world.platform, "staged")
    assert examine(world.platform) == []


def test_a_staged_file_that_could_not_be_read_just_now_is_reported_and_not_computed_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = str(file_of(world, "staged", 1))
    rows = Storage.rows

    def stale(storage: Storage, path: str) -> int:
        if path == lost:
            raise OSError("Stale file handle")
        return rows(storage, path)

    monkeypatch.setattr(Storage, "rows", stale)
    repaired, left = mend(world.platform)
    assert (repaired, only(left).kind, only(left).sure) == ([], "file-unreadable", Confidence.POSSIBLE)
    assert state(world, "staged") is RunState.STAGED


def test_damaged_staging_of_a_validated_run_is_reported_only(world: World) -> None:
    file_of(world, "validated").unlink()
    repaired, left = mend(world.platform)
    assert (repaired, only(left).kind, only(left).repair) == ([], "staged-file-damaged", None)
    assert "backfill cancel validated" in only(left).fix
    assert state(world, "validated") is RunState.VALIDATED


@pytest.mark.parametrize("damage", [remove, shorten, spoil])
def test_damaged_published_files_are_data_loss(world: World, damage: Callable[[Path], None]) -> None:
    damage(file_of(world, "fixed"))
    repaired, left = mend(world.platform)
    assert repaired == []
    assert only(left).kind == "DATA-LOSS"
    assert "run fixed" in only(left).where
    assert "(chunk 2010-03)" in only(left).what


def test_a_file_that_only_an_older_snapshot_has_is_missed_as_well(world: World) -> None:
    file_of(world, "history", 3).unlink()  # April, which `fixed` replaced: a rollback would need it
    found = only(examine(world.platform))
    assert (found.kind, found.where) == ("DATA-LOSS", f"{TARGET} older snapshots")


def halved(file: Path) -> None:
    overwrite(file, file.read_bytes()[: file.stat().st_size // 2])


def scrambled(file: Path) -> None:
    """Change what lies behind the header, which is half of such a small file: the compressed block is none any more."""
    raw = file.read_bytes()
    overwrite(file, raw[: -len(raw) // 8] + bytes(255 - one for one in raw[-len(raw) // 8 : -16]) + raw[-16:])


@pytest.mark.parametrize("damage", [Path.unlink, halved, scrambled])
@pytest.mark.parametrize("which", ["list", "manifest"])
def test_unreadable_metadata_is_data_loss_and_no_crash(
    world: World, which: str, damage: Callable[[Path], None]
) -> None:
    table = world.platform.lakehouse.table(TARGET)
    oldest = min(table.snapshots(), key=lambda snapshot: snapshot.timestamp_ms)
    path = oldest.manifest_list if which == "list" else oldest.manifests(table.io)[0].manifest_path
    clear_manifest_cache()
    damage(Path(place_of(path)))
    assert "DATA-LOSS" in kinds(examine(world.platform))
    found = verify(world.platform).everything
    assert any(Path(path).name in f"{one.where} {one.what}" for one in found), found


def test_damaged_evidence_of_a_published_run_is_named(world: World) -> None:
    bundle = world.platform.evidence.path("fixed")
    (bundle / "plan.json").chmod(0o644)
    (bundle / "plan.json").write_text("{}")
    found = only(examine(world.platform))
    assert (found.kind, found.where) == ("evidence-damaged", "fixed")
    assert "plan.json" in found.what
    shutil.rmtree(bundle)
    assert "there is no evidence" in only(examine(world.platform)).what
    world.platform.evidence.seal("fixed", {"plan.json": {"another": "plan"}})
    assert only(examine(world.platform)).kind == "evidence-replaced"


@pytest.mark.parametrize("damage", [lambda file: overwrite(file, b""), Path.unlink], ids=["emptied", "removed"])
@pytest.mark.parametrize("name", ["publish", "told-2", "reinstate-3"])
def test_a_damaged_record_is_named_as_what_to_restore_and_nothing_is_made_up_for_it(
    world: World, name: str, damage: Callable[[Path], None]
) -> None:
    rollback(world.platform, "fixed")
    reinstate(world.platform, "fixed")
    store = world.platform.evidence
    file = store.records("fixed") / f"{name}.json"
    raw, snapshots = file.read_bytes(), world.snapshots()
    there, length = {one.name for one in store.records("fixed").iterdir()}, store.chain.length()
    damage(file)
    repaired, left = mend(world.platform)
    found = only(left)
    assert repaired == []
    assert (found.kind, found.where, found.repair) == ("record-damaged", f"fixed record {name}", None)
    assert str(file) in found.fix
    assert "restore this file from a backup" in found.fix
    with pytest.raises(Refused, match=f"{name}.json"):
        rollback(world.platform, "fixed")
    assert (world.snapshots(), store.chain.length()) == (snapshots, length)
    assert {one.name for one in store.records("fixed").iterdir()} - {file.name} == there - {file.name}
    overwrite(file, raw) if file.exists() else file.write_bytes(raw)
    assert examine(world.platform) == []
    assert verify(world.platform).everything == []


def test_another_run_goes_on_past_a_damaged_record_and_the_doctor_completes_it_once_it_is_restored(
    world: World,
) -> None:
    file = world.platform.evidence.records("history") / "superseded-3.json"
    raw = file.read_bytes()
    overwrite(file, b"")
    publish(world.platform, "validated")  # supersedes some of it
    assert kinds(mend(world.platform)[1]) == ["record-damaged"]
    overwrite(file, raw)
    assert kinds(examine(world.platform)) == ["evidence-behind"]
    assert mend(world.platform)[1] == []
    assert verify(world.platform).everything == []


def test_a_missing_base_tag_is_made_again_and_a_moved_one_reported(world: World) -> None:
    table = world.platform.lakehouse.table(TARGET)
    base = table.refs()["before-fixed"].snapshot_id
    table.manage_snapshots().remove_tag("before-fixed").commit()
    assert only(examine(world.platform)).kind == "base-tag-missing"
    repaired, left = mend(world.platform)
    assert (len(repaired), left) == (1, [])
    table.refresh()
    assert table.refs()["before-fixed"].snapshot_id == base
    table.manage_snapshots().remove_tag("before-fixed").commit()
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "before-fixed").commit()
    assert only(examine(world.platform)).kind == "base-tag-moved"


def test_a_publication_that_left_the_history_is_named_and_not_rolled_back_to_nothing(world: World) -> None:
    table = world.platform.lakehouse.table(TARGET)
    base = table.refs()["before-fixed"].snapshot_id
    table.manage_snapshots().remove_tag("before-fixed").commit()
    table.maintenance.expire_snapshots().by_id(base).commit()  # as another program might
    rows = world.rows()
    assert kinds(examine(world.platform)) == ["publication-not-in-history"]  # of `history`
    with pytest.raises(PublicationRefused, match="has expired"):
        rollback(world.platform, "fixed")
    assert world.rows().equals(rows)


def test_expired_leases_and_freezes_are_found_and_freezes_ended(world: World) -> None:
    days = {"target": TARGET, "start_day": YEAR[0], "end_day": YEAR[1], "run_id": "validated"}
    early, late = now() - timedelta(hours=2), now() + timedelta(hours=2)
    process = {"action": "publish", "host": "here", "pid": 1, "acquired_at": early}
    change(world, leases.insert().values(**days, **process, expires_at=late))
    change(world, freezes.insert().values(**days, from_at=early, until_at=late))
    assert examine(world.platform) == []
    past = early + timedelta(hours=1)
    change(world, leases.update().values(expires_at=past))
    change(world, freezes.update().values(until_at=past))
    assert sorted(kinds(examine(world.platform))) == ["freeze-over", "lease-expired"]
    repaired, left = mend(world.platform)
    assert [one.found.kind for one in repaired] == ["freeze-over"]
    assert kinds(left) == ["lease-expired"]


def test_records_of_the_future_say_that_the_clock_was_set_back(world: World) -> None:
    change(world, runs.update().where(runs.c.run_id == "staged").values(updated_at=now() + timedelta(hours=1)))
    found = only(examine(world.platform))
    assert (found.kind, found.repair) == ("clock-behind", None)
    assert "runs.updated_at" in found.what


def test_the_command_says_what_disagrees_repairs_and_exits_by_what_is_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    run = CliRunner().invoke
    untold = {one["kind"] for one in json.loads(run(cli, ["doctor", "--json"]).stdout)["findings"]}
    assert untold == {"dagster-not-told"}, "no command has published here"
    assert run(cli, ["doctor", "--repair"]).exit_code == 0
    assert run(cli, ["doctor"]).exit_code == 0
    assert json.loads(run(cli, ["doctor", "--json"]).stdout) == {"repaired": [], "findings": []}
    world.platform.lakehouse.table(TARGET).manage_snapshots().remove_tag("before-fixed").commit()
    looked = run(cli, ["doctor", "--json"])
    assert looked.exit_code == EXIT_FAILED
    (finding,) = json.loads(looked.stdout)["findings"]
    assert (finding["kind"], finding["sure"], finding["repairable"]) == ("base-tag-missing", "certain", True)
    assert "before-fixed" in run(cli, ["doctor"]).stdout
    repaired = run(cli, ["doctor", "--repair"])
    assert repaired.exit_code == 0, repaired.stdout
    assert "created tag before-fixed" in " ".join(repaired.stdout.split())
    file_of(world, "fixed").unlink()
    lost = run(cli, ["doctor", "--repair"])
    assert lost.exit_code == EXIT_FAILED
    assert "DATA LOSS" in lost.stdout
