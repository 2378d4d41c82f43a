"""Forgeries by somebody who may write the ledger and the evidence: found, named, never published, never made lawful."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from checkouts import git
from click.testing import CliRunner
from pyiceberg.table import update
from servers import Postgres
from small_worlds import put_back, set_aside
from support import at_once, put_folder, put_link, put_link_to_nothing, put_pipe, put_socket

from backfill_assets import decisions, faults
from backfill_assets.audit.report import report
from backfill_assets.audit.verification import verify
from backfill_assets.cli.command import cli
from backfill_assets.evidence import records
from backfill_assets.evidence.bundle_contents import bundle_files
from backfill_assets.evidence.events import MOVED
from backfill_assets.evidence.record_writing import catch_up
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication import announcements, ending, undoing
from backfill_assets.publication import publisher as publication
from backfill_assets.publication.publisher import prepare, publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.review import diff
from backfill_assets.review.diff import diff_here, diff_run, recorded_diff
from backfill_assets.review.kept_diffs import keep_diff
from benchmarks import small_table
from benchmarks.forged_records import FORGED_RECORDS
from benchmarks.small_table import HISTORY, SCOPE, closed, declared, manifest, planned, staged
from benchmarks.tampering import Copies, Outcome, forge_records, installation
from manifests.canonical import plain, sha256_of
from manifests.errors import EnvironmentRefused, InputRefused, PublicationRefused
from manifests.lifecycle import RunState
from resources.evidence.store import SEALED, EvidenceStore, sha256_of_file
from resources.lakehouse.facade import local_path
from resources.ledger import journal
from resources.ledger.moments import Moment

pytestmark = [pytest.mark.matrix, pytest.mark.usefixtures("looked_at_again_at_once")]

FORGED_REVIEW = """
    INSERT INTO approvals (run_id, decision, decided_by, comment, plan_hash, self_approved, role, at)
    SELECT run_id, 'REVIEWED', 'eve', 'looked at', plan_hash, 0, 'reviewer', '2020-01-01 00:00:00.000000'
    FROM approvals WHERE run_id = 'history'
"""
FORGED_TRANSITION = """
    INSERT INTO transitions (run_id, from_state, to_state, at, actor, reason)
    VALUES ('history', 'PUBLISHED', 'PUBLISHED', '2020-01-01 00:00:00.000000', 'eve', 'reviewed once more')
