"""The diff that is kept of every run: before it, where a person decides whether it is published, and else once readers have the rows.

Put here when a diff is due, how it is made up for, and what follows a judgement or a publication by the way. What a diff is and how rows
are compared is `diff`'s. A process may die between the publication and its diff: the same command again, or the doctor,
completes it; until then the bundle has rows and sums by chunk (`changes.json`), and the report says what is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from backfill_assets import faults
from backfill_assets.audit.report import report_beside
from backfill_assets.declarations.raised_by_products import ANY_ERROR
from backfill_assets.evidence.diff_records import RunDiff
from backfill_assets.evidence.records import records_of, vouched_for
from backfill_assets.gates.chunk_changes import CHANGES_FILE
from backfill_assets.installation import Platform
from backfill_assets.planning.old_data import concealed
from backfill_assets.review.diff import diff_here, diff_run, put_diff, unlinked_diff
from backfill_assets.review.wording import in_short
from backfill_assets.run_context import RunContext
from manifests.compaction import COMPACTION
from manifests.errors import EnvironmentRefused, Problem
from manifests.lifecycle import WAS_PUBLISHED, RunState
from manifests.model import Mode
from resources import logs
from resources.files.kept_files import read_json
from resources.files.places import Place, is_there
from resources.ledger.facade import RunRecord

_log = logging.getLogger(__name__)


def after_publication(platform: Platform, run_id: str) -> Place | None:
    """Keep the diff of a publication and write the report; what cannot be done is said and stops nothing. Return the report."""
    try:
        keep_diff(platform, run_id)
    except ANY_ERROR as error:  # what has landed has landed: a diff that cannot be made must not fail it
        text = (
            f"the diff of {run_id} is not kept: {type(error).__name__}: {error}; `backfill doctor --repair` tries again"
        )
        logs.event(_log, logging.WARNING, "diff_not_kept", text, told=True)
    return report_beside(platform, run_id)


def for_decision(platform: Platform, run_id: str) -> RunDiff | None:
    """Put the diff of a run that is judged on record, where a person comes next; None where none is made, or it is there.

    A person comes next where somebody publishes the run by hand, an owner is asked, a gate of the run has not passed, or it is
    a dry run, which is never published. Of a run that is published by itself it is made afterwards, so that readers wait for nobody.
    Rows of a table that a policy erases by subject are counted only. What cannot be compared is said, and stops nothing.
    """
    record = platform.ledger.run(run_id)
    if (
        not (decided_by_people(platform, record) and record.manifest.evidence.diff)
        or record.plan.compaction is not None
    ):
        return None
    try:
        keep = (0, 0) if concealed(RunContext.of(platform, record)).subject else (None, None)
        made = diff_run(platform, run_id, largest=keep[0], sample=keep[1])
    except ANY_ERROR as error:
        text = (
            f"the diff of {run_id} is not kept: {type(error).__name__}: {error}; `backfill diff {run_id}` tries again"
        )
        logs.event(_log, logging.WARNING, "diff_not_kept", text, told=True)
        return None
    if made.new:
        logs.event(_log, logging.INFO, "diff_kept", f"what it changes: {in_short(made.diff)}", told=True)
    return made.diff if made.new else None


def decided_by_people(platform: Platform, record: RunRecord) -> bool:
    """Return whether a person comes next for a run that is judged."""
    plan = record.plan
    if plan.mode is Mode.RECONCILIATION:
        return False
    match record.state:
        case RunState.VALIDATED:
            return plan.manual_publish or not plan.publishes
        case RunState.STAGED:
            return bool(platform.ledger.asking(record.run_id))
        case RunState.FAILED:
            verdicts = platform.ledger.verdicts(record.run_id)
            return any(not one.chunk for one in verdicts) and all(one.passed for one in verdicts if one.chunk)
        case _:
            return False


def keep_diff(platform: Platform, run_id: str) -> RunDiff | None:
    """Put the diff of a publication on record, if one is due; safe to repeat.

    Raises:
        InputRefused: if files that it needs are gone, or a record is there that is not this diff.
    """
    wanted = due(platform, platform.ledger.run(run_id))
    if not wanted:
        return None
    found = diff_here(platform, run_id, like=unlinked_diff(platform, run_id, wanted))
    faults.reach("comparing.kept")
    put_diff(platform, found)
    logs.event(_log, logging.INFO, "diff_kept", f"its diff is kept: {found.differing:,} rows differ", told=True)
    return found


def due(platform: Platform, record: RunRecord) -> str:
    """Return the id of the diff that is to be kept of a publication and is not yet; empty if there is none.

    It is what the bundle names, unless the manifest says that none is kept. A compaction changes no row: its gate has compared all.
    """
    if record.state not in WAS_PUBLISHED or not record.manifest.evidence.diff or record.kind == COMPACTION:
        return ""
    wanted = str(sealed_changes(platform, record.run_id).get("diff_id", ""))
    return "" if not wanted or _is_kept(platform, record.run_id, wanted) else wanted


def sealed_changes(platform: Platform, run_id: str) -> Mapping[str, Any]:
    """Return what a run's bundle says that it changes; empty if there is none, or an earlier version sealed it without.

    Raises:
        EnvironmentRefused: if it says nothing of the kind.
        ValueError: if it is no JSON.
    """
    file = platform.evidence.path(run_id) / CHANGES_FILE
    found = read_json(file) if is_there(file) else {}
    if not isinstance(found, dict):
        raise EnvironmentRefused(
            Problem(
                f"{file} does not say what a run changes",
                "a bundle has the files that were sealed",
                f"`backfill verify {run_id}` says what else was changed; restore the file from its backup",
            )
        )
    return found


def _is_kept(platform: Platform, run_id: str, diff_id: str) -> bool:
    """Whether a diff is on record that the chain vouches for: by its own link, or by that of a record that has its hash."""
    vouched = vouched_for(platform, run_id, records_of(platform, run_id))
    return any(one.content.get("diff_id") == diff_id for one in vouched)
