"""A manifest says what a run may do; every text that could be read in two ways is refused, with all its problems."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import date
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from support import a_manifest, manifest_data, publishing

from manifests.canonical import canonical_json
from manifests.errors import ManifestRefused
from manifests.model import Kind, Mode, PublishMode, RunManifest, Semantics, mode_of
from manifests.reading import MAX_MANIFEST_BYTES, load_manifest, manifest_from, parse_manifest, stored_manifest
from manifests.rules import _at as at_place
from manifests.rules import rule_of
from manifests.text import seen

# How long an example takes says nothing about the domain, only about the machine.
unhurried = settings(deadline=None, max_examples=50)


class Quoting(yaml.SafeDumper):
    """Writes text in quotes: PyYAML leaves them out where YAML 1.1 alone reads text, as in 08 and 1e3."""


Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))

FULL = """\
apiVersion: backfill/v1
runId: restate-2012
kind: RESTATEMENT
mode: BACKFILL
requestedBy: ada
reason: |
  Appeals were counted from the wrong day.
source:
  table: bronze.case_events
  snapshotId: 11
  range: {start: 2011-10-01, end: 2012-03-31}
transform: {name: case_sla_daily, version: "2"}
referenceData:
  - {name: silver.sla_rules, semantics: AS_DECIDED, version: "2024"}
  - name: silver.jurisdiction_calendar
target:
  table: silver.case_sla_daily
  publishMode: REPLACE_PARTITIONS
  publishRange: {start: 2012-01-01, end: "2012-03-31"}
warmUp: {days: 90}
safety: {sinks: [run_audit], maxRowsExpected: 1000, requiresManualPublish: true}
validation:
  gates: [all_chunks_staged]
  tolerances: {row_change: 2.5}
limits: {maxChunksPerJob: 12, maxRunsInParallel: 2}
development: true
"""


def refusal(data: dict[str, Any] | str) -> ManifestRefused:
    with pytest.raises(ManifestRefused) as refused:
        parse_manifest(data if isinstance(data, str) else json.dumps(data))
    return refused.value


def fields(refused: ManifestRefused) -> set[str]:
    return {problem.where.removeprefix("manifest: ") for problem in refused.problems}


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return the full manifest as data with the field at the dotted `path` set to `value`."""
    data: Any = json.loads(canonical_json(yaml.safe_load(FULL)))
    inner = data
    *folders, last = path.split(".")
    for folder in folders:
        inner = inner[int(folder)] if isinstance(inner, list) else inner[folder]
    inner[last] = value
    return dict(data)


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_full_manifest_is_read_field_by_field() -> None:
    manifest = parse_manifest(FULL)

    assert manifest.run_id == "restate-2012"
    assert manifest.kind is Kind.RESTATEMENT
    assert manifest.execution_mode is Mode.BACKFILL
    assert manifest.source.snapshot_id == 11
    assert manifest.target.publish_mode is PublishMode.REPLACE_PARTITIONS
    assert manifest.target.publish_range.start == date(2012, 1, 1)
    assert manifest.target.publish_range.end == date(2012, 3, 31)
    assert [item.semantics for item in manifest.reference_data] == [Semantics.AS_DECIDED, Semantics.CURRENT_ACCEPTED]
    assert manifest.warm_up is not None
    assert manifest.warm_up.days == 90
    assert manifest.safety.sinks == ("run_audit",)
    assert manifest.validation.tolerances == {"row_change": 2.5}
    assert manifest.limits.max_chunks_per_job == 12
    assert manifest.development is True


def test_what_a_manifest_leaves_out_is_the_careful_choice() -> None:
    manifest = manifest_from(manifest_data())

    assert manifest.safety.side_effects_allowed is False
    assert manifest.safety.sinks == ()
    assert manifest.development is False
    assert manifest.limits.max_runs_in_parallel == 1
    assert manifest.validation.gates is None, "every gate that the target declares"
    assert manifest.source.snapshot_id is None, "the planner pins the current one"


def test_the_same_contract_in_yaml_and_in_json_has_the_same_hash() -> None:
    as_json = json.dumps(json.loads(canonical_json(yaml.safe_load(FULL))))

    assert parse_manifest(as_json) == parse_manifest(FULL)
    assert parse_manifest(as_json).hash == parse_manifest(FULL).hash


