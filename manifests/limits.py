"""What a run must not exceed: sinks that it may reach, rows, time and money, how much of it runs at once, how fast and when.

Put here how a manifest says that, and a policy. What follows for the next batch is `manifests.pace`'s; what a sink is, and which mode may reach
which, is `resources.sinks.policy`'s.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta
from functools import cache
from typing import Annotated, Any, Self
from zoneinfo import ZoneInfo, available_timezones

from pydantic import BeforeValidator, Field, field_validator, model_validator

from manifests.fields import Name, Part, whole_number

_MOST = 10**15
_HOUR = re.compile(r"(?:[01][0-9]|2[0-3]):[0-5][0-9]")


def _percent(meant: str) -> Any:
    return Field(
        ge=0,
        le=10_000,
        strict=True,
        allow_inf_nan=False,
        description=f"{meant}: a number from 0 to 10,000, without quotes",
    )


class Breaker(Part):
    """Past which threshold the run is paused, with its state kept."""

    max_rejected_percent: Annotated[float, _percent("how many of the gated rows may break a rule")] | None = None
    max_drift_percent: (
        Annotated[float, _percent("how far rows and sums of the gated chunks may be from those accepted today")] | None
    ) = None
    max_failed_attempts: Annotated[int, whole_number(0, 10_000, "how many attempts may fail")] | None = None
    max_live_delay_seconds: (
        Annotated[int, whole_number(1, 604_800, "for how long a live run of the table may not be published")] | None
    ) = None
    min_free_memory_mb: Annotated[int, whole_number(1, 10_000_000, "how many MB of memory stay free")] | None = None


class Canary(Part):
    """How many chunks are computed and gated before the others, and whether somebody looks at them first."""

    chunks: Annotated[int, whole_number(1, 10_000, "how many chunks come first")]
    waits: bool = False


class Safety(Part):
    """What the run must not exceed."""

    _later = frozenset({"max_duration_minutes", "max_cost_usd", "breaker", "canary"})

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
    max_duration_minutes: Annotated[int, whole_number(1, 525_600, "how many minutes the run may compute")] | None = None
    max_cost_usd: (
        Annotated[
            float,
            Field(
                gt=0,
                allow_inf_nan=False,
                strict=True,
                description="how many dollars the run may cost by the installation's prices: a number above 0, without quotes",
            ),
        ]
        | None
    ) = None
    requires_manual_publish: bool = False
    breaker: Breaker | None = None
    canary: Canary | None = None

    @field_validator("sinks")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("a sink is named once")
        return value


_OF_A_MACHINE = frozenset({"localtime", "Factory", "posixrules"})
"""What a machine may have beside the zones, and no other machine means the same by."""


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones()) - _OF_A_MACHINE


def _hour_of_day(value: Any) -> Any:
    if isinstance(value, str) and _HOUR.fullmatch(value.strip()):
        return value
    raise ValueError('an hour of the day is written "22:00", in quotes, from "00:00" to "23:59"')


HourOfDay = Annotated[
    str, BeforeValidator(_hour_of_day), Field(description='an hour of the day is written "22:00", in quotes')
]


class Hours(Part):
    """Hours of each day, in a time zone, from `opens` until just before `closes`; over midnight, if that is earlier."""

    opens: HourOfDay
    closes: HourOfDay
    zone: Annotated[str, Field(description="a time zone is named as in the IANA database: UTC, Europe/Rome")] = "UTC"

    @field_validator("zone")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in _zones():
            raise ValueError("a time zone is named as in the IANA database: UTC, Europe/Rome")
        return value

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if self.opens == self.closes:
            raise ValueError("a window closes at another time than it opens; for the whole day leave windows out")
        return self

    def is_open(self, at: datetime) -> bool:
        """Whether an instant lies in the hours."""
        now = at.astimezone(ZoneInfo(self.zone)).time().replace(tzinfo=None)
        opens, closes = time.fromisoformat(self.opens), time.fromisoformat(self.closes)
        return opens <= now < closes if opens < closes else now >= opens or now < closes

    def opens_after(self, at: datetime) -> datetime:
        """Return when they open next, after an instant that lies outside of them."""
        zone = ZoneInfo(self.zone)
        day, opens = at.astimezone(zone).date(), time.fromisoformat(self.opens)
        # the day before: where clocks are put forward, the hour that is left out begins later than it says
        local = [datetime.combine(day + timedelta(days=days), opens, zone) for days in range(-1, 3)]
        again = [one.replace(fold=1).astimezone(UTC) for one in local]  # where clocks are put back, an hour comes twice
        found = [one.astimezone(UTC) for one in local] + [one for one in again if self.is_open(one)]
        return min(one for one in found if one > at)

    def __str__(self) -> str:
        return f"{self.opens} to {self.closes} ({self.zone})"


class Budget(Part):
    """How much of its sources a run may be given to read in all, tried again included."""

    rows: Annotated[int, whole_number(1, _MOST, "how many source rows the batches may read in all")] | None = None
    bytes: Annotated[int, whole_number(1, _MOST, "how many bytes the batches may read in all")] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.rows is None and self.bytes is None:
            raise ValueError("give rows, bytes, or both: what the batches may read in all")
        return self


class Pace(Part):
    """How fast and when a run may go, over all machines, and how much it may take in all; a policy says what at most."""

    _later = frozenset(
        {
            "max_chunks_in_parallel",
            "max_rows_per_minute",
            "max_bytes_per_minute",
            "max_commits_per_hour",
            "pause_between_batches_seconds",
            "windows",
            "budget",
        }
    )

    max_chunks_in_parallel: (
        Annotated[int, whole_number(1, 100_000, "how many chunks are computed at once, over all machines")] | None
    ) = None
    max_rows_per_minute: (
        Annotated[int, whole_number(1, _MOST, "how many source rows a minute, over any 10 minutes")] | None
    ) = None
    max_bytes_per_minute: (
        Annotated[int, whole_number(1, _MOST, "how many bytes a minute, over any 10 minutes")] | None
    ) = None
    max_commits_per_hour: (
        Annotated[int, whole_number(1, 3_600, "how many publications an hour the target may have")] | None
    ) = None
    pause_between_batches_seconds: (
        Annotated[int, whole_number(1, 86_400, "how many seconds lie between two batches")] | None
    ) = None
    windows: Annotated[tuple[Hours, ...], Field(max_length=24)] = ()
    budget: Budget | None = None


CHUNKS_PER_JOB = 240
"""The chunks of a Spark job where neither a manifest nor what is known of the table says how many; in the text of a manifest that says nothing."""


class Limits(Pace):
    """How much may run at once, how fast, and when."""

    max_chunks_per_job: Annotated[int, whole_number(1, 100_000, "how many chunks one Spark job computes")] = (
        CHUNKS_PER_JOB
    )
    max_runs_in_parallel: Annotated[int, whole_number(1, 1_000, "how many batches are computed at once")] = 1

    @property
    def leaves_batches_to_the_plan(self) -> bool:
        """Whether it does not say how many chunks a job computes: then as many as their rows and Spark's memory let."""
        return "max_chunks_per_job" not in self.model_fields_set
