"""What comes with one receipt of a feed: files found in folders and archives, each with what its path and its list say of it.

Put here how everything that came becomes files of the feed, or is named as none. What such a file says is
`ingestion.judged_files`'.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from backfill_assets.declarations.feeds import DeliveryIndex, FileFeed, TimeFromPath, TimeOfFile
from backfill_assets.extraction.archives import DamagedArchiveError, is_archive, members
from backfill_assets.extraction.delivery_lists import DeliveryList, content_hash, read_list
from backfill_assets.extraction.landed_files import Landed, file_at, files_below, plain_path
from manifests.errors import InputRefused, Problem

_LISTS = 256 << 20
"""Bytes of the largest delivery index."""


@dataclass
class Arrived:
    """A file, or what is in the place of one.

    Attributes:
        path: as the feed's pattern finds it; of what does not fit the pattern, as it came.
        size: bytes, as far as it is known; `content_hash` their SHA-256, empty where they were not read.
        modified: when it was changed last, UTC.
        wrong: why it is no file of the feed; empty if it may be one.
        groups: the pattern's groups.
        business_date: what it is about; `published_at` when its producer published it; None until that is known.
        is_withdrawn: there is no file: the list says that its producer took it back.
        place: of its bytes in the spool.
        times: how often it came with one receipt.
    """

    path: str
    size: int | None = None
    content_hash: str = ""
    modified: datetime | None = None
    wrong: str = ""
    groups: dict[str, str] = field(default_factory=dict)
    business_date: date | None = None
    published_at: datetime | None = None
    is_withdrawn: bool = False
    place: tuple[int, int] = (0, 0)
    times: int = 1


class Spool:
    """The bytes of what arrived, in one file that nobody else sees, until they are kept or left."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed with the receipt

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def put(self, content: bytes) -> tuple[int, int]:
        """Take bytes; return their place."""
        start = self._file.seek(0, 2)
        self._file.write(content)
        return start, len(content)

    def get(self, place: tuple[int, int]) -> bytes:
        """Return the bytes at a place."""
        self._file.seek(place[0])
        return self._file.read(place[1])


@dataclass(frozen=True)
class Arrivals:
    """Everything that came with one receipt.

    Attributes:
        files: of the feed, or named as none of it, in the order in which they came.
        list: the list that came with them; None where the feed has none.
        list_content: its bytes.
        skipped: how much came that is none of the feed's.
        not_delivered: how many files the list has that did not come.
        whole: what was read whole and is kept by its bytes, archives and lists among it: by place, its state when it was read.
        left: what lies in a folder and is not kept, or not all of it: by place, the path that it came by.
    """

    files: Sequence[Arrived]
    list: DeliveryList | None = None
    list_content: bytes = b""
    skipped: int = 0
    not_delivered: int = 0
    whole: Mapping[Path, tuple[int, ...]] = field(default_factory=dict)
    left: Mapping[Path, str] = field(default_factory=dict)


def arrivals(
    feed: FileFeed, sources: Sequence[Path], spool: Spool, seen: Callable[[int], None], *, settled_seconds: float = 0.0
) -> Arrivals:
    """Look at everything that came, reading each file once; `seen` is told how many there are so far.

    Files of folders that were changed within `settled_seconds` are left alone.

    Raises:
        InputRefused: if a source is not there, or cannot be listed, or the feed's delivery index is not among them, cannot be used,
            or there are two.
    """
    found: list[Arrived] = []
    lists: dict[str, tuple[str, bytes]] = {}
    whole: dict[Path, tuple[int, ...]] = {}
    left: dict[Path, str] = {}
    skipped = 0
    for landed in _landed(feed, sources, settled_seconds):
        begun, skipped_before = len(found), skipped
        if is_archive(landed.path) and landed.lies_at is not None and not landed.wrong:
            try:
                for member in members(landed.lies_at, feed.limits):
                    skipped += _take(feed, member, spool, found)
                    seen(len(found))
            except DamagedArchiveError as error:  # it brings all or nothing
                skipped = skipped_before
                found[begun:] = [_arrived(feed, replace(landed, wrong=str(error)), spool)]
        elif _is_list(feed, landed.path) and landed.content is not None:
            lists[hashlib.sha256(landed.content).hexdigest()] = (PurePosixPath(landed.path).name, landed.content)
        else:
            skipped += _take(feed, landed, spool, found)
        seen(len(found))
        if landed.lies_at is not None:
            is_kept = landed.state and skipped == skipped_before and all(one.content_hash for one in found[begun:])
            whole |= {landed.lies_at: landed.state} if is_kept else {}
            left |= {} if is_kept else {landed.lies_at: landed.path}
    if not isinstance(feed.time, DeliveryIndex) or not (found or lists):
        return Arrivals(found, skipped=skipped, whole=whole, left=left)
    name, content = _one_list(feed, feed.time, list(lists.values()))
    listed = read_list(name, content, feed, feed.time)
    not_delivered = _held_against_list(found, listed, feed.time, spool)
    return Arrivals(found, listed, content, skipped, not_delivered, whole, left)


