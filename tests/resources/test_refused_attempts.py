"""Forty attempts of runs that are not LIVE to write what somebody else sees: all of them are refused, and all are on record.

Five sinks, from each mode but LIVE, each in two ways: the manifest asks for it, and code of a run that is on record asks for it
with a manifest that grants it and claims to be LIVE.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import a_manifest, planned

from manifests.errors import SinkRefused
from manifests.model import Mode, RunManifest
from resources.lakehouse.facade import Lakehouse
from resources.ledger.facade import Ledger
from resources.sinks.adapters import Sinks
from resources.sinks.declared import SinkClass, SinkDeclaration, ToTopic, ToWebhook

OWNERS = ("team:test",)
SINKS = (
    SinkDeclaration(
        "case_events",
        SinkClass.EVENT_TOPIC,
        "a live topic",
        OWNERS,
        ToTopic("cases", "silver.case_sla_daily", ("case_id",)),
    ),
    SinkDeclaration("tickets", SinkClass.TICKET, "opens tickets", OWNERS, ToWebhook()),
    SinkDeclaration("mails", SinkClass.NOTIFICATION, "sends mail", OWNERS, "mails_that_nobody:SENDS"),
    SinkDeclaration("partners", SinkClass.EXTERNAL_API, "an API of others", OWNERS, ToWebhook(token="token")),
    SinkDeclaration("live_cache", SinkClass.CACHE, "what applications read", OWNERS, "cache_that_nobody:HAS"),
)
DECLARED = {one.name: one for one in SINKS}
MODES = {
    Mode.BACKFILL: "BACKFILL",
    Mode.REPLAY: "REPLAY",
    Mode.DRY_RUN: "BACKFILL",
    Mode.RECONCILIATION: "RECONCILIATION",
}
OPENED: list[str] = []


def importing(path: str, name: str) -> Any:
    OPENED.append(f"{name} {path}")
    raise AssertionError(f"the adapter {path} was imported")


@pytest.fixture
def sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ledger: Ledger, lakehouse: Lakehouse) -> Sinks:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BACKFILL_CONFIG", raising=False)
    for name, setting in (
        ("TICKETS", "URL"),
        ("PARTNERS", "URL"),
        ("PARTNERS", "TOKEN"),
        ("CASE_EVENTS", "BOOTSTRAP_SERVERS"),
    ):
        monkeypatch.setenv(f"BACKFILL_SINKS__{name}__{setting}", "http://127.0.0.1:9/none")
    return Sinks(ledger, lakehouse, DECLARED, tmp_path / "home", importing)


def of_mode(mode: Mode, run_id: str, **fields: Any) -> RunManifest:
    return a_manifest(run_id, kind=MODES[mode], mode=mode.value, **fields)


def asks(sinks: Sinks, sink: str, manifest: RunManifest) -> Callable[[], object]:
    """Return the attempt of code that says LIVE and names what it wants to write to."""
    if sink == "case_events":
        return lambda: sinks.open_topic(sink, "cases", mode=Mode.LIVE, manifest=manifest, action="publish")
    return lambda: sinks.open(sink, mode=Mode.LIVE, manifest=manifest, action="publish")


def test_forty_attempts_are_refused_and_on_record(sinks: Sinks, ledger: Ledger) -> None:
    attempts = 0
    OPENED.clear()
    for number, (mode, sink) in enumerate(itertools.product(MODES, DECLARED)):
        by_manifest, by_code = f"asks-{number}", f"tries-{number}"
        ways: list[tuple[str, Callable[[], object]]] = []
        granting = of_mode(mode, by_manifest, safety={"sinks": [sink]})
        if sink == "case_events" and mode in {Mode.BACKFILL, Mode.REPLAY}:
            # such a run is granted a topic of its own by the same name: it is the live one that it asks for here
            ways.append(
                (
                    by_manifest,
                    lambda granting=granting, mode=mode: sinks.open_topic(
                        "case_events", "cases", mode=mode, manifest=granting, action="publish"
                    ),
                )
            )  # type: ignore[misc]
        else:
            ways.append((by_manifest, lambda granting=granting: sinks.check_grants(granting)))  # type: ignore[misc]
        record = planned(ledger, by_code, kind=MODES[mode], mode=mode.value)
        forged = record.manifest.model_copy(
            update={
                "safety": record.manifest.safety.model_copy(update={"sinks": (sink,), "side_effects_allowed": True})
            }
        )
        ways.append((by_code, asks(sinks, sink, forged)))
        for run_id, attempt in ways:
            attempts += 1
            with pytest.raises(SinkRefused):
                attempt()
            (answer,) = ledger.sink_attempts(run_id)
            assert (answer.sink, answer.decision, answer.mode) == (sink, "REFUSED", mode.value), (mode, sink)
            assert answer.sink_class == DECLARED[sink].sink_class
            assert answer.reason
    assert attempts == 40
    assert OPENED == []


def test_live_itself_is_refused_where_no_tick_has_written_its_manifest(sinks: Sinks, ledger: Ledger) -> None:
    manifest = a_manifest("says-live", kind="LIVE", safety={"sinks": [*DECLARED], "sideEffectsAllowed": True})
    with pytest.raises(SinkRefused, match="for 5 reasons"):
        sinks.check_grants(manifest)
    assert {one.decision for one in ledger.sink_attempts("says-live")} == {"REFUSED"}
    assert replace(SINKS[0]).told_of == ()
