"""From a manifest to a recorded plan: reads the tables' metadata and hands it to the planner.

The rules of planning are the planner's; what is done here is looking things up, and recording the result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from backfill_assets import faults
from backfill_assets.declarations.checking.answers import answer_problems
from backfill_assets.declarations.checking.rules import rule_problems
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning import pinned_snapshots
from backfill_assets.planning.accepted_base import base_state
from backfill_assets.planning.batch_sizes import with_sizes
from backfill_assets.planning.compacting import reading_itself, snapshots_of, with_compaction
from backfill_assets.planning.contracts import contract_of
from backfill_assets.planning.dry_runs import with_dry_run_terms
from backfill_assets.planning.foreign_tables import require_usable_tables
from backfill_assets.planning.further_sources import found_sources, states_of
from backfill_assets.planning.landed_logs import found_logs
from backfill_assets.planning.live_names import claims
from backfill_assets.planning.old_data import facts_of
from backfill_assets.planning.pinned_snapshots import pins_of, pins_of_run
from backfill_assets.planning.read_models import require_in_use
from backfill_assets.planning.reference_tables import PinnedRows, reference_states
from backfill_assets.planning.run_costs import with_costs
from backfill_assets.planning.schemas import pinned_schemas
from backfill_assets.planning.scopes import scope_of
from backfill_assets.planning.states import found_start
from backfill_assets.planning.topics_of_runs import topics_of
from backfill_assets.planning.upstream import require_policy_of_upstream
from manifests.chunks import aligned, cut, key_of
from manifests.division import parts_of
from manifests.draft_figures import DraftFigures
from manifests.errors import InputRefused, ManifestRefused, PlanRefused, Problem, Refused
from manifests.facts import BaseState, SourceState
from manifests.kinds import Present
from manifests.model import DayRange, Kind, Mode, RunManifest, mode_of
from manifests.plan import Plan
from manifests.planner import draft_problems, make_plan
from manifests.policy import same_name, shown
from manifests.reading import lacks_range, valid_part
from manifests.series import series_of
from manifests.target_problems import value_problems
from resources import actors, logs
from resources.code.identity import uncommitted
from resources.lakehouse.declared_tables import column_problems
from resources.ledger.facade import RunRecord, operator
from resources.logs import traces
from resources.sinks.policy import draft_problems as sink_problems

_log = logging.getLogger(__name__)
Check = Callable[[Platform, Plan], Plan]
"""What is asked of a plan before it is recorded, by a package above."""


def preview(platform: Platform, manifest: RunManifest, *, keep: bool = False, whole: RunManifest | None = None) -> Plan:
    """Plan a manifest on the tables as they are now, without recording anything; with `keep`, what its hashes stand for.

    `whole` is the progressive manifest that it is a step of.

    Raises:
        Refused: if the manifest cannot be planned, with every reason the planner found.
    """
    refused = _Refusals()
    _ask_of_names_and_grants(platform, manifest, refused)
    target = _target_of(platform, manifest, refused)
    as_declared = _is_as_declared(platform, target, manifest, refused)
    # the base first: whatever LIVE publishes from here on is not in it, and refuses the publication of this plan
    base_snapshot_id, read_snapshot_id = snapshots_of(platform, target, manifest)
    references = reference_states(platform, target, manifest)
    source = _source_state(platform, target, read_snapshot_id, refused)
    if source is None:
        raise refused.as_one()
    contract = replace(target, warm_up_days=_no_days).contract({})  # what can be said where the warm-up cannot
    with refused.kept():
        require_policy_of_upstream(platform, target)
    with refused.kept():
        pinned = PinnedRows(platform, target, manifest, references)
        contract = contract_of(target, pinned, lambda error: error is pinned.unreadable)
    policy, run_clock = platform.policy, platform.ledger.now()
    if keep := keep and not refused.number:
        platform.ledger.policies.keep(policy.hash, shown(policy))
    with refused.kept():
        asked = platform, target, manifest, source, contract.warm_up_days, run_clock.date(), refused.kept
        with traces.span("plan.further_sources"):
            found = found_sources(*asked, keep=keep) if as_declared else {}
        code = platform.code_of(target.name, loaded_only=True)  # a launch looks at all of it
        plan = make_plan(
            manifest,
            contract=contract,
            source=source,
            references=references,
            base_snapshot_id=base_snapshot_id,
            code=code,
            uncommitted=uncommitted(platform.sources_of(target.name)) if code.is_dirty else {},
            configuration_hash=platform.settings.output_hash(),
            run_clock=run_clock,
            # tables that are not as their models say are not looked into
            base=_base_state(platform, target, manifest, base_snapshot_id) if as_declared else None,
            policy=policy,
            facts=facts_of(platform, policy, target, target.source, source.snapshot_id, run_clock.date(), keep=keep)
            if as_declared
            else None,
            sources=found,
            start=found_start(platform, target, manifest, source.snapshot_id) if as_declared else None,
            logs=found_logs(platform, target, manifest, states_of(found)) if as_declared else {},
            topics=topics_of(platform, manifest),
        )
        plan = with_compaction(platform, target, plan, manifest)
        plan = with_sizes(platform, target, plan, manifest)
        plan = with_costs(platform, with_dry_run_terms(platform, plan, manifest, policy, source, whole))
    if refused.number:
        raise refused.as_one()
    return plan


def _target_of(platform: Platform, manifest: RunManifest, refused: _Refusals) -> TargetTable:
    """Return the target of a manifest, as a run of its kind has it.

    Raises:
        Refused: with what was refused before, if no product declares it.
    """
    target = platform.products.find_target(manifest.target.table)
    if target is None:
        refused.add(_without_target(platform, manifest))
        raise refused.as_one()
    return reading_itself(target) if manifest.kind is Kind.COMPACTION else target


def _ask_of_names_and_grants(platform: Platform, manifest: RunManifest, refused: _Refusals) -> None:
    """Keep what speaks against a manifest whatever its target is declared to be."""
    with refused.kept():
        require_in_use(platform, manifest.target.table)
        _require_own_names(platform, manifest)
    with refused.kept():
        platform.sinks.check_grants(manifest)


def _is_as_declared(platform: Platform, target: TargetTable, manifest: RunManifest, refused: _Refusals) -> bool:
    """Return whether the tables of a run are as their models say, and can be used; what speaks against it is kept."""
    before = refused.number
    with refused.kept():
        _require_rules(platform, target)
    with refused.kept():
        _require_columns(platform, target, manifest)
    with refused.kept():
        require_usable_tables(platform, target, manifest)
    with refused.kept():
        _require_input_columns(platform, target)
    return refused.number == before


class _Refusals:
    """The refusals of one manifest: what can be judged without what is wrong is judged all the same."""

    def __init__(self) -> None:
        self._found: list[Refused] = []

    @property
    def number(self) -> int:
        return len(self._found)

    @property
    def problems(self) -> list[Problem]:
        return list(dict.fromkeys(problem for one in self._found for problem in one.problems))

    def add(self, refusal: Refused) -> None:
        self._found.append(refusal)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep a refusal for later."""
        try:
            yield
        except Refused as refusal:
            self.add(refusal)

    def as_one(self) -> Refused:
        """Return the first refusal as it is where the others say nothing else, or one with every reason of all of them, each once."""
        if set(self.problems) == set(self._found[0].problems):
            return self._found[0]
        return PlanRefused(self.problems)


