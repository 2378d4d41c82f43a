"""The diff that is kept of every publication, and what its bundle says that it changes: in every mode, whatever dies."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from worlds import FEW_GATES, KEY, NUMBERS, TARGET, VALUES, World, killed_at, make_world

from backfill_assets.audit.report import report
from backfill_assets.audit.verification import verify
from backfill_assets.cli.command import cli
from backfill_assets.operations.doctor import evidence
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.publication.accepting import accept
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.review.diff import diff_here, diff_run, recorded_diff
from backfill_assets.review.kept_diffs import after_publication, due, for_decision, keep_diff, sealed_changes
from manifests.canonical import plain
from manifests.errors import InputRefused
from resources.evidence.store import sha256_of_file

SCOPE = (date(2010, 3, 1), date(2010, 4, 30))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world whose history of four months is published by 2.4.1, with its bug."""
    made = make_world(tmp_path_factory.mktemp("kept") / "home", cases=100, end=date(2010, 4, 30), gates=FEW_GATES)
    made.published(made.manifest("history", version="2.4.1"))
    return made


def target(mode: str = "REPLACE_PARTITIONS", **options: Any) -> dict[str, Any]:
    return {"table": TARGET, "publishMode": mode, "publishRange": {"start": SCOPE[0], "end": SCOPE[1]}} | options


def in_scope(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("business_date").is_between(*SCOPE))


def corrected(world: World, run_id: str) -> pl.DataFrame:
    """What readers have who apply the corrections: the rows that were computed."""
    files = [file.path for chunk in world.platform.ledger.chunks(run_id) for file in chunk.files]
    return pl.concat([pl.read_parquet(path.removeprefix("file://")) for path in files])


def problems(world: World, run_id: str) -> list[Any]:
    return verify(world.platform, [run_id], data=True).everything


def by_chunk(rows: pl.DataFrame) -> dict[str, tuple[int, dict[str, Decimal]]]:
    """Rows and sums of number columns by month, by plain Python."""
    found: dict[str, tuple[int, dict[str, Decimal]]] = {}
    for row in rows.to_dicts():
        rows_so_far, sums = found.setdefault(f"{row['business_date']:%Y-%m}", (0, dict.fromkeys(NUMBERS, Decimal(0))))
        sums = {name: sums[name] + Decimal(row[name] or 0) for name in NUMBERS}
        found[f"{row['business_date']:%Y-%m}"] = (rows_so_far + 1, sums)
    return found


def require_counts(chunks: list[Mapping[str, Any]], before: pl.DataFrame, after: pl.DataFrame) -> None:
    sides = by_chunk(before), by_chunk(after)
    for one in chunks:
        for side, found in enumerate(sides):
            rows, sums = found[one["chunk"]]
            assert one["rows"][side] == rows, one["chunk"]
            assert {name: Decimal(one["sums"][name][side]) for name in NUMBERS} == sums, one["chunk"]


def require_kinds(world: World, run_id: str, before: pl.DataFrame, after: pl.DataFrame) -> None:
    old, new = (
        {tuple(r[n] for n in KEY): r for r in rows.select(*KEY, *VALUES).to_dicts()} for rows in (before, after)
    )
    expected: Counter[str] = Counter()
    for key in old.keys() | new.keys():
        there = (key in old, key in new)
        same = old.get(key) == new.get(key)
        expected["unchanged" if same else {(True, False): "removed", (False, True): "added"}.get(there, "changed")] += 1
    diff = recorded_diff(world.platform, run_id)
    assert diff is not None
    assert Counter({name: getattr(diff, name) for name in ("added", "removed", "changed", "unchanged")}) == expected


MODES = {
    "replaced": target(),
    "swapped": target("SHADOW_SWAP"),
    "versioned": target("VERSIONED", version="v7", acceptance="LATER"),
    "instead": target("CORRECTION_EVENTS", corrections="INSTEAD"),
    "beside": target("CORRECTION_EVENTS", corrections="BESIDE"),
    "merged": None,
}


