"""Why the module of a product could not be imported, in Python's words and with the product's line.

Put here what is said of an error while a product is imported. What is wrong with a declaration that was imported is the
other modules' to say; how products are found is `declarations.finding`'s.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from enum import EnumType
from importlib import import_module
from inspect import signature
from pathlib import Path

from backfill_assets.declarations.arguments import WrongArgumentsError, collected
from backfill_assets.declarations.checking.names import did_you_mean
from backfill_assets.declarations.places import ROOT, is_core
from backfill_assets.declarations.raised_by_products import ENDS_THE_PROCESS
from manifests.errors import Problem
from manifests.text import words_of

_SECONDS = 60
"""How long the modules may take to be imported once more."""
_IMPORTING = Path(import_module.__code__.co_filename)
"""Where Python's own function imports a product: the lines of the product come after it."""
_NOT_IN_MODULE = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
_NO_CHECK = re.compile(r"custom check '(\w+)' is not available")
_NO_ARGUMENT = re.compile(r"(\w+)\(\) got an unexpected keyword argument '(\w+)'")


def import_problems(error: BaseException, module: str) -> list[Problem]:
    """Return what kept a product's module from being imported: the error, and the line of the product that it is in.

    Of arguments that a declaration does not have, or lacks, each is a reason of its own.
    """
    if isinstance(error, WrongArgumentsError):
        said = list(error.reasons)
    else:
        said = [str(error.msg) if isinstance(error, SyntaxError) else python_words(error)]
    rule = "the modules of every product are imported before anything else is done"
    if _asks_spark(error):
        said = [f"{one.removesuffix(': ')}: it asks Spark for something while it is imported" for one in said]
        rule += ", without a Spark session: a module declares, and computes nothing"
    fix = (
        "correct that line, or leave the product out (`products` in backfill.toml names those that are served); "
        f"the whole traceback: `python -c 'import {module}'`"
    )
    return [Problem(one, rule, fix, _line_of(error)) for one in said]


def _asks_spark(error: BaseException) -> bool:
    """Whether PySpark has raised an error because there is no session: it has no words of its own for that in places."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return (
        bool(last) and "pyspark" in Path(last[0].filename).parts and isinstance(error, (AssertionError, RuntimeError))
    )


def all_wrong_arguments(module: str) -> list[Problem]:
    """Return every argument that declarations of a product's modules do not have, or lack, where Python stops at the first.

    They are imported once more for this, in a process of their own: nothing that was declared wrongly is left in this one.
    Nothing where that process does not find them again: a module that no file has, or one that is imported with luck.
    """
    with tempfile.NamedTemporaryFile("r", suffix=".json") as answer:
        try:
            subprocess.run(
                [
                    sys.executable,
                    "-c",
                    f"from {__name__} import tell_wrong_arguments as tell; tell()",
                    module,
                    answer.name,
                ],
                input=json.dumps(sys.path),
                text=True,
                check=False,
                capture_output=True,
                timeout=_SECONDS,
            )
            return [Problem(*one) for one in json.load(answer)]
        except (subprocess.SubprocessError, OSError, ValueError):
            return []


def tell_wrong_arguments() -> None:
    """Write what `all_wrong_arguments` asks for: the module and the file are the process's arguments, its path is handed in."""
    module, answer = sys.argv[1:]
    sys.path[:] = json.load(sys.stdin)
    with collected() as mistakes, suppress(BaseException):  # what else is raised may come of a wrong declaration
        import_module(module)
    problems = [problem for error in mistakes for problem in import_problems(error, module)]
    Path(answer).write_text(
        json.dumps([(one.what, one.rule, one.fix, one.where) for one in problems]), encoding="utf-8"
    )
    os.kill(os.getpid(), signal.SIGKILL)  # whatever threads the modules have started


def python_words(error: BaseException) -> str:
    """Return an error as Python words it, with the name that was probably meant."""
    meant, said = "", words_of(error)
    if isinstance(error, ENDS_THE_PROCESS):
        meant = f"{': ' if said else ''}it ends the process"
    elif isinstance(error, AttributeError) and isinstance(error.obj, EnumType):
        names = list(error.obj.__members__)
        wanted = error.name or said
        return f"{error.obj.__name__} has no {wanted}{did_you_mean(wanted, names)}: there are {', '.join(names)}"
    elif isinstance(error, AttributeError) and error.name:
        meant = did_you_mean(error.name, dir(error.obj))
    elif found := _NO_CHECK.match(said):
        import pandera.polars as pa  # noqa: PLC0415 - whoever imports products has it; the others do without

        return f"pa.Field has no {found[1]}{did_you_mean(found[1], signature(pa.Field).parameters)}"
    elif isinstance(error, ImportError) and (found := _NOT_IN_MODULE.match(said)):
        meant = did_you_mean(found[1], dir(sys.modules.get(found[2])))
    elif isinstance(error, TypeError) and (found := _NO_ARGUMENT.match(said)):
        function = getattr(sys.modules["backfill_assets"], found[1], None)
        meant = did_you_mean(found[2], signature(function).parameters) if callable(function) else ""
    return f"{type(error).__name__}: {said}{'' if 'id you mean' in said else meant}"


def _line_of(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(Path(error.filename))}:{error.lineno}"
    way = getattr(error, "way", None) or traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in way if not frame.filename.startswith("<")]
    at = max((number for number, frame in enumerate(frames) if Path(frame.filename) == _IMPORTING), default=-1)
    inside = frames[at + 1 :]
    # the line of the product, not the one in pandera or here that found the mistake
    home = Path(inside[0].filename).parent if inside else ROOT
    own = [frame for frame in inside if Path(frame.filename).is_relative_to(home) and not is_core(frame.filename)]
    found = (own or inside[:1] or frames[at:] or frames)[-1]
    return f"{_shown(Path(found.filename))}:{found.lineno}"


def _shown(file: Path) -> str:
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else str(file)
