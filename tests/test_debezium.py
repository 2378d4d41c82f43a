"""Messages of Debezium: each is read as what it says, with its rows as they came, or is refused by the rule that it breaks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backfill_assets.extraction.debezium import (
    Boundary,
    Change,
    ForeignError,
    SaysNothing,
    UnreadableError,
    message_of,
)

SOURCE = {
    "snapshot": "false",
    "sequence": '["24023119","24023128"]',
    "schema": "public",
    "table": "accounts",
    "txId": 571,
    "lsn": 24023128,
    "ts_ms": 1_704_067_200_001,
    "ts_us": 1_704_067_200_001_234,
}
PLACE = {"id": "571:24023128", "total_order": 1, "data_collection_order": 1}
VALUE: dict[str, Any] = {
    "before": None,
    "after": {"account_id": 7, "rate": 1.10},
    "source": SOURCE,
    "transaction": PLACE,
    "op": "c",
    "ts_ms": 1,
}


def line(value: Any, key: Any = None, *, as_text: bool = False) -> str:
    if as_text:
        return json.dumps({"key": json.dumps(key), "value": None if value is None else json.dumps(value)})
    return json.dumps({"key": key, "value": value})


@pytest.mark.parametrize("as_text", [False, True])
def test_a_change_is_read_with_its_rows_as_they_came(as_text: bool) -> None:
    found = message_of(line(VALUE, {"account_id": 7}, as_text=as_text))
    assert found == Change(
        "c", "public.accounts", 24023128, 24023119, "571", 1, {"account_id": 7}, None, '{"account_id": 7, "rate": 1.1}',
        {"account_id": 7, "rate": 1.1}, 1_704_067_200_001_234, "",
    )  # fmt: skip


def test_a_number_is_kept_as_it_was_written() -> None:
    text = line(VALUE).replace("1.1}", "1.10000000000000000001}")
    found = message_of(text)
    assert isinstance(found, Change)
    assert found.after == '{"account_id": 7, "rate": 1.10000000000000000001}'


def test_schemas_may_be_there_and_a_value_may_come_alone() -> None:
    whole = {"schema": {"type": "struct"}, "payload": VALUE}
    key = {"schema": {"type": "struct"}, "payload": {"account_id": 7}}
    assert message_of(line(whole, key)) == message_of(line(VALUE, {"account_id": 7}))
    alone = message_of(json.dumps(VALUE))
    assert isinstance(alone, Change)
    assert (alone.key, alone.after) == (None, '{"account_id": 7, "rate": 1.1}')


def test_what_says_nothing_of_a_row_is_told_apart() -> None:
    assert message_of(line(None, {"account_id": 7})) == SaysNothing("tombstone")
    assert message_of(line({"schema": None, "payload": None})) == SaysNothing("tombstone")
    assert message_of(line({"ts_ms": 1}, {"serverName": "bank"})) == SaysNothing("heartbeat")


def test_a_transaction_begins_and_ends() -> None:
    begin = {"status": "BEGIN", "id": "571:24023128", "event_count": None, "data_collections": None, "ts_ms": 1}
    assert message_of(line(begin)) == Boundary(False, "571", 24023128, 0)
    assert message_of(line(begin | {"status": "END", "event_count": 3})) == Boundary(True, "571", 24023128, 3)


def test_a_read_is_of_a_snapshot_and_knows_no_commit_before() -> None:
    source = SOURCE | {"snapshot": "last", "sequence": '[null,"24023128"]'}
    found = message_of(line(VALUE | {"op": "r", "source": source, "transaction": None}))
    assert isinstance(found, Change)
    assert (found.transaction, found.order, found.previous, found.snapshot) == (None, 0, None, "last")


WRONG = {
    "op is one of": VALUE | {"op": "x"},
    "a change has a source": VALUE | {"source": None},
    "source.lsn is a whole number": VALUE | {"source": SOURCE | {"lsn": -1}},
    "source.sequence has": VALUE | {"source": SOURCE | {"sequence": None}},
    "source says when it was": VALUE | {"source": SOURCE | {"ts_us": None, "ts_ms": None}},
    "provide.transaction.metadata=true": VALUE | {"transaction": None},
    "its place in its transaction": VALUE | {"transaction": PLACE | {"total_order": 0}},
    "a change has its row": VALUE | {"after": None},
    "a delete leaves no row": VALUE | {"op": "d", "before": {"account_id": 7}},
    "none of an incremental one": VALUE | {"op": "r", "source": SOURCE | {"snapshot": "incremental"}},
    "END says how many": {"status": "END", "id": "571:1", "event_count": None},
    "a transaction's message is BEGIN or END": {"status": "MAYBE", "id": "571:1"},
    "a message's value is a JSON object": 5,
    "source names the table": VALUE | {"source": SOURCE | {"table": None}},
    "source.db is the name": VALUE | {"source": SOURCE | {"db": ["other"]}},
    "less than 2^63 - 1": VALUE | {"source": SOURCE | {"lsn": 2**63 - 1}},
    "has whole letters": VALUE | {"after": {"account_id": 7, "note": "\ud800"}},
}


@pytest.mark.parametrize("rule", WRONG)
def test_what_is_no_message_says_which_rule_it_breaks(rule: str) -> None:
    with pytest.raises(UnreadableError) as refused:
        message_of(line(WRONG[rule]))
    assert rule in refused.value.rule


@pytest.mark.parametrize("word", ["", "Last", "blocking", "none", True, False, 1, ["last"], {}, "x" * 1_000])
@pytest.mark.parametrize("op", ["c", "r"])
def test_an_unknown_word_of_a_snapshot_is_told_with_its_lsn(op: str, word: Any) -> None:
    value = VALUE | {"op": op, "source": SOURCE | {"snapshot": word}}
    with pytest.raises(ForeignError, match=r"source\.snapshot is one of false, first, ") as refused:
        message_of(line(value))
    assert refused.value.what.startswith("source.snapshot is ")
    assert refused.value.what.endswith(" at LSN 0/16E9058")
    assert len(refused.value.what) < 120
    assert "as Debezium has written them" in refused.value.fix


@pytest.mark.parametrize("word", ["first", "first_in_data_collection", "true", "last_in_data_collection", "last"])
def test_the_words_of_a_snapshot_are_read(word: str) -> None:
    found = message_of(line(VALUE | {"op": "r", "source": SOURCE | {"snapshot": word}, "transaction": None}))
    assert isinstance(found, Change)
    assert found.snapshot == word


@pytest.mark.parametrize("name", ["mysql", "", 5, ["postgresql"]])
def test_a_change_of_another_connector_is_told_with_its_lsn_if_it_has_one(name: Any) -> None:
    for lsn, at in ((24023128, " at LSN 0/16E9058"), (None, ""), (-1, ""), (2**80, "")):
        with pytest.raises(ForeignError, match=r"source\.connector is postgresql") as refused:
            message_of(line(VALUE | {"source": SOURCE | {"connector": name, "lsn": lsn}}))
        assert refused.value.what == f"source.connector is {name!r}{at}"
    said = VALUE | {"source": SOURCE | {"connector": "postgresql"}}
    assert (
        message_of(line(said))
        == message_of(line(VALUE))
        == message_of(line(VALUE | {"source": SOURCE | {"connector": None}}))
    )


def test_a_truncate_names_no_row() -> None:
    truncate = VALUE | {"op": "t", "after": None}
    assert isinstance(message_of(line(truncate)), Change)
    for text in (line(truncate, {"account_id": 7}), line(truncate | {"after": {}}), line(truncate | {"before": {}})):
        with pytest.raises(UnreadableError, match="a truncate is of all rows"):
            message_of(text)


@pytest.mark.parametrize("odd", [[], {}, "\ud800", ["END"]])
def test_the_status_of_a_transaction_is_a_word(odd: Any) -> None:
    with pytest.raises(UnreadableError):
        message_of(line({"status": odd, "id": "571:1", "event_count": 1}))


def test_letters_that_json_writes_in_two_halves_are_whole() -> None:
    found = message_of(
        line(VALUE | {"after": {"account_id": 7, "note": "\U0001f511"}}, {"account_id": 7}, as_text=True)
    )
    assert isinstance(found, Change)
    assert found.row == {"account_id": 7, "note": "\U0001f511"}


@pytest.mark.parametrize(
    "text", ["", "[]", "nonsense", '{"value": ', '{"value": {"a": NaN}}', '{"a": 1, "a": 2}', '{"a" 1}', '{"a": 1']
)
def test_a_damaged_line_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError):
        message_of(text)


TWICE = {
    "after": ('"rate": 1.1', '"rate": 1.1, "rate": 999.0'),
    "escaped": ('"rate": 1.1', '"rate": 1.1, "\\u0072ate": 999.0'),
    "source": ('"table": "accounts"', '"table": "accounts", "table": "other"'),
    "transaction": ('"total_order": 1', '"total_order": 1, "total_order": 2'),
    "key": ('"key": {"account_id": 7}', '"key": {"account_id": 8, "account_id": 7}'),
    "before": ('"before": null', '"before": {"rate": {"a": 1, "a": 2}}'),
}


@pytest.mark.parametrize("place", TWICE)
def test_a_member_that_is_there_twice_is_refused_wherever_it_is(place: str) -> None:
    twice = line(VALUE, {"account_id": 7}).replace(*TWICE[place])
    key, value = twice.removeprefix('{"key": ')[:-1].split(', "value": ')
    in_texts = json.dumps({"key": key, "value": value})
    for one in (twice, in_texts):
        with pytest.raises(UnreadableError, match="a message has each member once"):
            message_of(one)


@pytest.mark.parametrize(
    "odd", [None, "", "None", 571, 571.0, True, ["571:1"], "x\ny:1", "571:", "571:1:2", "-5", "\u0665:1"]
)
def test_the_id_of_a_transaction_is_a_text_with_its_number(odd: Any) -> None:
    place = {"total_order": 1} if odd is None else PLACE | {"id": odd}
    for value in (VALUE | {"transaction": place}, {"status": "END", "id": odd, "event_count": 1}):
        with pytest.raises(UnreadableError, match="the id of a transaction is a text with its number"):
            message_of(line(value))
    assert message_of(line(VALUE | {"transaction": PLACE | {"id": "571"}})) == message_of(line(VALUE))


@pytest.mark.parametrize("note", ["n", "\U0001f511"])
@pytest.mark.parametrize("depth", [101, 900, *range(970, 990), 5_000])
def test_what_is_nested_too_deep_is_refused_by_its_rule(depth: int, note: str) -> None:
    for as_text in (False, True):
        text = line(VALUE | {"after": {"account_id": 7, "note": note, "rate": "@"}}, as_text=as_text)
        deep = text.replace('\\"@\\"' if as_text else '"@"', "[" * depth + "]" * depth)
        with pytest.raises(UnreadableError, match="nested no deeper than 100 times"):
            message_of(deep)


def test_what_is_nested_a_little_or_has_many_rows_beside_one_another_is_read() -> None:
    row = {"account_id": 7, "flat": [{"a": [1]}] * 500, "deep": json.loads("[" * 90 + "]" * 90), "text": "[" * 900}
    found = message_of(line(VALUE | {"after": row}, as_text=True))
    assert isinstance(found, Change)
    assert found.row == row
