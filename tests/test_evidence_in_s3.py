"""A whole installation whose evidence is in a bucket: published, read back, undone, tampered with, and while the store is down.

On a small server in this process, and on a real one that keeps its objects on disk (`-m servers`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result
from real_servers.s3 import Store
from small_s3 import SmallStore, small_store
from starlette.testclient import TestClient
from worlds import FEW_GATES, KEY, SPARK, TARGET, World, killed_at, make_world

from backfill_assets.audit.explain import explain
from backfill_assets.audit.report import report_beside
from backfill_assets.audit.verification import Verification, verify
from backfill_assets.cli.command import cli
from backfill_assets.defs.addresses import PREFIX
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.garbage import find
from backfill_assets.operations.runbook import steps
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.review.diff import diff_here
from backfill_assets.ui.pages import make_pages
from manifests.errors import EnvironmentRefused, StoreRefused
from manifests.lifecycle import RunState
from resources.evidence import object_bundles
from resources.evidence.store import INDEX, PROBE
from resources.files import s3_objects
from resources.files.kept_files import read_kept
from resources.files.places import ObjectPlace
from resources.settings import Settings

START, END = date(2010, 1, 1), date(2010, 3, 31)
FEBRUARY = (date(2010, 2, 1), date(2010, 2, 28))


@pytest.fixture(scope="module")
def small() -> Iterator[SmallStore]:
    with small_store() as server:
        yield server


@pytest.fixture(scope="module", params=["small", pytest.param("disk_store", marks=pytest.mark.servers)])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def settings_of(server: SmallStore | Store, home: Path) -> dict[str, Any]:
    """Return the settings by which tables are in the home, and evidence is in a bucket of the server."""
    where = {"type": "sql", "uri": f"sqlite:///{home}/catalog.db", "warehouse": f"file://{home}/warehouse"}
    bucket = server.bucket(f"evidence-{uuid4().hex[:8]}")
    return {"evidence": f"s3://{bucket}/proofs", "catalog": where | server.properties()}


@pytest.fixture(scope="module")
def world(server: SmallStore | Store, tmp_path_factory: pytest.TempPathFactory) -> World:
    """History with a bug is published, and restated; its last month once more, which is undone; and one run waits."""
    home = tmp_path_factory.mktemp("bucket") / "home"
    made = make_world(home, cases=60, start=START, end=END, gates=FEW_GATES, **settings_of(server, home))
    made.published(made.manifest("history", version="2.4.1"))
    made.published(made.manifest("fixed"))
    made.published(made.manifest("again", target=made.scope(*FEBRUARY)))
    rollback(made.platform, "again")
    made.validated(made.manifest("waiting", target=made.scope(*FEBRUARY)))
    return made


@pytest.fixture
def command(world: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command of the installation, in this process."""
    settings = world.platform.settings
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    monkeypatch.setenv("BACKFILL_EVIDENCE", settings.evidence)
    monkeypatch.setenv("BACKFILL_CATALOG", json.dumps(settings.catalog))
    monkeypatch.setenv("BACKFILL_SPARK", json.dumps(SPARK))

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli, arguments)

    return run


def root_of(world: World) -> ObjectPlace:
    folder = world.platform.evidence.folder
    assert isinstance(folder, ObjectPlace)
    return folder


def places(done: Verification) -> list[str]:
    return [problem.where for problem in done.everything]


def test_properties_of_the_store_alone_leave_the_tables_where_they_are_without_any(tmp_path: Path) -> None:
    embedded = Settings(home=tmp_path).catalog
    store = {"s3.endpoint": "https://s3.example.org", "client.region": "eu-west-1"}
    assert Settings(home=tmp_path, catalog=store, evidence="s3://proofs/backfill").catalog == embedded | store
    named = store | {"uri": "https://catalog.example.org"}
    assert Settings(home=tmp_path, catalog=named).catalog == named, "a catalog that is named is nobody's default"


def test_everything_is_in_the_bucket_and_verified_there(world: World) -> None:
    done = verify(world.platform, data=True)
    assert [(one.run_id, one.where, one.what) for one in done.everything] == []
    assert [run.run_id for run in done.runs] == ["history", "fixed", "again", "waiting"]
    assert all(run.notes == () for run in done.runs)
    assert examine(world.platform) == []
    assert not (world.home / "evidence").exists()
    report_beside(world.platform, "fixed")
    keys = root_of(world).below()
    assert {key.partition("/")[0] for key in keys} == {"_chain", PROBE, "history", "fixed", "again"}
    assert sorted(key for key in keys if key.startswith("again/") and "bundle" not in key) == [
        f"again/records/{name}.json" for name in ("publish", "rollback", "told-2", "told-4")
    ]
    assert "fixed/report.html" in keys
    assert places(verify(world.platform)) == []


