"""The chain: one link for each event of any run's evidence, each with the hash of the link before it.

Put here how links are appended and read back. A link is a file of its own, complete or not there, never rewritten. Its
number is its name, and a name is given away once: of several processes that append at the same time each gets a number,
whatever the ledger's database is, and whichever of them is killed or wakes up late. Nothing here knows what a link is
about. A local folder must be on a file system with hard links; how links lie in a bucket is `object_chain`'s.

Whoever can write into the folder can cut links off its end; who has kept the chain's head elsewhere notices.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from manifests.canonical import canonical_json, sha256_of
from manifests.errors import EnvironmentRefused, Problem
from manifests.text import visible
from resources.files.kept_files import MOST_OF_A_LINK, create, json_of, not_a_file, read_each, read_kept
from resources.files.places import ObjectPlace, Place, is_there

START = "0" * 64
"""What the first link names as the one before it."""
_NAME = re.compile(r"([0-9]{8,})\.json")
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

    def __init__(self, folder: Place) -> None:
        self.folder = folder
        self._known = 0
        """A number that was given away, as far as this process knows: where the look for the last one begins."""
        self._beyond = 0
        """The highest number of a link when this process looked into the folder."""
        self.before_first: Callable[[], object] = _no_objection
        """Asked before the first link of all is made; raises if there is a chain elsewhere."""

    def length(self) -> int:
        """Return the number of the last link; where links are missing, of the last one before them.

        Raises:
            EnvironmentRefused: if the folder cannot be looked into.
        """
        number = self._known
        if number == 0 or not self._is_there(number):
            numbers = set(self._numbered(self._names()))
            number = next(one for one in count() if one + 1 not in numbers)
            self._beyond = max(numbers, default=0)
        while self._is_there(number + 1):
            number += 1
        self._known = number
        return number

    def last(self) -> Link | None:
        """Return the last link, as it says of itself."""
        number = self.length()
        return next(self.links(since=number - 1), None) if number else None

    def contents(self, *, since: int = 0) -> Iterator[Mapping[str, Any]]:
        """Yield what the links after a number say, as long as one follows the other.

        Raises:
            EnvironmentRefused: if something else lies in a link's place, or it cannot be read.
        """
        return (_content(raw) for _, raw in self._following(since))

    def links(self, *, since: int = 0) -> Iterator[Link]:
        """Yield the links after a number, as long as one follows the other; each only as it says of itself.

        Raises:
            EnvironmentRefused: if something else lies in a link's place, or it cannot be read.
        """
        return (Link(number, hashlib.sha256(raw).hexdigest(), _content(raw)) for number, raw in self._following(since))

    def append(
        self,
        content: Mapping[str, Any],
        *,
        since: int,
        same: Callable[[Mapping[str, Any]], bool],
        still: Callable[[], object] | None = None,
    ) -> Link:
        """Append a link, or return the one that says the same already (`same`), if it came after number `since`.

        `still` is asked last of all, and raises if the link may not be made any more.

        Whatever other processes append meanwhile: a number is taken only after every link before it was looked at.

        Raises:
            EnvironmentRefused: if something else lies in the place of the chain's folder or of a link, or links are missing
                before one that is there; or if this would be the first link of a second chain.
        """
        self._make_folder()
        looked_at = min(since, self._length_without_a_gap())
        previous = self._hash(looked_at)
        while True:
            for number, raw in self._following(looked_at):
                looked_at, previous = number, hashlib.sha256(raw).hexdigest()
                if same(found := _content(raw)):
                    return Link(looked_at, previous, found)
            if looked_at == 0:
                self.before_first()
            said = {"number": looked_at + 1, "previous": previous, **content}
            said |= {"hash": sha256_of(said)}
            raw = (canonical_json(said) + "\n").encode()
            if self._append(looked_at + 1, raw, still):
                return Link(looked_at + 1, hashlib.sha256(raw).hexdigest(), said)

    def _length_without_a_gap(self) -> int:
        """Return the number of the last link.

        Raises:
            EnvironmentRefused: if links are missing before one that was there when this process looked into the folder.
        """
        length = self.length()
        if length >= self._beyond or not self._is_there(self._beyond):
            return length
        missing = self._file(length + 1).name
        raise EnvironmentRefused(
            Problem(
                f"{missing} is missing in {self.folder}, and {self._file(self._beyond).name} is there",
                "links count up: none is appended while one may have been taken out, or put there by somebody",
                f"`backfill verify --all`; restore {missing} and those that follow from a backup; if there has never been such "
                f"a link, move {self._file(self._beyond).name} out of the folder, keep it, and find out who has put it there",
            )
        )

    def read(self) -> ReadChain:
        """Read every link and hold each against itself and the one before it; what cannot be read is a damage."""
        return self._read(0, START)

    def _read(self, since: int, before: str | None) -> ReadChain:
        """Read the links after a number, and hold the first one against a hash, if there is one to hold it against."""
        links: list[Link] = []
        damages: list[Damage] = []
        try:
            names = self._names(since)
        except EnvironmentRefused as refusal:
            what = refusal.problems[0].what
            return ReadChain((), (Damage(self.folder.name, f"cannot be read: {what}", "a folder of links", "nothing"),))
        numbers = self._numbered(names)
        known = {self._file(number).name for number in numbers}
        damages += [
            Damage(visible(name) or "/", "is no link of the chain", "links only", visible(name) or "/")
            for name in names
            if name not in known and not self._is_begun(name)
        ]
        previous = before  # None: nobody can say
        follows = since + 1
        read = read_each([self._file(number) for number in sorted(numbers)], MOST_OF_A_LINK)
        for number, (file, raw) in zip(sorted(numbers), read, strict=True):
            name = file.name
            if number != follows:
                damages.append(
                    Damage(self._file(follows).name, "is missing", f"links {follows} to {number - 1}", "nothing")
                )
            if isinstance(raw, Exception):
                damages.append(Damage(name, "cannot be read as a link", "a file of one link", self._instead(number)))
                links.append(Link(number, "", {}))
                previous, follows = None, number + 1
                continue
            content, own = _content(raw), hashlib.sha256(raw).hexdigest()
            if number == follows and previous is not None and content.get("previous") != previous:
                told = str(content.get("previous"))
                damages.append(Damage(name, "names another link before it", previous, told))
            if wrong := _wrong_in(content, number, raw):
                damages.append(Damage(name, wrong, str(content.get("hash")), own))
            links.append(Link(number, own, content))
            previous, follows = own, number + 1
        return ReadChain(tuple(links), tuple(damages))

    def _following(self, since: int) -> Iterator[tuple[int, bytes]]:
        """Yield number and content of each link after a number, as long as one follows the other."""
        number = since
        while self._is_there(number := number + 1):
            yield number, read_kept(self._file(number), MOST_OF_A_LINK)

    def _append(self, number: int, raw: bytes, still: Callable[[], object] | None) -> bool:
        """Make the file of a link; return whether it was made."""
        return create(self._file(number), raw, still)

    def _make_folder(self) -> None:
        assert not isinstance(self.folder, ObjectPlace)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise self._no_folder(error) from error

    def _names(self, since: int = 0) -> list[str]:  # noqa: ARG002 - what a folder has is had at once
        assert not isinstance(self.folder, ObjectPlace)
        try:
            return sorted(os.listdir(self.folder))  # noqa: PTH208 - names, many
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._no_folder(error) from error

    def _numbered(self, names: Iterable[str]) -> list[int]:
        """Return the numbers that names of files give, if they are written as a link's is."""
        found = ((name, _NAME.fullmatch(name)) for name in names)
        return [int(said[1]) for name, said in found if said and name == self._file(int(said[1])).name]

    def _no_folder(self, error: OSError) -> EnvironmentRefused:
        return EnvironmentRefused(
            Problem(
                f"{self.folder}: {error.strerror or error}",
                "the chain is a folder that this user can read",
                "find out what has become of it; restore the evidence from its backup",
            )
        )

    def _instead(self, number: int) -> str:
        try:
            return not_a_file(self._file(number)) or "a file that cannot be read"
        except FileNotFoundError:
            return "nothing"

    def _is_begun(self, name: str) -> bool:
        """Whether a name is that of a link which a process is writing, or has left half written; a folder or a pipe is none."""
        try:
            return _PARTIAL.fullmatch(name) is not None and not not_a_file(self.folder / name)
        except FileNotFoundError:
            return True  # it is in its place by now

    def _is_there(self, number: int) -> bool:
        return is_there(self._file(number))  # a link that leads nowhere takes a name as well

    def _file(self, number: int) -> Place:
        return self.folder / f"{number:08}.json"

    def _hash(self, number: int) -> str:
        return START if number == 0 else hashlib.sha256(self._raw(number)).hexdigest()

    def _raw(self, number: int) -> bytes:
        return read_kept(self._file(number), MOST_OF_A_LINK)


def _no_objection() -> None:
    """Nobody knows of another chain."""


def _content(raw: bytes) -> Mapping[str, Any]:
    try:
        content = json_of(raw)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _wrong_in(content: Mapping[str, Any], number: int, raw: bytes) -> str:
    """Say what is wrong with a link by itself; empty if nothing is."""
    said = {name: value for name, value in content.items() if name != "hash"}
    try:
        whole = (canonical_json(content) + "\n").encode() == raw and sha256_of(said) == content.get("hash")
    except (ValueError, RecursionError):
        whole = False  # it holds what no JSON of ours does
    if not whole:
        return "was changed: what it says does not have the hash that it gives"
    return "" if content.get("number") == number else "has the number of another link"
