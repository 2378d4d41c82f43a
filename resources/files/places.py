"""Where evidence lies: a local folder, or a prefix of a bucket; and how either is looked into.

Put here what a reader may ask of both: names, what is below, whether something is there. A `Path` is a local place, an
`ObjectPlace` looks like one as far as readers need it: an object has no mode, no link and no folder, only a key. How a file's
bytes are had is `kept_files`'; what S3 answers, `s3_objects`'.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from manifests.errors import EnvironmentRefused, Problem
from resources.files.s3_objects import SCHEME, Bucket

_MOST_OF_A_PREFIX = 400
"""Letters: a key has 1,024 bytes at most, and names of runs and files follow."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True)
class ObjectPlace:
    """A key of a bucket: an object's, or what the keys of a folder's objects begin with."""

    bucket: Bucket = field(compare=False, repr=False)
    uri: str

    @cached_property
    def key(self) -> str:
        """What the bucket calls it."""
        return self.uri.removeprefix(SCHEME).partition("/")[2]

    @property
    def name(self) -> str:
        """The last part of its key."""
        return self.uri.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """How its name ends, from the last dot on."""
        return os.path.splitext(self.name)[1]  # noqa: PTH122 - a key is no path

    @property
    def stem(self) -> str:
        """Its name without the suffix."""
        return self.name.removesuffix(self.suffix) if self.suffix else self.name

    @property
    def parent(self) -> ObjectPlace:
        """The folder that it would be in."""
        return ObjectPlace(self.bucket, self.uri.rpartition("/")[0])

    def __truediv__(self, name: str) -> ObjectPlace:
        return ObjectPlace(self.bucket, f"{self.uri}/{name}")

    def with_name(self, name: str) -> ObjectPlace:
        """Return the place beside it that has another name."""
        return self.parent / name

    def relative_to(self, folder: Place) -> str:
        """Return its key below a folder's."""
        return self.uri.removeprefix(f"{folder}/")

    def __str__(self) -> str:
        return self.uri

    def __lt__(self, other: ObjectPlace) -> bool:
        return self.uri < other.uri

    def is_file(self) -> bool:
        """Whether there is an object of that key."""
        return self.bucket.begins(self.key) == self.key

    def is_dir(self) -> bool:
        """Whether there are objects below it."""
        return bool(self.bucket.begins(f"{self.key}/"))

    def exists(self) -> bool:
        """Whether there is an object of that key, or below it."""
        return self.is_file() or self.is_dir()

    def iterdir(self) -> Iterator[ObjectPlace]:
        """Yield what is directly below it."""
        files, folders = self.bucket.children(f"{self.key}/")
        return (self / name for name in sorted({*files, *folders}))

    def glob(self, pattern: str) -> Iterator[ObjectPlace]:
        """Yield what is directly below it and has such a name."""
        return (one for one in self.iterdir() if fnmatchcase(one.name, pattern))

    def below(self) -> list[str]:
        """Return the keys of all objects below it, each from there on."""
        return [one.key.removeprefix(f"{self.key}/") for one in self.bucket.listed(f"{self.key}/")]


Place: TypeAlias = Path | ObjectPlace
"""Where a file of the evidence lies, or a folder of it."""


def object_place(uri: str, properties: Mapping[str, str]) -> ObjectPlace:
    """Return the place that a URI of S3 names, in a store that properties of a catalog open."""
    place = uri.rstrip("/")
    return ObjectPlace(Bucket(place.removeprefix(SCHEME).partition("/")[0], properties), place)


def is_place_of_s3(uri: str) -> bool:
    """Whether a text names a prefix of a bucket, so that everybody reads it alike."""
    bucket, _, prefix = uri.removeprefix(SCHEME).rstrip("/").partition("/")
    parts = prefix.split("/")
    is_plain = bool(prefix) and prefix.isprintable() and not {"", ".", ".."} & set(parts)
    is_plain = is_plain and len(prefix) <= _MOST_OF_A_PREFIX and all(part == part.strip() for part in parts)
    return (
        uri.startswith(SCHEME)
        and _BUCKET.fullmatch(bucket) is not None
        and is_plain
        and not {"?", "#", "%", "\\"} & set(prefix)
    )


def local(place: Place) -> Path:
    """Return a place that is a local one, for what is done to the file system itself.

    Raises:
        EnvironmentRefused: if it is in a bucket.
    """
    if isinstance(place, Path):
        return place
    raise EnvironmentRefused(
        Problem(
            f"{place} is in a bucket",
            "this is done to local files alone",
            "set `evidence` to no place, for this installation",
        )
    )


def is_there(place: Place) -> bool:
    """Whether something is there, a link that leads nowhere included."""
    return place.is_file() if isinstance(place, ObjectPlace) else os.path.lexists(place)


def names_in(folder: Place) -> list[str]:
    """Return the names of what is in a folder, sorted; of objects, what follows of their keys.

    Raises:
        OSError: if it is not there, or cannot be looked into.
    """
    if not isinstance(folder, ObjectPlace):
        return sorted(os.listdir(folder))  # noqa: PTH208 - names
    found = sorted(folder.below())
    if not found:
        raise FileNotFoundError(2, "there is nothing", str(folder))
    return found


def found_in(folder: Place, pattern: str) -> list[Place]:
    """Return what is in a folder under such names, by name."""
    return sorted(folder.glob(pattern), key=str)
