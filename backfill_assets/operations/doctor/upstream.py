"""Looks at targets that are computed from other targets: whether what readers see was made of what is accepted there today.

Put here what has become of a run's upstream targets. What has become of its other inputs is `loads`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement, some
from backfill_assets.operations.doctor.views import legible_runs
from backfill_assets.planning.upstream import superseded_of
from manifests.chunks import chunk_named, first_instant, stretches_of
from manifests.lifecycle import RunState
from manifests.model import DayRange, scope_in_words
from resources.ledger.cells import IllegibleRow
from resources.ledger.facade import RunRecord


def upstream_superseded(platform: Platform) -> Iterator[Disagreement]:
    """Find published runs that have read chunks of another target which another run holds by now."""
    if not any(platform.products.find_target(name) for one in platform.products.targets for name in one.every_read):
        return
    for record in legible_runs(platform):
        if record.state is not RunState.PUBLISHED:
            continue
        with suppress(IllegibleRow):  # what looks at its target says so
            for one in superseded_of(platform, record):
                yield Disagreement(
                    "upstream-superseded",
                    record.run_id,
                    one.describe(),
                    Confidence.POSSIBLE if one.margin else Confidence.CERTAIN,
                    f"{_MARGIN if one.margin else _RIGHT}; if {one.table} is to be as it is now in {record.target}, plan a RESTATEMENT "
                    f"of {_scope(platform, record, one.reading)} (it pins what is accepted now), and have its diff say what that changes",
                )


_RIGHT = "nothing is wrong with its rows for what was read"
_MARGIN = (
    "the margin is there for days that begin at another instant than those of UTC: where the transform has none, nothing has changed "
    "for its rows"
)


def _scope(platform: Platform, record: RunRecord, keys: Sequence[str]) -> str:
    """Say which days, and of which values or buckets where those are not all, these chunks of a run are."""
    target, chunking = platform.products.find_target(record.target), record.plan.chunking
    chunks = sorted((chunk_named(chunking, key) for key in keys), key=lambda one: (first_instant(one), one.part))
    said = []
    for one in stretches_of(chunks):
        parts = None if one.parts == ("",) or (target is not None and {*target.parts} <= {*one.parts}) else one.parts
        said.append(scope_in_words(DayRange.model_construct(start=one.first.start, end=one.last.end), parts))
    return some(said)
