"""Looking again: the doctor reads one store after the other, while others work.

Put here when a finding counts: nothing has moved meanwhile, or it is found again. Which looks there are, and in which
order, is `examination`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement
from manifests.errors import InputRefused, StateMoved
from resources.lakehouse.metadata import UnreadableMetadata

_LOOKS = 3
"""How often is looked again at what moved while it was looked at."""
AGAIN_SECONDS = 0.5
"""After what pause is looked again: what somebody does next is often done by then."""
_SOON_DONE = frozenset({"evidence-not-told", "evidence-behind"})
"""What a process that is at work does a moment after it has recorded a change."""


def settled(
    platform: Platform, look: Callable[[], Iterable[Disagreement]], tables: Sequence[str] = ()
) -> list[Disagreement]:
    """Look until nothing has moved meanwhile, or the same is found again; a few times.

    What was found only once by then is asked about, and not repaired.

    Raises:
        StateMoved: if a run is planned anew each time that it is looked at.
    """
    before = _moving(platform, tables)
    found = _found_by(look)
    is_first = True
    for _ in range(_LOOKS):
        soon = is_first and any(one.kind in _SOON_DONE for one in found or ())
        if found is not None and not soon and not (found and _moving(platform, tables) != before):
            return found
        time.sleep(AGAIN_SECONDS)
        before, is_first = _moving(platform, tables), False
        earlier, found = found, _found_by(look)
        if earlier is not None and found is not None and all(one in earlier for one in found):
            return found
    if found is None:
        return list(look())
    return [
        one if one in (earlier or ()) else replace(one, sure=Confidence.POSSIBLE, fix=_MOVES, repair=None)
        for one in found
    ]


_MOVES = "somebody is at work on it: look again when that is done"


def _moving(platform: Platform, tables: Sequence[str]) -> tuple[Any, ...]:
    """Return what moves with whatever is done: the ledger's newest entry, the chain's last link, metadata of tables."""
    metadata = [_metadata(platform, name) for name in tables]
    with platform.ledger.reading() as moment:
        return moment.newest_entry(), platform.evidence.chain.length(), *metadata


def _metadata(platform: Platform, table: str) -> str:
    """Return the metadata file of a table, or what is wrong with it."""
    try:
        return platform.lakehouse.table(table).metadata_location
    except (InputRefused, UnreadableMetadata) as refusal:
        return str(refusal)


def _found_by(look: Callable[[], Iterable[Disagreement]]) -> list[Disagreement] | None:
    """Return what is found; None if a run was planned anew since it was read, so that nothing is known."""
    try:
        return list(look())
    except StateMoved:
        return None
