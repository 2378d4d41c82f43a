"""The terminal that the command prints to: how wide it is, and what it is never sent.

Put here what holds for whatever is printed. What is printed is `console`'s, `diff_view`'s and `explain_view`'s.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from errno import EPIPE
from typing import Any, TextIO

from rich import table as rich_table
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from manifests.text import visible_lines

_WIDTH, _LEAST_WIDTH, _MOST_WIDTH = 140, 40, 1000
_FRAME = 3
"""Cells beside each column of a table: its line, and a blank on either side."""


def _harmless(what: Any) -> Any:
    """Return something to print; a text without what the terminal would obey."""
    if isinstance(what, str):
        return Text(visible_lines(what))
    if isinstance(what, Text) and (text := visible_lines(what.plain)) != what.plain:
        return what.blank_copy(text)
    return what


class Table(rich_table.Table):
    """A table that never cuts what it shows: what is too wide for its column goes on in the next line."""

    def add_column(self, *arguments: Any, **options: Any) -> None:
        """Add a column, folded unless something else is asked for."""
        super().add_column(*arguments, **{"overflow": "fold"} | options)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row; its texts are as they are printed, so that columns are as wide as it takes."""
        super().add_row(*map(_harmless, cells), **options)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print it; where columns that are kept in one line have no room side by side, they go on in the next line, too."""
        needed = 1
        for column in self.columns:
            texts = [column.header, *column.cells] if column.no_wrap else []
            needed += _FRAME + max((console.measure(text).maximum for text in texts), default=1)
        if needed > options.max_width:
            for column in self.columns:
                column.no_wrap, column.min_width = False, None
        yield from super().__rich_console__(console, options)


class _Console(Console):
    """A console that leaves it to the command what becomes of an output that nobody reads any more."""

    def on_broken_pipe(self) -> None:
        """Raise what was met; the library would end the process as if the command had failed."""
        if self.stderr:
            super().on_broken_pipe()
        raise BrokenPipeError(EPIPE, "the output is closed")

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render something; what a record holds that the terminal would obey is written as an escape."""
        return super().render(_harmless(renderable), options)


def make_console(*, stderr: bool = False, file: TextIO | None = None) -> Console:
    """Return a console; where the output is not a terminal, as wide as COLUMNS says, else wide enough for tables.

    `file` is what it prints to, where that is not the stream itself.

    What people have typed is printed as it is: brackets are brackets and `:x:` is no picture.
    """
    console = _Console(stderr=stderr, file=file, highlight=False, markup=False, emoji=False)
    asked = os.environ.get("COLUMNS", "")
    if console.is_terminal or (asked.isdecimal() and _LEAST_WIDTH <= int(asked) <= _MOST_WIDTH):
        return console
    return _Console(stderr=stderr, file=file, highlight=False, markup=False, emoji=False, width=_WIDTH)
