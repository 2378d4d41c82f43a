"""Quarantined rows as cases: listed, released by the rules of today, rejected; real tables and a real ledger, no Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pandera.polars as pandera
import polars as pl
import pytest
from click.testing import CliRunner
from support import put_in_force

import backfill_assets as ba
from backfill_assets.audit.verification import verify
from backfill_assets.cli.command import cli
from backfill_assets.declarations import finding
from backfill_assets.declarations.checking.table_fields import wrong_table_fields
from backfill_assets.declarations.checking.tables import of_input
from backfill_assets.declarations.quarantine import WITHHELD
from backfill_assets.declarations.schema import dtypes
from backfill_assets.defs.inputs import observations
from backfill_assets.ingestion.case_export import export
from backfill_assets.ingestion.case_names import Choice
from backfill_assets.ingestion.case_views import view_of
from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.ingestion.raw_records import RawRecords
from backfill_assets.ingestion.releases import Released, reject, release, reopen
from backfill_assets.ingestion.repairs import stretches_to_run
from backfill_assets.ingestion.table_loads import load_file, undo_load
from backfill_assets.installation import Platform
from backfill_assets.operations import metrics
from backfill_assets.operations.doctor.quarantine import cases_left_waiting
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning.quarantine_cases import Cases, CaseState, RawRow, cases_of
from backfill_assets.products.enforcement import loading as enforcement
from backfill_assets.products.enforcement import raw
from backfill_assets.ui.pages import make_pages
from benchmarks.small_table import serves
from manifests.errors import InputRefused
from resources.settings import load_settings

READINGS = "bronze.readings"
WAITING, RELEASED, REJECTED = CaseState.WAITING, CaseState.RELEASED, CaseState.REJECTED


class Strict(pandera.DataFrameModel):
    """No reading below zero, and none above 100."""

    meter: str = pandera.Field(str_length={"min_value": 1})
    read_at: ba.Instant = pandera.Field()
    watt_hours: pl.Int32 = pandera.Field(ge=0, le=100)


class Loose(pandera.DataFrameModel):
    """The same columns, and every reading from -5 on."""

    meter: str = pandera.Field(str_length={"min_value": 1})
    read_at: ba.Instant = pandera.Field()
    watt_hours: pl.Int32 = pandera.Field(ge=-5)


class Keyed(Loose):
    """A meter is read once at a time."""

    class Config:
        unique = ("meter", "read_at")


Opens = Callable[[type[pandera.DataFrameModel]], Platform]


@pytest.fixture
def opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opens:
    """Return what opens the installation with a model of the readings."""

    def opened(model: type[pandera.DataFrameModel]) -> Platform:
        table = ba.InputTable(
            READINGS,
            "readings",
            model,
            ("team:x",),
            partition_by="read_at" if issubclass(model, (Strict, Loose)) else None,
        )
        monkeypatch.setattr(finding, "find_products", serves(ba.Product("metering", (table,), ())))
        platform = Platform.of(load_settings(home=tmp_path / "home", quarantine_limit=0.9))
        initialise(platform)
        return platform

    return opened


def load(platform: Platform, folder: Path, name: str, *rows: tuple[str, str, Any]) -> str:
    """Load a CSV file of readings: meter, time of a day, watt hours; return the load's id."""
    lines = ["meter,read_at,watt_hours", *(f"{meter},2024-01-{day}T12:00:00Z,{value}" for meter, day, value in rows)]
    file = folder / name
    file.write_text("\n".join(lines) + "\n")
    return load_file(platform, READINGS, file).load.load_id


def cases(platform: Platform) -> Cases:
    return cases_of(platform, platform.products.input(READINGS))


def states(platform: Platform) -> dict[str, CaseState]:
    """Return the state of each case by its detail."""
    return {case.detail: case.state for case in cases(platform).all.values()}


def held(platform: Platform) -> list[tuple[str, int]]:
    """Return meter and watt hours of the rows in the table."""
    rows = platform.lakehouse.table(READINGS).scan().to_arrow().to_pylist()
    return sorted((row["meter"], row["watt_hours"]) for row in rows)


def release_all(platform: Platform, **named: Any) -> Released:
    return release(platform, READINGS, Choice(everything=True), by="ada", reason="the rule was wrong", **named)


def test_a_row_that_is_delivered_again_is_the_same_case_seen_again(opens: Opens, tmp_path: Path) -> None:
    platform = opens(Strict)
    first = load(platform, tmp_path, "a.csv", ("m1", "01", 5), ("m2", "01", -3))
    second = load(platform, tmp_path, "b.csv", ("m1", "02", 5), ("m3", "02", "x"), ("m2", "01", -3))
    by_detail = {case.detail: case for case in cases(platform).all.values()}
    again, other = by_detail["watt_hours is -3"], by_detail["watt_hours is x"]
    assert (again.rows, again.loads, again.source_file, again.source_row) == (2, (first, second), "a.csv", 1)
    assert (other.rows, other.loads, other.rule) == (1, (second,), "watt_hours: not int")
    assert again.first_seen < again.last_seen or again.first_seen == again.last_seen
    assert again.state is WAITING


