"""The case study on a whole installation: a version of the rules is loaded, computed and accepted by a person, and each semantics of
reference data reads the one that it means; what rows say of their run; disputed cases that come out otherwise, one by one.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from disputes import CLOCK, FOLDER, PAUSE
from worlds import SPARK, World

from backfill_assets.audit.explain import explain
from backfill_assets.audit.verification import verify
from backfill_assets.cli.command import cli
from backfill_assets.declarations.schema import LATER_LINEAGE_COLUMNS
from backfill_assets.defs.launch import initialise_instance
from backfill_assets.gates import exception_table
from backfill_assets.ingestion.table_loads import load_file
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning.reference_tables import accepted_references
from backfill_assets.planning.resolve import plan_run
from backfill_assets.products.enforcement.pausing import CASE_CLOCK_DAILY, CASE_REGISTER, DISPUTED, PAUSE_RULES
from backfill_assets.products.enforcement.pausing.rules import pause_rules
from backfill_assets.publication.accepting import accept
from backfill_assets.publication.undoing import rollback
from backfill_assets.review.diff import diff_run
from manifests.errors import PlanRefused
from manifests.lifecycle import RunState
from manifests.reading import manifest_from
from resources.settings import load_settings

SERVED = "backfill_assets.products.enforcement.pausing:PRODUCT"
TARGET, RULES = CASE_CLOCK_DAILY.name, PAUSE_RULES.name
SCOPE = {"start": date(1996, 1, 1), "end": date(1996, 3, 31)}
NO_APPEALS, STRICTER, CASE, DAY = "no-appeals", "stricter", "D-IT-02", date(1996, 1, 21)
"""Rules by which an appeal does not pause a payment any more; and a day after the pause of a case."""
KEY = [f"case_id={CASE}", f"clock={CLOCK}", f"business_date={DAY}"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """An installation with the entries of the disputed cases, of which three months are published by the shipped rules."""
    home = tmp_path_factory.mktemp("case-study") / "home"
    settings = load_settings(home=home, spark=SPARK, products=[SERVED])
    platform = Platform.of(settings)
    initialise(platform)
    initialise_instance(settings)
    load_file(platform, CASE_REGISTER.name, FOLDER / "disputed_register.csv")
    made = World(platform, home)
    made.published(manifest("by-shipped-rules", version="v1", reason="The first three months, by the rules that ship."))
    return made


def manifest(run_id: str, reference: Mapping[str, Any] | None = None, **changes: Any) -> Any:
    """Return the manifest of a run of the three months; with a `version` it is published under that, to be accepted later."""
    target: dict[str, Any] = {"table": TARGET, "publishRange": SCOPE}
    if version := changes.pop("version", None):
        target |= {"publishMode": "VERSIONED", "version": version}
        target |= {"acceptance": "LATER"} if version != "v1" else {}
    text = {
        "runId": run_id,
        "kind": "RESTATEMENT",
        "requestedBy": "ana",
        "reason": "a reason that is long enough",
        "source": {"table": CASE_REGISTER.name},
        "transform": {"name": "case_clock_daily", "version": "1.0.0"},
        "referenceData": [] if reference is None else [{"name": RULES} | dict(reference)],
        "target": target,
        "development": True,
    }
    return manifest_from(text | changes)


def pinned(world: World, run_id: str, **reference: Any) -> str | None:
    """Return the version of the rules of pauses that a plan pins."""
    plan = plan_run(world.platform, manifest(run_id, reference)).plan
    return next(pin.version for pin in plan.references if pin.table == RULES)


def staged_state(world: World, run_id: str) -> str:
    """Return what a run says of the day after the pause of the case."""
    files = [file.path for chunk in world.platform.ledger.chunks(run_id) for file in chunk.files]
    rows = pl.concat([pl.read_parquet(path.removeprefix("file://"), hive_partitioning=False) for path in files])
    own = (pl.col("case_id") == CASE) & (pl.col("clock") == CLOCK) & (pl.col("business_date") == DAY)
    return str(rows.filter(own)["true_state"].item())


def command(world: World, *arguments: str) -> str:
    variables = {"BACKFILL_HOME": str(world.home), "BACKFILL_PRODUCTS": json.dumps([SERVED])}
    done = CliRunner().invoke(cli, arguments, env=variables)
    assert done.exit_code == 0, done.output
    return done.output


def write_rules(path: Path, *activities: str) -> Path:
    """Write the shipped rules without those by which these activities pause: an appeal to the prefecture, unless others are named."""
    rows = [one for one in pause_rules() if one["activity"] not in (activities or (PAUSE,))]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


# --- what rows say of their run ---------------------------------------------------------------------------------------


def test_rows_say_by_themselves_what_was_computed_from_what_and_why(world: World) -> None:
    plan = world.platform.ledger.run("by-shipped-rules").plan
    table = world.platform.lakehouse.table(TARGET)
    frame = pl.from_arrow(table.scan(selected_fields=LATER_LINEAGE_COLUMNS).to_arrow())
    assert isinstance(frame, pl.DataFrame)
    pins = {pin.table: pin for pin in plan.references}
    said = "; ".join(f"{name} {pins[name].version} (snapshot {pins[name].snapshot_id})" for name in sorted(pins))
    assert frame.unique().to_dicts() == [
        {
            "transform_name": "case_clock_daily",
            "input_start": SCOPE["start"],
            "input_end": SCOPE["end"],
            "reference_versions": said,
            "run_reason": "The first three months, by the rules that ship.",
        }
    ]
    assert verify(world.platform, data=True).everything == []
    row = explain(world.platform, TARGET, KEY).row
    assert row is not None
    shown = command(world, "explain", TARGET, "--key", ",".join(KEY))
    assert "run_reason" in shown
    assert "run_reason=" not in shown, "what a row said first is what it said, without what its run says of itself"
    assert row["run_reason"] == plan.reason == "The first three months, by the rules that ship."


def test_another_reason_changes_no_digest_and_no_diff(world: World) -> None:
    world.validated(manifest("once-more", reason="The same once more, for another reason."))
    assert world.digests("once-more") == world.digests("by-shipped-rules")
    found = diff_run(world.platform, "once-more").diff
    assert not {one.column for one in found.columns} & set(LATER_LINEAGE_COLUMNS)
    assert {one.changed for one in found.columns} == {0}


# --- the four semantics of reference data -----------------------------------------------------------------------------


def test_each_semantics_reads_the_version_that_it_means_before_and_after_a_person_accepts_one(
    world: World, tmp_path: Path
) -> None:
    shipped = pinned(world, "as-it-is")
    assert shipped is not None
    assert shipped.startswith("pauses-")
    said = command(world, "load", RULES, str(write_rules(tmp_path / "pauses.csv")), "--version", NO_APPEALS)
    assert f"version {NO_APPEALS}" in said

    # loaded, and nobody has accepted a version of this table: the newest is what everybody uses
    assert pinned(world, "now", semantics="CURRENT_ACCEPTED") == NO_APPEALS
    assert pinned(world, "corrected", semantics="CORRECTED_TRUTH") == NO_APPEALS
    assert pinned(world, "then", semantics="AS_RECORDED_THEN") == shipped
    assert pinned(world, "decided", semantics="AS_DECIDED", version=shipped) == shipped
    with pytest.raises(PlanRefused, match="version pauses-of-nobody is unknown"):
        pinned(world, "unknown", semantics="AS_DECIDED", version="pauses-of-nobody")

    # computed under each
    few = {"validation": {"gates": ["all_chunks_staged"]}}
    for run_id, expected, reference in (
        ("run-now", "RUNNING", {"semantics": "CURRENT_ACCEPTED"}),
        ("run-corrected", "RUNNING", {"semantics": "CORRECTED_TRUTH"}),
        ("run-then", "PAUSED", {"semantics": "AS_RECORDED_THEN"}),
        ("run-decided", "PAUSED", {"semantics": "AS_DECIDED", "version": shipped}),
    ):
        world.validated(manifest(run_id, reference, **few))
        assert staged_state(world, run_id) == expected, run_id

    # published under its own name, and still accepted by nobody: what was recorded then is what main shows
    world.published(manifest("by-new-rules", {"semantics": "CORRECTED_TRUTH"}, version="v2", **few))
    assert pinned(world, "still-then", semantics="AS_RECORDED_THEN") == shipped
    command(
        world, "accept", "by-new-rules", "--by", "the data owner", "--comment", "appeals do not pause payments any more"
    )
    assert pinned(world, "then-by-now", semantics="AS_RECORDED_THEN") == NO_APPEALS
    assert pinned(world, "decided-still", semantics="AS_DECIDED", version=shipped) == shipped

    # from now on a load changes nothing by itself: what is current is what a person has accepted
    command(
        world, "load", RULES, str(write_rules(tmp_path / "more.csv", PAUSE, "Appeal to Judge")), "--version", STRICTER
    )
    assert pinned(world, "now-still", semantics="CURRENT_ACCEPTED") == NO_APPEALS
    assert pinned(world, "corrected-by-now", semantics="CORRECTED_TRUTH") == STRICTER
    assert pinned(world, "then-still", semantics="AS_RECORDED_THEN") == NO_APPEALS
    assert pinned(world, "decided-once-more", semantics="AS_DECIDED", version=STRICTER) == STRICTER
    (by_default,) = (
        pin for pin in plan_run(world.platform, manifest("by-default")).plan.references if pin.table == RULES
    )
    assert (by_default.version, by_default.accepted_with) == (NO_APPEALS, "by-new-rules")
    calendar = plan_run(world.platform, manifest("calendar")).plan.references[-1]
    assert (calendar.table, calendar.accepted_with) == ("reference.jurisdiction_calendar", ""), "no manifest named it"
    row = explain(world.platform, TARGET, KEY).row
    assert row is not None
    assert row["true_state"] == "RUNNING"
    assert f"{RULES} {NO_APPEALS} (snapshot" in row["reference_versions"]


# --- disputed cases ---------------------------------------------------------------------------------------------------


def test_disputed_cases_that_come_out_otherwise_are_told_one_by_one(world: World, tmp_path: Path) -> None:
    first = next(one for one in world.platform.ledger.verdicts("by-shipped-rules") if one.gate == DISPUTED.name)
    assert first.passed
    assert "0 come out otherwise" in first.summary
    load_file(world.platform, RULES, write_rules(tmp_path / "pauses.csv"), version=NO_APPEALS, if_new=True)
    failed = world.ran(manifest("wrong-rules", {"semantics": "AS_DECIDED", "version": NO_APPEALS}))
    assert failed.state is RunState.FAILED
    verdict = next(one for one in world.platform.ledger.verdicts("wrong-rules") if one.gate == DISPUTED.name)
    judgement = verdict.details["exceptions"]["judgement"]
    listed = exception_table.rows(world.platform, "wrong-rules", {DISPUTED.name: judgement}, 1_000)
    by_case = {json.loads(one["key"])["case_id"]: one for one in listed}
    compared = sum(SCOPE["start"] <= date.fromisoformat(one["business_date"]) <= SCOPE["end"] for one in _on_file())
    assert verdict.summary.startswith(f"{compared} known cases compared; {len(listed)} come out otherwise")
    assert 0 < len(listed) < compared, "cases without an appeal come out all the same"
    told = by_case[CASE]
    assert json.loads(told["expected"])["true_state"] == "PAUSED"
    assert json.loads(told["found"])["true_state"] == "RUNNING"
    assert "question Is the day after the pause paused?" in told["what"]


def _on_file() -> list[dict[str, str]]:
    with (FOLDER / "disputed_cases.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# --- what an acceptance is worth, once it is undone -------------------------------------------------------------------


def test_an_acceptance_that_is_undone_and_a_version_that_is_taken_back_count_no_more(
    world: World, tmp_path: Path
) -> None:
    def current(run_id: str) -> str | None:
        return pinned(world, run_id, semantics="CURRENT_ACCEPTED")

    few = {"validation": {"gates": ["all_chunks_staged"]}}
    own = "while-judged"
    load_file(world.platform, RULES, write_rules(tmp_path / "own.csv", "Appeal to Judge"), version=own, if_new=True)
    before = accepted_references(world.platform, [RULES])[RULES]
    world.published(manifest("by-own-rules", {"semantics": "CORRECTED_TRUTH"}, version="v3", **few))
    accept(world.platform, "by-own-rules")
    assert current("after-accepting") == own
    rollback(world.platform, "by-own-rules")
    assert accepted_references(world.platform, [RULES])[RULES] == before
    assert current("after-rolling-back") == (NO_APPEALS if before else own)
