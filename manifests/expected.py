"""What a manifest says must come out: rows, sums of columns and digests, by chunk or of the whole publish range.

Put here the fields of a manifest that say so. What in them contradicts a target or a plan is `expected_problems`', and what a run has
found instead `backfill_assets.gates.expected_figures`'; figures that a product declares, for every run, are a gate of its own.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from manifests.fields import Part

EXPECTED_FIGURES_GATE = "figures_are_those_expected"
_ROWS_MOST = 10**15
_DIGITS = r"^-?[0-9]{1,38}(\.[0-9]{1,38})?$"
_COLUMN = Annotated[str, Field(min_length=1, max_length=200, description="a column is named as the table has it")]
_CHUNK = Annotated[
    str,
    Field(
        pattern=r"^([0-9WT-]{4,13}(~[A-Za-z0-9._-]{1,64})?|~?[A-Za-z0-9_][A-Za-z0-9._-]{0,63})$",
        description="a chunk's key in quotes: 2012, 2012-03, 2012-W09, 2012-03-31, 2012-03-31T05 or 2012-03~CA; of a table without "
        "time CA",
    ),
]


def _exact(value: Any) -> Any:
    """Return a whole number as text; one with a point has lost digits before anybody could look at it."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Sum = Annotated[
    str,
    BeforeValidator(_exact),
    Field(
        strict=True,
        pattern=_DIGITS,
        description='a sum is a whole number, or a decimal in quotes, exact to the last digit: "1250.75"',
    ),
]


class Figures(Part):
    """Rows that readers see once the run is published, and sums of number columns of them; what is left out is not compared."""

    rows: (
        Annotated[
            int,
            Field(
                ge=0, le=_ROWS_MOST, strict=True, description="how many rows: a whole number, 0 or more, without quotes"
            ),
        ]
        | None
    ) = None
    sums: dict[_COLUMN, Sum] = Field(default={})

    @property
    def says_nothing(self) -> bool:
        """Whether there is no figure to compare."""
        return self.rows is None and not self.sums

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.says_nothing:
            raise ValueError("there is no figure to compare: give rows, sums or, of a chunk, digest")
        return self


class ChunkFigures(Figures):
    """Of a chunk also the digest of its rows, as `backfill reproduce` and the evidence have it."""

    digest: (
        Annotated[
            str,
            Field(
                pattern=r"^rows-sha256-v[0-9]{1,3}:[0-9a-f]{64}$",
                description="a digest is written as the evidence has it: rows-sha256-v1: and 64 characters of 0-9 and a-f",
            ),
        ]
        | None
    ) = None

    @property
    def says_nothing(self) -> bool:
        """Whether there is no figure to compare."""
        return self.digest is None and super().says_nothing


class Expected(Part):
    """What must come out: of chunks by their keys, of the whole publish range, or both."""

    whole: Figures | None = None
    chunks: dict[_CHUNK, ChunkFigures] = Field(default={}, max_length=100_000)

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.whole is None and not self.chunks:
            raise ValueError("expected names no figure: give whole, or chunks by their keys")
        return self

    def describe(self) -> str:
        """Say in words of what figures are expected."""
        parts = [f"{len(self.chunks):,} chunk(s)"] if self.chunks else []
        parts += ["the whole publish range"] if self.whole is not None else []
        return f"figures of {' and of '.join(parts)} are expected"
