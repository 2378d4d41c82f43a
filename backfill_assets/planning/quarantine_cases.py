"""The cases of a quarantine: which quarantined rows are one and the same, and what has become of each.

Put here what follows from the rows of a quarantine, the loads of its table and the decisions on record; nothing here changes any of
them. A case is one raw row that breaks one rule: delivered again, it is the same case, seen again. What is decided of cases is
`ingestion.releases`', what a quarantine looks like `declarations.quarantine`'s.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any

import polars as pl

from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.schema import dtypes
from backfill_assets.installation import Platform
from manifests.errors import InputRefused, Problem
from resources.lakehouse.loads import Load, load_of_part
from resources.ledger.imports import ImportStatus
from resources.ledger.quarantine_decisions import ABANDONED, LANDED, RELEASED, REOPENED, Decision, Release

SHORT = 12
"""Characters of a case's id that are shown where it is named."""
_READ = ("source_file", "source_row", "reason", "detail", "record", "ingested_at")
_NO_ROWS: dict[str, Any] = {
    "case_id": pl.String,
    "row_id": pl.String,
    "reason": pl.String,
    "detail": pl.String,
    "load_id": pl.String,
    "source_file": pl.String,
    "source_row": pl.Int64,
    "ingested_at": pl.Datetime("us", "UTC"),
}


class CaseState(StrEnum):
    """What has become of a case."""

    WAITING = "WAITING"
    """Nobody has decided; or its release was taken back."""
    RELEASED = "RELEASED"
    """Its row is in the table, by a load of its own."""
    REJECTED = "REJECTED"
    """Somebody has decided that it is not to come in."""


@dataclass(frozen=True)
class Case:
    """One raw row that breaks one rule.

    Attributes:
        case_id: the SHA-256 (hex) of table, rule and raw row.
        row_id: the SHA-256 of table and raw row: cases of one row by several rules share it.
        rule: the rule that the row broke when it was loaded; `detail` the offending value in words.
        rows: how many quarantined rows it has in all of its loads.
        first_seen: when it was loaded first; `last_seen` when it was loaded last.
        loads: the loads that have brought it, oldest first; empty ids are of files that another program has written.
        source_file: the file that it came in first, and `source_row` its number there, from 0.
        state: what has become of it; the fields that follow say by whom, when, why, and of a released one by which load.
    """

    case_id: str
    row_id: str
    rule: str
    detail: str
    rows: int
    first_seen: datetime
    last_seen: datetime
    loads: tuple[str, ...]
    source_file: str
    source_row: int
    state: CaseState = CaseState.WAITING
    decided_by: str = ""
    decided_at: datetime | None = None
    why: str = ""
    released_by: str = ""

    @property
    def short(self) -> str:
        """The beginning of its id that people are shown."""
        return self.case_id[:SHORT]


@dataclass(frozen=True)
class RuleSummary:
    """The cases of one rule: how many in each state, their rows, and since when the oldest one waits (None: none does).

    `share` is that of its rows among all that the table's loads have delivered, 0 to 1.
    """

    rule: str
    waiting: int
    released: int
    rejected: int
    rows: int
    share: float
    oldest_waiting: datetime | None


