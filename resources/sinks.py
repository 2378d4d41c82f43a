"""Sinks, and the one policy that says which mode may write where.

A sink is anything a run could write to besides the target's staging. Each is declared with its class and asked for
by name; class x mode x the manifest's grants decides, and every request is on record with its answer. A mode that may
not use a sink never gets the object that holds its credential.
"""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Protocol
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType, TimestamptzType

from manifests.canonical import canonical_json
from manifests.errors import Problem, SinkRefused
from manifests.model import Mode, RunManifest
from resources.lakehouse.facade import Lakehouse
from resources.lakehouse.loads import LOAD_PROPERTY
from resources.ledger.facade import Ledger, RunRecord
from resources.settings import load_settings

AUDIT_TABLE = "audit.run_audit"
WEBHOOK_TIMEOUT_SECONDS = 10


class SinkClass(StrEnum):
    """What a write to a sink does to the world."""

    ANALYTICAL_TABLE = "ANALYTICAL_TABLE"
    MATERIALISED_VIEW = "MATERIALISED_VIEW"
    EVENT_TOPIC = "EVENT_TOPIC"
    NOTIFICATION = "NOTIFICATION"
    TICKET = "TICKET"
    SEARCH_INDEX = "SEARCH_INDEX"
    FEATURE_STORE = "FEATURE_STORE"
    CACHE = "CACHE"
    EXTERNAL_API = "EXTERNAL_API"


class Decision(StrEnum):
    """The policy's answer."""

    ALLOWED = "ALLOWED"
    ALLOWED_ISOLATED = "ALLOWED_ISOLATED"
    REFUSED = "REFUSED"


SIDE_EFFECTS = frozenset({SinkClass.EVENT_TOPIC, SinkClass.NOTIFICATION, SinkClass.TICKET, SinkClass.EXTERNAL_API})
"""Classes whose writes somebody outside sees at once and nobody can take back."""
READ_ONLY_MODES = frozenset({Mode.DRY_RUN, Mode.RECONCILIATION})


@dataclass(frozen=True)
class SinkDeclaration:
    """A sink by name. `isolated`: what it is given is kept apart by run, so that a run can be told from another."""

    name: str
    sink_class: SinkClass
    isolated: bool
    description: str


DECLARED = {
    sink.name: sink
    for sink in (
        SinkDeclaration("run_audit", SinkClass.ANALYTICAL_TABLE, True, "append-only audit table, a row an action"),
        SinkDeclaration(
            "breach_notifications", SinkClass.NOTIFICATION, False, "webhook told of breaches by jurisdiction"
        ),
    )
}


@dataclass(frozen=True)
class Answer:
    """What the policy decided of one request, and why."""

    sink: str
    sink_class: str
    decision: Decision
    reason: str


def judge(name: str, mode: Mode, manifest: RunManifest, *, from_tick: bool = False) -> Answer:
    """Decide whether a run in `mode` with `manifest` may use the sink `name`.

    `from_tick` says whether the platform's own tick is on record as who wrote the manifest: without that a run that says
    LIVE of itself has no right that others have not.
    """
    sink = DECLARED.get(name)
    if sink is None:
        return Answer(
            name, "", Decision.REFUSED, f"no such sink is declared; declared are {', '.join(sorted(DECLARED))}"
        )
    if name not in manifest.safety.sinks:
        return _answer(sink, Decision.REFUSED, "the manifest does not grant it in safety.sinks")
    if mode in READ_ONLY_MODES:
        return _answer(sink, Decision.REFUSED, f"{mode} writes to no sink")
    if sink.sink_class in SIDE_EFFECTS:
        if mode is not Mode.LIVE:
            return _answer(sink, Decision.REFUSED, f"a {sink.sink_class} has side effects, and only LIVE may cause any")
        if not from_tick:
            return _answer(
                sink,
                Decision.REFUSED,
                f"a {sink.sink_class} has side effects, and no tick of LIVE is on record for this manifest",
            )
        if not manifest.safety.side_effects_allowed:
            return _answer(sink, Decision.REFUSED, "the manifest does not set safety.sideEffectsAllowed")
        return _answer(sink, Decision.ALLOWED, "LIVE, granted, side effects allowed")
    if mode is Mode.LIVE and from_tick:
        return _answer(sink, Decision.ALLOWED, "LIVE, granted")
    if not sink.isolated:
        return _answer(sink, Decision.REFUSED, f"{mode} may use a {sink.sink_class} only if it keeps runs apart")
    return _answer(sink, Decision.ALLOWED_ISOLATED, f"{mode}, granted, and the sink keeps runs apart")


