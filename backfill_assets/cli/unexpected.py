"""What the command does with what no rule has foreseen, and with arguments that are no text.

Put here the last net below every command. It takes no mend's place: what lands in it is a fault of the program.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from manifests.errors import EnvironmentRefused, InputRefused, Problem, Refused
from manifests.text import TEXT_RULE, not_text, visible_lines, words_of

PANIC = "PanicException"
"""How native libraries raise what they have not foreseen: not as an `Exception`."""


def require_text(arguments: Sequence[str]) -> None:
    """Refuse arguments that cannot be shown, recorded or looked for.

    Raises:
        InputRefused: naming each of them, with what is no text written as escapes.
    """
    wrong = [(number, one) for number, one in enumerate(arguments, start=1) if not_text(one) is not None]
    if wrong:
        raise InputRefused(
            Problem(
                f"argument {number} is not text: {not_text(one)} of {one[:200]!a}",
                f"an argument is UTF-8; {TEXT_RULE}",
                "correct it; rename a file whose name is not UTF-8",
            )
            for number, one in wrong
        )


def require_working_folder() -> None:
    """Refuse to begin in a folder that is gone or may not be asked for: libraries look for it when they are imported.

    Raises:
        EnvironmentRefused: with what the operating system says.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise EnvironmentRefused(
            Problem(
                f"the working folder cannot be found: {error.strerror or error}",
                "a command begins in a folder that is there",
                "change to another folder, for example `cd /`, and repeat the command",
            )
        ) from error


@contextmanager
def said_where_possible() -> Iterator[None]:
    """Have what the body says on stderr not change how the process ends where stderr cannot be written."""
    try:
        yield
    except OSError:
        # what is buffered is written when Python ends, and would change the exit code then
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def all_missing(error: click.MissingParameter) -> click.UsageError:
    """Return an error that names every argument and option that a command needs and was not given, not only the first."""
    if error.ctx is None:
        return error
    # Click looks at what was given before what was not: whatever has no value yet was left out
    missing = [one for one in error.ctx.command.params if one.required and error.ctx.params.get(str(one.name)) is None]
    if len(missing) < 2:  # noqa: PLR2004 - then Click's own message says all
        return error
    words = ", ".join(
        f"option {one.opts[0]}" if isinstance(one, click.Option) else f"argument {one.make_metavar(error.ctx)}"
        for one in missing
    )
    return click.UsageError(f"Missing: {words}.", error.ctx)


def is_unexpected(error: BaseException) -> bool:
    """Return whether an error is a fault, and no way to end a process; to end it is this package's, and no product's."""
    return isinstance(error, Exception) or type(error).__name__ == PANIC or _is_ended_by_a_product(error)


def _is_ended_by_a_product(error: BaseException) -> bool:
    """Whether neither this package nor Click has ended the process: a function of a product has, and nothing it was called for is done."""
    if not isinstance(error, SystemExit):
        return False
    from backfill_assets.declarations.places import is_core, is_own

    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1].filename if frames else __file__
    if is_core(last) or Path(last).is_relative_to(Path(click.__file__).parent):
        return False
    return not error.code or is_own(last)


def of_the_machine(error: BaseException) -> Refused | None:
    """Return what is said where an error comes of a full disk or of a lost server of Spark, wherever it was met.

    See `resources.files.space` and `resources.spark.failures`.
    """
    from resources.files import space
    from resources.settings import load_settings
    from resources.spark import failures

    try:
        home = str(load_settings().home)
    except Exception:  # noqa: BLE001 - settings that cannot be read, for whatever reason, take no word away
        home = None
    return space.refusal(error, home) or failures.refusal(error)


def tell(error: BaseException) -> None:
    """Say an unforeseen error in one line, and where its details were written."""
    said = " ".join(words_of(error).split())[:300]
    if isinstance(error, SystemExit):
        said = (
            f"a function of a product has ended the process ({traceback.extract_tb(error.__traceback__)[-1].filename})"
        )
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    details = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="backslashreplace", prefix="backfill-error-", suffix=".txt", delete=False
        ) as file:
            file.write(f"{sys.argv!a}\n\n{details}")
        where = f"details: {file.name}"
    except OSError as trouble:
        where = f"the details could not be written: {trouble.strerror or trouble}"
    line = f"an error that nothing was prepared for: {what}; {where}; `backfill doctor` says whether anything is left to mend"
    click.echo(visible_lines(line.encode("utf-8", "backslashreplace").decode()), err=True)
