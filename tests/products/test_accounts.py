"""Accounts of a bank: three tables made of the changes of its database, from a landing to what is published, against the bank itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from change_world import Accounts, make_accounts

from backfill_assets.declarations.schema import dtypes
from backfill_assets.planning.resolve import plan_run
from backfill_assets.products.accounts import ACCOUNT_DAILY, ACCOUNT_HISTORY, ACCOUNT_STATE
from backfill_assets.products.accounts.generator import Bank
from backfill_assets.products.accounts.transforms import ACCOUNT
from backfill_assets.reconciliation.source_rows import SourceCompared, compared_with_source
from manifests.errors import InputRefused, PlanRefused

BEGUN = {
    "accept_gap": "the tables were empty when the slot was made: there is nothing to take a snapshot of",
    "by": "ana",
}
HISTORY, STATE, DAILY = ACCOUNT_HISTORY.name, ACCOUNT_STATE.name, ACCOUNT_DAILY.name


@pytest.fixture
def accounts(tmp_path: Path) -> Iterator[Accounts]:
    world = make_accounts(tmp_path / "home")
    yield world
    world.platform.ledger.close()


def told(row: dict[str, Any]) -> tuple[Any, ...]:
    """What an account is to the tables, of what the bank has of it."""
    opened = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=row["opened_at"])).date()
    contact = row.get("contact", row.get("email"))
    return str(row["account_id"]), opened, row["owner"], contact, Decimal(row["balance"]), row["note"], row.get("tier")


def rows_of(bank: Bank, lsn: int) -> list[tuple[Any, ...]]:
    return sorted((told(row) for row in bank.rows_at(lsn).values()), key=repr)


def published_history(accounts: Accounts, run_id: str) -> None:
    accounts.published(accounts.manifest(run_id, target={"table": HISTORY, "publishMode": "REPLACE_PARTITIONS"}))


def published_state(accounts: Accounts, run_id: str, mode: str, **more: Any) -> None:
    opened = accounts.table(HISTORY)["opened_on"]
    last = opened.max() + timedelta(days=31)
    days = {"start": opened.min().replace(day=1), "end": last.replace(day=1) - timedelta(days=1)}
    accounts.published(
        accounts.manifest(run_id, target={"table": STATE, "publishMode": mode, "publishRange": days, **more})
    )


def test_history_state_and_days_are_what_the_bank_had(accounts: Accounts) -> None:
    bank = Bank(21, accounts=12, truncates=0.02, seconds=20_000)
    bank.snapshot()
    bank.work(30)
    bank.evolve()
    bank.work(20)
    bank.evolve()
    bank.work(20)
    accounts.land(bank.messages, "first", **BEGUN)
    published_history(accounts, "history-1")
    history = accounts.table(HISTORY).to_dicts()
    for lsn, _ in bank.commits:
        there = [
            r for r in history if r["valid_from_lsn"] <= lsn and (r["valid_to_lsn"] is None or lsn < r["valid_to_lsn"])
        ]
        assert sorted((tuple(r[name] for name in ACCOUNT) for r in there), key=repr) == rows_of(bank, lsn), lsn
    published_state(accounts, "state-1", "REPLACE_PARTITIONS")
    assert state_of(accounts) == rows_of(bank, bank.lsn)
    first, last = bank.commits[0][1].date(), bank.commits[-1][1].date() - timedelta(days=1)
    target = {"table": DAILY, "publishMode": "REPLACE_PARTITIONS", "publishRange": {"start": first, "end": last}}
    accounts.published(accounts.manifest("daily-1", target=target))
    daily = accounts.table(DAILY).to_dicts()
    for day in (first + timedelta(days=number) for number in range((last - first).days + 1)):
        end = datetime.combine(day + timedelta(days=1), time(), UTC)
        until = max(lsn for lsn, at in bank.commits if at < end)
        found = [tuple(r[name] for name in ACCOUNT) for r in daily if r["day"] == day]
        assert sorted(found, key=repr) == rows_of(bank, until), day


def test_rows_of_the_source_are_held_against_what_is_published(accounts: Accounts, tmp_path: Path) -> None:
    bank = Bank(24, accounts=12, truncates=0, seconds=20_000)
    bank.snapshot()
    bank.evolve()
    bank.evolve()
    bank.work(40)
    accounts.land(bank.messages, **BEGUN)
    published_history(accounts, "history-1")
    then, file = bank.commits[20][0], tmp_path / "rows.parquet"

    def asked(rows: list[tuple[Any, ...]]) -> SourceCompared:
        kinds = {name: kind for name, kind in dtypes(ACCOUNT_HISTORY.model).items() if name in ACCOUNT}
        pl.DataFrame(rows, schema={name: kinds[name] for name in ACCOUNT}, orient="row").write_parquet(file)
        return compared_with_source(accounts.platform, HISTORY, file, ["account_id"], lsn=then, slice_column="owner")

    rows = rows_of(bank, then)
    found = asked(rows)
    assert found.agrees
    assert sum(one.source_rows for one in found.slices) == len(rows) > 3
    assert all(one.source_hash == one.target_hash for one in found.slices)
    changed = [
        *rows[2:],
        (rows[1][0], rows[1][1], rows[1][2], *rows[1][3:5], "another note", rows[1][6]),
        ("99", *rows[0][1:]),
    ]
    found = asked(changed)
    assert found.missing == ('{"account_id":"99"}',)
    assert found.surplus == (f'{{"account_id":"{rows[0][0]}"}}',)
    assert found.different == (f'{{"account_id":"{rows[1][0]}"}}',)
    of_owner = next(one for one in found.slices if one.value == rows[1][2])
    assert of_owner.different == 1
    pl.DataFrame({"account_id": ["1"]}).write_parquet(file)
    with pytest.raises(InputRefused, match="has no owner"):
        compared_with_source(accounts.platform, HISTORY, file, ["account_id"], slice_column="owner")


def state_of(accounts: Accounts) -> list[tuple[Any, ...]]:
    """The accounts that the published state has, without those that are closed."""
    rows = [row for row in accounts.table(STATE).to_dicts() if not row["is_closed"]]
    return sorted((tuple(row[name] for name in ACCOUNT) for row in rows), key=repr)


def test_later_changes_are_merged_by_account_and_an_account_that_is_closed_says_so(accounts: Accounts) -> None:
    bank = Bank(22, accounts=10, truncates=0, seconds=20_000)
    bank.snapshot()
    bank.work(30)
    bank.evolve()
    bank.evolve()
    accounts.land(bank.messages, "first", **BEGUN)
    published_history(accounts, "history-1")
    published_state(accounts, "state-1", "REPLACE_PARTITIONS")
    seen, done = bank.lsn, len(bank.messages)
    bank.work(15)
    accounts.land(bank.messages[done:], "second")
    changed = sorted(
        {str(one.key["account_id"]) for one in bank.messages[done:] if one.key and "account_id" in one.key}
    )
    published_history(accounts, "history-2")
    published_state(accounts, "state-2", "MERGE_BY_KEY", merge={"entities": changed})
    assert state_of(accounts) == rows_of(bank, bank.lsn) != rows_of(bank, seen)
    closed = [row for row in accounts.table(STATE).to_dicts() if row["is_closed"]]
    assert closed
    assert all(row["source_version"] <= bank.lsn for row in closed)


def test_a_version_that_no_reader_knows_is_refused_when_planning(accounts: Accounts) -> None:
    bank = Bank(23, accounts=6, truncates=0)
    bank.snapshot()
    bank.work(10)
    for one in bank.messages:
        if one.value and one.value.get("op") in {"c", "u"}:
            one.value["after"]["nickname"] = "new"
    accounts.land(bank.messages, **BEGUN)
    with pytest.raises(PlanRefused, match=r"unknown: .*nickname"):
        plan_run(
            accounts.platform,
            accounts.manifest("history-1", target={"table": HISTORY, "publishMode": "REPLACE_PARTITIONS"}),
        )
