"""The diff of a run against a naive one, and the table of its changed rows."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType
from rich.console import Console
from worlds import FEW_GATES, KEY, NUMBERS, TARGET, VALUES, World, killed_at, make_world

from backfill_assets.cli import diff_view
from backfill_assets.cli.command import cli
from backfill_assets.evidence.diff_records import ChunkDiff, RunDiff
from backfill_assets.operations.garbage import find
from backfill_assets.publication.ending import cancel
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.review.diff import Made, diff_run, diff_summary, recorded_diff, stale_chunks
from backfill_assets.worker import changed_rows as rows_module
from backfill_assets.worker import chunk_diff as compare_module
from backfill_assets.worker.changed_rows import CompareSpec, Concealed, RowsKept, key_columns, spread
from backfill_assets.worker.chunk_diff import CompareTask, compare, comparing
from manifests.errors import InputRefused
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.data_files import data_files
from resources.ledger.transactions import system_clock as now

SCOPE = (date(2010, 3, 1), date(2010, 5, 31))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world whose history of five months is published by 2.4.1, with its bug; nothing is in the two after them."""
    made = make_world(tmp_path_factory.mktemp("diff") / "home", cases=120, end=date(2010, 7, 31), gates=FEW_GATES)
    history = made.scope(made.start, SCOPE[1])
    made.published(made.manifest("history", version="2.4.1", target=history))
    return made


def validated(world: World, run_id: str, target: dict[str, Any]) -> str:
    return world.validated(world.manifest(run_id, target=target)).run_id


def target(mode: str = "REPLACE_PARTITIONS", **options: Any) -> dict[str, Any]:
    return {
        "table": TARGET,
        "publishMode": mode,
        "publishRange": {"start": SCOPE[0], "end": SCOPE[1]},
        **options,
    }


def in_scope(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("business_date").is_between(*SCOPE))


def computed(world: World, run_id: str) -> pl.DataFrame:
    files = [file.path for chunk in world.platform.ledger.chunks(run_id) for file in chunk.files]
    return pl.concat([pl.read_parquet(path.removeprefix("file://")) for path in files])


def naive(old: pl.DataFrame, new: pl.DataFrame) -> dict[tuple[Any, ...], tuple[str, Any, Any]]:
    """Every key with its kind of change and its rows, by dictionaries."""

    def rows(frame: pl.DataFrame) -> dict[tuple[Any, ...], dict[str, Any]]:
        return {tuple(row[name] for name in KEY): row for row in frame.select(*KEY, *VALUES).to_dicts()}

    before, after = rows(old), rows(new)
    found = {}
    for key in before.keys() | after.keys():
        one, other = before.get(key), after.get(key)
        kind = "ADDED" if one is None else "REMOVED" if other is None else "UNCHANGED" if one == other else "CHANGED"
        found[key] = (kind, one, other)
    return found


def require_same(diff: Any, expected: dict[tuple[Any, ...], tuple[str, Any, Any]]) -> None:
    by_chunk = Counter((key[2].isoformat()[:7], kind) for key, (kind, _, _) in expected.items())
    for chunk in diff.chunks:
        for kind in ("ADDED", "REMOVED", "CHANGED", "UNCHANGED"):
            assert getattr(chunk, kind.lower()) == by_chunk[chunk.chunk, kind], (chunk.chunk, kind)
    assert sum(by_chunk.values()) == diff.added + diff.removed + diff.changed + diff.unchanged
    both = [(old, new) for kind, old, new in expected.values() if kind == "CHANGED"]
    for column in diff.columns:
        assert column.changed == sum(old[column.column] != new[column.column] for old, new in both), column
        if column.column in NUMBERS:
            for side, text in ((1, column.before), (2, column.after)):
                values = [entry[side][column.column] for entry in expected.values() if entry[side] is not None]
                assert Decimal(text) == sum((Decimal(value) for value in values if value is not None), Decimal(0))
            assert Decimal(column.delta) == Decimal(column.after) - Decimal(column.before)
        else:
            assert column.before is None


@pytest.fixture(scope="module")
def restated(world: World) -> str:
    """A validated restatement of three months, which nobody has published."""
    return validated(world, "restated", target())


