"""What a plan says that it will do is what is done: words, commits and handlers come from one list of stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args
from unittest import mock

import pytest
from table_model import File, Row, Run
from table_world import DAYS, EVENTS, MONTHS, Installation, day_of, only_this_table

from backfill_assets.declarations.target import TargetTable
from backfill_assets.execution import Execution
from backfill_assets.publication.modes import STRATEGIES, stages_of, strategy_of
from backfill_assets.reconciliation.reconcile import reconcile
from benchmarks.small_table import closed
from manifests.errors import PublicationRefused, TransitionRefused
from manifests.lifecycle import RunState
from manifests.model import Corrections, PublishMode
from manifests.stages import PrepareCandidate, Publish, Reconcile, Stage, Step
from resources.lakehouse.facade import Lakehouse

APPENDS = f"appends correction events to {EVENTS}"
MODES: dict[str, tuple[PublishMode, dict[str, Any], str]] = {
    "first rows": (
        PublishMode.APPEND_ONLY,
        {},
        f"in one commit, which adds files to {DAYS}, where these days hold no rows",
    ),
    "partitions": (
        PublishMode.REPLACE_PARTITIONS,
        {},
        f"in one commit, which replaces the files of these days in {DAYS}",
    ),
    "swap": (PublishMode.SHADOW_SWAP, {}, f"in one commit, which points main of {DAYS} at the candidate"),
    "version": (
        PublishMode.VERSIONED,
        {"version": "v1"},
        f"in one commit, which names the candidate v1 and points main of {DAYS} at it",
    ),
    "version first": (
        PublishMode.VERSIONED,
        {"version": "v1", "later": True},
        f"in one commit, which names the candidate v1 in {DAYS}, and leaves main until somebody accepts the version",
    ),
    "corrections": (
        PublishMode.CORRECTION_EVENTS,
        {"corrections": Corrections.INSTEAD},
        f"in one commit, which {APPENDS}",
    ),
    "corrections beside": (
        PublishMode.CORRECTION_EVENTS,
        {"corrections": Corrections.BESIDE},
        f"in two commits: the first replaces the files of these days in {DAYS}, the next one {APPENDS}",
    ),
}
COMMITS = ("replace", "point")
"""What of the lakehouse commits when a run is published."""


@pytest.fixture
def it() -> Iterator[Installation]:
    with only_this_table():
        installation = Installation()
        yield installation
        closed(installation.platform)


def a_run(it: Installation, mode: PublishMode, **options: Any) -> Run:
    """Return a validated run over the first month."""
    run = Run("run", mode, MONTHS[:1], **options)
    it.plan(run)
    row = Row("run", day_of(MONTHS[0], 3), 1, 1, "run")
    it.stage(run, {MONTHS[0]: [File(frozenset({row}))]}, passes=True)
    return run


def stages(it: Installation) -> list[Stage]:
    return stages_of(it.platform.products, it.platform.ledger.run("run").plan)


def publication_of(it: Installation) -> Publish:
    stage = stages(it)[-1]
    assert isinstance(stage, Publish)
    return stage


@pytest.mark.parametrize("name", MODES)
def test_a_publication_makes_the_commits_that_its_stage_names_in_that_order(it: Installation, name: str) -> None:
    mode, options, words = MODES[name]
    a_run(it, mode, **options)
    publish = publication_of(it)
    assert f"({mode}) {words}; " in publish.describe()
    made: list[str] = []

    def noting(commit: Any) -> Any:
        def noted(self: Lakehouse, table: str, *arguments: Any, **named: Any) -> Any:
            made.append(f"{table}@{named['branch']}" if "branch" in named else table)
            return commit(self, table, *arguments, **named)

        return noted

    with (
        mock.patch.object(Lakehouse, "replace", noting(Lakehouse.replace)),
        mock.patch.object(Lakehouse, "exchange", noting(Lakehouse.exchange)),
        mock.patch.object(Lakehouse, "point", noting(Lakehouse.point)),
    ):
        Execution(it.platform, "run").run(Step.PUBLISH)
    candidates = [stage for stage in stages(it) if isinstance(stage, PrepareCandidate)]
    before = [f"{stage.commit.table}@{stage.branch}" for stage in candidates]
    assert made == [*before, *(commit.table for commit in publish.commits)]
    assert it.platform.ledger.run("run").state is RunState.PUBLISHED


@pytest.mark.parametrize("name", MODES)
def test_a_candidate_is_prepared_as_a_stage_of_its_own(it: Installation, name: str) -> None:
    mode, options, _ = MODES[name]
    a_run(it, mode, **options)
    branch = Execution(it.platform, "run").run(Step.JUDGE).branch
    named = [stage.branch for stage in stages(it) if isinstance(stage, PrepareCandidate)]
    assert ([] if branch is None else [branch]) == named


def test_every_stage_has_a_handler(it: Installation) -> None:
    has_one = Execution(it.platform, "run")._handlers.keys() | {Reconcile}  # which `reconcile` brings with it
    assert has_one == set(get_args(Stage))


def test_every_publish_mode_has_a_strategy() -> None:
    assert set(STRATEGIES) == set(PublishMode)


def test_a_plan_without_a_publication_is_refused_by_what_publishes(it: Installation) -> None:
    a_run(it, PublishMode.REPLACE_PARTITIONS)
    looks = [stage for stage in stages(it) if not isinstance(stage, Publish)]
    execution = Execution(it.platform, "run")
    execution.stages = looks
    with mock.patch("backfill_assets.execution.publish", side_effect=PublicationRefused([])) as refuses:
        with pytest.raises(PublicationRefused):
            execution.run(Step.PUBLISH)
        refuses.assert_called_once()
    with pytest.raises(TransitionRefused, match="RECONCILIATION"):
        reconcile(it.platform, "run")


def test_the_tables_that_a_run_changes_are_those_of_its_commits(it: Installation) -> None:
    a_run(it, PublishMode.CORRECTION_EVENTS, corrections=Corrections.BESIDE)
    target: TargetTable = it.platform.products.target(DAYS)
    strategy = strategy_of(it.platform.ledger.run("run").plan)
    assert strategy.tables(target) == [commit.table for commit in publication_of(it).commits] == [DAYS, EVENTS]
