"""A launch holds the plan that its chunks had, and the publisher plans them anew: what it computes is used for nothing.

In each order of events two launches compute the same chunks of one run. The first is slow; meanwhile the second stages
them, another run publishes into the scope, the source gets more, and the publisher plans what is in conflict anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import count
from typing import Any
from unittest import mock

import pyarrow as arrow
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from small_worlds import copy_of

from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from backfill_assets.publication import publisher as publication
from backfill_assets.run_context import RunContext
from backfill_assets.staging import executor, pacing
from benchmarks import small_table
from benchmarks.histories import History
from benchmarks.small_table import SOURCE, manifest_data
from manifests.errors import EnvironmentRefused, Problem, PublicationDeferred, StateMoved
from manifests.lifecycle import RunState
from manifests.reading import manifest_from
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.ledger.facade import OBSOLETE, ChunkState
from resources.ledger.transactions import LedgerEngine
from resources.ledger.transactions import system_clock as now

pytestmark = pytest.mark.matrix

SCOPE, MARCH = ("2020-02-01", "2020-03-31"), ("2020-03-01", "2020-03-31")
KEYS = ["2020-02", "2020-03"]
REPLACE, MERGE = "REPLACE_PARTITIONS", "MERGE_BY_KEY"
SLOW, OTHER = "slow", "other"


@pytest.fixture
def platform() -> Iterator[Platform]:
    with small_table.declared():
        platform = copy_of(with_history)
        yield platform
        small_table.closed(platform)


def with_history(platform: Platform) -> None:
    small_table.initialise(platform)
    contract = small_table.manifest("history", REPLACE, ("2020-01-01", "2020-04-30"), computed_by="1")
    small_table.planned(platform, contract)
    small_table.staged(platform, "history")
    publication.publish(platform, "history")


def two_runs(platform: Platform, mode: str = REPLACE, scope: tuple[str, str] = SCOPE) -> None:
    """Approve the run that two launches compute, and validate another one in its scope, on the same base."""
    options: dict[str, Any] = {"merge": {"entities": ["m0", "m1"]}} if mode == MERGE else {}
    data = manifest_data(SLOW, mode, scope, **options)
    data["conflict"] = {"onConflict": "REPLAN", "maxReplans": 2}
    small_table.planned(platform, manifest_from(data))
    small_table.planned(platform, small_table.manifest(OTHER, REPLACE, MARCH))
    small_table.staged(platform, OTHER)


def meanwhile(platform: Platform) -> None:
    """Let the second launch stage all, and the publisher plan March anew for what came into target and source since."""
    small_table.staged(platform, SLOW)
    assert platform.ledger.run(SLOW).state is RunState.VALIDATED
    publication.publish(platform, OTHER)
    schema = schema_to_pyarrow(platform.lakehouse.table(SOURCE).schema())
    more = [{"id": "late", "at": datetime(2020, 3, 5, tzinfo=UTC)}]
    platform.lakehouse.append(SOURCE, [arrow.Table.from_pylist(more, schema=schema)], {LOAD_PROPERTY: "late"})
    with pytest.raises(PublicationDeferred):
        publication.publish(platform, SLOW)


def once(act: Callable[[], None]) -> Callable[..., None]:
    todo = [act]

    def do(*_: Any) -> None:
        if todo:
            todo.pop()()

    return do


def beside_computing(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Do something once, when a launch has computed its first batch and not staged it yet."""
    first = once(act)

    def compute(*arguments: Any) -> Any:
        files = small_table.compute(*arguments)
        first()
        return files

    monkeypatch.setattr(executor, "compute_batch", compute)


def march(platform: Platform) -> int:
    return sum(row[1] >= date(2020, 3, 1) and row[1] <= date(2020, 3, 31) for row in small_table.rows(platform))


def nothing_has_failed(platform: Platform) -> None:
    ledger = platform.ledger
    assert ledger.run(SLOW).state is RunState.RUNNING
    assert all(one.state is not ChunkState.FAILED for one in ledger.chunks(SLOW))
    assert {one.chunk: one.state for one in ledger.chunks(SLOW)}["2020-03"] is ChunkState.PLANNED
    assert all(one.state in {"STAGED", OBSOLETE} for one in ledger.attempts(SLOW))


def comes_to_its_end(platform: Platform) -> None:
    """Launch the run again, by its new plan, and publish it."""
    ledger = platform.ledger
    small_table.staged(platform, SLOW)
    publication.publish(platform, SLOW)
    assert ledger.run(SLOW).state is RunState.PUBLISHED
    assert march(platform) > 0
    plans = ledger.plans(ledger.run(SLOW))
    inputs = {row[1].strftime("%Y-%m"): row[-1] for row in small_table.rows(platform) if SLOW in row}
    assert all(plans[month].source_snapshot_id == snapshot for month, snapshot in inputs.items())
    assert verify(platform, data=True).everything == []


