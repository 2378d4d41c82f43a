"""Tables that keep every version of a day: what they said at an instant, and the restatements that newer versions propose."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import dagster as dg
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import at_a_tick, put_in_force
from worlds import SPARK, World

import backfill_assets as ba
from backfill_assets import decisions
from backfill_assets.audit.as_of import rows_at, versions_at
from backfill_assets.audit.as_of_target import target_at
from backfill_assets.cli.command import cli
from backfill_assets.declarations.finding import check_products
from backfill_assets.declarations.revisions import KnownVersion
from backfill_assets.defs.launch import initialise_instance, instance_at
from backfill_assets.defs.proposal_sensor import launches, proposal_sensor
from backfill_assets.defs.staging import staging_job
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning.newer_versions import stale_stretches
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.schedules.proposals import Proposed, _free_run_id, foreseen, propose, under_way
from benchmarks import reports
from benchmarks.reports import DAILY, INPUT, REPORTS, TARGET, deliver, manifest, report
from benchmarks.sales import days_between
from manifests.errors import DeclarationRefused, InputRefused, PlanRefused, PublicationRefused, TransitionRefused
from manifests.lifecycle import RunState
from manifests.model import DayRange, RunManifest
from manifests.reading import manifest_from

MARCH = date(2020, 3, 1)
NOON = datetime(2020, 3, 2, 12, tzinfo=UTC)


def day(number: int) -> date:
    return MARCH + timedelta(days=number)


def at(number: float) -> datetime:
    return NOON + timedelta(days=number)


# --- what was said then -----------------------------------------------------------------------------------------------


class Log:
    """Reports in the order in which they came, and what they come to by brute force."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, days: int, said: datetime, cases: dict[str, int], name: str, revision: int) -> list[dict[str, Any]]:
        new = report(day(days), said, cases, name, revision)
        self.rows += new
        return new

    def as_of(self, instant: datetime, first: date, last: date) -> list[dict[str, Any]]:
        """Return the rows in force, day by day, from nothing but the definition."""
        found: list[dict[str, Any]] = []
        for one in sorted({row["report_date"] for row in self.rows if first <= row["report_date"] <= last}):
            known = [row for row in self.rows if row["report_date"] == one and row["published_at"] <= instant]
            if known:
                newest = max((row["published_at"], row["revision"], row["file_id"]) for row in known)
                found += [row for row in known if (row["published_at"], row["revision"], row["file_id"]) == newest]
        return found


def ordered(rows: list[dict[str, Any]]) -> list[Any]:
    return sorted(tuple(sorted((name, str(value)) for name, value in row.items())) for row in rows)


def answered(platform: ba.Platform, instant: datetime, first: date, last: date, *columns: str) -> list[dict[str, Any]]:
    asked = versions_at(platform, REPORTS, instant, DayRange(start=first, end=last), columns)
    return [row for frame in rows_at(platform, asked) for row in frame.iter_rows(named=True)]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[ba.Platform, Log]:
    """Three hundred versions of forty days, in 25 loads, in an order that is not that of their time; some at the same instant."""
    platform, log, random = reports.opened(tmp_path_factory.mktemp("told") / "home"), Log(), Random(19)
    initialise(platform)
    for load in range(25):
        rows: list[dict[str, Any]] = []
        for number in range(12):
            cases = {f"r{place}": random.randrange(50) for place in range(random.randrange(1, 4))}
            said = at(random.randrange(0, 60) / 2)
            rows += log.add(random.randrange(40), said, cases, f"f{load}-{number}", random.randrange(3))
        deliver(platform, f"load-{load}", rows)
    return platform, log


@given(st.floats(-2, 32), st.integers(0, 39), st.integers(0, 39))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_said_at_an_instant_is_what_its_definition_says(
    told: tuple[ba.Platform, Log], instant: float, one: int, other: int
) -> None:
    platform, log = told
    first, last = day(min(one, other)), day(max(one, other))
    assert ordered(answered(platform, at(instant), first, last)) == ordered(log.as_of(at(instant), first, last))


