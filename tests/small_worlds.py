"""Installations without Spark that tests begin with: each is made once a process, and put back for whoever asks for it.

Making one with a published history takes a second of a processor, putting its copy back a hundredth of that. Put here how
they are kept; what is in one says the module that makes it. Whole installations, with Spark, are `worlds`'.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyiceberg.manifest import clear_manifest_cache

from backfill_assets.installation import Platform
from benchmarks.small_table import closed, declared, opened
from resources.ledger.facade import Ledger

_folders: list[tempfile.TemporaryDirectory[str]] = []
"""Where the homes of this process are, once there is one."""
_made: dict[tuple[str, str], Path] = {}
"""The home of each installation that was made, by what made it and its settings."""
_ledgers: dict[Path, Ledger] = {}
"""The ledger of each home: its engine has compiled its statements, which takes a tenth of what a test does."""


def copy_of(make: Callable[[Platform], Any], **settings: Any) -> Platform:
    """Return an installation as `make` leaves it, which has to be the same each time.

    `make` is given a platform of which nothing is there yet, under what its caller has declared. Whoever asks again gets
    the same home again: what was done to it in between is gone.
    """
    key = (f"{make.__module__}.{make.__qualname__}", repr(sorted(settings.items())))
    if key not in _made:
        home = _folder() / str(len(_made)) / "home"
        platform = opened(home, **settings)
        make(platform)
        closed(platform)
        _made[key] = set_aside(home)
    return _as_it_was(_made[key], **settings)


def set_aside(home: Path) -> Path:
    """Keep a copy of an installation for `put_back`; return its home."""
    shutil.copytree(home, _copy_of(home), symlinks=True)
    return home


@contextmanager
def put_back(home: Path) -> Iterator[Platform]:
    """Yield the installation of the small table at `home`, as it was when it was set aside."""
    with declared():
        platform = _as_it_was(home)
        yield platform
        closed(platform)


def _folder() -> Path:
    """Return where pytest has its own folders: in memory, if there is room."""
    if not _folders:
        _folders.append(tempfile.TemporaryDirectory(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    return Path(_folders[0].name)


def _copy_of(home: Path) -> Path:
    return home.with_name("kept")


def _as_it_was(home: Path, **settings: Any) -> Platform:
    """Put a home back and return a platform that has looked at nothing of it yet."""
    shutil.rmtree(home)
    shutil.copytree(_copy_of(home), home, symlinks=True)
    clear_manifest_cache()  # it knows files by their names
    if home not in _ledgers:
        _ledgers[home] = opened(home, **settings).ledger
    ledger = _ledgers[home]
    ledger.engine.dispose()
    platform = opened(home, **settings)
    ledger.journal.chain = platform.evidence.chain
    return replace(platform, ledger=ledger)
