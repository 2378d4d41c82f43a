"""One chain for all hosts of a ledger: whoever looks for it at another place is refused before a second one is begun."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from small_s3 import Kept, SmallStore
from support import a_manifest, a_plan

from backfill_assets.audit.foreign_files import begun_bundles, interrupted, strange_files
from manifests.errors import EnvironmentRefused
from resources.evidence.probing import require_fit, require_one_chain
from resources.evidence.store import EvidenceStore
from resources.files.places import object_place
from resources.ledger.facade import Ledger

RUN, FILES = "restate-2012", {"plan.json": {}}


def opened(url: str, place: str | Path, server: SmallStore) -> tuple[Ledger, EvidenceStore]:
    """Return a ledger and its evidence as a process has them whose settings name this place."""
    ledger, store = Ledger(url), EvidenceStore.at(str(place), server.properties())
    ledger.journal.chain = store.chain
    return ledger, store


def plan(ledger: Ledger, run_id: str) -> None:
    manifest = a_manifest(run_id)
    ledger.record_plan(manifest, a_plan(manifest), "tests")


@pytest.mark.parametrize("first", ["home", "s3://tests/before"])
def test_evidence_that_was_not_moved_with_the_setting_gets_no_second_chain(
    small: SmallStore, tmp_path: Path, first: str
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger, store = opened(url, tmp_path / "evidence" if first == "home" else first, small)
    ledger.migrate()
    plan(ledger, "one")
    plan(ledger, "two")
    store.seal(RUN, FILES)
    assert store.chain.length() == 3
    late, moved = opened(url, "s3://tests/after", small)
    plan(late, "three")  # what is committed is committed; its link waits for the chain
    with pytest.raises(EnvironmentRefused, match=r"s3://tests/after/_chain has no link, and the ledger's entry 2"):
        moved.seal(RUN, FILES)
    with pytest.raises(EnvironmentRefused, match="has no link"):
        require_one_chain(moved)
    assert moved.chain.length() == 0
    assert late.journal.links_gone() > 0, "the newest entry knows of no link, and those before it do"
    plan(ledger, "four")
    links = [one for one in store.chain.contents() if one["event"] == "ledger"]
    assert [one["entry"] for one in links] == [1, 2, 4], "the next one covers what was committed meanwhile"


def test_a_chain_that_was_begun_beside_that_of_the_home_is_no_move(small: SmallStore, tmp_path: Path) -> None:
    EvidenceStore(tmp_path).seal(RUN, FILES)
    store = EvidenceStore(object_place("s3://tests/evidence", small.properties()))
    store.seal("another", FILES)
    with pytest.raises(EnvironmentRefused, match="s3://tests/evidence has another chain"):
        require_fit(store, tmp_path)


def test_a_bundle_that_was_begun_before_the_evidence_was_moved_is_noted_and_is_no_tampering(
    small: SmallStore, tmp_path: Path
) -> None:
    here = EvidenceStore(tmp_path)
    appended = EvidenceStore._link_bundle

    def killed(store: EvidenceStore, said: Mapping[str, Any], *, since: int) -> bool:
        appended(store, said, since=since)
        raise KeyboardInterrupt

    with mock.patch.object(EvidenceStore, "_link_bundle", killed), pytest.raises(KeyboardInterrupt):
        here.seal(RUN, FILES)
    (begun,) = begun_bundles(here, RUN)
    (left,) = interrupted(here, RUN)
    for file in tmp_path.rglob("*.json"):
        small.objects[f"evidence/{file.relative_to(tmp_path)}"] = Kept(file.read_bytes(), '"of a copy"', {})
    moved = EvidenceStore(object_place("s3://tests/evidence", small.properties()))
    assert begun_bundles(moved, RUN) == {begun}
    assert interrupted(moved, RUN) == [left]
    assert strange_files(moved, RUN) == []
    root = moved.seal(RUN, FILES | {"more.json": 1})
    assert [link["root"] for link in moved.chain.contents()] == [begun[1], root]
    assert begun_bundles(moved, RUN) == {begun, ("bundle", root)}
    assert interrupted(moved, RUN) == [left]
