"""The reference tables that the clocks that pause are computed with: those of the enforcement product, and the rules of pauses.

Put here what `backfill init` is given. How a register gets in is `backfill load bronze.case_register FILE`.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.products.enforcement import loading
from backfill_assets.products.enforcement.pausing import rules, schemas, transform
from manifests.canonical import sha256_of


def reference_tables() -> Iterable[tuple[str, pa.Table, str]]:
    """Return each shipped reference table: its name, its rows and the name of this version of it."""
    yield from loading.reference_tables()
    rows = rules.pause_rules()
    schema = iceberg_schema(schemas.PauseRules).as_arrow()
    yield transform.PAUSES, pa.Table.from_pylist(rows, schema=schema), f"pauses-{sha256_of(rows)[:12]}"
