"""Looks at targets that are computed from other targets: whether what readers see was made of what is accepted there today.

Put here what has become of a run's upstream targets. What has become of its other inputs is `loads`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement
from backfill_assets.operations.doctor.views import legible_runs
from backfill_assets.planning.upstream import superseded_of
from manifests.lifecycle import RunState
from resources.ledger.cells import IllegibleRow


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
                    Confidence.CERTAIN,
                    f"nothing is wrong with its rows for what was read; if {one.table} is to be as it is now in {record.target}, plan "
                    f"a RESTATEMENT of {record.plan.publish_range.start} to {record.plan.publish_range.end} (it pins what is "
                    "accepted now), and have its diff say what that changes",
                )
