"""What a declared target tells the planner, once its product's own functions have been called, and what they may not do.

Put here what is asked of a declaration and of the rows of its references, wherever those come from: nothing here knows an
installation.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from backfill_assets.declarations.raised_by_products import ANY_ERROR
from backfill_assets.declarations.target import TargetTable
from manifests.errors import PlanRefused, Problem, Refused
from manifests.facts import TargetContract
from manifests.fields import MOST_DAYS
from manifests.text import words_of

_HERE = Path(__file__).parent


def _never(_: Exception) -> bool:
    return False


def contract_of(
    target: TargetTable,
    rows: Mapping[str, list[dict[str, Any]]],
    is_unreadable: Callable[[Exception], bool] = _never,
) -> TargetContract:
    """Return what the planner must know of a target, with the warm-up that its product computes.

    Args:
        target: the target.
        rows: the rows of each reference, by table name.
        is_unreadable: whether an error is that the rows could not be read, which is no fault of whoever asks for them.

    Raises:
        PlanRefused: if what the product has for the warm-up raises, or returns no number of days.
    """
    where = f"{target.name}: warm_up_days"
    rule = f"it is a function of the rows of the pinned references, by table name, and returns whole days, 0 to {MOST_DAYS}"
    shown = f"the references are {', '.join(rows) or 'none'}"
    try:
        contract = target.contract(rows)
    except Refused:
        raise
    except ANY_ERROR as error:
        if isinstance(error, Exception) and is_unreadable(error):
            raise
        frames = [one for one in traceback.extract_tb(error.__traceback__) if "site-packages" not in one.filename]
        own = [one for one in frames if Path(one.filename).parent != _HERE][-1]
        at = f" ({Path(own.filename).name}, line {own.lineno})"
        meant = ""
        if isinstance(error, KeyError) and (close := get_close_matches(str(error.args[0]), list(rows), n=1)):
            meant = f"; did you mean '{close[0]}'?"
        what = f"it raised {type(error).__name__}: {words_of(error).strip().partition(chr(10))[0][:300]}{meant}{at}"
        raise PlanRefused(Problem(what, rule, f"correct the function; {shown}", where)) from error
    days = contract.warm_up_days
    if not isinstance(days, int) or isinstance(days, bool) or not 0 <= days <= MOST_DAYS:
        raise PlanRefused(Problem(f"it returned {days!r}", rule, f"correct the function; {shown}", where))
    return contract
