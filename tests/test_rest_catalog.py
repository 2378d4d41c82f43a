"""Publications to tables of a REST catalog: Iceberg's own server, which checks what a commit requires, and answers that are lost.

The table is the benchmarks' small one, without Spark; data files are local. What the server refuses, and what it answers, is its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from real_servers.rest_catalog import Fault, RestCatalog
from test_taking_back import NO_RETENTION, agree, collected, platform, published, readers, refs, state, validated

from backfill_assets.installation import Platform
from backfill_assets.publication.ending import cancel
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from benchmarks.small_table import CORRECTIONS, HISTORY, READINGS, SOURCE, declared, initialise, opened, rows
from benchmarks.stopped_actors import expire
from manifests.errors import EnvironmentRefused, InputRefused, LeaseLost, Refused
from manifests.lifecycle import RunState
from resources.lakehouse.column_changes import DeclaredColumns, apply_changes
from resources.lakehouse.fences import is_fence
from resources.lakehouse.history import forget
from resources.lakehouse.summaries import RUN_PROPERTY

__all__ = ["platform"]
pytestmark = pytest.mark.servers
TABLE = "/tables/readings"
PUBLICATION: dict[str, Any] = {"ends": TABLE, "holds": b'"add-snapshot"'}
_ALL = (0, 200, 400, 401, 403, 404, 419, 429, 500, 501, 502, 503, 504)
STATUSES = _ALL if os.environ.get("BACKFILL_TEST_STATUSES") == "all" else (0, 200, 401, 403, 500, 503)
"""What a lost answer is; all there are with BACKFILL_TEST_STATUSES=all."""


@pytest.fixture
def served(rest_server: RestCatalog, tmp_path: Path) -> Iterator[Platform]:
    """The small table with four months of `base-run`, in the server's catalog."""
    rest_server.start()
    rest_server.proxy.faults.clear()
    with declared():
        one = opened(tmp_path / "home", catalog=rest_server.properties, **NO_RETENTION)
        for table in (READINGS, CORRECTIONS, SOURCE):
            with suppress(NoSuchTableError):
                one.lakehouse.catalog.drop_table(table)
        shutil.rmtree(rest_server.folder / "warehouse", ignore_errors=True)
        initialise(one)
        published(one, "base-run", scope=HISTORY, computed_by="1")
        yield one
        rest_server.start()
        rest_server.proxy.faults.clear()
        one.ledger.engine.dispose()


def shown(platform: Platform) -> list[tuple[Any, ...]]:
    """Return the rows that readers see, but for the snapshot of the source, whose number is another in each catalog."""
    return [row[:-1] for row in rows(platform)]


def landed(platform: Platform, run_id: str) -> int:
    """Return how many snapshots that readers of main have seen a run has made."""
    table = platform.lakehouse.table(READINGS)
    summaries = [one.summary.additional_properties for one in table.snapshots() if one.summary is not None]
    return sum(one.get(RUN_PROPERTY) == run_id for one in summaries)


@pytest.mark.parametrize("mode", ["REPLACE_PARTITIONS", "MERGE_BY_KEY", "SHADOW_SWAP", "VERSIONED"])
def test_readers_see_of_a_rest_catalog_what_they_see_of_sql(served: Platform, platform: Platform, mode: str) -> None:
    published(platform, "base-run", scope=HISTORY, computed_by="1")
    options = (
        {"version": "v2"} if mode == "VERSIONED" else {"merge": {"entities": ["m1", "m4"]}} if "MERGE" in mode else {}
    )
    for one in (served, platform):
        published(one, "run", mode=mode, **options)
    assert shown(served) == shown(platform)
    assert readers(served) == readers(platform)
    for act in (rollback, reinstate, rollback):
        for one in (served, platform):
            act(one, "run")
        assert shown(served) == shown(platform)
    collected(served)
    assert shown(served) == shown(platform)
    assert agree(served)


@pytest.mark.parametrize("lands", [False, True])
@pytest.mark.parametrize("status", STATUSES)
def test_a_commit_whose_answer_is_no_answer_is_made_once(
    served: Platform, rest_server: RestCatalog, status: int, *, lands: bool
) -> None:
    validated(served, "run")
    fault = Fault(status, lands=lands, times=1, **PUBLICATION)
    rest_server.proxy.faults.append(fault)
    refused = None
    try:
        publish(served, "run")
    except Refused as error:
        refused = error
    assert fault.times == 0
    assert landed(served, "run") <= 1
    if refused is not None:  # PyIceberg itself asks again where it was not let in
        (problem,) = refused.problems
        assert problem.what.startswith(f"the outcome of a commit to {READINGS} is unknown")
        assert ("check `token`" in problem.fix) == (status == 403)
        assert landed(served, "run") == int(lands)
        publish(served, "run")
    else:
        assert status in {401, 419}
    assert landed(served, "run") == 1
    assert (state(served, "run"), readers(served)["2020-02"]) == (RunState.PUBLISHED, "run")
    assert agree(served)