def _take(feed: FileFeed, landed: Landed, spool: Spool, found: list[Arrived]) -> int:
    """Take something that came; return how many of it are none of the feed's, 1 or 0."""
    if not landed.wrong and feed.skips and re.fullmatch(feed.skips, landed.path):
        return 1
    found.append(_arrived(feed, landed, spool))
    return 0


def _arrived(feed: FileFeed, landed: Landed, spool: Spool) -> Arrived:
    one = Arrived(landed.path, landed.size, modified=landed.modified, wrong=landed.wrong)
    if landed.content is not None:
        one.content_hash, one.place = hashlib.sha256(landed.content).hexdigest(), spool.put(landed.content)
    if landed.wrong:
        return one
    ours = re.fullmatch(rf"(?:.*/)?(?P<_of_feed>{feed.path})", landed.path)
    if ours is None:
        one.wrong = f"its path does not fit the feed's: {feed.path}"
        return one
    one.path = ours["_of_feed"]
    one.groups = {name: text for name, text in ours.groupdict().items() if name != "_of_feed" and text is not None}
    try:
        one.business_date = datetime.strptime(ours["date"], feed.date_format).date()  # noqa: DTZ007 - a date
    except (ValueError, TypeError) as error:
        one.wrong = f"its path has no business date: {error}"
    if isinstance(feed.time, TimeOfFile):
        one.published_at = landed.modified
        if one.published_at is None:
            one.wrong = one.wrong or "it has no time of last change, by which it counts as published"
    elif isinstance(feed.time, TimeFromPath):
        try:
            at = datetime.strptime(one.groups.get(feed.time.group, ""), feed.time.format)  # noqa: DTZ007 - see below
            one.published_at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        except (ValueError, OverflowError) as error:
            one.wrong = one.wrong or f"its path has no time of publication: {error}"
    return one


def _one_list(feed: FileFeed, index: DeliveryIndex, lists: Sequence[tuple[str, bytes]]) -> tuple[str, bytes]:
    if len(lists) == 1:
        return lists[0]
    came = f"{len(lists)} came: {', '.join(name for name, _ in lists)}" if lists else "none came"
    raise InputRefused(
        Problem(
            f"the feed {feed.name} has a delivery index, {index.file}, and {came}",
            "it says when each file was published; one comes with each receipt",
            "give it with the files: another path of the same command, or a file in the landing folder",
        )
    )


def _held_against_list(found: list[Arrived], listed: DeliveryList, index: DeliveryIndex, spool: Spool) -> int:
    """Say of each file what the list says of it, and add those that it says were taken back; return how many did not come."""
    came = set()
    for one in found:
        if one.wrong:
            continue
        said = listed.files.get(one.path)
        if said is None or said.withdrawn is not None:
            what = "does not list it" if said is None else "says that its producer took it back"
            one.wrong = f"the delivery index {listed.name} {what}"
            continue
        came.add(one.path)
        one.published_at = said.published_at
        if said.content_hash and said.content_hash != content_hash(spool.get(one.place), index.algorithm):
            one.wrong = f"its content is not that which the delivery index {listed.name} lists: it was cut or changed on the way"
    for path, said in listed.files.items():
        if said.withdrawn is not None:
            withdrawn = Arrived(path, business_date=said.withdrawn, published_at=said.published_at, is_withdrawn=True)
            found.append(withdrawn)
    return sum(said.withdrawn is None and path not in came for path, said in listed.files.items())


def _landed(feed: FileFeed, sources: Sequence[Path], settled_seconds: float) -> Iterator[Landed]:
    """Yield what lies at each source: below a folder, in an archive, or the file itself."""

    def most(path: str) -> int | None:
        if is_archive(path):
            return None
        return _LISTS if _is_list(feed, path) else feed.limits.bytes

    for source in sources:
        if source.is_dir() and not source.is_symlink():
            each = files_below(source, most, settled_seconds=settled_seconds)
        elif source.exists() or source.is_symlink():
            path = source.name if source.is_absolute() or ".." in source.parts else source.as_posix()
            each = iter((file_at(source, path, most(path)),))
        else:
            rule = "what is received is a file, an archive or a folder"
            raise InputRefused(Problem(f"{plain_path(str(source))} does not exist", rule, "name one that is there"))
        yield from each


def has_list(feed: FileFeed, paths: Iterable[str]) -> bool:
    """Whether the delivery index is among paths, of a feed that has one; true for any other."""
    return not isinstance(feed.time, DeliveryIndex) or any(_is_list(feed, path) for path in paths)


def _is_list(feed: FileFeed, path: str) -> bool:
    return isinstance(feed.time, DeliveryIndex) and fnmatchcase(PurePosixPath(path).name, feed.time.file)
