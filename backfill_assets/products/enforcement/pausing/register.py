"""A made-up register of cases: the generator's log, with escalations, and with entries that came in late or in advance.

Put here what a register has besides a log: clocks are paused and resumed (and some never), decisions hold from an earlier day than
they were recorded on, or from a later one, and a few entries come twice. Serves tests and demonstrations. How cases live is
said by the generator of logs. `python -m backfill_assets.products.enforcement.pausing.register 300 7 register.csv` writes one to a file,
`python -m ... register LOG register.parquet` that of a log that is there.

The same cases, seed and range give the same register: whatever is drawn is a hash of the case and of what it is drawn for.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import polars as pl

from backfill_assets.declarations.schema import dtypes
from backfill_assets.products.enforcement import generator, loading, raw, reference
from backfill_assets.products.enforcement.pausing.schemas import CaseRegister

_ESCALATIONS: Final = {
    "Create Fine": ("Escalate to Registry Office", "Return from Registry Office"),
    "Insert Date Appeal to Prefecture": ("Escalate to Legal Office", "Return from Legal Office"),
}
"""After which activity a clock may be paused, and what pauses and resumes it."""
_ESCALATED, _NEVER_RETURNED = 25, 10
_BELATED, _IN_ADVANCE, _TWICE = 15, 3, 2
"""Of entries, in percent."""
_LATEST = 45
"""Days after which an entry has come in at the latest."""
_PLACES_BETWEEN = 10
"""Between the places of a log's events in their case: escalations have places of their own."""


def generate(
    cases: int, seed: int, *, start: date = generator.DEFAULT_START, end: date = generator.DEFAULT_END
) -> pl.DataFrame:
    """Return the entries of made-up cases that were created from `start` to `end`; none holds from a day after `end`.

    Raises:
        ValueError: if there are no cases, or `start` is after `end`.
    """
    rows = [entry for event in _events(cases, seed, start, end) for entry in _entries(event, seed)]
    until = datetime(end.year, end.month, end.day, 12, tzinfo=UTC)
    frame = pl.DataFrame([row for row in rows if row["effective_at"] <= until], schema=dtypes(CaseRegister))
    return frame.sort("recorded_at", "entry_id")


def write_csv(path: Path, cases: int, seed: int) -> int:
    """Write a register to a CSV file that `backfill load bronze.case_register FILE` takes; return its rows."""
    frame = generate(cases, seed)
    instants = pl.col("effective_at", "recorded_at").dt.strftime("%Y-%m-%dT%H:%M:%S+00:00")
    frame.with_columns(instants).write_csv(path, line_terminator="\n")
    return frame.height


def from_log(file: Path) -> pl.DataFrame:
    """Return the entries that a log of events makes (`raw`'s Parquet or CSV): each event once, recorded when it happened.

    Such a log does not say when something was entered: what was known is then what was true.
    """
    columns = ["event_id", "case_id", "event_seq", "jurisdiction", "activity", "event_at"]
    at = datetime(2000, 1, 1, tzinfo=UTC)
    parts = [
        classified.events.select(columns)
        for batch in loading.from_file(file).batches()
        if (classified := _classified(batch, file.name, at)).events.height
    ]
    events = pl.concat(parts).unique("event_id", keep="first", maintain_order=True)
    frame = events.rename({"event_id": "entry_id", "event_at": "effective_at"}).with_columns(
        recorded_at=pl.col("effective_at")
    )
    return pl.DataFrame(frame.select(list(dtypes(CaseRegister))), schema_overrides=dtypes(CaseRegister))


def _classified(batch: pl.DataFrame, source_file: str, ingested_at: datetime) -> raw.Classified:
    return raw.classify(
        batch,
        source_file=source_file,
        ingested_at=ingested_at,
        default_jurisdiction=loading.DEFAULT_JURISDICTION,
        known_jurisdictions=frozenset(reference.TIME_ZONES),
    )


def _events(cases: int, seed: int, start: date, end: date) -> Iterator[dict[str, Any]]:
    """Yield the events of a generated log, each once."""
    seen: set[str] = set()
    for batch in raw.number_rows(generator.generate(cases, seed, start=start, end=end)):
        classified = _classified(batch, "generated", datetime(end.year, end.month, end.day, tzinfo=UTC))
        for row in classified.events.iter_rows(named=True):
            if row["event_id"] not in seen:
                seen.add(row["event_id"])
                yield row


def _entries(event: dict[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    """Yield the entries that an event makes: itself, perhaps an escalation, and each perhaps twice."""
    case, place, at = event["case_id"], event["event_seq"] * _PLACES_BETWEEN, event["event_at"]
    made = [(place, event["activity"], at)]
    if event["activity"] in _ESCALATIONS and _draw(seed, case, place, "escalated") < _ESCALATED:
        pause, resume = _ESCALATIONS[event["activity"]]
        paused = at + timedelta(days=_draw(seed, case, place, "paused") % 15)
        made.append((place + 1, pause, paused))
        if _draw(seed, case, place, "returned") >= _NEVER_RETURNED:
            # some on the same day, and some at the same instant
            made.append((place + 2, resume, paused + timedelta(days=_draw(seed, case, place, "resumed") % 40)))
    for own, activity, effective in made:
        lag = _draw(seed, case, own, "lag") % _LATEST + 1
        drawn = _draw(seed, case, own, "recorded")
        days = lag if drawn < _BELATED else -(lag % 10) - 1 if drawn < _BELATED + _IN_ADVANCE else 0
        entry = {
            "entry_id": f"{case}-{own}",
            "case_id": case,
            "event_seq": own,
            "jurisdiction": event["jurisdiction"],
            "activity": activity,
            "effective_at": effective,
            "recorded_at": effective + timedelta(days=days),
        }
        yield entry
        if _draw(seed, case, own, "twice") < _TWICE:
            yield entry | {"recorded_at": entry["recorded_at"] + timedelta(days=lag)}


def _draw(seed: int, case: str, place: int, what: str) -> int:
    """Draw a number of 0 to 99."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{case}/{place}/{what}".encode()).digest()[:8], "big") % 100


if __name__ == "__main__":
    *given, file = sys.argv[1:]
    if len(given) == 1:
        from_log(Path(given[0])).write_parquet(file)
    else:
        number, chosen = given
        write_csv(Path(file), int(number), int(chosen))
