"""The pages beside Dagster's under `/backfill`: where a run stands and why, and its evidence as files to open.

Put here what people read about a run in a browser, from the ledger and the evidence folder. Read only, nothing that
belongs to Dagster's own pages, and no decision about who may see it: that is the guard's.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from backfill_assets.defs.addresses import PREFIX, run_path
from backfill_assets.defs.launched_by import RUN_TAG
from backfill_assets.defs.starting import Starting
from backfill_assets.gates.exception_words import worded
from backfill_assets.review.wording import failed_chunks, of_kind
from manifests.chunks import in_words
from manifests.errors import EnvironmentRefused, Refused
from manifests.lifecycle import COMPUTABLE, RunState
from manifests.model import MAX_RUN_ID
from manifests.planner import Plan
from manifests.stages import Stage
from resources.evidence.store import EvidenceStore, sha256_of_file
from resources.files.kept_files import is_text_name, read_json
from resources.ledger.facade import RAISED, ChunkRecord, ChunkState, Ledger, RunRecord, Verdict, chunks_of

REPORT = "report.html"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
}
# a report may run its own scripts, but as a page of nowhere: they cannot ask this server for anything, nor load anything
_SANDBOX = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "sandbox allow-scripts allow-popups; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'",
}
_TYPES = {".json": "application/json", ".html": "text/html", ".png": "image/png", ".svg": "image/svg+xml"}
_STYLE = """
:root{color-scheme:light dark;--line:#8884;--good:#1a7f37;--bad:#c62828;--dim:#888}
body{font:15px/1.45 system-ui,sans-serif;margin:1.5rem auto;max-width:70rem;padding:0 1rem}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}a{color:inherit}
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid var(--line);padding:.3rem .6rem .3rem 0;
text-align:left;vertical-align:top}th{font-weight:600}.n{text-align:right;font-variant-numeric:tabular-nums}
.good{color:var(--good)}.bad{color:var(--bad)}.dim{color:var(--dim)}code{font-size:.9em;overflow-wrap:anywhere}
.why{border-left:4px solid var(--bad);padding:.4rem .8rem;margin:.8rem 0}
.grid{display:flex;flex-wrap:wrap;gap:3px}.grid span{border:1px solid var(--line);padding:.1rem .35rem;font-size:.8rem}
"""
_NEXT = {
    RunState.DRAFT: "plan it: <code>backfill plan</code>",
    RunState.PLANNED: "somebody other than the requester approves or rejects it",
    RunState.APPROVED: "launch its chunks on the asset in Dagster, or <code>backfill run</code>",
    RunState.RUNNING: "its chunks are being computed and gated",
    RunState.STAGED: "its run-level gates judge it, in the launch that staged it; if that has ended, launch it again: nothing "
    "is computed again, and the gates judge",
}


_FILTERS = {"state": "States", "target": "Tables"}
_VALUE_OF: Mapping[str, Callable[[RunRecord], str]] = {
    "state": lambda record: record.state.value,
    "target": lambda record: record.target,
}
_AGAIN_SECONDS = 10
_SHOWN_ROWS = 20
_DIFF_OF_CHUNK = ("chunk", "added", "removed", "changed", "unchanged")
_DIFF_OF_COLUMN = ("column", "changed", "before", "after", "delta")


def _nothing_starts() -> Mapping[str, Sequence[Starting]]:
    return {}


def make_pages(
    ledger: Ledger,
    evidence: EvidenceStore,
    report_of: Callable[[str], str] | None = None,
    starting: Callable[[], Mapping[str, Sequence[Starting]]] = _nothing_starts,
    stages_of: Callable[[Plan], Sequence[Stage]] | None = None,
) -> Starlette:
    """Make the application of the pages; its paths are absolute.

    A report is made anew by `report_of`, whatever lies beside the bundle; without it, it is served as it lies there.
    `starting` says what Dagster was asked to do for runs and has not ended (`starting.starting`). `stages_of` returns what a
    plan is executed by; without it, a run's page shows no stages.
    """

    async def index(request: Request) -> Response:
        return await _in_thread(lambda: _index(ledger, starting(), request.query_params))

    async def one(request: Request) -> Response:
        run_id = request.path_params["run_id"]

        def make() -> Response:
            record = _found(ledger, run_id)
            return (
                _unknown(run_id)
                if record is None
                else _run_page(ledger, evidence, record, starting().get(run_id, ()), stages_of)
            )

        return await _in_thread(make)

    async def text(request: Request) -> Response:
        run_id, name = request.path_params["run_id"], request.path_params["name"]

        def make() -> Response:
            record = _found(ledger, run_id)
            if record is None or name not in {"manifest", "plan"}:
                return _unknown(run_id)
            found = record.manifest.canonical() if name == "manifest" else ledger.with_plan(record).plan.to_json()
            return JSONResponse(json.loads(found), headers={"Cache-Control": "no-store"})

        return await _in_thread(make)

    async def file(request: Request) -> Response:
        run_id, path = request.path_params["run_id"], request.path_params["path"]
        if report_of is not None and path == REPORT:
            return await _in_thread(lambda: _report(evidence, report_of, run_id))
        return await _in_thread(lambda: _evidence_file(evidence, run_id, path))

    async def home(_request: Request) -> Response:
        return RedirectResponse(PREFIX)

    return Starlette(
        routes=[
            Route(PREFIX, index),
            Route(f"{PREFIX}/", home),
            Route(f"{PREFIX}/{{run_id}}", one),
            Route(f"{PREFIX}/{{run_id}}/{{name}}.json", text),
            Route(f"{PREFIX}/{{run_id}}/evidence/{{path:path}}", file),
        ]
    )


def _found(ledger: Ledger, run_id: str) -> RunRecord | None:
    """Return a run; what is no run's id is not looked for, as not every database takes every text."""
    return ledger.find(run_id) if len(run_id) <= MAX_RUN_ID and run_id.isprintable() else None


