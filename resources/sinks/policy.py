"""Which sinks there are, and the one policy that says which mode may write where.

A sink is anything a run could write to besides the target's staging. Each is declared with its class; class x mode x the
manifest's grants decides. Put here what can be said of a sink without opening it; adapters, credentials and the record of
every request are `resources.sinks.adapters`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

from manifests.errors import Problem
from manifests.model import Mode, RunManifest


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
    """A sink by name.

    Attributes:
        name: as manifests grant it.
        sink_class: what a write to it does to the world.
        isolated: whether what it is given is kept apart by run, so that a run can be told from another.
        description: what it is.
        table: the table that it appends its records to, if it is one.
    """

    name: str
    sink_class: SinkClass
    isolated: bool
    description: str
    table: str | None = None


DECLARED = {
    sink.name: sink
    for sink in (
        SinkDeclaration(
            "run_audit",
            SinkClass.ANALYTICAL_TABLE,
            True,
            "append-only audit table, a row an action",
            table="audit.run_audit",
        ),
        SinkDeclaration(
            "breach_notifications", SinkClass.NOTIFICATION, False, "webhook told of breaches by jurisdiction"
        ),
    )
}
TABLES = {sink.name: sink.table for sink in DECLARED.values() if sink.table is not None}
"""The tables of those sinks that are one."""


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
            return _answer(
                sink,
                Decision.REFUSED,
                f"a sink of class {sink.sink_class} has side effects, and only LIVE may cause any",
            )
        if not from_tick:
            return _answer(
                sink,
                Decision.REFUSED,
                f"a sink of class {sink.sink_class} has side effects, and no tick of LIVE is on record for this manifest",
            )
        if not manifest.safety.side_effects_allowed:
            return _answer(sink, Decision.REFUSED, "the manifest does not set safety.sideEffectsAllowed")
        return _answer(sink, Decision.ALLOWED, "LIVE, granted, side effects allowed")
    if mode is Mode.LIVE and from_tick:
        return _answer(sink, Decision.ALLOWED, "LIVE, granted")
    if not sink.isolated:
        return _answer(
            sink, Decision.REFUSED, f"{mode} may use a sink of class {sink.sink_class} only if it keeps runs apart"
        )
    return _answer(sink, Decision.ALLOWED_ISOLATED, f"{mode}, granted, and the sink keeps runs apart")


def _answer(sink: SinkDeclaration, decision: Decision, reason: str) -> Answer:
    return Answer(sink.name, sink.sink_class.value, decision, reason)


def refusal(answer: Answer, run_id: str, mode: Mode) -> Problem:
    """Say which sink a run has asked for and may not have, and the way out."""
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
            rule = f"a sink of class {sink.sink_class} has side effects, and only LIVE may cause any"
        else:
            continue
        answer = Answer(name, "" if sink is None else sink.sink_class.value, Decision.REFUSED, rule)
        problems.append(Problem(f"safety.sinks names '{name}'", rule, _way_out(answer, mode or Mode.BACKFILL)))
    return problems
