"""What the gates of a run found, and what it changed, on its page.

Put here verdicts, the rows that disagree, and the recorded diff. The rest of the page is `run_page`'s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from backfill_assets.audit.report_changes import change_heading
from backfill_assets.gates.exception_words import worded
from backfill_assets.ui.html_parts import asset_address, evidence_link, table_html, time_html
from manifests.errors import EnvironmentRefused
from manifests.lifecycle import WAS_PUBLISHED
from resources.evidence.store import EvidenceStore, sha256_of_file
from resources.files.kept_files import read_json
from resources.ledger.facade import AcceptanceRecord, Ledger, RunRecord, Verdict

_SHOWN_ROWS = 20
_DIFF_OF_CHUNK = ("chunk", "added", "removed", "changed", "unchanged")
_DIFF_OF_COLUMN = ("column", "changed", "before", "after", "delta")


def gates_table(target: str, verdicts: Sequence[Verdict], accepted: Mapping[str, AcceptanceRecord]) -> str:
    """Return the table of verdicts, each with what it found and a link to the rows that it shows.

    `accepted` is what owners have accepted of gates of the whole run.
    """
    rows = [
        (
            f"<a href='{asset_address(target, view='checks', checkDetail=verdict.gate)}'>{escape(verdict.gate)}</a>",
            escape(verdict.chunk),
            _verdict(verdict, accepted),
            escape(verdict.summary)
            + (f"<br><a href='#{_anchor(verdict)}'>show the rows</a>" if _rows_of(verdict) else ""),
            "" if verdict.at is None else time_html(verdict.at),
        )
        for verdict in verdicts
    ]
    return table_html(("gate", "chunk", "verdict", "found", "judged"), rows)


def _verdict(verdict: Verdict, accepted: Mapping[str, AcceptanceRecord]) -> str:
    if verdict.passed:
        return "<span class=good>passed</span>"
    if not verdict.chunk and verdict.gate in accepted:
        return f"not passed, {escape(str(accepted[verdict.gate]))}"
    return "<b class=bad>not passed</b>"


def _anchor(verdict: Verdict) -> str:
    return escape(f"rows-{verdict.gate}{verdict.chunk}")


def _rows_of(verdict: Verdict) -> list[tuple[str, Sequence[Mapping[str, Any]]]]:
    """Return what a verdict shows of the rows that made it: titles and rows."""
    details = verdict.details
    found = [(f"{one['rule']}: {one['count']:,} row(s)", one["sample"]) for one in details.get("violations", ())]
    found += [("failing slices", details.get("slices", ())), ("rows that disagree", details.get("sample", ()))]
    return [(title, rows) for title, rows in found if rows]


def rows_that_disagree(verdicts: Sequence[Verdict]) -> list[str]:
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
    return table_html(names, [[escape(_said(row.get(name))) for name in names] for row in rows])


def _said(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_said(one)}" for name, one in value.items())
    return "" if value is None else str(value)


def recorded_diff_parts(ledger: Ledger, evidence: EvidenceStore, record: RunRecord, files: Sequence[str]) -> list[str]:
    """Return the newest recorded diff of a run that a link vouches for: counts by chunk and by column, and its file."""
    numbers = {name: number for name in files if (number := _diff_number(name))}
    if not numbers:
        return []
    newest = max(numbers, key=lambda name: numbers[name])
    run_id, heading = record.run_id, change_heading(record.state, published=record.state in WAS_PUBLISHED)
    with ledger.reading() as moment:
        _, follows = moment.first_of(run_id)
    try:
        linked, folder = evidence.kept(run_id, since=follows), evidence.folder / run_id
        vouched = [name for name in numbers if (Path(name).stem, sha256_of_file(folder / name)) in linked]
        if not vouched:
            what = f"no link of the chain vouches for {evidence_link(run_id, newest, newest)}: see <code>backfill verify</code>"
            return [f"<h2 id=diff>{heading}</h2><p class=bad>{what}.</p>"]
        newest = max(vouched, key=lambda name: numbers[name])
        found = read_json(folder / newest)
        chunks = [[_said(row[name]) for name in _DIFF_OF_CHUNK] for row in found["chunks"]]
        columns = [[_said(row[name]) for name in _DIFF_OF_COLUMN] for row in found["columns"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, EnvironmentRefused):
        return [f"<h2 id=diff>{heading}</h2><p class=bad>{evidence_link(run_id, newest, newest)} cannot be read.</p>"]
    return [
        f"<h2 id=diff>{heading}</h2><p>{evidence_link(run_id, newest, 'the whole diff')}</p>",
        table_html(_DIFF_OF_CHUNK, [map(escape, row) for row in chunks]),
        table_html(_DIFF_OF_COLUMN, [map(escape, row) for row in columns]),
    ]


def _diff_number(name: str) -> int:
    """Return which diff of its run a file is, from 1; 0 for another file."""
    found = re.fullmatch(r"records/diff(?:-(\d+))?\.json", name)
    return 0 if found is None else int(found[1] or 1)
