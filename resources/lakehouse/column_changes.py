"""What would make the columns of a table those of its model: which changes touch metadata alone, and which break readers.

Put here how a table's schema and a declared one are compared field by field, and how the changes between them become one
commit. A change is applied if Iceberg has it in its metadata: files stay as they are, and old snapshots keep their schema.
Whether a plan may go on with a table that differs is `declared_tables`'; which tables are asked, and when, is for the rooms
above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
)

from manifests.errors import Problem
from resources.lakehouse.catalog_errors import known_outcome
from resources.lakehouse.fences import not_fenced
from resources.lakehouse.pyiceberg_private import FencedTransaction
from resources.lakehouse.type_words import type_words


class Change(StrEnum):
    """What becomes of a column."""

    ADD = "add"
    RENAME = "rename"
    WIDEN = "widen"
    MAKE_OPTIONAL = "make optional"
    DOCUMENT = "document"
    REORDER = "reorder"
    REMOVE = "remove"
    NARROW = "narrow"
    RETYPE = "retype"
    MAKE_REQUIRED = "make required"
    REUSE = "reuse a name"


@dataclass(frozen=True)
class DeclaredColumns:
    """What a model says of its columns.

    Attributes:
        schema: their names, types and descriptions, in order; its field ids say nothing of the table's.
        may_be_null: the columns that the model lets be NULL.
        former_names: of a column the names that it had before, newest first.
        found_by: the columns that rows are found by: their key, their day, and whatever else plans and filters ask for by name.
    """

    schema: Schema
    may_be_null: AbstractSet[str] = frozenset()
    former_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    found_by: AbstractSet[str] = frozenset()


@dataclass(frozen=True)
class ColumnChange:
    """One difference between a table and its model.

    Attributes:
        change: what becomes of the column.
        column: its name: the declared one, where there is one.
        was: what the table has, in words; `becomes` is what the model declares.
        readers: what becomes of those who read the table.
        problem: why it is refused, and the way out; None if it is applied.
    """

    change: Change
    column: str
    was: str
    becomes: str
    readers: str
    problem: Problem | None = None


_RULE = "what breaks a reader of a table is never done to it"
_SCALES = "a decimal keeps the digits after its point"


def column_changes(table: Table, declared: DeclaredColumns) -> list[ColumnChange]:
    """Return what differs between a table and its model, column by column in the model's order; what goes comes last."""
    found: list[ColumnChange] = []
    fields = {one.name: one for one in table.schema().fields}
    sources = _sources(fields, declared)
    for wanted in declared.schema.fields:
        own = sources.get(wanted.name)
        found += _added(table, wanted, declared) if own is None else _of_one(table, own, wanted, declared)
    kept = {own.name for own in sources.values()}
    found += [_removed(table, own, declared, fields) for name, own in fields.items() if name not in kept]
    order = [sources[one.name].name for one in declared.schema.fields if one.name in sources]
    if order != [name for name in fields if name in kept] and not _refused(found):
        becomes = [one.name for one in declared.schema.fields]
        readers = "columns are found by their field ids; who takes all of them gets the new order"
        found.append(ColumnChange(Change.REORDER, "", ", ".join(fields), ", ".join(becomes), readers))
    return found


def apply_changes(table: Table, declared: DeclaredColumns, token: int | None = None) -> int:
    """Make the columns of a table those that are declared, as one commit of its metadata; return the id of its schema.

    Nothing of what `column_changes` finds may be refused. No file of rows is written or rewritten.

    Raises:
        CommitFailedException: if somebody has changed the table's schema meanwhile, or the lease of `token` is fenced;
            nothing has changed then.
        EnvironmentRefused: if the catalog does not say what came of it.
    """
    fields = {one.name: one for one in table.schema().fields}
    sources = _sources(fields, declared)
    transaction = FencedTransaction(table)
    transaction.own_requirements = not_fenced(token)
    with known_outcome(".".join(table.name())), transaction, transaction.update_schema() as update:
        for wanted in declared.schema.fields:
            if (own := sources.get(wanted.name)) is None:
                update.add_column((wanted.name,), wanted.field_type, wanted.doc)
            else:
                _changed(update, own, wanted)
        _in_order(update, [own.name if (own := sources.get(one.name)) else one.name for one in declared.schema.fields])
    return table.schema().schema_id


