"""Accounts of a bank: three tables made of the changes of its database, from a landing to what is published, against the bank itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from change_world import CHANGES, Accounts, make_accounts

from backfill_assets.audit.report import report
from backfill_assets.declarations.schema import dtypes
from backfill_assets.planning.resolve import plan_run
from backfill_assets.products.accounts import ACCOUNT_DAILY, ACCOUNT_HISTORY, ACCOUNT_STATE, BANK
from backfill_assets.products.accounts.generator import Bank, Message, log_facts
from backfill_assets.products.accounts.transforms import ACCOUNT
from backfill_assets.reconciliation.source_rows import SourceCompared, compared_with_source
from manifests.errors import InputRefused, PlanRefused
from manifests.log_breaks import InheritedBreaks
from manifests.log_ranges import Observation
from manifests.log_ranges import lsn as lsn_in_words
from manifests.model import RunManifest

BEGUN = {"facts": log_facts() | {"tables_were_empty": True}}
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


def month_end(day: Any) -> date:
    later: date = (day + timedelta(days=31)).replace(day=1)
    return later - timedelta(days=1)


def published_state(accounts: Accounts, run_id: str, mode: str, **more: Any) -> None:
    opened = accounts.table(HISTORY)["opened_on"]
    days = {"start": opened.min().replace(day=1), "end": month_end(opened.max())}
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
        key = ["account_id", "account_id"]  # named twice, as a command line may
        return compared_with_source(accounts.platform, HISTORY, file, key, lsn=then, slice_column="owner")

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


def test_of_a_history_that_was_replaced_as_a_whole_a_merge_computes_the_accounts_that_have_changed(
    accounts: Accounts,
) -> None:
    bank = Bank(25, accounts=24, truncates=0, seconds=20_000)
    bank.snapshot()
    bank.work(40)
    bank.evolve()
    bank.evolve()
    accounts.land(bank.messages, "first", **BEGUN)
    published_history(accounts, "history-1")
    published_state(accounts, "state-1", "REPLACE_PARTITIONS")
    since, done = accounts.platform.lakehouse.snapshot_id(HISTORY), len(bank.messages)
    bank.work(4)
    accounts.land(bank.messages[done:], "second")
    published_history(accounts, "history-2")
    changed = {str(one.key["account_id"]) for one in bank.messages[done:] if one.key and "account_id" in one.key}
    published_state(accounts, "state-2", "MERGE_BY_KEY", merge={"changedSince": since})
    assert state_of(accounts) == rows_of(bank, bank.lsn)
    merged = accounts.table(STATE).filter(pl.col("run_id") == "state-2")
    assert set(merged["account_id"].to_list()) == changed
    assert accounts.table(STATE)["account_id"].n_unique() > len(changed)


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


def begun_anew(bank: Bank, later: int = 6) -> list[Message]:
    """Have the bank work while nobody reads its log, and return what an engine delivers that begins with a new snapshot after that."""
    bank.work(25)
    done = len(bank.messages)
    bank.snapshot()
    bank.work(later)
    return bank.messages[done:]


def test_a_log_that_begins_anew_with_a_snapshot_is_published_as_observed_and_its_break_is_named(
    accounts: Accounts,
) -> None:
    bank = Bank(31, accounts=14, truncates=0, seconds=20_000)
    bank.snapshot()
    bank.evolve()
    bank.evolve()
    bank.work(30)
    accounts.land(bank.messages, "first", **BEGUN)
    known, known_at = bank.commits[-1]
    published_history(accounts, "history-1")
    published_state(accounts, "state-1", "REPLACE_PARTITIONS")
    messages = begun_anew(bank)
    accounts.land(messages, "anew", accept_gap="the slot was dropped", by="ana")
    again, again_at = next((lsn, at) for lsn, at in bank.commits if lsn == messages[0].value["source"]["lsn"])  # type: ignore[index]
    plan = plan_run(
        accounts.platform,
        accounts.manifest("history-2", target={"table": HISTORY, "publishMode": "REPLACE_PARTITIONS"}),
    ).plan
    (broken,) = plan.logs[0].breaks
    assert (broken.lost.start, broken.lost.until) == (known + 1, again)
    assert (broken.known_until, broken.again) == (known_at, Observation(again, again_at, (BANK.tables[0].name,)))
    said = dict(plan.logs[0].describe())["break"]
    assert said.startswith(f"nothing is known from LSN {lsn_in_words(known + 1)} until {lsn_in_words(again)}")
    published_history(accounts, "history-3")
    history = accounts.table(HISTORY).to_dicts()
    for lsn in [lsn for lsn, _ in bank.commits if lsn <= known or lsn >= again]:
        there = [
            r for r in history if r["valid_from_lsn"] <= lsn and (r["valid_to_lsn"] is None or lsn < r["valid_to_lsn"])
        ]
        assert sorted((tuple(r[name] for name in ACCOUNT) for r in there), key=repr) == rows_of(bank, lsn), lsn
    # nothing in the break has a time of its own: what it changed is observed at the snapshot, and says so
    assert not [r for r in history if known < r["valid_from_lsn"] < again or known < (r["valid_to_lsn"] or 0) < again]
    assert {r["is_observed"] for r in history if r["valid_from_lsn"] == again} == {True}
    ended = [r for r in history if r["valid_to_lsn"] == again]
    assert {(r["is_end_observed"], r["valid_to"]) for r in ended} == {(True, again_at)}
    assert {r["is_end_observed"] for r in history if r["valid_to_lsn"] not in {None, again}} == {False}
    # the state is merged: accounts that the snapshot lacks are closed as of the snapshot, observed
    names = sorted({r["account_id"] for r in history})
    published_state(accounts, "state-2", "MERGE_BY_KEY", merge={"entities": names})
    assert state_of(accounts) == rows_of(bank, bank.lsn)
    # whoever decides about what is computed from the history is told of the break behind it, and so is whoever asks later
    assert accounts.platform.ledger.run("state-1").plan.inherited_breaks == ()
    behind = accounts.platform.ledger.run("state-2").plan
    assert behind.inherited_breaks == (InheritedBreaks(HISTORY, CHANGES, (broken,)),)
    assert behind.of_logs() == [(f"break behind {HISTORY}", f"{broken.describe()} ({CHANGES})")]
    for name in ("history-3", "state-2"):
        page = report(accounts.platform, name)
        assert f"<dd>{broken.describe()}" in page, name
    assert "<dt>log bronze.account_changes</dt>" in report(accounts.platform, "history-3")
    assert "break behind" not in report(accounts.platform, "state-1")
    gone = {(tuple(r[name] for name in ("account_id", "opened_on"))) for r in ended} - {
        row[:2] for row in rows_of(bank, again)
    }
    closed = [r for r in accounts.table(STATE).to_dicts() if r["is_closed"] and r["source_version"] == again]
    assert {(r["account_id"], r["opened_on"]) for r in closed} == gone != set()
    assert {(r["is_observed"], r["changed_at"]) for r in closed} == {(True, again_at)}


def test_days_in_a_break_are_refused_by_name_and_those_around_it_are_published(accounts: Accounts) -> None:
    bank = Bank(32, accounts=12, truncates=0, seconds=20_000)
    bank.snapshot()
    bank.evolve()
    bank.evolve()
    bank.work(30)
    accounts.land(bank.messages, "first", **BEGUN)
    begins, known_at = bank.commits[0][1].date(), bank.commits[-1][1]
    messages = begun_anew(bank, later=30)
    accounts.land(messages, "anew", accept_gap="the slot was dropped", by="ana")
    again_at = datetime.fromtimestamp(messages[0].value["source"]["ts_ms"] / 1000, UTC)  # type: ignore[index]
    last = bank.commits[-1][1].date()
    first_lost, last_lost = known_at.date(), again_at.date()
    assert begins < first_lost < last_lost < last

    def daily(run_id: str, start: date, end: date, **more: Any) -> RunManifest:
        target = {
            "table": DAILY,
            "publishMode": "REPLACE_PARTITIONS",
            "publishRange": {"start": start, "end": end},
        }
        return accounts.manifest(run_id, target=target, kind="BACKFILL", **more)

    with pytest.raises(PlanRefused, match=f"{first_lost} to {last_lost} are in a break of bronze.account_changes"):
        plan_run(accounts.platform, daily("daily-1", begins, last - timedelta(days=1)))
    source = {"table": CHANGES, "log": {"breaks": "PUBLISH"}}
    taken = plan_run(accounts.platform, daily("daily-2", begins, last - timedelta(days=1), source=source)).plan
    assert "break" in dict(taken.logs[0].describe())
    for number, (start, end) in enumerate(
        [(begins, first_lost - timedelta(days=1)), (last_lost + timedelta(days=1), last)]
    ):
        accounts.published(daily(f"around-{number}", start, end))
    rows = accounts.table(DAILY).to_dicts()
    days = {row["day"] for row in rows}
    assert days
    assert not {day for day in days if first_lost <= day <= last_lost}
    for day in days:
        until = max(lsn for lsn, at in bank.commits if at < datetime.combine(day + timedelta(days=1), time(), UTC))
        assert sorted((tuple(r[n] for n in ACCOUNT) for r in rows if r["day"] == day), key=repr) == rows_of(bank, until)


def test_a_run_beyond_a_break_without_a_snapshot_is_refused_and_up_to_it_is_not(accounts: Accounts) -> None:
    bank = Bank(33, accounts=10, truncates=0, seconds=20_000)
    bank.snapshot()
    bank.evolve()
    bank.evolve()
    bank.work(20)
    accounts.land(bank.messages, "first", **BEGUN)
    known = bank.lsn
    bank.work(10)
    done = len(bank.messages)
    bank.work(10)
    accounts.land(bank.messages[done:], "later", accept_gap="the slot was dropped", by="ana")
    target = {"table": HISTORY, "publishMode": "REPLACE_PARTITIONS"}
    with pytest.raises(PlanRefused, match=r"beyond a break: .*no snapshot after it says how the tables are"):
        plan_run(accounts.platform, accounts.manifest("history-1", target=target))
    source = {"table": CHANGES, "log": {"until": known + 1}}
    plan = plan_run(accounts.platform, accounts.manifest("history-1", target=target, source=source)).plan
    assert plan.logs[0].breaks == ()
    # published nevertheless, it refuses what is computed from it, until somebody publishes that nevertheless, too
    beyond = {"table": CHANGES, "log": {"breaks": "PUBLISH"}}
    accounts.published(accounts.manifest("anyhow-1", target=target, source=beyond, kind="BACKFILL"))
    with pytest.raises(PlanRefused, match=f"{HISTORY} is computed from {CHANGES} beyond a break"):
        published_state(accounts, "state-1", "REPLACE_PARTITIONS")
    opened = accounts.table(HISTORY)["opened_on"]
    days = {"start": opened.min().replace(day=1), "end": month_end(opened.max())}
    state = {"table": STATE, "publishMode": "REPLACE_PARTITIONS", "publishRange": days}
    # it does so as long as the history stands, whichever snapshots of the log have expired
    bank.work(5)
    accounts.land(bank.messages[done:], "more")
    accounts.platform.lakehouse.table(CHANGES).maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
    with pytest.raises(PlanRefused, match=f"{HISTORY} is computed from {CHANGES} beyond a break"):
        published_state(accounts, "state-1", "REPLACE_PARTITIONS")
    behind = {"table": HISTORY, "log": {"breaks": "PUBLISH"}}
    plan = plan_run(accounts.platform, accounts.manifest("state-2", target=state, source=behind, kind="BACKFILL")).plan
    assert [one.again for one in plan.inherited_breaks[0].breaks] == [None]
    named = {"table": HISTORY, "log": {"breaks": "PUBLISH", "until": known}}
    with pytest.raises(PlanRefused, match=f"{HISTORY} is no log"):
        plan_run(accounts.platform, accounts.manifest("state-3", target=state, source=named, kind="BACKFILL"))
    bank.snapshot()
    done = next(place for place, one in enumerate(bank.messages) if one.value and one.value.get("op") == "r")
    accounts.land(bank.messages[done:], "observed", accept_gap="the commits before it were delivered", by="ana")
    plan = plan_run(accounts.platform, accounts.manifest("history-2", target=target)).plan
    found = plan.logs[0].breaks
    assert [one.again.position for one in found if one.again] == [
        bank.lsn
    ] * 2  # before the snapshot, too, nobody has seen the end
