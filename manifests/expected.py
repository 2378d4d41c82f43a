"""What a manifest says must come out: rows, sums of columns and digests, by chunk or of the whole publish range.

Put here the fields of a manifest that say so. What in them contradicts a target or a plan is `expected_problems`', and what a run has
found instead `backfill_assets.gates.expected_figures`'; figures that a product declares, for every run, are a gate of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self, TypeVar

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

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

    def in_words(self) -> str:
        """Say the figures."""
        rows = [] if self.rows is None else [f"{self.rows:,} rows"]
        return ", ".join([*rows, *(f"sum of {column} {value}" for column, value in sorted(self.sums.items()))])

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

    def in_words(self) -> str:
        """Say the figures, and the digest."""
        digest = [] if self.digest is None else [f"digest {self.digest}"]
        return ", ".join([*filter(None, [super().in_words()]), *digest])


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


_Kind = TypeVar("_Kind", bound=Figures)


def valid_figures(data: Any) -> tuple[Expected | None, bool]:
    """Return those figures of a manifest's `expected` that are valid by themselves, and whether these are all of it.

    What is left of figures that are not valid as a whole can be held against a target all the same: a mistake in one of them hides
    none of the others.
    """
    if (whole := _valid(Expected, data)) is not None:
        return whole, True
    given = data if isinstance(data, Mapping) else {}
    chunks = given.get("chunks")
    kept = {
        key: figures
        for key, value in (chunks if isinstance(chunks, Mapping) else {}).items()
        if _valid(_CHUNK, key) is not None and (figures := _kept(ChunkFigures, value)) is not None
    }
    of_whole = _kept(Figures, given.get("whole"))
    return (Expected(whole=of_whole, chunks=kept) if kept or of_whole is not None else None), False


def _kept(kind: type[_Kind], data: Any) -> _Kind | None:
    """Return the valid ones of some figures; a sum whose value is not valid still names its column."""
    if not isinstance(data, Mapping):
        return None
    sums = data.get("sums")
    kept: dict[str, Any] = {
        "sums": {
            name: "0" if _valid(Sum, value) is None else value
            for name, value in (sums if isinstance(sums, Mapping) else {}).items()
            if _valid(_COLUMN, name) is not None
        }
    }
    kept |= {name: data[name] for name in ("rows", "digest") if name in data}
    while kept:
        try:
            return kind.model_validate(kept)
        except ValidationError as error:
            wrong = {str(one["loc"][0]) for one in error.errors() if one["loc"]}
            if not wrong & kept.keys():
                return None
            kept = {name: value for name, value in kept.items() if name not in wrong}
    return None


def _valid(kind: Any, data: Any) -> Any:
    """Return data as a valid value; None where it is none."""
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError:
        return None
