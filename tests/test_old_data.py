"""Old data with real tables and real Spark: what the policy forbids is not seen by a transform, and nobody erased comes back.

One installation with published history; each test brings a policy of its own. What can be judged without computing is in
`test_policy` and `manifests/test_policy`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any

import polars as pl
import pytest
from pyspark.sql import functions as F
from support import put_in_force
from worlds import World, make_world, with_version

from backfill_assets import decisions
from backfill_assets.audit.reproduce import Outcome, reproduce
from backfill_assets.defs.launch import run_chunks
from backfill_assets.evidence.bundle_contents import bundle_files
from backfill_assets.gates.judging import gate_run
from backfill_assets.products.enforcement.transforms import case_sla_daily
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from backfill_assets.review.diff import diff_run
from manifests.data_terms import OLD_DATA_GATE
from manifests.errors import InputRefused, PublicationRefused, TransitionRefused
from manifests.lifecycle import RunState

SOURCE = "bronze.case_events"
FIRST = "first-history"
GATES = ["all_chunks_staged", "every_started_case_is_present", "breach_totals_agree"]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Four months of some cases, published without a policy."""
    home = tmp_path_factory.mktemp("old") / "home"
    world = make_world(home, cases=120, start=date(2010, 1, 1), end=date(2010, 4, 30))
    world.published(world.manifest(FIRST, validation={"gates": GATES}))
    return world


@pytest.fixture
def world(history: World) -> Iterator[World]:
    """The shared installation; after the test its policy is the shipped one again."""
    yield history
    put_in_force(history.platform, {"name": "four eyes", "rules": [{}]})
    for name in ("policy.yaml", "erased.csv"):
        (history.home / name).unlink(missing_ok=True)


def policy(world: World, **source: Any) -> None:
    """Put a policy in force that says this of the source."""
    text = {"name": "test", "sources": [{"table": SOURCE, **source}]}
    put_in_force(world.platform, text)


def erase(world: World, *subjects: str) -> None:
    """Put a policy in force that leaves out these subjects."""
    lines = "".join(f"{subject},2020-01-01\n" for subject in subjects)
    (world.home / "erased.csv").write_text("subject,erased_on\n" + lines)
    policy(world, erasure={"column": "case_id", "file": "erased.csv"})


def a_run(world: World, run_id: str, **changes: Any) -> Any:
    return world.manifest(run_id, **({"validation": {"gates": GATES}} | changes))


def subjects(world: World) -> list[str]:
    """Return the cases that readers see, those with most rows first."""
    return world.rows().group_by("case_id").len().sort("len", "case_id", descending=[True, False])["case_id"].to_list()


def source_rows(world: World, case: str) -> int:
    table = world.platform.lakehouse.table(SOURCE)
    frame = pl.from_arrow(table.scan().to_arrow())
    assert isinstance(frame, pl.DataFrame)
    return frame.filter(pl.col("case_id") == case).height


def the_table(world: World) -> int | None:
    return world.platform.lakehouse.snapshot_id("silver.case_sla_daily")


def test_an_erased_subject_does_not_come_back_through_a_replay_nor_through_its_rollback(world: World):
    gone, later, *_ = subjects(world)
    erase(world, gone)
    world.validated(a_run(world, "replay-erased", kind="REPLAY"))
    theirs = world.rows().filter(pl.col("case_id") == gone).height
    made = diff_run(world.platform, "replay-erased", largest=50, sample=50, table=True)
    assert made.diff.removed == made.diff.concealed == theirs > 0  # counted, and shown to nobody
    assert gone not in str(made.diff)
    changes = world.platform.lakehouse.table("silver.case_sla_daily_changes").scan().to_arrow()
    assert gone not in changes["case_id"].to_pylist()
    publish(world.platform, "replay-erased")

    left = world.rows()
    assert gone not in left["case_id"].to_list()
    assert later in left["case_id"].to_list()
    verdict = next(one for one in world.platform.ledger.verdicts("replay-erased") if one.gate == OLD_DATA_GATE)
    assert verdict.passed
    assert verdict.details["erased_rows"] == source_rows(world, gone) > 0
    assert verdict.details["erased_subjects_with_rows"] == 1
    assert verdict.details["used_rows"] == verdict.details["source_rows"] - verdict.details["erased_rows"]
    bundle = bundle_files(world.platform, world.platform.ledger.run("replay-erased"))
    assert gone not in str(bundle)  # evidence is kept for good
    assert bundle["policy.json"]["sources"][0]["erasure"]["file"] == "erased.csv"

    before = the_table(world)
    with pytest.raises(PublicationRefused, match="would show 1 erased subject") as refusal:
        rollback(world.platform, "replay-erased")
    assert gone not in str(refusal.value)
    assert the_table(world) == before
    assert world.platform.ledger.run("replay-erased").state is RunState.PUBLISHED

    erase(world, gone, later)  # the same plan leaves out whom it names: the digests stay
    again = reproduce(world.platform, "replay-erased", ["2010-02"])
    assert again.outcome is Outcome.EQUAL