@pytest.mark.parametrize("status", STATUSES)
def test_a_catalog_that_does_not_say_what_a_table_is_refuses_and_changes_nothing(
    served: Platform, rest_server: RestCatalog, status: int
) -> None:
    validated(served, "run")
    before = rows(served), refs(served)
    rest_server.proxy.faults.append(Fault(status, method="GET", ends=TABLE, times=1_000))
    with pytest.raises(Refused) as found:
        publish(served, "run")
    assert rest_server.proxy.faults.pop().times < 1_000
    (problem,) = found.value.problems
    lets_in = "does not let this installation in" not in problem.what
    assert lets_in != (status in {401, 403, 419})
    assert problem.what.startswith("the catalog 'lake'")
    assert (rows(served), refs(served)) == before
    publish(served, "run")
    assert landed(served, "run") == 1
    assert agree(served)


def test_a_page_of_a_proxy_does_not_say_that_a_table_is_not_there(served: Platform, rest_server: RestCatalog) -> None:
    """Else whoever takes a lease over would fence nothing, and the holder before it could still commit."""
    assert (served.lakehouse.exists(READINGS), served.lakehouse.exists("silver.nothing")) == (True, False)
    rest_server.proxy.faults.append(Fault(404, method="GET", ends=TABLE, times=1_000))
    for ask in (served.lakehouse.exists, served.lakehouse.table, served.lakehouse.beside):
        if ask == served.lakehouse.beside:
            rest_server.proxy.faults.append(Fault(404, method="GET", ends="/tables", times=1_000))
        with pytest.raises(EnvironmentRefused, match=r"none of the protocol's answers"):
            ask(READINGS)
    with pytest.raises(InputRefused, match="does not exist"):
        served.lakehouse.table("silver.nothing")


@pytest.mark.parametrize("status", STATUSES)
def test_an_expiry_whose_answer_is_lost_is_known_for_what_it_is(
    served: Platform, rest_server: RestCatalog, status: int
) -> None:
    published(served, "run")
    rollback(served, "run")
    table = served.lakehouse.table(READINGS)
    old = min(table.snapshots(), key=lambda one: one.sequence_number).snapshot_id
    served.lakehouse.tag(READINGS, "needless", old)
    fault = Fault(status, lands=True, ends=TABLE, holds=b'"remove-snapshot-ref"')
    rest_server.proxy.faults.append(fault)
    if status in {401, 419}:  # PyIceberg asks again, and is told that the tag is gone
        forget(served.lakehouse.table(READINGS), refs=["needless"], snapshot_ids=[])
    else:
        with pytest.raises(EnvironmentRefused, match="is unknown"):
            forget(served.lakehouse.table(READINGS), refs=["needless"], snapshot_ids=[])
    assert fault.times == 0
    assert "needless" not in refs(served)


@pytest.mark.parametrize("status", STATUSES)
def test_columns_are_changed_or_the_outcome_is_unknown(served: Platform, rest_server: RestCatalog, status: int) -> None:
    table = served.lakehouse.table(READINGS)
    fields = [one.model_copy(update={"doc": f"{one.doc}, said anew"}) for one in table.schema().fields]
    declared = DeclaredColumns(Schema(*fields))
    fault = Fault(status, ends=TABLE)
    rest_server.proxy.faults.append(fault)
    with suppress(EnvironmentRefused):
        apply_changes(table, declared)
    assert fault.times == 0
    if status not in {401, 419}:
        assert served.lakehouse.table(READINGS).schema().fields[0].doc == table.schema().fields[0].doc
        apply_changes(served.lakehouse.table(READINGS), declared)
    assert served.lakehouse.table(READINGS).schema().fields[0].doc.endswith(", said anew")


def test_a_server_that_is_killed_with_a_commit_landed_is_asked_again_when_it_is_back(
    served: Platform, rest_server: RestCatalog
) -> None:
    validated(served, "run")
    rest_server.proxy.faults.append(Fault(0, lands=True, then=rest_server.kill, **PUBLICATION))
    with pytest.raises(EnvironmentRefused, match=r"the outcome of a commit to silver\.readings is unknown"):
        publish(served, "run")
    with pytest.raises(EnvironmentRefused, match="the catalog 'lake' cannot be used"):
        publish(served, "run")
    rest_server.start()
    publish(served, "run")
    assert landed(served, "run") == 1
    assert agree(served)


def test_the_server_refuses_the_commit_of_a_lost_lease(served: Platform, rest_server: RestCatalog) -> None:
    """The fence lands when the commit is on its way: nothing but the server's own check can refuse it."""
    validated(served, "run")
    other = opened(served.settings.home, catalog=rest_server.properties, **NO_RETENTION)
    taken: list[str] = []

    def take_over() -> None:
        if not taken:
            taken.append("run")
            expire(served)
            cancel(other, "run", "grace", "no")

    rest_server.proxy.faults.append(Fault(-1, then=take_over, **PUBLICATION))
    with pytest.raises(LeaseLost):
        publish(served, "run")
    other.ledger.engine.dispose()
    assert taken
    assert landed(served, "run") == 0
    assert any(is_fence(ref) for ref in refs(served))
    assert state(served, "run") is RunState.CANCELLED
    assert agree(served)
