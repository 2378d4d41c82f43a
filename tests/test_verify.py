"""`backfill verify`: one changed byte of evidence, chain, ledger or rows is found and named, and nothing else is."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from support import diff_record, moved
from worlds import TARGET, World, keep, killed_at, make_world

from backfill_assets import decisions
from backfill_assets.audit import proof
from backfill_assets.audit.verification import Verification, verify
from backfill_assets.cli.base import EXIT_FAILED, EXIT_REFUSED
from backfill_assets.cli.command import cli
from backfill_assets.evidence import record_writing
from backfill_assets.evidence.bundle_contents import bundle_files
from backfill_assets.evidence.events import GC
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.publication import announcements
from backfill_assets.publication import publisher as publication
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from benchmarks.changed_bytes import missed, overwrite
from manifests.canonical import canonical_json
from manifests.errors import InputRefused, Problem, PublicationRefused
from manifests.lifecycle import RunState
from resources.evidence.chain import START
from resources.lakehouse.facade import local_path
from resources.lakehouse.history import forget
from resources.ledger import journal
from resources.ledger.facade import RunRecord
from resources.ledger.moments import Moment
from resources.settings import load_settings

pytestmark = pytest.mark.matrix

HALF_A_YEAR = (date(2010, 1, 1), date(2010, 6, 30))
ONE_MORE_VERDICT = """
    INSERT INTO verdicts (run_id, chunk, gate, attempt, passed, summary, details, at)
    SELECT run_id, chunk, gate, attempt, 1, 'fine', details, at FROM verdicts WHERE run_id = 'fixed' LIMIT 1
