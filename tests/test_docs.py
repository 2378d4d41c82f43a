"""What the pages show works: manifests are valid, Python runs, links lead somewhere, commands exist.

A block is tested if the line before its fence says so: `<!-- test: manifest -->` or `<!-- test: python -->`. The Python
blocks of a page run in order as one module. Bash blocks are never run: their `backfill` commands and options are looked
up.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, fields
from itertools import dropwhile, takewhile
from pathlib import Path
from types import ModuleType

import click
import pytest
from pydantic import BaseModel

from backfill_assets.cli.command import cli
from backfill_assets.declarations.target import TargetTable, TransformContext
from manifests.model import Evidence, Limits, RunManifest, Safety, Target, Validation, parse_manifest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")})
_FENCE = re.compile(r"(?P<indent> *)(?P<fence>```+|~~~+)(?P<language>[\w+-]*)")
_MARK = re.compile(r"\s*<!--\s*test:\s*(?P<kind>[\w-]+)\s*-->\s*")
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<to>[^)\s]+)(?:\s+\"[^\"]*\")?\)")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|#")
KINDS = {"manifest", "python"}


@dataclass(frozen=True)
class Block:
    """A fenced block: where its text begins (1-based line), its language, what it is tested as, its text."""

    page: Path
    line: int
    language: str
    tested_as: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def read_page(page: Path) -> tuple[list[Block], list[tuple[int, str]]]:
    """Return a page's fenced blocks, and its other lines with their numbers."""
    blocks: list[Block] = []
    prose: list[tuple[int, str]] = []
    lines = page.read_text(encoding="utf-8").splitlines() if page.is_file() else []
    number = 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        if opening is None:
            prose.append((number + 1, lines[number]))
            number += 1
            continue
        mark = _MARK.fullmatch(lines[number - 1]) if number else None
        first = number + 1
        number = next((at for at in range(first, len(lines)) if lines[at].strip() == opening["fence"]), len(lines))
        indent = len(opening["indent"])
        text = "".join(f"{line[indent:]}\n" for line in lines[first:number])
        blocks.append(Block(page, first + 1, opening["language"], mark["kind"] if mark else "", text))
        number += 1
    return blocks, prose


BLOCKS = [block for page in PAGES for block in read_page(page)[0]]
MANIFESTS = [block for block in BLOCKS if block.tested_as == "manifest"]
PYTHON = [block for block in BLOCKS if block.tested_as == "python"]
LINKS = [
    (page, line, link["to"])
    for page in PAGES
    for line, text in read_page(page)[1]
    for link in _LINK.finditer(text)
    if not _ELSEWHERE.match(link["to"])
]


def commands_of(block: Block) -> list[tuple[str, list[str]]]:
    """Return where each `backfill` command of a bash block stands, and its words up to the end of the command."""
    found = []
    for offset, line in enumerate(block.text.replace("\\\n", " \n").splitlines()):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
        for at, word in enumerate(words):
            if word == "backfill" or word.endswith("/backfill"):
                rest = words[at + 1 :]
                end = next((i for i, one in enumerate(rest) if set(one) <= set("();<>|&")), len(rest))
                found.append((f"{block.page.relative_to(ROOT)}:{block.line + offset}", rest[:end]))
    return found


COMMANDS = [command for block in BLOCKS if block.language in {"bash", "sh", "shell"} for command in commands_of(block)]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_pages_have_blocks_that_are_tested(kind: str) -> None:
    assert [block.where for block in BLOCKS if block.tested_as == kind]


def test_every_mark_names_a_known_test_and_stands_before_a_block() -> None:
    marked = {(block.page, block.line - 2): block.tested_as for block in BLOCKS if block.tested_as}
    stray = [
        f"{page.relative_to(ROOT)}:{line}: {text.strip()}"
        for page in PAGES
        for line, text in read_page(page)[1]
        if _MARK.fullmatch(text) and marked.get((page, line)) not in KINDS
    ]
    assert stray == []


@pytest.mark.parametrize("block", MANIFESTS, ids=lambda block: block.where)
def test_a_shown_manifest_is_valid(block: Block) -> None:
    parse_manifest(block.text, where=block.where)


@pytest.mark.parametrize("page", sorted({block.page for block in PYTHON}), ids=lambda page: page.name)
def test_the_shown_python_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a module, and not only a namespace: pandera and the gates look names up in the module of a class or function
    module = ModuleType(f"shown_in_{page.stem.lower().replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in PYTHON:
        if block.page == page:
            # blank lines before the text, so that an error names the page's own line
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), module.__dict__)


@pytest.mark.parametrize(("page", "line", "to"), LINKS, ids=[f"{page.name}:{line}:{to}" for page, line, to in LINKS])
def test_a_link_leads_to_a_file_of_the_repository(page: Path, line: int, to: str) -> None:
    target = (page.parent / to.partition("#")[0]).resolve()
    assert target.is_relative_to(ROOT)
    assert target.exists()


def _first_cells(page: str, heading: str) -> set[str]:
    """The names in the first column of the table that begins with `heading`."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    rows = takewhile(lambda line: line.startswith("|"), dropwhile(lambda line: not line.startswith(heading), lines))
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row.split("|")[1])}


def _names(model: type[BaseModel], within: str = "") -> set[str]:
    return {f"{within}{field.alias}" for field in model.model_fields.values()}


def test_the_table_of_a_manifest_has_every_field() -> None:
    names = _names(RunManifest) - {"series"}  # the planner writes it
    shown = _first_cells("runbook.md", "| field | meaning | if left out |")
    assert names <= {name.split(".")[0] for name in shown}
    parts = (
        _names(Target, "target.")
        | _names(Safety, "safety.")
        | _names(Validation, "validation.")
        | _names(Limits, "limits.")
        | _names(Evidence, "evidence.")
    )
    assert parts <= shown


def test_the_table_of_a_target_has_every_field() -> None:
    assert {field.name for field in fields(TargetTable)} <= _first_cells("adding-a-table.md", "| field | meaning |")


def test_the_table_of_a_context_has_every_field() -> None:
    page = (ROOT / "docs" / "adding-a-table.md").read_text(encoding="utf-8").split("`TransformContext`:")[1]
    assert {field.name for field in fields(TransformContext)} <= set(re.findall(r"`(\w+)`", page.split("\n\n")[1]))


@pytest.mark.parametrize(
    ("where", "words"), COMMANDS, ids=[f"{where} {' '.join(words[:2])}" for where, words in COMMANDS]
)
def test_a_shown_command_exists_with_its_options(where: str, words: list[str]) -> None:
    command: click.Command = cli
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        found = command.get_command(click.Context(command), name)
        assert found is not None, f"{where}: `{name}` is no command; there are {', '.join(command.commands)}"
        command = found
    known = {"--help", "-h", *(option for parameter in command.params for option in parameter.opts)}
    assert [word for word in rest if word.startswith("-") and word.split("=")[0] not in known] == []
