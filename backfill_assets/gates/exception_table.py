"""The exception table: every row that disagrees, where a gate did not pass, for anybody to query.

Put here how the rows of a judgement are kept, and how they are found again. It is evidence, like the ledger's verdicts,
and no sink: the platform's own table, outside every target's scope, append-only, written to in every mode. Spark writes
the rows to files; one commit a judgement, by metadata alone, makes them part of the table. Nothing here decides
whether a gate passes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any
from uuid import uuid4

import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.expressions import And, EqualTo
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType, TimestamptzType
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.schema import spark_schema
from backfill_assets.declarations.target import EXCEPTION_COLUMNS, Finding
from backfill_assets.installation import Platform
from backfill_assets.staging.raised import done_or_raised, words
from backfill_assets.worker.changed_rows import Concealed
from manifests.canonical import canonical_json
from manifests.model import Mode
from resources.lakehouse.loads import LOAD_PROPERTY
from resources.lakehouse.metadata import readable_rows
from resources.lakehouse.storage import filesystem_of

EXCEPTIONS_TABLE = "audit.reconciliation_exceptions"
COUNTS_PROPERTY = "backfill.exceptions"
"""Snapshot summary key: of each gate, how many exceptions were kept and how many there are, as JSON."""
UNLISTED = "unlisted"
"""In what is said of a gate: why its exceptions could not be listed."""
SAMPLE = 20
"""Rows that a verdict shows of those that disagree."""
SCHEMA = Schema(
    NestedField(1, "run_id", StringType(), required=False, doc="Run whose gate it is."),
    NestedField(
        2, "judgement", StringType(), required=False, doc="Of which judgement of the run: what was judged, hashed."
    ),
    NestedField(3, "target", StringType(), required=False, doc="Table that was judged."),
    NestedField(4, "gate", StringType(), required=False, doc="Gate that did not pass."),
    NestedField(5, "level", StringType(), required=False, doc="record, state or outcome."),
    NestedField(6, "slice", StringType(), required=False, doc="Business slice, as JSON."),
    NestedField(7, "key", StringType(), required=False, doc="Entity, as JSON; {} for a slice as a whole."),
    NestedField(8, "expected", StringType(), required=False, doc="What was expected, as JSON."),
    NestedField(9, "found", StringType(), required=False, doc="What was found, as JSON."),
    NestedField(10, "what", StringType(), required=False, doc="What is wrong, in words."),
    NestedField(11, "at", TimestamptzType(), required=False, doc="When it was judged."),
)


@dataclass(frozen=True)
class Judged:
    """A gate that has judged: its name and level, what it found, and the most exceptions that are kept."""

    gate: str
    level: str
    finding: Finding
    limit: int


def keep(
    platform: Platform,
    run_id: str,
    judgement: str,
    *,
    mode: Mode,
    target: str,
    judged: Sequence[Judged],
    concealed: Concealed,
) -> dict[str, dict[str, Any]]:
    """Keep the exceptions of the gates of a run that have not passed: one commit, and none for the same judgement again.

    Whoever judges the same again lists what could not be listed before, or was no finding yet, as a further commit.

    Returns:
        For each of those gates, what its verdict says of them: table, snapshot, judgement, rows kept, rows there are, and
        a query; and `sample`, a few of them. Of a gate whose exceptions could not be listed, why not.
    """
    failed = [one for one in judged if not one.finding.passed and one.finding.exceptions is not None]
    if not failed:
        return {}
    platform.lakehouse.ensure(EXCEPTIONS_TABLE, SCHEMA, UNPARTITIONED_PARTITION_SPEC, {})
    origin = {"run_id": run_id, "judgement": judgement, "target": target}
    said: dict[str, dict[str, Any]] = {}
    for number in count(1):
        left = [one for one in failed if one.gate not in said]
        if not left:
            break
        load_id = f"{run_id}:{judgement}" + (f":{number}" if number > 1 else "")
        snapshot = platform.lakehouse.find_load(EXCEPTIONS_TABLE, load_id)
        if snapshot is None:
            folder = f"{platform.lakehouse.location(EXCEPTIONS_TABLE)}/run={run_id}/{judgement[:12]}-{uuid4().hex}"
            paths: list[str] = []
            counts: dict[str, list[int]] = {}
            for one in left:
                write = partial(_write, platform, mode, f"{folder}/{one.gate}", one, origin, concealed)
                with platform.spark.settings_kept(mode):
                    listed = done_or_raised(run_id, write)
                if isinstance(listed, BaseException):
                    said[one.gate] = {UNLISTED: words(listed)}
                    continue
                written, kept, there_are = listed
                paths += written
                counts[one.gate] = [kept, there_are]
            if not counts:
                break
            properties = {LOAD_PROPERTY: load_id, COUNTS_PROPERTY: canonical_json(counts)}
            snapshot = platform.lakehouse.append_files(EXCEPTIONS_TABLE, paths, properties)
        assert snapshot.summary is not None
        recorded = json.loads(snapshot.summary.additional_properties[COUNTS_PROPERTY])
        for gate in (one.gate for one in left if one.gate in recorded):
            said[gate] = _kept(platform, run_id, gate, judgement, snapshot.snapshot_id, *recorded[gate])
    return said


def _kept(
    platform: Platform, run_id: str, gate: str, judgement: str, snapshot_id: int, kept: int, there_are: int
) -> dict[str, Any]:
    """Return what the verdict of a gate says of its exceptions."""
    return {
        "exceptions": {
            "table": EXCEPTIONS_TABLE,
            "snapshot": str(snapshot_id),
            "judgement": judgement,
            "rows": kept,
            "disagree": there_are,
            "cut": there_are > kept,
            "query": query(run_id, gate, judgement),
            "command": f"backfill exceptions {run_id} --gate {gate}",
        },
        "sample": [_shown(row) for row in rows(platform, run_id, {gate: judgement}, SAMPLE)],
    }


def _write(
    platform: Platform, mode: Mode, folder: str, judged: Judged, origin: Mapping[str, str], concealed: Concealed
) -> tuple[list[str], int, int]:
    """Have Spark write the first exceptions of a gate; return the files, how many they hold, and how many there are."""
    assert judged.finding.exceptions is not None
    frame = _without_erased(judged.finding.exceptions().select(*EXCEPTION_COLUMNS), concealed)
    constants = {**origin, "gate": judged.gate, "level": judged.level, "at": platform.ledger.now()}
    columns = []
    for field in spark_schema(SCHEMA).fields:
        value = F.lit(constants[field.name]) if field.name in constants else F.col(field.name)
        columns.append(value.cast(field.dataType).alias(field.name, metadata=field.metadata))
    with platform.spark.writing_evidence(mode):
        frame.orderBy(*EXCEPTION_COLUMNS).limit(judged.limit).select(*columns).write.parquet(folder)
    filesystem, place, scheme = filesystem_of(platform.lakehouse.table(EXCEPTIONS_TABLE), folder)
    paths, kept = [], 0
    for info in filesystem.get_file_info(pafs.FileSelector(place)):
        if info.is_file and info.base_name.endswith(".parquet"):
            with filesystem.open_input_file(info.path) as stream:
                held = pq.read_metadata(stream).num_rows
            kept += held
            paths += [f"{scheme}{info.path}"] if held else []
    return sorted(paths), kept, kept if kept < judged.limit else frame.count()


def _without_erased(exceptions: DataFrame, concealed: Concealed) -> DataFrame:
    """Leave out entities of erased subjects, whom an earlier run may have published: the gate counts them, no list names them.

    An exception is a subject's if it says so under the name of the target's column. Of one whose text is no JSON object nobody
    can say whose it is, so that it is left out as well.
    """
    for column, erased in concealed.by_column.items():
        listed = exceptions.sparkSession.createDataFrame([(one,) for one in sorted(erased)], "_erased string")
        for part in ("key", "slice", "expected", "found"):
            subject = F.sha2(F.get_json_object(part, f"$['{column}']"), 256)
            exceptions = exceptions.join(F.broadcast(listed), subject == F.col("_erased"), "left_anti")
            exceptions = exceptions.where(F.col(part).isNull() | _is_one_object(part))
    return exceptions


def _is_one_object(part: str) -> Column:
    """Whether a text is one JSON object of which each name stands once: Spark's own functions look at its beginning alone."""
    names = F.json_object_keys(part)
    once = F.size(F.array_distinct(names)) == F.size(names)
    return F.coalesce(once & F.rtrim(part).endswith("}") & ~F.col(part).rlike(r"\}\s*\{"), F.lit(False))


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an exception as a verdict shows it: the parts of its slice and key by name, or their text if it is no object."""
    texts: dict[str, Any] = {}
    for part in ("slice", "key"):
        try:
            values = json.loads(row[part] or "{}", parse_constant=str)
            canonical_json(values).encode()  # a number may be too large to be one, and an escape half a character
        except (ValueError, RecursionError):
            values = row[part]
        texts |= values if isinstance(values, dict) else {part: row[part]}
    return {**texts, "expected": row["expected"], "found": row["found"], "what": row["what"]}


def query(run_id: str, gate: str, judgement: str) -> str:
    """Return the SQL that lists the exceptions of a gate, for any engine that reads the catalog."""
    return (  # run id, gate and hash have no character that could end a text
        f"SELECT slice, key, expected, found, what FROM {EXCEPTIONS_TABLE} "  # noqa: S608
        f"WHERE run_id = '{run_id}' AND gate = '{gate}' AND judgement = '{judgement}' ORDER BY slice, key"
    )


def rows(platform: Platform, run_id: str, judgements: Mapping[str, str], limit: int) -> list[dict[str, Any]]:
    """Return at most `limit` exceptions of gates of a run, in order; `judgements` has the one that counts, by gate."""
    found: list[dict[str, Any]] = []
    for gate, judgement in judgements.items():
        condition = And(
            EqualTo(term="run_id", value=run_id),
            And(EqualTo(term="gate", value=gate), EqualTo(term="judgement", value=judgement)),
        )
        table = platform.lakehouse.table(EXCEPTIONS_TABLE)
        scan = table.scan(row_filter=condition, selected_fields=("gate", "level", *EXCEPTION_COLUMNS))
        order = [(column, "ascending") for column in EXCEPTION_COLUMNS]
        with readable_rows(table):
            kept = scan.to_arrow()
        found += kept.sort_by(order).slice(0, max(0, limit - len(found))).to_pylist()
    return found