def _answer(sink: SinkDeclaration, decision: Decision, reason: str) -> Answer:
    return Answer(sink.name, sink.sink_class.value, decision, reason)


class Sink(Protocol):
    """What can be done with a sink that was granted."""

    def send(self, run_id: str, action: str, at: datetime, details: Mapping[str, Any]) -> None:
        """Write one record; safe to repeat for the same run and action."""


class Sinks:
    """The one place where sinks are asked for."""

    def __init__(self, ledger: Ledger, lakehouse: Lakehouse) -> None:
        self._ledger = ledger
        self._lakehouse = lakehouse

    def check_grants(self, manifest: RunManifest) -> None:
        """Judge every sink the manifest asks for, before anything is planned.

        Raises:
            SinkRefused: naming each refused sink; the requests are on record.
        """
        mode = manifest.execution_mode
        refused = []
        from_tick = self._ledger.ticks.has_written(manifest)
        for name in manifest.safety.sinks:
            answer = judge(name, mode, manifest, from_tick=from_tick)
            self._record(manifest.run_id, mode, "plan", answer)
            if answer.decision is Decision.REFUSED:
                refused.append(_problem(answer, manifest.run_id, mode))
        if refused:
            raise SinkRefused(refused)

    def open(self, name: str, *, mode: Mode, manifest: RunManifest, action: str) -> Sink:
        """Return a sink that the policy allows.

        Raises:
            SinkRefused: if it does not; the request is on record either way.
        """
        record = self._ledger.find(manifest.run_id)
        mode = mode if record is None else record.plan.mode  # what is on record counts, whatever the caller says
        answer = judge(name, mode, manifest, from_tick=self._is_live(record, manifest))
        self._record(manifest.run_id, mode, action, answer)
        if answer.decision is Decision.REFUSED:
            raise SinkRefused(_problem(answer, manifest.run_id, mode))
        if name == "run_audit":
            return AuditTable(self._lakehouse)
        if name != "breach_notifications":
            raise SinkRefused(
                Problem(f"the sink {name} is declared, but nothing implements it", "a sink has an adapter", "add it")
            )
        # read here, after the policy has allowed it: no other mode's process ever holds the URL in an object of ours
        return Webhook(load_settings().notification_webhook.get_secret_value())

    def _is_live(self, record: RunRecord | None, manifest: RunManifest) -> bool:
        """Whether the ledger has the run as LIVE, with this manifest, and a tick as who wrote it."""
        if record is None or record.plan.mode is not Mode.LIVE or record.plan.manifest_hash != manifest.hash:
            return False
        return self._ledger.ticks.has_written(manifest)

    def record_outcome(self, manifest: RunManifest, name: str, action: str, outcome: str, reason: str) -> None:
        """Record what came of a write to a granted sink: SENT or FAILED."""
        self._ledger.record_sink_attempt(
            manifest.run_id,
            sink=name,
            sink_class=DECLARED[name].sink_class.value,
            mode=manifest.execution_mode.value,
            action=action,
            decision=outcome,
            reason=reason,
        )

    def _record(self, run_id: str, mode: Mode, action: str, answer: Answer) -> None:
        self._ledger.record_sink_attempt(
            run_id,
            sink=answer.sink,
            sink_class=answer.sink_class,
            mode=mode.value,
            action=action,
            decision=answer.decision.value,
            reason=answer.reason,
        )


