"""Which charts a report has: each measure, the slice that moved most, and a map of all slices.

Put here what is drawn of which figures. How a chart is drawn is `charts`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from backfill_assets.audit.report_measures import NOTHING, flat, slice_columns, sums_by, sums_of_rows

_PANELS = 6
_LINES = 40
"""The most lines of a heat map."""


def charts_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Draw what changed by chunk: each measure, the slice that moved most, and a map of all slices."""
    from backfill_assets.audit import charts  # noqa: PLC0415 - Matplotlib takes a moment, and only a report needs it

    keys, after, before = facts["keys"], facts["slices"], facts["earlier"]
    if not flat(after) and not flat(before):
        return {}
    measures = [one["name"] for one in facts["totals"]][:_PANELS]
    per_chunk = {key: sums_of_rows(after[key]) for key in keys}
    was = {key: sums_of_rows(before[key]) if key in before else None for key in keys}
    panels = {name: (_series(was, keys, name), _series(per_chunk, keys, name)) for name in measures}
    drawn = {"measures": Markup(charts.before_and_after(panels, keys, "measures"))}  # noqa: S704 - drawn by Matplotlib
    column = _moved_most(facts["by_slice"])
    if column is not None:
        drawn["slice"] = Markup(charts.before_and_after(_panels_by(column, facts), keys, column))  # noqa: S704
    columns = slice_columns([*flat(after), *flat(before)])
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
        grouped = {key: sums_by(slices[key], column) if key in slices else None for key in facts["keys"]}
        sides.append(grouped)
    return {
        f"{name}, {column} {value}": tuple(  # type: ignore[misc]
            [
                None if (groups := side[key]) is None else groups.get(value, NOTHING).get(name, 0)
                for key in facts["keys"]
            ]
            for side in sides
        )
        for value in values
    }


def _lines(facts: Mapping[str, Any], columns: Sequence[str]) -> tuple[dict[str, list[float | None]], bool]:
    """Return the lines of the map: change of rows in percent by slice and chunk; rows, where nothing was there before."""
    keys, before = facts["keys"], facts["earlier"]
    new = {key: sums_by(facts["slices"][key], *columns) for key in keys}
    old = {key: sums_by(before[key], *columns) if key in before else None for key in keys}
    values = sorted({value for side in (new, old) for groups in side.values() for value in groups or ()})
    lines: dict[str, list[float | None]] = {}
    for value in values:
        line: list[float | None] = []
        for key in keys:
            there = new[key].get(value, NOTHING).get("rows", 0)
            if not before:
                line.append(there)
                continue
            was = None if (groups := old[key]) is None else groups.get(value, NOTHING).get("rows", 0)
            line.append(None if was is None or (not was and not there) else _ratio(was, there))
        lines[value] = line
    largest = sorted(lines, key=lambda value: -max((abs(one) for one in lines[value] if one is not None), default=0))
    kept = set(largest[:_LINES])
    return {value: line for value, line in lines.items() if value in kept}, bool(before)


def _ratio(before: int, after: int) -> float:
    """Return a change in percent; what was not there before counts as doubled, so that it does not drown the others."""
    return 100.0 if not before else max(-100.0, min(100.0, (after - before) * 100.0 / before))
