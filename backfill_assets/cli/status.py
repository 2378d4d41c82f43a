"""The command that says where runs stand: `status`.

Put here what is shown of a run, also at the end of its launch.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.base import (
    POLL_SECONDS,
    json_option,
    opened_platform,
    say,
    show,
    tell,
)
from backfill_assets.cli.cost_view import as_data, took
from manifests.errors import Refused, StoreRefused
from manifests.lifecycle import ENDED, PUBLISH, ROLLBACK, WAS_PUBLISHED, ChunkState, PublicationState, RunState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from backfill_assets.installation import Platform
    from resources.ledger import launches
    from resources.ledger.admissions import Waiting as Paced
    from resources.ledger.facade import ChunkRecord, RunRecord


def show_run(platform: Platform, run_id: str, as_json: bool) -> None:
    """Show one run: its state and why, its chunks, its gates, and what it waits for."""
    from backfill_assets.cli import console
    from backfill_assets.review import wording
    from manifests.chunks import CHUNK_GATE
    from resources.ledger import launches

    record, chunks = platform.ledger.run(run_id), platform.ledger.chunks(run_id)
    verdicts = platform.ledger.verdicts(run_id)
    publications = platform.ledger.publications(run_id)
    launch = platform.ledger.launches.waits(record, chunks=chunks)
    paced = platform.ledger.admissions.waiting(run_id).get(run_id)
    waiting = _waits_of(platform, record, launch, paced)
    if as_json:
        say(
            {
                "runId": run_id,
                "state": record.state,
                "why": launches.reason(record, launch),
                "target": record.target,
                "planHash": record.plan_hash,
                "chunkStates": _chunk_counts(chunks),
                "chunks": chunks,
                "gates": [*(one for one in verdicts if not one.chunk), *wording.failed_chunks(verdicts)],
                "approvals": platform.ledger.approvals(run_id),
                "asksForOwner": [verdict.gate for verdict in platform.ledger.asking(run_id)],
                "publications": publications,
                "topics": topics_told(platform, record),
                "sinkRequests": platform.ledger.sink_attempts(run_id),
                "evidence": str(platform.evidence.path(run_id)),
                "waitsFor": waiting.get(run_id),
                "waitsUntil": None if launch or paced is None else paced.until_at,
                "waitsForLaunchOf": None if launch is None else launch.chunks,
                "stops": platform.ledger.stops.of_run(run_id),
                "supersededUpstream": _superseded(platform, record),
                "costs": as_data(platform, record),
                "dryRun": _dry_run(platform, record) or None,
            }
        )
        return
    pairs: list[tuple[str, object]] = [
        ("state", launches.state(record, launch)),
        ("why", launches.reason(record, launch)),
        ("target", record.target),
        ("plan", record.plan_hash),
        *(("superseded", one) for one in _superseded(platform, record)),
    ]
    pairs += [("waits", waiting[run_id])] if run_id in waiting and ("why", waiting[run_id]) not in pairs else []
    pairs += [
        (f"{one.action} {one.state.lower()}", f"snapshot {one.snapshot_id}" if one.snapshot_id else "no snapshot")
        for one in publications
    ]
    pairs += _outcome(platform, record)
    show(console.facts(pairs, run_id), console.grid(chunks))
    if any(chunk.error for chunk in chunks):
        show(console.failures(chunks))
    if verdicts:
        show(console.gates(verdicts, CHUNK_GATE, platform.ledger.accepted_gates(run_id)))
    if wording.failed_chunks(verdicts):
        tell(f"the rows that break a rule: backfill exceptions {run_id}")


def _dry_run(platform: Platform, record: RunRecord) -> str:
    """Say which dry run a run was approved on, or whether one counts for it; empty where the policy asks for none."""
    if record.plan.dry_run is None:  # nothing of it has to be imported
        return ""
    from backfill_assets.publication.dry_runs import dry_run_in_words

    return dry_run_in_words(platform, record)


def _chunk_counts(chunks: Sequence[ChunkRecord]) -> dict[str, int]:
    """Return how many chunks are in each state."""
    counts = Counter(chunk.state.value for chunk in chunks)
    return {state.value: counts.get(state.value, 0) for state in ChunkState}


def _waits_of(
    platform: Platform, record: RunRecord, launch: launches.Waiting | None, paced: Paced | None
) -> dict[str, str]:
    """Return what a run waits for, and what all others do that wait for a freeze."""
    run_id, waiting = record.run_id, platform.ledger.freezes.waiting()
    if launch is not None:
        waiting[run_id] = str(launch)
    elif paced is not None:
        waiting[run_id] = str(paced)
    elif record.state is RunState.VALIDATED and (why := _waits_for_commit(platform, record)):
        waiting[run_id] = why
    if record.state is RunState.VALIDATED and run_id not in waiting and (why := _why_by_hand(record)):
        waiting[run_id] = f"{why}: `backfill publish {run_id}`"
    return waiting | _for_acceptance(platform, [record])


def _outcome(platform: Platform, record: RunRecord) -> list[tuple[str, object]]:
    """Return what a run was approved on, has taken, tells and changes, each with its name."""
    found: list[tuple[str, object]] = [("dry run", said)] if (said := _dry_run(platform, record)) else []
    found += took(platform, record)
    found += [("events", told_in_words(one)) for one in topics_told(platform, record)]
    changes = _changes(platform, record.run_id)
    return [*found, ("changes", changes)] if changes else found


def topics_told(platform: Platform, record: RunRecord) -> list[dict[str, Any]]:
    """Return what a run has told its topics, an entry a change, and what it is still to tell them, as plain data."""
    planned = platform.ledger.terms([record.run_id])[record.run_id].approved.topics
    entries = [one for one in platform.ledger.topics.of_run(record.run_id) if not one.is_intent]
    found: list[dict[str, Any]] = [
        {
            "sink": one.sink,
            "topic": one.topic,
            "action": one.action,
            "state": one.state,
            "events": one.events,
            "ranges": one.ranges,
            "command": None,
        }
        for one in entries
    ]
    if planned and record.state in WAS_PUBLISHED:
        from backfill_assets.publication.topic_publishing import lacking

        due = lacking(platform, record)
    else:
        due = [] if record.state in ENDED else [(one, PUBLISH) for one in planned]
    state = "DUE" if record.state in WAS_PUBLISHED else "PLANNED"
    return found + [
        {
            "sink": one.sink,
            "topic": one.topic,
            "action": action,
            "state": state,
            "events": None,
            "ranges": [],
            "command": f"backfill {action} {record.run_id}",
        }
        for one, action in due
    ]


def told_in_words(told: Mapping[str, Any]) -> str:
    """Say what a run has told a topic, or is to tell it."""
    topic, action = told["topic"], told["action"]
    match told["state"]:
        case "PLANNED":
            return f"none yet in {topic}: the {action} writes them"
        case "DUE":
            return f"those of the {action} are not in {topic} yet: `{told['command']}` writes them"
        case PublicationState.ABANDONED:
            return f"{told['events']:,} in {topic}, of a {action} that was undone before all were written"
    said = "which take back as many" if action == ROLLBACK else f"of the {action}"
    return f"{told['events']:,} in {topic}, {said}"


def _changes(platform: Platform, run_id: str) -> str:
    """Say what a run changes, if a diff of it is on record; only then is looked at what it takes to read one."""
    try:
        if not any(platform.evidence.records(run_id).glob("diff*.json")):
            return ""
    except StoreRefused:  # where the run stands is the ledger's to say, and that is there
        return "not known: the store of the evidence does not answer, and `backfill doctor` says why"
    from backfill_assets.review.diff import recorded_diff
    from backfill_assets.review.wording import in_short

    try:
        found = recorded_diff(platform, run_id)
    except (Refused, OSError, ValueError):
        return f"its diff cannot be read: see `backfill verify {run_id}`"
    return "" if found is None else f"{in_short(found)}: `backfill diff {run_id} --recorded`"


def _superseded(platform: Platform, record: RunRecord) -> list[str]:
    """Say which chunks of other targets a published run has read that others hold by now."""
    if record.state is not RunState.PUBLISHED:
        return []
    plans, targets = platform.ledger.terms([record.run_id])[record.run_id].each, platform.ledger.targets()
    if not any(table in targets for plan in plans for table, _ in plan.source_pins):
        return []  # nothing that it reads is made by runs: it needs no look at what the products declare
    from backfill_assets.planning.upstream import superseded_of

    return [one.describe() for one in superseded_of(platform, record)]


def _why_by_hand(record: RunRecord) -> str:
    """Say why a run is published by a person; nothing of one that is not, or never."""
    if not (record.plan.manual_publish and record.manifest.execution_mode.publishes):
        return ""
    by_manifest = record.manifest.safety.requires_manual_publish
    return "its manifest requires a manual publish" if by_manifest else "the policy says who publishes it"


def _waits_for_commit(platform: Platform, record: RunRecord) -> str:
    """Say until when a validated run waits for its target's commits; only one that has such a limit is looked at."""
    pace = platform.ledger.terms([record.run_id])[record.run_id].approved.pace
    if pace is None or pace.commits_per_hour is None:
        return ""
    from backfill_assets.publication.requirements import waits_for_commit

    return waits_for_commit(platform.ledger, record)


