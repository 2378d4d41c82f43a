"""What the side-by-side benchmark rests on, without its servers: the model in SQL, and what a reader's notes say."""

from __future__ import annotations

import json
import sys
import time
from datetime import date
from pathlib import Path

import polars as pl
import pytest
from clocks_by_hand import clocks_by_hand
from duckdb_engine import in_duckdb
from worlds import END, START, generated

from backfill_assets.products.enforcement import loading
from backfill_assets.testing import RUN_CLOCK
from benchmarks.side_by_side import data
from benchmarks.side_by_side.commands import Command, run
from benchmarks.side_by_side.dagster_runs import breaking
from benchmarks.side_by_side.model import AUDITS, audits, query
from benchmarks.side_by_side.readers import figures, of_parquet, watch
from benchmarks.side_by_side.rounds import _Middle, sorted_rows
from benchmarks.side_by_side.states import Expected, distinct, in_words, is_between, read_looks

_SCRIPT = """
import json, sys
import duckdb
asked = json.loads(sys.stdin.read())
connection = duckdb.connect()
connection.execute("SET TimeZone = 'UTC'; CREATE SCHEMA source")
for name in ("events", "rules", "stops", "calendar"):
    connection.execute(f"CREATE VIEW source.{name} AS SELECT * FROM read_parquet('{asked['files']}/{asked.get(name, name)}.parquet')")
connection.execute(f"CREATE TABLE found AS {asked['query']}")
connection.execute(f"COPY found TO '{asked['to']}' (FORMAT parquet)")
print(json.dumps([len(connection.execute(one.replace("@this_model", "found")).fetchall()) for one in asked["audits"]]))
"""
BEFORE = {"2010-01": (10, 55, 1, 0), "2010-02": (20, 99, 2, 0)}
AFTER = {"2010-01": (11, 60, 1, 0), "2010-02": (20, 98, 3, 0)}
EXPECTED = Expected(BEFORE, AFTER)


@pytest.fixture(scope="module")
def events() -> pl.DataFrame:
    load = generated(60, 11, START, END)
    return pl.concat([pl.DataFrame(pl.from_arrow(part)) for part in load.rows(RUN_CLOCK)])


def by_duckdb(world: data.World, to: Path, **files: str) -> tuple[pl.DataFrame, list[int]]:
    """Return the model's rows as DuckDB computes them, and how many of them each audit finds."""
    days = {"@start_ds": f"DATE '{world.start}'", "@end_ds": f"DATE '{world.end}'"}
    checks = []
    for text in audits("duckdb").values():
        for macro, day in days.items():
            text = text.replace(macro, day)  # noqa: PLW2901
        checks.append(text)
    asked = {
        "files": str(world.files),
        "query": query("duckdb", start=days["@start_ds"], end=days["@end_ds"]),
        "to": str(to),
        "audits": checks,
        **files,
    }
    broken = in_duckdb(_SCRIPT, asked, 120)
    return pl.read_parquet(to), broken


def test_the_model_in_sql_has_the_rows_of_the_transform_and_a_bad_calendar_breaks_one_rule_in_one_month(
    events: pl.DataFrame, tmp_path: Path
) -> None:
    months = data.months_from(START, END, 99)
    world = data.write(events, tmp_path / "files", months)
    references = {name: rows.to_pylist() for name, rows, _ in loading.reference_tables()}
    by_hand = pl.DataFrame(clocks_by_hand(events.to_dicts(), references), infer_schema_length=None)
    wanted = by_hand.filter(
        pl.col("business_date").is_between(date.fromisoformat(world.start), date.fromisoformat(world.end))
    )
    found, broken = by_duckdb(world, tmp_path / "rows.parquet")
    assert wanted.height > 1000
    assert sorted_rows(found).equals(sorted_rows(wanted))
    assert broken == [0] * len(AUDITS)
    before, _ = by_duckdb(world, tmp_path / "before.parquet", rules="rules-before")
    assert not sorted_rows(before).equals(sorted_rows(wanted))
    bad, broken = by_duckdb(world, tmp_path / "bad.parquet", calendar="calendar-bad")
    without = bad.filter(pl.col("breach_on").is_null())
    assert without["month"].unique().to_list() in ([], [world.bad_month])
    assert broken[0] == without.height


def test_months_are_whole_and_from_the_middle_of_the_log() -> None:
    assert data.months_from(date(2009, 1, 1), date(2009, 12, 31), 4) == ("2009-05", "2009-06", "2009-07", "2009-08")
    assert data.months_from(date(2009, 1, 1), date(2009, 3, 31), 12) == ("2009-01", "2009-02", "2009-03")


def look(at: float, months: object = None, error: str = "") -> str:
    return json.dumps({"at": at, "error": error} if error else {"at": at, "months": months}) + "\n"


