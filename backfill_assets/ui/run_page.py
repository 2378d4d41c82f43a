"""The page of one run: where it stands and why, who decided what, its gates, chunks, attempts and evidence.

Put here a part of the page. What comes next is in `next_step`, what gates and diffs found in `gate_parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from urllib.parse import quote, urlencode

from starlette.responses import Response

from backfill_assets.defs.addresses import run_path
from backfill_assets.defs.launched_by import RUN_TAG
from backfill_assets.defs.starting import Starting
from backfill_assets.evidence.refusals import in_words, refusals_of
from backfill_assets.evidence.run_costs import Costs, costs_of
from backfill_assets.review.wording import failed_chunks, of_kind
from backfill_assets.ui.afterwards import ended_by
from backfill_assets.ui.evidence_files import REPORT, files_of
from backfill_assets.ui.gate_parts import gates_table, recorded_diff_parts, rows_that_disagree
from backfill_assets.ui.html_parts import asset_address, evidence_link, page, state_html, table_html, time_html
from backfill_assets.ui.next_step import is_under_way, launched_html, next_step
from backfill_assets.ui.topic_parts import topic_parts
from manifests.errors import Refused
from manifests.lifecycle import COMPUTABLE, ENDED, RunState
from manifests.model import Mode
from manifests.plan import Plan
from manifests.stages import Stage
from resources.evidence.store import EvidenceStore
from resources.ledger.facade import ApprovalRecord, AttemptRecord, ChunkState, Ledger, RunRecord, Verdict, chunks_of


def run_page(
    ledger: Ledger,
    evidence: EvidenceStore,
    record: RunRecord,
    starting: Sequence[Starting],
    stages_of: Callable[[Plan], Sequence[Stage]] | None,
    switched_off: Callable[[str], bool] = lambda _: False,
) -> Response:
    """Return the page of a run."""
    parts = _run_parts(ledger, evidence, record, starting, stages_of, switched_off)
    return page(record.run_id, parts, again=is_under_way(ledger, record, starting, switched_off))


def _run_parts(
    ledger: Ledger,
    evidence: EvidenceStore,
    record: RunRecord,
    starting: Sequence[Starting],
    stages_of: Callable[[Plan], Sequence[Stage]] | None,
    switched_off: Callable[[str], bool],
) -> list[str]:
    record = ledger.with_plan(record)
    run_id = record.run_id
    chunks, verdicts = ledger.chunks(run_id), ledger.verdicts(run_id)
    files = files_of(evidence, run_id)
    parts = [
        *_head(record, files),
        *map(launched_html, starting),
        next_step(ledger, record, chunks, verdicts, starting, switched_off),
        *_plan_parts(record, stages_of, costs_of(ledger, record), ledger.approval_of(record)),
        "<h2>Who and when</h2>",
        table_html(("what", "by", "at", "why"), _who(ledger, record, refusals_of(ledger, evidence, run_id))),
    ]
    in_order = _in_order(record, verdicts)
    passed = sum(verdict.passed for verdict in verdicts if verdict.chunk)
    if verdicts:
        gates = gates_table(record.target, in_order, ledger.accepted_changes(run_id))
        told = f"{passed} of {len(chunks)} chunks have passed their rules"
        parts += [f"<h2 id=gates>Gates</h2><p>{told}.</p>", gates]
    parts += rows_that_disagree(in_order)
    parts += recorded_diff_parts(ledger, evidence, record, files)
    parts += ["<h2>Chunks</h2>", "<div class=grid>", *(_chunk(chunk.chunk, chunk.state) for chunk in chunks), "</div>"]
    parts += _attempts(ledger.attempts(run_id))
    parts += topic_parts(ledger.topics.of_run(run_id))
    parts.append("<h2 id=evidence>Evidence</h2>")
    if files:
        parts.append("<ul>" + "".join(f"<li>{evidence_link(run_id, name, name)}" for name in files) + "</ul>")
    else:
        parts.append("<p>The bundle is sealed just before the publication: there is none yet.</p>")
    return parts


def _head(record: RunRecord, files: Sequence[str]) -> list[str]:
    """Return what stands first: the state, what was asked for, and why it was refused or failed."""
    run_id, plan, why = record.run_id, record.plan, record.state_reason
    links = [f"<a href='{run_path(run_id)}/{name}.json'>{name}</a>" for name in ("manifest", "plan")]
    links += [evidence_link(run_id, name, "report") for name in files if name.endswith(REPORT)]
    days = plan.scope
    return [
        f"<p>{state_html(record.state)} · {escape(of_kind(record))} of {escape(record.target)}, {days} · {' · '.join(links)}</p>",
        f"<p>In Dagster: {' · '.join(_in_dagster(record))}</p>",
        f"<p>{escape(record.manifest.reason)}</p>",
        f"<p class=why><b>Why it is {escape(record.state)}:</b> {escape(why)}</p>"
        if why and record.state in {RunState.FAILED, *ENDED}
        else "",
    ]


def _plan_parts(
    record: RunRecord,
    stages_of: Callable[[Plan], Sequence[Stage]] | None,
    took: Costs | None,
    approval: ApprovalRecord | None,
) -> list[str]:
    plan = record.plan
    rows = [
        ("planned", f"{time_html(record.created_at)}; last change {time_html(record.updated_at)}"),
        ("transform", f"{escape(plan.transform)} {escape(plan.transform_version)}{_output(plan)}"),
        ("reads", f"{escape(plan.source)}, snapshot <code>{plan.source_snapshot_id}</code>"),
        *((f"made by run {escape(one.run_id)}", escape(", ".join(one.chunks))) for one in plan.upstream),
        *((f"reads {escape(one.table)}", escape(one.describe())) for one in plan.sources),
        *((escape(name), escape(said)) for name, said in plan.of_logs()),
        *(
            [("schemas", ", ".join(f"{one.schema_id} of {escape(one.table)}" for one in plan.schemas))]
            if plan.schemas
            else []
        ),
        *((name, escape(said)) for name, said in plan.of_sizes()),
        *(() if plan.costs is None else ((name, escape(said)) for name, said in plan.costs.describe())),
        *(() if took is None else (("took", escape(str(took))),)),
        *(
            (("circuit breaker", "<br>".join(map(escape, plan.breaker.describe()))),)
            if plan.breaker is not None
            else ()
        ),
        *((("limits", "<br>".join(map(escape, plan.pace.describe()))),) if plan.pace is not None else ()),
        *_dry_run(plan, approval),
        ("plan", f"<code>{record.plan_hash}</code>"),
        *([] if stages_of is None else [("stages", _stages(stages_of, plan))]),
    ]
    return ["<h2>What</h2>", table_html(("", ""), rows)]


def _dry_run(plan: Plan, approval: ApprovalRecord | None) -> list[tuple[str, str]]:
    """Return why a run needs a dry run before it is approved, and the one that it was approved on."""
    required = [] if plan.dry_run is None else [("dry run", escape(plan.dry_run.describe()))]
    if approval is None or (link := approval.rests_on) is None:
        return required
    own = f"<a href='{run_path(link.run_id)}'>{escape(link.run_id)}</a>"
    return [*required, ("approved on dry run", f"{own}: {escape(link.describe())}")]


def _output(plan: Plan) -> str:
    if plan.mode is Mode.RECONCILIATION:
        return ""
    return "; its output was checked when planned" if plan.output_checked else "; its output is checked at staging only"


def _in_order(record: RunRecord, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the chunks that failed, and then the verdicts on the run, in the order of the plan's gates."""
    run_level = [verdict for verdict in verdicts if not verdict.chunk]
    order = {gate: number for number, gate in enumerate(record.plan.gates)}
    run_level.sort(key=lambda verdict: (order.get(verdict.gate, len(order)), verdict.gate))
    return [*failed_chunks(verdicts), *run_level]


