"""What a product declares, tested alone: transforms, and adapters of sinks, without a home, a ledger or a lakehouse.

What is done to rows here is what a run does to them, by the same functions: the plan is the planner's, the session has the
platform's settings, the transform is given the rows of its read window and its look-back, its output is held against the
declared columns and types, cut to the publish range, laid out by chunk, written, and read back. Nothing is published.

A `Trial` is one transform on some rows. `rows` computes them, `require_same_as` holds them against a plain function,
`violations` against the target's model, `require_pure` against themselves as computed otherwise, and `require_no_look_ahead`
against themselves without what comes later. Two chunks or more make a trial worth most.

An adapter that a product has written for a sink of its own is held against its contract by `require_sink_contract`, with a
receiver of its author's.

What a policy leaves out of a source, merges and run-level gates are no part of a trial: those need an installation.
"""

from backfill_assets.testing.differences import Difference, TrialError
from backfill_assets.testing.given_rows import Rows
from backfill_assets.testing.sinks import SinkContractError, require_sink_contract
from backfill_assets.testing.trial import RUN_CLOCK, Trial, transformed
from backfill_assets.worker.violations import Violation

__all__ = [
    "RUN_CLOCK",
    "Difference",
    "Rows",
    "SinkContractError",
    "Trial",
    "TrialError",
    "Violation",
    "require_sink_contract",
    "transformed",
]