"""
FORGED_TODAY = """
    INSERT INTO approvals (run_id, decision, decided_by, comment, plan_hash, self_approved, role, at)
    SELECT run_id, 'ROLLBACK', 'eve', '', plan_hash, 0, 'operator', strftime('%Y-%m-%d %H:%M:%f000', 'now', '+1 hour')
    FROM approvals WHERE run_id = 'history'
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Published history, and a run on top of it whose chunks are gated and which waits for its publication."""
    home = tmp_path_factory.mktemp("forgery") / "home"
    with declared():
        platform = small_table.opened(home)
        small_table.initialise(platform)
        planned(platform, manifest("history", "REPLACE_PARTITIONS", HISTORY, computed_by="1"))
        staged(platform, "history")
        publish(platform, "history")
        planned(platform, manifest("waiting", "REPLACE_PARTITIONS", SCOPE))
        assert staged(platform, "waiting").state is RunState.VALIDATED
        closed(platform)
    return set_aside(home)


@pytest.fixture
def platform(kept: Path) -> Iterator[Platform]:
    with put_back(kept) as opened:
        yield opened


def by_hand(platform: Platform, *statements: str) -> None:
    with closing(sqlite3.connect(platform.settings.home / "ledger.db")) as connection:
        for statement in statements:
            assert connection.execute(statement).rowcount > 0
        connection.commit()


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@contextmanager
def killed_at(point: str) -> Iterator[None]:
    def reach(here: str) -> None:
        if here == point:
            raise Killed

    with mock.patch.object(faults, "reach", reach), pytest.raises(Killed):
        yield


def places(platform: Platform, *run_ids: str) -> list[str]:
    return [problem.where for problem in verify(platform, run_ids or None).everything]


UNPUBLISHED = pytest.mark.parametrize(
    ("statement", "where"),
    [
        ("UPDATE approvals SET decided_by = 'eve' WHERE run_id = 'waiting'", "ledger approvals 2"),
        ("UPDATE runs SET requested_by = 'eve' WHERE run_id = 'waiting'", "ledger runs waiting"),
        ("UPDATE chunks SET digest = upper(digest) WHERE run_id = 'waiting' AND idx = 0", "ledger chunks 2020-02"),
        (
            "UPDATE chunks SET files = replace(files, 'part-0', 'part-9') WHERE run_id = 'waiting'",
            "ledger chunks 2020-02",
        ),
        ("UPDATE verdicts SET summary = 'fine' WHERE run_id = 'waiting' AND chunk = ''", "ledger verdicts "),
        ("DELETE FROM transitions WHERE run_id = 'waiting' AND to_state = 'STAGED'", "ledger transitions "),
        (FORGED_REVIEW.replace("'history'", "'waiting'"), "ledger approvals 3"),
    ],
)


def test_nothing_is_found_where_nobody_has_forged(platform: Platform) -> None:
    assert places(platform) == []
    assert examine(platform) == []


@UNPUBLISHED
def test_a_change_of_a_run_that_is_not_published_is_named_and_refuses_its_publication(
    platform: Platform, statement: str, where: str
) -> None:
    by_hand(platform, statement)
    assert any(place.startswith(where) for place in places(platform, "waiting"))
    with pytest.raises(PublicationRefused, match=rf"changed by hand.*\n *{where}|judged other files"):
        publish(platform, "waiting")
    assert platform.ledger.run("waiting").state is RunState.VALIDATED
    assert platform.evidence.bundles("waiting") == []
    assert any(one.where.startswith(where) and one.kind == "changed-by-hand" for one in mend(platform)[1])


def test_a_run_that_was_deleted_before_its_publication_is_named(platform: Platform) -> None:
    tables = ("approvals", "transitions", "chunks", "verdicts", "attempts", "sink_attempts", "journal", "runs")
    by_hand(
        platform, *(f"DELETE FROM {table} WHERE run_id = 'waiting'" for table in tables if table != "sink_attempts")
    )
    assert any(place.startswith("ledger journal") for place in places(platform))


STRANGE_IDS = {
    "of nobody": "'ghost'",
    "bytes": "CAST('history' AS BLOB)",
    "no UTF-8": "CAST(X'ff6869' AS TEXT)",
    "a path": "'../../ledger'",
    "nothing": "''",
}
GHOSTS = {
    "stops": "INSERT INTO stops (id, run_id, stopped_by, through, reason, note, at) VALUES (70, {}, 'eve', 'x', '', '', "
    "'2026-01-01 00:00:00.000000')",
    "launches": "INSERT INTO launches (id, run_id, launched_by, at) VALUES (70, {}, 'eve', '2026-01-01 00:00:00.000000')",
    "freezes": "INSERT INTO freezes (id, target, run_id, start_day, end_day, from_at, until_at) VALUES (70, 'silver.readings', {}, "
    "'2000-01-01', '2030-01-01', '2026-01-01 00:00:00.000000', '2099-01-01 00:00:00.000000')",
    "accepted_versions": "INSERT INTO accepted_versions (id, target, chunk, run_id, accepted_at) VALUES (70, 'silver.readings', "
    "'2020-08', {}, '2026-01-01 00:00:00.000000')",
}


@pytest.mark.parametrize("run_id", STRANGE_IDS.values(), ids=STRANGE_IDS)
def test_rows_of_runs_that_nobody_has_planned_are_named(platform: Platform, run_id: str) -> None:
    for table, row in GHOSTS.items():
        by_hand(platform, row.format(run_id))
        assert f"ledger {table} 70" in places(platform)
        assert f"ledger {table} 70" in places(platform, "history")  # also by whoever asks about another run


def test_the_doctor_names_rows_of_runs_that_nobody_has_planned(platform: Platform) -> None:
    by_hand(platform, *(row.format("'ghost'") for row in GHOSTS.values()))
    found = {one.where for one in examine(platform) if one.kind == "changed-by-hand"}
    assert found == {f"ledger {table} 70" for table in GHOSTS}


@pytest.mark.parametrize("run_id", STRANGE_IDS.values(), ids=STRANGE_IDS)
def test_a_run_that_nobody_has_planned_is_named_whatever_its_id_is(platform: Platform, run_id: str) -> None:
    columns = "kind, mode, target, state, state_reason, requested_by, manifest, manifest_hash, plan, plan_hash, created_at, updated_at"
    by_hand(
        platform, f"INSERT INTO runs (run_id, {columns}) SELECT {run_id}, {columns} FROM runs WHERE run_id = 'waiting'"
    )
    assert any(place.startswith("ledger runs ") for place in places(platform))


def test_a_run_that_was_deleted_from_every_table_but_the_journal_is_one_finding(platform: Platform) -> None:
    tables = ("approvals", "transitions", "chunks", "verdicts", "attempts", "runs")
    by_hand(platform, *(f"DELETE FROM {table} WHERE run_id = 'waiting'" for table in tables))
    assert places(platform) == ["ledger runs waiting"]


def _supersede(platform: Platform) -> None:
    publish(platform, "waiting")


def _mend(platform: Platform) -> None:
    mend(platform)


@pytest.mark.parametrize("absorb", [_supersede, _mend])
@pytest.mark.parametrize(
    ("forged", "where"),
    [
        (FORGED_REVIEW, "ledger approvals 3"),
        (FORGED_TRANSITION, "ledger transitions"),
        (FORGED_TODAY, "ledger approvals 3"),
    ],
)
def test_a_forged_row_of_a_published_run_is_never_made_lawful(
    platform: Platform, forged: str, where: str, absorb: Callable[[Platform], None]
) -> None:
    by_hand(platform, forged)
    (before,) = places(platform)
    assert before.startswith(where)
    absorb(platform)
    assert places(platform) == [before]
    assert any(one.where == before for one in mend(platform)[1])
    records = [file.read_text() for file in platform.evidence.records("history").iterdir()]
    assert not any('"eve"' in text for text in records)


def test_what_was_not_forged_is_recorded_beside_what_was(platform: Platform) -> None:
    by_hand(platform, FORGED_REVIEW)
    publish(platform, "waiting")
    rollback(platform, "waiting")
    assert places(platform) == ["ledger approvals 3"]
    assert platform.ledger.run("history").state is RunState.PUBLISHED


def _more(**said: object) -> Callable[[Platform], None]:
    """Return what appends a link of its own, consistent with the chain."""

    def append(platform: Platform) -> None:
        chain = platform.evidence.chain
        chain.append(said, since=chain.length(), same=lambda _: False)

    return append


def _once_more(platform: Platform) -> None:
    (link, *_) = [link for link in platform.evidence.chain.read().links if link.content.get("record") == "publish"]
    _more(**{name: said for name, said in link.content.items() if name not in {"number", "previous", "hash"}})(platform)


@pytest.mark.parametrize(
    "append",
    [
        _more(event="told", run="history"),
        _more(event="anything", run=""),
        _more(event="told", run="history", record="told-9", recordHash="0", root="0", rows="0", at=""),
        _more(event="kept", run="history", record="diff", recordHash="0"),
        _more(event="ledger", run="", entry=1, entryHash="0", at=""),
        _more(event="sealed", run="history", bundle="bundle-1", root="0"),
        _more(event="sealed", run="history", bundle=["bundle"], root={"a": "0"}),
        _once_more,
    ],
)
def test_a_link_that_is_consistent_and_about_nothing_is_named(
    platform: Platform, append: Callable[[Platform], None]
) -> None:
    append(platform)
    last = platform.evidence.chain.length()
    named = {f"chain link {last}", "history/bundle-1", "history/records/told-9.json", "history/records/diff.json"}
    assert named & set(places(platform))
    examine(platform)


def test_a_record_that_says_something_else_beside_than_records_is_named(platform: Platform) -> None:
    file = platform.evidence.records("history") / "told-2.json"
    said = json.loads((file.parent / "publish.json").read_text())
    file.write_text(json.dumps(said | {"event": "told", "number": 2, "beside": 5}))
    told = {"root": said["evidence_root"], "rows": sha256_of(said["tables"]), "at": said["at"]}
    _more(event="told", run="history", record="told-2", recordHash=sha256_of_file(file), **told)(platform)
    assert "history/records/told-2.json" in places(platform)
    examine(platform)


def test_a_second_bundle_beside_the_real_one_is_named(platform: Platform) -> None:
    store = platform.evidence
    planted = store.folder / "history" / "bundle-1"
    shutil.copytree(store.path("history"), planted)
    file = planted / "approvals.json"
    file.chmod(0o644)
    file.write_text(file.read_text().replace("grace", "eve"))
    assert any(place.startswith("history/bundle-1") for place in places(platform))
    shutil.rmtree(planted)
    elsewhere = EvidenceStore(store.folder.parent / "elsewhere")
    elsewhere.seal("history", {"approvals.json": [{"decided_by": "eve"}]}, edition=1)
    shutil.copytree(elsewhere.path("history"), planted)
    assert places(platform) == ["history/bundle-1"]
    shutil.rmtree(planted)
    shutil.copytree(store.path("history"), planted)  # a second one that says the same
    assert places(platform) == ["history/bundle-1"]


@pytest.mark.parametrize("point", [None, "publishing.sealed"])
@pytest.mark.parametrize("name", ["bundle", "bundle-9"])
def test_no_run_is_published_with_a_bundle_that_was_planted(platform: Platform, name: str, point: str | None) -> None:
    store, elsewhere = platform.evidence, EvidenceStore(platform.evidence.folder.parent / "elsewhere")
    record = platform.ledger.run("waiting")
    elsewhere.seal("waiting", bundle_files(platform, record) | {"code.json": {"commit": "of the board"}})
    if point is not None:
        with killed_at(point):
            publish(platform, "waiting")
        shutil.rmtree(store.folder / "waiting" / name, ignore_errors=True)
    shutil.copytree(elsewhere.path("waiting"), store.folder / "waiting" / name)
    before = places(platform)
    assert f"waiting/{name}" in before
    with pytest.raises(PublicationRefused, match=f"no link of the chain vouches for {name} in"):
        publish(platform, "waiting")
    assert platform.ledger.run("waiting").state is RunState.VALIDATED
    assert places(platform) == before


@pytest.mark.parametrize("name", ["diff.json", "diff-7.json", "note.json"])
def test_a_record_that_was_planted_is_named(platform: Platform, name: str) -> None:
    (platform.evidence.records("history") / name).write_text('{"rows": 0}')
    assert places(platform) == [f"history/records/{name}"]


@pytest.mark.parametrize(
    ("name", "put"),
    [
        ("history/records/publish.json", put_pipe),
        ("history/records/publish.json", put_folder),
        ("history/records/note.json", put_link_to_nothing),
        ("history/bundle/runs.json", put_socket),
        ("history/bundle/run.json", put_pipe),
        ("history/bundle/index.json", put_link),
        ("history/bundle-7", put_pipe),
        ("_gc/records/x-done.json", put_pipe),
        ("_chain/00000004.json", put_pipe),
        ("_chain/00000004.json", put_folder),
        ("_chain/00000500.json", put_link_to_nothing),
    ],
)
def test_what_is_no_file_is_named_by_verify_and_doctor_and_nobody_waits_for_it(
    platform: Platform, name: str, put: Callable[[Path], None]
) -> None:
    place = platform.evidence.folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    put(place)
    with at_once():
        found = verify(platform, data=True)
        told = examine(platform)
    if name.startswith("_gc"):
        return  # of no run: looked into, and of no consequence
    where = f"chain {place.name}" if name.startswith("_chain") else name
    assert where in {one.where for one in found.everything}
    assert told or "/records/note" in name or "bundle-7" in name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("history/bundle/index.json", "[" * 100_000),
        ("history/bundle/run.json", '{"a":' * 800 + "1" + "}" * 800),
        ("history/records/superseded-9.json", "[" * 100_000),
        ("history/records/superseded-9.json", '{"number": true, "event": 1, "follows": 1, "rows": 1}'),
        ("history/records/superseded-9.json", '{"number": 9, "event": 1, "follows": "x", "rows": 1}'),
        ("history/records/superseded-9.json", '{"number": 9, "event": 1, "follows": 1, "rows": [1]}'),
        ("history/records/diff-5-5.json", "{}"),
        ("history/records/diff-\u0665.json", "{}"),
    ],
)
def test_a_file_that_says_what_none_of_ours_says_is_named(platform: Platform, name: str, text: str) -> None:
    place = platform.evidence.folder / name
    place.unlink(missing_ok=True)
    place.write_text(text)
    assert name in {one.where for one in verify(platform, data=True).everything}
    examine(platform)


def log_says(content: dict[str, Any], at: int) -> None:
    content["snapshot-log"][0]["timestamp-ms"] += at


def log_forgets(content: dict[str, Any]) -> None:
    content["snapshot-log"] = []


def log_names_another(content: dict[str, Any]) -> None:
    content["snapshot-log"].insert(0, {"snapshot-id": 12, "timestamp-ms": 1_000})


def log_ends_elsewhere(content: dict[str, Any]) -> None:
    content["snapshot-log"].append(content["snapshot-log"][0] | {"snapshot-id": 12})


def moved(content: dict[str, Any]) -> None:
    content["location"] += "-elsewhere"


def redirected(content: dict[str, Any], name: str) -> None:
    content["properties"][name] = "file:///tmp/elsewhere"


def unlocked(content: dict[str, Any]) -> None:
    content["properties"]["write.delete.isolation-level"] = "snapshot"


def laid_out_otherwise(content: dict[str, Any]) -> None:
    content["partition-specs"].append({"spec-id": 7, "fields": []})
    content["default-spec-id"] = 7


def fence_ages(content: dict[str, Any]) -> None:
    content["refs"]["before-history"] = content["refs"]["main"] | {"type": "tag", "max-ref-age-ms": 1}


def mark_ages(content: dict[str, Any]) -> None:
    number = content["snapshots"][0]["snapshot-id"]
    content["refs"][f"past-{number}"] = {"snapshot-id": number, "type": "tag", "max-ref-age-ms": 1}


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        (mark_ages, "ref past-"),
        (partial(log_says, at=-1), "snapshot log"),
        (partial(log_says, at=-3_600_000), "snapshot log"),
        (partial(log_says, at=3_600_000), "snapshot log"),
        (log_forgets, "snapshot log"),
        (log_names_another, "snapshot log 12"),
        (log_ends_elsewhere, "snapshot log"),
        (moved, "location"),
        (partial(redirected, name="write.data.path"), "property write.data.path"),
        (partial(redirected, name="write.metadata.path"), "property write.metadata.path"),
        (partial(redirected, name="write.object-storage.path"), "property write.object-storage.path"),
        (partial(redirected, name="write.py-location-provider.impl"), "property write.py-location-provider.impl"),
        (unlocked, "property write.delete.isolation-level"),
        (laid_out_otherwise, "default partition spec"),
        (fence_ages, "ref before-history max-ref-age-ms"),
    ],
)
def test_metadata_that_misleads_those_who_read_by_time_or_write_next_is_named(
    platform: Platform, edit: Callable[[dict[str, Any]], None], where: str
) -> None:
    table = platform.lakehouse.table(small_table.READINGS)
    file = Path(local_path(table.metadata_location))
    content = json.loads(file.read_bytes())
    edit(content)
    if "log" not in where:  # else in the file itself
        file = file.with_name(f"{int(file.name.partition('-')[0]) + 1:05}-{uuid4()}.metadata.json")
        small_table.closed(platform)
        catalog = platform.settings.home / "catalog.db"
        with closing(sqlite3.connect(catalog)) as connection:
            set_ = "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 'readings'"
            assert connection.execute(set_, (f"file://{file}",)).rowcount == 1
            connection.commit()
    file.write_text(json.dumps(content))
    found = [problem.where for problem in verify(platform, ["history"]).everything]
    assert any(one.startswith(f"{small_table.READINGS} {where}") for one in found)


def test_an_age_on_the_branch_of_a_candidate_is_named(platform: Platform) -> None:
    planned(platform, manifest("shadow", "SHADOW_SWAP", SCOPE))
    staged(platform, "shadow")
    prepare(platform, "shadow")
    assert places(platform) == []
    table = platform.lakehouse.table(small_table.READINGS)
    file = Path(local_path(table.metadata_location))
    content = json.loads(file.read_bytes())
    content["refs"]["candidate-shadow"]["max-ref-age-ms"] = 1
    file.write_text(json.dumps(content))
    assert f"{small_table.READINGS} ref candidate-shadow max-ref-age-ms" in places(platform, "shadow")


def test_a_tag_made_a_branch_and_a_branch_made_a_tag_are_named(platform: Platform) -> None:
    planned(platform, manifest("shadow", "SHADOW_SWAP", SCOPE))
    staged(platform, "shadow")
    prepare(platform, "shadow")
    planned(platform, manifest("versioned", "VERSIONED", SCOPE, version="v2", acceptance="LATER"))
    staged(platform, "versioned")
    publish(platform, "versioned")
    assert places(platform) == []
    file = Path(local_path(platform.lakehouse.table(small_table.READINGS).metadata_location))
    whole = file.read_text()
    others = {"branch": "tag", "tag": "branch"}
    for name in ("v2", "candidate-shadow", "candidate-versioned", "before-history", "before-versioned"):
        content = json.loads(whole)
        if name not in content["refs"]:
            content["refs"][name] = content["refs"]["main"] | {"type": "tag"}
        content["refs"][name]["type"] = others[content["refs"][name]["type"]]
        file.write_text(json.dumps(content))
        assert f"{small_table.READINGS} ref {name} type" in places(platform), name


def test_snapshots_that_lead_in_a_circle_are_named_and_nobody_goes_round(platform: Platform) -> None:
    table = platform.lakehouse.table(small_table.READINGS)
    file = Path(local_path(table.metadata_location))
    content = json.loads(file.read_bytes())
    content["snapshots"][0]["parent-snapshot-id"] = content["current-snapshot-id"]
    file.write_text(json.dumps(content))
    with at_once():
        assert any(place.startswith(f"{small_table.READINGS} snapshot ") for place in places(platform))
        examine(platform)
        publish(platform, "waiting")


def test_a_table_that_is_missing_from_the_ledger_is_a_finding(platform: Platform) -> None:
    with closing(sqlite3.connect(platform.settings.home / "ledger.db")) as connection:
        connection.execute("DROP TABLE policy_decisions")
        connection.commit()
    assert "ledger" in {problem.where for problem in verify(platform).everything}


def test_a_record_put_beside_a_bundle_is_vouched_for(platform: Platform) -> None:
    platform.evidence.append("waiting", "note", {"rows": 0})
    assert places(platform) == []


def test_heads_are_kept_elsewhere_and_verify_asks_for_them(kept: Path, tmp_path: Path) -> None:
    shutil.rmtree(kept)
    shutil.copytree(kept.with_name("kept"), kept)
    disk = tmp_path / "another-disk"
    disk.mkdir()
    with declared():
        platform = small_table.opened(kept, head_places=[str(disk), "/no/such/disk"])
        publish(platform, "waiting")  # a place that is down is in nobody's way
        decisions.review(platform, planned_only(platform), by="rita")
        done = verify(platform)
        assert done.everything == []
        assert [bool(one.trouble) for one in done.heads] == [False, True]
        assert len(done.heads[0].heads) == 2
        closed(platform)
        shutil.rmtree(kept)
        shutil.copytree(kept.with_name("kept"), kept)  # everything, rebuilt as it was before: consistent by itself
        older = small_table.opened(kept)
        assert verify(older).everything == []
        closed(older)
        told = small_table.opened(kept, head_places=[str(disk)])
        assert {problem.where for problem in verify(told).everything} == {f"head kept in {disk}"}
        closed(told)


@pytest.fixture
def asked(platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A folder on another disk and a git repository, named to the commands as places that keep the head."""
    disk, repository = tmp_path / "another-disk", tmp_path / "another-repository"
    for place in (disk, repository):
        place.mkdir()
    git(repository, "init", "--quiet")
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    monkeypatch.setenv("BACKFILL_HEAD_PLACES", json.dumps([str(disk), f"git:{repository}"]))
    return disk, repository


