"""Other surroundings for Python code: another time zone, clock, hash seed, environment and machine, no network, no other programs.

Put here what Python code could ask of the process or machine it runs in, and what it is answered instead: the driver while it
calls a transform once more (`elsewhere`, in that thread alone), and workers of Spark for as long as they live (`move_here`).
Who computes again, and what is compared, is decided above. The daemon of workers imports this before PySpark: nothing of it.

Answers are otherwise for the code of products and of libraries that nobody here knows: what Spark, Arrow and Python ask for
themselves, they are told as ever.
"""

from __future__ import annotations

import ctypes
import datetime as instants
import gc
import inspect
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType, ModuleType
from typing import Any

ZONE = "Pacific/Auckland"
"""The other time zone; the platform's processes are in UTC."""
HASH_SEED = "4711"
"""The other seed of hashes; PySpark gives its workers 0."""
SHIFT = instants.timedelta(days=400, hours=7, minutes=11)
"""How much later it is."""
REFUSED = "refused while a chunk is computed again"
"""What each refusal of a connection or another program says."""
_ELSEWHERE = "/./"
"""In the path of the executable, which stays the same file: what makes Spark begin a daemon of its own for the workers."""
_KNOWN = frozenset(
    [
        "backfill_assets",
        "resources",
        "manifests",
        "pyspark",
        "py4j",
        "pandas",
        "numpy",
        "polars",
        "pyarrow",
        "pandera",
        "pydantic",
        "pydantic_core",
        "dagster",
        "dagster_pyspark",
        "pyiceberg",
        "sqlalchemy",
        "_pytest",
        "pluggy",
    ]
)
_PRODUCTS = "backfill_assets.products."
_moved = threading.local()
_everywhere: list[ExitStack] = []
"""Not empty: the whole process has moved, and this has what would put it back."""


class RefusedElsewhereError(OSError):
    """A connection or another program that code asked for in other surroundings."""


# --- who is asked, and by whom ----------------------------------------------------------------------------------------


def python_elsewhere(executable: str) -> str | None:
    """Return another path of an executable of Python, whose workers are in other surroundings; None where it has no folder."""
    folder, name = os.path.split(executable)
    return f"{folder}{_ELSEWHERE}{name}" if folder else None


def begins_elsewhere() -> bool:
    """Return whether this process was started as `python_elsewhere` has it."""
    return bool(sys.orig_argv) and _ELSEWHERE in sys.orig_argv[0]


def _is_moved() -> bool:
    return bool(_everywhere) or getattr(_moved, "depth", 0) > 0


def _asker(frame: FrameType | None) -> str:
    """Return the module of the first caller that is not Python's own."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name != __name__ and name.partition(".")[0] not in sys.stdlib_module_names:
            return name
        frame = frame.f_back
    return ""


def _is_asked() -> bool:
    """Return whether what has moved is asked by code that is answered otherwise."""
    if not _is_moved():
        return False
    return _is_answered(_asker(inspect.currentframe()))


def _is_answered(module: str) -> bool:
    """Return whether the code of a module is answered otherwise."""
    top = module.partition(".")[0]
    return module.startswith(_PRODUCTS) or not (top in _KNOWN or top in sys.stdlib_module_names)


# --- clocks -----------------------------------------------------------------------------------------------------------


def _later_methods() -> Iterator[tuple[type, str, Any]]:
    """Yield each method of a type that says what time it is, and what takes its place."""
    seconds = SHIFT.total_seconds()
    original = dict(vars(instants.datetime))

    def now(cls: Any, tz: Any = None) -> Any:
        found = original["now"].__get__(None, cls)(tz)
        return found + SHIFT if _is_asked() else found

    def utcnow(cls: Any) -> Any:
        found = original["utcnow"].__get__(None, cls)()
        return found + SHIFT if _is_asked() else found

    def today(cls: Any) -> Any:
        return cls.fromtimestamp(_time() + (seconds if _is_asked() else 0))

    yield instants.datetime, "now", classmethod(now)
    yield instants.datetime, "utcnow", classmethod(utcnow)
    yield instants.date, "today", classmethod(today)


_time, _time_ns = time.time, time.time_ns
_localtime, _gmtime, _ctime, _strftime = time.localtime, time.gmtime, time.ctime, time.strftime


def _later_functions() -> dict[str, Callable[..., Any]]:
    seconds = SHIFT.total_seconds()

    def moved() -> float:
        return seconds if _is_asked() else 0.0

    return {
        "time": lambda: _time() + (seconds if _is_asked() else 0),
        "time_ns": lambda: _time_ns() + (int(seconds) * 10**9 if _is_asked() else 0),
        "localtime": lambda at=None: _localtime(_time() + (seconds if _is_asked() else 0) if at is None else at),
        "gmtime": lambda at=None: _gmtime(_time() + (seconds if _is_asked() else 0) if at is None else at),
        "ctime": lambda at=None: _ctime(_time() + (seconds if _is_asked() else 0) if at is None else at),
        "strftime": lambda form, *at: _strftime(form, *(at or (_localtime(_time() + moved()),))),
    }


@contextmanager
def _clock_moved() -> Iterator[None]:
    """Have clocks tell another time to those who are answered otherwise, by whatever name they know them."""
    with ExitStack() as put_back:
        for kind, name, method in _later_methods():
            put_back.enter_context(_method_replaced(kind, name, method))
        put_back.enter_context(_replaced_everywhere(time, _later_functions()))
        yield


@contextmanager
def _method_replaced(kind: type, name: str, method: Any) -> Iterator[None]:
    """Put a method into a type of Python's own, which refuses to be assigned to; `tests/test_upstream.py` pins it."""
    (methods,) = gc.get_referents(kind.__dict__)  # the mapping that `__dict__` shows
    before = methods[name]
    methods[name] = method
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
    try:
        yield
    finally:
        methods[name] = before
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