@dataclass(frozen=True)
class Cases:
    """The cases of an input table: its quarantined rows (a frame, without the raw rows), and what is on record of them.

    Attributes:
        table: the input table.
        rows: a row a quarantined row: `case_id`, `row_id`, `reason`, `detail`, `load_id`, `source_file`, `source_row`, `ingested_at`.
        decisions: the newest decision about each case.
        releases: every release of the table, by its number.
        loads: the loads of the table, oldest first.
        known: the number of the newest decision about any case of the table; 0 for none.
        snapshot_id: what was read of the quarantine; None where it has no snapshot.
    """

    table: str
    rows: pl.DataFrame
    decisions: Mapping[str, Decision]
    releases: Mapping[int, Release]
    loads: tuple[Load, ...]
    known: int
    snapshot_id: int | None = None
    loaded: frozenset[str] = frozenset()
    """The loads whose quarantined rows count."""

    @cached_property
    def all(self) -> dict[str, Case]:
        """Every case by its id, the oldest first."""
        grouped = (
            self.rows.sort("ingested_at", "source_file", "source_row", maintain_order=True)
            .group_by("case_id", maintain_order=True)
            .agg(
                pl.first("row_id", "reason", "detail", "source_file", "source_row"),
                pl.len().alias("rows"),
                pl.first("ingested_at").alias("first_seen"),
                pl.last("ingested_at").alias("last_seen"),
                pl.col("load_id").unique(maintain_order=True).alias("loads"),
            )
        )
        return {row["case_id"]: self._case(row) for row in grouped.iter_rows(named=True)}

    def _case(self, row: Mapping[str, Any]) -> Case:
        case_id = row["case_id"]
        state, release = self.state_of(case_id)
        decision = None if state is CaseState.WAITING else self.decisions[case_id]
        return Case(
            case_id,
            row["row_id"],
            row["reason"],
            row["detail"] or "",
            row["rows"],
            row["first_seen"],
            row["last_seen"],
            tuple(row["loads"]),
            row["source_file"],
            row["source_row"],
            state,
            "" if decision is None else decision.decided_by,
            None if decision is None else decision.at,
            "" if decision is None else decision.reason,
            "" if release is None else release.load_id,
        )

    def state_of(self, case_id: str) -> tuple[CaseState, Release | None]:
        """Return what has become of a case, and the release that its row is in the table by."""
        decision = self.decisions.get(case_id)
        if decision is None or decision.decision == REOPENED:
            return CaseState.WAITING, None
        if decision.decision != RELEASED:
            return CaseState.REJECTED, None
        release = self.releases.get(decision.release_id or 0)
        if release is not None and self.is_in(release):
            return CaseState.RELEASED, release
        return CaseState.WAITING, None

    def is_in(self, release: Release) -> bool:
        """Return whether the rows of a release are in the table."""
        if release.state == ABANDONED:
            return False
        found = next((one for one in self.loads if one.load_id == release.load_id), None)
        if found is None:  # a history that another program has cut short does not say
            return release.state == LANDED
        return found.undone_by is None

    def oldest_waiting(self) -> datetime | None:
        """Return since when the oldest case waits; None where none does."""
        waiting = [case.first_seen for case in self.all.values() if case.state is CaseState.WAITING]
        return min(waiting, default=None)

    def _delivered(self) -> int:
        """Return how many rows have come by all loads: those of a release had come before, by the load that quarantined them."""
        releases = {one.load_id for one in self.releases.values()}
        came = sum(
            one.rows + one.quarantined for one in self.loads if one.undone_by is None and one.load_id not in releases
        )
        known = pl.Series([one.load_id for one in self.loads], dtype=pl.String).implode()
        return (
            came + self.rows.filter(~pl.col("load_id").is_in(known)).height
        )  # of receipts that brought the table nothing

    def by_rule(self) -> list[RuleSummary]:
        """Return the cases counted by the rule that they broke, the most waiting ones first."""
        delivered = self._delivered()
        of_rule: dict[str, list[Case]] = {}
        for case in self.all.values():
            of_rule.setdefault(case.rule, []).append(case)
        found = []
        for rule, cases in of_rule.items():
            states = Counter(case.state for case in cases)
            rows = sum(case.rows for case in cases)
            waiting = [case.first_seen for case in cases if case.state is CaseState.WAITING]
            found.append(
                RuleSummary(
                    rule,
                    states[CaseState.WAITING],
                    states[CaseState.RELEASED],
                    states[CaseState.REJECTED],
                    rows,
                    rows / delivered if delivered else 0.0,
                    min(waiting, default=None),
                )
            )
        return sorted(found, key=lambda one: (-one.waiting, one.rule))


@dataclass(frozen=True)
class RawRow:
    """A quarantined row as it came, and the rule that it broke then: `record` is JSON text."""

    case_id: str
    row_id: str
    load_id: str
    source_file: str
    source_row: int
    record: str
    rule: str


