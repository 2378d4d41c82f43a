"""What is said of a publication: in the log, in the evidence, and to the sinks that its manifest grants.

Put here who is told that something was asked for, refused or done, and how what a crash left untold is told later. What is
done is `publisher`'s, `undoing`'s, `accepting`'s and `ending`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from backfill_assets import faults
from backfill_assets.evidence.events import TOLD
from backfill_assets.evidence.record_order import name_of
from backfill_assets.evidence.record_writing import catch_up, tell
from backfill_assets.installation import Platform
from backfill_assets.publication.heads import keep
from backfill_assets.staging import stopping
from manifests.canonical import plain
from manifests.errors import LeaseHeld, Problem, PublicationDeferred, PublicationRefused, Refused
from manifests.lifecycle import ACCEPT, REINSTATE, ROLLBACK
from manifests.text import words_of
from resources import logs
from resources.ledger.facade import ChunkRecord, PublicationRecord, RunRecord, operator
from resources.logs import traces
from resources.sinks.declared import Told

_log = logging.getLogger(__name__)
_LONGEST = 1000
"""Characters on record of what an adapter raised."""
_P = ParamSpec("_P")
_R = TypeVar("_R")
_HEADLINES = {
    ROLLBACK: "the rollback is refused",
    REINSTATE: "the reinstatement is refused",
    ACCEPT: "the acceptance is refused",
}
"""What a refusal says of what was asked for, where that is no publication."""


@dataclass(frozen=True)
class Published:
    """A publication (or rollback) that landed. `new` is False if it had landed before this call."""

    run_id: str
    snapshot_id: int
    base_snapshot_id: int | None
    files_added: int
    files_removed: int
    evidence_root: str
    new: bool


def logged(
    action: str,
) -> Callable[[Callable[Concatenate[Platform, str, _P], _R]], Callable[Concatenate[Platform, str, _P], _R]]:
    """Have what is written about a run carry its fields, and write that an action was asked for and what came of it."""

    def decorate(
        function: Callable[Concatenate[Platform, str, _P], _R],
    ) -> Callable[Concatenate[Platform, str, _P], _R]:
        @wraps(function)
        def wrapped(platform: Platform, run_id: str, /, *args: _P.args, **named: _P.kwargs) -> _R:
            plan = platform.ledger.run(run_id).plan
            with logs.of_run(plan), traces.span_of(action.lower(), plan):
                logs.event(
                    _log, logging.INFO, f"{action}_started", f"{action} asked for by {operator()}", by=operator()
                )
                try:
                    with stopping.undisturbed(platform, run_id):
                        done = function(platform, run_id, *args, **named)
                except (PublicationDeferred, LeaseHeld) as wait:
                    why = wait.problems[0].what
                    logs.event(
                        _log, logging.INFO, f"{action}_waits", f"{action} has to wait: {why}", told=True, why=why
                    )
                    raise
                except Refused as refusal:
                    if isinstance(refusal, PublicationRefused):
                        refusal.headline = _HEADLINES.get(action, refusal.headline)
                    why = refusal.problems[0].what
                    logs.event(
                        _log, logging.WARNING, f"{action}_refused", f"{action} refused: {why}", told=True, why=why
                    )
                    raise
                facts: dict[str, Any] = {}
                if isinstance(done, Published):
                    facts = {name: value for name, value in plain(done).items() if name != "run_id"}
                    traces.note(snapshot_id=str(done.snapshot_id), new=done.new)
                said = f": snapshot {done.snapshot_id}" if isinstance(done, Published) else ""
                again = "" if facts.get("new", True) else ", done before"
                logs.event(_log, logging.INFO, f"{action}_done", f"{action} done{said}{again}", **facts)
                keep(platform)
                return done

        return wrapped

    return decorate


def last_committed(platform: Platform, run_id: str, actions: set[str]) -> PublicationRecord | None:
    """Return the ledger's entry of the last of these actions that a run has committed; None if there is none."""
    done = platform.ledger.landed(run_id)
    return next((one for one in reversed(done) if one.action in actions), None)


def changes_on_record(platform: Platform, run_id: str) -> int:
    """Return how many changes of its tables a run has on record: what a decision about the last of them is counted by."""
    return len(platform.ledger.landed(run_id))


