"""Measures of a run in its report: added up over chunks and by slice, before and after.

Put here sums. What is measured is the product's, how the sums are drawn `report_charts`'.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NOTHING: Mapping[str, int] = {}


def totals_of(after: Mapping[str, Sequence[Mapping[str, Any]]], before: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Add up each measure over all chunks, before and after; only chunks that had rows accepted have a before."""
    new, old = sums_of_rows(flat(after)), sums_of_rows(flat(before))
    return [
        {"name": name, "before": old.get(name) if before else None, "after": new.get(name, 0)} for name in new | old
    ]


def slices_of(after: Mapping[str, Any], before: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Add up each measure by the values of each slice column."""
    found = []
    for column in slice_columns([*flat(after), *flat(before)]):
        new, old = ({} if not side else sums_by(flat(side), column) for side in (after, before))
        names = sorted(
            {name for sums in [*new.values(), *old.values()] for name in sums}, key=lambda name: name != "rows"
        )
        lines = [
            {
                "value": value,
                "measures": [
                    {
                        "before": old.get(value, NOTHING).get(name, 0) if before else None,
                        "after": new.get(value, NOTHING).get(name, 0),
                    }
                    for name in names
                ],
            }
            for value in sorted(new.keys() | old.keys())
        ]
        found.append({"column": column, "measures": names, "lines": lines})
    return found


def flat(slices: Mapping[str, Iterable[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    """Return the rows of all chunks."""
    return [row for rows in slices.values() for row in rows]


def _is_sum(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def slice_columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the columns of rows that are no sums."""
    return sorted({name for row in rows for name, value in row.items() if not _is_sum(value)})


def sums_of_rows(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Add up the sums of rows, the number of rows first."""
    sums: dict[str, int] = defaultdict(int)
    for row in rows:
        for name, value in row.items():
            if _is_sum(value):
                sums[name] += value
    return dict(sorted(sums.items(), key=lambda item: (item[0] != "rows", item[0])))


def sums_by(rows: Iterable[Mapping[str, Any]], *columns: str) -> dict[str, dict[str, int]]:
    """Add up the sums of rows by the values of columns."""
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[" · ".join(str(row.get(column)) for column in columns)].append(row)
    return {value: sums_of_rows(members) for value, members in groups.items()}
