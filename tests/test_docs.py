"""What the pages say is so: manifests are valid, Python runs, links lead somewhere; names are those that the code has.

A block is tested if the line before its fence says so: `<!-- test: manifest -->`, `<!-- test: python -->`, or of a message of
Debezium `<!-- test: message -->`. The Python
blocks of a page run in order as one module. Bash blocks are never run: their `backfill` commands and options are looked
up. Names of files, modules, commands, events, variables and states are held against the code, in module headers, too.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, signature
from itertools import dropwhile, pairwise, product, takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from click.testing import CliRunner
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

import backfill_assets
from backfill_assets import _PLACES
from backfill_assets.cli.command import cli
from backfill_assets.declarations.apis import ApiFeed
from backfill_assets.declarations.changelogs import ChangedTable, Changelog
from backfill_assets.declarations.deliveries import Loader
from backfill_assets.declarations.feeds import DeliveryIndex, FileFeed, FileReader
from backfill_assets.declarations.logs import LogPlace
from backfill_assets.declarations.migrations import Migration
from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.reconciliations import (
    Comparison,
    Entities,
    Wrong,
    keys,
    outcome_level,
    record_level,
    state_level,
)
from backfill_assets.declarations.schedules import LivePolicy, ReconciliationPolicy
from backfill_assets.declarations.sinks import Sink
from backfill_assets.declarations.target import (
    ACCEPTED_ROWS_GATE,
    PUBLISHED_RULES_GATE,
    Finding,
    Needs,
    Reconciliation,
    TargetTable,
    TransformContext,
)
from backfill_assets.declarations.topics import Topic, TopicLimits, TopicSecurity
from backfill_assets.extraction.debezium import Boundary, Change, message_of
from backfill_assets.products.enforcement import PRODUCT as ENFORCEMENT
from manifests.lifecycle import TRANSITIONS, RunState
from manifests.merge_policy import MergePolicy
from manifests.migration_steps import Step
from manifests.model import (
    RUN_ID_RULE,
    Evidence,
    Kind,
    Limits,
    PublishMode,
    RunManifest,
    Safety,
    Semantics,
    Target,
    Validation,
    mode_of,
)
from manifests.policy import Policy, Rule, SourceRule
from manifests.reading import load_manifest, parse_manifest
from resources.settings import _OTHER_VARIABLES, Settings
from resources.sinks.declared import ToTopic

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")})
_FENCE = re.compile(r"(?P<indent> *)(?P<fence>```+|~~~+)(?P<language>[\w+-]*)")
_MARK = re.compile(r"\s*<!--\s*test:\s*(?P<kind>[\w-]+)\s*-->\s*")
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<to>[^)\s]+)(?:\s+\"[^\"]*\")?\)")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|#")
KINDS = {"manifest", "message", "python"}


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
MESSAGES = [block for block in BLOCKS if block.tested_as == "message"]
PYTHON = [block for block in BLOCKS if block.tested_as == "python"]
LINKS = [
    (page, line, link["to"])
    for page in PAGES
    for line, text in read_page(page)[1]
    for link in _LINK.finditer(text)
    if not _ELSEWHERE.match(link["to"])
]


def commands_in(line: str) -> Iterator[list[str]]:
    """Yield the words of each `backfill` command of a line, up to the end of the command."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    for at, word in enumerate(words):
        if word == "backfill" or word.endswith("/backfill"):
            rest = words[at + 1 :]
            yield rest[: next((i for i, one in enumerate(rest) if set(one) <= set("();<>|&")), len(rest))]


def spans_of(page: Path) -> list[str]:
    """Return the code spans of a page's text: also those that are broken between two lines."""
    return re.findall(r"`([^`]+)`", " ".join(text for _, text in read_page(page)[1]))