def _problem(answer: Answer, run_id: str, mode: Mode) -> Problem:
    return Problem(f"run '{run_id}' ({mode}) asks for the sink '{answer.sink}'", answer.reason, _way_out(answer, mode))


def _way_out(answer: Answer, mode: Mode) -> str:
    sink = DECLARED.get(answer.sink)
    if sink is None:
        close = get_close_matches(answer.sink, DECLARED, n=1)
        return f"did you mean '{close[0]}'?" if close else "correct the name, or remove it from safety.sinks"
    if sink.sink_class in SIDE_EFFECTS and mode is not Mode.LIVE:
        return "remove it from safety.sinks; what a correction must tell the world is LIVE's to say, after publication"
    return "remove it from safety.sinks"


def draft_problems(names: Sequence[str], mode: Mode | None) -> list[Problem]:
    """Say which sinks a manifest that is not valid could not have; `mode` is None where it does not say a valid one.

    Nothing is recorded: what is not valid asks for nothing yet.
    """
    problems = []
    for name in names:
        sink = DECLARED.get(name)
        if sink is None:
            rule = f"declared are {', '.join(sorted(DECLARED))}"
        elif mode not in {None, Mode.LIVE} and sink.sink_class in SIDE_EFFECTS:
            rule = f"a {sink.sink_class} has side effects, and only LIVE may cause any"
        else:
            continue
        answer = Answer(name, "" if sink is None else sink.sink_class.value, Decision.REFUSED, rule)
        problems.append(Problem(f"safety.sinks names '{name}'", rule, _way_out(answer, mode or Mode.BACKFILL)))
    return problems


class AuditTable:
    """Append-only Iceberg table of what was done to which target, one row a run and action."""

    SCHEMA = Schema(
        NestedField(1, "run_id", StringType(), required=False),
        NestedField(2, "action", StringType(), required=False),
        NestedField(3, "at", TimestamptzType(), required=False),
        NestedField(4, "details", StringType(), required=False),
    )

    def __init__(self, lakehouse: Lakehouse) -> None:
        self._lakehouse = lakehouse

    def send(self, run_id: str, action: str, at: datetime, details: Mapping[str, Any]) -> None:
        """Append the row, once a run and action."""
        self._lakehouse.ensure(AUDIT_TABLE, self.SCHEMA, UNPARTITIONED_PARTITION_SPEC, {})
        row = pa.Table.from_pylist(
            [{"run_id": run_id, "action": action, "at": at.astimezone(UTC), "details": canonical_json(dict(details))}],
            schema=self.SCHEMA.as_arrow(),
        )
        self._lakehouse.append(AUDIT_TABLE, [row], {LOAD_PROPERTY: f"{run_id}:{action}"})


class Webhook:
    """Posts JSON to the configured URL; `runId` and `action` let the receiver recognise a repetition."""

    def __init__(self, url: str) -> None:
        if urlsplit(url).scheme not in {"http", "https"}:
            raise SinkRefused(
                Problem(
                    "notification_webhook is not set to an http(s) URL",
                    "LIVE posts to a configured webhook",
                    "set BACKFILL_NOTIFICATION_WEBHOOK for the LIVE deployment",
                )
            )
        self._url = url

    def send(self, run_id: str, action: str, at: datetime, details: Mapping[str, Any]) -> None:
        """Post the record.

        Raises:
            SinkRefused: if the receiver cannot be reached or answers with an error.
        """
        body = canonical_json({"runId": run_id, "action": action, "at": at, "details": dict(details)}).encode()
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked above
            self._url, data=body, headers={"Content-Type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=WEBHOOK_TIMEOUT_SECONDS):  # noqa: S310
                return
        except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
            raise SinkRefused(
                Problem(
                    f"the webhook did not take the record: {error}",
                    "the receiver answers with success",
                    "check the receiver, then publish again: it is safe to repeat",
                )
            ) from error
