"""Deliveries of a changelog that are not what they seem: begun without a snapshot, changed while they are landed, damaged, or of another database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from change_world import CHANGES, Accounts, delivery, make_accounts
from test_forged_changes import CHANGE, ROW
from test_landing_changes import a_bank, tail_of, whole

from backfill_assets import faults
from backfill_assets.cli.changelogs import changelog_shown, show_changelog, tell_landed
from backfill_assets.ingestion.landed_changes import Landed, land_changes
from backfill_assets.ingestion.table_loads import undo_load
from backfill_assets.planning.resolve import plan_run, preview
from backfill_assets.products.accounts import ACCOUNT_DAILY, ACCOUNT_HISTORY, BANK
from backfill_assets.products.accounts.generator import Message, log_facts
from manifests.errors import InputRefused, PlanRefused
from manifests.log_ranges import LogRange, lsn
from manifests.plan import Plan
from resources.lakehouse.loads import loads_of

WHY: dict[str, Any] = {"accept_gap": "nobody kept the snapshot", "by": "ana"}
EMPTY = log_facts() | {"tables_were_empty": True}


@pytest.fixture
def accounts(tmp_path: Path) -> Iterator[Accounts]:
    world = make_accounts(tmp_path / "home")
    yield world
    world.platform.ledger.close()


def together(units: list[list[Message]]) -> list[Message]:
    return [message for unit in units for message in unit]


def breaks(accounts: Accounts) -> list[Any]:
    return list(changelog_shown(accounts.platform, BANK.name)["breaks"])


# --- begun without a snapshot -----------------------------------------------------------------------------------------


def test_a_log_that_was_begun_without_its_snapshot_is_a_break_until_one_is_landed(
    accounts: Accounts, capsys: pytest.CaptureFixture[str]
) -> None:
    bank = a_bank(10)
    units = whole(tail_of(bank))
    accounts.land(together(units[1:]), "blind", **WHY)
    begins = accounts.ranges()[0].range.start
    (found,) = breaks(accounts)
    assert (found.lost, found.again) == (LogRange(0, 0, begins), None)
    show_changelog(changelog_shown(accounts.platform, BANK.name))
    said = capsys.readouterr().out
    assert f"gaps: from 0/0 until {lsn(begins)}" in said
    assert f"break: nothing is known from LSN 0/0 until {lsn(begins)}" in said
    manifest = accounts.manifest("history-1", target={"table": ACCOUNT_HISTORY.name})
    with pytest.raises(PlanRefused, match="beyond a break: nothing is known from LSN 0/0"):
        plan_run(accounts.platform, manifest)
    days = [one.first_time.date() for one in accounts.ranges() if one.first_time]
    target = {"table": ACCOUNT_DAILY.name, "publishRange": {"start": min(days), "end": min(days)}}
    with pytest.raises(PlanRefused, match=r"in a break of bronze\.account_changes"):
        plan_run(accounts.platform, accounts.manifest("daily-1", target=target))
    done = len(bank.messages)
    later = bank.snapshot()
    bank.work(3)
    accounts.land(bank.messages[done:], "snapshot", accept_gap="taken anew", by="ana")
    assert {one.again.position for one in breaks(accounts)} == {later}
    assert next(one.lost.start for one in plan_run(accounts.platform, manifest).plan.logs[0].breaks) == 0
    accounts.land(together(units), "found")
    assert [one.lost for one in breaks(accounts) if one.lost.start == 0] == []
    planned = plan_run(accounts.platform, manifest.model_copy(update={"run_id": "history-2"}))
    assert all(one.start > 0 for one in planned.plan.logs[0].lost)


def test_a_snapshot_that_is_found_without_what_follows_on_it_moves_the_break(accounts: Accounts) -> None:
    units = whole(tail_of(a_bank(10)))
    accounts.land(together(units[4:]), "blind", **WHY)
    begins = accounts.ranges()[0].range.start
    accounts.land(units[0], "snapshot")
    snapshot = units[0][0].value["source"]["lsn"]  # type: ignore[index]
    assert [one.lost for one in breaks(accounts)] == [LogRange(0, snapshot + 1, begins)]
    accounts.land(together(units), "all")
    assert breaks(accounts) == []


def test_tables_that_were_empty_when_the_log_began_need_no_snapshot_unless_its_beginning_was_taken_back(
    accounts: Accounts,
) -> None:
    units = whole(tail_of(a_bank(10)))
    first = accounts.land(together(units[1:5]), "first", facts=EMPTY)
    accounts.land(together(units[5:8]), "second", facts=EMPTY)
    assert breaks(accounts) == []
    assert "were empty" in (loads_of(accounts.platform.lakehouse.table(CHANGES))[0].file or "")
    undo_load(accounts.platform, CHANGES, first.loads[0].load_id, by="ana", reason="taken back to be landed anew")
    with pytest.raises(InputRefused, match="missing"):
        accounts.land(together(units[8:]), "third", facts=EMPTY)
    with pytest.raises(InputRefused, match="tables_were_empty is 1"):
        accounts.land(together(units[1:]), facts=EMPTY | {"tables_were_empty": 1})
    accounts.land(together(units[1:]), "all", facts=EMPTY)
    assert breaks(accounts) == []


def test_a_beginning_that_was_accepted_is_asked_for_again_once_its_load_was_taken_back(accounts: Accounts) -> None:
    units = whole(tail_of(a_bank(10)))
    first = accounts.land(together(units[1:5]), "first", **WHY)
    accounts.land(together(units[5:8]), "second")
    undo_load(accounts.platform, CHANGES, first.loads[0].load_id, by="ana", reason="taken back to be landed anew")
    with pytest.raises(InputRefused, match="no snapshot was delivered that the changes go on from"):
        accounts.land(together(units[1:5]), "first")
    accounts.land(together(units[1:5]), "first", **WHY)
    assert [one.lost.start for one in breaks(accounts)] == [0]


# --- changed while it is landed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["rewritten", "truncated", "gone"])
@pytest.mark.parametrize("point", ["landing.kept", "landing.quarantined"])
def test_a_file_that_changes_while_it_is_landed_is_refused_and_nothing_of_it_is_landed(
    accounts: Accounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, point: str
) -> None:
    folder = delivery(tmp_path / "delivered", [tail_of(a_bank(8, 20))])
    (file,) = folder.glob("*.jsonl")
    text, reached = file.read_text(), faults.reach

    def reach(at: str) -> None:
        if at == point and how == "gone":
            file.unlink()
        elif at == point:
            file.write_text(text[: len(text) // 2] if how == "truncated" else text.replace('"owner', '"OWNER'))
        reached(at)

    monkeypatch.setattr(faults, "reach", reach)
    with pytest.raises(InputRefused, match=r"changes-00000\.jsonl was changed while it was landed"):
        land_changes(accounts.platform, BANK.name, folder)
    assert accounts.table(CHANGES).height == 0
    monkeypatch.undo()
    file.write_text(text)
    assert land_changes(accounts.platform, BANK.name, folder).loads


# --- damaged, or of something else ------------------------------------------------------------------------------------


def test_a_refusal_for_a_gap_names_the_lines_that_are_no_messages(accounts: Accounts, tmp_path: Path) -> None:
    lines = [one.line() for one in tail_of(a_bank(8, 200))]
    cut = next(number for number, line in enumerate(lines) if number > 60 and '"op": "u"' in line)
    damaged = [*lines[:cut], lines[cut][:-3], *lines[cut + 1 :]]
    with pytest.raises(InputRefused) as refused:
        land_changes(accounts.platform, BANK.name, delivery(tmp_path / "d", [damaged]))
    assert "changes of it are missing" in str(refused.value)
    said = next(one for one in refused.value.problems if "is no message" in one.what)
    assert said.what == f"changes-00000.jsonl line {cut + 1:,} is no message"
    assert said.rule == "a line is a whole JSON object"


@pytest.mark.parametrize(("lost", "says"), [(slice(1, None), "no first row"), (slice(1, -1), "no first and no last")])
def test_a_snapshot_says_which_of_its_ends_is_missing(accounts: Accounts, lost: slice, says: str) -> None:
    snapshot, *units = whole(tail_of(a_bank(8)))
    assert len(snapshot[lost]) > 1
    with pytest.raises(InputRefused, match=f"the snapshot at 0/[0-9A-F]+ has {says}"):
        accounts.land([*snapshot[lost], *together(units)])


def test_a_byte_order_mark_is_no_part_of_the_first_message(accounts: Accounts, tmp_path: Path) -> None:
    messages = tail_of(a_bank(8))
    folder = delivery(tmp_path / "delivered", [messages])
    for file in folder.iterdir():
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    done = land_changes(accounts.platform, BANK.name, folder)
    assert (done.unreadable, done.loads[0].rows) == ({}, sum("op" in (one.value or {}) for one in messages))


def test_messages_of_another_database_than_the_delivery_says_are_refused(accounts: Accounts) -> None:
    messages = tail_of(a_bank(8))
    foreign = [
        Message(one.key, one.value | {"source": one.value["source"] | {"db": "payroll"}})
        if one.value and "source" in one.value
        else one
        for one in messages
    ]
    with pytest.raises(InputRefused, match=r"line 1 is of the database payroll, and log.json says bank"):
        accounts.land(foreign, accept_gap="whatever it is", by="ana")
    assert accounts.land(foreign, "payroll", facts=log_facts() | {"database": "payroll"}).loads


def test_a_log_that_says_two_things_is_refused(accounts: Accounts, tmp_path: Path) -> None:
    folder = delivery(tmp_path / "delivered", [tail_of(a_bank(8))])
    text = (folder / "log.json").read_text()
    for name in ('"database"', '"d\\u0061tabase"'):
        (folder / "log.json").write_text(text.replace('"database"', f'{name}: "other", "database"'))
        with pytest.raises(
            InputRefused, match=r"log\.json says 'database' twice\n *rule: a message has each member once"
        ):
            land_changes(accounts.platform, BANK.name, folder)
    assert accounts.table(CHANGES).height == 0


def test_a_change_that_is_delivered_again_in_another_spelling_of_json_is_the_same(
    accounts: Accounts, tmp_path: Path
) -> None:
    messages = tail_of(a_bank(7))
    lines = [one.line() for one in messages]

    def respelled(line: str, **more: Any) -> str:
        said = json.loads(line)
        if said["value"] and isinstance(said["value"].get("after"), dict):
            said["value"]["after"] = dict(reversed(said["value"]["after"].items())) | more
        return json.dumps(said, ensure_ascii=True, separators=(", ", " : "))

    again = [respelled(line) for line in lines]
    assert again != lines
    changed = next(line for line in lines if '"op": "u"' in line)
    for number, more in enumerate(({"balance": 7}, {"balance": 7.0}, {"balance": "7.00"})):
        folder = delivery(tmp_path / str(number), [[*lines, respelled(changed, **more)]])
        with pytest.raises(InputRefused, match=r"says two things: changes-00000\.jsonl line"):
            land_changes(accounts.platform, BANK.name, folder)
    assert land_changes(accounts.platform, BANK.name, delivery(tmp_path / "both", [lines, again])).loads


def test_no_gap_needs_no_acceptance_and_a_reason_that_is_none_is_refused(accounts: Accounts) -> None:
    messages = tail_of(a_bank(8))
    with pytest.raises(InputRefused, match="no reason is given"):
        accounts.land(messages, accept_gap=" ")
    assert accounts.land(messages, accept_gap="the slot was dropped", by="ana").accepted == ()


@pytest.mark.parametrize(
    ("what", "said", "unsaid"),
    [
        (
            {"open": ("731 since 0/1",), "is_open_kept": False},
            "nothing of it was kept, since nothing new is whole",
            "not quarantined",
        ),
        ({"unreadable": {"a line is a JSON object": 1}}, "they were not quarantined, since nothing was", "once more"),
    ],
    ids=["open", "unreadable"],
)
def test_files_of_which_nothing_is_new_are_asked_for_again_only_where_something_in_them_is_open(
    what: dict[str, Any], said: str, unsaid: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_landed(Landed("bank", CHANGES, (), again=3, is_kept=False, **what))
    told = capsys.readouterr().out
    assert "in the table already: 3 transactions and snapshots" in told
    assert said in told
    assert unsaid not in told


def test_rows_of_no_declared_version_are_named_when_they_are_landed_and_when_a_run_would_read_them(
    accounts: Accounts, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = tail_of(a_bank(11))
    for one in messages:
        if one.value and one.value.get("op") == "c":
            one.value["after"]["mood"] = None
    done = accounts.land(messages)
    tell_landed(done)
    columns = "account_id, balance, email, mood, note, opened_at, owner"
    number = done.loads[-1].undeclared[f"public.accounts: {columns}"]
    said = capsys.readouterr().out
    assert f"{number:,} of them have columns that no declared version of their table has: public.accounts: " in said
    assert f"`backfill unload {CHANGES}` this load, and land it again" in said
    with pytest.raises(PlanRefused, match=f"unknown: {columns}") as found:
        plan_run(accounts.platform, accounts.manifest("history-1", target={"table": ACCOUNT_HISTORY.name}))
    assert "land the same files again: they keep the version that they were landed as" in str(found.value)


@pytest.mark.parametrize("deliveries", [1, 2])
def test_a_version_beyond_the_positions_that_a_run_reads_does_not_refuse_it(
    accounts: Accounts, deliveries: int
) -> None:
    units = whole(tail_of(a_bank(11)))
    for one in (one for unit in units[20:] for one in unit):
        if one.value and one.value.get("op") == "c":
            one.value["after"]["mood"] = None
    parts = [units] if deliveries == 1 else [units[:20], units[20:]]
    for number, part in enumerate(parts):
        accounts.land([one for unit in part for one in unit], f"part-{number}")
    rows = accounts.table(CHANGES)
    odd = rows.filter(pl.col("schema_version").str.starts_with("unknown"))["commit_lsn"]
    first, last = odd.min(), odd.max()
    assert isinstance(first, int)
    assert isinstance(last, int)
    assert (rows["commit_lsn"] < first).any()
    assert (rows["commit_lsn"] > last).any()
    days = rows["committed_at"].dt.date()
    of = {"start": f"{days.min()}", "end": f"{days.max()}"}
    targets: list[dict[str, Any]] = [{"table": ACCOUNT_HISTORY.name}, {"table": ACCOUNT_DAILY.name, "publishRange": of}]
    for target in targets:

        def planned(target: dict[str, Any] = target, **log: Any) -> Plan:
            source = {"table": CHANGES, "log": {"incompleteDays": "PUBLISH", **log}}
            return preview(accounts.platform, accounts.manifest(source=source, target=target))

        assert planned(until=first).logs[0].ranges[0].until == first
        assert planned(**{"from": last + 1}).logs[0].ranges[0].start == last + 1
        for log in ({}, {"until": first + 1}, {"from": last}, {"from": first, "until": last + 1}):
            with pytest.raises(PlanRefused, match="has rows of schema_version 'unknown: "):
                planned(**log)


# --- an end that names a later position than its commit ---------------------------------------------------------------


def _one(account: int, number: str, previous: int, commit: int, end: int | None = None) -> list[Message]:
    source = CHANGE["source"] | {"lsn": commit - 1, "sequence": json.dumps([str(previous), str(commit - 1)])}
    place = {"id": f"{number}:{commit - 1}", "total_order": 1}
    row = ROW | {"account_id": account}
    ended = {"status": "END", "id": f"{number}:{end or commit}", "event_count": 1}
    return [Message(None, CHANGE | {"after": row, "source": source, "transaction": place}), Message(None, ended)]


def test_what_an_end_covers_that_names_a_later_position_is_no_repetition(accounts: Accounts) -> None:
    messages = tail_of(a_bank(8))
    accounts.land(messages)
    last = accounts.ranges()[-1].range.until - 1
    (lie,) = accounts.land(_one(801, "9001", last, last + 100, last + 10**9), "lie").loads
    true = [*_one(802, "9002", last + 100, last + 200), *_one(803, "9003", last + 200, last + 300)]
    with pytest.raises(InputRefused) as refused:
        accounts.land(true, "true")
    first, second = refused.value.problems
    assert f"transaction 9002 (commit at {lsn(last + 200)}, 1 of 1 changes) is in no row of {CHANGES}" in first.what
    assert f"whose load {lie.load_id} says" in first.what
    assert f"backfill unload {CHANGES} {lie.load_id}" in first.fix
    assert "transaction 9003" in second.what
    with pytest.raises(InputRefused, match="transaction 9001"):
        accounts.land(_one(801, "9001", last, last + 100), "itself", accept_gap="whatever it is", by="ana")
    undo_load(accounts.platform, CHANGES, lie.load_id, by="ana", reason="its end lies")
    assert accounts.land([*messages, *_one(801, "9001", last, last + 100), *true], "again").loads
    done = accounts.land([*messages, *true], "once more")
    assert (done.loads, accounts.table(CHANGES).filter(pl.col("commit_lsn") > last).height) == ((), 3)
