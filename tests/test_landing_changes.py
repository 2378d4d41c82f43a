"""Landing changes of a database: whole transactions, each once, in the order of commits, and no gap that nobody has accepted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from change_world import CHANGES, Accounts, delivery, make_accounts
from click.testing import CliRunner

from backfill_assets import faults
from backfill_assets.cli.command import cli
from backfill_assets.ingestion.landed_changes import land_changes
from backfill_assets.ingestion.table_loads import undo_load
from backfill_assets.products.accounts import BANK
from backfill_assets.products.accounts.generator import Bank, Message, log_facts
from manifests.errors import InputRefused
from manifests.log_ranges import joined
from manifests.log_ranges import lsn as lsn_in_words
from resources.lakehouse.loads import GAP_PROPERTY
from resources.lakehouse.summaries import summary_of

POINTS = ("landing.kept", "landing.quarantined", "landing.appended")
"""Those of a changelog; `faults.POINTS` has others of topics."""


@pytest.fixture
def accounts(tmp_path: Path) -> Iterator[Accounts]:
    world = make_accounts(tmp_path / "home")
    yield world
    world.platform.ledger.close()


def a_bank(seed: int = 1, transactions: int = 40) -> Bank:
    bank = Bank(seed, accounts=10, truncates=0.03)
    bank.work(transactions // 4)
    bank.snapshot()
    bank.work(transactions)
    return bank


def tail_of(bank: Bank) -> list[Message]:
    """What an engine delivers that begins with the bank's first snapshot."""
    first = next(place for place, one in enumerate(bank.messages) if one.value and one.value.get("op") == "r")
    return bank.messages[first:]


def whole(messages: list[Message]) -> list[list[Message]]:
    """Messages by transaction, each with its boundaries; reads are one."""
    found: list[list[Message]] = [[]]
    for one in messages:
        if one.value and one.value.get("status") == "BEGIN":
            found.append([])
        found[-1].append(one)
    return [each for each in found if each]


def test_a_snapshot_and_its_tail_are_landed_and_say_their_range(accounts: Accounts) -> None:
    bank = a_bank()
    done = accounts.land(tail_of(bank))
    assert len(done.loads) == 1
    (one,) = accounts.ranges()
    snapshot = next(m.value["source"]["lsn"] for m in bank.messages if m.value and m.value.get("op") == "r")
    assert (one.range.start, one.range.until) == (snapshot, bank.commits[-1][0] + 1)
    rows = accounts.table(CHANGES)
    ops = [m.value["op"] for m in tail_of(bank) if m.value and "op" in m.value]
    assert rows.height == len(ops) == one.rows
    assert sorted(rows["op"].to_list()) == sorted(ops)
    again = accounts.land(tail_of(bank))
    assert (again.loads, again.again) == (
        (),
        1 + sum(1 for m in tail_of(bank) if m.value and m.value.get("status") == "END"),
    )


def test_files_in_any_order_any_number_of_times_and_in_any_pieces_land_the_same(
    accounts: Accounts, tmp_path: Path
) -> None:
    bank = a_bank(2)
    messages = tail_of(bank)
    other = make_accounts(tmp_path / "other")
    other.land(messages)
    draw = Random(2)
    cuts = sorted(draw.sample(range(1, len(messages)), 4))
    for number, until in enumerate([*cuts, len(messages)]):
        before = 0 if not number else [0, *cuts][number]
        mixed = [*messages[max(0, before - 7) : until]]
        draw.shuffle(mixed)
        accounts.land([*mixed, *mixed[:5]], f"part-{number}")
    assert accounts.changes() == other.changes()
    assert joined(one.range for one in accounts.ranges()) == joined(one.range for one in other.ranges())
    assert len(joined(one.range for one in accounts.ranges())) == 1
    other.platform.ledger.close()


def test_an_open_transaction_waits_and_comes_with_its_end(accounts: Accounts) -> None:
    bank = a_bank(3)
    messages = tail_of(bank)
    longest = max(whole(messages)[1:], key=len)
    inside = messages.index(longest[0]) + len(longest) // 2
    first = accounts.land(messages[:inside], "first")
    assert len(first.open) == 1
    before = accounts.table(CHANGES).height
    second = accounts.land(messages[inside:], "second")
    assert second.open == ()
    assert accounts.table(CHANGES).height == sum(1 for m in messages if m.value and "op" in m.value) > before


