"""How a batch is laid out before Spark writes it."""

from __future__ import annotations

from collections import Counter
from datetime import date
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.compute import slots_of
from manifests.planner import Estimate, PlannedChunk
from resources.spark import OPEN_FILES

DAY = date(2012, 1, 1)


def chunks(reads: list[int]) -> list[PlannedChunk]:
    return [PlannedChunk(str(number), number, DAY, DAY, Estimate(1, rows, rows)) for number, rows in enumerate(reads)]


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=250), st.integers(1, 64))
def test_chunks_share_a_partition_in_order_and_never_more_than_it_has_files_open(reads: list[int], cores: int) -> None:
    slots = slots_of(chunks(reads), cores)
    assert len(slots) == len(reads)
    assert slots[0] == 0
    assert {after - before for before, after in pairwise(slots)} <= {0, 1}
    assert max(Counter(slots).values()) <= OPEN_FILES
    assert len(set(slots)) >= min(len(reads), cores)


def test_a_large_chunk_has_a_partition_of_its_own_and_small_ones_share() -> None:
    assert slots_of(chunks([25_000] * 162), 2) == tuple(range(162))
    assert len(set(slots_of(chunks([400] * 24), 2))) == 4
    assert slots_of(chunks([400] * 24), 64) == tuple(range(24))
    assert slots_of(chunks([0]), 8) == (0,)
