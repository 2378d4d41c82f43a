"""What `backfill logs` says of gaps: what is missing, between which loads, what to do, and who has accepted what, when and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from change_world import CHANGES, Accounts, make_accounts
from click.testing import CliRunner
from test_archived_records import records
from test_landing_changes import a_bank, tail_of, whole
from topic_world import PRODUCT, TABLE

from backfill_assets.cli.command import cli
from backfill_assets.declarations import finding
from backfill_assets.defs.launch import initialise_instance
from backfill_assets.ingestion.table_loads import undo_load
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.products.accounts import BANK
from benchmarks.small_table import serves
from manifests.errors import EnvironmentRefused
from manifests.log_gaps import place_of_gap, positions_in_words
from manifests.log_ranges import (
    LandedLog,
    LandedRange,
    LogIdentity,
    LogKind,
    LogRange,
    going_on,
    lsn,
)
from resources.lakehouse.landed_logs import LandedLoad, accepted_gaps
from resources.lakehouse.loads import ACTOR_PROPERTY, LOAD_PROPERTY, LOG_PROPERTY, REASON_PROPERTY
from resources.settings import load_settings
from resources.spark.chunk_work import ThisProcess

LOG = LogIdentity(LogKind.KAFKA, "cluster-1", "orders", "id-1")
FIRST, SECOND, THIRD = (f"{TABLE.name}:{letter * 64}" for letter in "abc")


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Platform:
    monkeypatch.setattr(finding, "find_products", serves(PRODUCT))
    monkeypatch.setenv("BACKFILL_HOME", str(tmp_path / "home"))
    settings = load_settings()
    found = Platform.of(settings, [PRODUCT])
    initialise(found)
    initialise_instance(settings)
    return found


def land(platform: Platform, load_id: str, *ranges: LogRange, gap: Sequence[LogRange] = (), reason: str = "") -> None:
    """Make a load of ranges without a record, as a landing does."""
    before = [one.landed for one in platform.lakehouse.landed_loads(TABLE.name)]
    landed = going_on(LandedLog(LOG, tuple(LandedRange(one, 0) for one in ranges), tuple(gap)), before)
    said = {LOAD_PROPERTY: load_id, LOG_PROPERTY: landed.to_json(), ACTOR_PROPERTY: "ana"}
    platform.lakehouse.append(TABLE.name, [], said | ({REASON_PROPERTY: reason} if reason else {}))


def shown(log: str, *options: str) -> str:
    result = CliRunner().invoke(cli, ["logs", log, "--offline", *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_gap_of_a_topic_that_was_accepted_is_shown_with_who_when_why_and_the_load(platform: Platform) -> None:
    land(platform, FIRST, LogRange(0, 0, 40), LogRange(1, 0, 9))
    land(platform, SECOND, LogRange(0, 45, 50), gap=[LogRange(0, 40, 45)], reason="retention was a day too short")
    load = platform.lakehouse.landed_loads(TABLE.name)[1]
    said = shown("orders")
    assert (
        f"accepted gap: offsets 40 to 44 of partition 0 (5), by ana, {load.at:%Y-%m-%d %H:%M} UTC, "
        "with load bbbbbbbbbbbb: retention was a day too short" in said
    )
    assert "missing" not in said, "somebody has accepted it"
    (found,) = json.loads(shown("orders", "--json"))
    assert found["missing"] == []
    (gap,) = found["accepted_gaps"]
    assert gap["gap"] == [{"partition": 0, "start": 40, "until": 45}]
    assert (gap["load"], gap["snapshot"], gap["by"], gap["reason"], gap["landed_since"]) == (
        SECOND, load.snapshot_id, "ana", "retention was a day too short", [],
    )  # fmt: skip
    assert datetime.fromisoformat(gap["at"]) == load.at
    # some of it was found in an archive
    land(platform, THIRD, LogRange(0, 40, 42))
    assert "of it was landed since: offsets 40 to 41 of partition 0 (2)" in shown("orders")


@pytest.mark.parametrize("by", ["ana", None])
def test_who_accepts_a_gap_of_a_topic_is_who_was_named(
    platform: Platform, by: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_OPERATOR", "otto")
    monkeypatch.setattr(Platform, "workers", ThisProcess())
    land(platform, FIRST, LogRange(0, 0, 40))
    archive = tmp_path / "archive.parquet"
    records([45, 46]).write_parquet(archive)
    named = [] if by is None else ["--by", by]
    asked = ["land", "orders", "--archive", str(archive), "--accept-gap", "nobody has them", *named]
    assert (done := CliRunner().invoke(cli, asked)).exit_code == 0, done
    (found,) = json.loads(shown("orders", "--json"))
    (gap,) = found["accepted_gaps"]
    assert gap["gap"] == [{"partition": 0, "start": 40, "until": 45}]
    assert (gap["by"], gap["reason"]) == (by or "otto", "nobody has them")
    assert platform.lakehouse.landed_loads(TABLE.name)[-1].by == "otto", "who runs the command has landed it"
    refused = CliRunner().invoke(cli, [*asked[:6], "--by", "group:x"])
    assert "group:x" in str(refused.exception)


def test_what_is_missing_is_shown_with_its_loads_and_what_to_do(platform: Platform) -> None:
    land(platform, FIRST, LogRange(0, 0, 40))
    land(platform, SECOND, LogRange(0, 40, 45))
    land(platform, THIRD, LogRange(0, 45, 50))
    undo_load(platform, TABLE.name, SECOND, by="ana", reason="landed from a wrong archive")
    said = shown("orders")
    assert (
        "missing: offsets 40 to 44 of partition 0 (5), between load aaaaaaaaaaaa, ending with 39, and load "
        "cccccccccccc, beginning with 45" in said
    )
    assert "land it: `backfill land orders --from-offsets 0:40 --until-offsets 0:45`" in said
    assert "0 to 39, 45 to 49" in said
    (found,) = json.loads(shown("orders", "--json"))
    (gap,) = found["missing"]
    assert (gap["partition"], gap["gap"]) == (0, [40, 45])
    assert gap["where"].startswith("between load aaaaaaaaaaaa")


@pytest.fixture
def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Accounts]:
    monkeypatch.setenv("BACKFILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BACKFILL_PRODUCTS", '["backfill_assets.products.accounts:PRODUCT"]')
    world = make_accounts(tmp_path / "home")
    yield world
    world.platform.ledger.close()


def test_a_gap_of_a_changelog_that_was_accepted_is_shown_with_who_when_why_and_the_load(accounts: Accounts) -> None:
    units = whole(tail_of(a_bank(10)))

    def messages(*numbers: int) -> list[Any]:
        return [message for number in numbers for message in units[number]]

    accounts.land(messages(0, 1, 2), "first")
    done = accounts.land(messages(4, 5), "second", accept_gap="the slot was dropped on 3 May", by="eva")
    load = accounts.platform.lakehouse.landed_loads(CHANGES)[1]
    assert load.load_id == done.loads[0].load_id
    said = shown(BANK.name)
    where = f"from {lsn(load.gap[0].start)} until {lsn(load.gap[0].until)}"
    assert f"accepted gap: {where}, by eva, {load.at:%Y-%m-%d %H:%M} UTC, with load " in said
    assert ": the slot was dropped on 3 May" in said
    (found,) = json.loads(shown(BANK.name, "--json"))
    (gap,) = found["accepted_gaps"]
    assert (gap["by"], gap["reason"], gap["load"]) == ("eva", "the slot was dropped on 3 May", load.load_id)
    assert "are missing" in gap["what"]
    assert found["missing"] == []
    accounts.land(messages(6), "third")
    undo_load(accounts.platform, CHANGES, load.load_id, by="ana", reason="it was landed by mistake")
    said = shown(BANK.name)
    assert "accepted gap" not in said
    assert "missing: from" in said
    assert "deliver the files that have it: `backfill land bank_changes FOLDER`" in said


# --- words ------------------------------------------------------------------------------------------------------------


def test_positions_in_words() -> None:
    gaps = [LogRange(0, 4, 6), LogRange(0, 6, 9), LogRange(1, 1_000, 1_001)]
    assert positions_in_words(gaps) == "offsets 4 to 8 of partition 0 (5); offset 1,000 of partition 1"
    assert positions_in_words(gaps, most=1) == "offsets 4 to 8 of partition 0 (5) and 1 more"
    assert positions_in_words([LogRange(0, 4, 0x10)], LogKind.CHANGELOG) == "from 0/4 until 0/10"


def test_the_place_of_a_gap_is_said_by_the_loads_around_it() -> None:
    loads = {"one": [LogRange(0, 0, 4), LogRange(1, 0, 9)], "two": [LogRange(0, 6, 9)], "empty": [LogRange(2, 0, 0)]}
    assert place_of_gap(LogRange(0, 4, 6), loads) == "between load one, ending with 3, and load two, beginning with 6"
    assert place_of_gap(LogRange(0, 9, 12), loads) == "after load two, ending with 8"
    assert place_of_gap(LogRange(1, 9, 12), loads) == "after load one, ending with 8"
    assert place_of_gap(LogRange(0, 4, 6), {"two": loads["two"]}) == "before load two, beginning with 6"
    assert place_of_gap(LogRange(2, 0, 6), loads) == "no load has an offset of that partition"
    cut = {"before x:1": [LogRange(0, 0, 4)]}
    assert place_of_gap(LogRange(0, 4, 6), cut) == "after the loads before x:1, ending with 3"


def test_what_a_load_says_illegibly_of_its_gap_is_refused_by_name() -> None:
    landed = LandedLog(LogIdentity(LogKind.CHANGELOG, "1", "bank", "1"), (), (LogRange(0, 4, 6),))
    load = LandedLoad("one", 7, datetime(2026, 1, 1, tzinfo=UTC), landed, gap_said="{")
    with pytest.raises(EnvironmentRefused, match=r"load 'one' of bronze\.changes does not say legibly which gap"):
        accepted_gaps("bronze.changes", [load])
