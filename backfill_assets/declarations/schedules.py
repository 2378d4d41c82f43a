"""What a schedule or sensor may do to a target without anybody being asked: LIVE, reconciliations, proposed restatements.

Put here what a team declares of it. The target itself is `target`'s; what schedules do, `backfill_assets.schedules.live`'s,
`backfill_assets.reconciliation`'s and `backfill_assets.schedules.proposals`'. Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date

from backfill_assets.declarations.arguments import said_at_once
from manifests.model import PublishMode


@said_at_once
@dataclass(frozen=True)
class LivePolicy:
    """What LIVE may do to a target without asking anybody: the manifests of this form, and no others, it approves.

    Attributes:
        transform_version: the version it computes with.
        rewind_days: how many complete days before the watermark it covers once more, for events that come late. Events
            that come later than that are not covered: the run says so in its reason, and a repair takes them in.
        begins_on: the first day LIVE owns, which is the cut line of the backfills before it and the first day of a chunk;
            None where LIVE goes on from whatever is published first.
        requested_by: who asks, and `approved_by` the name of the policy; they differ, as for everybody.
        publish_mode: how it publishes.
        gates: the run-level gates it runs besides those that every target has; None for all.
        tolerances: by name, where they differ from the target's.
        sinks: the sinks it is granted; `side_effects_allowed` if they may have side effects.
        cron: when the daily form runs, in UTC.
        purpose: what it uses the source for, where the policy asks.
        development: whether it may run uncommitted code, on record.
        late_after_hours: hours after its last publication for which the target counts as fresh in Dagster.
    """

    transform_version: str
    rewind_days: int
    begins_on: date | None = None
    requested_by: str = "live schedule"
    approved_by: str = "policy:live-daily"
    publish_mode: PublishMode = PublishMode.REPLACE_PARTITIONS
    gates: tuple[str, ...] | None = None
    tolerances: Mapping[str, float] = field(default_factory=dict)
    sinks: tuple[str, ...] = ()
    side_effects_allowed: bool = False
    cron: str = "15 2 * * *"
    development: bool = False
    purpose: str | None = None
    late_after_hours: int = 36


@said_at_once
@dataclass(frozen=True)
class ReconciliationPolicy:
    """How the published rows of a target are held against its source, on a schedule that is off until it is turned on.

    Attributes:
        gates: what they are held against; None for all that a target has at the levels record, state and outcome.
        days: how many days back from the last published one; None for all of them.
        cron: when, in UTC.
        requested_by: who asks.
        approved_by: the name of the policy, which may approve it because it changes nothing.
        purpose: what it uses the source for, where the policy asks.
    """

    gates: tuple[str, ...] | None = None
    days: int | None = None
    cron: str = "45 4 * * *"
    requested_by: str = "reconciliation schedule"
    approved_by: str = "policy:reconciliation"
    purpose: str | None = None


@said_at_once
@dataclass(frozen=True)
class RestatementPolicy:
    """What is proposed for a target when its source has newer versions of days that are published: a run over just those days.

    A proposal is a planned run of kind RESTATEMENT. Who approves it is for the installation's policy to say: a person, or the
    rule itself up to a number of chunks (`proposals` of a rule in policy.yaml).

    Attributes:
        transform_version: the version it computes with.
        requested_by: who asks, and `approved_by` the name under which the rule approves; they differ, as for everybody.
        gates: the run-level gates it runs besides those that every target has; None for all.
        tolerances: by name, where they differ from the target's.
        purpose: what it uses the source for, where the policy asks.
        development: whether it may run uncommitted code, on record.
    """

    transform_version: str
    requested_by: str = "restatement sensor"
    approved_by: str = "policy:restatement"
    gates: tuple[str, ...] | None = None
    tolerances: Mapping[str, float] = field(default_factory=dict)
    purpose: str | None = None
    development: bool = False
