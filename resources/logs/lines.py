"""Structured logs: what is written where, and the fields that every line carries.

Put here how a line looks and where it goes. What is worth a line is said by the module that does it, through Python's
`logging` and `event`; the run, chunk, source range, transform version, target and mode are bound once, around the work,
and added to every line written meanwhile, whoever writes it. Lines hold counts, names and reasons: never a row's values,
and never the text of an error that a transform raised, which may quote one (the ledger has it).
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, date, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, TextIO

from manifests.canonical import plain
from manifests.chunks import Chunking
from manifests.errors import EnvironmentRefused, Problem
from manifests.plan import Plan, PlannedChunk
from manifests.text import visible_lines
from resources.settings import REDACTED, Settings

ROOT = "backfill_assets"
"""The logger whose children write; its handlers are ours alone."""
FIELDS = ("run_id", "chunk_id", "source_range", "transform_version", "target", "mode")
"""What every line carries; null where a line is about no run, or about all of a run's chunks."""
OF_TRACES = ("trace_id", "span_id")
"""What a line carries besides, in JSON, if it is written within a span that is sent (`traces`)."""
_PASSWORD = re.compile(r"(?<=://)([^:@/\s]*):[^@\s]*@")
_bound: ContextVar[Mapping[str, str]] = ContextVar("bound", default={})  # noqa: B039 - never changed in place
_also: ContextVar[logging.Logger | None] = ContextVar("also", default=None)


# --- saying something -------------------------------------------------------------------------------------------------


def event(log: logging.Logger, level: int, name: str, text: str, *, told: bool = False, **data: Any) -> None:
    """Write a line: a name that a program can look for, words for people, and the facts as data.

    `told`: whoever sits at the terminal is told the same in another way, and need not read it twice.
    """
    if log.isEnabledFor(level):
        log.log(level, "%s", text, extra={"event": name, "data": data, "told": told})


@contextmanager
def bound(**fields: str | None) -> Iterator[None]:
    """Have every line that is written meanwhile carry these fields, beside those bound around it.

    Raises:
        TypeError: for a field that is none of `FIELDS` or `OF_TRACES`.
    """
    if unknown := sorted(fields.keys() - {*FIELDS, *OF_TRACES}):
        raise TypeError(f"no log line carries {', '.join(unknown)}")
    token = _bound.set({**_bound.get(), **{name: value for name, value in fields.items() if value is not None}})
    try:
        yield
    finally:
        _bound.reset(token)


@contextmanager
def of_run(plan: Plan) -> Iterator[None]:
    """Have every line that is written meanwhile be about the run of a plan."""
    with bound(
        run_id=plan.run_id,
        source_range=_said(plan, plan.input_range.start, plan.input_range.end),
        transform_version=plan.transform_version,
        target=plan.target,
        mode=plan.mode.value,
    ):
        yield


@contextmanager
def of_chunk(plan: Plan, chunk: PlannedChunk) -> Iterator[None]:
    """Have every line that is written meanwhile be about one chunk: what it reads is its own days and their warm-up."""
    start = plan.input_range.start + (chunk.start - plan.publish_range.start)
    with of_run(plan), bound(chunk_id=chunk.key, source_range=_said(plan, start, chunk.end)):
        yield


def _said(plan: Plan, start: date, end: date) -> str:
    return "whole" if plan.chunking is Chunking.WHOLE else f"{start}..{end}"


@contextmanager
def also_to(log: Any) -> Iterator[None]:
    """Have what is written meanwhile, from WARNING on, appear in another log as well (a Dagster run's), as plain text."""
    token = _also.set(log)
    try:
        yield
    finally:
        _also.reset(token)


# --- writing it -------------------------------------------------------------------------------------------------------