async def _in_thread(make: Callable[[], Response]) -> Response:
    return await run_in_threadpool(make)


def _unknown(run_id: str) -> Response:
    found = _page("Not found", [f"<p>The ledger knows no run <code>{escape(run_id[:100])}</code>.</p>"])
    found.status_code = 404
    return found


def _page(title: str, parts: Iterable[str], *, again: bool = False) -> HTMLResponse:
    """Return a page; `again` has the browser ask for it again every few seconds."""
    refresh = f"<meta http-equiv=refresh content={_AGAIN_SECONDS}>" if again else ""
    return HTMLResponse(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"{refresh}<title>{escape(title)}</title><style>{_STYLE}</style>"
        f"<p><a href=/>Dagster</a> · <a href={PREFIX}>all runs</a></p><h1>{escape(title)}</h1>{''.join(parts)}</html>",
        headers=_HEADERS,
    )


def _index(ledger: Ledger, starting: Mapping[str, Sequence[Starting]], query: Mapping[str, str]) -> Response:
    records, only = ledger.runs(), {name: query[name] for name in _FILTERS if name in query}
    under_way = any(_is_under_way(ledger, one, starting.get(one.run_id, ())) for one in records)
    return _page("Backfill runs", _runs_table(ledger, records, starting, only), again=under_way)


def _run_page(
    ledger: Ledger,
    evidence: EvidenceStore,
    record: RunRecord,
    starting: Sequence[Starting],
    stages_of: Callable[[Plan], Sequence[Stage]] | None,
) -> Response:
    parts = _run_parts(ledger, evidence, record, starting, stages_of)
    return _page(record.run_id, parts, again=_is_under_way(ledger, record, starting))


def _is_under_way(ledger: Ledger, record: RunRecord, starting: Sequence[Starting]) -> bool:
    """Return whether a run's page says something else in a moment, without a person's doing."""
    manifest = record.manifest
    by_sensor = manifest.execution_mode.publishes and not manifest.safety.requires_manual_publish
    is_busy = record.state is RunState.RUNNING or (record.state is RunState.VALIDATED and by_sensor)
    return bool(starting) or (is_busy and ledger.launches.waits(record) is None)


