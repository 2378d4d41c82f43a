"""The topics that a run has published to, read again: do they have the events that are on record, and no others in its name.

Put here what is compared of a topic. That the record itself is as it was sealed is `ledger_rows`'s.
"""

from __future__ import annotations

from backfill_assets.audit.findings import Report
from backfill_assets.installation import Platform
from backfill_assets.publication.published_events import publication_of
from manifests.errors import SinkRefused
from resources.ledger.topic_publications import TopicPublication


def check_topics(platform: Platform, run_id: str, report: Report) -> None:
    """Read every event of a run again, as a reader of committed ones gets it, and hold it against the record.

    A topic that cannot be asked, or has lost events to its retention, is named in a note: nothing is known of it then.
    """
    for entry in platform.ledger.topics.of_run(run_id):
        if entry.is_intent:
            report.notes.append(
                f"topic {entry.topic}: {entry.action} of '{run_id}' is not whole yet; `backfill publish {run_id}` goes on"
            )
            continue
        try:
            _check(platform, entry, report)
        except SinkRefused as refusal:
            report.notes.append(f"topic {entry.topic} is not checked: {refusal.problems[0].what}")


def _check(platform: Platform, entry: TopicPublication, report: Report) -> None:
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
    if not is_same:
        return  # what another topic has says nothing
    ends = topic.ends()
    heard = topic.heard(publication_of(entry.run_id, entry.sink, entry.number), entry.first_offsets, ends)
    written = {one.partition: one for one in entry.ranges}
    for place, found in sorted(heard.items()):
        kept = written.get(place)
        expected = (
            (kept.events, kept.start, kept.until, kept.hash) if kept is not None else (0, -1, 0, found.hash.hexdigest())
        )
        now_there = (found.events, found.first, found.last + 1, found.hash.hexdigest())
        for cell, kept_as, now_as in zip(("events", "first offset", "end", "hash"), expected, now_there, strict=True):
            if kept_as != now_as:
                report.add(f"{where} partition {place} {cell}", "is not what was written", str(kept_as), str(now_as))
