"""What counts as text, how small files of it are read, and where a command's file is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from manifests.errors import EnvironmentRefused, ManifestRefused
from manifests.policy import Erasure
from manifests.text import not_text, read_text
from resources.policies import erased_in_file, read_policy
from resources.whole_files import write_whole


@pytest.mark.parametrize("text", ["", "Ünïcödé, 日本語", "a\tb\r\nc", "👩\u200d🚀", "نمی\u200cبینم", "\u2028"])
def test_what_people_write_is_text(text: str) -> None:
    assert not_text(text) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [("ab\0", "U+0000 at character 2"), ("\x1b[2J", "U+001B"), ("\udce9", "U+DCE9"), ("\ue000", "U+E000"), ("\u202e", "U+202E")],
)  # fmt: skip
def test_what_no_editor_writes_is_named_with_its_place(text: str, said: str) -> None:
    assert said in str(not_text(text))


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
