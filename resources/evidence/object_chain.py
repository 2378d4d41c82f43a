"""The chain in a bucket: links are listed a thousand a request, and those that are needed are read together.

Put here how numbers, names and contents are had from a store, and nothing of what a link says. A link's name is given away by
the store: an object is made on the condition that there is none of its name (`s3_objects`). What this process has read of links is
kept by the ETag that the store lists at each look; `read`, by which links are verified, goes by none of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import count, takewhile
from typing import cast

from manifests.errors import EnvironmentRefused
from resources.evidence.chain import START, Chain, ReadChain
from resources.files.kept_files import MOST_OF_A_LINK, read_each, read_kept
from resources.files.places import ObjectPlace, Place
from resources.files.s3_objects import Listed

_FIRST, _MOST = 4, 64
"""How many links are read at once: few at first, since whoever asks may have what it looks for."""


class ObjectChain(Chain):
    """The links below a prefix of a bucket."""

    def __init__(self, folder: ObjectPlace) -> None:
        super().__init__(folder)
        self._prefix = folder
        self._kept: dict[int, tuple[str, bytes]] = {}
        """What this process has read of links, with their ETags."""
        self._seen: dict[int, Listed] = {}
        """The last links, as the store listed them when it was asked for the length."""
        self._taken = 0
        """The highest number that was found to be given away: the store may not list its link yet."""

    def length(self) -> int:
        """Return the number of the last link; where links are missing, of the last one before them."""
        known = self._known
        self._seen = self._listed(max(known - 1, 0))
        if known and known not in self._seen:
            known, self._seen = 0, self._listed(0)
        number = next(one for one in count(known) if one + 1 not in self._seen)
        self._known, self._beyond = number, max(self._seen, default=0)
        return number

    def _length_without_a_gap(self) -> int:
        try:
            return super()._length_without_a_gap()
        except EnvironmentRefused:
            return (
                super()._length_without_a_gap()
            )  # a listing is no moment: a link may be in it, and the one before it not yet

    def _following(self, since: int) -> Iterator[tuple[int, bytes]]:
        listed = self._listed(since)
        numbers = list(takewhile(listed.__contains__, count(since + 1)))
        size = _FIRST
        while numbers:
            part, numbers = numbers[:size], numbers[size:]
            yield from zip(part, self._contents_of(part, listed), strict=True)
            size, since = min(2 * size, _MOST), part[-1]
        for number in range(since + 1, self._taken + 1):
            try:
                raw = read_kept(self._file(number), MOST_OF_A_LINK)
            except FileNotFoundError:
                return  # somebody has removed it since: whoever appends tries its number again
            yield number, raw

    def _contents_of(self, numbers: list[int], listed: dict[int, Listed]) -> Iterator[bytes]:
        lacking = [number for number in numbers if self._kept.get(number, ("",))[0] != listed[number].etag]
        for number, (_, raw) in zip(
            lacking, read_each([self._file(one) for one in lacking], MOST_OF_A_LINK), strict=True
        ):
            if isinstance(raw, Exception):
                raise raw
            self._kept[number] = (listed[number].etag, raw)
        return (self._kept[number][1] for number in numbers)

    def _append(self, number: int, raw: bytes, still: Callable[[], object] | None) -> bool:
        file = cast("ObjectPlace", self._file(number))
        if etag := file.bucket.make(file.key, raw, still):
            self._kept[number] = (etag, raw)
        else:
            self._taken = max(self._taken, number)
        return bool(etag)

    def _raw(self, number: int) -> bytes:
        etag, raw = self._kept.get(number, ("", b""))
        return raw if number in self._seen and self._seen[number].etag == etag else super()._raw(number)

    def _make_folder(self) -> None:
        """A bucket has no folders."""

    def read_since(self, since: int) -> ReadChain:
        """Read the links after a number as `read` does, from the store and nowhere else."""
        before: str | None
        try:
            before = START if since == 0 else hashlib.sha256(super()._raw(since)).hexdigest()
        except (FileNotFoundError, EnvironmentRefused):
            before = None
        return self._read(since, before)

    def _names(self, since: int = 0) -> list[str]:
        after = cast("ObjectPlace", self._file(since)).key if since else ""
        found = self._prefix.bucket.listed(f"{self._prefix.key}/", after=after)
        return [one.key.removeprefix(f"{self._prefix.key}/") for one in found]

    def _listed(self, since: int) -> dict[int, Listed]:
        """Return the links after a number that the store has now."""
        after = cast("ObjectPlace", self._file(since)).key if since else ""
        found = list(self._prefix.bucket.listed(f"{self._prefix.key}/", after=after))
        names = {one.key.removeprefix(f"{self._prefix.key}/"): one for one in found}
        return {number: names[self._file(number).name] for number in self._numbered(names)}


def chain_in(folder: Place) -> Chain:
    """Return the chain below a folder, wherever that is."""
    return ObjectChain(folder) if isinstance(folder, ObjectPlace) else Chain(folder)