def test_who_is_erased_after_the_gates_stops_the_publication(world: World):
    erase(world)
    world.validated(a_run(world, "overtaken"))
    before = the_table(world)
    erase(world, subjects(world)[0])

    with pytest.raises(PublicationRefused, match="plan the change again under a new run id"):
        publish(world.platform, "overtaken")

    assert world.platform.ledger.run("overtaken").state is RunState.REJECTED
    assert the_table(world) == before


def test_a_merge_copies_nobody_who_is_erased_and_can_remove_them(world: World):
    gone, other, *_ = subjects(world)
    erase(world, gone)

    def merging(run_id: str, case: str) -> Any:
        target = world.scope(world.start, world.end) | {
            "publishMode": "MERGE_BY_KEY",
            "merge": {"entities": [case], "onOlderVersion": "OVERWRITE"},
        }
        return a_run(world, run_id, kind="REPAIR", target=target)

    world.validated(merging("merge-another", other))
    with pytest.raises(PublicationRefused, match="remove them first"):
        publish(world.platform, "merge-another")

    world.published(merging("merge-erased", gone))
    assert gone not in subjects(world)
    assert other in subjects(world)


def test_a_publication_by_hand_is_a_publishers_and_its_reinstatement_brings_nobody_back(world: World):
    text = {"name": "test", "rules": [{"publishers": ["ops"], "breakGlass": ["dan"]}]}
    put_in_force(world.platform, text)
    world.validated(a_run(world, "put-back"))
    with pytest.raises(PublicationRefused, match="no publisher has decided"):
        publish(world.platform, "put-back")
    with pytest.raises(TransitionRefused, match="'eve' is no publisher"):
        decisions.publish(world.platform, "put-back", by="eve")
    assert decisions.publish(world.platform, "put-back", by="dan", break_glass="ops cannot be reached").new
    sealed = (world.platform.evidence.path("put-back") / "approvals.json").read_text()
    assert "ops cannot be reached" in sealed
    rollback(world.platform, "put-back")
    here = subjects(world)
    gone = next(case for case in here if case in world_cases_of(world, "put-back"))
    erase(world, gone)
    before = the_table(world)

    with pytest.raises(PublicationRefused, match="does not come back"):
        reinstate(world.platform, "put-back")

    assert the_table(world) == before
    assert world.platform.ledger.run("put-back").state is RunState.ROLLED_BACK


def world_cases_of(world: World, run_id: str) -> set[str]:
    """Return the cases in the staged files of a run."""
    paths = [file.path.removeprefix("file://") for c in world.platform.ledger.chunks(run_id) for file in c.files]
    return {case for path in paths for case in pl.read_parquet(path)["case_id"].to_list()}


