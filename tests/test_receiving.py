"""Files that are published again: what each is taken for, what is kept of it, and what the table has in the end."""

from __future__ import annotations

import fcntl
import io
import json
import os
import tarfile
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from feed_world import FEED, Site, file_of, fresh_site, instant, path_of, site_at, translate, with_changes

import backfill_assets as ba
from backfill_assets.extraction.delivery_lists import read_list
from backfill_assets.ingestion.case_names import Choice
from backfill_assets.ingestion.file_history import files_on_record
from backfill_assets.ingestion.releases import quarantined_table, reject, release
from backfill_assets.ingestion.table_loads import undo_load
from backfill_assets.planning.quarantine_cases import cases_of
from manifests.errors import InputRefused
from resources.ledger.imports import ImportStatus

SECOND, THIRD = "20240103T060000", "20240104T060000"


@pytest.fixture
def site() -> Site:
    return fresh_site()


def test_the_first_file_of_a_date_is_accepted_and_its_rows_have_date_time_and_version(site: Site) -> None:
    place = site.land(file_of(10, 20, 30))
    done = site.receive()
    (entry,) = site.entries
    assert (entry.status, entry.decision, entry.rows, entry.revision, entry.attempt) == (
        "ACCEPTED",
        "ACCEPTED",
        3,
        1,
        1,
    )
    assert entry.schema_version == "readings/2"
    assert entry.file_id.startswith("20240101-00001-")
    assert site.rows()["file_id"].unique().to_list() == [entry.file_id]
    assert site.rows()["published_at"].unique().to_list() == [instant("20240102T060000")]
    assert site.as_of(instant("20240102T060000")) == {"2024-01-01": {"m1": 10, "m2": 20, "m3": 30}}
    assert site.archived("accepted") == {entry.content_hash}
    assert (site.platform.settings.home / "archive/accepted/readings" / entry.content_hash).read_bytes() == file_of(
        10, 20, 30
    )
    assert not place.exists(), "what is kept elsewhere is taken out of the landing folder"
    assert done.load_id == entry.load_id
    assert done.snapshot_id == entry.snapshot_id == site.platform.lakehouse.snapshot_id("bronze.readings")


def test_a_file_seen_again_is_ignored_a_correction_or_a_return_to_what_was_said_before(site: Site) -> None:
    site.land(file_of(1, 2, 3))
    site.land(file_of(1, 2, 3), path_of(at=SECOND))
    site.land(file_of(9, 2, 3), path_of(at=THIRD))
    site.land(file_of(1, 2, 3), path_of(at="20240105T060000"))
    site.receive()
    assert site.statuses() == ["ACCEPTED", "IGNORED", "CORRECTION", "CORRECTION"]
    assert "same bytes as 20240101-00001" in site.entries[1].reason
    assert site.as_of(instant(SECOND))["2024-01-01"]["m1"] == 1
    assert site.as_of(instant(THIRD))["2024-01-01"]["m1"] == 9
    assert site.as_of(instant("20240105T060000"))["2024-01-01"]["m1"] == 1


def test_a_batch_of_files_is_one_load_and_one_snapshot(site: Site) -> None:
    for number in range(1, 29):
        site.land(file_of(number, 2, 3), path_of(day=f"202402{number:02d}"))
    site.receive()
    assert len(site.platform.lakehouse.loads("bronze.readings")) == 1
    assert len({one.load_id for one in site.entries}) == 1
    assert site.rows().height == 28 * 3


def test_what_was_received_before_is_on_record_once_and_counted_each_time(site: Site) -> None:
    for _ in range(3):
        site.land(file_of())
        site.receive()
    (entry,) = site.entries
    assert entry.sightings == 3
    assert entry.last_seen > entry.first_seen
    assert site.rows().height == 3


def test_a_file_between_two_that_were_the_same_makes_the_later_one_a_version(site: Site) -> None:
    site.land(file_of(1, 2, 3))
    site.land(file_of(1, 2, 3), path_of(at=THIRD))
    site.receive()
    site.land(file_of(5, 2, 3), path_of(at=SECOND))
    site.receive()
    assert site.statuses() == ["ACCEPTED", "IGNORED", "CORRECTION", "CORRECTION"]
    assert site.entries[3].path == path_of(at=THIRD)
    assert [site.as_of(instant(at))["2024-01-01"]["m1"] for at in ("20240102T060000", SECOND, THIRD)] == [1, 5, 1]