def _attempts(attempts: Sequence[AttemptRecord]) -> list[str]:
    if not attempts:
        return []
    rows = [
        (
            str(one.attempt),
            escape(str(one.state).lower()),
            str(len(chunks_of(one))),
            time_html(one.started_at),
            _took(one),
            f"<a href='/runs/{escape(one.dagster_run_id)}'>{escape(one.dagster_run_id[:8])}</a>"
            if one.dagster_run_id
            else "",
            escape(one.error.partition("\n")[0][:300]),
        )
        for one in attempts
    ]
    head = ("attempt", "state", "chunks", "started", "took", "Dagster run", "error")
    return ["<h2>Attempts</h2>", table_html(head, rows)]


def _took(attempt: AttemptRecord) -> str:
    if attempt.ended_at is None:
        return ""
    return "not known" if attempt.seconds is None else f"{attempt.seconds:.1f} s"


def _in_dagster(record: RunRecord) -> list[str]:
    """Return the ways to what Dagster has of a run: its asset and the launch there, checks, launches, publication."""
    run_id, target = record.run_id, record.target
    job = f"/locations/backfill_assets/jobs/stage_{quote(target.replace('.', '_'))}/partitions"
    launch = [f"<a href='{job}'>launch</a>"] if record.state in COMPUTABLE else []
    # without the view Dagster shows a range of chunks as one backfill, and none of the runs within
    tag = escape(f"/runs?{urlencode({'q[0]': f'tag:{RUN_TAG}={run_id}', 'view': 'runs'})}")
    return [
        f"<a href='{asset_address(target)}'>asset</a>",
        *launch,
        f"<a href='{asset_address(target, view='checks')}'>checks</a>",
        f"<a href='{tag}'>its Dagster runs</a>",
        f"<a href='{asset_address(f'{target}_published', view='events', partition=run_id)}'>what readers see</a>",
    ]


