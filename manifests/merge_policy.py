"""What becomes of history that meets what LIVE has written, row by row: declared by a target, made stricter by a manifest.

Put here the words, which of two is the stricter, and what is refused when a run is planned. What is done to rows is
`backfill_assets.worker.merge_decisions`'; days that runs may not cross are `live_problems`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum

from manifests.errors import Problem
from manifests.fields import Part

MERGE_DECISIONS_GATE = "merge_decisions"
"""Run-level gate of every merge under a policy: counts what was decided, and has an owner look at what is ambiguous."""


class OnCollision(StrEnum):
    """What becomes of a row that LIVE wrote, where a run of history computes another, or none, for its key."""

    OVERWRITE = "OVERWRITE"
    KEEP_LIVE = "KEEP_LIVE"
    REFUSE = "REFUSE"


class OnStale(StrEnum):
    """What becomes of computed rows of days from the cut line on, which are LIVE's."""

    TAKE = "TAKE"
    LEAVE_OUT = "LEAVE_OUT"
    REFUSE = "REFUSE"
    """A run with such days is not planned."""


class OnRepeated(StrEnum):
    """What becomes of a computed row that says what the row of its key says already."""

    TAKE = "TAKE"
    """It takes its place, so that the row names the newer run."""
    IGNORE = "IGNORE"


class OnAmbiguous(StrEnum):
    """What becomes of two rows of one key and one version that say two things, where neither is LIVE's."""

    RECONCILE = "RECONCILE"
    """The row of today stays, both are listed, and the run waits for an owner."""
    REFUSE = "REFUSE"
    """The run fails."""


@dataclass(frozen=True)
class MergePolicy:
    """What a target declares of history that meets LIVE. Of each field the later of its words is the stricter.

    Attributes:
        collision: of a row that LIVE wrote.
        stale: of days from the cut line on: the manifest's, or else the first day that LIVE owns.
        repeated: of a row that is there already.
        ambiguous: of one version that says two things.
    """

    collision: OnCollision = OnCollision.KEEP_LIVE
    stale: OnStale = OnStale.LEAVE_OUT
    repeated: OnRepeated = OnRepeated.IGNORE
    ambiguous: OnAmbiguous = OnAmbiguous.RECONCILE

    def describe(self) -> str:
        """Say in words what holds."""
        return (
            f"rows of LIVE: {self.collision}; rows from the cut line on: {self.stale}; "
            f"rows that are there already: {self.repeated}; one version that says two things: {self.ambiguous}"
        )


class StricterPolicy(Part):
    """What a manifest asks beyond the target's policy; what is left out is the target's."""

    collision: OnCollision | None = None
    stale: OnStale | None = None
    repeated: OnRepeated | None = None
    ambiguous: OnAmbiguous | None = None

    @property
    def asked(self) -> dict[str, StrEnum]:
        """What is asked, by field."""
        found = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in found.items() if value is not None}


def stricter(declared: MergePolicy, asked: StricterPolicy | None) -> MergePolicy:
    """Return a target's policy with what a manifest asks beyond it."""
    return declared if asked is None else replace(declared, **asked.asked)  # type: ignore[arg-type]


def merge_policy_problems(
    table: str, declared: MergePolicy | None, asked: StricterPolicy | None, cut_line: date | None, last_day: date
) -> Iterator[Problem]:
    """Say why history may not meet LIVE as a manifest wants it.

    Args:
        table: the target.
        declared: its policy.
        asked: what the manifest says of it.
        cut_line: the first day that is LIVE's, where there is one.
        last_day: the last day that may change.
    """
    if declared is None:
        if asked is not None:
            yield Problem(
                f"target.merge.policy is given, and {table} declares no merge policy",
                "a manifest makes a declared policy stricter, and begins none",
                "declare `merge_policy=ba.MergePolicy()` in the product, or take it out",
            )
        return
    for name, value in ({} if asked is None else asked.asked).items():
        words, own = list(type(value)), getattr(declared, name)
        if words.index(value) < words.index(own):
            yield Problem(
                f"target.merge.policy.{name} is {value}, and {table} declares {own}",
                "a manifest may be stricter than the target's merge policy, and never looser",
                f"take it out, or say {' or '.join(words[words.index(own) :])}; what is declared changes in the product",
            )
    if stricter(declared, asked).stale is OnStale.REFUSE and cut_line is not None and last_day >= cut_line:
        yield Problem(
            f"the publish range ends on {last_day}, and the days from {cut_line} on are LIVE's",
            f"the merge policy of {table} refuses history after the cut line (stale=REFUSE), also where days overlap",
            f"end the range before {cut_line}",
        )