def test_a_delivery_of_which_an_open_transaction_was_not_kept_is_no_success(
    accounts: Accounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(accounts.platform.settings.home))
    monkeypatch.setenv("BACKFILL_PRODUCTS", '["backfill_assets.products.accounts:PRODUCT"]')
    messages = tail_of(a_bank(3))
    units = whole(messages)
    longest = sorted(sorted(range(2, len(units)), key=lambda one: len(units[one]))[-2:])
    begun = [messages.index(units[one][0]) + len(units[one]) // 2 for one in longest]

    def said(name: str, some: list[Message], exit_code: int, *options: str) -> str:
        done = CliRunner().invoke(cli, ["land", BANK.name, str(delivery(tmp_path / name, [some])), *options])
        assert done.exit_code == exit_code, done.output
        return done.stdout

    assert "still open, and kept" in said("first", messages[: begun[0]], 0)
    assert "still open, and kept" in said("first", messages[: begun[0]], 0)  # the same command again
    assert "nothing of it was kept" not in said("first", messages[: begun[0]], 0)
    more = messages[begun[0] : begun[0] + 1]
    assert "nothing of it was kept" in said("more", more, 1)
    assert json.loads(said("more", more, 1, "--json"))["is_open_kept"] is False
    said("rest", messages[begun[0] : begun[1]], 0)
    said("end", messages[begun[1] :], 0)
    assert accounts.table(CHANGES).height == sum(1 for m in messages if m.value and "op" in m.value)


def begun_anew(unit: list[Message]) -> list[Message]:
    """The first transaction after a start of a connector that has no offset: the same, but for the commit before, which it does not know."""
    found = []
    for one in unit:
        value = one.value
        if value and "source" in value:
            sequence = json.dumps([None, json.loads(value["source"]["sequence"])[1]])
            value = value | {"source": value["source"] | {"sequence": sequence}}
        found.append(Message(one.key, value))
    return found


@pytest.mark.parametrize("together", [True, False])
def test_a_connector_that_begins_anew_with_a_transaction_that_is_there_goes_on_from_it(
    accounts: Accounts, together: bool
) -> None:
    units = whole(tail_of(a_bank(11)))
    at = next(number for number, one in enumerate(units[5:], 5) if len(one) > 4)
    before = [m for one in units[: at + 1] for m in one]
    after = [m for one in [begun_anew(units[at]), *units[at + 1 :]] for m in one]
    if not together:
        accounts.land(before, "before")
    done = accounts.land([*after, *before] if together else after, "after")
    assert (len(done.loads), done.accepted) == (1, ())
    assert len(joined(one.range for one in accounts.ranges())) == 1
    assert len(accounts.changes()) == sum(1 for one in units for m in one if m.value and "op" in m.value)


@pytest.mark.parametrize("together", [True, False])
def test_a_connector_that_begins_anew_after_what_is_there_is_refused_by_name(
    accounts: Accounts, together: bool
) -> None:
    units = whole(tail_of(a_bank(11)))
    at = next(number for number, one in enumerate(units[5:], 5) if len(one) > 4)
    before = [m for one in units[:at] for m in one]
    after = [m for one in [begun_anew(units[at]), *units[at + 1 :]] for m in one]
    if not together:
        accounts.land(before, "before")
    landed = accounts.table(CHANGES).height
    number = units[at][0].value["id"].partition(":")[0]
    what = (
        f"are missing: transaction {number} is the first after a start of the connector and names no commit before it"
    )
    with pytest.raises(InputRefused, match=what):
        accounts.land([*after, *before] if together else after, "after")
    assert accounts.table(CHANGES).height == landed


def test_a_slot_that_was_made_after_the_snapshot_does_not_have_what_follows_on_it(accounts: Accounts) -> None:
    bank = a_bank(11)
    snapshot, *units = whole(tail_of(bank))
    lsn = snapshot[0].value["source"]["lsn"]
    later = [m for one in [begun_anew(units[3]), *units[4:]] for m in one]
    with pytest.raises(InputRefused, match="are missing"):
        accounts.land([*snapshot, *later], "lost", facts=log_facts() | {"slot_created_lsn": lsn + 1})
    accounts.land(snapshot, "first", facts=log_facts() | {"slot_created_lsn": lsn})
    with pytest.raises(
        InputRefused, match=f"the slot {log_facts()['slot']} was made at {lsn_in_words(lsn + 1)}, after what is landed"
    ):
        accounts.land(later, "lost", facts=log_facts() | {"slot_created_lsn": lsn + 1})
    assert accounts.land([m for one in units for m in one], "rest", facts=log_facts() | {"slot_created_lsn": lsn}).loads


@pytest.mark.parametrize("together", [True, False])
def test_a_connector_that_was_started_once_more_does_not_speak_for_what_its_slot_had_confirmed(
    accounts: Accounts, together: bool
) -> None:
    """The file of its first start is lost: what follows on the snapshot in the files is not what followed on it in the log."""
    snapshot, *units = whole(tail_of(a_bank(11)))
    lsn = snapshot[0].value["source"]["lsn"]
    commits = [int(one.value["id"].partition(":")[2]) for unit in units for one in unit if _ends(one)]
    again = [
        m for one in [begun_anew(units[3]), *units[4:]] for m in one
    ]  # its slot had confirmed the transaction before
    facts = log_facts() | {"slot_created_lsn": lsn, "slot_confirmed_lsns": [commits[2]]}
    if not together:
        accounts.land(snapshot, "snapshot")
    with pytest.raises(InputRefused, match=r"are missing: transaction .* is the first after a start of the connector"):
        accounts.land([*snapshot, *again] if together else again, "again", facts=facts)
    first = [m for one in units[:4] for m in one]
    assert accounts.land([*snapshot, *first, *again], "all", facts=facts).accepted == ()
    assert len(joined(one.range for one in accounts.ranges())) == 1


def _ends(message: Message) -> bool:
    return message.value is not None and message.value.get("status") == "END"


def test_a_connector_that_confirmed_nothing_before_it_was_started_once_more_follows_on_the_snapshot(
    accounts: Accounts,
) -> None:
    snapshot, *units = whole(tail_of(a_bank(11)))
    lsn = snapshot[0].value["source"]["lsn"]
    facts = log_facts() | {"slot_confirmed_lsns": [lsn]}
    assert accounts.land([*snapshot, *(m for one in units for m in one)], "all", facts=facts).loads


@pytest.mark.parametrize("lost", ["transaction", "change", "end", "snapshot row"])
def test_what_is_missing_is_named_and_refused_unless_somebody_accepts_it(accounts: Accounts, lost: str) -> None:
    bank = a_bank(4)
    units = whole(tail_of(bank))
    at = next(number for number, one in enumerate(units[5:], 5) if len(one) > 4)
    kept = list(units)
    if lost == "transaction":
        kept[at] = []
    elif lost == "change":
        kept[at] = [m for m in units[at] if m is not units[at][2]]
        if units[at][2].value is None:
            kept[at] = [m for m in units[at] if m is not units[at][1]]
    elif lost == "end":
        kept[at] = units[at][:-1]
    else:
        kept[0] = units[0][:-1]
    messages = [m for one in kept for m in one]
    with pytest.raises(InputRefused) as refused:
        accounts.land(messages)
    assert "missing" in str(refused.value)
    assert accounts.table(CHANGES).height == 0
    done = accounts.land(messages, accept_gap="the file is gone for good", by="ana")
    assert done.loads
    assert done.accepted
    table = accounts.platform.lakehouse.table(CHANGES)
    said = json.loads(summary_of(table.current_snapshot())[GAP_PROPERTY])
    assert (said["by"], said["reason"]) == ("ana", "the file is gone for good")
    ranges = joined(one.range for one in accounts.ranges())
    assert len(ranges) == 2 or lost == "snapshot row"
    # what was lost is found, and fills the gap
    accounts.land([m for one in units for m in one], "found")
    assert len(joined(one.range for one in accounts.ranges())) == 1


def test_changes_without_a_snapshot_before_them_are_refused_and_a_second_one_after_a_gap_is_a_decision(
    accounts: Accounts,
) -> None:
    bank = a_bank(10)
    units = whole(tail_of(bank))
    with pytest.raises(InputRefused, match="no snapshot was delivered that the changes go on from"):
        accounts.land([m for one in units[3:] for m in one])
    accounts.land([m for one in units[:5] for m in one], "first")
    reached = accounts.ranges()[-1].range.until
    done = len(bank.messages)
    again = bank.snapshot()
    bank.work(5)
    with pytest.raises(InputRefused, match="are missing"):
        accounts.land(bank.messages[done:], "anew")
    accounts.land(bank.messages[done:], "anew", accept_gap="the slot was dropped; taken anew", by="ana")
    first, second = joined(one.range for one in accounts.ranges())
    assert (first.until, second.start) == (reached, again)


def test_another_server_or_timeline_is_refused_by_name(accounts: Accounts) -> None:
    bank = a_bank(5)
    accounts.land(tail_of(bank))
    for wrong, says in (
        ({"system_identifier": "1"}, "the files are of"),
        ({"timeline": 0}, "the files are of"),
        ({"timeline": 2}, "timeline 2.* is older than what is landed"),
        ({"database": "shop"}, "the files are of"),
    ):
        with pytest.raises(InputRefused, match=says):
            accounts.land(tail_of(bank), facts=log_facts() | wrong, accept_gap="whatever it is", by="ana")


def test_a_slot_that_was_made_anew_and_an_offset_file_that_is_newer_are_named(accounts: Accounts) -> None:
    bank = a_bank(6)
    units = whole(tail_of(bank))
    accounts.land([m for one in units[:9] for m in one])
    later = [m for one in units[12:] for m in one]
    created = next(m.value["source"]["lsn"] for m in later if m.value and "source" in m.value)
    with pytest.raises(InputRefused, match="the slot other was made at"):
        accounts.land(later, "later", facts=log_facts("other") | {"slot_created_lsn": created})
    newer = log_facts() | {"offset": {"lsn_commit": bank.lsn + 5}}
    with pytest.raises(InputRefused, match="the connector's offset file is newer than its changes"):
        accounts.land([m for one in units[9:] for m in one], "rest", facts=newer)
    older = log_facts() | {"offset": {"lsn_commit": 5}}
    assert accounts.land([m for one in units[9:] for m in one], "rest", facts=older).loads


def test_a_slot_that_was_made_before_the_old_one_was_dropped_lacks_nothing(accounts: Accounts) -> None:
    """The files are of both, and `log.json` names one: a transaction that names the one before it is believed, whichever slot sent it."""
    units = whole(tail_of(a_bank(6)))
    accounts.land([m for one in units[:5] for m in one], "old")
    created = accounts.ranges()[-1].range.until + 1  # the next transaction was under way
    rest = [m for one in units[5:] for m in one]
    assert accounts.land(rest, "both", facts=log_facts("other") | {"slot_created_lsn": created}).accepted == ()
    assert len(joined(one.range for one in accounts.ranges())) == 1


def test_a_transaction_of_tables_that_are_not_captured_is_refused_with_what_to_set(accounts: Accounts) -> None:
    units = whole(tail_of(a_bank(6)))
    accounts.land([m for one in units[:5] for m in one], "first")
    (end,) = [m for m in units[5] if _ends(m)]
    assert end.value is not None
    empty = Message(end.key, end.value | {"event_count": 0, "data_collections": None})
    with pytest.raises(InputRefused) as refused:
        accounts.land([empty, *(m for one in units[6:] for m in one)], "rest")
    number = end.value["id"].partition(":")[0]
    (problem,) = refused.value.problems
    assert f"transaction {number} ends with a count of 0 changes" in problem.what
    assert "the publication has tables that are not captured" in problem.what
    assert "start of the connector" not in problem.what
    assert "publication.autocreate.mode=filtered" in problem.fix


def test_a_change_that_says_two_things_and_a_load_that_was_taken_back(accounts: Accounts) -> None:
    bank = a_bank(7)
    messages = tail_of(bank)
    forged = next(m for m in messages if m.value and m.value.get("op") in {"c", "u"})
    other = Message(forged.key, forged.value | {"after": forged.value["after"] | {"owner": "somebody else"}})
    with pytest.raises(InputRefused, match="delivered twice and says two things"):
        accounts.land([*messages, other])
    units = whole(messages)
    first = accounts.land([m for one in units[:6] for m in one], "first")
    accounts.land(messages, "all")
    before = accounts.changes()
    undo_load(
        accounts.platform, CHANGES, first.loads[0].load_id, by="ana", reason="landed by mistake, to be landed anew"
    )
    assert len(accounts.changes()) < len(before)
    accounts.land(messages, "again")
    assert accounts.changes() == before


def test_lines_that_are_no_messages_are_quarantined_with_their_rule(accounts: Accounts, tmp_path: Path) -> None:
    bank = a_bank(8, 200)
    lines = [one.line() for one in tail_of(bank)]
    folder = delivery(tmp_path / "some", [[*lines, '{"key": null, "value": {"op": "x"}}', "no JSON at all"]])
    done = land_changes(accounts.platform, BANK.name, folder)
    assert sum(done.unreadable.values()) == 2
    quarantined = accounts.table(f"{CHANGES}_quarantine")
    assert set(quarantined["reason"].to_list()) == {"op is one of c, u, d, r, t, m", "a line is a JSON object"}
    many = delivery(tmp_path / "many", [[*lines, *["nonsense"] * 400]])
    with pytest.raises(InputRefused, match="may be quarantined"):
        land_changes(accounts.platform, BANK.name, many)


KILLED = """
import sys
from pathlib import Path
from change_world import Accounts
from backfill_assets.installation import Platform
from backfill_assets.ingestion.landed_changes import land_changes
from resources.settings import load_settings
home, folder = map(Path, sys.argv[1:])
settings = load_settings(home=home, products=["backfill_assets.products.accounts:PRODUCT"])
land_changes(Platform.of(settings), "bank_changes", folder)
"""


@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_and_repeated_nothing_is_lost_and_nothing_twice(
    accounts: Accounts, tmp_path: Path, point: str
) -> None:
    bank = a_bank(9)
    messages = tail_of(bank)
    folder = delivery(tmp_path / "first", [[*messages[: len(messages) // 2], "no message"]])
    command = [sys.executable, "-c", KILLED, str(accounts.home), str(folder)]
    environment = os.environ | {
        faults.VARIABLE: point,
        "PYTHONPATH": str(Path(__file__).parent),
        "BACKFILL_QUARANTINE_LIMIT": "0.5",
    }
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    environment.pop(faults.VARIABLE)
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert accounts.table(f"{CHANGES}_quarantine").height == 1
    accounts.land(messages[len(messages) // 2 :], "second")
    assert len(accounts.changes()) == sum(1 for m in messages if m.value and "op" in m.value)
    assert len(joined(one.range for one in accounts.ranges())) == 1


def test_a_gap_whose_acceptance_was_taken_back_is_asked_for_again(accounts: Accounts) -> None:
    bank = a_bank(10)
    units = whole(tail_of(bank))
    accounts.land([m for one in units[:5] for m in one], "first")
    done = len(bank.messages)
    bank.snapshot()
    bank.work(5)
    middle = len(bank.messages)
    bank.work(5)
    why = {"accept_gap": "the slot was dropped on 3 May", "by": "ana"}
    accepted = accounts.land(bank.messages[done:middle], "anew", **why)
    accounts.land(bank.messages[middle:], "later")
    loads = accounts.platform.lakehouse.landed_loads
    lost = loads(CHANGES)[1].landed.lost
    undo_load(accounts.platform, CHANGES, accepted.loads[0].load_id, by="ana", reason="landed by mistake, to be anew")
    bank.work(5)
    newest = bank.messages[middle:]
    with pytest.raises(InputRefused, match=f"between the commits {lsn_in_words(lost[0].start - 1)} and .* are missing"):
        accounts.land(newest, "newest")
    with pytest.raises(
        InputRefused,
        match=f"between the commits {lsn_in_words(lost[0].start - 1)} and {lsn_in_words(lost[0].until)} are miss",
    ):
        accounts.land(bank.messages[done:middle], "anew")
    again = accounts.land(bank.messages[done:middle], "anew", **why)
    assert again.accepted
    assert loads(CHANGES)[-1].landed.lost == lost
    assert accounts.land(newest, "newest").accepted == ()


def test_a_snapshot_that_was_given_up_and_taken_anew_keeps_nothing_from_being_landed(accounts: Accounts) -> None:
    bank = a_bank(3)
    given_up = whole(tail_of(bank))[0][:-1]
    done = len(bank.messages)
    bank.snapshot()
    bank.work(5)
    middle = len(bank.messages)
    bank.work(5)
    first = accounts.land([*given_up, *bank.messages[done:middle]], "first")
    assert first.open == ()
    assert accounts.land(bank.messages[middle:], "second").accepted == ()
    bank.work(5)
    assert accounts.land([*given_up, *bank.messages[middle:]], "all").accepted == ()
    assert accounts.ranges()[-1].range.until == bank.lsn + 1
