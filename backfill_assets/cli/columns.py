"""What `backfill init` shows of columns: what differs between models and tables, and what becomes of it.

Put here how differences are printed. What they are is `operations.columns`'.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from backfill_assets.cli.base import EXIT_REFUSED, say, show, tell
from backfill_assets.cli.console import entries
from backfill_assets.cli.terminal import Table

if TYPE_CHECKING:
    from backfill_assets.installation import Platform
    from backfill_assets.operations.columns import TableDifference
    from resources.lakehouse.column_changes import ColumnChange

EXIT_DIFFERENT = 3
"""Of a preview: something would be made or changed, and nothing refused."""


def preview(platform: Platform, as_json: bool) -> None:
    """Print what differs between tables and models, and end with the exit code that says so; nothing is written."""
    from backfill_assets.operations.columns import differences

    found = differences(platform)
    if as_json:
        say({"home": str(platform.settings.home), "tables": [one.shown() for one in found]})
    else:
        show_differences(found)
    if any(one.problems for one in found):
        sys.exit(EXIT_REFUSED)
    if any(one.is_new or one.changes for one in found):
        sys.exit(EXIT_DIFFERENT)


def told(changes: Sequence[ColumnChange]) -> list[str]:
    """Return changes in words, one each."""
    return [f"{one.change.value} {one.column} ({one.was} -> {one.becomes})".replace("  ", " ") for one in changes]


def show_differences(found: Sequence[TableDifference]) -> None:
    """Print what differs, for a person."""
    new, differing = [one for one in found if one.is_new], [one for one in found if one.changes]
    for one in new:
        tell(f"{one.table}: is not there yet, and would be made")
    if differing:
        table = Table(title="columns: tables and their models", title_justify="left")
        for name in ("table", "column", "change", "was", "becomes", "what readers see", "how"):
            table.add_column(name, overflow="fold")
        for one in differing:
            for change in one.changes:
                refused = change.problem is not None
                how = Text("refused", "red") if refused else Text("metadata only", "green")
                words = (one.table, change.column, change.change.value, change.was, change.becomes, change.readers)
                table.add_row(*map(Text, words), how)
        show(table)
    for problem in (problem for one in differing for problem in one.problems):
        tell(problem.what)
        show(entries([f"rule: {problem.rule}", f"what to do: {problem.fix}"]))
    if any(one.problems for one in found):
        tell("`backfill init` would refuse all of it, and change nothing")
    elif differing:
        tell("`backfill init` applies it: no file is rewritten, and old snapshots keep their columns")
    elif not new:
        tell("tables and models agree: `backfill init` would change no column")
