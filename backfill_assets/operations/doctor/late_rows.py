"""Looks at sources whose late rows a target wants reported: which accepted chunks were made without rows that have come since.

Put here what has come into a source since. What has become of what a run has read is `loads`' and `upstream`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement
from backfill_assets.planning.late_rows import late_by_source
from manifests.chunks import in_words
from manifests.timeliness import OnLate


def late_rows(platform: Platform) -> Iterator[Disagreement]:
    """Find accepted chunks of days that files have come for since, in sources of which the target declares late=REPORT."""
    for target in platform.products.targets:
        if all(target.timeliness_of(name).late is not OnLate.REPORT for name in target.every_source):
            continue
        for table, chunks in late_by_source(platform, target, {OnLate.REPORT}).items():
            yield Disagreement(
                "late-rows",
                target.name,
                f"rows have come into {table} since {in_words(chunks)} was made, with times that it reads (by the files' bounds)",
                Confidence.CERTAIN,
                "restate these chunks, if the rows are to be in them",
            )