def test_an_older_file_that_comes_late_is_known_at_its_own_time(site: Site) -> None:
    site.land(file_of(5, 2, 3), path_of(at=SECOND))
    site.receive()
    site.land(file_of(1, 2, 3))
    site.receive()
    assert site.statuses() == ["ACCEPTED", "CORRECTION"]
    assert "published before" in site.entries[1].reason
    assert site.as_of(instant("20240102T060000"))["2024-01-01"]["m1"] == 1
    assert site.as_of(instant(SECOND))["2024-01-01"]["m1"] == 5


def test_of_two_versions_published_at_one_time_the_one_accepted_last_counts(site: Site) -> None:
    site.land(file_of(1, 2, 3))
    site.receive()
    site.land(file_of(7, 2, 3))
    site.receive()
    first, second = site.entries
    assert first.published_at == second.published_at
    assert first.file_id < second.file_id
    assert site.as_of(instant("20240102T060000"))["2024-01-01"]["m1"] == 7


@pytest.mark.parametrize(
    ("day", "at", "why"),
    [
        ("99991230", SECOND, "it is about 9999-12-30"),
        ("90010101", SECOND, "it is about 9001-01-01"),
        ("00010101", SECOND, "it is about 0001-01-01"),
        ("20240101", "99991230T000000", "it was published on 9999-12-30"),
        ("20240101", "00010101T000000", "it was published on 0001-01-01"),
    ],
)
def test_a_file_with_a_date_that_no_run_could_be_asked_about_is_rejected(
    site: Site, day: str, at: str, why: str
) -> None:
    for _ in range(2):
        site.land(file_of(), path_of(day=day, at=at))
        site.receive()
    (entry,) = site.entries
    assert (entry.status, entry.sightings) == ("REJECTED", 2)
    assert entry.reason == f"{why}, and a day lies between 1000-01-01 and 9000-12-31"
    assert site.archived("rejected") == {entry.content_hash}
    site.land(file_of(), path_of(day="90001231"))
    site.land(file_of(), path_of(day="10000101"))
    site.receive()
    assert site.statuses() == ["REJECTED", "ACCEPTED", "ACCEPTED"]


def test_a_list_with_a_date_that_no_run_could_be_asked_about_rejects_that_file() -> None:
    site = fresh_site(INDEXED)
    site.land(file_of())
    site.land(
        _index(
            (path_of(), "0001-01-01T07:00:00+00:00", "", "here", "20240101"),
            (path_of(day="20240102"), "2024-01-02T07:00:00+01:00", "", "gone", "99991231"),
        ),
        "index-1.csv",
    )
    site.receive()
    assert {one.path: one.reason.split(",")[0] for one in site.entries} == {
        path_of(): "it was published on 0001-01-01",
        path_of(day="20240102"): "it is about 9999-12-31",
    }
    assert site.statuses() == ["REJECTED", "REJECTED"]


def test_a_feed_may_take_one_file_a_date_and_reject_others() -> None:
    site = fresh_site(with_changes(new_bytes=ba.NewBytes.REJECTED))
    site.land(file_of(1, 2, 3))
    site.receive()
    site.land(file_of(7, 2, 3), path_of(at=SECOND))
    done = site.receive()
    assert site.statuses() == ["ACCEPTED", "REJECTED"]
    assert "takes one file a date" in done.refused[path_of(at=SECOND)]
    assert site.archived("rejected") == {site.entries[1].content_hash}
    assert site.rows().height == 3


def test_an_accepted_file_that_is_asked_for_again_is_reprocessed_and_replaces_what_it_said(site: Site) -> None:
    site.land(file_of(1, 2, 3))
    site.receive()
    (first,) = site.entries
    site.receive(again=[first.file_id])
    second = site.entries[1]
    assert (second.status, second.attempt, second.revision) == ("REPROCESSED", 2, 2)
    assert second.content_hash == first.content_hash
    assert second.file_id > first.file_id
    assert site.rows().height == 6
    assert site.as_of(instant("20240102T060000")) == {"2024-01-01": {"m1": 1, "m2": 2, "m3": 3}}


