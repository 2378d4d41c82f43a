"""Figures that a manifest expects: what it may say, what contradicts target and plan, and what each step of a series takes of it."""

from __future__ import annotations

from typing import Any

import pytest
from support import TARGET, a_contract, a_manifest, a_plan, publishing

from manifests.chunks import Chunking
from manifests.draft_figures import DraftFigures
from manifests.errors import ManifestRefused, PlanRefused
from manifests.expected import EXPECTED_FIGURES_GATE
from manifests.model import RunManifest
from manifests.reading import parse_manifest
from manifests.series import series_of

DIGEST = f"rows-sha256-v1:{'a' * 64}"
CONTRACT = a_contract(summed=("amount", "cases"))


def expecting(expected: Any, **changes: Any) -> RunManifest:
    return a_manifest(validation={"expected": expected}, **changes)


def reasons(expected: Any, **changes: Any) -> list[str]:
    with pytest.raises(PlanRefused) as refused:
        a_plan(expecting(expected, **changes), contract=CONTRACT)
    return [problem.what for problem in refused.value.problems]


def test_a_plan_has_the_gate_where_its_manifest_expects_figures_and_only_there() -> None:
    plan = a_plan(expecting({"chunks": {"2012-01": {"rows": 5, "digest": DIGEST}}}), contract=CONTRACT)
    assert plan.gates[-1] == EXPECTED_FIGURES_GATE
    assert EXPECTED_FIGURES_GATE not in a_plan(a_manifest(), contract=CONTRACT).gates
    chosen = a_manifest(validation={"gates": [], "expected": {"whole": {"rows": 1}}})
    assert EXPECTED_FIGURES_GATE in a_plan(chosen, contract=CONTRACT).gates, "nobody leaves it out by naming others"


def test_a_manifest_that_expects_nothing_has_the_hash_that_it_had() -> None:
    assert "expected" not in a_manifest().canonical()
    assert a_manifest().hash == a_manifest(validation={"expected": None}).hash
    assert a_manifest().hash != expecting({"whole": {"rows": 1}}).hash


def test_chunks_and_columns_that_there_are_not_are_refused_all_at_once() -> None:
    figures = {"rows": 1, "sums": {"amount": "1.5", "case_id": 3}}
    assert reasons({"whole": {"sums": {"days": 1}}, "chunks": {"2012-01": figures, "2013-01": figures}}) == [
        "validation.expected.chunks names 2013-01",
        "validation.expected has a sum of case_id",
        "validation.expected has a sum of days",
    ]


def test_figures_of_all_chunks_add_up_to_those_of_the_whole() -> None:
    chunks = {f"2012-0{month}": {"rows": 2, "sums": {"amount": "0.1"}} for month in (1, 2, 3)}
    a_plan(expecting({"whole": {"rows": 6, "sums": {"amount": "0.30"}}, "chunks": chunks}), contract=CONTRACT)
    assert reasons({"whole": {"rows": 7, "sums": {"amount": "0.31"}}, "chunks": chunks}) == [
        "validation.expected: rows of the chunks add up to 6, and the whole is to have 7",
        "validation.expected: amount of the chunks add up to 0.3, and the whole is to have 0.31",
    ]
    del chunks["2012-02"]
    a_plan(expecting({"whole": {"rows": 7}, "chunks": chunks}), contract=CONTRACT)


def test_a_digest_is_of_rows_that_readers_see() -> None:
    corrections = publishing("2012-01-01", "2012-03-31") | {"publishMode": "CORRECTION_EVENTS"}
    with pytest.raises(PlanRefused, match="has a digest of 2012-01"):
        a_plan(
            expecting({"chunks": {"2012-01": {"digest": DIGEST}}}, target=corrections),
            contract=a_contract(has_corrections=True),
        )


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ({}, "expected names no figure"),
        ({"chunks": {"2012-01": {}}}, "there is no figure to compare"),
        ({"whole": {"digest": DIGEST}}, "is an unknown key"),
        ({"whole": {"rows": -1}}, "is -1"),
        ({"whole": {"rows": True}}, "is true"),
        ({"whole": {"sums": {"amount": 12.5}}}, "is 12.5"),
        ({"whole": {"sums": {"amount": "1e3"}}}, "is '1e3'"),
        ({"whole": {"sums": {"amount": "NaN"}}}, "is 'NaN'"),
        ({"chunks": {"in March": {"rows": 1}}}, "is 'in March'"),
        ({"chunks": {"2012-01": {"digest": "a" * 64}}}, "is 'aaaa"),
        ([], "is a list"),
    ],
)
def test_what_is_no_figure_is_refused_with_the_rule(expected: Any, said: str) -> None:
    with pytest.raises(ManifestRefused) as refused:
        expecting(expected)
    assert any(said in problem.what for problem in refused.value.problems), refused.value
    assert all("validation" in problem.where and problem.rule for problem in refused.value.problems)


