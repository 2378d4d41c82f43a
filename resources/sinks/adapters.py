"""Sinks as they are asked for: every request is on record with the policy's answer, and a sink that is allowed is opened.

Put here what it takes to open one. A mode that may not use a sink never gets the object that holds its credential. What a
sink is, is `resources.sinks.declared`'s, who may use it `resources.sinks.policy`'s; what the adapters that ship do is that of
the module named for each, and what holds of any that is open, `resources.sinks.opened`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from manifests.errors import Problem, SinkRefused
from manifests.model import Mode, RunManifest
from resources.lakehouse.facade import Lakehouse
from resources.ledger.facade import Ledger, RunRecord
from resources.settings import load_settings
from resources.sinks.caches import InvalidatedChunks, cache_file
from resources.sinks.declared import Declared, SinkDeclaration, ToCache, ToEventLog, ToTable, ToTopic, ToWebhook
from resources.sinks.event_logs import EventLog, log_file
from resources.sinks.opened import Adapter, OpenedSink, open_own, require_settings
from resources.sinks.policy import Answer, Decision, judge, judge_topic, refusal
from resources.sinks.records_table import RecordsTable
from resources.sinks.topics import Topic
from resources.sinks.webhooks import Webhook

ImportAdapter = Callable[[str, str], Any]
"""Imports what a sink names as `module:ATTRIBUTE`, by that and the sink's name."""


class Sinks:
    """The one place where sinks are asked for."""

    def __init__(
        self, ledger: Ledger, lakehouse: Lakehouse, declared: Declared, home: Path, import_adapter: ImportAdapter
    ) -> None:
        self._ledger = ledger
        self._lakehouse = lakehouse
        self._home = home
        self._import_adapter = import_adapter
        self.declared = declared

    def check_grants(self, manifest: RunManifest) -> None:
        """Judge every sink the manifest asks for, before anything is planned.

        Raises:
            SinkRefused: naming each refused sink; the requests are on record.
        """
        mode = manifest.execution_mode
        refused = []
        from_tick = self._ledger.ticks.has_written(manifest)
        for name in manifest.safety.sinks:
            answer = judge(name, mode, manifest, declared=self.declared, from_tick=from_tick)
            self._record(manifest.run_id, mode, "plan", answer)
            if answer.decision is Decision.REFUSED:
                refused.append(refusal(answer, manifest.run_id, mode, self.declared))
        if refused:
            raise SinkRefused(refused)

    def is_told_of(self, name: str, action: str) -> bool:
        """Whether a sink is told of an action; one that nobody declares is asked for, so that the refusal is on record."""
        sink = self.declared.get(name)
        return sink is None or action in sink.told_of

    def open(self, name: str, *, mode: Mode, manifest: RunManifest, action: str) -> OpenedSink:
        """Return a sink that the policy allows.

        Raises:
            SinkRefused: if it does not, or a setting is missing; the request is on record either way.
            DeclarationRefused: if the adapter cannot be imported.
        """
        mode, answer = self._judged(name, mode, manifest)
        sink = self.declared.get(name)
        if answer.is_allowed and sink is not None and isinstance(sink.adapter, ToTopic):
            answer = replace(answer, decision=Decision.REFUSED, reason="rows are published to it, and records are not")
        self._require(answer, mode, manifest, action)
        return self._opened(self.declared[name])

    def open_topic(self, name: str, topic: str, *, mode: Mode, manifest: RunManifest, action: str) -> Topic:
        """Return a topic that the policy allows a run to write to.

        Raises:
            SinkRefused: if it does not allow the sink, or not this topic of it, or a setting is missing; on record either way.
        """
        mode, answer = self._judged(name, mode, manifest)
        if answer.is_allowed:
            answer = judge_topic(self.declared[name], topic, mode, manifest.run_id, self.declared) or answer
        self._require(answer, mode, manifest, action)
        return self.reading(name, topic)

    def reading(self, name: str, topic: str) -> Topic:
        """Return a topic of a sink to be read, which nobody has to be allowed.

        Raises:
            SinkRefused: if no such sink is declared, or a setting is missing.
        """
        sink = self.declared.get(name)
        if sink is None or not isinstance(sink.adapter, ToTopic):
            what = f"the sink {name} is no topic that is declared here"
            raise SinkRefused(Problem(what, "a topic is read by its declaration", "have the product served"))
        values = load_settings().of_sink(sink.name)
        require_settings(sink, values)
        return Topic(sink, topic, values)

    def _judged(self, name: str, mode: Mode, manifest: RunManifest) -> tuple[Mode, Answer]:
        record = self._ledger.find(manifest.run_id)
        mode = mode if record is None else record.plan.mode  # what is on record counts, whatever the caller says
        return mode, judge(name, mode, manifest, declared=self.declared, from_tick=self._is_live(record, manifest))

    def _require(self, answer: Answer, mode: Mode, manifest: RunManifest, action: str) -> None:
        self._record(manifest.run_id, mode, action, answer)
        if answer.decision is Decision.REFUSED:
            raise SinkRefused(refusal(answer, manifest.run_id, mode, self.declared))

    def _opened(self, sink: SinkDeclaration) -> OpenedSink:
        # read here, after the policy has allowed it: no adapter of another mode's process is ever given them
        values = load_settings().of_sink(sink.name) if sink.needs else {}
        adapter: Adapter
        match sink.adapter:
            case ToTable():
                adapter = RecordsTable(self._lakehouse, sink.adapter.table)
            case ToEventLog():
                adapter = EventLog(log_file(self._home, sink.name), sink.name)
            case ToCache():
                adapter = InvalidatedChunks(cache_file(self._home, sink.name))
            case ToWebhook():
                require_settings(sink, values)
                token = None if sink.adapter.token is None else values[sink.adapter.token]
                adapter = Webhook(values[sink.adapter.url], token)
            case str() as path:
                return open_own(sink, lambda: self._import_adapter(path, sink.name), values)
            case _:
                raise SinkRefused(
                    Problem(
                        f"the sink {sink.name} is declared, but nothing implements it",
                        "a sink has an adapter",
                        "name one",
                    )
                )
        return OpenedSink(sink, adapter, tuple(values.values()))

    def _is_live(self, record: RunRecord | None, manifest: RunManifest) -> bool:
        """Whether the ledger has the run as LIVE, with this manifest, and a tick as who wrote it."""
        if record is None or record.plan.mode is not Mode.LIVE or record.plan.manifest_hash != manifest.hash:
            return False
        return self._ledger.ticks.has_written(manifest)

    def record_outcome(self, manifest: RunManifest, name: str, action: str, outcome: str, reason: str) -> None:
        """Record what came of a write to a granted sink: SENT or FAILED."""
        sink = self.declared.get(name)  # none, if the product that declared it is served no more
        self._ledger.record_sink_attempt(
            manifest.run_id,
            sink=name,
            sink_class="" if sink is None else sink.sink_class.value,
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
