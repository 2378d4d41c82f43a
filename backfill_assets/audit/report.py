"""`report.html`: one page about one run that stands by itself, for whoever asks later and has nothing but the page.

Put here what the page says and where it is taken from: the sealed bundle and the records, so that the page says what is
proved; the ledger only for runs that have no bundle yet. How it looks is the template's, how charts are drawn `charts`'s.
The page is a view and no evidence: it is made anew whenever somebody wants it, the same from the same evidence.
"""

from __future__ import annotations

import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from backfill_assets.evidence.links import of_no_form
from backfill_assets.evidence.records import (
    Record,
    accepted_before,
    bundle_in_use,
    damaged_files,
    last_diff,
    records_of,
    unharmed_rows,
)
from backfill_assets.gates.chunk_changes import CHANGES_FILE, changes_of_run
from backfill_assets.gates.judging import CHUNK_GATE
from backfill_assets.installation import Platform
from backfill_assets.publication.modes import strategy_in
from backfill_assets.worker.sums import difference
from manifests.canonical import plain
from manifests.lifecycle import DecisionKind, PublicationState, RunState
from manifests.model import Mode
from manifests.stages import in_commits
from resources.evidence.store import INDEX
from resources.files.kept_files import read_json
from resources.files.whole_files import write_whole
from resources.ledger.facade import RunRecord
from resources.ledger.rows import Rows

_LOG = logging.getLogger(__name__)
_PANELS = 6
_LINES = 40
"""The most lines of a heat map."""
_LARGEST, _LARGEST_OF_EACH = 40, 3
"""The most rows of the largest changes, and of one column and kind of change."""
_KINDS = ("added", "removed", "changed", "unchanged")
_NOTHING: Mapping[str, int] = {}
_DONE_BY = {"publish": "published", "rollback": "rolled back", "reinstate": "reinstated", "accept": "accepted"}
_DECISIONS = {
    DecisionKind.APPROVED: "approved",
    DecisionKind.REJECTED: "rejected",
    DecisionKind.REVIEWED: "reviewed",
    DecisionKind.PUBLISH: "decided to publish",
    DecisionKind.ROLLBACK: "decided to roll back",
    DecisionKind.REINSTATE: "decided to reinstate",
    DecisionKind.ACCEPT: "decided to accept the version",
}


def report(platform: Platform, run_id: str) -> str:
    """Return the page about a run.

    Raises:
        InputRefused: if the ledger holds no such run.
    """
    record = platform.ledger.run(run_id)
    store, records = platform.evidence, records_of(platform, run_id)
    bundle = bundle_in_use(platform, run_id) if store.bundles(run_id) else None
    damaged = damaged_files(platform, run_id)
    rows = unharmed_rows(platform, run_id, bundle, records, damaged) if bundle is not None else None
    if bundle is None or rows is None:
        with platform.ledger.holding() as moment:
            rows = moment.rows_of(run_id)
        before = plain(accepted_before(platform, record))
    else:
        before = _unless(damaged, bundle, "accepted_before.json") or {}
    facts = _facts(platform, defaultdict(dict, rows), run_id, before)  # a table without a row has no file in a bundle
    facts |= {
        "change": _what_changed(
            facts, _changes(platform, record, bundle, facts, before, damaged), last_diff(platform, run_id)
        )
    }
    facts |= {
        "evidence": _evidence(platform, run_id, bundle, records, damaged),
        "charts": _charts(facts),
        "merges": _merged_by(platform, rows),
        "damaged": damaged,
    }
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": _number,
        "signed": _signed,
        "percent": _percent,
        "figure": _figure,
        "prose": _prose,
        "instant": _instant,
        "cell": _cell,
    }
    return environment.get_template("report.html.j2").render(**facts)


def write_report(platform: Platform, run_id: str, file: Path | None = None) -> Path:
    """Write the page about a run beside its bundle, or to a file, whole or not at all; return where."""
    page = report(platform, run_id)  # of a run that is not there, nothing is made
    file = file or platform.evidence.report(run_id)
    write_whole(file, page, make_folder=True)
    return file


def report_beside(platform: Platform, run_id: str) -> Path | None:
    """Write the page after a publication, which is done and on record: whatever is wrong here is said and stops nothing."""
    try:
        return write_report(platform, run_id)
    except Exception as error:  # noqa: BLE001 - a page that cannot be drawn must not fail what has landed
        what = f"{type(error).__name__}: {error}"
        _LOG.warning(
            "the report of %s could not be written: %s; `backfill report %s` tries again", run_id, what, run_id
        )
        return None


