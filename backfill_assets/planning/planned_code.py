"""Whether the code that is installed is the one that a plan names: nothing else computes its run.

Put here the comparison, and its words for those who look at a run. That a launch is refused is `staging.executor`'s.
"""

from __future__ import annotations

from backfill_assets.installation import Platform
from manifests.errors import Problem, Refused
from manifests.model import Mode
from resources.ledger.facade import RunRecord


def other_code_problem(platform: Platform, record: RunRecord) -> Problem | None:
    """Return that a run was planned with other code than there is here, which does not compute it then.

    Raises:
        EnvironmentRefused: if Python would execute something else than the sources.
    """
    planned, running = record.plan.code, platform.code_of(record.target)
    if record.manifest.development or planned.is_same(running):
        return None
    return Problem(
        f"run '{record.run_id}' was planned with code {planned}, and this is {running}",
        "a run is computed by the code that its approved plan names",
        "check out that code, or plan the change again under a new run id",
    )


def no_launch_here(platform: Platform, record: RunRecord) -> str:
    """Say why the code that is installed here would not compute a run; it may well be launched from elsewhere.

    Empty where it would, where the run computes nothing, and where the files cannot be read just now: a launch says so.
    """
    if record.plan.mode is Mode.RECONCILIATION:
        return ""
    try:
        problem = other_code_problem(platform, record)
    except OSError:
        return ""
    except Refused as refusal:  # Python would execute something else than the sources
        problem = refusal.problems[0]
    return "" if problem is None else f"no launch here would compute it: {problem.what}; {problem.fix}"