def test_released_rows_come_in_once_by_a_load_of_their_own(opens: Opens, tmp_path: Path) -> None:
    load(opens(Strict), tmp_path, "a.csv", ("m1", "01", 5), ("m2", "01", -3), ("m3", "01", -9))
    platform = opens(Loose)
    done = release_all(platform)
    assert [case.detail for case in done.released] == ["watt_hours is -3"]
    assert [(case.detail, rule) for case, rule in done.waiting] == [
        ("watt_hours is -9", "watt_hours: greater_than_or_equal_to(-5)")
    ]
    assert held(platform) == [("m1", 5), ("m2", -3)]
    assert states(platform) == {"watt_hours is -3": RELEASED, "watt_hours is -9": WAITING}
    (case,) = [one for one in cases(platform).all.values() if one.state is RELEASED]
    assert (case.decided_by, case.why, case.released_by) == ("ada", "the rule was wrong", done.load_id)
    assert platform.lakehouse.find_load(READINGS, done.load_id).snapshot_id == done.snapshot_id  # type: ignore[union-attr]
    again = release(platform, READINGS, Choice((case.short,)), by="bob", reason="once more")
    assert (again.load_id, again.before) == ("", {done.load_id: (case,)})
    assert release_all(platform).released == ()
    assert held(platform) == [("m1", 5), ("m2", -3)]


def test_a_load_has_a_row_twice_and_so_has_the_table_but_a_row_delivered_again_comes_once(
    opens: Opens, tmp_path: Path
) -> None:
    platform = opens(Strict)
    load(platform, tmp_path, "a.csv", ("m1", "01", 5), ("m2", "01", -3))
    load(platform, tmp_path, "b.csv", ("m1", "02", 5), ("m2", "01", -3), ("m2", "01", -3), ("m9", "01", -4))
    load(platform, tmp_path, "c.csv", ("m1", "03", 5), ("m9", "01", -4))
    release_all(opens(Loose))
    assert held(platform)[3:] == [("m2", -3), ("m2", -3), ("m9", -4)]


def test_what_was_rejected_is_not_released_and_what_was_released_is_not_rejected(opens: Opens, tmp_path: Path) -> None:
    platform = opens(Strict)
    load(platform, tmp_path, "a.csv", ("m1", "01", 5), ("m2", "01", -3), ("m3", "01", -4))
    platform = opens(Loose)
    ids = {case.detail[-2:]: case.case_id for case in cases(platform).all.values()}
    reject(platform, READINGS, Choice((ids["-3"],)), by="bob", reason="a broken meter")
    with pytest.raises(InputRefused, match="was rejected by bob: a broken meter"):
        release(platform, READINGS, Choice((ids["-3"], ids["-4"])), by="ada", reason="wanted")
    assert held(platform) == [("m1", 5)]
    done = release_all(platform)
    assert [case.case_id for case in done.released] == [ids["-4"]]
    with pytest.raises(InputRefused, match="a row that is in the table is not rejected"):
        reject(platform, READINGS, Choice((ids["-4"],)), by="bob", reason="no")
    assert reject(platform, READINGS, Choice((ids["-3"],)), by="bob", reason="a broken meter").rejected == ()
    assert states(platform) == {"watt_hours is -3": REJECTED, "watt_hours is -4": RELEASED}


def test_a_release_that_is_taken_back_waits_again_and_can_be_made_again(opens: Opens, tmp_path: Path) -> None:
    origin = load(opens(Strict), tmp_path, "a.csv", ("m1", "01", 5), ("m2", "01", -3))
    platform = opens(Loose)
    first = release_all(platform)
    with pytest.raises(InputRefused, match="take the release back first"):
        undo_load(platform, READINGS, origin, by="bob", reason="a wrong file")
    undo_load(platform, READINGS, first.load_id, by="bob", reason="too early")
    assert (held(platform), states(platform)) == ([("m1", 5)], {"watt_hours is -3": WAITING})
    second = release_all(platform)
    assert second.load_id == f"{first.load_id}#2"
    assert held(platform) == [("m1", 5), ("m2", -3)]
    undo_load(platform, READINGS, second.load_id, by="bob", reason="too early")
    undo_load(platform, READINGS, origin, by="bob", reason="a wrong file")
    assert (held(platform), states(platform)) == ([], {})


def test_a_row_that_the_table_has_by_now_waits(opens: Opens, tmp_path: Path) -> None:
    load(opens(Strict), tmp_path, "a.csv", ("m1", "01", 5), ("m2", "01", -3), ("m3", "01", -4))
    platform = opens(Loose)
    load(platform, tmp_path, "b.csv", ("m2", "01", -3))
    done = release_all(platform)
    assert [(case.detail, rule) for case, rule in done.waiting] == [("watt_hours is -3", "the table has an equal row")]
    assert held(platform) == [("m1", 5), ("m2", -3), ("m3", -4)]
    assert release_all(platform, beside_equal=True).rows == 1
    assert held(platform) == [("m1", 5), ("m2", -3), ("m2", -3), ("m3", -4)]


