"""What a run must not exceed: sinks that it may reach, rows, and how much of it runs at once.

Put here how a manifest says that. What a sink is, and which mode may reach which, is `resources.sinks.policy`'s.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from manifests.fields import Name, Part, whole_number


class Safety(Part):
    """What the run must not exceed."""

    side_effects_allowed: bool = False
    sinks: tuple[Name, ...] = ()
    max_rows_expected: (
        Annotated[
            int,
            Field(
                gt=0,
                strict=True,
                description="how many rows the run may read or write: a whole number above 0, without quotes",
            ),
        ]
        | None
    ) = None
    requires_manual_publish: bool = False

    @field_validator("sinks")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("a sink is named once")
        return value


class Limits(Part):
    """How much may run at once."""

    max_chunks_per_job: Annotated[int, whole_number(1, 100_000, "how many chunks one Spark job computes")] = 240
    max_runs_in_parallel: Annotated[int, whole_number(1, 1_000, "how many batches are computed at once")] = 1
