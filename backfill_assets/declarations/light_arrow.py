"""Has PyArrow imported without pandas, and PyIceberg without what checks its models: each takes a fifth of a second, and few need it.

PyArrow imports pandas, where that is installed, to see whether the first value that it is given is pandas'. Here it is told that
there is none, until somebody imports pandas: nothing can be pandas' before. PyIceberg's models are several hundred, and what
checks one and writes it out is built when the first of it is made. Put here nothing but this; it imports nothing that takes time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from types import ModuleType

from backfill_assets.declarations.light_imports import hidden, put_around

_ARROW, _PANDAS, _MODELS = "pyarrow", "pandas", "pyiceberg.typedef"
_LOCKED = (2, 14)
"""The first version of pydantic that builds a model in one thread at a time: before, two made objects of another model."""


class _Told:
    """What PyArrow was told of pandas.

    One thread may import either while another imports the other, and Python's own locks are held meanwhile: neither waits here.
    """

    def __init__(self) -> None:
        self.looking = Lock()
        self.of_none = self.is_there = False


_told = _Told()


@contextmanager
def _without_pandas(arrow: ModuleType) -> Iterator[None]:
    """Have PyArrow look for pandas while there is none, unless it is there already, or about to be."""
    yield
    with _told.looking:
        if _PANDAS in sys.modules:
            return
        with hidden(_PANDAS), suppress(ImportError, AttributeError):  # begun this moment, it has no names yet
            arrow.array([])
        _told.of_none = True
    if _told.is_there:
        _tell(arrow)


@contextmanager
def _tells_arrow(_: ModuleType) -> Iterator[None]:
    """Have PyArrow know pandas once it is there; who looks for it at this moment finds it, or tells PyArrow after."""
    yield
    _told.is_there = True
    if _told.looking.acquire(blocking=False):
        try:
            if _told.of_none:
                _tell(sys.modules[_ARROW])
        finally:
            _told.looking.release()


def _tell(arrow: ModuleType) -> None:
    """Have PyArrow know that there is pandas: without, it would take a series for a list, and NaN for a value."""
    with suppress(ImportError):  # this pandas is too old for PyArrow, which goes on without
        arrow.array([]).to_pandas()


@contextmanager
def _built_late(typedef: ModuleType) -> Iterator[None]:
    """Have what checks PyIceberg's models built when it is used: every model inherits it from one of these two."""
    yield
    release = sys.modules["pydantic"].VERSION.split(".")[:2]
    if tuple(map(int, release)) < _LOCKED:
        return
    for model in (typedef.IcebergBaseModel, typedef.IcebergRootModel):
        model.model_config["defer_build"] = True


def install() -> None:
    """Have both imported so from now on; safe to repeat."""
    put_around(_PANDAS, _tells_arrow)
    put_around(_ARROW, _without_pandas)
    put_around(_MODELS, _built_late)
