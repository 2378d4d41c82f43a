"""What a table's metadata says, where somebody may have damaged or edited it: one refusal for whatever reading it may raise.

Put here how catalog entry, metadata file, manifest lists and manifests are read so that nothing in them can make a command
fall over. PyIceberg says of bytes that are not Iceberg's what its parsers happen to say: from `ValueError` to `SystemError`.
What is asked of the metadata is for those who ask (`live_files`, `history`, `loads`); past every cache it is read in
`snapshots`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from pyiceberg.exceptions import NoSuchTableError, RESTError, ValidationError
from pyiceberg.manifest import read_manifest_list
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from manifests.errors import EnvironmentRefused, Problem, Refused
from resources.files.local_files import NotAFileError

_SHOWN = 300


class UnreadableMetadata(EnvironmentRefused):
    """The metadata of a table is missing, damaged, or says what cannot be so: nothing can be told from it."""


@contextmanager
def readable_table(name: str) -> Iterator[None]:
    """Refuse a table whose metadata file, or what the catalog says of it, cannot be read. What the catalog raises passes.

    Raises:
        UnreadableMetadata: naming the table.
    """
    try:
        yield
    except (FileNotFoundError, NotAFileError) as error:
        raise _unreadable(f"the metadata of {name}", error, _WHOLE_TABLE, _THE_TABLE) from error
    except (NoSuchTableError, RESTError, SQLAlchemyError, OSError, Refused) as error:
        if isinstance(error, OperationalError) and "decode to UTF-8" in str(error.orig):  # of this one entry
            raise _unreadable(f"what the catalog says of {name}", error, _WHOLE_TABLE, _THE_TABLE) from error
        raise
    except Exception as error:
        raise _unreadable(f"the metadata of {name}", error, _WHOLE_TABLE, _THE_TABLE) from error


def require_single_ids(table: Table) -> None:
    """Refuse metadata in which an id of a snapshot or of a schema stands twice: two readers may take two of them.

    Raises:
        ValueError: naming the ids.
    """
    for kind, ids in (
        ("snapshot", [one.snapshot_id for one in table.snapshots()]),
        ("schema", [one.schema_id for one in table.metadata.schemas]),
    ):
        if double := sorted({one for one in ids if ids.count(one) > 1}) if len(set(ids)) < len(ids) else []:
            raise ValueError(f"the id of a {kind} stands twice: {', '.join(map(str, double))}")


@contextmanager
def readable_metadata(table: Table, snapshot: Snapshot, file: str | None = None) -> Iterator[None]:
    """Refuse what is done with a snapshot whose manifest list, or a manifest, cannot be read or says what cannot be so.

    `file` is the one that is read; None: the list, and any of the manifests that it names.

    Raises:
        UnreadableMetadata: naming the table, the snapshot and the file.
    """
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        file = file or _damaged_file(table, snapshot, error)
        what = f"the metadata of snapshot {snapshot.snapshot_id} of {_name(table)}"
        fix = f"restore {file or 'the metadata folder of the table'} from a backup"
        raise _unreadable(what, error, _WHOLE_SNAPSHOT, fix, file) from error


def _damaged_file(table: Table, snapshot: Snapshot, error: Exception) -> str | None:
    """Return the first file of a snapshot's metadata that cannot be read; None if what was raised says which, or none is."""
    if isinstance(error, OSError):
        return None
    file = snapshot.manifest_list
    try:
        for manifest in read_manifest_list(table.io.new_input(file)):
            file = manifest.manifest_path
            manifest.fetch_manifest_entry(table.io)
    except Exception:  # noqa: BLE001 - whatever it is: the file that raises it is what is asked for
        return file
    return None


@contextmanager
def readable_bounds(table: Table) -> Iterator[None]:
    """Refuse what is done with the bounds, partitions and counts of files that the manifests of a table say.

    Raises:
        UnreadableMetadata: naming the table, if one of them cannot be so.
    """
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        what = f"what the manifests of {_name(table)} say of its files"
        raise _unreadable(what, error, _WHOLE_SNAPSHOT, "restore the table's metadata folder from a backup") from error


@contextmanager
def committable(name: str) -> Iterator[None]:
    """Refuse a commit that PyIceberg cannot make of the metadata that the table has. What comes of others' commits passes.

    Raises:
        UnreadableMetadata: naming the table.
    """
    try:
        yield
    except (ValueError, NotImplementedError, LookupError, ValidationError) as error:
        raise UnreadableMetadata(
            Problem(
                f"{name} cannot be committed to: {_said(error)}",
                "a commit goes on from the table's metadata: its format, its partition spec, its place and its summaries",
                "find out who has changed it, and restore the table's metadata file from a backup; then run the same command "
                "again: what has landed is found in the table, and not done twice",
            )
        ) from error


