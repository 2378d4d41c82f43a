"""A row that disagrees as text: its parts are JSON, the same whether Spark writes them or this process does.

Put here how a part is written, and how rows that are known already become a frame. Which rows disagree is said by those who judge
(`reconciliations`, `standard_gates`); how rows are kept is `backfill_assets.gates.exception_table`'s, how people read them
`backfill_assets.gates.exception_words`'s. Imported by Spark's Python workers with the products: keep it light.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.target import EXCEPTION_COLUMNS

INSTANTS = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
"""How `to_json` writes instants: by itself it cuts them to milliseconds, and none is found by such a key."""
_NO_NUMBER = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""What Spark's `to_json` has for each, by Python's word for it."""
_FRAME = ", ".join(f"{name} string" for name in EXCEPTION_COLUMNS)


def text_of(*columns: str) -> Column:
    """Return columns as JSON text, nulls kept; instants to the microsecond, so that a key is that of its row."""
    return F.to_json(F.struct(*columns), {"ignoreNullFields": "false", **INSTANTS}) if columns else F.lit("{}")


def exception_rows(spark: SparkSession, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Return a few rows that are known already as a frame of exceptions."""
    return spark.createDataFrame([tuple(row.get(name) for name in EXCEPTION_COLUMNS) for row in rows], _FRAME)


def json_of(values: Mapping[str, Any]) -> str:
    """Return values as the text that Spark's `to_json` has for them."""
    return json.dumps(_worded(values), separators=(",", ":"), ensure_ascii=False, default=str, allow_nan=False)


def _worded(value: Any) -> Any:
    """Return a value with what is no number as the text that Spark's `to_json` has for it."""
    if isinstance(value, Mapping):
        return {str(name): _worded(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_worded(one) for one in value]
    return _NO_NUMBER.get(str(value), value) if isinstance(value, float) else value
