"""Looks at quarantined rows: whether some wait for longer than their table allows, releases and takings back that were interrupted.

Put here what is left lying in a quarantine, or was taken out of it alone. What a case is is `planning.quarantine_cases`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement
from backfill_assets.planning.quarantine_cases import CaseState, cases_of
from resources.lakehouse.loads import Load, load_of_part
from resources.ledger.quarantine_decisions import INTENT
from resources.processes import is_busy


def cases_left_waiting(platform: Platform) -> Iterator[Disagreement]:
    """Find cases that nobody has decided about for longer than their table is declared to let them wait."""
    for table in platform.products.inputs:
        if table.quarantine_age_days is None or not platform.lakehouse.exists(table.name):
            continue
        before = platform.ledger.now() - timedelta(days=table.quarantine_age_days)
        late = [
            case
            for case in cases_of(platform, table).all.values()
            if case.state is CaseState.WAITING and case.first_seen < before
        ]
        if late:
            oldest = min(case.first_seen for case in late)
            yield Disagreement(
                "quarantine-waits",
                table.name,
                f"{len(late):,} quarantined case(s) wait for longer than {table.quarantine_age_days} day(s), the oldest since "
                f"{oldest:%Y-%m-%d %H:%M} UTC",
                Confidence.CERTAIN,
                f"see `backfill quarantine list {table.name} --state waiting`; release or reject them",
            )


def releases_interrupted(platform: Platform) -> Iterator[Disagreement]:
    """Find releases of which nobody has put on record what came of them, and that nobody is at."""
    at_it = {held.target for held in platform.ledger.repairs.open_leases() if is_busy(held)}
    for table in platform.products.inputs:
        if table.name in at_it:
            continue
        for one in platform.ledger.quarantine.releases(table.name):
            if one.state == INTENT:
                yield Disagreement(
                    "release-interrupted",
                    table.name,
                    f"the release of {one.cases:,} case(s) as load {one.load_id}, begun {one.at:%Y-%m-%d %H:%M:%S} UTC, has not ended",
                    Confidence.CERTAIN,
                    f"the next decision about the table's cases settles it: run the same `backfill quarantine release {table.name}` again",
                )


def unloads_interrupted(platform: Platform) -> Iterator[Disagreement]:
    """Find loads whose quarantined rows were taken back, and whose other rows were not: nobody sees these cases any more."""
    at_it = {held.target for held in platform.ledger.repairs.open_leases() if is_busy(held)}
    for table in platform.products.inputs:
        quarantine = platform.products.quarantine_of(table).name
        if table.name in at_it or quarantine == table.name:
            continue
        if not (platform.lakehouse.exists(table.name) and platform.lakehouse.exists(quarantine)):
            continue
        parts: dict[str, list[Load]] = {}
        for part in platform.lakehouse.loads(quarantine):
            parts.setdefault(load_of_part(part.load_id), []).append(part)
        for load in platform.lakehouse.loads(table.name):
            mine = parts.get(load.load_id, [])
            # of one that was begun anew by other rules, the newest part is there, or nothing is quarantined any more
            if load.undone_by is None and load.quarantined and mine and all(one.undone_by is not None for one in mine):
                yield Disagreement(
                    "unload-interrupted",
                    table.name,
                    f"{load.quarantined:,} quarantined row(s) of load {load.load_id} were taken back by {mine[-1].undone_by}, and its "
                    f"{load.rows:,} rows in the table were not",
                    Confidence.CERTAIN,
                    f"take the rest of it back, too: `backfill unload {table.name} {load.load_id} --by NAME --reason TEXT`; then load it "
                    "again if it was right after all",
                )
