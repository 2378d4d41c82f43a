"""How long readers wait for a publication and for its undoing, in every publish mode: seconds, beside the rows they move.

    python -m benchmarks.publications [--events LOG] [--cases N]

History is published by APPEND_ONLY; then each other mode restates the whole log, or merges 1% of its cases, and is
rolled back. Timed is the whole call of the publisher, checks and evidence included, with everything staged and gated before,
and beside it the part from the intent in the ledger to the record of the commit, before which no reader sees anything: what
it takes must not grow with rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from backfill_assets.cli import demo
from backfill_assets.publication.accepting import accept
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from benchmarks.installation import installed, log_options, seconds_of, timed

LIMIT_SECONDS = 1.0


def main() -> None:
    """Run the benchmark."""
    options = log_options(__doc__.splitlines()[0]).parse_args()
    shown = Table(
        "mode", "what", "rows staged", "files added", "files removed", "intent to record (s)", "whole call (s)"
    )
    slow = []
    with installed(options) as world:
        platform = world.platform

        def measure(mode: str, what: str, run_id: str, call: Callable[..., Any]) -> None:
            with timed() as seconds:
                done = call(platform, run_id)
            rows = sum(chunk.rows or 0 for chunk in platform.ledger.chunks(run_id))
            entry = platform.ledger.publications(run_id)[-1]
            commit = seconds_of(entry)
            counts = (f"{rows:,}", str(done.files_added), str(done.files_removed))
            shown.add_row(mode, what, *counts, f"{commit:.2f}", f"{seconds[0]:.2f}")
            if seconds[0] >= LIMIT_SECONDS:
                slow.append(f"{mode} {what}")

        def staged(name: str, run_id: str, **target: Any) -> str:
            changes: dict[str, Any] = {"referenceData": []} | ({} if name == demo.HISTORY else {"validation": {}})
            manifest = world.manifest(name, run_id, target=target, **changes)
            manual = manifest.safety.model_copy(update={"requires_manual_publish": True})
            return world.run(manifest.model_copy(update={"safety": manual})).run_id

        first = staged(demo.HISTORY, "append", publishMode="APPEND_ONLY")
        measure("APPEND_ONLY", "publication", first, publish)
        measure("APPEND_ONLY", "rollback", first, rollback)
        measure("APPEND_ONLY", "reinstatement", first, reinstate)
        table = platform.lakehouse.table(platform.ledger.run(first).target)
        cases = sorted(set(table.scan(selected_fields=("case_id",)).to_arrow()["case_id"].unique().to_pylist()))[::100]
        modes: dict[str, dict[str, Any]] = {
            "REPLACE_PARTITIONS": {},
            "MERGE_BY_KEY": {"merge": {"entities": cases}},
            "SHADOW_SWAP": {},
            "VERSIONED": {"version": "v2", "acceptance": "ON_PUBLICATION"},
            "VERSIONED, accepted later": {"version": "v3", "acceptance": "LATER"},
            "CORRECTION_EVENTS": {"corrections": "INSTEAD"},
            "CORRECTION_EVENTS, beside": {"corrections": "BESIDE"},
        }
        for name, target in modes.items():
            run_id = staged(
                demo.RESTATEMENT,
                name.lower().replace("_", "-").replace(", ", "-").replace(" ", "-"),
                publishMode=name.partition(",")[0],
                **target,
            )
            measure(name, "publication", run_id, publish)
            if target.get("acceptance") == "LATER":
                measure(name, "acceptance", run_id, accept)
            measure(name, "rollback", run_id, rollback)
    console = Console()
    console.print(f"{world.load.source_file}: {len(cases) * 100:,} cases, one call of the publisher each")
    console.print(shown)
    if slow:
        raise SystemExit(f"not under {LIMIT_SECONDS:g} s: {', '.join(slow)}")


if __name__ == "__main__":
    main()
