"""Every publish mode on real tables: what it changes, what it must refuse, and its way back."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support import moved
from worlds import FEW_GATES, KEY, TARGET, World, generated, make_world

from backfill_assets.audit.verification import verify
from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.planning.resolve import plan_run, plan_series, preview
from backfill_assets.products.enforcement.loading import EVENTS
from backfill_assets.publication.accepting import accept
from backfill_assets.publication.publisher import prepare, publish
from backfill_assets.publication.undoing import reinstate, rollback
from manifests.errors import PlanRefused, PublicationDeferred, PublicationRefused
from manifests.kinds import FIRST_OUTPUT
from manifests.lifecycle import RunState
from resources.ledger.tables import amendments

CORRECTIONS = "silver.case_sla_daily_corrections"
SCOPE = (date(2010, 3, 1), date(2010, 6, 30))
LINEAGE = ["run_id", "processing_mode", "transform_version", "input_snapshot_id", "produced_at"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world whose whole history is published by 2.4.1, with its bug."""
    world = make_world(tmp_path_factory.mktemp("modes") / "home", cases=250, gates=FEW_GATES)
    world.published(world.manifest("history", version="2.4.1"))
    return world


def target(mode: str, scope: tuple[date, date] = SCOPE, **options: Any) -> dict[str, Any]:
    return {
        "table": TARGET,
        "publishMode": mode,
        "publishRange": {"start": scope[0], "end": scope[1]},
        **options,
    }


def corrections(world: World) -> pl.DataFrame:
    frame = pl.from_arrow(world.platform.lakehouse.table(CORRECTIONS).scan().to_arrow())
    assert isinstance(frame, pl.DataFrame)
    return frame


