"""Changelogs that cannot be used are refused when they are declared: every mistake at once, each with its place, rule and way out."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import backfill_assets as ba
from backfill_assets.declarations.checking.products import problems_of
from backfill_assets.products.accounts import ACCOUNT_CHANGES, BANK, PRODUCT

ACCOUNTS = BANK.tables[0]

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "name": ({"name": "Bank Changes"}, "name is 'Bank Changes'"),
    "name that climbs": ({"name": "../x"}, r"name is '\.\./x'"),
    "description": ({"description": " "}, "description is ' '"),
    "owners": ({"owners": ("nobody",)}, "owners="),
    "table": ({"table": "bronze.account_change"}, "no product declares the table 'bronze.account_change'"),
    "a target": ({"table": "silver.account_state"}, "silver.account_state is no input table"),
    "no tables": ({"tables": ()}, r"tables is \(\)"),
    "no table of a database": ({"tables": ("public.accounts",)}, "tables is "),
    "a table twice": ({"tables": (ACCOUNTS, ACCOUNTS)}, "public.accounts is declared 2 times"),
    "a table's name": ({"tables": (replace(ACCOUNTS, name="accounts"),)}, "a table is named 'accounts'"),
    "no key": ({"tables": (replace(ACCOUNTS, key=()),)}, r"key is \(\)"),
    "a key as text": ({"tables": (replace(ACCOUNTS, key="account_id"),)}, "key is 'account_id'"),
    "a key that a version lacks": ({"tables": (replace(ACCOUNTS, key=("number",)),)}, "version 1 lacks number"),
    "no versions": ({"tables": (replace(ACCOUNTS, versions={}),)}, "versions is {}"),
    "two versions of the same columns": (
        {"tables": (replace(ACCOUNTS, versions={"1": ("account_id", "a"), "2": ("a", "account_id")}),)},
        "versions 1 and 2 have the same columns",
    ),
    "a version that is none": (
        {"tables": (replace(ACCOUNTS, versions={"unknown: x": ("account_id",)}),)},
        "a version is 'unknown: x'",
    ),
    "columns as text": (
        {"tables": (replace(ACCOUNTS, versions={"1": "account_id"}),)},
        "version '1' has 'account_id'",
    ),
}


def said_of(*changelogs: Any, inputs: tuple[ba.InputTable, ...] = (ACCOUNT_CHANGES,)) -> str:
    return "\n".join(map(str, problems_of([replace(PRODUCT, inputs=inputs, changelogs=changelogs)])))


@pytest.mark.parametrize("what", WRONG)
def test_a_changelog_that_cannot_be_used_is_refused_by_name(what: str) -> None:
    changes, said = WRONG[what]
    found = said_of(replace(BANK, **changes))
    assert re.search(said, found), found
    assert "rule" in found


def test_every_mistake_is_said_at_once() -> None:
    found = said_of(replace(BANK, name="X", owners=(), tables=(replace(ACCOUNTS, key=(), versions={}),)))
    assert all(one in found for one in ("name is 'X'", "owners=", "key is ()", "versions is {}"))


def test_what_ships_is_right_and_what_is_no_tuple_of_changelogs_is_refused() -> None:
    assert said_of(BANK) == ""
    assert "changelogs has 'bank'" in said_of("bank")
    assert "2 changelogs have the name bank_changes" in said_of(BANK, BANK)


def test_the_table_of_a_changelog_has_the_columns_of_a_change_and_its_place_in_the_log() -> None:
    class Other(ba.Published):
        """No changes."""

        commit_lsn: int

    found = said_of(BANK, inputs=(replace(ACCOUNT_CHANGES, log=None),))
    assert "log of bronze.account_changes is None" in found
    found = said_of(BANK, inputs=(replace(ACCOUNT_CHANGES, model=Other, log=None),))
    assert "the model of bronze.account_changes is none of them" in found


def test_a_target_that_is_merged_by_key_is_computed_from_a_history_and_not_from_changes() -> None:
    daily = next(one for one in PRODUCT.targets if one.source == ACCOUNT_CHANGES.name and one.entity is None)
    found = list(map(str, problems_of([replace(PRODUCT, targets=(replace(daily, entity="account_id"),))])))
    assert any(
        "entity is 'account_id', and bronze.account_changes has the changes of a database" in one for one in found
    )
    assert any("merge from a history" in one for one in found)
    state = next(one for one in PRODUCT.targets if one.entity is not None)
    history = next(one for one in PRODUCT.targets if one.name == state.source)
    assert problems_of([replace(PRODUCT, targets=(history, state))]) == []


def test_a_row_is_of_the_version_whose_columns_it_has() -> None:
    assert ACCOUNTS.version_of(frozenset(ACCOUNTS.versions["2"])) == "2"
    assert ACCOUNTS.version_of(frozenset(["account_id", "nickname"])) == "unknown: account_id, nickname"
    assert ACCOUNTS.newest_version == "3"
