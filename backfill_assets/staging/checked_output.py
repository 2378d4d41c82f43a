"""What a transform returns, asked before anybody approves: can its rows be written to the declared columns?

Put here what a plan can be asked of its transform without computing a row. What is refused, and in which words, is `rows`'s, which a
run asks again. Spark analyses the frame and runs no job for it; a transform that runs jobs of its own while it builds its frame
runs them here, too.
"""

from __future__ import annotations

from dataclasses import replace

from backfill_assets.declarations.places import place
from backfill_assets.declarations.raised_by_products import ANY_ERROR
from backfill_assets.installation import Platform
from backfill_assets.run_context import RunContext
from backfill_assets.staging.compute import pinned_inputs, transform_context
from backfill_assets.staging.folders import parts_of
from backfill_assets.staging.rows import computed_rows
from manifests.errors import PlanRefused, Problem, Refused
from manifests.model import Mode
from manifests.plan import Plan
from manifests.text import words_of

_LINE = 300
_RECORDED = "; its code is another one then"
"""How a way out goes on that is for a run which is approved: nothing is recorded yet."""


def checked(platform: Platform, plan: Plan) -> Plan:
    """Return a plan whose transform was found to return the declared columns, as it is on record; it starts a Spark session.

    The transform is called for the first chunk, on the frames that the plan pins: no row is read, unless it asks for some. A
    reconciliation and a compaction have none, and are returned as they are.

    Raises:
        PlanRefused: with everything that a run would be refused for before it computes a row.
    """
    if plan.mode is Mode.RECONCILIATION or plan.compaction is not None or not plan.chunks:
        return plan
    run = RunContext(platform, platform.products.target(plan.target), plan)
    chunks = plan.chunks[:1]
    try:
        table = platform.lakehouse.table(plan.target)
        inputs, context = pinned_inputs(run, chunks), transform_context(run, chunks)
        computed_rows(run.target, plan, chunks, inputs, context, table.schema(), parts_of(table, run.target))
    except Refused as refusal:
        raise PlanRefused(
            replace(problem, fix=problem.fix.partition(_RECORDED)[0]) for problem in refusal.problems
        ) from refusal
    except ANY_ERROR as error:
        at = f" ({where})" if (where := place(error)) else ""
        raise PlanRefused(
            Problem(
                f"the frame of {plan.transform} {plan.transform_version} cannot be built for {chunks[0].key}: "
                f"{type(error).__name__}: {words_of(error).strip().partition(chr(10))[0][:_LINE]}{at}",
                "a transform that reads rows while it builds its frame reads those that the plan pins",
                "correct the transform, or plan without --check-transform: staging says of which chunks it is so",
            )
        ) from error
    return replace(plan, output_checked=True)
