"""Lists of erased subjects: read as the one thing that they say, or refused."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from manifests.errors import EnvironmentRefused
from manifests.policy import Erasure
from resources.policies import erased_in_file, erased_since

LISTED = Erasure.model_validate({"column": "case_id", "file": "erased.csv"})
TODAY = date(2024, 6, 1)


def keys_of(folder: Path, text: str) -> set[str]:
    (folder / "erased.csv").write_bytes(text.encode())
    return set(erased_since(erased_in_file(folder, LISTED), LISTED, TODAY, where="erased.csv"))


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("subject,erased_on\nA1,2024-01-01\nB2,2024-06-01\nC3,2024-06-02\n", {"A1", "B2"}),
        ("erased_on,subject,note\r\n2024-01-01,A1,\r\n", {"A1"}),
        ("subject,erased_on\rA1,2024-01-01\r", {"A1"}),
        ("\ufeffsubject,erased_on\n A1 , 2024-01-01 \n\n\n", {"A1"}),
        ('subject,erased_on\n"A,1",2024-01-01', {"A,1"}),
        ("subject,erased_on\n", set()),
        ("subject,erased_on\nA1,2024-01-01\nA1,2999-01-01\n", {"A1"}),
    ],
)
def test_a_list_of_erased_subjects_says_who_is_erased_by_a_day(tmp_path: Path, text: str, keys: set[str]) -> None:
    assert keys_of(tmp_path, text) == keys


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('subject,erased_on\n"A1\nB2,2024-01-01\n",2024-01-01\n', "a cell of .* that ends in line 4 goes over several"),
        ('subject,erased_on\n"A1\rB2",2024-01-01\n', "goes over several lines"),
        ('subject,erased_on,note\nA1,2024-01-01,"moved\nB2,2024-01-01,"\n', "goes over several lines"),
        ('"subject",erased_on,"no\nte"\nA1,2024-01-01,\n', "goes over several lines"),
        ('subject,erased_on\nA1,2024-01-01,"B2",2024-01-01\n', "line 2 of .* has 4 cells, and the header 2"),
        ("subject,erased_on,note\nA1,2024-01-01\n", "line 2 of .* has 2 cells, and the header 3"),
        ("subject,erased_on\nA1\n", "line 2 of .* has 1 cells, and the header 2"),
        ("subject,subject,erased_on\nA1,B2,2024-01-01\n", "more than one column 'subject'"),
        ("subject,erased_on,erased_on\nA1,2024-01-01,2999-01-01\n", "more than one column 'erased_on'"),
        ("subject,erased_on,,\nA1,2024-01-01,,\n", "more than one column ''"),
        ("subject,erased_on\n,2024-01-01\n", "row 1 of erased.csv has subject ''"),
        ("", "lacks the column"),
        ("subject;erased_on\nA1;2024-01-01\n", "lacks the column"),
    ],
)
def test_a_list_that_may_say_something_else_than_it_seems_to_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(EnvironmentRefused, match=says):
        keys_of(tmp_path, text)


@pytest.mark.parametrize(
    "day",
    ["2024-01-015", "2024-01-01 or so", "2024-W01-1", "20240101", "2024-01-01T23:00:00-12:00", "2024-1-1", "x", ""],
)
def test_a_day_of_a_list_is_written_in_one_way(tmp_path: Path, day: str) -> None:
    with pytest.raises(EnvironmentRefused, match=r"an erased subject has a key and a day \(YYYY-MM-DD"):
        keys_of(tmp_path, f"subject,erased_on\nA1,{day}\n")


@pytest.mark.parametrize("day", ["2024-01-01", date(2024, 1, 1), datetime(2024, 1, 1, 23, tzinfo=UTC)])
def test_a_table_of_erased_subjects_may_have_days_of_any_type(day: Any) -> None:
    rows = [{"subject": "A1", "erased_on": day}]
    assert set(erased_since(rows, LISTED, date(2024, 1, 1), where="governance.erased")) == {"A1"}
