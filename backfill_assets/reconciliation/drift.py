"""How far published rows were from their source, reconciliation by reconciliation.

Put here what is read from the ledger's verdicts, as numbers; how they are shown is the command's and Dagster's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from backfill_assets.installation import Platform
from manifests.lifecycle import RunState
from manifests.model import Mode
from resources.ledger.facade import RunRecord, Verdict

_NUMBERS = frozenset({"compared", "wrong", "expected", "found", "difference"})
_NOT_A_NAME = _NUMBERS | {"rules", "accepted_run", "measure"}


@dataclass(frozen=True)
class Reading:
    """What one gate of one reconciliation found.

    `compared` and `disagreeing` are in the gate's own unit (entities, slices, chunks); `share` is the one of the other;
    `slices` has, by failing slice, how much is wrong there.
    """

    run_id: str
    at: datetime
    gate: str
    passed: bool
    compared: int
    disagreeing: int
    share: float
    slices: Mapping[str, float]


@dataclass(frozen=True)
class Series:
    """A number over time: of a gate, or of one of its slices; one value for each reading of the gate."""

    gate: str
    slice: str
    values: tuple[float, ...]
    compared: int

    @property
    def change(self) -> float:
        """The last value against the one before it."""
        return self.values[-1] - self.values[-2] if len(self.values) > 1 else 0.0


def reading(run_id: str, verdict: Verdict) -> Reading | None:
    """Return what a verdict says in numbers, or None where its gate does not count."""
    details = verdict.details
    if details.get("compared") is None or verdict.at is None:
        return None
    compared, disagreeing = int(details["compared"]), int(details.get("disagreeing") or 0)
    return Reading(
        run_id,
        verdict.at,
        verdict.gate,
        verdict.passed,
        compared,
        disagreeing,
        disagreeing / compared if compared else 0.0,
        _by_slice(details.get("slices", [])),
    )


def _by_slice(slices: list[dict[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in slices:
        name = slice_name(one)
        found[name] = found.get(name, 0.0) + _amount(one)
    return found


def slice_name(one: Mapping[str, Any]) -> str:
    """Return what a failing slice of a verdict is called: the values of its columns."""
    return " ".join(str(value) for name, value in one.items() if name not in _NOT_A_NAME) or "all"


def _amount(one: Mapping[str, Any]) -> float:
    if "wrong" in one:
        return float(one["wrong"])
    if "expected" in one and "found" in one:  # rows that are another leave the number as it was
        return abs(float(one["found"]) - float(one["expected"])) or 1.0
    return 1.0


def reconciliations(platform: Platform, target: str, last: int) -> list[RunRecord]:
    """Return the last judged reconciliations of a target, oldest first."""
    judged = platform.ledger.runs(target=target, states=[RunState.VALIDATED, RunState.FAILED])
    ours = [record for record in judged if record.mode == Mode.RECONCILIATION]
    return sorted(ours, key=lambda record: (record.created_at, record.run_id))[-last:]


def readings(platform: Platform, target: str, last: int) -> list[Reading]:
    """Return what the gates of the last reconciliations of a target found, oldest first."""
    found = []
    for record in reconciliations(platform, target, last):
        for verdict in platform.ledger.verdicts(record.run_id):
            one = None if verdict.chunk else reading(record.run_id, verdict)
            if one is not None:
                found.append(one)
    return found


def series(found: list[Reading]) -> list[Series]:
    """Return each gate's disagreeing things over time, and those of each slice that ever failed, worst first."""
    result = []
    for gate in dict.fromkeys(one.gate for one in found):
        of_gate = [one for one in found if one.gate == gate]
        result.append(Series(gate, "", tuple(float(one.disagreeing) for one in of_gate), of_gate[-1].compared))
        slices = {name for one in of_gate for name in one.slices}
        own = [Series(gate, name, tuple(one.slices.get(name, 0.0) for one in of_gate), 0) for name in slices]
        result += sorted(own, key=lambda one: (-one.values[-1], -max(one.values), one.slice))
    return result
