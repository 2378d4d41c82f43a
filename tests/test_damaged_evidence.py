"""Reports, publications and the doctor over evidence that somebody has changed, in ways that its own files agree with."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from worlds import FEW_GATES, World, keep, make_world

from backfill_assets import decisions
from backfill_assets.audit.verification import verify
from backfill_assets.cli.base import EXIT_FAILED
from backfill_assets.cli.command import cli
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.review.diff import diff_here, put_diff
from benchmarks.changed_bytes import overwrite
from manifests.canonical import plain
from manifests.errors import EnvironmentRefused, Refused, TransitionRefused
from manifests.lifecycle import RunState
from resources.evidence.bundle_files import index_text
from resources.files import kept_files
from resources.files.kept_files import read_kept

pytestmark = [pytest.mark.matrix, pytest.mark.usefixtures("looked_at_again_at_once")]

FORGER = "mallory"


@pytest.fixture(scope="module")
def put_back(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], World]:
    folder = tmp_path_factory.mktemp("damaged")
    world = make_world(folder / "home", cases=60, start=date(2010, 1, 1), end=date(2010, 4, 30), gates=FEW_GATES)
    world.published(world.manifest("history", version="2.4.1"))
    world.published(world.manifest("fixed", target=world.scope(date(2010, 2, 1), date(2010, 2, 28))))
    world.validated(world.manifest("validated", target=world.scope(date(2010, 3, 1), date(2010, 3, 31))))
    return keep(world, folder / "copy")


@pytest.fixture
def world(put_back: Callable[[], World], monkeypatch: pytest.MonkeyPatch) -> World:
    world = put_back()
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    return world


def rebuilt(bundle: Path) -> None:
    """Make the list of a bundle's files anew, so that it agrees with them."""
    files = {
        one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in bundle.iterdir() if one.name != "index.json"
    }
    overwrite(bundle / "index.json", index_text("fixed", files).encode())


def with_another_requester(world: World) -> str:
    bundle = world.platform.evidence.path("fixed")
    for name in ("run.json", "manifest.json"):
        overwrite(bundle / name, (bundle / name).read_bytes().replace(b'"ana"', f'"{FORGER}"'.encode()))
    rebuilt(bundle)
    return "fixed/bundle/index.json"


def planted(world: World, rows: Any, follows: int = 0) -> str:
    file = world.platform.evidence.records("fixed") / "publish-9.json"
    file.write_text(json.dumps({"event": "publish", "follows": follows, "number": 99, "run_id": "fixed", "rows": rows}))
    return "fixed/records/publish-9.json"


def approved_by_another(world: World) -> dict[str, Any]:
    approvals = json.loads((world.platform.evidence.path("fixed") / "approvals.json").read_text())
    return {"approvals": {str(approvals[0]["id"]): {"decided_by": FORGER}}}


def with_a_planted_record(world: World) -> str:
    return planted(world, approved_by_another(world))


def with_half_a_row(world: World) -> str:
    return planted(world, {"approvals": {"777": {"id": 777, "decided_by": FORGER}}})


def with_rows_that_are_none(world: World) -> str:
    return planted(world, [])


def with_an_emptied_link(world: World) -> str:
    store = world.platform.evidence
    (number,) = [
        one.number
        for one in store.chain.read().links
        if (one.content.get("run"), one.content.get("record")) == ("fixed", "publish")
    ]
    record = store.records("fixed") / "publish.json"
    said = json.loads(record.read_bytes())
    said["rows"] |= approved_by_another(world)
    overwrite(record, json.dumps(said).encode())
    overwrite(store.chain.folder / f"{number:08}.json", b"")
    return "fixed/records/publish.json"


def with_a_folder_for_a_link(world: World) -> str:
    link = world.platform.evidence.chain.folder / "00000002.json"
    link.unlink()
    link.mkdir()
    return f"{link.parent.name}/{link.name}"


def without_a_bundle(world: World) -> str:
    shutil.rmtree(world.platform.evidence.path("fixed"))
    return "fixed/bundle"


def with_a_pipe_for_a_bundle(world: World) -> str:
    without_a_bundle(world)
    os.mkfifo(world.platform.evidence.path("fixed"))
    return "fixed/bundle"