def _for_acceptance(platform: Platform, records: Sequence[RunRecord]) -> dict[str, str]:
    """Return of each run that has published a version which main does not show yet who does not see it, and what makes main show it."""
    later = [one for one in records if one.state is RunState.PUBLISHED and _is_accepted_later(one)]
    if not later:
        return {}
    from backfill_assets.publication.accepting import may_be_accepted

    return {
        one.run_id: f"readers of main do not see it before `backfill accept {one.run_id}`"
        for one in later
        if may_be_accepted(platform, one.run_id)
    }


def _is_accepted_later(record: RunRecord) -> bool:
    from manifests.model import Acceptance

    return record.manifest.target.acceptance is Acceptance.LATER


def _watched(platform: Platform, run_id: str) -> list[tuple[str, object]]:
    """Return where a run stands, why, and what it waits for, each with its name."""
    from resources.ledger import launches

    record = platform.ledger.run(run_id)
    launch = platform.ledger.launches.waits(record)
    waiting = _waits_of(platform, record, launch, platform.ledger.admissions.waiting(run_id).get(run_id)).get(run_id)
    why = launches.reason(record, launch)
    pairs: list[tuple[str, object]] = [("state", launches.state(record, launch)), ("why", why)]
    return [*pairs, ("waits", waiting)] if waiting is not None and waiting != why else pairs


