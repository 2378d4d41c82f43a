"""Values in Markdown: what somebody or some data says is shown as it is, and is no markup, no link and no second line.

Put here how a value gets into Markdown that Dagster or a ticket shows, and nothing about what is shown. HTML is escaped by
`html.escape` in `ui.pages` and by Jinja in the report.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from manifests.text import visible

_MARKUP = re.compile(r"[\\`*\[\]<>#~&!$]|(?<![^\W_])_|_(?![^\W_])")
"""What Markdown may read as markup; an underscore within a word is none."""
_AT_THE_START = re.compile(r"^([-+=:]+|[0-9]{1,9}[.)])(?=\s|$)")
_LINKS = re.compile(r"://|www\.|@|mailto:|xmpp:", re.IGNORECASE)
"""What GitHub's Markdown, which Dagster's is, makes a link of without being asked."""
_TICKS = re.compile(r"`+")


def escaped(value: object) -> str:
    """Return a value as Markdown that shows it as it is, in one line, for a table's cell as well as for a sentence."""
    text = visible(str(value))
    if _LINKS.search(text):
        return code(text)
    text = _MARKUP.sub(lambda found: f"\\{found[0]}", text)
    text = _AT_THE_START.sub(lambda found: f"{found[0][:-1]}\\{found[0][-1]}", text)
    return text.replace("|", "\\|")


def code(value: object) -> str:
    """Return a value as code in one line. A bar, which no code in a table's cell can say, is written as an escape."""
    text = visible(str(value)).replace("|", "\\x7c")
    if not text.strip():
        return text
    ticks = "`" * (1 + max((len(one) for one in _TICKS.findall(text)), default=0))
    room = " " if text.startswith(("`", " ")) or text.endswith(("`", " ")) else ""
    return f"{ticks}{room}{text}{room}{ticks}"


def block(lines: Iterable[str], language: str, indent: str = "") -> list[str]:
    """Return lines of code as a block that nothing in them ends."""
    shown = ["".join(one if one == "\t" else visible(one) for one in line) for line in lines]
    ticks = "`" * max(3, 1 + max((len(one) for line in shown for one in _TICKS.findall(line)), default=0))
    return [f"{indent}{ticks}{language}", *(f"{indent}{line}" for line in shown), f"{indent}{ticks}"]


def table(names: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a table of values."""
    head = [escaped(name) for name in names]
    lines = [head, ["---"] * len(head), *([escaped(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
