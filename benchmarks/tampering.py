"""How much of what is changed behind the project's back `backfill verify` finds and names: a benchmark.

    python -m benchmarks.tampering --changes 1000 --seed 7
    python -m benchmarks.tampering --histories 200 --seed 7

`--changes` makes one change at a time to an installation, verifies it, and puts it back: a third of them are bytes of evidence,
chain and ledger (of runs that are published and others), a third rows, links, bundles and records that are forged to agree with
what is around them, a third forgeries of catalog, metadata, manifests and snapshots. Each must be found, and what is said must
name what was changed. `--histories` lives through histories in which nothing unlawful
happens: nothing may be found. Without Spark; everything else is the project's own. Exit code 1 if a figure is not met.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.manifest import clear_manifest_cache

from backfill_assets import decisions
from backfill_assets.audit.findings import Problem
from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from benchmarks import small_table
from benchmarks.changed_bytes import Tamperer, problems_of
from benchmarks.forged_columns import FORGED_COLUMNS
from benchmarks.forged_records import FORGED_RECORDS, Hand
from benchmarks.forged_snapshots import FORGED_SNAPSHOTS
from benchmarks.forgeries import FORGERIES, Forged, Forger
from benchmarks.histories import live_through

CHANGED: tuple[tuple[str, tuple[str, str], str, dict[str, Any]], ...] = (
    ("REPLACE_PARTITIONS", small_table.HISTORY, "1", {}),
    ("REPLACE_PARTITIONS", small_table.SCOPE, "2", {}),
    ("MERGE_BY_KEY", ("2020-01-01", "2020-01-31"), "2", {"merge": {"entities": ["m1", "m4"]}}),
    ("VERSIONED", small_table.SCOPE, "1", {"version": "v1", "acceptance": "LATER"}),
    ("CORRECTION_EVENTS", ("2020-04-01", "2020-04-30"), "2", {"corrections": "BESIDE"}),
    ("REPLACE_PARTITIONS", ("2020-03-01", "2020-03-31"), "1", {}),
)
"""The runs of the installation that is changed; the last one is rolled back."""
OF_TABLES = (*FORGERIES, *FORGED_SNAPSHOTS, *FORGED_COLUMNS)
"""Every kind of forgery of a table, in turn."""


@dataclass
class Outcome:
    """What came of changes: how many were made, by kind, and which were not found, or found and not named."""

    made: Counter[str] = field(default_factory=Counter)
    unnoticed: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)


@contextmanager
def installation(folder: Path) -> Iterator[Platform]:
    """Make an installation with runs of several modes: published, rolled back, and waiting for their publication or launch."""
    with small_table.declared(small_table.OUTLINED):
        platform = small_table.opened(folder / "home")
        small_table.initialise(platform)
        for number, (mode, scope, version, options) in enumerate(CHANGED):
            run_id = f"run-{number}"
            small_table.planned(
                platform, small_table.manifest(run_id, mode, scope, computed_by=version, **dict(options))
            )
            small_table.staged(platform, run_id)
            publish(platform, run_id)
        rollback(platform, run_id)
        _leave_unpublished(platform)
        yield platform
        small_table.closed(platform)


def _leave_unpublished(platform: Platform) -> None:
    """Leave runs that are planned, approved, rejected, and validated: they are protected before they are published."""
    for run_id in ("only-planned", "not-wanted"):
        plan_run(platform, small_table.manifest(run_id, "REPLACE_PARTITIONS", small_table.EMPTY))
    decisions.reject(platform, "not-wanted", by="grace", comment="not now")
    for run_id in ("only-approved", "waiting"):
        small_table.planned(platform, small_table.manifest(run_id, "REPLACE_PARTITIONS", small_table.EMPTY))
    small_table.staged(platform, "waiting")


class Copies:
    """Puts an installation back as it was."""

    def __init__(self, platform: Platform, folder: Path) -> None:
        self._platform, self._copy = platform, folder / "copy"
        self._home = platform.settings.home
        small_table.closed(platform)
        shutil.copytree(self._home, self._copy, symlinks=True)

    def put_back(self) -> None:
        """Put everything back, and forget what was read of it."""
        small_table.closed(self._platform)
        shutil.rmtree(self._home)
        shutil.copytree(self._copy, self._home, symlinks=True)
        clear_manifest_cache()  # it knows files by their names


def change_tables(platform: Platform, copies: Copies, number: int, seed: int) -> Outcome:
    """Forge tables one change at a time, each kind in turn."""
    outcome = Outcome()
    for one in range(number):
        forgery = OF_TABLES[one % len(OF_TABLES)]
        forged = forgery(Forger(platform, random.Random(f"{seed}-{one}")))
        outcome.made[forgery.__name__] += 1
        found = verify(platform).everything  # what metadata alone shows is cheap
        if not _names(forged, found):
            found = verify(platform, data=True).everything
        if not found:
            outcome.unnoticed.append(f"{forgery.__name__}: {forged.what}")
        elif not _names(forged, found):
            said = [f"{problem.where}: {problem.what}" for problem in found[:3]]
            outcome.unnamed.append(f"{forgery.__name__}: {forged.what}: {said}")
        copies.put_back()
    return outcome


def forge_records(platform: Platform, copies: Copies, number: int, seed: int, outcome: Outcome) -> None:
    """Forge ledger, journal, evidence and chain one change at a time, each kind in turn."""
    for one in range(number):
        forgery = FORGED_RECORDS[one % len(FORGED_RECORDS)]
        forged = forgery(Hand(platform, random.Random(f"{seed}-{one}")))
        outcome.made[forgery.__name__] += 1
        found = verify(platform).everything
        if not found:
            outcome.unnoticed.append(f"{forgery.__name__}: {forged.what}")
        elif not any(problem.where.startswith(forged.words) or _names(forged, [problem]) for problem in found):
            said = [f"{problem.where}: {problem.what}" for problem in found[:3]]
            outcome.unnamed.append(f"{forgery.__name__}: {forged.what}: {said}")
        copies.put_back()


def _names(forged: Forged, found: list[Problem]) -> bool:
    said = [f"{one.where} {one.what} {one.expected} {one.found}" for one in found]
    return any(word in text for word in forged.words for text in said)


def change_bytes(platform: Platform, number: int, seed: int, outcome: Outcome) -> None:
    """Change one byte at a time of evidence, chain or ledger."""
    tamperer = Tamperer(platform, seed)
    for one in range(number):
        tampered = tamperer.change(one)
        outcome.made[f"a byte of {tampered.kind}"] += 1
        try:
            found = problems_of(platform, tampered)
        finally:
            tampered.undo()
        if not found:
            outcome.unnoticed.append(tampered.where)
        elif not any(problem.where.startswith(tampered.names) for problem in found):
            outcome.unnamed.append(f"{tampered.where}: {[(problem.where, problem.what) for problem in found[:3]]}")


def lawful_histories(number: int, seed: int, tell: Callable[[str], None] = lambda _: None) -> tuple[int, list[str]]:
    """Live through histories in which nothing unlawful happens; return their steps, and what was found all the same."""
    steps, alarms = 0, []
    for one in range(number):
        with tempfile.TemporaryDirectory() as folder, small_table.declared(small_table.OUTLINED):
            platform = small_table.opened(Path(folder) / "home")
            small_table.initialise(platform)
            done, today = live_through(platform, random.Random(f"{seed}-{one}"))
            steps += len(done)
            for data in (False, True):
                alarms += [
                    f"history {one} ({', '.join(done)}): {found.run_id} {found.where}: {found.what}"
                    for found in verify(platform, data=data, at=today).everything
                ]
            small_table.closed(platform)
        tell(f"history {one + 1} of {number}: {len(alarms)} false alarm(s)")
    return steps, alarms


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=0, help="how many changes to make")
    parser.add_argument("--histories", type=int, default=0, help="how many lawful histories to live through")
    parser.add_argument("--seed", type=int, default=7, help="decides what is changed and what happens")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)  # what is refused, and what the doctor finds, is part of a history
    began = time.monotonic()
    told: dict[str, Any] = {"seed": asked.seed}
    failed = False
    if asked.changes:
        with tempfile.TemporaryDirectory() as folder, installation(Path(folder)) as platform:
            copies = Copies(platform, Path(folder))
            outcome = change_tables(platform, copies, asked.changes // 3, asked.seed)
            forge_records(platform, copies, asked.changes // 3, asked.seed, outcome)
            change_bytes(platform, asked.changes - 2 * (asked.changes // 3), asked.seed, outcome)
        told |= {"changes": sum(outcome.made.values()), "kinds": dict(outcome.made)}
        told |= {"unnoticed": outcome.unnoticed, "unnamed": outcome.unnamed}
        failed |= bool(outcome.unnoticed or outcome.unnamed)
    if asked.histories:
        steps, alarms = lawful_histories(asked.histories, asked.seed)
        told |= {"histories": asked.histories, "steps": steps, "falseAlarms": alarms}
        failed |= bool(alarms)
    told["seconds"] = round(time.monotonic() - began, 1)
    if asked.json:
        print(json.dumps(told))
    else:
        for name, value in told.items():
            print(f"{name:12} {value}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
