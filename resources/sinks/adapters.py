"""Sinks as they are asked for and written to: every request is on record with the policy's answer.

Put here what a granted sink does, and what it takes to open one. A mode that may not use a sink never gets the object that
holds its credential. Which sinks there are and who may use them is `resources.sinks.policy`'s.
"""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType, TimestamptzType

from manifests.canonical import canonical_json
from manifests.errors import Problem, SinkRefused
from manifests.model import Mode, RunManifest
from manifests.text import words_of
from resources.lakehouse.facade import Lakehouse
from resources.lakehouse.loads import LOAD_PROPERTY
from resources.ledger.facade import Ledger, RunRecord
from resources.settings import REDACTED, load_settings
from resources.sinks.policy import DECLARED, Answer, Decision, judge, refusal

WEBHOOK_TIMEOUT_SECONDS = 10
_ANSWER_SHOWN = 300
"""Characters of what a receiver answered."""


class Sink(Protocol):
    """What can be done with a sink that was granted."""

    def send(self, run_id: str, action: str, at: datetime, details: Mapping[str, Any]) -> None:
        """Write one record; safe to repeat for the same run and action. Whatever it raises is on record as why it failed."""


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
                refused.append(refusal(answer, manifest.run_id, mode))
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
            raise SinkRefused(refusal(answer, manifest.run_id, mode))
        if (table := DECLARED[name].table) is not None:
            return RecordsTable(self._lakehouse, table)
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


class RecordsTable:
    """Append-only Iceberg table of what was done to which target, one row a run and action."""

    SCHEMA = Schema(
        NestedField(1, "run_id", StringType(), required=False),
        NestedField(2, "action", StringType(), required=False),
        NestedField(3, "at", TimestamptzType(), required=False),
        NestedField(4, "details", StringType(), required=False),
    )

    def __init__(self, lakehouse: Lakehouse, table: str) -> None:
        self._lakehouse, self._table = lakehouse, table

    def send(self, run_id: str, action: str, at: datetime, details: Mapping[str, Any]) -> None:
        """Append the row, once a run and action."""
        self._lakehouse.ensure(self._table, self.SCHEMA, UNPARTITIONED_PARTITION_SPEC, {})
        row = pa.Table.from_pylist(
            [{"run_id": run_id, "action": action, "at": at.astimezone(UTC), "details": canonical_json(dict(details))}],
            schema=self.SCHEMA.as_arrow(),
        )
        self._lakehouse.append(self._table, [row], {LOAD_PROPERTY: f"{run_id}:{action}"})


class Webhook:
    """Posts JSON to the configured URL; `runId` and `action` let the receiver recognise a repetition."""

    def __init__(self, url: str) -> None:
        if not _is_address(url):
            raise SinkRefused(
                Problem(
                    "notification_webhook is not set to an http(s) URL",
                    "LIVE posts to a configured webhook: http(s)://HOST[:PORT]/PATH, without blanks and without a user before the host",
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
            answer = words_of(error).replace(self._url, REDACTED)[:_ANSWER_SHOWN]
            raise SinkRefused(
                Problem(
                    f"the webhook did not take the record: {answer}",
                    "the receiver answers with success",
                    "check the receiver, then publish again: it is safe to repeat",
                )
            ) from error


def _is_address(url: str) -> bool:
    """Whether a request can be made to a URL: of any other the libraries quote what is wrong in it, which may be its secret."""
    if not (url.isascii() and url.isprintable()) or " " in url:
        return False
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in {"http", "https"} and bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
        )
    except ValueError:
        return False