def _who(ledger: Ledger, record: RunRecord, refusals: Mapping[int, str]) -> list[tuple[str, str, str, str]]:
    """Return who has asked for, decided and stopped what, and each change of what readers see, in order."""
    rows = [(record.created_at, "requested", record.manifest.requested_by, "")]
    for one in ledger.decisions(record.run_id):
        refused = in_words(refusals.get(one.approval or 0))
        why = "; ".join(text for text in (one.comment, refused) if text)
        rows.append((one.at, f"decided: {one.decision.lower()}", one.by, why))
    for stop in ledger.stops.of_run(record.run_id):
        through = f"through {stop.through}" if stop.through else ""
        rows.append(
            (stop.at, stop.what, stop.stopped_by, ". ".join(text for text in (stop.reason, through, stop.note) if text))
        )
        if stop.resumed_at is not None:
            ended = "resumed" if stop.is_pause else "launched again"
            rows.append((stop.resumed_at, ended, stop.resumed_by or "", stop.resume_reason))
    for entry in ledger.publications(record.run_id):
        if entry.has_landed:
            said = f"{entry.action} done: snapshot {entry.snapshot_id}"
            rows.append((entry.landed_at, said, entry.actor, ""))
    if (end := ended_by(ledger, record)) is not None:
        rows.append((end.at, end.to_state.lower(), end.actor, end.reason))
    rows.sort(key=lambda row: row[0])
    return [(escape(what), escape(by), time_html(at), escape(why)) for at, what, by, why in rows]


def _stages(stages_of: Callable[[Plan], Sequence[Stage]], plan: Plan) -> str:
    """Return the stages of a run in words, as its plan was shown to whoever approved it."""
    try:
        stages = stages_of(plan)
    except Refused as refusal:  # its target is declared no more
        return escape(refusal.problems[0].what)
    return "<br>".join(f"{number}. {escape(stage.describe())}" for number, stage in enumerate(stages, start=1))


def _chunk(key: str, state: ChunkState) -> str:
    style = {ChunkState.PASSED: "good", ChunkState.FAILED: "bad", ChunkState.PLANNED: "dim"}.get(state, "")
    return f"<span class='{style}' title='{state}'>{escape(key)} {escape(str(state).lower())}</span>"
