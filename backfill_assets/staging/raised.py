"""What becomes of a gate that raises: it has not passed, and its run says which gate it was, why, where, and what to do.

Put here how an error of a gate becomes a finding, and where its whole traceback is kept. A refusal stays one (something
outside the gate is in the way, and says itself what to do), and so does a stop; an error of a transform is `compute`'s.
"""

from __future__ import annotations

import re
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from backfill_assets.declarations.places import place, raised_in_worker
from backfill_assets.declarations.raised_by_products import ANY_ERROR
from backfill_assets.declarations.target import Finding
from backfill_assets.installation import Platform
from backfill_assets.staging import stopping
from manifests.canonical import canonical_json, plain
from manifests.errors import Refused
from manifests.text import visible, words_of
from resources.files import space
from resources.ledger.facade import RAISED
from resources.logs import traces
from resources.spark import failures

ERRORS = "errors"
"""The folder of the home that tracebacks are kept in."""
PLACE, TRACEBACK = "raised_at", "traceback"
"""What the details of a gate that raised hold besides the error: the line of its code, and the file of the traceback."""
_OF_THE_PLATFORM = frozenset({RAISED, PLACE, TRACEBACK, "exceptions", "sample", "slices", "unlisted", "violations"})
"""What the details of a verdict have of a Finding besides its own."""
_LINE = 300
_SEVERAL = "[STAGE_MATERIALIZATION_MULTIPLE_FAILURES]"
"""What Spark says where parts of one job fail side by side: each failure has a line of its own, with its number."""
Done = TypeVar("Done")


class NotAFindingError(TypeError):
    """A gate's function has returned what cannot be put on record: the line that looks at it is none of the gate's."""


def words(error: BaseException) -> str:
    """Return an error's kind, its first line and where it was raised; of one of the JVM, the line that says what happened.

    Of an error in a Python worker of Spark it is that error.
    """
    at = place(error, only_products=isinstance(error, NotAFindingError))
    return _kind_and_line(error) + (f" ({at})" if at else "")


def _kind_and_line(error: BaseException) -> str:
    if said := raised_in_worker(error):
        return said[:_LINE]
    if isinstance(error, NotAFindingError):
        return str(error)[:_LINE]
    lines = [line.strip().lstrip(": ") for line in words_of(error).strip().splitlines()] or [""]
    if any(_SEVERAL in line for line in lines) and (first := next((one for one in lines if one.startswith("1. ")), "")):
        return first.removeprefix("1. ")[:_LINE]
    line = lines[1] if isinstance(error, Py4JJavaError) and len(lines) > 1 else lines[0]
    return f"{type(error).__name__}: {line[:_LINE]}"


def kept_traceback(home: Path, run_id: str, gate: str, error: BaseException) -> str:
    """Write the whole traceback of an error to a file of the home that only its owner reads; return its name in the home.

    It may quote a row, as an error's text may. Returns an empty text where it could not be written.
    """
    said = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, run {run_id}, gate {gate}\n\n"
    said += "".join(traceback.format_exception(error))
    prefix = re.sub(r"[^\w.-]+", "_", f"{run_id}-{gate}")[:150]
    try:
        (home / ERRORS).mkdir(mode=0o700, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w",
            encoding="utf-8",
            errors="backslashreplace",
            prefix=f"{prefix}-",
            suffix=".txt",
            dir=home / ERRORS,
            delete=False,
        ) as file:
            file.write(said)
    except OSError:  # what is judged does not depend on it: the verdict has the error and its line
        return ""
    return f"{ERRORS}/{Path(file.name).name}"


def done_or_raised(run_id: str, work: Callable[[], Done]) -> Done | BaseException:
    """Return what work for the gates of a run returns, or the error that it raises.

    Raises:
        RunStopped: if the run was stopped meanwhile.
        Refused: what the work was refused, that the disk is full, or that Spark's server or workers are not there.
    """
    try:
        with stopping.ending(run_id):
            return work()
    except Refused:
        raise
    except ANY_ERROR as error:
        if (outside := space.refusal(error) or failures.refusal(error)) is not None:
            raise outside from error
        return error


def found_or_raised(platform: Platform, run_id: str, gate: str, find: Callable[[], Finding]) -> Finding:
    """Return what a gate of a run finds; where it raises, that it has not passed because it could not judge, why and where.

    Raises:
        RunStopped: if the run was stopped meanwhile.
        Refused: what the gate was refused, or that the disk is full.
    """
    with traces.span("gate", run_id, gate=gate):
        found = done_or_raised(run_id, find)
        if not isinstance(found, BaseException):
            traces.note(passed=found.passed)
            return found
        traces.note(passed=False)
        traces.failed(found)
    file = kept_traceback(platform.settings.home, run_id, gate, found)
    details = {
        RAISED: words(found),
        PLACE: place(found, only_products=isinstance(found, NotAFindingError)),
        TRACEBACK: file,
    }
    text = f"could not judge: {words(found)}; " + (
        f"traceback: {file} in the home folder" if file else "its traceback could not be written"
    )
    return Finding(False, text, {name: value for name, value in details.items() if value})


def finding_of(returned: Any) -> Finding:
    """Return what a gate's function has returned, if it can be put on record.

    Raises:
        NotAFindingError: if it is no `Finding`, or one of its fields is of another kind.
    """
    if not isinstance(returned, Finding):
        raise NotAFindingError(
            f"it returned {'nothing' if returned is None else f'a {type(returned).__name__}'}, and no Finding"
        )
    figures = {name: getattr(returned, name) for name in ("passed", "asks", "compared", "disagreeing")}
    # of numpy, as a comparison of two sums may be
    plainly = {name: one.item() for name, one in figures.items() if type(one).__module__ == "numpy"}
    found: Finding = replace(returned, **plainly)
    number = (int, type(None))
    kinds: dict[str, Any] = {"passed": bool, "summary": str, "asks": bool, "compared": number, "disagreeing": number}
    kinds |= {"details": Mapping, "sample": Sequence, "slices": Sequence}
    for name, kind in kinds.items():
        value = getattr(found, name)
        if not isinstance(value, kind) or (kind is Sequence and isinstance(value, str)):
            raise NotAFindingError(f"the {name} of its Finding is a {type(value).__name__}")
        if kind is Sequence and (odd := [one for one in value if not isinstance(one, Mapping)]):
            raise NotAFindingError(
                f"the {name} of its Finding has a {type(odd[0]).__name__}, where each row is a mapping"
            )
    if taken := sorted(_OF_THE_PLATFORM.intersection(found.details)):
        raise NotAFindingError(
            f"the details of its Finding have {', '.join(taken)}, which are the platform's own names"
        )
    if found.exceptions is not None and not callable(found.exceptions):
        raise NotAFindingError(
            f"the exceptions of its Finding are a {type(found.exceptions).__name__}, and no function"
        )
    for name in ("summary", "details", "sample", "slices"):
        try:
            canonical_json(plain(getattr(found, name))).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise NotAFindingError(
                f"the {name} of its Finding cannot be put on record: {visible(str(error))}"
            ) from None
    return found