@contextmanager
def readable_place(table: Table, uri: str) -> Iterator[None]:
    """Refuse a place that the metadata of a table names, if no file system has such a one.

    Raises:
        UnreadableMetadata: naming it.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError) as error:
        raise _edited(f"{_name(table)} lies at {uri}, which cannot be opened: {_said(error)}", _PLACE) from error


_PLACE = "a table lies where the catalog's file systems can open it"


@contextmanager
def readable_rows(table: Table) -> Iterator[None]:
    """Refuse what is done with rows of a table if its metadata, or a data file, cannot be read.

    Raises:
        EnvironmentRefused: naming the table.
    """
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        raise EnvironmentRefused(
            Problem(
                f"a file of {_name(table)} cannot be read: {_said(error)}",
                "rows are read from every file that may hold them",
                "`backfill verify --all --data` names what is damaged; restore the file from its backup",
            )
        ) from error


_WHOLE_TABLE = "the catalog names a metadata file that is there and whole"
_THE_TABLE = "restore that file, or what the catalog says of the table, from a backup"
_WHOLE_SNAPSHOT = "every manifest of every snapshot is readable; otherwise files in use could be taken for unused ones"


def _unreadable(what: str, error: Exception, rule: str, fix: str, file: str | None = None) -> UnreadableMetadata:
    return UnreadableMetadata(
        Problem(
            f"{what} cannot be read: {_said(error)}" + (f" ({file})" if file and file not in str(error) else ""),
            rule,
            "run the same command again when the storage can be read; if it stays so, "
            f"{fix}; `backfill verify` says what else is damaged",
        )
    )


def _said(error: Exception) -> str:
    text = "".join(one if one.isprintable() else repr(one)[1:-1] for one in " ".join(str(error).split()))
    return f"{type(error).__name__}: {text[:_SHOWN]}"


def count_said(table: Table, snapshot: Snapshot, key: str) -> int | None:
    """Return a number that the summary of a snapshot says; None if it says nothing.

    Raises:
        UnreadableMetadata: if that is no number.
    """
    said = snapshot.summary.additional_properties.get(key) if snapshot.summary else None
    try:
        return None if said is None else int(said)
    except (ValueError, TypeError) as error:
        what = f"the summary of snapshot {snapshot.snapshot_id} of {_name(table)} says {key}: {said!r}"
        raise _edited(what, "it says a number there") from error


def require_countable(table: Table, snapshot: Snapshot | None) -> None:
    """Refuse to commit on top of a snapshot whose totals are no numbers: those of the next one are made from them.

    Raises:
        UnreadableMetadata: naming the total.
    """
    if snapshot is not None and snapshot.summary is not None:
        for key in snapshot.summary.additional_properties:
            if key.startswith("total-"):
                count_said(table, snapshot, key)


def committed_at(table: Table, snapshot: Snapshot) -> datetime:
    """Return when a snapshot was committed, as it says.

    Raises:
        UnreadableMetadata: if there is no such instant.
    """
    return _instant(
        f"snapshot {snapshot.snapshot_id} of {_name(table)} says that it was committed", snapshot.timestamp_ms
    )


def shown_since(table: Table, snapshot: Snapshot) -> datetime:
    """Return when main began to show a snapshot: later than its commit, where it waited on a branch.

    Main's log says it; of a snapshot that main came to show with another one, its commit does.

    Raises:
        UnreadableMetadata: if there is no such instant.
    """
    committed = committed_at(table, snapshot)
    shown = [one.timestamp_ms for one in table.metadata.snapshot_log if one.snapshot_id == snapshot.snapshot_id]
    if not shown:
        return committed
    return _instant(f"{_name(table)} says that snapshot {snapshot.snapshot_id} was shown", max(shown))


def updated_at(table: Table) -> datetime:
    """Return when a table's metadata was last changed, as it says.

    Raises:
        UnreadableMetadata: if there is no such instant.
    """
    return _instant(f"the metadata of {_name(table)} says that it was updated", table.metadata.last_updated_ms)


def _instant(what: str, ms: int) -> datetime:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise _edited(f"{what} at {ms} ms", "an instant is one of a calendar") from error


def column_of(table: Table, name: str) -> NestedField:
    """Return a column of a table's current schema.

    Raises:
        UnreadableMetadata: if it has none of the name.
    """
    try:
        return table.schema().find_field(name)
    except ValueError as error:
        what, rule = (
            f"{_name(table)} has no column {name}",
            "a table has the columns by which its declaration has it read",
        )
        raise UnreadableMetadata(Problem(what, rule, _COLUMNS)) from error


def wrong_type(table: Table, column: NestedField, wanted: str) -> UnreadableMetadata:
    """Return the refusal of a column that is not of the type by which it is read."""
    what, rule = f"column {column.name} of {_name(table)} is {column.field_type}", f"by its declaration it is {wanted}"
    return UnreadableMetadata(Problem(what, rule, _COLUMNS))


_COLUMNS = "declare a column that it has; if somebody has changed the table, restore its metadata file from a backup"


def _edited(what: str, rule: str) -> UnreadableMetadata:
    fix = "find out who has written it; restore the table's metadata file from a backup; `backfill verify` says what else was changed"
    return UnreadableMetadata(Problem(what, rule, fix))


def _name(table: Table) -> str:
    return ".".join(table.name())
