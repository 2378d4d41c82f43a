"""Keys of changes: which row of its table a change is of, as canonical JSON, and which one it was before.

Put here how a key is found in a message and written, and which are none. How a message is read is `debezium`'s, where it lay
`change_files`'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backfill_assets.declarations.changelogs import UPDATED, ChangedTable, Changelog
from backfill_assets.extraction.debezium import Change, ForeignError, UnreadableError
from manifests.canonical import canonical_json
from manifests.log_ranges import lsn


def key_of(changelog: Changelog, read: Change) -> str | None:
    """Return the key of a change as canonical JSON; None where it is of no declared table, or has none.

    Raises:
        UnreadableError: if the row lacks a column of the key, or the message has another key.
        ForeignError: if a column of the key is an object or an array.
    """
    declared = changelog.changed_table(read.table)
    if declared is None or read.row is None:
        return None if read.key is None else _written(read.key)
    if missing := [name for name in declared.key if read.row.get(name) is None]:
        raise UnreadableError("a row has the columns of its key", ", ".join(missing))
    _require_single_values(read, declared, read.row)
    key = _written({name: read.row[name] for name in declared.key})
    if read.key is not None and (said := _written(read.key)) != key:
        raise UnreadableError("the message's key is that of its row", said[:80])
    return key


def earlier_key_of(changelog: Changelog, read: Change) -> str | None:
    """Return the key that the row of an update had before, as canonical JSON; None where it has not changed, or nobody says.

    Raises:
        UnreadableError: as `key_of`, and ForeignError, too.
    """
    declared = changelog.changed_table(read.table)
    if declared is None or read.op != UPDATED or read.was is None:
        return None
    old = {name: read.was.get(name) for name in declared.key}
    _require_single_values(read, declared, old)
    if None in old.values() or (key := _written(old)) == key_of(changelog, read):
        return None
    return key


def _require_single_values(read: Change, declared: ChangedTable, row: Mapping[str, Any]) -> None:
    """Refuse a key of a column that has parts: no row declares one by which keys could be told from one another.

    Raises:
        ForeignError: without the value: of which table and which LSN, and which column.
    """
    for name in declared.key:
        if isinstance(row[name], Mapping | list):
            kind = "an array" if isinstance(row[name], list) else "an object"
            raise ForeignError(
                f"{name} of the key of {declared.name} is {kind} at LSN {lsn(read.lsn)}",
                "a column of a key is a text, a number, true or false",
                "have the connector send it so (a numeric comes as a text with decimal.handling.mode=string), or declare a key of other"
                " columns",
            )


def _written(key: Mapping[str, Any]) -> str:
    """Return a key as canonical JSON."""
    try:
        return canonical_json(dict(key))
    except (ValueError, RecursionError) as error:
        raise UnreadableError("a key can be written as JSON", f"{type(error).__name__}: {error}"[:80]) from None
