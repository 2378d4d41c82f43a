"""What of its chunks a run takes at a time: a sample, a step of a series.

Put here how a manifest says that. How a series is made of it is `manifests.series`'.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from manifests.fields import ChunkKey, Part, PartName, whole_number


class Progressive(Part):
    """Publish part by part: the manifest is planned as a series of runs, each gated, each after the one before it.

    `chunksPerStep` cuts the publish range by time; `values` are the lists of values (or buckets) that steps publish, one after
    the other, `rest` at the end for all that are not named. With both each list is cut by time.
    """

    _later = frozenset({"values"})

    chunks_per_step: Annotated[int, whole_number(1, 10_000, "how many chunks a step publishes")] | None = None
    values: tuple[tuple[PartName, ...] | Literal["rest"], ...] | None = None

    @model_validator(mode="after")
    def _says_how(self) -> Self:
        if self.chunks_per_step is None and self.values is None:
            raise ValueError("give chunksPerStep, values, or both: how much a step publishes")
        if self.values is None:
            return self
        named = [name for step in self.values if step != "rest" for name in step]
        if not self.values or not all(self.values):
            raise ValueError("values has a list for each step, and each list a value or more")
        if len(set(named)) != len(named):
            raise ValueError("a value is in one step")
        if "rest" in self.values[:-1]:
            raise ValueError("rest is the last step: all values that no step before it names")
        return self


class Series(Part):
    """Which step of a progressive run this is; written by the planner. Step 1 has no step before it."""

    of: str
    step: Annotated[int, Field(ge=1, strict=True, description="which step it is: a whole number from 1 on")]
    steps: Annotated[int, Field(ge=1, strict=True, description="how many steps there are: a whole number from 1 on")]


class Sample(Part):
    """Of a dry run: compute and check these chunks only."""

    chunks: tuple[
        ChunkKey,
        ...,
    ] = Field(min_length=1, max_length=1_000)
