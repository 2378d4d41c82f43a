"""What a run's page shows of the topics that the run has published to: what was written where, and whether it is whole.

Put here the parts of that alone. It is the ledger's record: the broker is asked by `backfill verify --data`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from backfill_assets.ui.html_parts import table_html, time_html
from manifests.lifecycle import PublicationState
from resources.ledger.topic_publications import TopicPublication

_WORDS = {
    PublicationState.INTENT: "not whole yet",
    PublicationState.COMMITTED: "written, and read back",
    PublicationState.ABANDONED: "written in part, until it was rolled back",
}


def topic_parts(entries: Sequence[TopicPublication]) -> list[str]:
    """Return the part of a run's page that is about topics; nothing of a run that has none."""
    if not entries:
        return []
    rows = [
        (
            escape(one.topic),
            escape(one.action),
            escape(_WORDS.get(one.state, str(one.state))),
            "" if one.events is None else f"{one.events:,}",
            "<br>".join(
                f"{part.partition}: offsets {part.start:,} to {part.until - 1:,}, {part.events:,} events, "
                f"<code>{escape(part.hash[:16])}</code>"
                for part in one.ranges
            ),
            f"cluster <code>{escape(one.cluster_id)}</code>, topic <code>{escape(one.topic_id)}</code>",
            time_html(one.ended_at or one.started_at),
        )
        for one in entries
    ]
    head = ("topic", "action", "state", "events", "by partition", "ids", "at")
    return ["<h2 id=topics>Topics</h2>", table_html(head, rows)]