def _choices(records: Sequence[RunRecord], only: Mapping[str, str]) -> str:
    """Return the links that choose among the runs: by state and by table, with how many each shows."""
    lines = []
    for name, title in _FILTERS.items():
        rest = {key: value for key, value in only.items() if key != name}
        counts = Counter(_VALUE_OF[name](one) for one in records if _is_chosen(one, rest))
        chosen = only.get(name)
        links = [_choice("all", counts.total(), rest, chosen=chosen is None)]
        links += [
            _choice(value, counts[value], {**rest, name: value}, chosen=value == chosen)
            for value in sorted({*counts, *filter(None, [chosen])})
        ]
        lines.append(f"<p>{title}: {' · '.join(links)}</p>")
    return "".join(lines)


def _choice(text: str, count: int, query: Mapping[str, str], *, chosen: bool) -> str:
    shown = f"{escape(text)} ({count})"
    address = escape(PREFIX + (f"?{urlencode(query)}" if query else ""))
    return f"<b>{shown}</b>" if chosen else f"<a href='{address}'>{shown}</a>"


def _is_chosen(record: RunRecord, only: Mapping[str, str]) -> bool:
    return all(_VALUE_OF[name](record) == value for name, value in only.items())


def _runs_table(
    ledger: Ledger,
    records: Sequence[RunRecord],
    starting: Mapping[str, Sequence[Starting]],
    only: Mapping[str, str],
) -> list[str]:
    waiting = ledger.launches.all_waiting()

    def waits(run_id: str) -> str:
        if launched := [one for one in starting.get(run_id, ()) if not one.publishes]:
            return f" launched, {escape(launched[0].doing)}"
        if run_id not in waiting:
            return ""
        stopped = "" if waiting[run_id].stop is None else "stopped, "
        return f" <span class=bad>{stopped}waits for a launch</span>"

    rows = [
        (
            f"<a href='{run_path(record.run_id)}'>{escape(record.run_id)}</a>",
            _state(record.state) + waits(record.run_id),
            escape(of_kind(record)),
            f"<a href='{_asset(record.target)}'>{escape(record.target)}</a>",
            f"{record.manifest.target.publish_range.start} to {record.manifest.target.publish_range.end}",
            escape(record.manifest.requested_by),
            _time(record.created_at),
            _time(record.updated_at),
        )
        for record in sorted(records, key=lambda one: one.updated_at, reverse=True)
        if _is_chosen(record, only)
    ]
    head = ("run", "state", "kind", "target", "days", "requested by", "planned", "last change")
    if not records:
        return ["<p>No run yet.</p>"]
    return [_choices(records, only), _table(head, rows) if rows else "<p>No such run.</p>"]


