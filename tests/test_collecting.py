"""Collecting garbage beside others: whoever commits, fences or takes back at the same moment loses nothing by it.

Here the order of events is forced, without Spark; what policy lets go is `test_gc`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow

from backfill_assets import garbage as garbage_module
from backfill_assets import platform as platform_module
from backfill_assets.garbage import collect, find
from backfill_assets.platform import Platform
from backfill_assets.publication import publish
from benchmarks.publishers import DAYS, initialise, opened, validated
from resources.lakehouse import LOAD_PROPERTY, _ensure_snapshot
from resources.ledger import now

JANUARY = ("2020-01-01", "2020-01-31")
NO_RETENTION = {"keep_snapshots_days": 0, "keep_dead_runs_days": 0, "keep_superseded_days": 0}


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """An installation that keeps nothing longer than it must, with one table that has no rows."""
    monkeypatch.setattr(platform_module, "PRODUCTS", ())
    platform = opened({"home": tmp_path / "home"} | NO_RETENTION)
    monkeypatch.setattr(garbage_module, "PRODUCTS", platform_module.PRODUCTS)
    initialise(platform)
    yield platform
    platform.ledger.engine.dispose()


def published(platform: Platform, run_id: str, scope: tuple[str, str] = JANUARY) -> int:
    validated(platform, run_id, *scope)
    return publish(platform, run_id).snapshot_id


def sweep(platform: Platform, at: datetime | None = None) -> int:
    """Collect what there is at an instant; return how many files went."""
    at = at or now()
    return sum(one.files for one in collect(platform, find(platform, at=at), by="ana", at=at))


def rows(platform: Platform) -> int:
    return int(platform.lakehouse.table(DAYS).scan().to_arrow().num_rows)


def before_commits(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any], *, number: int = 1) -> None:
    """Let something happen once, where a commit (the first, or a later one) only has to swap the catalog's pointer."""
    commit, left = SqlCatalog.commit_table, [number]

    def interrupted(self: SqlCatalog, table: Any, requirements: Any, updates: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            act()
        return commit(self, table, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", interrupted)


def written_elsewhere(platform: Platform, load: str) -> None:
    """Append a row as another program would, without a lease."""
    table = platform.lakehouse.table(DAYS)
    facts = {"run_id": "live", "processing_mode": "LIVE", "transform_version": "1", "input_snapshot_id": 1}
    row = {"day": datetime(2020, 6, 1).date(), "value": load, "produced_at": now()} | facts  # noqa: DTZ001 - a day
    batch = arrow.Table.from_pylist([row], schema=schema_to_pyarrow(table.schema()))
    platform.lakehouse.append(DAYS, [batch], {LOAD_PROPERTY: load})


def test_what_a_commit_has_written_and_not_yet_shown_is_left_alone(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where policy keeps no snapshot a day: its manifests are referenced by nothing until its last step."""
    published(platform, "one")
    before_commits(monkeypatch, lambda: sweep(platform))
    written_elsewhere(platform, "late")
    assert rows(platform) == 32


def test_a_snapshot_that_was_just_made_waits_for_the_ref_that_will_name_it(platform: Platform) -> None:
    """A fence on an empty table is two commits: a snapshot, then the tag."""
    platform.lakehouse._retrying(DAYS, _ensure_snapshot)
    sweep(platform, now() + timedelta(hours=23))
    assert len(platform.lakehouse.table(DAYS).snapshots()) == 1
