"""Repairs what is provably safe, and looks again until nothing more can be repaired.

Put here the order of repairs and what is said of them. What a repair does is beside the look that offers it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Disagreement, Repaired
from backfill_assets.operations.doctor.examination import examine
from manifests.errors import Refused
from resources import logs

_log = logging.getLogger(__name__)
_ROUNDS = 5


def mend(
    platform: Platform, more: Callable[[], Iterable[Disagreement]] = tuple
) -> tuple[list[Repaired], list[Disagreement]]:
    """Repair what is provably safe; return what was repaired, and what is left after looking again.

    `more` looks for what disagrees besides.
    """
    repaired: list[Repaired] = []
    refused: dict[tuple[str, str], str] = {}
    left = [*examine(platform), *more()]
    for _ in range(_ROUNDS):  # a repair may bring another one within reach
        todo = [item for item in left if item.repair is not None and (item.kind, item.where) not in refused]
        if not todo:
            break
        for item in todo:
            assert item.repair is not None
            try:
                repaired.append(Repaired(item, item.repair()))
                text = f"{item.where}: {repaired[-1].done}"
                logs.event(_log, logging.INFO, "repaired", text, kind=item.kind, where=item.where)
            except Refused as refusal:
                refused[item.kind, item.where] = str(refusal)
        left = [*examine(platform), *more()]
    told = [(item, refused.get((item.kind, item.where))) for item in left]
    return repaired, [
        item if why is None else Disagreement(item.kind, item.where, f"{item.what}; repair: {why}", item.sure, item.fix)
        for item, why in told
    ]
