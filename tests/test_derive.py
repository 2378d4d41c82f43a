"""Merges and corrections against naive ones: what is made, and that the judge of merges finds every kind of tampering."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    DecimalType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from backfill_assets.declarations.divided import internal
from backfill_assets.worker import chunk_merge as derive
from backfill_assets.worker.chunk_corrections import CorrectionSpec, correct
from backfill_assets.worker.chunk_merge import (
    MERGED_KEY_RULE,
    MERGED_RULE,
    OLDER_RULE,
    TIE_RULE,
    UNTOUCHED_RULE,
    MergedTask,
    MergeSpec,
    merge,
    merge_violations,
)
from backfill_assets.worker.chunk_rules import PARTITION_RULE
from backfill_assets.worker.derive_tasks import Derived, DeriveTask
from backfill_assets.worker.derived_files import PartitionedBy
from backfill_assets.worker.sums import sums_of
from manifests.model import OlderVersion

Key = tuple[str, int]
Row = dict[str, Any]
KEY = ("name", "number")
NAMES = ("ann", "bob", "cem", "dan")
KINDS: dict[str, Any] = {
    "name": pl.String(),
    "number": pl.Int64(),
    "amount": pl.Decimal(10, 2),
    "note": pl.String(),
    "revision": pl.Int64(),
    "run_id": pl.String(),
    "produced_at": pl.Datetime("us", "UTC"),
}
SCHEMA = Schema(
    NestedField(1, "name", StringType()),
    NestedField(2, "number", LongType()),
    NestedField(3, "amount", DecimalType(10, 2)),
    NestedField(4, "note", StringType()),
    NestedField(5, "revision", LongType()),
    NestedField(6, "run_id", StringType()),
    NestedField(7, "produced_at", TimestamptzType()),
)
CORRECTIONS = Schema(
    NestedField(1, "name", StringType()),
    NestedField(2, "number", LongType()),
    NestedField(3, "correction_id", StringType()),
    NestedField(4, "event_type", StringType()),
    NestedField(5, "corrects_run_id", StringType()),
    NestedField(6, "old_values", StringType()),
    NestedField(7, "new_values", StringType()),
    NestedField(8, "reason", StringType()),
    NestedField(9, "run_id", StringType()),
)
CLOCK = datetime(2024, 5, 1, 12, tzinfo=UTC)
PARTS: list[tuple[tuple[str, str], ...]] = [
    (),
    (("number", "bucket[2]"),),
    (("name", "truncate[1]"), ("note", "identity")),
    (("amount", "truncate[50]"), ("produced_at", "day")),
]
"""By what files are partitioned that a merge writes; those of today are as they come, as of a table that had another spec."""
profile = settings(max_examples=60, deadline=None)

contents = st.tuples(st.integers(-3, 3), st.sampled_from([None, "", "a", 'say "b", ü']), st.integers(1, 5))
keys = st.tuples(st.sampled_from(NAMES), st.integers(0, 3))
tables = st.dictionaries(keys, contents, max_size=12)


@dataclass(frozen=True)
class Case:
    """Rows of today by key, the file each is in, what was computed, and of whom."""

    today: dict[Key, Row]
    files: list[list[Key]]
    computed: dict[Key, Row]
    entities: frozenset[str]
    older: OlderVersion
    deletes_at: int | None
    parts: tuple[tuple[str, str], ...] = ()

    @property
    def spec(self) -> MergeSpec:
        by = PartitionedBy(self.parts, "part=spec-" if self.parts else "")
        asked = SCHEMA.model_dump_json(), KEY, "name", "revision", self.older, "new"
        return MergeSpec(*asked, deletes_at=self.deletes_at, by=by)


def row(key: Key, content: tuple[int, str | None, int], run_id: str) -> Row:
    cents, note, revision = content
    amount = (Decimal(cents) / 4).quantize(Decimal("0.01"))  # as the column has it: a truncation goes by its digits
    return dict(zip(KINDS, (*key, amount, note, revision, run_id, CLOCK), strict=True))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    today = {key: row(key, content, "old") for key, content in draw(tables).items()}
    entities = draw(st.frozensets(st.sampled_from(NAMES), min_size=1, max_size=3))
    computed = {key: row(key, content, "new") for key, content in draw(tables).items() if key[0] in entities}
    count = draw(st.integers(1, 4))
    if draw(st.booleans()):  # ranges of keys, one after the other
        ordered = sorted(today)
        size = -(-len(ordered) // count) or 1
        files = [ordered[first : first + size] for first in range(0, len(ordered), size)]
    else:  # as they come: ranges overlap
        files = [[] for _ in range(count)]
        for key in today:
            files[draw(st.integers(0, count - 1))].append(key)
    older, deletes_at = draw(st.sampled_from(OlderVersion)), draw(st.sampled_from([None, 3]))
    parts = draw(st.sampled_from(PARTS))
    return Case(today, [sorted(f) for f in files if f], computed, entities, older, deletes_at, parts)


def frame(rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=KINDS).sort(KEY)


def read(paths: Any) -> list[Row]:
    frames = [pl.read_parquet(path) for path in paths]
    return sorted((one for part in frames for one in part.to_dicts()), key=repr)


@contextmanager
def on_disk(case: Case) -> Iterator[DeriveTask]:
    with tempfile.TemporaryDirectory() as folder:
        base = []
        for number, file in enumerate(case.files):
            base.append(f"{folder}/base-{number}.parquet")
            frame([case.today[key] for key in file]).write_parquet(base[-1])
        computed = [f"{folder}/computed.parquet"] if case.computed else []
        for path in computed:
            frame(list(case.computed.values())).write_parquet(path)
        pl.DataFrame({"name": sorted(case.entities)}).write_parquet(f"{folder}/entities.parquet")
        yield DeriveTask("2020-01", tuple(base), tuple(computed), f"{folder}/derived", f"{folder}/entities.parquet")


def after(task: DeriveTask, derived: Derived) -> list[str]:
    """Return the files of the chunk once the merge is published."""
    return [path for path, _, _ in derived.files] + [path for path in task.base if path not in derived.replaced]


def newer(case: Case) -> set[Key]:
    """Return the keys of today's rows that are newer than what would take their place."""
    found = set()
    for key, old in case.today.items():
        version = case.computed[key]["revision"] if key in case.computed else case.deletes_at
        if key[0] in case.entities and version is not None and old["revision"] > version:
            found.add(key)
    return found