def test_states_are_told_apart_by_month_and_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    half = BEFORE | {"2010-01": AFTER["2010-01"]}
    bad = AFTER | {"2010-02": (21, 98, 3, 4)}
    lines = [look(1, BEFORE), look(2, half), look(3, error="gone"), look(4, bad), look(5, AFTER), look(6, AFTER)]
    notes.write_text("".join(lines) + '{"at": 7, "mon')
    looks = read_looks(notes)
    assert distinct(looks, EXPECTED) == ["bb", "ab", "error", "a!", "aa"]
    assert [is_between(state) for state in ("bb", "ab", "error", "aa")] == [False, True, True, False]
    assert EXPECTED.shown(read_looks(notes)[0]) == "bb"
    assert in_words("a!-?") == "1 month restated, 1 month empty, 1 month with bad rows, 1 month with rows of neither"
    assert (in_words("bb"), in_words("aa"), in_words("error")) == ("history", "the restatement", "an error")
    assert read_looks(tmp_path / "none") == []


def rows(month: str, days_open: int, *, deadline: bool = True) -> pl.DataFrame:
    day = date.fromisoformat(f"{month}-07")
    values = {
        "business_date": [day],
        "days_open": [days_open],
        "sla_state": ["RUNNING"],
        "breach_on": [day if deadline else None],
    }
    return pl.DataFrame(values, schema_overrides={"breach_on": pl.Date, "days_open": pl.Int32})


def test_a_reader_notes_each_state_of_a_folder_once_and_what_spark_hides_not_at_all(tmp_path: Path) -> None:
    table, notes = tmp_path / "table", tmp_path / "notes"
    for number, month in enumerate(("2010-01", "2010-02"), 1):
        (table / f"month={month}").mkdir(parents=True)
        rows(month, number).write_parquet(table / f"month={month}" / "part.parquet")
    hidden = table / ".spark-staging-1"
    hidden.mkdir()
    rows("2010-03", 3).write_parquet(hidden / "part.parquet")
    acts = [
        lambda: None,
        (table / "month=2010-02" / "part.parquet").unlink,
        lambda: rows("2010-02", 5, deadline=False).write_parquet(table / "month=2010-02" / "part.parquet"),
        lambda: (table / "month=2010-01" / "part.parquet").write_bytes(b"half a file"),
    ]

    def next_act(_: float) -> bool:
        if acts:
            acts.pop(0)()
            return False
        return True

    watch(of_parquet(table), notes, 1000, next_act)
    looks = read_looks(notes)
    first, second = (1, 7, 0, 0), (1, 14, 0, 0)
    assert [one.months for one in looks[:3]] == [
        {"2010-01": first, "2010-02": second},
        {"2010-01": first},
        {"2010-01": first, "2010-02": (1, 35, 0, 1)},
    ]
    assert looks[3].error
    assert [one.polls for one in looks] == [1, 3, 4, 5, 5]


def test_the_figures_of_a_month_change_with_its_rows() -> None:
    assert figures(rows("2010-01", 3)) != figures(rows("2010-01", 4)) != figures(rows("2010-01", 4, deadline=False))


def test_a_check_counts_the_rows_that_break_a_rule() -> None:
    good = rows("2010-01", 0).with_columns(
        case_id=pl.lit("c"), clock=pl.lit("PAYMENT"), jurisdiction=pl.lit("IT"), started_on=pl.col("business_date"),
        breach_on=pl.col("business_date") + pl.duration(days=9), breach_at=pl.lit(None, pl.Datetime("us", "UTC")),
    )  # fmt: skip
    assert not any(breaking(good).values())
    assert breaking(good.with_columns(breach_on=pl.lit(None, pl.Date)))["empty"] == 1
    assert breaking(pl.concat([good, good]))["twice"] == 2
    assert breaking(good.with_columns(days_open=pl.lit(3)))["miscounted"] == 1
    assert breaking(good.with_columns(sla_state=pl.lit("BREACHED")))["misjudged"] == 1


def test_a_command_is_timed_from_what_it_prints_and_killed_with_what_it_started(tmp_path: Path) -> None:
    child = "import os, time; print('child', os.getpid(), flush=True); time.sleep(600)"
    script = f"import subprocess, sys; print('begins', flush=True); subprocess.run([sys.executable, '-c', {child!r}])"
    command = Command([sys.executable, "-c", script])
    notes = tmp_path / "notes"
    log = tmp_path / "log"
    good = run(
        [Command([sys.executable, "-c", "print('begins')"])],
        tmp_path / "good",
        writes=lambda text: ("begins" in text, False),
    )
    assert good.succeeded
    assert 0 <= good.written <= good.seconds
    middle = _Middle(notes, EXPECTED, good)

    def half_seen(since: float | None) -> bool:
        if "child" in log.read_text():
            notes.write_text(look(1, BEFORE | {"2010-01": AFTER["2010-01"]}))
        return middle(since)

    middle.patience = 600.0
    done = run([command], log, kill_at=half_seen)
    assert done.killed
    assert not done.succeeded
    child_pid = int(done.printed.split("child")[1].split()[0])
    until = time.monotonic() + 60
    while Path(f"/proc/{child_pid}").exists() and time.monotonic() < until:
        time.sleep(0.05)  # it is gone once its new parent has taken notice
    assert not Path(f"/proc/{child_pid}").exists()