def test_a_manifest_that_states_a_default_is_the_one_that_leaves_it_out() -> None:
    stated = manifest_data(
        apiVersion="backfill/v1", development=False, safety={"sinks": []}, limits={"maxChunksPerJob": 240}
    )

    assert manifest_from(stated).hash == manifest_from(manifest_data()).hash


def test_a_manifest_that_leaves_batches_to_the_plan_does_so_also_in_its_steps_and_as_it_is_stored() -> None:
    silent, said = manifest_from(manifest_data()), manifest_from(manifest_data(limits={"maxChunksPerJob": 240}))

    assert (silent.hash, silent.canonical()) == (said.hash, said.canonical())
    assert (silent.limits.leaves_batches_to_the_plan, said.limits.leaves_batches_to_the_plan) == (True, False)
    for one in (silent, said):
        again = manifest_from(one.as_data())
        assert again.limits.leaves_batches_to_the_plan == one.limits.leaves_batches_to_the_plan
        assert again.hash == one.hash
        assert stored_manifest(one.canonical()).hash == one.hash
    twelve = manifest_from(manifest_data(limits={"maxChunksPerJob": 12}))
    assert stored_manifest(silent.canonical()).limits.leaves_batches_to_the_plan
    assert not stored_manifest(twelve.canonical()).limits.leaves_batches_to_the_plan


def test_a_manifest_says_that_no_diff_is_kept_and_one_that_says_nothing_is_as_it_was() -> None:
    without, stated = manifest_data(evidence={"diff": False}), manifest_data(evidence={"diff": True})

    assert "evidence" not in manifest_from(manifest_data()).canonical()
    assert manifest_from(stated).hash == manifest_from(manifest_data()).hash
    assert manifest_from(without).hash != manifest_from(manifest_data()).hash
    assert not stored_manifest(manifest_from(without).canonical()).evidence.diff
    with pytest.raises(ManifestRefused, match="unknown key"):
        manifest_from(manifest_data(evidence={"diffs": False}))


def test_a_comment_and_another_layout_leave_the_hash_alone() -> None:
    block = yaml.safe_dump(yaml.safe_load(FULL), default_flow_style=False, sort_keys=True)
    flow = yaml.safe_dump(yaml.safe_load(FULL), default_flow_style=True, width=60)

    assert {parse_manifest(text).hash for text in (FULL, "# why\n" + FULL, block, flow)} == {parse_manifest(FULL).hash}


def test_the_hash_of_a_manifest_is_pinned() -> None:
    # it is on record in ledgers and evidence bundles: a change here breaks every one of them
    assert manifest_from(manifest_data()).hash == "989260498c7f6f196b8decff99487651c48db102aed487b0790da192da57d725"


@pytest.mark.parametrize("kind", list(Kind))
def test_a_kind_of_run_has_its_mode_and_may_always_be_a_dry_run(kind: Kind) -> None:
    own = without_code(manifest_data(kind=kind.value)) if kind is Kind.COMPACTION else manifest_data(kind=kind.value)
    assert manifest_from(own).execution_mode is mode_of(kind)
    assert manifest_from(own | {"mode": "DRY_RUN"}).execution_mode is Mode.DRY_RUN