def test_a_row_whose_key_the_table_has_waits(opens: Opens, tmp_path: Path) -> None:
    load(opens(Strict), tmp_path, "a.csv", ("m1", "01", 5), ("m1", "01", -3), ("m3", "01", -4), ("m3", "01", -5))
    platform = opens(Keyed)
    done = release_all(platform)
    assert {case.detail: rule for case, rule in done.waiting} == {
        "watt_hours is -3": "meter, read_at: the table has a row with this key",
        "watt_hours is -4": "meter, read_at: not unique",
        "watt_hours is -5": "meter, read_at: not unique",
    }
    assert held(platform) == [("m1", 5)]


def test_a_row_of_two_rules_comes_in_once(opens: Opens, tmp_path: Path) -> None:
    load(opens(Strict), tmp_path, "a.csv", ("m1", "01", 5), ("m2", "01", -9))
    platform = opens(Loose)
    load(platform, tmp_path, "b.csv", ("m1", "02", 5), ("m2", "01", -9))
    assert [case.rule for case in cases(platform).all.values()] == [
        "watt_hours: greater_than_or_equal_to(0)",
        "watt_hours: greater_than_or_equal_to(-5)",
    ]

    class Free(Loose):
        watt_hours: pl.Int32 = pandera.Field()

    platform = opens(Free)
    done = release(
        platform, READINGS, Choice(rule="watt_hours: greater_than_or_equal_to(0)"), by="ada", reason="no rule any more"
    )
    assert (len(done.released), done.rows) == (2, 1)
    assert held(platform) == [("m1", 5), ("m1", 5), ("m2", -9)]


def test_names_of_cases_are_refused_all_at_once(opens: Opens, tmp_path: Path) -> None:
    platform = opens(Strict)
    load(platform, tmp_path, "a.csv", ("m1", "01", 5), ("m2", "01", -9))
    (case,) = cases(platform).all.values()
    with pytest.raises(InputRefused) as refused:
        release(platform, READINGS, Choice(("abcd", case.case_id[:2])), by="ada", reason="wanted")
    assert [one.what for one in refused.value.problems] == [
        f"{READINGS} has no case 'abcd'",
        f"'{case.case_id[:2]}' is shorter than 4 characters",
    ]
    with pytest.raises(InputRefused, match="did you mean 'watt_hours: greater_than_or_equal_to"):
        release(platform, READINGS, Choice(rule="watt_hours: greater_than_or_equal(0)"), by="ada", reason="wanted")
    with pytest.raises(InputRefused, match="cases are chosen in two ways at once"):
        release(platform, READINGS, Choice(("abcd",), everything=True), by="ada", reason="wanted")
    with pytest.raises(InputRefused, match="no reason is given"):
        reject(platform, READINGS, Choice(everything=True), by="ada", reason=" ")
    with pytest.raises(InputRefused, match="is the quarantine of"):
        reject(platform, f"{READINGS}_quarantine", Choice(everything=True), by="ada", reason="wanted")


def test_rows_of_a_load_that_never_came_to_its_table_are_no_cases(
    opens: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = opens(Strict)
    append = type(platform.lakehouse).append

    def dies(self: Any, name: str, *args: Any, **named: Any) -> Any:
        if name == READINGS:
            raise KeyboardInterrupt
        return append(self, name, *args, **named)

    with monkeypatch.context() as patched:
        patched.setattr(type(platform.lakehouse), "append", dies)
        with pytest.raises(KeyboardInterrupt):
            load(platform, tmp_path, "a.csv", ("m1", "01", 5), ("m2", "01", -3))
    assert states(platform) == {}
    assert release_all(opens(Loose)).released == ()
    load(platform, tmp_path, "a.csv", ("m1", "01", 5), ("m2", "01", -3))
    assert (held(platform), states(platform)) == ([("m1", 5), ("m2", -3)], {})  # by the rules of then, each row once


def test_the_summary_counts_cases_by_rule(opens: Opens, tmp_path: Path) -> None:
    platform = opens(Strict)
    load(platform, tmp_path, "a.csv", ("m1", "01", 5), ("m2", "01", -3), ("m3", "01", -3), ("m4", "01", "x"))
    reject(platform, READINGS, Choice(rule="watt_hours: not int"), by="ada", reason="no number")
    first, second = cases(platform).by_rule()
    assert (first.rule, first.waiting, first.rows, first.share) == (
        "watt_hours: greater_than_or_equal_to(0)",
        2,
        2,
        0.5,
    )
    assert first.oldest_waiting is not None
    assert (second.waiting, second.rejected, second.oldest_waiting) == (0, 1, None)


def test_the_limit_of_a_rule_refuses_a_load_before_anything_is_written(
    opens: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = opens(Strict)
    table = replace(
        platform.products.input(READINGS), quarantine_limits={"watt_hours: not int": 0.25, "meter: null": 0}
    )
    monkeypatch.setattr(finding, "find_products", serves(ba.Product("metering", (table,), ())))
    platform = Platform.of(load_settings(home=tmp_path / "home", quarantine_limit=0.5))
    with pytest.raises(InputRefused) as refused:
        load(platform, tmp_path, "a.csv", ("m1", "01", 5), ("m2", "01", "x"), ("", "01", 3), ("m3", "01", "y"))
    whole, of_rule, of_other = (one.what.partition(": ")[2] for one in refused.value.problems)
    assert whole.startswith(
        "3 of 4 rows (75.0%) are not rows of bronze.readings: watt_hours: not int (2, first in row 1"
    )
    assert of_rule == "2 of 4 rows (50.0%) break the rule 'watt_hours: not int', first in row 1: watt_hours is x"
    assert of_other.startswith("1 of 4 rows (25.0%) break the rule 'meter: null', first in row 2")
    assert (held(platform), platform.lakehouse.loads(f"{READINGS}_quarantine")) == ([], [])
    load(platform, tmp_path, "b.csv", ("m1", "01", 5), ("m2", "01", "x"), ("m4", "01", 3), ("m3", "01", -1))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("quarantine_limits", {"meter: null": 1.5}, "a mapping from rules"),
        ("quarantine_limits", {"meter: null": True}, "a mapping from rules"),
        ("quarantine_limits", {" ": 0.5}, "a mapping from rules"),
        ("quarantine_limits", 0.5, "a mapping from rules"),
        ("quarantine_age_days", 0, "a whole number of days"),
        ("quarantine_age_days", 1.5, "a whole number of days"),
    ],
)
def test_limits_that_cannot_be_are_refused_with_the_declaration(field: str, value: Any, said: str) -> None:
    table = replace(ba.InputTable(READINGS, "readings", Strict, ("team:x",)), **{field: value})
    (problem,) = wrong_table_fields(table)
    assert said in problem.rule


