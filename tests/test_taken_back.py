"""The mends that `benchmarks/taken_back.py` takes back are where it says, and a campaign that cannot start is no wrong one."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import interleavings, known, taken_back
from benchmarks.interleavings import CASES, Schedule
from benchmarks.stopped_actors import PAUSED
from benchmarks.taken_back import MENDS, ROOT, Edit, Mend, NotFoundOnce, Outcome, Trial, in_short, outcome_of, without

TRACEBACK = 'load failed:\nTraceback (most recent call last):\n  File "x.py", line 1, in <module>\n{error}: what\n'


@pytest.mark.parametrize("mend", MENDS, ids=lambda mend: mend.name)
def test_each_mend_is_where_its_edits_say(mend: Mend) -> None:
    for name, text in without(mend, ROOT).items():
        assert text != (ROOT / name).read_text()
        compile(text, name, "exec")


@pytest.mark.parametrize("mend", MENDS, ids=lambda mend: mend.name)
def test_there_are_schedules_that_concern_each_mend(mend: Mend) -> None:
    if mend.only.startswith(known.NAME):
        assert known.draw(1, 0, mend.only)
        return
    assert [
        f"{case.name}, {state}: {first} | {second}"
        for case in CASES
        for state, (firsts, seconds) in interleavings.STATES.items()
        for first in firsts
        for second in seconds
        if mend.only in f"{case.name}, {state}: {first} | {second}"
    ]


@pytest.mark.parametrize("text", ["another = 1\n", "guard()\nguard()\n"])
def test_an_edit_whose_text_is_not_there_exactly_once_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "module.py").write_text(text)
    mend = Mend("B1", "rows are lost", "usual", 1, (Edit("module.py", "guard()", "pass"),))
    with pytest.raises(
        NotFoundOnce, match=rf"B1 \(rows are lost\): module.py has this text {text.count('guard')} times"
    ):
        without(mend, tmp_path)


# --- what a campaign says ---------------------------------------------------------------------------------------------


def played(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *found: Sequence[str]
) -> tuple[str, str, int]:
    """Return what the campaign's command says of schedules in which these things are wrong, and its exit code."""
    each = iter(found)
    schedule = Schedule(CASES[0], "validated", "load", "load", 0, PAUSED, "catalog commit")
    monkeypatch.setattr(interleavings, "draw", lambda *_: schedule)
    monkeypatch.setattr(interleavings, "play", lambda *_: list(next(each)))
    monkeypatch.setattr(sys, "argv", ["interleavings", "--processes", "1", "--schedules", str(len(found))])
    try:
        interleavings.main()
    except SystemExit as end:  # Python prints its text, and ends with 1
        return capsys.readouterr().out, f"{end}\n", 1
    return capsys.readouterr().out, "", 0


def test_wrong_schedules_are_counted_and_not_the_things_that_are_wrong_in_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = "7 rows are lost"
    outcome = outcome_of(*played(capsys, monkeypatch, [], [lost, "of two\nlines"], [TRACEBACK.format(error="OSError")]))
    assert (outcome.schedules, outcome.wrong, len(outcome.found), outcome.failed) == (3, 2, 3, "")
    assert in_short(outcome.found[0]).endswith(f"load: {lost}")
    assert in_short(outcome.found[2]).endswith("load: load failed: OSError: what")


def test_a_campaign_that_finds_nothing_has_no_wrong_schedule(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert outcome_of(*played(capsys, monkeypatch, [], [])) == Outcome(2)


def test_a_campaign_that_cannot_start_ends_or_count_has_failed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said, errors, _ = played(capsys, monkeypatch, ["7 rows are lost"])
    for campaign, why in (
        (("", TRACEBACK.format(error="AssertionError"), 1), "did not come to its end .* AssertionError: what"),
        ((said, "", 1), "does not say how many"),
        ((said, "", 0), "does not say how many"),
        ((said, errors.replace("1 wrong", "2 wrong"), 1), "1 wrong things are listed and the sum is 2"),
        (
            played(capsys, monkeypatch, [TRACEBACK.format(error="NameError")], ["7 rows are lost"]),
            "no working code: NameError: what",
        ),
    ):
        outcome = outcome_of(*campaign)
        assert outcome.wrong == 0
        assert re.search(why, outcome.failed), outcome.failed


@pytest.mark.parametrize(
    ("control", "taken", "problem"),
    [
        (Outcome(5), Outcome(5, 2, ["seed 1, number 3: a", "seed 1, number 4: b"]), ""),
        (Outcome(5), Outcome(5), "no schedule is wrong without it"),
        (Outcome(5), Outcome(failed="it cannot start"), "it cannot start"),
        (Outcome(5, 1, ["a"]), Outcome(5, 1, ["a"]), "control: 1 wrong"),
        (Outcome(failed="it cannot start"), Outcome(5, 1, ["a"]), "control: it cannot start"),
    ],
)
def test_a_defect_counts_as_found_where_schedules_are_wrong_without_its_mend_and_none_with_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    control: Outcome,
    taken: Outcome,
    problem: str,
) -> None:
    mend, told = MENDS[3], tmp_path / "told.json"
    assert Trial(mend, control, taken).problem.startswith(problem)

    def campaign(root: Path, *_: object) -> Outcome:
        as_it_is = all((root / edit.file).read_text().count(edit.old) == 1 for edit in mend.edits)
        return control if as_it_is else taken

    monkeypatch.setattr(taken_back, "campaign", campaign)
    monkeypatch.setattr(sys, "argv", ["taken_back", "--mends", mend.name, "--json", str(told)])
    if problem:
        with pytest.raises(SystemExit, match=f"{mend.name}: {problem}"):
            taken_back.main()
    else:
        taken_back.main()
        assert f"{mend.name}: seed 1, number 3: a" in capsys.readouterr().out
    (found,) = json.loads(told.read_text())["mends"]
    assert (found["without"]["wrong"], found["problem"].startswith(problem)) == (taken.wrong, True)
