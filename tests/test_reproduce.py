"""A recorded run, proved again: equal digests, or the first difference and its cause by name."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import sqlalchemy as sa
from launches import launch
from pyspark.sql import functions as F
from worlds import END, FEW_GATES, SPARK, START, World, generated, with_version

from backfill_assets.audit.conditions import Cause, conditions_of
from backfill_assets.audit.first_difference import first_differing_row
from backfill_assets.audit.reproduce import Outcome, reproduce
from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.installation import Platform
from backfill_assets.products.enforcement import loading as enforcement
from backfill_assets.products.enforcement import transforms
from manifests.canonical import plain
from manifests.errors import InputRefused
from manifests.model import Mode
from resources.lakehouse.facade import DATA_VERSION_PROPERTY, LOAD_PROPERTY, local_path
from resources.ledger.facade import ChunkState, RunRecord
from resources.ledger.tables import metadata
from resources.ledger.transactions import LedgerEngine, system_clock
from resources.settings import WEBHOOK_VARIABLE
from resources.spark.sessions import ModeSpark

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("backfill_assets", "resources", "manifests")
SPRING = (date(2010, 3, 1), date(2010, 5, 31))
FEW = {"gates": FEW_GATES}
KEY = ("case_id", "clock", "business_date")


def everything(world: World) -> dict[str, Any]:
    """What a reproduction must leave alone: every row of the ledger, every table's metadata, every file of the home."""
    with world.platform.ledger.engine.connect() as connection:
        ledger = {
            table.name: sorted(map(repr, connection.execute(sa.select(table)).all()))
            for table in metadata.sorted_tables
        }
    catalog = world.platform.lakehouse.catalog
    tables = [name for space in catalog.list_namespaces() for name in catalog.list_tables(space)]
    pointers = {".".join(name): catalog.load_table(name).metadata_location for name in tables}
    folders = [world.home / "warehouse", world.platform.settings.evidence_folder]
    files = {str(path): path.stat().st_mtime_ns for folder in folders for path in folder.rglob("*")}
    # a folder's time changes with the scratch folder that came and went in it
    files = {path: at for path, at in files.items() if Path(path).is_file()} | dict.fromkeys(files, 0)
    return {"ledger": ledger, "tables": pointers, "files": files}


def load_again(world: World, table: str) -> None:
    """Give a reference table a newer snapshot, of the version `newer`."""
    rows = next(rows for name, rows, _ in enforcement.reference_tables() if name == table)
    newer = {LOAD_PROPERTY: f"newer-{table}", DATA_VERSION_PROPERTY: "newer"}
    world.platform.lakehouse.overwrite_rows(table, rows, newer)


@pytest.fixture
def unchanged(shared_world: World) -> Iterator[World]:
    """The shared world, which must be the same afterwards."""
    before = everything(shared_world)
    yield shared_world
    assert everything(shared_world) == before


@pytest.fixture(scope="module")
def restated(shared_world: World) -> RunRecord:
    """A run that was published, as the restatement is that ships; the source and a reference have moved on since."""
    world = shared_world
    world.published(world.manifest("restated", target=world.scope(*SPRING), limits={"maxChunksPerJob": 2}))
    load_delivery(world.platform, enforcement.EVENTS, generated(50, 8, START, END), 0.5)
    load_again(world, transforms.CALENDAR)
    return world.platform.ledger.run("restated")


def command(world: World, *arguments: str) -> tuple[int, Any, str]:
    """Run `backfill reproduce … --json` in a process of its own."""
    done = launch("reproduce", *arguments, "--json", environment=installation(world))
    code = done.ended()
    return code, json.loads(done.output) if done.output else None, done.errors