def head(*options: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["head", *options])
    return done.exit_code, done.stdout


def test_the_command_head_prints_the_head_and_keeps_it_elsewhere_when_it_is_asked_to(
    platform: Platform, asked: tuple[Path, Path]
) -> None:
    disk, repository = asked
    chain = platform.evidence.chain.read()
    name = f"{len(chain.links):08}-{chain.head}"
    none = "has no head: none was written, or somebody has removed them"
    first = f"link {len(chain.links)}: {chain.head}"
    assert head() == (0, f"{first}\n  {disk}: {none}\n  git:{repository}: {none}\n")
    assert (list(disk.iterdir()), git(repository, "tag")) == ([], ""), "it was only asked"
    newest = f"has heads up to link {len(chain.links)}"
    for _ in range(2):  # the same head once more changes nothing
        assert head("--publish") == (0, f"{first}\n  {disk}: {newest}\n  git:{repository}: {newest}\n")
    (file,) = disk.iterdir()
    assert (file.name, json.loads(file.read_text())["head"]) == (f"head-{name}.json", chain.head)
    assert git(repository, "tag") == f"backfill-head/{name}"
    code, said = head("--json")
    told = json.loads(said)
    assert (code, told["length"], told["head"], told["written"]) == (0, len(chain.links), chain.head, [])
    assert [(one["place"], one["newest"], one["trouble"]) for one in told["places"]] == [
        (str(disk), len(chain.links), None),
        (f"git:{repository}", len(chain.links), None),
    ]
    assert told["problems"] == []
    assert len(json.loads(head("--publish", "--json")[1])["written"]) == 2


def test_the_command_head_fails_where_the_chain_does_not_go_on_from_a_head_that_is_kept(
    platform: Platform, asked: tuple[Path, Path]
) -> None:
    disk, repository = asked
    assert head("--publish")[0] == 0
    chain = platform.evidence.chain.read()
    (platform.evidence.chain.folder / f"{len(chain.links):08}.json").unlink()
    code, said = head()
    assert code == 1
    wrong = f"link {len(chain.links)} of the chain is not the one it was (kept {chain.head}, found nothing)"
    assert [line.strip() for line in said.splitlines() if "is not the one" in line] == [
        f"head kept in {place}: {wrong}" for place in (disk, f"git:{repository}")
    ]
    assert len(json.loads(head("--json")[1])["problems"]) == 2


@pytest.mark.parametrize("option", [(), ("--publish",), ("--json",), ("--publish", "--json")])
def test_the_command_head_fails_where_a_place_is_down_and_the_other_one_has_it_all_the_same(
    platform: Platform, asked: tuple[Path, Path], option: tuple[str, ...]
) -> None:
    disk, repository = asked
    disk.rmdir()
    code, said = head(*option)
    assert (code, said.count("cannot be asked")) == (1, 1)
    assert ("there is no folder" in said) == ("--publish" in option)
    assert (git(repository, "tag") != "") == ("--publish" in option)


