"""The files of a new product: written as a whole or not at all, over nothing that is there.

Put here what a file is called and how it is written. What it says is in `templates/`, and what of that is drafted in `drafts`.
"""

from __future__ import annotations

import json
import keyword
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from datetime import date, timedelta
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import jinja2
import polars as pl

from backfill_assets.declarations.finding import installed
from backfill_assets.operations.new_product.drafts import SAMPLE, Draft
from backfill_assets.operations.new_product.guesses import NamedColumn
from manifests.chunks import Chunking, following, last_day
from manifests.errors import InputRefused, Problem
from manifests.fields import NAME_PATTERN, NAME_WORDS

_LINE = 120
_EXAMPLE_ROWS = 3 * 91 * 2
_IGNORED = ".backfill/\n*.egg-info/\n__pycache__/\n.pytest_cache/\n"
_TEST_ROWS = 250


def folder_of(name: str) -> Path:
    """Return the folder that a product is written into.

    It is not called what the package in it is: where Python, or a worker of Spark, is started beside such a folder, it would take
    the folder itself for the package, of which it finds nothing.
    """
    return Path(f"{name}-product")


def require_new(name: str, folder: Path) -> None:
    """Refuse a name that a product cannot have, or that something has: before anything is looked up or written.

    Raises:
        InputRefused: with every reason.
    """
    problems = []
    if not re.fullmatch(NAME_PATTERN, name):
        meant = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_0123456789")
        fix = f"for example {meant}" if re.fullmatch(NAME_PATTERN, meant) else "for example clinic"
        problems.append(Problem(f"a product is called {name!r}", f"it is a Python package: {NAME_WORDS}", fix))
    elif keyword.iskeyword(name) or name in sys.stdlib_module_names or find_spec(name) is not None:
        what = "a word of Python" if keyword.iskeyword(name) else "a module that Python finds already"
        problems.append(Problem(f"{name} is {what}", "a product is a package of its own", "give it another name"))
    if name in installed():
        problems.append(
            Problem(
                f"a product {name} is installed",
                "a name stands for one product",
                "give it another name, or add to that one",
            )
        )
    if folder.exists() or folder.is_symlink():
        problems.append(
            Problem(
                f"{folder} exists",
                "a new product is written over nothing",
                "give it another name, or move what is there",
            )
        )
    elif not folder.parent.is_dir():
        problems.append(
            Problem(f"{folder.parent} is no folder", "a product is written into one that is there", "make it")
        )
    if problems:
        raise InputRefused(problems)


