"""History that meets what LIVE wrote: each key decided as the target's policy says, counted, and judged again from the files."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from order_world import STATE, manifest
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, LongType, NestedField, StringType, TimestamptzType
from worlds import SPARK, World

from backfill_assets.audit.verification import verify
from backfill_assets.declarations.schedules import LivePolicy
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.publisher import publish
from backfill_assets.schedules.live import tick
from backfill_assets.worker.chunk_merge import MERGED_RULE, TIE_RULE, MergeSpec, merge, merge_violations
from backfill_assets.worker.derive_tasks import DeriveTask
from backfill_assets.worker.merge_decisions import HELD, LIVE_RULE, Terms, ambiguous_rows, decided
from benchmarks import sales
from manifests.errors import ManifestRefused, PlanRefused
from manifests.lifecycle import RunState
from manifests.merge_policy import (
    MergePolicy,
    OnAmbiguous,
    OnCollision,
    OnRepeated,
    OnStale,
    StricterPolicy,
    merge_policy_problems,
    stricter,
)
from manifests.model import OlderVersion, RunManifest
from manifests.reading import manifest_from

KEY = ("order", "line")
CUT = date(2024, 1, 20)
CLOCK = datetime(2024, 5, 1, 12, tzinfo=UTC)
KINDS: dict[str, Any] = {
    "order": pl.String(),
    "line": pl.Int64(),
    "day": pl.Date(),
    "cents": pl.Int64(),
    "revision": pl.Int64(),
    "run_id": pl.String(),
    "processing_mode": pl.String(),
    "produced_at": pl.Datetime("us", "UTC"),
}
SCHEMA = Schema(
    NestedField(1, "order", StringType()),
    NestedField(2, "line", LongType()),
    NestedField(3, "day", DateType()),
    NestedField(4, "cents", LongType()),
    NestedField(5, "revision", LongType()),
    NestedField(6, "run_id", StringType()),
    NestedField(7, "processing_mode", StringType()),
    NestedField(8, "produced_at", TimestamptzType()),
)
LINEAGE = ("run_id", "processing_mode", "produced_at")
Row = dict[str, Any]
Key = tuple[str, int]


def row(key: Key, day: int, cents: int, revision: int, mode: str) -> Row:
    run_id = "computed" if mode == "BACKFILL" else "before"
    return dict(zip(KINDS, (*key, date(2024, 1, day), cents, revision, run_id, mode, CLOCK), strict=True))


keys = st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 3))
said = st.tuples(st.sampled_from([10, 19, 20, 25]), st.integers(1, 2), st.integers(1, 3))
policies = st.builds(
    MergePolicy,
    st.sampled_from(OnCollision),
    st.sampled_from(OnStale),
    st.sampled_from(OnRepeated),
    st.sampled_from(OnAmbiguous),
)


@dataclass(frozen=True)
class Case:
    today: dict[Key, Row]
    computed: dict[Key, Row]
    policy: MergePolicy
    cut_line: date | None
    older: OlderVersion

    @property
    def spec(self) -> MergeSpec:
        asked = SCHEMA.model_dump_json(), KEY, "order", "revision", self.older, "computed"
        return MergeSpec(*asked, lineage=LINEAGE, terms=Terms(self.policy, self.cut_line, "day"))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    today = {
        key: row(key, *what, draw(st.sampled_from(["LIVE", "REPAIR"])))
        for key, what in draw(st.dictionaries(keys, said, max_size=10)).items()
    }
    # entity "c" is not merged; some rows say what is there already
    computed = {
        key: row(key, *what, "BACKFILL")
        for key, what in draw(st.dictionaries(keys, said, max_size=10)).items()
        if key[0] != "c"
    }
    for key in draw(st.sets(st.sampled_from(sorted(today)))) if today else ():
        if key[0] != "c":
            computed[key] = today[key] | {"run_id": "computed", "processing_mode": "BACKFILL"}
    cut_line = draw(st.sampled_from([None, CUT]))
    return Case(today, computed, draw(policies), cut_line, draw(st.sampled_from(OlderVersion)))


def values(one: Row) -> Row:
    return {name: value for name, value in one.items() if name not in LINEAGE}


def naive(case: Case, key: Key) -> str:
    """Decide a key by plain ifs."""
    old, new, policy = case.today.get(key), case.computed.get(key), case.policy
    day = (new or old or {})["day"]
    if policy.stale != "TAKE" and case.cut_line is not None and day >= case.cut_line:
        return "left_out_stale"
    same = old is not None and new is not None and values(old) == values(new)
    if same:
        return "ignored_repeated" if policy.repeated == "IGNORE" else "taken"
    if old is not None and old["processing_mode"] == "LIVE" and policy.collision == "KEEP_LIVE":
        return "kept_live"
    tie = old is not None and new is not None and old["revision"] == new["revision"]
    return "ambiguous" if tie and policy.ambiguous == "RECONCILE" else "taken"


def decisions_of(case: Case) -> dict[Key, str]:
    merged = {key for key in case.today if key[0] != "c"} | case.computed.keys()
    return {key: naive(case, key) for key in merged}


def upsert(case: Case) -> list[Row]:
    rows = {key: old for key, old in case.today.items() if key[0] == "c"}
    for key, decision in decisions_of(case).items():
        old, new = case.today.get(key), case.computed.get(key)
        goes_back = old is not None and new is not None and old["revision"] > new["revision"]
        stays = decision != "taken" or (goes_back and case.older is OlderVersion.KEEP)
        if (kept := old if stays else new) is not None:
            rows[key] = kept
    return sorted(rows.values(), key=repr)


@contextmanager
def on_disk(case: Case) -> Iterator[DeriveTask]:
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        ordered = sorted(case.today)
        for number, part in enumerate(filter(None, (ordered[::2], ordered[1::2]))):
            paths.append(f"{folder}/base-{number}.parquet")
            pl.DataFrame([case.today[key] for key in part], schema=KINDS).sort(KEY).write_parquet(paths[-1])
        computed = [f"{folder}/computed.parquet"] if case.computed else []
        for path in computed:
            pl.DataFrame(list(case.computed.values()), schema=KINDS).sort(KEY).write_parquet(path)
        pl.DataFrame({"order": ["a", "b"]}).write_parquet(f"{folder}/entities.parquet")
        yield DeriveTask("2024-01", tuple(paths), tuple(computed), f"{folder}/derived", f"{folder}/entities.parquet")


@settings(max_examples=150, deadline=None)
@given(cases())
def test_each_key_is_decided_as_plain_ifs_decide_it_and_counted(case: Case) -> None:
    with on_disk(case) as task:
        derived = merge(case.spec, task)
        after = [path for path, _, _ in derived.files] + [path for path in task.base if path not in derived.replaced]
        found = sorted((one for path in after for one in pl.read_parquet(path).to_dicts()), key=repr)
        assert found == upsert(case)
        counted = Counter(decisions_of(case).values())
        assert {name: derived.counts[name] for name in HELD} == {name: counted[name] for name in HELD}
        assert all(rows for _, rows, _ in derived.files)
        broken = merge_violations(case.spec, task, after)
    taken = {key for key, decision in decisions_of(case).items() if decision == "taken"}
    lost = {
        key
        for key in taken & case.today.keys()
        if case.today[key]["processing_mode"] == "LIVE"
        and not (key in case.computed and values(case.today[key]) == values(case.computed[key]))
    }
    assert (LIVE_RULE in broken) == (case.policy.collision is OnCollision.REFUSE and bool(lost))
    ties = {
        key
        for key in taken & case.today.keys() & case.computed.keys()
        if case.today[key]["revision"] == case.computed[key]["revision"]
        and values(case.today[key]) != values(case.computed[key])
    }
    assert (TIE_RULE in broken) == bool(ties)
    assert MERGED_RULE not in broken


@settings(max_examples=60, deadline=None)
@given(cases())
def test_the_judge_sees_a_row_of_live_that_was_replaced_all_the_same(case: Case) -> None:
    case = replace(case, policy=MergePolicy(), older=OlderVersion.OVERWRITE)
    kept = [key for key, decision in decisions_of(case).items() if decision == "kept_live"]
    with on_disk(case) as task:
        derived = merge(case.spec, task)
        after = [path for path, _, _ in derived.files] + [path for path in task.base if path not in derived.replaced]
        rows = [one for path in after for one in pl.read_parquet(path).to_dicts()]
        for key in kept[:1]:
            forged = [one | {"cents": 99} if (one["order"], one["line"]) == key else one for one in rows]
            pl.DataFrame(forged, schema=KINDS).sort(KEY).write_parquet(f"{task.output}-forged.parquet")
            assert MERGED_RULE in merge_violations(case.spec, task, [f"{task.output}-forged.parquet"])


def test_what_is_ambiguous_is_listed_with_what_differs() -> None:
    key = ("a", 1)
    today = pl.DataFrame([row(key, 10, 1, 2, "REPAIR")], schema=KINDS)
    computed = pl.DataFrame([row(key, 10, 5, 2, "BACKFILL")], schema=KINDS)
    decisions = decided(Terms(MergePolicy(), None, "day"), KEY, "revision", LINEAGE, today, computed)
    listed = ambiguous_rows(decisions, KEY, LINEAGE, 10)
    assert listed == [{"key": {"order": "a", "line": "1"}, "today": {"cents": "1"}, "computed": {"cents": "5"}}]


# --- what a manifest may say --------------------------------------------------------------------------------------------


def problems(declared: MergePolicy | None, asked: StricterPolicy | None, cut: date | None, last: date) -> list[str]:
    return [str(one) for one in merge_policy_problems("silver.t", declared, asked, cut, last)]


@pytest.mark.parametrize("name", ["collision", "stale", "repeated", "ambiguous"])
def test_a_manifest_may_be_stricter_than_the_target_and_never_looser(name: str) -> None:
    words = list(type(getattr(MergePolicy(), name)))
    for own, other in product(words, words):
        declared, asked = replace(MergePolicy(), **{name: own}), StricterPolicy.model_validate({name: other})
        found = problems(declared, asked, None, CUT)
        if words.index(other) < words.index(own):
            (said_of_it,) = found
            assert f"target.merge.policy.{name} is {other}, and silver.t declares {own}" in said_of_it
        else:
            assert found == []
            assert getattr(stricter(declared, asked), name) is other


def test_a_manifest_begins_no_policy_and_stale_history_is_refused_where_it_is_declared_so() -> None:
    assert "declares no merge policy" in problems(None, StricterPolicy(), None, CUT)[0]
    refusing = MergePolicy(stale=OnStale.REFUSE)
    assert "the days from 2024-01-20 on are LIVE's" in problems(refusing, None, CUT, CUT)[0]
    assert problems(refusing, None, CUT, date(2024, 1, 19)) == []
    assert problems(MergePolicy(), None, CUT, CUT) == [], "rows are left out one by one"


def test_a_manifest_without_a_policy_has_the_text_that_it_had() -> None:
    merging = {"publishMode": "MERGE_BY_KEY", "merge": {"entities": ["1"]}}
    plain = manifest(STATE, "plain", target=merging)
    assert plain.model_dump(by_alias=True)["target"]["merge"] == {
        "changedSince": None,
        "entities": ("1",),
        "onOlderVersion": OlderVersion.REFUSE,
    }
    asked = manifest(STATE, "asked", target={**merging, "merge": {"entities": ["1"], "policy": {"stale": "REFUSE"}}})
    assert asked.target.merge is not None
    assert asked.target.merge.policy is not None
    assert asked.target.merge.policy.asked == {"stale": OnStale.REFUSE}
    with pytest.raises(ManifestRefused, match="policy"):
        manifest(STATE, "wrong", target={**merging, "merge": {"entities": ["1"], "policy": {"stale": "MAYBE"}}})


# --- in an installation -------------------------------------------------------------------------------------------------

JANUARY, FEBRUARY = (date(2024, 1, 1), date(2024, 1, 31)), (date(2024, 2, 1), date(2024, 2, 29))
TARGET = replace(
    sales.MERGED,
    live=LivePolicy(transform_version="1", rewind_days=0, begins_on=FEBRUARY[0], development=True),
    merge_policy=MergePolicy(),
    version_column="sold_at",
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """January is history's, February was published by LIVE."""
    platform = sales.opened(tmp_path / "home", TARGET, spark=SPARK)
    sales.fill(platform, JANUARY[0], FEBRUARY[1], of_a_day=3)
    found = World(platform, tmp_path / "home")
    found.published(sales.manifest("history", *JANUARY))
    record = tick(platform, TARGET).record
    assert record is not None
    found.stage(record)
    publish(platform, record.run_id)
    return found


