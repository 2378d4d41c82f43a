"""What is judged while others publish: a gate or a reconciliation whose rows are not those that readers see by then.

A verdict is about the rows that the plan was made on, and about whoever had accepted those. The table is the benchmarks'
small one, without Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from types import SimpleNamespace
from typing import Any
from unittest import mock

import polars as pl
import pyarrow as arrow
import pytest
import sqlalchemy as sa
from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow
from small_worlds import copy_of
from test_taking_back import FEBRUARY, agree, published, readers, state, validated

from backfill_assets.declarations.schedules import ReconciliationPolicy
from backfill_assets.declarations.standard_gates import change_gate
from backfill_assets.gates import judging
from backfill_assets.ingestion import table_loads
from backfill_assets.installation import Platform
from backfill_assets.operations import garbage
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.planning.accepted_then import accepted_then
from backfill_assets.publication.ending import cancel
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from backfill_assets.reconciliation import verdicts
from backfill_assets.reconciliation.manifest import manifest_of, plan_reconciliation
from backfill_assets.reconciliation.reconcile import reconcile
from benchmarks import small_table
from benchmarks.small_table import (
    HISTORY,
    READINGS,
    SCOPE,
    SOURCE,
    closed,
    declared,
    initialise,
    planned,
    staged,
)
from benchmarks.stopped_actors import Died, bury, no_lease_ends
from manifests.errors import EnvironmentRefused, PublicationDeferred
from manifests.lifecycle import RunState
from manifests.model import Conflict, OnConflict
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.facade import LOAD_PROPERTY, Scope
from resources.ledger.cells import IllegibleRow
from resources.ledger.facade import Verdict
from resources.spark.sessions import ModeSpark

pytestmark = pytest.mark.matrix

MARCH = ("2020-03-01", "2020-03-31")
CHANGE = "change_within_tolerance"
TENFOLD = 10


def total(frame: pl.DataFrame) -> pl.DataFrame:
    """Measure what the meters said."""
    return frame.select(pl.lit("all").alias("slice"), pl.col("value").sum().alias("total"))


GATED = replace(
    small_table.TARGET,
    measure=total,
    reconciliations=(change_gate(percent=20.0),),
    reconciled=ReconciliationPolicy(),
)


@dataclass
class _NoTransform:
    """Stands for the context of a transform, which the gates here do not look at."""

    publish_range: Any = None


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """A table with rows of four months, whose runs have a gate against large changes; no Spark."""
    monkeypatch.setattr(judging, "staged_frame", lambda *_, **__: None)
    monkeypatch.setattr(judging, "histories_until_end", lambda run, **_: {run.plan.source: None})
    monkeypatch.setattr(judging, "transform_context", lambda *_, **__: _NoTransform())
    monkeypatch.setattr(judging, "tasks_at_once", lambda _: 1)
    monkeypatch.setattr(verdicts, "keep", lambda *_, **__: {})
    with declared(GATED):
        monkeypatch.setattr(ModeSpark, "session", lambda *_, **__: None)
        opened_here = copy_of(with_history)
        yield opened_here
        closed(opened_here)


def with_history(platform: Platform) -> None:
    initialise(platform)
    published(platform, "base-run", scope=HISTORY, computed_by="1")


@pytest.fixture
def tenfold(monkeypatch: pytest.MonkeyPatch, platform: Platform) -> None:
    """From now on every meter is said to have said ten times as much."""
    del platform
    real = small_table.rows_of
    monkeypatch.setattr(
        small_table, "rows_of", lambda *of: [row | {"value": TENFOLD * row["value"]} for row in real(*of)]
    )


def unjudged(platform: Platform, run_id: str, **options: Any) -> str:
    """Publish a run whose gates somebody else has answered for."""

    def passed(_platform: Platform, record: Any, _chunks: Any) -> list[Verdict]:
        return [Verdict(gate, True, "an owner has accepted it", {}) for gate in record.plan.gates]

    with mock.patch.object(judging, "_run_verdicts", passed):
        return published(platform, run_id, **options)


def waiting(platform: Platform, run_id: str) -> None:
    terms = Conflict(onConflict=OnConflict.WAIT, waitMinutes=60)
    contract = small_table.manifest(run_id, "REPLACE_PARTITIONS", SCOPE)
    planned(platform, contract.model_copy(update={"conflict": terms}))


def verdict(platform: Platform, run_id: str) -> Verdict:
    return next(one for one in platform.ledger.verdicts(run_id) if one.gate == CHANGE)


@pytest.mark.usefixtures("tenfold")
def test_a_change_gate_compares_with_what_the_run_replaces_whoever_has_published_meanwhile(platform: Platform) -> None:
    waiting(platform, "run")
    unjudged(platform, "other")
    assert staged(platform, "run").state is RunState.FAILED, verdict(platform, "run").summary
    assert "2 of 2 chunks changed by more than 20%" in verdict(platform, "run").summary
    rollback(platform, "other")
    assert (readers(platform)["2020-02"], state(platform, "run")) == ("base-run", RunState.FAILED)


@pytest.mark.usefixtures("tenfold")
def test_a_run_is_judged_against_its_base_also_where_that_came_back_before_it_is_judged(platform: Platform) -> None:
    unjudged(platform, "other")
    waiting(platform, "run")  # its base has the tenfold rows
    rollback(platform, "other")
    assert staged(platform, "run").state is RunState.VALIDATED, verdict(platform, "run").summary
    with pytest.raises(PublicationDeferred):
        publish(platform, "run")
    reinstate(platform, "other")
    publish(platform, "run")
    assert agree(platform)


def test_whose_rows_a_snapshot_has_is_known_through_publications_rollbacks_and_expiry(platform: Platform) -> None:
    def now_and_then() -> tuple[int | None, dict[str, str]]:
        return platform.lakehouse.snapshot_id(READINGS), platform.ledger.accepted(READINGS)

    seen = [now_and_then()]
    for run_id, mode, scope, options in (
        ("february", "REPLACE_PARTITIONS", FEBRUARY, {}),
        ("merged", "MERGE_BY_KEY", SCOPE, {"merge": {"entities": ["m1"], "onOlderVersion": "OVERWRITE"}}),
        ("swapped", "SHADOW_SWAP", SCOPE, {}),
        ("named", "VERSIONED", HISTORY, {"version": "v2"}),
    ):
        unjudged(platform, run_id, mode=mode, scope=scope, **options)
        seen.append(now_and_then())
    for act, run_id in ((rollback, "named"), (reinstate, "named"), (rollback, "named"), (rollback, "swapped")):
        act(platform, run_id)
        seen.append(now_and_then())
    validated(platform, "later", mode="REPLACE_PARTITIONS", scope=FEBRUARY)
    assert [accepted_then(platform, READINGS, snapshot) for snapshot, _ in seen] == [held for _, held in seen]
    assert accepted_then(platform, READINGS, None) == {}
    at = platform.ledger.committed(READINGS)[-1].landed_at.replace(year=2031)
    garbage.collect(platform, garbage.find(platform, at=at), by="ada", at=at)
    left = {one.snapshot_id for one in platform.lakehouse.table(READINGS).snapshots()}
    assert len(left) < len(seen)
    for snapshot, held in seen:
        if snapshot in left:
            assert accepted_then(platform, READINGS, snapshot) == held


def test_what_has_landed_and_is_not_on_record_is_no_base_to_judge_against(platform: Platform) -> None:
    validated(platform, "dead", scope=FEBRUARY, computed_by="1")
    with (
        no_lease_ends(),
        mock.patch.object(type(platform.ledger), "accept", side_effect=Died),
        pytest.raises(Died),
    ):
        publish(platform, "dead")
    bury(platform)
    planned(platform, small_table.manifest("run", "REPLACE_PARTITIONS", SCOPE, computed_by="1"))
    with pytest.raises(EnvironmentRefused, match="publish of run 'dead' has landed"):
        staged(platform, "run")
    publish(platform, "dead")
    assert staged(platform, "run").state is RunState.VALIDATED


# --- reconciliations --------------------------------------------------------------------------------------------------


def foreign_write(platform: Platform) -> None:
    """Have another program write other rows into February."""
    table, days = platform.lakehouse.table(READINGS), Scope("day", date(2020, 2, 1), date(2020, 2, 29))
    files = [one.file for one in table.scan(row_filter=days.filter).plan_files()]
    rows = table.scan(row_filter=days.filter).to_arrow()
    column = rows.schema.get_field_index("value")
    values = arrow.array([value + 1 for value in rows["value"].to_pylist()], arrow.int64())
    rows = rows.set_column(column, rows.schema.field(column), values)
    commit_replacement(table, days.filter, files, list(_dataframe_to_data_files(table.metadata, rows, table.io)), {})


def reconciled(platform: Platform, run_id: str) -> tuple[RunState, str]:
    verdicts = {one.gate: one for one in reconcile(platform, run_id)}
    return state(platform, run_id), verdicts["published_rows_are_accepted"].summary


def asked(platform: Platform) -> str:
    gates = ["published_rows_pass_rules", "published_rows_are_accepted"]
    manifest = manifest_of(platform, GATED, gates=gates, requested_by="ada")
    return plan_reconciliation(platform, manifest).run_id


def test_a_publication_beside_a_reconciliation_is_no_difference(platform: Platform) -> None:
    run_id = asked(platform)
    unjudged(platform, "restated", scope=FEBRUARY)
    assert reconciled(platform, run_id) == (RunState.VALIDATED, "4 of 4 published chunks hold the accepted rows")
    assert reconciled(platform, asked(platform))[0] is RunState.VALIDATED


def test_a_merge_beside_a_reconciliation_hides_no_foreign_write(platform: Platform) -> None:
    foreign_write(platform)
    run_id = asked(platform)
    options: dict[str, Any] = {"merge": {"entities": ["m1"], "onOlderVersion": "OVERWRITE"}}
    unjudged(platform, "merged", mode="MERGE_BY_KEY", scope=FEBRUARY, **options)
    assert reconciled(platform, run_id) == (RunState.FAILED, "3 of 4 published chunks hold the accepted rows")


def test_a_table_that_another_program_has_set_back_does_not_hold_what_was_accepted(platform: Platform) -> None:
    before = platform.lakehouse.snapshot_id(READINGS)
    assert before is not None
    unjudged(platform, "restated", scope=FEBRUARY)
    platform.lakehouse.table(READINGS).manage_snapshots().rollback_to_snapshot(before).commit()
    assert reconciled(platform, asked(platform)) == (
        RunState.FAILED,
        "3 of 4 published chunks hold the accepted rows",
    )


# --- loads that are taken back ----------------------------------------------------------------------------------------


BAD = f"{SOURCE}:bad"


@pytest.fixture
def bad_load(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load of the source that somebody will take back; the source stands for a declared input table."""
    declared_input = SimpleNamespace(name=SOURCE, quarantine_of="", log=None)
    monkeypatch.setattr(type(platform.products), "input", lambda *_: declared_input)
    monkeypatch.setattr(type(platform.products), "quarantine_of", lambda *_: declared_input)
    load_again(platform, BAD)


