"""What an extraction brings to its table, made from the answers that are kept: no server is asked.

Put here how kept records go through the product's translator and are held against the model of their table. Which records are new is
`versions`', what becomes of the delivery `deliveries`', and what a record means the product's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
from pandera.errors import SchemaErrors

from backfill_assets.declarations.apis import ApiFeed, RecordRejected, ResponseFacts
from backfill_assets.declarations.checking.imports import python_words
from backfill_assets.declarations.deliveries import Counted
from backfill_assets.declarations.quarantine import FirstRow, Quarantine
from backfill_assets.declarations.raised_by_products import ANY_ERROR
from backfill_assets.declarations.schema import dtypes, iceberg_schema
from backfill_assets.extraction.archive import Archive, file_of
from backfill_assets.extraction.conversation import LINES
from backfill_assets.extraction.indexes import Entry
from backfill_assets.extraction.records import contents_of, digest_of, text_of
from backfill_assets.extraction.refusals import MalformedAnswer
from backfill_assets.ingestion.translated_values import InexactValue, TranslatedColumns, plain
from backfill_assets.ingestion.versions import Change, Found, is_brought
from backfill_assets.worker.columns import table_of
from manifests.canonical import sha256_of
from manifests.errors import InputRefused, Problem
from resources.ledger.extractions import ExtractionRecord, ResponseRecord

_BATCH = 20_000


@dataclass(frozen=True)
class Kept:
    """An extraction and its archive, with what is on record of each of its answers."""

    record: ExtractionRecord
    archive: Archive
    responses: Mapping[int, ResponseRecord]


@dataclass(frozen=True)
class _Chosen:
    """A record that is loaded, and the facts of its answer."""

    content: Any
    facts: ResponseFacts
    problem: str


@dataclass(frozen=True)
class _Judged:
    """Rows of a batch that their table takes, and what is quarantined of it."""

    rows: pl.DataFrame
    rejected: list[tuple[_Chosen, str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class KeptDelivery:
    """What an extraction brings: a `Delivery` whose rows come from the archive alone.

    `kept` are the extractions that its records lie in, by number: those that the server has no more lie in earlier ones.
    """

    feed: ApiFeed
    model: type[pa.DataFrameModel]
    record: ExtractionRecord
    kept: Callable[[int], Kept]
    found: Sequence[Found]

    @property
    def load_id(self) -> str:
        """The id of the load: the extraction, and the hash over its pages."""
        return load_id_of(self.record)

    @property
    def source_file(self) -> str:
        """What the rows are called."""
        return f"extraction {self.record.id}, translator {self.feed.translator_version}"

    def count(self, ingested_at: datetime) -> Counted:
        """Translate every record without keeping anything."""
        del ingested_at
        events = 0
        reasons: Counter[str] = Counter()
        first: dict[str, FirstRow] = {}
        for judged in self._judged():
            events += judged.rows.height
            for chosen, reason, detail in judged.rejected:
                reasons[reason] += 1
                where = f"{chosen.facts.response}: {detail}" if detail else chosen.facts.response
                first.setdefault(reason, FirstRow(chosen.facts.position, where))
        return Counted(events, reasons.total(), dict(reasons), first)

    def rows(self, ingested_at: datetime) -> Iterator[arrow.Table]:
        """Yield what the table gets."""
        del ingested_at
        schema = iceberg_schema(self.model)
        for judged in self._judged():
            if judged.rows.height:
                yield table_of(judged.rows, schema)

    def quarantined(self, ingested_at: datetime) -> Iterator[arrow.Table]:
        """Yield what the quarantine gets: where each record lies in the archive, and the record as it came."""
        schema = iceberg_schema(Quarantine)
        for judged in self._judged():
            if judged.rejected:
                shown = [
                    {
                        "source_file": f"{chosen.facts.extraction}/{chosen.facts.response}",
                        "source_row": chosen.facts.position,
                        "reason": reason,
                        "detail": detail or reason,
                        "record": text_of(chosen.content),
                        "ingested_at": ingested_at,
                    }
                    for chosen, reason, detail in judged.rejected
                ]
                yield table_of(pl.DataFrame(shown, schema=dict(dtypes(Quarantine))), schema)

    @cached_property
    def _columns(self) -> TranslatedColumns:
        return TranslatedColumns(self.model)

    @cached_property
    def _schema(self) -> pa.DataFrameSchema:
        schema = copy(self.model.to_schema())
        schema.unique, schema.columns = None, {name: copy(one) for name, one in schema.columns.items()}
        for column in schema.columns.values():
            column.unique = False  # a later version of a record has its key again
        return schema

    def _judged(self) -> Iterator[_Judged]:
        batch: list[_Chosen] = []
        for chosen in self._chosen():
            batch.append(chosen)
            if len(batch) == _BATCH:
                yield self._judge(batch)
                batch = []
        if batch:
            yield self._judge(batch)

    def _chosen(self) -> Iterator[_Chosen]:
        """Yield the records to load, in the order in which they were read."""
        wanted: dict[tuple[int, int], list[tuple[Entry, bool]]] = {}
        for one in self.found:
            is_deleted = one.change is Change.DELETED
            if is_brought(self.record, one):
                place = (one.version.extraction, one.version.entry.response)
                wanted.setdefault(place, []).append((one.version.entry, is_deleted))
        for (number, response), entries in sorted(wanted.items(), key=lambda item: item[0]):
            kept = self.kept(number)
            asked = kept.responses[response]
            contents = self._contents(kept, asked)
            for entry, is_deleted in sorted(entries, key=lambda item: item[0].position):
                if entry.position >= len(contents) or digest_of(contents[entry.position]) != entry.digest:
                    raise self._other_declaration(kept, response, f"record {entry.position} is another one")
                facts = ResponseFacts(
                    self.feed.name,
                    kept.record.id,
                    file_of(response),
                    entry.position,
                    asked.address,
                    self.record.first_at or asked.at if is_deleted else asked.at,
                    asked.content_hash,
                    is_deleted,
                    self.feed.translator_version,
                )
                yield _Chosen(contents[entry.position], facts, entry.problem)

    def _contents(self, kept: Kept, asked: ResponseRecord) -> list[Any]:
        try:
            return contents_of(self.feed, kept.archive.read(asked), lines=asked.kind == LINES)
        except MalformedAnswer as error:  # it was understood when it came
            raise self._other_declaration(kept, asked.number, str(error)) from None

    def _other_declaration(self, kept: Kept, response: int, what: str) -> InputRefused:
        return InputRefused(
            Problem(
                f"an answer that is kept is read otherwise than when it came: {what}",
                "an extraction is loaded by the declaration that it was made by (`records` of the feed)",
                "declare `records` as it was, and load; or extract again by the new declaration, and load that extraction alone "
                f"(`backfill load {self.feed.name} --extraction ID`)",
                f"{kept.record.id}/{file_of(response)}",
            )
        )

    def _judge(self, batch: Sequence[_Chosen]) -> _Judged:
        """Translate records, and hold the rows against the model."""
        translated: list[tuple[_Chosen, dict[str, Any]]] = []
        rejected: list[tuple[_Chosen, str, str]] = []
        for chosen in batch:
            row = self._translated(chosen)
            if isinstance(row, RecordRejected):
                rejected.append((chosen, plain(row.reason), plain(row.detail)))
                continue
            try:
                translated.append((chosen, self._exact(row)))
            except InexactValue as value:
                rejected.append((chosen, value.rule, value.detail))
        frame = self._columns.frame([row for _, row in translated])
        broken = self._broken(frame)
        rejected += [(translated[number][0], rule, "") for number, rule in broken.items()]
        left = pl.Series([number not in broken for number in range(frame.height)], dtype=pl.Boolean)
        rejected.sort(key=lambda one: (one[0].facts.extraction, one[0].facts.response, one[0].facts.position))
        return _Judged(frame.filter(left), rejected)

    def _translated(self, chosen: _Chosen) -> dict[str, Any] | RecordRejected:
        if chosen.problem:
            return RecordRejected(chosen.problem)
        try:
            row = self.feed.translate(chosen.content, chosen.facts)
        except ANY_ERROR as error:
            raise self._wrong_translator(f"it raises {python_words(error)}", chosen) from error
        if isinstance(row, RecordRejected):
            if not isinstance(row.reason, str) or not row.reason.strip():
                raise self._wrong_translator("it rejects a record without a reason", chosen)
            return row
        if not isinstance(row, Mapping):
            raise self._wrong_translator(f"it returns a {type(row).__name__}", chosen)
        values = dict(row)
        if self.feed.deleted_column:
            values[self.feed.deleted_column] = chosen.facts.is_deleted
        if other := sorted(set(map(str, values)) ^ set(self._columns.types)):
            raise self._wrong_translator(
                f"its row lacks, or has beside the table's columns: {', '.join(other)}", chosen
            )
        return values

    def _wrong_translator(self, what: str, chosen: _Chosen) -> InputRefused:
        return InputRefused(
            Problem(
                f"the translator of {self.feed.name}: {what}",
                "it returns the value of each column by its name, or a `RecordRejected`",
                "correct it; nothing of the extraction was loaded, and all of it is in the archive",
                f"record {chosen.facts.position} of {chosen.facts.extraction}/{chosen.facts.response}",
            )
        )

    def _exact(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row as a frame is given it; `InexactValue` of the first value that is missing, or would become another one."""
        columns = self._schema.columns
        found = {}
        for name in self._columns.types:
            if row[name] is None and not columns[name].nullable:
                raise InexactValue(f"{name}: null", "")
            found[name] = self._columns.exact(name, row[name])
        return found

    def _broken(self, rows: pl.DataFrame) -> dict[int, str]:
        """Return the first rule of the model that each row breaks, by the row's number."""
        if not rows.height:
            return {}
        try:
            self._schema.validate(rows, lazy=True)
        except SchemaErrors as errors:
            cases = errors.failure_cases
        else:
            return {}
        if about_all := cases.filter(pl.col("index").is_null())["check"].unique().to_list():
            raise InputRefused(
                Problem(
                    f"the rule(s) {', '.join(map(str, about_all))} are not met by extraction {self.record.id}",
                    "every rule of the table's model holds of what is loaded",
                    "a rule that names no row rejects all of it: correct the rule, or the translator",
                )
            )
        broken: dict[int, str] = {}
        for case in cases.iter_rows(named=True):
            of_table = case["schema_context"] == "DataFrameSchema"
            broken.setdefault(
                int(case["index"]), str(case["check"] if of_table else f"{case['column']}: {case['check']}")
            )
        return broken


def load_id_of(record: ExtractionRecord) -> str:
    """Return the id under which an extraction is loaded: the same for the same answers to the same extraction."""
    return f"{record.id}:{sha256_of([record.id, record.pages_hash])[:32]}"
