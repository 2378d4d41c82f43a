"""How a product declares files that are published again and again: `FileFeed`, its readers, and what its translator is given.

Put here what a product writes down of such files. Whether it can be used is `checking.feeds`' to say; how files are found, read
and kept, and what is decided of one, `ingestion`'s. A format is declared by a `FileReader`; what a record means, only the
translator knows. Nothing here opens a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum
from typing import Any

from backfill_assets.declarations.arguments import said_at_once

MOST_OF_A_FIELD = 131_072
"""Characters of the longest field that can be allowed: Python's reader of delimited text takes no longer one."""


class NewBytes(StrEnum):
    """What becomes of a file with other bytes for a business date of which a file was accepted."""

    CORRECTION = "CORRECTION"
    REJECTED = "REJECTED"


@said_at_once
@dataclass(frozen=True)
class FileReader:
    """One form in which a feed's files come.

    A file is read by the first reader whose encoding it has, and whose columns are those of its first line, each once, in any order.

    Attributes:
        name: of the form; with `version` it is the schema version that the import ledger keeps.
        version: of the form.
        columns: what each column of the file is called in records, by its name in the first line.
        delimiter: one character between two fields.
        encodings: those that are tried in turn: `utf-8` (with or without a byte order mark), `latin-1`, `cp1252`.
        may_lack: so many of the last fields a record may lack; they are empty then. Any other number of fields is refused.
        ends_without_newline: whether the last line may be without a line end. Such a file may have been cut in its last field, and is
            rejected otherwise, unless the feed's delivery index lists a hash of its content: that says that it is whole.
    """

    name: str
    version: str
    columns: Mapping[str, str]
    delimiter: str = ","
    encodings: tuple[str, ...] = ("utf-8",)
    may_lack: int = 0
    ends_without_newline: bool = False

    @property
    def schema_version(self) -> str:
        """What the import ledger calls it."""
        return f"{self.name}/{self.version}"


@said_at_once
@dataclass(frozen=True)
class FileLimits:
    """What a file may be at most; a file that is more is rejected, and an archive that is more brings nothing.

    Attributes:
        bytes: of one file.
        rows: records of one file.
        field_chars: characters of one field, at most 131,072.
        rejected_share: of a file's records that rules may refuse, 0 to 1; with more of them the file is quarantined whole.
        archive_bytes: of all that is unpacked from one archive.
        archive_files: files and other members of one archive.
    """

    bytes: int = 64 << 20
    rows: int = 1_000_000
    field_chars: int = 32_768
    rejected_share: float = 0.0
    archive_bytes: int = 4 << 30
    archive_files: int = 1_000_000


@said_at_once
@dataclass(frozen=True)
class TimeFromPath:
    """The producer's time stands in the path: in a named group of its pattern, in a format of `datetime.strptime`, in UTC unless it says otherwise."""

    group: str
    format: str


@said_at_once
@dataclass(frozen=True)
class TimeOfFile:
    """The producer's time is the time of last change that a folder or an archive has of the file."""


@said_at_once
@dataclass(frozen=True)
class DeliveryIndex:
    """The producer's time stands in a list of the files, delivered with them. The hash of the list is their manifest id.

    A file that it does not list is rejected, and so is one whose content has another hash than it lists.

    Attributes:
        file: the name of the list, with `*` for what varies; it ends in `.csv`, `.parquet` or `.json`.
        path: how a file's path is made from a row of the list, as `str.format` writes it: `data={day}/v{version:02d}.csv`.
        time: the column of the producer's time, as text of ISO 8601 with an offset, or as an instant.
        content_hash: the column of the content's hash; "" where there is none.
        algorithm: of that hash: `sha256`, `sha1`, `md5`, or `git-blob`.
        withdrawn: a column and the value in it by which the list says that a file was taken back by its producer: no file is
            delivered then, and the translator is asked what that means for its date.
        withdrawn_date: the column of the business date of a file that was taken back, in the feed's `date_format`.
    """

    file: str
    path: str
    time: str
    content_hash: str = ""
    algorithm: str = "sha256"
    withdrawn: tuple[str, str] | None = None
    withdrawn_date: str = ""