def ties(case: Case) -> set[Key]:
    """Return the keys for which today's row and the computed one have one version and say two things."""
    says = ("revision", "amount", "note")
    both = case.today.keys() & case.computed.keys()
    return {
        key
        for key in both
        if case.today[key]["revision"] == case.computed[key]["revision"]
        and any(case.today[key][name] != case.computed[key][name] for name in says)
    }


def upsert(case: Case) -> list[Row]:
    """Merge naively: the rows of an entity are the computed ones, and those that are newer where they are kept."""
    rows = {key: old for key, old in case.today.items() if key[0] not in case.entities} | case.computed
    if case.older is OlderVersion.KEEP:
        rows |= {key: case.today[key] for key in newer(case)}
    return sorted(rows.values(), key=repr)


def partition(parts: tuple[tuple[str, str], ...], one: Row) -> tuple[Any, ...]:
    """Return the partition of a row, a value at a time, as Iceberg's library computes it."""
    found: list[Any] = []
    for column, how in parts:
        value = internal(one[column])
        apply = parse_transform(how).transform(SCHEMA.find_field(column).field_type)
        found.append(None if value is None else apply(value))
    return tuple(found)


@profile
@given(cases())
def test_the_judge_of_a_merge_sees_a_file_of_several_partitions(case: Case) -> None:
    with on_disk(case) as task:
        merged = after(task, merge(case.spec, task))
        assert list(_judged(case.spec, task, merged)) == []
        frame([one for path in merged for one in read([path])]).write_parquet(f"{task.output}-all.parquet")
        several = len({partition(case.parts, one) for one in upsert(case)}) > 1
        assert (PARTITION_RULE in _judged(case.spec, task, [f"{task.output}-all.parquet"])) == several