@pytest.fixture(scope="module")
def other(world: World) -> str:
    """Another one, with a name longer than the bounds that Iceberg keeps of a text."""
    return validated(world, f"other-{'x' * 50}", target())


def test_the_diff_of_a_restatement_is_the_naive_one(world: World, restated: str) -> None:
    before = in_scope(world.rows())
    diff = diff_run(world.platform, restated, largest=3, sample=2).diff
    expected = naive(before, computed(world, restated))
    require_same(diff, expected)
    assert min(diff.added, diff.removed, diff.changed, diff.unchanged) > 0
    by_text = {tuple(map(str, key)): entry for key, entry in expected.items()}
    for row in [*diff.sample, *diff.largest]:
        kind, old, new = by_text[tuple(map(str, row["key"].values()))]
        assert kind == row["kind"]
        for side, found in ((old, row["old"]), (new, row["new"])):
            assert (found is None) == (side is None)
            assert all(str(side[name]) == str(value) for name, value in (found or {}).items())
    strata = Counter((row["chunk"], row["kind"]) for row in diff.sample)
    expected_strata = Counter((key[2].isoformat()[:7], kind) for key, (kind, _, _) in expected.items())
    assert strata == {place: min(2, n) for place, n in expected_strata.items() if place[1] != "UNCHANGED"}
    moved = [
        abs((new["started_on"] - old["started_on"]).days) for kind, old, new in expected.values() if kind == "CHANGED"
    ]
    largest = [abs(int(r["by"])) for r in diff.largest if (r["column"], r["kind"]) == ("started_on", "CHANGED")]
    assert largest == sorted(moved, reverse=True)[:3]
    # the same rows give the same diff, and what is on record is not made again
    again = diff_run(world.platform, restated)
    assert not again.new
    assert again.diff == recorded_diff(world.platform, restated)
    assert diff_summary(world.platform, restated)["changed"] == diff.changed  # type: ignore[index]


def test_a_chunk_is_compared_in_ranges_of_its_key_where_it_is_large(
    world: World, restated: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    new = computed(world, restated).filter(pl.col("business_date").dt.month() == 3).sort(KEY)
    old = world.rows().filter(pl.col("business_date").is_between(SCOPE[0], date(2010, 3, 31))).sort(KEY)
    paths: dict[str, tuple[str, ...]] = {}
    for side, rows in (("old", old), ("new", new)):
        third = rows.height // 3 + 1
        for number in range(3):
            rows.slice(number * third, third).write_parquet(tmp_path / f"{side}-{number}.parquet")
        paths[side] = tuple(str(tmp_path / f"{side}-{number}.parquet") for number in range(3))
    spec = CompareSpec("run", tuple(KEY), tuple(VALUES), 3, 3)
    task = CompareTask("2010-03", paths["old"], paths["new"], ())
    whole = compare(spec, [task])[0]
    monkeypatch.setattr(compare_module, "SLICE_ROWS", 10)
    assert len(list(compare_module._slices(spec, [task], {}))) > 3
    parts = compare(spec, [task])[0]
    assert parts == whole
    assert whole[0].kinds["CHANGED"] + whole[0].kinds["ADDED"] > 0


def rows_of(values: dict[int, tuple[Any, ...]]) -> pl.DataFrame:
    schema = {"id": pl.Int64, "number": pl.Int32, "money": pl.Decimal(12, 2), "day": pl.Date, "text": pl.String}
    rows = [(key, *value) for key, value in sorted(values.items())]
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(run_id=pl.lit("before"))


_value = st.tuples(
    st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
    st.one_of(st.none(), st.decimals(-1000, 1000, places=2)),
    st.one_of(st.none(), st.dates(date(2000, 1, 1), date(2030, 1, 1))),
    st.sampled_from([None, "", "a", "b"]),
)
_side = st.dictionaries(st.integers(0, 12), _value, max_size=10)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_side, _side, st.dictionaries(st.integers(20, 25), _value, max_size=4))
def test_every_key_is_of_one_kind(tmp_path: Path, old: Any, new: Any, same: Any) -> None:
    paths = []
    for name, values in (("old", old), ("new", new), ("same", same)):
        path = tmp_path / f"{name}.parquet"
        rows_of(values).write_parquet(path)
        paths.append((str(path),))
    spec = CompareSpec("run", ("id",), ("number", "money", "day", "text"), 100, 100)
    found, largest, sample = compare(spec, [CompareTask("x", *paths)])[0]
    kinds = {
        key: "ADDED" if key not in old else "REMOVED" if key not in new else "CHANGED"
        for key in old.keys() | new.keys()
        if old.get(key) != new.get(key) or (key in old) != (key in new)
    }
    assert found.kinds == {kind: list(kinds.values()).count(kind) for kind in ("ADDED", "REMOVED", "CHANGED")}
    assert found.unchanged == len(same) + len(old.keys() & new.keys()) - found.kinds["CHANGED"]
    assert {row["key"]["id"]: row["kind"] for row in sample} == kinds
    for place, name in enumerate(spec.values):
        changed = [key for key, kind in kinds.items() if kind == "CHANGED" and old[key][place] != new[key][place]]
        assert found.columns[name] == len(changed)
        for row in sample:
            if row["kind"] == "CHANGED":
                assert (name in row["new"]) == (row["key"]["id"] in changed)
    for name, place in (("number", 0), ("money", 1)):
        before, after = found.sums[name]
        assert before == sum(value[place] or 0 for value in [*old.values(), *same.values()])
        assert after == sum(value[place] or 0 for value in [*new.values(), *same.values()])
        moved = [Decimal(row["by"]) for rows in largest.values() for row in rows if row["column"] == name]
        assert sum(moved) == after - before  # every row that moved is there, as many as asked for were