def test_a_table_without_a_quarantine_has_no_limits() -> None:
    table = ba.InputTable(READINGS, "readings", Strict, ("team:x",), is_reference=True, quarantine_age_days=3)
    (problem,) = of_input(table, {READINGS: None})
    assert "a reference table, which has no quarantine" in problem.what


def test_what_waits_too_long_is_named_by_the_doctor_and_counted_in_the_metrics(
    opens: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = opens(Strict)
    load(platform, tmp_path, "a.csv", ("m1", "01", 5), ("m2", "01", -3), ("m3", "01", "x"))
    reject(platform, READINGS, Choice(rule="watt_hours: not int"), by="ada", reason="no number")
    table = replace(platform.products.input(READINGS), quarantine_age_days=2)
    monkeypatch.setattr(finding, "find_products", serves(ba.Product("metering", (table,), ())))
    platform = Platform.of(load_settings(home=tmp_path / "home", quarantine_limit=0.9))
    assert list(cases_left_waiting(platform)) == []
    later = platform.ledger.now() + timedelta(days=3)
    monkeypatch.setattr(platform.ledger.engine, "clock", lambda: later)
    declared = platform.products.input(READINGS)
    known = cases_of(platform, declared)
    assert cases_of(platform, declared, known) is known
    (found,) = cases_left_waiting(platform)
    assert "1 quarantined case(s) wait for longer than 2 day(s)" in found.what
    told = {
        (one["name"], one["labels"].get("rule"), one["labels"].get("state")): one["value"]
        for one in metrics.samples(metrics.registry(platform))
        if one["name"].startswith("backfill_quarantine_")
    }
    since = told.pop(("backfill_quarantine_waiting_since_timestamp_seconds", None, None))
    assert later.timestamp() - since == pytest.approx(3 * 86_400, abs=60)
    assert told == {
        ("backfill_quarantine_cases", "watt_hours: greater_than_or_equal_to(0)", "WAITING"): 1,
        ("backfill_quarantine_cases", "watt_hours: not int", "REJECTED"): 1,
    }


def _answered(platform: Platform, path: str) -> tuple[object, str]:
    """Return what a page says; the installation is opened for it as the server does."""
    app = make_pages(platform.ledger, platform.evidence, opened=lambda: nullcontext(platform))
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, object]:
        await asyncio.sleep(0)
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    path, _, query = path.partition("?")
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "headers": []}
    asyncio.run(app(scope | {"query_string": query.encode()}, receive, send))  # type: ignore[arg-type]
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:]).decode()


def test_pages_show_cases_escaped_and_withhold_what_the_policy_protects(opens: Opens, tmp_path: Path) -> None:
    platform = opens(Strict)
    script = "<script>alert(1)</script>"
    load(platform, tmp_path, "a.csv", ("m1", "01", 5), ("m2", "01", -3), ("m3", "01", script))
    ids = {case.detail: case.case_id for case in cases(platform).all.values()}
    bad = ids[f"watt_hours is {script}"]
    reject(platform, READINGS, Choice((bad,)), by="eve", reason="<b>broken</b>")
    code, shown = _answered(platform, "/backfill/quarantine/tables")
    assert (code, "watt_hours: not int" in shown) == (200, True)
    code, shown = _answered(platform, f"/backfill/quarantine/tables/{READINGS}?state=REJECTED")
    assert (code, "1 of 1 cases" in shown, bad in shown, ids["watt_hours is -3"] in shown) == (200, True, True, False)
    code, case = _answered(platform, f"/backfill/quarantine/tables/{READINGS}/{bad[:12]}")
    assert (code, "&lt;script&gt;alert(1)" in case, "&lt;b&gt;broken" in case) == (200, True, True)
    for page in (shown, case):
        assert script not in page
        assert "<b>broken" not in page
    for path in (f"{READINGS}/ffff", f"{READINGS}_quarantine", "bronze.none", f"{READINGS}/<b>"):
        code, shown = _answered(platform, f"/backfill/quarantine/tables/{path}")
        assert (code, "<b>" in shown) == (404, False)
    put_in_force(
        platform,
        {
            "name": "private meters",
            "classifications": {"personal": {"modes": ["LIVE"], "otherwise": "REFUSE"}},
            "sources": [{"table": READINGS, "columns": {"meter": {"classification": "personal"}}}],
        },
    )
    for path in ("", f"/{bad}"):
        code, shown = _answered(platform, f"/backfill/quarantine/tables/{READINGS}{path}")
        assert (code, "alert(1)" in shown, "withheld" in shown) == (200, False, True)
    file = tmp_path / "cases.csv"
    table = platform.products.input(READINGS)
    assert export(platform, table, list(cases(platform).all.values()), file) == 2
    assert pl.read_csv(file)["record"].unique().to_list() == [WITHHELD]
    assert view_of(platform, table, bad).record == WITHHELD


