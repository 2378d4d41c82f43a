"""Evidence is sealed once, never rewritten, and one changed byte in it is detected."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support import NO_FILES, a_plan, at_once, put_folder

from manifests.errors import EnvironmentRefused, PublicationRefused
from resources.evidence import store as evidence
from resources.evidence.store import INDEX, EvidenceStore, examine

RUN = "restate-2012"
FILES: dict[str, Any] = {
    "plan.json": a_plan(),
    "chunks.json": [{"chunk": "2012-01", "rows": 3}],
    "approvals.json": [{"by": "Zoë", "at": datetime(2024, 5, 1, 12, tzinfo=UTC)}],
}


@pytest.fixture
def store(tmp_path: Path) -> EvidenceStore:
    return EvidenceStore(tmp_path / "evidence")


@pytest.fixture
def root(store: EvidenceStore) -> str:
    return store.seal(RUN, FILES)


def writable(file: Path) -> Path:
    file.chmod(0o644)
    return file


def test_a_sealed_bundle_holds_every_file_as_readable_json(store: EvidenceStore, root: str) -> None:
    folder = store.path(RUN)

    assert {file.name for file in folder.iterdir()} == {*FILES, INDEX}
    assert json.loads((folder / "chunks.json").read_text()) == FILES["chunks.json"]
    assert json.loads((folder / "approvals.json").read_text()) == [{"at": "2024-05-01T12:00:00Z", "by": "Zoë"}]
    assert json.loads((folder / "plan.json").read_text())["run_id"] == RUN


def test_a_sealed_bundle_is_verified_to_its_root(store: EvidenceStore, root: str) -> None:
    assert len(root) == 64
    assert store.verify(RUN) == root


@pytest.mark.parametrize("name", ["bundle", "bundle-9"])
def test_a_bundle_that_nobody_has_sealed_is_not_taken_for_one(store: EvidenceStore, tmp_path: Path, name: str) -> None:
    elsewhere = EvidenceStore(tmp_path / "elsewhere")
    elsewhere.seal(RUN, FILES | {"chunks.json": []})
    planted = store.folder / RUN / name
    shutil.copytree(elsewhere.path(RUN), planted)

    with pytest.raises(PublicationRefused, match=f"no link of the chain vouches for {name} in"):
        store.seal(RUN, FILES)

    assert store.chain.length() == 0
    shutil.rmtree(planted)
    root = store.seal(RUN, FILES)
    assert store.seal(RUN, FILES) == root
    shutil.copytree(elsewhere.path(RUN), store.folder / RUN / "bundle-9")
    with pytest.raises(PublicationRefused, match="no link of the chain vouches for bundle-9 in"):
        store.verify(RUN)


def test_the_same_content_has_the_same_root_wherever_it_is_sealed(
    store: EvidenceStore, root: str, tmp_path: Path
) -> None:
    backwards = dict(reversed(FILES.items()))

    assert EvidenceStore(tmp_path / "elsewhere").seal(RUN, backwards) == root


@pytest.mark.parametrize("change", [{"chunks.json": []}, {"more.json": 1}])
def test_other_content_has_another_root(
    store: EvidenceStore, root: str, tmp_path: Path, change: dict[str, Any]
) -> None:
    assert EvidenceStore(tmp_path / "elsewhere").seal(RUN, FILES | change) != root


def test_sealing_again_after_a_crash_keeps_the_first_bundle(store: EvidenceStore, root: str) -> None:
    assert store.seal(RUN, FILES | {"chunks.json": ["computed again"]}) == root
    assert json.loads((store.path(RUN) / "chunks.json").read_text()) == FILES["chunks.json"]


def test_a_process_that_died_while_sealing_leaves_nothing_in_the_way(store: EvidenceStore) -> None:
    for pid in (os.getpid(), 1):
        partial = store.path(RUN).with_name(f"bundle.partial-{pid}")
        partial.mkdir(parents=True)
        (partial / "chunks.json").write_text("half a fi")

    root = store.seal(RUN, FILES)
    assert store.verify(RUN) == root


def test_whoever_seals_after_a_process_that_died_before_the_bundle_had_its_name_appends_no_second_link(
    store: EvidenceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path, _: Path) -> Path:
        raise OSError(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)
        with pytest.raises(OSError, match="partial"):
            store.seal(RUN, FILES)
    root = store.seal(RUN, FILES)
    assert [(link["bundle"], link["root"]) for link in store.chain.contents()] == [("bundle", root)]


def test_of_two_processes_that_seal_the_same_at_once_one_appends_a_link(
    store: EvidenceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.exists

    def overtaken(path: Path) -> bool:
        there = real(path)
        if path.name == "bundle" and store.chain.length() == 0:  # it has looked, and another one seals
            monkeypatch.setattr(Path, "exists", real)
            EvidenceStore(store.folder).seal(RUN, FILES)
        return there

    monkeypatch.setattr(Path, "exists", overtaken)
    root = store.seal(RUN, FILES)
    assert [link["root"] for link in store.chain.contents()] == [root]
    assert [folder.name for folder in store.path(RUN).parent.iterdir()] == ["bundle"]


def test_of_two_processes_that_seal_at_once_the_first_bundle_stays(
    store: EvidenceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, first = evidence.sync_folder, []

    def overtaken(folder: Path) -> None:
        monkeypatch.setattr(evidence, "sync_folder", sync)
        first.append(store.seal(RUN, FILES | {"chunks.json": ["the other's"]}))
        sync(folder)

    monkeypatch.setattr(evidence, "sync_folder", overtaken)
    assert [store.seal(RUN, FILES)] == first
    assert [folder.name for folder in store.path(RUN).parent.iterdir()] == ["bundle"]


def test_a_bundle_that_cannot_be_written_whole_is_not_there(store: EvidenceStore) -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        store.seal(RUN, FILES | {"zone.json": datetime(2024, 5, 1)})  # noqa: DTZ001 - that is the point
    assert not store.path(RUN).exists()


def test_nobody_writes_into_a_sealed_file_by_accident(store: EvidenceStore, root: str) -> None:
    assert all(file.stat().st_mode & 0o222 == 0 for file in store.path(RUN).iterdir())


@pytest.mark.parametrize("name", [*FILES, INDEX])
def test_one_changed_byte_anywhere_is_detected(store: EvidenceStore, root: str, name: str) -> None:
    file = writable(store.path(RUN) / name)
    raw = file.read_bytes()
    unnoticed = []
    for place in range(0, len(raw), max(1, len(raw) // 150)):
        file.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        try:
            store.verify(RUN)
        except PublicationRefused:
            continue
        unnoticed.append(raw[:place].decode()[-20:])
    file.write_bytes(raw)

    assert unnoticed == []
    assert store.verify(RUN) == root


def test_a_changed_file_is_named(store: EvidenceStore, root: str) -> None:
    file = writable(store.path(RUN) / "chunks.json")
    file.write_text(file.read_text().replace("3", "4"))

    with pytest.raises(PublicationRefused, match=r"was changed after it was sealed: chunks\.json"):
        store.verify(RUN)
    with pytest.raises(PublicationRefused, match=r"was changed after it was sealed: chunks\.json"):
        store.seal(RUN, FILES)


def test_a_missing_file_is_named(store: EvidenceStore, root: str) -> None:
    (store.path(RUN) / "plan.json").unlink()

    with pytest.raises(PublicationRefused, match=r"plan\.json"):
        store.verify(RUN)


def test_an_added_file_is_named(store: EvidenceStore, root: str) -> None:
    (store.path(RUN) / "excuse.json").write_text("{}")

    with pytest.raises(PublicationRefused, match=r"excuse\.json"):
        store.verify(RUN)


def test_an_added_folder_is_named(store: EvidenceStore, root: str) -> None:
    (store.path(RUN) / "more").mkdir()

    with pytest.raises(PublicationRefused, match="more"):
        store.verify(RUN)


def test_a_missing_index_is_refused(store: EvidenceStore, root: str) -> None:
    (store.path(RUN) / INDEX).unlink()

    with pytest.raises(PublicationRefused, match=RUN):
        store.verify(RUN)


def test_a_bundle_that_was_never_sealed_is_refused(store: EvidenceStore) -> None:
    with pytest.raises(PublicationRefused, match="never-sealed"):
        store.verify("never-sealed")


def test_the_bundle_of_another_run_does_not_pass_for_this_runs(store: EvidenceStore, root: str) -> None:
    shutil.copytree(store.path(RUN), store.path("another-run"))

    with pytest.raises(PublicationRefused):
        store.verify("another-run")


def test_a_change_that_was_hashed_again_has_another_root_than_the_published_one(
    store: EvidenceStore, root: str, tmp_path: Path
) -> None:
    forged = EvidenceStore(tmp_path / "forged")
    forged.seal(RUN, FILES | {"chunks.json": [{"chunk": "2012-01", "rows": 4}]})
    shutil.rmtree(store.path(RUN))
    shutil.copytree(forged.path(RUN), store.path(RUN))

    assert store.verify(RUN) != root, "the root in the snapshot's summary gives it away"


def test_what_happens_later_is_added_beside_the_bundle_and_leaves_it_alone(store: EvidenceStore, root: str) -> None:
    file = store.append(RUN, "publish", {"snapshot_id": 5, "root": root})

    assert json.loads(file.read_text()) == {"root": root, "snapshot_id": 5}
    assert file.stat().st_mode & 0o222 == 0
    assert store.verify(RUN) == root


def test_a_record_is_never_rewritten(store: EvidenceStore, root: str) -> None:
    first = store.append(RUN, "publish", {"at": 1}).read_bytes()

    assert store.append(RUN, "publish", {"at": 2}).read_bytes() == first


@pytest.mark.parametrize("put", NO_FILES)
@pytest.mark.parametrize("name", ["chunks.json", "added.json", INDEX])
def test_what_is_no_file_in_a_bundle_is_named_and_never_waited_for(
    store: EvidenceStore, root: str, name: str, put: Callable[[Path], None]
) -> None:
    place = store.path(RUN) / name
    place.unlink(missing_ok=True)
    put(place)
    with at_once(), pytest.raises(PublicationRefused, match=name):
        store.verify(RUN)


@pytest.mark.parametrize("put", [put for put in NO_FILES if put is not put_folder])
def test_what_is_no_folder_in_a_bundles_place_is_named(store: EvidenceStore, put: Callable[[Path], None]) -> None:
    planted = store.path(RUN, 1)
    planted.parent.mkdir(parents=True)
    put(planted)
    with at_once():
        assert [one.name for one in examine(planted, RUN)[1]] == ["."]


def test_an_index_that_is_nested_too_deeply_is_one_that_was_changed(store: EvidenceStore, root: str) -> None:
    writable(store.path(RUN) / INDEX).write_text("[" * 100_000)
    assert [one.name for one in examine(store.path(RUN), RUN)[1]] == [INDEX]


@pytest.mark.parametrize("put", NO_FILES)
def test_nothing_vouches_for_a_record_that_is_no_file(store: EvidenceStore, put: Callable[[Path], None]) -> None:
    store.append(RUN, "diff", {"changed": 1})
    place = store.records(RUN) / "diff-2.json"
    put(place)
    with at_once(), pytest.raises(EnvironmentRefused, match=place.name):
        store.vouch_for(RUN, place)