def test_a_column_that_may_not_be_read_is_masked_before_a_transform_sees_it(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    seen: dict[str, Any] = {}

    def looks(inputs: Any, context: Any) -> Any:
        seen["amounts"] = inputs.source.where(F.col("amount").isNotNull()).count()
        seen["files"] = {row[0] for row in inputs.source.select("source_file").distinct().collect()}
        seen["cases"] = {row[0] for row in inputs.source.select("case_id").distinct().collect()}
        return case_sla_daily(inputs, context)

    with_version(monkeypatch, "3.1.0", looks)
    text = {
        "name": "test",
        "classifications": {"personal": {"modes": ["BACKFILL"], "otherwise": "MASK"}},
        "sources": [
            {
                "table": SOURCE,
                "columns": {
                    "amount": {"classification": "personal", "mask": "NULL"},
                    "source_file": {"classification": "personal", "mask": "CONSTANT", "constant": "a file"},
                    "case_id": {"classification": "personal", "mask": "HASH"},
                },
            }
        ],
    }
    put_in_force(world.platform, text)
    record = world.approved(
        world.manifest(
            "masked-look", mode="DRY_RUN", safety={}, validation={"gates": GATES[:1]}, sample={"chunks": ["2010-02"]}
        )
    )
    world.stage(record, ["2010-02"])

    assert seen["amounts"] == 0
    assert seen["files"] == {"a file"}
    assert {len(case) for case in seen["cases"]} == {64}
    (chunk,) = world.platform.ledger.chunks("masked-look")
    assert chunk.rows
    rows = pl.read_parquet(chunk.files[0].path.removeprefix("file://"))
    assert rows["amount"].null_count() == rows.height

    clear = set(world.rows()["case_id"])
    diff = diff_run(world.platform, "masked-look", largest=50, sample=50).diff
    gone = [row for row in (*diff.largest, *diff.sample) if row["kind"] == "REMOVED"]
    assert gone  # of history that was published without a policy
    assert {row["old"]["amount"] for row in gone} == {None}
    assert not {row["key"]["case_id"] for row in (*diff.largest, *diff.sample)} & clear


def test_an_unusual_change_waits_for_an_owner_and_is_void_when_the_numbers_change(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    def without_breaches(inputs: Any, context: Any) -> Any:
        rows = case_sla_daily(inputs, context)
        return rows.where(F.col("sla_state") != "BREACHED")

    with_version(monkeypatch, "3.1.0", without_breaches)
    ledger, run_id = world.platform.ledger, "unusual"
    validation = {
        "gates": ["all_chunks_staged", "breaches_look_reasonable"],
        "tolerances": {"unusual_change_breaches": 1},
    }
    record = world.announced(world.manifest(run_id, validation=validation))
    with world.dagster() as instance:  # to wait for an owner is no failure of the launch
        assert run_chunks(world.platform, instance, record, [chunk.key for chunk in record.plan.chunks])
    record = ledger.run(run_id)

    assert record.state is RunState.STAGED
    assert "waits for an owner: breaches_look_reasonable" in record.state_reason
    (verdict,) = ledger.asking(run_id)
    assert verdict.details["accepted"] > verdict.details["staged"] == 0
    assert verdict.details["sample"][0]["change"] == "-100.0%"
    assert gate_run(world.platform, run_id) is None  # it is not judged again while it waits
    with pytest.raises(PublicationRefused, match="STAGED"):
        publish(world.platform, run_id)

    gate, why = verdict.gate, "all clocks were stopped by decree"
    with pytest.raises(TransitionRefused, match="is no owner of"):
        decisions.accept_change(world.platform, run_id, gate, by="bob", reason="looks right to me")
    for short in ("ok", "ok" + "\u200b" * 20):
        with pytest.raises(InputRefused, match="too short"):
            decisions.accept_change(world.platform, run_id, gate, by="grace", reason=short)
    with pytest.raises(InputRefused, match="does not ask"):
        decisions.accept_change(world.platform, run_id, "all_chunks_staged", by="bob", reason="looks right to me")
    put_in_force(world.platform, {"name": "test", "groups": {"enforcement-data": ["grace"]}})
    for team in ("team:enforcement-data", "Team:Enforcement-Data"):
        with pytest.raises(TransitionRefused, match="each of their members decides in their own name"):
            decisions.accept_change(world.platform, run_id, gate, by=team, reason=why)
    done = decisions.accept_change(world.platform, run_id, gate, by="grace", reason=why)
    assert done.state is RunState.VALIDATED
    (kept,) = bundle_files(world.platform, done)["acceptances.json"]
    assert (kept["plan_hash"], kept["numbers"]["details"]) == (done.plan_hash, dict(verdict.details))
    assert gate in ledger.accepted_gates(run_id)

    ledger.record_verdicts(run_id, [type(verdict)(gate, False, "other numbers", {"staged": 1}, asks=True)])
    assert ledger.accepted_gates(run_id) == {}
    assert [one.void for one in ledger.decisions(run_id) if one.role == "owner"] == [True]
    with pytest.raises(PublicationRefused, match="not passed: breaches_look_reasonable"):
        publish(world.platform, run_id)