_chunk = st.tuples(st.one_of(st.none(), _side), st.one_of(st.none(), _side), st.sampled_from(["", "twice", "cut"]))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_chunk, min_size=2, max_size=6))
def test_chunks_that_are_compared_together_are_as_each_by_itself(tmp_path: Path, chunks: Any) -> None:
    tasks = []
    for place, (old, new, fault) in enumerate(chunks):
        paths: dict[str, tuple[str, ...]] = {"old": (), "new": ()}
        for name, values in (("old", old), ("new", new)):
            path = tmp_path / f"{place}-{name}.parquet"
            if values is not None:  # no file at all, or one without rows
                rows_of(values).write_parquet(path)
                paths[name] = (str(path),)
        if paths["new"] and fault == "twice":
            paths["new"] *= 2
        if paths["new"] and fault == "cut":
            Path(paths["new"][0]).write_bytes(Path(paths["new"][0]).read_bytes()[:-20])
        tasks.append(CompareTask(f"chunk-{place}", paths["old"], paths["new"], ()))
    spec = CompareSpec("run", ("id",), ("number", "money", "day", "text"), 2, 2)
    alone, together = [compare(spec, [task])[0] for task in tasks], compare(spec, tasks)
    assert [found for found, _, _ in together] == [found for found, _, _ in alone]
    assert kept_of(spec, together) == kept_of(spec, alone)
    assert len(list(compare_module._groups(tasks))) <= 1 + sum(found.unreadable != "" for found, _, _ in alone) * 2


def kept_of(spec: CompareSpec, compared: list[Any]) -> RowsKept:
    """The rows that are kept of chunks, one added after the other."""
    kept = RowsKept(spec)
    for _, largest, sample in compared:
        kept.add(largest, sample)
    return kept


@pytest.mark.parametrize("limit", ["TOGETHER_ROWS", "TOGETHER_BYTES"])
def test_the_files_of_a_chunk_that_is_too_large_are_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """It is compared alone, whatever comes after it, since what is compared together is in memory at once."""
    path = tmp_path / "file.parquet"
    rows_of({number: (number, number, 1, "x") for number in range(10)}).write_parquet(path)
    large, small, empty = (CompareTask(f"chunk-{files}", (), (), (str(path),) * files) for files in (4, 1, 0))
    monkeypatch.setattr(compare_module, limit, 25 if limit == "TOGETHER_ROWS" else 3 * path.stat().st_size)
    read: list[str] = []
    real = compare_module.held
    monkeypatch.setattr(compare_module, "held", lambda one: read.append(one) or real(one))
    groups = list(compare_module._groups([small, large, empty, small, small]))
    assert [[task.chunk for task in together] for together, _ in groups] == [
        ["chunk-1"],
        ["chunk-4"],
        ["chunk-0", "chunk-1", "chunk-1"],
    ]
    assert [len(known) for _, known in groups] == [1, 0, 1]


