"""What a table without time declares, and what it cannot: everything that goes by days is refused by name.

Put here what `Chunking.WHOLE` asks of the other fields of a target. What its parts may be is `chunks`'; what a manifest of such a
target may say, `manifests.target_problems`'.
"""

from __future__ import annotations

from collections.abc import Iterator

from backfill_assets.declarations.target import TargetTable, no_warm_up
from manifests.chunks import Chunking
from manifests.errors import Problem
from manifests.timeliness import AS_OTHERS

_DAYS = "a table without time (Chunking.WHOLE) has no days"
_REPLACED = "a table without time is replaced by its values or buckets, each whole"
_NEEDED = (
    ("day_column", "the column of dates or instants by which rows belong to chunks", 'for example day_column="day"'),
    (
        "chunks_from",
        "the first chunk that the table can have",
        'for example chunks_from="2024-01", of a table of months',
    ),
    ("source_time_column", "the column of the source by which its rows have days", "name it"),
)


def of_time(target: TargetTable) -> Iterator[Problem]:
    """Say which fields a target lacks that has time, and which it has that a target without time cannot have."""
    if target.chunking is Chunking.WHOLE:
        yield from _of_timeless(target)
        return
    for name, what, way_out in _NEEDED:
        if getattr(target, name) == "":
            rule = f"it is {what}; a table without time says chunking=ba.Chunking.WHOLE"
            yield Problem(f"{name} is missing", rule, way_out, f"{target.name}: {name}")


def _of_timeless(target: TargetTable) -> Iterator[Problem]:
    refused = (
        ("day_column", target.day_column, _DAYS),
        ("chunks_from", target.chunks_from, f"{_DAYS}, and no first chunk: its chunks are those of chunk_values"),
        ("chunks_until", target.chunks_until, f"{_DAYS}, and no last chunk: its chunks are those of chunk_values"),
        ("warm_up_days", target.warm_up_days is not no_warm_up, f"{_DAYS} before others: its source is read whole"),
        ("look_back_columns", target.look_back_columns, f"{_DAYS} before others: its source is read whole"),
        ("sources", target.sources, f"a further source is read in a window of days, and {_DAYS}"),
        ("timeliness", target.timeliness != AS_OTHERS, f"rows are late by their days, and {_DAYS}"),
        ("live", target.live is not None, f"LIVE goes on from day to day, and {_DAYS}"),
        ("reconciled", target.reconciled is not None, f"a schedule reconciles the newest days, and {_DAYS}"),
        ("restated", target.restated is not None, f"a restatement is proposed for days, and {_DAYS}"),
        (
            "entity",
            target.entity is not None,
            f"{_REPLACED}: MERGE_BY_KEY, which goes by entity, changes files of days",
        ),
        ("corrections", target.corrections is not None, f"{_REPLACED}: corrections are kept by day"),
    )
    for name, there, rule in refused:
        if there:
            yield Problem(
                f"{target.name} has no time, and declares {name}",
                rule,
                "leave it out, or choose another chunking",
                f"{target.name}: {name}",
            )
    if target.chunk_values is None:
        yield Problem(
            f"{target.name} has no time, and no chunk_values",
            "the chunks of a table without time are its values, or buckets of a column",
            'for example chunk_values=ba.ByBucket("customer_id", 8)',
            f"{target.name}: chunk_values",
        )
