"""A kind of run says something about the target as it is: where the plan contradicts it, the right kind is named."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest
from support import a_manifest, publishing

from manifests.chunks import Chunking, first_day, last_day
from manifests.kinds import Holder, Present, kind_problems
from manifests.model import Kind

JANUARY, FEBRUARY, MARCH, MAY = "2012-01", "2012-02", "2012-03", "2012-05"
QUARTER = ("2012-01-01", "2012-03-31")
SOURCE = "bronze.events"
OLD, NEW = 11, 12
"""Snapshots of the source."""


def published(*chunks: str, kind: Kind = Kind.BACKFILL, version: str = "2", **facts: Any) -> Present:
    days: dict[str, tuple[date, date]] = {}
    for key in chunks:
        begins = first_day(Chunking.MONTH, key)
        days[key] = (begins, last_day(Chunking.MONTH, begins))
    return Present({key: Holder(kind, version, frozenset({(SOURCE, OLD)})) for key in chunks}, days, **facts)


def right_kind(
    kind: str,
    present: Present,
    scope: Sequence[str] = QUARTER,
    *,
    reads: int = OLD,
    told_apart: bool = True,
    **changes: Any,
) -> str:
    """Return the kind that a refusal names; the stated one where it is none."""
    target = publishing(*scope) | changes
    found = kind_problems(
        a_manifest(kind=kind, target=target), present, frozenset({(SOURCE, reads)}), told_apart=told_apart
    )
    return found[0].fix.rpartition(" ")[2].strip("`") if found else kind


def test_what_replaces_published_rows_is_a_restatement_whatever_it_is_called():
    for kind in ("BACKFILL", "BOOTSTRAP", "MIGRATION"):
        assert right_kind(kind, published(FEBRUARY)) == "RESTATEMENT"
        assert (
            right_kind(kind, published(rows_of_others=True)) == "RESTATEMENT"
        )  # nobody knows whose, but readers see it
        assert right_kind(kind, published()) == kind
    assert right_kind("BACKFILL", published(MAY)) == "BACKFILL"
    assert right_kind("RESTATEMENT", published(FEBRUARY)) == "RESTATEMENT"


def test_a_first_load_is_into_a_target_that_is_not_in_use_yet():
    for kind in ("BOOTSTRAP", "MIGRATION"):
        assert right_kind(kind, published(MAY, kind=Kind.BOOTSTRAP)) == kind  # loaded part by part
        assert right_kind(kind, published(MAY, kind=Kind.RESTATEMENT)) == "BACKFILL"
        assert right_kind(kind, published(live_has_begun=True)) == "BACKFILL"
    assert right_kind("BACKFILL", published(live_has_begun=True)) == "BACKFILL"


def test_what_was_never_processed_is_not_processed_again():
    for kind in ("REPAIR", "REPROCESSING", "REPLAY"):
        assert right_kind(kind, published(MAY)) == "BACKFILL"
        assert right_kind(kind, published(JANUARY, FEBRUARY, MAY)) == kind


def test_a_repair_is_bounded():
    assert right_kind("REPAIR", published(JANUARY, FEBRUARY)) == "RESTATEMENT"
    assert right_kind("REPAIR", published(JANUARY, MAY)) == "REPAIR"
    assert right_kind("REPAIR", published(JANUARY)) == "REPAIR"  # there is no smaller part of it
    merge = {"publishMode": "MERGE_BY_KEY", "merge": {"entities": ["A1"]}}
    assert right_kind("REPAIR", published(JANUARY, FEBRUARY), **merge) == "REPAIR"  # bounded by its entities


def test_a_replay_of_what_is_published_reads_the_same_again():
    there = published(JANUARY, MARCH)
    assert right_kind("REPLAY", there) == "REPLAY"
    assert right_kind("REPLAY", there, reads=NEW) == "RESTATEMENT"
    assert right_kind("REPLAY", published(JANUARY, version="1")) == "RESTATEMENT"
    assert right_kind("REPLAY", published(rows_of_others=True)) == "RESTATEMENT"


def test_a_restatement_of_nothing_is_refused_where_it_would_choose_its_rule():
    assert right_kind("RESTATEMENT", published(MAY)) == "BACKFILL"
    assert right_kind("RESTATEMENT", published(MAY), told_apart=False) == "RESTATEMENT"


@pytest.mark.parametrize("kind", ["LIVE", "RECONCILIATION"])
def test_what_the_platform_writes_is_not_judged_by_its_kind(kind: str):
    assert right_kind(kind, published(JANUARY, FEBRUARY, rows_of_others=True)) == kind


def test_the_refusal_says_what_is_there_which_rule_and_what_to_do():
    (problem,) = kind_problems(
        a_manifest(kind="BOOTSTRAP"), published(JANUARY, MARCH), frozenset({(SOURCE, OLD)}), told_apart=False
    )
    assert problem.what == (
        "kind is BOOTSTRAP, and 2 chunk(s) of silver.case_sla_daily in the publish range are published (2012-01 to 2012-03 without "
        "2012-02)"
    )
    assert problem.rule == "a BOOTSTRAP fills what is empty, before LIVE begins"
    assert problem.fix == "this is a RESTATEMENT: state `kind: RESTATEMENT`"