def _judged(spec: MergeSpec, task: DeriveTask, own: list[str]) -> set[str]:
    merged = MergedTask(task, tuple(own), tuple(path for path in own if path not in task.base))
    (found,) = derive.judging_merges(spec, None).do(iter([merged]))
    return set(found.broken) & {PARTITION_RULE}


def test_the_hash_of_a_merged_file_is_that_of_the_bytes_that_were_judged(tmp_path: Path) -> None:
    spec, task = of_nobody(tmp_path)
    derived = merge(spec, task)
    (own,) = [path for path, _, _ in derived.files]
    judged = Path(own).read_bytes()

    def meanwhile(*given: Any) -> Any:
        Path(own).write_bytes(b"another file by now")
        return sums_of(*given)

    with mock.patch.object(derive, "sums_of", meanwhile):
        (found,) = derive.judging_merges(spec, None).do(iter([MergedTask(task, (own,), (own,))]))
    assert Path(own).read_bytes() != judged
    assert found.broken == {}
    assert found.hashes[own].sha256 == hashlib.sha256(judged).hexdigest()


# --- merge ------------------------------------------------------------------------------------------------------------


@profile
@given(cases())
def test_a_merge_is_a_naive_upsert_with_tombstones(case: Case) -> None:
    with on_disk(case) as task:
        derived = merge(case.spec, task)
        assert read(after(task, derived)) == upsert(case)
        for path, rows, size in derived.files:
            part = pl.read_parquet(path)
            assert (rows, size) == (part.height, Path(path).stat().st_size)
            assert rows
            assert part.equals(part.sort(KEY))
            assert len({partition(case.parts, one) for one in part.to_dicts()}) == 1
            assert ("/part=spec-" in path) == bool(case.parts)


@profile
@given(cases())
def test_a_merge_copies_exactly_the_files_that_hold_its_entities(case: Case) -> None:
    with on_disk(case) as task:
        derived = merge(case.spec, task)
        touched = [
            path
            for path, file in zip(task.base, case.files, strict=True)
            if any(name in case.entities for name, _ in file)
        ]
        assert sorted(derived.replaced) == sorted(touched)


@profile
@given(cases())
def test_a_merge_counts_what_happened_to_each_row(case: Case) -> None:
    with on_disk(case) as task:
        counts = merge(case.spec, task).counts
    old = {key for key in case.today if key[0] in case.entities}
    assert counts["replaced"] == len(old & case.computed.keys())
    assert counts["deleted"] == len(old - case.computed.keys())
    assert counts["inserted"] == len(case.computed.keys() - old)
    assert counts["kept_newer"] == (len(newer(case)) if case.older is OlderVersion.KEEP else 0)


@profile
@given(cases())
def test_the_judge_finds_nothing_but_versions_that_went_back_and_ties(case: Case) -> None:
    with on_disk(case) as task:
        broken = merge_violations(case.spec, task, after(task, merge(case.spec, task)))
    wanted = {OLDER_RULE} if case.older is OlderVersion.REFUSE and newer(case) else set()
    assert broken.keys() == wanted | ({TIE_RULE} if ties(case) else set())


TAMPERINGS = {
    "an untouched row is changed": UNTOUCHED_RULE,
    "an untouched row is lost": UNTOUCHED_RULE,
    "an untouched row is doubled": MERGED_KEY_RULE,
    "a merged row is changed": MERGED_RULE,
    "a merged row is lost": MERGED_RULE,
    "a merged row is doubled": MERGED_KEY_RULE,
    "a deleted row is back": MERGED_RULE,
    "a row of another entity is added": UNTOUCHED_RULE,
}


