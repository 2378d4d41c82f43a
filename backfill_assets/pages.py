"""The pages beside Dagster's under `/backfill`: where a run stands and why, and its evidence as files to open.

Put here what people read about a run in a browser, from the ledger and the evidence folder. Read only, nothing that
belongs to Dagster's own pages, and no decision about who may see it: that is the guard's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from html import escape
from http import HTTPStatus
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from manifests.lifecycle import RunState
from resources import launches, stops
from resources.evidence import EvidenceStore
from resources.ledger import ChunkRecord, ChunkState, Ledger, RunRecord, Verdict

PREFIX = "/backfill"
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
    RunState.STAGED: "its run-level gates are judging it",
    RunState.VALIDATED: "the sensor publishes it within seconds, unless its manifest wants a person to, or a freeze holds it",
    RunState.FAILED: "see the gates below; what is computed stays, and a corrected change is a new run with a manifest of "
    "its own",
}


def run_path(run_id: str) -> str:
    """Return the address of a run's page, on whatever host the UI is served."""
    return f"{PREFIX}/{run_id}"


def make_pages(ledger: Ledger, evidence: EvidenceStore, report_of: Callable[[str], str] | None = None) -> Starlette:
    """Make the application of the pages; its paths are absolute.

    A report is made anew by `report_of`, whatever lies beside the bundle; without it, it is served as it lies there.
    """

    async def index(_request: Request) -> Response:
        return await _in_thread(lambda: _page("Backfill runs", _runs_table(ledger.runs())))

    async def one(request: Request) -> Response:
        run_id = request.path_params["run_id"]

        def make() -> Response:
            record = ledger.find(run_id)
            return _unknown(run_id) if record is None else _page(run_id, _run_parts(ledger, evidence, record))

        return await _in_thread(make)

    async def text(request: Request) -> Response:
        run_id, name = request.path_params["run_id"], request.path_params["name"]

        def make() -> Response:
            record = ledger.find(run_id)
            if record is None or name not in {"manifest", "plan"}:
                return _unknown(run_id)
            found = record.manifest.canonical() if name == "manifest" else record.plan.to_json()
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


async def _in_thread(make: Callable[[], Response]) -> Response:
    return await run_in_threadpool(make)


def _unknown(run_id: str) -> Response:
    found = _page("Not found", [f"<p>The ledger knows no run <code>{escape(run_id[:100])}</code>.</p>"])
    found.status_code = 404
    return found


def _page(title: str, parts: Iterable[str]) -> HTMLResponse:
    return HTMLResponse(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f"<p><a href=/>Dagster</a> · <a href={PREFIX}>all runs</a></p><h1>{escape(title)}</h1>{''.join(parts)}</html>",
        headers=_HEADERS,
    )


def _runs_table(records: Sequence[RunRecord]) -> list[str]:
    rows = [
        (
            f"<a href='{run_path(record.run_id)}'>{escape(record.run_id)}</a>",
            _state(record.state),
            escape(record.manifest.kind),
            escape(record.target),
            f"{record.manifest.target.publish_range.start} to {record.manifest.target.publish_range.end}",
            escape(record.manifest.requested_by),
        )
        for record in sorted(records, key=lambda one: one.updated_at, reverse=True)
    ]
    return (
        [_table(("run", "state", "kind", "target", "days", "requested by"), rows)] if rows else ["<p>No run yet.</p>"]
    )


