"""Whether what a load writes into has the columns that are declared.

Put here what is asked of the tables before a file is read. What is wrong with the file is `input_files`'s to say.
"""

from __future__ import annotations

from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.installation import Platform
from manifests.errors import EnvironmentRefused
from resources.lakehouse.declared_tables import column_problems


def require_declared_columns(platform: Platform, table: InputTable) -> None:
    """Refuse a load into a table that does not have the columns of its model, or whose quarantine has not.

    Raises:
        EnvironmentRefused: naming each column that differs, as `backfill init` does.
        InputRefused: if one of the two is not there.
    """
    written = {one.name: one for one in (table, platform.products.quarantine_of(table))}
    problems = [
        problem
        for one in written.values()
        for problem in column_problems(platform.lakehouse.table(one.name), iceberg_schema(one.model))
    ]
    if problems:
        raise EnvironmentRefused(problems)