@pytest.mark.parametrize("run_id", MODES)
def test_every_publish_mode_leaves_what_it_changed_and_keeps_its_diff(world: World, run_id: str) -> None:
    before = world.rows()
    merge = {"entities": sorted(set(in_scope(before)["case_id"]))[:9], "onOlderVersion": "OVERWRITE"}
    scope = MODES[run_id] or target("MERGE_BY_KEY", merge=merge)
    world.validated(world.manifest(run_id, target=scope))
    jobs = len(
        world.platform.spark.session(world.platform.ledger.run(run_id).plan.mode)
        .sparkContext.statusTracker()
        .getJobIdsForGroup()
    )
    publish(world.platform, run_id)
    sealed = sealed_changes(world.platform, run_id)
    assert after_publication(world.platform, run_id) is not None
    if run_id == "versioned":
        accept(world.platform, run_id)
    after = corrected(world, run_id) if run_id == "instead" else world.rows()
    spark = world.platform.spark.session(world.platform.ledger.run(run_id).plan.mode)
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup()) == jobs  # no job was started for it
    require_counts(sealed["chunks"], in_scope(before), in_scope(after))
    require_kinds(world, run_id, in_scope(before), in_scope(after))
    diff = recorded_diff(world.platform, run_id)
    assert diff is not None
    assert diff.diff_id == sealed["diff_id"]
    assert diff.differing > 0
    assert problems(world, run_id) == []
    kept = world.platform.evidence.records(run_id) / "diff.json"
    content = kept.read_bytes()
    rollback(world.platform, run_id)
    after_publication(world.platform, run_id)
    assert kept.read_bytes() == content  # withdrawn, and not forgotten
    assert problems(world, run_id) == []
    assert values(world.rows()).equals(values(before))


