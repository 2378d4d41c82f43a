"""Gaps of a log in words: which positions are missing, and between which loads.

Put here what is said of positions that a table does not have. Which ones are missing is said by those who ask; ranges by themselves
are `log_ranges`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from manifests.log_ranges import LogKind, LogRange, joined, lsn, lsn_ranges

_OF_HASH = 12
"""So many characters of the hash in a load's id name it, where no other load has them."""
Loads = Mapping[str, Sequence[LogRange]]
"""The ranges that each load has brought, by its id; what is to be one has a name in words."""


def positions_in_words(ranges: Iterable[LogRange], kind: LogKind = LogKind.KAFKA, most: int = 5) -> str:
    """Return positions in words: offsets with the last one in them, or LSNs as the server writes them; the first `most` ranges."""
    known = joined(ranges)
    shown = lsn_ranges(known[:most]) if kind is LogKind.CHANGELOG else "; ".join(map(_offsets, known[:most]))
    return shown + (f" and {len(known) - most:,} more" if len(known) > most else "")


def _offsets(one: LogRange) -> str:
    if one.until - one.start == 1:
        return f"offset {one.start:,} of partition {one.partition}"
    return f"offsets {one.start:,} to {one.until - 1:,} of partition {one.partition} ({one.until - one.start:,})"


def place_of_gap(gap: LogRange, loads: Loads, kind: LogKind = LogKind.KAFKA) -> str:
    """Say between which loads a gap lies: after the one that ends nearest before it, before the one that begins nearest after it."""
    of_partition = [(one, name) for name, own in loads.items() for one in joined(own) if one.partition == gap.partition]
    before = max((pair for pair in of_partition if pair[0].until <= gap.start), key=_end, default=None)
    after = min((pair for pair in of_partition if pair[0].start >= gap.until), default=None)
    ends = "" if before is None else f"{load_in_words(before[1], loads)}, {_ends(before[0], kind)}"
    begins = "" if after is None else f"{load_in_words(after[1], loads)}, {_begins(after[0], kind)}"
    if ends and begins:
        return f"between {ends}, and {begins}"
    if ends or begins:
        return f"after {ends}" if ends else f"before {begins}"
    return "no load covers any of it" if kind is LogKind.CHANGELOG else "no load has an offset of that partition"


def _end(pair: tuple[LogRange, str]) -> int:
    return pair[0].until


def _ends(one: LogRange, kind: LogKind) -> str:
    return f"ending before {lsn(one.until)}" if kind is LogKind.CHANGELOG else f"ending with {one.until - 1:,}"


def _begins(one: LogRange, kind: LogKind) -> str:
    return f"beginning with {lsn(one.start) if kind is LogKind.CHANGELOG else f'{one.start:,}'}"


def load_in_words(name: str, loads: Iterable[str]) -> str:
    """Name a load, of those that there are, by a beginning of its hash where that is enough for commands."""
    short = name.partition(":")[2][:_OF_HASH]
    is_enough = short and sum(other.partition(":")[2].startswith(short) for other in loads) == 1
    if name.startswith("before "):  # it stands for loads whose snapshots have expired
        return f"the loads {name}"
    return name if " " in name else f"load {short if is_enough else name}"