def test_a_row_that_a_later_version_leaves_out_was_not_said_then(told: tuple[ba.Platform, Log]) -> None:
    platform, log = told
    expected = [row for row in log.as_of(at(20), day(0), day(39)) if row["region"] == "r2"]
    assert ordered(answered(platform, at(20), day(0), day(39), "region=r2")) == ordered(expected)
    assert len(expected) < len({row["report_date"] for row in log.rows if row["region"] == "r2"})


def test_neither_expired_snapshots_nor_later_versions_change_the_answer(tmp_path: Path) -> None:
    platform, log = reports.opened(tmp_path / "home"), Log()
    initialise(platform)
    deliver(platform, "first", log.add(0, at(0), {"north": 1, "south": 2}, "a", 0))
    before = answered(platform, at(1), day(0), day(0))
    deliver(platform, "second", log.add(0, at(2), {"north": 5}, "b", 0))
    deliver(platform, "third", log.add(0, at(3), {"north": 7}, "c", 0))
    table = platform.lakehouse.table(REPORTS)
    table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
    assert len(platform.lakehouse.table(REPORTS).snapshots()) == 1
    assert answered(platform, at(1), day(0), day(0)) == before == log.as_of(at(1), day(0), day(0))
    assert [row["cases"] for row in answered(platform, at(9), day(0), day(0))] == [7]
    assert answered(platform, at(-1), day(0), day(0)) == []


@pytest.mark.parametrize("far", [date(9999, 12, 30), date.max, date(1, 1, 1)])
def test_a_day_that_no_run_could_be_asked_about_is_told_as_others_are(tmp_path: Path, far: date) -> None:
    platform = reports.opened(tmp_path / "home")
    initialise(platform)
    rows = [*report(day(0), at(0), {"north": 1}, "a", 0), *report(far, at(0), {"north": 2}, "b", 0)]
    deliver(platform, "first", rows)
    asked = versions_at(platform, REPORTS, at(1), None, ())
    assert set(asked.versions) == {day(0), far}
    assert ordered([row for frame in rows_at(platform, asked) for row in frame.iter_rows(named=True)]) == ordered(rows)
    assert answered(platform, at(1), day(0), day(0)) == rows[:1]