BASH = [block for block in BLOCKS if block.language in {"bash", "sh", "shell"}]
COMMANDS = [
    (f"{block.page.relative_to(ROOT)}:{block.line + offset}", words)
    for block in BASH
    for offset, line in enumerate(block.text.replace("\\\n", " \n").splitlines())
    for words in commands_in(line)
] + [
    (str(page.relative_to(ROOT)), words)
    for page in PAGES
    for span in dict.fromkeys(spans_of(page))
    if span.startswith("backfill ")
    for words in commands_in(span)
]


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


def _paths(said: dict[str, Any]) -> Iterator[str]:
    """Yield the members of a message that are explained: those of its value, and of source and transaction theirs."""
    for name, value in said["value"].items():
        yield from (f"{name}.{one}" for one in value) if name in {"source", "transaction"} else (name,)
    yield from ("key",) if "key" in said else ()


def test_the_shown_messages_are_read_and_each_of_their_members_is_explained() -> None:
    change, end = (message_of(block.text) for block in MESSAGES)
    assert isinstance(change, Change)
    assert isinstance(end, Boundary)
    assert (end.is_end, end.transaction, end.count) == (True, change.transaction, change.order)
    assert change.previous is not None
    assert change.previous < change.lsn < end.lsn
    assert (change.op, change.table, change.database, change.key) == ("u", "public.accounts", "bank", {"account_id": 7})
    assert change.was is not None
    assert change.row is not None
    page = MESSAGES[0].page.read_text(encoding="utf-8")
    assert f'"2": ({", ".join(json.dumps(name) for name in change.row)}),' in page, (
        "it has the columns of the declared version"
    )
    assert change.was.keys() == change.row.keys()
    shown = {path for block in MESSAGES for path in _paths(json.loads(block.text))}
    assert shown == _first_cells("change-data-capture.md", "| member | what it is used for |")


@pytest.mark.parametrize("page", sorted({block.page for block in PYTHON}), ids=lambda page: page.name)
def test_the_shown_python_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a module, and not only a namespace: pandera and the gates look names up in the module of a class or function
    module = ModuleType(f"shown_in_{page.stem.lower().replace('-', '_')}")
    module.__file__ = str(page)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in PYTHON:
        if block.page == page:
            # blank lines before the text, so that an error names the page's own line
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), module.__dict__)


@pytest.mark.parametrize(("page", "line", "to"), LINKS, ids=[f"{page.name}:{line}:{to}" for page, line, to in LINKS])
def test_a_link_leads_to_a_file_of_the_repository(page: Path, line: int, to: str) -> None:
    file, _, heading = to.partition("#")
    target = (page.parent / file).resolve() if file else page
    assert target.is_relative_to(ROOT)
    assert target.exists()
    assert not heading or heading in headings_of(target)


@cache
def headings_of(page: Path) -> frozenset[str]:
    """Return what a page's headings are linked by."""
    lines = (line.lstrip("#").strip().lower() for _, line in read_page(page)[1] if line.startswith("#"))
    return frozenset(re.sub(r"[^\w -]", "", line).replace(" ", "-") for line in lines)


