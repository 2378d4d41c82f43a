"""What the command prints of a plan says in words what was decided in the manifest."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from backfill_assets.cli import console
from backfill_assets.planning.resolve import preview
from backfill_assets.publication.modes import stages_of
from benchmarks.small_table import SCOPE, closed, declared, initialise, manifest_data, opened
from manifests.reading import manifest_from


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"entities": ["m0", "m1"]}, "2 of meter: m0, m1"),
        ({"entities": [f"m{n}" for n in range(7)]}, "7 of meter: m0, m1, m2, m3, m4 and 2 more"),
        ({"changedSince": None}, "each meter with source rows that came after snapshot {snapshot}"),
        ({"entities": ["m0"], "onOlderVersion": "REFUSE"}, "the run fails (REFUSE)"),
        ({"entities": ["m0"], "onOlderVersion": "KEEP"}, "that row stays (KEEP)"),
        ({"entities": ["m0"], "onOlderVersion": "OVERWRITE"}, "that row is overwritten (OVERWRITE)"),
    ],
)
def test_a_plan_says_what_is_merged_and_what_becomes_of_others(
    tmp_path: Path, options: dict[str, object], said: str
) -> None:
    with declared():
        platform = opened(tmp_path / "home")
        initialise(platform)
        snapshot = platform.lakehouse.snapshot_of("bronze.reading_events")
        if "changedSince" in options:
            options = {"changedSince": snapshot}
        data = manifest_data("run", "MERGE_BY_KEY", SCOPE, merge=options)
        asked = manifest_from(data | {"conflict": {"onConflict": "REPLAN", "maxReplans": 2}, "freeze": {"hours": 6}})
        planned = preview(platform, asked)
        screen = Console(width=250, record=True, file=StringIO())
        screen.print(console.plan(planned, "PLANNED", stages_of(platform.products, planned), asked.freeze))
        closed(platform)
    shown = screen.export_text()
    assert said.format(snapshot=snapshot) in shown
    assert "planned anew, at most 2 time(s)" in shown
    assert "at most 6 hours (freeze)" in shown
