"""What the command prints for people."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.text import Text

from backfill_assets.cli import console, diff_view, explain_view
from backfill_assets.cli import status as status_command
from backfill_assets.cli.base import tell
from backfill_assets.cli.command import cli
from backfill_assets.cli.publication import published
from backfill_assets.cli.status import told_in_words
from backfill_assets.cli.terminal import Table, make_console
from backfill_assets.defs.evaluations import _rows_table as check_rows
from backfill_assets.evidence.diff_records import RunDiff
from backfill_assets.gates.exception_words import worded
from backfill_assets.planning.resolve import preview
from backfill_assets.publication.announcements import Published
from backfill_assets.publication.modes import stages_of
from backfill_assets.ui.gate_parts import _rows_table as page_rows
from benchmarks.small_table import SCOPE, closed, declared, initialise, manifest_data, opened
from manifests.expected import Expected
from manifests.lifecycle import PublicationState, RunState
from manifests.reading import manifest_from
from manifests.text import visible_lines
from resources import logs
from resources.ledger.facade import ChunkRecord, ChunkState, Verdict


def printed(what: Any) -> str:
    shown = make_console()
    with shown.capture() as capture:
        shown.print(what)
    return capture.get()


def failed(errors: Iterable[tuple[str, str]]) -> list[ChunkRecord]:
    return [
        ChunkRecord(chunk, number, ChunkState.FAILED, 1, None, None, (), None, {}, error)
        for number, (chunk, error) in enumerate(errors)
    ]


def test_chunks_that_failed_alike_are_told_once_by_the_first_line_of_their_error() -> None:
    months = [f"20{year:02}-{month:02}" for year in range(5) for month in range(1, 13)]
    stack = "\n\tat org.apache.spark.Somewhere" * 500
    chunks = failed([(month, f"ArithmeticException: [DIVIDE_BY_ZERO] no{stack}") for month in months[:58]])
    chunks += failed([("2004-12", "ValueError: another")])
    text = printed(console.failures(chunks))
    assert "58 chunks" in text
    assert text.count("DIVIDE_BY_ZERO") == 1
    assert "org.apache" not in text
    assert "2004-12    ValueError: another" in text
    assert len(text.splitlines()) < 6


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_a_table_cuts_nothing_however_narrow_the_terminal(width: int) -> None:
    words = ("restate-2012-of-everything", "silver.case_sla_daily_corrections", "7861623254248930709" * 3)
    table = Table("run", "table", "snapshot")
    table.add_row(*words)
    with io.StringIO() as shown:
        Console(file=shown, width=width).print(table)
        cells = [line.split("│")[1:-1] for line in shown.getvalue().splitlines() if "│" in line]
    assert tuple("".join(column).replace(" ", "") for column in zip(*cells, strict=True)) == words


HIDING = "nothing\x1b[3J\x1b[2J\x1b[Hrun1  as recorded\u202e\nand more"


def test_what_a_terminal_would_obey_is_printed_as_an_escape(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("run", "why")
    table.add_row("restate", HIDING)
    shown = [printed(one) for one in (table, console.facts([("found", HIDING)], "x"), Text(HIDING, "bold red"), HIDING)]
    tell(HIDING)
    line = logs.TextFormatter().format(logging.makeLogRecord({"msg": HIDING, "levelname": "WARNING", "created": 0}))
    for text in (*shown, capsys.readouterr().out, line):
        assert r"nothing\x1b[3J\x1b[2J\x1b[Hrun1asrecorded\u202eandmore" in re.sub(r"[│\s]", "", text)
        assert not {"\x1b", "\u202e"} & set(text)


@pytest.mark.parametrize(
    ("other", "length"), [("b" * 64, 12), ("a" * 63 + "b", 64), ("a" * 20 + "b" * 44, 21), ("", 12)]
)
def test_digests_that_differ_are_told_apart(other: str, length: int) -> None:
    assert console._told_apart("a" * 64, other) == ("a" * length, other[:length])


@pytest.mark.parametrize("text", ["10\u00a0000 €", "山田\u3000太郎", "❤\ufe0f", "ab\u200ccd", "a\tb"])
def test_what_people_write_is_printed_as_they_wrote_it(text: str) -> None:
    assert visible_lines(text) == text
    assert text.rsplit("\t", maxsplit=1)[-1] in printed(console.facts([("why", text)], "x"))


def test_a_column_is_as_wide_as_its_escapes() -> None:
    table = Table("run")
    table.columns[0].no_wrap = True
    table.add_row("n\x9b\u202em")
    assert r"n\x9b\u202em" in printed(table)


def test_colours_of_a_terminal_are_not_escaped() -> None:
    with (
        io.StringIO() as shown,
        mock.patch.object(sys, "stdout", shown),
        mock.patch.dict(os.environ, {"FORCE_COLOR": "1"}),
    ):
        make_console().print(Text("x", "red"))
        assert shown.getvalue() == "\x1b[31mx\x1b[0m\n"


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize("length", [37, 64])
def test_the_list_of_runs_keeps_its_columns_in_a_narrow_terminal(width: int, length: int) -> None:
    record = cast("Any", SimpleNamespace(run_id="r" * length, state=RunState.ROLLED_BACK, state_reason="BECAUSE"))
    record.manifest = manifest_from(manifest_data("restate", "REPLACE_PARTITIONS", SCOPE))
    record.target, record.kind, record.mode = "silver.readings", record.manifest.kind, record.manifest.mode
    with io.StringIO() as shown:
        Console(file=shown, width=width).print(console.run_table([record], {}))
        lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    cells = ["".join(cell) for cell in zip(*(line.split("│")[1:-1] for line in lines if "│" in line), strict=True)]
    assert [cell.replace(" ", "") for cell in cells[:2]] == [record.run_id, "ROLLED_BACK"]
    assert cells[3].replace(" ", "") == "BECAUSE"


def test_the_bars_of_the_years_shrink_with_the_terminal() -> None:
    years = {"2011": {"rows": 10_000, "breaches": 4_000}, "2012": {"rows": 10_000, "breaches": 2_000}}
    for width in (80, 100, 140):
        with io.StringIO() as shown:
            Console(file=shown, width=width).print(console.by_year(years, years))
            lines = [line for line in shown.getvalue().splitlines() if "█" in line]
        most, half = (line.count("█") for line in lines)
        assert most <= 40
        assert abs(most - 2 * half) <= 2
        assert "10,000" in lines[0]


def test_what_was_expected_and_found_is_told_in_words_and_an_empty_slice_not_at_all() -> None:
    sample = {"id": "A1", "expected": '{"expected":1}', "found": '{"found":2}', "what": "there twice"}
    several = {"id": "A2", "expected": '{"days":3,"state":"OPEN"}', "found": '{"found":null}', "what": "other"}
    verdict = Verdict("no_row_twice", False, "2 differ", {"sample": [sample, several]})
    text = " ".join(printed(console.gates([verdict], "chunk_rules")).split())
    assert "id=A1, expected 1, found 2, what=there twice" in text
    assert "id=A2, expected (days=3, state=OPEN), found null, what=other" in text
    of_table = {"gate": "g", "slice": "{}", "key": '{"id":"A1"}', **sample}
    assert worded(of_table) == {
        "gate": "g", "slice": "", "key": "id=A1", "id": "A1", "expected": "1", "found": "2", "what": "there twice"
    }  # fmt: skip
    assert worded({"chunk": "2020-01", "expected": 1}) == {"chunk": "2020-01", "expected": 1}
    assert [worded(sample | {"expected": odd})["expected"] for odd in ("{no", "[1]", "")] == ["{no", "[1]", ""]
    by_name = dict(sorted((sample | {"place": "NO"}).items()))  # as the ledger gives it back
    assert list(worded(by_name)) == ["id", "place", "expected", "found", "what"]
    shown = page_rows([sample])
    assert "<td>A1<td>1<td>2<td>there twice" in shown
    assert "| A1 | 1 | 2 | there twice |" in check_rows([sample])


def test_every_row_that_a_gate_shows_is_whole_however_narrow_the_terminal() -> None:
    long = {"id": "A1", "expected": '{"place":"' + "north of the river " * 9 + 'END"}', "what": "another"}
    text = printed(console.gates([Verdict("places", False, "1 differs", {"sample": [long]})], "chunk_rules"))
    assert "END" in text
    assert "…" not in text


def test_the_grid_of_a_sample_puts_each_chunk_in_its_own_place() -> None:
    chunks = failed((chunk, "no") for chunk in ("2012-02", "2012-05", "2013-01"))
    lines = [line.rstrip() for line in printed(console.grid(chunks)).splitlines()]
    assert lines[:2] == ["2012    ✗     ✗", "2013  ✗"]


@pytest.mark.parametrize(
    ("keys", "lines"),
    [
        (("2019", "2021", "2022"), ["2010s                    ✗", "2020s    ✗ ✗"]),
        (("2024-W02", "2024-W04"), ["2024    ✗   ✗"]),
        (("2024-03-01T01", "2024-03-01T03", "2024-03-02T00"), ["2024-03-01    ✗   ✗", "2024-03-02  ✗"]),
        (("2024-01~SKU-7", "2024-02~CA", "2024-02~SKU-7"), ["2024 of SKU-7  ✗ ✗", "2024 of CA    ✗"]),
        (("2024-01-03~b03of16",), ["2024-01 of b03of16      ✗"]),
        (("2024-03-01T01~CA",), ["2024-03-01 of CA    ✗"]),
    ],
)
def test_the_grid_has_a_row_for_each_year_month_or_day_of_each_part(keys: Sequence[str], lines: list[str]) -> None:
    shown = printed(console.grid(failed((key, "no") for key in keys))).splitlines()
    assert [line.rstrip() for line in shown[: len(lines)]] == lines


@pytest.mark.parametrize("state", [RunState.PUBLISHED, RunState.REJECTED, RunState.CANCELLED])
def test_watching_a_run_ends_when_the_run_is_over(state: RunState, monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter([RunState.STAGED, RunState.STAGED, RunState.STAGED])
    seen: list[RunState] = []

    def run(_run_id: str) -> Any:
        seen.append(next(states, state))
        manifest = SimpleNamespace(target=SimpleNamespace(acceptance=None))
        return SimpleNamespace(run_id="restate", state=seen[-1], state_reason="", manifest=manifest)

    ledger = SimpleNamespace(run=run, chunks=lambda _: [], launches=SimpleNamespace(waits=lambda _: None))
    ledger.admissions, ledger.freezes = (SimpleNamespace(waiting=lambda *_: {}) for _ in range(2))
    monkeypatch.setattr(status_command, "opened_platform", lambda: nullcontext(SimpleNamespace(ledger=ledger)))
    monkeypatch.setattr(status_command, "POLL_SECONDS", 0.0)
    done = CliRunner().invoke(cli, ["status", "restate", "--watch"])
    assert done.exit_code == 0
    assert state.value in done.output
    assert seen[-2:] == [state, state]


def test_what_people_have_typed_is_printed_as_it_is() -> None:
    table = Table("by", "why")
    table.add_row("[/z]x", "[bold]w[/b] :smile:")
    assert "[/z]x" in printed(table)
    assert "[bold]w[/b] :smile:" in printed(table)
    assert printed(":smile:") == ":smile:\n"


def test_one_row_is_one_row_in_an_explanation() -> None:
    assert [explain_view._rows(number) for number in (0, 1, 1200)] == ["0 rows", "1 row", "1,200 rows"]
    assert explain_view._rows(1, "earlier ") == "1 earlier row"


def test_a_missing_value_has_one_word_in_the_largest_changes_and_in_the_sample() -> None:
    row = {
        "column": "day",
        "kind": "CHANGED",
        "by": "1",
        "unit": "",
        "chunk": "2020-02",
        "key": {"meter": "a", "at": None},
    }
    row |= {"old": {"day": None}, "new": {"day": "2020-02-01"}}
    diff = cast("RunDiff", SimpleNamespace(largest=[row], sample=[row]))
    for table in (diff_view._largest(diff), diff_view._sample(diff)):
        assert printed(table).count("null") == 2
        assert "None" not in printed(table)


def test_the_help_of_load_lists_the_options_of_a_load_of_any_table(tmp_path: Path) -> None:
    run = CliRunner(env={"BACKFILL_HOME": str(tmp_path)})
    shown, of_a_table = (
        run.invoke(cli, ["load", *words, "--help"], catch_exceptions=False).output
        for words in ([], ["bronze.readings"])
    )
    options = {line.split()[0] for line in of_a_table.splitlines() if line.strip().startswith("--")}
    assert {"--version", "--if-new", "--again", "--json"} <= options
    listed = shown.partition("Options of TABLE FILE:")[2]
    assert options <= {line.split()[0] for line in listed.splitlines() if line.strip().startswith("--")}
    assert "case-events" in listed


def test_an_output_that_nobody_reads_any_more_is_no_failure_of_the_command(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "backfill_assets.cli.command", "config"]
    environment = os.environ | {"BACKFILL_HOME": str(tmp_path)}
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False, env=environment, timeout=120)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_output_that_is_closed_is_no_fault_of_the_command(tmp_path: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m backfill_assets.cli.command config >&-"
    environment = os.environ | {"BACKFILL_HOME": str(tmp_path)}
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, check=False, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [("config",), ("config", "--json")])
def test_what_an_encoding_has_no_sign_for_is_shown_as_its_escape(tmp_path: Path, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "backfill_assets.cli.command", *words]
    home = tmp_path / "données"
    environment = os.environ | {"BACKFILL_HOME": str(home), "PYTHONIOENCODING": "ascii", "COLUMNS": "300"}
    done = subprocess.run(command, capture_output=True, check=False, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    if "--json" in words:
        assert str(home) in json.dumps(json.loads(done.stdout), ensure_ascii=False)
    else:
        assert b"donn\\xe9es" in done.stdout


def test_a_publication_names_its_base_as_such_and_not_as_what_readers_had_before() -> None:
    done = Published("run", 4604, 4514, 1, 1, "root", new=True)
    lines = [line.split() for line in printed(published(done, "published")).splitlines()]
    assert ["snapshot", "4604"] in lines
    assert ["base", "snapshot", "4514"] in lines


def test_a_rollback_says_which_events_it_has_taken_back() -> None:
    done = Published("run", 4605, 4604, 1, 1, "root", new=True)
    told = [
        {"topic": "meters", "action": action, "state": PublicationState.COMMITTED, "events": 9}
        for action in ("publish", "rollback")
    ]
    said = " ".join(printed(published(done, "rolled back", list(map(told_in_words, told)))).split())
    assert "events 9 in meters, of the publish events 9 in meters, which take back as many" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"entities": ["m0", "m1"]}, "2 of meter: m0, m1"),
        ({"entities": [f"m{n}" for n in range(7)]}, "7 of meter: m0, m1, m2, m3, m4 and 2 more"),
        ({"changedSince": None}, "each meter with source rows that came after snapshot {snapshot}"),
        ({"entities": ["m0"], "onOlderVersion": "REFUSE"}, "the run fails (REFUSE)"),
        ({"entities": ["m0"], "onOlderVersion": "KEEP"}, "that row stays (KEEP)"),
        ({"entities": ["m0"], "onOlderVersion": "OVERWRITE"}, "that row is overwritten (OVERWRITE)"),
    ],
)
def test_a_plan_says_what_is_merged_and_what_becomes_of_others(
    tmp_path: Path, options: dict[str, object], said: str
) -> None:
    with declared():
        platform = opened(tmp_path / "home")
        initialise(platform)
        snapshot = platform.lakehouse.snapshot_of("bronze.reading_events")
        if "changedSince" in options:
            options = {"changedSince": snapshot}
        data = manifest_data("run", "MERGE_BY_KEY", SCOPE, merge=options)
        asked = manifest_from(data | {"conflict": {"onConflict": "REPLAN", "maxReplans": 2}, "freeze": {"hours": 6}})
        planned = preview(platform, asked)
        screen = Console(width=250, record=True, file=io.StringIO())
        screen.print(console.plan(planned, "PLANNED", stages_of(platform.products, planned), asked.freeze))
        closed(platform)
    shown = screen.export_text()
    assert said.format(snapshot=snapshot) in shown
    assert "planned anew, at most 2 time(s)" in shown
    assert "at most 6 hours (freeze)" in shown


def test_a_plan_shows_the_figures_that_are_expected_and_whether_its_transform_was_asked(tmp_path: Path) -> None:
    chunks = {f"2020-01-{day:02}": {"rows": day} for day in range(1, 20)}
    with declared():
        platform = opened(tmp_path / "home")
        initialise(platform)
        planned = preview(platform, manifest_from(manifest_data("run", "REPLACE_PARTITIONS", SCOPE)))
        expected = Expected.model_validate({"whole": {"rows": 1_900, "sums": {"watts": "2.50"}}, "chunks": chunks})
        screen = Console(width=250, record=True, file=io.StringIO())
        screen.print(console.plan(planned, "PLANNED", stages_of(platform.products, planned), None, expected))
        full = [replace(one, reads=replace(one.reads, rows=1)) for one in planned.chunks]
        empty = replace(full[-1], reads=replace(full[-1].reads, rows=0))
        asked = replace(planned, output_checked=True, chunks=(*full[:-1], empty))
        screen.print(console.plan(asked, "PLANNED", stages_of(platform.products, planned)))
        closed(platform)
    shown = screen.export_text()
    assert "the whole publish range: 1,900 rows, sum of watts 2.50" in shown
    assert "2020-01-12: 12 rows" in shown
    assert "2020-01-13" not in shown.partition("stages")[0]
    assert "and of 7 more chunks" in shown
    first, _, second = shown.partition("plan hash")
    assert "not checked: `backfill plan --check-transform`" in first
    assert "in types that fit: checked when planned" in second
    assert second.count("expected figures") == 0
    assert f"for 1 of {len(full)} chunks: {empty.key}" in second, "the source has no file with its days"


def test_help_fits_a_terminal_of_80_columns() -> None:
    lines = CliRunner().invoke(cli, ["--help"], terminal_width=80).output.splitlines()
    assert [line for line in lines if len(line) > 80] == []