def test_small_chunks_are_read_by_one_query_a_side_and_few_of_their_rows_are_made_into_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = []
    for chunk in range(30):
        files = []
        for side in (0, 1):
            values = {key: (chunk + key * side, None, None, "a") for key in range(1, 4)}
            rows_of(values).write_parquet(tmp_path / f"{chunk}-{side}.parquet")
            files.append((str(tmp_path / f"{chunk}-{side}.parquet"),))
        tasks.append(CompareTask(f"chunk-{chunk}", files[0], files[1], ()))
    spec = CompareSpec("run", ("id",), ("number", "money", "day", "text"), 2, 1)
    alone = kept_of(spec, [compare(spec, [task])[0] for task in tasks])
    calls: Counter[str] = Counter()
    for module, name in ((pl, "scan_parquet"), (rows_module, "_row")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, of=real, its=name, **k: calls.update([its]) or of(*a, **k))
    *found, kept = comparing(spec).do(iter(tasks))
    assert calls == {"scan_parquet": 2, "_row": 2 + len(tasks)}
    assert [one.kinds["CHANGED"] for one in found] == [3] * len(tasks)
    assert (kept.largest, kept.sample) == (alone.largest, alone.sample)


@pytest.mark.parametrize("named", [False, True])
def test_of_very_many_rows_that_moved_as_far_those_of_the_smallest_keys_are_kept(tmp_path: Path, named: bool) -> None:
    keys = [number * 7 % 3_001 for number in range(3_000)]
    rows = pl.DataFrame({"id": keys, "number": 1, "run_id": "before"}, schema_overrides={"number": pl.Int64})
    rows = rows.with_columns(name=pl.col("id").cast(pl.String).str.zfill(4))
    rows.write_parquet(tmp_path / "old.parquet")
    moved = pl.when(pl.col("id") == 2_000).then(9).otherwise(pl.when(pl.col("id") != 5).then(4).otherwise(1))
    rows.with_columns(number=moved.cast(pl.Int64)).write_parquet(tmp_path / "new.parquet")
    spec = CompareSpec("run", ("name", "id") if named else ("id",), ("number",), 4, 0)
    task = CompareTask("x", (str(tmp_path / "old.parquet"),), (str(tmp_path / "new.parquet"),), ())
    found, largest, _ = compare(spec, [task])[0]
    assert [(row["key"]["id"], row["by"]) for row in largest["number|CHANGED"]] == [
        (2_000, "8"),
        *((key, "3") for key in sorted({*keys} - {5})[:3]),
    ]
    assert found.kinds["CHANGED"] == 2_999


@pytest.mark.parametrize("name", ["kind", "changed_columns", "key", "place", "column", "by", "number_old", "hash"])
@pytest.mark.parametrize("is_key", [True, False])
def test_a_column_may_be_named_as_what_is_said_of_changed_rows(tmp_path: Path, name: str, *, is_key: bool) -> None:
    renamed = {"id" if is_key else "text": name}
    sides = {
        "old": {1: (1, None, None, "a"), 2: (2, None, None, "b")},
        "new": {1: (5, None, None, "c"), 3: (3, None, None, "d")},
    }
    for side, rows in sides.items():
        rows_of(rows).rename(renamed).write_parquet(tmp_path / f"{side}.parquet")
    key, values = (name,) if is_key else ("id",), ("number", "text" if is_key else name)
    told = key_columns(key, values)
    columns = [
        "run_id",
        "chunk",
        "kind",
        *told.values(),
        *(f"{one}_{side}" for side in ("old", "new") for one in values),
        "run_id_old",
    ]
    numbers = {told[key[0]]: LongType(), "number_old": IntegerType(), "number_new": IntegerType()}
    fields = [NestedField(at, one, numbers.get(one, StringType()), required=False) for at, one in enumerate(columns, 1)]
    listed = ListType(element_id=len(columns) + 2, element_type=StringType(), element_required=False)
    schema = Schema(*fields, NestedField(len(columns) + 1, "changed_columns", listed, required=False))
    spec = CompareSpec("run", key, values, 5, 5, schema=schema.model_dump_json())
    paths = [(str(tmp_path / f"{side}.parquet"),) for side in sides]
    found, largest, sample = compare(spec, [CompareTask("x", *paths, (), output=str(tmp_path / "table"))])[0]
    assert found.kinds == {"ADDED": 1, "REMOVED": 1, "CHANGED": 1}
    own = {row["kind"]: (row["key"], row["old"], row["new"]) for row in sample}
    changed = {"number": 1, values[1]: "a"}, {"number": 5, values[1]: "c"}
    assert own["CHANGED"] == ({key[0]: 1}, *changed)
    assert [row["by"] for row in largest["number|CHANGED"]] == ["4"]
    written = pl.read_parquet(tmp_path / "table" / "*.parquet").sort("kind")
    assert written.select("kind", told[key[0]], f"{values[1]}_new").rows() == [
        ("ADDED", 3, "d"),
        ("CHANGED", 1, "c"),
        ("REMOVED", 2, None),
    ]