def elsewhere(world: World, *arguments: str, code: Path, zone: str) -> tuple[int, Any, str]:
    """Run `backfill reproduce … --json` with the code of a folder, in a time zone."""
    done = subprocess.run(
        [sys.executable, "-m", "backfill_assets.cli.command", "reproduce", *arguments, "--json"],
        env=os.environ | installation(world) | {"PYTHONPATH": str(code), "TZ": zone},
        cwd=code,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def installation(world: World) -> dict[str, str]:
    return {"BACKFILL_HOME": str(world.home), "BACKFILL_SPARK": json.dumps(SPARK)}


def test_an_equal_run_is_proved_chunk_by_chunk_and_leaves_no_trace(restated: RunRecord, unchanged: World) -> None:
    done = reproduce(unchanged.platform, "restated")
    assert (done.outcome, done.causes, done.difference) == (Outcome.EQUAL, (), None)
    assert done.summary.startswith("all 3 chunks have the recorded digest")
    recorded = unchanged.digests("restated")
    assert {one.chunk: one.digest for one in done.chunks} == recorded
    assert len(set(recorded.values())) == 3
    # what came after the plan is named, for information, and not read
    conditions = {one.name: one for one in done.conditions}
    assert conditions[transforms.CALENDAR].present.endswith("(newer), which is not read")
    assert all(one.same for one in done.conditions)


def test_it_reads_no_clock_but_the_plan_s(
    restated: RunRecord, unchanged: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another_day() -> datetime:
        return datetime(2061, 7, 28, tzinfo=UTC)

    monkeypatch.setattr(LedgerEngine, "clock", staticmethod(another_day))
    done = reproduce(unchanged.platform, "restated", keep=True)
    try:
        assert done.outcome is Outcome.EQUAL
        files = [str(file) for file in Path(local_path(done.scratch or "")).rglob("*.parquet")]
        rows = pl.read_parquet(files, hive_partitioning=False)
        assert rows["produced_at"].unique().to_list() == [restated.plan.run_clock]
        assert rows.height == sum(one.recorded_rows for one in done.chunks)
    finally:
        shutil.rmtree(local_path(done.scratch or ""))


@pytest.fixture
def other_code(tmp_path: Path) -> Path:
    """A copy of the code, to be changed."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    return tmp_path / "backfill_assets/products/enforcement/transforms.py"


def test_another_process_in_another_time_zone_with_another_comment_in_its_code_proves_it_too(
    restated: RunRecord, unchanged: World, other_code: Path, tmp_path: Path
) -> None:
    other_code.write_text(other_code.read_text() + "\n# nothing that counts\n")
    code, said, errors = elsewhere(unchanged, "restated", code=tmp_path, zone="America/New_York")
    assert code == 0, errors
    assert (said["outcome"], said["causes"], said["state"]) == ("EQUAL", [], "PUBLISHED")
    assert {one["chunk"]: one["digest"] for one in said["chunks"]} == unchanged.digests("restated")
    assert {one["name"]: one for one in said["conditions"]}["product's code"]["same"] is False
    assert re.match("equal, although the product's code .*differs?: all 3 chunks", said["found"])


def test_other_code_is_named_as_the_cause_where_it_changes_the_result(
    restated: RunRecord, unchanged: World, other_code: Path, tmp_path: Path
) -> None:
    text = other_code.read_text()
    changed = text.replace("e.day <= started_on)", "e.day < started_on)")  # an amount stated on the day itself
    assert changed != text
    other_code.write_text(changed)
    code, said, errors = elsewhere(unchanged, "restated", "--chunks", "2010-04", code=tmp_path, zone="UTC")
    conditions = {one["name"]: one for one in said["conditions"]}
    assert conditions["product's code"]["same"] is False, errors
    assert (code, said["outcome"], said["causes"]) == (1, "DIFFERENT", ["code"])
    assert restated.plan.code.git_commit is None or restated.plan.code.git_commit in said["whatToDo"][0]
    difference = said["firstDifference"]
    assert difference["chunk"] == "2010-04"
    row = difference["row"]
    assert row["recorded"]["amount"] != row["reproduced"]["amount"]
    others = [name for name in row["recorded"] if name != "amount"]
    assert [row["recorded"][name] for name in others] == [row["reproduced"][name] for name in others]
    assert difference["note"] == ""  # the recorded files are what was digested


def amounts(number: str, *, of: str = "2010-04"):
    """A transform that states another amount on the first rows of one month."""

    def changed(inputs, context):
        rows = transforms.case_sla_daily(inputs, context)
        here = (F.date_format("business_date", "yyyy-MM") == of) & (F.dayofmonth("business_date") == 2)
        return rows.withColumn("amount", F.when(here, F.lit(Decimal(number))).otherwise(F.col("amount")))

    return changed


@pytest.fixture
def versioned(shared_world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world in which 9.9.9 may be declared, in one way and then in another."""
    monkeypatch.setitem(transforms.DAY_OF, "9.9.9", transforms.local_date)
    return shared_world


def staged(world: World, run_id: str) -> RunRecord:
    """Return a run whose chunks are staged and gated; whether the run as a whole passed does not matter here."""
    record = world.approved(world.manifest(run_id, version="9.9.9", target=world.scope(*SPRING), validation=FEW))
    world.stage(record)
    return world.platform.ledger.run(run_id)


def test_a_changed_transform_is_named_by_chunk_key_and_commit(
    versioned: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_version(monkeypatch, "9.9.9", amounts("11.00"))
    record = staged(versioned, "amounts")
    with_version(monkeypatch, "9.9.9", amounts("12.00"))
    newer = replace(record.plan.code, content_hash="0" * 64, git_commit="1" * 40)
    monkeypatch.setattr(Platform, "code_of", lambda *_: newer)
    before = everything(versioned)
    done = reproduce(versioned.platform, "amounts")
    assert everything(versioned) == before
    assert (done.outcome, done.causes) == (Outcome.DIFFERENT, (Cause.CODE,))
    assert [one.chunk for one in done.chunks if one.outcome is Outcome.DIFFERENT] == ["2010-04"]
    assert record.plan.code.git_commit is None or f"git commit {record.plan.code.git_commit}" in done.what_to_do[0]
    assert done.difference is not None
    row = done.difference.row
    assert row is not None
    chunk = next(chunk for chunk in versioned.platform.ledger.chunks("amounts") if chunk.chunk == "2010-04")
    rows = pl.read_parquet([local_path(file.path) for file in chunk.files], hive_partitioning=False)
    first = rows.sort(KEY).filter(pl.col("business_date") == date(2010, 4, 2)).row(0, named=True)
    assert row.key == {name: str(first[name]) for name in KEY}
    assert row.columns == ["amount"]
    assert row.recorded is not None
    assert row.reproduced is not None
    assert (row.recorded["amount"], row.reproduced["amount"]) == ("11.00", "12.00")
    json.dumps(plain(done))  # a script can have all of it


def test_the_same_code_with_another_result_is_called_not_deterministic(
    versioned: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_version(monkeypatch, "9.9.9", amounts("13.00"))
    staged(versioned, "depends")
    with_version(monkeypatch, "9.9.9", amounts("14.00"))
    done = reproduce(versioned.platform, "depends")
    assert done.causes == (Cause.NOT_DETERMINISTIC,)
    assert "the transform is not deterministic" in done.summary
    assert done.difference is not None
    assert "depends on something that the plan does not pin" in done.difference.note


def test_a_transform_that_throws_dice_is_found_out(versioned: World, monkeypatch: pytest.MonkeyPatch) -> None:
    throws = iter(range(100, 200))

    def dice(inputs, context):
        return amounts(f"{next(throws)}.00")(inputs, context)

    with_version(monkeypatch, "9.9.9", dice)
    staged(versioned, "dice")
    done = reproduce(versioned.platform, "dice")
    assert done.causes == (Cause.NOT_DETERMINISTIC,)
    assert done.difference is not None
    assert "the output depends on chance" in done.difference.note


def test_a_chunk_that_cannot_be_computed_is_told_from_one_that_differs(
    versioned: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(inputs, context):
        rows = transforms.case_sla_daily(inputs, context)
        is_bad = F.date_format("business_date", "yyyy-MM") == "2010-05"
        return rows.withColumn("amount", F.when(is_bad, F.raise_error(F.lit("poison"))).otherwise(F.col("amount")))

    with_version(monkeypatch, "9.9.9", transforms.case_sla_daily)
    staged(versioned, "poisoned")
    with_version(monkeypatch, "9.9.9", poisoned)
    before = everything(versioned)
    done = reproduce(versioned.platform, "poisoned")
    assert everything(versioned) == before  # what the failed batches left behind is gone as well
    assert (done.outcome, done.causes) == (Outcome.NOT_COMPUTED, ())
    assert {one.chunk: one.outcome for one in done.chunks} == {
        "2010-03": Outcome.EQUAL,
        "2010-04": Outcome.EQUAL,
        "2010-05": Outcome.NOT_COMPUTED,
    }
    assert "poison" in done.chunks[-1].note


def test_a_version_that_this_code_has_no_more_is_a_matter_of_code(
    versioned: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as there:
        with_version(there, "9.9.9", transforms.case_sla_daily)
        record = staged(versioned, "withdrawn")
    done = reproduce(versioned.platform, "withdrawn")
    assert (done.outcome, done.causes, done.chunks) == (Outcome.NOT_COMPUTED, (Cause.CODE,), ())
    assert "transform: it has 2.4.1, 3.1.0" in done.summary
    assert record.plan.code.git_commit is None or record.plan.code.git_commit in done.what_to_do[0]


def test_other_settings_are_named(restated: RunRecord, unchanged: World) -> None:
    settings = unchanged.platform.settings.model_copy(update={"spark": SPARK | {"spark.sql.shuffle.partitions": "3"}})
    done = reproduce(replace(unchanged.platform, settings=settings), "restated", ["2010-03"])
    assert done.outcome is Outcome.EQUAL
    assert done.summary.startswith("equal, although the configuration differs")


def test_a_live_run_is_reproduced_without_what_live_holds(shared_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resources.spark.one_reach.require_one_reach", lambda *_: None)  # the tests have one process
    monkeypatch.setenv(WEBHOOK_VARIABLE, "https://example.invalid/hook")
    manifest = shared_world.manifest("live", kind="LIVE", target=shared_world.scope(*SPRING))
    shared_world.platform.ledger.ticks.record(manifest, system_clock())
    shared_world.ran(manifest)
    assert WEBHOOK_VARIABLE in os.environ
    sessions = []
    original = ModeSpark.session

    def session(self: ModeSpark, mode: Mode):
        sessions.append(mode)
        return original(self, mode)

    monkeypatch.setattr(ModeSpark, "session", session)
    assert reproduce(shared_world.platform, "live").outcome is Outcome.EQUAL
    assert set(sessions) == {Mode.REPLAY}
    assert WEBHOOK_VARIABLE not in os.environ


def test_damaged_staged_files_do_not_matter_to_the_proof(versioned: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world = versioned
    with_version(monkeypatch, "9.9.9", amounts("13.00"))
    staged(world, "damaged")
    april, may = (world.platform.ledger.chunks("damaged")[index].files for index in (1, 2))
    for file in april:
        Path(local_path(file.path)).write_bytes(b"PAR1 no more")
    for file in may:
        Path(local_path(file.path)).unlink()
    assert reproduce(world.platform, "damaged").outcome is Outcome.EQUAL
    # where the digests differ, the row cannot be named without them: that is said, and the cause all the same
    with_version(monkeypatch, "9.9.9", amounts("14.00"))
    done = reproduce(world.platform, "damaged", ["2010-04"])
    assert (done.outcome, done.causes) == (Outcome.DIFFERENT, (Cause.NOT_DETERMINISTIC,))
    assert done.difference is not None
    assert done.difference.row is None
    assert done.difference.note.startswith("the row cannot be named")


def test_recorded_files_that_were_exchanged_are_found_out(versioned: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world = versioned
    with_version(monkeypatch, "9.9.9", amounts("13.00"))
    staged(world, "exchanged")
    (file,) = world.platform.ledger.chunks("exchanged")[1].files
    rows = pl.read_parquet(local_path(file.path), hive_partitioning=False)
    rows.with_columns(amount=pl.lit(Decimal("99.00"), pl.Decimal(12, 2))).write_parquet(local_path(file.path))
    with_version(monkeypatch, "9.9.9", amounts("14.00"))
    done = reproduce(world.platform, "exchanged", ["2010-04"])
    assert done.difference is not None
    assert "the recorded files no longer give the recorded digest" in done.difference.note


def test_expired_snapshots_are_named_with_their_tables(world: World) -> None:
    plan = world.ran(world.manifest("old", target=world.scope(*SPRING), validation=FEW)).plan
    rules = next(pin for pin in plan.references if pin.table == transforms.RULES)
    load_delivery(world.platform, enforcement.EVENTS, generated(50, 8, START, END), 0.5)
    load_again(world, transforms.RULES)
    expired = []
    for table, snapshot_id in ((rules.table, rules.snapshot_id), (plan.source, plan.source_snapshot_id)):
        pinned = world.platform.lakehouse.table(table)
        for tag in [name for name, ref in pinned.refs().items() if ref.snapshot_id == snapshot_id]:
            pinned.manage_snapshots().remove_tag(tag).commit()  # what keeps it: an expiry alone is refused
        pinned.maintenance.expire_snapshots().by_id(snapshot_id).commit()
        expired.append(f"there is no snapshot {snapshot_id} of {table} any more")
        before = everything(world)
        done = reproduce(world.platform, "old")
        assert everything(world) == before
        assert (done.outcome, done.causes, done.chunks) == (Outcome.NOT_COMPUTED, (Cause.RETIRED_SNAPSHOT,), ())
        assert [one for one in expired if one not in done.summary] == []
    code, said, errors = command(world, "old")
    assert (code, said["causes"]) == (1, ["retired snapshot"]), errors


def test_files_of_a_pinned_snapshot_that_are_gone_or_changed_are_named(world: World) -> None:
    record = world.ran(world.manifest("pins", target=world.scope(*SPRING), validation=FEW))
    rules = next(pin for pin in record.plan.references if pin.table == transforms.RULES)
    (path,) = world.platform.lakehouse.pinned(rules.table, rules.snapshot_id).paths
    file = Path(local_path(path))
    original = file.read_bytes()
    rows = pl.read_parquet(original)
    # the rule of one clock is a day longer, in place: the snapshot is the same, the data are not
    rows.with_columns(length=pl.col("length") + (pl.col("clock") == "PAYMENT")).write_parquet(
        file, metadata={}, compression="uncompressed"
    )
    changed = {one.name: one for one in conditions_of(world.platform, record.plan, {})}[transforms.RULES]
    assert (changed.same, changed.blocks, changed.cause) == (False, False, Cause.REFERENCE_DATA)
    assert changed.present == f"1 file(s) of the snapshot were changed in place, the first is {path}"
    file.unlink()
    gone = reproduce(world.platform, "pins")
    assert gone.causes == (Cause.RETIRED_SNAPSHOT,)
    assert f"1 file(s) of snapshot {rules.snapshot_id} of {transforms.RULES} are gone" in gone.summary


def test_chunks_without_a_recorded_digest_are_refused_before_anything_is_computed(shared_world: World) -> None:
    world = shared_world
    record = world.approved(world.manifest("half", target=world.scope(*SPRING), validation=FEW))
    with pytest.raises(InputRefused, match=r"3 of 3 chunks of 'half' have no recorded digest: 2010-03 \(PLANNED\)"):
        reproduce(world.platform, "half")
    world.stage(record, ["2010-03"])
    assert [chunk.state for chunk in world.platform.ledger.chunks("half")].count(ChunkState.PASSED) == 1
    with pytest.raises(InputRefused, match="2 of 3 chunks of 'half'"):
        reproduce(world.platform, "half")
    assert reproduce(world.platform, "half", ["2010-03"]).outcome is Outcome.EQUAL
    code, said, errors = command(world, "unknown")
    assert (code, said) == (2, None)
    assert "run 'unknown' is unknown" in errors


def test_a_plan_that_was_altered_in_the_ledger_is_refused(shared_world: World) -> None:
    world = shared_world
    world.ran(world.manifest("altered", target=world.scope(*SPRING), validation=FEW))
    with world.platform.ledger.engine.begin() as connection:
        connection.execute(sa.text("UPDATE runs SET plan = replace(plan, '3.1.0', '2.4.1') WHERE run_id = 'altered'"))
    with pytest.raises(InputRefused, match="does not match its hash"):
        reproduce(world.platform, "altered")


# --- the first row that differs ---------------------------------------------------------------------------------------


def parts(folder: Path, name: str, *frames: pl.DataFrame) -> list[str]:
    paths = [folder / f"{name}-{number}.parquet" for number, _ in enumerate(frames)]
    for path, frame in zip(paths, frames, strict=True):
        frame.write_parquet(path)
    return [f"file://{path}" for path in paths]


def numbered(*keys: int, value: int = 0) -> pl.DataFrame:
    return pl.DataFrame({"id": keys, "value": [value] * len(keys)}, schema={"id": pl.Int64, "value": pl.Int64})


@pytest.mark.parametrize(
    ("reproduced", "key", "recorded_value", "reproduced_value"),
    [
        ([numbered(1, 2, 3, 4, 5)], None, None, None),
        ([numbered(4, 5), numbered(1, 2, 3)], None, None, None),  # other files, in another order
        ([numbered(5, 3, 1), numbered(2, 4)], None, None, None),  # unsorted, with overlapping key ranges
        ([numbered(1, 2), numbered(3, value=7), numbered(4, 5)], 3, 0, 7),
        ([numbered(1, 2, 4, 5)], 3, 0, None),
        ([numbered(0, 1, 2, 3, 4, 5)], 0, None, 0),
        ([numbered(1, 2, 3, 4, 5, 6)], 6, None, 0),
        ([numbered(1, 2)], 3, 0, None),
        ([numbered()], 1, 0, None),
        ([], 1, 0, None),
    ],
)
def test_the_first_differing_row_is_found_however_the_files_are_cut(
    tmp_path: Path,
    reproduced: list[pl.DataFrame],
    key: int | None,
    recorded_value: int | None,
    reproduced_value: int | None,
) -> None:
    old = parts(tmp_path, "old", numbered(1, 2, 3), numbered(4, 5))
    new = parts(tmp_path, "new", *reproduced)
    found = first_differing_row(old, new, ["id", "value"], ["id"])
    if key is None:
        assert found is None
        return
    assert found is not None
    values = [None if side is None else side["value"] for side in (found.recorded, found.reproduced)]
    assert (found.key, values) == ({"id": key}, [recorded_value, reproduced_value])


def test_a_null_differs_from_a_value_and_not_from_a_null(tmp_path: Path) -> None:
    some = pl.DataFrame({"id": [None, 1], "value": [1, None]}, schema={"id": pl.Int64, "value": pl.Int64})
    old = parts(tmp_path, "old", some)
    assert first_differing_row(old, old, ["id", "value"], ["id"]) is None
    filled = parts(tmp_path, "new", some.with_columns(pl.col("value").fill_null(0)))
    found = first_differing_row(old, filled, ["id", "value"], ["id"])
    assert found is not None
    assert (found.key, found.columns) == ({"id": 1}, ["value"])


def test_a_column_of_another_type_is_an_error_with_its_name(tmp_path: Path) -> None:
    old = parts(tmp_path, "old", numbered(1))
    new = parts(tmp_path, "new", numbered(1).cast({"value": pl.Int32}))
    with pytest.raises(pl.exceptions.SchemaError, match="the type of value"):
        first_differing_row(old, new, ["id", "value"], ["id"])
