"""How a diff is shown: on a terminal, and as Markdown in Dagster.

Put here how it looks. What is in it is `diff`'s; it is shown from the summary alone, so that a recorded one looks the
same.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg
from rich.console import Group, RenderableType
from rich.text import Text

from backfill_assets.console import Table, facts
from backfill_assets.derive import ADDED, CHANGED, REMOVED
from backfill_assets.diff import Made, diff_summary
from backfill_assets.diff_records import ChangesTable, ColumnDiff, RunDiff
from backfill_assets.launched_by import RUN_TAG
from backfill_assets.markup import table
from backfill_assets.platform import Platform, target_named
from backfill_assets.staging import asset_key
from manifests.planner import Plan

_STYLE = {ADDED: "green", REMOVED: "red", CHANGED: "yellow"}
_BAR = 24
_MOST_PLACES = 36
"""With more chunks than this they are shown by year (months) or by month (days); JSON has all of them."""
_MOST_ROWS, _MOST_LARGEST = 12, 3


def shown(made: Made, stale: Sequence[str] = ()) -> RenderableType:
    """Show a diff on a terminal."""
    diff = made.diff
    pairs: list[tuple[str, object]] = [
        ("compared", f"{diff.target}: {_before(diff)} with {_after(diff)}, by {', '.join(diff.key)}"),
        ("rows", _kinds(diff.added, diff.removed, diff.changed, diff.unchanged)),
        *([("not shown", _concealed(diff.concealed))] if diff.concealed else []),
        *([] if made.new else [("made", f"{diff.made_at} by {diff.made_by}; shown as it is on record")]),
        *([("changed rows", _where(made.table))] if made.table else []),
    ]
    parts: list[RenderableType] = [facts(pairs, f"what {diff.run_id} changes")]
    if stale:
        parts.append(
            Text(
                f"{len(stale)} chunk(s) have been changed by others since the run was planned ({', '.join(stale[:5])}): "
                "before is what it was planned on, not what readers have now",
                "bold red",
            )
        )
    parts += [Text(), _places(diff), Text(), _columns(diff.columns, diff.changed)]
    if diff.largest:
        parts += [Text(), _largest(diff)]
    if diff.sample:
        parts += [Text(), _sample(diff)]
    return Group(*parts)


def _concealed(rows: int) -> str:
    return f"{rows:,} changed row(s) of erased subjects: counted, and nowhere else"


def _before(diff: RunDiff) -> str:
    return "no rows" if diff.base_snapshot_id is None else f"snapshot {diff.base_snapshot_id}"


def _after(diff: RunDiff) -> str:
    return {
        "MERGE_BY_KEY": "the rows after the merge",
        "CORRECTION_EVENTS": "the rows with the corrections applied",
    }.get(diff.publish_mode, "the staged rows")


def _kinds(added: int, removed: int, changed: int, unchanged: int) -> Text:
    text = Text()
    for number, kind in ((added, ADDED), (removed, REMOVED), (changed, CHANGED)):
        text.append(f"{number:,} {kind.lower()}", _STYLE[kind] if number else "dim")
        text.append(", ")
    return text.append(f"{unchanged:,} unchanged")


def _where(table: ChangesTable) -> str:
    return f"{table.rows:,} in {table.table}, snapshot {table.snapshot_id}"


def places(diff: RunDiff) -> list[tuple[str, int, int, int, int]]:
    """Return added, removed, changed and unchanged rows by chunk; of many chunks by what the first of their key says."""
    many = len(diff.chunks) > _MOST_PLACES
    sums: dict[str, list[int]] = {}
    for chunk in diff.chunks:
        found = sums.setdefault(chunk.chunk.rpartition("-")[0] if many else chunk.chunk, [0, 0, 0, 0])
        for place, number in enumerate((chunk.added, chunk.removed, chunk.changed, chunk.unchanged)):
            found[place] += number
    return [(name, found[0], found[1], found[2], found[3]) for name, found in sums.items()]


def _places(diff: RunDiff) -> Table:
    table = Table(title="by chunk", title_justify="left")
    table.add_column("chunk" if len(diff.chunks) <= _MOST_PLACES else "chunks of")
    for name in ("added", "removed", "changed", "unchanged"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("share of rows that differ", no_wrap=True)
    found = places(diff)
    most = max((sum(row[1:4]) / (sum(row[1:]) or 1) for row in found), default=0) or 1
    for name, *numbers in found:
        total = sum(numbers) or 1
        bar = Text()
        share = sum(numbers[:3]) / total
        for cells, kind in zip(_cells(numbers[:3], round(_BAR * share / most)), (ADDED, REMOVED, CHANGED), strict=True):
            bar.append("█" * cells, _STYLE[kind])
        bar.append(f" {share:.2%}" if share else "", "dim")
        table.add_row(name, *(f"{number:,}" for number in numbers), bar)
    return table


def _cells(numbers: Sequence[int], length: int) -> list[int]:
    """Spread the cells of a bar over numbers by their share, each that is not 0 at least one: equal bars stay equal."""
    whole = sum(numbers)
    cells = [max(int(number > 0), length * number // (whole or 1)) for number in numbers]
    while whole and sum(cells) < length:  # to those of which most was cut off
        place = max(range(len(cells)), key=lambda at: length * numbers[at] - cells[at] * whole)
        cells[place] += 1
    while sum(cells) > max(length, sum(number > 0 for number in numbers)):
        cells[cells.index(max(cells))] -= 1
    return cells


def _columns(columns: Sequence[ColumnDiff], changed: int) -> Table:
    table = Table(title="by column", title_justify="left")
    table.add_column("column")
    for name in ("differs in", "of changed rows", "sum before", "sum after", "delta"):
        table.add_column(name, justify="right", no_wrap=True)
    for column in columns:
        share = f"{column.changed / changed:.1%}" if changed else ""
        sums = (_number(text) for text in (column.before, column.after, column.delta))
        style = "" if column.changed else "dim"
        table.add_row(Text(column.column, style), Text(f"{column.changed:,}", style), Text(share, style), *sums)
    return table


def _number(text: str | None) -> str:
    if text is None:
        return ""
    whole, point, rest = text.partition(".")
    return f"{int(whole):,}{point}{rest}" if whole.lstrip("-").isdigit() and whole != "-0" else text


def _largest(diff: RunDiff) -> Table:
    table = Table(title="largest changes (--json has all that were kept)", title_justify="left")
    for name in ("column", "kind", "by", "before", "after", "chunk", "key"):
        table.add_column(name, justify="right" if name in {"by", "before", "after"} else "left")
    for row in _first_of_each(diff.largest):
        name = row["column"]
        sides = ("" if row[side] is None else str(row[side].get(name, "")) for side in ("old", "new"))
        table.add_row(name, Text(row["kind"], _STYLE[row["kind"]]), _by(row), *sides, row["chunk"], _key(row))
    return table


def _first_of_each(rows: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Yield the first few rows of each column and kind of change."""
    seen: Counter[tuple[str, str]] = Counter()
    for row in rows:
        seen[row["column"], row["kind"]] += 1
        if seen[row["column"], row["kind"]] <= _MOST_LARGEST:
            yield row


