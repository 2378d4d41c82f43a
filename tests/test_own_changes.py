"""What a run shows, and what it takes back, is its own: not what another program has committed in its name."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing as closed_after
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as arrow
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from small_worlds import copy_of

from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from backfill_assets.publication.accepting import accept
from backfill_assets.publication.publisher import prepare, publish
from backfill_assets.publication.undoing import reinstate, rollback
from benchmarks import small_table
from benchmarks.small_table import CORRECTIONS, HISTORY, READINGS, SCOPE, manifest, planned, rows, staged
from manifests.errors import PublicationRefused, Refused
from manifests.lifecycle import RunState
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.facade import ACTION_PROPERTY, RUN_PROPERTY, SEQUENCE_PROPERTY, local_path

pytestmark = pytest.mark.matrix

FORGED = 666
LATER = {"version": "v2", "acceptance": "LATER"}
WAITING = [("SHADOW_SWAP", {}), ("VERSIONED", {"version": "v2"}), ("VERSIONED", LATER)]


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """An installation with a published history."""
    monkeypatch.setenv("BACKFILL_OPERATOR", "ops")
    with small_table.declared():
        platform = copy_of(with_history)
        yield platform
        small_table.closed(platform)


def with_history(platform: Platform) -> None:
    small_table.initialise(platform)
    planned(platform, manifest("history", "REPLACE_PARTITIONS", HISTORY, computed_by="1"))
    staged(platform, "history")
    publish(platform, "history")


def validated(platform: Platform, run_id: str, mode: str, **options: Any) -> None:
    planned(platform, manifest(run_id, mode, SCOPE, **options))
    staged(platform, run_id)


def written_by_another(platform: Platform, said: dict[str, str], branch: str = "main") -> None:
    """Commit one file more to a branch of the table, as any program can that may write to it."""
    table = platform.lakehouse.table(READINGS)
    commit_replacement(table, AlwaysTrue(), [], [file_of_another(table)], said, branch=branch)


def file_of_another(table: Table) -> DataFile:
    """Write a file with one row of February, which no run has computed."""
    row: dict[str, Any] = {field.name: None for field in table.schema().fields}
    row |= {"meter": "m0", "day": date(2020, 2, 15), "value": FORGED, "run_id": "run", "processing_mode": "BACKFILL"}
    row |= {"transform_version": "2", "input_snapshot_id": 1, "produced_at": datetime(2020, 1, 1, tzinfo=UTC)}
    path = Path(local_path(table.location())) / "data" / f"another-{uuid4()}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(arrow.Table.from_pylist([row], schema=schema_to_pyarrow(table.schema())), path)
    return parquet_file_to_data_file(table.io, table.metadata, f"file://{path}")


def said_of(snapshot: Snapshot | None) -> dict[str, str]:
    """Return what a good snapshot says of itself in this project's words."""
    assert snapshot is not None
    assert snapshot.summary is not None
    return {name: text for name, text in snapshot.summary.additional_properties.items() if name.startswith("backfill")}


def is_shown(platform: Platform) -> bool:
    return any(FORGED in row for row in rows(platform))


@pytest.mark.parametrize(("mode", "options"), WAITING, ids=["swap", "version", "version, accepted later"])
@pytest.mark.parametrize("says", [True, False], ids=["in the run's name", "in nobody's"])
def test_a_candidate_that_another_program_has_written_to_is_not_published(
    history: Platform, mode: str, options: dict[str, Any], says: bool
) -> None:
    validated(history, "run", mode, **options)
    prepare(history, "run")
    branch = "candidate-run"
    good = history.lakehouse.table(READINGS).snapshot_by_name(branch)
    written_by_another(history, said_of(good) if says else {}, branch)
    if says:
        with pytest.raises(
            PublicationRefused, match=r"is not what was gated: 1 file\(s\) came or went besides"
        ) as refused:
            publish(history, "run")
        assert "restate the scope with a new run" in str(refused.value)
        assert not is_shown(history)
        assert history.ledger.run("run").state is RunState.REJECTED
        validated(history, "again", "SHADOW_SWAP")
        publish(history, "again")
        assert not is_shown(history)
        assert verify(history).everything == []
    else:  # what is published is the run's own snapshot, not what the branch names by now
        publish(history, "run")
        assert not is_shown(history)
        assert "v2" not in history.lakehouse.refs(READINGS) or not any(FORGED in row for row in rows(history, ref="v2"))


def test_a_version_whose_name_was_moved_is_not_accepted(history: Platform) -> None:
    validated(history, "run", "VERSIONED", **LATER)
    publish(history, "run")
    good = history.lakehouse.table(READINGS).snapshot_by_name("v2")
    assert good is not None
    written_by_another(history, said_of(good), "candidate-run")
    moved = history.lakehouse.snapshot_of(READINGS, "candidate-run")
    assert moved is not None
    for act in (
        lambda change: change.remove_tag("v2"),
        lambda change: change.create_tag(moved, "v2"),
    ):
        with history.lakehouse.table(READINGS).manage_snapshots() as change:
            act(change)
    with pytest.raises(
        PublicationRefused, match=f"v2 of {READINGS} names snapshot {moved}, and 'run' was published as"
    ):
        accept(history, "run")
    assert not is_shown(history)
    with pytest.raises(PublicationRefused, match="names snapshot"):
        rollback(history, "run")


def test_rows_of_another_program_do_not_go_with_a_rollback(history: Platform) -> None:
    validated(history, "run", "REPLACE_PARTITIONS")
    publish(history, "run")
    written_by_another(history, {RUN_PROPERTY: "run", ACTION_PROPERTY: "publish", SEQUENCE_PROPERTY: "1"})
    before = rows(history)
    with pytest.raises(PublicationRefused, match=r"which the ledger has as .*somebody else wrote it"):
        rollback(history, "run")
    assert rows(history) == before
    assert history.ledger.run("run").state is RunState.PUBLISHED


def test_what_was_changed_by_hand_in_the_ledger_does_not_come_back(history: Platform) -> None:
    validated(history, "run", "CORRECTION_EVENTS", corrections="BESIDE")
    publish(history, "run")
    rollback(history, "run")
    chunk = next(one for one in history.ledger.chunks("run") if one.derived)
    path = Path(local_path(chunk.derived[0].path))
    forged = path.with_name("forged.parquet")
    pq.write_table(pq.read_table(path).slice(0, 1), forged)
    with closed_after(sqlite3.connect(history.settings.home / "ledger.db")) as connection:
        by = "run_id = 'run' AND chunk = ?"
        (text,) = connection.execute(f"SELECT derived FROM chunks WHERE {by}", (chunk.chunk,)).fetchone()
        (first, *others) = json.loads(text)
        first |= {"path": f"file://{forged}", "rows": 1, "bytes": forged.stat().st_size, "footer": ""}
        first |= {"sha256": hashlib.sha256(forged.read_bytes()).hexdigest()} if "sha256" in first else {}
        new = json.dumps([first, *others])
        connection.execute(f"UPDATE chunks SET derived = ? WHERE {by}", (new, chunk.chunk))
        connection.commit()
    with pytest.raises(Refused):
        reinstate(history, "run")
    listed = [task.file.file_path for task in history.lakehouse.table(CORRECTIONS).scan().plan_files()]
    assert not [one for one in listed if "forged" in one]
    assert history.ledger.run("run").state is RunState.ROLLED_BACK