def _no_days(_: Mapping[str, list[dict[str, Any]]]) -> int:
    return 0


def _without_target(platform: Platform, manifest: RunManifest) -> Refused:
    """Return what is wrong with a manifest whose target nobody declares: its name, and what says nothing to any target."""
    problems: list[Problem] = []
    try:
        platform.products.target(manifest.target.table)
    except Refused as refusal:
        problems += refusal.problems
    sources = {target.source for target in platform.products.targets}
    if manifest.source.table not in sources:
        problems.append(
            Problem(
                f"source.table is {manifest.source.table}",
                f"targets are computed from {', '.join(sorted(sources))}",
                "correct source.table",
            )
        )
    transforms = {target.transform for target in platform.products.targets}
    if manifest.transform.name not in transforms:
        problems.append(
            Problem(
                f"transform.name is {manifest.transform.name}",
                f"declared are {', '.join(sorted(transforms))}",
                "correct transform.name",
            )
        )
    return InputRefused(problems)


def _source_state(
    platform: Platform, target: TargetTable, wanted: int | None, refused: _Refusals
) -> SourceState | None:
    """Return a target's source at the snapshot that is wanted, or at its newest where it has none such."""
    for snapshot_id in dict.fromkeys((wanted, None)):
        with traces.span("plan.sources", source=target.source), refused.kept():
            place = target.source, target.source_time_column, snapshot_id
            return platform.lakehouse.source_state(*place, is_whole=target.reads_whole)
    return None


