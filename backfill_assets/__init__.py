"""Rewriting the history of Iceberg tables safely; see `TargetTable` for how a team declares a table.

Nothing imported here imports Dagster: Spark's Python workers import this package. What it exports is imported when it is
first asked for: pandera and Polars take a second and a half, and most commands and workers need neither.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from backfill_assets.declarations import light_pandera

if TYPE_CHECKING:
    from backfill_assets.declarations.apis import (
        ApiFeed,
        BearerToken,
        ByCursor,
        ByIdRange,
        BySnapshotExport,
        ByTimeWindow,
        ClientCredentials,
        HeaderKey,
        NextCursor,
        PageNumbers,
        RateLimit,
        RecordRejected,
        ResponseFacts,
        Retries,
    )
    from backfill_assets.declarations.changelogs import ChangedTable, Changelog, ChangeRecord
    from backfill_assets.declarations.changes import daily_state, history, renamed, state_at
    from backfill_assets.declarations.column_types import LocalTimestamp, Uuid
    from backfill_assets.declarations.deliveries import Counted, Delivery, Loader, QuarantinedRecord
    from backfill_assets.declarations.feeds import (
        DeliveryIndex,
        FileFacts,
        FileFeed,
        FileLimits,
        FileReader,
        NewBytes,
        RawRecord,
        RejectedRecord,
        TimeFromPath,
        TimeOfFile,
        Translated,
    )
    from backfill_assets.declarations.logs import LogPlace
    from backfill_assets.declarations.migrations import Migration
    from backfill_assets.declarations.needs import Needs
    from backfill_assets.declarations.product import InputTable, Product
    from backfill_assets.declarations.quarantine import FirstRow, Quarantine, Rejections
    from backfill_assets.declarations.reconciliations import (
        Comparison,
        Entities,
        Wrong,
        keys,
        outcome_level,
        record_level,
        state_level,
    )
    from backfill_assets.declarations.record_schemas import RecordSchemas
    from backfill_assets.declarations.revisions import Revisions
    from backfill_assets.declarations.schedules import LivePolicy, ReconciliationPolicy, RestatementPolicy
    from backfill_assets.declarations.schema import Corrections, Instant, Published, PublishedInFull, row_rule
    from backfill_assets.declarations.sinks import (
        Sink,
        SinkAdapter,
        SinkClass,
        ToCache,
        ToEventLog,
        Told,
        ToTable,
        ToTopic,
        ToWebhook,
    )
    from backfill_assets.declarations.source_tables import (
        EVERYTHING_UNTIL_END,
        Readers,
        SourceTable,
        StartsFrom,
        Window,
        as_it_is,
    )
    from backfill_assets.declarations.standard.checksums import checksum_gate
    from backfill_assets.declarations.standard.counts import null_share_gate, row_count_gate
    from backfill_assets.declarations.standard.distributions import distribution_gate
    from backfill_assets.declarations.standard.known_cases import known_keys_gate
    from backfill_assets.declarations.standard.references import reference_gate
    from backfill_assets.declarations.standard.series import bounded_change_gate, monotonic_gate
    from backfill_assets.declarations.standard.values import enumeration_gate
    from backfill_assets.declarations.standard_gates import change_gate, duplicate_gate, record_gate
    from backfill_assets.declarations.tallies import Tally
    from backfill_assets.declarations.target import (
        ColumnOrigin,
        CorrectionsTable,
        Finding,
        Inputs,
        Level,
        Outline,
        Reconciliation,
        ReconciliationContext,
        TargetTable,
        TransformContext,
        TransformVersion,
    )
    from backfill_assets.declarations.topics import (
        TOPIC_PLACE,
        KafkaRecord,
        TimedTopicRecord,
        Topic,
        TopicLimits,
        TopicRecord,
        TopicSecurity,
    )
    from backfill_assets.defs.build import build_definitions
    from backfill_assets.defs.component import BackfillTables
    from backfill_assets.installation import Platform
    from manifests.chunks import Chunking
    from manifests.division import ByBucket, ByRange, ByValue
    from manifests.errors import InputRefused, Problem
    from manifests.lateness import Lateness, Watermark
    from manifests.log_ranges import LogKind
    from manifests.merge_policy import MergePolicy, OnAmbiguous, OnCollision, OnRepeated, OnStale
    from manifests.migration_steps import CutOver
    from manifests.model import Mode, PublishMode
    from manifests.timeliness import OnFuture, OnLate, Timeliness
    from resources.sinks.caches import ChunkCache
    from resources.sinks.consumer_guard import ConsumerGuard, EventIds, SqliteEventIds
    from resources.sinks.event_logs import events_of

__all__ = [
    "EVERYTHING_UNTIL_END",
    "TOPIC_PLACE",
    "ApiFeed",
    "BackfillTables",
    "BearerToken",
    "ByBucket",
    "ByCursor",
    "ByIdRange",
    "ByRange",
    "BySnapshotExport",
    "ByTimeWindow",
    "ByValue",
    "ChangeRecord",
    "ChangedTable",
    "Changelog",
    "ChunkCache",
    "Chunking",
    "ClientCredentials",
    "ColumnOrigin",
    "Comparison",
    "ConsumerGuard",
    "Corrections",
    "CorrectionsTable",
    "Counted",
    "CutOver",
    "Delivery",
    "DeliveryIndex",
    "Entities",
    "EventIds",
    "FileFacts",
    "FileFeed",
    "FileLimits",
    "FileReader",
    "Finding",
    "FirstRow",
    "HeaderKey",
    "InputRefused",
    "InputTable",
    "Inputs",
    "Instant",
    "KafkaRecord",
    "Lateness",
    "Level",
    "LivePolicy",
    "Loader",
    "LocalTimestamp",
    "LogKind",
    "LogPlace",
    "MergePolicy",
    "Migration",
    "Mode",
    "Needs",
    "NewBytes",
    "NextCursor",
    "OnAmbiguous",
    "OnCollision",
    "OnFuture",
    "OnLate",
    "OnRepeated",
    "OnStale",
    "Outline",
    "PageNumbers",
    "Platform",
    "Problem",
    "Product",
    "PublishMode",
    "Published",
    "PublishedInFull",
    "Quarantine",
    "QuarantinedRecord",
    "RateLimit",
    "RawRecord",
    "Readers",
    "Reconciliation",
    "ReconciliationContext",
    "ReconciliationPolicy",
    "RecordRejected",
    "RecordSchemas",
    "RejectedRecord",
    "Rejections",
    "ResponseFacts",
    "RestatementPolicy",
    "Retries",
    "Revisions",
    "Sink",
    "SinkAdapter",
    "SinkClass",
    "SourceTable",
    "SqliteEventIds",
    "StartsFrom",
    "Tally",
    "TargetTable",
    "TimeFromPath",
    "TimeOfFile",
    "TimedTopicRecord",
    "Timeliness",
    "ToCache",
    "ToEventLog",
    "ToTable",
    "ToTopic",
    "ToWebhook",
    "Told",
    "Topic",
    "TopicLimits",
    "TopicRecord",
    "TopicSecurity",
    "TransformContext",
    "TransformVersion",
    "Translated",
    "Uuid",
    "Watermark",
    "Window",
    "Wrong",
    "as_it_is",
    "bounded_change_gate",
    "build_definitions",
    "change_gate",
    "checksum_gate",
    "daily_state",
    "distribution_gate",
    "duplicate_gate",
    "enumeration_gate",
    "events_of",
    "history",
    "keys",
    "known_keys_gate",
    "monotonic_gate",
    "null_share_gate",
    "outcome_level",
    "record_gate",
    "record_level",
    "reference_gate",
    "renamed",
    "row_count_gate",
    "row_rule",
    "state_at",
    "state_level",
]

_ROOMS = {
    "backfill_assets.declarations.feeds": (
        "DeliveryIndex",
        "FileFacts",
        "FileFeed",
        "FileLimits",
        "FileReader",
        "NewBytes",
        "RawRecord",
        "RejectedRecord",
        "TimeFromPath",
        "TimeOfFile",
        "Translated",
    ),
    "backfill_assets.declarations.deliveries": ("Counted", "Delivery", "Loader", "QuarantinedRecord"),
    "backfill_assets.declarations.apis": (
        "ApiFeed",
        "BearerToken",
        "ByCursor",
        "ByIdRange",
        "BySnapshotExport",
        "ByTimeWindow",
        "ClientCredentials",
        "HeaderKey",
        "NextCursor",
        "PageNumbers",
        "RateLimit",
        "RecordRejected",
        "ResponseFacts",
        "Retries",
    ),
    "backfill_assets.declarations.needs": ("Needs",),
    "backfill_assets.declarations.product": ("InputTable", "Product"),
    "backfill_assets.declarations.quarantine": ("FirstRow", "Quarantine", "Rejections"),
    "backfill_assets.declarations.record_schemas": ("RecordSchemas",),
    "backfill_assets.declarations.reconciliations": (
        "Comparison",
        "Entities",
        "Wrong",
        "keys",
        "outcome_level",
        "record_level",
        "state_level",
    ),
    "backfill_assets.declarations.column_types": ("LocalTimestamp", "Uuid"),
    "backfill_assets.declarations.schema": ("Corrections", "Instant", "Published", "PublishedInFull", "row_rule"),
    "backfill_assets.declarations.sinks": (
        "Sink",
        "SinkAdapter",
        "SinkClass",
        "ToCache",
        "ToEventLog",
        "ToTable",
        "ToTopic",
        "ToWebhook",
        "Told",
    ),
    "backfill_assets.declarations.source_tables": (
        "EVERYTHING_UNTIL_END",
        "Readers",
        "SourceTable",
        "StartsFrom",
        "Window",
        "as_it_is",
    ),
    "backfill_assets.declarations.standard.checksums": ("checksum_gate",),
    "backfill_assets.declarations.standard.counts": ("null_share_gate", "row_count_gate"),
    "backfill_assets.declarations.standard.distributions": ("distribution_gate",),
    "backfill_assets.declarations.standard.known_cases": ("known_keys_gate",),
    "backfill_assets.declarations.standard.references": ("reference_gate",),
    "backfill_assets.declarations.standard.series": ("bounded_change_gate", "monotonic_gate"),
    "backfill_assets.declarations.standard.values": ("enumeration_gate",),
    "backfill_assets.declarations.standard_gates": ("change_gate", "duplicate_gate", "record_gate"),
    "backfill_assets.declarations.tallies": ("Tally",),
    "backfill_assets.declarations.revisions": ("Revisions",),
    "backfill_assets.declarations.changelogs": ("ChangeRecord", "ChangedTable", "Changelog"),
    "backfill_assets.declarations.changes": ("daily_state", "history", "renamed", "state_at"),
    "backfill_assets.declarations.logs": ("LogPlace",),
    "backfill_assets.declarations.migrations": ("Migration",),
    "backfill_assets.declarations.schedules": ("LivePolicy", "ReconciliationPolicy", "RestatementPolicy"),
    "backfill_assets.declarations.target": (
        "ColumnOrigin",
        "CorrectionsTable",
        "Finding",
        "Inputs",
        "Level",
        "Outline",
        "Reconciliation",
        "ReconciliationContext",
        "TargetTable",
        "TransformContext",
        "TransformVersion",
    ),
    "backfill_assets.declarations.topics": (
        "TOPIC_PLACE",
        "KafkaRecord",
        "TimedTopicRecord",
        "Topic",
        "TopicLimits",
        "TopicRecord",
        "TopicSecurity",
    ),
    "backfill_assets.defs.build": ("build_definitions",),
    "backfill_assets.defs.component": ("BackfillTables",),
    "backfill_assets.installation": ("Platform",),
    "manifests.chunks": ("Chunking",),
    "manifests.division": ("ByBucket", "ByRange", "ByValue"),
    "manifests.errors": ("InputRefused", "Problem"),
    "manifests.lateness": ("Lateness", "Watermark"),
    "manifests.log_ranges": ("LogKind",),
    "manifests.migration_steps": ("CutOver",),
    "manifests.merge_policy": ("MergePolicy", "OnAmbiguous", "OnCollision", "OnRepeated", "OnStale"),
    "manifests.model": ("Mode", "PublishMode"),
    "manifests.timeliness": ("OnFuture", "OnLate", "Timeliness"),
    "resources.sinks.caches": ("ChunkCache",),
    "resources.sinks.consumer_guard": ("ConsumerGuard", "EventIds", "SqliteEventIds"),
    "resources.sinks.event_logs": ("events_of",),
}
light_pandera.install()
_PLACES = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what is exported, once it is asked for."""
    if name not in _PLACES:
        raise AttributeError(
            f"module 'backfill_assets' has no attribute '{name}'", name=name, obj=sys.modules[__name__]
        )
    value = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