def test_dagster_is_told_what_waits(opens: Opens, tmp_path: Path) -> None:
    platform = opens(Strict)
    load(platform, tmp_path, "a.csv", ("m1", "01", 5), ("m2", "01", -3), ("m3", "01", "x"))
    reject(platform, READINGS, Choice(rule="watt_hours: not int"), by="ada", reason="no number")
    told = {one.asset_key.to_user_string(): one.metadata for one in observations(platform, {})[0]}
    found = told["bronze/readings"]
    assert found["quarantined_rows"].value == 2
    assert found["quarantine_cases_waiting"].value == 1
    assert found["quarantine_waiting_by_rule"].value == {"watt_hours: greater_than_or_equal_to(0)": 1}
    assert "quarantine_oldest_waiting" in found


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """An installation of the product that ships: a case log was loaded that has an activity nobody knew."""
    platform = Platform.of(load_settings(home=tmp_path / "log", quarantine_limit=0.9))
    initialise(platform)
    head = f"{raw.CASE_ID},{raw.ACTIVITY},{raw.TIMESTAMP},{raw.AMOUNT},{raw.EVENT_SEQ}"
    lines = [
        f"A{one},{activity},2012-01-0{one}T00:00:00+01:00,71.5,{one}"
        for one, activity in enumerate(("Payment", "Fly", "Swim"), 1)
    ]
    file = tmp_path / "log.csv"
    file.write_text("\n".join([head, *lines]) + "\n")
    load_delivery(platform, enforcement.EVENTS, enforcement.from_file(file), 0.9)
    monkeypatch.setattr(raw, "ACTIVITIES", (*raw.ACTIVITIES, "Swim"))
    return platform


def test_rows_of_a_products_own_loader_are_released_by_it(log: Platform) -> None:
    done = release(log, enforcement.EVENTS, Choice(everything=True), by="ada", reason="people swim")
    assert [rule for _, rule in done.waiting] == ["UNKNOWN_ACTIVITY"]
    rows = log.lakehouse.table(enforcement.EVENTS).scan().to_arrow().to_pylist()
    assert sorted((one["activity"], one["source_file"], one["source_row"]) for one in rows) == [
        ("Payment", "log.csv", 0),
        ("Swim", "log.csv", 2),
    ]
    events = pl.DataFrame(rows)
    assert events["event_id"].n_unique() == 2


def test_a_loader_that_cannot_read_back_its_rows_is_named(log: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforcement, "CASE_EVENTS", replace(enforcement.CASE_EVENTS, from_records=None))
    with pytest.raises(InputRefused, match=r"the loader case-events of bronze\.case_events has no `from_records`"):
        release(log, enforcement.EVENTS, Choice(everything=True), by="ada", reason="people swim")

    def drops(records: Any) -> Any:
        return replace(enforcement.from_records(records[:1]), records=(replace(records[0], source_row=77),))

    monkeypatch.setattr(enforcement, "CASE_EVENTS", replace(enforcement.CASE_EVENTS, from_records=drops))
    with pytest.raises(InputRefused, match=r"it quarantines row 77 of log\.csv, and was given none such"):
        release(log, enforcement.EVENTS, Choice(everything=True), by="ada", reason="people swim")
    assert log.ledger.quarantine.releases(enforcement.EVENTS) == []
    assert reject(log, enforcement.EVENTS, Choice(everything=True), by="ada", reason="no").rejected


class Typed(pandera.DataFrameModel):
    """Values of every kind that is read back from text."""

    number: pl.Int64 = pandera.Field(ge=0)
    at: ba.Instant = pandera.Field()
    local: ba.LocalTimestamp = pandera.Field(nullable=True)
    day: pl.Date = pandera.Field(nullable=True)
    clock: pl.Time = pandera.Field(nullable=True)
    share: pl.Float64 = pandera.Field(nullable=True)
    small: pl.Float32 = pandera.Field(nullable=True)
    price: Annotated[pl.Decimal, 12, 2] = pandera.Field(nullable=True)
    is_so: pl.Boolean = pandera.Field(nullable=True)
    names: pl.List(pl.String) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    numbers: pl.List(pl.Int64) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    raw: pl.Binary = pandera.Field(nullable=True)


