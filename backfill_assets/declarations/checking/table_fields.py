"""Whether the fields of a declared table hold what they are declared to hold: what looks into them relies on it.

Put here what is asked of the kind of a field alone. What a field of the right kind says wrongly is `targets`' and `tables`'.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import date
from typing import Any

import pandera.polars as pa

from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.revisions import Revisions
from backfill_assets.declarations.schedules import LivePolicy, ReconciliationPolicy, RestatementPolicy
from backfill_assets.declarations.source_tables import Readers, StartsFrom
from backfill_assets.declarations.target import CorrectionsTable, Outline, TargetTable
from manifests.chunks import Chunking
from manifests.compaction import FILE_SIZES
from manifests.errors import Problem
from manifests.fields import MOST_DAYS
from manifests.merge_policy import MergePolicy, OnAmbiguous, OnCollision, OnRepeated, OnStale
from manifests.model import PublishMode
from manifests.timeliness import OnFuture, OnLate, Timeliness

_Kind = tuple[str, Callable[[Any], bool], str]
"""A field, whether a value is of its kind, and the kind in words."""
_SHOWN = 80
_OBJECTS: dict[str, type] = {
    "outline": Outline,
    "corrections": CorrectionsTable,
    "live": LivePolicy,
    "reconciled": ReconciliationPolicy,
    "timeliness": Timeliness,
    "readers": Readers,
    "restated": RestatementPolicy,
    "revisions": Revisions,
    "merge_policy": MergePolicy,
    "starts_from": StartsFrom,
}
_TEXTS = ("description", "day_column", "source", "source_time_column", "transform", "version_column", "quarantine_of")
_COLLECTIONS = ("key", "owners", "references", "look_back_columns")
_MAPPINGS = ("versions", "tolerances", "configuration")


def wrong_table_fields(table: InputTable | TargetTable) -> Iterator[Problem]:
    """Yield each field of a table, or of a part of it, that holds something else than it is declared to hold."""
    where = table.name if isinstance(table.name, str) else f"a {type(table).__name__}"
    for name, what, kind in _wrong(table, _KINDS):
        yield Problem(what, f"it is {kind}", f"give `{name}` {kind}", f"{where}: {name}")
    for part, of_kind in _OBJECTS.items():
        if isinstance(whole := getattr(table, part, None), of_kind):
            for name, what, kind in _wrong(whole, _KINDS_OF_PARTS):
                yield Problem(what, f"it is {kind}", f"give `{name}` {kind}", f"{where}: {part}")


def _wrong(whole: Any, kinds: tuple[_Kind, ...]) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each field that is of another kind, what is wrong with it, and the kind."""
    for name, is_of_kind, kind in kinds:
        if hasattr(whole, name) and not is_of_kind(value := getattr(whole, name)):
            yield name, f"{name} is {in_words(value)}", kind