def values(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.drop(LINEAGE).sort(KEY)


def month_of(rows: pl.DataFrame, first: date, last: date) -> pl.DataFrame:
    return rows.filter(pl.col("business_date").is_between(first, last))


def at(world: World, ref: str) -> pl.DataFrame:
    table = world.platform.lakehouse.table(TARGET)
    snapshot = table.snapshot_by_name(ref)
    assert snapshot is not None
    return world.rows(snapshot.snapshot_id)


# --- APPEND_ONLY ------------------------------------------------------------------------------------------------------


def test_append_only_fills_empty_partitions_and_refuses_those_that_hold_rows(tmp_path: Path) -> None:
    world = make_world(tmp_path / "home", cases=60, gates=FEW_GATES)
    first = (date(2010, 1, 1), date(2010, 2, 28))
    done = world.published(world.manifest("first", target=target("APPEND_ONLY", first)))
    assert done.files_removed == 0
    assert set(world.rows()["run_id"]) == {"first"}
    with pytest.raises(PlanRefused, match="first rows only"):
        preview(world.platform, world.manifest("again", target=target("APPEND_ONLY", (first[0], date(2010, 3, 31)))))
    # planned while the partition was empty, filled by another run since
    march = (date(2010, 3, 1), date(2010, 3, 31))
    waiting = world.validated(world.manifest("late", target=target("APPEND_ONLY", march)))
    world.published(world.manifest("quick", target=target("APPEND_ONLY", march)))
    with pytest.raises(PublicationRefused, match="no longer holds"):
        publish(world.platform, waiting.run_id)
    assert world.platform.ledger.run("late").state is RunState.REJECTED
    assert set(world.rows()["run_id"]) == {"first", "quick"}
    rollback(world.platform, "quick")
    assert set(world.rows()["run_id"]) == {"first"}


# --- MERGE_BY_KEY -----------------------------------------------------------------------------------------------------


def some_cases(world: World, number: int = 6) -> list[str]:
    rows = month_of(world.rows(), *SCOPE)
    return sorted(set(rows["case_id"]))[:number]


def test_a_merge_recomputes_its_entities_and_leaves_every_other_row_alone(published: World) -> None:
    world = published
    cases = some_cases(world)
    before = world.rows()
    files_before = set(world.platform.lakehouse.table(TARGET).inspect.files()["file_path"].to_pylist())
    record = world.validated(
        world.manifest("merge", target=target("MERGE_BY_KEY", merge={"entities": cases}), validation={})
    )
    chunks = world.platform.ledger.chunks("merge")
    touched = {path for chunk in chunks for path in chunk.replaced}
    done = publish(world.platform, record.run_id)
    assert done.files_removed == len(touched)
    after = world.rows()
    inside = pl.col("case_id").is_in(cases) & pl.col("business_date").is_between(*SCOPE)
    assert after.filter(~inside).equals(before.filter(~inside))
    # the merged rows are what a replacement by the same version would give them
    world.validated(world.manifest("whole", target=target("REPLACE_PARTITIONS")))
    whole = pl.concat([pl.read_parquet(f.path) for chunk in world.platform.ledger.chunks("whole") for f in chunk.files])
    assert values(after.filter(inside)).equals(values(whole.filter(pl.col("case_id").is_in(cases))))
    assert set(after.filter(inside)["run_id"]) == {"merge"}
    # only files that hold rows of the entities were copied
    files_after = set(world.platform.lakehouse.table(TARGET).inspect.files()["file_path"].to_pylist())
    assert files_before - files_after == touched
    for path in touched:
        assert pl.read_parquet(path).filter(pl.col("case_id").is_in(cases)).height
    assert done.new
    assert not publish(world.platform, "merge").new
    rollback(world.platform, "merge")
    assert world.rows().equals(before)
    reinstate(world.platform, "merge")
    assert world.rows().equals(after)
    rollback(world.platform, "merge")
    assert world.rows().equals(before)
    moved(world.platform.ledger, "whole", RunState.CANCELLED, "ana", "only looked at")


def test_a_merge_of_what_came_late_touches_the_cases_it_is_about(tmp_path: Path) -> None:
    world = make_world(tmp_path / "home", cases=80, end=date(2010, 12, 31), gates=FEW_GATES)
    world.published(world.manifest("history"))
    since = world.platform.lakehouse.snapshot_id("bronze.case_events")
    before = world.rows()
    load_delivery(world.platform, EVENTS, generated(5, 99, world.start, world.end), 0.5)
    scope = (world.start, world.end)
    plan = target("MERGE_BY_KEY", scope, merge={"changedSince": since})
    done = world.published(world.manifest("late-events", target=plan, validation={}))  # every gate
    after = world.rows()
    assert not after.equals(before)
    mine = after.filter(pl.col("run_id") == "late-events")
    assert 0 < mine["case_id"].n_unique() <= 5
    assert after.filter(pl.col("run_id") != "late-events").equals(
        before.join(mine.select("case_id").unique(), on="case_id", how="anti")
    )
    # as if everything had been computed anew
    world.published(world.manifest("everything"))
    assert values(world.rows()).equals(values(after))
    assert done.files_added >= 1


def test_a_merge_never_lets_a_version_go_backwards_in_silence(published: World) -> None:
    world = published
    cases = some_cases(world, 3)
    older = world.approved(world.manifest("older", target=target("MERGE_BY_KEY", merge={"entities": cases})))
    keeps = {"entities": cases, "onOlderVersion": "KEEP"}
    keeper = world.approved(world.manifest("keeper", target=target("MERGE_BY_KEY", merge=keeps)))
    del keeper
    # somebody publishes newer rows; both are planned again on the new base, but computed with the old run clock
    import dataclasses
    from datetime import timedelta

    newer = world.published(world.manifest("newer", target=target("REPLACE_PARTITIONS")))
    ledger = world.platform.ledger
    for run_id in ("older", "keeper"):
        record = ledger.run(run_id)
        plan = dataclasses.replace(
            record.plan,
            base_snapshot_id=newer.snapshot_id,
            run_clock=record.plan.run_clock - timedelta(days=1),
        )
        with ledger.engine.begin() as connection:
            connection.execute(
                amendments.insert().values(
                    run_id=run_id,
                    number=1,
                    chunks=_keys(record),
                    plan=plan.to_json(),
                    reason="test",
                    actor="test",
                    at=record.updated_at,
                )
            )
    world.stage(older)
    assert ledger.run("older").state is RunState.FAILED
    errors = [chunk.error for chunk in ledger.chunks("older")]
    assert any("no version goes backwards (merge.onOlderVersion: OVERWRITE takes" in error for error in errors)
    world.stage(ledger.run("keeper"))
    assert ledger.run("keeper").state is RunState.VALIDATED
    before = world.rows()
    publish(world.platform, "keeper")
    assert world.rows().equals(before)  # every newer row has won
    rollback(world.platform, "keeper")
    rollback(world.platform, "newer")


def _keys(record: Any) -> str:
    import json

    return json.dumps([chunk.key for chunk in record.plan.chunks])


def test_a_merge_into_chunks_that_others_changed_is_refused(published: World) -> None:
    world = published
    manifest = world.manifest("merge-late", target=target("MERGE_BY_KEY", merge={"entities": some_cases(world)}))
    waiting = world.validated(manifest)
    world.published(world.manifest("between", target=target("REPLACE_PARTITIONS")))
    with pytest.raises(PublicationRefused):
        publish(world.platform, waiting.run_id)
    assert set(month_of(world.rows(), *SCOPE)["run_id"]) == {"between"}
    rollback(world.platform, "between")


# --- SHADOW_SWAP and VERSIONED ----------------------------------------------------------------------------------------


def test_a_shadow_is_queried_on_its_branch_and_then_becomes_main(published: World) -> None:
    world = published
    before = world.rows()
    record = world.validated(world.manifest("shadow", target=target("SHADOW_SWAP")))
    assert prepare(world.platform, record.run_id) == "candidate-shadow"
    assert world.rows().equals(before)  # main's readers see nothing of it
    candidate = at(world, "candidate-shadow")
    assert set(month_of(candidate, *SCOPE)["run_id"]) == {"shadow"}
    assert candidate.filter(pl.col("run_id") != "shadow").equals(
        before.filter(~pl.col("business_date").is_between(*SCOPE))
    )
    done = publish(world.platform, record.run_id)
    assert world.rows().equals(candidate)
    assert world.platform.lakehouse.snapshot_id(TARGET) == done.snapshot_id
    rollback(world.platform, "shadow")
    assert world.rows().equals(before)


def test_a_shadow_is_refused_when_main_has_moved_anywhere(published: World) -> None:
    world = published
    record = world.validated(world.manifest("shadow-late", target=target("SHADOW_SWAP")))
    prepare(world.platform, record.run_id)
    elsewhere = (date(2011, 5, 1), date(2011, 5, 31))
    world.published(world.manifest("elsewhere", target=target("REPLACE_PARTITIONS", elsewhere)))
    before = world.rows()
    with pytest.raises(PublicationRefused, match="moved"):
        publish(world.platform, record.run_id)
    assert world.rows().equals(before)
    assert world.platform.ledger.run("shadow-late").state is RunState.REJECTED
    rollback(world.platform, "elsewhere")


def test_versions_stay_side_by_side_and_main_shows_the_accepted_one(published: World) -> None:
    world = published
    before = world.rows()
    late = target("VERSIONED", version="v2", acceptance="LATER")
    world.published(world.manifest("second", target=late))
    assert world.rows().equals(before)  # consumers of main have not moved
    second = at(world, "v2")
    assert "second" in set(second["run_id"])
    with pytest.raises(PlanRefused, match="has a version v2"):
        plan_run(world.platform, world.manifest("overwrites", target=target("VERSIONED", version="v2")))
    accept(world.platform, "second")
    assert world.rows().equals(second)
    assert not accept(world.platform, "second").new
    world.published(world.manifest("third", target=target("VERSIONED", version="v3")))
    assert at(world, "v2").equals(second)
    assert at(world, "v3").equals(world.rows())
    assert set(month_of(world.rows(), *SCOPE)["run_id"]) == {"third"}
    rollback(world.platform, "third")
    assert world.rows().equals(second)
    assert "v3" not in world.platform.lakehouse.refs(TARGET)
    assert set(month_of(at(world, "withdrawn-v3"), *SCOPE)["run_id"]) == {"third"}
    rollback(world.platform, "second")
    assert world.rows().equals(before)
    with pytest.raises(PlanRefused):
        plan_run(world.platform, world.manifest("reuses", target=target("VERSIONED", version="v3")))


# --- CORRECTION_EVENTS ------------------------------------------------------------------------------------------------


def test_corrections_say_what_a_replacement_would_change_and_are_issued_once(published: World) -> None:
    world = published
    before = world.rows()
    record = world.validated(world.manifest("correct", target=target("CORRECTION_EVENTS")))
    done = publish(world.platform, record.run_id)
    assert world.rows().equals(before)  # nothing is overwritten
    events = corrections(world)
    assert events.height > 0
    assert done.files_removed == 0
    new = pl.concat([pl.read_parquet(f.path) for chunk in world.platform.ledger.chunks("correct") for f in chunk.files])
    old = month_of(before, *SCOPE)
    names = [name for name in old.columns if name not in (*KEY, *LINEAGE)]
    both = old.join(new, on=KEY, how="inner", suffix="_new")
    differ = pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_new")) for name in names)
    expected = {
        "ADDED": new.join(old, on=KEY, how="anti").height,
        "REMOVED": old.join(new, on=KEY, how="anti").height,
        "CHANGED": both.filter(differ).height,
    }
    found = dict(events.group_by("event_type").len().iter_rows())
    assert found == {name: number for name, number in expected.items() if number}
    assert set(events["corrects_run_id"].drop_nulls()) == {"history"}
    assert events["correction_id"].is_unique().all()
    # the same pairs again
    again = world.approved(world.manifest("correct-again", target=target("CORRECTION_EVENTS")))
    world.stage(again)
    ledger = world.platform.ledger
    assert ledger.run("correct-again").state is RunState.FAILED
    assert any("issued once" in chunk.error for chunk in ledger.chunks("correct-again"))
    rollback(world.platform, "correct")
    assert corrections(world).height == 0


def test_corrections_beside_a_replacement(published: World) -> None:
    world = published
    before = world.rows()
    world.published(world.manifest("beside", target=target("CORRECTION_EVENTS", corrections="BESIDE")))
    assert set(month_of(world.rows(), *SCOPE)["run_id"]) == {"beside"}
    assert set(corrections(world)["run_id"]) == {"beside"}
    rollback(world.platform, "beside")
    assert world.rows().equals(before)
    assert corrections(world).height == 0
    reinstate(world.platform, "beside")
    assert corrections(world).height > 0
    rollback(world.platform, "beside")


# --- conflicts, series, dry runs --------------------------------------------------------------------------------------


def test_only_the_chunks_in_conflict_are_planned_and_computed_anew(published: World) -> None:
    world = published
    manifest = world.manifest(
        "replans", target=target("REPLACE_PARTITIONS"), conflict={"onConflict": "REPLAN", "maxReplans": 1}
    )
    record = world.validated(manifest)
    first = {chunk.chunk: (chunk.attempt, chunk.digest) for chunk in world.platform.ledger.chunks("replans")}
    april = (date(2010, 4, 1), date(2010, 4, 30))
    world.published(world.manifest("live-april", target=target("REPLACE_PARTITIONS", april)))
    with pytest.raises(PublicationDeferred, match="planned anew"):
        publish(world.platform, record.run_id)
    ledger = world.platform.ledger
    assert ledger.run("replans").state is RunState.RUNNING
    world.stage(ledger.run("replans"))
    second = {chunk.chunk: (chunk.attempt, chunk.digest) for chunk in ledger.chunks("replans")}
    assert {key for key in first if first[key] != second[key]} == {"2010-04"}
    publish(world.platform, "replans")
    assert set(month_of(world.rows(), *SCOPE)["run_id"]) == {"replans"}
    rollback(world.platform, "replans")
    assert set(month_of(world.rows(), *april)["run_id"]) == {"live-april"}
    rollback(world.platform, "live-april")


def test_planning_anew_is_bounded(published: World) -> None:
    world = published
    manifest = world.manifest(
        "bounded", target=target("REPLACE_PARTITIONS"), conflict={"onConflict": "REPLAN", "maxReplans": 1}
    )
    world.validated(manifest)
    april = (date(2010, 4, 1), date(2010, 4, 30))
    world.published(world.manifest("live-1", target=target("REPLACE_PARTITIONS", april)))
    with pytest.raises(PublicationDeferred):
        publish(world.platform, "bounded")
    world.published(world.manifest("live-2", target=target("REPLACE_PARTITIONS", april)))
    world.stage(world.platform.ledger.run("bounded"))
    with pytest.raises(PublicationRefused, match="planned anew 1 times"):
        publish(world.platform, "bounded")
    assert world.platform.ledger.run("bounded").state is RunState.REJECTED
    assert set(month_of(world.rows(), *april)["run_id"]) == {"live-2"}
    rollback(world.platform, "live-2")
    rollback(world.platform, "live-1")


def test_a_run_may_wait_for_the_other_change_to_be_undone(published: World) -> None:
    world = published
    manifest = world.manifest("waits", target=target("REPLACE_PARTITIONS"), conflict={"onConflict": "WAIT"})
    world.validated(manifest)
    april = (date(2010, 4, 1), date(2010, 4, 30))
    world.published(world.manifest("in-the-way", target=target("REPLACE_PARTITIONS", april)))
    with pytest.raises(PublicationDeferred, match="waits until"):
        publish(world.platform, "waits")
    assert world.platform.ledger.run("waits").state is RunState.VALIDATED
    rollback(world.platform, "in-the-way")
    publish(world.platform, "waits")
    assert set(month_of(world.rows(), *SCOPE)["run_id"]) == {"waits"}
    rollback(world.platform, "waits")


def test_a_progressive_run_is_published_step_by_step_in_order(published: World) -> None:
    world = published
    manifest = world.manifest("series", target=target("REPLACE_PARTITIONS"), progressive={"chunksPerStep": 2})
    records = plan_series(world.platform, manifest)
    assert [record.run_id for record in records] == ["series.s001", "series.s002"]
    for record in records:
        world.platform.ledger.decide(
            record.run_id, approve=True, by="bob", comment="", self_approval=False, plan_hash=record.plan_hash
        )
        world.stage(world.platform.ledger.run(record.run_id))
    with pytest.raises(PublicationDeferred, match=r"series\.s001"):
        publish(world.platform, "series.s002")
    for step in ("series.s001", "series.s002"):
        publish(world.platform, step)
    assert set(month_of(world.rows(), *SCOPE)["run_id"]) == {"series.s001", "series.s002"}
    for step in ("series.s002", "series.s001"):
        rollback(world.platform, step)


def test_a_dry_run_computes_and_checks_a_sample_and_is_never_published(published: World) -> None:
    world = published
    before = world.rows()
    manifest = world.manifest(
        "dry",
        target=target("REPLACE_PARTITIONS"),
        mode="DRY_RUN",
        sample={"chunks": ["2010-03", "2010-06"]},
        safety={},
    )
    record = world.validated(manifest)
    assert [chunk.chunk for chunk in world.platform.ledger.chunks("dry")] == ["2010-03", "2010-06"]
    assert record.state is RunState.VALIDATED
    with pytest.raises(PublicationRefused, match="only looks"):
        publish(world.platform, "dry")
    assert world.rows().equals(before)
    unknown = world.manifest(
        "dry-2", target=target("REPLACE_PARTITIONS"), mode="DRY_RUN", sample={"chunks": ["2012-01"]}, safety={}
    )
    with pytest.raises(PlanRefused, match="2012-01"):
        preview(world.platform, unknown)


def test_every_publish_mode_has_an_example_that_can_be_planned(published: World) -> None:
    from manifests.model import PublishMode
    from manifests.reading import load_manifest, manifest_from

    files = sorted((Path(__file__).resolve().parent.parent / "manifests").glob("*.yaml"))
    examples = [load_manifest(file) for file in files if file.stem != "refused-webhook"]
    assert {example.target.publish_mode for example in examples} == set(PublishMode)
    for example in examples:
        data = example.model_dump(mode="json", by_alias=True) | {"development": True}
        data.pop("cutLine", None)  # it is where this world's history ends or not at all
        data["target"] = data["target"] | {"publishRange": {"start": str(SCOPE[0]), "end": str(SCOPE[1])}}
        if example.target.version is not None:
            data["target"] |= {"version": "v9"}  # the other tests of this world have used the example's
        if data.get("sample"):
            data["sample"] = {"chunks": ["2010-04"]}
        if example.target.publish_mode is PublishMode.APPEND_ONLY:
            with pytest.raises(PlanRefused, match="first rows only"):
                preview(published.platform, manifest_from(data))
            continue
        if example.kind in FIRST_OUTPUT:  # this world's months are published
            with pytest.raises(PlanRefused, match="state `kind: RESTATEMENT`"):
                preview(published.platform, manifest_from(data))
            data["kind"] = "RESTATEMENT"
        plan = preview(published.platform, manifest_from(data))
        assert plan.publish_mode is example.target.publish_mode


def test_the_evidence_and_the_rows_of_every_mode_are_verified(published: World) -> None:
    done = verify(published.platform, data=True)
    assert [(problem.run_id, problem.where, problem.what) for problem in done.everything] == []
    assert len([run for run in done.runs if run.links]) > 8
    derived = [
        file for run in done.runs for chunk in published.platform.ledger.chunks(run.run_id) for file in chunk.derived
    ]
    assert derived  # of merges and corrections, also these were hashed by their gate
    assert all(len(file.sha256) == 64 for file in derived)