class Anything(Typed):
    number: pl.Int64 = pandera.Field()


def test_rows_of_a_typed_file_come_in_as_they_would_have(opens: Opens, tmp_path: Path) -> None:
    instant = datetime(2024, 1, 31, 12, 30, 15, 123456, tzinfo=UTC)
    at = instant.replace(tzinfo=None)
    values = {
        "number": [-1, -2, -3],
        "at": [instant] * 3,
        "local": [at, None, at],
        "day": [at.date(), None, at.date()],
        "clock": [at.time(), None, at.time()],
        "share": [0.1, float("nan"), 1e300],
        "small": [0.25, float("-inf"), None],
        "price": [Decimal("12.30"), None, Decimal("-0.01")],
        "is_so": [True, None, False],
        "names": [["a,\"b'", None, ""], None, []],
        "numbers": [[1, None, -5], None, []],
        "raw": [b"\x00\xff", None, b""],
    }
    frame = pl.DataFrame(
        values, schema={name: kind() if isinstance(kind, type) else kind for name, kind in dtypes(Typed).items()}
    )
    file = tmp_path / "typed.parquet"
    frame.with_columns(pl.col("at", "local").dt.cast_time_unit("ns")).write_parquet(file)
    good = tmp_path / "good.parquet"
    pl.concat([frame, frame.head(1).with_columns(number=pl.lit(7, pl.Int64))]).write_parquet(good)
    load_file(opens(Typed), READINGS, good)
    platform = opens(Anything)
    done = release_all(platform)
    assert ([rule for _, rule in done.waiting], done.rows) == ([], 3)
    found = pl.from_arrow(platform.lakehouse.table(READINGS).scan().to_arrow())
    assert isinstance(found, pl.DataFrame)
    released = found.filter(pl.col("number") < 0).sort("number", descending=True)
    undo_load(platform, READINGS, done.load_id, by="bob", reason="to compare")
    load_file(platform, READINGS, file)
    whole = pl.from_arrow(platform.lakehouse.table(READINGS).scan().to_arrow())
    assert isinstance(whole, pl.DataFrame)
    expected = whole.filter(pl.col("number") < 0).sort("number", descending=True)
    assert {name: repr(released[name].to_list()) for name in released.columns} == {
        name: repr(expected[name].to_list()) for name in expected.columns
    }


class Scores(pandera.DataFrameModel):
    number: pl.Int64 = pandera.Field(ge=0)
    score: pl.Float32 = pandera.Field(nullable=True)
    wide: pl.Float64 = pandera.Field(nullable=True)
    scores: pl.List(pl.Float32) = pandera.Field(nullable=True)  # type: ignore[valid-type]


class AnyScores(Scores):
    number: pl.Int64 = pandera.Field()


@pytest.mark.parametrize(
    ("kind", "refused"), [(pl.Float64, [0.1, 16777217.0, 1e300]), (pl.Int64, [16777217, 123456789])]
)
def test_a_release_refuses_the_numbers_that_the_load_has_refused(
    opens: Opens, tmp_path: Path, kind: Any, refused: list[float]
) -> None:
    file = tmp_path / "scores.parquet"
    scores = [4, *refused, *([None] * len(refused))]
    lists = [[8], *([None] * len(refused)), *([one] for one in refused)]
    schema = {"number": pl.Int64, "score": kind, "scores": pl.List(kind)}
    pl.DataFrame({"number": range(len(scores)), "score": scores, "scores": lists}, schema=schema).write_parquet(file)
    platform = opens(Scores)
    at_load = load_file(platform, READINGS, file).by_reason
    assert at_load == {"score: not float": len(refused), "scores: not list<float>": len(refused)}
    done = release_all(platform)
    assert done.rows == 0
    assert sorted(rule for _, rule in done.waiting) == sorted(
        rule for rule, times in at_load.items() for _ in range(times)
    )


class Listed(pandera.DataFrameModel):
    number: pl.Int64 = pandera.Field(ge=0)
    scores: pl.List(pl.Float32) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    nested: pl.List(pl.List(pl.Float64)) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    instants: pl.List(pl.Datetime("us", "UTC")) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    clocks: pl.List(pl.Datetime("us")) = pandera.Field(nullable=True)  # type: ignore[valid-type]


class AnyListed(Listed):
    number: pl.Int64 = pandera.Field()


class OfInstants(pandera.DataFrameModel):
    number: pl.Int64 = pandera.Field(ge=0)
    instants: pl.List(pl.Datetime("us", "UTC")) = pandera.Field(nullable=True)  # type: ignore[valid-type]


class AnyOfInstants(OfInstants):
    number: pl.Int64 = pandera.Field()


