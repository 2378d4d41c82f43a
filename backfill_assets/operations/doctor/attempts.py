"""Looks at attempts: those on record as running whose process has ended, or is on another machine.

Put here what keeps an attempt from being over. What it has staged is `damaged_files`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial

from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement, outcome
from backfill_assets.operations.doctor.views import legible_runs
from manifests.lifecycle import COMPUTABLE
from resources.ledger.facade import PROCESS_ENDED, RunRecord
from resources.processes import has_ended, is_busy

SILENT_AFTER = timedelta(days=1)
"""After how long an attempt on another machine is asked about."""


def attempts_not_running(platform: Platform) -> Iterator[Disagreement]:
    """Find attempts that are on record as running and are not."""
    for record in legible_runs(platform):
        yield from _attempts_of(platform, record)


def _attempts_of(platform: Platform, record: RunRecord) -> Iterator[Disagreement]:
    for attempt in platform.ledger.attempts(record.run_id):
        if not attempt.is_running:
            continue
        number = attempt.attempt
        where = f"{record.run_id} attempt {number}"
        if has_ended(attempt):
            goes_on = (
                f"; `backfill run {record.run_id}` goes on from what is staged" if record.state in COMPUTABLE else ""
            )
            yield Disagreement(
                "attempt-of-dead-process",
                where,
                f"it is RUNNING (the run is {record.state}), and its process {attempt.pid} on {attempt.host} is no more",
                Confidence.CERTAIN,
                f"record that it ended{goes_on}",
                partial(_end_attempt, platform, record.run_id, number),
            )
        elif not is_busy(attempt) and attempt.started_at < platform.ledger.now() - SILENT_AFTER:
            yield Disagreement(
                "attempt-elsewhere",
                where,
                f"it is RUNNING on {attempt.host} since {attempt.started_at.isoformat(timespec='seconds')}",
                Confidence.POSSIBLE,
                f"run `backfill doctor` on {attempt.host}: only there can be seen whether process {attempt.pid} lives",
            )


def _end_attempt(platform: Platform, run_id: str, attempt: int) -> str:
    return outcome(
        platform.ledger.repairs.end_attempt(run_id, attempt, PROCESS_ENDED), "recorded as FAILED: " + PROCESS_ENDED
    )
