"""Dry runs as a gate: when a policy wants one, why one does not count, and which chunks it takes; plain data."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support import a_code, a_manifest, a_plan, publishing

from manifests.data_terms import DataTerms, MaskedColumn
from manifests.dry_run_modes import dry_run_mode_problems
from manifests.dry_run_proof import Asked, FoundDryRun, other_snapshots, reasons_against
from manifests.dry_run_samples import dry_run_id, dry_run_manifest, sampled
from manifests.dry_runs import DryRunLink, DryRuns, DryRunTerms, link_from_json, terms_of
from manifests.errors import EnvironmentRefused
from manifests.lifecycle import RunState
from manifests.model import MAX_RUN_ID, Kind, Mode
from manifests.plan import Plan, PlannedChunk, plan_from_json
from manifests.policy import Mask, parse_policy

NOW = datetime(2024, 5, 9, 12, tzinfo=UTC)
WHOLE = publishing("2012-01-01", "2012-12-31")
SAMPLE = ("2012-01", "2012-05", "2012-12")
THREE_YEARS = a_plan(a_manifest(target=publishing("2010-01-01", "2012-12-31"))).chunks


def policy(*rules: dict[str, Any]) -> Any:
    return parse_policy(yaml.safe_dump({"name": "test", "rules": list(rules)}))


def wanted(**said: Any) -> DryRuns:
    (rule,) = policy({"dryRun": said}).rules
    assert rule.dry_run is not None
    return rule.dry_run


def the_run() -> Plan:
    return a_plan(a_manifest(target=WHOLE))


def its_dry_run(plan: Plan, *keys: str, **changes: Any) -> Plan:
    manifest = dry_run_manifest(a_manifest(target=WHOLE), [plan], keys or SAMPLE, run_id="dry", requested_by="ana")
    return a_plan(manifest, **changes)


def found(
    plan: Plan, state: RunState = RunState.VALIDATED, *, days: float = 1, development: bool = False
) -> FoundDryRun:
    return FoundDryRun("dry", plan, development, state, NOW - timedelta(days=days))


TERMS = DryRunTerms(12, 1_200, 2, None, 3, 7.0, other_snapshots=False)


def reasons(plan: Plan, dry: FoundDryRun, *, development: bool = False, **terms: Any) -> list[str]:
    asked = Asked(plan.run_id, plan, development, {chunk.key for chunk in plan.chunks})
    return reasons_against(asked, replace(TERMS, **terms), dry, NOW)


# --- which run needs one ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "chunks", "rows", "least"),
    [
        ({"fromChunks": 12}, 11, 10**9, None),
        ({"fromChunks": 12}, 12, 0, 4),
        ({"fromRows": 100}, 3, 99, None),
        ({"fromRows": 100}, 3, 100, 3),
        ({"fromChunks": 12, "fromRows": 100}, 2, 100, 2),
        ({"fromChunks": 2, "chunksAtLeast": 1}, 500, 0, 1),
        ({"fromChunks": 2, "percentAtLeast": 2.5}, 500, 0, 13),
        ({"fromChunks": 2, "percentAtLeast": 7}, 100, 0, 7),
        ({"fromChunks": 2, "percentAtLeast": 100}, 5_000, 0, 1_000),
    ],
)
def test_a_run_needs_a_dry_run_from_either_size_on(said: dict[str, Any], chunks: int, rows: int, least: int | None):
    terms = terms_of(wanted(**said), chunks, rows)
    assert (None if terms is None else terms.least) == least


def test_no_rule_needs_none():
    assert terms_of(None, 10**6, 10**12) is None
    assert policy({}).rule_for("silver.days", Kind.RESTATEMENT).dry_run is None


def test_what_a_rule_without_it_says_has_the_hash_that_it_had():
    assert "dryRun" not in policy({}).rules[0].model_dump(by_alias=True)
    assert policy({"dryRun": {"fromChunks": 2}}).hash != policy({}).hash
    assert "dry_run" not in the_run().to_json()


def test_terms_are_part_of_a_plan_and_of_its_hash():
    plan = the_run()
    terms = terms_of(wanted(fromChunks=2), 12, 1_200)
    with_terms = replace(plan, dry_run=terms)
    assert with_terms.hash != plan.hash
    assert plan_from_json(with_terms.to_json()).dry_run == terms
    assert terms is not None
    assert "12 chunks (from 2 on)" in terms.describe()


def test_where_no_rule_names_the_kind_the_strictest_of_each_counts():
    rules = (
        {"kinds": ["REPAIR"], "dryRun": {"fromChunks": 20, "chunksAtLeast": 9, "onOtherSnapshot": "ALLOW"}},
        {"kinds": ["BACKFILL"], "dryRun": {"fromRows": 500, "withinDays": 2, "percentAtLeast": 10}},
        {"kinds": ["REPLAY"]},
    )
    found = policy(*rules).rule_for("silver.days", Kind.RESTATEMENT).dry_run
    assert found is not None
    assert found.model_dump(by_alias=True) == {
        "fromChunks": 20,
        "fromRows": 500,
        "chunksAtLeast": 9,
        "percentAtLeast": 10,
        "withinDays": 2,
        "onOtherSnapshot": "REFUSE",
    }
    assert policy(*rules).rule_for("silver.days", Kind.LIVE).dry_run is None


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "give fromChunks, fromRows, or both"),
        ({"fromChunks": 0}, "from how many chunks on: a whole number from 1"),
        ({"fromChunks": "24"}, "leave out the quotes"),
        ({"fromRows": 2.5}, "from how many source rows"),
        ({"fromChunks": 2, "chunksAtLeast": 1_001}, "a whole number from 1 to 1,000"),
        ({"fromChunks": 2, "percentAtLeast": 0}, "a number above 0, at most 100"),
        ({"fromChunks": 2, "withinDays": 0}, "a number above 0, at most 365"),
        ({"fromChunks": 2, "withinDays": "7 days"}, "a number above 0, at most 365"),
        ({"fromChunks": 2, "withinDays": float("nan")}, "a number above 0, at most 365"),
        ({"fromChunks": 2, "onOtherSnapshot": "MAYBE"}, "one of REFUSE, ALLOW"),
        ({"fromChunk": 2}, "did you mean 'fromChunks'"),
    ],
)
def test_a_policy_that_says_it_wrong_is_refused(said: dict[str, Any], why: str):
    with pytest.raises(EnvironmentRefused, match=why):
        policy({"dryRun": said})


@pytest.mark.parametrize("kinds", [["LIVE"], ["RECONCILIATION"], ["LIVE", "RECONCILIATION"]])
def test_a_rule_of_what_the_platform_writes_alone_asks_for_no_dry_run(kinds: list[str]):
    with pytest.raises(EnvironmentRefused, match="runs of LIVE and RECONCILIATION need no dry run"):
        policy({"kinds": kinds, "dryRun": {"fromChunks": 2}})
    assert policy({"kinds": [*kinds, "REPAIR"], "dryRun": {"fromChunks": 2}}).rules[0].dry_run is not None


SOURCES = [{"table": "bronze.events", "columns": {"amount": {"classification": "personal", "mask": "NULL"}}}]


def mode_problems(
    modes: list[str] | None, otherwise: str = "MASK", rules: Any = None, sources: Any = SOURCES, **of_source: Any
) -> list[str]:
    said = {"otherwise": otherwise} | ({} if modes is None else {"modes": modes})
    text = {
        "name": "test",
        "rules": rules or [{"dryRun": {"fromChunks": 2}}],
        "classifications": {"personal": said},
        "sources": [{**one, **of_source} for one in sources],
    }
    return [one.what for one in dry_run_mode_problems(parse_policy(yaml.safe_dump(text)), "policy")]


@pytest.mark.parametrize("otherwise", ["MASK", "REFUSE"])
def test_a_policy_under_which_a_dry_run_sees_less_than_its_run_is_refused(otherwise: str):
    (what,) = mode_problems(["LIVE", "BACKFILL"], otherwise)
    assert "column amount of bronze.events is personal, which lets mode BACKFILL read it and not mode DRY_RUN" in what
    assert len(mode_problems(["BACKFILL", "REPLAY"], otherwise)) == 2
    assert mode_problems(["LIVE", "BACKFILL", "REPLAY", "DRY_RUN"], otherwise) == []
    assert mode_problems(["LIVE"], otherwise) == mode_problems(None, otherwise) == []


def test_a_policy_under_which_a_dry_run_sees_more_than_its_run_is_refused_where_that_run_is_planned_at_all():
    assert "lets mode DRY_RUN read it and not mode BACKFILL" in mode_problems(["DRY_RUN", "REPLAY"])[0]
    assert mode_problems(["DRY_RUN", "REPLAY"], "REFUSE") == []


@pytest.mark.parametrize(
    ("rules", "of_source", "refused"),
    [
        ([{}], {}, False),
        ([{"tables": ["gold.*"], "dryRun": {"fromChunks": 2}}], {"targets": ["silver.*"]}, False),
        ([{"tables": ["gold.days"], "dryRun": {"fromChunks": 2}}], {"targets": ["gold.*", "silver.*"]}, True),
        ([{"tables": ["gold.d*"], "dryRun": {"fromChunks": 2}}], {"targets": ["gold.*"]}, True),
        ([{"tables": ["*.days"], "dryRun": {"fromChunks": 2}}], {"targets": ["gold.*"]}, True),
        ([{"dryRun": {"fromChunks": 2}}], {"kinds": ["LIVE", "REPLAY"]}, False),
        ([{"kinds": ["REPLAY"], "dryRun": {"fromChunks": 2}}, {"tables": ["*"]}], {}, False),
        ([{"kinds": ["REPLAY"], "dryRun": {"fromChunks": 2}}], {}, True),
    ],
    ids=["no dry runs", "other tables", "one of them", "some", "across", "other kinds", "a rule's kinds", "every rule"],
)
def test_columns_and_dry_runs_of_other_tables_or_kinds_do_not_meet(rules: Any, of_source: Any, refused: bool):
    assert bool(mode_problems(["BACKFILL"], rules=rules, **of_source)) == refused


# --- which one counts -------------------------------------------------------------------------------------------------


def test_the_dry_run_that_is_made_of_a_run_counts_for_it():
    plan = the_run()
    assert reasons(plan, found(its_dry_run(plan))) == []
    assert reasons(plan, found(its_dry_run(plan), days=7)) == []


def _other_data(plan: Plan) -> Plan:
    return replace(plan, data=DataTerms(None, 0, None, (MaskedColumn("amount", "personal", Mask.NULL, None),)))


def _other_reference(plan: Plan) -> Plan:
    first, *others = plan.references
    return replace(plan, references=(replace(first, snapshot_id=101), *others))


DIFFERENT = {
    "another table": (lambda plan: replace(plan, target="silver.others"), "it is about silver.others"),
    "another transform": (lambda plan: replace(plan, transform="others"), "it was computed by others 2, not"),
    "another version": (lambda plan: replace(plan, transform_version="1"), "it was computed by case_sla_daily 1, not"),
    "other code": (lambda plan: replace(plan, code=a_code(content_hash="0" * 64)), "it was computed by other code"),
    "other settings": (lambda plan: replace(plan, configuration_hash="0" * 64), "with other Spark settings"),
    "another warm-up": (lambda plan: replace(plan, warm_up_days=61), "it has 61 days of warm-up, not 60"),
    "another reference": (_other_reference, "it has read the reference .* at snapshot 101, not at snapshot 102"),
    "no reference": (lambda plan: replace(plan, references=()), "at no snapshot, not at snapshot 102"),
    "another change": (
        lambda plan: replace(plan, publish_mode="SHADOW_SWAP"),
        "it is about another change of the table",
    ),
    "other data": (_other_data, "the policy has other rows or columns left out"),
    "other tolerances": (lambda plan: replace(plan, tolerances={"row_change": 90.0}), "held against other tolerances"),
    "fewer gates": (lambda plan: replace(plan, gates=("all_chunks_staged",)), "not held against record_counts"),
    "another snapshot": (
        lambda plan: replace(plan, source_snapshot_id=12),
        "it has read .* at snapshot 12, and the run would at snapshot 11",
    ),
    "too few chunks": (
        lambda plan: replace(plan, chunks=plan.chunks[:2]),
        "computed 2 of the run's chunks, and 3 are asked",
    ),
    "another mode": (lambda plan: replace(plan, mode=Mode.BACKFILL), "its mode is BACKFILL"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_dry_run_of_something_else_does_not_count(what: str):
    change, why = DIFFERENT[what]
    plan = the_run()
    said = reasons(plan, found(change(its_dry_run(plan))))
    assert said
    assert all(re.search(why, one) for one in said)


@pytest.mark.parametrize("state", [one for one in RunState if one is not RunState.VALIDATED])
def test_a_dry_run_that_has_not_passed_or_is_over_does_not_count(state: RunState):
    plan = the_run()
    assert reasons(plan, found(its_dry_run(plan), state)) == [f"it is {state}, not VALIDATED"]


def test_a_dry_run_of_long_ago_does_not_count():
    plan = the_run()
    (reason,) = reasons(plan, found(its_dry_run(plan), days=7.01))
    assert "its gates passed 7.0 days before, and 7 are allowed" in reason
    assert reasons(plan, found(its_dry_run(plan), days=7.01), within_days=8.0) == []


def test_a_dry_run_beyond_the_run_does_not_count_for_its_chunks():
    plan = the_run()
    wider = a_plan(a_manifest(target=publishing("2011-12-01", "2012-12-31")))
    outside = replace(its_dry_run(plan), chunks=(wider.chunks[0], *its_dry_run(plan).chunks))
    assert reasons(plan, found(outside)) == ["it has computed what the run does not: 2011-12"]
    assert len(reasons(plan, found(replace(its_dry_run(plan), chunks=wider.chunks[:3])))) == 2


def test_chunks_without_a_row_count_where_the_run_reads_none_or_all_of_it_was_computed():
    plan = the_run()
    dry = found(its_dry_run(plan))
    keys = [chunk.key for chunk in plan.chunks]
    asked = Asked(plan.run_id, plan, False, keys, reads=dict.fromkeys(keys, 5))
    empty = replace(dry, rows={"2012-01": 0, "2012-05": 3, "2012-12": None})
    (reason,) = reasons_against(asked, TERMS, empty, NOW)
    assert "computed 2 of the run's chunks, and 3 are asked for; chunks without a row" in reason
    assert reasons_against(replace(asked, reads={}), TERMS, empty, NOW) == []
    whole = replace(found(its_dry_run(plan, *keys)), rows=dict.fromkeys(keys, 0))
    assert reasons_against(asked, TERMS, whole, NOW) == []


def test_a_dry_run_of_development_counts_for_a_run_of_development_only():
    plan = the_run()
    (reason,) = reasons(plan, found(its_dry_run(plan), development=True))
    assert "it may have been computed by other code" in reason
    assert reasons(plan, found(its_dry_run(plan), development=True), development=True) == []


def test_another_snapshot_of_the_source_counts_where_the_policy_allows_it_and_is_said():
    plan = the_run()
    other = replace(its_dry_run(plan), source_snapshot_id=12)
    assert reasons(plan, found(other), other_snapshots=True) == []
    (said,) = other_snapshots(plan, other)
    assert said.endswith("at snapshot 12, and the run would at snapshot 11")
    assert other_snapshots(plan, its_dry_run(plan)) == ()
    assert reasons(plan, found(_other_reference(other)), other_snapshots=True) != []


def test_every_reason_is_said_at_once():
    plan = the_run()
    other = replace(its_dry_run(plan), transform_version="1", tolerances={}, source_snapshot_id=12)
    assert len(reasons(plan, found(other, RunState.FAILED))) == 4


# --- which chunks it takes, and its manifest --------------------------------------------------------------------------


@st.composite
def chunks_with_rows(draw: st.DrawFn) -> tuple[PlannedChunk, ...]:
    rows = draw(st.lists(st.integers(0, 50), min_size=1, max_size=36))
    return tuple(
        replace(one, reads=replace(one.reads, rows=count)) for one, count in zip(THREE_YEARS, rows, strict=False)
    )


@given(chunks_with_rows(), st.integers(1, 50), st.text("abc", min_size=3, max_size=6))
def test_a_sample_has_as_many_chunks_as_asked_with_first_last_and_largest_among_them(
    chunks: tuple[PlannedChunk, ...], count: int, run_id: str
):
    keys = sampled(run_id, chunks, count)
    assert len(keys) == len(set(keys)) == min(count, len(chunks))
    assert list(keys) == [one.key for one in chunks if one.key in keys]
    assert keys == sampled(run_id, chunks, count)
    most = max(one.reads.rows for one in chunks)
    if count >= 3:
        assert {chunks[0].key, chunks[-1].key} <= set(keys)
        assert any(one.reads.rows == most for one in chunks if one.key in keys)
    assert set(sampled(run_id, chunks, count)) <= set(sampled(run_id, chunks, count + 1))


@given(chunks_with_rows(), st.integers(1, 50), st.integers(1, 7), st.data())
def test_a_sample_of_a_progressive_run_has_a_chunk_of_each_step(
    chunks: tuple[PlannedChunk, ...], count: int, size: int, data: st.DataObject
):
    steps = [chunks[start : start + size] for start in range(0, len(chunks), size)]
    asked = data.draw(st.sampled_from(steps))
    keys = sampled("run", chunks, count, [asked, *(one for one in steps if one is not asked)])
    assert all({one.key for one in step} & set(keys) for step in steps)
    assert {chunks[0].key, chunks[-1].key} <= set(keys) or len(steps) == 1
    assert min(count, len(chunks)) <= len(keys) <= max(count, len(steps) + 3)


def test_a_dry_run_of_other_steps_alone_does_not_count_and_no_more_is_asked_for_than_is_left():
    plan = the_run()
    dry, step = found(its_dry_run(plan)), replace(plan, chunks=plan.chunks[5:8])
    asked = Asked("step", step, False, {chunk.key for chunk in plan.chunks})
    assert reasons_against(asked, TERMS, dry, NOW) == [
        "it has computed chunks of other steps only, and none of this one"
    ]
    rest = found(its_dry_run(plan, "2012-07", "2012-08"))
    (reason,) = reasons_against(asked, TERMS, rest, NOW)
    assert "computed 2 of the run's chunks, and 3 are asked" in reason
    assert reasons_against(replace(asked, left=2), TERMS, rest, NOW) == []


def test_another_run_has_another_sample():
    chunks = the_run().chunks
    assert len({sampled(f"run-{number}", chunks, 5) for number in range(20)}) > 5


def test_the_manifest_of_a_dry_run_pins_what_the_plan_has_pinned_and_publishes_nothing():
    manifest = a_manifest(
        target=WHOLE,
        freeze={"hours": 2},
        conflict={"onConflict": "REPLAN"},
        safety={"sinks": ["run_audit"], "requiresManualPublish": True, "maxRowsExpected": 10_000},
        validation={"expected": {"whole": {"rows": 3}, "chunks": {"2012-01": {"rows": 1}, "2012-02": {"rows": 1}}}},
    )
    plan = replace(a_plan(manifest), source_snapshot_id=77)
    dry = dry_run_manifest(manifest, [plan], SAMPLE, run_id="dry", requested_by="bob")
    assert (dry.run_id, dry.execution_mode, dry.requested_by, dry.kind) == ("dry", Mode.DRY_RUN, "bob", manifest.kind)
    assert dry.source.snapshot_id == 77
    assert {one.name: one.snapshot_id for one in dry.reference_data} == {
        pin.table: pin.snapshot_id for pin in plan.references
    }
    assert dry.sample is not None
    assert dry.sample.chunks == SAMPLE
    assert dry.target == manifest.target
    assert (dry.freeze, dry.safety.sinks, dry.safety.max_rows_expected) == (None, (), 10_000)
    assert dry.validation.expected is not None
    assert (dry.validation.expected.whole, set(dry.validation.expected.chunks)) == (None, {"2012-01"})
    none_expected = dry_run_manifest(manifest, [plan], ("2012-07",), run_id="dry", requested_by="bob")
    assert none_expected.validation.expected is None


@given(st.from_regex(r"[a-z0-9][a-z0-9-]{1,62}[a-z0-9]", fullmatch=True), st.integers(1, 99))
def test_the_id_of_a_dry_run_is_one_and_differs_from_its_runs(run_id: str, number: int):
    plan_hash = "abcdef0123456789" * 4
    own = dry_run_id(run_id, plan_hash, number)
    assert len(own) <= MAX_RUN_ID
    assert a_manifest(own).run_id == own != run_id
    assert own == dry_run_id(run_id, plan_hash, number) != dry_run_id(run_id, plan_hash, number + 1)


def test_long_ids_that_differ_at_their_end_have_dry_runs_of_their_own():
    alike = "a" * 60
    assert dry_run_id(alike + "1", "0" * 64) != dry_run_id(alike + "2", "0" * 64)


# --- the link ---------------------------------------------------------------------------------------------------------


def test_a_link_is_read_back_as_it_was_written():
    link = DryRunLink("dry", "a" * 64, "b" * 64, 4, 1_000, NOW)
    others = replace(link, other_snapshots=("bronze.events at snapshot 1, and the run would at snapshot 2",))
    newer = replace(link, against=("'later' is REJECTED (wrong)",))
    assert newer.describe().endswith("; of newer ones alike, 'later' is REJECTED (wrong)")
    for one in (link, others, newer):
        assert link_from_json(one.to_json()) == one
    assert "on other snapshots" in others.describe()
    assert "on other snapshots" not in link.describe()
    assert link_from_json("") is None
    with pytest.raises(ValueError, match="validation error"):
        link_from_json("{}")


def test_the_words_of_a_rule_say_what_it_asks_for():
    said = wanted(fromChunks=24, fromRows=5_000_000, percentAtLeast=1.5, withinDays=1, onOtherSnapshot="ALLOW")
    assert said.describe() == (
        "from 24 chunks or 5,000,000 source rows on a dry run of 4 and 1.5% of the chunks within 1 day, also on other snapshots"
    )
    assert TERMS.why == "12 chunks (from 2 on)"