def _by(row: Mapping[str, Any]) -> str:
    return f"{row['by']} {row['unit']}".rstrip()


def _sample(diff: RunDiff) -> Table:
    title = f"sample: {min(len(diff.sample), _MOST_ROWS)} of {len(diff.sample)} rows (--json has all of them)"
    table = Table("chunk", "kind", "key", "what changed", title=title, title_justify="left")
    step = max(1, len(diff.sample) // _MOST_ROWS)
    for row in diff.sample[::step][:_MOST_ROWS]:
        table.add_row(row["chunk"], Text(row["kind"], _STYLE[row["kind"]]), _key(row), changes_of(row))
    return table


def _key(row: Mapping[str, Any]) -> str:
    return ", ".join(str(value) for value in row["key"].values())


def changes_of(row: Mapping[str, Any]) -> str:
    """Say what became of a row: each column that differs, or the values that came or went."""
    old, new = row["old"], row["new"]
    if old is not None and new is not None:
        return ", ".join(f"{name} {_value(old[name])} -> {_value(new[name])}" for name in new)
    return ", ".join(f"{name} {_value(value)}" for name, value in (old or new or {}).items() if value is not None)


def _value(value: object) -> str:
    return "null" if value is None else str(value)


# --- Dagster ----------------------------------------------------------------------------------------------------------


def metadata(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded diff as metadata of an asset."""
    names = ("column", "changed", "before", "after", "delta")
    columns = [[_cell(column[name]) for name in names] for column in summary["columns"]]
    chunk_names = ("chunk", "added", "removed", "changed", "unchanged")
    chunks = [[_cell(chunk[name]) for name in chunk_names] for chunk in summary["chunks"]]
    rows = [
        [row["column"], row["kind"], _by(row), row["chunk"], _key(row), changes_of(row)] for row in summary["largest"]
    ]
    found: dict[str, Any] = {
        "run": summary["run_id"],
        "rows added": summary["added"],
        "rows removed": summary["removed"],
        "rows changed": summary["changed"],
        "rows unchanged": summary["unchanged"],
        "changes by column": dg.MetadataValue.md(table(names, columns)),
        "changes by chunk": dg.MetadataValue.md(table(chunk_names, chunks)),
        "largest changes": dg.MetadataValue.md(table(("column", "kind", "by", "chunk", "key", "what changed"), rows)),
    }
    if summary.get("concealed"):
        found["rows not shown"] = _concealed(summary["concealed"])
    if kept := summary.get("changes_table"):
        found["changed rows"] = f"{kept['rows']:,} in {kept['table']}, snapshot {kept['snapshot_id']}"
    return found


def _cell(value: object) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def report(instance: dg.DagsterInstance, plan: Plan, summary: Mapping[str, Any]) -> None:
    """Show a diff on the staged asset, and on the partition of the run that its publication is."""
    target = target_named(plan.target)
    shown = metadata(summary)
    tags = {RUN_TAG: plan.run_id}
    for event in (
        dg.AssetObservation(asset_key(target.name), description=f"diff of {plan.run_id}", metadata=shown, tags=tags),
        dg.AssetObservation(asset_key(f"{target.name}_published"), partition=plan.run_id, metadata=shown, tags=tags),
    ):
        instance.report_runless_asset_event(event)


def of_run(platform: Platform, run_id: str) -> dict[str, Any]:
    """Return the recorded diff of a run as metadata of its publication; empty if none was made."""
    summary = diff_summary(platform, run_id)
    return {} if summary is None else {f"diff: {name}": value for name, value in metadata(summary).items()}