def test_an_address_only_takes_heads_which_is_no_failure_of_the_command_head(
    asked: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, _ = asked
    monkeypatch.setenv("BACKFILL_HEAD_PLACES", json.dumps([str(disk), "https://heads.example/?token=secret"]))
    code, said = head()
    assert code == 0
    assert "https://heads.example: cannot be asked: it only takes heads" in said
    assert "secret" not in said


def planned_only(platform: Platform) -> str:
    return plan_run(platform, manifest("next", "REPLACE_PARTITIONS", SCOPE)).run_id


def test_every_kind_of_forged_record_is_found_and_named(tmp_path: Path) -> None:
    with installation(tmp_path) as changed:
        outcome = Outcome()
        forge_records(changed, Copies(changed, tmp_path), len(FORGED_RECORDS), 16, outcome)
        assert (outcome.unnoticed, outcome.unnamed) == ([], [])
        assert verify(changed).everything == []  # each was put back


def test_a_link_that_repeats_another_is_named_whatever_it_is_about(tmp_path: Path) -> None:
    with installation(tmp_path) as changed:
        copies = Copies(changed, tmp_path)
        links = {link.content["event"]: link for link in changed.evidence.chain.read().links}
        assert links.keys() == {"ledger", "sealed", "publish", "superseded", "rollback", "restored"}
        for link in links.values():  # the last one of each event
            said = {name: value for name, value in link.content.items() if name not in {"number", "previous", "hash"}}
            repeated = changed.evidence.chain.append(said, since=changed.evidence.chain.length(), same=lambda _: False)
            assert f"chain link {repeated.number}" in places(changed)
            copies.put_back()


@pytest.mark.parametrize("run_id", ["nobody-planned-it", "", ".", "_chain", "gc", "./history", "x" * 300])
def test_a_link_about_a_bundle_of_no_run_is_named(platform: Platform, run_id: str) -> None:
    chain = platform.evidence.chain
    (sealed,) = (link.content for link in chain.read().links if link.content["event"] == SEALED)
    said = {name: value for name, value in sealed.items() if name not in {"number", "previous", "hash"}}
    link = chain.append(said | {"run": run_id}, since=chain.length(), same=lambda _: False)
    assert f"chain link {link.number}" in places(platform)


@pytest.mark.parametrize("record", ["./publish", "../records/publish", "", "x" * 300, ["publish"], 5, None])
@pytest.mark.parametrize("event", ["kept", "publish"])
def test_a_link_about_a_record_of_no_name_is_named(platform: Platform, event: str, record: object) -> None:
    chain = platform.evidence.chain
    (published,) = (link.content for link in chain.read().links if link.content["event"] == "publish")
    said = {name: value for name, value in published.items() if name not in {"number", "previous", "hash"}}
    if event == "kept":
        said = {name: said[name] for name in ("run", "recordHash")}
    link = chain.append(said | {"event": event, "record": record}, since=chain.length(), same=lambda _: False)
    assert f"chain link {link.number}" in places(platform)


# --- what lies in the evidence folder ---------------------------------------------------------------------------------


@contextmanager
def killed_when(place: str) -> Iterator[None]:
    """Kill a process, as it were, that is about to give a file or a folder of a bundle its name."""
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if re.fullmatch(place, path.name):
            raise Killed
        return real(path, target)

    with mock.patch.object(Path, "rename", rename), pytest.raises(Killed):
        yield


@pytest.mark.parametrize("place", [r"bundle\.partial-.*", r"plan\.json\.partial", r"index\.json\.partial"])
def test_a_process_that_ends_while_it_seals_a_bundle_is_no_alarm(platform: Platform, place: str) -> None:
    with killed_when(place):
        publish(platform, "waiting")
    done = verify(platform, data=True)
    assert done.everything == []
    (left,) = (note for run in done.runs for note in run.notes if "while it sealed a bundle" in note)
    assert left.startswith("waiting/bundle.partial-")
    publish(platform, "waiting")
    assert verify(platform, data=True).everything == []


def _told_only(bundle: Path) -> None:
    hidden = bundle.with_name("bundle.partial-1")
    hidden.mkdir()
    shutil.copy(bundle / "index.json", hidden)
    shutil.rmtree(bundle)


def _as_begun(bundle: Path) -> None:
    hidden = bundle.with_name(f"bundle.partial-{'0' * 32}")
    bundle.rename(hidden)


def _as_begun_without_a_file(bundle: Path) -> None:
    _as_begun(bundle)
    (bundle.with_name(f"bundle.partial-{'0' * 32}") / "approvals.json").unlink()


@pytest.mark.parametrize("hide", [_told_only, _as_begun, _as_begun_without_a_file])
def test_a_bundle_of_a_published_run_is_missed_whatever_lies_there_instead(
    platform: Platform, hide: Callable[[Path], None]
) -> None:
    hide(platform.evidence.path("history"))
    assert "history/bundle" in places(platform)


@pytest.mark.parametrize("hide", [_told_only, _as_begun, _as_begun_without_a_file])
@pytest.mark.parametrize("point", ["publishing.sealed", "publishing.tagged"])
def test_a_sealed_bundle_of_a_run_that_is_not_published_is_missed(
    platform: Platform, point: str, hide: Callable[[Path], None]
) -> None:
    with killed_at(point):
        publish(platform, "waiting")
    hide(platform.evidence.path("waiting"))
    if point == "publishing.sealed" and hide is _as_begun:  # as its process left it a moment before: nothing is lost
        assert places(platform) == []
    else:
        assert "waiting/bundle" in places(platform)


@pytest.mark.parametrize("hide", [_told_only, _as_begun, _as_begun_without_a_file])
def test_a_sealed_bundle_of_a_candidate_is_missed(platform: Platform, hide: Callable[[Path], None]) -> None:
    planned(platform, manifest("shadow", "SHADOW_SWAP", SCOPE))
    staged(platform, "shadow")
    prepare(platform, "shadow")
    assert places(platform) == []
    hide(platform.evidence.path("shadow"))
    assert "shadow/bundle" in places(platform)


PLANTED = [
    "approved-by-the-board.html",
    "history/approved-by-the-board.html",
    "history/bundle-x/approvals.json",
    "history/bundle.partial-1/approvals.json",
    f"history/bundle.partial-{'0' * 32}/deep/approvals.json",
    "history/records/approval.txt",
    "history/records/deep/publish.json",
    "history/records/.partial-1",
    "history/.report.html.partial",
    "only-planned/records/approval.txt",
    "nobody/records/diff.json",
    "gc/approved.html",
    "lost+found/approval.json",
    "lost+found",
    "gc/records/approved.txt",
]


@pytest.mark.parametrize("name", PLANTED)
def test_a_file_that_nobody_of_this_project_has_put_there_is_named(platform: Platform, name: str) -> None:
    plan_run(platform, manifest("only-planned", "REPLACE_PARTITIONS", SCOPE))
    assert places(platform) == []
    file = platform.evidence.folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("approved")
    (problem,) = verify(platform).everything
    assert problem.where == name
    assert problem.what.startswith("was not put there by this project")
    assert problem.found == "8 bytes"


def test_links_and_pipes_in_the_evidence_folder_are_named_and_not_opened(platform: Platform) -> None:
    folder = platform.evidence.folder / "history"
    (folder / "elsewhere").symlink_to("/etc", target_is_directory=True)
    (folder / "records" / "approval.txt").symlink_to("/no/such/file")
    os.mkfifo(folder / "pipe")
    assert sorted(places(platform)) == ["history/elsewhere", "history/pipe", "history/records/approval.txt"]


@pytest.mark.parametrize("put", [put_pipe, put_link_to_nothing, Path.touch])
@pytest.mark.parametrize("name", ["waiting", "waiting/records"])
def test_what_is_no_folder_refuses_a_publication_before_it_commits(
    platform: Platform, name: str, put: Callable[[Path], None]
) -> None:
    place = platform.evidence.folder / name
    place.parent.mkdir(exist_ok=True)
    put(place)
    with at_once():
        assert name in places(platform)
        with pytest.raises(EnvironmentRefused, match=f"{name} is a .*, not a folder"):
            publish(platform, "waiting")
    assert platform.ledger.run("waiting").state is RunState.VALIDATED
    assert platform.ledger.publications("waiting") == []
    place.unlink()
    publish(platform, "waiting")
    assert places(platform) == []


def test_a_link_that_leads_to_itself_is_named_and_followed_by_nobody(platform: Platform) -> None:
    plan_run(platform, manifest("only-planned", "REPLACE_PARTITIONS", SCOPE))
    (platform.evidence.folder / "only-planned").symlink_to("only-planned")
    (platform.evidence.folder / "history" / "again").symlink_to("again")
    assert sorted(places(platform)) == ["history/again", "only-planned"]
    examine(platform)


def test_a_folder_or_a_pipe_under_the_name_of_a_link_that_is_being_written_is_named(platform: Platform) -> None:
    folder = platform.evidence.chain.folder
    (folder / f".partial-{'0' * 32}").mkdir()
    (folder / f".partial-{'0' * 32}" / "approval.json").write_text("approved")
    os.mkfifo(folder / f".partial-{'1' * 32}")
    assert places(platform) == [f"chain .partial-{'0' * 32}", f"chain .partial-{'1' * 32}"]


def test_what_interrupted_writes_leave_in_the_evidence_folder_is_no_alarm(platform: Platform) -> None:
    folder = platform.evidence.folder
    left = [
        f"history/bundle-1.partial-{'0' * 32}/plan.json",
        f"history/bundle-1.partial-{'0' * 32}/chunks.json.partial",
        f"history/records/.partial-{'a' * 32}",
        f"_chain/.partial-{'b' * 32}",
        "history/.report.html.ab_c1234.partial",
        "history/report.html",
    ]
    for name in left:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("half of")
    (folder / "lost+found").mkdir()
    (folder / "waiting" / "records").mkdir(parents=True)
    assert places(platform) == []


# --- records that nobody vouches for ----------------------------------------------------------------------------------


def _lie(platform: Platform) -> dict[str, Any]:
    """Return a diff of the run that waits, with the right id, that says that nothing changes."""
    said: dict[str, Any] = plain(diff_here(platform, "waiting"))
    return said | {"changed": 0, "unchanged": 12345, "sample": [], "largest": [], "made_by": "grace"}


@pytest.mark.parametrize("name", ["diff", "diff-7", "note", "publish"])
def test_a_planted_record_refuses_the_publication_of_its_run(platform: Platform, name: str) -> None:
    file = platform.evidence.records("waiting") / f"{name}.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(_lie(platform)))
    with pytest.raises(PublicationRefused, match=rf"no link of the chain vouches for {name}\.json") as refused:
        publish(platform, "waiting")
    assert "move anything else out of the folder" in refused.value.problems[0].fix
    assert platform.ledger.run("waiting").state is RunState.VALIDATED
    assert platform.evidence.bundles("waiting") == []
    assert places(platform) == [f"waiting/records/{name}.json"]
    assert "12345" not in report(platform, "waiting")
    assert recorded_diff(platform, "waiting") is None
    file.unlink()
    publish(platform, "waiting")
    assert places(platform) == []


def test_a_diff_that_was_planted_after_the_publication_is_not_kept_in_place_of_the_real_one(platform: Platform) -> None:
    lie = _lie(platform)
    publish(platform, "waiting")
    file = platform.evidence.records("waiting") / "diff.json"
    file.write_text(json.dumps(lie))
    rollback(platform, "waiting")
    assert places(platform) == ["waiting/records/diff.json"]
    with pytest.raises(InputRefused, match="no link vouches for it"):
        keep_diff(platform, "waiting")
    assert "12345" not in report(platform, "waiting")
    file.unlink()
    assert keep_diff(platform, "waiting") is not None
    assert places(platform) == []


def test_a_diff_whose_process_ended_before_its_link_gets_it_from_the_next(platform: Platform) -> None:
    with small_table.here():
        with mock.patch.object(EvidenceStore, "vouch_for", side_effect=Killed), pytest.raises(Killed):
            diff_run(platform, "waiting", sample=2)
        assert places(platform) == ["waiting/records/diff.json"]
        with pytest.raises(PublicationRefused, match="`backfill diff waiting` completes it"):
            publish(platform, "waiting")
        made, recorded = diff_run(platform, "waiting").diff, recorded_diff(platform, "waiting")
        assert recorded is not None
        assert recorded == replace(made, made_at=recorded.made_at)
        assert not diff_run(platform, "waiting").new
    assert [file.name for file in platform.evidence.records("waiting").iterdir()] == ["diff.json"]
    publish(platform, "waiting")
    assert (platform.evidence.path("waiting") / "diff.json").is_file()
    assert places(platform) == []


def test_the_record_of_a_diffs_table_whose_process_ended_before_its_link_gets_it_with_table(platform: Platform) -> None:
    real = EvidenceStore.vouch_for

    def vouch_for(store: EvidenceStore, run_id: str, file: Path, **since: int) -> None:
        if file.stem == diff.TABLE_RECORD:
            raise Killed
        real(store, run_id, file, **since)

    with small_table.here():
        with mock.patch.object(EvidenceStore, "vouch_for", vouch_for), pytest.raises(Killed):
            diff_run(platform, "waiting", table=True)
        with pytest.raises(PublicationRefused, match="with --table the record of its table"):
            publish(platform, "waiting")
        diff_run(platform, "waiting", table=True)
    publish(platform, "waiting")
    assert places(platform) == []


def test_a_record_by_which_a_run_of_an_earlier_version_comes_under_the_chain_is_completed(platform: Platform) -> None:
    with (
        mock.patch.object(publication, "bundle_files", return_value={"plan.json": {"any": "plan"}, "chunks.json": []}),
        mock.patch.object(announcements, "tell"),
        mock.patch.object(announcements, "catch_up"),
    ):
        publish(platform, "waiting")  # as a version did that sealed no rows
    with killed_at("recording.written"):
        rollback(platform, "waiting")
    assert mend(platform)[1] == []
    assert ("adopted", "rollback") in {
        (one.get("event"), one.get("record")) for one in platform.evidence.chain.contents()
    }
    assert places(platform) == []


def test_a_run_that_came_under_the_chain_and_was_rolled_back_before_its_link_is_completed(platform: Platform) -> None:
    with (
        mock.patch.object(publication, "bundle_files", return_value={"plan.json": {"any": "plan"}, "chunks.json": []}),
        mock.patch.object(announcements, "tell"),
        mock.patch.object(announcements, "catch_up"),
    ):
        publish(platform, "waiting")  # as a version did that sealed no rows
    with killed_at("recording.written"):
        catch_up(platform, "waiting", MOVED, {"completedBy": "doctor"})
    assert [file.name for file in platform.evidence.records("waiting").iterdir()] == ["adopted-1.json"]
    rollback(platform, "waiting")
    assert places(platform) == []


def test_whoever_seals_later_than_another_and_other_rows_leaves_what_its_link_is_about(platform: Platform) -> None:
    real, record = Path.rename, platform.ledger.run("waiting")

    def rename(path: Path, target: Path) -> Path:
        if path.name.startswith("bundle.partial-") and not target.exists():
            with mock.patch.object(Path, "rename", real):  # it sleeps: a run is stopped and resumed, another seals
                platform.ledger.stops.stop("waiting", by="olga", through="backfill stop")
                platform.ledger.stops.launched("waiting", by="olga")
                platform.evidence.seal("waiting", publication.bundle_files(platform, record))
        return real(path, target)

    with mock.patch.object(Path, "rename", rename):
        root = platform.evidence.seal("waiting", publication.bundle_files(platform, record))
    assert root == platform.evidence.verify("waiting")
    assert len(list((platform.evidence.folder / "waiting").glob("bundle.partial-*"))) == 1
    publish(platform, "waiting")
    assert places(platform) == []


def _unvouched(platform: Platform) -> dict[str, dict[str, Any]]:
    """Return records of the published run that say that they are the next one, by name."""
    records = platform.evidence.records("history")
    published = json.loads((records / "publish.json").read_text())
    facts = {"action", "snapshot_id", "base_snapshot_id", "files_added", "files_removed", "committed"}
    told = {name: said for name, said in published.items() if name not in facts}
    nothing = told | {"event": "told", "action": "publish", "number": 2, "rows": {}, "follows": 0}
    board = {"runs": {"history": {"state_reason": "approved by the board"}}}
    gates = {"approvals": {"99": {"id": 99, "run_id": "history", "decision": "REVIEWED", "decided_by": "eve"}}}
    return {
        "told-2": nothing,
        "told-9": {"number": 9, "event": "told", "follows": 0, "rows": {}, "action": "approved by the board"},
        "moved-2": nothing | {"event": "moved", "rows": board},
        "superseded-2": nothing | {"event": "superseded", "by": "eve", "rows": gates},
        "rollback": published | {"number": 2, "event": "rollback", "action": "rollback", "rows": {}},
        "publish-2": published | {"number": 2, "rows": {}, "files_added": 99},
        "told-4": nothing | {"rows": [], "tables": {"runs": []}},
        "told-5": nothing | {"rows": {"runs": {"history": {"state": float("nan")}}}},
    }


@pytest.mark.parametrize("absorb", [_supersede, _mend])
@pytest.mark.parametrize(
    "name", ["told-2", "told-9", "moved-2", "superseded-2", "rollback", "publish-2", "told-4", "told-5", "note"]
)
def test_a_planted_record_is_never_made_lawful(
    platform: Platform, name: str, absorb: Callable[[Platform], None]
) -> None:
    said = _unvouched(platform).get(name, {"approved": "by the board"})
    (platform.evidence.records("history") / f"{name}.json").write_text(json.dumps(said))
    where = f"history/records/{name}.json"
    assert where in places(platform)
    absorb(platform)
    linked = {(one.get("run"), one.get("record")) for one in platform.evidence.chain.contents()}
    assert ("history", name) not in linked
    assert where in places(platform)
    if name != "note":
        assert ("record-planted", "history") in {(one.kind, one.where) for one in mend(platform)[1]}
    (platform.evidence.records("history") / f"{name}.json").unlink()
    mend(platform)  # what could not be recorded under a name that was taken is made up for
    assert places(platform) == []


@pytest.mark.parametrize("lie", ["left out", "nothing", "another list", "another parent", "twice", "no text"])
def test_a_planted_record_of_a_publication_that_was_interrupted_is_not_taken_over(platform: Platform, lie: str) -> None:
    with killed_at("recording.written"):
        publish(platform, "waiting")
    file = platform.evidence.records("waiting") / "publish.json"
    said = json.loads(file.read_text())
    (facts,) = said["committed"]
    said["committed"] = {
        "left out": None,
        "nothing": [],
        "another list": [facts | {"manifestList": facts["manifestList"] | {"sha256": "0" * 64}}],
        "another parent": [facts | {"parentId": 12}],
        "twice": [facts, facts],
        "no text": [facts],
    }[lie]
    if lie == "no text":
        said["why"] = ["the board"]
    if lie == "left out":
        del said["committed"]
    honest = file.read_bytes()
    file.unlink()
    file.write_text(json.dumps(said))
    mend(platform)
    assert "waiting/records/publish.json" in places(platform)
    assert ("waiting", "publish") not in {
        (one.get("run"), one.get("record")) for one in platform.evidence.chain.contents()
    }
    file.unlink()
    file.write_bytes(honest)
    mend(platform)
    assert places(platform) == []


def test_records_beside_a_planted_one_go_on(platform: Platform) -> None:
    (platform.evidence.records("history") / "told-9.json").write_text(json.dumps(_unvouched(platform)["told-9"]))
    publish(platform, "waiting")
    rollback(platform, "waiting")
    events = [str(one.get("event")) for one in platform.evidence.chain.contents() if one.get("run") == "history"]
    assert events[-2:] == ["superseded", "restored"]
    assert places(platform) == ["history/records/told-9.json"]


def test_the_real_record_that_has_no_link_yet_is_completed_beside_a_planted_one(platform: Platform) -> None:
    with killed_at("recording.written"):
        publish(platform, "waiting")
    (platform.evidence.records("waiting") / "told-9.json").write_text(json.dumps(_unvouched(platform)["told-9"]))
    mend(platform)
    assert places(platform) == ["waiting/records/told-9.json"]


class Behind(datetime):
    """The clock of a machine that is five seconds behind."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.now(tz) - timedelta(seconds=5)


def test_a_candidate_may_be_shown_by_a_machine_whose_clock_is_behind(platform: Platform) -> None:
    planned(platform, manifest("swapped", "SHADOW_SWAP", SCOPE))
    assert staged(platform, "swapped").state is RunState.VALIDATED
    with mock.patch.object(update, "datetime", Behind):
        publish(platform, "swapped")
    log = platform.lakehouse.table(small_table.READINGS).metadata.snapshot_log
    made = platform.lakehouse.table(small_table.READINGS).snapshot_by_id(log[-1].snapshot_id)
    assert made is not None
    assert log[-1].timestamp_ms < made.timestamp_ms
    assert places(platform) == []


def test_what_is_decided_beside_a_publication_is_no_change_by_hand(tmp_path: Path, postgres_server: Postgres) -> None:
    url, real = postgres_server.database(), Moment.unexplained

    def beside(*arguments: Any) -> Any:
        platform.ledger.stops.stop("waiting", by="olga", through="backfill stop")
        return real(*arguments)

    with declared():
        platform = small_table.opened(tmp_path / "home", ledger_url=url)
        small_table.initialise(platform)
        planned(platform, manifest("waiting", "REPLACE_PARTITIONS", SCOPE))
        assert staged(platform, "waiting").state is RunState.VALIDATED
        refused = pytest.raises(PublicationRefused, match="was stopped by olga")
        with mock.patch.object(Moment, "unexplained", beside), refused:
            publish(platform, "waiting")
        closed(platform)
    postgres_server.drop(url)


def _entered(said: Mapping[str, Any] | str, run_id: str = "history") -> Callable[[Platform], None]:
    """Add an entry to the journal by hand, with a number, the hash of the one before it and its own."""

    def enter(platform: Platform) -> None:
        with closing(sqlite3.connect(platform.settings.home / "ledger.db")) as connection:
            number, before = connection.execute(
                "SELECT number, hash FROM journal ORDER BY number DESC LIMIT 1"
            ).fetchone()
            always = {"number": number + 1, "previous": before, "run": run_id, "at": "2020-01-01T00:00:00+00:00"}
            text = said if isinstance(said, str) else json.dumps(always | {"follows": 0, "rows": {}} | dict(said))
            own = hashlib.sha256(text.encode()).hexdigest()
            connection.execute("INSERT INTO journal VALUES (?, ?, ?, ?)", (number + 1, run_id, own, text))
            connection.commit()

    return enter


def _of_runs(**said: Any) -> dict[str, Any]:
    return {"rows": {"runs": {"columns": ["state"], "rows": {"history": [None, "0"]}} | said}}


ODD_ENTRIES = pytest.mark.parametrize(
    "said",
    [
        {"rows": [1]},
        {"rows": {"runs": 5}},
        {"rows": {"runs": {}}},
        {"rows": {"nothing": {"columns": [], "rows": {}}}},
        _of_runs(columns=5),
        _of_runs(columns=[["state"]]),
        _of_runs(rows=[1]),
        _of_runs(rows={"history": 5}),
        _of_runs(rows={"history": [None, "0", "1"]}),
        _of_runs(rows={"history": [[1], {"a": 2}]}),
        {"follows": "x"},
        {"follows": None},
        {"at": None},
        "{",
        "[" * 5000,
    ],
    ids=lambda said: str(said)[:60],
)


@ODD_ENTRIES
def test_an_entry_of_the_journal_that_says_what_no_transaction_writes_is_named(
    platform: Platform, said: Mapping[str, Any] | str
) -> None:
    _entered(said)(platform)
    with platform.ledger.engine.connect() as connection:
        where = f"ledger journal {journal.newest(connection)}"
    length = platform.evidence.chain.length()
    assert where in places(platform)
    _, left = mend(platform)
    assert ("journal-damaged", where) in {(one.kind, one.where) for one in left}
    assert platform.evidence.chain.length() == length, "a link vouches for it"
    with pytest.raises(PublicationRefused, match=where):
        publish(platform, "waiting")


@pytest.mark.parametrize("said", [{"rows": {"runs": 5}}, _of_runs(columns=5), _of_runs(rows={"history": 5})], ids=str)
def test_an_odd_entry_about_another_run_stops_no_rollback(platform: Platform, said: Mapping[str, Any]) -> None:
    publish(platform, "waiting")
    _entered(said)(platform)
    rollback(platform, "waiting")
    assert platform.ledger.run("waiting").state is RunState.ROLLED_BACK


@pytest.mark.parametrize("change", ["number = 'abc'", "number = x'ff'", "hash = x'ff'"])
def test_nothing_is_written_past_an_entry_that_has_no_number_or_hash(platform: Platform, change: str) -> None:
    by_hand(platform, f"UPDATE journal SET {change} WHERE number = (SELECT max(number) FROM journal)")
    with pytest.raises(EnvironmentRefused, match="newest entry of the ledger's journal"):
        rollback(platform, "history")
    assert platform.ledger.run("history").state is RunState.PUBLISHED
    assert any(place.startswith("ledger journal") for place in places(platform))
    assert "journal-damaged" in {one.kind for one in mend(platform)[1]}


def _recorded(platform: Platform, name: str = "told-2", **said: Any) -> str:
    """Put a record of `history` beside those that it has, with a consistent link; return the place of it."""
    store, follows = platform.evidence, platform.evidence.chain.length()
    published = json.loads((store.records("history") / "publish.json").read_text())
    told = {key: value for key, value in published.items() if key not in {"action", "committed"}}
    told |= {"event": "told", "number": 2, "follows": follows, "rows": {"sink_attempts": {}}} | said
    raw = json.dumps(told).encode()
    (store.records("history") / f"{name}.json").write_bytes(raw)
    link = {"event": told["event"], "run": "history", "record": name, "recordHash": hashlib.sha256(raw).hexdigest()}
    link |= {"root": told["evidence_root"], "rows": sha256_of(told["tables"]), "at": told["at"]}
    store.chain.append(link, since=follows, same=lambda _: False)
    return f"history/records/{name}.json"


ODD_RECORDS = [
    {"rows": [1]},
    {"rows": {"transitions": 5}},
    {"rows": {"transitions": {"9999": {"id": "x"}}}},
    {"rows": {"chunks": {"2020-01": {"files": 5}}}},
    {"rows": {"runs": {"history": {"plan": 5}}}},
    {"rows": {"approvals": {"1": {"decision": [1]}}}},
    {"rows": {"nothing": {"1": {"a": 1}}}},
    {"tables": 5},
    {"beside": {"diff": [1]}},
    {"committed": 5},
    {"event": "approved"},
    {"at": 5},
    {"run_id": "waiting"},
    {"number": -1},
    {"number": 1},
    {"number": 7},
]


@pytest.mark.parametrize("said", ODD_RECORDS, ids=str)
def test_a_linked_record_that_none_of_ours_is_like_is_named_and_nothing_goes_on_from_it(
    platform: Platform, said: Mapping[str, Any]
) -> None:
    where = _recorded(platform, **said)
    found = {problem.where: problem.what for problem in verify(platform).everything}
    assert where in found
    assert not any("not everything" in what for what in found.values())
    assert ("record-damaged", "history record told-2") in {(one.kind, one.where) for one in mend(platform)[1]}
    assert where in report(platform, "history")
    with pytest.raises(EnvironmentRefused, match=r"told-2\.json"):
        rollback(platform, "history")
    assert platform.ledger.run("history").state is RunState.PUBLISHED


@pytest.mark.parametrize("said", [{"rows": [1]}, {"tables": 5}, {"number": -1}], ids=str)
def test_an_odd_record_of_another_run_stops_no_rollback(platform: Platform, said: Mapping[str, Any]) -> None:
    publish(platform, "waiting")
    where = _recorded(platform, "told-9", **{"number": 3} | said)
    rollback(platform, "waiting")
    assert platform.ledger.run("waiting").state is RunState.ROLLED_BACK
    assert where in places(platform)


@pytest.mark.parametrize(
    "change",
    [
        "state = 'zzz'",
        "created_at = 'zzz'",
        "created_at = 5",
        "manifest = x'ff'",
        "target = x'ff'",
        "requested_by = CAST(x'ff41' AS TEXT)",
    ],
)
def test_the_doctor_names_a_run_that_cannot_be_read_and_looks_on(platform: Platform, change: str) -> None:
    by_hand(
        platform,
        f"UPDATE runs SET {change} WHERE run_id = 'waiting'",
        "UPDATE transitions SET actor = 'eve' WHERE run_id = 'history' AND to_state = 'PLANNED'",
    )
    found = {(one.kind, one.where) for one in examine(platform)}
    named = {where for kind, where in found if kind == "changed-by-hand"}
    assert any(where.startswith("ledger runs waiting") for where in named), found
    assert any(where.startswith("ledger transitions ") for where in named), found
    with pytest.raises(EnvironmentRefused, match="ledger runs waiting has cells that cannot be read"):
        report(platform, "waiting")
    assert any(place.startswith("ledger runs waiting") for place in places(platform))


@pytest.mark.parametrize("cell", ["'zzz'", "x'ff'", "5"])
def test_the_doctor_names_a_lease_that_cannot_be_read(platform: Platform, cell: str) -> None:
    by_hand(platform, f"UPDATE leases SET ended_at = NULL, expires_at = {cell} WHERE id = (SELECT max(id) FROM leases)")
    assert [one.kind for one in examine(platform)] == ["lease-damaged"]


def test_a_report_names_a_link_of_no_form_among_what_is_damaged(platform: Platform) -> None:
    _more(run="history", rows="0")(platform)
    assert f"_chain/{platform.evidence.chain.length():08}.json" in report(platform, "history")


# --- links that are well formed and about what no event has made ------------------------------------------------------


def _edited(platform: Platform, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the newest snapshot in the metadata file that the catalog names."""
    file = Path(local_path(platform.lakehouse.table(small_table.READINGS).metadata_location))
    said = json.loads(file.read_bytes())
    change(next(one for one in said["snapshots"] if one["snapshot-id"] == said["current-snapshot-id"]))
    file.unlink()
    file.write_text(json.dumps(said))


def _another_count(snapshot: dict[str, Any]) -> None:
    snapshot["summary"]["added-records"] = "999999"


@pytest.mark.parametrize("name", ["publish", "rollback", "publish-7", "superseded-3"])
def test_no_run_is_published_beside_a_kept_record_under_the_name_of_a_change(platform: Platform, name: str) -> None:
    file = platform.evidence.append("waiting", name, {"rows": 0})
    link = f"chain link {platform.evidence.chain.length()}"
    assert sorted(places(platform)) == [link, f"waiting/records/{name}.json"]
    with pytest.raises(PublicationRefused, match=rf"no link of the chain vouches for {name}\.json"):
        publish(platform, "waiting")
    assert platform.ledger.run("waiting").state is RunState.VALIDATED
    file.unlink()
    publish(platform, "waiting")
    assert places(platform) == [link]
    (told,) = [one.content for one in records.records_of(platform, "waiting") if one.content.get("action") == "publish"]
    assert told["committed"]
    _edited(platform, _another_count)
    assert any("added-records" in place for place in places(platform))


@pytest.mark.parametrize(
    ("run_id", "name", "change"),
    [("history", "superseded-2", publish), ("waiting", "rollback", rollback)],
)
def test_a_kept_record_under_the_name_of_the_next_one_is_moved_out_and_the_run_goes_on(
    platform: Platform, run_id: str, name: str, change: Callable[[Platform, str], object]
) -> None:
    if change is rollback:
        publish(platform, "waiting")
    file = platform.evidence.append(run_id, name, {"rows": 0})
    link = f"chain link {platform.evidence.chain.length()}"
    if change is rollback:
        with pytest.raises(PublicationRefused, match=f"{name}.json is there"):
            rollback(platform, "waiting")
    else:
        publish(platform, "waiting")
    assert f"{run_id}/records/{name}.json" in places(platform)
    file.unlink()
    mend(platform)
    assert places(platform) == [link]
    if change is publish:
        rollback(platform, "waiting")
    assert platform.ledger.run("waiting").state is RunState.ROLLED_BACK
    rollback(platform, "history")
    assert places(platform) == [link]


def test_a_publication_that_no_record_tells_of_is_named_and_made_up_for(platform: Platform) -> None:
    with killed_at("publishing.recorded"):
        publish(platform, "waiting")
    for run_id in ("waiting", "history"):
        catch_up(platform, run_id, MOVED, {"completedBy": "doctor"})  # as an event of another run does
    (entry,) = platform.ledger.publications("waiting")
    assert places(platform) == [f"ledger publications {entry.id}"]
    assert ("evidence-not-told", "waiting") in {(one.kind, one.where) for one in examine(platform)}
    mend(platform)
    assert places(platform) == []
    _edited(platform, _another_count)
    assert any("added-records" in place for place in places(platform))


def test_a_rollback_records_the_publication_before_it_that_was_not_told(platform: Platform) -> None:
    with killed_at("publishing.recorded"):
        publish(platform, "waiting")
    rollback(platform, "waiting")
    assert places(platform) == []
    told = [one.content.get("action") for one in records.records_of(platform, "waiting") if one.number]
    assert told[:2] == ["publish", "rollback"]


def _vouched_by_a_kept_link(platform: Platform, name: str) -> Path:
    """Put a record that says it changes rows beside those of `history`, with a link as of one that changes none."""
    store = platform.evidence
    file = store.records("history") / f"{name}.json"
    file.write_text(json.dumps(_unvouched(platform)["told-2"] | {"rows": {"sink_attempts": {}}}))
    said = {"event": "kept", "run": "history", "record": name, "recordHash": sha256_of_file(file)}
    store.chain.append(said, since=store.chain.length(), same=lambda _: False)
    return file


@pytest.mark.parametrize("name", ["told-2", "note"])
def test_a_kept_link_vouches_for_no_record_that_changes_rows_and_nothing_honest_is_called_damaged(
    platform: Platform, name: str
) -> None:
    _vouched_by_a_kept_link(platform, name)
    forged = sorted([f"chain link {platform.evidence.chain.length()}", f"history/records/{name}.json"])
    assert sorted(places(platform)) == forged
    assert ("record-planted", "history") in {(one.kind, one.where) for one in examine(platform)}
    publish(platform, "waiting")
    rollback(platform, "waiting")
    assert sorted(places(platform)) == forged
    rollback(platform, "history")
    undoing.reinstate(platform, "history")
    assert platform.ledger.run("history").state is RunState.PUBLISHED
    assert sorted(places(platform)) == forged


def test_a_link_of_another_event_keeps_no_record_from_its_own(platform: Platform) -> None:
    with killed_at("recording.written"):
        publish(platform, "waiting")
    file = platform.evidence.records("waiting") / "publish.json"
    _more(event="kept", run="waiting", record="publish", recordHash=sha256_of_file(file))(platform)
    forged = f"chain link {platform.evidence.chain.length()}"
    mend(platform)
    assert places(platform) == [forged]
    rollback(platform, "waiting")
    assert places(platform) == [forged]


def test_a_change_of_a_run_that_is_not_published_refuses_its_publication_whatever_link_it_has(
    platform: Platform,
) -> None:
    store, follows = platform.evidence, platform.evidence.chain.length()
    said = {"event": "publish", "run_id": "waiting", "number": 1, "bundle": "bundle", "evidence_root": "0" * 64}
    said |= {"follows": follows, "at": "2026-01-01T00:00:00.000000Z", "rows": {"sink_attempts": {}}, "tables": {}}
    file = store.records("waiting") / "publish.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(said | {"beside": {}}))
    told = {"root": said["evidence_root"], "rows": sha256_of({}), "at": said["at"]}
    _more(event="publish", run="waiting", record="publish", recordHash=sha256_of_file(file), **told)(platform)
    link = f"chain link {follows + 1}"
    assert link in places(platform)
    with pytest.raises(PublicationRefused, match=r"no link of the chain vouches for publish\.json"):
        publish(platform, "waiting")
    assert platform.ledger.run("waiting").state is RunState.VALIDATED
    file.unlink()
    with pytest.raises(EnvironmentRefused, match=r"publish\.json is missing"):
        publish(platform, "waiting")
    ending.cancel(platform, "waiting", "grace", "somebody has put a record beside it")
    planned(platform, manifest("again", "REPLACE_PARTITIONS", SCOPE))
    staged(platform, "again")
    publish(platform, "again")
    assert platform.ledger.run("again").state is RunState.PUBLISHED


def _sealed_by_eve(platform: Platform, run_id: str, files: Mapping[str, Any], edition: int = 0) -> Path:
    """Put a bundle, right in itself and with a link, beside those of a run; return it."""
    store = platform.evidence
    elsewhere = EvidenceStore(store.folder.parent / "elsewhere")
    root = elsewhere.seal(run_id, files, edition=edition)
    bundle = elsewhere.path(run_id, edition)
    planted = Path(shutil.copytree(bundle, store.folder / run_id / bundle.name))
    shutil.rmtree(elsewhere.folder)
    _more(event=SEALED, run=run_id, bundle=bundle.name, root=root)(platform)
    return planted


def test_a_bundle_that_was_sealed_after_the_publication_is_named_and_nobody_goes_by_it(platform: Platform) -> None:
    store = platform.evidence
    own = store.path("history")
    files = {file.name: json.loads(file.read_text()) for file in own.glob("*.json") if file.name != "index.json"}
    files["approvals.json"] = [one | {"decided_by": "mallory"} for one in files["approvals.json"]]
    _sealed_by_eve(platform, "history", files, edition=1)
    forged = f"chain link {store.chain.length()}"
    assert places(platform) == [forged]
    assert store.path("history") == own
    assert "mallory" not in report(platform, "history")
    publish(platform, "waiting")
    rollback(platform, "waiting")
    rollback(platform, "history")
    assert places(platform) == [forged]


def test_a_bundle_that_was_sealed_before_its_publication_was_told_is_not_what_is_told(platform: Platform) -> None:
    with killed_at("publishing.recorded"):
        publish(platform, "waiting")
    own = platform.evidence.path("waiting")
    files = {file.name: json.loads(file.read_text()) for file in own.glob("*.json") if file.name != "index.json"}
    _sealed_by_eve(platform, "waiting", files | {"approvals.json": []}, edition=1)
    publish(platform, "waiting")
    assert platform.evidence.path("waiting") == own
    assert {one.content["bundle"] for one in records.records_of(platform, "waiting") if one.number} == {"bundle"}


def _another_approver(files: dict[str, Any]) -> None:
    files["approvals.json"] = [one | {"decided_by": "mallory"} for one in files["approvals.json"]]


def _another_commit(files: dict[str, Any]) -> None:
    files["code.json"] = {"commit": "of the board"}


def _no_rows(files: dict[str, Any]) -> None:
    del files["run.json"]


def _odd_rows(files: dict[str, Any]) -> None:
    files["run.json"] = [5]


@pytest.mark.parametrize("lie", [_another_approver, _another_commit, _no_rows, _odd_rows])
def test_a_bundle_that_somebody_else_has_sealed_refuses_the_publication(
    platform: Platform, lie: Callable[[dict[str, Any]], None]
) -> None:
    files: dict[str, Any] = plain(bundle_files(platform, platform.ledger.run("waiting")))
    lie(files)
    planted = _sealed_by_eve(platform, "waiting", files)
    with pytest.raises(PublicationRefused, match="says other things of 'waiting' than the ledger") as refused:
        publish(platform, "waiting")
    assert "move it out of the folder" in refused.value.problems[0].fix
    assert platform.ledger.run("waiting").state is RunState.VALIDATED
    shutil.rmtree(planted)
    publish(platform, "waiting")
    assert platform.evidence.verify("waiting") == platform.ledger.publications("waiting")[-1].evidence_root
    assert "mallory" not in report(platform, "waiting")


@pytest.mark.parametrize("edition", [1, 9])
def test_a_bundle_of_an_edition_that_the_run_does_not_have_refuses_the_publication(
    platform: Platform, edition: int
) -> None:
    files = plain(bundle_files(platform, platform.ledger.run("waiting")))
    planted = _sealed_by_eve(platform, "waiting", files, edition=edition)
    with pytest.raises(PublicationRefused, match=f"bundle-{edition} is there, and 'waiting' was planned anew 0 time"):
        publish(platform, "waiting")
    assert platform.ledger.run("waiting").state is RunState.VALIDATED
    shutil.rmtree(planted)
    publish(platform, "waiting")
    assert platform.ledger.run("waiting").state is RunState.PUBLISHED


def test_a_bundle_that_was_sealed_before_a_stop_and_a_review_is_the_runs_own(platform: Platform) -> None:
    with killed_at("publishing.sealed"):
        publish(platform, "waiting")
    platform.ledger.stops.stop("waiting", by="olga", through="backfill stop")
    platform.ledger.stops.launched("waiting", by="olga")
    publish(platform, "waiting")
    assert places(platform) == []


def test_a_process_that_slept_before_the_link_of_its_bundle_appends_none_after_the_publication(
    platform: Platform,
) -> None:
    real, record = EvidenceStore._link_bundle, platform.ledger.run("waiting")
    files = plain(bundle_files(platform, record))

    def sleeps(store: EvidenceStore, said: Mapping[str, Any], *, since: int) -> bool:
        with mock.patch.object(EvidenceStore, "_link_bundle", real):
            platform.ledger.stops.stop("waiting", by="olga", through="backfill stop")
            platform.ledger.stops.launched("waiting", by="olga")
            publish(platform, "waiting")
        return real(store, said, since=since)

    with mock.patch.object(EvidenceStore, "_link_bundle", sleeps):
        root = platform.evidence.seal("waiting", files)
    assert root == platform.evidence.verify("waiting")
    assert places(platform) == []


@pytest.mark.parametrize("run_id", ["a/b", "..", "ghost"])
def test_an_entry_of_no_run_or_about_no_row_hides_no_rows(platform: Platform, run_id: str) -> None:
    _entered({}, run_id)(platform)
    with platform.ledger.engine.connect() as connection:
        entry = f"ledger journal {journal.newest(connection)}"
    by_hand(platform, GHOSTS["freezes"].format(f"'{run_id}'"), GHOSTS["stops"].format(f"'{run_id}'"))
    hidden = {entry, "ledger freezes 70", "ledger stops 70"}
    assert hidden <= set(places(platform))
    assert hidden <= {one.where for one in examine(platform)}


def test_an_entry_with_rows_of_what_can_be_no_run_hides_none(platform: Platform) -> None:
    by_hand(platform, GHOSTS["stops"].format("'a/b'"))
    changed = {"stops": {"columns": ["id"], "rows": {"70": [None, journal.hash_of([70])]}}}
    _entered({"rows": changed}, "a/b")(platform)
    assert "ledger stops 70" in places(platform)


@pytest.mark.parametrize("number", [0, -7])
def test_an_entry_before_the_first_one_that_refuses_a_publication_is_named_where_the_refusal_sends_to(
    platform: Platform, number: int
) -> None:
    entry = f"ledger journal {number}"
    by_hand(platform, f"INSERT INTO journal VALUES ({number}, 'history', 'junk', 'junk')")
    with pytest.raises(EnvironmentRefused, match=rf"(?s){entry} has a number that no entry.*backfill verify --all"):
        publish(platform, "waiting")
    assert places(platform) == [entry]
    assert [(one.kind, one.where) for one in examine(platform)] == [("journal-damaged", entry)]
    by_hand(platform, f"DELETE FROM journal WHERE number = {number}")
    publish(platform, "waiting")
    assert places(platform) == []


def _of_the_journal(platform: Platform, entry: int) -> str:
    """Append a link that vouches for an entry that there is not; return its place."""
    _more(event="ledger", run="", entry=entry, entryHash="0" * 64, at="2020-01-01T00:00:00+00:00")(platform)
    return f"chain link {platform.evidence.chain.length()}"


def test_a_link_about_an_entry_that_is_still_to_come_makes_no_honest_one_wrong(platform: Platform) -> None:
    with platform.ledger.engine.connect() as connection:
        newest = journal.newest(connection)
    soon = _of_the_journal(platform, newest + 3)
    _of_the_journal(platform, 10**9)
    assert set(places(platform)) == {f"ledger journal {newest + 3}", "ledger journal 1000000000"}
    for _ in range(5):
        platform.ledger.stops.stop("waiting", by="olga", through="backfill stop")
        platform.ledger.stops.launched("waiting", by="olga")
    assert set(places(platform)) == {soon, "ledger journal 1000000000"}


def test_a_link_about_an_entry_far_away_keeps_the_newest_one_from_no_link(platform: Platform) -> None:
    chain = platform.evidence.chain
    platform.ledger.journal.chain = None
    platform.ledger.stops.stop("waiting", by="olga", through="backfill stop")
    platform.ledger.journal.chain = chain
    with platform.ledger.engine.connect() as connection:
        newest = journal.newest(connection)
    _of_the_journal(platform, 10**9)
    assert f"ledger journal {newest}" in places(platform)
    mend(platform)
    assert places(platform) == ["ledger journal 1000000000"]


def test_no_link_is_appended_while_links_are_missing_before_one(platform: Platform) -> None:
    chain = platform.evidence.chain
    length = chain.length()
    planted = chain.folder / "99999999999.json"
    planted.write_text("{}")
    again = small_table.opened(platform.settings.home)
    with pytest.raises(
        EnvironmentRefused, match=rf"{length + 1:08}\.json is missing.*99999999999\.json is there"
    ) as refused:
        publish(again, "waiting")
    assert "move 99999999999.json out of the folder" in refused.value.problems[0].fix
    assert again.ledger.run("waiting").state is RunState.VALIDATED
    assert {f"chain {length + 1:08}.json", "chain 99999999999.json"} <= set(places(again))
    assert sorted(file.name for file in chain.folder.glob("9*.json")) == [planted.name]
    planted.unlink()
    publish(again, "waiting")
    closed(again)
    assert places(platform) == []


def test_a_planted_record_of_a_publication_keeps_nothing_of_what_was_committed_from_the_real_one(
    platform: Platform,
) -> None:
    with killed_at("publishing.recorded"):
        publish(platform, "waiting")
    (entry,) = platform.ledger.publications("waiting")
    said = _unvouched(platform)["told-2"] | {"run_id": "waiting", "number": 7, "snapshot_id": entry.snapshot_id}
    planted = platform.evidence.records("waiting") / "told-7.json"
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(json.dumps(said))
    publish(platform, "waiting")
    assert json.loads((planted.parent / "publish.json").read_text())["committed"]
    planted.unlink()
    assert places(platform) == []
