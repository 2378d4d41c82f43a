"""Why a row says what it says: through two versions, a rollback, a key that went and one that came."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from pyiceberg.expressions import AlwaysTrue
from support import put_in_force
from worlds import FEW_GATES, KEY, TARGET, VALUES, World, make_world

from backfill_assets.audit import explain as explain_module
from backfill_assets.audit.explain import Explanation, explain
from backfill_assets.cli import explain_view
from backfill_assets.cli.command import cli
from backfill_assets.declarations.key_texts import parse_key
from backfill_assets.products.enforcement import CASE_SLA_DAILY
from backfill_assets.publication.accepting import accept
from backfill_assets.publication.publisher import prepare, publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.run_context import RunContext
from benchmarks import small_table
from manifests.errors import InputRefused
from manifests.lifecycle import RunState


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Four months: history by 2.4.1 and a restatement of all of it by 3.1.0, both published."""
    made = make_world(tmp_path_factory.mktemp("explain") / "home", cases=80, end=date(2010, 4, 30), gates=FEW_GATES)

    for run_id, version in (("history", "2.4.1"), ("restated", "3.1.0")):
        made.published(made.manifest(run_id, version=version))
    return made


@pytest.fixture(scope="module")
def sides(world: World) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows of history and of the restatement."""
    ledger = world.platform.ledger
    snapshots = [ledger.publications(run_id)[0].snapshot_id for run_id in ("history", "restated")]
    old, new = (world.rows(snapshot) for snapshot in snapshots)
    return old, new


def text_of(row: dict[str, Any]) -> str:
    return ",".join(f"{name}={row[name]}" for name in KEY)


def changed_row(sides: tuple[pl.DataFrame, pl.DataFrame]) -> tuple[dict[str, Any], dict[str, Any]]:
    old, new = sides
    both = old.join(new, on=KEY, how="inner", suffix="_new").filter(pl.col("started_on") != pl.col("started_on_new"))
    key = both.sort(KEY).select(KEY).row(both.height // 2, named=True)
    mine = [pl.col(name) == value for name, value in key.items()]
    return old.filter(mine).row(0, named=True), new.filter(mine).row(0, named=True)


def test_a_row_is_traced_through_both_versions(world: World, sides: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    was, row = changed_row(sides)
    found = explain(world.platform, TARGET, [text_of(row)])
    assert found.row is not None
    assert {name: found.row[name] for name in VALUES} == {
        name: row[name] if isinstance(row[name], (int, type(None))) else str(row[name]) for name in VALUES
    }
    assert (found.accepted_run, found.row["run_id"], found.chunk) == (
        "restated",
        "restated",
        str(row["business_date"])[:7],
    )
    assert [(version.action, version.run_id) for version in found.versions] == [
        ("publish", "restated"),
        ("publish", "history"),
    ]
    newest = found.versions[0]
    expected = {name: [was[name], row[name]] for name in VALUES if was[name] != row[name]}
    assert newest.changed.keys() == expected.keys()
    assert newest.changed["started_on"] == [str(was["started_on"]), str(row["started_on"])]
    assert newest.because == {"transform version": ["2.4.1", "3.1.0"]}  # the same code, source and rules
    assert found.versions[1].changed == {}
    made = found.producer
    assert made is not None
    record = world.platform.ledger.run("restated")
    assert (made.requested_by, made.reason, made.plan_hash) == ("ana", "a reason that is long enough", record.plan_hash)
    assert made.decisions[0]["decided_by"] == "bob"
    assert made.source_snapshot_id == row["input_snapshot_id"]
    assert [(gate["gate"], gate["chunk"]) for gate in made.gates[:1]] == [("chunk_rules", found.chunk)]
    assert all(gate["passed"] for gate in made.gates)
    assert len(made.gates) == 1 + len(record.plan.gates)


def test_its_source_rows_are_those_of_the_case_at_the_pinned_snapshot(
    world: World, sides: tuple[pl.DataFrame, pl.DataFrame]
) -> None:
    _, row = changed_row(sides)
    found = explain(world.platform, TARGET, [text_of(row)])
    events = pl.from_arrow(world.platform.lakehouse.table("bronze.case_events").scan().to_arrow())
    assert isinstance(events, pl.DataFrame)
    mine = events.filter(pl.col("case_id") == row["case_id"])
    plan = world.platform.ledger.run("restated").plan
    first = row["business_date"].replace(day=1)
    last = (first + timedelta(days=31)).replace(day=1)
    start = datetime.combine(first, datetime.min.time(), UTC) - timedelta(days=plan.warm_up_days + 1)
    end = datetime.combine(last, datetime.min.time(), UTC) + timedelta(days=1)
    inside = mine.filter((pl.col("event_at") >= start) & (pl.col("event_at") < end))
    assert found.source is not None
    assert found.source.total == inside.height > 0
    assert sorted(one["event_id"] for one in found.source.rows) == sorted(inside["event_id"])
    assert found.source.earlier == mine.filter(pl.col("event_at") < start).height


def test_source_rows_are_told_from_those_nearest_to_the_day_of_the_row_on(world: World) -> None:
    table = world.platform.lakehouse.table("bronze.case_events")
    snapshot = world.platform.ledger.run("restated").plan.source_snapshot_id
    day = date(2010, 3, 10)
    rows = explain_module._rows(table, AlwaysTrue(), snapshot, "event_at", day)
    instants = [row["event_at"] for row in rows]
    before = [at for at in instants if at.date() <= day]
    after = [at for at in instants if at.date() > day]
    assert before == sorted(before, reverse=True)
    assert after == sorted(after)
    assert abs((instants[0].date() - day).days) <= 1 < abs((instants[-1].date() - day).days)
    in_order = explain_module._rows(table, AlwaysTrue(), snapshot, "event_at", None)
    assert [row["event_at"] for row in in_order] == sorted(instants)


def test_source_rows_of_erased_subjects_and_of_protected_columns_are_not_shown(
    world: World, sides: tuple[pl.DataFrame, pl.DataFrame]
) -> None:
    _, row = changed_row(sides)
    before = explain(world.platform, TARGET, [text_of(row)]).source
    assert before is not None
    subject = before.rows[0]["event_id"]
    (world.home / "erased.csv").write_text(f"subject,erased_on\n{subject},2010-01-01\n")
    shipped = {"name": "four eyes", "rules": [{}]}
    try:
        erasure = {"column": "event_id", "file": "erased.csv"}
        put_in_force(world.platform, {"name": "t", "sources": [{"table": "bronze.case_events", "erasure": erasure}]})
        found = explain(world.platform, TARGET, [text_of(row)])
        assert found.source is not None
        assert found.row is not None
        assert (found.source.erased, found.source.total, found.source.earlier) == (1, before.total - 1, before.earlier)
        assert subject not in str(found)
        assert before.look_back == found.source.look_back
        columns = {"event_id": {"classification": "health"}}
        said = {"classifications": {"health": {"modes": ["LIVE"]}}}
        said |= {"name": "t", "sources": [{"table": "bronze.case_events", "columns": columns}]}
        put_in_force(world.platform, said)
        source = explain(world.platform, TARGET, [text_of(row)]).source
        assert source is not None
        assert (source.rows, source.look_back) == ([], [])
        assert source.missing.startswith("the policy protects columns of bronze.case_events")
    finally:
        put_in_force(world.platform, shipped)


def test_source_rows_of_erased_subjects_are_not_shown_whatever_their_column_was_called_then(
    world: World, sides: tuple[pl.DataFrame, pl.DataFrame]
) -> None:
    _, row = changed_row(sides)
    before = explain(world.platform, TARGET, [text_of(row)]).source
    assert before is not None
    subject = before.rows[0]["event_id"]
    (world.home / "erased.csv").write_text(f"subject,erased_on\n{subject},2010-01-01\n")
    erasure = {"column": "event_number", "file": "erased.csv"}
    source = world.platform.lakehouse.table("bronze.case_events")
    try:
        with source.update_schema() as change:
            change.rename_column("event_id", "event_number")
        put_in_force(world.platform, {"name": "t", "sources": [{"table": "bronze.case_events", "erasure": erasure}]})
        found = explain(world.platform, TARGET, [text_of(row)]).source
        assert found is not None
        assert (found.erased, found.total, found.earlier) == (1, before.total - 1, before.earlier)
        assert subject not in str(found)
        assert before.look_back == found.look_back
    finally:
        with source.refresh().update_schema() as change:
            change.rename_column("event_number", "event_id")
        put_in_force(world.platform, {"name": "four eyes", "rules": [{}]})


def test_how_the_shown_source_rows_are_chosen_is_said() -> None:
    day = date(2024, 10, 27)
    assert explain_view._which(day, 68) == ", the 12 nearest to 2024-10-27 shown, nearest first"
    assert explain_view._which(day, 5) == ", nearest to 2024-10-27 first"
    assert explain_view._which(day, 1) == ""
    assert explain_view._which(None, 68) == ", the first 12 shown"


def test_earlier_source_rows_without_their_instants_are_not_said_to_be_the_nearest(
    world: World, sides: tuple[pl.DataFrame, pl.DataFrame]
) -> None:
    target, record = CASE_SLA_DAILY, world.platform.ledger.run("restated")
    row = sides[1].row(0, named=True)
    chunk = record.plan.chunks[0].key
    for columns, day in (((target.entity,), None), ((target.entity, "event_at"), row[target.day_column])):
        run = RunContext(world.platform, replace(target, look_back_columns=columns), record.plan)
        found = explain_module._source_rows(run, chunk, row)
        assert (found.day, found.look_back_day) == (row[target.day_column], day)


def removed_and_added(sides: tuple[pl.DataFrame, pl.DataFrame]) -> tuple[dict[str, Any], dict[str, Any]]:
    old, new = sides
    gone, came = old.join(new, on=KEY, how="anti"), new.join(old, on=KEY, how="anti")
    return gone.sort(KEY).row(0, named=True), came.sort(KEY).row(0, named=True)


def require_gone(found: Explanation, run_id: str, action: str) -> None:
    assert found.row is None
    assert found.versions[0].row is None
    assert (found.versions[0].run_id, found.versions[0].action) == (run_id, action)


def test_a_key_that_is_gone_was_removed_by_a_run(world: World, sides: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    gone, came = removed_and_added(sides)
    found = explain(world.platform, TARGET, [text_of(gone)])
    require_gone(found, "restated", "publish")
    assert [version.run_id for version in found.versions] == ["restated", "history"]
    assert found.producer is not None
    assert found.producer.run_id == "history"
    new = explain(world.platform, TARGET, [text_of(came)])
    assert [version.run_id for version in new.versions] == ["restated"]


def test_a_key_that_never_was_is_said_to(world: World) -> None:
    found = explain(world.platform, TARGET, ["case_id=nobody,clock=PAYMENT,business_date=2010-02-03"])
    assert (found.row, found.versions, found.producer, found.chunk) == (None, [], None, "2010-02")
    found = explain(world.platform, TARGET, ["case_id=nobody,clock=PAYMENT,business_date=2012-02-03"])
    assert any("no run holds chunk 2012-02" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("case_id=a", "clock, business_date is not given"),
        ("case_id=a,clock=b,business_date=soon", "not a date"),
        ("case_id=a,clock=b,business_date=2010-01-01,amount=3", "amount is not in the key"),
        ("case_id=a,case_id=b,clock=c,business_date=2010-01-01", "given twice"),
        ("whatever", "not column=value"),
    ],
)
def test_a_wrong_key_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InputRefused, match=why):
        parse_key(CASE_SLA_DAILY, [text])


def test_a_value_may_hold_what_separates_them() -> None:
    key = parse_key(CASE_SLA_DAILY, ["case_id=a,clock=b", "clock=PAYMENT", "business_date=2010-01-01"])
    assert key == {"case_id": "a,clock=b", "clock": "PAYMENT", "business_date": date(2010, 1, 1)}


def test_a_table_that_is_not_declared_is_refused(world: World) -> None:
    with pytest.raises(InputRefused, match="not declared"):
        explain(world.platform, "silver.nothing", ["case_id=a"])


def test_the_command_says_it_to_people_and_scripts(
    world: World, sides: tuple[pl.DataFrame, pl.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    was, row = changed_row(sides)
    arguments = ["explain", TARGET, "--key", text_of(row)]
    text = " ".join(CliRunner().invoke(cli, arguments, catch_exceptions=False).stdout.split())
    for words in (
        "run 'restated' made it",
        "asked for by",
        "ana",
        "chunk_rules",
        "rows in the input range",
        "transform version: 2.4.1 ->",
    ):
        assert words in text
    assert f"started_on: {was['started_on']} ->" in text
    found = json.loads(CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert found["row"]["run_id"] == "restated"
    gone, _ = removed_and_added(sides)
    text = " ".join(CliRunner().invoke(cli, ["explain", TARGET, "--key", text_of(gone)]).stdout.split())
    assert "removed by the publish of run 'restated'" in text


def test_after_a_rollback_and_corrections_all_of_it_is_told(
    world: World, sides: tuple[pl.DataFrame, pl.DataFrame]
) -> None:
    """The last test of the module: it changes what main shows."""
    was, row = changed_row(sides)
    rollback(world.platform, "restated")
    found = explain(world.platform, TARGET, [text_of(row)])
    assert found.row is not None
    assert (found.row["run_id"], found.accepted_run) == ("history", "history")
    assert [(version.action, version.run_id) for version in found.versions] == [
        ("rollback", "restated"),
        ("publish", "restated"),
        ("publish", "history"),
    ]
    assert found.versions[0].changed["started_on"] == [str(row["started_on"]), str(was["started_on"])]
    assert found.producer is not None
    assert found.producer.state == "PUBLISHED"
    gone, came = removed_and_added(sides)
    assert explain(world.platform, TARGET, [text_of(gone)]).row is not None
    require_gone(explain(world.platform, TARGET, [text_of(came)]), "restated", "rollback")

    first = row["business_date"].replace(day=1)
    month = {"start": first, "end": (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)}
    scope = {"table": TARGET, "publishMode": "CORRECTION_EVENTS", "publishRange": month}
    publish(world.platform, world.validated(world.manifest("corrects", target=scope)).run_id)
    found = explain(world.platform, TARGET, [text_of(row)])
    assert found.row is not None
    assert found.row["run_id"] == "history"  # readers of the table see what they saw
    (event,) = found.corrections
    assert (event["event_type"], event["run_id"], event["corrects_run_id"]) == ("CHANGED", "corrects", "history")
    assert json.loads(event["new_values"])["started_on"] == str(row["started_on"])


@pytest.mark.parametrize("mode", ["VERSIONED", "SHADOW_SWAP"])
def test_what_waited_on_a_branch_is_said_since_main_shows_it(tmp_path: Path, mode: str) -> None:
    with small_table.declared():
        platform = small_table.opened(tmp_path / "home")
        small_table.initialise(platform)
        options = {"version": "v2", "acceptance": "LATER"} if mode == "VERSIONED" else {}
        for run_id, how, version in (("history", "REPLACE_PARTITIONS", "1"), ("run", mode, "2")):
            contract = small_table.manifest(
                run_id, how, small_table.SCOPE, computed_by=version, **(options if how == mode else {})
            )
            small_table.planned(platform, contract)
            assert small_table.staged(platform, run_id).state is RunState.VALIDATED
            if run_id == "history":
                publish(platform, run_id)
        prepare(platform, "run")
        if options:
            publish(platform, "run")
        shown_from = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
        while datetime.now(UTC) < shown_from:
            time.sleep(0.01)
        (accept if options else publish)(platform, "run")
        meter, day = next(row[:2] for row in small_table.rows(platform) if row[3] == "run")
        newest, before = explain(platform, small_table.READINGS, [f"meter={meter},day={day}"]).versions
        assert (newest.run_id, before.run_id) == ("run", "history")
        assert before.at < shown_from <= newest.at
        small_table.closed(platform)
