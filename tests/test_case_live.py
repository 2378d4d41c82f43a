"""Clocks that pause, LIVE beside backfills: handed over in both orders, held against the loop that lives day by day, and drift that
the declared reconciliations find.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any, cast

import day_by_day
import polars as pl
import pytest
from disputes import references
from pyiceberg.expressions import EqualTo
from worlds import SPARK, World

from backfill_assets.declarations import finding
from backfill_assets.declarations.target import ACCEPTED_ROWS_GATE, TargetTable
from backfill_assets.defs.launch import initialise_instance
from backfill_assets.gates.exception_table import EXCEPTIONS_TABLE
from backfill_assets.ingestion.table_loads import load_file
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning.resolve import preview
from backfill_assets.products.enforcement import reference
from backfill_assets.products.enforcement.pausing import CASE_CLOCK_DAILY, CASE_REGISTER, PRODUCT, reconciliations
from backfill_assets.products.enforcement.pausing.register import generate
from backfill_assets.publication.publisher import publish
from backfill_assets.reconciliation.manifest import manifest_of, plan_reconciliation
from backfill_assets.reconciliation.reconcile import reconcile
from backfill_assets.schedules.live import tick
from benchmarks.small_table import serves
from manifests.errors import PlanRefused, PublicationRefused
from manifests.lifecycle import RunState
from manifests.model import Mode
from manifests.reading import manifest_from
from resources.ledger.facade import RunRecord, Verdict
from resources.settings import load_settings

TARGET = CASE_CLOCK_DAILY.name
FIRST, LAST = date(2011, 1, 1), date(2011, 5, 31)
MARCH, APRIL, MAY = date(2011, 3, 1), date(2011, 4, 1), date(2011, 5, 1)
EARLIER, LATER = date(2011, 4, 10), date(2011, 5, 20)
"""Days by whose beginning entries had been recorded: what the register holds first, and what it holds in the end."""
DAYS, SAID = (one.name for one in reconciliations.ALL)
FEW = {"gates": ["all_chunks_staged", DAYS, SAID]}


@pytest.fixture(scope="module")
def entries() -> pl.DataFrame:
    made = generate(30, 11, start=FIRST, end=LAST)
    late = [
        ("SOON", 0, "Insert Fine Notification", date(2011, 1, 15), date(2011, 1, 15)),
        ("SOON", 1, "Insert Date Appeal to Prefecture", date(2011, 2, 5), date(2011, 4, 15)),
        ("LATE", 0, "Insert Fine Notification", date(2011, 2, 10), date(2011, 4, 15)),
    ]
    rows = [
        {"entry_id": f"{case}-{seq}", "case_id": case, "event_seq": seq, "jurisdiction": "IT", "activity": activity}
        | {
            "effective_at": datetime.combine(holds, time(10), UTC),
            "recorded_at": datetime.combine(known, time(10), UTC),
        }
        for case, seq, activity, holds, known in late
    ]
    return pl.concat([made, pl.DataFrame(rows, schema=made.schema)])


@dataclass
class Register(World):
    """An installation of which the clocks that pause are served, and whose register grows."""

    entries: pl.DataFrame | None = None

    @property
    def target(self) -> TargetTable:
        return self.platform.products.target(TARGET)

    def known(self, until: date) -> pl.DataFrame:
        """Return the entries that were recorded before a day (UTC)."""
        assert self.entries is not None
        return self.entries.filter(pl.col("recorded_at") < datetime.combine(until, time.min, UTC))

    def arrive(self, since: date, until: date) -> None:
        """Load the entries that were recorded from one day to before another."""
        new = self.known(until).filter(pl.col("recorded_at") >= datetime.combine(since, time.min, UTC))
        self.load(new, f"{since}.csv")

    def load(self, rows: pl.DataFrame, name: str) -> None:
        instants = pl.col("effective_at", "recorded_at").dt.strftime("%Y-%m-%dT%H:%M:%S+00:00")
        path = self.home.parent / name
        rows.with_columns(instants).write_csv(path)
        load_file(self.platform, CASE_REGISTER.name, path)

    def of(self, run_id: str, start: date, end: date, **changes: Any) -> Any:
        return manifest_from(
            {
                "runId": run_id,
                "kind": "RESTATEMENT",
                "requestedBy": "ana",
                "reason": "a reason that is long enough",
                "source": {"table": CASE_REGISTER.name},
                "transform": {"name": "case_clock_daily", "version": "1.0.0"},
                "target": {"table": TARGET, "publishRange": {"start": start, "end": end}},
                "validation": FEW,
                "development": True,
            }
            | changes
        )

    def live(self) -> RunRecord:
        record = tick(self.platform, self.target).record
        assert record is not None
        self.stage(record)
        found = self.platform.ledger.run(record.run_id)
        assert found.state is RunState.VALIDATED, found.state_reason
        return found

    def mark(self) -> date | None:
        found = self.platform.ledger.watermarks.current(TARGET)
        return None if found is None else found.complete_until

    def published_rows(self) -> pl.DataFrame:
        frame = pl.from_arrow(self.platform.lakehouse.table(TARGET).scan().to_arrow())
        return cast("pl.DataFrame", frame).sort(CASE_CLOCK_DAILY.key)

    def reconciled(self, **how: Any) -> tuple[RunRecord, dict[str, Verdict]]:
        record = plan_reconciliation(self.platform, manifest_of(self.platform, self.target, **how))
        verdicts = {verdict.gate: verdict for verdict in reconcile(self.platform, record.run_id)}
        return self.platform.ledger.run(record.run_id), verdicts

    def listed(self, run_id: str, gate: str) -> list[dict[str, Any]]:
        rows = self.platform.lakehouse.table(EXCEPTIONS_TABLE).scan(row_filter=EqualTo("run_id", run_id)).to_arrow()
        return [row for row in rows.to_pylist() if row["gate"] == gate]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: pl.DataFrame) -> Register:
    return make(tmp_path / "home", monkeypatch, entries)


def make(home: Path, monkeypatch: pytest.MonkeyPatch, entries: pl.DataFrame, **policy: Any) -> Register:
    declare(monkeypatch, **policy)
    platform = Platform.of(load_settings(home=home, spark=SPARK))
    initialise(platform)
    initialise_instance(platform.settings)
    made = Register(platform, home, FIRST, LAST, entries=entries)
    made.arrive(date(2010, 1, 1), EARLIER)
    return made


def declare(monkeypatch: pytest.MonkeyPatch, **policy: Any) -> None:
    """Let LIVE run from uncommitted code, otherwise as it ships but for `policy`."""
    assert CASE_CLOCK_DAILY.live is not None
    live = replace(CASE_CLOCK_DAILY.live, gates=(DAYS, SAID), development=True, **policy)
    target = replace(CASE_CLOCK_DAILY, live=live)
    code = ("backfill_assets.products.enforcement",)
    monkeypatch.setattr(finding, "find_products", serves(replace(PRODUCT, targets=(target,), code=code)))


def told(entries: pl.DataFrame, first: date, last: date) -> pl.DataFrame:
    """Return what the loop says of days by the entries of a register, in the order of the key."""
    calendar = [asdict(day) for day in reference.jurisdiction_calendar(2009, 2012)]
    known = references() | {"reference.jurisdiction_calendar": calendar}
    rows = day_by_day.rows_of(entries.to_dicts(), known, first, LAST + timedelta(days=60))
    kept = [row for row in rows if row["business_date"] <= last]
    return pl.DataFrame(kept, infer_schema_length=None).sort(CASE_CLOCK_DAILY.key)


def require_same(found: pl.DataFrame, expected: pl.DataFrame) -> None:
    names = expected.columns
    same = found.select(names).cast(dict(expected.schema))
    assert same.height == expected.height > 100
    assert same.equals(expected)


# --- handed over, in both orders --------------------------------------------------------------------------------------


def test_live_goes_on_where_the_backfill_ended_and_leaves_what_came_in_late_to_a_restatement(world: Register) -> None:
    ledger, before = world.platform.ledger, world.known(EARLIER)
    world.published(world.of("history", FIRST, date(2011, 3, 31), kind="BOOTSTRAP"))
    assert world.mark() == date(2011, 3, 31)

    first = world.live()
    scope = first.plan.publish_range
    assert (scope.start, scope.end, first.plan.mode) == (MARCH, date(2011, 4, 30), Mode.LIVE)
    (approval,) = ledger.approvals(first.run_id)
    assert (approval.decided_by, approval.self_approved) == ("policy:live-daily", False)
    publish(world.platform, first.run_id)
    rows = world.published_rows()
    require_same(rows, told(before, FIRST, date(2011, 4, 30)))
    by_mode = {mode: set(part["business_date"].dt.month()) for (mode,), part in rows.group_by("processing_mode")}
    assert by_mode == {"BACKFILL": {1, 2}, "LIVE": {3, 4}}
    assert tick(world.platform, world.target).record is None

    # a backfill of what LIVE owns by now is staged; entries come in, and LIVE publishes before it
    overtaken = world.validated(world.of("overtaken", APRIL, date(2011, 4, 30)))
    world.arrive(EARLIER, LATER)
    second = world.live()
    assert second.plan.publish_range.start == MARCH
    assert "a repair takes them in" in second.manifest.reason, "entries hold from days that it does not cover"
    publish(world.platform, second.run_id)
    with pytest.raises(PublicationRefused, match="no longer holds the plan's files"):
        publish(world.platform, overtaken.run_id)
    after = world.known(LATER)
    rows = world.published_rows()
    of_live = pl.col("business_date") >= MARCH
    require_same(rows.filter(of_live), told(after, MARCH, MAY + timedelta(days=30)))
    require_same(rows.filter(~of_live), told(before, FIRST, date(2011, 2, 28)))

    # what came in late is drift of the months before, by the register as it is by now; a restatement takes it in
    record, verdicts = world.reconciled()
    assert record.state is RunState.FAILED
    assert {gate for gate, verdict in verdicts.items() if not verdict.passed} <= {DAYS, SAID}
    late = {json.loads(one["key"])["case_id"] for gate in (DAYS, SAID) for one in world.listed(record.run_id, gate)}
    truly = told(after, FIRST, date(2011, 2, 28))
    columns = truly.columns
    changed = (
        rows.filter(~of_live)
        .select(columns)
        .cast(dict(truly.schema))
        .join(truly, on=columns, how="anti", nulls_equal=True)
    )
    assert late >= set(changed["case_id"]) | {"SOON", "LATE"}
    world.published(world.of("late-entries", FIRST, date(2011, 2, 28)))
    require_same(world.published_rows(), told(after, FIRST, MAY + timedelta(days=30)))
    record, verdicts = world.reconciled()
    assert record.state is RunState.VALIDATED, record.state_reason
    assert verdicts[SAID].details["compared"] > 10


def test_a_backfill_up_to_the_line_where_live_has_begun_fills_the_months_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: pl.DataFrame
) -> None:
    world = make(tmp_path / "home", monkeypatch, entries, begins_on=MARCH)
    live = world.live()
    scope = live.plan.publish_range
    assert (scope.start, scope.end) == (MARCH, date(2011, 4, 30))
    publish(world.platform, live.run_id)

    history = {"kind": "BACKFILL", "cutLine": MARCH}
    with pytest.raises(PlanRefused, match="beyond the cut line 2011-03-01"):
        preview(world.platform, world.of("crossing", FIRST, date(2011, 3, 31), **history))
    with pytest.raises(PlanRefused, match="no run would cover the days 2011-02-01 to 2011-02-28"):
        preview(world.platform, world.of("gap", FIRST, date(2011, 1, 31), **history))
    world.published(world.of("before-live", FIRST, date(2011, 2, 28), **history))
    rows = world.published_rows()
    require_same(rows, told(world.known(EARLIER), FIRST, date(2011, 4, 30)))
    assert set(rows.filter(pl.col("business_date") >= MARCH)["processing_mode"]) == {"LIVE"}
    assert world.mark() == world.known(EARLIER)["effective_at"].max().date()
    assert tick(world.platform, world.target).record is None


# --- drift ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory, entries: pl.DataFrame) -> Iterator[Register]:
    """Three months that are published."""
    with pytest.MonkeyPatch.context() as patch:
        made = make(tmp_path_factory.mktemp("drift") / "home", patch, entries)
        made.published(made.of("history", FIRST, date(2011, 3, 31), kind="BOOTSTRAP"))
        yield made


def planted(world: Register, change: Any) -> tuple[RunRecord, dict[str, Verdict]]:
    """Reconcile while somebody else has written other rows into the table; afterwards it is as it was."""
    lakehouse = world.platform.lakehouse
    before, table = lakehouse.snapshot_id(TARGET), lakehouse.table(TARGET)
    assert before is not None
    rows = cast("pl.DataFrame", pl.from_arrow(table.scan().to_arrow()))
    table.overwrite(change(rows).to_arrow().cast(table.schema().as_arrow()))
    try:
        return world.reconciled()
    finally:
        lakehouse.point(TARGET, expected={}, branches={"main": before})


def test_what_is_published_agrees_with_the_register(history: Register) -> None:
    record, verdicts = history.reconciled()
    assert record.state is RunState.VALIDATED, record.state_reason
    assert {DAYS, SAID, ACCEPTED_ROWS_GATE} <= set(verdicts)
    assert verdicts[DAYS].details["compared"] == history.published_rows().select("case_id", "clock").n_unique()


@pytest.mark.parametrize(
    ("gate", "what"),
    [
        (DAYS, "the clock has no day in the range"),
        (DAYS, "the clock has another number of days"),
        (DAYS, "the register starts no such clock, or it was over before the range"),
        (SAID, "what was true of its days is otherwise by the register"),
        (SAID, "what was known on its days is otherwise by the register"),
    ],
)
def test_planted_drift_is_found_and_the_clock_is_named(history: Register, gate: str, what: str) -> None:
    paused = history.published_rows().filter(pl.col("true_state") == "PAUSED").row(0, named=True)
    own = (pl.col("case_id") == paused["case_id"]) & (pl.col("clock") == paused["clock"])
    is_day = own & (pl.col("business_date") == paused["business_date"])

    def change(rows: pl.DataFrame) -> pl.DataFrame:
        if what.endswith("no day in the range"):
            return rows.filter(~own)
        if what.endswith("number of days"):
            return rows.filter(~is_day)
        if what.startswith("the register"):
            return pl.concat([rows, rows.filter(own).with_columns(case_id=pl.lit("nobody"))])
        name = "true_days_paused" if "was true" in what else "known_days_paused"
        return rows.with_columns(pl.when(is_day).then(pl.col(name) + 1).otherwise(name).alias(name))

    record, verdicts = planted(history, change)
    assert record.state is RunState.FAILED
    assert not verdicts[gate].passed
    assert not verdicts[ACCEPTED_ROWS_GATE].passed, "nobody has accepted such rows either"
    listed = history.listed(record.run_id, gate)
    named = [(json.loads(one["key"])["case_id"], json.loads(one["key"])["clock"], one["what"]) for one in listed]
    assert named == [("nobody" if what.startswith("the register") else paused["case_id"], paused["clock"], what)]