def already_done(platform: Platform, record: RunRecord, actions: set[str]) -> Published:
    """Return what was done before; what a crash left untold is told now."""
    entry = last_committed(platform, record.run_id, actions)
    if entry is None:
        raise not_on_record(record)
    done = platform.ledger.landed(record.run_id)
    number = sum(one.id <= entry.id for one in done)
    return tell_of(platform, record, entry, number)


def tell_of(platform: Platform, record: RunRecord, entry: PublicationRecord, number: int) -> Published:
    """Tell of a change that an entry of the ledger has on record; what was told before is not told again."""
    done = Published(
        record.run_id,
        entry.snapshot,
        entry.base_snapshot_id,
        entry.files_added,
        entry.files_removed,
        entry.evidence_root,
        new=False,
    )
    tell_the_world(platform, record, done, entry.action, number)
    return done


def not_on_record(record: RunRecord) -> PublicationRefused:
    """Return the refusal of a run whose state says that it was published, where no entry of the ledger does."""
    return PublicationRefused(
        Problem(
            f"run '{record.run_id}' is {record.state}, and no entry of the ledger says which snapshot that was",
            "what is undone, or told again, is what the ledger has as COMMITTED",
            "the ledger's publications were changed: `backfill verify` shows what they were; restate the scope with a new run",
        )
    )


def tell_the_world(platform: Platform, record: RunRecord, done: Published, action: str, number: int = 1) -> None:
    """Append to the evidence, and send to each sink the manifest grants; each recognises a repetition."""
    facts = {name: value for name, value in plain(done).items() if name != "new"}
    known = tell(platform, record, action, facts, number)
    faults.reach("recording.told")
    asked, action = action, name_of(action, number)
    done_before = {
        (one.sink, one.action) for one in platform.ledger.sink_attempts(record.run_id) if one.decision == "SENT"
    }
    for name in record.manifest.safety.sinks:
        if (name, action) in done_before or not platform.sinks.is_told_of(name, asked):
            continue
        with traces.span("sink", record.run_id, sink=name, action=action):
            _tell_sink(platform, record, name, action, facts)
    catch_up(platform, record.run_id, TOLD, {"action": action}, known=known)


def _tell_sink(platform: Platform, record: RunRecord, name: str, action: str, facts: Mapping[str, Any]) -> None:
    """Tell a sink, and put on record what came of it."""
    try:
        sink = platform.sinks.open(name, mode=record.plan.mode, manifest=record.manifest, action=action)
        sink.send(_record_of(platform, record, action, facts))
        faults.reach("recording.sent")
    except Exception as error:  # noqa: BLE001 - whatever an adapter raises is put on record, and the next sink is told
        why = logs.without_passwords(words_of(error))[:_LONGEST]
        if not isinstance(error, Refused):
            why = f"{type(error).__name__}: {why}"
        traces.failed(error)
        platform.sinks.record_outcome(record.manifest, name, action, "FAILED", why)
        first = error.problems[0].what if isinstance(error, Refused) and error.problems else why
        text = f"sink {name} was not told of {action}: {first[:_LONGEST]}"
        logs.event(_log, logging.WARNING, "sink_failed", text, sink=name, action=action)
    else:
        platform.sinks.record_outcome(record.manifest, name, action, "SENT", "")
        logs.event(_log, logging.INFO, "sink_sent", f"sink {name} was told of {action}", sink=name, action=action)


def _record_of(platform: Platform, record: RunRecord, action: str, facts: Mapping[str, Any]) -> Told:
    chunks = platform.ledger.chunks(record.run_id)
    return Told(
        record.run_id,
        action,
        platform.ledger.now(),
        {**facts, "measured": _totals(chunks)},
        table=record.target,
        chunks=tuple(one.chunk for one in chunks),
        mode=record.plan.mode.value,
    )


def _totals(chunks: list[ChunkRecord]) -> list[dict[str, Any]]:
    """Add up what the chunk gates measured, slice by slice: what a sink is told of a run."""
    totals: dict[tuple[tuple[str, Any], ...], dict[str, int]] = {}
    for chunk in chunks:
        for row in chunk.measures.get("slices", []):
            sums = {name: value for name, value in row.items() if isinstance(value, int)}
            found = totals.setdefault(tuple((name, value) for name, value in row.items() if name not in sums), {})
            for name, value in sums.items():
                found[name] = found.get(name, 0) + value
    return [dict(place) | sums for place, sums in sorted(totals.items(), key=repr)]