def values(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(*KEY, *VALUES).sort(KEY)


def test_the_diff_of_this_process_is_the_one_of_the_workers(world: World) -> None:
    run_id = world.validated(world.manifest(target=target())).run_id
    here = plain(diff_here(world.platform, run_id))
    there = plain(diff_run(world.platform, run_id).diff)
    assert {name: cell for name, cell in here.items() if name != "made_at"} == {
        name: cell for name, cell in there.items() if name != "made_at"
    }
    # and as it is on record, and sealed, it is the one that is kept
    publish(world.platform, run_id)
    assert due(world.platform, world.platform.ledger.run(run_id)) == ""
    assert keep_diff(world.platform, run_id) is None
    rollback(world.platform, run_id)


def test_a_manifest_may_say_that_no_diff_is_kept(world: World) -> None:
    manifest = world.manifest("without", target=target(), evidence={"diff": False})
    world.published(manifest)
    after_publication(world.platform, "without")
    assert recorded_diff(world.platform, "without") is None
    assert [one["chunk"] for one in sealed_changes(world.platform, "without")["chunks"]] == ["2010-03", "2010-04"]
    assert problems(world, "without") == []
    assert "the manifest says so (evidence.diff)" in report(world.platform, "without")
    rollback(world.platform, "without")


def test_a_process_that_dies_before_the_diff_is_made_up_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.published(world.manifest("died", target=target()))
    with killed_at("comparing.kept", monkeypatch):
        after_publication(world.platform, "died")
    assert recorded_diff(world.platform, "died") is None
    assert "Its rows are not compared by key yet" in report(world.platform, "died")
    found = [one for one in examine(world.platform) if one.where == "died"]
    assert found == []  # a process may be at it
    monkeypatch.setattr(evidence, "COMPARING", timedelta(0))
    found = [one for one in examine(world.platform) if one.where == "died"]
    assert [one.kind for one in found] == ["diff-missing"]
    mend(world.platform)
    assert recorded_diff(world.platform, "died") is not None
    assert [one for one in examine(world.platform) if one.where == "died"] == []
    assert problems(world, "died") == []
    rollback(world.platform, "died")


def test_a_record_without_its_link_is_completed_if_the_rows_say_the_same_and_else_refused(world: World) -> None:
    world.published(world.manifest("unlinked", target=target()))
    diff = diff_here(world.platform, "unlinked")
    records = world.platform.evidence.records("unlinked")
    file = records / "diff.json"
    lie = replace(diff, changed=diff.changed + 1, unchanged=diff.unchanged - 1)
    file.write_text(json.dumps(plain(lie)))
    assert "no link" in " ".join(one.what for one in problems(world, "unlinked"))
    with pytest.raises(InputRefused, match="no link vouches for it"):
        keep_diff(world.platform, "unlinked")
    file.write_text(json.dumps(plain(diff)))
    assert keep_diff(world.platform, "unlinked") is not None
    assert keep_diff(world.platform, "unlinked") is None
    assert problems(world, "unlinked") == []
    rollback(world.platform, "unlinked")


def test_verify_holds_the_kept_diff_against_what_was_sealed(world: World) -> None:
    """A forger who can append links cannot make it say other counts or sums than the bundle."""
    world.published(world.manifest("forged", target=target()))
    diff = diff_here(world.platform, "forged")
    first = diff.chunks[0]
    sums = first.sums | {"days_open": [first.sums["days_open"][0], "1"]}
    lie = replace(diff, chunks=[replace(first, added=first.added + 1, sums=sums), *diff.chunks[1:]])
    world.platform.evidence.append("forged", "diff", plain(lie))
    found = {(one.where.rpartition(" ")[2], one.what) for one in problems(world, "forged")}
    assert found == {
        ("2010-03", "has other rows after than was sealed"),
        ("2010-03", "has other sum of days_open after than was sealed"),
    }
    rollback(world.platform, "forged")


def test_a_diff_that_cannot_be_made_is_said_and_fails_no_publication(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.published(world.manifest("gone", target=target()))
    chunk = world.platform.ledger.chunks("gone")[0]
    path = Path(chunk.files[0].path.removeprefix("file://"))
    path.rename(path.with_suffix(".away"))
    assert after_publication(world.platform, "gone") is not None
    assert "the diff of gone is not kept" in caplog.text
    path.with_suffix(".away").rename(path)
    assert keep_diff(world.platform, "gone") is not None
    rollback(world.platform, "gone")


def test_the_commands_keep_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    world.validated(world.manifest("by-command", target=target()))
    runner = CliRunner()
    assert runner.invoke(cli, ["publish", "by-command"], catch_exceptions=False).exit_code == 0
    file = world.platform.evidence.records("by-command") / "diff.json"
    hash_ = sha256_of_file(file)
    assert [
        link.content["recordHash"]
        for link in world.platform.evidence.chain.read().links
        if (link.content.get("run"), link.content.get("record")) == ("by-command", "diff")
    ] == [hash_]
    shown = runner.invoke(cli, ["diff", "by-command", "--recorded"], catch_exceptions=False)
    assert "changed" in shown.stdout
    assert runner.invoke(cli, ["rollback", "by-command"], catch_exceptions=False).exit_code == 0
    assert sha256_of_file(file) == hash_


def test_what_a_person_decides_about_is_compared_before_and_sealed_with_its_bundle(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    by_hand = {"requiresManualPublish": True}
    record = world.validated(world.manifest("by-hand", target=target(), safety=by_hand))
    made = for_decision(world.platform, record.run_id)
    assert made is not None
    assert made.differing > 0
    assert for_decision(world.platform, record.run_id) is None, "it is there"
    shown = CliRunner().invoke(cli, ["status", record.run_id], catch_exceptions=False).stdout
    assert f"{made.changed:,} changed" in " ".join(shown.split())
    publish(world.platform, record.run_id)
    sealed = json.loads((world.platform.evidence.path(record.run_id) / "diff.json").read_text())
    assert sealed["diff_id"] == made.diff_id == sealed_changes(world.platform, record.run_id)["diff_id"]
    assert keep_diff(world.platform, record.run_id) is None, "it is not made twice"
    assert problems(world, record.run_id) == []
    rollback(world.platform, record.run_id)


def test_a_launch_after_one_that_was_killed_between_verdict_and_diff_makes_the_diff(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    by_hand = {"requiresManualPublish": True}
    run_id = world.validated(world.manifest("killed", target=target(), safety=by_hand)).run_id
    assert recorded_diff(world.platform, run_id) is None, "the launch ended before it"
    assert CliRunner().invoke(cli, ["run", run_id], catch_exceptions=False).exit_code == 0
    made = recorded_diff(world.platform, run_id)
    assert made is not None
    assert CliRunner().invoke(cli, ["run", run_id], catch_exceptions=False).exit_code == 0
    assert recorded_diff(world.platform, run_id) == made, "once is enough"
    publish(world.platform, run_id)
    assert problems(world, run_id) == []
    rollback(world.platform, run_id)


def test_a_dry_run_has_its_diff_and_a_run_that_is_published_by_itself_waits_for_none(world: World) -> None:
    dry = world.validated(world.manifest("dry", mode="DRY_RUN", target=target(), safety={})).run_id
    assert for_decision(world.platform, dry) is not None
    alone = world.validated(world.manifest("alone", target=target())).run_id
    assert for_decision(world.platform, alone) is None
    assert recorded_diff(world.platform, alone) is None
    silent = {"evidence": {"diff": False}}
    kept = world.validated(world.manifest("silent", mode="DRY_RUN", target=target(), safety={}, **silent)).run_id
    assert for_decision(world.platform, kept) is None


def test_a_diff_that_cannot_be_made_before_a_decision_is_said_and_stops_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = world.validated(world.manifest("away", mode="DRY_RUN", target=target(), safety={})).run_id
    chunk = world.platform.ledger.chunks(run_id)[0]
    path = Path(chunk.files[0].path.removeprefix("file://"))
    path.rename(path.with_suffix(".away"))
    assert for_decision(world.platform, run_id) is None
    assert "the diff of away is not kept" in caplog.text
    path.with_suffix(".away").rename(path)
    assert for_decision(world.platform, run_id) is not None