def test_a_file_that_was_refused_is_taken_once_a_reader_knows_it() -> None:
    site = fresh_site()
    new_form = file_of(header="meter,kwh,remark")
    site.land(new_form)
    site.receive()
    (refused,) = site.entries
    assert refused.status == "REJECTED"
    reader = ba.FileReader("readings", "3", {"meter": "meter", "kwh": "kwh", "remark": "note"})
    later = site_at(site.platform.settings.home, with_changes(readers=(*FEED.readers, reader)))
    later.receive(again=[refused.file_id])
    assert [(one.status, one.schema_version, one.attempt) for one in later.entries] == [
        ("REJECTED", "", 1),
        ("ACCEPTED", "readings/3", 2),
    ]
    assert later.rows().height == 3


def test_few_bad_records_go_to_the_quarantine_and_many_take_the_whole_file_there(site: Site) -> None:
    site.land(file_of(1, "x", 3))
    site.land(file_of("y", "x", 3), path_of(day="20240102"))
    site.receive()
    assert site.statuses() == ["ACCEPTED", "QUARANTINED"]
    assert [one.rows for one in site.entries] == [2, 0]
    assert [one.rejected for one in site.entries] == [1, 2]
    found = site.rows("bronze.readings_quarantine").sort("source_file", "source_row")
    assert found["source_file"].to_list() == [path_of(), *[path_of(day="20240102")] * 2]
    assert set(found["reason"]) == {"kwh: a whole number"}
    assert json.loads(found["record"][0]) == {"meter": "m2", "kwh": "x", "note": None}


def test_a_record_of_a_file_is_not_released_alone(site: Site) -> None:
    site.land(file_of(1, "x", 3))
    site.receive()
    with pytest.raises(InputRefused, match=r"receive readings --again"):
        release(site.platform, "bronze.readings", Choice(everything=True), by="ada", reason="the rule was wrong")
    assert site.rows().height == 2


def test_rows_of_a_receipt_without_an_accepted_file_are_cases(site: Site) -> None:
    site.land(file_of("x", "y", "z"))
    assert dict(site.receive().by_status) == {"QUARANTINED": 1}
    found = cases_of(site.platform, quarantined_table(site.platform, "bronze.readings"))
    assert {case.rule for case in found.all.values()} == {"kwh: a whole number"}
    assert len(found.all) == 3


def test_a_copy_that_was_damaged_is_kept_anew_and_set_aside(site: Site) -> None:
    site.land(file_of(1, 2, 3))
    site.receive()
    (name,) = site.archived("accepted")
    place = site.platform.settings.home / "archive" / "accepted" / FEED.name / name
    place.chmod(0o644)
    place.write_bytes(b"")
    site.land(file_of(1, 2, 3))
    assert site.receive().seen_again == 1
    assert place.read_bytes() == file_of(1, 2, 3)
    assert len(site.archived("accepted")) == 2


def test_a_value_that_would_be_rounded_is_rejected_alone() -> None:
    def translated(records: Sequence[ba.RawRecord], facts: ba.FileFacts) -> ba.Translated:
        made = translate(records, facts)
        rows = [(number, {**row, "kwh": row["kwh"] if number else Decimal("1.5")}) for number, row in made.rows]
        return ba.Translated(rows, made.rejected)

    site = fresh_site(with_changes(translate=translated))
    site.land(file_of(1, 2, 3))
    site.receive()
    assert site.statuses() == ["ACCEPTED"]
    assert site.rows()["kwh"].to_list() == [2, 3]
    (row,) = site.rows("bronze.readings_quarantine").to_dicts()
    assert (row["source_row"], row["reason"]) == (0, "kwh: not Int64")


def test_a_rule_of_the_model_refuses_a_record_as_the_translator_does(site: Site) -> None:
    site.land(file_of(1, 2_000_000, 3))
    site.receive()
    (row,) = site.rows("bronze.readings_quarantine").to_dicts()
    assert (row["source_row"], row["detail"]) == (1, "kwh is 2000000")
    assert row["reason"].startswith("kwh: less_than_or_equal_to")


