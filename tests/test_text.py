"""What counts as text and as a name, how values are put into Markdown, how small files are read, and where a file is written."""

from __future__ import annotations

import os
import re
from html import unescape
from pathlib import Path

import dagster as dg
import pytest
from markdown_it import MarkdownIt
from support import planned

from backfill_assets.defs.diff_events import metadata
from backfill_assets.defs.evaluations import verdict_metadata
from backfill_assets.operations.run_on_record import StepState
from backfill_assets.operations.runbook import Step, markdown
from backfill_assets.review.markdown import block, escaped, table
from manifests.errors import EnvironmentRefused, ManifestRefused
from manifests.policy import Erasure
from manifests.text import not_a_name, not_text, read_text, same_text, visible
from resources.files.whole_files import write_whole
from resources.ledger.facade import Ledger, Verdict
from resources.policies import erased_in_file, read_policy

UNSEEN = "\U00016fe4\U0001d159\u2d7f\U0001107f\u115f\u1160\u3164\uffa0\u2800\u303f\ufffc\ufffd\u0378\ue000\u00ad"
"""Fillers, joiners and placeholders, and one that is unassigned, of private use, a format."""


@pytest.mark.parametrize("text", ["", "Ünïcödé, 日本語", "a\tb\r\nc", "👩\u200d🚀", "نمی\u200cبینم", "\u2028"])
def test_what_people_write_is_text(text: str) -> None:
    assert not_text(text) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [("ab\0", "U+0000 at character 2"), ("\x1b[2J", "U+001B"), ("\udce9", "U+DCE9"), ("\ue000", "U+E000"), ("\u202e", "U+202E")],
)  # fmt: skip
def test_what_no_editor_writes_is_named_with_its_place(text: str, said: str) -> None:
    assert said in str(not_text(text))


@pytest.mark.parametrize(
    "name",
    [
        "ada", "Zoë O'Neil-Ångström", "Zoe\u0308", "李小龙", "卡尔·马克思", "佐々木 希", "ジョン・スミス", "김철수", "محمد", "محمد٢", "Ольга",
        "Знаб\u02bcя", "Αλέξανδρος", "דוד בן־גוריון", "नरेन्द्र", "สมชาย", "policy:live-daily", "a@b.org", "team R&D, #2 (night)",
        "group:enforcement_data", "DOMAIN\\ada", "auth0|5f7c8ec7", "CN=Ada,O=X", "batch$", "https://id.example.org/ada+1", "12",
        "<ada>", "~ada^2", "ada`s", "བསྟན་འཛིན", "Jo\u2027sep", "\u201cAda\u201d", "O\u00b4Neil", "O\ua78cNeil", "O\u02c8Neil",
    ],
)  # fmt: skip
def test_names_that_are_seen_as_they_are_are_names(name: str) -> None:
    assert not_a_name(name) is None
    assert same_text(f" {name.upper()} ") == same_text(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ad\u200ba", "U+200B at character 2"),
        ("\ufeffada", "U+FEFF"),
        ("ada\u3164", "U+3164"),
        ("ada\ufe0f", "U+FE0F"),
        ("ada\u00a0b", "U+00A0"),
        ("ada\nAPPROVED by grace", "U+000A"),
        ("ada\u2028", "U+2028"),
        ("ada\t", "U+0009"),
        ("\u202eada", "U+202E"),
        ("\u0430da", "CYRILLIC and LATIN"),
        ("grac\u0435", "CYRILLIC and LATIN"),
        ("\uff41d\u0251\u03b1", "GREEK and LATIN"),
        ("\u0430\u0301da", "CYRILLIC and LATIN"),
        ("\u05e1lga", "HEBREW and LATIN"),
        ("o\u2d4fga", "LATIN and TIFINAGH"),
        ("\U000102a0da", "CARIAN and LATIN"),
        ("\u3007lga", "CJK and LATIN"),
        ("\u0ed0lga", "LAO and LATIN"),
        ("ada\u17d2", "KHMER and LATIN"),
        ("ada 1\u0661", "digits of several kinds"),
        ("1\u0301", "U+0301 at character 1 is a mark with no letter before it"),
        ("a\u20dd", "U+20DD at character 1 is no letter or digit"),
        ("o\u2223ga", "U+2223"),
        ("ada\u05c0", "U+05C0"),
        ("ada\U0001f600", "U+1F600"),
        ("ada\u02dc", "U+02DC"),
        ("\u0640\u0640", "no letter, digit or sign"),
        ("  ", "no letter, digit or sign"),
    ],
)
def test_a_name_that_looks_like_another_is_none(name: str, said: str) -> None:
    assert said in str(not_a_name(name))


