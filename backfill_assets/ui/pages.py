"""The pages beside Dagster's under `/backfill`: where a run stands and why, its evidence as files to open, and quarantined rows.

Put here the route of a page; what is on it is in a module of its own, as the list of runs is in `runs_page`, one run in
`run_page` and quarantined rows in `quarantine_page`. Read only, nothing that belongs to Dagster's own pages, and no decision about who may see it: that is the guard's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from backfill_assets.defs.addresses import PREFIX, QUARANTINE
from backfill_assets.defs.starting import Starting
from backfill_assets.ui.evidence_files import REPORT, evidence_response, report_response
from backfill_assets.ui.html_parts import page
from backfill_assets.ui.run_page import run_page
from backfill_assets.ui.runs_page import index_page
from manifests.errors import StoreRefused
from manifests.model import MAX_RUN_ID
from manifests.plan import Plan
from manifests.stages import Stage
from resources.evidence.store import EvidenceStore
from resources.ledger.facade import Ledger, RunRecord

if TYPE_CHECKING:
    from backfill_assets.ui.quarantine_page import Opened


def _nothing_starts() -> Mapping[str, Sequence[Starting]]:
    return {}


def _runs_where_declared(_sensor: str) -> bool:
    return False


def make_pages(
    ledger: Ledger,
    evidence: EvidenceStore,
    report_of: Callable[[str], str] | None = None,
    starting: Callable[[], Mapping[str, Sequence[Starting]]] = _nothing_starts,
    stages_of: Callable[[Plan], Sequence[Stage]] | None = None,
    opened: Opened | None = None,
    switched_off: Callable[[str], bool] = _runs_where_declared,
) -> Starlette:
    """Make the application of the pages; its paths are absolute.

    A report is made anew by `report_of`, whatever lies beside the bundle; without it, it is served as it lies there.
    `starting` says what Dagster was asked to do for runs and has not ended (`starting.starting`). `stages_of` returns what a
    plan is executed by; without it, a run's page shows no stages. `opened` opens the installation, whose tables have the
    quarantined rows; without it, there are no pages of those. `switched_off` says of a sensor that somebody has stopped it in Dagster.
    """

    async def index(request: Request) -> Response:
        return await _in_thread(lambda: index_page(ledger, starting(), request.query_params))

    async def one(request: Request) -> Response:
        run_id = request.path_params["run_id"]

        def make() -> Response:
            if (record := _found(ledger, run_id)) is None:
                return _unknown(run_id)
            return run_page(ledger, evidence, record, starting().get(run_id, ()), stages_of, switched_off)

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
            return await _in_thread(lambda: report_response(evidence, report_of, run_id))
        return await _in_thread(lambda: evidence_response(evidence, run_id, path))

    return Starlette(
        routes=[
            *_of_quarantine(opened),
            Route(PREFIX, index),
            Route(f"{PREFIX}/", _home),
            Route(f"{PREFIX}/{{run_id}}", one),
            Route(f"{PREFIX}/{{run_id}}/{{name}}.json", text),
            Route(f"{PREFIX}/{{run_id}}/evidence/{{path:path}}", file),
        ]
    )


async def _home(_request: Request) -> Response:
    return RedirectResponse(PREFIX)


def _of_quarantine(opened: Opened | None) -> list[Route]:
    """Return the routes of quarantined rows."""
    if opened is None:
        return []
    open_installation = opened

    async def tables(_request: Request) -> Response:
        from backfill_assets.ui import quarantine_page  # noqa: PLC0415 - tables are read for these pages alone

        return await _in_thread(lambda: quarantine_page.tables_page(open_installation))

    async def table(request: Request) -> Response:
        from backfill_assets.ui import quarantine_page  # noqa: PLC0415 - likewise

        name = request.path_params["table"]
        return await _in_thread(lambda: quarantine_page.table_page(open_installation, name, request.query_params))

    async def case(request: Request) -> Response:
        from backfill_assets.ui import quarantine_page  # noqa: PLC0415 - likewise

        name, text = request.path_params["table"], request.path_params["case"]
        return await _in_thread(lambda: quarantine_page.case_page(open_installation, name, text))

    return [
        Route(QUARANTINE, tables),
        Route(f"{QUARANTINE}/{{table}}", table),
        Route(f"{QUARANTINE}/{{table}}/{{case}}", case),
    ]


def _found(ledger: Ledger, run_id: str) -> RunRecord | None:
    """Return a run; what is no run's id is not looked for, as not every database takes every text."""
    return ledger.find(run_id) if len(run_id) <= MAX_RUN_ID and run_id.isprintable() else None


async def _in_thread(make: Callable[[], Response]) -> Response:
    try:
        return await run_in_threadpool(make)
    except StoreRefused as refusal:
        problem = refusal.problems[0]
        found = page(
            "The evidence cannot be read",
            [f"<p class=bad>{escape(problem.what)}.</p><p>{escape(problem.rule)}.</p><p>{escape(problem.fix)}.</p>"],
        )
        found.status_code = 503
        return found


def _unknown(run_id: str) -> Response:
    found = page("Not found", [f"<p>The ledger knows no run <code>{escape(run_id[:100])}</code>.</p>"])
    found.status_code = 404
    return found