def _changed(update: UpdateSchema, own: NestedField, wanted: NestedField) -> None:
    """Put into an update what becomes of one column that the table has."""
    if _words(own.field_type) != _words(wanted.field_type):
        path: tuple[str, ...] = (own.name,)
        was, becomes = own.field_type, wanted.field_type
        while isinstance(was, ListType) and isinstance(becomes, ListType):
            path, was, becomes = (*path, "element"), was.element_type, becomes.element_type
        update.update_column(path, field_type=becomes)
    if (own.doc or "") != (wanted.doc or ""):
        update.update_column((own.name,), doc=wanted.doc or "")
    if own.required:
        update.make_column_optional((own.name,))
    if own.name != wanted.name:
        update.rename_column((own.name,), wanted.name)


def _in_order(update: UpdateSchema, names: Sequence[str]) -> None:
    """Put columns into an order, by the names that they have in the table before the update."""
    for before, name in zip(("", *names), names, strict=False):
        if before:
            update.move_after((name,), (before,))
        else:
            update.move_first((name,))


def _sources(fields: Mapping[str, NestedField], declared: DeclaredColumns) -> dict[str, NestedField]:
    """Return by declared name the column of the table that it is: of that name, or of a former one that nobody else declares."""
    names = {one.name for one in declared.schema.fields}
    found = {}
    for name in names:
        of_old = (one for one in declared.former_names.get(name, ()) if one in fields and one not in names)
        known = name if name in fields else next(of_old, None)
        if known is not None:
            found[name] = fields[known]
    return found


def _refused(changes: Sequence[ColumnChange]) -> bool:
    return any(one.problem is not None for one in changes)


def _words(kind: IcebergType) -> str:
    """Return a type in words, with the members of structures that it requires: what is written here requires none."""
    required = _required(kind)
    return f"{type_words(kind)} (required: {', '.join(required)})" if required else type_words(kind)


def _required(kind: IcebergType, within: str = "") -> list[str]:
    """Return the members of structures that a type requires, by name."""
    if isinstance(kind, ListType):
        inner = [("element", False, kind.element_type)]
    elif isinstance(kind, MapType):
        inner = [("key", False, kind.key_type), ("value", False, kind.value_type)]
    elif isinstance(kind, StructType):
        inner = [(one.name, one.required, one.field_type) for one in kind.fields]
    else:
        return []
    found = [f"{within}{name}" for name, is_required, _ in inner if is_required]
    return found + [one for name, _, own in inner for one in _required(own, f"{within}{name}.")]


# --- one column -------------------------------------------------------------------------------------------------------


def _of_one(table: Table, own: NestedField, wanted: NestedField, declared: DeclaredColumns) -> list[ColumnChange]:
    """Return what differs between a column of a table and its declaration."""
    found, was, becomes = [], _words(own.field_type), _words(wanted.field_type)
    if own.name != wanted.name:
        found.append(_of_name(table, own, wanted, declared))
    if was != becomes:
        found.append(_of_type(table, own, wanted))
    if own.required:
        if own.field_id in table.schema().identifier_field_ids:
            found.append(_of_identity(table, own, wanted))
        else:
            readers = "as before: rows that are there have values"
            found.append(ColumnChange(Change.MAKE_OPTIONAL, wanted.name, "required", "optional", readers))
    if (own.doc or "") != (wanted.doc or ""):
        found.append(
            ColumnChange(Change.DOCUMENT, wanted.name, own.doc or "nothing", wanted.doc or "nothing", "as before")
        )
    return found


def _of_name(table: Table, own: NestedField, wanted: NestedField, declared: DeclaredColumns) -> ColumnChange:
    if (taken := _taken(table, wanted.name, own.field_id)) is not None:
        return ColumnChange(Change.REUSE, wanted.name, own.name, wanted.name, "would break", taken)
    readers = f"who asks for {own.name} by name asks for {wanted.name} from now on; snapshots of before keep {own.name}"
    problem = None
    if wanted.name in declared.found_by:
        readers = "would break"
        problem = Problem(
            f"{_name(table)} has the column {own.name}, and its model calls it {wanted.name}",
            "a column that rows are found by (their key, their day or instant, their entity, their version) keeps its name: plans "
            "on record ask for days and keys by it, in snapshots of before as well",
            f"call it {own.name} in the model; {_new_version(table)}",
        )
    return ColumnChange(Change.RENAME, wanted.name, own.name, wanted.name, readers, problem)