def test_lists_with_numbers_that_are_none_or_instants_of_nanoseconds_are_released_as_they_were_loaded(
    opens: Opens, tmp_path: Path
) -> None:
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    file = tmp_path / "listed.parquet"
    frame = pl.DataFrame(
        {
            "scores": [[0.1, None, float("nan")], [float("-inf")], [], None],
            "nested": [[[float("nan"), 0.1], None], [[1e23, float("inf")], []], [[-0.0]], None],
            "instants": [[noon, None], [noon.replace(microsecond=123456)], [], None],
            "clocks": [[noon.replace(tzinfo=None)], [None], [], None],
        },
        schema={
            "scores": pl.List(pl.Float32),
            "nested": pl.List(pl.List(pl.Float64)),
            "instants": pl.List(pl.Datetime("ns", "UTC")),
            "clocks": pl.List(pl.Datetime("ns")),
        },
    )
    numbers = pl.Series("number", [0, 1, 2, 3, -4, -3, -2, -1])
    pl.concat([frame, frame]).insert_column(0, numbers).write_parquet(file)
    assert load_file(opens(Listed), READINGS, file).by_reason == {"number: greater_than_or_equal_to(0)": 4}
    platform = opens(AnyListed)
    done = release_all(platform)
    assert (done.rows, list(done.waiting)) == (4, [])
    found = platform.lakehouse.table(READINGS).scan().to_arrow().sort_by("number").drop(["number"]).to_pylist()
    assert repr(found[:4]) == repr(found[4:])


@pytest.mark.parametrize("zone", ["Europe/Paris", "America/New_York", "Asia/Kolkata"])
@pytest.mark.parametrize("unit", ["ns", "us"])
def test_instants_in_lists_are_released_as_they_were_loaded_whatever_the_zone_of_their_file(
    opens: Opens, tmp_path: Path, zone: str, unit: Any
) -> None:
    file = tmp_path / "listed.parquet"
    # an offset had seconds, until Paris took the time of Greenwich in 1911
    instants = [[datetime(1900, 1, 1, tzinfo=UTC), None], [datetime(2024, 7, 1, 12, 0, 0, 123456, tzinfo=UTC)]]
    of_a_zone = pl.List(pl.Datetime(unit, zone))
    frame = pl.DataFrame({"instants": instants}, {"instants": pl.List(pl.Datetime(unit, "UTC"))}).cast(of_a_zone)
    numbers = pl.Series("number", [0, 1, -2, -1])
    pl.concat([frame, frame]).insert_column(0, numbers).write_parquet(file)
    assert load_file(opens(OfInstants), READINGS, file).by_reason == {"number: greater_than_or_equal_to(0)": 2}
    platform = opens(AnyOfInstants)
    done = release_all(platform)
    assert (done.rows, list(done.waiting)) == (2, [])
    found = platform.lakehouse.table(READINGS).scan().to_arrow().sort_by("number")["instants"].to_pylist()
    assert found == [*instants, *instants]


def test_instants_in_lists_that_were_quarantined_by_the_offset_of_their_zone_are_read_back() -> None:
    record = '{"number":"1","instants":["2024-07-01 08:00:00.123456000-04:00"]}'
    (found,) = RawRecords(
        [RawRow("c", "r", "l", "listed.parquet", 0, record, "number: positive")], AnyOfInstants
    ).batches()
    assert found.passed["instants"].to_list() == [[datetime(2024, 7, 1, 12, 0, 0, 123456, tzinfo=UTC)]]


class Narrow(pandera.DataFrameModel):
    number: pl.Int32 = pandera.Field()
    score: pl.Float32 = pandera.Field(nullable=True)
    scores: pl.List(pl.Float32) = pandera.Field(nullable=True)  # type: ignore[valid-type]


class Widened(Narrow):
    number: pl.Int64 = pandera.Field()


@pytest.mark.parametrize("kind", [pl.Float32, pl.Float64, pl.Int64])
def test_a_release_refuses_a_number_that_no_float_can_be_also_of_a_row_that_was_refused_for_another_column(
    opens: Opens, tmp_path: Path, kind: Any
) -> None:
    file = tmp_path / "scores.parquet"
    held = [1, 2**24] if kind is pl.Int64 else [0.5, 1e30, float("inf"), float("nan")]
    held = pl.Series(held, dtype=pl.Float64).cast(pl.Float32).cast(kind).to_list()
    rounded = {pl.Float32: [], pl.Float64: [0.1, 16777217.0, 1e300], pl.Int64: [2**24 + 1, 2**53 + 1, 10**17]}[kind]
    scores = [*held, *rounded, *([None] * len(rounded))]
    lists = [*([None] * len(held + rounded)), *([one, None] for one in rounded)]
    schema = {"number": pl.Int64, "score": kind, "scores": pl.List(kind)}
    rows = pl.DataFrame(
        {"number": pl.int_range(len(scores), eager=True) + 2**31, "score": scores, "scores": lists}, schema
    )
    pl.concat([pl.DataFrame({"number": range(4), "score": None, "scores": None}, schema), rows]).write_parquet(file)
    assert load_file(opens(Narrow), READINGS, file).by_reason == {"number: not int": len(scores)}
    platform = opens(Widened)
    done = release_all(platform)
    assert [rule for _, rule in done.waiting] == ["score: not float"] * len(rounded) + [
        "scores: not list<float>"
    ] * len(rounded)
    found = platform.lakehouse.table(READINGS).scan(f"number >= {2**31}").to_arrow().sort_by("number")["score"]
    assert repr(found.to_pylist()) == repr(list(map(float, held)))


