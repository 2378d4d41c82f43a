"""Whether the fields of a declared table hold what they are declared to hold: what looks into them relies on it.

Put here what is asked of the kind of a field alone. What a field of the right kind says wrongly is `targets`' and `tables`'.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from backfill_assets.declarations.target import (
    CorrectionsTable,
    InputTable,
    LivePolicy,
    Outline,
    ReconciliationPolicy,
    TargetTable,
)
from manifests.chunks import Chunking
from manifests.errors import Problem

_SHOWN = 80
_OBJECTS: dict[str, type] = {
    "outline": Outline,
    "corrections": CorrectionsTable,
    "live": LivePolicy,
    "reconciled": ReconciliationPolicy,
}
_TEXTS = ("description", "day_column", "source", "source_time_column", "transform", "version_column", "quarantine_of")
_COLLECTIONS = ("key", "owners", "references", "look_back_columns")
_MAPPINGS = ("versions", "tolerances", "configuration")


def wrong_table_fields(table: InputTable | TargetTable) -> Iterator[Problem]:
    """Yield each field of a table that holds something else than it is declared to hold."""
    where = table.name if isinstance(table.name, str) else f"a {type(table).__name__}"
    for name, is_of_kind, kind in _KINDS:
        if not hasattr(table, name):
            continue
        value = getattr(table, name)
        if not is_of_kind(value):
            what = f"{name} is {in_words(value)}"
            yield Problem(what, f"it is {kind}", f"give `{name}` {kind}", f"{where}: {name}")


def in_words(value: Any) -> str:
    """Return a value as it is written, or of a larger thing what it is."""
    is_plain = value is None or isinstance(value, (str, int, float, list, tuple, dict))
    return ascii(value)[:_SHOWN] if is_plain else f"a {type(value).__name__}"


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_nothing(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _are_texts(value: Any) -> bool:
    """Whether a value is several texts; of a single one, which is a mistake of its own, whoever looks at it says so."""
    return isinstance(value, Collection) and all(isinstance(one, str) for one in value)


def _is_by_name(value: Any) -> bool:
    return isinstance(value, Mapping)


def _are_by_name(value: Any) -> bool:
    """Whether a value gives several of something by name."""
    return isinstance(value, Mapping) and all(
        isinstance(each, Collection) and not isinstance(each, str) for each in value.values()
    )


def _is_chunking(value: Any) -> bool:
    return any(value == one for one in Chunking)


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _is_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: value is None or isinstance(value, kind)


_KINDS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("name", _is_text, "a text"),
    *((name, _is_text, "a text") for name in _TEXTS),
    *((name, _is_text_or_nothing, "a text, or None") for name in ("entity", "partition_by")),
    *((name, _are_texts, "a tuple of texts") for name in _COLLECTIONS),
    *((name, _is_by_name, "a mapping by name") for name in _MAPPINGS),
    ("column_origins", _are_by_name, "a mapping of tuples by name"),
    ("chunking", _is_chunking, f"one of {', '.join(f'Chunking.{one.name}' for one in Chunking)}"),
    ("chunks_per_run", _is_count, "a whole number, 1 or more"),
    ("is_reference", _is_truth, "True or False"),
    *((name, _is_of(kind), f"a `{kind.__name__}`, or None") for name, kind in _OBJECTS.items()),
)
"""By field what it has to be, and in words."""
