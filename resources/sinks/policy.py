"""The one policy that says which mode may write where: class x mode x the manifest's grants decides.

Put here who may use a sink. What a sink is, and which the platform has, is `resources.sinks.declared`'s; adapters, credentials
and the record of every request are `resources.sinks.adapters`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

from manifests.errors import Problem
from manifests.model import Mode, RunManifest
from manifests.planned_topics import GrantedTopic
from resources.sinks.declared import Declared, SinkClass, SinkDeclaration, ToTopic


class Decision(StrEnum):
    """The policy's answer."""

    ALLOWED = "ALLOWED"
    ALLOWED_ISOLATED = "ALLOWED_ISOLATED"
    REFUSED = "REFUSED"


SIDE_EFFECTS = frozenset({SinkClass.EVENT_TOPIC, SinkClass.NOTIFICATION, SinkClass.TICKET, SinkClass.EXTERNAL_API})
"""Classes whose writes somebody outside sees at once and nobody can take back."""
READ_ONLY_MODES = frozenset({Mode.DRY_RUN, Mode.RECONCILIATION})


def has_side_effects(sink: SinkDeclaration, mode: Mode) -> bool:
    """Whether somebody outside sees at once what a run of a mode writes to a sink: not what goes to a topic of the run's own."""
    own = isinstance(sink.adapter, ToTopic) and mode not in {Mode.LIVE, *READ_ONLY_MODES}
    return sink.sink_class in SIDE_EFFECTS and not own


@dataclass(frozen=True)
class Answer:
    """What the policy decided of one request, and why."""

    sink: str
    sink_class: str
    decision: Decision
    reason: str

    @property
    def is_allowed(self) -> bool:
        """Whether the run may use the sink."""
        return self.decision is not Decision.REFUSED


def judge(name: str, mode: Mode, manifest: RunManifest, *, declared: Declared, from_tick: bool = False) -> Answer:
    """Decide whether a run in `mode` with `manifest` may use the sink `name`, one of those that are declared.

    `from_tick` says whether the platform's own tick is on record as who wrote the manifest: without that a run that says
    LIVE of itself has no right that others have not.
    """
    sink = declared.get(name)
    if sink is None:
        return Answer(
            name, "", Decision.REFUSED, f"no such sink is declared; declared are {', '.join(sorted(declared))}"
        )
    if name not in manifest.safety.sinks:
        return _answer(sink, Decision.REFUSED, "the manifest does not grant it in safety.sinks")
    return judge_granted(sink, mode, from_tick=from_tick, side_effects_allowed=manifest.safety.side_effects_allowed)


def judge_granted(
    sink: SinkDeclaration, mode: Mode, *, from_tick: bool = True, side_effects_allowed: bool = True
) -> Answer:
    """Decide whether a run in `mode` may use a sink that its manifest names; by default, of the most that one can grant."""
    if mode in READ_ONLY_MODES:
        return _answer(sink, Decision.REFUSED, f"{mode} writes to no sink")
    if isinstance(sink.adapter, ToTopic) and mode is not Mode.LIVE:
        return _answer(
            sink, Decision.ALLOWED_ISOLATED, f"{mode}, granted, and it writes to {sink.adapter.own_topic} alone"
        )
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
        if not side_effects_allowed:
            return _answer(sink, Decision.REFUSED, "the manifest does not set safety.sideEffectsAllowed")
        return _answer(sink, Decision.ALLOWED, "LIVE, granted, side effects allowed")
    if mode is Mode.LIVE and from_tick:
        return _answer(sink, Decision.ALLOWED, "LIVE, granted")
    if not sink.isolated:
        return _answer(
            sink, Decision.REFUSED, f"{mode} may use a sink of class {sink.sink_class} only if it keeps runs apart"
        )
    return _answer(sink, Decision.ALLOWED_ISOLATED, f"{mode}, granted, and the sink keeps runs apart")


def judge_topic(sink: SinkDeclaration, topic: str, mode: Mode, run_id: str, declared: Declared) -> Answer | None:
    """Return why a run that is allowed a sink may not write to a topic all the same; None if it may.

    It may write to the one that is its own by the declaration, and unless it is LIVE to none that is the live one of any sink.
    """
    if not isinstance(sink.adapter, ToTopic):
        return _answer(sink, Decision.REFUSED, "it is no topic that rows are published to")
    if mode is not Mode.LIVE and topic in live_topics(declared):
        return _answer(sink, Decision.REFUSED, f"{topic} is a live topic, and only LIVE may write to one")
    own = sink.adapter.topic_of(mode, run_id)
    if topic != own:
        return _answer(sink, Decision.REFUSED, f"the topic of a run of {mode} is {own}, and no other")
    return None


def granted_topics(manifest: RunManifest, declared: Declared) -> list[GrantedTopic]:
    """Return the topics that a run's rows would go to by the sinks that its manifest grants."""
    mode, found = manifest.execution_mode, []
    live = {one.adapter.topic: one.name for one in declared.values() if isinstance(one.adapter, ToTopic)}
    for name in manifest.safety.sinks:
        sink = declared.get(name)
        if sink is not None and isinstance(sink.adapter, ToTopic):
            topic = sink.adapter.topic_of(mode, manifest.run_id)
            taken = "" if mode is Mode.LIVE else live.get(topic, "")
            found.append(GrantedTopic(name, topic, sink.adapter.table, taken))
    return found


def live_topics(declared: Declared) -> frozenset[str]:
    """Return the topics that LIVE writes to, of every sink."""
    return frozenset(one.adapter.topic for one in declared.values() if isinstance(one.adapter, ToTopic))


def _answer(sink: SinkDeclaration, decision: Decision, reason: str) -> Answer:
    return Answer(sink.name, sink.sink_class.value, decision, reason)


def refusal(answer: Answer, run_id: str, mode: Mode, declared: Declared) -> Problem:
    """Say which sink a run has asked for and may not have, and the way out."""
    what = f"run '{run_id}' ({mode}) asks for the sink '{answer.sink}'"
    return Problem(what, answer.reason, _way_out(answer, mode, declared))


def _way_out(answer: Answer, mode: Mode, declared: Declared) -> str:
    sink = declared.get(answer.sink)
    if sink is None:
        close = get_close_matches(answer.sink, declared, n=1)
        return f"did you mean '{close[0]}'?" if close else "correct the name, or remove it from safety.sinks"
    if has_side_effects(sink, mode) and mode is not Mode.LIVE:
        return "remove it from safety.sinks; what a correction must tell the world is LIVE's to say, after publication"
    return "remove it from safety.sinks"


def draft_problems(names: Sequence[str], mode: Mode | None, declared: Declared) -> list[Problem]:
    """Say which sinks a manifest that is not valid could not have; `mode` is None where it does not say a valid one.

    Nothing is recorded: what is not valid asks for nothing yet.
    """
    problems = []
    for name in names:
        sink = declared.get(name)
        if sink is None:
            rule = f"declared are {', '.join(sorted(declared))}"
        elif mode is not None and mode is not Mode.LIVE and has_side_effects(sink, mode):
            rule = f"a sink of class {sink.sink_class} has side effects, and only LIVE may cause any"
        else:
            continue
        answer = Answer(name, "" if sink is None else sink.sink_class.value, Decision.REFUSED, rule)
        problems.append(
            Problem(f"safety.sinks names '{name}'", rule, _way_out(answer, mode or Mode.BACKFILL, declared))
        )
    return problems