def configure(settings: Settings) -> None:
    """Make this process write logs as the settings say; safe to repeat.

    Raises:
        EnvironmentRefused: if the log file cannot be opened.
    """
    log = logging.getLogger(ROOT)
    handlers: list[logging.Handler] = [_Elsewhere(logging.WARNING)]
    formatter: logging.Formatter = JsonFormatter() if settings.log_format == "json" else TextFormatter()
    terminal: logging.Handler = _Stderr(settings.log_level or logging.WARNING)
    terminal.setFormatter(formatter)
    if settings.log_format == "text":  # JSON on stderr is for a collector, which is told by nobody else
        terminal.addFilter(lambda record: not getattr(record, "told", False))
    handlers.append(terminal)
    if settings.log_file is not None:
        file = _opened(settings.log_file)
        file.setLevel(settings.log_level or logging.INFO)
        file.setFormatter(formatter)
        handlers.append(file)
    for handler in handlers:
        handler.addFilter(_add_fields)
    for old in list(log.handlers):
        if isinstance(old, (_Elsewhere, _Stderr, _File)):
            log.removeHandler(old)
            old.close()
    for handler in handlers:
        log.addHandler(handler)
    log.setLevel(min(handler.level for handler in handlers))
    log.propagate = False  # or a library that configures the root logger would write every line a second time
    logging.getLogger().addFilter(_is_no_interruption)


def _is_no_interruption(record: logging.LogRecord) -> bool:
    """Leave out what Py4J logs, with its traceback, of an interruption that it passes on: whoever gets it says what came of it."""
    error = record.exc_info[1] if record.exc_info else None
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return False
        error = error.__cause__ or error.__context__
    return True


class JsonFormatter(logging.Formatter):
    """One JSON object a line: instant (UTC), level, event, message, every field of `FIELDS`, the facts as `data`; those of `OF_TRACES`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "event": getattr(record, "event", None),
            "message": record.getMessage(),
            **{name: getattr(record, name, None) for name in FIELDS},
            "data": plain(getattr(record, "data", {})),
            "logger": record.name,
            "process": record.process,
            **{name: value for name in OF_TRACES if (value := getattr(record, name, None)) is not None},
        }
        return without_passwords(json.dumps(line, ensure_ascii=False, default=str))


class TextFormatter(logging.Formatter):
    """One line for people: instant (UTC), level, run and chunk, words."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%S")
        about = [getattr(record, name, None) for name in ("run_id", "chunk_id")]
        where = " ".join(one for one in about if one) or "-"
        text = visible_lines(record.getMessage().replace("\n", " "))
        return without_passwords(f"{at} {record.levelname:<7} {where}: {text}")


def without_passwords(text: str) -> str:
    """Return a text without the passwords of the URLs in it."""
    return _PASSWORD.sub(rf"\1:{REDACTED}@", text)


def _add_fields(record: logging.LogRecord) -> bool:
    """Give a record the fields that are bound where it is written."""
    fields = _bound.get()
    for name in (*FIELDS, *OF_TRACES):
        setattr(record, name, fields.get(name))
    return True


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to whatever stderr is at the moment: a progress bar takes its place, and prints lines above itself."""

    def __init__(self, level: int | str) -> None:
        logging.Handler.__init__(self, level)

    @property
    def stream(self) -> TextIO:  # type: ignore[override] # the base class keeps the one it was made with
        return sys.stderr


class _File(WatchedFileHandler):
    """Appends to a file that several processes write and that may be rotated."""


class _Elsewhere(logging.Handler):
    """Passes records on to the log that `also_to` names, if any."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on."""
        log = _also.get()
        if log is not None:
            about = getattr(record, "chunk_id", None)
            text = visible_lines(without_passwords(record.getMessage()))
            log.log(record.levelno, "%s", f"{about}: {text}" if about else text)


def _opened(file: Path) -> logging.Handler:
    try:
        return _File(file.expanduser(), encoding="utf-8")
    except OSError as error:
        raise EnvironmentRefused(
            Problem(
                f"the log file {file} cannot be opened: {error.strerror}",
                "log_file is a file this user can append to, in a folder that exists",
                "correct BACKFILL_LOG_FILE",
            )
        ) from error