def load_again(platform: Platform, load_id: str) -> None:
    schema = schema_to_pyarrow(platform.lakehouse.table(SOURCE).schema())
    event = {"id": "bad", "at": datetime(2020, 2, 2, tzinfo=UTC)}
    platform.lakehouse.append(SOURCE, [arrow.Table.from_pylist([event], schema=schema)], {LOAD_PROPERTY: load_id})


def taken_back(platform: Platform, load_id: str = BAD) -> table_loads.LoadUndone:
    return table_loads.undo_load(platform, SOURCE, load_id, by="ada", reason="the file of another meter")


def found(platform: Platform) -> list[tuple[str, str]]:
    return [(one.kind, one.where) for one in examine(platform)]


@pytest.mark.usefixtures("bad_load")
def test_a_load_that_is_taken_back_names_the_runs_that_may_show_it_yet(platform: Platform) -> None:
    validated(platform, "waits", computed_by="1", scope=FEBRUARY)
    published(platform, "back", computed_by="1", scope=MARCH)
    rollback(platform, "back")
    planned(platform, small_table.manifest("looks", "REPLACE_PARTITIONS", SCOPE))
    done = taken_back(platform)
    assert (done.published_with_it, done.may_be_published_with_it) == ((), ("waits", "back", "looks"))
    assert found(platform) == [("load-taken-back", "waits"), ("load-taken-back", "looks")]
    cancel(platform, "looks", "ada", "its input was taken back")
    publish(platform, "waits")
    reinstate(platform, "back")
    assert found(platform) == [("load-taken-back", "waits"), ("load-taken-back", "back")]
    assert taken_back(platform).published_with_it == ("waits", "back")
    load_again(platform, f"{BAD}#2")
    assert found(platform) == []
    assert taken_back(platform).published_with_it == ()  # said once more, when its content is there again
    load_again(platform, f"{BAD}#3")
    assert taken_back(platform, f"{BAD}#2").published_with_it == ()  # its content is there by the third
    assert found(platform) == []
    assert taken_back(platform, f"{BAD}#3").published_with_it == ("waits", "back")
    assert found(platform) == [("load-taken-back", "waits"), ("load-taken-back", "back")]


