"""Spark sessions of this process with the platform's settings, the folder that they may write to, and its time zone.

Put here what a trial needs of the process and of the machine, and leaves as it was.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path

from resources.settings import load_settings
from resources.spark.sessions import ModeSpark


@cache
def _home() -> Path:
    """Return a folder of this process that sessions may write to, gone when it ends."""
    home = Path(tempfile.mkdtemp(prefix="backfill-testing-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / "warehouse").mkdir()
    return home


@cache
def spark_sessions() -> ModeSpark:
    """Return the sessions of this process: the platform's settings, and no path that they may reach but `_home`."""
    home = _home()
    catalog = {"type": "sql", "uri": f"sqlite:///{home}/none.db", "warehouse": f"file://{home}/warehouse"}
    return ModeSpark(load_settings(home=home, catalog=catalog))


_numbers = count()


def new_folder() -> Path:
    """Return a path below the warehouse that nothing has been written to."""
    return _home() / "warehouse" / f"part-{next(_numbers)}"


@contextmanager
def process_in(zone: str) -> Iterator[None]:
    """Have this process be in another time zone for a while."""
    before = os.environ.get("TZ", "UTC")
    os.environ["TZ"] = zone
    time.tzset()
    try:
        yield
    finally:
        os.environ["TZ"] = before
        time.tzset()
