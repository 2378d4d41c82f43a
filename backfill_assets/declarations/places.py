"""Where in the code an error was raised: the line of a product, not the one of a library or the platform below it.

Put here how a line of code is found and named. Names are relative to the project, or to the folder that the module was
imported from: what is on record holds no path of a machine. Spark's Python workers import it: keep it light.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from resources.code.sources import INSTALLED

PACKAGE = Path(__file__).resolve().parent.parent
ROOT = PACKAGE.parent
PRODUCTS_FOLDER = PACKAGE / "products"
_CORE = (PACKAGE, ROOT / "manifests", ROOT / "resources")
_IN_WORKER = re.compile(r'^\s*File "([^"]+)", line (\d+), in (\S+)', re.MULTILINE)
_WRITTEN_IN = re.compile(r"was called from\s+(\S.*?):(\d+)")
"""How Spark says in which line of Python an expression was written that fails on some row."""
_REASON, _WAY_OUT = "  - ", "what to do:"
"""How lines of a refusal begin that say what is refused, and what its reader can do."""


def place(error: BaseException, *, only_products: bool = False) -> str:
    """Return `file:line, in function` of the last line of a product that an error came from; nothing where none is known.

    Where no product's line is on its way, it is the platform's own last one, unless only those of products are wanted. Of
    what Spark raises the lines of its Python worker count, and those that Spark says an expression was written in: the
    platform has only started the job.
    """
    found = [*_ways(error)]
    own = [one for one in found if is_own(one[0])]
    if not (own or only_products or _is_of_spark(error)):
        own = [one for one in found if is_core(one[0])]
    if not own:
        return ""
    file, line, function = own[-1]
    return f"{shown(Path(file))}:{line}" + (f", in {function}" if function else "")


def is_core(name: str) -> bool:
    """Return whether a file is the platform's own, and no product's."""
    file = Path(name)
    return not file.is_relative_to(PRODUCTS_FOLDER) and any(file.is_relative_to(folder) for folder in _CORE)


def shown(file: Path) -> str:
    """Return a file's name relative to the project, or to the folder that modules are imported from."""
    folders = [ROOT, *sorted((Path(one) for one in sys.path if one), key=lambda one: -len(one.parts))]
    return next((str(file.relative_to(one)) for one in folders if file.is_relative_to(one)), file.name)


def _ways(error: BaseException) -> Iterator[tuple[str, int, str]]:
    """Yield the lines that an error came through, the one that raised it last."""
    for frame in traceback.extract_tb(error.__traceback__):
        yield frame.filename, frame.lineno or 0, frame.name
    if _is_of_spark(error):
        for file, line in _WRITTEN_IN.findall(str(error)):
            yield file, int(line), ""
        for file, line, function in _IN_WORKER.findall(str(error)):
            yield file, int(line), function


def _is_of_spark(error: BaseException) -> bool:
    return type(error).__module__.startswith(("pyspark.", "py4j."))


def raised_in_worker(error: BaseException) -> str:
    """Return what a Python worker of Spark raised, as Python words it, with the reasons of a refusal; nothing of any other error."""
    *_, last = [None, *_IN_WORKER.finditer(str(error))]
    if last is None or not _is_of_spark(error):
        return ""
    below = str(error)[last.end() :].splitlines()[1:]
    said = next((line.strip() for line in below if line and not line.startswith(" ")), "")
    if not said.partition(":")[0].endswith("Refused"):
        return said
    return ": ".join(filter(None, [said, "; ".join(_reasons(below))]))


def _reasons(lines: Iterable[str]) -> Iterator[str]:
    """Yield what a refusal says under its headline (see `manifests.errors`): what is wrong, and what to do."""
    for line in lines:
        if line.startswith(_REASON):
            yield line.removeprefix(_REASON)
        elif line.strip().startswith(_WAY_OUT):
            yield line.strip()


def is_own(name: str) -> bool:
    """Return whether a file is an author's: neither the platform's, nor Python's, nor an installed package's."""
    file = Path(name)
    if file.is_relative_to(PRODUCTS_FOLDER):
        return True
    of_python = any(file.is_relative_to(folder) for folder in _python()) or not INSTALLED.isdisjoint(file.parts)
    return not (name.startswith("<") or of_python or is_core(name))


@cache
def _python() -> tuple[Path, ...]:
    return tuple({Path(sysconfig.get_path(one)) for one in ("stdlib", "platstdlib")})