def _run_parts(ledger: Ledger, evidence: EvidenceStore, record: RunRecord) -> list[str]:
    run_id, manifest, plan = record.run_id, record.manifest, record.plan
    chunks, verdicts = ledger.chunks(run_id), ledger.verdicts(run_id)
    links = [f"<a href='{run_path(run_id)}/{name}.json'>{name}</a>" for name in ("manifest", "plan")]
    files = _files(evidence, run_id)
    links += [_link(run_id, name, "report") for name in files if name.endswith(REPORT)]
    why, days = record.state_reason, f"{plan.publish_range.start} to {plan.publish_range.end}"
    parts = [
        f"<p>{_state(record.state)} · {escape(manifest.kind)} of {escape(record.target)}, {days} · {' · '.join(links)}</p>",
        f"<p>{escape(manifest.reason)}</p>",
        f"<p class=why><b>Why it is {escape(record.state)}:</b> {escape(why)}</p>"
        if why and record.state in {RunState.FAILED, RunState.REJECTED}
        else "",
        _next(ledger, record, chunks),
        "<h2>Who and what</h2>",
        _table(
            ("", ""),
            [
                ("requested by", escape(manifest.requested_by)),
                *(
                    (
                        escape(str(entry["decision"]).lower()),
                        f"{escape(entry['decided_by'])} {escape(entry['comment'])}",
                    )
                    for entry in ledger.approvals(run_id)
                ),
                *((escape(_of_stop(one)[0]), escape(_of_stop(one)[1])) for one in stops.of_run(ledger.engine, run_id)),
                ("transform", f"{escape(plan.transform)} {escape(plan.transform_version)}"),
                ("reads", f"{escape(plan.source)}, snapshot <code>{plan.source_snapshot_id}</code>"),
                ("plan", f"<code>{record.plan_hash}</code>"),
            ],
        ),
    ]
    run_level = [verdict for verdict in verdicts if not verdict.chunk]
    failed = [verdict for verdict in verdicts if verdict.chunk and not verdict.passed]
    passed = sum(verdict.passed for verdict in verdicts if verdict.chunk)
    if verdicts:
        told = f"{passed} of {len(chunks)} chunks have passed their rules"
        parts += [f"<h2>Gates</h2><p>{told}.</p>", _gates([*failed, *run_level])]
    parts += ["<h2>Chunks</h2>", "<div class=grid>", *(_chunk(chunk.chunk, chunk.state) for chunk in chunks), "</div>"]
    attempts = ledger.attempts(run_id)
    if attempts:
        rows = [
            (
                str(one["attempt"]),
                escape(str(one["state"]).lower()),
                str(len(json.loads(one["chunks"]))),
                f"{(one['ended_at'] - one['started_at']).total_seconds():.1f} s" if one["ended_at"] else "",
                f"<a href='/runs/{escape(one['dagster_run_id'])}'>Dagster run</a>" if one["dagster_run_id"] else "",
                escape(one["error"][:300]),
            )
            for one in attempts
        ]
        parts += ["<h2>Attempts</h2>", _table(("attempt", "state", "chunks", "took", "", "error"), rows)]
    parts.append("<h2 id=evidence>Evidence</h2>")
    if files:
        parts.append("<ul>" + "".join(f"<li>{_link(run_id, name, name)}" for name in files) + "</ul>")
    else:
        parts.append("<p>The bundle is sealed just before the publication: there is none yet.</p>")
    return parts


def _of_stop(one: stops.Stop) -> tuple[str, str]:
    again = f"; launched again by {one.resumed_by}, {one.resumed_at:%Y-%m-%d %H:%M:%S} UTC" if one.resumed_at else ""
    return "stopped", str(one).removeprefix("stopped ") + again + (f". {one.note}" if one.note else "")


def _next(ledger: Ledger, record: RunRecord, chunks: Sequence[ChunkRecord]) -> str:
    """Say what comes next: a launch where one is waited for, else what the state says."""
    waiting = launches.waits(ledger, record, chunks=chunks)
    if waiting is None:
        return f"<p><b>Next:</b> {_NEXT[record.state]}.</p>" if record.state in _NEXT else ""
    stopped = "" if waiting.stop is None else f"<p class=why><b>Stopped:</b> {escape(str(waiting.stop))}.</p>"
    what = f"its chunks {waiting.chunks[0]} to {waiting.chunks[-1]}" if waiting.chunks else "its chunks"
    command = f"<code>backfill {'run' if waiting.stop is None else 'resume'} {escape(record.run_id)}</code>"
    return f"{stopped}<p><b>Next:</b> it waits for a launch: launch {what} in Dagster, or {command}.</p>"


def _gates(verdicts: Sequence[Verdict]) -> str:
    rows = [
        (
            escape(verdict.gate + (f" {verdict.chunk}" if verdict.chunk else "")),
            "<span class=good>passed</span>" if verdict.passed else "<b class=bad>not passed</b>",
            escape(verdict.summary),
        )
        for verdict in verdicts
    ]
    return _table(("gate", "verdict", "found"), rows)


def _chunk(key: str, state: ChunkState) -> str:
    style = {ChunkState.PASSED: "good", ChunkState.FAILED: "bad", ChunkState.PLANNED: "dim"}.get(state, "")
    return f"<span class='{style}' title='{state}'>{escape(key)} {escape(str(state).lower())}</span>"


def _state(state: RunState) -> str:
    style = {"PUBLISHED": "good", "VALIDATED": "good", "FAILED": "bad", "REJECTED": "bad"}.get(str(state), "")
    return f"<b class='{style}'>{escape(str(state))}</b>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its cells are HTML, which whoever makes them has escaped."""
    top = "".join(f"<th>{escape(name)}" for name in head) if any(head) else ""
    body = "".join("<tr>" + "".join(f"<td>{cell}" for cell in row) for row in rows)
    return f"<table><tr>{top}{body}</table>"


def _link(run_id: str, name: str, shown: str) -> str:
    return f"<a href='{run_path(run_id)}/evidence/{escape(name)}'>{escape(shown)}</a>"


def _files(evidence: EvidenceStore, run_id: str) -> list[str]:
    """Return the files that are kept about a run, relative to its folder; nothing that is half written."""
    root = evidence.folder / run_id
    found = (file.relative_to(root) for file in root.rglob("*") if file.is_file())
    return sorted(str(name) for name in found if ".partial" not in str(name))


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
    folder = evidence.folder.resolve()
    root = (folder / run_id).resolve()
    file = (root / path).resolve() if "\0" not in run_id + path else Path()
    if root.parent != folder or not file.is_relative_to(root) or not file.is_file() or ".partial" in path:
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