def test_keys_of_any_chunking_are_written_in_yaml_with_quotes() -> None:
    text = (
        "runId: restate-2012\nkind: RESTATEMENT\nrequestedBy: ada\nreason: the dates were wrong\n"
        f"source: {{table: bronze.case_events}}\ntransform: {{name: case_sla_daily, version: '2'}}\n"
        f"target: {{table: {TARGET}, publishRange: {{start: 2012-01-01, end: 2012-12-31}}}}\n"
        "validation: {expected: {chunks: {'2012': {rows: 1}, 2012-03: {rows: 1}, 2012-W09: {rows: 1}, '2012-03-31': {rows: 1}}}}\n"
    )
    expected = parse_manifest(text).validation.expected
    assert expected is not None
    assert set(expected.chunks) == {"2012", "2012-03", "2012-W09", "2012-03-31"}


def test_a_reconciliation_expects_none() -> None:
    with pytest.raises(ManifestRefused, match="a reconciliation computes none"):
        expecting({"whole": {"rows": 1}}, kind="RECONCILIATION")


def test_each_step_of_a_series_takes_the_figures_of_its_own_chunks() -> None:
    chunks = {"2012-01": {"rows": 1}, "2012-03": {"rows": 3}}
    manifest = expecting({"chunks": chunks}, progressive={"chunksPerStep": 1})
    steps = series_of(manifest, Chunking.MONTH)
    told = [step.validation.expected for step in steps]
    assert [None if one is None else sorted(one.chunks) for one in told] == [["2012-01"], None, ["2012-03"]]
    for step in steps:
        a_plan(step, contract=CONTRACT)


def test_a_chunk_that_no_step_has_and_a_whole_are_refused_by_the_first_step() -> None:
    manifest = expecting({"whole": {"rows": 1}, "chunks": {"2013-01": {"rows": 1}}}, progressive={"chunksPerStep": 2})
    with pytest.raises(PlanRefused) as refused:
        a_plan(series_of(manifest, Chunking.MONTH)[0], contract=CONTRACT)
    assert [problem.what for problem in refused.value.problems] == [
        "validation.expected.chunks names 2013-01",
        "validation.expected.whole is given",
    ]


# --- of a manifest that is not valid ----------------------------------------------------------------------------------


def drafted(expected: Any, **draft: Any) -> list[str]:
    figures = DraftFigures.of({"validation": {"expected": expected}} | draft)
    return [one.what for one in figures.problems(a_manifest(), CONTRACT, known=True)]


def test_a_mistake_in_one_figure_hides_none_of_the_others() -> None:
    wrong = {
        "whole": {"rows": -1, "sums": {"days": "1"}},
        "chunks": {
            "2012-01": {"rows": "five", "sums": {"amount": 1.5, "case_id": "x"}},
            "2013-01": {"digest": DIGEST, "rows": "many"},
            "March": {"rows": 1},
        },
    }
    assert drafted(wrong) == [
        "validation.expected.chunks names 2013-01, March",
        "validation.expected has a sum of case_id",
        "validation.expected has a sum of days",
    ]
    assert "validation.expected has a digest of 2013-01" in drafted(wrong, target={"correctionEvents": {}})
    assert drafted({"whole": {"rows": 1, "digest": "x"}}, sample={"chunks": []}) == [
        "validation.expected.whole is given"
    ]
    assert drafted({"chunks": {"2013-01": {"rows": 1}}}, sample={"chunks": []}) == [], "nobody knows its chunks"


@pytest.mark.parametrize(
    "data", [None, [], "x", {}, {"chunks": 5}, {"whole": []}, {"chunks": {"2012-01": {}}}, {"whole": {"sums": 5}}]
)
def test_what_holds_no_figure_is_none(data: Any) -> None:
    assert drafted(data) == []


def test_valid_figures_of_a_draft_are_all_of_them_and_add_up() -> None:
    chunks = {f"2012-0{month}": {"rows": 2} for month in (1, 2, 3)}
    assert drafted({"whole": {"rows": 7}, "chunks": chunks}) == [
        "validation.expected: rows of the chunks add up to 6, and the whole is to have 7"
    ]
    assert drafted({"whole": {"rows": 7}, "chunks": chunks}, kind="RECONCILIATION") == []


def test_figures_are_told_in_words() -> None:
    expected = expecting(
        {"whole": {"rows": 1_000}, "chunks": {"2012-01": {"digest": DIGEST, "sums": {"amount": "1.5"}}}}
    )
    told = expected.validation.expected
    assert told is not None
    assert told.whole is not None
    assert told.whole.in_words() == "1,000 rows"
    assert told.chunks["2012-01"].in_words() == f"sum of amount 1.5, digest {DIGEST}"