def _merged_by(platform: Platform, rows: Rows) -> list[str]:
    """Return the runs that hold, or have held, chunks after a run, and have replaced the rows of some entities there only."""
    held = rows.get("accepted_versions", {}).values()
    by = {str(one["ended_by"]) for one in held if one["ended_how"] == RunState.SUPERSEDED}
    later = (platform.ledger.find(run_id) for run_id in sorted(by))
    return [one.run_id for one in later if one is not None and platform.ledger.with_plan(one).plan.merge is not None]


# --- what it says -----------------------------------------------------------------------------------------------------


def _facts(platform: Platform, rows: Rows, run_id: str, before: Mapping[str, Any]) -> dict[str, Any]:
    run = rows["runs"][run_id]
    manifest, plan = run["manifest"], run["plan"]
    chunks = list(rows["chunks"].values())
    table = platform.products.target(run["target"])
    keys = [chunk["chunk"] for chunk in chunks]
    slices = {
        chunk["chunk"]: chunk["measures"].get("slices", []) if isinstance(chunk["measures"], dict) else []
        for chunk in chunks
    }
    earlier = {key: facts["slices"] for key, facts in before.items()}
    done = [one for one in rows["publications"].values() if one["state"] == PublicationState.COMMITTED]
    open_ = [one for one in rows["accepted_versions"].values() if one["ended_at"] is None]
    last_pass = {(row["chunk"], row["gate"]): row for row in rows["verdicts"].values()}
    levels = {item.name: (item.level.value, item.description) for item in table.reconciliations}
    gates = [
        last_pass["", gate] | {"level": levels.get(gate, ("platform", ""))[0], "about": levels.get(gate, ("", ""))[1]}
        for gate in plan["gates"]
        if ("", gate) in last_pass
    ]
    return {
        "run": run,
        "manifest": manifest,
        "manifest_text": yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True),
        "plan": plan,
        "table": {"name": table.name, "description": table.description, "owners": table.owners},
        "decisions": [
            one | {"said": _DECISIONS.get(one["decision"], one["decision"])} for one in rows["approvals"].values()
        ],
        "transitions": list(rows["transitions"].values()),
        "publications": list(rows["publications"].values()),
        "committed": done,
        "done_by": defaultdict(str, _DONE_BY),
        "published": next((one for one in done if one["action"] == "publish"), None),
        "commits": in_commits(strategy_in(plan).commits(table)),
        "holds": sorted({one["chunk"] for one in open_}),
        "keys": keys,
        "chunks": [_chunk(chunk, before.get(chunk["chunk"])) for chunk in chunks],
        "chunk_verdicts": [row for (chunk, gate), row in sorted(last_pass.items()) if chunk and gate == CHUNK_GATE],
        "gates": gates,
        "sinks": list(rows["sink_attempts"].values()),
        "amendments": list(rows["amendments"].values()),
        "attempts": list(rows["attempts"].values()),
        "before_runs": sorted({facts["run"] for facts in before.values()}),
        "totals": _totals(slices, earlier),
        "by_slice": _by_slice(slices, earlier),
        "slices": slices,
        "earlier": earlier,
    }


# --- what changed -----------------------------------------------------------------------------------------------------


def _unless(damaged: Sequence[str], bundle: Path, name: str) -> Any:
    """Return what a file of a bundle says; None if it is not there, or not as it was sealed."""
    at = f"{bundle.parent.name}/{bundle.name}/"
    is_wrong = not {f"{at}{name}", f"{at}{INDEX}"}.isdisjoint(damaged)
    return None if is_wrong or not os.path.lexists(bundle / name) else read_json(bundle / name)


def _changes(
    platform: Platform,
    record: RunRecord,
    bundle: Path | None,
    facts: Mapping[str, Any],
    before: Mapping[str, Any],
    damaged: Sequence[str],
) -> Mapping[str, Any]:
    """Return rows and sums by chunk: as they were sealed, or of a run that has no bundle as they would be."""
    if bundle is None:
        return plain(changes_of_run(platform, record, before))  # type: ignore[no-any-return]
    if (sealed := _unless(damaged, bundle, CHANGES_FILE)) is not None:
        return sealed  # type: ignore[no-any-return]
    rows = [{"chunk": one["chunk"], "rows": [one["before"], one["rows"]], "sums": {}} for one in facts["chunks"]]
    return {"diff_id": "", "chunks": rows, "unknown": ""}