def _run_parts(
    ledger: Ledger,
    evidence: EvidenceStore,
    record: RunRecord,
    starting: Sequence[Starting],
    stages_of: Callable[[Plan], Sequence[Stage]] | None,
) -> list[str]:
    record = ledger.with_plan(record)
    run_id, manifest, plan = record.run_id, record.manifest, record.plan
    chunks, verdicts = ledger.chunks(run_id), ledger.verdicts(run_id)
    links = [f"<a href='{run_path(run_id)}/{name}.json'>{name}</a>" for name in ("manifest", "plan")]
    files = _files(evidence, run_id)
    links += [_link(run_id, name, "report") for name in files if name.endswith(REPORT)]
    why, days = record.state_reason, f"{plan.publish_range.start} to {plan.publish_range.end}"
    parts = [
        f"<p>{_state(record.state)} · {escape(of_kind(record))} of {escape(record.target)}, {days} · {' · '.join(links)}</p>",
        f"<p>In Dagster: {' · '.join(_in_dagster(record))}</p>",
        f"<p>{escape(manifest.reason)}</p>",
        f"<p class=why><b>Why it is {escape(record.state)}:</b> {escape(why)}</p>"
        if why and record.state in {RunState.FAILED, RunState.REJECTED}
        else "",
        *map(_launched, starting),
        _next(ledger, record, chunks, verdicts, starting),
        "<h2>What</h2>",
        _table(
            ("", ""),
            [
                ("planned", f"{_time(record.created_at)}; last change {_time(record.updated_at)}"),
                ("transform", f"{escape(plan.transform)} {escape(plan.transform_version)}"),
                ("reads", f"{escape(plan.source)}, snapshot <code>{plan.source_snapshot_id}</code>"),
                ("plan", f"<code>{record.plan_hash}</code>"),
                *([] if stages_of is None else [("stages", _stages(stages_of, plan))]),
            ],
        ),
        "<h2>Who and when</h2>",
        _table(("what", "by", "at", "why"), _who(ledger, record)),
    ]
    run_level = [verdict for verdict in verdicts if not verdict.chunk]
    order = {gate: number for number, gate in enumerate(plan.gates)}
    run_level.sort(key=lambda verdict: (order.get(verdict.gate, len(order)), verdict.gate))
    in_order = [*failed_chunks(verdicts), *run_level]
    passed = sum(verdict.passed for verdict in verdicts if verdict.chunk)
    if verdicts:
        told = f"{passed} of {len(chunks)} chunks have passed their rules"
        parts += [f"<h2 id=gates>Gates</h2><p>{told}.</p>", _gates(record.target, in_order)]
    parts += _disagreeing(in_order)
    parts += _diff(ledger, evidence, run_id, files)
    parts += ["<h2>Chunks</h2>", "<div class=grid>", *(_chunk(chunk.chunk, chunk.state) for chunk in chunks), "</div>"]
    attempts = ledger.attempts(run_id)
    if attempts:
        rows = [
            (
                str(one.attempt),
                escape(str(one.state).lower()),
                str(len(chunks_of(one))),
                _time(one.started_at),
                f"{(one.ended_at - one.started_at).total_seconds():.1f} s" if one.ended_at else "",
                f"<a href='/runs/{escape(one.dagster_run_id)}'>{escape(one.dagster_run_id[:8])}</a>"
                if one.dagster_run_id
                else "",
                escape(one.error.partition("\n")[0][:300]),
            )
            for one in attempts
        ]
        head = ("attempt", "state", "chunks", "started", "took", "Dagster run", "error")
        parts += ["<h2>Attempts</h2>", _table(head, rows)]
    parts.append("<h2 id=evidence>Evidence</h2>")
    if files:
        parts.append("<ul>" + "".join(f"<li>{_link(run_id, name, name)}" for name in files) + "</ul>")
    else:
        parts.append("<p>The bundle is sealed just before the publication: there is none yet.</p>")
    return parts


def _asset(table: str, **query: str) -> str:
    """Return the address of a table's asset in Dagster."""
    path = "/assets/" + "/".join(quote(part, safe="") for part in table.split("."))
    return escape(path + (f"?{urlencode(query)}" if query else ""))


def _in_dagster(record: RunRecord) -> list[str]:
    """Return the ways to what Dagster has of a run: its asset and the launch there, checks, launches, publication."""
    run_id, target = record.run_id, record.target
    job = f"/locations/backfill_assets/jobs/stage_{quote(target.replace('.', '_'))}/partitions"
    launch = [f"<a href='{job}'>launch</a>"] if record.state in COMPUTABLE else []
    # without the view Dagster shows a range of chunks as one backfill, and none of the runs within
    tag = escape(f"/runs?{urlencode({'q[0]': f'tag:{RUN_TAG}={run_id}', 'view': 'runs'})}")
    return [
        f"<a href='{_asset(target)}'>asset</a>",
        *launch,
        f"<a href='{_asset(target, view='checks')}'>checks</a>",
        f"<a href='{tag}'>its Dagster runs</a>",
        f"<a href='{_asset(f'{target}_published', view='events', partition=run_id)}'>what readers see</a>",
    ]


def _who(ledger: Ledger, record: RunRecord) -> list[tuple[str, str, str, str]]:
    """Return who has asked for, decided and stopped what, and each change of what readers see, in order."""
    rows = [(record.created_at, "requested", record.manifest.requested_by, "")]
    rows += [
        (one.at, f"decided: {str(one.decision).lower()}", one.decided_by, one.comment)
        for one in ledger.approvals(record.run_id)
    ]
    for stop in ledger.stops.of_run(record.run_id):
        through = f"through {stop.through}" if stop.through else ""
        rows.append(
            (stop.at, "stopped", stop.stopped_by, ". ".join(text for text in (stop.reason, through, stop.note) if text))
        )
        if stop.resumed_at is not None:
            rows.append((stop.resumed_at, "launched again", stop.resumed_by or "", ""))
    for entry in ledger.publications(record.run_id):
        if entry.has_landed:
            said = f"{entry.action} done: snapshot {entry.snapshot_id}"
            rows.append((entry.landed_at, said, entry.actor, ""))
    rows.sort(key=lambda row: row[0])
    return [(escape(what), escape(by), _time(at), escape(why)) for at, what, by, why in rows]