def cases_of(platform: Platform, table: InputTable, before: Cases | None = None) -> Cases:
    """Return the cases of an input table as they are now; every row of its quarantine is read once, a file at a time.

    Rows of a load that never came to the table are no cases: the same load, begun again, decides about them anew. `before` is what
    the same process has found earlier: where neither table was loaded since, no row is read again, and where nothing was decided either, it is returned.

    Raises:
        InputRefused: if the table or its quarantine is not there, or the quarantine's model has not the columns of one.
        EnvironmentRefused: if a file of the quarantine cannot be read.
    """
    snapshot_id = platform.lakehouse.snapshot_id(platform.products.quarantine_of(table).name)
    _require_columns(platform.products.quarantine_of(table))
    loads = platform.lakehouse.loads(table.name)
    loaded = _loaded(platform, table, loads)
    if before is not None and before.snapshot_id == snapshot_id and before.loaded == loaded:
        rows = before.rows
    else:
        frames = [frame.select(*_NO_ROWS) for frame in _frames(platform, table, loaded)]
        rows = pl.concat(frames) if frames else pl.DataFrame(schema=_NO_ROWS)
    decisions = platform.ledger.quarantine.decisions(table.name)
    releases = {one.id: one for one in platform.ledger.quarantine.releases(table.name)}
    known = max((one.id for one in decisions), default=0)
    on_record = (known, releases, tuple(loads))
    if before is not None and before.rows is rows and (before.known, before.releases, before.loads) == on_record:
        return before  # with what it has grouped already
    newest = {one.case_id: one for one in decisions}
    return Cases(table.name, rows, newest, releases, tuple(loads), known, snapshot_id, loaded)


def raw_rows(platform: Platform, table: InputTable, cases: Collection[str]) -> list[RawRow]:
    """Return the quarantined rows of some cases as they came, in the order in which they were loaded."""
    wanted = pl.Series("wanted", list(cases), dtype=pl.String).implode()
    found = []
    for frame in _frames(platform, table, _loaded(platform, table, platform.lakehouse.loads(table.name))):
        chosen = frame.filter(pl.col("case_id").is_in(wanted)).sort("ingested_at", "source_row", maintain_order=True)
        names = ("case_id", "row_id", "load_id", "source_file", "source_row", "record", "reason")
        found += [RawRow(*row) for row in chosen.select(names).iter_rows()]
    return found


def _require_columns(quarantine: InputTable) -> None:
    """Refuse a quarantine of a product's own that cannot say what it has."""
    missing = [name for name in _READ if name not in dtypes(quarantine.model)]
    if missing:
        raise InputRefused(
            Problem(
                f"the model of {quarantine.name} lacks the column(s) {', '.join(missing)}",
                "a quarantine has the columns of `backfill_assets.Quarantine`: by them a row is a case",
                "have its model inherit that, or leave its declaration out: then it is made as it has to be",
            )
        )


def _loaded(platform: Platform, table: InputTable, loads: Sequence[Load]) -> frozenset[str]:
    """Return the loads whose quarantined rows count: those of the table that were not taken back, and receipts that brought it nothing."""
    made = {load.load_id for load in loads}
    feeds = (feed.name for feed in platform.products.feeds.values() if feed.table == table.name)
    nothing = {
        one.load_id
        for feed in feeds
        for one in platform.ledger.imports.of_feed(feed, status=ImportStatus.QUARANTINED)
        if one.load_id and one.load_id not in made
    }
    return frozenset(load.load_id for load in loads if load.undone_by is None) | nothing


def _frames(platform: Platform, table: InputTable, loaded: frozenset[str]) -> Iterator[pl.DataFrame]:
    """Yield the rows of a quarantine, a file at a time, with their load, their case and their row."""
    quarantine = platform.products.quarantine_of(table)
    for part in platform.lakehouse.rows_by_file(quarantine.name, _READ):
        load = load_of_part(part.load_id)
        if load and load not in loaded:
            continue
        frame = pl.from_arrow(part.rows)
        assert isinstance(frame, pl.DataFrame)
        yield frame.with_columns(
            pl.lit(load).alias("load_id"),
            pl.Series(
                "case_id",
                [_hash(table.name, *both) for both in frame.select("reason", "record").iter_rows()],
                pl.String,
            ),
            pl.Series("row_id", [_hash(table.name, record) for record in frame["record"]], pl.String),
            pl.col("ingested_at").cast(pl.Datetime("us", "UTC")),
        )


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
