"""What Spark says where nothing is wrong with rows or code of a run: its server is gone, or its workers are of other code.

Put here which errors these are, and the refusal that is made of each. What becomes of a run that is refused is decided where it
is computed.
"""

from __future__ import annotations

import re

from manifests.errors import EnvironmentRefused, Problem
from manifests.text import words_of

OTHER_CODE = "[BACKFILL_OTHER_CODE]"
"""How what a Python worker of other code says begins; see `worker_daemon`."""
_SENTENCE = 400
_LOST_WORKER = "Python worker exited unexpectedly"
_DETAILS = re.compile(r'details = "([^"\n]+)"')
"""What gRPC says of a call that was not answered, in its words for the whole of it."""


def is_lost(error: BaseException) -> bool:
    """Return whether an error says that a server of Spark Connect does not answer, or does not know the session any more."""
    code = getattr(error, "getGrpcStatusCode", None)
    if code is None:
        return False
    condition = str(getattr(error, "getCondition", lambda: None)() or "")
    return code().name == "UNAVAILABLE" or condition.startswith("INVALID_HANDLE.")


def is_of_lost_worker(error: BaseException) -> bool:
    """Return whether an error says that a Python worker has ended without a word: by the machine, a person, or code that it ran."""
    return _LOST_WORKER in words_of(error)


def refusal(error: BaseException) -> EnvironmentRefused | None:
    """Return the refusal of what another server, or other workers, would do; None of any other error."""
    said = words_of(error)
    if OTHER_CODE in said:
        why = said[said.index(OTHER_CODE) + len(OTHER_CODE) :].strip().partition("\n")[0]
        return EnvironmentRefused(
            Problem(
                why[:_SENTENCE],
                "rows are computed by the code that the plan names, in Spark's workers as well; no row was computed",
                "install the same version of this package and of the products where Spark's workers run, and start Spark anew",
            )
        )
    return gone(error) if is_lost(error) else None


def gone(error: BaseException) -> EnvironmentRefused:
    """Return the refusal of a session that `is_lost`."""
    said = words_of(error)
    details = _DETAILS.search(said)
    why = details[1] if details else said.strip().partition("\n")[0]
    return EnvironmentRefused(
        Problem(
            f"the Spark server has gone: {why[:_SENTENCE]}",
            "a run is computed in sessions of a server that answers",
            "the same command goes on from what is staged; `backfill spark status` says which servers run, and what they wrote",
        )
    )
