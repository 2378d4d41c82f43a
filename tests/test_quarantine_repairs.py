"""Rows that are released reach what is published: a REPAIR of the chunks that read them, and of nothing else. Real Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from worlds import FEW_GATES, KEY, SPARK, VALUES, World, make_world

from backfill_assets.audit.verification import verify
from backfill_assets.cli.command import cli
from backfill_assets.declarations import finding
from backfill_assets.declarations.deliveries import QuarantinedRecord
from backfill_assets.defs.launch import initialise_instance
from backfill_assets.ingestion.case_names import Choice
from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.ingestion.releases import release
from backfill_assets.ingestion.repairs import Repair, repairs_of
from backfill_assets.ingestion.table_loads import load_file
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.products.enforcement import generator, raw
from backfill_assets.products.enforcement.loading import CASE_EVENTS, RawLoad, from_records
from benchmarks import metered
from benchmarks.metered import DAILY, READINGS, TREND
from benchmarks.small_table import serves
from manifests.code_identity import CodeIdentity
from manifests.model import RunManifest
from manifests.reading import load_manifest, manifest_from
from resources.lakehouse.facade import local_path
from resources.settings import load_settings

FIRST, LAST = date(2024, 1, 1), date(2024, 1, 20)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """An installation in which both targets are published, and four rows wait in the quarantine."""
    settings = load_settings(home=tmp_path / "home", spark=SPARK, quarantine_limit=0.5)
    with mock.patch.object(finding, "find_products", serves(metered.product(metered.Readings))):
        platform = Platform.of(settings)
        initialise(platform)
        initialise_instance(settings)
        days = [FIRST + timedelta(days=one) for one in range((LAST - FIRST).days + 1)]
        lines = [
            "meter,read_at,watt_hours",
            *(f"m{one % 3},{day}T12:00:00Z,{10 + one}" for one, day in enumerate(days)),
        ]
        lines += [
            f"m9,2024-01-{day}T12:00:00Z,{watts}" for day, watts in (("05", -5), ("06", -6), ("14", -7), ("15", -500))
        ]
        file = tmp_path / "readings.csv"
        file.write_text("\n".join(lines) + "\n")
        load_file(platform, READINGS, file)
        for name in (DAILY, TREND):
            World(platform, settings.home).published(_manifest(name))
    with mock.patch.object(finding, "find_products", serves(metered.product(metered.Corrected))):
        platform = Platform.of(settings)
        initialise(platform)
        yield World(platform, settings.home)


def _manifest(target: str) -> RunManifest:
    return manifest_from(
        {
            "runId": f"history-{target.replace('.', '-').replace('_', '-')}",
            "kind": "BACKFILL",
            "requestedBy": "ana",
            "reason": "the first history of the table",
            "source": {"table": READINGS},
            "transform": {"name": target.partition(".")[2], "version": "1"},
            "target": {"table": target, "publishRange": {"start": FIRST.isoformat(), "end": LAST.isoformat()}},
            "development": True,
        }
    )


def _proposed(world: World) -> list[Repair]:
    done = release(world.platform, READINGS, Choice(everything=True), by="ada", reason="the rule was wrong")
    assert (len(done.released), [rule for _, rule in done.waiting]) == (
        3,
        ["watt_hours: greater_than_or_equal_to(-100)"],
    )
    return repairs_of(world.platform, READINGS, done.loads, requested_by="ada", reason="the rule was wrong")


def _files(world: World, target: str) -> dict[str, set[str]]:
    """Return the data files that readers get of a target, each with the days of its rows."""
    paths = [task.file.file_path for task in world.platform.lakehouse.table(target).scan().plan_files()]
    return {path: {str(day) for day in pq.read_table(local_path(path))["day"].to_pylist()} for path in paths}


def _rows(world: World, target: str) -> dict[tuple[str, date], int]:
    found = world.platform.lakehouse.table(target).scan().to_arrow().to_pylist()
    return {(row["meter"], row["day"]): row["watt_hours"] for row in found}


def _runs(world: World, repairs: list[Repair], target: str) -> None:
    for one in repairs:
        if one.target == target:
            world.published(manifest_from(one.data | {"development": True}))


def _days(first: int, last: int) -> tuple[str, ...]:
    return tuple(f"2024-01-{day:02}" for day in range(first, last + 1))


def test_released_rows_appear_and_everything_else_is_as_it_was(world: World) -> None:
    before = {name: (_files(world, name), _rows(world, name)) for name in (DAILY, TREND)}
    repairs = _proposed(world)
    # a day of margin on both sides for time zones; three days of warm-up after
    assert [(one.target, one.manifest.kind.value, one.chunks) for one in repairs] == [
        (DAILY, "REPAIR", _days(4, 7)),
        (DAILY, "REPAIR", _days(13, 15)),
        (TREND, "REPAIR", _days(4, 10)),
        (TREND, "REPAIR", _days(13, 18)),
    ]
    new = {("m9", 5): -5, ("m9", 6): -6, ("m9", 14): -7}
    trended = {5: -5, 6: -11, 7: -11, 8: -11, 9: -6, 14: -7, 15: -7, 16: -7, 17: -7}
    for target in (DAILY, TREND):
        _runs(world, repairs, target)
        files, rows = before[target]
        touched = {key for one in repairs if one.target == target for key in one.chunks}
        expected = new.items() if target == DAILY else ((("m9", day), value) for day, value in trended.items())
        assert _rows(world, target) == rows | {(meter, date(2024, 1, day)): value for (meter, day), value in expected}
        gone = set(files) - set(_files(world, target))  # every other file is the very same
        assert len(gone) == len(touched)
        assert {
            path for path in files if any(f"day={key}" in path or f"={key}/" in path for key in touched)
        } >= gone or gone
    assert verify(world.platform, data=True).everything == []
    # what was computed with the rows is not proposed again
    load = release(world.platform, READINGS, Choice(("*",)[:0], everything=True), by="ada", reason="once more")
    assert load.released == ()
    loads = [one.load_id for one in world.platform.ledger.quarantine.releases(READINGS)]
    assert repairs_of(world.platform, READINGS, loads, requested_by="ada", reason="once more") == []


def _says(world: World, monkeypatch: pytest.MonkeyPatch, *words: str, code: int = 0) -> Any:
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    done = CliRunner().invoke(cli, ["quarantine", *words])
    assert done.exit_code == code, f"{done.output} {done.exception!r}"
    return json.loads(done.output) if "--json" in words else done.output


def test_the_command_writes_and_plans_the_manifests(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = _says(world, monkeypatch, "list", READINGS, "--json")
    assert (told["total"], told["rules"][0]["waiting"], told["rules"][0]["rows"]) == (4, 4, 4)
    case = told["cases"][0]["case_id"]
    shown = _says(world, monkeypatch, "show", READINGS, case[:8])
    assert '"watt_hours": "-' in shown
    own = Platform.code_of

    def committed(one: Platform, *about: Any, **named: Any) -> CodeIdentity:
        found = own(one, *about, **named)
        assert found.product is not None
        return replace(found, dirty=False, product=replace(found.product, dirty=False))

    monkeypatch.setattr(Platform, "code_of", committed)  # whatever this checkout is
    words = ("release", READINGS, "--all", "--by", "ada", "--reason", "the rule was wrong", "--json")
    told = _says(world, monkeypatch, *words, "--plan", "--to", str(tmp_path / "runs"))
    assert [(one["target"], one["chunks"][0], one["state"]) for one in told["proposed"]] == [
        (DAILY, "2024-01-04", "PLANNED"),
        (DAILY, "2024-01-13", "PLANNED"),
        (TREND, "2024-01-04", "PLANNED"),
        (TREND, "2024-01-13", "PLANNED"),
    ]
    planned = {one["manifest"]["runId"]: load_manifest(Path(one["file"])) for one in told["proposed"]}
    assert all(world.platform.ledger.run(run_id).manifest == manifest for run_id, manifest in planned.items())
    released = told["release"]["released"][0]["case_id"]
    told = _says(world, monkeypatch, "show", READINGS, released, "--json")
    assert (told["case"]["state"], set(told["runs"])) == ("RELEASED", set(planned))
    again = _says(world, monkeypatch, "release", READINGS, released, "--by", "ada", "--reason", "once more", "--json")
    assert {one["manifest"]["runId"] for one in again["proposed"]} == set(planned)
    (left,) = _says(world, monkeypatch, "list", READINGS, "--state", "waiting", "--json")["cases"]
    _says(world, monkeypatch, "reject", READINGS, left["case_id"], "--by", "bob", "--reason", "a broken meter")
    for name in ("cases.csv", "cases.parquet"):
        assert "4 case(s)" in _says(world, monkeypatch, "export", READINGS, str(tmp_path / name))
    exported = pl.read_parquet(tmp_path / "cases.parquet").sort("source_row")
    assert exported["state"].to_list() == ["RELEASED", "RELEASED", "RELEASED", "REJECTED"]
    assert json.loads(exported["record"][3])["watt_hours"] == "-500"
    assert pl.read_csv(tmp_path / "cases.csv")["record"].sort().to_list() == exported["record"].sort().to_list()


def _late_payments(batch: pl.DataFrame) -> pl.DataFrame:
    """Return the payments of a log from some day on, which nobody knows as such when they are loaded."""
    return batch.filter((pl.col(raw.ACTIVITY) == "Payment") & (pl.col(raw.TIMESTAMP).cast(pl.String) >= "2011-06-01"))


def test_payments_that_are_released_reach_the_deadlines_as_if_they_had_never_been_quarantined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(tmp_path / "home", cases=1).with_few_gates()
    whole = pl.concat(generator.generate(60, 7, start=date(2010, 1, 1), end=date(2011, 12, 31)), how="vertical_relaxed")
    late = _late_payments(whole)
    assert 0 < late.height < whole.height / 2
    known = raw.ACTIVITIES
    for name, rows in (("log", whole.join(late, on=whole.columns, how="anti", nulls_equal=True)), ("late", late)):
        monkeypatch.setattr(raw, "ACTIVITIES", tuple(one for one in known if (one, name) != ("Payment", "late")))
        own = RawLoad(name, name, lambda rows=rows: raw.number_rows([rows]))
        load_delivery(world.platform, CASE_EVENTS.table, own, 1.0)
    monkeypatch.setattr(raw, "ACTIVITIES", known)
    world.published(world.manifest("history", kind="BACKFILL"))
    before = world.rows()
    done = release(
        world.platform, CASE_EVENTS.table, Choice(rule="UNKNOWN_ACTIVITY"), by="ada", reason="payments are known"
    )
    assert len(done.released) >= late.height - 1
    repairs = repairs_of(world.platform, CASE_EVENTS.table, done.loads, requested_by="ada", reason="payments are known")
    assert {one["semantics"] for repair in repairs for one in repair.data["referenceData"]} == {"AS_RECORDED_THEN"}
    for one in repairs:
        world.published(manifest_from(one.data | {"development": True, "validation": {"gates": FEW_GATES[:2]}}))
    repaired = world.rows()
    columns = [*KEY, *VALUES]
    assert not repaired.select(columns).equals(before.select(columns))
    world.published(world.manifest("everything"))
    assert repaired.select(columns).equals(world.rows().select(columns))
    untouched = sorted(
        {chunk.key for chunk in world.platform.ledger.run("history").plan.chunks}
        - {key for one in repairs for key in one.chunks}
    )
    assert untouched or all(one.manifest.kind.value == "RESTATEMENT" for one in repairs)


def test_the_loader_of_the_case_log_reads_back_what_it_has_quarantined(monkeypatch: pytest.MonkeyPatch) -> None:
    record = json.dumps(
        {
            raw.CASE_ID: "A1",
            raw.ACTIVITY: "Pay Fine",
            raw.TIMESTAMP: "2012-01-01T00:00:00+01:00",
            raw.AMOUNT: "71.5",
            raw.EVENT_SEQ: "3",
        }
    )
    records = [
        QuarantinedRecord("log.csv", 7, record),
        QuarantinedRecord("log.csv", 8, record.replace("Pay Fine", "Fly")),
    ]
    assert CASE_EVENTS.from_records is from_records
    monkeypatch.setattr(raw, "ACTIVITIES", (*raw.ACTIVITIES, "Pay Fine"))
    at = datetime(2024, 1, 1, tzinfo=UTC)
    (events,), (rejected,) = list(from_records(records).rows(at)), list(from_records(records).quarantined(at))
    assert [(one["source_row"], one["activity"], one["jurisdiction"]) for one in events.to_pylist()] == [
        (7, "Pay Fine", "IT")
    ]
    (row,) = rejected.to_pylist()
    assert (row["source_row"], row["reason"], json.loads(row["record"])) == (
        8,
        "UNKNOWN_ACTIVITY",
        json.loads(records[1].record),
    )
