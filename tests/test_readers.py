"""What readers get is what was accepted: forged metadata is found and named, and what lawful people do is no alarm."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from backfill_assets import records
from backfill_assets.platform import Platform
from backfill_assets.publication import publish
from backfill_assets.verification import verify
from benchmarks import small_table
from benchmarks.forgeries import FORGERIES, Forged, Forger
from benchmarks.histories import History
from benchmarks.small_table import HISTORY, READINGS, manifest, planned, staged
from benchmarks.tampering import Copies, change_tables, installation, lawful_histories

SEED = 20120131


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Platform, Copies]]:
    """Runs of several modes over one table, published, accepted under a name, and rolled back."""
    folder = tmp_path_factory.mktemp("readers")
    with installation(folder) as platform:
        yield platform, Copies(platform, folder)


@pytest.fixture
def platform(made: tuple[Platform, Copies]) -> Iterator[Platform]:
    yield made[0]
    made[1].put_back()


@pytest.fixture
def unsealed(tmp_path: Path) -> Iterator[Platform]:
    """A run that was sealed and recorded without its tables' columns and metadata files, as by earlier versions."""

    def files(*arguments: Any) -> dict[str, Any]:
        return {name: said for name, said in bundle(*arguments).items() if name != records.SCHEMA_FILE}

    bundle = records.bundle_files
    with small_table.declared():
        found = small_table.opened(tmp_path / "home")
        small_table.initialise(found)
        planned(found, manifest("old", "REPLACE_PARTITIONS", HISTORY))
        staged(found, "old")
        with (
            mock.patch("backfill_assets.publication.bundle_files", files),
            mock.patch.object(records, "commits_of", return_value=[]),
        ):
            publish(found, "old")
        yield found
        small_table.closed(found)


def said(platform: Platform, *, data: bool = True) -> list[str]:
    return [f"{one.where}: {one.what}" for one in verify(platform, data=data).everything]


def test_what_nobody_touched_is_what_readers_get(platform: Platform) -> None:
    done = verify(platform, data=True)
    assert done.everything == []
    published = done.runs[:6]
    assert all(run.notes == () for run in published)
    assert [run.chunks_read for run in published] == [4, 2, 1, 2, 1, 1]


def test_each_kind_of_forgery_of_a_table_is_found_and_named(made: tuple[Platform, Copies]) -> None:
    outcome = change_tables(*made, len(FORGERIES), SEED)
    assert (outcome.unnoticed, outcome.unnamed) == ([], [])
    assert set(outcome.made.values()) == {1}
    assert verify(made[0], data=True).everything == []  # each was put back


def test_lawful_histories_raise_no_alarm() -> None:
    steps, alarms = lawful_histories(2, SEED)
    assert alarms == []
    assert steps > 4


@pytest.mark.parametrize(
    ("forgery", "names"),
    [
        (Forger.swapped_columns, "readers find it under another name"),
        (Forger.partition_value, "partition day_month"),
        (Forger.narrowed_bounds, " bound of "),
        (Forger.record_count, "record_count"),
        (Forger.changed_copy, "readers get rows of another digest"),
        (Forger.appended, "never committed it"),
    ],
)
def test_what_was_published_before_metadata_was_sealed_is_held_against_its_rows(
    unsealed: Platform, forgery: Callable[[Forger], Forged], names: str
) -> None:
    (run,) = verify(unsealed, data=True).runs
    assert run.problems == ()
    assert "did not seal columns and metadata files" in run.notes[0]
    forgery(Forger(unsealed, random.Random(SEED)))
    assert any(names in one for one in said(unsealed))


def test_a_column_that_the_table_gets_later_is_no_alarm(platform: Platform) -> None:
    History(platform, random.Random(SEED)).with_a_column()
    assert said(platform) == []


def test_rows_rewritten_by_another_program_are_read_and_compared(platform: Platform) -> None:
    History(platform, random.Random(SEED)).compacted()
    plain, read = verify(platform), verify(platform, data=True)
    assert plain.everything == read.everything == []
    assert any("--data says whether they are the same" in note for run in plain.runs for note in run.notes)
    assert not any("--data" in note for run in read.runs for note in run.notes)


def test_the_metadata_files_of_each_change_are_in_the_evidence(platform: Platform) -> None:
    found = records.records_of(platform, "run-5")
    commits = [one for record in found for one in record.content.get("committed", [])]
    assert [one["summary"]["backfill.action"] for one in commits] == ["publish", "rollback"]
    for one in commits:
        files = [one["manifestList"], *one["manifests"], one["metadata"]]
        assert all(len(file["sha256"]) == 64 for file in files)
        assert one["manifests"]
        assert one["fields"]["1"][0] == "meter"
    both = [one for record in records.records_of(platform, "run-4") for one in record.content.get("committed", [])]
    assert [one["table"] for one in both] == ["silver.readings_corrections", READINGS]
