"""Dry runs as a gate: from which size on a policy has no run approved without one, and what a plan and an approval keep of it.

Put here the field of a policy's rule, the terms that a plan has of it, and the link from an approval to its dry run. Whether a dry run
counts for a plan is `dry_run_proof`'s; which chunks one takes, `dry_run_samples`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from math import ceil
from typing import Annotated, Self

from pydantic import Field, model_validator

from manifests.canonical import LATER, canonical_json, reader_of
from manifests.fields import Part, whole_number

MOST_SAMPLED = 1_000
"""The most chunks that a sample names, and that a dry run is ever asked for."""
_MOST_ROWS = 10**15


class OnOtherSnapshot(StrEnum):
    """What a dry run is worth that has read its sources at other snapshots than the run would."""

    REFUSE = "REFUSE"
    """Nothing: what it has computed says little of rows that it has not seen."""
    ALLOW = "ALLOW"
    """It counts, and the approval says which source it has read at which other snapshot."""


class DryRuns(Part):
    """From which size on a run is approved only after a dry run of some of its chunks, and which dry run counts."""

    from_chunks: Annotated[int, whole_number(1, 1_000_000, "from how many chunks on")] | None = None
    from_rows: Annotated[int, whole_number(1, _MOST_ROWS, "from how many source rows to be read on")] | None = None
    chunks_at_least: Annotated[int, whole_number(1, MOST_SAMPLED, "how many chunks it computes at least")] = 4
    percent_at_least: (
        Annotated[
            float,
            Field(
                gt=0,
                le=100,
                strict=True,
                allow_inf_nan=False,
                description="which share of the run's chunks it computes at least: a number above 0, at most 100, without quotes",
            ),
        ]
        | None
    ) = None
    within_days: Annotated[
        float,
        Field(
            gt=0,
            le=365,
            strict=True,
            allow_inf_nan=False,
            description="how many days before the approval its gates have passed at most: a number above 0, at most 365, without quotes",
        ),
    ] = 7.0
    on_other_snapshot: OnOtherSnapshot = OnOtherSnapshot.REFUSE

    @model_validator(mode="after")
    def _says_from_when(self) -> Self:
        if self.from_chunks is None and self.from_rows is None:
            raise ValueError("give fromChunks, fromRows, or both: from which size on a run needs a dry run")
        return self

    def describe(self) -> str:
        """Say from when on a run needs a dry run, and which."""
        limits = ((self.from_chunks, "chunks"), (self.from_rows, "source rows"))
        sizes = " or ".join(f"{limit:,} {what}" for limit, what in limits if limit is not None)
        share = "" if self.percent_at_least is None else f" and {self.percent_at_least:g}%"
        days = f"{self.within_days:g} day{'' if self.within_days == 1 else 's'}"
        pins = "" if self.on_other_snapshot is OnOtherSnapshot.REFUSE else ", also on other snapshots"
        return f"from {sizes} on a dry run of {self.chunks_at_least:,}{share} of the chunks within {days}{pins}"


@dataclass(frozen=True)
class DryRunTerms:
    """Why no plan of this size is approved without a dry run, and which one counts.

    Attributes:
        chunks: how many the run has; all steps together, of a progressive one.
        rows: how many source rows it would read, counted alike.
        from_chunks: the policy's limit; None where it has none, or the run is smaller. `from_rows` alike.
        least: how many of its chunks a dry run computes at least.
        within_days: how many days before the approval its gates have passed at most.
        other_snapshots: whether one counts that has read sources at other snapshots.
    """

    chunks: int
    rows: int
    from_chunks: int | None
    from_rows: int | None
    least: int
    within_days: float
    other_snapshots: bool

    @property
    def why(self) -> str:
        """Say why one is required."""
        said = []
        if self.from_chunks is not None:
            said.append(f"{self.chunks:,} chunks (from {self.from_chunks:,} on)")
        if self.from_rows is not None:
            said.append(f"{self.rows:,} rows to read (from {self.from_rows:,} on)")
        return " and ".join(said)

    @property
    def rule(self) -> str:
        """Say which dry run counts."""
        pins = "whatever snapshots of the sources" if self.other_snapshots else "the same snapshots"
        return (
            f"{self.least:,} of its chunks or more, computed by the same code from {pins}, every gate passed at most "
            f"{self.within_days:g} day(s) before the approval"
        )

    def describe(self) -> str:
        """Say that one is required, why, and which."""
        return f"required before the approval, for {self.why}: {self.rule}"


@dataclass(frozen=True)
class DryRunLink:
    """The dry run that an approval rests on, as it was then.

    Attributes:
        run_id: the dry run.
        plan_hash: of its plan.
        evidence_hash: SHA-256 of what it has computed and what its gates said (`evidence.dry_runs`).
        chunks: how many it computed. `rows` alike.
        validated_at: when its last gate passed.
        other_snapshots: of each source that it has read at another snapshot, what both were, in words.
        against: of each newer dry run that would count but for what has become of it, that it has failed or was rejected, in words.
    """

    run_id: str
    plan_hash: str
    evidence_hash: str
    chunks: int
    rows: int
    validated_at: datetime
    other_snapshots: tuple[str, ...] = field(default=(), metadata=LATER)
    against: tuple[str, ...] = field(default=(), metadata=LATER)

    def to_json(self) -> str:
        """Return the link as canonical JSON; `link_from_json` reads it back."""
        return canonical_json(self)

    def describe(self) -> str:
        """Say which dry run it is, what it has computed, and what it has read otherwise."""
        said = (
            f"'{self.run_id}' (plan {self.plan_hash[:12]}, evidence {self.evidence_hash[:12]}): {self.chunks:,} chunk(s), "
            f"{self.rows:,} row(s), passed {self.validated_at:%Y-%m-%d %H:%M} UTC"
        )
        said += f"; on other snapshots: {'; '.join(self.other_snapshots)}" if self.other_snapshots else ""
        return said + (f"; of newer ones alike, {', '.join(self.against)}" if self.against else "")


def link_from_json(text: str) -> DryRunLink | None:
    """Return the link that `DryRunLink.to_json` wrote; None of an approval without one, whose text is empty.

    Raises:
        ValueError: if it is no such text.
    """
    return reader_of(DryRunLink).validate_json(text) if text else None


def terms_of(wanted: DryRuns | None, chunks: int, rows: int) -> DryRunTerms | None:
    """Return what a rule asks for before a run of so many chunks, which reads so many source rows, is approved; None: nothing."""
    if wanted is None:
        return None
    by_chunks = wanted.from_chunks if wanted.from_chunks is not None and chunks >= wanted.from_chunks else None
    by_rows = wanted.from_rows if wanted.from_rows is not None and rows >= wanted.from_rows else None
    if by_chunks is None and by_rows is None:
        return None
    share = 0 if wanted.percent_at_least is None else ceil(round(chunks * wanted.percent_at_least / 100, 6))
    least = min(max(wanted.chunks_at_least, share), chunks, MOST_SAMPLED)
    lenient = wanted.on_other_snapshot is OnOtherSnapshot.ALLOW
    return DryRunTerms(chunks, rows, by_chunks, by_rows, least, wanted.within_days, lenient)


def strictest(wanted: Sequence[DryRuns | None]) -> DryRuns | None:
    """Return what satisfies every rule; None where none asks for a dry run."""
    given = [one for one in wanted if one is not None]
    if len(given) <= 1:
        return given[0] if given else None
    return DryRuns.model_construct(
        from_chunks=min((one.from_chunks for one in given if one.from_chunks is not None), default=None),
        from_rows=min((one.from_rows for one in given if one.from_rows is not None), default=None),
        chunks_at_least=max(one.chunks_at_least for one in given),
        percent_at_least=max((one.percent_at_least for one in given if one.percent_at_least is not None), default=None),
        within_days=min(one.within_days for one in given),
        on_other_snapshot=OnOtherSnapshot.REFUSE
        if any(one.on_other_snapshot is OnOtherSnapshot.REFUSE for one in given)
        else OnOtherSnapshot.ALLOW,
    )
