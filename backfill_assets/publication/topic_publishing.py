"""A run's changes as events of topics: written once, in order, by one process at a time, and read back before that is on record.

Put here what is due, and the order of things of writing it. Which messages there are is `published_events`'; what speaks to the
broker, `resources.sinks.topics`'. It comes after the tables: readers of events never know more than those of the table. Every step
is safe to repeat: how far a publisher has come that was killed is read from the topic, whose transactions hold events and their
numbers together.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from backfill_assets import faults
from backfill_assets.evidence.events import TOLD
from backfill_assets.evidence.preconditions import require_own_rows
from backfill_assets.evidence.record_order import name_of
from backfill_assets.evidence.record_writing import catch_up
from backfill_assets.installation import Platform
from backfill_assets.publication.change import Change
from backfill_assets.publication.modes import change_of
from backfill_assets.publication.published_events import events_of, publication_of
from manifests.errors import Problem, PublicationRefused, Refused
from manifests.lifecycle import ACCEPT, ROLLBACK, WAS_PUBLISHED, PublicationState, RunState
from manifests.model import Mode
from manifests.planned_topics import PlannedTopic
from resources import logs
from resources.ledger.facade import RunRecord, operator
from resources.ledger.topic_publications import TopicPublication, WrittenRange
from resources.logs import traces
from resources.sinks.policy import Decision
from resources.sinks.topic_events import Heard, Message, partition_of
from resources.sinks.topics import Topic, TopicFacts

_log = logging.getLogger(__name__)
FENCED = "FENCED"
"""What is on record of a topic whose earlier publishers a rollback has fenced, where there were no events to take back."""
_PLAN = "plan"


@dataclass(frozen=True)
class _Due:
    """Events that a topic lacks: those of a run's `number`th change, `at_most` so many; None: all of them.

    Of a publication that was undone before all of its events were written, no more are: then it is 0. `told` is what events that
    take back, or say once more, are about.
    """

    number: int
    action: str
    entry: TopicPublication | None
    at_most: int | None = None
    told: TopicPublication | None = None


def publish_events(platform: Platform, run_id: str) -> list[TopicPublication]:
    """Write to each topic of a run's plan what it lacks of the run's changes; return all that is on record then.

    A publication and a reinstatement are told by the run's rows; a rollback by events that take back those that were written, and
    no event is ever removed. Safe to repeat, and to be killed anywhere.

    A topic that refuses them keeps no other from its own.

    Raises:
        SinkRefused: if the policy does not allow the topic, the broker does not take the events, or somebody else writes them.
        PublicationRefused: if the topic is another one by now, or has something else than was written; if events would be others
            than those that they go on with, or are about; or if the run's rows were changed by hand.
        StateMoved: if another process goes on with the run.
    """
    record = platform.ledger.run(run_id)
    if record.state in WAS_PUBLISHED and record.plan.topics:
        require_own_rows(platform, run_id)  # entries that were put there by hand would count as told
    refused: list[Refused] = []
    for planned in record.plan.topics if record.state in WAS_PUBLISHED else ():
        try:
            _tell(platform, record, planned)
        except Refused as refusal:
            refused.append(refusal)
    if refused:
        raise (
            refused[0]
            if len(refused) == 1
            else PublicationRefused([problem for one in refused for problem in one.problems])
        ) from refused[0]
    return platform.ledger.topics.of_run(run_id)


def _tell(platform: Platform, record: RunRecord, planned: PlannedTopic) -> None:
    """Write to one topic what it lacks."""
    if (due := _next_due(platform, record.run_id, planned)) is not None:
        _bring_up_to_date(platform, record, planned, due.action, due.number)
    elif _lacks_fence(platform, record, planned):
        number = len(platform.ledger.landed(record.run_id))
        _bring_up_to_date(platform, record, planned, ROLLBACK, number, only_fences=True)


def _lacks_fence(platform: Platform, record: RunRecord, planned: PlannedTopic) -> bool:
    """Whether a process that looked before a run was rolled back may still write its events: nobody was fenced since.

    What is written meanwhile is retracted once it is fenced. Without having asked nobody opens a topic.
    """
    if record.state is not RunState.ROLLED_BACK:
        return False
    number = len(platform.ledger.landed(record.run_id))
    if any(one.number == number for one in platform.ledger.topics.of_run(record.run_id, planned.sink)):
        return False  # what was written is taken back, by a publisher that has fenced all others
    asked = [
        one
        for one in platform.ledger.sink_attempts(record.run_id)
        if one.sink == planned.sink and one.action != _PLAN and one.decision != Decision.REFUSED
    ]
    fenced = any(one.decision == FENCED and one.action == name_of(ROLLBACK, number) for one in asked)
    return bool(asked) and not fenced


def lacking(platform: Platform, record: RunRecord) -> list[tuple[PlannedTopic, str]]:
    """Return the topics of a run that lack something, each with the run's action that it is of: events, or that others are fenced."""
    found: list[tuple[PlannedTopic, str]] = []
    for planned in record.plan.topics:
        if (due := _next_due(platform, record.run_id, planned)) is not None:
            found.append((planned, due.action))
        elif _lacks_fence(platform, record, planned):
            found.append((planned, ROLLBACK))
    return found