def run_cli(home: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.setenv("BACKFILL_HOME", str(home))
    monkeypatch.setenv("BACKFILL_SPARK", json.dumps(SPARK))
    monkeypatch.setenv("BACKFILL_PRODUCTS", json.dumps(["test_revisions:SERVED"]))
    return CliRunner().invoke(cli, list(words))


SERVED = ba.Product("reports", (INPUT,), (TARGET,), code=("benchmarks.reports",))


def test_the_command_shows_rows_writes_files_and_answers_scripts(
    told: tuple[ba.Platform, Log], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform, log = told
    home, then = platform.settings.home, at(10).isoformat()
    expected = log.as_of(at(10), day(0), day(39))
    done = run_cli(home, monkeypatch, "as-of", REPORTS, "--system-time", then, "--json", "--limit", "1000")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert len(said["rows"]) == len(expected)
    assert not said["more"]
    assert {one["day"] for one in said["versions"]} == {str(row["report_date"]) for row in expected}
    for name in ("then.csv", "then.parquet"):
        done = run_cli(home, monkeypatch, "as-of", REPORTS, "--system-time", then, "--output", str(tmp_path / name))
        assert done.exit_code == 0, done.output
        assert f"{len(expected):,} rows" in done.output
        read = pl.read_csv if name.endswith("csv") else pl.read_parquet
        assert read(tmp_path / name)["cases"].sum() == sum(row["cases"] for row in expected)
    done = run_cli(home, monkeypatch, "as-of", REPORTS, "--system-time", then, "--valid", str(day(3)))
    assert done.exit_code == 0
    assert "1 days" in done.output.replace(f"{day(3)} to {day(3)}", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["then.csv", "then.parquet"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((REPORTS, "--system-time", "2020-03-02"), "with an offset"),
        ((REPORTS, "--system-time", "yesterday"), "with an offset"),
        ((REPORTS, "--system-time", "2020-03-02T00:00:00Z", "--valid", "2020-03-05..2020-03-01"), "turn it round"),
        ((REPORTS, "--system-time", "2020-03-02T00:00:00Z", "--key", "place=x"), "columns of bronze.reports are"),
        ((REPORTS, "--system-time", "2020-03-02T00:00:00Z", "--key", "cases=many"), "is not a long"),
        ((REPORTS, "--system-time", "2020-03-02T00:00:00Z", "--output", "x.txt"), ".csv or .parquet"),
        (("silver.nothing", "--system-time", "2020-03-02T00:00:00Z"), "input table"),
        ((f"{REPORTS}_quarantine", "--system-time", "2020-03-02T00:00:00Z"), "does not say which rows supersede which"),
    ],
)
def test_odd_questions_are_refused(
    told: tuple[ba.Platform, Log], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    done = run_cli(told[0].settings.home, monkeypatch, "as-of", *words)
    assert isinstance(done.exception, InputRefused), done.output
    assert any(says in f"{one.what} {one.rule} {one.fix}" for one in done.exception.problems), done.exception


def test_a_target_says_what_a_run_would_have_said_that_knew_what_was_known_then(tmp_path: Path) -> None:
    world, log = reporting(tmp_path, days=4), Log()
    for number in range(4):
        log.add(number, at(number), {"north": number}, f"v{number}", 0)
    for number, said in ((1, 10), (2, 11), (1, 12)):
        rows = log.add(number, at(said), {"north": said, "south": 1}, f"again-{said}", 0)
        deliver(world.platform, f"again-{said}", rows)

    def told(instant: datetime, first: int, last: int, *columns: str) -> list[Any]:
        asked = target_at(world.platform, DAILY, instant, DayRange(start=day(first), end=day(last)), columns)
        rows = [row for frame in asked.frames for row in frame.iter_rows(named=True)]
        return ordered(rows)

    def expected(instant: datetime, first: int, last: int) -> list[Any]:
        rows = log.as_of(instant, day(first), day(last))
        return ordered([{"day": row["report_date"], "region": row["region"], "cases": row["cases"]} for row in rows])

    for instant in (at(-1), at(1), at(9), at(10), at(11.5), at(40)):
        assert told(instant, 0, 3) == expected(instant, 0, 3)
    assert told(at(40), 1, 2) == expected(at(40), 1, 2)
    assert len(told(at(40), 0, 3, "region=south")) == 2
    for number, far in enumerate((date(1, 1, 1), date.max)):
        deliver(world.platform, f"far-{number}", report(far, at(0), {"north": 1}, "far", 0))
    for_ever = target_at(world.platform, DAILY, at(40), None, ())
    rows = [row for frame in for_ever.frames for row in frame.iter_rows(named=True)]
    assert ordered(rows) == expected(at(40), 0, 3)
    assert {day(number) for number in range(4)} <= set(for_ever.source.versions)
    assert world.states() == {}


def test_a_table_that_the_policy_protects_is_not_shown(tmp_path: Path) -> None:
    platform = reports.opened(tmp_path / "home")
    initialise(platform)
    put_in_force(
        platform,
        {
            "apiVersion": "backfill-policy/v1",
            "name": "protected",
            "classifications": {"health": {"modes": ["LIVE"]}},
            "sources": [{"table": REPORTS, "columns": {"cases": {"classification": "health"}}}],
        },
    )
    with pytest.raises(InputRefused, match="protects columns"):
        versions_at(platform, REPORTS, at(0), None, ())


# --- proposed restatements --------------------------------------------------------------------------------------------


class Reporting(World):
    """An installation whose days one to ten are published."""

    def say(self, days: int, said: float, cases: int, name: str) -> None:
        deliver(self.platform, name, report(day(days), at(said), {"north": cases, "south": 1}, name))

    def propose(self) -> Proposed:
        return propose(self.platform, self.platform.products.target(DAILY))

    def proposed(self) -> list[tuple[date, date]]:
        return [(one.days.start, one.days.end) for one in self.propose().proposals if one.record is not None]

    def states(self) -> dict[str, str]:
        return {one.run_id: one.state.value for one in self.platform.ledger.runs() if one.run_id != "history"}

    def cases(self) -> dict[date, int]:
        found = self.platform.lakehouse.table(DAILY).scan().to_arrow().to_pylist()
        return {row["day"]: row["cases"] for row in found if row["region"] == "north"}


def reporting(
    tmp_path: Path, target: ba.TargetTable = TARGET, days: int = 10, published: str | None = "history"
) -> Reporting:
    platform = reports.opened(tmp_path / "home", target, spark=SPARK)
    initialise(platform)
    initialise_instance(platform.settings)
    world = Reporting(platform, tmp_path / "home")
    rows = [row for number in range(days) for row in report(day(number), at(number), {"north": number}, f"v{number}")]
    deliver(platform, "history", rows)
    last = day(days - 1) if target.chunking is ba.Chunking.DAY else date(2020, 3, 31)
    if published is not None:
        world.published(manifest(published, MARCH, last))
    return world


def test_newer_versions_propose_a_restatement_of_just_their_days(tmp_path: Path) -> None:
    world = reporting(tmp_path)
    assert world.propose().proposals == ()
    world.say(20, 20, 7, "not-published")
    assert world.propose().proposals == ()
    for number in (2, 3, 6):
        world.say(number, 20 + number, 100 + number, f"new-{number}")
    assert "would propose" in foreseen(world.platform, world.platform.products.target(DAILY))
    assert world.states() == {}
    assert world.proposed() == [(day(2), day(3)), (day(6), day(6))]
    assert world.proposed() == [(day(2), day(3)), (day(6), day(6))]
    assert list(world.states().values()) == ["PLANNED", "PLANNED"]
    first, second = world.platform.ledger.runs(states={RunState.PLANNED})
    assert {first.manifest.requested_by, second.manifest.requested_by} == {"restatement sensor"}
    (reason,) = [one.manifest.reason for one in (first, second) if one.plan.publish_range.start == day(6)]
    assert "2020-03-07 (v6 of 2020-03-08 12:00 UTC, now new-6 of 2020-03-28 12:00 UTC)" in reason
    before = world.cases()
    for record in (first, second):
        decisions.approve(world.platform, record.run_id, by="ben")
        world.stage(world.platform.ledger.run(record.run_id))
        publish(world.platform, record.run_id)
    assert world.cases() == before | {day(2): 102, day(3): 103, day(6): 106}
    assert world.propose().proposals == ()


@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_just_the_days_with_another_version_in_force_are_stale(tmp_path: Path, seed: int) -> None:
    world, log, random = reporting(tmp_path), Log(), Random(seed)
    for number in range(10):
        log.add(number, at(number), {"north": number}, f"v{number}", 0)
    then = newest(log)
    loaded: list[tuple[str, list[dict[str, Any]]]] = []
    for step in range(12):
        if loaded and random.random() < 0.3:
            name, rows = loaded.pop(random.randrange(len(loaded)))
            world.platform.lakehouse.undo_load(REPORTS, name, {})
            log.rows = [row for row in log.rows if row not in rows]
        else:
            said = at(random.randrange(-4, 30))
            rows = log.add(random.randrange(14), said, {"north": step}, f"s{step}", random.randrange(2))
            deliver(world.platform, f"s{step}", rows)
            loaded.append((f"s{step}", rows))
        now = newest(log)
        snapshot_id = world.platform.lakehouse.snapshot_id(REPORTS)
        assert snapshot_id is not None
        found = stale_stretches(world.platform, world.platform.products.target(DAILY), snapshot_id)
        stale = {one for stretch in found.stretches for one in days_between(stretch.days.start, stretch.days.end)}
        assert stale == {day(number) for number in range(10) if now.get(day(number)) != then.get(day(number))}


def newest(log: Log) -> dict[date, Any]:
    found: dict[date, Any] = {}
    for row in log.rows:
        said = (row["published_at"], row["revision"], row["file_id"])
        found[row["report_date"]] = max(found.get(row["report_date"], said), said)
    return found


def test_a_version_that_is_not_in_force_changes_nothing(tmp_path: Path) -> None:
    world = reporting(tmp_path)
    world.say(4, -5, 99, "older-than-what-is-known")
    assert world.propose().proposals == ()


def test_a_load_that_is_taken_back_proposes_its_days(tmp_path: Path) -> None:
    world = reporting(tmp_path)
    world.say(4, 30, 99, "mistake")
    (proposed,) = world.propose().proposals
    assert proposed.record is not None
    decisions.approve(world.platform, proposed.record.run_id, by="ben")
    world.stage(proposed.record)
    publish(world.platform, proposed.record.run_id)
    assert world.cases()[day(4)] == 99
    world.platform.lakehouse.undo_load(REPORTS, "mistake", {})
    (again,) = world.propose().proposals
    assert again.record is not None
    assert again.days.start == day(4)
    assert "mistake of" in again.why
    assert "now v4 of" in again.why


def test_a_proposal_that_waits_is_replaced_when_its_source_says_something_else(tmp_path: Path) -> None:
    world = reporting(tmp_path)
    world.say(2, 20, 50, "second")
    (first,) = world.propose().proposals
    world.say(3, 21, 51, "third")
    (second,) = world.propose().proposals
    assert first.record is not None
    assert second.record is not None
    assert (second.days.start, second.days.end) == (day(2), day(3))
    assert world.states() == {first.record.run_id: "CANCELLED", second.record.run_id: "PLANNED"}
    decisions.approve(world.platform, second.record.run_id, by="ben")
    world.say(3, 22, 52, "fourth")
    (waits,) = world.propose().proposals
    assert waits.record is None
    assert "is APPROVED" in waits.why
    world.stage(second.record)
    publish(world.platform, second.record.run_id)
    (third,) = world.propose().proposals
    assert (third.days.start, third.days.end) == (day(3), day(3))


def test_a_decision_that_comes_between_look_and_withdrawal_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = reporting(tmp_path)
    world.say(2, 20, 50, "second")
    (first,) = world.propose().proposals
    assert first.record is not None
    run_id = first.record.run_id
    world.say(3, 21, 51, "third")
    looked_at = world.platform.ledger.runs
    asked: list[str] = []

    def approved_after(**named: Any) -> Any:
        found = looked_at(**named)
        if not asked:
            asked.append(run_id)
            decisions.approve(world.platform, run_id, by="ben")
        return found

    monkeypatch.setattr(type(world.platform.ledger), "runs", lambda _, **named: approved_after(**named))
    proposed = world.propose()
    assert world.platform.ledger.run(run_id).state is RunState.APPROVED
    assert [one.record for one in proposed.proposals] == [None]


def test_a_proposal_is_planned_anew_under_another_policy(tmp_path: Path) -> None:
    world = reporting(tmp_path)
    world.say(2, 20, 50, "second")
    (first,) = world.propose().proposals
    put_in_force(world.platform, BY_RULE)
    (second,) = world.propose().proposals
    assert first.record is not None
    assert second.record is not None
    assert first.record.run_id == second.record.run_id
    assert second.record.state is RunState.APPROVED


def test_what_a_person_has_ended_is_proposed_again_with_the_next_snapshot_only(tmp_path: Path) -> None:
    world = reporting(tmp_path)
    world.say(2, 20, 50, "second")
    (first,) = world.propose().proposals
    assert first.record is not None
    decisions.reject(world.platform, first.record.run_id, by="ben", comment="the file is known to be wrong")
    (again,) = world.propose().proposals
    assert again.record is None
    assert "is REJECTED" in again.why
    world.say(2, 21, 49, "corrected")
    (third,) = world.propose().proposals
    assert third.record is not None
    assert third.record.state is RunState.PLANNED


def test_a_published_proposal_that_is_rolled_back_is_not_proposed_again(tmp_path: Path) -> None:
    world = reporting(tmp_path)
    world.say(2, 20, 50, "second")
    (first,) = world.propose().proposals
    assert first.record is not None
    decisions.approve(world.platform, first.record.run_id, by="ben")
    world.stage(first.record)
    publish(world.platform, first.record.run_id)
    rollback(world.platform, first.record.run_id)
    (again,) = world.propose().proposals
    assert again.record is None
    assert "ROLLED_BACK" in again.why


def test_a_month_is_restated_whole_and_a_warm_up_counts(tmp_path: Path) -> None:
    month = replace(reports.BY_MONTH, warm_up_days=two_days)
    world = reporting(tmp_path, month)
    deliver(world.platform, "february", report(date(2020, 2, 29), at(30), {"north": 1}, "leap"))
    (proposed,) = world.propose().proposals
    assert (proposed.days.start, proposed.days.end) == (date(2020, 3, 1), date(2020, 3, 31))
    assert proposed.record is not None
    decisions.reject(world.platform, proposed.record.run_id, by="ben")
    deliver(world.platform, "too-early", report(date(2020, 2, 27), at(30), {"north": 1}, "early"))
    assert "2020-02-27" not in world.propose().why


def test_a_proposal_changes_no_value_whose_chunks_are_not_published(tmp_path: Path) -> None:
    divided = replace(TARGET, chunk_values=ba.ByValue("region", ("north", "south")))
    world = reporting(tmp_path, divided, published=None)
    world.published(replace_text(manifest("north", MARCH, day(9)), target=only("north", day(0), day(9))))
    world.published(replace_text(manifest("south", MARCH, day(9)), target=only("south", day(0), day(4))))
    for number in (3, 7):
        world.say(number, 20, 50, f"new-{number}")
    proposed = world.propose().proposals
    assert [one.record.plan.scope if one.record else one.why for one in proposed] == [
        "2020-03-04 to 2020-03-04",
        "2020-03-08 to 2020-03-08 of north",
    ]
    assert [one.record for one in world.propose().proposals] == [one.record for one in proposed]


def only(value: str, start: date, end: date) -> dict[str, Any]:
    days = {"start": start.isoformat(), "end": end.isoformat()}
    return {"table": DAILY, "publishRange": days, "values": [value]}


def test_rows_that_come_into_a_version_later_propose_its_day(tmp_path: Path) -> None:
    world = reporting(tmp_path)
    deliver(world.platform, "released", report(day(4), at(4), {"south": 9}, "v4"))
    (proposed,) = world.propose().proposals
    assert (proposed.days.start, proposed.days.end) == (day(4), day(4))


def test_a_run_of_a_persons_under_the_id_of_a_proposal_is_in_nobodys_way(tmp_path: Path) -> None:
    world = reporting(tmp_path)
    world.say(2, 20, 50, "second")
    (first,) = world.propose().proposals
    assert first.record is not None
    other = reporting(tmp_path / "other")
    other.say(2, 20, 50, "second")
    snapshot_id = other.platform.lakehouse.snapshot_id(REPORTS)
    (taken,) = stale_stretches(other.platform, TARGET, snapshot_id or 0).stretches
    run_id, _ = _free_run_id(other.platform, TARGET, snapshot_id or 0, taken)
    assert run_id is not None
    plan_run(other.platform, replace_text(manifest(run_id, day(1), day(1)), kind="RESTATEMENT", mode="DRY_RUN"))
    (proposed,) = other.propose().proposals
    assert proposed.record is not None
    assert proposed.record.run_id == f"{run_id}.2"


@pytest.mark.exhaustive
def test_a_proposal_that_lost_its_days_to_another_publication_is_proposed_anew(tmp_path: Path) -> None:
    world = reporting(tmp_path, days=3)
    put_in_force(world.platform, BY_RULE)
    earlier = world.platform.lakehouse.snapshot_id(REPORTS)
    world.say(2, 20, 50, "second")
    (lost,) = world.propose().proposals
    assert lost.record is not None
    world.stage(lost.record)
    by_hand = replace_text(
        manifest("by-hand", day(2), day(2)), kind="RESTATEMENT", source={"table": REPORTS, "snapshotId": earlier}
    )
    world.published(by_hand)
    with pytest.raises(PublicationRefused, match="no longer holds the plan's files"):
        publish(world.platform, lost.record.run_id)
    assert world.states() == {lost.record.run_id: "REJECTED", "by-hand": "PUBLISHED"}
    (again,) = world.propose().proposals
    assert again.record is not None
    assert (again.record.run_id, again.record.state) == (f"{lost.record.run_id}.2", RunState.APPROVED)
    world.stage(again.record)
    publish(world.platform, again.record.run_id)
    assert world.cases()[day(2)] == 50
    assert world.propose().proposals == ()


def two_days(_: Any) -> int:
    return 2


BY_RULE = {
    "apiVersion": "backfill-policy/v1",
    "name": "small restatements by rule",
    "rules": [{"tables": ["silver.*"], "approvers": ["ben"], "proposals": {"approvedUpToChunks": 2}}],
}


def test_the_rule_of_a_table_approves_small_proposals(tmp_path: Path) -> None:
    world = reporting(tmp_path)
    put_in_force(world.platform, BY_RULE)
    for number in (1, 2, 5, 6, 7):
        world.say(number, 20, 50, f"new-{number}")
    small, large = world.propose().proposals
    assert small.record is not None
    assert large.record is not None
    assert (small.record.state, large.record.state) == (RunState.APPROVED, RunState.PLANNED)
    (approval,) = world.platform.ledger.approvals(small.record.run_id)
    assert (approval.decided_by, approval.comment) == (
        "policy:restatement", "as the rule for silver.* says of proposals",
    )  # fmt: skip
    assert "up to 2" in large.why
    with pytest.raises(TransitionRefused, match="changes 3 chunk"):
        decisions.approve_by_policy(world.platform, large.record.run_id, by="policy:restatement", comment="")
    assert [one.run_id for one in under_way(world.platform, TARGET)] == [small.record.run_id]


def test_no_manifest_of_a_persons_gets_the_rights_of_a_proposal(tmp_path: Path) -> None:
    world = reporting(tmp_path)
    put_in_force(world.platform, BY_RULE)
    with pytest.raises(PlanRefused, match="is no person"):
        plan_run(world.platform, replace_text(manifest("mine", day(1), day(1)), requestedBy="restatement sensor"))
    mine = plan_run(world.platform, replace_text(manifest("mine", day(1), day(1)), kind="RESTATEMENT"))
    with pytest.raises(TransitionRefused, match="has mode BACKFILL"):
        decisions.approve_by_policy(world.platform, mine.run_id, by="policy:restatement", comment="")
    with pytest.raises(TransitionRefused):
        decisions.approve(world.platform, mine.run_id, by="policy:restatement")


def replace_text(contract: RunManifest, **changes: Any) -> RunManifest:
    return manifest_from(contract.model_dump(mode="json", by_alias=True) | changes)


def test_a_run_over_the_same_days_comes_first(tmp_path: Path) -> None:
    world = reporting(tmp_path)
    world.say(2, 20, 50, "second")
    world.approved(replace_text(manifest("by-hand", day(0), day(4)), kind="RESTATEMENT"))
    (waits,) = world.propose().proposals
    assert waits.record is None
    assert "by-hand is APPROVED" in waits.why


def test_the_sensor_launches_what_is_approved_and_only_tells_who_tries_it_out(tmp_path: Path) -> None:
    world = reporting(tmp_path)
    put_in_force(world.platform, BY_RULE)
    world.say(2, 20, 50, "second")
    target = world.platform.products.target(DAILY)
    sensor = proposal_sensor(target, staging_job(target))
    with instance_at(world.platform.settings) as instance:
        context = dg.build_sensor_context(instance, resources={"platform": world.platform})
        tried = sensor(context)
        assert isinstance(tried, dg.SkipReason)
        assert "would propose" in str(tried.skip_message)
        assert world.states() == {}
        ticked = sensor(at_a_tick(dg.build_sensor_context(instance, resources={"platform": world.platform})))
        assert isinstance(ticked, dg.SensorResult)
        (request,) = ticked.run_requests or []
        (run_id,) = world.states()
        assert request.run_key == f"{run_id}:0"
        assert [one.run_key for one in launches(world.platform, instance, target, "no-such-job")] == [f"{run_id}:0"]


def test_the_command_proposes_runs_and_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = reporting(tmp_path)
    put_in_force(world.platform, BY_RULE)
    world.say(2, 20, 50, "second")
    done = run_cli(world.home, monkeypatch, "propose", "--preview")
    assert done.exit_code == 0, done.output
    assert "would propose" in done.output
    done = run_cli(world.home, monkeypatch, "propose", DAILY, "--run", "--json")
    assert done.exit_code == 0, done.output
    assert list(world.states().values()) == ["PUBLISHED"]
    assert world.cases()[day(2)] == 50
    done = run_cli(world.home, monkeypatch, "propose")
    assert "every published day" in done.output


# --- declarations -----------------------------------------------------------------------------------------------------


def wrong(**changes: Any) -> Iterator[tuple[ba.InputTable, ba.TargetTable]]:
    yield (
        replace(INPUT, **{name: value for name, value in changes.items() if name == "revisions"}),
        replace(TARGET, **{name: value for name, value in changes.items() if name != "revisions"}),
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"revisions": ba.Revisions("day", "published_at", "file_id")}, "'day' is no column"),
        ({"revisions": ba.Revisions("published_at", "published_at", "file_id")}, "names a date"),
        ({"revisions": ba.Revisions("report_date", "report_date", "file_id")}, "names an instant"),
        ({"revisions": ba.Revisions("report_date", "published_at", "cases")}, "names a text"),
        ({"revisions": ba.Revisions("report_date", "published_at", "file_id", "region")}, "names a whole number"),
        ({"revisions": None}, "does not say which rows supersede which"),
        ({"revisions": "report_date"}, "revisions is 'report_date'"),
        ({"restated": ba.RestatementPolicy("9")}, "'9' is no version"),
        ({"restated": ba.RestatementPolicy("1", gates=("no_such_gate",))}, "no_such_gate"),
        ({"restated": ba.RestatementPolicy("1", tolerances={"much": 1.0})}, "'much' is no tolerance"),
        ({"restated": ba.RestatementPolicy("1", approved_by="restatement sensor")}, "requested_by and approved_by"),
        ({"look_back_columns": ("region",)}, "of every earlier row"),
    ],
)
def test_wrong_declarations_are_refused(changes: dict[str, Any], says: str) -> None:
    for source, target in wrong(**changes):
        with pytest.raises(DeclarationRefused) as refused:
            check_products((ba.Product("reports", (source,), (target,), code=("benchmarks.reports",)),))
        assert any(says in f"{one.what} {one.rule}" for one in refused.value.problems), refused.value


def test_the_later_version_is_the_greater_one() -> None:
    assert (
        KnownVersion(at(0), 1, "a")
        < KnownVersion(at(0), 2, "a")
        < KnownVersion(at(0), 2, "b")
        < KnownVersion(at(1), 0, "")
    )
