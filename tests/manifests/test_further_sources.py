"""Which days of a further source a plan reads, and why it may not: by rules alone, without a table."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import a_contract, a_manifest, a_plan, a_source, monthly_files, publishing

from manifests.canonical import plain
from manifests.errors import ManifestRefused, PlanRefused
from manifests.estimates import Estimate
from manifests.facts import BaseState, FurtherSource
from manifests.further_sources import FoundSource, PinnedSource, UpstreamRun, touched_days
from manifests.plan import ChangedSince, Plan, plan_from_json
from manifests.timeliness import FoundTimes, OnFuture, OnLate, Timeliness, newest_in_time

RATES = "bronze.rates"
QUARTER = publishing("2012-01-01", "2012-03-31")


def declared(**changes: Any) -> FurtherSource:
    fields: dict[str, Any] = {
        "table": RATES,
        "time_column": "valid_from",
        "days_before": 10,
        "days_after": 0,
        "may_be_empty": False,
    }
    return FurtherSource(**(fields | changes))


def with_rates(source: FurtherSource | None = None, found: FoundSource | None = None, **changes: Any) -> Plan:
    state = a_source(monthly_files(date(2011, 1, 1), 24), table=RATES, snapshot_id=21, has_dates=True)
    known = {RATES: FoundSource(state) if found is None else found}
    return a_plan(
        a_manifest(target=QUARTER), contract=a_contract(sources=(source or declared(),)), sources=known, **changes
    )


def refusal(**changes: Any) -> str:
    with pytest.raises(PlanRefused) as found:
        with_rates(**changes)
    return str(found.value)


def a_pin(*, before: int | None, after: int, has_dates: bool) -> PinnedSource:
    at = datetime(2012, 5, 1, tzinfo=UTC)
    return PinnedSource(RATES, "at", has_dates, 1, at, before, after, Estimate(0, 0, 0))


def test_a_plan_without_further_sources_says_nothing_of_them() -> None:
    text = a_plan().to_json()
    for name in ("sources", "upstream", "leaves_out_future", "source_has_dates"):
        assert f'"{name}"' not in text
    assert "sources" not in a_manifest().canonical()


def test_a_further_source_is_pinned_with_what_is_read_of_it() -> None:
    found = FoundSource(
        a_source(monthly_files(date(2011, 1, 1), 24), table=RATES, snapshot_id=21, has_dates=True),
        upstream=(UpstreamRun("made-it", ("2011-12", "2012-01")),),
    )
    plan = with_rates(found=found)
    (pin,) = plan.sources
    assert (pin.snapshot_id, pin.reads.files, pin.upstream[0].run_id) == (21, 4, "made-it")
    assert plan.source_pins == [(plan.source, 11), (RATES, 21)]
    again = plan_from_json(plan.to_json())
    assert (again, again.hash) == (plan, plan.hash)
    assert plan.hash != with_rates(source=declared(days_before=11)).hash


def test_everything_until_the_end_has_no_beginning_and_dates_have_no_margin() -> None:
    days = date(2012, 1, 1), date(2012, 1, 31)
    assert a_pin(before=None, after=0, has_dates=True).window(*days) == (None, date(2012, 2, 1))
    assert a_pin(before=3, after=2, has_dates=True).window(*days) == (date(2011, 12, 29), date(2012, 2, 3))
    assert a_pin(before=0, after=0, has_dates=False).window(*days) == (
        datetime(2011, 12, 31, tzinfo=UTC),
        datetime(2012, 2, 2, tzinfo=UTC),
    )


@given(
    st.dates(),
    st.integers(0, 400),
    st.one_of(st.none(), st.integers(0, 36_500)),
    st.integers(0, 36_500),
    st.booleans(),
)
def test_a_batch_reads_what_each_of_its_chunks_does_also_at_the_ends_of_the_calendar(
    first: date, days: int, before: int | None, after: int, has_dates: bool
) -> None:
    last = date.fromordinal(min(first.toordinal() + days, date.max.toordinal()))
    pin = a_pin(before=before, after=after, has_dates=has_dates)
    low, high = touched_days(pin, first, last)
    for own in (touched_days(pin, first, first), touched_days(pin, last, last)):
        assert low <= own[0]
        assert own[1] <= high


def test_a_chunk_without_rows_is_refused_by_name_unless_it_may_have_none() -> None:
    few = FoundSource(a_source(monthly_files(date(2012, 1, 1), 2), table=RATES, has_dates=True))
    said = refusal(found=few, source=declared(days_before=0))
    assert "bronze.rates holds no rows for 2012-03 at snapshot 11" in said
    assert with_rates(found=few, source=declared(days_before=0, may_be_empty=True)).sources[0].reads.files == 2
    assert "bronze.rates has no snapshot yet" in refusal(found=FoundSource(None))
    (pin,) = with_rates(found=FoundSource(None), source=declared(may_be_empty=True)).sources
    assert (pin.snapshot_id, pin.committed_at) == (None, None)


def test_a_manifest_names_snapshots_of_declared_sources_once_each() -> None:
    wrong = a_manifest(sources=[{"table": "bronze.other", "snapshotId": 1}], target=QUARTER)
    with pytest.raises(PlanRefused, match=r"sources names bronze\.other"):
        a_plan(wrong)
    twice = a_manifest(sources=[{"table": RATES, "snapshotId": 1}, {"table": RATES, "snapshotId": 2}], target=QUARTER)
    with pytest.raises(PlanRefused, match=r"sources names bronze\.rates 2 times"):
        a_plan(twice, contract=a_contract(sources=(declared(),)))


def merging(merge: dict[str, Any], found: FoundSource | None = None, **changes: Any) -> Plan:
    target = QUARTER | {"publishMode": "MERGE_BY_KEY", "merge": merge}
    contract = a_contract(sources=(declared(may_be_empty=True, **changes),), entity="case_id")
    base = BaseState(source_snapshots=frozenset({7}))
    sources = {
        RATES: found
        or FoundSource(a_source(monthly_files(date(2011, 1, 1), 24), table=RATES, snapshot_id=21, has_dates=True))
    }
    return a_plan(a_manifest(target=target), contract=contract, base=base, sources=sources)


def test_a_merge_of_what_has_changed_says_of_each_source_since_when() -> None:
    assert merging({"entities": ["c-1"]}).merge is not None
    with pytest.raises(PlanRefused, match=r"nothing is said of bronze\.rates"):
        merging({"changedSince": 7})
    assert merging({"changedSince": 7}, FoundSource(None)).merge is not None  # no row of it can have changed
    with pytest.raises(PlanRefused, match=r"merge\.sources names bronze\.other"):
        merging({"changedSince": 7, "sources": [{"table": "bronze.other", "changedSince": 20}]})
    plan = merging({"changedSince": 7, "sources": [{"table": RATES, "changedSince": 20}]})
    assert plan.merge is not None
    assert plan.merge.sources == (ChangedSince(RATES, 20),)
    assert plan_from_json(plan.to_json()) == plan
    assert "after snapshot 20 of bronze.rates" in dict(plan.merge.describe())["merges"]
    assert "sources" not in plain(merging({"entities": ["c-1"]}).merge)
    for wrong in (
        {"entities": ["c-1"], "sources": [{"table": RATES, "changedSince": 20}]},
        {"changedSince": 7, "sources": [{"table": RATES, "changedSince": 20}, {"table": RATES, "changedSince": 19}]},
    ):
        with pytest.raises(ManifestRefused):
            merging(wrong)


def test_a_source_that_gates_alone_look_at_changes_no_entity() -> None:
    plan = merging({"changedSince": 7}, for_gates=True)
    assert plan.merge is not None
    assert plan.merge.sources == ()
    assert plan.sources[0].describe().endswith(", for gates")
    assert '"for_gates":true' in plan.to_json()
    assert "for_gates" not in with_rates().to_json()
    with pytest.raises(PlanRefused, match=r"merge\.sources names bronze\.rates"):
        merging({"changedSince": 7, "sources": [{"table": RATES, "changedSince": 20}]}, for_gates=True)


def test_rows_that_are_not_in_time_are_refused_where_the_target_declares_it() -> None:
    state = a_source(monthly_files(date(2011, 1, 1), 24), table=RATES, snapshot_id=21, has_dates=True)
    found = FoundSource(state, times=FoundTimes(future_rows=3, late=("2012-02",)))
    with_rates(found=found)
    strict = declared(timeliness=Timeliness(OnLate.REFUSE, OnFuture.REFUSE))
    said = refusal(source=strict, found=found)
    assert "bronze.rates has rows of the future" in said
    assert "rows came into bronze.rates after 2012-02 was accepted" in said
    plan = with_rates(source=declared(timeliness=Timeliness(future=OnFuture.LEAVE_OUT)))
    assert plan.gates[-1] == "rows_of_the_future"
    assert (
        plan.sources[0].newest == newest_in_time(datetime(2024, 4, 30, tzinfo=UTC), has_dates=True) == date(2024, 5, 1)
    )
