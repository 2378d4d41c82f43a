"""A product's own loader while it reads: what it raises is refused with the product's line, as every other piece of a product is.

Put here what stands between a product's `Loader` and `deliveries`, which appends what it is given. Nothing here knows what a
delivery means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from inspect import getattr_static
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from backfill_assets.declarations.checking.imports import python_words
from backfill_assets.declarations.deliveries import Counted, Delivery
from backfill_assets.declarations.places import place
from backfill_assets.declarations.quarantine import FirstRow
from backfill_assets.delivered_files import SeenFile
from manifests.errors import InputRefused, Problem, Refused

_T = TypeVar("_T")
_ROWS = 2**63
_SHOWN = 60
_MEMBERS = ("load_id", "source_file", "count", "rows", "quarantined")


def delivered(loader: str, make: Callable[[], Any], file: Path | None = None) -> Delivery:
    """Have a loader open what it delivers, and return that: what it raises from then on is refused by name.

    Args:
        loader: the loader's name, as products declare it.
        make: what opens it.
        file: the file that it opens; each pass over what is delivered ends with a look at whether it is the same still.

    Raises:
        InputRefused: if it refuses, raises an error, or returns no `Delivery`.
    """
    seen = None
    with suppress(OSError):  # the loader says what is wrong with it
        seen = None if file is None else SeenFile.now(file)
    with _refused_by_name(loader):
        delivery = make()
        if missing := [name for name in _MEMBERS if getattr_static(delivery, name, None) is None]:
            raise TypeError(f"it returns a {type(delivery).__name__}, which has no {', '.join(missing)}")
        named = {name: getattr(delivery, name) for name in ("load_id", "source_file")}
        for name, text in named.items():
            if not isinstance(text, str) or not text.strip():  # two deliveries without an id would be one and the same
                raise TypeError(f"the {name} of a {type(delivery).__name__} is {text!r}, and no text")
            if any("\ud800" <= letter <= "\udfff" for letter in text):
                raise TypeError(
                    f"the {name} of a {type(delivery).__name__} is {ascii(text)[:_SHOWN]}: half a character, no text"
                )
        if "~" in named["load_id"]:
            raise TypeError(
                f"the load_id of a {type(delivery).__name__} is {ascii(named['load_id'])[:_SHOWN]}: after a ~ comes the number "
                "that the platform gives to the quarantined rows of a load that is begun anew"
            )
        return _OfALoader(loader, delivery, seen, **named)


@dataclass(frozen=True)
class _OfALoader:
    loader: str
    delivery: Delivery
    seen: SeenFile | None
    load_id: str
    source_file: str

    def count(self, ingested_at: datetime) -> Counted:
        with _refused_by_name(self.loader):
            counted = _counted(_a(Counted, self.delivery.count(ingested_at), "count"))
        self._require_unchanged()
        return counted

    def rows(self, ingested_at: datetime) -> Iterator[pa.Table]:
        with _refused_by_name(self.loader):
            for batch in self.delivery.rows(ingested_at):
                yield _a(pa.Table, batch, "rows")
        self._require_unchanged()

    def quarantined(self, ingested_at: datetime) -> Iterator[pa.Table]:
        with _refused_by_name(self.loader):
            for batch in self.delivery.quarantined(ingested_at):
                yield _a(pa.Table, batch, "quarantined")
        self._require_unchanged()

    def _require_unchanged(self) -> None:
        if self.seen is not None:
            self.seen.require_unchanged()


def _counted(counted: Counted) -> Counted:
    """Return what a loader has counted, if it can be so: it goes on record with the load."""
    figures = {"events": counted.events, "quarantined": counted.quarantined}
    reasons = _a(Mapping, counted.by_reason, "by_reason of count")  # type: ignore[type-abstract]
    figures |= {f"by_reason of {reason!r}": rows for reason, rows in reasons.items()}
    for name, rows in figures.items():
        if type(rows) is not int or not 0 <= rows < _ROWS:
            raise TypeError(f"{name} of count is {ascii(rows)[:_SHOWN]}, and no number of rows")
    if sum(reasons.values()) != counted.quarantined:
        raise TypeError(f"by_reason of count has {sum(reasons.values()):,} rows, quarantined {counted.quarantined:,}")
    for reason, first in _a(Mapping, counted.first, "first of count").items():  # type: ignore[type-abstract]
        _a(FirstRow, first, f"first of count for {reason!r}")
    return counted


def _a(kind: type[_T], value: Any, member: str) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"{member} gives a {type(value).__name__}, not a {kind.__module__}.{kind.__name__}")
    return value


@contextmanager
def _refused_by_name(loader: str) -> Iterator[None]:
    try:
        yield
    except Refused:
        raise
    except (Exception, SystemExit) as error:
        raise InputRefused(
            Problem(
                python_words(error),
                f"the loader {loader} delivers what `backfill_assets.Delivery` says, or refuses a file by raising "
                "`backfill_assets.InputRefused`",
                "correct the loader, or the file; nothing more than its quarantine was written",
                place(error),
            )
        ) from error
