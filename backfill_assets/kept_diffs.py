"""The diff that is kept of every publication: made once readers have the rows, so that nobody waits for it.

Put here when a diff is due, how it is made up for, and what follows a publication by the way. What a diff is and how rows
are compared is `diff`'s. A process may die between the publication and its diff: the same command again, or the doctor,
completes it; until then the bundle has rows and sums by chunk (`changes.json`), and the report says what is missing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from backfill_assets import faults
from backfill_assets.chunk_changes import CHANGES_FILE
from backfill_assets.diff import RunDiff, diff_here, last_file, put_diff, recorded_diff
from backfill_assets.platform import Platform
from backfill_assets.records import WAS_PUBLISHED, records_of
from backfill_assets.report import report_beside
from manifests.errors import InputRefused, Problem
from resources import logs
from resources.evidence import KEPT
from resources.kept_files import read_json
from resources.ledger import RunRecord

_log = logging.getLogger(__name__)


def after_publication(platform: Platform, run_id: str) -> Path | None:
    """Keep the diff of a publication and write the report; what cannot be done is said and stops nothing. Return the report."""
    try:
        keep_diff(platform, run_id)
    except Exception as error:  # noqa: BLE001 - what has landed has landed: a diff that cannot be made must not fail it
        text = (
            f"the diff of {run_id} is not kept: {type(error).__name__}: {error}; `backfill doctor --repair` tries again"
        )
        logs.event(_log, logging.WARNING, "diff_not_kept", text, told=True)
    return report_beside(platform, run_id)


def keep_diff(platform: Platform, run_id: str) -> RunDiff | None:
    """Put the diff of a publication on record, if one is due; safe to repeat.

    Raises:
        InputRefused: if files that it needs are gone, or a record is there that is not this diff.
    """
    wanted = due(platform, platform.ledger.run(run_id))
    if not wanted:
        return None
    known = recorded_diff(platform, run_id)
    of_it = known if known is not None and known.diff_id == wanted else None
    found = diff_here(platform, run_id, like=of_it)
    faults.reach("comparing.kept")
    if of_it is None:
        put_diff(platform, found)
    elif _findings(of_it) == _findings(
        found
    ):  # a process ended between the record and its link, or is about to append it
        file = last_file(platform, run_id)
        assert file is not None
        platform.evidence.vouch_for(run_id, file)
    else:
        raise InputRefused(
            Problem(
                f"a diff of '{run_id}' is on record that says something else than its files do, and no link vouches for it",
                "a kept diff is what the rows say",
                f"`backfill verify {run_id}` names it; find out who has put it there",
            )
        )
    logs.event(_log, logging.INFO, "diff_kept", f"its diff is kept: {found.differing:,} rows differ", told=True)
    return found


def due(platform: Platform, record: RunRecord) -> str:
    """Return the id of the diff that is to be kept of a publication and is not yet; empty if there is none.

    It is what the bundle names, unless the manifest says that none is kept.
    """
    if record.state not in WAS_PUBLISHED or not record.manifest.evidence.diff:
        return ""
    wanted = str(sealed_changes(platform, record.run_id).get("diff_id", ""))
    return "" if not wanted or _is_kept(platform, record.run_id, wanted) else wanted


def sealed_changes(platform: Platform, run_id: str) -> Mapping[str, Any]:
    """Return what a run's bundle says that it changes; empty if there is none, or an earlier version sealed it without."""
    file = platform.evidence.path(run_id) / CHANGES_FILE
    found: dict[str, Any] = read_json(file) if os.path.lexists(file) else {}
    return found


def _is_kept(platform: Platform, run_id: str, diff_id: str) -> bool:
    """Whether a diff is on record that the bundle or a later record has the hash of, or a link of the chain vouches for."""
    records = records_of(platform, run_id)
    mine = {one.name: one.hash for one in records if not one.number and one.content.get("diff_id") == diff_id}
    numbered = [one.content for one in records if one.number]
    if any(content.get("beside", {}).get(name) == hash_ for content in numbered for name, hash_ in mine.items()):
        return True
    since = int(numbered[0]["follows"]) if numbered else 0  # a diff of before is beside the first of them
    return bool(mine) and any(
        link.get("run") == run_id and mine.get(str(link.get("record"))) == link.get("recordHash")
        for link in platform.evidence.chain.contents(since=since)
        if link.get("event") == KEPT
    )


def _findings(diff: RunDiff) -> RunDiff:
    """Return what a diff has found, whoever made it and when."""
    return replace(diff, made_at="", made_by="")
