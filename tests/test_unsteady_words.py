"""What is refused of a plan of which only Spark's words are seen: that of a client of Spark Connect.

That the words of a real server lead to what a plan of one's own JVM leads to is `test_spark_elsewhere.py`'s.
"""

from __future__ import annotations

import pytest

from backfill_assets.staging.unsteady import SAID, UNSTEADY, unsteady_in_text


def found(line: str, *asked: str, texts: tuple[str, ...] = (), given: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    return list(unsteady_in_text(line, asked, texts, given))


def test_each_refused_expression_has_a_name_by_which_it_is_known() -> None:
    inside_of_others = {"CurDateExpressionBuilder", "CurrentTimestampLike", "Sample"}
    assert set(SAID.values()) == set(UNSTEADY) - inside_of_others


def test_what_was_asked_for_by_name_is_refused_with_its_column() -> None:
    plan = "Project [id#0L, (rand(3) + cast(id#0L as double)) AS dice#4]\n+- Range (0, 3, step=1)"
    assert found(plan, "rand", "+") == [("Rand", "dice")]
    assert found("Filter (rand(3) > 0.5)", "rand") == [("Rand", "")]


def test_what_a_text_of_sql_asks_for_is_refused() -> None:
    plan = "Project [uuid(Some(4)) AS name#1]"
    assert found(plan, texts=("SELECT UUID() AS name",)) == [("Uuid", "name")]
    assert found(plan, texts=("SELECT `uuid`() AS name",)) == [("Uuid", "name")]


def test_a_text_that_only_looks_like_a_function_is_none() -> None:
    plan = "Project [upper(rand(1)) AS x#1]"
    assert found(plan, "upper", given=("rand(1)",)) == []
    assert found(plan, texts=("upper('rand(1)') -- rand(2)\n",)) == []
    assert found("Project [upper(a\nrand(1)\nb) AS x#1]", texts=("upper('a\\nrand(1)\\nb')",)) == []
    assert found("Project [upper(a\n Sample 0.5) AS x#1]", "upper", given=("a\n Sample 0.5",)) == []
    assert found("Project [brand(id#0L) AS x#1, t.rand(1) AS y#2]", "rand") == []


def test_a_column_or_a_function_of_python_that_is_called_like_one_is_none() -> None:
    assert found("Filter (rand(3)#41 > cast(0 as double))\n+- Relation [rand(3)#41] parquet") == []
    assert found("Filter (upper(rand(1)) = rand(3)#41)", texts=("upper('rand(1)') = `rand(3)`",)) == []
    assert found("Project [user(upper(id#0L))#47 AS y#48]") == []
    assert found("Project [rand(3) AS rand(3)#41]", "rand") == [("Rand", "")]


def test_what_another_function_comes_to_is_refused_though_nobody_asked_for_it_by_name() -> None:
    of_a_clock = "Project [unix_timestamp(current_timestamp(), yyyy-MM-dd HH:mm:ss, Some(UTC), true) AS x#3L]"
    assert found(of_a_clock, "unix_timestamp") == [("CurrentTimestamp", "x")]
    assert found(of_a_clock, texts=("unix_timestamp()",)) == [("CurrentTimestamp", "x")]
    assert found("Filter UDF(id#0L, rand(1))") == [("Rand", "")]  # sampleBy
    # a text that reads the same hides nothing of what is known to come to it
    assert found(of_a_clock, "unix_timestamp", given=("current_timestamp()",)) == [("CurrentTimestamp", "x")]


def test_what_a_view_of_another_frame_asks_for_is_refused() -> None:
    plan = "SubqueryAlias v\n+- View (`v`, [id#0L, x#3])\n   +- Project [id#0L, {} AS x#3]\n      +- Range (0, 2)"
    assert found(plan.format("rand(-645)")) == [("Rand", "x")]
    assert found(plan.format("uuid(Some(4))"), texts=("select id, x from v",)) == [("Uuid", "x")]
    # a text that is given beside hides nothing of what is below
    assert found(plan.format("rand(1)"), given=("rand(1)",)) == [("Rand", "x")]
    of_some = "SubqueryAlias v\n+- View (`v`, [id#0L])\n   +- Sample 0.0, 0.5, false, 5\n      +- Range (0, 2)"
    assert found(of_some) == [("Sample", "")]


def test_a_sample_is_refused_where_one_was_asked_for() -> None:
    plan = "Project [id#0L]\n+- Sample 0.0, 0.5, false, 1\n   +- Range (0, 3, step=1)"
    assert found(plan, "sample") == [("Sample", "")]
    assert found(plan, texts=("SELECT * FROM t TABLESAMPLE (50 PERCENT)",)) == [("Sample", "")]


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("cast(today as date)", "'today' as a date"),
        ("cast(concat(to, morrow) as timestamp)", "'tomorrow' as a timestamp"),
        ("to_date(now, None, Some(UTC), true)", "'now' as a date"),
        ("to_timestamp(yesterday UTC, None, TimestampType, Some(UTC), true)", "'yesterday UTC' as a timestamp"),
        ("(day#1 > cast(yesterday as date))", "'yesterday' as a date"),
        ("try_cast(today as date)", "'today' as a date"),
        ("try_to_date(today, None, Some(UTC), false)", "'today' as a date"),
        ("try_to_timestamp(concat(n, ow), None, TimestampType, Some(UTC), false)", "'now' as a timestamp"),
        ("to_timestamp_ntz(now, None, TimestampNTZType, Some(UTC), true)", "'now' as a timestamp"),
        ("to_timestamp_ltz(now, None, TimestampType, Some(UTC), true)", "'now' as a timestamp"),
    ],
)
def test_a_word_for_now_that_becomes_a_moment_is_refused(expression: str, said: str) -> None:
    assert found(f"Project [{expression} AS x#1]") == [(said, "x")]


@pytest.mark.parametrize(
    "expression",
    [
        "cast(2020-01-01 as date)",
        "cast(today#4 as date)",
        "cast(concat(to, day#4) as date)",
        "cast(today as string)",
        "to_date(now, Some(yyyy), Some(UTC), true)",
        "try_to_timestamp(now, Some(yyyy), TimestampType, Some(UTC), false)",
        "retry_cast(today as date)",
        "forecast(today as date)",
    ],
)
def test_other_texts_that_become_moments_are_not(expression: str) -> None:
    assert found(f"Project [{expression} AS x#1]") == []