def _time(at: datetime) -> str:
    return f"<time>{at:%Y-%m-%d %H:%M:%S}</time> UTC"


def _launched(one: Starting) -> str:
    """Say of what Dagster was asked to do that it was, from its first moment on."""
    what = "Its publication was asked for" if one.publishes else "Launched"
    link = f"<a href='{escape(one.address)}'>in Dagster</a>"
    by = f" by {escape(one.by)}" if one.by else ""
    return f"<p><b>{what}</b> {_time(one.at)}{by} {link}: {escape(one.doing)}.</p>"


def _next(
    ledger: Ledger,
    record: RunRecord,
    chunks: Sequence[ChunkRecord],
    verdicts: Sequence[Verdict],
    starting: Sequence[Starting],
) -> str:
    """Say what comes next: a launch where one is waited for and none is on its way, else what the state says."""
    waiting = ledger.launches.waits(record, chunks=chunks)
    launched = any(not one.publishes for one in starting)
    if launched and (waiting is not None or record.state in {RunState.APPROVED, RunState.FAILED}):
        stop = None if waiting is None else waiting.stop
        stopped = "" if stop is None else f"<p class=why><b>Stopped:</b> {escape(str(stop))}.</p>"
        after = "" if stop is None else "; what was asked for before the stop does not end it"
        return f"{stopped}<p><b>Next:</b> the launch in Dagster computes its chunks and has them gated{after}.</p>"
    if waiting is None:
        what = _NEXT.get(record.state, "")
        if record.state is RunState.VALIDATED:
            what = _when_validated(record)
        elif record.state is RunState.STAGED and (asking := ledger.asking(record.run_id)):
            gates = " and ".join(escape(one.gate) for one in asking)
            what = f"an owner of the table accepts what {gates} found: <code>backfill accept-change</code>, or it is rejected"
        elif record.state is RunState.FAILED and any(one.details.get(RAISED) for one in verdicts if not one.chunk):
            again = f"<code>backfill run {escape(record.run_id)}</code>"
            what = f"a gate could not judge; if the cause was outside it, launch again ({again}): nothing is computed again, and "
            what += (
                "the gates judge. Else correct the gate: the corrected code is another one, and the change a new run"
            )
        elif record.state is RunState.FAILED and all(one.passed for one in verdicts):
            again = f"<code>backfill run {escape(record.run_id)}</code>"
            what = f"if the cause was outside the code and its input, launch it again ({again}): what is staged is not computed "
            what += "again. Else correct them: the change is then a new run with a manifest of its own"
        elif record.state is RunState.FAILED:
            rows, end = (f"<code>backfill {one} {escape(record.run_id)}</code>" for one in ("exceptions", "reject"))
            what = f"see the gates below and the rows that they found ({rows}). What is computed stays; the corrected change is a "
            what += f"new run with a manifest of its own, and {end} ends this one"
        return f"<p><b>Next:</b> {what}.</p>" if what else ""
    stopped = "" if waiting.stop is None else f"<p class=why><b>Stopped:</b> {escape(str(waiting.stop))}.</p>"
    what = f"its chunks {in_words(waiting.chunks)}" if waiting.chunks else "its chunks"
    command = f"<code>backfill {'run' if waiting.stop is None else 'resume'} {escape(record.run_id)}</code>"
    return f"{stopped}<p><b>Next:</b> it waits for a launch: launch {what} in Dagster, or {command}.</p>"


def _stages(stages_of: Callable[[Plan], Sequence[Stage]], plan: Plan) -> str:
    """Return the stages of a run in words, as its plan was shown to whoever approved it."""
    try:
        stages = stages_of(plan)
    except Refused as refusal:  # its target is declared no more
        return escape(refusal.problems[0].what)
    return "<br>".join(f"{number}. {escape(stage.describe())}" for number, stage in enumerate(stages, start=1))


