"""The file of SQL that a run's transform is, as far as it is still the code of today.

Put here what is shown of a transform's own file; which code a plan names, and what has changed of it, is `conditions`'.
"""

from __future__ import annotations

from backfill_assets.declarations.sql_transforms import SqlTransform
from backfill_assets.installation import Platform
from manifests.errors import EnvironmentRefused
from manifests.plan import Plan


def written_in(platform: Platform, plan: Plan) -> str | None:
    """Return the file that a plan's transform is written in, with its hash; None if it is no file of SQL, or other code than today's."""
    target = platform.products.find_target(plan.target)
    version = None if target is None else target.versions.get(plan.transform_version)
    if target is None or version is None or not isinstance(version.function, SqlTransform):
        return None
    try:
        return version.function.identity if platform.code_of(target.name).is_same(plan.code) else None
    except EnvironmentRefused:
        return None
