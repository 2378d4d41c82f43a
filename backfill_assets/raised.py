"""What becomes of a gate that raises: it has not passed, and its run says which gate it was, why, and what to do.

Put here how an error of a gate becomes a finding. A refusal stays one (something outside the gate is in the way, and says
itself what to do), and so does a stop; an error of a transform is `compute`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from backfill_assets import stopping
from backfill_assets.target import Finding
from manifests.errors import Refused
from resources import space
from resources.ledger import RAISED

_LINE = 300
Done = TypeVar("Done")


def words(error: Exception) -> str:
    """Return an error's kind and its first line; of one of the JVM, the line that says what happened there."""
    lines = [line.strip().lstrip(": ") for line in str(error).strip().splitlines()] or [""]
    line = lines[1] if isinstance(error, Py4JJavaError) and len(lines) > 1 else lines[0]
    return f"{type(error).__name__}: {line[:_LINE]}"


def done_or_raised(run_id: str, work: Callable[[], Done]) -> Done | Exception:
    """Return what work for the gates of a run returns, or the error that it raises.

    Raises:
        RunStopped: if the run was stopped meanwhile.
        Refused: what the work was refused, or that the disk is full.
    """
    try:
        with stopping.ending(run_id):
            return work()
    except Refused:
        raise
    except Exception as error:
        if (full := space.refusal(error)) is not None:
            raise full from error
        return error


def found_or_raised(run_id: str, find: Callable[[], Finding]) -> Finding:
    """Return what a gate of a run finds; where it raises, that it has not passed because it could not judge, and why.

    Raises:
        RunStopped: if the run was stopped meanwhile.
        Refused: what the gate was refused, or that the disk is full.
    """
    found = done_or_raised(run_id, find)
    if isinstance(found, Exception):
        return Finding(False, f"could not judge: {words(found)}", {RAISED: words(found)})
    return found
