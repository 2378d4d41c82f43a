"""Collecting garbage takes what nothing needs, and nothing else: every snapshot that is left can be read whole."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import moved
from worlds import FEW_GATES, TARGET, Killed, World, keep, killed_at, make_world

from backfill_assets import faults
from backfill_assets.cli.base import EXIT_REFUSED
from backfill_assets.cli.command import cli, main
from backfill_assets.evidence.events import GC
from backfill_assets.operations import garbage as garbage_module
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.operations.garbage import collect, find
from backfill_assets.operations.garbage_found import MANIFEST, OUTLINE, STAGED, TableGarbage
from backfill_assets.publication.accepting import accept
from backfill_assets.publication.publisher import prepare, publish
from backfill_assets.publication.undoing import reinstate, rollback
from manifests.errors import EnvironmentRefused, PublicationRefused
from manifests.lifecycle import RunState
from resources.lakehouse import history
from resources.lakehouse.facade import local_path
from resources.lakehouse.storage import Storage, place_of
from resources.ledger.tables import attempts, chunks, runs
from resources.ledger.transactions import system_clock as now

YEAR = (date(2010, 1, 1), date(2010, 12, 31))
SPRING = (date(2010, 3, 1), date(2010, 5, 31))
AUTUMN = (date(2010, 9, 1), date(2010, 10, 31))
MONTHS, YEARS = timedelta(days=60), timedelta(days=800)
"""Past the retention of dead runs and snapshots; past that of superseded runs as well."""


@dataclass
class Kept:
    """Moments of one installation; calling one puts it back.

    `alive`: an accepted run and a validated one. `mixed`: a superseded, an accepted, a rolled back, a rejected and a
    validated run, and `spring`, which holds part of the scope. `grown`: everything superseded once more.
    """

    alive: Callable[[], World]
    mixed: Callable[[], World]
    grown: Callable[[], World]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    folder = tmp_path_factory.mktemp("gc")
    world = make_world(folder / "home", cases=150, start=YEAR[0], end=YEAR[1], gates=FEW_GATES)
    world.published(world.manifest("history", version="2.4.1"))
    world.validated(world.manifest("rejected", target=world.scope(*SPRING)))
    alive = keep(world, folder / "alive")
    world.published(world.manifest("whole"))
    with pytest.raises(PublicationRefused):
        publish(world.platform, "rejected")
    world.published(world.manifest("undone", target=world.scope(*AUTUMN)))
    rollback(world.platform, "undone")
    world.published(world.manifest("spring", target=world.scope(*SPRING)))
    world.validated(world.manifest("open", target=world.scope(*AUTUMN)))
    mixed = keep(world, folder / "mixed")
    rollback(world.platform, "spring")
    world.published(world.manifest("newest"))
    return Kept(alive, mixed, keep(world, folder / "grown"))


@pytest.fixture
def world(kept: Kept) -> World:
    return kept.mixed()


def data(world: World) -> Path:
    return Path(local_path(world.platform.lakehouse.location(TARGET)))


def paths(world: World) -> set[str]:
    return {str(path) for path in data(world).parent.rglob("*") if path.is_file()}


def readable(world: World) -> dict[int, int]:
    """Read every snapshot of the target whole; return its rows."""
    table = world.platform.lakehouse.table(TARGET)
    return {one.snapshot_id: table.scan(snapshot_id=one.snapshot_id).to_arrow().num_rows for one in table.snapshots()}


def garbage(world: World, at: datetime) -> TableGarbage:
    """Return what can go of the target, and nothing of its corrections, which no run of these tests makes."""
    found, corrections = (one for one in find(world.platform, at=at) if one.target == TARGET)
    assert (corrections.refs, corrections.snapshots, corrections.files) == ((), (), ())
    return found


def by_owner(found: TableGarbage, kind: str | None = None) -> Counter[str]:
    return Counter(item.owner for item in found.files if kind in {None, item.kind})


def sweep(world: World, at: datetime) -> int:
    """Collect what there is at an instant; return how many files went."""
    return sum(one.files for one in collect(world.platform, find(world.platform, at=at), by="ana", at=at))


def failed_attempt(world: World, run_id: str) -> Path:
    """Leave behind what an attempt leaves that failed while Spark was writing; return its folder."""
    ledger = world.platform.ledger
    before = ledger.run(run_id)
    with ledger.engine.begin() as connection:  # as if its run were computing
        connection.execute(runs.update().where(runs.c.run_id == run_id).values(state="RUNNING"))
        found = connection.execute(sa.select(chunks).where(chunks.c.run_id == run_id)).first()
        assert found is not None
        own = (chunks.c.run_id == run_id, chunks.c.chunk == found.chunk)
        connection.execute(chunks.update().where(*own).values(state="PLANNED"))
    opened = ledger.start_attempt(
        run_id, [found.chunk], edition=0, actor="ana", location=world.platform.lakehouse.location(TARGET)
    )
    assert opened is not None
    number, prefix = opened
    folder = Path(local_path(prefix))
    for place in ("_temporary/0/task_1/chunk=2010-09-01", "chunk=2010-09-01"):
        (folder / place).mkdir(parents=True)
        shutil.copy(place_of(ledger.chunks("whole")[0].files[0].path), folder / place / "part-0.parquet")
    ledger.fail_attempt(run_id, number, "disk full")
    with ledger.engine.begin() as connection:
        connection.execute(chunks.update().where(*own).values(state=found.state))
        connection.execute(
            runs.update().where(runs.c.run_id == run_id).values(state=before.state, updated_at=before.updated_at)
        )
    return folder


def test_where_policy_keeps_everything_nothing_is_deleted(world: World) -> None:
    found = garbage(world, now())
    assert (found.refs, found.snapshots, found.files, dict(found.left)) == ((), (), (), {})
    before, snapshots = paths(world), readable(world)
    assert collect(world.platform, [found], by="ana", at=now()) == []
    assert (paths(world), readable(world)) == (before, snapshots)


def test_where_every_run_is_alive_nothing_ever_goes(kept: Kept) -> None:
    world = kept.alive()
    before = paths(world)
    found = garbage(world, now() + 10 * YEARS)
    assert (found.refs, found.snapshots, found.files) == ((), (), ())
    assert sweep(world, now() + 10 * YEARS) == 0
    assert paths(world) == before


def test_dead_runs_lose_their_files_and_every_snapshot_stays_readable(world: World) -> None:
    at = now() + MONTHS
    found = garbage(world, at)
    assert by_owner(found, STAGED).keys() == {"rejected", "undone"}
    assert by_owner(found, OUTLINE).keys() == {"rejected", "undone"}
    assert found.refs == ("before-undone",)
    # the publication of `undone` lies between those of `whole` and `history`, which are kept, and `spring`
    assert found.snapshots == (world.platform.ledger.publications("undone")[0].snapshot_id,)
    snapshots, rows = readable(world), world.rows()
    assert sweep(world, at) == len(found.files)
    assert readable(world) == {one: count for one, count in snapshots.items() if one not in found.snapshots}
    assert world.rows().equals(rows)
    assert not (data(world) / "run=rejected").exists()  # nor the folders that were left empty
    assert (data(world) / "run=open").exists()
    assert garbage(world, at).files == ()  # all of it went at once
    # everything can still be undone, one after the other, and the open run published
    publish(world.platform, "open")
    for run_id in ("open", "spring", "whole"):
        rollback(world.platform, run_id)
    assert world.rows()["run_id"].unique().to_list() == ["history"]
    assert examine(world.platform) == []


def test_what_an_accepted_run_replaced_is_kept_for_ever(world: World) -> None:
    found = garbage(world, now() + YEARS)
    assert world.platform.ledger.run("history").state is RunState.SUPERSEDED
    assert "before-whole" not in found.refs
    assert "history" not in by_owner(found, STAGED)
    sweep(world, now() + YEARS)
    for run_id in ("spring", "whole"):
        rollback(world.platform, run_id)
    assert world.rows()["run_id"].unique().to_list() == ["history"]


def test_superseded_runs_are_kept_as_long_as_policy_says_and_then_go(kept: Kept) -> None:
    world = kept.grown()
    assert by_owner(garbage(world, now() + MONTHS), STAGED).keys() == {"rejected", "undone"}
    at = now() + YEARS
    found = garbage(world, at)
    assert by_owner(found, STAGED).keys() == {"history", "undone", "rejected"}  # not `whole`, nor `open`
    assert set(found.refs) == {"before-whole", "before-undone", "before-spring"}
    rows, all_of_them = world.rows(), world.snapshots()
    # left are `newest` and its base, and the base that `open` was planned on: the publication of `spring`
    assert list(found.snapshots) == all_of_them[:-3]
    assert MANIFEST in {item.kind for item in found.files}
    sweep(world, at)
    assert list(readable(world)) == all_of_them[-3:]
    assert world.rows().equals(rows)
    assert not (data(world) / "run=history").exists()
    assert garbage(world, at).files == ()
    rollback(world.platform, "newest")
    assert world.rows()["run_id"].unique().to_list() == ["whole"]
    with pytest.raises(PublicationRefused, match="is not in the history"):
        rollback(world.platform, "whole")
    assert world.rows()["run_id"].unique().to_list() == ["whole"]


def test_a_run_whose_publication_is_in_doubt_keeps_everything(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with killed_at("publishing.tagged", monkeypatch):
        publish(world.platform, "open")
    moved(world.platform.ledger, "open", RunState.CANCELLED, "ana", "")
    assert "open" not in by_owner(garbage(world, now() + YEARS))


def test_ended_attempts_lose_what_no_chunk_names_and_running_ones_nothing(world: World) -> None:
    mine, running = failed_attempt(world, "open"), failed_attempt(world, "spring")
    fresh = garbage(world, now())
    assert fresh.files == ()  # somebody may be looking at them
    at = now() + timedelta(days=2)
    assert by_owner(garbage(world, at)) == {"open": 2, "spring": 2}
    with world.platform.ledger.engine.begin() as connection:
        connection.execute(runs.update().where(runs.c.run_id == "spring").values(state="RUNNING"))
    assert by_owner(garbage(world, at)) == {"open": 2}
    with world.platform.ledger.engine.begin() as connection:
        connection.execute(attempts.update().where(attempts.c.run_id == "open").values(state="RUNNING", ended_at=None))
    assert garbage(world, at).files == ()
    with world.platform.ledger.engine.begin() as connection:
        connection.execute(attempts.update().where(attempts.c.run_id == "open").values(state="FAILED", ended_at=now()))
    assert sweep(world, at) == 2
    assert not mine.exists()
    assert running.exists()
    assert publish(world.platform, "open").new


def test_old_scratch_and_forgotten_outlines_go(world: World) -> None:
    scratch = data(world) / "reproduce=spring-1" / "attempt-1" / "chunk=2010-03-01"
    scratch.mkdir(parents=True)
    (scratch / "part-0.parquet").write_bytes(b"x" * 10)
    outline = next((data(world) / "run=spring" / "outlines").glob("*.parquet"))
    shutil.copy(outline, outline.with_name("2010-03-forgotten.parquet"))
    assert garbage(world, now()).files == ()
    at = now() + timedelta(days=2)
    assert by_owner(garbage(world, at)) == {"reproduce=spring-1": 1, "spring": 1}
    assert sweep(world, at) == 2
    assert outline.is_file()
    assert not (data(world) / "reproduce=spring-1").exists()


def test_folders_of_unknown_runs_and_other_peoples_files_are_left_alone(world: World) -> None:
    for place in ("run=from-elsewhere/attempt-1/part.parquet", "run=no file of ours.txt", "theirs/part.parquet"):
        (data(world) / place).parent.mkdir(parents=True, exist_ok=True)
        (data(world) / place).write_bytes(b"theirs")
    found = garbage(world, now() + YEARS)
    assert dict(found.left) == {str(data(world) / "run=from-elsewhere"): "the ledger does not know this run"}
    sweep(world, now() + YEARS)
    assert (data(world) / "run=from-elsewhere" / "attempt-1" / "part.parquet").is_file()
    assert (data(world) / "run=no file of ours.txt").is_file()
    assert (data(world) / "theirs" / "part.parquet").is_file()


def test_links_are_neither_followed_nor_removed(world: World, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    precious = tmp_path / "outside" / "precious.parquet"
    precious.write_bytes(b"precious")
    (data(world) / "run=rejected" / "link").symlink_to(tmp_path / "outside")
    (data(world) / "run=rejected" / "file.parquet").symlink_to(precious)
    (data(world) / "reproduce=link").symlink_to(tmp_path / "outside")
    os.utime(precious, (0, 0))
    found = garbage(world, now() + MONTHS)
    assert not any("precious" in item.file.path or "link" in item.file.path for item in found.files)
    sweep(world, now() + MONTHS)
    assert precious.read_bytes() == b"precious"
    storage = Storage(world.platform.lakehouse.table(TARGET))
    linked = replace(found.files[0].file, path=str(data(world) / "run=rejected" / "link" / "precious.parquet"))
    outside = replace(linked, path=str(precious))
    upwards = replace(linked, path=f"{storage.location}/data/../../../x")
    assert [storage.inside(file.path) for file in (linked, outside, upwards)] == [False, False, False]
    assert not any(storage.delete(file) for file in (linked, outside, upwards))


def test_what_changed_after_the_listing_is_left_alone(world: World) -> None:
    at = now() + MONTHS
    listed = garbage(world, at)
    changed = next(item for item in listed.files if item.owner == "rejected" and item.kind == "staged")
    Path(changed.file.path).write_bytes(b"written since")
    appeared = data(world) / "run=rejected" / "attempt-1" / "appeared.parquet"
    appeared.write_bytes(b"new")
    done = collect(world.platform, [listed], by="ana", at=at)
    assert changed.file.path in done[0].left
    assert Path(changed.file.path).read_bytes() == b"written since"
    assert appeared.is_file()
    assert done[0].files == len(listed.files) - 1


def test_a_file_that_a_snapshot_references_by_now_is_left_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last look and the deletion somebody adds a dead run's files to the table: they are not deleted."""
    at = now() + MONTHS
    listed = garbage(world, at)
    adopted = [item.file.path for item in listed.files if item.owner == "rejected" and item.kind == "staged"]

    def adopt(point: str) -> None:
        if point == "collecting.expired":
            world.platform.lakehouse.table(TARGET).add_files([f"file://{path}" for path in adopted])

    monkeypatch.setattr(faults, "reach", adopt)
    done = collect(world.platform, [listed], by="ana", at=at)
    assert done[0].left == dict.fromkeys(adopted, "it is needed now")
    assert done[0].files == len(listed.files) - len(adopted)
    readable(world)