@contextmanager
def _replaced_everywhere(module: ModuleType, functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace functions of a module, also where another module has taken one by name (`from time import time`)."""
    before = {name: getattr(module, name) for name in functions}
    known = {id(function): functions[name] for name, function in before.items()}
    changed = [(vars(module), name, function) for name, function in before.items()]
    for other in list(sys.modules.values()):
        if isinstance(other, ModuleType) and _is_answered(getattr(other, "__name__", "")):
            changed += [(vars(other), name, one) for name, one in list(vars(other).items()) if id(one) in known]
    for names, name, function in changed:
        names[name] = known[id(function)]
    try:
        yield
    finally:
        for names, name, function in changed:
            names[name] = function


# --- environment, machine, network, programs --------------------------------------------------------------------------


class _Elsewhere(type(os.environ)):  # type: ignore[misc] # the type has no public name
    """The environment, whose variables have other values for those who are answered otherwise."""

    def __getitem__(self, name: str) -> str:
        value: str = super().__getitem__(name)
        return _other_text(value) if name != "TZ" and _is_asked() else value


def _other_text(value: str) -> str:
    return str(int(value) + 1) if value.strip().isdigit() else f"{value}-elsewhere"


def _refusing(module: Any, name: str, what: str) -> tuple[Any, str, Callable[..., Any]]:
    before = getattr(module, name)

    def refuse(*given: Any, **named: Any) -> Any:
        if _is_asked():
            raise RefusedElsewhereError(f"{what} is {REFUSED}")
        return before(*given, **named)

    return module, name, refuse


def _other_answer(module: Any, name: str, answer: Any) -> tuple[Any, str, Callable[..., Any]]:
    before = getattr(module, name)
    return module, name, lambda *given, **named: answer if _is_asked() else before(*given, **named)


def _other_functions() -> list[tuple[Any, str, Callable[..., Any]]]:
    network, program = "a connection to the network", "another program"
    return [
        *(_refusing(socket.socket, name, network) for name in ("connect", "connect_ex", "sendto")),
        *(_refusing(socket, name, network) for name in ("getaddrinfo", "gethostbyname")),
        _refusing(subprocess.Popen, "__init__", program),
        _refusing(os, "system", program),
        _other_answer(socket, "gethostname", "elsewhere"),
        _other_answer(platform, "node", "elsewhere"),
        _other_answer(os, "getpid", os.getpid() + 1_000_003),
        _other_answer(os, "cpu_count", (os.cpu_count() or 1) + 3),
        _other_answer(os, "getcwd", "/elsewhere"),
    ]


@contextmanager
def _answered_otherwise() -> Iterator[None]:
    own: Any = os.environ
    kind = own.__class__
    before = [(module, name, vars(module).get(name)) for module, name, _ in _other_functions()]
    own.__class__ = _Elsewhere
    for module, name, function in _other_functions():
        setattr(module, name, function)
    try:
        yield
    finally:
        own.__class__ = kind
        for module, name, function in before:
            delattr(module, name) if function is None else setattr(module, name, function)


@contextmanager
def _other_zone() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = ZONE
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


# --- moving -----------------------------------------------------------------------------------------------------------

_one_at_a_time = threading.RLock()


@contextmanager
def elsewhere() -> Iterator[None]:
    """Have what this thread calls meanwhile be in other surroundings; only the time zone is other threads', too."""
    with _one_at_a_time, _other_zone(), _clock_moved(), _answered_otherwise():
        _moved.depth = getattr(_moved, "depth", 0) + 1
        try:
            yield
        finally:
            _moved.depth -= 1


def move_here() -> None:
    """Have this whole process be in other surroundings from now on, but for its hash seed and time zone: it began with those."""
    stay = ExitStack()
    stay.enter_context(_clock_moved())
    stay.enter_context(_answered_otherwise())
    _everywhere.append(stay)  # for as long as it is kept nothing is put back


def environment_elsewhere() -> dict[str, str]:
    """Return what the environment of a process begins with that is in other surroundings."""
    return {"PYTHONHASHSEED": HASH_SEED, "TZ": ZONE}