def _what_changed(facts: Mapping[str, Any], changes: Mapping[str, Any], recorded: Any) -> dict[str, Any]:
    """Return what the section says: by chunk, by column, and the rows that moved furthest where a diff is on record."""
    diff = recorded if isinstance(recorded, dict) else {}
    if changes["diff_id"] and diff.get("diff_id", changes["diff_id"]) != changes["diff_id"]:
        diff = {}  # of rows that were computed anew since
    by_chunk = {one["chunk"]: one for one in diff.get("chunks", ())}
    chunks = [
        {"chunk": one["chunk"], "before": one["rows"][0], "after": one["rows"][1]}
        | {name: by_chunk.get(one["chunk"], {}).get(name) for name in _KINDS}
        for one in changes["chunks"]
    ]
    if facts["plan"]["mode"] == Mode.RECONCILIATION:
        chunks = []
    columns = diff.get("columns") or _summed(changes["chunks"] if chunks else [])
    return {
        "lead": _lead(facts["run"], facts["plan"], facts["committed"], diff),
        "unknown": changes["unknown"],
        "diff": diff or None,
        "why_no_diff": _why_no_diff(facts, changes) if chunks else "",
        "chunks": chunks,
        "rows": [_sum(one["before"] for one in chunks), _sum(one["after"] for one in chunks)],
        "columns": [one for one in columns if one.get("before") is not None or one.get("after") or one.get("changed")],
        "largest": [_moved(row) for row in _first_of_each(diff.get("largest") or [])][:_LARGEST],
    }


