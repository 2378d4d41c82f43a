"""Odd inputs, made from a seed: each is refused clearly or understood. The campaign is `benchmarks/inputs.py`; this is its share.

Put here what holds of every input. What a single bad input is told is `test_bad_inputs`'s.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill_assets.cli.unexpected import is_unexpected, tell
from benchmarks import inputs
from benchmarks.inputs import Odd, World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("inputs"))


def test_odd_arguments_manifests_settings_and_files_are_refused_clearly_or_understood(world: World) -> None:
    answers = list(inputs.trial(world, 60, seed=7))
    assert [one for one in answers if one.wrong] == []
    assert {one.odd.kind for one in answers} == {"arguments", "manifests", "settings", "files"}
    assert {one.code for one in answers} >= {0, 2}


def test_a_pipe_that_nobody_writes_into_is_refused_and_not_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "SECONDS", 8.0)
    inputs.os.mkfifo(world.files / "pipe.csv")
    inputs.os.mkfifo(world.files / "pipe.yaml")
    for line in (("plan", "pipe.yaml"), ("policy", "propose", "pipe.yaml"), ("load", "case-events", "pipe.csv")):
        answer = world.give(Odd("files", (*line[:-1], str(world.files / line[-1]))))
        assert (answer.code, answer.wrong) == (2, "")


def test_an_error_that_nothing_foresees_is_one_line_with_its_details_in_a_file(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(**_: object) -> None:
        raise ZeroDivisionError("of two\nlines")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("resources.settings.load_settings", broken)
    answer = world.give(Odd("", ("config",)))
    assert answer.code == 1
    assert "nothing was prepared for" in answer.wrong, "the campaign takes such a line for a fault"
    (details,) = tmp_path.glob("backfill-error-*.txt")
    assert "Traceback" in details.read_text()
    assert "ZeroDivisionError" in details.read_text()
    tell(ZeroDivisionError("of two\nlines"))
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "ZeroDivisionError: of two lines" in said


def test_the_end_of_a_process_is_no_error() -> None:
    assert not is_unexpected(SystemExit(2))
    assert not is_unexpected(KeyboardInterrupt())
    panic = type("PanicException", (BaseException,), {})
    assert is_unexpected(panic())
