"""The topics that a run has published to, read again: do they have the events that are on record, and no others in its name.

Put here what is compared of a topic. That the record itself is as it was sealed is `ledger_rows`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from backfill_assets.audit.findings import Report
from backfill_assets.installation import Platform
from backfill_assets.publication.published_events import publication_of
from backfill_assets.publication.topic_publishing import lacking
from manifests.errors import SinkRefused
from manifests.lifecycle import WAS_PUBLISHED
from resources.ledger.topic_publications import TopicPublication


class Reading(StrEnum):
    """What became of reading events again."""

    READ = "READ"
    NOT_READ = "NOT_READ"


@dataclass(frozen=True)
class TopicChecked:
    """Of a change of a run that one topic was told of, or is to be told of: whether its events were read again and held against the record.

    Attributes:
        sink, topic, action: which events.
        reading: whether they were read.
        ranges: how many ranges of offsets, one a partition, are on record; `events` how many events the topic has of them, or the
            record where they were not read. None where nothing is on record yet.
        differs: whether what was read is not what is on record: the problems say in what.
        why: why they were not read.
    """

    sink: str
    topic: str
    action: str
    reading: Reading
    ranges: int | None
    events: int | None
    differs: bool = False
    why: str = ""

    def describe(self) -> str:
        """Say it in words."""
        of = f"topic {self.topic}, events of the {self.action}"
        if self.reading is Reading.NOT_READ:
            return f"{of}: not read: {self.why}"
        found = f"{self.events:,} in {self.ranges:,} range(s) of offsets were read again, and are"
        return f"{of}: {found} {'not what was written' if self.differs else 'as recorded'}"


def topics_not_read(platform: Platform, run_id: str) -> tuple[TopicChecked, ...]:
    """Return the topics that a run has told, none of which is asked."""
    entries = platform.ledger.topics.of_run(run_id)
    return tuple(_not_read(entry, "run it with --data to read them") for entry in entries)


def check_topics(platform: Platform, run_id: str, report: Report) -> tuple[TopicChecked, ...]:
    """Read every event of a run again, as a reader of committed ones gets it, and hold it against the record.

    A topic that cannot be asked, or has lost events to its retention, is named in a note: nothing is known of it then.
    """
    done, record = [], platform.ledger.run(run_id)
    for entry in platform.ledger.topics.of_run(run_id):
        if entry.is_intent:
            why = f"they are not all written yet; `backfill {entry.action} {run_id}` goes on"
            done.append(_not_read(entry, why))
            continue
        try:
            done.append(_check(platform, entry, report))
        except SinkRefused as refusal:
            done.append(_not_read(entry, refusal.problems[0].what))
    known = {(one.sink, one.action) for one in done}
    if record.plan.topics and record.state in WAS_PUBLISHED:
        for one, action in lacking(platform, record):
            if (one.sink, action) not in known:
                why = f"nothing of it is on record yet; `backfill {action} {run_id}` goes on"
                done.append(TopicChecked(one.sink, one.topic, action, Reading.NOT_READ, None, None, why=why))
    report.notes += [one.describe() for one in done if one.reading is Reading.NOT_READ]
    return tuple(done)


def _not_read(entry: TopicPublication, why: str) -> TopicChecked:
    ranges = None if entry.is_intent else len(entry.ranges)
    return TopicChecked(entry.sink, entry.topic, entry.action, Reading.NOT_READ, ranges, entry.events, why=why)


def _check(platform: Platform, entry: TopicPublication, report: Report) -> TopicChecked:
    topic = platform.sinks.reading(entry.sink, entry.topic)
    facts, where = topic.facts(), f"topic {entry.topic} {entry.action}"
    is_same = True
    for what, then, now in (
        ("cluster", entry.cluster_id, facts.cluster_id),
        ("topic id", entry.topic_id, facts.topic_id),
        # some that were added since have nothing of the run
        ("partitions", len(entry.first_offsets), min(len(entry.first_offsets), facts.partitions)),
    ):
        if then != now:
            report.add(f"{where} {what}", "is another one than the one that was written to", str(then), str(now))
            is_same = False
    if not is_same:  # what another topic has says nothing
        return _not_read(entry, "the topic is another one than the one that was written to")
    ends = topic.ends()
    heard = topic.heard(publication_of(entry.run_id, entry.sink, entry.number), entry.first_offsets, ends)
    written, differs = {one.partition: one for one in entry.ranges}, False
    for place, found in sorted(heard.items()):
        kept = written.get(place)
        expected = (
            (kept.events, kept.start, kept.until, kept.hash) if kept is not None else (0, -1, 0, found.hash.hexdigest())
        )
        now_there = (found.events, found.first, found.last + 1, found.hash.hexdigest())
        for cell, kept_as, now_as in zip(("events", "first offset", "end", "hash"), expected, now_there, strict=True):
            if kept_as != now_as:
                differs = True
                report.add(f"{where} partition {place} {cell}", "is not what was written", str(kept_as), str(now_as))
    events = sum(one.events for one in heard.values())
    return TopicChecked(entry.sink, entry.topic, entry.action, Reading.READ, len(written), events, differs)