@settings(profile, max_examples=100)
@given(cases(), st.sampled_from(sorted(TAMPERINGS)), st.data())
def test_the_judge_finds_every_tampering(case: Case, how: str, data: st.DataObject) -> None:
    with on_disk(case) as task:
        derived = merge(case.spec, task)
        rows = read(after(task, derived))
        merged = "merged" in how
        mine = [one for one in rows if (one["name"] in case.entities) == merged]
        if "back" in how:
            gone = [one for key, one in case.today.items() if key[0] in case.entities and one not in rows]
            gone = [one for one in gone if (one["name"], one["number"]) not in case.computed]
            assume(gone)
            rows.append(data.draw(st.sampled_from(gone)))
        elif "added" in how:
            others = sorted({*NAMES, "eve"} - case.entities)
            rows.append(row((data.draw(st.sampled_from(others)), 9), (1, None, 1), "new"))
        else:
            assume(mine)
            chosen = data.draw(st.sampled_from(mine))
            if "doubled" in how:
                rows.append(chosen)
            else:
                rows.remove(chosen)
            if "changed" in how:
                column = data.draw(st.sampled_from(["amount", "note", "revision", "run_id"]))
                values = {"amount": Decimal("99.00"), "note": "tampered", "revision": 77, "run_id": "other"}
                rows.append(chosen | {column: values[column]})
        path = f"{task.output}-tampered.parquet"
        frame(rows).write_parquet(path)
        honest = merge_violations(case.spec, task, after(task, derived))
        found = merge_violations(case.spec, task, [path])
    assert TAMPERINGS[how] in found
    assert TAMPERINGS[how] not in honest


def of_nobody(folder: Path) -> tuple[MergeSpec, DeriveTask]:
    """A merge of ann in a table whose key is the number alone, and whose entity two rows do not have."""
    rows = [row(("ann", 1), (1, "old", 1), "old"), row(("bob", 4), (4, None, 1), "old")]
    rows[1:1] = [row(("ann", number), (number, None, 1), "old") | {"name": None} for number in (2, 3)]
    task = DeriveTask(
        "2020-01",
        (f"{folder}/base.parquet",),
        (f"{folder}/computed.parquet",),
        f"{folder}/derived",
        f"{folder}/entities.parquet",
    )
    pl.DataFrame(rows, schema=KINDS).sort("number").write_parquet(task.base[0])
    frame([row(("ann", 1), (7, "new", 2), "new")]).write_parquet(task.computed[0])
    pl.DataFrame({"name": ["ann"]}).write_parquet(task.entities)
    spec = MergeSpec(SCHEMA.model_dump_json(), ("number",), "name", "revision", OlderVersion.REFUSE, "new")
    return spec, task


def test_a_merge_leaves_rows_that_have_no_entity_as_they_are(tmp_path: Path) -> None:
    spec, task = of_nobody(tmp_path)
    derived = merge(spec, task)
    merged = pl.read_parquet(after(task, derived))
    assert merged["number"].to_list() == [1, 2, 3, 4]
    assert merged["note"].to_list() == ["new", None, None, None]
    assert derived.counts == {"replaced": 1, "deleted": 0, "kept_newer": 0, "inserted": 0}
    assert merge_violations(spec, task, after(task, derived)) == {}


def test_the_judge_of_a_merge_counts_the_rows_that_have_no_entity(tmp_path: Path) -> None:
    """Whatever the merge has made of them: it parts the rows by itself, and every row is on one side or the other."""
    spec, task = of_nobody(tmp_path)
    whole = pl.read_parquet(after(task, merge(spec, task)))
    lost, added = f"{tmp_path}/lost.parquet", f"{tmp_path}/added.parquet"
    whole.filter(pl.col("name").is_not_null()).write_parquet(lost)
    more = whole.filter(pl.col("number") == 3).with_columns(number=pl.lit(9, pl.Int64))
    pl.concat([whole, more]).write_parquet(added)
    for tampered in (lost, added):
        assert UNTOUCHED_RULE in merge_violations(spec, task, [tampered])