def without_code(data: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest that says nothing of what is read, and by what it is computed."""
    return {name: value for name, value in data.items() if name not in {"source", "transform"}}


def test_a_compaction_says_the_same_with_its_source_and_its_version_or_without_them() -> None:
    short = without_code(manifest_data(kind="COMPACTION"))
    table = short["target"]["table"]
    long = short | {"source": {"table": table}, "transform": {"name": "compaction", "version": "compaction-1"}}

    assert manifest_from(short) == manifest_from(long)
    assert manifest_from(short).hash == manifest_from(long).hash
    assert stored_manifest(manifest_from(short).canonical()) == manifest_from(short)


def test_the_shape_of_the_text_is_kept_in_the_ledger() -> None:
    manifest = parse_manifest(FULL)

    assert stored_manifest(manifest.canonical()) == manifest
    assert stored_manifest(manifest.canonical()).hash == manifest.hash


# --- refusals of the text ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("runId: a\nrunId: b\n", "the key 'runId' stands twice"),
        ("source: {table: a.b, table: c.d}\n", "the key 'table' stands twice"),
        ('{"kind": "REPAIR", "kind": "BACKFILL"}', "the key 'kind' stands twice"),
        ("source: &s {table: a.b}\ntarget: *s\n", "anchors and aliases are refused"),
        ("source: &s {table: a.b}\n", "anchors and aliases are refused"),
        ("reason: &r text\n", "anchors and aliases are refused"),
        ("a: *nobody\n", "anchors and aliases are refused"),
        ("<<: {runId: a}\n", "tag:yaml.org,2002:merge"),
        ("1: one\n", "the key 1 is not text"),
        ("? [a]\n: b\n", "is not text"),
        ("null: one\n", "is not text"),
        ("no: one\n", "'no' is one value by YAML 1.1 and another by YAML 1.2"),
        ("true: one\n", "the key True is not text"),
        ("runId: a\nreason: A wrong transform: the UTC day.\n", "a text with a colon in it is put in quotes"),
        ("runId: [unclosed\n", "cannot be read"),
        ("a: 1\n---\nb: 2\n", "expected a single document"),
        ("a: !!python/object/apply:os.system [ls]\n", "could not determine a constructor"),
        ("runId: \x01\n", "special characters are not allowed"),
        ("start: 2012-02-30\n", "day is out of range"),
    ],
)
def test_a_text_that_two_readers_could_read_differently_is_refused(text: str, reason: str) -> None:
    assert reason in str(refusal(text))


@pytest.mark.parametrize(
    "field",
    [
        "safety: {maxRowsExpected: 0100000}", "safety: {maxRowsExpected: 1:30:00}", "safety: {maxRowsExpected: 0b11}",
        "safety: {maxRowsExpected: 1_0}", "safety: {maxRowsExpected: 0o17}", "safety: {maxRowsExpected: -0x10}",
        "safety: {maxRowsExpected: !!int '010'}", "safety: {requiresManualPublish: NO}", "warmUp: {days: 010}", "warmUp: {days: 08}",
        "development: on", "development: Yes", "development: !!bool 'on'", "evidence: {diff: off}",
        "validation: {tolerances: {a: 1:30.5}}", "validation: {tolerances: {a: 1_0.5}}", "validation: {tolerances: {a: 1e1}}",
        "validation: {tolerances: {a: 1.0e1}}", "validation: {gates: [no]}", "transform: {name: a, version: 12e4567}",
    ],
)  # fmt: skip
def test_a_value_that_the_two_versions_of_yaml_read_differently_is_refused(field: str) -> None:
    assert "is one value by YAML 1.1 and another by YAML 1.2" in str(refusal(f"{field}\n"))


@pytest.mark.parametrize(
    ("field", "place", "value"),
    [
        ("limits: {maxRunsInParallel: !!int '3'}", "limits.max_runs_in_parallel", 3),
        ("limits: {maxRunsInParallel: 0x10}", "limits.max_runs_in_parallel", 16),
        ("purpose: y", "purpose", "y"),
        ("purpose: ~", "purpose", None),
        ("development: True", "development", True),
        ("validation: {tolerances: {a: 1.5e+1}}", "validation.tolerances", {"a": 15.0}),
        ("validation: {tolerances: {a: 5}}", "validation.tolerances", {"a": 5.0}),
        ("validation: {tolerances: {a: .5}}", "validation.tolerances", {"a": 0.5}),
        ("cutLine: 2012-05-01", "cut_line", date(2012, 5, 1)),
    ],
)
def test_a_value_that_both_versions_of_yaml_read_alike_is_read(field: str, place: str, value: Any) -> None:
    others = FULL.partition("validation:")[0]
    assert attrgetter(place)(parse_manifest(f"{others}{field}\n")) == value


@pytest.mark.parametrize("value", ["5", True, "", None, [5]])
def test_a_tolerance_is_a_number_and_nothing_that_looks_like_one(value: Any) -> None:
    assert fields(refusal(changed("validation.tolerances", {"a": value}))) == {"validation.tolerances.a"}


@pytest.mark.parametrize(
    ("text", "found"),
    [("", "nothing"), ("- a\n- b\n", "a list"), ("just words", "a text"), ("42", "a number"), ("[]", "a list")],
)
def test_a_text_that_is_not_a_mapping_is_refused(text: str, found: str) -> None:
    assert f"holds {found}, not a mapping" in str(refusal(text))


def test_a_text_nested_without_end_is_refused() -> None:
    with pytest.raises(ManifestRefused):
        parse_manifest("reason: " + "[" * 20_000)


def test_an_unordered_yaml_set_is_refused_where_order_is_part_of_the_hash() -> None:
    # a Python set has another order in every process: the same text would get another hash in each
    text = FULL.replace("sinks: [run_audit]", "sinks: !!set {run_audit, breach_notifications}")

    assert "sets are refused" in str(refusal(text))


@pytest.mark.parametrize("reason", ["a reason with a wide 😀 character", "a reason with \u2028 a line separator in it"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_json_as_any_json_writer_escapes_it_is_read(reason: str, ascii_only: bool) -> None:
    text = json.dumps(manifest_data(reason=reason), ensure_ascii=ascii_only)

    assert parse_manifest(text).reason == reason


def test_json_that_is_indented_with_tabs_is_read() -> None:
    assert parse_manifest(json.dumps(manifest_data(), indent="\t")) == manifest_from(manifest_data())


# --- refusals of fields -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "surprise",
        "run_id",
        "source.surprise",
        "source.range.surprise",
        "transform.surprise",
        "referenceData.0.surprise",
        "target.surprise",
        "target.publishRange.surprise",
        "target.publish_mode",
        "warmUp.surprise",
        "safety.surprise",
        "safety.max_rows_expected",
        "validation.surprise",
        "limits.surprise",
    ],
)
def test_an_unknown_key_is_refused_at_every_level(path: str) -> None:
    refused = refusal(changed(path, 1))

    assert fields(refused) == {path}
    assert "is an unknown key" in str(refused)


@pytest.mark.parametrize("missing", ["runId", "kind", "requestedBy", "reason", "source", "transform", "target"])
def test_a_required_field_that_is_missing_is_named(missing: str) -> None:
    data = manifest_data()
    del data[missing]
    refused = refusal(data)

    assert fields(refused) == {missing}
    assert "is missing" in str(refused)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("apiVersion", "backfill/v2"),
        ("runId", 12),
        ("runId", None),
        ("kind", "restatement"),
        ("kind", "FIX"),
        ("mode", "SHADOW"),
        ("requestedBy", ""),
        ("requestedBy", "   "),
        ("requestedBy", 7),
        ("requestedBy", "a" * 201),
        ("requestedBy", "\u0430da"),
        ("requestedBy", "ad\u200ba"),
        ("requestedBy", "ada\ngrace"),
        ("runId", "restate\u200b-2012"),
        ("runId", "\uff52\uff45\uff53tate-2012"),
        ("source.table", "bronze.case\u2060_events"),
        ("source.table", "bronze.c\u0430se_events"),
        ("source.range.start", "\uff12012-01-01"),
        ("reason", "short"),
        ("reason", "          short          "),
        ("reason", "\u200b" * 12),
        ("reason", "a\u2063" * 9),
        ("reason", "a            b"),
        ("reason", "a" * 4_001),
        ("reason", ["a list of reasons"]),
        ("source", "bronze.case_events"),
        ("source.table", "case_events"),
        ("source.table", "bronze.Case_Events"),
        ("source.table", "a.b.c"),
        ("source.table", "bronze.case_events; drop"),
        ("source.table", 1),
        ("source.snapshotId", "11"),
        ("source.snapshotId", 11.0),
        ("source.snapshotId", 0),
        ("source.snapshotId", -1),
        ("source.snapshotId", 2**63),
        ("source.snapshotId", True),
        ("transform.name", "Case SLA"),
        ("transform.version", 2),
        ("transform.version", 1.10),
        ("transform.version", ""),
        ("transform.version", "../2"),
        ("referenceData", {"name": "silver.sla_rules"}),
        ("referenceData.0.semantics", "LATEST"),
        ("target.publishMode", "APPEND"),
        ("warmUp", 90),
        ("warmUp.days", -1),
        ("warmUp.days", 36_501),
        ("warmUp.days", "90"),
        ("warmUp.days", 90.0),
        ("safety.sinks", "run_audit"),
        ("safety.sinks", ["Run Audit"]),
        ("safety.maxRowsExpected", 0),
        ("safety.maxRowsExpected", "1000"),
        ("safety.sideEffectsAllowed", "perhaps"),
        ("validation.gates", "all"),
        ("validation.tolerances", {"row_change": -1}),
        ("validation.tolerances", {"Row Change": 1}),
        ("validation.tolerances", {"row_change": "a lot"}),
        ("validation.tolerances", [1]),
        ("limits.maxChunksPerJob", 0),
        ("limits.maxChunksPerJob", 100_001),
        ("limits.maxRunsInParallel", 0),
        ("limits.maxRunsInParallel", 1_001),
        ("development", "perhaps"),
        ("cutLine", "2012-04"),
        ("cutLine", 20120401),
        ("overlapDays", -1),
        ("overlapDays", "7"),
        ("freeze", {"hours": 0}),
        ("freeze", {"hours": 169}),
    ],
)
def test_a_value_of_the_wrong_type_or_size_is_refused(path: str, value: Any) -> None:
    refused = refusal(changed(path, value))

    assert all(field.startswith(path) for field in fields(refused)), str(refused)


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan"])
def test_a_tolerance_is_a_finite_number(value: str) -> None:
    assert fields(refusal(FULL.replace("2.5", value))) == {"validation.tolerances.row_change"}


@pytest.mark.parametrize(
    "run_id",
    [
        "",
        "a",
        "ab",
        "a..b",
        "restate..2012",
        "restate.lock",
        "Restate",
        "RESTATE",
        "restate|2012",
        "restate/2012",
        "restate 2012",
        "restate\n2012",
        "-restate",
        ".restate",
        "_restate",
        "restate-",
        "restate.",
        "über-2012",
        "restate:2012",
        "..",
        "a" * 65,
    ],
)
def test_a_run_id_that_could_not_name_a_folder_tag_and_partition_is_refused(run_id: str) -> None:
    refused = refusal(manifest_data(run_id))

    assert fields(refused) == {"runId"}
    assert "it names folders, tags and partitions" in str(refused)


@pytest.mark.parametrize("run_id", ["abc", "a.b", "restate-2012", "2012_03.fix-1", "a" * 64, "restate.locks"])
def test_a_run_id_of_plain_letters_and_digits_is_taken(run_id: str) -> None:
    assert manifest_from(manifest_data(run_id)).run_id == run_id


def test_a_publish_range_that_ends_before_it_starts_is_refused() -> None:
    refused = refusal(manifest_data(target=publishing("2012-03-31", "2012-01-01")))

    assert fields(refused) == {"target.publishRange"}
    assert "the range ends (2012-01-01) before it starts (2012-03-31)" in str(refused)


@pytest.mark.parametrize(
    ("start", "end", "taken"),
    [
        ("1000-01-01", "9000-12-31", True),
        ("0999-12-31", "2012-01-01", False),
        ("2012-01-01", "9001-01-01", False),
        ("0001-01-01", "0001-01-31", False),
        ("9999-12-01", "9999-12-31", False),
    ],
)
def test_a_day_that_leaves_no_room_for_warm_up_and_time_zones_is_refused(start: str, end: str, taken: bool) -> None:
    data = manifest_data(target=publishing(start, end))
    if taken:
        assert manifest_from(data).target.publish_range.start == date.fromisoformat(start)
    else:
        assert "a day lies between 1000-01-01 and 9000-12-31" in str(refusal(data))


def test_a_range_of_one_day_is_a_range() -> None:
    manifest = manifest_from(manifest_data(target=publishing("2012-01-01", "2012-01-01")))

    assert manifest.target.publish_range.start == manifest.target.publish_range.end


@pytest.mark.parametrize(
    "day",
    [
        "20120101",
        "1325376000",
        "15340.0",
        "2012-01-01T00:00:00",
        "2012-01-01 00:00:00",
        "2012-01-01T00:00:00Z",
        '"2012-01-01T00:00:00"',
        '"2012-1-1"',
        '" 2012-01-01"',
        '"01/01/2012"',
        '"2012-02-30"',
        '"2012-13-01"',
        '"today"',
        "true",
        "null",
        "[2012-01-01]",
        '"\uff12\uff10\uff11\uff12-01-01"',
    ],
)
def test_a_day_is_written_as_a_day_and_nothing_else(day: str) -> None:
    text = FULL.replace("publishRange: {start: 2012-01-01", f"publishRange: {{start: {day}")

    assert fields(refusal(text)) == {"target.publishRange.start"}


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ({"semantics": "AS_DECIDED"}, "AS_DECIDED needs the version or the snapshotId"),
        ({"semantics": "AS_DECIDED", "version": "1", "snapshotId": 5}, "not both"),
        ({"semantics": "AS_RECORDED_THEN", "version": "1", "snapshotId": 5}, "not both"),
        ({"semantics": "CORRECTED_TRUTH", "version": "1"}, "says itself which snapshot it means"),
        ({"semantics": "CURRENT_ACCEPTED", "snapshotId": 5}, "says itself which snapshot it means"),
        ({"version": "1"}, "says itself which snapshot it means"),
    ],
)
def test_a_reference_is_pinned_in_exactly_one_way_that_its_semantics_allow(
    reference: dict[str, Any], reason: str
) -> None:
    refused = refusal(manifest_data(referenceData=[{"name": "silver.sla_rules", **reference}]))

    assert fields(refused) == {"referenceData.0"}
    assert reason in str(refused)


def test_a_reference_table_is_named_once() -> None:
    refused = refusal(manifest_data(referenceData=[{"name": "silver.sla_rules"}, {"name": "silver.sla_rules"}]))

    assert fields(refused) == {"referenceData"}
    assert "a reference table is named once" in str(refused)


def test_a_sink_is_named_once() -> None:
    refused = refusal(manifest_data(safety={"sinks": ["run_audit", "run_audit"]}))

    assert fields(refused) == {"safety.sinks"}
    assert "a sink is named once" in str(refused)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [(kind.value, mode.value) for kind in Kind for mode in Mode if mode not in {mode_of(kind), Mode.DRY_RUN}],
)
def test_a_mode_that_does_not_fit_the_kind_is_refused(kind: str, mode: str) -> None:
    assert f"a run of kind {kind} has mode" in str(refusal(manifest_data(kind=kind, mode=mode)))


@pytest.mark.parametrize("kind", [kind.value for kind in Kind if kind is not Kind.LIVE])
def test_no_run_but_a_live_one_may_ask_for_side_effects(kind: str) -> None:
    refused = refusal(manifest_data(kind=kind, safety={"sideEffectsAllowed": True}))

    assert "sideEffectsAllowed is for LIVE only" in str(refused)


def test_a_dry_run_of_a_live_manifest_may_not_ask_for_side_effects() -> None:
    refused = refusal(manifest_data(kind="LIVE", mode="DRY_RUN", safety={"sideEffectsAllowed": True}))

    assert "this run's mode is DRY_RUN" in str(refused)


def test_a_live_manifest_may_allow_side_effects() -> None:
    assert manifest_from(manifest_data(kind="LIVE", safety={"sideEffectsAllowed": True})).safety.side_effects_allowed


def test_all_problems_of_a_manifest_are_reported_at_once() -> None:
    data = manifest_data("Bad Id", kind="FIX", reason="short", surprise=1, warmUp={"days": -1})
    del data["requestedBy"]
    data["source"] = {"table": "case_events", "range": {"start": 20120101, "end": "2012-03-31"}}
    refused = refusal(data)

    assert fields(refused) == {
        "runId",
        "kind",
        "reason",
        "requestedBy",
        "surprise",
        "warmUp.days",
        "source.table",
        "source.range.start",
    }
    assert "the manifest is refused, for 8 reasons" in str(refused)
    assert all(problem.rule and problem.fix for problem in refused.problems)


@pytest.mark.parametrize(
    ("path", "value", "what", "rule", "fix"),
    [
        ("kind", "restatment", "is 'restatment'", "one of BACKFILL, REPROCESSING", "did you mean 'RESTATEMENT'?"),
        ("transform.version", 2, "is 2, a number", "a version is text of letters, digits", 'put it in quotes: "2"'),
        ("warmUp.days", "90", "is '90'", "a whole number from 0 to 36,500", "leave out the quotes: 90"),
        ("freeze", {"hours": 169}, "is 169", "how many hours LIVE waits: a whole number from 1 to 168", ""),
        ("safety.sinks", "run_audit", "is 'run_audit'", "a list, as in [a, b]", "make it a list: [run_audit]"),
        ("safety.sideEffectsAllowed", "perhaps", "is 'perhaps'", "true or false", ""),
        ("validation.tolerances.row_change", "a lot", "is 'a lot'", "a tolerance is a finite number, 0 or more", ""),
        ("reason", "short", "is 'short'", "text of 10 to 4,000 visible characters", ""),
        ("source", "bronze.x", "is 'bronze.x'", "fields by name: table, snapshotId, range", ""),
        ("source.range.start", "2012-1", "is '2012-1'", "a day is written YYYY-MM-DD", ""),
        ("target.publish_mode", 1, "is an unknown key", "the keys here are table, publishMode", "'publishMode'?"),
        ("requestedBy", None, "is empty", "who asks for the run", ""),
    ],
)
def test_a_refused_field_says_its_rule_in_words_and_what_was_found(
    path: str, value: Any, what: str, rule: str, fix: str
) -> None:
    (problem,) = refusal(changed(path, value)).problems
    assert problem.what.startswith(what)
    assert rule in problem.rule
    assert fix in problem.fix


def test_no_field_of_a_manifest_is_without_a_rule_in_words() -> None:
    def places(kind: Any, at: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for info in kind.model_fields.values():
            place = (*at, str(info.alias))
            yield place
            inner = at_place(RunManifest, place)[0]
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from places(inner, place)

    found = {place: rule_of(RunManifest, place) for place in places(RunManifest, ())}
    plain = {"a whole number", "a number", "text", "a day", "see the rule", ""}
    assert len(found) > 50
    # who wrote the first of a series is the planner
    assert {place for place, rule in found.items() if rule in plain} == {("series", "of")}


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_manifest_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "restate.yaml"
    file.write_text(FULL, encoding="utf-8")

    assert load_manifest(file) == parse_manifest(FULL)


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (Path.exists, "cannot be read: No such file or directory"),
        (lambda file: file.mkdir(), "cannot be read: Is a directory"),
        (lambda file: file.write_bytes(b"reason: caf\xe9\n"), "is not UTF-8 text"),
        (lambda file: file.write_bytes(FULL.encode("utf-16")), "is not UTF-8 text"),
        (lambda file: file.write_bytes(b"#" * (MAX_MANIFEST_BYTES + 1)), "has 262,145 bytes"),
        (lambda file: file.write_bytes(b""), "holds nothing, not a mapping"),
    ],
    ids=["missing", "a folder", "latin-1", "utf-16", "too large", "empty"],
)
def test_a_file_that_is_no_manifest_is_refused_by_name(
    tmp_path: Path, write: Callable[[Path], None], reason: str
) -> None:
    file = tmp_path / "restate.yaml"
    write(file)

    with pytest.raises(ManifestRefused, match=re.escape(reason)) as refused:
        load_manifest(file)
    assert str(file) in str(refused.value)


def test_a_problem_of_a_file_names_the_file_and_the_field(tmp_path: Path) -> None:
    file = tmp_path / "restate.yaml"
    file.write_text(FULL.replace("restate-2012", "Bad"), encoding="utf-8")

    with pytest.raises(ManifestRefused, match=re.escape(f"{file}: runId")):
        load_manifest(file)


# --- what always holds ------------------------------------------------------------------------------------------------


def names() -> st.SearchStrategy[str]:
    return st.from_regex(r"[a-z][a-z0-9_]{0,10}", fullmatch=True)


@st.composite
def day_ranges(draw: st.DrawFn) -> dict[str, str]:
    days = sorted(draw(st.lists(st.dates(date(1000, 1, 1), date(9000, 12, 31)), min_size=2, max_size=2)))
    return {"start": days[0].isoformat(), "end": days[1].isoformat()}


@st.composite
def contracts(draw: st.DrawFn) -> dict[str, Any]:
    """Any valid manifest as data."""
    kind = draw(st.sampled_from([one for one in Kind if one is not Kind.COMPACTION]))  # which computes nothing
    people = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=10, max_size=30).filter(
        lambda text: len(seen(text)) >= 10
    )
    optional: dict[str, st.SearchStrategy[Any]] = {
        "mode": st.sampled_from([mode_of(kind).value, "DRY_RUN"]),
        "referenceData": st.lists(
            st.fixed_dictionaries({"name": st.builds("{}.{}".format, names(), names())}),
            max_size=3,
            unique_by=lambda item: item["name"],
        ),
        "warmUp": st.fixed_dictionaries({"days": st.integers(0, 36_500)}),
        "safety": st.fixed_dictionaries({}, optional={"sinks": st.lists(names(), max_size=3, unique=True)}),
        "validation": st.fixed_dictionaries(
            {},
            optional={
                "gates": st.lists(names(), max_size=3),
                "tolerances": st.dictionaries(names(), st.floats(0, 1e300), max_size=4),
            },
        ),
        "limits": st.fixed_dictionaries({}, optional={"maxChunksPerJob": st.integers(1, 100_000)}),
        "development": st.booleans(),
    }
    required = {
        "runId": st.from_regex(r"[a-z0-9][a-z0-9_-]{1,62}[a-z0-9]", fullmatch=True),
        "requestedBy": st.from_regex(r"[a-zA-Z\u00e0-\u00f6\u00f8-\u00fe'.@-]{3,30}", fullmatch=True),
        "reason": people,
        "source": st.fixed_dictionaries(
            {"table": st.just("bronze.case_events")},
            optional={"snapshotId": st.integers(1, 2**63 - 1), "range": day_ranges()},
        ),
        "transform": st.fixed_dictionaries(
            {"name": names(), "version": st.from_regex(r"[0-9A-Za-z][0-9.]{0,5}", fullmatch=True)}
        ),
        "target": st.fixed_dictionaries({"table": st.just("silver.case_sla_daily"), "publishRange": day_ranges()}),
    }
    return {"kind": kind.value, **draw(st.fixed_dictionaries(required, optional=optional))}


def shuffled(value: Any, draw: st.DrawFn) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(value[key], draw) for key in draw(st.permutations(list(value)))}
    if isinstance(value, list):
        return [shuffled(item, draw) for item in value]
    return value


@unhurried
@given(st.data(), contracts())
def test_the_hash_of_a_contract_does_not_depend_on_key_order_or_layout(
    data: st.DataObject, contract: dict[str, Any]
) -> None:
    manifest = manifest_from(contract)
    other = shuffled(contract, data.draw)
    style = data.draw(st.booleans())
    as_yaml = yaml.dump(other, Dumper=Quoting, sort_keys=False, allow_unicode=True, default_flow_style=style)
    as_json = json.dumps(other, ensure_ascii=False, indent=data.draw(st.sampled_from([None, 1, 4])))

    assert parse_manifest(as_yaml).canonical() == manifest.canonical()
    assert parse_manifest(as_json).canonical() == manifest.canonical()
    assert parse_manifest(as_yaml).hash == parse_manifest(as_json).hash == manifest.hash


@unhurried
@given(contracts())
def test_a_stored_manifest_comes_back_as_the_same_contract(contract: dict[str, Any]) -> None:
    manifest = manifest_from(contract)

    assert stored_manifest(manifest.canonical()) == manifest
    assert stored_manifest(manifest.canonical()).hash == manifest.hash
    assert parse_manifest(manifest.canonical()).hash == manifest.hash


@unhurried
@given(contracts(), contracts())
def test_two_contracts_have_the_same_hash_only_if_they_are_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = manifest_from(one), manifest_from(other)

    assert (first == second) == (first.hash == second.hash)


@unhurried
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_and_nothing_else(text: str) -> None:
    with pytest.raises(ManifestRefused):
        parse_manifest(text)


# --- beside live ------------------------------------------------------------------------------------------------------


def test_a_cut_line_is_a_day_of_a_run_over_history() -> None:
    manifest = a_manifest(cutLine="2012-04-01", overlapDays=3)
    assert (manifest.cut_line, manifest.overlap_days) == (date(2012, 4, 1), 3)
    with pytest.raises(ManifestRefused, match="LIVE goes on from the target's watermark"):
        a_manifest(kind="LIVE", cutLine="2012-04-01")
    with pytest.raises(ManifestRefused, match="overlapDays is counted from cutLine"):
        a_manifest(overlapDays=3)


def test_a_manifest_without_a_cut_line_has_the_text_it_always_had() -> None:
    assert "cutLine" not in a_manifest().canonical()
    assert "overlapDays" not in a_manifest().canonical()
    assert '"cutLine":"2012-04-01"' in a_manifest(cutLine="2012-04-01").canonical()


SHIPPED = sorted(Path(__file__).resolve().parent.parent.parent.glob("manifests/*.yaml"))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_a_shipped_manifest_is_valid_and_named_like_its_run(file: Path) -> None:
    assert load_manifest(file).run_id == file.stem