def _next_due(platform: Platform, run_id: str, planned: PlannedTopic) -> _Due | None:
    """Return the first thing that a topic lacks; None if it has everything that it is to have."""
    entries = {one.number: one for one in platform.ledger.topics.of_run(run_id, planned.sink)}
    actions = [one.action for one in platform.ledger.landed(run_id)]
    changes = [(place, action) for place, action in enumerate(actions, start=1) if action != ACCEPT]
    state = platform.ledger.run(run_id).state
    standing, told = 0, None
    for number, action in changes:
        entry, is_last = entries.get(number), number == changes[-1][0]
        if action == ROLLBACK:
            if (standing and entry is None) or (entry is not None and entry.is_intent):
                return _Due(number, action, entry, standing, told)
            standing = 0
            continue
        if entry is None and is_last and state is RunState.PUBLISHED:
            return _Due(number, action, None, None, told)
        if entry is not None and entry.is_intent:
            if is_last and state is RunState.SUPERSEDED:
                return None  # a later run has told newer ones; they are due again if that is rolled back
            return _Due(number, action, entry, None if is_last else 0, told)
        standing = 0 if entry is None else entry.events or 0
        told = entry if standing else told
    return None


def _bring_up_to_date(
    platform: Platform,
    record: RunRecord,
    planned: PlannedTopic,
    action: str,
    number: int,
    *,
    only_fences: bool = False,
) -> None:
    """Write to a topic what it lacks, as its only publisher of the run: `action` is the run's `number`th change.

    Whoever wrote before is fenced, so that what the ledger says from then on is what both ledger and topic stay at; what others
    begin later fences this process. With `only_fences` nothing was due, and the topic need not be there.
    """
    run_id, mode = record.run_id, record.plan.mode
    action = name_of(action, number)
    try:
        topic = platform.sinks.open_topic(
            planned.sink, planned.topic, mode=mode, manifest=record.manifest, action=action
        )
    except Refused:
        catch_up(platform, run_id, TOLD, {"action": action, "topic": planned.topic})  # that it has asked is on record
        raise
    own = mode is not Mode.LIVE and topic.declared.backfill_topic is None
    try:
        with topic.opened():
            if not only_fences:
                topic.facts(make=own and not platform.ledger.topics.of_run(run_id, planned.sink))
                topic.require_kept()
            topic.fence(f"backfill.{run_id}.{planned.sink}")
            while (now_due := _next_due(platform, run_id, planned)) is not None:
                action = name_of(now_due.action, now_due.number)
                faults.reach("telling.fenced")
                with traces.span("sink", run_id, sink=planned.sink, topic=planned.topic, action=action):
                    _bring(platform, record, planned, now_due, topic, topic.facts())
        if _lacks_fence(platform, platform.ledger.run(run_id), planned):
            action = name_of(ROLLBACK, len(platform.ledger.landed(run_id)))
            platform.sinks.record_outcome(record.manifest, planned.sink, action, FENCED, "")
            catch_up(platform, run_id, TOLD, {"action": action, "topic": planned.topic})
    except Refused as refusal:
        why = refusal.problems[0].what
        platform.sinks.record_outcome(record.manifest, planned.sink, action, "FAILED", why)
        logs.event(_log, logging.WARNING, "events_refused", f"events are not written: {why}", sink=planned.sink)
        catch_up(platform, run_id, TOLD, {"action": action, "topic": planned.topic})
        raise


def _bring(
    platform: Platform, record: RunRecord, planned: PlannedTopic, due: _Due, topic: Topic, facts: TopicFacts
) -> None:
    """Write what is due, read it back, and put it on record."""
    action = name_of(due.action, due.number)
    entry = due.entry
    change = change_of(platform, record, platform.ledger.chunks(record.run_id))
    if due.told is not None and due.at_most != 0:
        _require_same_events(change, topic, due.told)
    if entry is None:
        first = next(iter(platform.ledger.topics.of_run(record.run_id, planned.sink)), None)
        if first is not None:
            _require_same(first, facts)
        ends = topic.ends()
        entry = platform.ledger.topics.begin(
            record.run_id,
            planned.sink,
            due.number,
            due.action,
            topic=facts.topic,
            cluster_id=facts.cluster_id,
            topic_id=facts.topic_id,
            # a key stays in the partition that the run's first event of it is in, whichever were added since
            starts=ends if first is None else {place: ends[place] for place in first.first_offsets},
            actor=operator(),
        )
    _require_same(entry, facts)
    faults.reach("telling.begun")
    written = _write(change, topic, facts, entry, due)
    faults.reach("telling.written")
    state = PublicationState.ABANDONED if due.at_most == 0 else PublicationState.COMMITTED
    platform.ledger.topics.close(entry, state, written)
    faults.reach("telling.recorded")
    platform.sinks.record_outcome(record.manifest, planned.sink, action, "SENT", "")
    traces.note(events=sum(one.events for one in written))
    said = f"{sum(one.events for one in written):,} events of {action} are in {planned.topic}"
    logs.event(_log, logging.INFO, "events_written", said, sink=planned.sink, action=action)
    catch_up(platform, record.run_id, TOLD, {"action": action, "topic": planned.topic})


