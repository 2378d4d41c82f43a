"""The chain: one link for each event of any run's evidence, each with the hash of the link before it.

Put here how links are appended and read back. A link is a file of its own, complete or not there, never rewritten. Its
number is its name, and a name is given away once: of several processes that append at the same time each gets a number,
whatever the ledger's database is, and whichever of them is killed or wakes up late. Nothing here knows what a link is
about. The folder must be on a file system with hard links.

Whoever can write into the folder can cut links off its end; who has kept the chain's head elsewhere notices.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from manifests.canonical import canonical_json, sha256_of

START = "0" * 64
"""What the first link names as the one before it."""
_NAME = re.compile(r"(\d{8,})\.json")
_PARTIAL = re.compile(r"\.partial-[0-9a-f]{32}")


@dataclass(frozen=True)
class Link:
    """One link: its number, the hash of its file, and what it says."""

    number: int
    hash: str
    content: Mapping[str, Any]


@dataclass(frozen=True)
class Damage:
    """A link, or another file of the chain's folder, that is not as it was written."""

    name: str
    what: str
    expected: str
    found: str


@dataclass(frozen=True)
class ReadChain:
    """The chain as it was read: its links in order, with what is wrong with them."""

    links: tuple[Link, ...]
    damages: tuple[Damage, ...]

    @property
    def head(self) -> str:
        """The hash of the last link."""
        return self.links[-1].hash if self.links else START


class Chain:
    """The links below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known = 0
        """A number that was given away, as far as this process knows: where the look for the last one begins."""

    def length(self) -> int:
        """Return the number of the last link."""
        number = self._known
        if number == 0 or not self._file(number).exists():
            number = max((int(name[1]) for name in map(_NAME.fullmatch, self._names()) if name), default=0)
        while self._file(number + 1).exists():
            number += 1
        self._known = number
        return number

    def last(self) -> Link | None:
        """Return the last link, as it says of itself."""
        return next(self.links(since=self.length() - 1), None) if self.length() else None

    def contents(self, *, since: int = 0) -> Iterator[Mapping[str, Any]]:
        """Yield what the links after a number say, as long as one follows the other."""
        number = since
        while (file := self._file(number := number + 1)).exists():
            yield _content(file.read_bytes())

    def links(self, *, since: int = 0) -> Iterator[Link]:
        """Yield the links after a number, as long as one follows the other; each only as it says of itself."""
        number = since
        while (file := self._file(number := number + 1)).exists():
            raw = file.read_bytes()
            yield Link(number, hashlib.sha256(raw).hexdigest(), _content(raw))

    def append(self, content: Mapping[str, Any], *, since: int, same: Callable[[Mapping[str, Any]], bool]) -> Link:
        """Append a link, or return the one that says the same already (`same`), if it came after number `since`.

        Whatever other processes append meanwhile: a number is taken only after every link before it was looked at.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        looked_at = min(since, self.length())
        previous = self._hash(looked_at)
        while True:
            while (file := self._file(looked_at + 1)).exists():
                raw = file.read_bytes()
                looked_at, previous = looked_at + 1, hashlib.sha256(raw).hexdigest()
                if same(found := _content(raw)):
                    return Link(looked_at, previous, found)
            said = {"number": looked_at + 1, "previous": previous, **content}
            said |= {"hash": sha256_of(said)}
            raw = (canonical_json(said) + "\n").encode()
            if create(file, raw):
                return Link(looked_at + 1, hashlib.sha256(raw).hexdigest(), said)

    def read(self) -> ReadChain:
        """Read every link and hold each against itself and the one before it."""
        links: list[Link] = []
        damages: list[Damage] = []
        numbers = {}
        for name in self._names():
            found = _NAME.fullmatch(name)
            if found and name == self._file(int(found[1])).name:
                numbers[int(found[1])] = name
            elif not _PARTIAL.fullmatch(name):
                damages.append(Damage(name, "is no link of the chain", "links only", name))
        previous, follows = START, 1
        for number, name in sorted(numbers.items()):
            raw = (self.folder / name).read_bytes()
            content, own = _content(raw), hashlib.sha256(raw).hexdigest()
            if number != follows:
                damages.append(
                    Damage(self._file(follows).name, "is missing", f"links {follows} to {number - 1}", "nothing")
                )
            elif content.get("previous") != previous:
                told = str(content.get("previous"))
                damages.append(Damage(name, "names another link before it", previous, told))
            if wrong := _wrong_in(content, number, raw):
                damages.append(Damage(name, wrong, str(content.get("hash")), own))
            links.append(Link(number, own, content))
            previous, follows = own, number + 1
        return ReadChain(tuple(links), tuple(damages))

    def _names(self) -> list[str]:
        return sorted(os.listdir(self.folder)) if self.folder.is_dir() else []  # noqa: PTH208 - names, many

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:08}.json"

    def _hash(self, number: int) -> str:
        return START if number == 0 else hashlib.sha256(self._file(number).read_bytes()).hexdigest()


def _content(raw: bytes) -> Mapping[str, Any]:
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _wrong_in(content: Mapping[str, Any], number: int, raw: bytes) -> str:
    """Say what is wrong with a link by itself; empty if nothing is."""
    said = {name: value for name, value in content.items() if name != "hash"}
    try:
        whole = (canonical_json(content) + "\n").encode() == raw and sha256_of(said) == content.get("hash")
    except ValueError:
        whole = False  # it holds what no JSON of ours does
    if not whole:
        return "was changed: what it says does not have the hash that it gives"
    return "" if content.get("number") == number else "has the number of another link"


def create(file: Path, raw: bytes) -> bool:
    """Make a file of that content, all of it or none, if none of that name exists; return whether it was made."""
    partial = file.with_name(f".partial-{uuid4().hex}")
    try:
        with partial.open("xb") as stream:
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        partial.chmod(0o444)
        try:
            os.link(partial, file)
        except FileExistsError:
            return False
        sync_folder(file.parent)
        return True
    finally:
        partial.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
