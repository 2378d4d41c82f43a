"""The columns of a run's tables: do the schemas still give readers what was published, under the names it was published with.

Put here what is compared of schemas. Uuid, specs and snapshots are `sealed_metadata`'s, values `published_rows`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from resources.lakehouse.snapshots import Facts, Seen, layout_facts, schema_facts

_WIDER = {("int", "long"), ("float", "double")}
"""Changes of a column's type by which no value changes, as Iceberg allows them."""


def check_columns(
    seen: Seen, facts: Mapping[str, Any], add: Callable[[str, str, Any, Any], None], renamed: Callable[..., bool]
) -> None:
    """Hold the columns of a table, as readers find them now, against those that were sealed.

    `renamed` says of a table's uuid, a field and names whether a change on record has given it these.
    """
    own = next((one for one in seen.table.metadata.schemas if one.schema_id == facts["schemaId"]), None)
    current, then = schema_facts(seen.table.schema()), facts["fields"]
    if own is None:
        add(f"{seen.name} schema {facts['schemaId']}", "is gone: it is never changed or removed", then, "nothing")
    elif (found := schema_facts(own)) != then and own.schema_id != seen.table.schema().schema_id:
        add(f"{seen.name} schema {facts['schemaId']}", "is not the one that was sealed", then, found)
    else:
        for where, expected, shown in _laid_out_otherwise(facts.get("layout", []), layout_facts(own)):
            add(f"{seen.name} schema {facts['schemaId']} {where}", "is not the one that was sealed", expected, shown)
    uuid = str(seen.table.metadata.table_uuid)
    _same_names_later(seen, facts, add, renamed)
    for field_id, (name, kind) in then.items():
        where = f"{seen.name} column {name} (field {field_id})"
        if field_id not in current:
            add(where, "is gone: readers do not find what was published in it", f"{name} {kind}", "nothing")
            continue
        new_name, new_kind = current[field_id]
        if new_name != name and not renamed(uuid, int(field_id), name, new_name):
            add(where, "has another name: readers find its values under that one", name, new_name)
        if new_kind != kind and not _is_wider(kind, new_kind):
            add(where, "has another type", kind, new_kind)


def _laid_out_otherwise(sealed: Sequence[Facts], now: Sequence[Facts]) -> Iterator[tuple[str, Any, Any]]:
    """Yield what a schema says of its columns otherwise than it was sealed, if it was: their order, or one of them."""
    order, found = ([one["id"] for one in columns] for columns in (sealed, now))
    if sealed and order != found:
        yield "order of columns", order, found
    by_id = {one["id"]: one for one in now}
    for one in sealed:
        if (other := by_id.get(one["id"], {})) != one:
            yield f"column {one['name']} (field {one['id']}) as it is laid out", one, other


def _same_names_later(
    seen: Seen, facts: Mapping[str, Any], add: Callable[[str, str, Any, Any], None], renamed: Callable[..., bool]
) -> None:
    """Require that what main came to show after a commit is read by schemas in which its columns have their names."""
    uuid = str(seen.table.metadata.table_uuid)
    if (number := facts.get("sequence")) is None:
        return
    used = {one.schema_id for one in seen.lineage.values() if (one.sequence_number or 0) > number}
    for schema in seen.table.metadata.schemas:
        if schema.schema_id not in used - {facts["schemaId"], seen.table.schema().schema_id}:
            continue
        found = schema_facts(schema)
        for field_id, (name, kind) in facts["fields"].items():
            new_name, new_kind = found.get(field_id, ("nothing", kind))
            other = new_name != name and not renamed(uuid, int(field_id), name, new_name)
            if other or (new_kind != kind and not _is_wider(kind, new_kind)):
                what = "is another: who asks for a snapshot that was made with it finds its values otherwise"
                where = f"{seen.name} schema {schema.schema_id} column {name} (field {field_id})"
                add(where, what, f"{name} {kind}", f"{new_name} {new_kind}")


def _is_wider(old: str, new: str) -> bool:
    if (old, new) in _WIDER:
        return True
    if not (old.startswith("decimal(") and new.startswith("decimal(")):
        return False
    (was, scale), (now, same) = (kind.removeprefix("decimal(").removesuffix(")").split(",") for kind in (old, new))
    return scale.strip() == same.strip() and int(now) >= int(was)