def test_a_translator_that_fails_quarantines_the_file_and_names_its_line(site: Site) -> None:
    site.land(b"meter,kwh,note\nraise,1,\nm2,2,\nm3,3,\n")
    site.land(file_of(), path_of(day="20240102"))
    site.receive()
    bad = next(one for one in site.entries if one.status is ImportStatus.QUARANTINED)
    assert "KeyError" in bad.reason
    assert "feed_world.py" in bad.reason
    assert site.rows().height == 3, "the other file is taken"


def test_files_come_by_archive_as_by_folder(site: Site, tmp_path: Path) -> None:
    archive = tmp_path / "history.tar.xz"
    with tarfile.open(archive, "w:xz") as made:
        for number in range(1, 6):
            member = tarfile.TarInfo(path_of(day=f"2024030{number}"))
            content = file_of(number, 2, 3)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
        other = tarfile.TarInfo("other/20240301.csv")
        made.addfile(other, io.BytesIO(b""))
    done = site.receive(archive)
    assert (dict(done.by_status), done.skipped) == ({"ACCEPTED": 5}, 1)
    assert archive.exists(), "what is named is left where it is"
    assert site.receive(archive).seen_again == 5


def test_a_load_of_files_that_was_taken_back_is_no_version_any_more(site: Site) -> None:
    site.land(file_of(1, 2, 3))
    done = site.receive()
    undo_load(site.platform, "bronze.readings", done.load_id, by="ada", reason="the producer has asked for it")
    (found,) = files_on_record(site.platform, FEED.name)
    assert found.taken_back_by == "ada"
    assert site.rows().height == 0
    site.land(file_of(1, 2, 3))
    site.receive()
    assert [(one.status, one.attempt) for one in site.entries] == [("ACCEPTED", 1), ("ACCEPTED", 2)]
    assert site.rows().height == 3


def test_one_receipt_of_a_feed_at_a_time(site: Site) -> None:
    site.receive()
    lock = os.open(site.platform.settings.home / "archive/accepted/.readings.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    site.land(file_of())
    with pytest.raises(InputRefused, match="somebody else receives the feed readings"):
        site.receive()
    os.close(lock)
    assert dict(site.receive().by_status) == {"ACCEPTED": 1}


@pytest.mark.parametrize(
    ("again", "said"),
    [("20240101-00001-nothing", "has no file"), ("", "has no file")],
)
def test_a_file_that_is_not_on_record_cannot_be_asked_for_again(site: Site, again: str, said: str) -> None:
    with pytest.raises(InputRefused, match=said):
        site.receive(again=[again])


def test_a_file_that_is_still_being_written_is_left_alone(site: Site) -> None:
    place = site.land(file_of(), f"{path_of()}.partial")
    assert site.receive().by_status == {}
    assert place.exists()


def test_a_file_that_comes_under_the_name_of_one_that_was_read_is_not_taken_away(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backfill_assets.ingestion import receiving

    place = site.land(file_of(1, 2, 3))

    def reach(point: str) -> None:
        if point == "receiving.settled":
            place.unlink()
            place.write_bytes(file_of(4, 5, 6))

    monkeypatch.setattr(receiving.faults, "reach", reach)
    site.receive()
    assert place.read_bytes() == file_of(4, 5, 6)
    monkeypatch.undo()
    site.receive()
    assert site.as_of(instant("20240102T060000"))["2024-01-01"] == {"m1": 4, "m2": 5, "m3": 6}


# --- a delivery index -------------------------------------------------------------------------------------------------

INDEXED = with_changes(
    time=ba.DeliveryIndex(
        "index-*.csv", "{path}", "published", "sha256", withdrawn=("what", "gone"), withdrawn_date="day"
    )
)


def _index(*rows: tuple[str, str, str, str, str]) -> bytes:
    lines = ["path,published,sha256,what,day", *(",".join(row) for row in rows)]
    return "\n".join(lines).encode()


def test_the_list_of_a_delivery_says_when_files_were_published_and_which_are_whole() -> None:
    import hashlib

    site = fresh_site(INDEXED)
    whole = hashlib.sha256(file_of(1, 2, 3)).hexdigest()
    site.land(file_of(1, 2, 3))
    site.land(file_of(9, 9, 9), path_of(day="20240102"))
    site.land(file_of(9, 9, 9), path_of(day="20240103"))
    list_ = _index(
        (path_of(), "2024-01-02T07:00:00+01:00", whole, "here", "20240101"),
        (path_of(day="20240102"), "2024-01-02T07:00:00+01:00", whole, "here", "20240102"),
        (path_of(day="20240104"), "2024-01-02T07:00:00+01:00", whole, "here", "20240104"),
    )
    site.land(list_, "index-1.csv")
    done = site.receive()
    by_path = {one.path: one for one in site.entries}
    assert by_path[path_of()].status == "ACCEPTED"
    assert by_path[path_of()].published_at == instant("20240102T060000")
    assert by_path[path_of()].manifest_id == hashlib.sha256(list_).hexdigest()
    assert "cut or changed on the way" in by_path[path_of(day="20240102")].reason
    assert "does not list it" in by_path[path_of(day="20240103")].reason
    assert done.not_delivered == 1
    assert hashlib.sha256(list_).hexdigest() in site.archived("accepted")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"path,when\nx,y\n", "has no column"),
        (_index((path_of(), "2024-01-02T07:00:00", "", "here", "20240101")), "without an offset"),
        (_index((path_of(), "yesterday", "", "here", "20240101")), "rows that cannot be used"),
        (_index((path_of(), "0001-01-01T00:00:00+01:00", "", "here", "20240101")), "rows that cannot be used"),
        (b"", "cannot be read"),
        (b"path,published,sha256,what,day\n", "lists nothing"),
    ],
    ids=["columns", "offset", "time", "before all time", "empty", "nothing"],
)
def test_a_list_that_cannot_be_used_refuses_the_receipt_and_nothing_is_written(
    tmp_path: Path, content: bytes, said: str
) -> None:
    site = fresh_site(INDEXED)
    place = site.land(file_of())
    site.land(content, "index-1.csv")
    with pytest.raises(InputRefused, match=said):
        site.receive()
    assert place.exists()
    assert site.entries == []