"""
CHANGES, SEED = 200, 20120131


@pytest.fixture(scope="module")
def put_back(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], World]:
    """Published history, a restatement of it, one on top that is rolled back, and one that waits for its publication."""
    folder = tmp_path_factory.mktemp("verify")
    world = make_world(folder / "home", cases=150, start=HALF_A_YEAR[0], end=HALF_A_YEAR[1])
    world.published(world.manifest("history", version="2.4.1"))
    world.published(world.manifest("fixed", target=world.scope(date(2010, 2, 1), date(2010, 3, 31))))
    world.published(world.manifest("again", target=world.scope(date(2010, 2, 1), date(2010, 2, 28))))
    rollback(world.platform, "again")
    world.validated(world.manifest("waiting", target=world.scope(date(2010, 3, 1), date(2010, 4, 30))))
    return keep(world, folder / "copy")


@pytest.fixture
def world(put_back: Callable[[], World]) -> World:
    return put_back()


def places(done: Verification) -> list[str]:
    return [problem.where for problem in done.everything]


def changed(world: World, statement: str, *values: object) -> None:
    world.platform.ledger.engine.dispose()
    with closing(sqlite3.connect(world.home / "ledger.db")) as connection:
        assert connection.execute(statement, values).rowcount > 0
        connection.commit()


def link_events(world: World, run_id: str) -> list[str]:
    links = world.platform.evidence.chain.read().links
    return [str(link.content["event"]) for link in links if link.content["run"] == run_id and "rows" in link.content]


def test_what_nobody_touched_is_as_recorded(world: World) -> None:
    done = verify(world.platform, data=True)
    assert done.everything == []
    assert [run.run_id for run in done.runs] == ["history", "fixed", "again", "waiting"]
    assert [run.chunks_read for run in done.runs] == [6, 2, 1, 0]
    assert all(run.notes == () for run in done.runs)
    assert examine(world.platform) == []
    assert link_events(world, "history") == ["publish", "told", "superseded"]
    assert link_events(world, "fixed") == ["publish", "told", "superseded", "restored"]
    assert link_events(world, "again") == ["publish", "told", "rollback", "told"]


def test_two_hundred_random_changes_of_one_byte_are_found_and_named(world: World) -> None:
    unnoticed, unnamed = missed(world.platform, CHANGES, SEED)
    assert (unnoticed, unnamed) == ([], [])
    assert verify(world.platform).everything == []  # each was put back


def test_a_bundle_has_the_same_bytes_whenever_it_is_sealed(world: World) -> None:
    record = world.platform.ledger.run("waiting")
    first, second = (canonical_json(bundle_files(world.platform, record)) for _ in range(2))
    assert first == second
    files = bundle_files(world.platform, record)
    assert {"manifest.json", "plan.json", "code.json", "chunks.json", "verdicts.json", "approvals.json"} <= files.keys()
    assert {one["level"] for one in files["reconciliation.json"]} == {
        "platform",
        "record",
        "state",
        "outcome",
        "change",
    }
    assert {chunk: facts["run"] for chunk, facts in files["accepted_before.json"].items()} == {
        "2010-03": "fixed",
        "2010-04": "history",
    }


def test_a_diff_on_record_is_sealed_with_the_bundle_and_its_change_is_found(world: World) -> None:
    store = world.platform.evidence
    said = diff_record(changed=12)
    file = store.append("waiting", "diff", said)
    publish(world.platform, "waiting")
    assert json.loads((store.path("waiting") / "diff.json").read_text()) == said
    assert verify(world.platform, ["waiting"]).everything == []
    overwrite(file, file.read_bytes().replace(b"12", b"13"))
    assert places(verify(world.platform, ["waiting"])) == ["waiting/records/diff.json"]


@pytest.mark.parametrize(
    ("statement", "where"),
    [
        ("DELETE FROM sink_attempts WHERE run_id = 'fixed' AND decision = 'SENT'", "ledger sink_attempts"),
        ("DELETE FROM transitions WHERE run_id = 'fixed' AND to_state = 'APPROVED'", "ledger transitions"),
        ("UPDATE approvals SET decided_by = 'eve' WHERE run_id = 'fixed'", "ledger approvals"),
        ("UPDATE runs SET state = 'PUBLISHED', state_reason = '' WHERE run_id = 'again'", "ledger runs again"),
        ("UPDATE accepted_versions SET run_id = 'history' WHERE run_id = 'fixed'", "ledger accepted_versions"),
        ("UPDATE chunks SET digest = upper(digest) WHERE run_id = 'fixed' AND idx = 0", "ledger chunks 2010-02 column"),
        (ONE_MORE_VERDICT, "ledger verdicts"),
    ],
)
def test_rows_changed_by_hand_are_named(world: World, statement: str, where: str) -> None:
    changed(world, statement)
    found = places(verify(world.platform, ["fixed", "again"]))
    assert found
    assert any(place.startswith(where) for place in found)


def test_what_was_changed_by_hand_is_not_taken_over_by_the_next_event(world: World) -> None:
    changed(world, "UPDATE runs SET requested_by = 'eve' WHERE run_id = 'history'")
    changed(world, "UPDATE chunks SET rows = rows + 1 WHERE run_id = 'fixed' AND chunk = '2010-03'")
    publish(world.platform, "waiting")  # supersedes part of both
    assert link_events(world, "history")[-1] == link_events(world, "fixed")[-1] == "superseded"
    expected = ["ledger runs history column requested_by", "ledger chunks 2010-03 column rows"]
    assert places(verify(world.platform)) == expected
    mend(world.platform)
    assert places(verify(world.platform)) == expected


def test_the_expected_and_the_found_value_are_said(world: World) -> None:
    changed(world, "UPDATE approvals SET comment = 'ok' WHERE run_id = 'fixed'")
    (problem,) = verify(world.platform, ["fixed"]).everything
    assert (problem.where, problem.expected, problem.found) == ("ledger approvals 2 column comment", "", "ok")


def test_links_cut_off_the_chain_are_found(world: World) -> None:
    store = world.platform.evidence
    head = store.chain.read().head
    assert verify(world.platform, ["again"], head=head).everything == []
    told = next(link.number for link in store.chain.read().links if link.content.get("record") == "told-4")
    for file in store.chain.folder.glob("*.json"):
        if int(file.stem) >= told:
            file.unlink()
    assert "again/records/told-4.json" in places(verify(world.platform, ["again"]))
    (store.records("again") / "told-4.json").unlink()
    found = places(verify(world.platform, ["again"]))
    assert any(place.startswith("ledger sink_attempts") for place in found)
    assert any(place.startswith("ledger journal") for place in found)  # entries that a link had vouched for
    assert "chain" in places(verify(world.platform, ["again"], head=head))


def test_a_removed_bundle_is_found(world: World) -> None:
    store = world.platform.evidence
    store.path("fixed").rename(world.home / "elsewhere")
    assert places(verify(world.platform, ["fixed"]))[0] == "fixed/bundle"


def test_a_bundle_made_anew_has_another_root_than_the_chain_and_the_snapshot(world: World) -> None:
    store = world.platform.evidence
    kept = {
        file.name: json.loads(file.read_text()) for file in store.path("fixed").iterdir() if file.name != "index.json"
    }
    kept["manifest.json"]["reason"] = "what I would rather have said"
    store.path("fixed").rename(store.folder / "elsewhere")
    store.seal("fixed", kept)
    found = places(verify(world.platform, ["fixed"]))
    assert "fixed/bundle" in found
    assert any(place.endswith("property backfill.evidence-root") for place in found)


@pytest.mark.parametrize("again", ["command", "doctor"])
@pytest.mark.parametrize("point", ["publishing.recorded", "recording.written", "recording.told", "recording.sent"])
def test_a_kill_around_a_link_is_said_and_completed_once(
    world: World, monkeypatch: pytest.MonkeyPatch, point: str, again: str
) -> None:
    length = world.platform.evidence.chain.length()
    with killed_at(point, monkeypatch):
        publish(world.platform, "waiting")
    if point != "recording.told":  # there, nothing of what is on record is missing
        assert verify(world.platform, ["waiting"]).everything != []
    if again == "doctor":
        assert mend(world.platform)[1] == []
        assert verify(world.platform).everything == []
    assert publish(world.platform, "waiting").new is False
    assert world.platform.ledger.run("waiting").state is RunState.PUBLISHED
    assert verify(world.platform).everything == []
    asked = ["moved"] if point == "recording.sent" else []  # that the sink was asked for, and not yet what came of it
    assert link_events(world, "waiting") == ["publish", *asked, "told"]
    assert link_events(world, "fixed")[-1] == link_events(world, "history")[-1] == "superseded"
    links = world.platform.evidence.chain.length()
    records = [link for link in world.platform.evidence.chain.links(since=length) if "rows" in link.content]
    assert len(records) == 4 + len(asked)
    publish(world.platform, "waiting")
    assert mend(world.platform) == ([], [])
    assert world.platform.evidence.chain.length() == links


def test_undone_and_reinstated_runs_stay_verified(world: World) -> None:
    reinstate(world.platform, "again")
    rollback(world.platform, "again")
    assert link_events(world, "again")[-4:] == ["reinstate", "told", "rollback", "told"]
    assert verify(world.platform).everything == []


def test_a_refused_rollback_leaves_nothing_unrecorded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from backfill_assets.publication.replace_files import ReplaceFiles

    def refuse(*_arguments: object) -> None:
        raise PublicationRefused(Problem("somebody wrote there", "nobody else has", "look"))

    with monkeypatch.context() as patch:
        patch.setattr(ReplaceFiles, "undo", refuse)
        with pytest.raises(PublicationRefused):
            rollback(world.platform, "fixed")
    assert link_events(world, "fixed")[-1] == "refused"
    assert verify(world.platform).everything == []


def test_a_rollback_over_damaged_evidence_says_so_and_adds_nothing_to_it(world: World) -> None:
    store, snapshots = world.platform.evidence, world.snapshots()
    (store.path("fixed") / "index.json").write_text("{")  # no decision can be recorded after it
    before = {file.name: file.read_bytes() for file in store.records("fixed").iterdir()}
    with pytest.raises(PublicationRefused, match=r"was changed after it was sealed: index\.json"):
        decisions.rollback(world.platform, "fixed", by="bob", comment="", break_glass="")
    assert {file.name: file.read_bytes() for file in store.records("fixed").iterdir()} == before
    assert world.snapshots() == snapshots
    assert "fixed/bundle" in places(verify(world.platform, ["fixed"]))


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("approvals.json", b'"decided_by": "bob"', b'"decided_by": "boB"'),
        ("transitions.json", b'"to_state": "VALIDATED"', b'"to_state": "VALIDATEd"'),
        ("publications.json", b"[", b"{"),
        ("accepted_versions.json", b"", b"[]"),
        ("run.json", b'"requested_by": "ana"', b'"requested_by": "anna"'),
    ],
)
def test_a_rollback_that_damaged_evidence_refuses_leaves_nothing_wrong_once_the_file_is_put_back(
    world: World, name: str, before: bytes, after: bytes
) -> None:
    file = world.platform.evidence.path("fixed") / name
    raw = file.read_bytes() if file.exists() else b""
    overwrite(file, raw.replace(before, after, 1)) if raw else file.write_bytes(after)
    assert file.read_bytes() != raw
    with pytest.raises(PublicationRefused, match="was changed after it was sealed"):
        decisions.rollback(world.platform, "fixed", by="bob", comment="", break_glass="")
    assert places(verify(world.platform, ["fixed"]))[0] == f"fixed/bundle/{name}"
    overwrite(file, raw) if raw else file.unlink()
    done = verify(world.platform)
    assert [(one.where, one.what) for one in done.everything] == []
    assert all(run.notes == () for run in done.runs)
    assert link_events(world, "fixed")[-1] == "refused"
    assert examine(world.platform) == []
    assert decisions.rollback(world.platform, "fixed", by="bob", comment="", break_glass="").new
    assert verify(world.platform).everything == []


def test_a_refusal_that_an_earlier_version_recorded_over_damaged_evidence_is_noted_and_excuses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = world.platform.evidence.path("fixed") / "approvals.json"
    raw = file.read_bytes()
    overwrite(file, raw.replace(b'"decided_by": "bob"', b'"decided_by": "boB"'))
    with monkeypatch.context() as patch:
        patch.setattr(record_writing, "damaged_tables", lambda *_: frozenset())  # as it was recorded before
        with pytest.raises(PublicationRefused):
            decisions.rollback(world.platform, "fixed", by="bob", comment="", break_glass="")
    assert verify(world.platform, ["fixed"]).everything != []
    overwrite(file, raw)
    (run,) = verify(world.platform, ["fixed"]).runs
    assert run.problems == ()
    assert "was appended while the bundle was damaged" in run.notes[0]
    changed(world, "UPDATE approvals SET comment = 'ok' WHERE run_id = 'fixed' AND id = 2")
    found = places(verify(world.platform, ["fixed"]))
    assert found[0] == "ledger approvals 2 column comment"
    assert found[1].startswith("chain link")


@pytest.mark.parametrize("damage", ["emptied", "removed", "forged"])
def test_one_damaged_file_of_the_evidence_is_one_finding_and_nothing_is_compared_with_it(
    world: World, damage: str
) -> None:
    store = world.platform.evidence
    files = [*store.path("fixed").iterdir(), *store.records("fixed").iterdir()]
    assert len(files) > 15
    for file in files:
        raw = file.read_bytes()
        forged = {"emptied": b"", "removed": None, "forged": _forged(raw)}[damage]
        if file.name == "index.json" or forged == raw:
            continue
        overwrite(file, forged) if forged is not None else file.unlink()
        (run,) = verify(world.platform, ["fixed"], data=file.name in {"schema.json", "publish.json"}).runs
        found = [(problem.where, problem.what) for problem in run.problems]
        assert len(found) == 1, found
        assert found[0][0] == str(file.relative_to(store.folder))
        assert len(run.notes) == 1, run.notes
        assert "could not be compared" in run.notes[0]
        assert found[0][0] in run.notes[0]
        if forged is None:
            file.write_bytes(raw)
        else:
            overwrite(file, raw)
    assert verify(world.platform, data=True).everything == []


def _forged(raw: bytes) -> bytes:
    """Return what a file says of people, states, rows and times as somebody would rather have it."""
    for before, after in (
        (b'"bob"', b'"eve"'),
        (b'"ana"', b'"eve"'),
        (b'"COMMITTED"', b'"REFUSED"'),
        (b'"rows":1', b'"rows":2'),
        (b'"rows": 1', b'"rows": 2'),
        (b"2026-", b"2025-"),
        (b"20", b"19"),
    ):
        if before in raw:
            return raw.replace(before, after)
    return raw


def test_a_row_that_was_changed_by_hand_is_named_also_where_the_file_that_has_it_was(world: World) -> None:
    file = world.platform.evidence.path("fixed") / "approvals.json"
    overwrite(file, _forged(file.read_bytes()))
    changed(world, "UPDATE approvals SET decided_by = 'eve' WHERE run_id = 'fixed'")
    found = verify(world.platform, ["fixed"]).everything
    assert [one.where for one in found] == ["fixed/bundle/approvals.json", "ledger approvals 2"]
    assert not any("eve" in one.expected for one in found)


def test_a_table_that_was_changed_is_found_also_where_records_were(world: World) -> None:
    overwrite(world.platform.evidence.records("fixed") / "publish.json", b"")
    file = Path(local_path(world.platform.ledger.chunks("fixed")[1].files[0].path))
    raw = file.read_bytes()
    file.write_bytes(raw[:100] + bytes([raw[100] ^ 1]) + raw[101:])
    found = places(verify(world.platform, ["fixed"], data=True))
    assert found[0] == "fixed/records/publish.json"
    assert any(place.endswith(str(file)) for place in found)


def test_a_snapshot_that_a_collection_has_removed_is_noted_and_any_other_is_missed(world: World) -> None:
    table = world.platform.lakehouse.table(TARGET)
    gone = world.platform.ledger.publications("fixed")[0].snapshot_id
    names = [name for name, ref in table.refs().items() if ref.snapshot_id == gone and name != "main"]
    forget(table, refs=names, snapshot_ids=[gone])
    assert places(verify(world.platform, ["fixed"])) == [f"{TARGET} snapshot {gone}"]
    settings = load_settings(home=world.home, keep_snapshots_days=0)
    object.__setattr__(world.platform, "settings", settings)
    (problem,) = verify(world.platform, ["fixed"]).everything
    assert problem.what == "is gone, and no collection of garbage on record has removed it"
    planted = world.platform.evidence.records(GC) / "20260101T000000Z-planted-done.json"
    planted.parent.mkdir(parents=True)
    planted.write_text(canonical_json({"done": {"table": TARGET, "snapshots": [gone]}}))
    assert any(problem.where == f"{TARGET} snapshot {gone}" for problem in verify(world.platform, ["fixed"]).everything)
    planted.unlink()
    world.platform.evidence.append(
        GC, "20260102T000000Z-one-listed", {"listed": {"table": TARGET, "snapshots": [gone]}}
    )
    done = verify(world.platform, ["fixed"])
    assert done.everything == []
    assert any("has expired, as policy allows after 0 days" in note for note in done.runs[0].notes)


def test_a_changed_byte_of_a_published_file_is_found_with_data(world: World) -> None:
    chunk = world.platform.ledger.chunks("fixed")[0]
    file = Path(local_path(chunk.files[0].path))
    raw = file.read_bytes()
    for place in (100, len(raw) // 2, len(raw) - 100):  # rows, rows or footer, footer: the length is the same
        file.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        assert verify(world.platform, ["fixed"]).everything == []  # who does not read the rows cannot know
        found = verify(world.platform, ["fixed"], data=True).everything
        assert found[0].where == f"chunk 2010-02 {file}"
        assert found[0].what == "is not the file that was gated"
    file.unlink()
    (problem,) = verify(world.platform, ["fixed"], data=True).everything
    assert problem.what == "is missing, and a snapshot references it"


def test_other_rows_under_the_same_name_have_another_digest(world: World) -> None:
    files = [chunk.files[0] for chunk in world.platform.ledger.chunks("fixed")]
    first, second = (Path(local_path(file.path)) for file in files)
    first.write_bytes(second.read_bytes())
    found = [problem.what for problem in verify(world.platform, ["fixed"], data=True).everything]
    assert "has rows of another digest" in found


def test_a_footer_that_changed_after_its_gate_refuses_the_publication(world: World) -> None:
    chunk = world.platform.ledger.chunks("waiting")[0]
    assert len(chunk.files[0].sha256) == len(chunk.files[0].footer) == 64
    file = Path(local_path(chunk.files[0].path))
    raw = file.read_bytes()
    place = raw.rindex(b"parquet-mr")  # who wrote it: no reader cares
    file.write_bytes(raw[:place] + b"P" + raw[place + 1 :])
    with pytest.raises(PublicationRefused, match=r"the footer of .* has the SHA-256"):
        publish(world.platform, "waiting")
    assert world.platform.ledger.run("waiting").state is RunState.REJECTED


def test_a_sealed_run_that_was_not_published_is_held_against_its_bundle(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_at("publishing.sealed", monkeypatch):
        publish(world.platform, "waiting")
    moved(world.platform.ledger, "waiting", RunState.CANCELLED, "ana", "not needed any more")
    done = verify(world.platform, ["waiting"])
    assert done.everything == []
    assert "was not published" in done.runs[0].notes[0]
    changed(world, "UPDATE approvals SET decided_by = 'eve' WHERE run_id = 'waiting'")
    assert places(verify(world.platform, ["waiting"])) == ["ledger approvals 4 column decided_by"]


def test_a_run_published_before_there_was_a_chain_is_said_and_adopted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell_as_before(
        _platform: object, record: RunRecord, action: str, facts: dict[str, object], _number: int
    ) -> None:
        world.platform.evidence.append(record.run_id, action, facts)

    with monkeypatch.context() as patch:
        patch.setattr(publication, "bundle_files", lambda *_: {"plan.json": {"any": "plan"}, "chunks.json": []})
        patch.setattr(announcements, "tell", tell_as_before)
        patch.setattr(announcements, "catch_up", lambda *_, **__: None)
        publish(world.platform, "waiting")
    # as the upgrade does, which puts such a run under the journal
    monkeypatch.setattr(journal.Entry, "adopted", property(lambda one: one.run_id == "waiting"))
    monkeypatch.setattr(Moment, "is_adopted", lambda _, run_id: run_id == "waiting")
    done = verify(world.platform, ["waiting"])
    assert done.everything == []
    assert "before the evidence kept rows" in done.runs[0].notes[0]
    assert mend(world.platform)[1] == []
    assert link_events(world, "waiting") == ["adopted"]
    done = verify(world.platform)
    assert (done.everything, done.runs[-1].notes) == ([], ())
    changed(world, "UPDATE approvals SET decided_by = 'eve' WHERE run_id = 'waiting'")
    assert places(verify(world.platform, ["waiting"])) == ["ledger approvals 4 column decided_by"]


def test_the_command_says_what_is_wrong_and_exits_accordingly(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    run = CliRunner().invoke
    fine = run(cli, ["verify", "--all", "--data", "--json"])
    assert fine.exit_code == 0
    told = json.loads(fine.stdout)
    assert told["ok"] is True
    assert told["chain"]["head"] == world.platform.evidence.chain.read().head
    assert run(cli, ["verify", "fixed", "--head", told["chain"]["head"]]).exit_code == 0
    assert run(cli, ["verify", "fixed", "--head", START]).exit_code == 0
    assert run(cli, ["verify", "fixed", "--head", "f" * 64]).exit_code == EXIT_FAILED
    changed(world, "UPDATE verdicts SET summary = 'fine' WHERE run_id = 'fixed' AND gate = 'breach_totals_agree'")
    wrong = run(cli, ["verify", "fixed"])
    assert wrong.exit_code == EXIT_FAILED
    assert "column summary" in wrong.stdout
    assert "breaches recomputed" in wrong.stdout
    for refused in (["verify"], ["verify", "fixed", "--all"], ["verify", "nobody-knows"]):
        assert isinstance(run(cli, refused).exception, InputRefused)
    assert EXIT_REFUSED == 2


def test_a_file_that_polars_panics_at_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def panics(*_: Any, **__: Any) -> Any:
        raise pl.exceptions.PanicException("called `Option::unwrap()` on a `None` value")

    monkeypatch.setattr(pl, "read_parquet", panics)
    storage: Any = SimpleNamespace(content=lambda _, **__: b"PAR1")
    sealed: Any = SimpleNamespace(target=SimpleNamespace(key=("meter",)))
    chunk = {"files": [{"path": "file:///x.parquet", "bytes": 4}], "derived": [], "digest": ""}
    (found,) = proof.check_rows(storage, sealed, chunk, ()).problems
    assert found.what.startswith("cannot be read: PanicException: called `Option::unwrap()`")