def test_a_file_that_another_table_references_is_left_alone(world: World) -> None:
    table = world.platform.lakehouse.table(TARGET)
    other = world.platform.lakehouse.catalog.create_table("silver.copy", table.schema(), partition_spec=table.spec())
    shared = [file.path for chunk in world.platform.ledger.chunks("rejected") for file in chunk.files]
    other.add_files(shared)
    found = garbage(world, now() + MONTHS)
    assert "rejected" in by_owner(found)  # its outlines and checksums
    assert not {item.file.path for item in found.files} & {place_of(path) for path in shared}
    sweep(world, now() + MONTHS)
    assert other.scan().to_arrow().num_rows > 0


@pytest.mark.parametrize(
    "point", ["collecting.listed", "collecting.leased", "collecting.expired", "collecting.deleted"]
)
def test_a_killed_collection_is_repeated(kept: Kept, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    world = kept.grown()
    monkeypatch.setattr(garbage_module, "_AT_ONCE", 10)  # killed in the middle
    at = now() + YEARS
    listed = garbage(world, at)
    assert listed.snapshots
    with killed_at(point, monkeypatch):
        collect(world.platform, [listed], by="ana", at=at)
    readable(world)
    sweep(world, at)
    assert not any(Path(item.file.path).exists() for item in listed.files)
    after = garbage(world, at)
    assert (after.refs, after.snapshots, after.files) == ((), (), ())
    readable(world)
    records = [path.stem for path in (world.home / "evidence" / GC / "records").glob("*.json")]
    assert sum(name.endswith("-listed") for name in records) == 2  # also of the one that was killed
    assert sum(name.endswith("-done") for name in records) == 1


def test_each_collection_is_on_record_and_evidence_stays(world: World) -> None:
    evidence = {str(path) for path in (world.home / "evidence").rglob("*") if path.is_file()}
    at = now() + MONTHS
    listed = garbage(world, at)
    sweep(world, at)
    records = sorted((world.home / "evidence" / GC / "records").glob("*.json"))
    said, done = (json.loads(path.read_text()) for path in sorted(records, key=lambda p: p.stem.endswith("-done")))
    assert (said["by"], done["by"]) == ("ana", "ana")
    assert said["listed"]["table"] == TARGET
    assert {item["file"]["path"] for item in said["listed"]["files"]} == {item.file.path for item in listed.files}
    assert (done["done"]["files"], done["done"]["bytes"]) == (len(listed.files), listed.bytes)
    assert {str(path) for path in (world.home / "evidence").rglob("*") if path.is_file()} >= evidence


def test_a_moved_ref_stops_an_expiry_before_it_begins(world: World) -> None:
    table = world.platform.lakehouse.table(TARGET)
    oldest = min(table.snapshots(), key=lambda snapshot: snapshot.timestamp_ms).snapshot_id
    publish(world.platform, "open")
    with pytest.raises(EnvironmentRefused, match="changed meanwhile"):
        history.forget(table, refs=["before-whole"], snapshot_ids=[oldest])
    table.refresh()
    assert "before-whole" in table.refs()
    history.forget(table, refs=[], snapshot_ids=[oldest])  # the tag holds it: nothing goes
    table.refresh()
    assert table.snapshot_by_id(oldest) is not None


def test_unreadable_metadata_stops_a_collection(world: World) -> None:
    table = world.platform.lakehouse.table(TARGET)
    Path(place_of(table.current_snapshot().manifest_list)).unlink()
    with pytest.raises(EnvironmentRefused, match="cannot be read"):
        find(world.platform, at=now() + MONTHS)


def test_a_clock_behind_the_ledger_stops_a_collection(world: World) -> None:
    with pytest.raises(EnvironmentRefused, match="records of the future"):
        find(world.platform, at=now() - timedelta(days=3))


def mode(name: str, **options: object) -> dict[str, object]:
    return {
        "table": TARGET,
        "publishMode": name,
        "publishRange": {"start": SPRING[0], "end": SPRING[1]},
        **options,
    }


def test_every_publish_mode_keeps_what_it_needs(kept: Kept) -> None:
    """Merged, shadowed, versioned and corrected: the doctor is content before and after, and all of it can be undone."""
    world = kept.alive()
    moved(world.platform.ledger, "rejected", RunState.CANCELLED, "ana", "")
    cases = sorted(set(world.rows()["case_id"]))[:5]
    world.published(world.manifest("merged", target=mode("MERGE_BY_KEY", merge={"entities": cases})))
    rollback(world.platform, "merged")
    reinstate(world.platform, "merged")
    world.published(world.manifest("shadowed", target=mode("SHADOW_SWAP")))
    world.published(world.manifest("versioned", target=mode("VERSIONED", version="v9", acceptance="LATER")))
    world.published(world.manifest("corrected", version="2.4.1", target=mode("CORRECTION_EVENTS")))
    shadow = world.validated(world.manifest("forgotten", target=mode("SHADOW_SWAP")))
    prepare(world.platform, shadow.run_id)
    moved(world.platform.ledger, "forgotten", RunState.CANCELLED, "ana", "")
    assert examine(world.platform) == []
    corrections = world.platform.lakehouse.table(f"{TARGET}_corrections")
    events = corrections.scan().to_arrow().num_rows
    assert events > 0
    targets, beside = (one for one in find(world.platform, at=now() + MONTHS) if one.target == TARGET)
    assert targets.refs == ("candidate-forgotten",)
    assert by_owner(targets, STAGED).keys() == {"rejected", "forgotten"}
    assert (beside.snapshots, beside.files) == ((), ())
    rows = readable(world)
    gone = set(targets.snapshots)
    assert len(gone) == 1  # the candidate that nobody wants
    sweep(world, now() + MONTHS)
    assert readable(world) == {one: count for one, count in rows.items() if one not in gone}
    assert corrections.refresh().scan().to_arrow().num_rows == events
    assert examine(world.platform) == []
    before = world.rows()
    accept(world.platform, "versioned")
    assert examine(world.platform) == []
    for run_id in ("versioned", "shadowed", "corrected"):
        rollback(world.platform, run_id)
    assert examine(world.platform) == []
    rollback(world.platform, "merged")
    assert world.rows()["run_id"].unique().to_list() == ["history"]
    reinstate(world.platform, "merged")
    reinstate(world.platform, "shadowed")
    assert world.rows().equals(before)
    assert examine(world.platform) == []
    # years later `merged` cannot be put back any more; what is accepted can be undone still, whatever its mode
    sweep(world, now() + YEARS)
    assert set(readable(world).values()) <= set(rows.values())
    assert world.rows().equals(before)
    assert examine(world.platform) == []
    rollback(world.platform, "shadowed")
    assert world.platform.ledger.accepted(TARGET)["2010-03"] == "merged"
    assert "before-merged" in world.platform.lakehouse.refs(
        TARGET
    )  # `merged` is accepted again: its base is tagged at once
    assert mend(world.platform) == ([], [])
    with pytest.raises(PublicationRefused, match="has expired"):
        rollback(world.platform, "merged")


steps = st.lists(
    st.sampled_from(["undo-spring", "undo-whole", "publish-open", "gc-months", "gc-years", "gc-killed", "new-tag"]),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("examples", [3, pytest.param(12, marks=pytest.mark.exhaustive)])
def test_whatever_happens_before_every_snapshot_left_is_whole_and_rollback_works(kept: Kept, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps=steps)
    def whatever_happens(steps: Sequence[str]) -> None:
        whole_after(kept, steps)

    whatever_happens()


def whole_after(kept: Kept, steps: Sequence[str]) -> None:
    world = kept.mixed()
    rows_of = readable(world)
    for number, step in enumerate(steps):
        take(world, step, number)
        found = readable(world)
        rows_of = found | rows_of
        assert {one: rows_of[one] for one in found} == found  # each has the rows that it was made with
        table = world.platform.lakehouse.table(TARGET)
        assert {ref.snapshot_id for ref in table.refs().values()} <= set(found)
    newest = latest_publication(world)
    if newest is not None:  # whoever is accepted, and holds its scope, can be rolled back still
        parent = world.platform.lakehouse.find_publication(TARGET, newest, "publish").parent_snapshot_id
        expected = rows_of[parent]
        rollback(world.platform, newest)
        assert world.rows().height == expected
    assert examine(world.platform) == []


def take(world: World, step: str, number: int) -> None:
    """Do one step of a story."""
    platform = world.platform
    if step.startswith("undo"):
        record = platform.ledger.run(step.removeprefix("undo-"))
        holders = set(platform.ledger.accepted(TARGET, [chunk.key for chunk in record.plan.chunks]).values())
        if holders == {record.run_id}:
            rollback(platform, record.run_id)
    elif step == "publish-open":
        try_to_publish(world)
    elif step == "new-tag":
        table = platform.lakehouse.table(TARGET)
        table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, f"mine-{number}").commit()
    elif step == "gc-killed":
        with pytest.MonkeyPatch.context() as patch, suppress(Killed):
            kill_after(patch, number)
            sweep(world, now() + YEARS)
    else:
        sweep(world, now() + (MONTHS if step == "gc-months" else YEARS))


def latest_publication(world: World) -> str | None:
    """Return the run whose publication is the current snapshot."""
    snapshot = world.platform.lakehouse.table(TARGET).current_snapshot()
    said = snapshot.summary.additional_properties
    return said["backfill.run-id"] if said["backfill.action"] == "publish" else None


def try_to_publish(world: World) -> None:
    if world.platform.ledger.run("open").state is RunState.VALIDATED:
        try:
            publish(world.platform, "open")
        except PublicationRefused:
            assert world.platform.ledger.run("open").state is RunState.REJECTED


def kill_after(patch: pytest.MonkeyPatch, points: int) -> None:
    left = [points + 1]

    def reach(_: str) -> None:
        left[0] -= 1
        if not left[0]:
            raise Killed

    patch.setattr(faults, "reach", reach)


def test_the_command_shows_first_and_deletes_only_when_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    monkeypatch.setenv("BACKFILL_KEEP_DEAD_RUNS_DAYS", "0")
    monkeypatch.setenv("BACKFILL_OPERATOR", "grace")
    before, run = paths(world), CliRunner().invoke
    shown = json.loads(run(cli, ["gc", "--json"]).stdout)
    assert shown["dryRun"] is True
    (found,) = [one for one in shown["found"] if one["table"] == TARGET]
    owners = {item["owner"] for item in found["files"]}
    assert owners == {"rejected", "undone"}
    for arguments in (["gc"], ["gc", "--dry-run"]):
        result = run(cli, arguments)
        assert result.exit_code == 0
        assert "rejected" in result.stdout
        assert "MB" in result.stdout
    assert paths(world) == before
    monkeypatch.setattr("sys.argv", ["backfill", "gc", "--delete"])
    with pytest.raises(SystemExit) as ended:
        main()  # nobody is at a terminal to agree
    assert ended.value.code == EXIT_REFUSED
    assert paths(world) == before
    deleted = json.loads(run(cli, ["gc", "--delete", "--yes", "--json"]).stdout)
    assert sum(one["files"] for one in deleted["collected"]) == len(found["files"])
    assert len(before - paths(world)) == len(found["files"])
    assert run(cli, ["gc", "--delete", "--yes"]).stdout.endswith("nothing to remove\n")
    record = sorted((world.home / "evidence" / GC / "records").glob("*-done.json"))
    assert json.loads(record[0].read_text())["by"] == "grace"