def test_what_the_policy_conceals_is_counted_and_not_shown(tmp_path: Path) -> None:
    old, new = tmp_path / "old.parquet", tmp_path / "new.parquet"
    rows_of({1: (1, None, None, "ann"), 2: (2, None, None, "bob"), 3: (3, None, None, "c" * 64)}).write_parquet(old)
    rows_of({1: (9, None, None, "ann"), 3: (4, None, None, "new")}).write_parquet(new)
    hidden = Concealed(
        "text", frozenset({sha256(b"ann").hexdigest()}), {"text": ("HASH", None), "number": ("NULL", None)}
    )
    spec = CompareSpec("run", ("id",), ("number", "money", "day", "text"), 100, 100, concealed=hidden)
    found, largest, sample = compare(spec, [CompareTask("x", (str(old),), (str(new),), ())])[0]
    assert (found.kinds, found.concealed) == ({"ADDED": 0, "REMOVED": 1, "CHANGED": 2}, 1)
    assert found.sums["number"] == [6, 13]  # totals name nobody
    shown = {row["key"]["id"]: (row["old"], row["new"]) for row in sample}
    bob = {"number": None, "money": None, "day": None, "text": sha256(b"bob").hexdigest()}
    # what looks like a hash is one: the run before was masked already
    assert shown == {2: (bob, None), 3: ({"number": None, "text": "c" * 64}, {"number": 4, "text": "new"})}
    assert {row["key"]["id"] for rows in largest.values() for row in rows} == {3}
    # who is erased may be on the new side only: staged before that
    new_only = replace(spec, concealed=Concealed("text", frozenset({sha256(b"new").hexdigest()})))
    found, _, sample = compare(new_only, [CompareTask("x", (str(old),), (str(new),), ())])[0]
    assert (found.concealed, {row["key"]["id"] for row in sample}) == (1, {1, 2})


def test_a_key_that_is_there_twice_is_said_not_counted(tmp_path: Path) -> None:
    twice = pl.concat([rows_of({1: (1, None, None, "a")}), rows_of({1: (2, None, None, "b")})])
    once = rows_of({1: (1, None, None, "a")})
    twice.write_parquet(tmp_path / "twice.parquet")
    once.write_parquet(tmp_path / "once.parquet")
    spec = CompareSpec("run", ("id",), ("number", "text"), 1, 1)
    for old, new in (("twice", "once"), ("once", "twice"), ("twice", "twice")):
        task = CompareTask("x", (str(tmp_path / f"{old}.parquet"),), (str(tmp_path / f"{new}.parquet"),), ())
        assert compare(spec, [task])[0][0].duplicates
    task = CompareTask("x", (str(tmp_path / "once.parquet"),), (str(tmp_path / "once.parquet"),), ())
    assert not compare(spec, [task])[0][0].duplicates