@dataclass(frozen=True)
class FileFacts:
    """What is known of a file beside its records.

    Attributes:
        path: within the landing folder, archive or folder that it came in.
        business_date: the day that it is about: valid time.
        published_at: when its producer published it, UTC: system time.
        content_hash: SHA-256 of its bytes.
        size: bytes.
        schema_version: of the reader that fits it.
        groups: the named groups of the feed's pattern, as the path has them.
        is_withdrawn: its producer has taken the file back; there are no records then.
        misshapen: how many records have another number of fields than the first line; they are rejected, and not among the records.
    """

    path: str
    business_date: date
    published_at: datetime
    content_hash: str
    size: int
    schema_version: str
    groups: Mapping[str, str] = field(default_factory=dict)
    is_withdrawn: bool = False
    misshapen: int = 0


@dataclass(frozen=True)
class RawRecord:
    """A record of a file: its number, from 0, and its fields as text by their names in records; None for an empty one."""

    row: int
    fields: Mapping[str, str | None]


@dataclass(frozen=True)
class RejectedRecord:
    """A record that no row is made of: its number, the rule, and the offending value in words."""

    row: int
    rule: str
    detail: str = ""


@dataclass(frozen=True)
class Translated:
    """What a translator makes of one file.

    Attributes:
        rows: of the input table, each with the number of the record that it was made of: values by column, without the columns
            that the platform fills in (date, time, file id); a column that may be null may be left out.
        rejected: records that no row is made of.
        refused: why the file as a whole is none that can be believed; empty if it can. It is quarantined then.
    """

    rows: Sequence[tuple[int, Mapping[str, Any]]]
    rejected: Sequence[RejectedRecord] = ()
    refused: str = ""


Translator = Callable[[Sequence[RawRecord], FileFacts], Translated]


@said_at_once
@dataclass(frozen=True)
class FileFeed:
    """Files of one kind that a producer publishes, one or more for each business date: the command `backfill receive NAME`.

    Each version of a date replaces the whole of what an earlier one said of it; the input table keeps the rows of all of them.

    Attributes:
        name: of the feed, in small letters; also that of its folders.
        description: what a file is, in a sentence; `owners` users or teams, as Dagster writes them.
        table: the input table that its rows go to.
        path: a regular expression for the path of a file, or for its end from the beginning of a folder's name on; its group
            `date` has the business date.
        date_format: of that date, as `datetime.strptime` reads it.
        time: where the producer's time comes from.
        readers: the forms in which files come.
        translate: from the records of a file, and its facts, to rows and rejections; pure, so that the same file gives the same rows.
        translator_version: of the translator, for the import ledger.
        limits: what a file may be at most.
        new_bytes: what becomes of other bytes for a date of which a file was accepted.
        skips: a regular expression for whole paths that come in the same folders and archives and are none of the feed's; they are
            counted and not kept. "" for none.
        settled_seconds: for how many seconds a file in the landing folder must be unchanged before the sensor of the feed has it
            received: somebody may be writing it.
        date_column: the table's column of the business date (a date), filled in by the platform; so are `time_column`, of the
            producer's time (an instant), and `file_column`, of the file id (text).
    """

    name: str
    description: str
    owners: tuple[str, ...]
    table: str
    path: str
    date_format: str
    time: TimeFromPath | TimeOfFile | DeliveryIndex
    readers: tuple[FileReader, ...]
    translate: Translator
    translator_version: str
    limits: FileLimits = field(default_factory=FileLimits)
    new_bytes: NewBytes = NewBytes.CORRECTION
    skips: str = ""
    settled_seconds: int = 60
    date_column: str = "report_date"
    time_column: str = "published_at"
    file_column: str = "file_id"

    @property
    def filled_in(self) -> tuple[str, str, str]:
        """The columns of the table that the platform fills in."""
        return (self.date_column, self.time_column, self.file_column)
