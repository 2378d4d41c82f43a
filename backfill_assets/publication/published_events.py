"""The events of a run: the rows that it has published, in order, as messages of a topic.

Put here which row is which message; nothing here speaks to a broker. Rows are read file by file in batches, and merged where a
chunk has several files, so that no chunk is held whole. The same rows give the same messages, whoever asks and however often.
"""

from __future__ import annotations

import hashlib
import heapq
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import date, datetime
from math import isfinite
from typing import Any

import pyarrow.parquet as pq

from backfill_assets.declarations.places import place
from backfill_assets.declarations.raised_by_products import ANY_ERROR
from backfill_assets.declarations.schema import lineage_columns
from backfill_assets.publication.change import Change
from manifests.canonical import canonical_json, plain
from manifests.errors import Problem, PublicationRefused
from manifests.lifecycle import PUBLISH, ROLLBACK
from manifests.model import Mode
from manifests.staged_file import StagedFile
from resources.sinks.declared import ToTopic
from resources.sinks.topic_events import (
    CONTENT,
    CORRECTS,
    EMIT,
    EVENT_ID,
    MODE,
    OPERATION,
    PUBLICATION,
    RETRACT,
    RUN,
    SEQUENCE,
    SNAPSHOT,
    SYNTHETIC,
    VERSION,
    Message,
)

_ROWS = 4_096
"""Rows of a file that are held at once."""
Row = Mapping[str, Any]


def publication_of(run_id: str, sink: str, number: int) -> str:
    """Return what the header `x-publication` says of the events of a run's `number`th change, by one sink."""
    return f"{run_id}/{sink}/{number}"


def events_of(change: Change, sink: str, declared: ToTopic, action: str, number: int) -> Iterator[Message]:
    """Yield the messages of a run's `number`th change, in order: what its rows say, or that they are taken back.

    Raises:
        PublicationRefused: if rows of a chunk do not lie in the order of the table's key, each key once; if they lack a column
            that is declared, or the declared function raises.
    """
    run_id, mode = change.record.run_id, change.plan.mode
    live = mode is Mode.LIVE
    publication = publication_of(run_id, sink, number).encode()
    value_of = _value_of(declared, change)
    own = "" if action == PUBLISH else f"~{run_id}~{action}-{number}"
    for sequence, row in enumerate(_rows(change)):
        with _of_declaration(run_id, sink, row, (*declared.key, *declared.event_id, *_picked(declared))):
            event_id = _text([row[name] for name in declared.event_id or change.target.key])
            said = {"retracts": event_id} if action == ROLLBACK else value_of(row)
            value = canonical_json(_plain(said)).encode()
            key = _text([row[name] for name in declared.key]).encode()
        headers = {
            RUN: row["run_id"],
            MODE: row["processing_mode"],
            VERSION: row["transform_version"],
            SNAPSHOT: str(row["input_snapshot_id"]),
            SYNTHETIC: "false" if live else "true",
            EVENT_ID: f"{event_id}{own}",
            OPERATION: RETRACT if action == ROLLBACK else EMIT,
            **({CORRECTS: event_id} if own else {}),
            CONTENT: hashlib.sha256(value).hexdigest()[:16],
            SEQUENCE: str(sequence),
        }
        yield Message(
            sequence,
            key,
            value,
            (*((name, value.encode()) for name, value in headers.items()), (PUBLICATION, publication)),
        )


def _value_of(declared: ToTopic, change: Change) -> Any:
    """Return what makes the value of a row: the declared function, or one that picks columns."""
    if callable(declared.value):
        return declared.value
    if names := _picked(declared):
        return lambda row: {name: row[name] for name in names}
    hidden = lineage_columns(change.target.model)
    # those of its file: the table may have further ones by now
    return lambda row: {name: value for name, value in row.items() if name not in hidden}


def _picked(declared: ToTopic) -> Sequence[str]:
    """Return the columns that make the value, where they are declared by name."""
    return () if callable(declared.value) else declared.value or ()


@contextmanager
def _of_declaration(run_id: str, sink: str, row: Row, names: Sequence[str]) -> Iterator[None]:
    """Refuse rows of which the declared events cannot be made; no text of an error is told, since it may quote a row."""
    try:
        yield
    except ANY_ERROR as error:
        at = f" ({where})" if (where := place(error)) else ""
        gone = [name for name in names if name not in row]
        lacks = f"no column {', '.join(gone)}" if gone else f"{type(error).__name__}{at}"
        raise PublicationRefused(
            Problem(
                f"the events of '{run_id}' that the sink {sink} declares cannot be made of its rows: {lacks}",
                "key, event_id and value are made of the columns that the run's files have",
                "put the declaration back as it was when the run was planned, and give the same command again",
            )
        ) from error


def _text(values: Sequence[Any]) -> str:
    """Return one value as its text, and several as a JSON array."""
    said = [_plain(value) for value in values]
    return (
        said[0] if len(said) == 1 and isinstance(said[0], str) else canonical_json(said[0] if len(said) == 1 else said)
    )


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it: what it has no number or text for is a text that says it exactly."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return plain(value) if isinstance(value, (str, int, float, date, type(None))) else str(value)


def _rows(change: Change) -> Iterator[Row]:
    """Yield the run's own rows of what it has published, chunk by chunk, in the order of the table's key."""
    key, run_id = change.target.key, change.record.run_id
    derived = change.strategy.is_derived(change.target, change.target.name)
    for chunk in change.chunks:
        last: tuple[Any, ...] | None = None
        files = chunk.derived if derived else chunk.files
        with ExitStack() as opened:
            each = [_of_file(change, file, opened) for file in sorted(files, key=lambda one: one.path)]
            for place, row in heapq.merge(*each, key=lambda one: one[0]):
                if last is not None and place <= last:
                    raise PublicationRefused(
                        Problem(
                            f"chunk {chunk.chunk} of '{run_id}' has rows that are not in the order of {', '.join(key)}",
                            "events of a key are in order because rows of a chunk lie in the order of the table's key, each once",
                            "its files were changed: `backfill verify` says how; restate the chunk with a new run",
                        )
                    )
                last = place
                if row["run_id"] == run_id:  # a merge has copied others' beside them
                    yield row


def _of_file(change: Change, file: StagedFile, opened: ExitStack) -> Iterator[tuple[tuple[Any, ...], Row]]:
    """Yield the rows of a file, each with its place in the order of the table's key; a batch of them is held."""
    key = change.target.key
    stream = opened.enter_context(change.platform.lakehouse.table(change.target.name).io.new_input(file.path).open())
    for batch in opened.enter_context(pq.ParquetFile(stream)).iter_batches(batch_size=_ROWS):
        for row in batch.to_pylist():
            yield tuple((row[name] is not None, row[name]) for name in key), row