def _require_columns(platform: Platform, target: TargetTable, manifest: RunManifest) -> None:
    """Refuse a plan for tables whose columns are not those that their models declare.

    Raises:
        PlanRefused: naming each column that differs.
    """
    declared = [(target.name, target.model)]
    if target.corrections is not None and manifest.target.correction_events is not None:
        declared.append((target.corrections.name, target.corrections.model))
    problems = [
        problem
        for name, model in declared
        for problem in column_problems(platform.lakehouse.table(name), iceberg_schema(model))
    ]
    if problems:
        raise PlanRefused(problems)


def _require_rules(platform: Platform, target: TargetTable) -> None:
    """Refuse a plan where a table that it reads or changes has a rule that no row can be held against, or unusable measures.

    Raises:
        PlanRefused: naming each rule and function.
    """
    models = platform.products.models
    read = {name: models[name] for name in target.every_read if name in models}
    if problems := [*rule_problems(read | dict(target.models)), *answer_problems(target)]:
        raise PlanRefused(problems)


def _require_input_columns(platform: Platform, target: TargetTable) -> None:
    """Refuse a plan that reads tables without the columns, or with other types, than their models declare.

    A transform is written for those; what a table has besides is nothing to it.

    Raises:
        PlanRefused: naming each column that differs.
    """
    models = platform.products.models
    problems = [
        problem
        for name in target.every_read
        if name in models  # what is not declared, no model says anything of
        for problem in column_problems(platform.lakehouse.table(name), iceberg_schema(models[name]), besides=False)
    ]
    if problems:
        raise PlanRefused(problems)


def _requester(platform: Platform, manifest: RunManifest) -> list[Problem]:
    """Say why a manifest is not asked for by whom it names, where the policy wants to know who people are.

    Else one could request a change in somebody else's name, and approve it in one's own.
    """
    policy = platform.policy
    if manifest.kind in {Kind.LIVE, Kind.RECONCILIATION}:  # written by the platform, or changes nothing
        return []
    if not policy.rule_for(manifest.target.table, manifest.kind).authenticated:
        return []
    actor = actors.current()
    if actor.is_authenticated and same_name(actor.name) == same_name(manifest.requested_by):
        return []
    known = f"'{actor.name}'" if actor.is_authenticated else f"'{actor.name}', which nothing but the name shows"
    return [
        Problem(
            f"requestedBy is '{manifest.requested_by}', and who plans it is {known}",
            f"the policy '{policy.name}' wants authenticated decisions: people request in their own name",
            "have the requester plan it, as the user that the policy's `identity` knows",
        )
    ]


def _require_own_names(platform: Platform, manifest: RunManifest) -> None:
    """Refuse a person's manifest that claims what is the platform's: the kind LIVE, a live run's id, a policy's name.

    Raises:
        PlanRefused: with what it claims.
    """
    problems = platform.ledger.ticks.problems(manifest) + claims(platform, manifest) + _requester(platform, manifest)
    if problems:
        raise PlanRefused(problems)


