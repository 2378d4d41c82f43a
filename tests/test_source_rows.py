"""Rows of any number are held against each other by hashes that lie on disk in parts: what differs is found, and memory is a part's."""

from __future__ import annotations

import hashlib
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest

from backfill_assets.reconciliation import row_hashes
from backfill_assets.reconciliation.row_hashes import HashedRows, compared, parts_for, texts_of

KEY = ("id", "part")


def rows_of(numbers: list[int], **changed: Any) -> pl.DataFrame:
    rows = [
        {"id": f"k{one}", "part": one % 5, "day": date(2026, 1, 1 + one % 28), "group": f"g{one % 3}"}
        for one in numbers
    ]
    return pl.DataFrame(
        [{**row, **changed} for row in rows],
        schema={"id": pl.String, "part": pl.Int32, "day": pl.Date, "group": pl.String},
    )


def sides(
    folder: Path, parts: int, theirs: pl.DataFrame, ours: pl.DataFrame
) -> tuple[HashedRows, HashedRows, dict[str, int]]:
    slices: dict[str, int] = {}
    found = []
    for name, rows in (("theirs", theirs), ("ours", ours)):
        side = HashedRows(folder / name, parts, slices)
        for batch in rows.iter_slices(70):
            side.add(batch, KEY, "group")
        found.append(side)
    return found[0], found[1], slices


@pytest.mark.parametrize("parts", [1, 7, 64])
def test_what_differs_is_found_whatever_the_number_of_parts(tmp_path: Path, parts: int) -> None:
    numbers = list(range(1_000))
    theirs = rows_of(numbers[10:])
    ours = pl.concat([rows_of(numbers[:700]), rows_of([700], day=date(2020, 1, 1)), rows_of(numbers[701:990])])
    one, other, slices = sides(tmp_path, parts, theirs.sample(fraction=1, shuffle=True, seed=1), ours)
    found = compared(one, other)
    said: dict[str, set[str]] = {}
    for how, text in [*texts_of([theirs], KEY, found.keys)]:
        said.setdefault(how, set()).add(text)
    assert said["missing"] == {f'{{"id":"k{n}","part":"{n % 5}"}}' for n in range(990, 1_000)}
    assert said["different"] == {'{"id":"k700","part":"0"}'}
    surplus = {text for how, text in texts_of([ours], KEY, found.keys) if how == "surplus"}
    assert surplus == {f'{{"id":"k{n}","part":"{n % 5}"}}' for n in range(10)}
    of = found.slices[slices["g1"]]
    assert of.rows == [sum(n % 3 == 1 for n in range(10, 1_000)), sum(n % 3 == 1 for n in range(990))]
    assert of.differing == {"missing": 3, "surplus": 3, "different": 1}


def test_the_hash_of_a_slice_is_that_of_its_rows_and_of_nothing_else(tmp_path: Path) -> None:
    rows = rows_of(list(range(300)))
    hashes = []
    for number, parts in enumerate((1, 3, 50)):
        shuffled = rows.sample(fraction=1, shuffle=True, seed=number)
        folder = tmp_path / str(number)
        folder.mkdir()
        one, other, slices = sides(folder, parts, rows, shuffled)
        found = compared(one, other)
        assert not found.keys
        hashes += [
            tuple(each.hexdigest() for value in sorted(slices) for each in (found.slices[slices[value]].hashes[side],))
            for side in (0, 1)
        ]
    assert len(set(hashes)) == 1
    assert hashlib.sha256().hexdigest() not in hashes[0]


def test_a_key_of_several_rows_is_counted_wherever_they_came(tmp_path: Path) -> None:
    rows = rows_of(list(range(200)))
    found = compared(*sides(tmp_path, 9, pl.concat([rows, rows[5:8]]), rows)[:2])
    assert found.repeated == [3, 0]
    side = HashedRows(tmp_path / "nulls", 2, {})
    side.add(
        rows[:9].with_columns(pl.when(pl.col("part") == 2).then(None).otherwise(pl.col("part")).alias("part")), KEY, ""
    )
    assert side.without_key == 2


def test_a_part_has_no_more_rows_than_are_held_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_hashes, "PART_ROWS", 100)
    numbers = list(range(5_000))
    Random(2).shuffle(numbers)
    side = HashedRows(tmp_path / "side", parts_for(5_000), {})
    side.add(rows_of(numbers), KEY, "group")
    sizes = [side.part(number).height for number in range(side.parts)]
    assert (side.parts, sum(sizes)) == (50, 5_000)
    assert max(sizes) < 150