def test_a_list_of_json_that_says_a_member_twice_is_refused() -> None:
    names = ("path", "published", "sha256", "what", "day")
    once = dict(zip(names, (path_of(), "2024-01-02T07:00:00Z", "0" * 64, "here", "20240101"), strict=True))
    index = INDEXED.time
    assert isinstance(index, ba.DeliveryIndex)
    said = json.dumps([once])
    assert list(read_list("list.json", said.encode(), INDEXED, index).files) == [path_of()]
    with pytest.raises(InputRefused, match=r'list\.json has the member "published" twice'):
        read_list("list.json", said.replace("{", '{"published": "2023-01-01T00:00:00Z", ').encode(), INDEXED, index)


def test_without_its_list_a_delivery_is_refused() -> None:
    site = fresh_site(INDEXED)
    site.land(file_of())
    with pytest.raises(InputRefused, match="has a delivery index"):
        site.receive()


def test_rows_of_a_day_are_those_of_its_newest_version(site: Site) -> None:
    site.land(file_of(1, 2, 3))
    site.land(file_of(4, 5, 6), path_of(at=SECOND))
    site.receive()
    counted = site.rows().group_by("file_id").len().sort("file_id")
    assert counted["len"].to_list() == [3, 3]
    assert site.rows().schema["report_date"] == pl.Date


def test_a_file_that_is_named_twice_is_read_once_more_once(site: Site) -> None:
    site.land(file_of(1, 2, 3))
    site.receive()
    (entry,) = site.entries
    done = site.receive(again=[entry.file_id, entry.file_id])
    assert done.by_status == {"REPROCESSED": 1}
    assert site.statuses() == ["ACCEPTED", "REPROCESSED"]
    assert site.rows().height == 6


def test_a_rejected_case_of_a_feed_is_corrected_by_the_feed(site: Site) -> None:
    site.land(file_of(1, 2, "x"))
    site.receive()
    platform, table = site.platform, site.platform.products.input("bronze.readings")
    (case,) = cases_of(platform, table).all
    reject(platform, table.name, Choice((case,)), by="ada", reason="a test")
    with pytest.raises(InputRefused, match=r"have its file published again, corrected \(`backfill receive readings`\)"):
        release(platform, table.name, Choice((case,)), by="ada", reason="after all")
