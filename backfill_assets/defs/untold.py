"""What Dagster does not show of what the ledger has, found and told again: the doctor's look at Dagster.

Put here what disagrees between ledger and Dagster. The doctor itself needs no Dagster.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from backfill_assets.defs.changes import ReaderChange, is_told, recorded, summary, tell_changes, untold
from backfill_assets.defs.launch import instance_at
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement, not_checked
from manifests.errors import EnvironmentRefused
from resources.ledger.cells import IllegibleRow


def dagster_disagreements(platform: Platform) -> Iterator[Disagreement]:
    """Find changes of what readers see that Dagster does not show."""
    try:
        if not any(recorded(platform, target.name) for target in platform.products.targets):
            return
    except IllegibleRow as refusal:
        yield not_checked("Dagster", refusal)
        return
    try:
        with instance_at(platform.settings) as instance:
            found = untold(platform, instance)
    except EnvironmentRefused as refusal:
        yield _unreachable(platform, refusal.problems[0].what, refusal.problems[0].fix)
        return
    except Exception as error:  # noqa: BLE001 - a storage that is down may raise anything
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        yield _unreachable(platform, why, "start the storage of Dagster; what it was not told is told then")
        return
    for change in found:
        yield Disagreement(
            "dagster-not-told",
            f"{change.run_id} {change.action} {change.number}",
            f"its {change.action} of {change.at:%Y-%m-%d %H:%M} UTC is not shown on {change.target}_published",
            Confidence.CERTAIN,
            "the sensor tell_changes shows it, or `backfill doctor --repair`",
            partial(_tell, platform, change),
        )


def _unreachable(platform: Platform, why: str, fix: str) -> Disagreement:
    return Disagreement("dagster-unreachable", str(platform.settings.dagster_home), why, Confidence.CERTAIN, fix)


def _tell(platform: Platform, change: ReaderChange) -> str:
    with instance_at(platform.settings) as instance:
        told = tell_changes(platform, instance, change.target)
        if told:
            return f"told Dagster: {summary(told)}"
        if is_told(instance, change):
            return "Dagster knows of it by now"
    return (
        f"not told yet: a Dagster run publishes into {change.target} and tells its own change first; "
        "the sensor tell_changes tells this one then"
    )
