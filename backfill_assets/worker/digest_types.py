"""Of which type a column of a digest is, from its words: a task and a sealed schema have no more.

Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from functools import cache

import polars as pl

from backfill_assets.declarations.schema import polars_type
from resources.lakehouse.type_words import type_of_words


@cache
def dtype_of(words: str) -> pl.DataType:
    """Return the Polars type of an Iceberg type in words.

    Raises:
        ValueError: if a digest has no such type.
    """
    return polars_type(type_of_words(words))