def write(draft: Draft, folder: Path) -> list[str]:
    """Write the files of a draft into a new folder: all of them or none; return their names.

    Raises:
        InputRefused: if something has the folder's name by now, or nothing can be written beside it.
    """
    files = contents(draft)
    try:
        beside = Path(tempfile.mkdtemp(prefix=f".{draft.name}-", dir=folder.parent))
        try:
            for name, text in files.items():
                (beside / name).parent.mkdir(parents=True, exist_ok=True)
                (beside / name).write_text(text, encoding="utf-8")
            beside.chmod(0o755)
            if folder.exists():
                raise FileExistsError(17, "File exists", str(folder))
            beside.rename(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError as error:
        raise InputRefused(
            Problem(
                f"{folder} cannot be written: {error.strerror or error}",
                "a new product is written as a whole, over nothing",
                "nothing was written; name another folder, or make room",
            )
        ) from error
    return list(files)


def manifest_name(draft: Draft) -> str:
    """Return the name of the manifest of the first run."""
    return f"{run_id(draft)}.yaml"


def run_id(draft: Draft) -> str:
    """Return the id of the first run."""
    return f"{draft.transform.replace('_', '-')}-first"


def contents(draft: Draft) -> dict[str, str]:
    """Return the text of each file of a draft, by its name in the product's folder."""
    columns = draft.source.columns
    kinds = {one.kind.base_type() for one in columns}
    shown = (*columns, *draft.columns) if not draft.source.declared_by else draft.columns
    days = _two_chunks(draft)
    source_class, target_class = _class_name(draft.source.table), _class_name(draft.target)
    if source_class == target_class and not draft.source.declared_by:
        target_class += "Row"
    said = {
        "draft": draft,
        "manifest": manifest_name(draft),
        "run_id": run_id(draft),
        "source_class": source_class,
        "target_class": target_class,
        "counted_by": "day" if draft.entity is None else f"{draft.entity} and day",
        "key_is_guessed": any(one.startswith("key:") for one in draft.guessed),
        "partition_by": f', partition_by="{draft.source.partitioned_by}"' if draft.source.partitioned_by else "",
        "uses_annotated": any("Annotated" in one.python for one in shown),
        "uses_pandera": not draft.source.declared_by or any("pa." in _declared(one) for one in draft.columns),
        "uses_dates": pl.Date in kinds,
        "uses_decimals": pl.Decimal in kinds,
        "rows": _TEST_ROWS,
        "days": days,
    }
    texts = {
        "pyproject.toml": "pyproject.toml.j2",
        f"{draft.name}/__init__.py": "product.py.j2",
        **({f"{draft.name}/{draft.transform}.sql": "transform.sql.j2"} if draft.is_sql else {}),
        manifest_name(draft): "first.yaml.j2",
        f"tests/test_{draft.name}.py": "test.py.j2",
    }
    files = {name: _templates(draft).get_template(template).render(said) for name, template in texts.items()}
    files[".gitignore"] = _IGNORED
    if draft.source.file == SAMPLE:
        files[SAMPLE] = _sample(draft)
    return files


def _two_chunks(draft: Draft) -> tuple[date, date]:
    """Return the days of the two chunks that a test computes: rows lie before them, in them and after them."""
    first = draft.days[0] + timedelta(days=1)
    start = following(draft.chunking, first.replace(day=1) if draft.chunking is Chunking.MONTH else first)
    return start, last_day(draft.chunking, following(draft.chunking, start))


def _class_name(table: str) -> str:
    return "".join(part.capitalize() for part in re.split(r"[._]", table.partition(".")[2]) if part) + (
        "Row" if table.partition(".")[2] in {"date", "annotated"} else ""
    )


def _declared(column: NamedColumn) -> str:
    """Return a column as a line of a model."""
    said = ["nullable=True"] if column.nullable else []
    if column.description and "\n" not in column.description:
        described = f"description={json.dumps(column.description, ensure_ascii=False)}"
        if len(column.name) + len(column.python) + len(described) < _LINE - 40:
            said.append(described)
    return f"{column.name}: {column.python}" + (f" = pa.Field({', '.join(said)})" if said else "")


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _as_tuple(names: Sequence[str]) -> str:
    return f"({_quoted(names)},)" if len(names) == 1 else f"({_quoted(names)})"


def _in_sql(name: str) -> str:
    return name if re.fullmatch(r"[a-z]+(_[a-z0-9_]+)+", name) else f"`{name}`"


def _made_up(draft: Draft, column: NamedColumn) -> str:
    """Return the Python that makes up a value of a column, from `number`."""
    is_whole = draft.copied is not None and column.name in draft.key  # of a key each value is another
    number = "number" if is_whole else "number % 3"
    if column.name == draft.time_column:
        step = "hours=12" if draft.chunking is Chunking.MONTH else "minutes=25"
        return f"BEGIN + timedelta({step} * number)"
    texts = {
        pl.String: f'f"{column.name}-{{{number}}}"',
        pl.Boolean: "number % 2 == 0",
        pl.Date: "date(2024, 1, 1) + timedelta(days=number)",
        pl.Datetime: "(BEGIN + timedelta(hours=number))",
        pl.Float32: f"float({number})",
        pl.Float64: f"float({number})",
        pl.Time: f"(BEGIN + timedelta(minutes={number})).time()",
        pl.Binary: f'f"{column.name}-{{{number}}}".encode()',
    }
    kind = column.kind.base_type()
    if column.kind == pl.Datetime("us"):
        return f"{texts[pl.Datetime]}.replace(tzinfo=None)"
    if isinstance(column.kind, pl.List):
        return "[]"
    if isinstance(column.kind, pl.Decimal):
        return f"Decimal({number if is_whole else 'number % 2'}).scaleb(-{column.kind.scale})"
    return texts.get(kind, number)


def _sample(draft: Draft) -> str:
    """Return rows of the example as CSV, with a header: the same each time."""
    lines = ["thing_id,happened_at,amount"]
    for number in range(_EXAMPLE_ROWS):
        day = draft.days[0] + timedelta(days=number // 6)
        amount = "" if number % 11 == 0 else str(number % 7)
        lines.append(f"thing-{number % 3 + 1},{day}T{8 + number % 6:02}:30:00+00:00,{amount}")
    return "\n".join(lines) + "\n"


def _templates(draft: Draft) -> jinja2.Environment:
    environment = _environment()
    environment.filters["made_up"] = lambda column: _made_up(draft, column)
    return environment


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("backfill_assets.operations.new_product"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - what is written is Python, SQL and YAML
    )
    environment.filters |= {"declared": _declared, "quoted": _quoted, "as_tuple": _as_tuple, "in_sql": _in_sql}
    return environment