def _require_same(entry: TopicPublication, facts: TopicFacts) -> None:
    """Refuse to go on in another topic than the one in which a publication was begun; partitions that were added since are left alone.

    Raises:
        PublicationRefused: naming both.
    """
    begun = TopicFacts(entry.topic, entry.cluster_id, entry.topic_id, len(entry.first_offsets))
    if replace(begun, partitions=max(begun.partitions, facts.partitions)) != facts:
        raise PublicationRefused(
            Problem(
                f"{facts}, and the events of '{entry.run_id}' were begun in {begun}",
                "a publication goes on in the topic that it was begun in",
                "find out who has made the topic anew or changed it; a new run writes its events from the first one on",
            )
        )


def _require_same_events(change: Change, topic: Topic, told: TopicPublication) -> None:
    """Refuse events about others that would be named, or keyed, in another way today than they are in the topic.

    Raises:
        PublicationRefused: saying what has changed.
    """
    recorded = {one.partition: (one.events, one.hash) for one in told.ranges}
    found = _expected(change, topic, told, told.events or 0)
    if {place: (one.events, one.hash.hexdigest()) for place, one in found.items() if one.events} != recorded:
        raise _changed_since(told, f"the {told.events:,} events of its {told.action} have said")


def _changed_since(entry: TopicPublication, what: str) -> PublicationRefused:
    return PublicationRefused(
        Problem(
            f"the rows of '{entry.run_id}' would be told in another way to {entry.topic} today than {what}",
            "a run's events are gone on with, and taken back, by the declaration that they were begun by: key, event_id and value",
            f"put the declaration of the sink {entry.sink} back as it was, and give the same command again; change it afterwards",
        )
    )


def _expected(change: Change, topic: Topic, entry: TopicPublication, number: int) -> dict[int, Heard]:
    """Return what each partition is to have of the first events of a publication, so many of them."""
    expected = {place: Heard() for place in entry.first_offsets}
    for message in islice(events_of(change, entry.sink, topic.declared, entry.action, entry.number), number):
        expected[partition_of(message.key, len(expected))].add(message.key, message.value, message.headers)
    return expected


def _differing(heard: Mapping[int, Heard], expected: Mapping[int, Heard]) -> list[int]:
    """Return the partitions that have other events than they are to have."""
    return [
        place
        for place in sorted(expected)
        if (heard[place].events, heard[place].hash.hexdigest())
        != (expected[place].events, expected[place].hash.hexdigest())
    ]


def _write(change: Change, topic: Topic, facts: TopicFacts, entry: TopicPublication, due: _Due) -> list[WrittenRange]:
    """Write the events that the topic lacks, and return what it has of the publication, which is exactly those.

    Of a publication that was undone meanwhile that is whatever the topic has.

    Raises:
        PublicationRefused: if it has something else.
    """
    publication, starts = publication_of(entry.run_id, entry.sink, entry.number), entry.first_offsets
    there = topic.written(publication, starts)
    if due.at_most == 0:
        return _ranges(topic.heard(publication, starts, topic.ends()))
    if there and _differing(topic.heard(publication, starts, topic.ends()), _expected(change, topic, entry, there)):
        raise _changed_since(entry, f"the {there:,} events have said that are there already")
    expected = {place: Heard() for place in starts}
    for _ in topic.write(_lacking(change, topic, entry, expected, there, due.at_most)):
        faults.reach("telling.committed")
    heard = topic.heard(publication, starts, topic.ends())
    if wrong := _differing(heard, expected):
        said = "; ".join(f"partition {one} has {heard[one].events:,} of {expected[one].events:,}" for one in wrong)
        raise PublicationRefused(
            Problem(
                f"the topic {facts.topic} has other events of '{entry.run_id}' than were written: {said}",
                "what was written is read back before it is on record, by number, key, value and headers",
                "find out who else writes in the run's name, or removes events; what is in the topic stays as it is",
            )
        )
    return _ranges(heard)


def _ranges(heard: Mapping[int, Heard]) -> list[WrittenRange]:
    return [
        WrittenRange(place, one.first, one.last + 1, one.events, one.hash.hexdigest())
        for place, one in sorted(heard.items())
        if one.events
    ]


def _lacking(
    change: Change, topic: Topic, entry: TopicPublication, expected: dict[int, Heard], there: int, at_most: int | None
) -> Iterator[tuple[int, Message]]:
    """Yield the events that are not there yet, each with its partition, and count all of them."""
    for message in events_of(change, entry.sink, topic.declared, entry.action, entry.number):
        if at_most is not None and message.sequence >= at_most:
            return
        place = partition_of(message.key, len(expected))
        expected[place].add(message.key, message.value, message.headers)
        if message.sequence >= there:
            yield place, message
