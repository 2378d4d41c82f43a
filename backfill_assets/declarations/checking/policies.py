"""Mistakes in what a target's schedules may do: its policies for LIVE, for reconciling what is published, for proposed restatements.

Put here what can be said of a policy beside the target's own declaration. Its gates and tolerances are `gates`' to look up, its
sinks `sinks`', the kind of each of its fields `table_fields`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from croniter import CroniterError, croniter

from backfill_assets.declarations.schedules import LivePolicy, ReconciliationPolicy, RestatementPolicy
from backfill_assets.declarations.target import TargetTable
from manifests.chunks import aligned, first_day
from manifests.errors import InputRefused, Problem
from manifests.model import PublishMode
from manifests.text import NAME_RULE, not_a_name, same_text

_FIELDS = 5
_SOME_DAY = datetime(2024, 1, 1, tzinfo=UTC)


def of_policies(target: TargetTable) -> Iterator[Problem]:
    """Say what is wrong with the policies of a target; of one that it has not, nothing."""
    policies: dict[str, LivePolicy | ReconciliationPolicy | RestatementPolicy | None] = {
        "live": target.live,
        "reconciled": target.reconciled,
        "restated": target.restated,
    }
    for field, policy in policies.items():
        if policy is not None:
            yield from _of_names(policy, f"{target.name}: {field}")
        if isinstance(policy, LivePolicy | ReconciliationPolicy):
            yield from _of_cron(policy, f"{target.name}: {field}")
        if isinstance(policy, LivePolicy | RestatementPolicy):
            yield from _of_version(target, policy.transform_version, field)
    if target.reconciled is not None and target.reconciled.gates is not None and not target.reconciled.gates:
        yield Problem(
            "gates is empty",
            "a reconciliation holds what is published against one gate or more",
            "name them, or leave it out for all that there are",
            f"{target.name}: reconciled",
        )
    if target.live is not None:
        yield from _of_live(target, target.live, f"{target.name}: live")


def _of_names(policy: LivePolicy | ReconciliationPolicy | RestatementPolicy, where: str) -> Iterator[Problem]:
    """Say which name in a policy is none, or that both are the same person's."""
    wrong = False
    for name in ("requested_by", "approved_by"):
        value: Any = getattr(policy, name)
        is_name = isinstance(value, str) and value.strip()
        why = not_a_name(value) if is_name else ""
        if why is not None:
            wrong = True
            what = f"{name} is {value!r}" + (f": {why}" if why else "")
            yield Problem(what, NAME_RULE, "write who it is, or leave it out", where)
    if not wrong and same_text(policy.requested_by) == same_text(policy.approved_by):
        yield Problem(
            f"requested_by and approved_by are both {policy.requested_by!r}",
            "who asks does not approve, of policies too",
            "leave one of them out, or name another",
            where,
        )


def _of_cron(policy: LivePolicy | ReconciliationPolicy, where: str) -> Iterator[Problem]:
    """Say that a schedule is none that Dagster runs, or never comes."""
    why = ""
    try:
        if len(croniter.expand(policy.cron)[0]) != _FIELDS:
            why = f"it does not have {_FIELDS} fields"
        croniter(policy.cron, _SOME_DAY).get_next(datetime)
        parts = policy.cron.split()
        if len(parts) == _FIELDS:  # Dagster wants the day of the month to come, whatever the day of the week
            croniter(" ".join((*parts[:-1], "*")), _SOME_DAY).get_next(datetime)
    except (CroniterError, ValueError) as error:
        why = str(error) or "there is no such day"
    if why:
        rule = "it is a time in cron's five fields, in UTC: minute, hour, day of the month, month, day of the week"
        yield Problem(
            f"cron is {policy.cron!r}: {why}", rule, 'for example "15 2 * * *", a quarter past two each day', where
        )


def _of_version(target: TargetTable, version: str, field: str) -> Iterator[Problem]:
    """Say that a policy computes with a version that is not declared."""
    if version not in target.versions:
        yield Problem(
            f"{version!r} is no version",
            f"versions are {', '.join(map(str, target.versions))}",
            f"correct {field}.transform_version",
            f"{target.name}: {field}",
        )


def _of_live(target: TargetTable, live: LivePolicy, where: str) -> Iterator[Problem]:
    if live.publish_mode is not PublishMode.REPLACE_PARTITIONS:
        yield Problem(
            f"publish_mode is {live.publish_mode}",
            "a rewind covers days again, which is a replacement",
            "take it out",
            where,
        )
    if live.begins_on is not None:
        yield from _of_begin(target, live, where)


def _of_begin(target: TargetTable, live: LivePolicy, where: str) -> Iterator[Problem]:
    begins = live.begins_on
    assert begins is not None
    first = aligned(target.chunking, begins, begins)[0]
    if first != begins:
        yield Problem(
            f"begins_on is {begins}, in the middle of a {target.chunking}",
            "LIVE begins with the first day of a chunk",
            f"{first}, or the first day of the one after it",
            where,
        )
        return
    try:
        bounds = first_day(target.chunking, target.chunks_from), first_day(target.chunking, target.chunks_until)
    except (InputRefused, TypeError):  # one of them is none: said of the chunks
        return
    if not bounds[0] <= begins <= bounds[1]:
        yield Problem(
            f"begins_on is {begins}, outside of the chunks that the table can have",
            f"they are {target.chunks_from} to {target.chunks_until}",
            "correct the day, or chunks_from and chunks_until",
            where,
        )