def test_a_float_that_is_released_is_the_one_that_came_also_in_a_column_of_doubles(
    opens: Opens, tmp_path: Path
) -> None:
    file = tmp_path / "scores.parquet"
    floats = pl.Series([0.1, 1e-7, 3.4e38, 16777216.0, float("nan"), None], dtype=pl.Float32)
    frame = pl.DataFrame({"number": pl.int_range(-6, 0, eager=True), "score": floats, "wide": floats})
    pl.concat([frame, frame.head(1).with_columns(number=pl.lit(1, pl.Int64))]).write_parquet(file)
    load_file(opens(Scores), READINGS, file)
    platform = opens(AnyScores)
    done = release_all(platform)
    assert (done.rows, list(done.waiting)) == (6, [])
    found = platform.lakehouse.table(READINGS).scan().to_arrow().sort_by("number").slice(0, 6)
    for name in ("score", "wide"):
        assert repr(found[name].to_pylist()) == repr(floats.cast(pl.Float64).to_list())


@pytest.mark.parametrize(
    ("chunking", "keys", "expected"),
    [
        ("DAY", ["2024-01-01", "2024-01-02", "2024-01-04"], [["2024-01-01", "2024-01-02"], ["2024-01-04"]]),
        ("MONTH", ["2024-01", "2023-12", "2024-03"], [["2023-12", "2024-01"], ["2024-03"]]),
        (
            "HOUR",
            ["2024-01-01T03", "2024-01-01T09", "2024-01-02T01", "2024-01-04T00"],
            [["2024-01-01T03", "2024-01-01T09"], ["2024-01-02T01"], ["2024-01-04T00"]],
        ),
        (
            "DAY",
            ["2024-01-01~a", "2024-01-02~a", "2024-01-01~b", "2024-01-02~b", "2024-01-02~c"],
            [["2024-01-01~a", "2024-01-01~b", "2024-01-02~a", "2024-01-02~b"], ["2024-01-02~c"]],
        ),
    ],
)
def test_touched_chunks_are_as_few_runs_as_hold_nothing_else(
    chunking: str, keys: list[str], expected: list[list[str]]
) -> None:
    assert [own for _, own in stretches_to_run(ba.Chunking[chunking], keys)] == expected


def test_a_released_row_has_come_once_and_counts_once_in_the_share_of_its_rule(opens: Opens, tmp_path: Path) -> None:
    load(opens(Strict), tmp_path, "a.csv", ("m1", "01", 5), ("m2", "01", -3), ("m3", "01", -4), ("m4", "01", -99))
    platform = opens(Loose)
    assert [one.share for one in cases(platform).by_rule()] == [0.75]
    assert release_all(platform).rows == 2
    assert [one.share for one in cases(platform).by_rule()] == [0.75]


def test_a_rejection_that_was_wrong_is_taken_back_and_the_row_released(opens: Opens, tmp_path: Path) -> None:
    load(opens(Strict), tmp_path, "a.csv", ("m1", "01", 5), ("m2", "01", -3), ("m3", "01", -4))
    platform = opens(Loose)
    by_detail = {case.detail: case.case_id for case in cases(platform).all.values()}
    first, second = by_detail["watt_hours is -3"], by_detail["watt_hours is -4"]
    reject(platform, READINGS, Choice((first, second)), by="bob", reason="a test of the sender's")
    with pytest.raises(InputRefused, match=f"quarantine reopen {READINGS} {first[:12]}"):
        release(platform, READINGS, Choice((first,)), by="ada", reason="the rule was wrong")
    done = reopen(platform, READINGS, Choice((first,)), by="ada", reason="it was none")
    assert [case.case_id for case in done.reopened] == [first]
    assert states(platform) == {"watt_hours is -3": WAITING, "watt_hours is -4": REJECTED}
    assert [case.case_id for case in reopen(platform, READINGS, Choice((first,)), by="ada", reason="again").before] == [
        first
    ]
    assert release_all(platform).rows == 1
    assert held(platform) == [("m1", 5), ("m2", -3)]
    with pytest.raises(InputRefused, match="take the release back first"):
        reopen(platform, READINGS, Choice((first,)), by="ada", reason="again")
    told = [one.decision for one in platform.ledger.quarantine.decisions(READINGS) if one.case_id == first]
    assert told == ["REJECTED", "REOPENED", "RELEASED"]
    assert [
        case.case_id for case in reopen(platform, READINGS, Choice(everything=True), by="ada", reason="all").reopened
    ] == [second]
    assert verify(platform).everything == []


def test_the_command_reopens_cases(opens: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = opens(Strict)
    load(platform, tmp_path, "a.csv", ("m1", "01", 5), ("m2", "01", -3))
    reject(platform, READINGS, Choice(everything=True), by="bob", reason="a test")
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    words = ["quarantine", "reopen", READINGS, "--all", "--by", "ada", "--reason", "it was none"]
    done = CliRunner().invoke(cli, words)
    assert (done.exit_code, "1 case(s) wait again" in done.output) == (0, True), done.output
    assert states(platform) == {"watt_hours is -3": WAITING}