def _base_state(platform: Platform, target: TargetTable, manifest: RunManifest, snapshot_id: int | None) -> BaseState:
    """Look up what the planner must know of the tables: for the manifest's publish mode, and beside live."""
    lakehouse, wanted = platform.lakehouse, manifest.target
    parts = parts_of(target.chunk_values, wanted.values)
    compacts = manifest.kind is Kind.COMPACTION
    scope = scope_of(target, wanted.publish_range.start, wanted.publish_range.end, wanted.values)
    scope = replace(scope, same_rows=compacts)
    chunk_of = partial(key_of, target.chunking) if wanted.derives or compacts else None
    known = base_state(platform, target, wanted.publish_range, snapshot_id, values=wanted.values)
    # rows of somebody else matter to what writes first rows only, and to what a kind means where no run holds a chunk
    holds_none = known.accepted.isdisjoint(
        chunk.key for chunk in cut(target.chunking, *aligned(target.chunking, scope.start, scope.end), parts)
    )
    rows = lakehouse.rows_in(target.name, scope) if wanted.first_rows_only or holds_none else 0
    return replace(
        known,
        rows_in_scope=rows if wanted.first_rows_only else 0,
        present=replace(known.present or Present(), rows_of_others=holds_none and rows > 0),
        files_beyond=tuple(lakehouse.files_beyond(target.name, scope, chunk_of, target.chunk_values))
        if manifest.execution_mode is not Mode.RECONCILIATION
        else (),
        refs=lakehouse.refs(target.name),
        source_snapshots=lakehouse.history(target.source) if wanted.merge is not None else frozenset(),
        corrections_snapshot_id=corrections_snapshot(platform, target)
        if wanted.correction_events is not None
        else None,
        schemas=pinned_schemas(platform, target, manifest),
    )


def corrections_snapshot(platform: Platform, target: TargetTable) -> int | None:
    """Return the current snapshot of a target's corrections table; None where it has none."""
    return None if target.corrections is None else platform.lakehouse.snapshot_id(target.corrections.name)


def whole_refusal(platform: Platform, refusal: ManifestRefused) -> ManifestRefused:
    """Return the refusal of a manifest that is not valid, with what sinks, declarations and tables say against the rest of it.

    Each valid field is judged as if all others were right: a second round brings nothing that could be known in the first.
    """
    if refusal.draft is None:
        return refusal
    part = partial(valid_part, refusal.draft)
    kind, mode = part("kind"), part("mode")
    table, scope = part("target", "table"), part("target", "publishRange")
    refused = _Refusals()
    refused.add(refusal)
    mode = mode or (None if kind is None else mode_of(kind))
    refused.add(ManifestRefused(sink_problems(part("safety", "sinks") or (), mode, platform.products.sinks)))
    target = None if table is None else platform.products.find_target(table)
    if table is not None and target is None:
        with refused.kept():
            platform.products.target(table)
    if target is not None and kind is Kind.COMPACTION:
        target = reading_itself(target)
    if target is not None:
        today = platform.ledger.now().date()
        draft = RunManifest.model_validate(
            {
                "runId": "draft",
                "kind": Kind.RECONCILIATION if kind is Kind.RECONCILIATION else Kind.BACKFILL,
                "requestedBy": "nobody",
                "reason": "judged field by field",
                "source": {"table": part("source", "table") or target.source},
                "transform": {
                    "name": part("transform", "name") or target.transform,
                    "version": part("transform", "version") or list(target.versions)[-1],
                },
                "target": {
                    "table": table,
                    "values": tuple(dict.fromkeys(part("target", "values") or ())) or None,
                }
                | ({} if lacks_range(refusal.draft) else {"publishRange": scope or DayRange(start=today, end=today)}),
                "referenceData": tuple({one.name: one for one in part("referenceData") or ()}.values()),
                "validation": {
                    "gates": part("validation", "gates"),
                    "tolerances": part("validation", "tolerances") or {},
                },
            }
        )
        source = _source_state(platform, target, part("source", "snapshotId"), refused)
        contract = replace(target, warm_up_days=_no_days).contract({})
        references = {} if scope is None else reference_states(platform, target, draft)
        refused.add(
            ManifestRefused(
                draft_problems(
                    draft, contract, None if scope is None else source, references, DraftFigures.of(refusal.draft)
                )
            )
        )
    return ManifestRefused(refused.problems)


