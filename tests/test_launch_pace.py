"""What a launch of some chunks asks and reads, counted: nothing of it may grow with the other chunks of the run.

A run of many small chunks is launched some hundreds of chunks at a time, so that what each launch takes for all of them makes the
whole grow by the square. The table is the benchmarks' of hours and tenants, without Spark.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa

from backfill_assets.defs.launch import announce_approval, initialise_instance, instance_at, run_chunks
from backfill_assets.defs.staging import ChunkKeys, chunk_partitions
from backfill_assets.gates import judging
from backfill_assets.installation import Platform
from backfill_assets.publication.publisher import publish
from backfill_assets.staging import executor
from benchmarks import many_chunks, small_table
from manifests.chunks import time_of
from manifests.division import ByValue
from manifests.lifecycle import RunState
from resources.ledger import cells, chunks
from resources.ledger.facade import RunRecord

TENANTS = many_chunks.TENANTS[:6]
TARGET = replace(many_chunks.TARGET, chunk_values=ByValue("tenant", TENANTS), chunks_until="2020-01-02T23")


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    many_chunks.initialise(tmp_path / "home")
    with small_table.declared(TARGET, many_chunks.compute):
        opened = small_table.opened(tmp_path / "home")
        yield opened
        small_table.closed(opened)


@pytest.fixture
def instance(platform: Platform) -> Iterator[dg.DagsterInstance]:
    initialise_instance(platform.settings)
    with instance_at(platform.settings) as instance:
        yield instance


def planned(platform: Platform, run_id: str, tenants: Sequence[str]) -> RunRecord:
    """Have a run over a day of some tenants approved."""
    return small_table.planned(platform, many_chunks.manifest(run_id, many_chunks.FIRST, 1, tenants))


def hours_of(record: RunRecord, tenant: str) -> list[str]:
    """Return the chunks of a tenant: a stretch without a gap."""
    return [chunk.key for chunk in record.plan.chunks if chunk.part == tenant]


def counted(platform: Platform, launch: Callable[[], object]) -> Counter[str]:
    """Do something, and return how often the ledger was asked meanwhile, and how much was read of it."""
    found: Counter[str] = Counter()

    def is_counted() -> bool:
        return threading.current_thread() is threading.main_thread()  # others go by the clock

    def asked(*_: Any) -> None:
        found["statement"] += is_counted()

    def row_read(_: Any, row: tuple[Any, ...]) -> tuple[Any, ...]:
        found["row read"] += is_counted()
        return row

    def count_rows(connection: Any, *_: Any) -> None:
        connection.row_factory = row_read

    engine = platform.ledger.engine
    engine.dispose()
    sa.event.listen(engine, "before_cursor_execute", asked)
    sa.event.listen(engine, "checkout", count_rows)
    with pytest.MonkeyPatch.context() as patch:
        for what, module, name in (("chunk", chunks, "_chunk_record"), ("text parsed", cells, "data_of")):
            real = getattr(module, name)

            def counting(*arguments: Any, real: Any = real, what: str = what, **named: Any) -> Any:
                found[what] += 1
                return real(*arguments, **named)

            patch.setattr(module, name, counting)
        try:
            launch()
        finally:
            sa.event.remove(engine, "before_cursor_execute", asked)
            sa.event.remove(engine, "checkout", count_rows)
            engine.dispose()
    assert found["row read"] > found["chunk"]
    return found


def gated(platform: Platform, run_id: str, keys: Sequence[str]) -> Counter[str]:
    """Compute chunks and gate them, as a Dagster run does; return what that took."""

    def launch() -> None:
        executor.stage_chunks(platform, run_id, keys)
        judging.gate_chunks(platform, run_id)
        assert judging.gate_run(platform, run_id) is None

    return counted(platform, launch)


def test_what_a_step_of_a_launch_reads_does_not_grow_with_the_run(platform: Platform) -> None:
    runs = planned(platform, "few", TENANTS[:3]), planned(platform, "many", TENANTS)
    first, *others = (gated(platform, one.run_id, hours_of(one, TENANTS[0])) for one in runs)
    assert others == [first]

    more = [gated(platform, "many", hours_of(runs[1], tenant)) for tenant in TENANTS[1:-1]]
    assert all(one == more[0] for one in more)  # nor with what is staged and judged by now
    assert more[0]["chunk"] == len(hours_of(runs[1], TENANTS[0]))  # to be gated


def test_what_a_dagster_run_reads_does_not_grow_with_the_run(platform: Platform, instance: dg.DagsterInstance) -> None:
    found = []
    for record, tenants in ((planned(platform, "few", TENANTS[:3]), 2), (planned(platform, "many", TENANTS), 5)):
        announce_approval(platform, instance, record)
        for tenant in TENANTS[:tenants]:
            failed: list[str] = []
            keys = hours_of(record, tenant)
            took = counted(platform, lambda: run_chunks(platform, instance, record, keys, failed=failed.append))  # noqa: B023
            assert not failed
            if tenant != TENANTS[0]:  # with which the run begins
                found.append(took)
        assert platform.ledger.run(record.run_id).state is RunState.RUNNING

    assert all(one == found[0] for one in found)
    assert found[0]["chunk"] == 2 * 24  # to be gated, and to be told


def test_what_the_holder_of_some_chunks_has_besides_is_not_read(platform: Platform) -> None:
    for run_id, tenants in (("alone", TENANTS[:1]), ("besides", TENANTS[1:])):
        planned(platform, run_id, tenants)
        small_table.staged(platform, run_id)
        publish(platform, run_id)
    again = planned(platform, "again", TENANTS)

    small = gated(platform, "again", hours_of(again, TENANTS[0]))
    large = gated(platform, "again", hours_of(again, TENANTS[1]))

    assert large["chunk"] == small["chunk"] == 24
    assert large["row read"] <= small["row read"]


def test_a_run_that_is_staged_says_how_many_chunks_it_has_and_one_that_failed_names_them(platform: Platform) -> None:
    record = planned(platform, "run", TENANTS[:2])
    executor.stage_chunks(platform, "run", [chunk.key for chunk in record.plan.chunks])
    assert platform.ledger.run("run").state is RunState.STAGED
    assert platform.ledger.run("run").state_reason == "48 chunks staged"

    broken = planned(platform, "broken", TENANTS[:1])
    keys = hours_of(broken, TENANTS[0])

    def compute(run: Any, batch: Any, prefix: str, *more: Any) -> Any:
        if any(chunk.key in keys[3:5] for chunk in batch):
            raise RuntimeError("a bad hour")
        return many_chunks.compute(run, batch, prefix, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "compute_batch", compute)
        executor.stage_chunks(platform, "broken", keys)
    assert platform.ledger.run("broken").state is RunState.FAILED
    assert platform.ledger.run("broken").state_reason.startswith("2 chunk(s) failed: ")


def test_the_keys_of_chunks_are_found_where_dagster_finds_them() -> None:
    ours = chunk_partitions(TARGET)
    assert isinstance(ours, ChunkKeys)
    keys = list(ours.get_partition_keys())
    assert [time_of(key) for key in keys[:48]] == [time_of(key) for key in keys[48:96]]  # a tenant after the other
    theirs = dg.StaticPartitionsDefinition(keys)
    assert ours == theirs
    for first, last in ((0, 0), (3, 60), (0, len(keys) - 1), (60, 3), (len(keys) - 1, len(keys) - 1)):
        asked = dg.PartitionKeyRange(keys[first], keys[last])
        assert ours.get_partition_keys_in_range(asked) == theirs.get_partition_keys_in_range(asked)
    assert [one.has_partition_key(key) for key in (keys[7], "no-chunk") for one in (ours, theirs)] == [True] * 2 + [
        False
    ] * 2
    unknown = dg.PartitionKeyRange(keys[0], "no-chunk")
    for one in (ours, theirs):
        with pytest.raises(dg.DagsterInvalidInvocationError, match="no-chunk"):
            one.get_partition_keys_in_range(unknown)


def test_a_key_is_found_without_a_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = chunk_partitions(TARGET)
    some = dg.PartitionKeyRange(keys.get_partition_keys()[10], keys.get_partition_keys()[12])
    monkeypatch.setattr(keys, "_partition_keys", _Unsearched(keys.get_partition_keys()))
    assert keys.has_partition_key(some.end)
    assert len(keys.get_partition_keys_in_range(some)) == 3
    assert chunk_partitions(replace(TARGET, description="the same keys")) is keys


class _Unsearched(list[str]):
    """A list that nobody may look through."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("each key was looked at")

    def __contains__(self, _: object) -> bool:
        raise AssertionError("each key was looked at")

    def index(self, *_: Any) -> int:
        raise AssertionError("each key was looked at")
