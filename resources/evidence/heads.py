"""Heads of the chain that are kept elsewhere: what a forger of everything on this machine cannot change.

Put here the places a head can be kept in, how it is written there and asked for again. A place is a folder (on another disk,
a share), a git repository (`git:/path`; each head is a tag, pushed to `origin` where there is one), or an address that takes
JSON by POST (`https://...`; what it has taken is answered by nobody, so it cannot be asked). Writing never fails what it
comes after: a place that is down is reported, and the next head that it takes covers what it has missed.
"""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from manifests.canonical import canonical_json
from resources.evidence.chain import Link, ReadChain
from resources.files.head_places import GIT, is_address, shown
from resources.files.kept_files import create

_SECONDS = 10
_FILE = re.compile(r"head-(\d{8,})-([0-9a-f]{64})\.json")
_TAG = re.compile(r"backfill-head/(\d{8,})-([0-9a-f]{64})")
_AS_DATA = ("-c", "protocol.ext.allow=never", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
"""A repository that keeps heads is asked for tags: no program that its configuration names is run for that."""
_ERRORS = (OSError, http.client.HTTPException, subprocess.SubprocessError, ValueError)


class KeptHead(NamedTuple):
    """A head that is kept: the number of its link, and the link's hash."""

    number: int
    hash: str


@dataclass(frozen=True)
class Kept:
    """What a place has answered.

    Attributes:
        place: the place, without what is secret of an address.
        heads: each head that is kept there, in order; of one number there are several where more than one chain was kept.
        trouble: why it could not be written or asked, or has nothing to say; empty if it was.
        is_down: whether it could not be written, or could not be asked though it is a place that answers.
    """

    place: str
    heads: tuple[KeptHead, ...] = ()
    trouble: str = ""
    is_down: bool = False

    @property
    def newest(self) -> int | None:
        """The highest number of a link whose head is kept there; None if there is none."""
        return max((head.number for head in self.heads), default=None)


@dataclass(frozen=True)
class NotExtended:
    """A kept head that the chain does not go on from."""

    where: str
    what: str
    expected: str
    found: str


def keep_head(places: Iterable[str], last: Link | None) -> list[Kept]:
    """Write the chain's head, its last link, to each place; say of each what came of it."""
    if last is None:
        return []
    number, head = last.number, last.hash
    body = canonical_json({"number": number, "head": head, "at": datetime.now(UTC)}) + "\n"
    done = []
    for place in places:
        try:
            _write(place, number, head, body.encode())
        except _ERRORS as error:
            done.append(Kept(shown(place), (), _why(error), is_down=True))
        else:
            done.append(Kept(shown(place), (KeptHead(number, head),)))
    return done


def kept_heads(places: Iterable[str]) -> list[Kept]:
    """Ask each place for the heads that are kept there."""
    found = []
    for place in places:
        try:
            found.append(_ask(place))
        except _ERRORS as error:
            found.append(Kept(shown(place), (), f"cannot be asked: {_why(error)}", is_down=True))
    return found


def not_extended(kept: Sequence[Kept], chain: ReadChain) -> list[NotExtended]:
    """Return each kept head that is no link of the chain: it was cut off, or another chain was put in its place.

    Two heads of one number in a place are named as such, too: one chain has one link of each number.
    """
    links = {link.number: link.hash for link in chain.links}
    wrong = []
    for place in kept:
        where = f"head kept in {place.place}"
        for number, of_number in groupby(place.heads, key=attrgetter("number")):
            hashes, link = [head.hash for head in of_number], links.get(number, "nothing")
            if len(hashes) > 1:
                what = f"{len(hashes)} heads of link {number} are kept: at least one is of another chain"
                wrong.append(NotExtended(where, what, "one head", " and ".join(hashes)))
            what = f"link {number} of the chain is not the one it was"
            wrong += [NotExtended(where, what, head, link) for head in hashes if head != link]
    return wrong


def _write(place: str, number: int, head: str, body: bytes) -> None:
    if is_address(place):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(place, data=body, headers=headers, method="POST")  # noqa: S310 - checked above
        with urllib.request.urlopen(request, timeout=_SECONDS):  # noqa: S310
            return
    elif place.startswith(GIT):
        repository, tag = place.removeprefix(GIT), f"backfill-head/{number:08}-{head}"
        if not _git(repository, "tag", "--list", tag):
            blob = _git(repository, "hash-object", "-w", "--stdin", told=body)
            _git(repository, "tag", tag, blob)
        if "origin" in _git(repository, "remote").split():
            _git(repository, "push", "--quiet", "origin", f"refs/tags/{tag}")
    else:
        folder = Path(place)
        if not folder.is_dir():  # a disk that is not mounted must not be taken for an empty one
            raise FileNotFoundError(f"there is no folder {folder}")
        create(folder / f"head-{number:08}-{head}.json", body)


def _ask(place: str) -> Kept:
    if is_address(place):
        return Kept(shown(place), (), "cannot be asked: it only takes heads; compare what it has with `--head`")
    if place.startswith(GIT):
        repository = place.removeprefix(GIT)
        names = _git(repository, "tag", "--list", "backfill-head/*").split()
        if "origin" in _git(repository, "remote").split():
            names += [name.rpartition("refs/tags/")[2] for name in _git(repository, "ls-remote", "origin").split()]
        pattern = _TAG
    else:
        names, pattern = os.listdir(place), _FILE  # noqa: PTH208 - names, many
    heads = tuple(sorted({KeptHead(int(found[1]), found[2]) for name in names if (found := pattern.fullmatch(name))}))
    return Kept(shown(place), heads, "" if heads else "has no head: none was written, or somebody has removed them")


def _git(repository: str, *command: str, told: bytes = b"") -> str:
    done = subprocess.run(
        ["git", *_AS_DATA, "-C", repository, *command],
        input=told,
        capture_output=True,
        timeout=_SECONDS,
        check=True,
    )
    return done.stdout.decode().strip()


def _why(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return error.stderr.decode(errors="replace").strip() or str(error)
    return str(error)


def told(kept: Sequence[Kept]) -> list[dict[str, Any]]:
    """Return what places have answered as JSON-ready data."""
    return [{"place": one.place, "newest": one.newest, "trouble": one.trouble or None} for one in kept]