def _when_validated(record: RunRecord) -> str:
    """Say what becomes of a run that has passed its gates."""
    if not record.manifest.execution_mode.publishes:
        return f"nothing: its mode is {record.mode}, and it is never published; what it has found is below"
    if record.plan.manual_publish:
        return f"somebody publishes it: <code>backfill publish {escape(record.run_id)}</code>, or the job publish_run in Dagster"
    return "the sensor publishes it within seconds, unless a freeze holds it"


def _gates(target: str, verdicts: Sequence[Verdict]) -> str:
    rows = [
        (
            f"<a href='{_asset(target, view='checks', checkDetail=verdict.gate)}'>{escape(verdict.gate)}</a>",
            escape(verdict.chunk),
            "<span class=good>passed</span>" if verdict.passed else "<b class=bad>not passed</b>",
            escape(verdict.summary) + (f" <a href='#{_anchor(verdict)}'>rows</a>" if _rows_of(verdict) else ""),
            "" if verdict.at is None else _time(verdict.at),
        )
        for verdict in verdicts
    ]
    return _table(("gate", "chunk", "verdict", "found", "judged"), rows)


def _anchor(verdict: Verdict) -> str:
    return escape(f"rows-{verdict.gate}{verdict.chunk}")


def _rows_of(verdict: Verdict) -> list[tuple[str, Sequence[Mapping[str, Any]]]]:
    """Return what a verdict shows of the rows that made it: titles and rows."""
    details = verdict.details
    found = [(f"{one['rule']}: {one['count']:,} row(s)", one["sample"]) for one in details.get("violations", ())]
    found += [("failing slices", details.get("slices", ())), ("rows that disagree", details.get("sample", ()))]
    return [(title, rows) for title, rows in found if rows]