@pytest.mark.parametrize("when", ["it waits for its place", "it computes"])
@pytest.mark.parametrize("mode", [REPLACE, MERGE])
@pytest.mark.parametrize("empty", [True, False])
def test_what_was_computed_by_an_earlier_plan_is_not_staged(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, when: str, mode: str, empty: bool
) -> None:
    """Where the earlier plan's source had nothing for March, no gate can tell whose plan an empty chunk is of."""
    two_runs(platform, mode)
    earlier = platform.ledger.run(SLOW).plan.source_snapshot_id
    act, compute, rows_of = once(lambda: meanwhile(platform)), small_table.compute, small_table.rows_of

    def slowly(run: RunContext, *rest: Any) -> Any:
        plan = run.plan

        def rows(version: str, start: date, end: date) -> list[dict[str, Any]]:
            gone = empty and plan.run_id == SLOW and plan.source_snapshot_id == earlier and start.month == 3
            return [] if gone else rows_of(version, start, end)

        with monkeypatch.context() as patched:
            patched.setattr(small_table, "rows_of", rows)
            files = compute(run, *rest)
        if when == "it computes" and plan.run_id == SLOW:
            act()
        return files

    monkeypatch.setattr(executor, "compute_batch", slowly)
    if when == "it waits for its place":
        monkeypatch.setattr(pacing, "_make_way", act)
    with pytest.raises(StateMoved, match="planned anew") as refusal:
        executor.stage_chunks(platform, SLOW, KEYS)
    assert "2020-03" in refusal.value.problems[0].what
    nothing_has_failed(platform)
    comes_to_its_end(platform)


@pytest.mark.parametrize("scope", [MARCH, SCOPE])
@pytest.mark.parametrize(
    "error", [ValueError("executor lost"), EnvironmentRefused(Problem("a file is gone", "it is there", "look"))]
)
def test_a_launch_that_computed_in_vain_fails_neither_chunk_nor_run(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, scope: tuple[str, str], error: Exception
) -> None:
    two_runs(platform, scope=scope)

    def fails() -> None:
        meanwhile(platform)
        raise error

    beside_computing(monkeypatch, fails)
    with pytest.raises(StateMoved, match="planned anew"):
        executor.stage_chunks(platform, SLOW, KEYS if scope == SCOPE else KEYS[1:])
    nothing_has_failed(platform)
    comes_to_its_end(platform)


def test_a_launch_whose_chunks_another_one_has_staged_by_the_new_plan_has_nothing_to_say(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_runs(platform)

    def act() -> None:
        meanwhile(platform)
        small_table.staged(platform, SLOW)

    beside_computing(monkeypatch, act)
    outcome = executor.stage_chunks(platform, SLOW, KEYS)
    assert (outcome.computed, outcome.skipped, outcome.failed) == ([], KEYS, {})
    assert platform.ledger.run(SLOW).state is RunState.VALIDATED
    comes_to_its_end(platform)


def test_a_launch_of_chunks_that_keep_their_plan_is_not_obsolete(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_runs(platform)
    beside_computing(monkeypatch, lambda: meanwhile(platform))
    executor.stage_chunks(platform, SLOW, KEYS[:1])  # February only: the publisher has planned March anew
    assert platform.ledger.run(SLOW).state is RunState.RUNNING
    assert [one.state for one in platform.ledger.attempts(SLOW)] == ["STAGED", "STAGED"]
    comes_to_its_end(platform)


def test_runs_that_are_planned_within_one_second_are_two_versions_of_a_row(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    micros = count(1)
    second = now().replace(microsecond=0) + timedelta(seconds=1)  # after the history was planned
    monkeypatch.setattr(LedgerEngine, "clock", staticmethod(lambda: second + timedelta(microseconds=next(micros))))
    for version in ("2", "1", "2"):
        contract = small_table.manifest(
            f"merge-{next(micros)}", MERGE, SCOPE, computed_by=version, merge={"entities": ["m0", "m1"]}
        )
        small_table.planned(platform, contract)
        assert small_table.staged(platform, contract.run_id).state is RunState.VALIDATED
        publication.publish(platform, contract.run_id)


def test_rows_of_a_chunk_that_was_planned_anew_are_its_new_plan_s_whoever_has_rewritten_them(
    platform: Platform,
) -> None:
    two_runs(platform)
    small_table.staged(platform, SLOW)
    meanwhile(platform)
    comes_to_its_end(platform)
    plans = platform.ledger.plans(platform.ledger.run(SLOW))
    assert plans["2020-02"].source_snapshot_id != plans["2020-03"].source_snapshot_id
    march_of_all = mock.Mock(choice=lambda months: months[2])
    History(platform, march_of_all).compacted()
    assert verify(platform, data=True).everything == []
    rewritten = [note for run in verify(platform, [SLOW]).runs for note in run.notes if "were rewritten" in note]
    assert rewritten
    assert "2020-03" in rewritten[0]