def _of_type(table: Table, own: NestedField, wanted: NestedField) -> ColumnChange:
    was, becomes = _words(own.field_type), _words(wanted.field_type)
    if widens(own.field_type, wanted.field_type):
        readers = f"values stay what they are; readers get them as {becomes}"
        return ColumnChange(Change.WIDEN, wanted.name, was, becomes, readers)
    narrower = widens(wanted.field_type, own.field_type)
    change = Change.NARROW if narrower else Change.RETYPE
    rule = (
        f"{_RULE}: a type only widens (int to long, float to double, a decimal to more digits before its point), and values "
        f"that {becomes} cannot hold may be in it"
        if narrower
        else f"{_RULE}: what is in the files is {was}, and none of it reads as {becomes}"
    )
    if isinstance(own.field_type, DecimalType) and isinstance(wanted.field_type, DecimalType) and not narrower:
        rule = f"{_RULE}: {_SCALES}, or each value in the files would read as another"
    what = f"{_name(table)} has the column {own.name} as {was}, and its model declares {becomes}"
    fix = f"correct the model, or declare the values under a name of their own (a new column); {_new_version(table)}"
    return ColumnChange(change, wanted.name, was, becomes, "would break", Problem(what, rule, fix))


def _of_identity(table: Table, own: NestedField, wanted: NestedField) -> ColumnChange:
    problem = Problem(
        f"{_name(table)} requires its column {own.name}, which is an identifier field of the table",
        "what is written here is optional in Iceberg, and an identifier field cannot be",
        "take it out of the identifier fields (PyIceberg: `update_schema().set_identifier_fields(...)`), if no other writer "
        f"needs it; {_new_version(table)}",
    )
    return ColumnChange(Change.MAKE_OPTIONAL, wanted.name, "required", "optional", "as before", problem)


def _added(table: Table, wanted: NestedField, declared: DeclaredColumns) -> list[ColumnChange]:
    becomes, readers = _words(wanted.field_type), "NULL in every row that is there, until that is written again"
    if (taken := _taken(table, wanted.name, None)) is not None:
        return [ColumnChange(Change.REUSE, wanted.name, "nothing", becomes, "would break", taken)]
    if wanted.name not in declared.may_be_null and table.current_snapshot() is not None:
        problem = Problem(
            f"{_name(table)} has no column {wanted.name}, and its model lets no row be without one",
            "rows that are there have no value in a column that is added",
            f"declare it with `pa.Field(nullable=True)`, and fill it by a run; {_new_version(table)}",
        )
        return [ColumnChange(Change.MAKE_REQUIRED, wanted.name, "nothing", becomes, "would break", problem)]
    return [ColumnChange(Change.ADD, wanted.name, "nothing", becomes, readers)]


def _removed(
    table: Table, own: NestedField, declared: DeclaredColumns, fields: Mapping[str, NestedField]
) -> ColumnChange:
    was = _words(own.field_type)
    new = [one for one in declared.schema.fields if one.name not in fields]
    likely = next(
        (one.name for one in new if _words(one.field_type) == was or widens(own.field_type, one.field_type)), ""
    )
    fix = "declare it in the model again"
    if likely:
        fix += f'; or, if it is called {likely} now, say so: `{likely}: ... = pa.Field(metadata={{"renamed_from": "{own.name}"}})`'
    what = f"{_name(table)} has a column {own.name} ({was}), which its model does not declare"
    problem = Problem(what, f"{_RULE}: a column is not removed", f"{fix}; {_new_version(table)}")
    return ColumnChange(Change.REMOVE, own.name, was, "nothing", "would break", problem)


def _taken(table: Table, name: str, field_id: int | None) -> Problem | None:
    """Say whose a name is that a column (None: a new one) is to have; None if it is free, or was that column's own."""
    for one in (one for schema in table.metadata.schemas for one in schema.fields):
        if one.name == name and one.field_id != field_id:
            return Problem(
                f"{_name(table)} has had another column {name} (field {one.field_id})",
                "a name that a column has had stays its own: files of then, and readers who go by names, know it by that",
                "give the column another name; if it is the old one that comes back, declare the name that it has now in "
                "`renamed_from`",
            )
    if any(part.name == name for spec in table.specs().values() for part in spec.fields):
        return Problem(
            f"{_name(table)} has a partition field {name}",
            "a column and a partition field have different names",
            "give the column another name",
        )
    return None


def widens(old: IcebergType, new: IcebergType) -> bool:
    """Whether Iceberg reads values of one type as another one without a change of any value; a type is no wider than itself."""
    if isinstance(old, ListType) and isinstance(new, ListType):
        return widens(old.element_type, new.element_type)
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return old.scale == new.scale and new.precision > old.precision
    pairs: tuple[tuple[Any, Any], ...] = ((IntegerType, LongType), (FloatType, DoubleType))
    return any(isinstance(old, narrow) and isinstance(new, wide) for narrow, wide in pairs)


def _new_version(table: Table) -> str:
    """Say what is done where readers would break: a table beside this one."""
    name = _name(table)
    return (
        f"or make a new version of the table: declare it under a name of its own ({name}_v2), fill that by a run of kind "
        f"MIGRATION, and have readers move there; {name} stays as it is"
    )


def _name(table: Table) -> str:
    return ".".join(table.name())