@pytest.mark.parametrize("side", ["old", "new", "both"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, side: str) -> None:
    rows_of({1: (1, None, None, "a")}).write_parquet(tmp_path / "sound.parquet")
    whole = (tmp_path / "sound.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    spec = CompareSpec("run", ("id",), ("number", "text"), 1, 1)
    files = {"old": ("sound",), "new": ("sound",), "both": ()} | {side: ("cut",)}
    task = CompareTask("x", *(tuple(str(tmp_path / f"{name}.parquet") for name in names) for names in files.values()))
    assert compare(spec, [task])[0][0].unreadable.startswith(f"{tmp_path / 'cut.parquet'}: ComputeError: ")


def test_a_sample_has_every_kind_before_any_chunk_twice() -> None:
    rows = [
        {"kind": kind, "rank": rank, "hash": number, "key": {"id": number}}
        for number, (kind, rank) in enumerate([("ADDED", 0), ("ADDED", 1), ("CHANGED", 0)] * 40 + [("REMOVED", 0)])
    ]
    chosen = spread(rows, 6)
    assert Counter(row["kind"] for row in chosen) == {"ADDED": 3, "CHANGED": 2, "REMOVED": 1}
    assert {row["rank"] for row in chosen} == {0}


# --- other ways of publishing -----------------------------------------------------------------------------------------


def test_of_a_merge_it_is_what_readers_will_have(world: World) -> None:
    before = world.rows()
    cases = sorted(in_scope(before)["case_id"].unique())[:12]
    run_id = validated(world, "merged", target("MERGE_BY_KEY", merge={"entities": cases}))
    diff = diff_run(world.platform, run_id).diff
    publish(world.platform, run_id)
    after = world.rows()
    rollback(world.platform, run_id)
    require_same(diff, naive(in_scope(before), in_scope(after)))
    assert 0 < diff.changed + diff.added + diff.removed < in_scope(before).height
    assert not diff_run(world.platform, run_id).new  # it is the same one after the publication and its rollback


def test_of_corrections_it_is_what_they_say(world: World) -> None:
    before = in_scope(world.rows())
    run_id = validated(world, "corrected", target("CORRECTION_EVENTS"))
    diff = diff_run(world.platform, run_id).diff
    require_same(diff, naive(before, computed(world, run_id)))
    counted = Counter[str]()
    for chunk in world.platform.ledger.chunks(run_id):
        counted.update(chunk.measures["happened"])
    assert (diff.added, diff.changed, diff.removed) == tuple(counted[name] for name in ("added", "changed", "removed"))


@pytest.fixture(scope="module")
def first(world: World) -> str:
    return validated(world, "first", world.scope(date(2010, 6, 1), world.end) | {"publishMode": "APPEND_ONLY"})


def test_first_rows_are_all_added(world: World, first: str) -> None:
    diff = diff_run(world.platform, first).diff
    rows = sum(chunk.rows or 0 for chunk in world.platform.ledger.chunks(first))
    assert (diff.added, diff.removed, diff.changed, diff.unchanged) == (rows, 0, 0, 0)
    assert rows > 0


def test_a_run_that_is_not_staged_whole_is_refused(world: World) -> None:
    record = world.approved(world.manifest("half", target=target()))
    world.stage(record, ["2010-03"])
    with pytest.raises(InputRefused, match="2 of 3 chunks are not staged"):
        diff_run(world.platform, "half", table=True)
    with pytest.raises(InputRefused, match="unknown"):
        diff_run(world.platform, "nobody")
    assert diff_summary(world.platform, "half") is None


# --- the table --------------------------------------------------------------------------------------------------------


def changed_rows(world: World, run_id: str) -> pl.DataFrame:
    table = world.platform.lakehouse.table(f"{TARGET}_changes")
    frame = pl.from_arrow(table.scan(row_filter=f"run_id == '{run_id}'").to_arrow())
    assert isinstance(frame, pl.DataFrame)
    return frame.sort(KEY)


def snapshots_of_changes(world: World) -> int:
    table = world.platform.lakehouse.table(f"{TARGET}_changes")
    return sum(bool(snapshot.summary and snapshot.summary.get("backfill.diff-id")) for snapshot in table.snapshots())


def files_below(world: World, run_id: str) -> set[str]:
    location = world.platform.lakehouse.location(f"{TARGET}_changes").removeprefix("file://")
    return {str(file) for file in Path(location, f"run={run_id}").rglob("*") if file.is_file()}


def test_the_changes_table_holds_every_changed_row_once(world: World, restated: str) -> None:
    expected = naive(in_scope(world.rows()), computed(world, restated))
    made = diff_run(world.platform, restated, table=True)
    assert made.table is not None
    rows = changed_rows(world, restated)
    assert rows.height == made.table.rows == sum(kind != "UNCHANGED" for kind, _, _ in expected.values())
    for row in rows.to_dicts():
        kind, old, new = expected[tuple(row[name] for name in KEY)]
        assert row["kind"] == kind
        assert row["chunk"] == row["business_date"].isoformat()[:7]
        for name in VALUES:
            assert row[f"{name}_old"] == (None if old is None else old[name])
            assert row[f"{name}_new"] == (None if new is None else new[name])
        differing = [name for name in VALUES if old and new and old[name] != new[name]]
        assert row["changed_columns"] == differing
        assert row["run_id_old"] == (None if old is None else "history")
    snapshots = snapshots_of_changes(world)
    again = diff_run(world.platform, restated, table=True)
    assert not again.new
    assert again.table == made.table
    assert snapshots_of_changes(world) == snapshots
    assert diff_summary(world.platform, restated)["changes_table"]["rows"] == rows.height  # type: ignore[index]


def test_a_diff_that_was_killed_ends_as_if_it_had_not_been(
    world: World, restated: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    diff_run(world.platform, restated, table=True)
    before = snapshots_of_changes(world)
    with killed_at("comparing.written", monkeypatch):
        diff_run(world.platform, other, table=True)
    assert changed_rows(world, other).height == 0
    Path(f"{min(files_below(world, other))}.partial").write_text("half a file")
    with killed_at("comparing.committed", monkeypatch):
        diff_run(world.platform, other, table=True)
    made = diff_run(world.platform, other, table=True)
    assert made.table is not None
    assert snapshots_of_changes(world) == before + 1
    rows = changed_rows(world, other)
    assert rows.height == made.table.rows == made.diff.differing
    assert rows.select(KEY).is_unique().all()
    assert len(files_below(world, other)) == made.table.files


def test_a_chunk_computed_anew_makes_another_diff(world: World, other: str) -> None:
    """Its rows take the place of the first ones, and both summaries stay on record."""
    first = diff_run(world.platform, other, table=True)
    ledger = world.platform.ledger
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql(
            f"UPDATE chunks SET state = 'PLANNED', files = '[]' WHERE run_id = '{other}' AND idx = 1"
        )
        connection.exec_driver_sql(f"UPDATE runs SET state = 'FAILED' WHERE run_id = '{other}'")
    world.stage(ledger.run(other))
    second = diff_run(world.platform, other, table=True)
    assert second.new
    assert second.diff.diff_id != first.diff.diff_id
    assert (second.diff.chunks, second.diff.sample) == (first.diff.chunks, first.diff.sample)
    assert changed_rows(world, other).height == second.diff.differing
    records = world.platform.evidence.folder / other / "records"
    names = {"diff.json", "diff-2.json", "diff-table.json", "diff-table-2.json"}
    assert {file.name for file in records.glob("diff*")} == names
    assert recorded_diff(world.platform, other) == second.diff


def test_of_two_diffs_at_once_one_puts_the_rows_there(world: World, restated: str) -> None:
    """A commit on metadata older than another one's of the same run is refused: it finds the rows when it is repeated."""
    diff_run(world.platform, restated, table=True)
    lakehouse, name = world.platform.lakehouse, f"{TARGET}_changes"
    table, late = lakehouse.table(name), lakehouse.table(name)
    source = Path(min(files_below(world, restated)))
    rows = pl.read_parquet(source).with_columns(run_id=pl.lit("at-once")).to_arrow()
    file = source.with_name("at-once.parquet")
    pq.write_table(rows.cast(schema_to_pyarrow(table.schema())), file)
    where, new = EqualTo(term="run_id", value="at-once"), data_files(table, [f"file://{file}"])
    commit_replacement(table, where, [], new, {"backfill.run-id": "at-once"})
    with pytest.raises(ValidationException):
        commit_replacement(late, where, [], new, {"backfill.run-id": "at-once"})
    assert changed_rows(world, "at-once").height == rows.num_rows


def test_what_a_killed_diff_has_left_of_a_run_that_is_over_is_garbage(
    world: World, first: str, restated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    diff_run(world.platform, restated, table=True)
    with killed_at("comparing.written", monkeypatch):
        diff_run(world.platform, first, table=True)
    left = files_below(world, first)
    assert len(left) == len(world.platform.ledger.run(first).plan.chunks)
    cancel(world.platform, first, "ana", "not wanted any more")
    later = now() + timedelta(days=world.platform.settings.keep_dead_runs_days + 1)
    (found,) = (one for one in find(world.platform, at=later) if one.table == f"{TARGET}_changes")
    listed = {item.file.path for item in found.files}
    assert left <= listed
    assert not listed & files_below(world, restated)


# --- where it is shown ------------------------------------------------------------------------------------------------


def test_equal_shares_have_bars_of_equal_length() -> None:
    """However the rows are spread over kinds of change: three kinds were rounded by themselves, and 100% had 24 to 26 blocks."""
    kinds = [(7, 7, 10, 0), (13, 13, 1000, 0), (1, 1, 998, 0), (1, 0, 0, 0), (1, 1, 1, 0), (31, 31, 1, 0), (1, 0, 1, 2)]
    chunks = [ChunkDiff(f"2010-0{n}", *counts, {}, {}) for n, counts in enumerate(kinds, 1)]
    sums = [sum(column) for column in zip(*kinds, strict=True)]
    made = Made(RunDiff("", "r", TARGET, "", None, KEY, *sums, [], chunks, [], [], {}, "", ""), new=True)
    console = Console(width=80, file=StringIO(), color_system=None)
    console.print(diff_view.shown(made))
    assert isinstance(console.file, StringIO)
    lines = [line for line in console.file.getvalue().splitlines() if "█" in line]
    assert all(chunk.chunk in line for chunk, line in zip(chunks, lines, strict=True))  # no name is cut or wrapped
    blocks = {share: {line.count("█") for line in lines if share in line} for share in ("100.00%", "50.00%")}
    assert len(lines) == len(kinds)
    assert blocks == {"100.00%": {14}, "50.00%": {7}}


@pytest.mark.parametrize("width", [80, 64, 50, 40])
def test_no_figure_is_cut_however_narrow_the_terminal_is(width: int) -> None:
    counts = (1_234_567, 7_654_321, 1_412_681, 1_412_905)
    made = Made(
        RunDiff(
            "", "r", TARGET, "", None, KEY, *counts, [], [ChunkDiff("2010-01-05", *counts, {}, {})], [], [], {}, "", ""
        ),
        new=True,
    )
    console = Console(width=width, file=StringIO(), color_system=None)
    console.print(diff_view.shown(made))
    assert isinstance(console.file, StringIO)
    _, _, table = console.file.getvalue().partition("by chunk")
    cells = [
        "".join(cell.strip() for cell in column)
        for column in zip(*(line.split("│")[1:7] for line in table.splitlines() if line.startswith("│")), strict=True)
    ]
    assert cells[0] == "2010-01-05"
    assert cells[1:5] == [f"{number:,}" for number in counts]


def test_the_command_shows_it_and_dagster_too(world: World, restated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    runner = CliRunner()
    refused = runner.invoke(cli, ["diff", "history", "--recorded"])
    assert isinstance(refused.exception, InputRefused)
    done = runner.invoke(cli, ["diff", restated, "--json", "--largest", "60"], catch_exceptions=False)
    found = json.loads(done.stdout)
    assert found["new"] is True
    assert found["diff"]["changed"] == diff_run(world.platform, restated).diff.changed
    text = runner.invoke(cli, ["diff", restated, "--recorded"], catch_exceptions=False).stdout
    for word in ("by chunk", "2010-04", "by column", "started_on", "largest changes", "sample", "on record"):
        assert word in text
    with world.dagster() as instance:
        asset = dg.AssetKey(TARGET.split("."))
        (event,) = instance.fetch_observations(asset, limit=1).records
        shown = event.asset_observation
        assert shown is not None
        assert shown.metadata["rows changed"].value == found["diff"]["changed"]
        assert "| started_on |" in shown.metadata["changes by column"].value
        beside = dg.AssetKey([*TARGET.split(".")[:-1], "case_sla_daily_published"])
        (event,) = instance.fetch_observations(beside, limit=1).records
        assert event.partition_key == restated


def test_a_change_by_somebody_else_is_said(world: World, restated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    publish(world.platform, validated(world, "meanwhile", world.scope(date(2010, 4, 1), date(2010, 4, 30))))
    text = CliRunner().invoke(cli, ["diff", restated], catch_exceptions=False).stdout
    rollback(world.platform, "meanwhile")
    assert "1 chunk(s) have been changed by others" in text
    assert stale_chunks(world.platform, restated) == []
