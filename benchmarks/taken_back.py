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


@dataclass(frozen=True)
class Edit:
    """A text of a file, which is there exactly once, and what takes its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mend:
    """A mend.

    Attributes:
        name: what it is asked for by.
        finding: the defect that is back without it.
        only: which schedules the defect concerns, as the campaign's option says it.
        schedules: how many of them are played: the more, the fewer of them the defect makes wrong.
        edits: what takes the mend back.
        places: at which of the first actor's places it is stopped: the first so many; 0: at any.
    """

    name: str
    finding: str
    only: str
    schedules: int
    edits: tuple[Edit, ...]
    places: int = 0


class NotFoundOnce(Exception):  # noqa: N818 - what was found, not what went wrong here
    """The text of an edit is not exactly once in its file."""


DERIVE = "backfill_assets/worker/chunk_merge.py"
DERIVATION, COMPUTE, ROWS = (f"backfill_assets/staging/{name}.py" for name in ("derivation", "compute", "rows"))
CHANGE, COMMITS, REFERENCES, LEASING, ACCEPTING = (
    f"backfill_assets/publication/{name}.py"
    for name in ("change", "table_by_table", "move_references", "leasing", "accepting")
)
DOCTOR_OF_PUBLICATIONS, DOCTOR_OF_EVIDENCE = (
    f"backfill_assets/operations/doctor/{name}.py" for name in ("publications", "evidence")
)
GARBAGE = "backfill_assets/operations/garbage.py"
COMMANDS = (
    "from backfill_assets.publication.accepting import accept\n"
    "from backfill_assets.publication.publisher import publish\n"
    "from backfill_assets.publication.undoing import reinstate, rollback\n"
    '_COMMANDS = {"publish": publish, "accept": accept, "rollback": rollback, "reinstate": reinstate}\n'
)
"""What gives the doctor the commands back, by the action that each one makes."""
REPLACEMENTS, LOADS = (f"resources/lakehouse/{name}.py" for name in ("replacements", "load_commits"))
RUNS, APPROVALS, ACCEPTED, PUBLICATIONS = (
    f"resources/ledger/{name}.py" for name in ("runs", "approvals", "accepted_versions", "publications")
)

MENDS = (
    Mend(
        "A1",
        "a merge drops rows without an entity, and its judge, which parts rows as the merge does, passes it",
        "MERGE_BY_KEY, of nobody: ",
        12,
        (
            Edit(
                DERIVE,
                ".is_in(entities[spec.entity].implode()).fill_null(value=False)",
                ".is_in(entities[spec.entity].implode())",
            ),
            Edit(
                DERIVE,
                'return rows.join(entities, on=spec.entity, how="anti"), rows.join(entities, on=spec.entity, how="semi")',
                "return _parted(spec, rows, entities)",
            ),
            Edit(
                DERIVE,
                "wrong = _misplaced(before, others, old) or _misplaced(after, others_after, mine) or _differ(others, others_after)",
                "wrong = _differ(others, others_after)",
            ),
        ),
    ),
    Mend(
        "A2",
        "a publication deletes whole files that hold days outside its range, too",
        "REPLACE_PARTITIONS, coarse: ",
        12,
        (
            Edit(REPLACEMENTS, "        require_inside(table, scope.filter, str(scope), going, scope.column)\n", ""),
            Edit(
                REPLACEMENTS,
                "        require_inside(table, scope.filter, str(scope), gone.values(), scope.column)\n",
                "",
            ),
            Edit(
                REPLACEMENTS,
                "            require_inside(table, scope.filter, str(scope), files if replaced else (), scope.column)\n",
                "",
            ),
            Edit(
                "backfill_assets/planning/resolve.py",
                "files_beyond=tuple(lakehouse.files_beyond(target.name, scope, chunk_of)) if changes else (),",
                "files_beyond=(),",
            ),
        ),
    ),
    Mend(
        "A3",
        "the doctor, asked to record what landed, gives the command again: it rolls back what came back since it looked",
        "REPLACE_PARTITIONS, undone: doctor | rollback, reinstate",
        60,
        (
            Edit(
                DOCTOR_OF_PUBLICATIONS,
                "from backfill_assets.publication.modes import change_of\n",
                f"{COMMANDS}from backfill_assets.publication.modes import change_of\n",
            ),
            Edit(
                DOCTOR_OF_PUBLICATIONS,
                "recorded = record_landed(view.platform, record.run_id, action, landed.number)",
                "recorded = _COMMANDS[action](view.platform, record.run_id).snapshot_id",
            ),
            Edit(
                DOCTOR_OF_EVIDENCE,
                "from backfill_assets.publication.recording import tell_again\n",
                f"{COMMANDS}from backfill_assets.publication.recording import tell_again\n",
            ),
            Edit(
                DOCTOR_OF_EVIDENCE,
                "tell_again(platform, run_id, done[-1].action, len(done))",
                "_COMMANDS[done[-1].action](platform, run_id)",
            ),
            Edit(
                DOCTOR_OF_EVIDENCE,
                "told = tell_again(platform, run_id, action, number)",
                "told = _COMMANDS[action](platform, run_id)",
            ),
        ),
    ),
    Mend(
        "A4",
        "two processes that load the same at once both append it: only the first look asks for the load's id",
        "REPLACE_PARTITIONS, validated: load | load",
        30,
        (
            Edit(
                LOADS,
                "new = _load_once(tables, name, properties, lambda table: commit_append(table, files, said))\n",
                "retry(tables, name, lambda table: commit_append(table, files, said), table)\n"
                "    new = landed(tables, name, LOAD_PROPERTY, properties[LOAD_PROPERTY])\n",
            ),
        ),
    ),
    Mend(
        "A5",
        "a collection that keeps snapshots for no day deletes manifests of a commit that is under way",
        "REPLACE_PARTITIONS, validated: live | collect",
        40,
        (
            Edit(
                GARBAGE,
                "return at - max(timedelta(days=settings.keep_snapshots_days), GRACE)",
                "return at - timedelta(days=settings.keep_snapshots_days)",
            ),
        ),
    ),
    Mend(
        "A6",
        "a publisher of whose commit nothing is known gives its lease back unfenced: a cancelled run becomes visible",
        "REPLACE_PARTITIONS, validated: publish | cancel",
        120,
        (Edit(LEASING, "            leases.lose(lease)\n", "            leases.release(lease)\n"),),
    ),
    Mend(
        "A7",
        "a run is cancelled from whatever state it has come to since it was looked at: also one that has landed",
        "REPLACE_PARTITIONS, staged: cancel | judge, land",
        30,
        (
            Edit(
                RUNS,
                "            require_state(record, expected, wanted)\n"
                "            move_run(connection, run_id, expected, wanted, actor, reason)\n",
                "            move_run(connection, run_id, record.state, wanted, actor, reason)\n",
            ),
            Edit(
                APPROVALS,
                "require_state(record, expected, wanted)",
                "require_state(record, record.state, wanted)",
            ),
            Edit(
                APPROVALS,
                "move_run(connection, run_id, expected, wanted, by, comment)",
                "move_run(connection, run_id, record.state, wanted, by, comment)",
            ),
        ),
    ),
    Mend(
        "A8",
        "corrections are announced before the target's change, and nobody takes them back where it never comes",
        "CORRECTION_EVENTS beside, half: ",
        24,
        (
            Edit(
                COMMITS,
                "        for table in change.tables:\n"
                "            if commits:\n"
                '                faults.reach("publishing.halfway")\n'
                "            commits.append(self.landed(change, table, PUBLISH, 1) or self.commit_to(change, table, root))\n"
                "        return commits[0]\n",
                "        for table in reversed(change.tables):\n"
                "            if commits:\n"
                '                faults.reach("publishing.halfway")\n'
                "            commits.append(self.landed(change, table, PUBLISH, 1) or self.commit_to(change, table, root))\n"
                "        return commits[-1]\n",
            ),
            Edit(  # by it nothing is taken back, either: half is taken for landed
                COMMITS,
                "return change.own(change.tables[0]) is not None",
                "return any(change.own(table) is not None for table in change.tables)",
            ),
        ),
    ),
    Mend(
        "A9",
        "a merge leaves the originals beside their copies where the catalog writes a file's name otherwise",
        "MERGE_BY_KEY, named otherwise: ",
        12,
        (
            Edit(
                DERIVATION,
                "tuple(named[path] for path in result.replaced),",
                'tuple(f"{scheme}{path}" for path in result.replaced),',
            ),
            Edit(REPLACEMENTS, "    require_present(name, replaced or (), old)\n", ""),
        ),
    ),
    Mend(
        "A10",
        "a batch whose files are not where the driver looks is taken for one without rows: its days are emptied",
        "REPLACE_PARTITIONS, usual: ",
        12,
        (
            Edit(
                ROWS,
                "pafs.FileSelector(folder, recursive=True)",
                "pafs.FileSelector(folder, recursive=True, allow_not_found=True)",
            ),
            Edit(COMPUTE, "    require_arrived(rows, _written(counted), files, prefix)\n", ""),
        ),
    ),
    Mend(
        "A11",
        "a version that was taken back and brought back before it was accepted is taken back from nobody who reads main",
        "VERSIONED, accepted later, brought back: accept, rollback",
        12,
        (
            Edit(
                REFERENCES,
                "        return had_by_name and undone_by([one.change for one in done]) != ROLLBACK\n",
                "        undone = next(one.action for one in reversed(done) if one.action != ACCEPT)\n"
                "        return change.last(name, undone) is None\n",
            ),
        ),
    ),
    Mend(
        "A12",
        "a version is given the name of one that was rolled back, whose reinstatement lands then and is never recorded",
        "VERSIONED, name set free: publish twin, reinstate",
        12,
        (
            Edit(
                REFERENCES,
                "if had := [ref for ref in expected if lakehouse.snapshot_of(name, ref) is not None]:",
                "expected.pop(withdrawn(self.version), None)\n        if had := list[str]():",
            ),
            Edit(
                REFERENCES,
                "        if self.named(change, old) is not None and self.is_taken(change, new):\n",
                "        if self.named(change, old) is None and self.is_taken(change, old):\n",
            ),
            Edit(
                REFERENCES,
                "return landed and self.named(change, old) is not None and not self.is_taken(change, new)",
                "return landed and self.named(change, old) is not None",
            ),
            Edit(REFERENCES, "if snapshot is not None and not self.is_taken(change, new):", "if snapshot is not None:"),
        ),
    ),
    Mend(
        "A13",
        "a chunk that nobody held goes back to a run that is rolled back, and nothing published into it can be recorded",
        "REPLACE_PARTITIONS, above nothing: unwind",
        12,
        (
            Edit(ACCEPTED, "    since = connection.execute(rolled_back).scalar()\n", "    since = None\n"),
            Edit(ACCEPTED, "runs.c.state.in_([RunState.PUBLISHED, RunState.SUPERSEDED]),", "sa.true(),"),
            Edit(
                PUBLICATIONS,
                "if published and not accepted_versions.still_holds(connection, holder):",
                "if not accepted_versions.still_holds(connection, holder):",
            ),
        ),
    ),
    Mend(
        "A14",
        "a run that was planned anew on the rows of another one is rolled back to no rows once its base has expired",
        "REPLACE_PARTITIONS, planned anew: expire, rollback",
        12,
        (
            Edit(COMMITS, "plans = [change.plan, *change.plans.values()]", "plans = [change.plan]"),
            Edit(
                CHANGE,
                "bases = {plan.base_snapshot_id for plan in self.plans.values()} - {approved, None}",
                "bases = {self.plan.base_snapshot_id} - {approved, None}",
            ),
            Edit(REPLACEMENTS, "    _require_taken_out(table, from_snapshot_id, wanted.coming)\n", ""),
        ),
    ),
    Mend(
        "A15",
        "a version that others accept before somebody has the lease is accepted twice: its rollback gives chunks to itself",
        "VERSIONED, accepted later, brought back: accept, rollback | accept",
        60,
        (
            Edit(
                ACCEPTING,
                "            is_done = last_committed(platform, run_id, {ACCEPT}) is not None\n",
                "            is_done = False\n",
            ),
            Edit(ACCEPTING, "    require_unchanged_since(change, ACCEPT, after)\n", ""),
            Edit(
                PUBLICATIONS,
                "            recorded = _is_accepted(connection, run_id)\n",
                "            recorded = False\n",
            ),
            Edit(ACCEPTED, "accepted_versions.c.run_id != run_id,", "sa.true(),"),
        ),
        places=12,
    ),
)


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
