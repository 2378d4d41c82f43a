"""A table as it was found, held against its declaration.

Put here what must agree before the project writes into a table that somebody may have made otherwise: columns, partitions,
and the properties that a commit or a plan relies on. Every other property is the table's own affair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyiceberg.io.pyarrow import MetricModeTypes, compute_statistics_plan
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import VoidTransform

from manifests.errors import EnvironmentRefused, Problem
from resources.lakehouse.partitions import partition_problems
from resources.lakehouse.type_words import type_words

ISOLATION = "write.delete.isolation-level"
SERIALIZABLE = "serializable"
"""Iceberg's default. With `snapshot` a row that somebody appends during a replacement would stay beside it."""
_METRICS = "write.metadata.metrics."
_BY_INIT = "`backfill init --preview` shows what it would change, `backfill init` changes it"
_NO_IDENTIFIER = (
    "it is an identifier field of the table, which cannot be optional, and `backfill init` leaves it: take it out of the identifier "
    "fields (PyIceberg: `update_schema().set_identifier_fields(...)`), if no other writer needs it, then `backfill init`"
)
_NO_BOUNDS = frozenset({MetricModeTypes.NONE, MetricModeTypes.COUNTS})


def require_as_declared(
    table: Table, schema: Schema, spec: PartitionSpec, properties: Mapping[str, str], *, any_partitions: bool = False
) -> None:
    """Refuse a table that is not as it is declared, with everything that differs.

    With `any_partitions` the table has the partitions it has, and keeps the bounds of the columns that `spec` names, too.

    Raises:
        EnvironmentRefused: for other columns, other partitions, or properties that undo what is relied on.
    """
    problems = [*column_problems(table, schema)]
    problems += partition_problems(table) if any_partitions else _partition_problems(table, schema, spec)
    if properties.get(ISOLATION, SERIALIZABLE) == SERIALIZABLE:
        problems += isolation_problems(table)
    if not problems:
        sources = [schema.find_field(field.source_id).name for field in spec.fields]
        problems += metrics_problems(table, sources)
    if problems:
        raise EnvironmentRefused(problems)


def isolation_problems(table: Table) -> list[Problem]:
    """Say if a replacement would not notice what others append to its scope meanwhile."""
    found = table.properties.get(ISOLATION, SERIALIZABLE)
    if found == SERIALIZABLE:
        return []
    return [
        Problem(
            f"{_name(table)} has {ISOLATION}={found}",
            "a replacement is refused where somebody has written into its scope meanwhile, which takes serializable",
            f"set the table's property {ISOLATION} to {SERIALIZABLE}",
        )
    ]


def column_problems(table: Table, schema: Schema, *, besides: bool = True) -> list[Problem]:
    """Say which columns of a table are not the declared ones, each with the way out; `besides`: also those that it has more."""
    declared = {field.name: type_words(field.field_type) for field in schema.fields}
    found = {field.name: type_words(field.field_type) for field in table.schema().fields}
    rule, problems = "a table's columns come from its pandera model", []
    names = declared.keys() | (found.keys() if besides else set())
    for name in sorted(name for name in names if declared.get(name) != found.get(name)):
        if name not in found:
            what = f"{_name(table)} has no column {name}, which its model declares as {declared[name]}"
            way_out = f"{_BY_INIT}: older rows read as NULL (or, of a column that was renamed, as what they have); or correct the model"
        elif name not in declared:
            what = f"{_name(table)} has a column {name} ({found[name]}), which its model does not declare"
            way_out = (
                "declare it in the model: what is written here would leave it NULL; if it has another name there by now, "
                f"declare that with `renamed_from`, and {_BY_INIT}"
            )
        else:
            what = f"{_name(table)} has the column {name} as {found[name]}, and its model declares {declared[name]}"
            way_out = f"{_BY_INIT}, where the declared type is a wider one; else correct the model: another type is another column"
        problems.append(Problem(what, rule, way_out))
    if besides:  # whoever only reads the table finds values in them
        problems += _required_problems(table, schema)
    return problems


def _required_problems(table: Table, schema: Schema) -> list[Problem]:
    declared = {field.name for field in schema.fields}
    return [
        Problem(
            f"{_name(table)} requires its column {field.name}",
            "what is written here is optional in Iceberg, whatever the model says: its gate sees to values",
            _NO_IDENTIFIER if field.field_id in table.schema().identifier_field_ids else _BY_INIT,
        )
        for field in table.schema().fields
        if field.required and field.name in declared
    ]


def _partition_problems(table: Table, schema: Schema, spec: PartitionSpec) -> list[Problem]:
    declared, found = _in_words(schema, spec), _in_words(table.schema(), table.spec())
    if declared == found:
        return []
    return [
        Problem(
            f"{_name(table)} is partitioned by {', '.join(found) or 'nothing'}, not by {', '.join(declared) or 'nothing'}",
            "a table is partitioned by its declared chunks: a publication replaces whole files",
            "change its partitions (PyIceberg: `table.update_spec()`) and rewrite the files that were written before; or "
            "correct the declaration",
        )
    ]


def metrics_problems(table: Table, sources: Iterable[str]) -> list[Problem]:
    """Say of which columns of its partitions, and which of `sources`, a table keeps no bounds."""
    schema = table.schema()
    kept = compute_statistics_plan(schema, table.properties)
    parts = [field for field in table.spec().fields if not isinstance(field.transform, VoidTransform)]
    named = [*(schema.find_field(field.source_id).name for field in parts), *sources]
    problems = []
    for column in map(schema.find_field, dict.fromkeys(named)):
        if kept[column.field_id].mode.type not in _NO_BOUNDS:
            continue
        own = f"{_METRICS}column.{column.name}"
        name = own if own in table.properties else f"{_METRICS}default"
        problems.append(
            Problem(
                f"{_name(table)} has {name}={table.properties.get(name)}",
                f"files keep the bounds of {column.name}: they say which chunk and which partition a file belongs to",
                f"set the table's property {own} to full",
            )
        )
    return problems


def _in_words(schema: Schema, spec: PartitionSpec) -> list[str]:
    parts = [field for field in spec.fields if not isinstance(field.transform, VoidTransform)]
    return [f"{field.transform}({schema.find_column_name(field.source_id)})" for field in parts]


def _name(table: Table) -> str:
    return ".".join(table.name())
