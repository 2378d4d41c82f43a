"""The HTML that the pages share: the frame of a page, a table, a time, a state, a link.

Put here what a page looks like, whatever it says. Text is escaped by whoever makes a cell of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from urllib.parse import quote, urlencode

from starlette.responses import HTMLResponse

from backfill_assets.defs.addresses import PREFIX, QUARANTINE, run_path
from manifests.lifecycle import RunState

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
}
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
_AGAIN_SECONDS = 10


def page(title: str, parts: Iterable[str], *, again: bool = False) -> HTMLResponse:
    """Return a page; `again` has the browser ask for it again every few seconds."""
    refresh = f"<meta http-equiv=refresh content={_AGAIN_SECONDS}>" if again else ""
    return HTMLResponse(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"{refresh}<title>{escape(title)}</title><style>{_STYLE}</style>"
        f"<p><a href=/>Dagster</a> · <a href={PREFIX}>all runs</a> · <a href={QUARANTINE}>quarantine</a></p><h1>{escape(title)}</h1>{''.join(parts)}</html>",
        headers=_HEADERS,
    )


def asset_address(table: str, **query: str) -> str:
    """Return the address of a table's asset in Dagster."""
    path = "/assets/" + "/".join(quote(part, safe="") for part in table.split("."))
    return escape(path + (f"?{urlencode(query)}" if query else ""))


def time_html(at: datetime) -> str:
    """Return an instant to the second, in UTC."""
    return f"<time>{at:%Y-%m-%d %H:%M:%S}</time> UTC"


def state_html(state: RunState) -> str:
    """Return the state of a run, in the colour of good or bad news."""
    good, bad = {RunState.PUBLISHED, RunState.VALIDATED}, {RunState.FAILED, RunState.REJECTED}
    style = "good" if state in good else "bad" if state in bad else ""
    return f"<b class='{style}'>{escape(str(state))}</b>"


def table_html(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table; its cells are HTML, which whoever makes them has escaped."""
    top = "".join(f"<th>{escape(name)}" for name in head) if any(head) else ""
    body = "".join("<tr>" + "".join(f"<td>{cell}" for cell in row) for row in rows)
    return f"<table><tr>{top}{body}</table>"


def evidence_link(run_id: str, name: str, shown: str) -> str:
    """Return a link to a file of a run's evidence, shown as a text."""
    return f"<a href='{run_path(run_id)}/evidence/{escape(quote(name))}'>{escape(shown)}</a>"
