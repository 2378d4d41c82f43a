"""How a diff is shown on a terminal; in Dagster it is `defs.diff_events`'.

Put here how it looks. What is in it is `review.diff`'s; it is shown from the summary alone, so that a recorded one looks the
same.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from backfill_assets.cli.console import facts
from backfill_assets.cli.terminal import Table
from backfill_assets.evidence.diff_records import ChangesTable, ColumnDiff, RunDiff
from backfill_assets.review.diff import Made
from backfill_assets.review.wording import amount, changes_of, key_of_row, not_shown, value_of, within_tolerances
from backfill_assets.worker.chunk_corrections import ADDED, CHANGED, REMOVED
from manifests.canonical import plain
from manifests.chunks import cell_of
from manifests.model import PublishMode

_STYLE = {ADDED: "green", REMOVED: "red", CHANGED: "yellow"}
_BAR = 14
"""Cells of the longest bar: beside four counts, it leaves a terminal of 80 columns room for a chunk's name."""
_MOST_PLACES = 36
"""With more chunks than this they are shown by year (months) or by month (days); JSON has all of them."""
_MOST_ROWS, _MOST_LARGEST = 12, 3


def shown(made: Made, stale: Sequence[str] = ()) -> RenderableType:
    """Show a diff on a terminal."""
    diff = made.diff
    pairs: list[tuple[str, object]] = [
        ("compared", f"{diff.target}: {_before(diff)} with {_after(diff)}, by {', '.join(diff.key)}"),
        ("rows", _kinds(diff.added, diff.removed, diff.changed, diff.unchanged)),
        *([("within tolerance", within_tolerances(plain(diff)))] if diff.within else []),
        *([("not shown", not_shown(diff.concealed))] if diff.concealed else []),
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


def _before(diff: RunDiff) -> str:
    return "no rows" if diff.base_snapshot_id is None else f"snapshot {diff.base_snapshot_id}"


def _after(diff: RunDiff) -> str:
    named = diff.publish_mode
    return PublishMode(named).rows_after if named in set(PublishMode) else f"the staged rows ({named})"


def _kinds(added: int, removed: int, changed: int, unchanged: int) -> Text:
    text = Text()
    for number, kind in ((added, ADDED), (removed, REMOVED), (changed, CHANGED)):
        text.append(f"{number:,} {kind.lower()}", _STYLE[kind] if number else "dim")
        text.append(", ")
    return text.append(f"{unchanged:,} unchanged")


def _where(table: ChangesTable) -> str:
    return f"{table.rows:,} in {table.table}, snapshot {table.snapshot_id}"


def places(diff: RunDiff) -> list[tuple[str, int, int, int, int]]:
    """Return added, removed, changed and unchanged rows by chunk; of many chunks by year, month or day, and by part."""
    many = len(diff.chunks) > _MOST_PLACES
    sums: dict[str, list[int]] = {}
    for chunk in diff.chunks:
        found = sums.setdefault(cell_of(chunk.chunk)[0] if many else chunk.chunk, [0, 0, 0, 0])
        for place, number in enumerate((chunk.added, chunk.removed, chunk.changed, chunk.unchanged)):
            found[place] += number
    return [(name, found[0], found[1], found[2], found[3]) for name, found in sums.items()]


def _places(diff: RunDiff) -> Table:
    table = Table(title="by chunk", title_justify="left")
    table.add_column("chunk" if len(diff.chunks) <= _MOST_PLACES else "chunks of", no_wrap=True)
    for name in ("added", "removed", "changed", "unchanged"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("rows that differ")
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
        sides = ("" if row[side] is None else value_of(row[side].get(name)) for side in ("old", "new"))
        table.add_row(name, Text(row["kind"], _STYLE[row["kind"]]), amount(row), *sides, row["chunk"], key_of_row(row))
    return table


def _first_of_each(rows: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Yield the first few rows of each column and kind of change."""
    seen: Counter[tuple[str, str]] = Counter()
    for row in rows:
        seen[row["column"], row["kind"]] += 1
        if seen[row["column"], row["kind"]] <= _MOST_LARGEST:
            yield row


def _sample(diff: RunDiff) -> Table:
    title = f"sample: {min(len(diff.sample), _MOST_ROWS)} of {len(diff.sample)} rows (--json has all of them)"
    table = Table("chunk", "kind", "key", "what changed", title=title, title_justify="left")
    step = max(1, len(diff.sample) // _MOST_ROWS)
    for row in diff.sample[::step][:_MOST_ROWS]:
        table.add_row(row["chunk"], Text(row["kind"], _STYLE[row["kind"]]), key_of_row(row), changes_of(row))
    return table
