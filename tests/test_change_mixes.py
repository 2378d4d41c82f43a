"""Changes delivered in disorder, doubled, in pieces, with gaps and lies: each mix ends equal to the bank, or is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from change_world import CHANGES, Accounts, delivery, make_accounts
from worlds import keep

from backfill_assets.declarations.changes import UNAVAILABLE, state_at
from backfill_assets.ingestion.landed_changes import land_changes
from backfill_assets.products.accounts import BANK
from backfill_assets.products.accounts.generator import Bank, Message
from backfill_assets.testing.sessions import spark_sessions
from manifests.errors import InputRefused
from manifests.log_ranges import joined
from manifests.model import Mode

ROW = "account_id bigint, owner string, email string, balance string, opened_at bigint, note string"
NAMES = ("account_id", "owner", "email", "balance", "opened_at", "note")
NAMED = ("missing", "delivered twice", "ends at", "both end at", "more changes than its end", "may be quarantined")
"""What a refusal names."""
SHORT, LONG = 6, 100


@pytest.fixture(scope="module")
def put_back(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Accounts]]:
    folder = tmp_path_factory.mktemp("mixes")
    world = make_accounts(folder / "home")
    back = keep(world, folder / "copy")
    yield back  # type: ignore[misc]
    world.platform.ledger.close()


def mixed(seed: int) -> tuple[Bank, list[list[Message | str]]]:
    """Return a bank, and its messages in files: cut, doubled, shuffled, and in half of the mixes with something lost or forged."""
    draw = Random(seed)
    bank = Bank(seed, accounts=8, truncates=0.05)
    bank.work(8)
    bank.messages.clear()
    bank.snapshot()
    bank.work(30)
    messages: list[Message | str] = list(bank.messages)
    for _ in range(draw.choice((0, 0, 1, 3)) if seed % 2 else 0):
        place = draw.randrange(len(messages))
        one = messages[place]
        if draw.random() < 0.7 or not isinstance(one, Message) or not one.value or "op" not in one.value:
            if (
                isinstance(one, Message)
                and one.value
                and one.value.get("op") == "r"
                and one.value["source"]["snapshot"] != "last"
            ):
                continue  # shows in no position; comparing with the source finds it
            messages[place : place + draw.choice((1, 1, 9))] = []
        elif one.value["after"]:
            forged = one.value | {"after": one.value["after"] | {"owner": "forged"}}
            messages.insert(place, Message(one.key, forged))
    files: list[list[Message | str]] = []
    cuts = sorted(draw.sample(range(1, len(messages)), draw.randrange(5)))
    for begin, end in zip([0, *cuts], [*cuts, len(messages)], strict=True):
        part = messages[max(0, begin - draw.choice((0, 4, 20))) : end]
        part += draw.sample(part, len(part) // draw.choice((3, 10, 1_000)))
        if draw.random() < 0.6:
            draw.shuffle(part)
        if draw.random() < 0.1:
            part.insert(draw.randrange(len(part) + 1), '{"value": {"op": "c"')
        files.append(part)
    draw.shuffle(files)
    return bank, files


def replayed(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Fold landed changes in plain loops, without values that were not sent."""
    found: dict[int, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda one: (one["commit_lsn"], one["lsn"], one["position"])):
        if row["op"] == "t":
            found.clear()
        elif row["op"] == "d":
            found.pop(json.loads(row["key"])["account_id"], None)
        else:
            found[json.loads(row["key"])["account_id"]] = json.loads(row["after"])
    return found


def require_equal(accounts: Accounts, bank: Bank, *, in_spark: bool) -> int:
    """Hold what is landed against the bank at the position that it reaches; return that."""
    ranges = joined(one.range for one in accounts.ranges())
    if not ranges:
        return 0
    assert len(ranges) == 1, ranges
    reach = ranges[0].until - 1
    rows = accounts.table(CHANGES).to_dicts()
    true = bank.rows_at(reach)
    for key, row in (found := replayed(rows)).items():
        for name, value in row.items():
            assert value in UNAVAILABLE or value == true[key][name], (key, name)
    assert set(found) == set(true)
    if in_spark:
        spark = spark_sessions().session(Mode.BACKFILL)
        columns = ("commit_lsn", "lsn", "position", "op", "key", "before", "after", "committed_at")
        schema = "commit_lsn long, lsn long, position long, op string, key string, before string, after string, committed_at timestamp"
        frame = spark.createDataFrame([tuple(row[name] for name in columns) for row in rows], schema)
        states = {row["account_id"]: row for row in state_at(frame, ROW).collect()}
        assert {key: tuple(row[name] for name in NAMES) for key, row in states.items()} == {
            key: tuple(row[name] for name in NAMES) for key, row in true.items()
        }
    return reach


def ends(accounts: Accounts, folder: Path, seed: int, *, in_spark: bool = False) -> str:
    """Deliver the files of a mix one after another, and land after each; return how it ended."""
    bank, files = mixed(seed)
    refused = ""
    for number in range(len(files)):
        delivery(folder, files[: number + 1])
        before = accounts.table(CHANGES).height
        try:
            land_changes(accounts.platform, BANK.name, folder)
            refused = ""
        except InputRefused as refusal:
            refused = str(refusal)
            assert any(name in refused for name in NAMED), refused
            assert accounts.table(CHANGES).height == before
    reach = require_equal(accounts, bank, in_spark=in_spark)
    if refused:
        return "refused"
    if not reach:
        return "nothing was whole"
    return "equal" if reach == bank.commits[-1][0] else "equal as far as it was delivered"


def run(put_back: Callable[[], Accounts], folder: Path, seeds: range) -> dict[str, int]:
    counted: dict[str, int] = {}
    for seed in seeds:
        accounts = put_back()
        how = ends(accounts, folder / str(seed), seed, in_spark=seed % 10 == 1)
        counted[how] = counted.get(how, 0) + 1
        if seed % 2 == 0:  # nothing was lost or forged
            assert how == "equal", seed
    return counted


def test_a_few_mixes_end_equal_or_are_refused_by_name(put_back: Callable[[], Accounts], tmp_path: Path) -> None:
    assert run(put_back, tmp_path, range(SHORT)).get("equal", 0) >= SHORT // 2


@pytest.mark.exhaustive
def test_a_hundred_mixes_end_equal_or_are_refused_by_name(put_back: Callable[[], Accounts], tmp_path: Path) -> None:
    counted = run(put_back, tmp_path, range(LONG))
    assert sum(counted.values()) == LONG
    assert counted["equal"] >= LONG // 2
    assert counted["refused"] >= LONG // 10
    print(counted, f"{datetime.now(UTC):%H:%M}")
