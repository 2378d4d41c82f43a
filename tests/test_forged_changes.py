"""Changes that lie: what no server sends is quarantined by its rule or refused by name, and never counts as something else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from change_world import CHANGES, Accounts, delivery, make_accounts
from test_debezium import PLACE, SOURCE, VALUE
from test_landing_changes import a_bank, tail_of

from backfill_assets.extraction.change_files import Delivered, delivered
from backfill_assets.ingestion.landed_changes import land_changes
from backfill_assets.products.accounts import ACCOUNT_CHANGES, BANK
from backfill_assets.products.accounts.generator import Message
from manifests.errors import InputRefused

ROW = {"account_id": 7, "owner": "o", "email": "e", "balance": "1.10", "opened_at": 1, "note": "n"}
CHANGE: dict[str, Any] = VALUE | {"after": ROW, "source": SOURCE | {"db": "bank"}}
END = {"status": "END", "id": "571:24023999", "event_count": 1}


@pytest.fixture
def accounts(tmp_path: Path) -> Iterator[Accounts]:
    world = make_accounts(tmp_path / "home")
    yield world
    world.platform.ledger.close()


def read(folder: Path, *values: Any, key: str | None = '{"account_id": 7}') -> Delivered:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in values]
    lines = [f'{{"key": {key or "null"}, "value": {one}}}\n' for one in texts]
    (folder / "changes.jsonl").write_text("".join(lines))
    return delivered(BANK, folder)


def test_a_change_is_part_of_a_whole_transaction(tmp_path: Path) -> None:
    found = read(tmp_path, CHANGE, END)
    assert (found.problems, found.unreadable) == ([], [])
    assert [one.is_whole for one in found.transactions.values()] == [True]


def test_a_place_beyond_what_the_end_counts_makes_no_whole_transaction(tmp_path: Path) -> None:
    third = CHANGE | {"transaction": PLACE | {"total_order": 3}}
    found = read(tmp_path, CHANGE, third, END | {"event_count": 2})
    assert [one.is_whole for one in found.transactions.values()] == [False]
    assert "it has a change in place 3, more than its end says" in str(found.problems[0])


def test_a_commit_before_its_own_changes_is_refused(tmp_path: Path) -> None:
    found = read(tmp_path, CHANGE, END | {"id": "571:5"})
    assert "it has a change at 0/16E9058, after its commit" in str(found.problems[0])


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ('{"account_id": 1e999}', json.dumps(CHANGE).replace('"account_id": 7', '"account_id": 1e999')),
        ("null", json.dumps(CHANGE | {"op": "u", "before": ROW | {"account_id": "@"}}).replace('"@"', "1e999")),
        ("null", json.dumps(CHANGE).replace('"account_id": 7', '"account_id": ' + "[" * 900 + "]" * 900)),
        ('{"account_id": true}', json.dumps(CHANGE | {"after": ROW | {"account_id": 1}})),
        ('"{\\"account_id\\": NaN}"', json.dumps(CHANGE | {"op": "m"})),
    ],
)
def test_a_key_that_cannot_be_written_or_is_another_is_quarantined(tmp_path: Path, key: str, text: str) -> None:
    found = read(tmp_path, text, key=key)
    assert [one.row for one in found.unreadable] == [0]
    found = read(tmp_path, END)
    assert [one.is_whole for one in found.transactions.values()] == [False]


def test_rows_of_a_table_that_is_not_declared_may_have_no_key(tmp_path: Path) -> None:
    def of(table: str, row: dict[str, Any], place: str) -> dict[str, Any]:
        return CHANGE | {
            "op": "r",
            "after": row,
            "source": SOURCE | {"table": table, "snapshot": place},
            "transaction": None,
        }

    others = [of("notes", {"text": text}, "true") for text in ("a", "b", "a")]
    found = read(tmp_path, of("accounts", ROW, "first"), *others, of("notes", {"text": "c"}, "last"), key=None)
    assert found.problems == []
    assert [one.is_whole for one in found.snapshots.values()] == [True]
    assert sum(found.left_out.values()) == 4


def test_half_a_letter_is_quarantined_and_the_rest_is_landed(accounts: Accounts) -> None:
    messages = tail_of(a_bank())
    whole = accounts.land(messages, "whole")
    assert whole.unreadable == {}
    bank = a_bank()
    bank.work(20)
    halves = [
        Message({"account_id": 7}, CHANGE | {"op": "\ud800"}),
        Message({"account_id": "\ud800"}, CHANGE),
        Message(None, CHANGE | {"transaction": PLACE | {"id": "\udfff:1"}}),
        Message(None, {"status": "\ud800", "id": "1:2"}),
    ]
    rows = accounts.table(CHANGES).height
    more = accounts.land([*tail_of(bank), *halves], "more")
    assert more.unreadable == {"a text of JSON has whole letters": 4}
    assert accounts.table(CHANGES).height > rows
    kept = accounts.table(accounts.platform.products.quarantine_of(ACCOUNT_CHANGES).name)
    assert set(kept["detail"]) == {"half a letter: '\\ud800'", "half a letter: '\\udfff'"}


def test_too_many_lines_that_are_no_messages_are_told_with_their_file_and_line(
    accounts: Accounts, tmp_path: Path
) -> None:
    messages = tail_of(a_bank())
    folder = delivery(tmp_path / "two", [messages, [*messages[:2], *["no message"] * 100]])
    with pytest.raises(InputRefused) as refused:
        land_changes(accounts.platform, BANK.name, folder)
    (problem,) = refused.value.problems
    assert "a line is a JSON object (100, first in changes-00001.jsonl line 3: no message" in problem.what
    assert "rows are counted from 0" not in problem.what


@pytest.mark.parametrize(
    ("said", "what", "fix"),
    [
        (
            {"connector": "mysql"},
            "source.connector is 'mysql' at LSN 0/16E9058",
            "take the files of another connector out",
        ),
        ({"snapshot": "blocking"}, "source.snapshot is 'blocking' at LSN 0/16E9058", "as Debezium has written them"),
    ],
)
def test_a_message_that_nothing_here_can_read_refuses_its_delivery(
    accounts: Accounts, said: dict[str, Any], what: str, fix: str
) -> None:
    messages = tail_of(a_bank())
    odd = Message({"account_id": 7}, CHANGE | {"source": SOURCE | {"db": "bank"} | said})
    with pytest.raises(InputRefused) as refused:
        accounts.land([*messages, *[odd] * 20])
    assert len(refused.value.problems) == 5, "of many lines the first are named"
    problem = refused.value.problems[0]
    assert problem.what == f"changes-00000.jsonl line {len(messages) + 1}: {what}"
    assert fix in problem.fix
    assert accounts.table(CHANGES).is_empty()
    accounts.land(messages)
    assert not accounts.table(CHANGES).is_empty()


@pytest.mark.parametrize(
    ("value", "kind"), [({"scale": 0, "value": "Bw=="}, "an object"), ([7], "an array"), ([], "an array")]
)
@pytest.mark.parametrize("of", ["row", "key before"])
def test_a_key_of_a_column_with_parts_is_refused_by_its_place_and_not_its_value(
    tmp_path: Path, value: Any, kind: str, of: str
) -> None:
    odd = ROW | {"account_id": value}
    change = CHANGE | ({"after": odd} if of == "row" else {"op": "u", "before": odd})
    found = read(tmp_path, change, END, key=json.dumps({"account_id": value}) if of == "row" else None)
    (problem,) = found.problems
    assert problem.what == f"changes.jsonl line 1: account_id of the key of public.accounts is {kind} at LSN 0/16E9058"
    assert "a column of a key is a text, a number, true or false" in str(problem)
    assert "decimal.handling.mode=string" in problem.fix
    assert "Bw" not in str(problem)
    other = change | {"source": SOURCE | {"db": "bank", "table": "notes"}}
    assert read(tmp_path, other, END, key=None).problems == [], "of a table that is not declared nobody asks for a key"
