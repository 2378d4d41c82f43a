"""Has PyArrow imported without pandas, and PyIceberg without what checks its models: each takes a fifth of a second, and few need it.

PyArrow imports pandas, where that is installed, to see whether the first value that it is given is pandas'. Here it is told that
there is none, until somebody imports pandas: nothing can be pandas' before. PyIceberg's models are several hundred, and what
checks one and writes it out is built when the first of them is made. Put here nothing but this; it imports nothing that takes time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from types import ModuleType

from backfill_assets.declarations.light_imports import hidden, put_around

_ARROW, _PANDAS, _MODELS = "pyarrow", "pandas", "pyiceberg.typedef"


@contextmanager
def _without_pandas(arrow: ModuleType) -> Iterator[None]:
    """Have PyArrow look for pandas while there is none, unless it is there already."""
    yield
    if _PANDAS in sys.modules:
        return
    with hidden(_PANDAS):
        arrow.array([])
    # not before: while it looks, it holds a lock that what tells it would wait for
    put_around(_PANDAS, partial(_told, arrow))
    if _PANDAS in sys.modules:  # another thread has begun to import it meanwhile
        import_module(_PANDAS)
        _tell(arrow)


@contextmanager
def _told(arrow: ModuleType, _: ModuleType) -> Iterator[None]:
    yield
    _tell(arrow)


def _tell(arrow: ModuleType) -> None:
    """Have PyArrow know that there is pandas: without, it would take a series for a list, and NaN for a value."""
    with suppress(ImportError):  # this pandas is too old for PyArrow, which goes on without
        arrow.array([]).to_pandas()


@contextmanager
def _built_late(typedef: ModuleType) -> Iterator[None]:
    """Have what checks PyIceberg's models built when it is used: every model inherits it from one of these two."""
    yield
    for model in (typedef.IcebergBaseModel, typedef.IcebergRootModel):
        model.model_config["defer_build"] = True


def install() -> None:
    """Have both imported so from now on; safe to repeat."""
    put_around(_ARROW, _without_pandas)
    put_around(_MODELS, _built_late)
