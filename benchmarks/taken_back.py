"""Whether `interleavings` can fail: each mend of a loss of data is taken back, and schedules must be wrong then.

    python benchmarks/taken_back.py [--mends A1 A2 ...] [--schedules N] [--seed 1] [--processes 1] [--json FILE]

A mend is what ended a defect that lost, doubled or showed rows. Its edits take it back in a copy of the packages; where
two guards stand in the defect's way, both. The copy's own campaign plays schedules that the defect concerns, and so
does, as a control, that of a copy in which nothing is taken back: there none may be wrong. How many were is read from
what a campaign says. One that ends in any other way (it cannot start, it takes too long, an edit is no working code) is
a failure, and counts for nothing. Takes some eleven minutes of one core; `--processes` mends are tried beside one
another. Prints a table and the first thing that was wrong without each mend. Ends with 1 if anything was wrong in the
control, if nothing was without a mend, or if a campaign failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.mends import MENDS, Edit, Mend

PACKAGES = ("backfill_assets", "resources", "manifests", "benchmarks")
BESIDE = ("pyproject.toml", "requirements.lock")
LONGEST = 900.0
"""Seconds after which a campaign is given up."""
_DRAWN = re.compile(r"^(\d+) schedules in \d+ s, ", re.MULTILINE)
_CLEAN = "0 rows lost, 0 doubled, 0 torn"
_WRONG = re.compile(r"^seed \d+, number (\d+): ", re.MULTILINE)
_SUM = re.compile(r"^(\d+) wrong$")
_NO_CODE = re.compile(
    r"^(?:NameError|UnboundLocalError|ImportError|ModuleNotFoundError|AttributeError|TypeError|SyntaxError)\b.*",
    re.MULTILINE,
)
"""What Python raises where an edit is a mistake: that would be a wrong schedule for the wrong reason."""


class NotFoundOnce(Exception):  # noqa: N818 - what was found, not what went wrong here
    """The text of an edit is not exactly once in its file."""


def taken_back(text: str, edit: Edit) -> str:
    """Return the text of a file after an edit.

    Raises:
        NotFoundOnce: naming the file and how often it has the edit's text.
    """
    if (times := text.count(edit.old)) != 1:
        raise NotFoundOnce(f"{edit.file} has this text {times} times, and not once:\n{edit.old}")
    return text.replace(edit.old, edit.new)


def without(mend: Mend, root: Path) -> dict[str, str]:
    """Return the texts of the files below `root` that a mend is in as they are without it, by their names.

    Raises:
        NotFoundOnce: naming the mend, and the edit whose text is not in its file exactly once.
    """
    texts: dict[str, str] = {}
    for edit in mend.edits:
        text = texts.get(edit.file) or (root / edit.file).read_text()
        try:
            texts[edit.file] = taken_back(text, edit)
        except NotFoundOnce as error:
            raise NotFoundOnce(f"{mend.name} ({mend.finding}): {error}") from None
    return texts


# --- a campaign -------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a campaign said.

    Attributes:
        schedules: how many were played.
        wrong: how many of them were wrong.
        found: what was found wrong, each in its own words.
        failed: why nothing is known, where the campaign did not end as a campaign does; else empty.
        seconds: how long it took.
    """

    schedules: int = 0
    wrong: int = 0
    found: list[str] = field(default_factory=list)
    failed: str = ""
    seconds: float = 0.0


def outcome_of(said: str, errors: str, code: int) -> Outcome:
    """Return what a campaign said on its two streams, of which the exit code alone tells nothing."""
    ends = [match.start() for match in _WRONG.finditer(errors)]
    found = [errors[start:end].strip() for start, end in pairwise([*ends, len(errors)])]
    last = errors.strip().rpartition("\n")[2]
    drawn, total = _DRAWN.search(said), _SUM.match(last)
    if drawn is None:
        return Outcome(failed=f"the campaign did not come to its end (exit code {code}): {last}")
    schedules = int(drawn[1])
    if total is None and (code or found or _CLEAN not in said):
        return Outcome(schedules, failed=f"the campaign does not say how many were wrong (exit code {code}): {last}")
    if total is not None and (code == 0 or int(total[1]) != len(found)):
        return Outcome(
            schedules, failed=f"{len(found)} wrong things are listed and the sum is {total[1]} (exit code {code})"
        )
    if mistake := _NO_CODE.search(errors):
        return Outcome(schedules, failed=f"the edit is no working code: {mistake[0]}")
    if found:
        found[-1] = found[-1].removesuffix(last).strip()
    numbers = {match[1] for match in _WRONG.finditer(errors)}
    return Outcome(schedules, len(numbers), found)


