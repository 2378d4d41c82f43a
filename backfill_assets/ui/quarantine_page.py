"""The pages of quarantined rows: how many wait in which table, the cases of one, and one case.

Put here what is on them. What a case is is `planning.quarantine_cases`', what a person is shown of one `ingestion.case_views`'. A raw
row may hold anything: all of it is escaped, and withheld where the policy protects columns of its table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from html import escape
from urllib.parse import quote, urlencode

from starlette.responses import Response

from backfill_assets.defs.addresses import QUARANTINE, run_path
from backfill_assets.ingestion.case_export import is_withheld
from backfill_assets.ingestion.case_views import CaseView, view_of
from backfill_assets.ingestion.releases import quarantined_table
from backfill_assets.installation import Platform
from backfill_assets.planning.quarantine_cases import Case, Cases, CaseState, RuleSummary, cases_of
from backfill_assets.ui.html_parts import asset_address, page, table_html, time_html
from manifests.errors import InputRefused
from manifests.text import visible

Opened = Callable[[], AbstractContextManager[Platform]]
"""Opens the installation for one page."""
_MOST = 200
"""Cases shown of a table; the command lists all."""
_HEAD = ("rule", "waiting", "released", "rejected", "rows", "share", "oldest waits since")


def tables_page(opened: Opened) -> Response:
    """Return the page of all input tables: their cases by rule."""
    with opened() as platform:
        parts: list[str] = []
        for table in platform.products.inputs:
            if not (table.is_reference or table.quarantine_of) and platform.lakehouse.exists(table.name):
                rules = cases_of(platform, table).by_rule()
                parts.append(f"<h2>{_table_link(table.name, table.name)}</h2>")
                parts.append(_rules(table.name, rules) if rules else "<p>No quarantined rows.</p>")
    return page("Quarantine", parts or ["<p>No input table.</p>"])


def table_page(opened: Opened, name: str, query: Mapping[str, str]) -> Response:
    """Return the page of a table's cases, or of those that a query chooses by `state` and `rule`; not found if it has none."""
    with opened() as platform:
        try:
            table = quarantined_table(platform, name)
        except InputRefused as refusal:
            return _unknown(refusal)
        cases, withheld = cases_of(platform, table), is_withheld(platform, table)
    chosen = [
        case
        for case in cases.all.values()
        if query.get("state", case.state.value) == case.state.value and query.get("rule", case.rule) == case.rule
    ]
    shown = sorted(chosen, key=lambda case: case.last_seen, reverse=True)[:_MOST]
    parts = [f"<p><a href='{asset_address(name)}'>asset</a></p>", _rules(name, cases.by_rule()), _states(cases, query)]
    parts += [f"<h2>{len(shown):,} of {len(chosen):,} cases</h2>", _listed(name, shown, withheld=withheld)]
    if withheld:
        parts.append("<p class=dim>Values are withheld, because the policy protects columns of this table.</p>")
    return page(f"Quarantine of {name}", parts)


def case_page(opened: Opened, name: str, text: str) -> Response:
    """Return the page of one case; not found if the table has none such."""
    with opened() as platform:
        try:
            view = view_of(platform, quarantined_table(platform, name), text)
        except InputRefused as refusal:
            return _unknown(refusal)
    case = view.case
    parts = [
        f"<p>{_table_link(name, f'all cases of {name}')}</p>",
        table_html(("", ""), _facts(view)),
        "<h2>The raw row</h2>",
        f"<pre><code>{escape(_indented(view.record))}</code></pre>",
    ]
    if view.decisions:
        decided = (
            (escape(one.decision), _text(one.decided_by), time_html(one.at), _text(one.reason))
            for one in view.decisions
        )
        parts += ["<h2>Decisions</h2>", table_html(("decision", "by", "when", "why"), decided)]
    if view.runs:
        runs = (
            (f"<a href='{run_path(run_id)}'>{escape(run_id)}</a>", escape(state)) for run_id, state in view.runs.items()
        )
        parts += ["<h2>Runs that read it</h2>", table_html(("run", "state"), runs)]
    if view.siblings:
        parts += ["<h2>The same row under other rules</h2>", _listed(name, view.siblings, withheld=view.withheld)]
    return page(f"Case {case.short}", parts)


def _facts(view: CaseView) -> Iterator[tuple[str, str]]:
    case = view.case
    yield "case", f"<code>{escape(case.case_id)}</code>"
    yield "state", _state(case)
    yield "rule", _text(case.rule)
    yield "detail", _text(case.detail)
    yield "first seen", f"{time_html(case.first_seen)}, row {case.source_row:,} of {_text(case.source_file)}"
    yield "last seen", time_html(case.last_seen)
    yield "rows", f"{case.rows:,} in {', '.join(_text(load or 'of another program') for load in case.loads)}"
    if case.released_by:
        yield "came in by load", f"<code>{_text(case.released_by)}</code>"


def _rules(table: str, rules: Sequence[RuleSummary]) -> str:
    def row(one: RuleSummary) -> tuple[str, ...]:
        since: datetime | None = one.oldest_waiting
        numbers = (f"{number:,}" for number in (one.waiting, one.released, one.rejected, one.rows))
        link = _table_link(table, visible(one.rule), rule=one.rule)
        return link, *numbers, f"{one.share:.2%}", "" if since is None else time_html(since)

    return table_html(_HEAD, map(row, rules))


def _states(cases: Cases, query: Mapping[str, str]) -> str:
    rest = {name: value for name, value in query.items() if name == "rule"}
    links = [_table_link(cases.table, "all", **rest)]
    links += [_table_link(cases.table, state.value, **rest, state=state.value) for state in CaseState]
    return f"<p>States: {' · '.join(links)}</p>"


def _listed(table: str, cases: Sequence[Case], *, withheld: bool) -> str:
    head = ("case", "state", "rule", "detail", "file", "row", "rows", "last seen", "decided by")
    return table_html(
        head,
        (
            (
                f"<a href='{QUARANTINE}/{quote(table, safe='')}/{case.case_id}'><code>{case.short}</code></a>",
                _state(case),
                _text(case.rule),
                "" if withheld else _text(case.detail),
                _text(case.source_file),
                f"{case.source_row:,}",
                f"{case.rows:,}",
                time_html(case.last_seen),
                _text(case.decided_by),
            )
            for case in cases
        ),
    )


def _state(case: Case) -> str:
    style = {CaseState.RELEASED: "good", CaseState.WAITING: "bad"}.get(case.state, "dim")
    return f"<b class={style}>{case.state.value}</b>"


def _text(value: str) -> str:
    return escape(visible(value))


def _table_link(table: str, shown: str, **query: str) -> str:
    address = f"{QUARANTINE}/{quote(table, safe='')}" + (f"?{urlencode(query)}" if query else "")
    return f"<a href='{escape(address)}'>{escape(shown)}</a>"


def _indented(record: str) -> str:
    try:
        return json.dumps(json.loads(record), indent=2, ensure_ascii=False)
    except ValueError:
        return record


def _unknown(refusal: InputRefused) -> Response:
    found = page("Not found", [f"<p>{escape(visible(problem.what[:300]))}</p>" for problem in refusal.problems])
    found.status_code = 404
    return found