def test_a_place_without_the_chain_that_the_ledger_knows_is_named_and_no_second_chain_is_begun(
    world: World, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prefix with a slip of the pen, or a shell in which the setting is missing."""
    elsewhere = f"{root_of(world)}-typo"
    monkeypatch.setenv("BACKFILL_EVIDENCE", elsewhere)
    found = json.loads(command("doctor", "--json").output)["findings"]
    assert [one for one in found if one["kind"] == "journal-unlinked"] == [], "its repair would begin a second chain"
    (one,) = (one for one in found if one["kind"] == "evidence-store")
    assert one["where"] == elsewhere
    assert f"{elsewhere}/_chain has no link, and the ledger's entry" in one["what"]
    assert "set `evidence` (or `home`) to where the chain is" in str(one)
    assert f"{elsewhere} has none: is `evidence` the place where it was?" in " ".join(
        command("verify", "--all").output.split()
    )
    refused = command("init").exception
    assert isinstance(refused, EnvironmentRefused)
    assert f"{elsewhere}/_chain has no link" in str(refused)
    assert ObjectPlace(root_of(world).bucket, elsewhere).below() == [PROBE]


def test_every_reader_reads_it(world: World) -> None:
    platform = world.platform
    assert any(f"{root_of(world)}/fixed" in f"{step}" for step in steps(platform, "fixed"))
    row = world.rows().row(0, named=True)
    found = explain(platform, TARGET, [f"{name}={row[name]}" for name in KEY])
    assert f"{root_of(world)}/fixed/bundle" in str(found)
    assert diff_here(platform, "waiting").run_id == "waiting"
    assert find(platform, at=platform.ledger.now()) is not None
    assert platform.evidence.chain.last() is not None


def test_commands_say_where_it_lies(world: World, command: Any) -> None:
    found = json.loads(command("doctor", "--json").output)["findings"]
    assert {one["kind"] for one in found} <= {"dagster-not-told"}, "this world publishes without Dagster"
    for arguments in (["verify", "--all"], ["head"], ["status", "fixed"], ["runbook", "fixed"], ["init"]):
        done = command(*arguments)
        assert done.exit_code == 0, (arguments, done.output, done.exception)
    report = command("report", "fixed", "--json")
    assert report.exit_code == 0, report.output
    assert json.loads(report.output)["report"] == f"{root_of(world)}/fixed/report.html"
    assert f"evidence: {root_of(world)}," in command("init").output
    assert json.loads(command("init", "--json").output)["evidence"] == str(root_of(world))
    shown = command("config", "--json")
    assert json.loads(shown.output)["evidence_folder"] == str(root_of(world))
    assert world.platform.settings.catalog["s3.secret-access-key"] not in shown.output


def test_a_process_of_another_host_reads_what_is_there_and_needs_nothing_of_the_first(
    world: World, tmp_path: Path
) -> None:
    settings = world.platform.settings
    environment = os.environ | {
        "BACKFILL_HOME": str(world.home),
        "BACKFILL_EVIDENCE": settings.evidence,
        "BACKFILL_CATALOG": json.dumps(settings.catalog),
    }
    done = subprocess.run(
        [sys.executable, "-m", "backfill_assets.cli.command", "verify", "fixed", "--json"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True


def test_the_pages_list_and_serve_its_objects_and_no_others(world: World) -> None:
    pages = make_pages(world.platform.ledger, world.platform.evidence, lambda run_id: f"<p>{run_id}")
    client = TestClient(pages)
    page = client.get(f"{PREFIX}/fixed").text
    assert "bundle/plan.json" in page
    assert ".begun-" not in page
    assert client.get(f"{PREFIX}/fixed/evidence/bundle/{INDEX}").json()["runId"] == "fixed"
    assert client.get(f"{PREFIX}/fixed/evidence/report.html").text == "<p>fixed"
    for other in ("../history/bundle/index.json", "bundle", "nothing.json", "%2e%2e/_probe.json"):
        assert client.get(f"{PREFIX}/fixed/evidence/{other}").status_code == 404, other


@pytest.mark.parametrize(
    "key",
    ["fixed/bundle/plan.json", f"fixed/bundle/{INDEX}", "fixed/records/publish.json", "_chain/00000003.json"],
)
def test_a_changed_and_a_missing_object_are_found_and_named(world: World, key: str) -> None:
    bucket, place = root_of(world).bucket, f"{root_of(world).key}/{key}"
    kept = bucket.read(place, 1 << 30).raw
    bucket.put(place, kept.replace(b"1", b"2", 1))
    try:
        named = [*places(verify(world.platform)), ""]
        assert any(key.rpartition("/")[2] in where for where in named), named
    finally:
        bucket.put(place, kept)
    assert places(verify(world.platform)) == []


def test_what_was_put_there_is_found_and_named(world: World) -> None:
    root = root_of(world)
    planted = [
        "fixed/approved.html",
        "nobody/bundle/index.json",
        "fixed/bundle/more.json",
        "fixed/bundle-7/x.json",
        "note",
    ]
    begun = object_bundles.begun_at(root / "fixed" / "bundle", "0" * 64)
    for key in [*planted, begun.relative_to(root)]:
        root.bucket.put(f"{root.key}/{key}", b"{}\n")
    found = places(verify(world.platform))
    removed = root.bucket._opened()
    for key in [*planted, begun.relative_to(root)]:
        removed.delete_object(Bucket=root.bucket.name, Key=f"{root.key}/{key}")
    missing = [key for key in planted if not any(key.removesuffix("/x.json") in where for where in found)]
    assert (missing, begun.relative_to(root) in found) == ([], True), found
    assert places(verify(world.platform)) == []


def test_a_publication_costs_as_many_requests_whatever_the_length_of_the_chain(
    world: World, server: SmallStore | Store
) -> None:
    if not isinstance(server, SmallStore):
        pytest.skip("a real server does not say what it was asked: this is tried on the small one")

    def cost(run_id: str) -> int:
        fresh = World(Platform.of(world.platform.settings), world.home, START, END, gates=FEW_GATES)
        fresh.validated(fresh.manifest(run_id, target=fresh.scope(*FEBRUARY)))
        publishing = Platform.of(world.platform.settings)
        server.asked.clear()
        publish(publishing, run_id)
        return len(server.asked)

    first = cost("cheap-1")
    chain = world.platform.evidence.chain
    for number in range(150):
        chain.append({"event": "told", "run": "others", "of it": number}, since=chain.length(), same=lambda _: False)
    cost("cheap-2")  # what came since the run that it supersedes was published is read once
    third = cost("cheap-3")
    assert third < first + 20, (first, third)
    assert first < 350, first


@pytest.mark.parametrize("point", ["publishing.sealed", "publishing.committed", "recording.written", "recording.told"])
def test_a_publisher_that_dies_is_followed_by_one_that_ends_what_it_began(
    world: World, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = f"died-{point.partition('.')[2]}"
    world.validated(world.manifest(run_id, target=world.scope(*FEBRUARY)))
    with killed_at(point, monkeypatch):
        publish(Platform.of(world.platform.settings), run_id)
    again = Platform.of(world.platform.settings)
    publish(again, run_id)
    assert again.ledger.run(run_id).state is RunState.PUBLISHED
    assert [one for one in verify(again, [run_id]).everything if one.run_id == run_id] == []
    assert len(again.evidence.bundles(run_id)) == 1


def test_a_store_that_is_down_refuses_and_nothing_is_half_done(
    world: World, server: SmallStore | Store, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_objects, "_WAITS", (0.01, 0.02))
    world.validated(world.manifest("delayed", target=world.scope(*FEBRUARY)))
    before = world.snapshots()
    down = dict(world.platform.settings.catalog) | {"s3.endpoint": "http://127.0.0.1:9", "s3.connect-timeout": "1"}
    settings = Settings(**(world.platform.settings.model_dump() | {"catalog": down}))
    with pytest.raises(StoreRefused, match="cannot be listed"):
        publish(Platform.of(settings), "delayed")
    with mock.patch.dict(os.environ, {"BACKFILL_CATALOG": json.dumps(down)}):
        for arguments in (["publish", "delayed"], ["verify", "--all"], ["report", "fixed"], ["doctor"], ["init"]):
            done = command(*arguments)
            assert isinstance(done.exception, StoreRefused), (arguments, done.output, done.exception)
        shown = command("status", "fixed")
        assert shown.exit_code == 0, "where a run stands is in the ledger"
        assert "not known: the store of the evidence does not answer" in " ".join(shown.output.split())
    assert world.snapshots() == before
    assert world.platform.ledger.run("delayed").state is RunState.VALIDATED
    publish(world.platform, "delayed")
    assert [one for one in verify(world.platform, ["delayed"]).everything if one.run_id == "delayed"] == []


def test_what_is_read_by_a_person_is_what_lies_in_a_folder(world: World) -> None:
    bundle = world.platform.evidence.path("fixed")
    assert json.loads(read_kept(bundle / "run.json"))["run_id"] == "fixed"
    assert (bundle / INDEX).is_file()
