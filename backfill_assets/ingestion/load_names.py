"""How a load is named: by its id, by the hash of its content in it, or by enough of either.

Put here which load somebody means, and the shortest name that a command takes. What is done with a load is `table_loads`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from manifests.errors import InputRefused, Problem
from resources.lakehouse.loads import Load

_CANDIDATES = 10
_LEAST_OF_HASH = 4
"""So many characters of a content's hash name a load without its table."""
_OF_HASH = 12
"""So many are shown where a load is named in a command."""


def load_meant(loads: Sequence[Load], table: str, text: str) -> Load:
    """Return the load that a text names: by its id, by the hash in it, or by a beginning of one of them.

    Raises:
        InputRefused: if it names none of the table's loads, or several.
    """
    rule = (
        f"a load is named by its id, or by a beginning that no other load of the table has: of the id, or of the hash in it "
        f"from {_LEAST_OF_HASH} characters on"
    )
    exact = [load for load in loads if text in {load.load_id, _of_hash(load.load_id)}]
    found = exact or [load for load in loads if _begins(load.load_id, text)]
    if len(found) == 1:
        return found[0]
    shown = "; ".join(
        f"{load.load_id} ({load.file or 'a file'}, {load.at:%Y-%m-%d %H:%M}{', taken back' if load.undone_at else ''})"
        for load in (found or loads[::-1])[:_CANDIDATES]
    )
    number = len(found) or len(loads)
    more = f"; and {number - _CANDIDATES} more" if number > _CANDIDATES else ""
    if found:
        raise InputRefused(Problem(f"'{text}' names {number} loads of {table}: {shown}{more}", rule, "give more of it"))
    raise InputRefused(
        Problem(
            f"{table} has no load '{text}'; it has {f'{shown}{more}' if loads else 'none at all'}",
            rule,
            f"correct the id: `backfill loads {table}` lists all of them",
        )
    )


def short_name(loads: Sequence[Load], load_id: str) -> str:
    """Return the beginning of a load's hash, or its whole id where another load begins so."""
    short = _of_hash(load_id)[:_OF_HASH]
    return short if sum(_begins(load.load_id, short) for load in loads) == 1 else load_id


def _of_hash(load_id: str) -> str:
    """Return a load's id without the table that most of them begin with."""
    return load_id.partition(":")[2]


def _begins(load_id: str, text: str) -> bool:
    if not text:
        return False
    return load_id.startswith(text) or (len(text) >= _LEAST_OF_HASH and _of_hash(load_id).startswith(text))
