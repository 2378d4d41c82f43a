"""Histories in which nothing unlawful happens to a table: what `backfill verify` must never raise an alarm about.

Put here one function a thing that people, this project and lawful other programs do to `small_table` between a table's making
and its verification. What is made of a history is `tampering`'s.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import pyarrow as arrow
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.table import Table
from pyiceberg.types import LongType

from backfill_assets import faults
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.operations.garbage import collect, find
from backfill_assets.publication.accepting import accept
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from benchmarks import small_table
from manifests.errors import Refused
from manifests.lifecycle import RunState
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.facade import local_path
from resources.lakehouse.snapshots import Seen
from resources.ledger.transactions import system_clock as now

MONTHS = [(date(2020, month, 1), date(2020, month + 1, 1) - timedelta(days=1)) for month in range(1, 9)]
FOREIGN = "2020-12-03"
"""A day of a month that no run of a history publishes."""
STEPS = 6
_POINTS = ("publishing.committed", "publishing.recorded", "recording.written", "recording.told", "undoing.committed")
_SEALING = "sealing"
_UNRECORDED = (
    _SEALING,
    "publishing.sealed",
    "publishing.tagged",
    "preparing.opened",
    "publishing.prepared",
    "publishing.leased",
    "publishing.halfway",
    "publishing.committed",
    "undoing.halfway",
    "undoing.committed",
)
_RENAME = Path.rename


class _Killed(BaseException):
    """Stands for SIGKILL."""


class History:
    """One installation, and what happens to it; `random` decides."""

    def __init__(self, platform: Platform, seed: random.Random) -> None:
        self.platform, self.random = platform, seed
        self.number = 0
        self.today = now()
        """What day it is for whoever looks: a collection of long ago is long ago."""

    def _table(self) -> Table:
        return self.platform.lakehouse.table(small_table.READINGS)

    def _scope(self) -> tuple[str, str]:
        first = self.random.randrange(len(MONTHS))
        last = min(len(MONTHS) - 1, first + self.random.randrange(3))
        return MONTHS[first][0].isoformat(), MONTHS[last][1].isoformat()

    def published(self) -> None:
        """Publish a run in one of the modes."""
        self.number += 1
        kinds: list[tuple[str, dict[str, Any]]] = [
            ("REPLACE_PARTITIONS", {}),
            ("REPLACE_PARTITIONS", {}),
            ("MERGE_BY_KEY", {"merge": {"entities": self.random.sample(small_table.METERS, 2)}}),
            ("SHADOW_SWAP", {}),
            ("VERSIONED", {"version": f"v{self.number}", "acceptance": "LATER"}),
            ("VERSIONED", {"version": f"v{self.number}"}),
            ("CORRECTION_EVENTS", {"corrections": "BESIDE"}),
            ("CORRECTION_EVENTS", {"corrections": "INSTEAD"}),
            ("APPEND_ONLY", {}),
        ]
        mode, options = self.random.choice(kinds)
        run_id = f"run-{self.number}"
        contract = small_table.manifest(run_id, mode, self._scope(), computed_by=self.random.choice("12"), **options)
        small_table.planned(self.platform, contract)
        if small_table.staged(self.platform, run_id).state is RunState.VALIDATED:
            publish(self.platform, run_id)

    def interrupted(self) -> None:
        """Kill a publication, and do it again, or let the doctor repair what is left."""
        point = self.random.choice(_POINTS)

        def reach(here: str) -> None:
            if here == point:
                raise _Killed

        try:
            with mock.patch.object(faults, "reach", reach):
                self.published()
        except _Killed:
            if self.random.random() < 0.5:
                publish(self.platform, f"run-{self.number}")
        mend(self.platform)

    def left_off(self) -> None:
        """Kill a publication, or its undoing, before any of it is on record; nobody does it again."""
        point = self.random.choice(_UNRECORDED)

        def reach(here: str) -> None:
            if here == point:
                raise _Killed

        def rename(path: Path, target: Path) -> Path:
            if point == _SEALING and path.name.startswith("bundle.partial"):
                raise _Killed
            return _RENAME(path, target)

        step = self.random.choice([self.published, self.published, self.rolled_back, self.reinstated])
        with mock.patch.object(faults, "reach", reach), mock.patch.object(Path, "rename", rename), suppress(_Killed):
            step()

    def _one_in(self, *states: RunState) -> str:
        found = [run.run_id for run in self.platform.ledger.runs() if run.state in states]
        return self.random.choice(found) if found else ""

    def rolled_back(self) -> None:
        """Roll a run back."""
        if run_id := self._one_in(RunState.PUBLISHED):
            rollback(self.platform, run_id)

    def reinstated(self) -> None:
        """Reinstate a run."""
        if run_id := self._one_in(RunState.ROLLED_BACK):
            reinstate(self.platform, run_id)

    def accepted(self) -> None:
        """Make a version what main shows."""
        if run_id := self._one_in(RunState.PUBLISHED):
            accept(self.platform, run_id)

    def written_beside(self) -> None:
        """Another program appends rows to a month that no run has published."""
        table = self._table()
        schema = schema_to_pyarrow(table.schema())
        constants = dict.fromkeys(("run_id", "processing_mode", "transform_version"), "other")
        row = {"meter": "m9", "day": date.fromisoformat(FOREIGN), "value": 1, "input_snapshot_id": 1, **constants}
        table.append(arrow.Table.from_pylist([row], schema=schema))

    def compacted(self) -> None:
        """Another program writes the files of a month into one, row by row the same."""
        table = self._table()
        seen = Seen(table)
        by_month: dict[Any, list[Any]] = {}
        for entries in seen.entries.values():
            by_month.setdefault(entries[0].file.partition[0], []).append(entries[0])
        if not by_month:
            return
        files = self.random.choice([by_month[month] for month in sorted(by_month)])
        schema = schema_to_pyarrow(table.schema())
        parts = [pq.read_table(one.place) for one in files]
        rows = arrow.concat_tables(
            [part if set(part.column_names) == set(schema.names) else _widened(part, schema) for part in parts],
            promote_options="default",
        ).select(schema.names)
        place = Path(local_path(table.location())) / "data" / f"compacted-{uuid4()}.parquet"
        pq.write_table(rows.cast(schema), place)
        new = parquet_file_to_data_file(table.io, table.metadata, f"file://{place}")
        commit_replacement(table, AlwaysTrue(), [one.file for one in files], [new], {"compacted-by": "somebody"})

    def with_a_column(self) -> None:
        """The table gets one more column, nullable."""
        self.number += 1
        with self._table().update_schema() as update:
            update.add_column(f"more_{self.number}", LongType())

    def with_a_property(self) -> None:
        """Somebody sets a property of the table, and names a snapshot."""
        table = self._table()
        with table.transaction() as transaction:
            transaction.set_properties({"owner": str(self.number)})
        if (snapshot := self._table().current_snapshot()) is not None:
            self._table().manage_snapshots().create_tag(snapshot.snapshot_id, f"of-somebody-{uuid4()}").commit()

    def collected(self) -> None:
        """Everything that policy does not keep is removed."""
        at = self.today = now() + timedelta(days=4000)
        with mock.patch("backfill_assets.operations.garbage._require_clock"):
            collect(self.platform, find(self.platform, at=at), by="ops", at=at)

    def mended(self) -> None:
        """The doctor is asked to repair what there is."""
        mend(self.platform)


def _widened(part: arrow.Table, schema: arrow.Schema) -> arrow.Table:
    for field in schema:
        if field.name not in part.column_names:
            part = part.append_column(field, arrow.nulls(part.num_rows, field.type))
    return part


HAPPENS: Sequence[Callable[[History], None]] = (
    History.published,
    History.published,
    History.published,
    History.interrupted,
    History.rolled_back,
    History.reinstated,
    History.accepted,
    History.written_beside,
    History.compacted,
    History.with_a_property,
    History.mended,
)


def live_through(platform: Platform, seed: random.Random) -> tuple[list[str], datetime]:
    """Have things happen to an installation; return their names, and what day it is then. What is refused has not happened."""
    history = History(platform, seed)
    history.published()
    done = ["published"]
    for number in range(STEPS):
        last = number == STEPS - 1
        late = [History.with_a_column, History.collected, History.left_off, History.left_off, History.left_off]
        step = seed.choice([*late, *HAPPENS]) if last else seed.choice(HAPPENS)
        try:
            step(history)
        except Refused:
            continue
        done.append(step.__name__)
    return done, max(history.today, now())