@pytest.mark.parametrize("character", UNSEEN, ids=ascii)
def test_a_name_has_no_character_that_nobody_sees(character: str) -> None:
    assert f"U+{ord(character):04X} at character 3" in str(not_a_name(f"ada{character}"))
    assert not_a_name(f"{character}ada") is not None


def test_signs_that_a_reader_takes_for_one_are_one() -> None:
    assert same_text("O\u2019Neil") == same_text("O\u02bcNeil") == same_text("o'neil") != same_text("oneil")
    assert {same_text(f"O{one}Neil") for one in "`\u00b4\u02b9\u02c8\ua78b\ua78c\u2018\u05f3"} == {"o'neil"}
    assert same_text("\u201cAda\u201d") == same_text("\u05f4ada\u05f4") == '"ada"'
    assert same_text("a\u2027b") == same_text("a\u30fbb") == same_text("a\u00b7b") != same_text("a.b")
    assert same_text("Jean\u2010Luc") == same_text("Jean\u2013Luc") == same_text("jean-luc")
    assert same_text("\u0645\u062d\u0640\u0645\u062f") == same_text("\u0645\u062d\u0645\u062f")


@pytest.mark.parametrize(
    "other",
    ["ADA", " ada ", "\uff41\uff44\uff41", "\U0001d5ba\U0001d5bd\U0001d5ba", "a\u200bda", "ada\u00a0", "ada\U00016fe4"],
)
def test_spellings_of_one_name_are_one_name(other: str) -> None:
    assert same_text(other) == "ada"
    assert same_text("Zoe\u0308") == same_text("zoë")
    assert same_text("ada  b") == same_text("Ada\u3000B") != same_text("adab")


VALUES = (
    "a|b", "a\\|b", "a\\", "`x`", "``", "<script>alert(1)</script>", "[l](javascript:alert(1))", "![i](x)", "**b**", "__b__",
    "_i_", "~~s~~", "# h", "- l", "1. l", "> q", "&lt;", "a\nb", "|\n| --- |\n", "\r\n\r\n---\r\n", "a\u202eb", "ad\u200ba",
    "\x1b[2J", "$x$", "```", "| --- |", "sla_state", "-5", "2012-03-10", "R&D", "", "\\`x\\`",
)  # fmt: skip
LINKS = ("<https://e.org>", "https://e.org/?a=b", "www.e.org", "a@e.org", "see [x](http://e.org) `y`")


@pytest.mark.parametrize("value", [*VALUES, *LINKS])
def test_a_value_in_markdown_is_shown_as_it_is_and_is_nothing_else(value: str) -> None:
    html = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(table(["n|", value], [[value, "end"]]))
    cells = re.findall(r"<t[hd]>(.*?)</t[hd]>", html)
    plain = [unescape(re.sub(r"</?code>", "", cell)) for cell in cells]
    assert plain == ["n|", visible(value).strip(), visible(value).strip(), "end"]
    assert set(re.findall(r"<(\w+)", html)) <= {"table", "thead", "tbody", "tr", "th", "td", "code"}
    assert ("<code>" in html) == (value in LINKS)
    alone = MarkdownIt("commonmark").render(escaped(value))
    assert set(re.findall(r"<(\w+)", alone)) <= {"p", "code"}


def test_nothing_ends_a_block_of_code() -> None:
    lines = ["SELECT '```'", "```", "</code>\u202e"]
    html = MarkdownIt("commonmark").render("\n".join(block(lines, "sql")))
    assert unescape(html) == '<pre><code class="language-sql">' + "\n".join(map(visible, lines)) + "\n</code></pre>\n"