def in_short(found: str) -> str:
    """Return what was found wrong in one line: of a traceback the error alone."""
    first, _, rest = found.partition("\n")
    return first if not rest else f"{first} {rest.strip().rpartition(chr(10))[2].strip()}"


def copied(folder: Path) -> Path:
    """Copy the packages to a folder, without what is cached of them; return the folder."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BESIDE:
        shutil.copy(ROOT / name, folder / name)
    return folder


def campaign(root: Path, mend: Mend, schedules: int, seed: int) -> Outcome:
    """Run the campaign of a copy in one process."""
    command = [sys.executable, str(root / "benchmarks" / "interleavings.py"), "--processes", "1", "--only", mend.only]
    command += ["--schedules", str(schedules), "--seed", str(seed), "--places", str(mend.places)]
    plain = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "FORCE_COLOR"}}
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LONGEST, check=False, env=plain, cwd=root
        )
        outcome = outcome_of(done.stdout, done.stderr, done.returncode)
    except subprocess.TimeoutExpired:
        outcome = Outcome(failed=f"the campaign was not over after {LONGEST:.0f} s")
    if not outcome.failed and outcome.schedules != schedules:
        outcome.failed = f"{outcome.schedules} schedules were played, and not {schedules}"
    outcome.seconds = time.monotonic() - began
    return outcome


@dataclass
class Trial:
    """What a mend's schedules say of the code as it is, and of the code without the mend."""

    mend: Mend
    control: Outcome
    without: Outcome

    @property
    def problem(self) -> str:
        """Why the trial does not show that the campaign finds the defect; empty if it does."""
        if why := self.control.failed:
            return f"control: {why}"
        if self.control.wrong:
            return f"control: {self.control.wrong} wrong with nothing taken back"
        if self.without.failed:
            return self.without.failed
        return "" if self.without.wrong else "no schedule is wrong without it"


def tried(mend: Mend, schedules: int, seed: int, changed: dict[str, str]) -> Trial:
    """Play a mend's schedules with it and without it; `changed` are its files as they are without it."""
    outcomes = []
    for texts in ({}, changed):  # two copies: nothing that Python has cached of one is in the other
        with tempfile.TemporaryDirectory() as folder:
            root = copied(Path(folder))
            for name, text in texts.items():
                (root / name).write_text(text)
            outcomes.append(campaign(root, mend, schedules, seed))
    trial = Trial(mend, *outcomes)
    what = trial.problem or f"{trial.without.wrong} of {schedules} schedules are wrong without it"
    print(f"{mend.name}: {what}", file=sys.stderr, flush=True)
    return trial


def table_of(trials: Sequence[Trial]) -> Table:
    """Return what came of all."""
    table = Table("", "without the mend", "schedules", "control: wrong", "wrong", "seconds", title="mends taken back")
    for one in trials:
        both = [f"{outcome.wrong}" if not outcome.failed else "failed" for outcome in (one.control, one.without)]
        seconds = f"{one.control.seconds + one.without.seconds:.0f}"
        table.add_row(one.mend.name, one.mend.finding, f"{one.without.schedules}", *both, seconds)
    return table


def main() -> None:
    """Take each mend back and say what its schedules found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    names = [mend.name for mend in MENDS]
    parser.add_argument("--mends", nargs="+", choices=names, default=names, help="which ones; all, if none is named")
    parser.add_argument("--schedules", type=int, help="how many for each mend; as many as it needs, if not said")
    parser.add_argument("--seed", type=int, default=1, help="of each campaign")
    parser.add_argument("--processes", type=int, default=1, help="how many mends are tried beside one another")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all that was found")
    options = parser.parse_args()
    chosen = [mend for mend in MENDS if mend.name in options.mends]
    try:
        changed = [without(mend, ROOT) for mend in chosen]
    except NotFoundOnce as error:
        raise SystemExit(str(error)) from error
    with ThreadPoolExecutor(options.processes) as pool:
        trials = list(
            pool.map(
                lambda mend, texts: tried(mend, options.schedules or mend.schedules, options.seed, texts),
                chosen,
                changed,
            )
        )
    console = Console(width=140)
    console.print(table_of(trials))
    for one in trials:
        if one.without.found:
            console.print(f"{one.mend.name}: {in_short(one.without.found[0])}", markup=False, highlight=False)
    if options.json is not None:
        told = [{**asdict(one), "problem": one.problem} for one in trials]
        options.json.write_text(json.dumps({"seed": options.seed, "mends": told}, indent=2))
    if problems := [f"{one.mend.name}: {one.problem}" for one in trials if one.problem]:
        raise SystemExit("\n".join(problems))
    played = sum(one.control.schedules for one in trials)
    console.print(f"0 of {played} schedules of the control are wrong; without each of {len(trials)} mends some are")


if __name__ == "__main__":
    main()