def _summed(chunks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add up the sums of all chunks by column; None where one of them is not known."""
    found = []
    for name in dict.fromkeys(name for chunk in chunks for name in chunk["sums"]):
        sides = [[chunk["sums"].get(name, (None, None))[side] for chunk in chunks] for side in (0, 1)]
        before, after = (None if None in side else str(sum(map(Decimal, side), Decimal(0))) for side in sides)
        delta = None if before is None or after is None else difference(before, after)
        found.append({"column": name, "changed": None, "before": before, "after": after, "delta": delta})
    return found


def _sum(values: Iterable[int | None]) -> int | None:
    found = list(values)
    return None if None in found else sum(one for one in found if one is not None)


def _lead(
    run: Mapping[str, Any], plan: Mapping[str, Any], committed: Sequence[Mapping[str, Any]], diff: Mapping[str, Any]
) -> str:
    """Say whether readers have what is shown, or had it, or would have."""
    if plan["mode"] == Mode.RECONCILIATION:
        return "Nothing: it compares what readers have with what they should have, and is never published."
    if plan["mode"] == Mode.DRY_RUN:
        return "Nothing: it is a dry run, which is never published. As a run of another mode it would change this."
    undone = [one for one in committed if one["action"] in {"rollback", "reinstate"}]
    if not any(one["action"] == "publish" for one in committed):
        over = run["state"] in {RunState.REJECTED, RunState.CANCELLED}
        return f"Readers have seen nothing of it. {'This is what it would have changed' if over else 'Published, it would change this'}."
    if not undone:
        return "What the publication changed, before and after."
    said = "; ".join(f"{_DONE_BY[one['action']]} {_instant(one['ended_at'])}" for one in undone)
    if undone[-1]["action"] == "reinstate":
        return f"It was {said}: readers have what is shown as “after” again."
    back = "what is shown as “before”"
    if diff:
        names = ("added", "removed", "changed")
        gone, there, changed = (_number(diff.get(name, 0)) for name in names)
        back += (
            f": the {gone} added rows are gone, the {there} removed are back, the {changed} changed say what they said"
        )
    return f"It was {said}. The rollback changed everything below back, so that readers have {back}."


def _why_no_diff(facts: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    run_id = facts["run"]["run_id"]
    if not facts["committed"]:
        return f"Its rows were not compared by key: `backfill diff {run_id}` does that, once all of it is staged."
    if not facts["manifest"].get("evidence", {}).get("diff", True):
        return "Its rows were not compared by key: the manifest says so (evidence.diff)."
    if not changes["diff_id"]:
        return f"No diff is on record of this run: `backfill diff {run_id}` makes one, while the rows before are there."
    return "Its rows are not compared by key yet: `backfill doctor --repair` completes that."


def _first_of_each(rows: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the first few rows of each column and kind of change."""
    seen: dict[tuple[Any, Any], int] = defaultdict(int)
    for row in rows:
        place = (row.get("column"), row.get("kind"))
        seen[place] += 1
        if seen[place] <= _LARGEST_OF_EACH:
            yield row


def _moved(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a row of the largest changes, each cell as text, old before new."""
    old, new = ((row.get(side) or {}).get(row.get("column")) for side in ("old", "new"))
    return {
        "column": _cell(row.get("column")),
        "kind": _cell(row.get("kind")).lower(),
        "chunk": _cell(row.get("chunk")),
        "key": ", ".join(_cell(value) for value in (row.get("key") or {}).values()),
        "before": _cell(old),
        "after": _cell(new),
        "by": f"{_cell(row.get('by'))} {row.get('unit') or ''}".rstrip(),
    }


def _chunk(chunk: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    shown = {name: chunk[name] for name in ("chunk", "state", "attempt", "rows", "bytes", "digest", "error")}
    same = before is not None and before["digest"] == chunk["digest"]
    was = None if before is None else before["rows"]
    return shown | {"files": len(chunk["files"]), "before": was, "before_run": before and before["run"], "same": same}


def _totals(after: Mapping[str, Sequence[Mapping[str, Any]]], before: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Add up each measure over all chunks, before and after; only chunks that had rows accepted have a before."""
    new, old = _sums(_flat(after)), _sums(_flat(before))
    return [
        {"name": name, "before": old.get(name) if before else None, "after": new.get(name, 0)} for name in new | old
    ]


def _by_slice(after: Mapping[str, Any], before: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Add up each measure by the values of each slice column."""
    found = []
    for column in _slice_columns([*_flat(after), *_flat(before)]):
        new, old = ({} if not side else _grouped(_flat(side), column) for side in (after, before))
        names = sorted(
            {name for sums in [*new.values(), *old.values()] for name in sums}, key=lambda name: name != "rows"
        )
        lines = [
            {
                "value": value,
                "measures": [
                    {
                        "before": old.get(value, _NOTHING).get(name, 0) if before else None,
                        "after": new.get(value, _NOTHING).get(name, 0),
                    }
                    for name in names
                ],
            }
            for value in sorted(new.keys() | old.keys())
        ]
        found.append({"column": column, "measures": names, "lines": lines})
    return found


def _flat(slices: Mapping[str, Iterable[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    return [row for rows in slices.values() for row in rows]


def _is_sum(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _slice_columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted({name for row in rows for name, value in row.items() if not _is_sum(value)})


def _sums(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for row in rows:
        for name, value in row.items():
            if _is_sum(value):
                sums[name] += value
    return dict(sorted(sums.items(), key=lambda item: (item[0] != "rows", item[0])))


def _grouped(rows: Iterable[Mapping[str, Any]], *columns: str) -> dict[str, dict[str, int]]:
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[" · ".join(str(row.get(column)) for column in columns)].append(row)
    return {value: _sums(members) for value, members in groups.items()}


def _evidence(
    platform: Platform, run_id: str, bundle: Path | None, records: Sequence[Record], damaged: Sequence[str]
) -> dict[str, Any]:
    chain = platform.evidence.chain.read()
    mine = (link for link in chain.links if link.content.get("run") == run_id and "rows" in link.content)
    links = [link for link in mine if not of_no_form(link.content)]  # the others are among what is damaged
    return {
        "root": None if bundle is None else (_unless(damaged, bundle, INDEX) or {}).get("root"),
        "files": [] if bundle is None or not bundle.is_dir() else sorted(file.name for file in bundle.iterdir()),
        "links": links,
        "head": links[-1] if links else chain.links[-1] if chain.links else None,
        "is_kept": bundle is not None and (bundle / "run.json").is_file(),
        "records": [one.name for one in records],
    }


# --- charts -----------------------------------------------------------------------------------------------------------


def _charts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Draw what changed by chunk: each measure, the slice that moved most, and a map of all slices."""
    from backfill_assets.audit import charts  # noqa: PLC0415 - Matplotlib takes a moment, and only a report needs it

    keys, after, before = facts["keys"], facts["slices"], facts["earlier"]
    if not _flat(after) and not _flat(before):
        return {}
    measures = [one["name"] for one in facts["totals"]][:_PANELS]
    per_chunk = {key: _sums(after[key]) for key in keys}
    was = {key: _sums(before[key]) if key in before else None for key in keys}
    panels = {name: (_series(was, keys, name), _series(per_chunk, keys, name)) for name in measures}
    drawn = {"measures": Markup(charts.before_and_after(panels, keys, "measures"))}  # noqa: S704 - drawn by Matplotlib
    column = _moved_most(facts["by_slice"])
    if column is not None:
        drawn["slice"] = Markup(charts.before_and_after(_panels_by(column, facts), keys, column))  # noqa: S704
    columns = _slice_columns([*_flat(after), *_flat(before)])
    lines, is_change = _lines(facts, columns)
    drawn["map"] = Markup(charts.heat_map(lines, keys, is_change=is_change))  # noqa: S704
    return drawn | {"slice_column": column, "map_columns": columns, "is_change": is_change, "lines": len(lines)}


def _series(by_chunk: Mapping[str, Mapping[str, int] | None], keys: Sequence[str], name: str) -> list[float | None]:
    return [None if (sums := by_chunk[key]) is None else sums.get(name, 0) for key in keys]


def _moved_most(by_slice: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the slice column one value of which changed most in rows, in percent; the first where nothing did."""
    best: tuple[float, str] | None = None
    for one in by_slice:
        moved = max((_change(line["measures"][0]) for line in one["lines"]), default=0.0)
        if best is None or moved > best[0]:
            best = (moved, str(one["column"]))
    return None if best is None else best[1]


def _change(measure: Mapping[str, Any]) -> float:
    before, after = measure["before"], measure["after"]
    if before is None or before == after:
        return 0.0
    return 100.0 if not before else abs(after - before) * 100.0 / before


def _panels_by(column: str, facts: Mapping[str, Any]) -> dict[str, tuple[list[float | None], list[float | None]]]:
    (found,) = [one for one in facts["by_slice"] if one["column"] == column]
    lines = sorted(found["lines"], key=lambda line: (-_change(line["measures"][0]), -line["measures"][0]["after"]))
    values = [line["value"] for line in lines[:_PANELS]]
    name = found["measures"][0]
    sides = []
    for slices in (facts["earlier"], facts["slices"]):
        grouped = {key: _grouped(slices[key], column) if key in slices else None for key in facts["keys"]}
        sides.append(grouped)
    return {
        f"{name}, {column} {value}": tuple(  # type: ignore[misc]
            [
                None if (groups := side[key]) is None else groups.get(value, _NOTHING).get(name, 0)
                for key in facts["keys"]
            ]
            for side in sides
        )
        for value in values
    }


def _lines(facts: Mapping[str, Any], columns: Sequence[str]) -> tuple[dict[str, list[float | None]], bool]:
    """Return the lines of the map: change of rows in percent by slice and chunk; rows, where nothing was there before."""
    keys, before = facts["keys"], facts["earlier"]
    new = {key: _grouped(facts["slices"][key], *columns) for key in keys}
    old = {key: _grouped(before[key], *columns) if key in before else None for key in keys}
    values = sorted({value for side in (new, old) for groups in side.values() for value in groups or ()})
    lines: dict[str, list[float | None]] = {}
    for value in values:
        line: list[float | None] = []
        for key in keys:
            there = new[key].get(value, _NOTHING).get("rows", 0)
            if not before:
                line.append(there)
                continue
            was = None if (groups := old[key]) is None else groups.get(value, _NOTHING).get("rows", 0)
            line.append(None if was is None or (not was and not there) else _ratio(was, there))
        lines[value] = line
    largest = sorted(lines, key=lambda value: -max((abs(one) for one in lines[value] if one is not None), default=0))
    kept = set(largest[:_LINES])
    return {value: line for value, line in lines.items() if value in kept}, bool(before)


def _ratio(before: int, after: int) -> float:
    """Return a change in percent; what was not there before counts as doubled, so that it does not drown the others."""
    return 100.0 if not before else max(-100.0, min(100.0, (after - before) * 100.0 / before))


# --- how values look --------------------------------------------------------------------------------------------------


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, (int, float)) else str(value)


def _signed(after: int, before: int | None) -> str:
    return "-" if before is None else f"{after - before:+,}" if after != before else "0"


def _percent(after: int, before: int | None) -> str:
    if before is None:
        return "-"
    if after == before:
        return "0%"
    return f"{(after - before) * 100 / before:+.2f}%" if before else "new"


def _instant(value: Any) -> str:
    return "-" if value is None else f"{str(value)[:19].replace('T', ' ')} UTC"


def _prose(text: str) -> Markup:
    """Return a sentence with what stands between backticks as code, and nothing else of it as markup."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before


def _figure(value: str | None) -> str:
    """Return an exact figure that is given as text with its thousands apart."""
    if value is None:
        return "-"
    whole, point, rest = value.partition(".")
    return f"{int(whole):,}{point}{rest}" if whole.lstrip("-").isdigit() and whole != "-0" else value


def _cell(value: Any) -> str:
    """Return a value as people write it: of a mapping each name with its value, of a list the values."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(one)}" for name, one in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(map(_cell, value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
