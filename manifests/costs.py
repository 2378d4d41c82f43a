"""What a run takes and costs: estimated before it begins, from recorded runs, and reckoned afterwards from the same table of prices.

Plain arithmetic only. What recorded runs have taken is the ledger's to say, prices the settings'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pydantic import BaseModel, ConfigDict, Field

_HOUR, _MINUTE, _GB = 3_600.0, 60.0, 1e9
_FEW = 3
"""Recorded runs from which on time is split into what each run takes and what each row does, if their sizes differ by `_APART`."""
_APART = 2
_MOST = 1e6
"""The highest price that is taken for one."""


class Prices(BaseModel):
    """What is paid, in US dollars."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    usd_per_core_hour: float = Field(0.0, ge=0, le=_MOST, allow_inf_nan=False)
    usd_per_gb_read: float = Field(0.0, ge=0, le=_MOST, allow_inf_nan=False)
    usd_per_gb_written: float = Field(0.0, ge=0, le=_MOST, allow_inf_nan=False)

    @property
    def are_given(self) -> bool:
        """Whether anything costs anything."""
        return self != Prices()


@dataclass(frozen=True)
class Measured:
    """What a recorded run was given to read, has written, and took: the seconds of its attempts."""

    run_id: str
    rows: int
    bytes: int
    written: int
    seconds: float


@dataclass(frozen=True)
class RunCosts:
    """What a run is estimated to take: what it reads from metadata, the rest from recorded runs of the same transform.

    Attributes:
        rows: source rows that its batches read, `bytes` their size.
        written: bytes that it writes; None, as `seconds`, where nothing is on record to learn from.
        seconds: how long its batches are computed, one after the other.
        cores: how many cores compute it; None where the settings do not say.
        prices: what is paid; None where nothing is.
        learned_from: the recorded runs.
        error: by which share of what it took the worst of them would have been missed, from the others; None of less than two.
    """

    rows: int
    bytes: int
    written: int | None
    seconds: float | None
    cores: int | None
    prices: Prices | None
    learned_from: tuple[str, ...]
    error: float | None

    @property
    def core_seconds(self) -> float | None:
        """Cores times seconds."""
        return None if self.seconds is None or self.cores is None else self.seconds * self.cores

    @property
    def usd(self) -> float | None:
        """What it costs; None where there are no prices, or time or cores are not known."""
        if self.seconds is None or self.written is None:
            return None
        return self.usd_of(self.seconds, self.bytes, self.written)

    def usd_of(self, seconds: float, read: int, written: int) -> float | None:
        """Return what computing so long, and reading and writing so many bytes, costs at its prices."""
        if self.prices is None or (self.cores is None and self.prices.usd_per_core_hour):
            return None
        computing = seconds * (self.cores or 0) / _HOUR * self.prices.usd_per_core_hour
        return computing + read / _GB * self.prices.usd_per_gb_read + written / _GB * self.prices.usd_per_gb_written

    def describe(self) -> list[tuple[str, str]]:
        """Say it in words, as pairs of a name and what is said."""
        if self.seconds is None:
            return [("time and cost", "not estimated: no run of this transform is on record")]
        missed = "" if self.error is None else f"; it would have missed the worst of them by {self.error:.0%}"
        learned = f"learned from {len(self.learned_from)} recorded run(s){missed}"
        cores = "" if self.core_seconds is None else f", {self.core_seconds:,.0f} core-seconds on {self.cores} cores"
        found = [("time", f"about {in_time(self.seconds)} of computing{cores}; {learned}")]
        return found if self.usd is None else [*found, ("cost", f"about ${in_usd(self.usd)}")]


def estimate(rows: int, size: int, measured: Sequence[Measured], cores: int | None, prices: Prices | None) -> RunCosts:
    """Estimate what a run takes that reads so many rows, from recorded runs."""
    seconds = seconds_for(measured, rows)
    written = None if not measured else round(rows * median(one.written / one.rows for one in measured))
    learned = tuple(one.run_id for one in measured)
    return RunCosts(
        rows, size, written, None if seconds is None else round(seconds, 1), cores, prices, learned, error_of(measured)
    )


def seconds_for(measured: Sequence[Measured], rows: int) -> float | None:
    """Return how long rows take by recorded runs: by a row's share of each, or by a line through them where sizes differ.

    Medians, so that one run on a busy machine says little.
    """
    if not measured:
        return None
    sizes = [one.rows for one in measured]
    if len(measured) < _FEW or max(sizes) < _APART * min(sizes):
        return rows * median(one.seconds / one.rows for one in measured)
    slopes = [
        (one.seconds - other.seconds) / (one.rows - other.rows)
        for number, one in enumerate(measured)
        for other in measured[:number]
        if one.rows != other.rows
    ]
    slope = max(0.0, median(slopes))
    begins = max(0.0, median(one.seconds - slope * one.rows for one in measured))
    return begins + slope * rows


def error_of(measured: Sequence[Measured]) -> float | None:
    """Return the largest share by which a recorded run would have been missed, had the others been asked."""
    missed = []
    for number, one in enumerate(measured):
        found = seconds_for([*measured[:number], *measured[number + 1 :]], one.rows)
        if found is not None:
            missed.append(abs(found - one.seconds) / one.seconds)
    return round(max(missed), 3) if missed else None


def in_usd(usd: float) -> str:
    """Return an amount with its cents; of less than a cent, with two digits that say how much."""
    digits = 2 if usd <= 0 or usd >= 0.01 else 1 - math.floor(math.log10(usd))  # noqa: PLR2004 - a cent
    whole, _, part = f"{usd:,.{digits}f}".partition(".")
    return f"{whole}.{part.rstrip('0').ljust(2, '0')}"


def in_time(seconds: float) -> str:
    """Return a duration as people say it."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:,.0f} s"
    return f"{seconds / _MINUTE:,.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:,.1f} h"