def merging(run_id: str, version: str, policy: dict[str, str] | None = None) -> RunManifest:
    """Return a repair of a sale of January and of one of February."""
    merge: dict[str, Any] = {"entities": ["s3-0", "s40-0"], **({} if policy is None else {"policy": policy})}
    target = {"publishMode": "MERGE_BY_KEY", "merge": merge}
    return sales.manifest(run_id, JANUARY[0], FEBRUARY[1], version, target, kind="REPAIR")


def test_history_leaves_alone_what_live_wrote_and_each_decision_is_counted(world: World) -> None:
    before = sales.rows_of(world.platform)
    record = world.validated(merging("repeated", "1"))
    assert "merge_decisions" in record.plan.gates
    (verdict,) = [one for one in world.platform.ledger.verdicts("repeated") if one.gate == "merge_decisions"]
    wanted = {"left_out_stale": 1, "ignored_repeated": 1, "kept_live": 0, "ambiguous": 0}
    assert {name: verdict.details[name] for name in HELD} == wanted
    publish(world.platform, "repeated")
    assert sales.rows_of(world.platform) == before
    assert verify(world.platform, data=True).everything == []


def test_what_is_ambiguous_waits_for_an_owner_and_readers_keep_what_they_have(world: World) -> None:
    before = sales.rows_of(world.platform)
    record = world.ran(merging("ambiguous", "2"))
    (verdict,) = [one for one in world.platform.ledger.verdicts("ambiguous") if one.gate == "merge_decisions"]
    assert (verdict.passed, verdict.asks) == (False, True)
    assert (verdict.details["ambiguous"], verdict.details["left_out_stale"]) == (1, 1)
    assert "1 keys are ambiguous" in verdict.summary
    assert record.state is not RunState.VALIDATED
    (sample,) = verdict.details["sample"]
    assert "s3-0" in str(sample)
    assert "cents" in str(sample)
    assert sales.rows_of(world.platform) == before


def test_a_manifest_that_is_looser_or_crosses_the_cut_line_is_refused_when_planned(world: World) -> None:
    with pytest.raises(
        PlanRefused, match=r"target\.merge\.policy\.stale is TAKE, and silver\.sales declares LEAVE_OUT"
    ):
        plan_run(world.platform, merging("looser", "2", {"stale": "TAKE"}))
    with pytest.raises(PlanRefused, match=r"the days from 2024-02-01 on are LIVE's"):
        plan_run(world.platform, merging("crossing", "2", {"stale": "REFUSE"}))
    later = merging("later", "2", {"stale": "REFUSE"}).model_dump(mode="json", by_alias=True) | {
        "cutLine": "2024-03-01"
    }
    with pytest.raises(PlanRefused, match=r"the days from 2024-02-01 on are LIVE's"):  # LIVE begins where it begins
        plan_run(world.platform, manifest_from(later))
    plan = plan_run(world.platform, merging("stricter", "2", {"ambiguous": "REFUSE"})).plan
    assert plan.merge is not None
    assert plan.merge.policy == MergePolicy(ambiguous=OnAmbiguous.REFUSE)
    assert plan.merge.cut_line == FEBRUARY[0]
