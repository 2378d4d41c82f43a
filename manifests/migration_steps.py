"""The way of a read model from its old table to its new one: steps, what leads from one to the next, and back.

Put here which step follows which, whose turn LIVE is at each, and who reads which table. What must hold before a step is taken
is `backfill_assets.migration`'s; what has been taken is on record in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


class CutOver(StrEnum):
    """How LIVE goes from the old table to the new one."""

    DUAL_WRITES = "DUAL_WRITES"
    """LIVE writes both from the catching up on, until the old table is decommissioned: readers go over, and back, at once."""
    HARD = "HARD"
    """LIVE writes one of them: it stands still while readers go over, and what it missed is caught up with before."""


class Side(StrEnum):
    """One of the two tables of a read model."""

    OLD = "OLD"
    NEW = "NEW"

    @property
    def other(self) -> Side:
        """The other one."""
        return Side.NEW if self is Side.OLD else Side.OLD


class Step(StrEnum):
    """Where a migration stands."""

    PLANNED = "PLANNED"
    """It has begun: the history of the old table is to be computed for the new one."""
    SHADOWED = "SHADOWED"
    """Every day that the old table has is in the new one."""
    CAUGHT_UP = "CAUGHT_UP"
    """The new table has also what the old one got meanwhile; with dual writes LIVE writes both from here on."""
    COMPARED = "COMPARED"
    """Dual reads agree: consumers and slices may go over one by one."""
    HELD = "HELD"
    """Of a hard cut-over: LIVE stands still, readers read the old table."""
    CUT_OVER = "CUT_OVER"
    """Everybody reads the new table."""
    RETURNING = "RETURNING"
    """Of a hard cut-over that is undone: LIVE writes the old table again, and readers read the new one until it has caught up."""
    DECOMMISSIONED = "DECOMMISSIONED"
    """Nobody reads or writes the old table any more: there is no way back."""
    ABANDONED = "ABANDONED"
    """The migration was given up before it began in earnest; it may be planned again."""


OVER = frozenset({Step.DECOMMISSIONED, Step.ABANDONED})
_FORWARD = {
    CutOver.DUAL_WRITES: {
        Step.PLANNED: Step.SHADOWED,
        Step.SHADOWED: Step.CAUGHT_UP,
        Step.CAUGHT_UP: Step.COMPARED,
        Step.COMPARED: Step.CUT_OVER,
        Step.CUT_OVER: Step.DECOMMISSIONED,
    },
    CutOver.HARD: {
        Step.PLANNED: Step.SHADOWED,
        Step.SHADOWED: Step.CAUGHT_UP,
        Step.CAUGHT_UP: Step.COMPARED,
        Step.COMPARED: Step.HELD,
        Step.HELD: Step.CUT_OVER,
        Step.RETURNING: Step.HELD,
        Step.CUT_OVER: Step.DECOMMISSIONED,
    },
}
_BACK = {
    CutOver.DUAL_WRITES: {
        Step.PLANNED: Step.ABANDONED,
        Step.SHADOWED: Step.PLANNED,
        Step.CAUGHT_UP: Step.SHADOWED,
        Step.COMPARED: Step.CAUGHT_UP,
        Step.CUT_OVER: Step.COMPARED,
    },
    CutOver.HARD: {
        Step.PLANNED: Step.ABANDONED,
        Step.SHADOWED: Step.PLANNED,
        Step.CAUGHT_UP: Step.SHADOWED,
        Step.COMPARED: Step.CAUGHT_UP,
        Step.HELD: Step.COMPARED,
        Step.CUT_OVER: Step.RETURNING,
        Step.RETURNING: Step.COMPARED,
    },
}
_BOTH, _OLD, _NEW = frozenset(Side), frozenset({Side.OLD}), frozenset({Side.NEW})
_LIVE = {
    CutOver.DUAL_WRITES: {Step.CAUGHT_UP: _BOTH, Step.COMPARED: _BOTH, Step.CUT_OVER: _BOTH},
    CutOver.HARD: {Step.HELD: frozenset[Side](), Step.CUT_OVER: _NEW},
}


def next_step(cut_over: CutOver, step: Step) -> Step | None:
    """Return the step that follows; None after the last one."""
    return _FORWARD[cut_over].get(step)


def step_before(cut_over: CutOver, step: Step) -> Step | None:
    """Return the step that undoing leads to; None where there is no way back."""
    return _BACK[cut_over].get(step)


def live_at(cut_over: CutOver, step: Step) -> frozenset[Side]:
    """Return the tables that LIVE may write at a step: both of a migration that was given up, which stand by themselves then."""
    if step is Step.ABANDONED:
        return _BOTH
    if step is Step.DECOMMISSIONED:
        return _NEW
    return _LIVE[cut_over].get(step, _OLD)


@dataclass(frozen=True)
class Readers:
    """Who reads which table: a consumer as said of it, else a slice as said of that, else as everybody.

    The switch is one value, replaced as a whole with a step on record: nobody ever reads by half of a change of it.
    """

    everybody: Side = Side.OLD
    consumers: Mapping[str, Side] = field(default_factory=dict)
    slices: Mapping[str, Side] = field(default_factory=dict)

    def side(self, consumer: str | None, slice_: str | None) -> Side:
        """Return the table that somebody reads a slice from; of no slice in particular, the one of all that nothing is said of."""
        if consumer is not None and consumer in self.consumers:
            return self.consumers[consumer]
        if slice_ is not None and slice_ in self.slices:
            return self.slices[slice_]
        return self.everybody

    def with_some(self, side: Side, consumers: tuple[str, ...], slices: tuple[str, ...]) -> Readers:
        """Return the switch with consumers and slices set to one table."""
        return replace(
            self,
            consumers={**self.consumers, **dict.fromkeys(consumers, side)},
            slices={**self.slices, **dict.fromkeys(slices, side)},
        )

    @property
    def sides(self) -> frozenset[Side]:
        """The tables that anybody reads."""
        return frozenset({self.everybody, *self.consumers.values(), *self.slices.values()})

    def as_record(self) -> dict[str, Any]:
        """Return the switch as it is on record."""
        return {
            "everybody": self.everybody.value,
            "consumers": {name: side.value for name, side in sorted(self.consumers.items())},
            "slices": {name: side.value for name, side in sorted(self.slices.items())},
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Readers:
        """Return the switch that a record says.

        Raises:
            KeyError, ValueError, AttributeError: if it is none.
        """
        return cls(
            Side(record["everybody"]),
            {str(name): Side(side) for name, side in record["consumers"].items()},
            {str(name): Side(side) for name, side in record["slices"].items()},
        )
