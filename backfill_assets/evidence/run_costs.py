"""What a run has taken and cost, beside what its plan estimated: from the rows of the ledger and the prices of the plan.

Put here how the two are held beside each other, for evidence, pages and figures alike. How they are reckoned is `manifests.costs`'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backfill_assets.installation import Platform
from manifests.costs import RunCosts, in_time, in_usd
from manifests.lifecycle import COMPUTABLE, RunState
from resources.ledger.facade import STAGED, Ledger, RunRecord
from resources.ledger.measured import Taken

COSTS_FILE = "costs.json"


@dataclass(frozen=True)
class Costs:
    """What a run was estimated to take, and has taken.

    `is_all` says that this is all: each chunk of the plan is staged, or the run is over. Else it is a part, and is held
    against no estimate, which is of the whole run.
    """

    estimated: RunCosts
    taken: Taken
    is_all: bool = True

    @property
    def core_seconds(self) -> float | None:
        """Cores times seconds."""
        return None if self.estimated.cores is None else self.taken.seconds * self.estimated.cores

    @property
    def usd(self) -> float | None:
        """What it has cost, by the prices of its plan."""
        return self.estimated.usd_of(self.taken.seconds, self.taken.charged, self.taken.written)

    def __str__(self) -> str:
        """Say in words what it has taken, beside what it was estimated to."""
        then, done = self.estimated, self.taken
        parts = [f"{in_time(done.seconds)} of computing{self._beside(then.seconds, done.seconds, in_time)}"]
        if self.core_seconds is not None:
            parts.append(f"{self.core_seconds:,.0f} core-seconds")
        read = self._beside(then.rows, done.rows, "{:,.0f} rows".format)
        parts.append(f"{done.rows:,} rows and {done.bytes / 1e6:,.1f} MB read{read}")
        if self.usd is not None:
            parts.append(f"${in_usd(self.usd)}{self._beside(then.usd, self.usd, lambda usd: f'${in_usd(usd)}')}")
        return ", ".join(parts)

    def _beside(self, estimated: float | None, taken: float, in_words: Callable[[float], str]) -> str:
        """Say by how much an estimate was missed; of a part, what all of the run was estimated to take."""
        if not estimated:
            return ""
        if not self.is_all:
            return f" (of about {in_words(estimated)} estimated for all)"
        return f" ({(taken - estimated) / estimated:+.0%} of the estimate)" if taken != estimated else " (as estimated)"


def costs_of(ledger: Ledger, record: RunRecord) -> Costs | None:
    """Return what a run has taken beside what was estimated; None of a plan without an estimate, or if it has computed nothing."""
    if record.plan.costs is None:
        return None
    taken = ledger.taken(record.run_id)
    return Costs(record.plan.costs, taken, _has_taken_all(ledger, record)) if taken.seconds else None


def _has_taken_all(ledger: Ledger, record: RunRecord) -> bool:
    """Whether a run takes no more than it has: it is over, or every chunk of its plan is staged."""
    if record.state not in COMPUTABLE or record.state is RunState.STAGED:
        return True
    return all(one.state in STAGED for one in ledger.standing_chunks(record.run_id))


def told(found: Costs) -> dict[str, Any]:
    """Return both as plain data."""
    then, done = found.estimated, found.taken
    return {
        "estimated": {
            "rows": then.rows,
            "bytes": then.bytes,
            "written": then.written,
            "seconds": then.seconds,
            "coreSeconds": then.core_seconds,
            "usd": _cents(then.usd),
            "learnedFrom": list(then.learned_from),
            "error": then.error,
        },
        "taken": {
            "rows": done.rows,
            "bytes": done.bytes,
            "written": done.written,
            "seconds": round(done.seconds, 3),
            "coreSeconds": None if found.core_seconds is None else round(found.core_seconds, 3),
            "usd": _cents(found.usd),
        },
    }


def sealed_costs(platform: Platform, record: RunRecord) -> dict[str, Any]:
    """Return the file of a bundle that says both; nothing where nothing was estimated."""
    found = costs_of(platform.ledger, record)
    return {} if found is None else {COSTS_FILE: told(found)}


def _cents(usd: float | None) -> float | None:
    return None if usd is None else round(usd, 4)
