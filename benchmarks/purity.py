"""What the gate costs that computes chunks again: its time as a share of the whole run's, in one warm process.

    python -m benchmarks.purity [--events LOG] [--cases N] [--rounds 5] [--warm-up 2]

A restatement of all of the log, from plan to published, as often as `--rounds` says, after as many unmeasured ones as
`--warm-up` says. Prints for each the seconds of the run and of the gate, and those that all processes computed meanwhile; and
which part of what a run computes first the look at its plan's expressions takes.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any
from unittest import mock

from rich.console import Console
from rich.table import Table

from backfill_assets.cli import demo
from backfill_assets.gates import judging
from backfill_assets.gates.purity import purity_finding
from backfill_assets.staging.unsteady import require_steady
from benchmarks.installation import installed, log_options, timed


def main() -> None:
    """Run the benchmark."""
    parser = log_options(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before those that are measured")
    options = parser.parse_args()
    took: dict[str, list[float]] = {}

    def telling(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with timed() as seconds:
                found = function(*arguments)
            took[name] = [one + more for one, more in zip(took.get(name, [0.0, 0.0]), seconds, strict=True)]
            return found

        return call

    table = Table("round", "run", "gate", "share", "look", "run computes", "gate computes", "share", caption="seconds")
    shares, computed = [], []
    with (
        installed(options) as world,
        mock.patch.object(judging, "purity_finding", telling("gate", purity_finding)),
        mock.patch("backfill_assets.staging.compute.require_steady", telling("look", require_steady)),
    ):
        record = world.run(world.manifest(demo.HISTORY, "history"))
        for number in range(1 - options.warm_up, options.rounds + 1):
            took.clear()
            with timed() as whole:
                record = world.run(world.manifest(demo.RESTATEMENT, f"restatement-{number}"))
            gate, look = took["gate"], took["look"]
            if number > 0:
                shares.append(gate[0] / whole[0])
                computed.append(gate[1] / whole[1])
                of_time, of_work = f"{shares[-1]:.1%}", f"{computed[-1]:.1%}"
                figures = (whole[0], gate[0], of_time, look[0], whole[1], gate[1], of_work)
                table.add_row(str(number), *(one if isinstance(one, str) else f"{one:.2f}" for one in figures))
        rows = sum(chunk.rows or 0 for chunk in world.platform.ledger.chunks(record.run_id))
        said = [one.summary for one in world.platform.ledger.verdicts(record.run_id) if one.gate in record.plan.gates]
    console = Console(width=160)
    console.print(f"{world.load.source_file}: {rows:,} rows in {len(record.plan.chunks)} chunks")
    console.print(table)
    console.print(f"share of time: median {median(shares):.1%}; of processor seconds: median {median(computed):.1%}")
    console.print(next((one for one in said if "computed again" in one), ""))


if __name__ == "__main__":
    main()