@pytest.mark.usefixtures("bad_load")
def test_a_run_that_is_published_while_its_load_is_taken_back_is_named(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated(platform, "run", computed_by="1", scope=FEBRUARY)
    runs, todo = type(platform.ledger).runs, ["run"]
    load = platform.lakehouse.loads(SOURCE)[-1]

    def and_published(ledger: Any, **said: Any) -> Any:
        known = runs(ledger, **said)
        has_landed = next(one for one in platform.lakehouse.loads(SOURCE) if one.load_id == load.load_id).undone_by
        while todo and has_landed:
            publish(platform, todo.pop())
        return known

    with monkeypatch.context() as patch:
        patch.setattr(type(platform.ledger), "runs", and_published)
        done = taken_back(platform)
    assert done.may_be_published_with_it == ("run",)
    assert found(platform) == [("load-taken-back", "run")]


@pytest.mark.usefixtures("bad_load")
def test_a_load_is_not_taken_back_while_nobody_can_say_who_has_read_it(platform: Platform) -> None:
    validated(platform, "run", computed_by="1", scope=FEBRUARY)
    with platform.ledger.engine.begin() as connection:
        connection.execute(sa.text("UPDATE runs SET plan = '{}'"))
    before = platform.lakehouse.table(SOURCE).metadata.current_snapshot_id
    with pytest.raises(IllegibleRow, match="has cells that cannot be read"):
        taken_back(platform)
    assert platform.lakehouse.table(SOURCE).metadata.current_snapshot_id == before


def test_a_run_whose_chunks_were_planned_anew_with_a_load_is_named_when_it_is_taken_back(
    platform: Platform, request: pytest.FixtureRequest
) -> None:
    contract = small_table.manifest("run", "REPLACE_PARTITIONS", FEBRUARY, computed_by="1")
    terms = Conflict(onConflict=OnConflict.REPLAN)
    planned(platform, contract.model_copy(update={"conflict": terms}))
    staged(platform, "run")
    unjudged(platform, "other", scope=FEBRUARY, computed_by="1")
    request.getfixturevalue("bad_load")
    with pytest.raises(PublicationDeferred, match="planned anew"):
        publish(platform, "run")
    staged(platform, "run")
    publish(platform, "run")
    assert taken_back(platform).published_with_it == ("run",)
    assert found(platform) == [("load-taken-back", "run")]
