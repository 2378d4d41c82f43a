"""Receipts that have stopped after their files were on record: what the next one goes by, and what it decides anew."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest
from feed_world import Site, file_of, fresh_site, path_of, site_at, translate, with_changes

import backfill_assets as ba
from backfill_assets import faults
from backfill_assets.ingestion.table_loads import undo_load
from manifests.errors import EnvironmentRefused

SECOND = "20240103T060000"


class Died(BaseException):
    """The process ends."""


@pytest.fixture
def site() -> Site:
    return fresh_site()


def stopped(site: Site, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Receive what landed, and end at a point."""

    def reach(name: str) -> None:
        if name == point:
            raise Died

    with monkeypatch.context() as patched:
        patched.setattr(faults, "reach", reach)
        with pytest.raises(Died):
            site.receive()


def forge(site: Site, statement: str) -> None:
    with closing(sqlite3.connect(site.platform.settings.home / "ledger.db")) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE imports SET published_at = '2024-01-05 06:00:00.000000' WHERE status = 'SEEN'",
        "UPDATE imports SET business_date = '2023-12-31' WHERE status = 'SEEN'",
        "UPDATE imports SET decision = 'IGNORED', reason = 'the same' WHERE status = 'SEEN'",
    ],
    ids=["another time", "another date", "another decision"],
)
def test_nothing_is_loaded_because_of_an_entry_that_somebody_has_changed(
    site: Site, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    site.land(file_of(1, 2, 3))
    stopped(site, "receiving.recorded", monkeypatch)
    forge(site, statement)
    with pytest.raises(EnvironmentRefused, match=r"ledger imports 1 is not as it was last written"):
        site.receive()
    assert site.rows().height == 0
    assert site.statuses() == ["SEEN"]


def test_nothing_is_loaded_because_of_an_entry_that_somebody_has_made_up(site: Site) -> None:
    site.land(file_of(1, 2, 3))
    site.receive()
    columns = [name for name in site.entries[0].as_record() if name != "id"]
    forged = {
        "status": "'SEEN'",
        "published_at": "'2024-02-01 06:00:00.000000'",
        "load_id": "'forged'",
        "revision": "2",
    }
    values = ", ".join(forged.get(name, name) for name in columns)
    forge(site, f"INSERT INTO imports ({', '.join(columns)}) SELECT {values} FROM imports")
    with pytest.raises(EnvironmentRefused, match=r"ledger imports 2 is a row that no transaction"):
        site.receive()
    assert site.rows().height == 3


def test_nothing_is_read_again_or_revived_by_an_entry_that_somebody_has_changed(site: Site) -> None:
    site.land(file_of(1, 2, 3))
    site.land(file_of(1, 2, 3), path_of(at="20240104T060000"))
    site.receive()
    forge(site, "UPDATE imports SET published_at = '2024-01-09 06:00:00.000000' WHERE status = 'IGNORED'")
    with pytest.raises(EnvironmentRefused, match="ledger imports 2 is not as it was last written"):
        site.receive(again=[site.entries[1].file_id])
    site.land(file_of(5, 2, 3), path_of(at=SECOND))
    with pytest.raises(EnvironmentRefused, match="ledger imports 2 is not as it was last written"):
        site.receive()
    assert (site.statuses(), site.rows().height) == (["ACCEPTED", "IGNORED"], 3)


def test_a_receipt_that_stopped_and_is_as_it_was_is_brought_to_its_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.land(file_of(1, 2, 3))
    stopped(site, "receiving.recorded", monkeypatch)
    done = site.receive()
    assert (len(done.completed), site.statuses(), site.rows().height) == (1, ["ACCEPTED"], 3)


def stricter(records: Any, facts: ba.FileFacts) -> ba.Translated:
    """Translate as before, but for one meter."""
    made = translate(records, facts)
    kept = [(row, values) for row, values in made.rows if values["meter"] != "m3"]
    return ba.Translated(kept, [*made.rejected, ba.RejectedRecord(2, "no third meter")], made.refused)


@pytest.mark.parametrize("stops_again", ["", "given up"])
def test_files_of_a_receipt_that_stopped_are_decided_anew_by_rules_that_are_new(
    site: Site, monkeypatch: pytest.MonkeyPatch, stops_again: str
) -> None:
    site.land(file_of(1, 2, 3))
    site.land(file_of(4, 5, 6), path_of("20240105"))
    stopped(site, "receiving.quarantined", monkeypatch)
    new = site_at(site.platform.settings.home, with_changes(translate=stricter, translator_version="2.0.0"))
    if stops_again:  # between giving the old load up and deciding anew
        stopped(new, "receiving.kept", monkeypatch)
        assert new.statuses() == ["REJECTED", "REJECTED"]
    done = new.receive()
    assert (done.completed, new.rows()["meter"].sort().to_list()) == ((), ["m1", "m1", "m2", "m2"])
    assert new.statuses() == ["REJECTED", "REJECTED", "ACCEPTED", "ACCEPTED"]
    assert {one.reason for one in new.entries[:2]} == {"its receipt had stopped, and was begun anew by other rules"}
    assert {one.translator_version for one in new.entries[2:]} == {"2.0.0"}
    assert new.rows("bronze.readings_quarantine")["reason"].to_list() == ["no third meter"] * 2
    assert [one.load_id for one in new.platform.lakehouse.loads("bronze.readings")] == [done.load_id]
    again = new.receive()
    assert (again.by_status, again.completed) == ({}, ()), "what was decided anew is decided"


def test_a_file_that_was_ignored_for_a_load_that_was_taken_back_is_decided_anew(site: Site) -> None:
    site.land(file_of(1, 2, 3))
    site.receive()
    site.land(file_of(1, 2, 3), path_of(at=SECOND))
    site.receive()
    first, ignored = site.entries
    assert (ignored.status, ignored.load_id) == ("IGNORED", "")
    undo_load(site.platform, "bronze.readings", first.load_id, by="ada", reason="the wrong meter")
    assert site.rows().height == 0
    site.land(file_of(1, 2, 3), path_of(at=SECOND))
    site.receive()
    assert site.statuses() == ["ACCEPTED", "IGNORED", "ACCEPTED"]
    assert site.rows()["file_id"].unique().to_list() == [site.entries[2].file_id]
    site.land(file_of(1, 2, 3))
    site.receive()  # the first one once more, which says from its own time on what the second one says
    assert site.statuses()[3:] == ["CORRECTION"]
    assert site.rows().group_by("file_id").len()["len"].to_list() == [3, 3]
