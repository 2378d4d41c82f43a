"""What a publish mode refuses already when a run is planned.

Put here what a mode asks of its target, and files that cannot be replaced whole. What it refuses when it publishes is
`backfill_assets.publication`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from manifests.chunks import Chunking, aligned
from manifests.errors import Problem
from manifests.facts import BaseState, TargetContract
from manifests.further_sources import PinnedSource
from manifests.merge_policy import merge_policy_problems
from manifests.model import DayRange, FilesAcrossBorder, Mode, RunManifest, days_in_words

_SHOWN_FILES = 10


def publish_mode_problems(manifest: RunManifest, contract: TargetContract, base: BaseState) -> list[Problem]:
    """Return what a publish mode must refuse already when it is planned."""
    target, problems = manifest.target, []
    publish = target.publish_range
    if target.first_rows_only and base.rows_in_scope:
        problems.append(
            Problem(
                f"{contract.table} holds {base.rows_in_scope:,} rows in files of {days_in_words(publish)}",
                f"{target.publish_mode} writes first rows only: never beside those of another run",
                "narrow the publish range to empty chunks, or choose REPLACE_PARTITIONS",
            )
        )
    if target.version is not None and {target.version, f"withdrawn-{target.version}"} & base.refs:
        problems.append(
            Problem(
                f"{contract.table} has a version {target.version} already",
                "a version is never overwritten",
                "give target.version the next name",
            )
        )
    if target.merge is not None:
        since = target.merge.changed_since
        if contract.entity is None:
            problems.append(
                Problem(
                    f"{contract.table} declares no entity",
                    "MERGE_BY_KEY recomputes whole entities",
                    "declare `entity` in the product, or choose REPLACE_PARTITIONS",
                )
            )
        if since is not None and since not in base.source_snapshots:
            problems.append(
                Problem(
                    f"merge.changedSince names snapshot {since}",
                    f"it is a snapshot in the history of {contract.source}",
                    "see the table's snapshots",
                )
            )
    if manifest.execution_mode is not Mode.LIVE:
        asked = None if target.merge is None else target.merge.policy
        cut_line = first_day_of_live(manifest, contract)
        problems += merge_policy_problems(contract.table, contract.merge_policy, asked, cut_line, publish.end)
    if target.correction_events is not None and not contract.has_corrections:
        problems.append(
            Problem(
                f"{contract.table} declares no corrections table",
                f"{target.publish_mode} are appended to the table that the product declares for them",
                "declare `corrections` in the product, or choose another publishMode",
            )
        )
    return problems


def first_day_of_live(manifest: RunManifest, contract: TargetContract) -> date | None:
    """Return the day from which on rows are LIVE's: the manifest's cut line, or the day on which LIVE begins, whichever is earlier."""
    return min((day for day in (manifest.cut_line, contract.live_from) if day is not None), default=None)


def changed_source_problems(
    manifest: RunManifest, contract: TargetContract, pins: Sequence[PinnedSource]
) -> list[Problem]:
    """Return why a merge would not compute every entity whose rows have changed in a source beside the first."""
    merge = manifest.target.merge
    if merge is None or merge.changed_since is None:
        return []
    named = [one.table for one in merge.sources]
    further = [one.table for one in contract.sources if not one.for_gates]
    problems = [
        Problem(
            f"merge.sources names {name}",
            f"beside {contract.source}, {contract.table} is computed from {', '.join(further) or 'no other source'}",
            "correct the name; of the first source merge.changedSince says it",
        )
        for name in named
        if name not in further
    ]
    # of a table without a snapshot no row can have changed
    if missing := [one.table for one in pins if _changes_rows(one) and one.table not in named]:
        problems.append(
            Problem(
                f"merge.changedSince is a snapshot of {contract.source}, and nothing is said of {', '.join(missing)}",
                "every entity is computed anew whose rows have changed in any source",
                "name each in merge.sources, with the snapshot after which its rows count; or name the entities instead "
                "(merge.entities); or choose REPLACE_PARTITIONS",
            )
        )
    return problems


def _changes_rows(pin: PinnedSource) -> bool:
    """Return whether a row that is computed may be another with other rows of a source: it has some, and the transform is given them."""
    return pin.snapshot_id is not None and not pin.for_gates


def whole_file_problems(
    publish: DayRange, contract: TargetContract, base: BaseState, wanted: FilesAcrossBorder
) -> list[Problem]:
    """Return what keeps files of the target from being replaced whole; nothing of a range that is no whole chunks."""
    is_whole = aligned(contract.chunking, publish.start, publish.end) == (publish.start, publish.end)
    if not base.files_beyond or base.rows_in_scope or not is_whole:
        return []
    what = f"may hold days of {days_in_words(publish)} and others, or of several of its chunks"
    if contract.chunking is Chunking.WHOLE:
        return [
            Problem(
                f"{len(base.files_beyond)} file(s) of {contract.table} may hold rows of several of its parts, or of none: "
                + _listed(base.files_beyond),
                "a publication replaces whole files, and nothing outside of its parts may change",
                "leave target.values out, so that all of it is replaced; or rewrite these files by the table's parts",
            )
        ]
    return [
        Problem(
            f"{len(base.files_beyond)} file(s) of {contract.table} {what}: {_listed(base.files_beyond)}",
            "a publication replaces whole files, and nothing outside its publish range may change",
            "`backfill split-files` with this manifest parts them, without changing a row; or widen the publish range to all of their days"
            if wanted is FilesAcrossBorder.SPLIT
            else "widen the publish range to all of their days; or set target.filesAcrossBorder to SPLIT and run "
            "`backfill split-files` with the manifest, which parts them without changing a row",
        )
    ]


def _listed(files: Sequence[str]) -> str:
    return "; ".join(files[:_SHOWN_FILES]) + ("; …" if len(files) > _SHOWN_FILES else "")