def test_values_in_what_dagster_and_tickets_show_are_no_markup(tmp_path: Path) -> None:
    bad = "x|y\n| <img src=x> [l](http://e.org)"
    kept = {"rows": 1, "disagree": 2, "cut": True, "table": "a`b", "command": "c`d", "query": "SELECT\n```\n<b>"}
    rows = [{bad: bad}]
    verdict = Verdict("gate", False, "", {"slices": rows, "sample": rows, "exceptions": kept})
    violations = {"violations": [{"rule": bad, "count": 1, "sample": rows}]}
    change = {
        "column": bad,
        "kind": bad,
        "by": bad,
        "unit": bad,
        "chunk": bad,
        "key": {bad: bad},
        "old": None,
        "new": {bad: bad},
    }
    column = dict.fromkeys(("column", "changed", "before", "after", "delta"), bad)
    chunk = dict.fromkeys(("chunk", "added", "removed", "changed", "unchanged"), bad)
    numbers = dict.fromkeys(("added", "removed", "changed", "unchanged"), 0)
    summary = {"run_id": "a", "columns": [column], "chunks": [chunk], "largest": [change], **numbers}
    shown = [verdict_metadata(verdict), verdict_metadata(Verdict("gate", False, "", violations)), metadata(summary)]
    texts = [one.md_str for found in shown for one in found.values() if isinstance(one, dg.MarkdownMetadataValue)]
    assert len(texts) == 7
    for text in texts:
        html = MarkdownIt("commonmark").enable("table").render(text)
        assert not set(re.findall(r"<(\w+)", html)) & {"img", "a", "b", "script"}
        assert len(set(re.findall(r"<tr>(?:\s*<t[hd]>.*?</t[hd]>)*", html))) <= 2
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.migrate()
    record = planned(ledger, "a-run")
    book = markdown(record, bad, [Step("Title", StepState.NOW, (bad, "- a", "1. b"), ("backfill `x`\n```",))])
    html = MarkdownIt("commonmark").render(book)
    assert set(re.findall(r"<(\w+)", html)) == {"h1", "p", "ol", "ul", "li", "strong", "code", "pre"}
    assert html.count("<ul>") == html.count("<ol>") == html.count("<pre>") == 1
    ledger.engine.dispose()


def test_a_file_that_has_no_end_is_refused_without_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ManifestRefused, match="is not a regular file"):
            read_text(path, "a manifest", most=100, refusal=ManifestRefused)
        with pytest.raises(EnvironmentRefused, match="is not a regular file"):
            read_policy(path)


def test_a_file_is_read_up_to_its_limit_and_with_the_mark_that_spreadsheets_write(tmp_path: Path) -> None:
    file = tmp_path / "some.txt"
    file.write_bytes(b"\xef\xbb\xbfa\r\nb")
    assert read_text(file, "a list", most=8, refusal=EnvironmentRefused) == "a\r\nb"
    with pytest.raises(EnvironmentRefused, match="has 7 bytes"):
        read_text(file, "a list", most=6, refusal=EnvironmentRefused)


@pytest.mark.parametrize("junk", ["\0", "\x1b", "\x08"])
def test_junk_in_the_list_of_erased_subjects_is_refused(junk: str, tmp_path: Path) -> None:
    erasure = Erasure.model_validate(ERASURE)
    (tmp_path / "erased.csv").write_text(f"subject,day\nann,2020-01-01\nb{junk}ob,2020-01-01\n")
    with pytest.raises(EnvironmentRefused, match="is not text"):
        erased_in_file(tmp_path, erasure)
    (tmp_path / "erased.csv").write_text('subject,day\n"an\u2028n",2020-01-01\r\nbob,2020-01-02\n')
    assert [row["subject"] for row in erased_in_file(tmp_path, erasure)] == ["an\u2028n", "bob"]


def test_a_file_is_written_whole_and_never_over_a_device_or_a_pipe(tmp_path: Path) -> None:
    page, pipe = tmp_path / "page.html", tmp_path / "pipe"
    os.mkfifo(pipe)
    write_whole(page, "one")
    write_whole(page, "two")
    assert page.read_text() == "two"
    for place in (pipe, tmp_path, Path("/dev/full")):
        with pytest.raises(EnvironmentRefused, match="is not a regular file"):
            write_whole(place, "three")
    with pytest.raises(EnvironmentRefused, match="cannot be written"):
        write_whole(tmp_path / "absent" / "page.html", "three")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["page.html", "pipe"]
    assert pipe.is_fifo()


ERASURE = {"column": "subject", "file": "erased.csv", "keyColumn": "subject", "dateColumn": "day"}
