"""A plan is made from plain data alone: it says what will be read, computed and changed, or why it cannot be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    CALENDAR,
    RULES,
    RUN_CLOCK,
    SOURCE,
    TARGET,
    a_code,
    a_contract,
    a_manifest,
    a_plan,
    a_reference,
    a_source,
    monthly_files,
    publishing,
)

from manifests.canonical import canonical_json
from manifests.chunks import Chunking, aligned
from manifests.errors import PlanRefused
from manifests.estimates import Estimate
from manifests.facts import AcceptedReference, BaseState, SourceFile
from manifests.model import DayRange, Mode, PublishMode, RunManifest, Semantics
from manifests.plan import PinnedReference, Plan, plan_from_json
from manifests.series import series_of
from manifests.stages import (
    ComputeBatch,
    GateChunks,
    Publish,
    Reconcile,
    RunGates,
    TableCommit,
    batches_of,
    stages_of,
)
from manifests.target_problems import scope_problems

unhurried = settings(deadline=None)
REPLACES = TableCommit(TARGET, f"replaces files of {TARGET}")
COMMIT = f"in one commit, which {REPLACES.does}"


def refusal(manifest: RunManifest | None = None, **changes: Any) -> PlanRefused:
    with pytest.raises(PlanRefused) as refused:
        a_plan(manifest, **changes)
    assert all(problem.what and problem.rule and problem.fix for problem in refused.value.problems)
    return refused.value


def reasons(refused: PlanRefused) -> list[str]:
    return [problem.what for problem in refused.problems]


# --- what a plan holds ------------------------------------------------------------------------------------------------


def test_a_plan_resolves_its_manifest_completely() -> None:
    manifest = a_manifest()
    plan = a_plan(manifest)

    assert (plan.run_id, plan.manifest_hash, plan.mode) == ("restate-2012", manifest.hash, Mode.BACKFILL)
    assert (plan.source, plan.source_snapshot_id, plan.base_snapshot_id) == (SOURCE, 11, 7)
    assert (plan.transform, plan.transform_version) == ("case_sla_daily", "2")
    assert [(chunk.key, chunk.index, chunk.start, chunk.end) for chunk in plan.chunks] == [
        ("2012-01", 0, date(2012, 1, 1), date(2012, 1, 31)),
        ("2012-02", 1, date(2012, 2, 1), date(2012, 2, 29)),
        ("2012-03", 2, date(2012, 3, 1), date(2012, 3, 31)),
    ]
    assert plan.gates == ("all_chunks_staged", "record_counts")
    assert plan.tolerances == {"row_change": 20.0}
    assert plan.code == a_code()
    assert plan.run_clock == RUN_CLOCK
    assert plan.manual_publish is False


def test_a_target_without_a_snapshot_is_planned_on_none() -> None:
    assert a_plan(base_snapshot_id=None).base_snapshot_id is None


def test_a_chunk_is_found_by_its_key() -> None:
    plan = a_plan()

    assert plan.chunk("2012-02") is plan.chunks[1]
    with pytest.raises(KeyError):
        plan.chunk("2012-04")


def test_the_input_range_is_the_publish_range_with_its_warm_up() -> None:
    plan = a_plan()

    assert plan.warm_up_days == 60
    assert (plan.input_range.start, plan.input_range.end) == (date(2011, 11, 2), date(2012, 3, 31))
    assert (plan.publish_range.start, plan.publish_range.end) == (date(2012, 1, 1), date(2012, 3, 31))


def test_what_is_read_has_a_margin_of_a_day_for_time_zones_on_both_sides() -> None:
    plan = a_plan()

    assert plan.read_from == datetime(2011, 11, 1, tzinfo=UTC)
    assert plan.read_until == datetime(2012, 4, 2, tzinfo=UTC)


def test_a_manifest_may_lengthen_the_warm_up() -> None:
    plan = a_plan(a_manifest(warmUp={"days": 90}))

    assert plan.warm_up_days == 90
    assert plan.input_range.start == date(2012, 1, 1) - timedelta(days=90)


def test_a_run_without_warm_up_reads_from_the_day_before_its_range() -> None:
    plan = a_plan(contract=a_contract(warm_up_days=0))

    assert plan.input_range == plan.publish_range
    assert plan.read_from == datetime(2011, 12, 31, tzinfo=UTC)


def test_the_run_clock_is_kept_in_utc_whatever_zone_it_was_given_in() -> None:
    elsewhere = RUN_CLOCK.astimezone(timezone(timedelta(hours=13)))

    assert a_plan(run_clock=elsewhere) == a_plan()
    assert a_plan(run_clock=elsewhere).hash == a_plan().hash


def test_a_manifest_may_widen_a_tolerance_of_its_target() -> None:
    assert a_plan(a_manifest(validation={"tolerances": {"row_change": 40}})).tolerances == {"row_change": 40.0}


def test_a_daily_target_is_cut_by_day() -> None:
    plan = a_plan(a_manifest(target=publishing("2012-02-28", "2012-03-01")), contract=a_contract(chunking=Chunking.DAY))

    assert [chunk.key for chunk in plan.chunks] == ["2012-02-28", "2012-02-29", "2012-03-01"]


def test_a_manifest_may_choose_gates_but_not_leave_out_a_required_one() -> None:
    contract = a_contract(gates=("all_chunks_staged", "counts", "states"), required_gates=("all_chunks_staged",))

    assert a_plan(contract=contract).gates == ("all_chunks_staged", "counts", "states")
    for chosen, gates in ((["states"], ("all_chunks_staged", "states")), ([], ("all_chunks_staged",))):
        assert a_plan(a_manifest(validation={"gates": chosen}), contract=contract).gates == gates


def test_the_first_and_last_chunk_of_a_target_may_be_published() -> None:
    contract = a_contract(first_chunk="2012-01", last_chunk="2012-03")

    assert [chunk.key for chunk in a_plan(contract=contract).chunks] == ["2012-01", "2012-02", "2012-03"]


@pytest.mark.parametrize("limits", [{"first_chunk": "2012-02"}, {"last_chunk": "2012-02"}])
def test_chunks_that_the_target_does_not_declare_are_refused(limits: dict[str, str]) -> None:
    assert reasons(refusal(contract=a_contract(**limits))) == ["target.publishRange is 2012-01-01 to 2012-03-31"]


# --- estimates --------------------------------------------------------------------------------------------------------


def test_the_estimate_counts_the_files_that_the_input_range_touches() -> None:
    # 2011-11-02 less a day for time zones is in November; March's last day plus a day is in April
    assert a_plan().reads == Estimate(files=6, rows=600, bytes=6_000)


def test_a_chunk_alone_would_read_its_own_month_and_warm_up() -> None:
    assert a_plan().chunk("2012-01").reads == Estimate(files=4, rows=400, bytes=4_000)


def test_the_edge_of_the_margin_counts_and_the_day_beyond_does_not() -> None:
    def one_day(day: date) -> SourceFile:
        return SourceFile(1, 10, day, day)

    inside = [one_day(date(2011, 11, 1)), one_day(date(2012, 1, 15)), one_day(date(2012, 4, 1))]
    outside = [one_day(date(2011, 10, 31)), one_day(date(2012, 4, 2))]

    assert a_plan(source=a_source([*inside, *outside])).reads == Estimate(3, 3, 30)


def test_the_look_back_counts_what_lies_before_the_read_and_only_if_the_target_reads_it() -> None:
    def one_day(day: date) -> SourceFile:
        return SourceFile(1, 10, day, day)

    days = [date(1990, 1, 1), date(2011, 10, 31), date(2011, 11, 1), date(2012, 3, 15)]
    source = a_source([one_day(day) for day in days])

    assert a_plan(source=source).look_back == Estimate(2, 2, 20)
    assert a_plan(source=source, contract=a_contract(reads_look_back=False)).look_back is None


def test_a_file_across_the_edge_is_read_twice_with_a_look_back() -> None:
    source = a_source([SourceFile(5, 50, date(2010, 1, 1), date(2013, 12, 31))])
    plan = a_plan(source=source)

    assert plan.reads == plan.look_back == Estimate(1, 5, 50)
    assert all(chunk.reads == Estimate(1, 5, 50) for chunk in plan.chunks)


# --- references -------------------------------------------------------------------------------------------------------


def pinned(reference: dict[str, Any] | None, **state: Any) -> PinnedReference:
    asked = [] if reference is None else [{"name": RULES, **reference}]
    states = {RULES: a_reference(RULES, **state), CALENDAR: a_reference(CALENDAR)}
    return a_plan(a_manifest(referenceData=asked), references=states).references[0]


def test_every_reference_of_the_target_is_pinned_in_its_order() -> None:
    assert [pin.table for pin in a_plan().references] == [RULES, CALENDAR]


@pytest.mark.parametrize("asked", [None, {}, {"semantics": "CURRENT_ACCEPTED"}])
def test_a_reference_is_read_as_it_is_now_unless_the_manifest_says_otherwise(asked: dict[str, Any] | None) -> None:
    assert pinned(asked) == PinnedReference(RULES, 102, Semantics.CURRENT_ACCEPTED, "2024")


def test_what_a_person_accepted_last_is_current_whatever_was_loaded_since() -> None:
    accepted = (AcceptedReference(101, "by-2023"), AcceptedReference(102, "by-2024"))

    pin = pinned({}, accepted=accepted)

    assert pin == PinnedReference(RULES, 101, Semantics.CURRENT_ACCEPTED, "2023", "by-2023")
    assert pinned({"semantics": "CORRECTED_TRUTH"}, accepted=accepted).snapshot_id == 102
    assert pinned({}, accepted=accepted, taken_back=frozenset({"2023"})).accepted_with == "by-2024"
    # nobody has accepted anything that is still there: the newest load
    gone = pinned({}, accepted=accepted, taken_back=frozenset({"2023", "2024"}))
    assert (gone.snapshot_id, gone.accepted_with) == (102, "")


def test_a_pin_that_rests_on_no_acceptance_has_the_text_that_it_always_had() -> None:
    assert "accepted_with" not in canonical_json(pinned({}))
    assert "by-2023" in canonical_json(pinned({}, accepted=(AcceptedReference(101, "by-2023"),)))


def test_corrected_truth_is_the_newest_snapshot_even_without_a_version() -> None:
    assert pinned({"semantics": "CORRECTED_TRUTH"}, current=103) == PinnedReference(
        RULES, 103, Semantics.CORRECTED_TRUTH, None
    )


def test_as_decided_is_the_version_that_was_decided() -> None:
    assert pinned({"semantics": "AS_DECIDED", "version": "2023"}) == PinnedReference(
        RULES, 101, Semantics.AS_DECIDED, "2023"
    )


def test_as_decided_is_the_snapshot_that_was_decided() -> None:
    assert pinned({"semantics": "AS_DECIDED", "snapshotId": 101}).snapshot_id == 101


def test_as_recorded_then_is_the_snapshot_of_the_run_accepted_today() -> None:
    assert pinned({"semantics": "AS_RECORDED_THEN"}, recorded=frozenset({101})).snapshot_id == 101


def test_as_recorded_then_takes_the_version_that_the_manifest_names() -> None:
    recorded = frozenset({101, 102})

    assert pinned({"semantics": "AS_RECORDED_THEN", "version": "2023"}, recorded=recorded).snapshot_id == 101


@pytest.mark.parametrize(
    ("reference", "state", "reason"),
    [
        ({"semantics": "AS_DECIDED", "version": "1999"}, {}, f"referenceData {RULES} version 1999 is unknown"),
        ({"semantics": "AS_DECIDED", "snapshotId": 5}, {}, f"referenceData {RULES} has no snapshot 5"),
        (
            {"semantics": "AS_RECORDED_THEN"},
            {},
            f"referenceData {RULES} was recorded with 0 snapshots in the publish range",
        ),
        (
            {"semantics": "AS_RECORDED_THEN"},
            {"recorded": frozenset({101, 102})},
            f"referenceData {RULES} was recorded with 2 snapshots in the publish range",
        ),
        ({}, {"current": None, "snapshots": frozenset(), "versions": {}}, f"referenceData {RULES} has no snapshot"),
        (
            {},
            {"accepted": (AcceptedReference(5, "by-nobody"),)},
            f"referenceData {RULES} has no snapshot 5 any more, which was accepted with run 'by-nobody'",
        ),
    ],
)
def test_a_reference_that_cannot_be_pinned_refuses_the_plan(
    reference: dict[str, Any], state: dict[str, Any], reason: str
) -> None:
    states = {RULES: a_reference(RULES, **state), CALENDAR: a_reference(CALENDAR)}

    assert reasons(refusal(a_manifest(referenceData=[{"name": RULES, **reference}]), references=states)) == [reason]


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"source": {"table": "bronze.other"}}, "source.table is bronze.other"),
        ({"transform": {"name": "other", "version": "2"}}, "transform.name is other"),
        ({"transform": {"name": "case_sla_daily", "version": "9"}}, "transform.version is 9"),
        ({"validation": {"gates": ["guesswork"]}}, "validation.gates names guesswork"),
        ({"validation": {"tolerances": {"guesswork": 1}}}, "validation.tolerances names guesswork"),
        ({"referenceData": [{"name": "silver.other"}]}, "referenceData names silver.other"),
        ({"warmUp": {"days": 59}}, "warmUp.days is 59"),
        ({"target": publishing("2012-01-02", "2012-03-31")}, "target.publishRange is 2012-01-02 to 2012-03-31"),
        ({"target": publishing("2012-01-01", "2012-03-30")}, "target.publishRange is 2012-01-01 to 2012-03-30"),
        ({"target": publishing("2009-11-01", "2012-03-31")}, "target.publishRange is 2009-11-01 to 2012-03-31"),
        ({"target": publishing("2013-12-01", "2014-02-28")}, "target.publishRange is 2013-12-01 to 2014-02-28"),
        (
            {"source": {"table": SOURCE, "range": {"start": "2011-11-03", "end": "2012-03-31"}}},
            "source.range is 2011-11-03 to 2012-03-31",
        ),
        (
            {"source": {"table": SOURCE, "range": {"start": "2011-01-01", "end": "2012-03-30"}}},
            "source.range is 2011-01-01 to 2012-03-30",
        ),
        ({"safety": {"maxRowsExpected": 599}}, f"the run would read 600 rows of {SOURCE}"),
    ],
)
def test_a_manifest_that_does_not_fit_its_target_is_refused_with_the_reason(
    changes: dict[str, Any], reason: str
) -> None:
    assert reasons(refusal(a_manifest(**changes))) == [reason]


def test_a_range_that_is_not_of_whole_chunks_is_answered_with_the_one_that_is() -> None:
    (problem,) = refusal(a_manifest(target=publishing("2012-01-15", "2012-03-01"))).problems

    assert problem.fix == "use 2012-01-01 to 2012-03-31"


def test_a_source_that_holds_days_at_the_ends_of_the_calendar_can_be_planned() -> None:
    whole = a_source([SourceFile(5, 50, date.min, date.max)])
    assert a_plan(source=whole).reads == Estimate(1, 5, 50)


def test_a_source_without_rows_refuses_the_plan() -> None:
    assert reasons(refusal(source=a_source([]))) == [f"{SOURCE} holds no rows at snapshot 11 that a run could read"]


def test_an_unknown_gate_and_tolerance_are_named_each() -> None:
    validation = {"gates": ["a", "record_counts", "b"], "tolerances": {"c": 1}}

    assert reasons(refusal(a_manifest(validation=validation))) == [
        "validation.gates names a",
        "validation.gates names b",
        "validation.tolerances names c",
    ]


def test_all_reasons_against_a_plan_are_given_at_once() -> None:
    manifest = a_manifest(
        source={"table": "bronze.other", "range": {"start": "2012-01-01", "end": "2012-01-02"}},
        transform={"name": "case_sla_daily", "version": "9"},
        target=publishing("2012-01-02", "2012-03-31"),
        warmUp={"days": 1},
        safety={"maxRowsExpected": 1},
        referenceData=[{"name": RULES, "semantics": "AS_DECIDED", "version": "1999"}],
    )
    refused = refusal(manifest, code=a_code(dirty=True))

    assert len(refused.problems) == 8
    assert "the plan is refused, for 8 reasons" in str(refused)


@pytest.mark.parametrize(("first", "last"), [("1000-01-01", "1000-01-31"), ("9000-12-01", "9000-12-31")])
def test_a_range_at_the_edge_of_the_calendar_is_refused_and_does_not_crash(first: str, last: str) -> None:
    manifest = a_manifest(target=publishing(first, last), warmUp={"days": 36_500})

    assert f"target.publishRange is {first} to {last}" in reasons(refusal(manifest))


def test_the_rows_expected_may_be_reached_but_not_exceeded() -> None:
    assert a_plan(a_manifest(safety={"maxRowsExpected": 600})).max_rows_expected == 600


def test_code_with_uncommitted_changes_needs_a_manifest_marked_development() -> None:
    dirty = a_code(dirty=True)

    assert reasons(refusal(code=dirty)) == [f"the code is git commit {'e' * 40} with uncommitted changes"]
    assert a_plan(a_manifest(development=True), code=dirty).code.dirty is True


def test_a_wheel_without_git_is_identified_by_its_content() -> None:
    assert a_plan(code=a_code(git_commit=None)).code.content_hash == "c" * 64


def test_the_month_around_the_first_source_day_may_be_published() -> None:
    # a local day lies up to 14 hours off the UTC day: the last UTC evening of December is January somewhere
    source = a_source([SourceFile(1, 1, date(2011, 12, 31), date(2012, 1, 31))])

    assert a_plan(a_manifest(target=publishing("2011-12-01", "2012-02-29")), source=source).chunks[-1].key == "2012-02"


def test_a_chunk_of_which_the_source_holds_a_day_may_be_published_and_is_complete_up_to_its_last_day() -> None:
    source = a_source([SourceFile(1, 1, date(2011, 12, 1), date(2012, 4, 1))])
    plan = a_plan(a_manifest(target=publishing("2012-01-01", "2012-04-30")), source=source)
    assert plan.chunks[-1].key == "2012-04"
    assert plan.complete_until == date(2012, 4, 1)

    (problem,) = refusal(a_manifest(target=publishing("2012-01-01", "2012-05-31")), source=source).problems
    assert "holds 2011-12-01 to 2012-04-01; a month of which it holds no day cannot be published" in problem.rule


@pytest.mark.parametrize(
    ("chunking", "said"),
    [(Chunking.DAY, "a day that it does not hold"), (Chunking.HOUR, "an hour of a day that it does not hold")],
)
def test_days_that_the_source_does_not_hold_are_named_as_such(chunking: Chunking, said: str) -> None:
    contract = a_contract(chunking=chunking, first_chunk="", last_chunk="")
    source = a_source([SourceFile(1, 1, date(2011, 12, 1), date(2012, 4, 1))])
    (problem,) = scope_problems(DayRange(start=date(2012, 5, 1), end=date(2012, 5, 2)), contract, source)
    assert f"2012-04-01; {said} cannot be published (a day before and after" in problem.rule


def test_a_source_range_need_not_reach_before_the_first_source_day() -> None:
    manifest = a_manifest(source={"table": SOURCE, "range": {"start": "2012-01-01", "end": "2012-03-31"}})

    assert a_plan(manifest, source=a_source(monthly_files(date(2012, 1, 1), 3))).reads.files == 3


# --- stages -----------------------------------------------------------------------------------------------------------


def test_the_stages_of_a_plan_are_its_batches_computed_then_gated_in_one_pass_then_the_run_gated_then_published() -> (
    None
):
    plan = a_plan(a_manifest(limits={"maxChunksPerJob": 2}))

    assert stages_of(plan, [REPLACES]) == [
        ComputeBatch(1, ("2012-01", "2012-02")),
        ComputeBatch(2, ("2012-03",)),
        GateChunks(("2012-01", "2012-02", "2012-03")),
        RunGates(("all_chunks_staged", "record_counts")),
        Publish(PublishMode.REPLACE_PARTITIONS, TARGET, date(2012, 1, 1), date(2012, 3, 31), (REPLACES,), manual=False),
    ]


def test_a_dry_run_has_every_stage_but_the_publication() -> None:
    looks, publishes = a_plan(a_manifest(mode="DRY_RUN")), a_plan()

    assert stages_of(looks, [REPLACES]) == stages_of(publishes, [REPLACES])[:-1]
    assert (looks.publishes, publishes.publishes) == (False, True)


def test_a_reconciliation_reads_what_is_published_and_computes_nothing() -> None:
    contract = a_contract(published_gates=("published_rows_are_accepted", "record_counts"))
    looks = a_plan(a_manifest(kind="RECONCILIATION"), contract=contract)

    chunks = ("2012-01", "2012-02", "2012-03")
    assert stages_of(looks, [REPLACES]) == [Reconcile(TARGET, chunks, ("published_rows_are_accepted", "record_counts"))]
    assert stages_of(looks, [REPLACES])[0].describe() == (
        f"read 3 chunks (2012-01 to 2012-03) of {TARGET} as published and judge: "
        "published_rows_are_accepted, record_counts"
    )
    assert not looks.publishes


def test_a_reconciliation_is_held_against_gates_of_published_rows_only() -> None:
    contract = a_contract(published_gates=("published_rows_are_accepted", "record_counts"))
    named = {"kind": "RECONCILIATION", "validation": {"gates": ["record_counts"]}}

    assert a_plan(a_manifest(**named), contract=contract).gates == ("record_counts",)
    with pytest.raises(PlanRefused, match="all_chunks_staged"):
        a_plan(a_manifest(kind="RECONCILIATION", validation={"gates": ["all_chunks_staged"]}), contract=contract)


def test_a_stage_says_in_one_line_what_it_does() -> None:
    plan = a_plan(a_manifest(safety={"requiresManualPublish": True}))

    assert [stage.describe() for stage in stages_of(plan, [REPLACES])] == [
        "compute 3 chunks (2012-01 to 2012-03) into staging, in one Spark job",
        "read 3 chunks (2012-01 to 2012-03) back, in one pass, and gate each chunk",
        "gate the whole run: all_chunks_staged, record_counts",
        f"publish {TARGET} from 2012-01-01 to 2012-03-31 (REPLACE_PARTITIONS) {COMMIT}; when somebody says so",
    ]


@pytest.mark.parametrize(
    ("chunks", "said"),
    [
        (
            ("2011-12~CA", "2011-12~NY"),
            (
                "compute 2 chunks (2011-12 of CA, NY) into staging, in a Spark job for each value, range or bucket and each "
                "stretch without a gap, which reads the source by itself (in one job where these are all times of the table)"
            ),
        ),
        (("2011-12",), "compute chunk 2011-12 into staging, in one Spark job"),
        (("2011-12", "2012-01"), "compute 2 chunks (2011-12 to 2012-01) into staging, in one Spark job"),
        (
            ("2012-02-28", "2012-02-29", "2012-03-01"),
            "compute 3 chunks (2012-02-28 to 2012-03-01) into staging, in one Spark job",
        ),
        (
            ("2011-03", "2014-01"),
            "compute 2 chunks (2011-03, 2014-01) into staging, in a Spark job for each stretch without a gap",
        ),
    ],
)
def test_a_sample_with_gaps_is_not_said_to_be_one_spark_job(chunks: tuple[str, ...], said: str) -> None:
    assert ComputeBatch(1, chunks).describe() == said


def test_a_sample_reads_and_is_limited_by_its_own_chunks() -> None:
    source = a_source([SourceFile(1_000, 10_000, day, day) for day in (date(2012, one, 15) for one in range(1, 13))])

    def planned(*sample: str, looks_back: bool = False) -> Plan:
        terms = {"sample": {"chunks": list(sample)}, "mode": "DRY_RUN", "safety": {"maxRowsExpected": 2_500}}
        manifest = a_manifest(target=publishing("2012-01-01", "2012-12-31"), **(terms if sample else {}))
        return a_plan(manifest, source=source, contract=a_contract(reads_look_back=looks_back, warm_up_days=0))

    assert planned().reads.rows == 12_000
    reads = planned("2012-03", "2012-09").reads
    assert (reads.rows, reads.files) == (2_000, 2)
    for refused in (lambda: planned("2012-03", "2012-06", "2012-09"), lambda: planned("2012-03", looks_back=True)):
        with pytest.raises(PlanRefused, match="the run would read"):
            refused()


@unhurried
@given(st.integers(1, 60), st.integers(1, 70))
def test_batches_of_any_size_hold_every_chunk_once_and_in_order(days: int, size: int) -> None:
    end = date(2012, 1, 1) + timedelta(days=days - 1)
    manifest = a_manifest(target=publishing("2012-01-01", end.isoformat()), limits={"maxChunksPerJob": size})
    plan = a_plan(manifest, contract=a_contract(chunking=Chunking.DAY))
    batches = plan.batches()

    assert [chunk for batch in batches for chunk in batch] == list(plan.chunks)
    assert all(len(batch) == size for batch in batches[:-1])
    assert 1 <= len(batches[-1]) <= size
    found = batches_of(plan)
    assert [stage.chunks for stage in found] == [tuple(chunk.key for chunk in batch) for batch in batches]
    assert [stage.number for stage in found] == list(range(1, len(batches) + 1))


@unhurried
@given(st.integers(1, 40), st.data())
def test_batches_of_some_chunks_hold_those_and_no_other(size: int, data: st.DataObject) -> None:
    manifest = a_manifest(target=publishing("2010-01-01", "2012-12-31"), limits={"maxChunksPerJob": size})
    plan = a_plan(manifest)
    wanted = data.draw(st.frozensets(st.sampled_from([chunk.key for chunk in plan.chunks])))

    found = [chunk.key for batch in plan.batches(wanted) for chunk in batch]
    assert found == sorted(wanted)


# --- many chunks and files --------------------------------------------------------------------------------------------


def touched(files: tuple[SourceFile, ...], first: date, last: date) -> Estimate:
    """Count what a range of days touches by looking at each file."""
    found = [file for file in files if file.first_day <= last and file.last_day >= first]
    return Estimate(len(found), sum(file.rows for file in found), sum(file.bytes for file in found))


days_around = st.dates(date(2011, 12, 1), date(2012, 5, 1))
some_files = st.lists(
    # one of them begins after it ends: nobody else's metadata is taken on trust
    st.builds(SourceFile, st.integers(0, 10**12), st.integers(0, 2**62), days_around, days_around),
    max_size=40,
)


@unhurried
@given(some_files, st.integers(0, 90), st.integers(0, 59), st.integers(0, 30), st.sampled_from(Chunking))
def test_the_plan_is_that_of_who_looks_at_each_file_for_each_chunk(
    drawn: list[SourceFile], warm_up: int, begins: int, length: int, chunking: Chunking
) -> None:
    # the edges know every day that may be published
    files = (SourceFile(1, 1, date(2011, 1, 1), date(2011, 1, 1)), *drawn, SourceFile(1, 1, *[date(2013, 1, 1)] * 2))
    start = date(2012, 1, 1) + timedelta(days=begins)
    first, last = aligned(chunking, start, start + timedelta(days=length))
    manifest = a_manifest(target=publishing(first.isoformat(), last.isoformat()))
    contract = a_contract(chunking=chunking, warm_up_days=warm_up)
    plan = a_plan(manifest, contract=contract, source=a_source(files))

    reach, day = timedelta(days=warm_up + 1), timedelta(days=1)
    slow = dataclasses.replace(
        plan,
        reads=touched(files, first - reach, last + day),
        look_back=touched(files, date.min, first - reach - day),
        chunks=tuple(
            dataclasses.replace(chunk, reads=touched(files, chunk.start - reach, chunk.end + day))
            for chunk in plan.chunks
        ),
    )
    assert plan.to_json() == slow.to_json()
    assert plan.hash == slow.hash


class Counted(tuple[SourceFile, ...]):
    """Files that count how often somebody goes through all of them."""

    __slots__ = ()
    passes: ClassVar[list[int]] = []

    def __iter__(self) -> Iterator[SourceFile]:
        self.passes.append(len(self))
        return super().__iter__()


def test_no_chunk_goes_through_all_files() -> None:
    files = Counted(monthly_files(date(2001, 1, 1), 180))
    source = dataclasses.replace(a_source(files), files=files)
    plan = a_plan(
        a_manifest(target=publishing("2003-01-01", "2012-12-31")),
        contract=a_contract(chunking=Chunking.DAY),
        source=source,
    )
    assert len(plan.chunks) == 3_653
    assert len(Counted.passes) < 20


# --- identity ---------------------------------------------------------------------------------------------------------


def test_a_plan_comes_back_from_json_equal_and_with_its_hash() -> None:
    manifest = a_manifest(
        referenceData=[{"name": RULES, "semantics": "AS_DECIDED", "version": "2023"}],
        safety={"maxRowsExpected": 1_000},
        validation={"tolerances": {"row_change": 0.1}},
    )
    plan = a_plan(manifest, run_clock=datetime(2024, 5, 1, 12, 0, 0, 123456, UTC))
    again = plan_from_json(plan.to_json())

    assert again == plan
    assert again.hash == plan.hash
    assert stages_of(again, [REPLACES]) == stages_of(plan, [REPLACES])


def test_a_tolerance_declared_as_a_whole_number_keeps_the_hash_of_its_plan() -> None:
    # publication compares the recorded hash with that of the plan read back: a difference would refuse every run
    plan = a_plan(contract=a_contract(tolerances={"row_change": 20}))

    assert plan_from_json(plan.to_json()).hash == plan.hash


@unhurried
@given(
    st.integers(0, 400),
    st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.floats(0, 1e9), max_size=3),
    st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1), timezones=st.timezones()),  # noqa: DTZ001 - the zone is drawn
    st.integers(1, 2**63 - 1),
)
def test_any_plan_comes_back_from_json_equal_and_with_its_hash(
    warm_up: int, tolerances: dict[str, float], run_clock: datetime, snapshot: int
) -> None:
    contract = a_contract(warm_up_days=warm_up, tolerances=tolerances)
    plan = a_plan(contract=contract, run_clock=run_clock, base_snapshot_id=snapshot)
    again = plan_from_json(plan.to_json())

    assert again == plan
    assert again.hash == plan.hash


def test_the_same_manifest_on_the_same_tables_gives_the_same_plan() -> None:
    assert a_plan().to_json() == a_plan().to_json()


def test_the_hash_of_a_plan_is_pinned() -> None:
    # approvals are about a plan's hash: a change here makes every recorded approval void
    assert a_plan().hash == "9705fb25851d3df6e28614eb56511892f824ae654360a731d0448940f334e22a"


OTHER_REFERENCES = {RULES: a_reference(RULES, current=101), CALENDAR: a_reference(CALENDAR)}


@pytest.mark.parametrize(
    "other",
    [
        lambda: a_plan(a_manifest("another-run")),
        lambda: a_plan(a_manifest(reason="another reason altogether")),
        lambda: a_plan(a_manifest(mode="DRY_RUN")),
        lambda: a_plan(a_manifest(target=publishing("2012-01-01", "2012-02-29"))),
        lambda: a_plan(a_manifest(transform={"name": "case_sla_daily", "version": "1"})),
        lambda: a_plan(a_manifest(warmUp={"days": 61})),
        lambda: a_plan(a_manifest(limits={"maxChunksPerJob": 1})),
        lambda: a_plan(a_manifest(safety={"requiresManualPublish": True})),
        lambda: a_plan(a_manifest(validation={"gates": ["record_counts"]})),
        lambda: a_plan(a_manifest(validation={"tolerances": {"row_change": 21}})),
        lambda: a_plan(contract=a_contract(warm_up_days=61)),
        lambda: a_plan(contract=a_contract(gates=("all_chunks_staged",))),
        lambda: a_plan(contract=a_contract(tolerances={"row_change": 21.0})),
        lambda: a_plan(contract=a_contract(reads_look_back=False)),
        lambda: a_plan(contract=a_contract(references=(RULES,))),
        lambda: a_plan(source=a_source(snapshot_id=12)),
        lambda: a_plan(source=a_source(committed_at=RUN_CLOCK)),
        lambda: a_plan(source=a_source(monthly_files(date(2010, 1, 1), 48, rows=101))),
        lambda: a_plan(references=OTHER_REFERENCES),
        lambda: a_plan(base_snapshot_id=8),
        lambda: a_plan(base_snapshot_id=None),
        lambda: a_plan(code=a_code(content_hash="0" * 64)),
        lambda: a_plan(code=a_code(git_commit="0" * 40)),
        lambda: a_plan(code=a_code(lock_hash=None)),
        lambda: a_plan(code=a_code(package_version="0.2.0")),
        lambda: a_plan(configuration_hash="0" * 64),
        lambda: a_plan(run_clock=RUN_CLOCK + timedelta(seconds=1)),
    ],
)
def test_a_plan_with_another_ingredient_has_another_hash(other: Callable[[], Plan]) -> None:
    assert other().hash != a_plan().hash


def test_every_field_of_a_plan_is_in_its_hash() -> None:
    plan = a_plan(a_manifest(safety={"maxRowsExpected": 1_000}))
    for field in dataclasses.fields(plan):
        other = "something" if field.metadata.get("later") else None  # a later field's default is not in the text
        assert dataclasses.replace(plan, **{field.name: other}).hash != plan.hash, field.name


# --- beside live ------------------------------------------------------------------------------------------------------

QUARTER = frozenset({"2011-10", "2011-11", "2011-12"})


def live_gaps(start: str, end: str, **base: Any) -> list[str]:
    """Return why LIVE over a range is refused, empty if it is planned."""
    manifest = a_manifest("live", kind="LIVE", target=publishing(start, end))
    try:
        a_plan(manifest, base=BaseState(**base))
    except PlanRefused as refused:
        return reasons(refused)
    return []


def test_live_goes_on_from_the_watermark_with_or_without_a_rewind_and_leaves_no_gap() -> None:
    complete = {"accepted": QUARTER, "complete_until": date(2011, 12, 31)}
    assert live_gaps("2012-01-01", "2012-01-31", **complete) == []
    assert live_gaps("2011-11-01", "2012-01-31", **complete) == []
    assert live_gaps("2012-03-01", "2012-03-31", **complete) == ["no run would cover the days 2012-01-01 to 2012-02-29"]
    # what somebody else has published in between is covered; before the first publication nothing can be left out
    assert (
        live_gaps("2012-02-01", "2012-02-29", accepted=QUARTER | {"2012-01"}, complete_until=date(2011, 12, 31)) == []
    )
    assert live_gaps("2012-03-01", "2012-03-31") == []
    assert live_gaps("2012-03-01", "2012-03-31", accepted=QUARTER) == [
        "no run would cover the days 2012-01-01 to 2012-02-29"
    ]


def test_days_of_a_chunk_that_the_watermark_has_not_reached_are_a_gap() -> None:
    assert live_gaps("2012-01-01", "2012-01-31", accepted=QUARTER, complete_until=date(2011, 12, 20)) == [
        "no run would cover the days 2011-12-21 to 2011-12-31"
    ]


def test_a_backfill_without_a_cut_line_may_leave_days_out() -> None:
    a_plan(base=BaseState(accepted=frozenset({"2011-06"}), complete_until=date(2011, 6, 30)))


def test_a_backfill_ends_at_its_cut_line() -> None:
    assert a_plan(a_manifest(cutLine="2012-04-01")).publish_range.end == date(2012, 3, 31)
    crossing = refusal(a_manifest(cutLine="2012-03-15"))
    assert reasons(crossing) == ["target.publishRange ends on 2012-03-31, 17 day(s) beyond the cut line 2012-03-15"]
    assert "overlapDays: 17" in crossing.problems[0].fix
    assert len(reasons(refusal(a_manifest(cutLine="2012-03-15", overlapDays=16)))) == 1
    a_plan(a_manifest(cutLine="2012-03-15", overlapDays=17))


def test_a_backfill_with_a_cut_line_meets_what_is_complete_on_both_sides() -> None:
    manifest = a_manifest(cutLine="2012-06-01")
    assert reasons(refusal(manifest, base=BaseState(accepted=QUARTER - {"2011-12"}))) == [
        "no run would cover the days 2011-12-01 to 2011-12-31",
        "no run would cover the days 2012-04-01 to 2012-05-31",
    ]
    assert reasons(refusal(manifest, base=BaseState(accepted=QUARTER | {"2012-05"}))) == [
        "no run would cover the days 2012-04-01 to 2012-04-30"
    ]
    # LIVE has begun at the cut line: its watermark is beyond the run, and says nothing about the days before
    beyond = BaseState(accepted=QUARTER | {"2012-04", "2012-05", "2012-06"}, complete_until=date(2012, 6, 30))
    a_plan(manifest, base=beyond)


def test_the_steps_of_a_series_meet_each_other_and_only_the_last_the_cut_line() -> None:
    whole = a_manifest(cutLine="2012-04-01", progressive={"chunksPerStep": 1})
    first, middle, last = series_of(whole, Chunking.MONTH)
    before = BaseState(accepted=QUARTER, complete_until=date(2011, 12, 31))
    for step in (first, middle, last):
        a_plan(step, base=before)
    assert reasons(refusal(first, base=BaseState(accepted=QUARTER - {"2011-12"}))) == [
        "no run would cover the days 2011-12-01 to 2011-12-31"
    ]
    early = a_manifest("restate-2012", cutLine="2012-06-01", progressive={"chunksPerStep": 2})
    assert reasons(refusal(series_of(early, Chunking.MONTH)[-1], base=before)) == [
        "no run would cover the days 2012-04-01 to 2012-05-31"
    ]


def test_older_knowledge_never_replaces_newer() -> None:
    known = a_source().committed_at
    later = known + timedelta(seconds=1)
    live = a_manifest("live", kind="LIVE")
    a_plan(live, base=BaseState(complete_at=known))
    assert "complete with bronze.case_events as of" in refusal(live, base=BaseState(complete_at=later)).problems[0].rule
    # LIVE replaces what others have published in its days, also where it has not moved the watermark
    of_others = refusal(live, base=BaseState(complete_at=known, held_at=later))
    assert "published in this range from bronze.case_events as of" in of_others.problems[0].rule
    a_plan(base=BaseState(held_at=later))
    # a watermark is about the newest days: a backfill of others may read what it was planned with
    a_plan(base=BaseState(complete_at=later, live_at=known))
    assert "published by LIVE in this range" in refusal(base=BaseState(live_at=later)).problems[0].rule


def test_all_that_stands_between_history_and_live_is_said_at_once() -> None:
    later = a_source().committed_at + timedelta(seconds=1)
    base = BaseState(accepted=frozenset({"2011-06"}), live_at=later)
    assert len(reasons(refusal(a_manifest(cutLine="2012-03-01"), base=base))) == 3


def test_files_that_hold_other_days_are_named_where_the_range_is_whole_chunks() -> None:
    base = BaseState(files_beyond=("part-0.parquet of 2012-01-10",))
    (whole,) = reasons(refusal(base=base))
    assert "1 file(s)" in whole
    partly = a_manifest(target=publishing("2012-01-10", "2012-03-31"))
    assert reasons(refusal(partly, base=base)) == ["target.publishRange is 2012-01-10 to 2012-03-31"]