def test_a_judge_that_cannot_place_a_row_says_so(tmp_path: Path) -> None:
    spec, task = of_nobody(tmp_path)
    merged = after(task, merge(spec, task))

    def forgets(spec: MergeSpec, rows: pl.DataFrame, entities: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        rows = rows.filter(pl.col("name").is_not_null())
        return rows.join(entities, on="name", how="anti"), rows.join(entities, on="name", how="semi")

    with mock.patch.object(derive, "_sides", forgets):
        broken = merge_violations(spec, task, merged)
    assert broken[UNTOUCHED_RULE] == [{"rows": 4, "of merged entities": 1, "of others": 1}]


# --- corrections ------------------------------------------------------------------------------------------------------

LINEAGE = {"run_id": "new"}
SPEC = CorrectionSpec(
    CORRECTIONS.model_dump_json(), "silver.t", KEY, ("amount", "note", "revision"), "because it was wrong", LINEAGE
)


def corrected(task: DeriveTask, spec: CorrectionSpec = SPEC) -> tuple[Derived, list[Row]]:
    derived = correct(spec, task)
    return derived, read(path for path, _, _ in derived.files)


def said(one: Row) -> str:
    """Return a row's values as a correction shows them: JSON, each value as text."""
    note = one["note"]
    return json.dumps({"amount": f"{one['amount']:.2f}", "note": note, "revision": str(one["revision"])})


def difference(case: Case) -> dict[Key, tuple[str, str | None, Any, Any]]:
    """Compare naively, key by key."""
    found = {}
    for key in case.today.keys() | case.computed.keys():
        old, new = case.today.get(key), case.computed.get(key)
        before, now = old and said(old), new and said(new)
        if before != now:
            kind = "ADDED" if old is None else "REMOVED" if new is None else "CHANGED"
            texts = [None if text is None else json.loads(text) for text in (before, now)]
            found[key] = (kind, None if old is None else old["run_id"], *texts)
    return found


@profile
@given(cases())
def test_corrections_are_a_naive_difference(case: Case) -> None:
    with on_disk(case) as task:
        derived, rows = corrected(task)
    wanted = difference(case)
    found = {
        (one["name"], one["number"]): (
            one["event_type"],
            one["corrects_run_id"],
            one["old_values"] and json.loads(one["old_values"]),
            one["new_values"] and json.loads(one["new_values"]),
        )
        for one in rows
    }
    assert (found, len(rows)) == (wanted, len(wanted))
    assert {(one["reason"], one["run_id"]) for one in rows} <= {("because it was wrong", "new")}
    kinds = [kind for kind, *_ in wanted.values()]
    assert derived.counts == {} or derived.counts == {
        "added": kinds.count("ADDED"),
        "changed": kinds.count("CHANGED"),
        "removed": kinds.count("REMOVED"),
        "issued_before": 0,
    }
    assert bool(derived.counts) == bool(case.today or case.computed)


@profile
@given(cases())
def test_a_corrections_id_is_its_own_and_anybody_finds_it_again(case: Case) -> None:
    with on_disk(case) as task:
        _, rows = corrected(task)
        _, again = corrected(
            replace(task, base=task.base[::-1]), replace(SPEC, reason="another", lineage={"run_id": "x"})
        )
        _, elsewhere = corrected(task, replace(SPEC, target="silver.other"))
    ids = [one["correction_id"] for one in rows]
    assert len(set(ids)) == len(ids)
    assert sorted(ids) == sorted(one["correction_id"] for one in again)
    assert not {*ids} & {one["correction_id"] for one in elsewhere}


@profile
@given(cases(), st.data())
def test_a_pair_that_was_issued_is_found(case: Case, data: st.DataObject) -> None:
    with on_disk(case) as task:
        derived, rows = corrected(task)
        assume(rows)
        part = data.draw(st.lists(st.sampled_from(rows), min_size=1, unique_by=lambda one: one["correction_id"]))
        path = f"{task.output}-issued.parquet"
        pl.DataFrame(part, schema_overrides={"old_values": pl.String, "corrects_run_id": pl.String}).write_parquet(path)
        once_more, _ = corrected(replace(task, issued=(path,)))
        assert once_more.counts["issued_before"] == len(part)
        # the next pair of the same key is another one
        changed = {key: one | {"revision": one["revision"] + 10} for key, one in case.computed.items()}
    with on_disk(replace(case, computed=changed)) as task:
        pl.DataFrame(rows, infer_schema_length=None).write_parquet(f"{task.output}-issued.parquet")
        derived, _ = corrected(replace(task, issued=(f"{task.output}-issued.parquet",)))
        removed = [one for one in rows if one["event_type"] == "REMOVED"]
        assert derived.counts["issued_before"] == len(removed)