def as_an_older_version_left_it(world: World) -> str:
    bundle = world.platform.evidence.path("fixed")
    (bundle / "run.json").unlink()
    rebuilt(bundle)
    overwrite(bundle / "verdicts.json", b"[]")
    return "fixed/bundle/verdicts.json"


@pytest.mark.parametrize(
    "change",
    [
        with_another_requester,
        with_a_planted_record,
        with_half_a_row,
        with_rows_that_are_none,
        with_an_emptied_link,
        with_a_folder_for_a_link,
        without_a_bundle,
        with_a_pipe_for_a_bundle,
        as_an_older_version_left_it,
    ],
)
def test_a_report_shows_nothing_forged_as_true_and_names_what_was_changed(
    world: World, tmp_path: Path, change: Callable[[World], str]
) -> None:
    changed = change(world)
    page = tmp_path / "page.html"
    done = CliRunner().invoke(cli, ["report", "fixed", "--output", str(page)])
    assert done.exit_code == EXIT_FAILED, done.exception
    assert changed in done.output
    text = page.read_text()
    assert "The evidence is not what was sealed" in text
    assert FORGER not in text


BEYOND = 1 << 43
"""Bytes that nobody's memory holds."""


def too_large(file: Path) -> Path:
    """Make a file that has no content and says that it is larger than any memory; one that is there grows."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists():
        file.chmod(0o644)
    file.touch()
    os.truncate(file, BEYOND)
    return file


TOO_LARGE: dict[str, Callable[[World], Path]] = {
    "the next link": lambda world: (
        world.platform.evidence.chain.folder / f"{world.platform.evidence.chain.length() + 1:08}.json"
    ),
    "the last link": lambda world: (
        world.platform.evidence.chain.folder / f"{world.platform.evidence.chain.length():08}.json"
    ),
    "the first link": lambda world: world.platform.evidence.chain.folder / "00000001.json",
    "a record": lambda world: world.platform.evidence.records("fixed") / "publish.json",
    "a planted record": lambda world: world.platform.evidence.records("fixed") / "x.json",
    "a planted change": lambda world: world.platform.evidence.records("fixed") / "publish-9.json",
    "a record of what waits": lambda world: world.platform.evidence.records("validated") / "x.json",
    "an index": lambda world: world.platform.evidence.path("fixed") / "index.json",
    "chunks": lambda world: world.platform.evidence.path("fixed") / "chunks.json",
    "the run": lambda world: world.platform.evidence.path("fixed") / "run.json",
    "changes": lambda world: world.platform.evidence.path("fixed") / "changes.json",
    "a planted file": lambda world: world.platform.evidence.path("fixed") / "x.json",
}


@pytest.mark.parametrize("of", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_file_too_large_to_be_evidence_is_named_and_nobody_reads_it(
    world: World, tmp_path: Path, of: Callable[[World], Path]
) -> None:
    file = too_large(of(world))
    begun = time.monotonic()
    named = [f"{one.where} {one.what} {one.found}" for one in verify(world.platform).everything]
    place = file.stem.lstrip("0") if file.parent == world.platform.evidence.chain.folder else file.name
    assert [one for one in named if place in one], named
    assert examine(world.platform)
    diff = ["diff", "fixed", "--recorded"]
    for command in (["report", "fixed", "--output", str(tmp_path / "x.html")], ["status", "fixed"], ["gc"], diff):
        done = CliRunner().invoke(cli, command)
        assert done.exception is None or isinstance(done.exception, (SystemExit, Refused)), done.exception
    for act in (publish, rollback):
        with suppress(Refused):
            act(world.platform, "validated" if act is publish else "fixed")
    assert time.monotonic() - begun < 60


def test_a_file_too_large_among_the_records_of_collections_stops_nobody(world: World) -> None:
    too_large(world.platform.evidence.records("gc") / "x-done.json")
    verify(world.platform)
    examine(world.platform)
    assert CliRunner().invoke(cli, ["gc"]).exit_code == 0


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"1" * 100)
    assert read_kept(file, 100) == b"1" * 100
    with pytest.raises(EnvironmentRefused, match="has 100 bytes, and at most 99 are read"):
        read_kept(file, 99)


def test_a_file_that_memory_does_not_hold_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(BytesIO):
        def fileno(self) -> int:
            return 0

        def read(self, _: int | None = None) -> bytes:
            raise MemoryError

    monkeypatch.setattr(kept_files, "open_kept", lambda *_: Full())
    file = tmp_path / "file"
    with pytest.raises(EnvironmentRefused, match=rf"{file} cannot be read: it is larger than the memory that is left"):
        read_kept(file)


def test_a_report_of_what_nobody_changed_names_nothing(world: World, tmp_path: Path) -> None:
    for run_id in ("history", "fixed", "validated"):
        done = CliRunner().invoke(cli, ["report", run_id, "--output", str(tmp_path / "page.html")])
        assert done.exit_code == 0, done.output


def test_nothing_is_published_past_a_record_that_is_missing(world: World) -> None:
    """Refused before the commit: afterwards readers would see it, and it could not be recorded any more."""
    put_diff(world.platform, diff_here(world.platform, "validated"))
    record = world.platform.evidence.records("validated") / "diff.json"
    raw, before = record.read_bytes(), world.snapshots()
    record.unlink()
    with pytest.raises(EnvironmentRefused, match=r"diff\.json is missing"):
        decisions.publish(world.platform, "validated", by="zoe")
    assert world.snapshots() == before
    assert world.platform.ledger.run("validated").state is RunState.VALIDATED
    record.write_bytes(raw)
    assert publish(world.platform, "validated").new


OF_NO_FORM: list[Any] = [
    [],
    {},
    {"diff_id": 5},
    *({name: [5]} for name in ("chunks", "columns", "largest", "sample")),
    {"largest": [{"column": "state", "kind": "CHANGED"}]},
    {"added": "many"},
]


@pytest.mark.parametrize("odd", OF_NO_FORM, ids=str)
@pytest.mark.parametrize("run_id", ["fixed", "validated"])
def test_a_recorded_diff_of_no_form_is_named_shown_nowhere_and_sealed_by_nobody(
    world: World, run_id: str, odd: Any
) -> None:
    """Its link is one that this project makes: whoever writes to the evidence can make it."""
    honest = plain(diff_here(world.platform, run_id))
    world.platform.evidence.append(run_id, "diff-9", honest | odd if odd else odd)
    wrong = [one for one in verify(world.platform).everything if one.where.endswith(f"{run_id}/records/diff-9.json")]
    assert [one.what.partition(":")[0] for one in wrong] == ["it has not the form of a diff"]
    assert "record-damaged" in {one.kind for one in examine(world.platform) if "diff-9" in f"{one.where} {one.what}"}
    for command in (["diff", run_id, "--recorded"], ["report", run_id], ["status", run_id], ["runbook", run_id]):
        done = CliRunner().invoke(cli, command)
        assert done.exception is None or isinstance(done.exception, (SystemExit, Refused)), done.exception
    if run_id == "validated":
        with pytest.raises(Refused, match="diff-9"):
            publish(world.platform, run_id)


def test_the_doctor_looks_on_where_a_link_cannot_be_read_and_a_record_was_planted(world: World) -> None:
    with_a_folder_for_a_link(world)
    planted(world, {}, follows=world.platform.evidence.chain.length())
    assert examine(world.platform)


@pytest.mark.parametrize("column", ["chunk", "run_id", "target"])
def test_the_doctor_names_a_cell_that_is_no_text_and_looks_on(world: World, column: str) -> None:
    file = world.platform.ledger.engine.url.database
    assert file is not None
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"UPDATE accepted_versions SET {column} = x'ff' WHERE id = 1")
        connection.commit()
    assert "changed-by-hand" in {one.kind for one in examine(world.platform)}


def test_a_name_of_the_platforms_own_ends_no_run(world: World) -> None:
    with pytest.raises(TransitionRefused, match="is no person"):
        decisions.cancel(world.platform, "validated", by="policy:live")
    assert world.platform.ledger.run("validated").state is RunState.VALIDATED
