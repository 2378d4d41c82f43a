"""What people are told of a run, a verdict or a changed row, wherever they read it: terminal, pages, Dagster.

Put here words. How they are laid out is the terminal's (`cli.console`), the pages' (`ui.pages`) and Dagster's (`defs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backfill_assets.evidence.diff_records import RunDiff
    from resources.ledger.facade import RunRecord, Verdict

_COLUMNS = 3


def of_kind(record: RunRecord) -> str:
    """Return a run's kind, and that it is a dry run, which readers never see."""
    return record.kind if record.manifest.execution_mode.publishes else f"{record.kind} ({record.mode})"


def failed_chunks(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts of chunks that did not pass, in the order of the chunks."""
    return sorted((one for one in verdicts if one.chunk and not one.passed), key=lambda one: one.chunk)


def in_short(diff: RunDiff) -> str:
    """Say in one line how many rows a run changes, and how."""
    said = f"{diff.added:,} rows added, {diff.removed:,} removed, {diff.changed:,} changed, {diff.unchanged:,} as they were"
    most = sorted((one for one in diff.columns if one.changed), key=lambda one: (-one.changed, one.column))[:_COLUMNS]
    return said + (f"; mostly {', '.join(f'{one.column} ({one.changed:,})' for one in most)}" if most else "")


def within_tolerances(diff: Mapping[str, Any]) -> str:
    """Say of a diff, as its record has it, how many values differ by no more than the tolerance of their column."""
    columns = ", ".join(
        f"{one['column']}: {one['values']:,} value(s) within {one['tolerance']}" for one in diff["within"]
    )
    return f"{diff.get('within_rows', 0):,} row(s) differ in nothing else and count as unchanged; {columns}"


def not_shown(rows: int) -> str:
    """Return what is said of changed rows whose subjects were erased."""
    return f"{rows:,} changed row(s) of erased subjects: counted, and nowhere else"


def amount(row: Mapping[str, Any]) -> str:
    """Return by how much a value of a changed row differs, with its unit."""
    return f"{row['by']} {row['unit']}".rstrip()


def key_of_row(row: Mapping[str, Any]) -> str:
    """Return the key of a changed row in one line: each column and its value, since those of a diff on record are in no order."""
    return ", ".join(f"{name} {value_of(value)}" for name, value in sorted(row["key"].items()))


def changes_of(row: Mapping[str, Any]) -> str:
    """Say what became of a row: each column that differs, or the values that came or went."""
    old, new = row["old"], row["new"]
    if old is not None and new is not None:
        return ", ".join(f"{name} {value_of(old[name])} -> {value_of(new[name])}" for name in new)
    return ", ".join(f"{name} {value_of(value)}" for name, value in (old or new or {}).items() if value is not None)


def value_of(value: object) -> str:
    """Return a value as a cell shows it."""
    return "null" if value is None else str(value)
