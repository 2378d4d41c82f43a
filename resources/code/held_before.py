"""Which cached files were held against their sources before, by the contents of both: a plan need not compile them again.

Kept in Python's own folder of cached files, beside that of this module: whoever can write there can have Python execute
another check in place of this one, so that believing what is kept gives nothing away. A launch believes none of it.
Put here what is kept and how. What is held against what is `resources.code.bytecode`'s.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import cache_from_source
from pathlib import Path

_MOST = 10_000
"""So many files are remembered, a hundred bytes each; beyond it only those of the last look are."""
_LARGEST = 1 << 24
"""Bytes of what is kept that are read; more was not written by this module."""


@dataclass
class HeldBefore:
    """Contents of cached files that say what the contents of their sources do."""

    _kept: frozenset[str]
    _asked: set[str] = field(default_factory=set)
    _new: set[str] = field(default_factory=set)

    @classmethod
    def kept(cls) -> HeldBefore:
        """Return what earlier processes have kept: nothing where there is no such file, or it cannot be read."""
        try:
            file = _file()
            if not file.is_file() or file.stat().st_size > _LARGEST:  # a pipe would be waited for
                return cls(frozenset())
            return cls(frozenset(file.read_text("ascii").split()))
        except (OSError, ValueError):
            return cls(frozenset())

    def has(self, text: bytes, raw: bytes, level: str) -> bool:
        """Return whether a source and a cached file of these contents, at a level of optimisation, were held against each other."""
        name = _name(text, raw, level)
        self._asked.add(name)
        return name in self._kept

    def add(self, text: bytes, raw: bytes, level: str) -> None:
        """Note that a source and a cached file of these contents say the same."""
        self._new.add(_name(text, raw, level))

    def keep(self) -> None:
        """Keep what is new for other processes, unless Python is told to cache nothing, or this user may not write there."""
        if not self._new or sys.dont_write_bytecode:
            return
        names = self._kept | self._new
        if len(names) > _MOST:
            names = self._kept & self._asked | self._new
        with suppress(OSError):  # the next process compiles again: nothing but time is lost
            number, partial = tempfile.mkstemp(prefix=".held.", dir=_file().parent)
            try:
                with os.fdopen(number, "w", encoding="ascii") as opened:
                    opened.write("".join(f"{name}\n" for name in sorted(names)))
                Path(partial).chmod(0o644)  # others who plan with this code have it, too
                Path(partial).replace(_file())
            except OSError:
                Path(partial).unlink(missing_ok=True)
                raise


def _file() -> Path:
    return Path(cache_from_source(__file__, optimization="")).with_suffix(".held")


def _name(text: bytes, raw: bytes, level: str) -> str:
    """Return what the outcome of a comparison follows from, in short: both contents, the level, and which Python compiles."""
    begins = f"{sys.version}\0{level}\0{len(text)}\0".encode()
    return hashlib.sha256(begins + text + raw).hexdigest()