def _waits(platform: Platform, records: Sequence[RunRecord]) -> dict[str, str]:
    """Return what each run waits for that waits: the end of a freeze, a limit, or a launch."""
    validated = (one for one in records if one.state is RunState.VALIDATED)
    found = {one.run_id: why for one in validated if (why := _waits_for_commit(platform, one))}
    found |= _for_acceptance(platform, records)
    found |= platform.ledger.freezes.waiting()
    found |= {run_id: str(one) for run_id, one in platform.ledger.admissions.waiting().items()}
    return found | {run_id: str(why) for run_id, why in platform.ledger.launches.all_waiting().items()}


@click.command()
@click.argument("run_id", required=False)
@click.option("--watch", is_flag=True, help="Refresh until interrupted; of a run, until it is over.")
@json_option
def status(run_id: str | None, watch: bool, as_json: bool) -> None:
    """Show all runs, or one run with its chunk grid and gates. A live run that waits for a freeze says for which."""
    from backfill_assets.cli import console
    from backfill_assets.cli.terminal import make_console

    with opened_platform() as platform:
        if run_id is not None and not watch:
            show_run(platform, run_id, as_json)
            return
        if watch:
            from rich.console import Group
            from rich.live import Live

            shown = run_id

            def view() -> Any:
                if shown is None:
                    records = platform.ledger.runs()
                    return console.run_table(records, _waits(platform, records))
                facts = console.facts(_watched(platform, shown), shown)
                return Group(facts, console.grid(platform.ledger.chunks(shown)))

            with Live(view(), console=make_console(), refresh_per_second=2) as live:
                try:
                    while shown is None or platform.ledger.run(shown).state not in ENDED | WAS_PUBLISHED:
                        time.sleep(POLL_SECONDS)
                        live.update(view())
                    live.update(view())
                except KeyboardInterrupt:
                    return
            return
        records = platform.ledger.runs()
        waiting = _waits(platform, records)
        if as_json:
            say(
                [
                    {
                        "runId": record.run_id,
                        "kind": record.kind,
                        "mode": record.mode,
                        "target": record.target,
                        "state": record.state,
                        "why": record.state_reason,
                        "planHash": record.plan_hash,
                        "range": record.manifest.target.publish_range,
                        "transformVersion": record.manifest.transform.version,
                        "waitsFor": waiting.get(record.run_id),
                    }
                    for record in records
                ]
            )
        elif records:
            show(console.run_table(records, waiting))
        else:
            tell("no runs yet: `backfill plan MANIFEST.yaml` makes the first")
