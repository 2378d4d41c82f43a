"""What a manifest says of how its run goes, beside what it changes: the warm-up, the gates, the freeze, what is kept.

Put here a part of a manifest that stands by itself; rules between several parts are `model`'s.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from manifests.expected import Expected
from manifests.fields import MOST_DAYS, Name, Part, whole_number


class Freeze(Part):
    """Live writes to the publish range wait from approval until the run has ended, at most so long."""

    hours: Annotated[int, whole_number(1, 168, "how many hours LIVE waits")]

    def describe(self) -> str:
        """Say in words what LIVE does."""
        return f"those to the publish range wait from the approval until the run has ended, at most {self.hours} hours (freeze)"


class WarmUp(Part):
    """How many days before the publish range are read as well."""

    days: Annotated[int, whole_number(0, MOST_DAYS, "how many days before the publish range are read as well")]


class Validation(Part):
    """Which run-level gates must pass (all that the target declares, unless named), with which tolerances, and what must come out."""

    _later = frozenset({"expected"})

    gates: tuple[Name, ...] | None = None
    tolerances: dict[
        Name,
        Annotated[
            float,
            Field(
                ge=0,
                strict=True,
                allow_inf_nan=False,
                description="a tolerance is a finite number, 0 or more, without quotes",
            ),
        ],
    ] = Field(default={})
    expected: Expected | None = None


class Evidence(Part):
    """What is kept of a publication beside its proof: the diff, which compares every row by key once readers have them."""

    diff: bool = True
