"""Whether what Python would execute of a package is what its sources say: cached bytecode, and files that go before them.

Python takes a cached file's word for which source it is of: the source's time and size, which anybody can write into it.
Put here what looks inside. Which packages count, and what becomes of a difference, is `resources.code.identity`'s.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys
from bisect import bisect_left
from collections.abc import Iterable
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES
from pathlib import Path

from resources.code.held_before import HeldBefore

_HEADER = 16
_HASHED, _CHECKED = 0b01, 0b10
_FOLDER = "__pycache__"
_seen: dict[tuple[str, str], tuple[int, ...]] = {}
"""Cached files that were looked into, with their source: what the file system said of both then."""


def altered(folders: Iterable[Path], *, loaded_only: bool = False) -> list[str]:
    """Return the files below folders, or of single modules, that Python would execute though the sources say something else.

    A cached file that Python would not use, because it is of another version or of an older source, is none of them. What
    has not changed since it was looked into is not looked into again. With `loaded_only` no more is looked into than what
    this process has imported so far, and what an earlier process has held against its source is not compiled again: each
    takes a fraction of the time.
    """
    before = HeldBefore.kept() if loaded_only else None
    loaded = {file for one in list(sys.modules.values()) if (file := getattr(one, "__file__", None)) is not None}
    found = []
    listed: dict[str, tuple[str, list[str]]] = {}
    for folder in folders:
        sources, unasked = ([str(folder)], []) if folder.is_file() else _below(folder)
        for source in sources:
            if loaded_only and source not in loaded:
                continue
            found += [cached for cached in _cached_of(source, listed) if not _says_the_same(source, cached, before)]
        found += unasked
    if before is not None:
        before.keep()
    return found


def _below(folder: Path) -> tuple[list[str], list[str]]:
    """Return the sources below a folder, and the files there that Python takes for modules without asking a source.

    As texts: a launch looks at each of them, and to make a path of one takes longer than to look.
    """
    before = tuple(EXTENSION_SUFFIXES) + tuple(BYTECODE_SUFFIXES)
    sources, unasked = [], []
    for inside, _, names in os.walk(folder, onerror=_unlisted):
        sources += [f"{inside}/{name}" for name in names if name.endswith(".py")]
        if not inside.endswith(f"/{_FOLDER}"):
            unasked += [f"{inside}/{name}" for name in names if name.endswith(before)]
    return sorted(sources), sorted(unasked)


def _unlisted(error: OSError) -> None:
    """Pass over a folder that is gone, or that Python could not list either."""
    if not isinstance(error, FileNotFoundError | PermissionError):
        raise error


def _cached_of(source: str, listed: dict[str, tuple[str, list[str]]]) -> list[str]:
    """Return the cached files of a source that this Python may use, at whatever level of optimisation.

    `listed` has for each folder of sources that was looked into so far the one of their cached files, and the names there, in order.
    """
    inside, _, own = source.rpartition("/")
    if inside not in listed:
        folder = importlib.util.cache_from_source(source, optimization="").rpartition("/")[0]
        listed[inside] = folder, sorted(os.listdir(folder)) if Path(folder).is_dir() else []  # noqa: PTH208 - names are enough
    folder, names = listed[inside]
    begins = f"{own.removesuffix('.py')}.{sys.implementation.cache_tag}"
    found = []
    for at in range(bisect_left(names, begins), len(names)):
        if not names[at].startswith(begins):
            break
        if _is_pythons(names[at][len(begins) :]):
            found.append(f"{folder}/{names[at]}")
    return found


def _is_pythons(rest: str) -> bool:
    """Whether a cached file whose name goes on so after Python's version is one that Python reads: pytest's are not."""
    level = rest.removesuffix(".pyc").removeprefix(".opt-")
    return rest == ".pyc" or (rest == f".opt-{level}.pyc" and level.isalnum())


def _says_the_same(source: str, cached: str, before: HeldBefore | None) -> bool:
    """Whether what Python would execute of a cached file is what its source says.

    What was `before` is not noted as looked into: this process may go on to a launch, which looks into everything itself.
    """
    try:
        now = _state(source) + _state(cached)
        if _seen.get((source, cached)) == now:
            return True
        text, raw = Path(source).read_bytes(), Path(cached).read_bytes()
    except FileNotFoundError:
        return True  # one of them is gone meanwhile: there is nothing to use
    if _is_used(Path(source), text, raw):
        name = cached.rpartition("/")[2]
        level = name.rpartition(".opt-")[2].partition(".")[0] if ".opt-" in name else "0"
        if before is not None and before.has(text, raw, level):
            return True
        if not _is_of(text, raw, level):
            return False
        if before is not None:
            before.add(text, raw, level)
    _seen[source, cached] = now
    return True


def _is_used(source: Path, text: bytes, raw: bytes) -> bool:
    """Whether Python would take a cached file for one of its source, by what its header says."""
    if len(raw) < _HEADER or raw[:4] != importlib.util.MAGIC_NUMBER:
        return False
    flags = int.from_bytes(raw[4:8], "little")
    if flags & _HASHED:
        return not flags & _CHECKED or raw[8:_HEADER] == importlib.util.source_hash(text)
    facts = source.stat()
    said = (int(facts.st_mtime) & 0xFFFFFFFF, facts.st_size & 0xFFFFFFFF)
    return said == (int.from_bytes(raw[8:12], "little"), int.from_bytes(raw[12:_HEADER], "little"))


def _is_of(text: bytes, raw: bytes, level: str) -> bool:
    try:
        code = marshal.loads(raw[_HEADER:])  # noqa: S302 - Python would load it; nothing of it is executed here
        return bool(code == compile(text, code.co_filename, "exec", dont_inherit=True, optimize=int(level)))
    except (ValueError, EOFError, TypeError, AttributeError, SyntaxError):
        return False


def _state(file: str) -> tuple[int, ...]:
    facts = os.stat(file)  # noqa: PTH116 - the times as the file system has them
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