def in_words(value: Any) -> str:
    """Return a value as it is written, or of a larger thing what it is."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    is_plain = value is None or isinstance(value, (str, int, float, list, tuple, dict))
    return ascii(value)[:_SHOWN] if is_plain else f"a {type(value).__name__}"


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_nothing(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _are_texts(value: Any) -> bool:
    """Whether a value is several texts; of a single one, which is a mistake of its own, whoever looks at it says so."""
    return isinstance(value, Collection) and all(isinstance(one, str) for one in value)


def _are_several(value: Any) -> bool:
    return isinstance(value, (tuple, list))


def _is_by_name(value: Any) -> bool:
    return isinstance(value, Mapping)


def _are_by_name(value: Any) -> bool:
    """Whether a value gives several of something by name."""
    return isinstance(value, Mapping) and all(
        isinstance(each, Collection) and not isinstance(each, str) for each in value.values()
    )


def _are_shares(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(rule, str) and rule.strip() and type(share) in {int, float} and 0 <= share <= 1
        for rule, share in value.items()
    )


def _is_chunking(value: Any) -> bool:
    return isinstance(value, Chunking)


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _is_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: value is None or isinstance(value, kind)


def _is_word_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _are_days(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_DAYS


def _is_file_size_or_nothing(value: Any) -> bool:
    least, most = FILE_SIZES
    return value is None or (_is_count(value) and least <= value <= most)


def _are_days_or_nothing(value: Any) -> bool:
    return value is None or (_are_days(value) and value > 0)


def _are_texts_or_nothing(value: Any) -> bool:
    return value is None or _are_texts(value)


def _is_day_or_nothing(value: Any) -> bool:
    return value is None or type(value) is date


def _is_publish_mode(value: Any) -> bool:
    return isinstance(value, PublishMode)


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, pa.DataFrameModel)


_MODEL: _Kind = ("model", _is_model, "a class that inherits from `pandera.polars.DataFrameModel`")
_KINDS: tuple[_Kind, ...] = (
    ("name", _is_text, "a text"),
    _MODEL,
    *((name, _is_text, "a text") for name in _TEXTS),
    *((name, _is_text_or_nothing, "a text, or None") for name in ("entity", "partition_by")),
    *((name, _are_texts, "a tuple of texts") for name in _COLLECTIONS),
    *((name, _is_by_name, "a mapping by name") for name in _MAPPINGS),
    ("sources", _are_several, "a tuple of ba.SourceTable"),
    ("column_origins", _are_by_name, "a mapping of tuples by name"),
    ("chunking", _is_chunking, f"one of {', '.join(f'Chunking.{one.name}' for one in Chunking)}"),
    ("chunks_per_run", _is_count, "a whole number, 1 or more"),
    ("file_size_bytes", _is_file_size_or_nothing, "a whole number of bytes, {:,} to {:,}, or None".format(*FILE_SIZES)),
    ("is_reference", _is_truth, "True or False"),
    ("quarantine_limits", _are_shares, "a mapping from rules (texts) to shares, numbers from 0 to 1"),
    ("quarantine_age_days", _are_days_or_nothing, f"a whole number of days, 1 to {MOST_DAYS}, or None"),
    *((name, _is_of(kind), f"a `{kind.__name__}`, or None") for name, kind in _OBJECTS.items()),
)
"""By field of a table what it has to be, and in words."""
_KINDS_OF_PARTS: tuple[_Kind, ...] = (
    *((name, _is_text, "a text") for name in ("name", "transform_version", "cron", "valid", "system", "version")),
    *((name, _is_text, "a text") for name in ("table", "source_day")),
    ("fits", _are_by_name, "a mapping of tuples of versions by version"),
    *((name, _are_texts, "a tuple of texts") for name in ("columns", "sinks")),
    *((name, _is_truth, "True or False") for name in ("side_effects_allowed", "development")),
    _MODEL,
    ("gates", _are_texts_or_nothing, "a tuple of texts, or None"),
    ("tolerances", _is_by_name, "a mapping by name"),
    ("rewind_days", _are_days, f"a whole number, 0 to {MOST_DAYS}"),
    ("days", _are_days_or_nothing, f"a whole number, 1 to {MOST_DAYS}, or None"),
    ("late_after_hours", _is_count, "a whole number, 1 or more"),
    ("begins_on", _is_day_or_nothing, "a `datetime.date`, or None"),
    ("publish_mode", _is_publish_mode, "a `ba.PublishMode`"),
    ("late", _is_of(OnLate), "a `ba.OnLate`"),
    ("future", _is_of(OnFuture), "a `ba.OnFuture`"),
    *((name, _is_text_or_nothing, "a text, or None") for name in ("purpose", "sequence")),
    ("collision", _is_word_of(OnCollision), "a `ba.OnCollision`"),
    ("stale", _is_word_of(OnStale), "a `ba.OnStale`"),
    ("repeated", _is_word_of(OnRepeated), "a `ba.OnRepeated`"),
    ("ambiguous", _is_word_of(OnAmbiguous), "a `ba.OnAmbiguous`"),
)
"""The same of the fields of its parts, each of which has some of them."""
