"""The page of all runs: where each stands, and links that choose among them.

Put here the list. What is said of one run is in `run_page`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape
from urllib.parse import urlencode

from starlette.responses import Response

from backfill_assets.defs.addresses import PREFIX, run_path
from backfill_assets.defs.starting import Starting
from backfill_assets.review.wording import of_kind
from backfill_assets.ui.html_parts import asset_address, page, state_html, table_html, time_html
from backfill_assets.ui.next_step import is_under_way
from resources.ledger.facade import Ledger, RunRecord

_FILTERS = {"state": "States", "target": "Tables"}
_VALUE_OF: Mapping[str, Callable[[RunRecord], str]] = {
    "state": lambda record: record.state.value,
    "target": lambda record: record.target,
}


def index_page(ledger: Ledger, starting: Mapping[str, Sequence[Starting]], query: Mapping[str, str]) -> Response:
    """Return the page of all runs, or of those that a query chooses."""
    records, only = ledger.runs(), {name: query[name] for name in _FILTERS if name in query}
    under_way = any(is_under_way(ledger, one, starting.get(one.run_id, ())) for one in records)
    return page("Backfill runs", _runs_table(ledger, records, starting, only), again=under_way)


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
    waiting, paced = ledger.launches.all_waiting(), ledger.admissions.waiting()

    def waits(run_id: str) -> str:
        if launched := [one for one in starting.get(run_id, ()) if not one.publishes]:
            return f" launched, {escape(launched[0].doing)}"
        if run_id not in waiting:
            return f" waits: {escape(str(paced[run_id]))}" if run_id in paced else ""
        stop = waiting[run_id].stop
        if stop is not None and stop.is_pause:
            return " <span class=bad>paused, waits until somebody resumes it</span>"
        return f" <span class=bad>{'' if stop is None else 'stopped, '}waits for a launch</span>"

    rows = [
        (
            f"<a href='{run_path(record.run_id)}'>{escape(record.run_id)}</a>",
            state_html(record.state) + waits(record.run_id),
            escape(of_kind(record)),
            f"<a href='{asset_address(record.target)}'>{escape(record.target)}</a>",
            record.manifest.target.scope,
            escape(record.manifest.requested_by),
            time_html(record.created_at),
            time_html(record.updated_at),
        )
        for record in sorted(records, key=lambda one: one.updated_at, reverse=True)
        if _is_chosen(record, only)
    ]
    head = ("run", "state", "kind", "target", "days", "requested by", "planned", "last change")
    if not records:
        return ["<p>No run yet.</p>"]
    return [_choices(records, only), table_html(head, rows) if rows else "<p>No such run.</p>"]
