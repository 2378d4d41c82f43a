"""A publisher that sleeps in its commit is kept out by whoever takes its days over, or nobody decides on them.

The metadata of the table may be unreadable just then, for a moment: nobody knows what the sleeper finds when it wakes.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlparse

import pytest
from test_others_writing import history
from test_taking_back import NO_RETENTION, platform, readers, state, validated

from backfill_assets import faults
from backfill_assets.installation import Platform
from backfill_assets.publication.ending import cancel
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.recording import close_intent
from benchmarks.small_table import READINGS, closed, opened
from benchmarks.stopped_actors import expire
from manifests.errors import Refused
from manifests.lifecycle import RunState
from resources.lakehouse import commits

__all__ = ["history", "platform"]


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("by", ["cancel", "doctor"])
def test_nobody_decides_on_a_run_whose_publisher_could_not_be_fenced(
    history: Platform, monkeypatch: pytest.MonkeyPatch, by: str, *, is_damaged: bool
) -> None:
    validated(history, "run")
    other = opened(history.settings.home, **NO_RETENTION)
    commit, slept = commits.commit_replacement, []

    def decide() -> None:
        expire(history)
        metadata = Path(urlparse(history.lakehouse.table(READINGS).metadata_location).path)
        kept = metadata.read_bytes()
        with monkeypatch.context() as patch:
            if is_damaged:
                patch.setattr(
                    faults, "reach", lambda point: metadata.write_bytes(kept) if point == "leasing.fenced" else None
                )
                metadata.write_text("{")
            try:
                if by == "cancel":
                    cancel(history, "run", "grace", "no")
                else:
                    (entry,) = [one.id for one in history.ledger.publications("run") if one.is_intent]
                    close_intent(history, "run", entry, "publish")
            except Refused:
                assert is_damaged
            metadata.write_bytes(kept)

    def asleep(*given: object, **named: object) -> object:
        if not slept and named.get("token") is not None:
            slept.append(True)
            decide()
        return commit(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(commits, "commit_replacement", asleep)
    try:
        publish(other, "run")
    except Refused:
        assert not is_damaged
    closed(other)
    assert slept
    assert ("run" in readers(history).values()) == (state(history, "run") is RunState.PUBLISHED)