def _disagreeing(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the rows that verdicts show, and how all of them are seen."""
    parts = []
    for verdict in verdicts:
        for number, (title, rows) in enumerate(_rows_of(verdict)):
            at = f" id='{_anchor(verdict)}'" if not number else ""
            parts.append(f"<h3{at}>{escape(f'{verdict.gate} {verdict.chunk}'.strip())}: {escape(title)}</h3>")
            parts.append(_rows_table(rows[:_SHOWN_ROWS]))
        if (kept := verdict.details.get("exceptions")) and isinstance(kept, Mapping):
            parts.append(f"<p>{kept['rows']:,} row(s) are kept: <code>{escape(str(kept['command']))}</code></p>")
    return ["<h2 id=rows>Rows that disagree</h2>", *parts] if parts else []


def _rows_table(rows: Sequence[Mapping[str, Any]]) -> str:
    rows = [worded(row) for row in rows]
    names = list(rows[0])
    return _table(names, [[escape(_said(row.get(name))) for name in names] for row in rows])


def _said(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_said(one)}" for name, one in value.items())
    return "" if value is None else str(value)


def _diff(ledger: Ledger, evidence: EvidenceStore, run_id: str, files: Sequence[str]) -> list[str]:
    """Return the newest recorded diff of a run that a link vouches for: counts by chunk and by column, and its file."""
    numbers = {name: number for name in files if (number := _diff_number(name))}
    if not numbers:
        return []
    newest = max(numbers, key=lambda name: numbers[name])
    with ledger.reading() as moment:
        _, follows = moment.first_of(run_id)
    try:
        linked, folder = evidence.kept(run_id, since=follows), evidence.folder / run_id
        vouched = [name for name in numbers if (Path(name).stem, sha256_of_file(folder / name)) in linked]
        if not vouched:
            what = f"no link of the chain vouches for {_link(run_id, newest, newest)}: see <code>backfill verify</code>"
            return [f"<h2 id=diff>What changed</h2><p class=bad>{what}.</p>"]
        newest = max(vouched, key=lambda name: numbers[name])
        found = read_json(folder / newest)
        chunks = [[_said(row[name]) for name in _DIFF_OF_CHUNK] for row in found["chunks"]]
        columns = [[_said(row[name]) for name in _DIFF_OF_COLUMN] for row in found["columns"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, EnvironmentRefused):
        return [f"<h2 id=diff>What changed</h2><p class=bad>{_link(run_id, newest, newest)} cannot be read.</p>"]
    return [
        f"<h2 id=diff>What changed</h2><p>{_link(run_id, newest, 'the whole diff')}</p>",
        _table(_DIFF_OF_CHUNK, [map(escape, row) for row in chunks]),
        _table(_DIFF_OF_COLUMN, [map(escape, row) for row in columns]),
    ]


def _diff_number(name: str) -> int:
    """Return which diff of its run a file is, from 1; 0 for another file."""
    found = re.fullmatch(r"records/diff(?:-(\d+))?\.json", name)
    return 0 if found is None else int(found[1] or 1)


def _chunk(key: str, state: ChunkState) -> str:
    style = {ChunkState.PASSED: "good", ChunkState.FAILED: "bad", ChunkState.PLANNED: "dim"}.get(state, "")
    return f"<span class='{style}' title='{state}'>{escape(key)} {escape(str(state).lower())}</span>"


def _state(state: RunState) -> str:
    good, bad = {RunState.PUBLISHED, RunState.VALIDATED}, {RunState.FAILED, RunState.REJECTED}
    style = "good" if state in good else "bad" if state in bad else ""
    return f"<b class='{style}'>{escape(str(state))}</b>"


def _table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table; its cells are HTML, which whoever makes them has escaped."""
    top = "".join(f"<th>{escape(name)}" for name in head) if any(head) else ""
    body = "".join("<tr>" + "".join(f"<td>{cell}" for cell in row) for row in rows)
    return f"<table><tr>{top}{body}</table>"


def _link(run_id: str, name: str, shown: str) -> str:
    return f"<a href='{run_path(run_id)}/evidence/{escape(quote(name))}'>{escape(shown)}</a>"


def _files(evidence: EvidenceStore, run_id: str) -> list[str]:
    """Return the files that are kept about a run, relative to its folder; nothing that is half written."""
    root = evidence.folder / run_id
    found = (file.relative_to(root) for file in root.rglob("*") if file.is_file())
    return sorted(str(name) for name in found if ".partial" not in str(name) and is_text_name(str(name)))


def _report(evidence: EvidenceStore, report_of: Callable[[str], str], run_id: str) -> Response:
    """Answer with the report as evidence and ledger have it now: a file that somebody has altered is not served as ours."""
    found = _evidence_file(evidence, run_id, REPORT)
    if found.status_code != HTTPStatus.OK:
        return found
    try:
        return HTMLResponse(report_of(run_id), headers=_SANDBOX)
    except Exception as error:  # noqa: BLE001 - evidence that was damaged may say anything
        error_ = {
            "what": f"the report of '{run_id[:100]}' cannot be made: {type(error).__name__}: {str(error)[:300]}",
            "rule": "a report is made from the evidence when it is asked for, and says what the evidence says",
            "whatToDo": f"`backfill verify {run_id[:100]}` names what was changed",
        }
        return JSONResponse({"error": error_}, status_code=500)


def _evidence_file(evidence: EvidenceStore, run_id: str, path: str) -> Response:
    """Answer with a file of a run's evidence: one that is listed, whatever the path looks like and leads to."""
    file = _listed(evidence.folder, run_id, path)
    if file is None:
        return JSONResponse(
            {
                "error": {
                    "what": f"'{path[:200]}' of '{run_id[:100]}'",
                    "rule": "only files of a run's own evidence are served",
                    "whatToDo": f"open one of those that {PREFIX}/<run> lists",
                }
            },
            status_code=404,
        )
    return FileResponse(file, media_type=_TYPES.get(file.suffix, "text/plain"), headers=_SANDBOX)


def _listed(folder: Path, run_id: str, path: str) -> Path | None:
    """Return where a file of a run's evidence lies; None if there is none of that name, whatever a name can do to a file system."""
    if "\0" in run_id + path or ".partial" in path:
        return None
    try:
        folder = folder.resolve()
        root = (folder / run_id).resolve()
        file = (root / path).resolve()
        is_there = root.parent == folder and file.is_relative_to(root) and file.is_file()
    except (OSError, ValueError, RuntimeError):  # too long, no text of a file system, links in a circle
        return None
    return file if is_there else None