def table(page: str, heading: str, number: int = 0) -> list[list[str]]:
    """Return the cells of a page's table that begins with `heading`, row by row, without its head."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    begins = [at for at, line in enumerate(lines) if line.startswith(heading)]
    assert len(begins) > number, f"{page} has no table {heading}"
    rows = takewhile(lambda line: line.startswith("|"), lines[begins[number] + 2 :])
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]


def coded(text: str) -> list[str]:
    """Return the names in code of a cell."""
    return re.findall(r"`([\w.-]+)`", text)


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


def test_the_table_of_a_manifest_says_what_a_run_id_is() -> None:
    rule = RUN_ID_RULE.partition(" (")[0].replace("'", "`").replace("a-z, 0-9", "`a-z`, `0-9`")
    assert rule in (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")


def test_the_table_of_a_target_has_every_field() -> None:
    assert {field.name for field in fields(TargetTable)} <= _first_cells("adding-a-table.md", "| field | meaning |")


@pytest.mark.parametrize(
    ("page", "policy"),
    [
        ("concepts.md", LivePolicy),
        ("concepts.md", ReconciliationPolicy),
        ("moving-house.md", Migration),
        ("logs.md", LogPlace),
        *(("kafka.md", one) for one in (Topic, TopicSecurity, TopicLimits)),
        ("publishing-to-topics.md", ToTopic),
        ("change-data-capture.md", Changelog),
        ("change-data-capture.md", ChangedTable),
        *(
            ("adding-a-table.md", one)
            for one in (
                Product,
                InputTable,
                Reconciliation,
                Needs,
                Finding,
                Comparison,
                Entities,
                Wrong,
                Loader,
                Sink,
                ApiFeed,
                FileFeed,
                FileReader,
                DeliveryIndex,
                MergePolicy,
            )
        ),
    ],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_the_table_of_a_declaration_has_every_field_and_what_it_is_if_left_out(page: str, policy: type) -> None:
    article = "an" if policy in {InputTable, Entities, ApiFeed} else "a"
    rows = table(f"docs/{page}", f"| field of {article} `{policy.__name__}` |")
    assert {name for row in rows for name in coded(row[0])} == {field.name for field in fields(policy)}
    if_left_out = {name: row[2] for row in rows for name in coded(row[0])}
    required = {one.name for one in fields(policy) if one.default is MISSING and one.default_factory is MISSING}
    assert {name for name, text in if_left_out.items() if text == "must be given"} == required
    defaults = {one.name: one.default for one in fields(policy) if isinstance(one.default, (str, int))}
    written = {name: str(value) for name, value in defaults.items() if not isinstance(value, bool)}
    assert {name for name, text in written.items() if text not in if_left_out[name]} == set()


@pytest.mark.parametrize(
    ("heading", "part"),
    [("| key |", Policy), ("| key of a rule |", Rule), ("| key of a source |", SourceRule)],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_the_tables_of_a_policy_have_every_key_that_its_file_may_hold(heading: str, part: type[BaseModel]) -> None:
    rows = table("docs/policy.md", f"{heading} meaning | if left out |")
    found = {to_camel(name): field.is_required() for name, field in part.model_fields.items()}
    assert {name for row in rows for name in coded(row[0])} == found.keys()
    assert {name for row in rows if row[2] == "required" for name in coded(row[0])} == {
        name for name, is_required in found.items() if is_required
    }


def test_the_steps_of_a_migration_are_shown_on_its_page_and_by_its_command() -> None:
    page = (ROOT / "docs" / "moving-house.md").read_text()
    shown = CliRunner().invoke(cli, ["migration", "--help"]).output
    assert {step.value for step in Step if step.value not in page or step.value not in shown} == set()


@pytest.mark.parametrize("function", [keys, record_level, outcome_level, state_level], ids=lambda one: one.__name__)
def test_the_table_of_a_piece_of_a_gate_has_every_argument(function: Callable[..., Any]) -> None:
    piece = "record_level` and `outcome_level" if function in {record_level, outcome_level} else function.__name__
    rows = table("docs/adding-a-table.md", f"| argument of `{piece}` |")
    given = signature(function).parameters
    assert [name for row in rows for name in coded(row[0])] == list(given)
    required = {name for row in rows for name in coded(row[0]) if row[2] == "must be given"}
    assert required == {name for name, one in given.items() if one.default is Parameter.empty}


def test_the_table_of_a_context_has_every_field() -> None:
    page = (ROOT / "docs" / "adding-a-table.md").read_text(encoding="utf-8").split("`TransformContext`:")[1]
    assert {field.name for field in fields(TransformContext)} <= set(re.findall(r"`(\w+)`", page.split("\n\n")[1]))


@pytest.mark.parametrize(
    ("where", "words"), COMMANDS, ids=[f"{where} {' '.join(words[:2])}" for where, words in COMMANDS]
)
def test_a_shown_command_exists_with_its_options(where: str, words: list[str]) -> None:
    command, rest = command_of(where, words)
    assert [word for word in rest if word.startswith("-") and word.split("=")[0] not in options_of(command)] == []


A_TABLE, A_FEED = "bronze.readings", "shop_orders"
"""Stand for TABLE and FEED: `backfill load` takes any name of a table, or of a feed, for a command."""


def command_of(where: str, words: Sequence[str]) -> tuple[click.Command, list[str]]:
    """Return the command that words begin with, and the other words."""
    command: click.Command = cli
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        found = command.get_command(click.Context(command), A_TABLE if name == "TABLE" else name)
        names = command.list_commands(click.Context(command))
        assert found is not None, f"{where}: `{name}` is no command; there are {', '.join(names)}"
        command = found
    return command, rest


def options_of(command: click.Command, *, below: bool = False) -> set[str]:
    """Return the options of a command, and if asked those of the commands below it."""
    found = {"--help", "-h", *(option for parameter in command.params for option in parameter.opts)}
    if below and isinstance(command, click.Group):
        context = click.Context(command)
        under = [command.get_command(context, name) for name in (*command.list_commands(context), A_TABLE, A_FEED)]
        found = found.union(*(options_of(one, below=True) for one in under if one is not None))
    return found


def test_the_table_of_commands_has_every_command_and_no_option_of_another() -> None:
    rows = table("docs/commands.md", "| command | what it does |")
    shown = {name: text for first, text in rows for _, name in re.findall(r"^`(backfill) ([\w-]+)", first)}
    assert shown.keys() == set(cli.list_commands(click.Context(cli)))
    strange = {
        f"{first}: {option}"
        for first, text in rows
        for option in re.findall(r"`(--[\w-]+)", text)
        if option not in options_of(command_of(first, first.strip("`").split()[1:2])[0], below=True)
    }
    assert strange == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_an_option_that_a_page_names_is_one_of_a_command(page: Path) -> None:
    named = {span.split()[0].split("=")[0] for span in spans_of(page) if span.startswith("--")}
    assert named <= options_of(cli, below=True)


# --- files and modules ------------------------------------------------------------------------------------------------

PACKAGES = ("backfill_assets", "resources", "manifests")
FOLDERS = tuple(f"{name}/" for name in (*PACKAGES, "tests", "docs", "benchmarks", "deploy"))
WRITTEN_BY_READERS = {
    f"backfill_assets/products/{name}" for name in ("metering/__init__.py", "metering.py", "metering/", "metering")
} | {"metering/__init__.py"}
SOURCES = [
    file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py")) if "migrations" not in file.parts
]
MODULES = {
    ".".join((file.parent if file.name == "__init__.py" else file.with_suffix("")).relative_to(ROOT).parts): file
    for file in SOURCES
}


@cache
def tree_of(file: Path) -> ast.Module:
    """Return a module's syntax tree."""
    return ast.parse(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_file_that_a_page_names_exists(page: Path) -> None:
    """A name is a path from the checkout's root, from the page's folder, or from `backfill_assets`."""
    words = {
        word for text in (*spans_of(page), *(one.text for one in BASH if one.page == page)) for word in text.split()
    }
    named = {word for word in words if (word.endswith(".py") or word.startswith(FOLDERS)) and "<" not in word}
    roots = (ROOT, page.parent, ROOT / "backfill_assets")
    assert {name for name in named - WRITTEN_BY_READERS if not any(any(root.glob(name)) for root in roots)} == set()


VOCABULARY = {
    node.name
    for name, file in MODULES.items()
    if name.startswith("backfill_assets.declarations.") or name in {*_PLACES.values(), "manifests.model"}
    for node in tree_of(file).body
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
}
"""The classes of the modules that a product's author takes names from."""


@pytest.mark.parametrize(
    "page", [one for one in PAGES if one.name not in {"architecture.md", "CHANGELOG.md"}], ids=lambda page: page.name
)
def test_a_name_of_the_vocabulary_that_a_page_names_is_exported(page: Path) -> None:
    spans = spans_of(page)
    named = {name for span in spans for name in re.findall(r"(?<![\w.-])[A-Z]\w*", span)} & VOCABULARY
    named |= {name for span in spans for name in re.findall(r"\bba\.(\w+)", span)}
    assert named - set(backfill_assets.__all__) == set()


def is_there(package: str, name: str) -> bool:
    """Whether a name is a module, or a name in one, seen from a package: a sibling, from its root, or a whole name."""
    for whole in (f"{package}.{name}", f"{package.split('.', maxsplit=1)[0]}.{name}", name):
        module, _, attribute = whole.rpartition(".")
        text = MODULES[module].read_text(encoding="utf-8") if module in MODULES and "." in name else ""
        if whole in MODULES or re.search(rf"\b{attribute}\b", text):
            return True
    return False


@pytest.mark.parametrize("page", [one for one in PAGES if one.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_a_module_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(rf"\b(?:{'|'.join(PACKAGES)})(?:\.[a-z]\w*)+", page.read_text(encoding="utf-8"))
    assert {name for name in named if not is_there("", name)} - {"backfill_assets.products.metering"} == set()


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_that_a_header_names_exists(module: str) -> None:
    """What has a possessive is a neighbour; so is what has a dot, unless it is a file or of a library."""
    file = MODULES[module]
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    neighbours = {
        name
        for name, owns in re.findall(r"`([a-z]\w*(?:\.\w+)*)`('s?)?", ast.get_docstring(tree_of(file)) or "")
        if owns or ("." in name and not re.search(r"\.(json|ya?ml|toml|html)$", name) and not of_a_library(name))
    }
    assert {name for name in neighbours if not is_there(package, name)} == set()


def of_a_library(name: str) -> bool:
    first = name.split(".", maxsplit=1)[0]
    return first not in PACKAGES and find_spec(first) is not None


def test_what_holds_is_enforced_where_the_table_says() -> None:
    wrong = []
    for _, enforced in table("docs/concepts.md", "| what holds | enforced in |"):
        for part in enforced.split("; "):
            path, *names = re.findall(r"`([^`]+)`", part)
            file = next((one for one in (ROOT / path, ROOT / "backfill_assets" / path) if one.is_file()), None)
            text = "" if file is None else file.read_text(encoding="utf-8")
            wrong += [part for name in names if not re.search(rf"\b{name.rpartition('.')[2]}\b", text)]
    assert wrong == []


def test_the_drawn_directions_are_those_that_the_linter_holds() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(one["layers"] for one in config["contracts"] if one["type"] == "layers")
    floors = [[name.removeprefix("backfill_assets.") for name in layer.split(" | ")] for layer in layers]
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^ *(\S.*) --> (.*)$", page.partition("```mermaid")[2].partition("```")[0], re.MULTILINE)
    arrows = {arrow for above, below in drawn for arrow in product(above.split(" & "), below.split(" & "))}
    expected = {arrow for above, below in pairwise(floors) for arrow in product(above, below)}
    assert arrows == expected | {("products", "declarations")}


def test_no_module_at_the_top_of_the_package_is_outside_the_linters_contracts() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers, no_plumbing, no_product, no_dagster = config["contracts"][:4]
    named = {name for layer in layers["layers"] for name in layer.split(" | ") if name.startswith("backfill_assets.")}
    top = {name for name in MODULES if name.startswith("backfill_assets.") and name.count(".") == 1}
    beside = {"delivered_files", "faults", "event_log", "coordination", "products"}  # the page says so
    assert named | {f"backfill_assets.{name}" for name in beside} == top
    speaks_dagster = {
        f"backfill_assets.{name}" for name in ("cli", "ui", "defs", "definitions", "event_log", "coordination")
    }
    assert {name for name in no_dagster["source_modules"] if "." in name} == top - speaks_dagster
    vocabulary = {f"backfill_assets.{name}" for name in ("declarations", "delivered_files", "products")}
    assert {name for name in no_plumbing["forbidden_modules"] if "." in name} == top - vocabulary
    assert top - {"backfill_assets.products"} == {name for name in no_product["source_modules"] if "." in name}


def test_no_module_function_or_folder_is_longer_than_the_house_rules_say() -> None:
    rule = (
        (ROOT / "CONTRIBUTING.md")
        .read_text(encoding="utf-8")
        .split("A function does one thing")[1]
        .partition("\n4.")[0]
    )
    of_function, of_module, *entries = map(int, re.findall(r"no more than (\d+)", rule))
    read = {file: file.read_text(encoding="utf-8") for file in MODULES.values() if file.parent.name != "versions"}
    assert {file: lines for file, text in read.items() if (lines := text.count("\n")) > of_module} == {}
    functions = {
        (file, node.name): (node.end_lineno or 0) - node.lineno + 1
        for file in read
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(functions) > 1000
    assert {where: lines for where, lines in functions.items() if lines > of_function} == {}
    for folder, most in zip(("backfill_assets", "resources"), entries, strict=True):
        assert len([entry for entry in (ROOT / folder).iterdir() if entry.name != "__pycache__"]) <= most


def test_every_package_has_its_paragraph_and_its_line_in_the_listing() -> None:
    packages = {name for name, file in MODULES.items() if file.name == "__init__.py" and name.count(".") <= 1} - {
        "backfill_assets",
        "resources",
    }
    listed = {
        coded_path.rstrip("/").replace("/", ".")
        for row in table("docs/architecture.md", "| package |")
        for coded_path in re.findall(r"`([\w/]+)`", row[0])
    }
    assert listed == packages
    modules = {name for name in MODULES if name.startswith("backfill_assets.") and name.count(".") == 1}
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    told = {name for bold in re.findall(r"^\*\*(.+?)\*\*", page, re.MULTILINE) for name in coded(bold)}
    assert told == {name.removeprefix("backfill_assets.") for name in packages | modules}


# --- names that the code has ------------------------------------------------------------------------------------------


def calls_of(tree: ast.AST, function: str) -> list[ast.Call]:
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call) and one.args]
    return [call for call in calls if ast.unparse(call.func).rpartition(".")[2] == function]


def functions_of(tree: ast.AST) -> list[ast.FunctionDef]:
    return [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]


def written_events() -> set[str]:
    """Return the name of every log event; a hole in a name is filled with what the function around it is called with."""
    found: set[str] = set()
    for module, file in MODULES.items():
        for call in calls_of(tree_of(file), "event"):
            name = call.args[2] if len(call.args) > 3 else None
            if isinstance(name, ast.Constant):
                found.add(name.value)
            elif isinstance(name, ast.JoinedStr):
                hole = next(one.id for one in ast.walk(name) if isinstance(one, ast.Name))
                around = [one for one in functions_of(tree_of(file)) if call in ast.walk(one)]
                takes = next(one for one in around if hole in [argument.arg for argument in one.args.args])
                place = [argument.arg for argument in takes.args.args].index(hole)
                for caller, source in MODULES.items():
                    for value in (one.args[place] for one in calls_of(tree_of(source), takes.name)):
                        filled = {hole: eval(ast.unparse(value), dict(vars(import_module(caller))))}
                        found.add(eval(ast.unparse(name), dict(vars(import_module(module))) | filled))
    return found


def test_the_events_of_the_logs_are_those_that_code_writes() -> None:
    shown: set[str] = set()
    for cell, _ in table("docs/operations.md", "| event | of |"):
        own, _, others = cell.partition("the same of")
        shown |= {name.replace("publish", action) for name in coded(own) for action in ("publish", *coded(others))}
    assert shown == written_events()


def test_the_variables_that_are_no_settings_are_those_that_are_let_pass() -> None:
    rows = table("docs/deployment.md", "| variable | what it is for |")
    assert {name for row in rows for name in coded(row[0])} == _OTHER_VARIABLES


def test_the_table_of_settings_has_every_field_with_its_variable() -> None:
    rows = table("docs/deployment.md", "| field | variable |")
    shown = {(coded(row[0])[0], coded(row[1])[0]) for row in rows}
    assert shown == {(name, f"BACKFILL_{name.upper()}") for name in Settings.model_fields}


def test_the_kinds_of_runs_have_the_modes_that_the_table_says() -> None:
    shown = {kind: coded(mode) for kinds, mode in table("docs/concepts.md", "| kind | mode |") for kind in coded(kinds)}
    assert shown == {kind.value: [mode_of(kind).value] for kind in Kind}


@pytest.mark.parametrize(
    ("heading", "names"),
    [("| state |", RunState), ("| mode | what the commit does |", PublishMode), ("| semantics |", Semantics)],
    ids=["states", "publish modes", "semantics"],
)
def test_a_table_of_names_has_those_that_there_are(heading: str, names: type[StrEnum]) -> None:
    assert {name for row in table("docs/concepts.md", heading) for name in coded(row[0])} == {*names}


def test_every_publish_mode_has_an_example() -> None:
    assert {load_manifest(file).target.publish_mode for file in (ROOT / "manifests").glob("*.yaml")} == {*PublishMode}


def test_the_drawn_states_change_as_the_lifecycle_lets_them() -> None:
    page = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^ +([A-Z_]+) --> ([A-Z_]+)$", page, re.MULTILINE)
    assert set(drawn) == {(state.value, other.value) for state, others in TRANSITIONS.items() for other in others}


def test_the_gates_of_the_tables_are_those_that_judge() -> None:
    own, of_reconciliations = (
        {name for row in table("docs/concepts.md", "| gate | level |", number) for name in coded(row[0])}
        for number in (0, 1)
    )
    assert own == {gate.name for target in ENFORCEMENT.targets for gate in target.reconciliations}
    assert of_reconciliations == {PUBLISHED_RULES_GATE, ACCEPTED_ROWS_GATE}


def test_the_kinds_of_findings_are_those_of_the_doctor() -> None:
    named: set[str] = set()
    for function in (one for file in SOURCES for one in functions_of(tree_of(file))):
        kinds: list[ast.expr] = [call.args[0] for call in calls_of(function, "Disagreement")]
        if any(isinstance(kind, ast.Name) for kind in kinds):
            kinds += [one.elts[0] for one in ast.walk(function) if isinstance(one, ast.Tuple) and one.elts]
        texts = [one.value for kind in kinds for one in ast.walk(kind) if isinstance(one, ast.Constant)]
        named |= {text for text in texts if isinstance(text, str)}
    assert {name for row in table("docs/runbook.md", "| kind | what | repair |") for name in coded(row[0])} == named


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("adding-a-table.md", "`first_rows(rows: pl.DataFrame) -> pl.DataFrame`"),
        ("adding-a-table.md", "There is no look-ahead"),
        ("deployment.md", "DuckDB alone: `iceberg_scan"),
        ("deployment.md", "Spark, Trino and other engines"),
        ("deployment.md", "who may decide in the UI, and under whose name, says the [policy](policy.md)"),
        ("security.md", "Decisions can also be made in the UI"),
        ("runbook.md", "Dagster makes a launch for each"),
    ],
)
def test_what_a_first_user_looked_for_in_vain_is_on_its_page(page: str, said: str) -> None:
    assert said in " ".join((ROOT / "docs" / page).read_text().split())


def test_what_one_machine_cannot_prove_comes_first() -> None:
    first = next(one for one in (ROOT / "docs" / "security.md").read_text().split("\n\n") if not one.startswith("#"))
    assert first.startswith("**What one machine cannot prove.**")


def test_the_tutorials_readings_are_made_with_nothing_installed() -> None:
    tree = ast.parse((ROOT / "docs" / "tutorial" / "make_readings.py").read_text())
    imported = [
        one for node in ast.walk(tree) if isinstance(node, ast.Import) for one in (alias.name for alias in node.names)
    ]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert imported
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