def _steps(platform: Platform, manifest: RunManifest) -> tuple[RunManifest, ...]:
    """Return the steps of a manifest; itself where its target is not declared, which planning it says with all else."""
    target = platform.products.find_target(manifest.target.table)
    if target is None or manifest.progressive is None:
        return (manifest,)
    if problems := value_problems(manifest, replace(target, warm_up_days=_no_days).contract({})):
        raise PlanRefused(problems)
    return series_of(manifest, target.chunking, target.parts)


def _as_made(_platform: Platform, plan: Plan) -> Plan:
    return plan


def preview_series(platform: Platform, manifest: RunManifest, check: Check = _as_made) -> list[Plan]:
    """Plan a manifest, or each of its steps where it is progressive, without recording anything; `check` as of `plan_run`."""
    steps = _steps(platform, manifest)
    return [check(platform, preview(platform, step, whole=manifest)) for step in steps]


def plan_series(platform: Platform, manifest: RunManifest, check: Check = _as_made) -> list[RunRecord]:
    """Plan a manifest and record its plan, or those of its steps where it is progressive: all of them or none.

    `check` as of `plan_run`.

    Raises:
        Refused: if one of them cannot be planned.
    """
    steps = _steps(platform, manifest)
    if len(steps) > 1:  # look at all of them before the first is recorded
        platform.sinks.check_grants(manifest)
        for step in steps:
            if platform.ledger.existing(step) is None:
                check(platform, preview(platform, step, whole=manifest))
    return [plan_run(platform, step, check, manifest) for step in steps]


def plan_run(
    platform: Platform, manifest: RunManifest, check: Check = _as_made, whole: RunManifest | None = None
) -> RunRecord:
    """Plan a manifest and record the plan.

    An approved run keeps the plan that was approved: the same manifest again returns it. A plan that can be made is handed to
    `check` before it is recorded, which refuses it or returns what is recorded (`staging.checked_output`). `whole` as of `preview`.

    Raises:
        Refused: if the manifest, the plan, its sinks or a changed text of an approved run is refused.
    """
    about = {"target": manifest.target.table, "mode": manifest.execution_mode.value, "kind": manifest.kind.value}
    with traces.span("plan", manifest.run_id, **about):
        existing = platform.ledger.existing(manifest)
        if existing is None:
            return _planned(platform, manifest, check, whole)
        pinned_snapshots.keep(platform, pins_of_run(platform, existing))
        return existing


def _planned(platform: Platform, manifest: RunManifest, check: Check, whole: RunManifest | None) -> RunRecord:
    try:
        plan = preview(platform, manifest, keep=True, whole=whole)
        with traces.span("plan.checks"):
            plan = check(platform, plan)
    except Refused as refusal:
        with logs.bound(run_id=manifest.run_id, target=manifest.target.table, mode=manifest.execution_mode.value):
            text = f"planning refused, for {len(refusal.problems)} reason(s)"
            rules = [one.rule for one in refusal.problems]
            logs.event(_log, logging.WARNING, "planning_refused", text, told=True, rules=rules)
        raise
    traces.note(chunks=len(plan.chunks), rows=plan.reads.rows, bytes=plan.reads.bytes, gates=len(plan.gates))
    faults.reach("planning.resolved")
    record = platform.ledger.record_plan(manifest, plan, operator())
    faults.reach("planning.recorded")
    pinned_snapshots.keep(platform, pins_of([plan]))  # after it is on record, as `released_pins` relies on
    faults.reach("planning.pinned")
    with logs.of_run(record.plan):
        reads = {"rows": plan.reads.rows, "bytes": plan.reads.bytes, "files": plan.reads.files}
        text = f"planned {len(plan.chunks)} chunk(s) of {plan.target}, {plan.scope}"
        logs.event(
            _log, logging.INFO, "planned", text, plan_hash=record.plan_hash, chunks=len(plan.chunks), reads=reads
        )
    return record
