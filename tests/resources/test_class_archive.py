"""The archive of Spark's classes only saves time: a JVM that cannot use it says nothing and does without."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from resources.spark import class_archive


def test_without_an_archive_a_jvm_is_told_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert class_archive.java_options() == ""


@pytest.mark.parametrize("content", [b"", b"no archive" * 1000])
def test_an_archive_that_is_none_is_passed_over_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "a b"))
    path = class_archive.archive_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    options = shlex.split(class_archive.java_options())
    assert options[0] == f"-XX:SharedArchiveFile={path}"
    done = subprocess.run(["java", *options, "-version"], capture_output=True, text=True, check=True)
    assert "Runtime Environment" in done.stderr
    assert "archive" not in (done.stdout + done.stderr).lower()
    assert "[cds]" not in done.stdout + done.stderr
