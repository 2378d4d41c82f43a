"""The `backfill` command: from the reason to the publication and back, on a terminal or for a script.

Put here arguments, output and exit codes. What is done is done by the modules that Dagster uses as well. Exit codes:
0 done, 1 something ran and did not succeed, 2 refused before anything was written.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli import unexpected
from backfill_assets.cli.base import (
    CONTEXT,
    EXIT_FAILED,
    EXIT_REFUSED,
    POLL_SECONDS,
    bars,
    json_option,
    opened_instance,
    opened_platform,
    say,
    show,
)
from backfill_assets.cli.decisions import COMMANDS as DECISIONS
from backfill_assets.cli.decisions import by_option, loud, publisher_options
from backfill_assets.cli.differences import diff, explain
from backfill_assets.cli.evidence import head, report, verify
from backfill_assets.cli.loads import load, loads, unload
from backfill_assets.cli.operations import metrics, runbook
from backfill_assets.cli.policy import policy
from backfill_assets.cli.reconciliation import drift, exceptions, reconcile
from backfill_assets.cli.stopping import stop
from backfill_assets.cli.ui import ui
from manifests.errors import (
    EnvironmentRefused,
    InputRefused,
    ManifestRefused,
    Problem,
    Refused,
    RunStopped,
    TransitionRefused,
)
from manifests.lifecycle import WAS_PUBLISHED, RunState
from resources.processes import began_at

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from backfill_assets.declarations.target import TargetTable
    from backfill_assets.installation import Platform
    from manifests.model import RunManifest
    from resources.ledger.facade import RunRecord

WHOLE_PROCESS = object()
"""What says that a command is all that its process is for."""
_DONE_COMPUTING = frozenset({RunState.VALIDATED, RunState.PUBLISHED, RunState.SUPERSEDED})


@click.group(context_settings=CONTEXT)
@click.version_option(package_name="backfill-assets")
def cli() -> None:
    """Rewrite the history of data tables safely.

    \b
    The way of one run:
      backfill init                      create home, ledger, tables, reference data
      backfill load TABLE FILE           bring input in, row by row held against its model; `loads TABLE`, `unload`
      backfill plan MANIFEST.yaml        resolve a manifest: what would be read, computed and changed
      backfill review RUN --by NAME      somebody has looked at it; the policy may want that first
      backfill approve RUN --by NAME     somebody other than the requester agrees
      backfill decisions [RUN]           who decided what, when, about which plan; `backfill policy`: who may
      backfill run RUN                   compute chunks into staging and gate them (as a launch from the UI does)
      backfill stop RUN --by NAME        end what is being computed of it, at once; `backfill resume RUN` goes on
      backfill status [RUN]              where every run and chunk stands
      backfill diff RUN                  what the run changes, row by row, before readers see it
      backfill accept-change RUN         an owner accepts an unusual change that a gate asks about
      backfill publish RUN               one atomic snapshot, if every gate has passed
      backfill rollback RUN              put back what the run replaced, as a new snapshot
      backfill reinstate RUN             undo a rollback
      backfill accept RUN                make a version that is published under its name what main shows
      backfill explain TABLE --key K=V   why a row says what it says, and what it said before
      backfill reproduce RUN             compute a recorded run again and compare every digest
      backfill reconcile [TABLE]         hold what is published against its source; `exceptions RUN`, `drift [TABLE]`
      backfill verify RUN | --all        is every byte of evidence, ledger and, with --data, rows as it was recorded
      backfill report RUN                one page about a run that stands by itself: report.html
      backfill doctor                    what of ledger, tables, files and evidence disagrees; --repair
      backfill gc                        what nothing needs any more, and how much; --delete
      backfill runbook RUN               the runbook filled in with that run: what is done, what is next
      backfill metrics                   figures for Prometheus, from the ledger; --output, --listen

    Beside it, `backfill live` takes in what is new, run by run.

    `backfill demo` shows all of it; `backfill ui` opens Dagster. Settings: `backfill config`.
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph


@cli.command()
@json_option
def init(as_json: bool) -> None:
    """Create the home folder, the ledger, the tables and the Dagster instance; load reference data.

    Safe to repeat: what exists is kept, an older ledger is upgraded.
    """
    from backfill_assets.defs.launch import initialise_instance
    from backfill_assets.installation import Platform, declared_products, tables_of
    from backfill_assets.operations.initialise import initialise
    from resources.settings import load_settings

    settings = load_settings()
    platform = Platform.of(settings)
    held = initialise(platform)
    initialise_instance(settings)
    adopted = platform.ledger.journal.adopted
    tables = {product.name: dict(tables_of(product)) for product in declared_products()}
    if as_json:
        say({"home": str(settings.home), "tables": tables, "references": held, "adopted": adopted})
    else:
        click.echo(f"ready: {settings.home}")
        if adopted:
            click.echo(
                f"  adopted: {len(adopted)} run(s) of an earlier version are protected from now on, as they are today: "
                + ", ".join(adopted)
            )
        for product, names in tables.items():
            click.echo(f"  product {product}")
            for name, what in names.items():
                click.echo(f"    {name}: {what}" + (f" {held[name]}" if name in held else ""))


@cli.command()
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option("--preview", is_flag=True, help="Show the plan without recording it.")
@json_option
def plan(manifest: Path, preview: bool, as_json: bool) -> None:
    """Resolve MANIFEST (YAML or JSON) to a plan: pins, chunks, estimates, stages. Computes nothing.

    A manifest may be planned again, on newer tables, until it is approved; after that its text is immutable. A
    `progressive` manifest becomes a series of runs (RUN.s001, RUN.s002, ...), each published after the one before it.
    """
    from backfill_assets.cli.console import plan as show_plan
    from backfill_assets.planning import resolve as planning

    contract = _valid(manifest)
    with opened_platform() as platform:
        if preview:
            found = [(one, "PREVIEW, not recorded") for one in planning.preview_series(platform, contract)]
        else:
            records = planning.plan_series(platform, contract)
            _refuse_dead(records)
            found = [(record.plan, record.state.value) for record in records]
    if as_json:
        told = [
            {"state": state, "planHash": one.hash, "plan": one, "stages": [s.describe() for s in one.stages]}
            for one, state in found
        ]
        say(told if contract.progressive is not None else told[0])
    else:
        show(*(show_plan(one, state) for one, state in found))


def _valid(manifest: Path) -> RunManifest:
    """Read a manifest.

    Raises:
        ManifestRefused: if it is not valid, with what the installation has against the rest of it, where there is one.
    """
    from backfill_assets.planning import resolve as planning
    from manifests.model import load_manifest

    try:
        return load_manifest(manifest)
    except ManifestRefused as refusal:
        try:
            with opened_platform() as platform:
                whole = planning.whole_refusal(platform, refusal)
        except EnvironmentRefused:
            raise refusal from None
        raise whole from None


def _refuse_dead(records: Sequence[RunRecord]) -> None:
    """Refuse to show the plan of a run that nothing can come of any more as if it were one to approve."""
    dead = [record for record in records if record.state in {RunState.CANCELLED, RunState.REJECTED}]
    if dead:
        raise TransitionRefused(
            Problem(
                f"run '{record.run_id}' is {record.state}",
                "a run that is over is not planned again",
                "give the same change a run id of its own",
            )
            for record in dead
        )


for _command in (
    *DECISIONS,
    policy,
    load,
    loads,
    unload,
    diff,
    explain,
    reconcile,
    exceptions,
    drift,
    verify,
    report,
    head,
    metrics,
    runbook,
    stop,
    ui,
):
    cli.add_command(_command)


@cli.command()
@click.argument("run_id")
@by_option
@click.option("--comment", default="", help="Why.")
def cancel(run_id: str, by: str | None, comment: str) -> None:
    """End RUN_ID without a publication. What is staged stays on disk and on record; readers have seen nothing of it."""
    from backfill_assets import decisions
    from resources.ledger.facade import operator

    with opened_platform() as platform:
        by = by or operator()
        decisions.cancel(platform, run_id, by=by, comment=comment)
    click.echo(f"{run_id}: CANCELLED by {by}")


@cli.command()
@click.argument("run_id")
@click.option(
    "--chunks",
    "ranges",
    multiple=True,
    metavar="FROM[..TO]",
    help="Only these chunks, e.g. 2012-01..2012-06; may be repeated. Default: all that are not staged.",
)
@json_option
def run(run_id: str, ranges: tuple[str, ...], as_json: bool) -> None:
    """Compute chunks of an approved RUN_ID into staging and gate them, as a launch from the UI does.

    Safe to repeat: staged chunks are skipped. Once every chunk is staged and every gate has passed, the run is
    published as the sensor would do it, unless its manifest requires a manual publish.
    """
    _run(run_id, ranges, as_json)


@cli.command()
@click.argument("run_id")
@json_option
def resume(run_id: str, as_json: bool) -> None:
    """Launch RUN_ID again, which somebody has stopped (`backfill stop`, Ctrl-C, Terminate): what is staged is kept.

    The same as `backfill run RUN_ID`: any launch ends the stop before it.
    """
    _run(run_id, (), as_json)


def _run(run_id: str, ranges: Sequence[str], as_json: bool) -> None:
    """Launch a run, and show what came of it; why it did not succeed goes to stderr."""
    from backfill_assets.staging.stopping import is_being_published
    from resources.ledger import stops

    failures: list[str] = []
    stopped: RunStopped | None = None
    # a stop that comes while Python starts is a stop of this launch
    asked_at = began_at() if click.get_current_context().find_root().obj is WHOLE_PROCESS else None
    with opened_platform() as platform, opened_instance(platform.settings) as instance:
        try:
            success = execute(
                platform, instance, run_id, ranges, progress=not as_json, failed=failures.append, asked_at=asked_at
            )
        except RunStopped as error:
            stopped, success = error, False
        late = None if stopped is not None else stops.held(platform.ledger.engine, run_id)
        goes_on = late is not None and late.note != "" and is_being_published(platform, run_id)
        is_published = platform.ledger.run(run_id).state in WAS_PUBLISHED
        if late is not None and not (is_published or goes_on):
            stopped, success = stops.refusal(late), False
        _report(platform, run_id, as_json)
        for why in failures if stopped is None else ():  # what a stop has cut short failed at nothing
            click.echo(why, err=True)
        if stopped is not None:
            _refuse(stopped)
        elif late is not None:
            said = "its publication had begun, and was let finish" if is_published else late.note
            click.echo(f"{run_id}: {late}: {said}", err=True)
    if not success:
        sys.exit(EXIT_FAILED)


def execute(
    platform: Platform,
    instance: DagsterInstance,
    run_id: str,
    ranges: Sequence[str],
    *,
    progress: bool,
    failed: Callable[[str], None] = lambda _: None,
    asked_at: datetime | None = None,
    resumes: bool = True,
) -> bool:
    """Stage, gate and, where the manifest lets the sensor do it, publish a run; return success.

    `failed` is told why it did not succeed; `asked_at` is when somebody asked for it, if not now; a stop `resumes` with what
    a person asks for, not with LIVE's own launch.

    Raises:
        RunStopped: if somebody stops the run.
    """
    from backfill_assets.installation import target_named
    from backfill_assets.staging import stopping
    from backfill_assets.staging.executor import require_computable

    record = platform.ledger.run(run_id)
    keys = select_chunks(record, ranges)
    if record.state not in _DONE_COMPUTING:
        require_computable(platform, run_id, keys, target=target_named(record.target))
    with stopping.launched(platform, run_id, asked_at=asked_at, resumes=resumes):
        return _execute(platform, instance, record, keys, progress=progress, failed=failed)


def _execute(
    platform: Platform,
    instance: DagsterInstance,
    record: RunRecord,
    keys: Sequence[str],
    *,
    progress: bool,
    failed: Callable[[str], None],
) -> bool:
    from backfill_assets.defs.changes import tell_changes
    from backfill_assets.defs.launch import announce_approval, run_chunks, run_publication
    from backfill_assets.defs.lost_runs import end_lost_runs
    from backfill_assets.defs.publish import publication_requests
    from backfill_assets.installation import target_named
    from backfill_assets.publication.publisher import publish as publish_again
    from backfill_assets.review.kept_diffs import after_publication
    from backfill_assets.staging.executor import require_computable

    run_id, target = record.run_id, target_named(record.target)
    end_lost_runs(instance)
    while True:
        success = True
        if record.state not in _DONE_COMPUTING:
            require_computable(platform, run_id, keys, target=target)
            announce_approval(instance, record)
            with _progress(platform, run_id, keys) if progress else _nothing():
                success = run_chunks(platform, instance, record, keys, failed=failed)
        if platform.ledger.run(run_id).state is RunState.PUBLISHED:
            publish_again(platform, run_id)  # nothing is published twice; what a crash left untold is told now
            tell_changes(platform, instance, target.name)
            after_publication(platform, run_id)
        wanted = [request for request in publication_requests(platform, target) if request.partition_key == run_id]
        if wanted:
            success &= run_publication(platform, instance, record, failed=failed)
        planned_anew = platform.ledger.amendments(run_id)
        record = platform.ledger.run(run_id)
        if not (wanted and planned_anew and record.state is RunState.RUNNING):
            return success
        # somebody else had changed some of its chunks: those were planned anew, which the manifest bounds
        keys = [chunk.chunk for chunk in platform.ledger.chunks(run_id) if chunk.state == "PLANNED"]


def select_chunks(record: RunRecord, ranges: Sequence[str]) -> list[str]:
    """Return the planned chunks that ranges like `2012-01..2012-06` name; all of them without a range.

    Raises:
        InputRefused: for a malformed range, or one outside the plan.
    """
    from manifests.chunks import first_day

    planned = [chunk.key for chunk in record.plan.chunks]
    if not ranges:
        return planned
    chosen: set[str] = set()
    for text in ranges:
        first, separator, last = text.partition("..")
        last = last if separator else first
        for key in (first, last):
            first_day(record.plan.chunking, key)
        found = [key for key in planned if first <= key <= last]
        if not found or first not in planned or last not in planned or last < first:
            raise InputRefused(
                Problem(
                    f"--chunks {text} is not a range of the plan",
                    f"'{record.run_id}' has {planned[0]} to {planned[-1]}",
                    "correct the range",
                )
            )
        chosen.update(found)
    return [key for key in planned if key in chosen]


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _progress(platform: Platform, run_id: str, keys: Sequence[str]) -> Iterator[None]:
    """Show a bar by chunk while the body runs; another thread looks at the ledger and at what Spark has written."""
    from backfill_assets.staging.progress import written_chunks
    from resources.ledger.facade import STAGED, ChunkState, Ledger

    wanted = set(keys)
    ledger = Ledger(platform.ledger.url)

    def look() -> tuple[int, int]:
        chunks = [chunk for chunk in ledger.chunks(run_id) if chunk.chunk in wanted]
        staged = sum(chunk.state in STAGED for chunk in chunks)
        under_way = [attempt["prefix"] for attempt in ledger.attempts(run_id) if attempt["state"] == "RUNNING"]
        computed = staged + sum(len(written_chunks(prefix)) for prefix in under_way[-1:])
        return computed, sum(chunk.state is ChunkState.PASSED for chunk in chunks)

    try:
        with bars(len(wanted), look):
            yield
    finally:
        ledger.engine.dispose()


def _report(platform: Platform, run_id: str, as_json: bool) -> None:
    from backfill_assets.cli import console
    from backfill_assets.gates.judging import CHUNK_GATE
    from backfill_assets.review import wording
    from resources.ledger import approvals, freezes, launches, stops

    record, chunks = platform.ledger.run(run_id), platform.ledger.chunks(run_id)
    verdicts = platform.ledger.verdicts(run_id)
    publications = platform.ledger.publications(run_id)
    waiting = freezes.waiting(platform.ledger.engine)
    launch = launches.waits(platform.ledger, record, chunks=chunks)
    if launch is not None:
        waiting[run_id] = str(launch)
    by_hand = record.plan.manual_publish and record.manifest.execution_mode.publishes
    if record.state is RunState.VALIDATED and by_hand and run_id not in waiting:
        waiting[run_id] = f"its manifest requires a manual publish: `backfill publish {run_id}`"
    if as_json:
        say(
            {
                "runId": run_id,
                "state": record.state,
                "why": record.state_reason,
                "target": record.target,
                "planHash": record.plan_hash,
                "chunkStates": console.chunk_counts(chunks),
                "chunks": chunks,
                "gates": [*(one for one in verdicts if not one.chunk), *wording.failed_chunks(verdicts)],
                "approvals": platform.ledger.approvals(run_id),
                "asksForOwner": [verdict.gate for verdict in approvals.asking(platform.ledger, run_id)],
                "publications": publications,
                "sinkRequests": platform.ledger.sink_attempts(run_id),
                "evidence": str(platform.evidence.path(run_id)),
                "waitsFor": waiting.get(run_id),
                "waitsForLaunchOf": None if launch is None else launch.chunks,
                "stops": stops.of_run(platform.ledger.engine, run_id),
            }
        )
        return
    pairs: list[tuple[str, object]] = [
        ("state", launches.state(record, launch)),
        ("why", launches.reason(record, launch)),
        ("target", record.target),
        ("plan", record.plan_hash),
    ]
    pairs += [("waits", waiting[run_id])] if run_id in waiting and ("why", waiting[run_id]) not in pairs else []
    pairs += [(f"{one['action']} {one['state'].lower()}", f"snapshot {one['snapshot_id']}") for one in publications]
    show(console.facts(pairs, run_id), console.grid(chunks))
    if any(chunk.error for chunk in chunks):
        show(console.failures(chunks))
    if verdicts:
        show(console.gates(verdicts, CHUNK_GATE, approvals.accepted_gates(platform.ledger, run_id)))
    if wording.failed_chunks(verdicts):
        click.echo(f"the rows that break a rule: backfill exceptions {run_id}")


def _waits(platform: Platform) -> dict[str, str]:
    """Return what each run waits for that waits: the end of a freeze, or a launch."""
    from resources.ledger import freezes, launches

    found = freezes.waiting(platform.ledger.engine)
    return found | {run_id: str(why) for run_id, why in launches.all_waiting(platform.ledger).items()}


@cli.command()
@click.argument("run_id", required=False)
@click.option("--watch", is_flag=True, help="Refresh until interrupted.")
@json_option
def status(run_id: str | None, watch: bool, as_json: bool) -> None:
    """Show all runs, or one run with its chunk grid and gates. A live run that waits for a freeze says for which."""
    from backfill_assets.cli import console
    from resources.ledger import launches

    with opened_platform() as platform:
        if run_id is not None and not watch:
            _report(platform, run_id, as_json)
            return
        if watch:
            from rich.console import Group
            from rich.live import Live

            shown = run_id

            def view() -> Any:
                if shown is None:
                    return console.run_table(platform.ledger.runs(), _waits(platform))
                record = platform.ledger.run(shown)
                launch = launches.waits(platform.ledger, record)
                why = launches.reason(record, launch)
                pairs: list[tuple[str, object]] = [("state", launches.state(record, launch)), ("why", why)]
                pairs += [("waits", launch)] if launch is not None and why != str(launch) else []
                return Group(console.facts(pairs, shown), console.grid(platform.ledger.chunks(shown)))

            with Live(view(), console=console.make_console(), refresh_per_second=2) as live:
                try:
                    while True:
                        time.sleep(POLL_SECONDS)
                        live.update(view())
                except KeyboardInterrupt:
                    return
        records, waiting = platform.ledger.runs(), _waits(platform)
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
            click.echo("no runs yet: `backfill plan MANIFEST.yaml` makes the first")


@cli.command()
@click.argument("run_id")
@publisher_options
@json_option
def publish(run_id: str, by: str | None, comment: str, break_glass: str, as_json: bool) -> None:
    """Publish the validated RUN_ID. Safe to repeat; refused if somebody else wrote into its scope.

    Who publishes is on record; where the policy names publishers, it is one of them. No gate is ever skipped.
    """
    from backfill_assets import decisions

    _decided(decisions.publish, run_id, "published", by, comment, break_glass, as_json)


@cli.command()
@click.argument("run_id")
@publisher_options
@json_option
def rollback(run_id: str, by: str | None, comment: str, break_glass: str, as_json: bool) -> None:
    """Put back what the published RUN_ID replaced, as a new snapshot. Refused if a later run holds part of its scope."""
    from backfill_assets import decisions

    _decided(decisions.rollback, run_id, "rolled back", by, comment, break_glass, as_json)


@cli.command()
@click.argument("run_id")
@publisher_options
@json_option
def reinstate(run_id: str, by: str | None, comment: str, break_glass: str, as_json: bool) -> None:
    """Undo the rollback of RUN_ID, as a new snapshot. Refused if somebody has written into its scope since."""
    from backfill_assets import decisions

    _decided(decisions.reinstate, run_id, "reinstated", by, comment, break_glass, as_json)


@cli.command()
@click.argument("run_id")
@publisher_options
@json_option
def accept(run_id: str, by: str | None, comment: str, break_glass: str, as_json: bool) -> None:
    """Make the version that RUN_ID published under its name (VERSIONED, acceptance LATER) what main shows."""
    from backfill_assets import decisions

    _decided(decisions.accept, run_id, "accepted", by, comment, break_glass, as_json)


def _decided(
    act: Callable[..., Any], run_id: str, verb: str, by: str | None, comment: str, break_glass: str, as_json: bool
) -> None:
    """Decide about a publication in somebody's name, see to its diff and report, and say what was done."""
    from backfill_assets.defs.decision_jobs import announcing
    from backfill_assets.defs.launch import tell_dagster
    from backfill_assets.review.kept_diffs import after_publication

    broken: list[dict[str, Any]] = []

    def say_so() -> None:
        for one in broken if not as_json else ():
            loud(run_id, one["decided_by"], one["break_glass"])

    with opened_platform() as platform, ExitStack() as stack:
        if break_glass:
            instance = stack.enter_context(opened_instance(platform.settings))
            stack.callback(say_so)
            broken = stack.enter_context(announcing(platform, instance, run_id))
        done = act(platform, run_id, by=by, comment=comment, break_glass=break_glass)
        not_told = tell_dagster(platform, platform.ledger.run(run_id).target)
        after_publication(platform, run_id)
    _tell(done, verb, as_json)
    if not_told:
        click.echo(f"{not_told}. Readers see it all the same; `backfill doctor --repair` tells it later.", err=True)


def _tell(done: Any, verb: str, as_json: bool) -> None:
    from backfill_assets.cli.console import published

    if as_json:
        say(done)
    else:
        show(published(done, verb))


@cli.command()
@click.argument("run_id")
@click.option(
    "--chunks", "ranges", multiple=True, metavar="FROM[..TO]", help="Only these chunks; may be repeated. Default: all."
)
@click.option("--keep", is_flag=True, help="Leave what was computed in its scratch folder, and say where that is.")
@json_option
def reproduce(run_id: str, ranges: tuple[str, ...], keep: bool, as_json: bool) -> None:
    """Compute the recorded RUN_ID again from its plan, into scratch, and compare the digest of every chunk.

    Read are the snapshots that the plan pinned; "now" is the plan's run clock. Nothing is published, and the ledger and
    the tables stay as they are. Whatever state the run is in: what counts is that its chunks were staged and gated.

    \b
    Equal digests prove that plan, code and pinned data still give the recorded rows. Otherwise the first chunk
    and row that differ are named, and the cause:
      code                this code is not the plan's: the commit to check out is named
      configuration       the Spark settings are not the plan's
      reference data      files of a pinned reference snapshot were changed in place
      source data         files of the pinned source snapshot were changed in place
      retired snapshot    a pinned snapshot has expired, or files of it are gone: nothing is computed
      not deterministic   none of these: the transform itself gives other rows for the same plan

    Other code or configuration does not stop it: equal digests are then a proof all the same, and say so.

    \b
    Exit codes: 0 equal, 1 different or not computable, 2 refused (unknown run, chunks without a recorded digest).

    \b
      backfill reproduce restate-2012
      backfill reproduce restate-2012 --chunks 2012-03..2012-05
      backfill reproduce restate-2012 --json > proof.json
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph
    from backfill_assets.audit import reproduce as again
    from backfill_assets.staging.progress import written_chunks

    computed: set[str] = set()
    compared: set[str] = set()
    folders: list[str] = []

    def tell(event: str, chunks: Sequence[str], folder: str) -> None:
        if event == "computing":
            folders.append(folder)
            return
        computed.update(chunks)
        if event == "compared":
            compared.update(chunks)

    def look() -> tuple[int, int] | None:
        return (len(computed) + len(written_chunks(folders[-1])), len(compared)) if folders else None

    with opened_platform() as platform:
        record = platform.ledger.run(run_id)
        keys = select_chunks(record, ranges)
        with _nothing() if as_json else bars(len(keys), look):
            done = again.reproduce(platform, run_id, keys, keep=keep, tell=tell)
    if as_json:
        say(
            {
                "runId": run_id,
                "target": record.target,
                "state": record.state,
                "planHash": record.plan_hash,
                "outcome": done.outcome,
                "found": done.summary,
                "causes": done.causes,
                "whatToDo": done.what_to_do,
                "conditions": done.conditions,
                "chunks": done.chunks,
                "firstDifference": done.difference,
                "scratch": done.scratch,
            }
        )
    else:
        from backfill_assets.cli.console import reproduction

        show(reproduction(done))
    if done.outcome is not again.Outcome.EQUAL:
        sys.exit(EXIT_FAILED)


@cli.command()
@click.option("--repair", is_flag=True, help="Repair what is provably safe; without it nothing is changed.")
@json_option
def doctor(repair: bool, as_json: bool) -> None:
    """Hold ledger, tables, staged files and evidence against each other, and say what disagrees.

    Exit code 0 if nothing does (after the repairs, if asked for), else 1.
    """
    from backfill_assets.cli import console
    from backfill_assets.defs.untold import dagster_disagreements
    from backfill_assets.operations.doctor import examine, mend

    with opened_platform() as platform:
        more = partial(dagster_disagreements, platform)
        repaired, left = mend(platform, more) if repair else ([], [*examine(platform), *more()])
    if as_json:
        say(
            {
                "repaired": [one.found.shown() | {"done": one.done} for one in repaired],
                "findings": [one.shown() for one in left],
            }
        )
    else:
        show(console.disagreements(left, repaired))
    if left:
        sys.exit(EXIT_FAILED)


def _agreed(as_json: bool) -> bool:
    """Ask whether what was shown may be removed; refuse where nobody can be asked."""
    if as_json or not sys.stdin.isatty():
        raise InputRefused(Problem("nobody can be asked here", "a removal is agreed to first", "add --yes to --delete"))
    return click.confirm("Remove it for good?")


@cli.command()
@click.option("--dry-run", is_flag=True, help="Only show what and how much: the default, said aloud.")
@click.option("--delete", is_flag=True, help="Remove it, after asking.")
@click.option("--yes", is_flag=True, help="With --delete: do not ask.")
@click.option(
    "--today",
    type=click.DateTime(["%Y-%m-%d"]),
    help="The date as another clock says it: only where this machine's clock is not believed by itself.",
)
@json_option
def gc(dry_run: bool, delete: bool, yes: bool, today: datetime | None, as_json: bool) -> None:
    """Remove staged files of dead runs and old snapshots that no run needs, after showing what and how much.

    Settings keep_superseded_days, keep_dead_runs_days and keep_snapshots_days say for how long what is kept. Never a file
    that any snapshot references, nothing that an accepted run needs, no evidence. Safe to kill and to repeat.
    What is too old is told by this machine's clock: it is held against the file system's, the ledger's and the catalog's.
    """
    from backfill_assets.cli import console
    from backfill_assets.operations import clock
    from backfill_assets.operations.garbage import collect, find, tables
    from resources.ledger.facade import now, operator

    if dry_run and delete:
        raise InputRefused(Problem("--dry-run and --delete", "one looks, the other removes", "give one of them"))
    at = now()
    confirmed = None if today is None else today.date()
    with opened_platform() as platform:
        if delete:
            recorded = clock.recorded_instants(platform, tables())
            clock.require_believable(at, clock.present_instants(platform), recorded, confirmed)
        found = find(platform, at=at)
        if not as_json:
            show(console.garbage(found))
        if not delete:
            if as_json:
                say({"dryRun": True, "bytes": sum(one.bytes for one in found), "found": found})
            return
        if not (yes or _agreed(as_json)):
            click.echo("nothing was removed")
            return
        done = collect(platform, found, by=operator(), at=at, confirmed=confirmed)
    if as_json:
        say({"dryRun": False, "found": found, "collected": done})
        return
    for one in done:
        click.echo(
            f"{one.table}: removed {one.files:,} files ({one.bytes / 1e6:,.3f} MB), {len(one.snapshots)} snapshots, "
            f"{len(one.refs)} refs; left {len(one.left)} of the listed files alone"
        )
    if not done:
        click.echo("nothing to remove")


@cli.command()
@click.argument("target", required=False)
@click.option("--once", is_flag=True, help="One tick, then end.")
@click.option("--every", type=click.IntRange(1, 86_400), default=60, show_default=True, help="Seconds between ticks.")
@json_option
def live(target: str | None, once: bool, every: int, as_json: bool) -> None:
    """Make and run the next live run of TARGET, or of every target with a live policy, until interrupted.

    Does what the live schedule and sensor in Dagster do: plan from the watermark, approve by policy, stage, gate, publish.
    Where nothing has changed since the last tick, nothing happens.
    """
    from backfill_assets.installation import declared_targets, target_named
    from backfill_assets.live import policy_of

    declared = [one for one in declared_targets() if one.live is not None]
    targets = declared if target is None else [target_named(target)]
    for one in targets:
        policy_of(one)
    with opened_platform() as platform, opened_instance(platform.settings) as instance:
        while True:
            worst = max((_live_tick(platform, instance, one, as_json) for one in targets), default=0)
            if once:
                sys.exit(worst)
            time.sleep(every)


def _live_tick(platform: Platform, instance: DagsterInstance, target: TargetTable, as_json: bool) -> int:
    """Make one tick of a target and run what it made; print what came of it and return the exit code of that."""
    from backfill_assets.live import LAUNCHABLE, tick
    from resources.ledger import freezes, watermarks

    failures: list[str] = []
    try:
        done = tick(platform, target)
        record, success = done.record, True
        if record is not None and record.state in LAUNCHABLE | {RunState.VALIDATED}:
            success = execute(
                platform, instance, record.run_id, (), progress=False, failed=failures.append, resumes=False
            )
    except RunStopped as error:
        _refuse(error)
        if error.signalled:
            sys.exit(EXIT_FAILED)
        return EXIT_FAILED
    except Refused as error:  # the other targets, and the next tick, are not to blame
        _refuse(error)
        return EXIT_REFUSED
    for why in failures:
        click.echo(why, err=True)
    state = None if record is None else platform.ledger.run(record.run_id).state
    waits_for = None if record is None else freezes.waiting(platform.ledger.engine).get(record.run_id)
    mark = watermarks.current(platform.ledger.engine, target.name)
    if as_json:
        say(
            {
                "target": target.name,
                "runId": None if record is None else record.run_id,
                "state": state,
                "why": done.why,
                "waitsFor": waits_for,
                "completeUntil": None if mark is None else mark.complete_until,
                "sourceSnapshot": None if mark is None else mark.source_snapshot_id,
            }
        )
    else:
        click.echo(f"{target.name}: {done.why}" + ("" if state is None else f" -> {state}"))
        if waits_for is not None:
            click.echo(f"  waits: {waits_for}")
    return 0 if success and state is not RunState.FAILED else EXIT_FAILED


@cli.command()
@json_option
def config(as_json: bool) -> None:
    """Print the resolved settings, without secrets.

    `catalog_name` and `catalog` are what `pyiceberg.catalog.load_catalog(name, **properties)` takes.
    """
    from backfill_assets.cli.console import facts
    from resources.settings import load_settings

    settings = load_settings()
    shown = settings.shown()
    if not settings.home.is_dir():
        click.echo(f"there is no installation at {settings.home}: set BACKFILL_HOME, or run `backfill init`", err=True)
    if as_json:
        say(shown)
    else:
        show(
            facts(
                ((name, json.dumps(value) if isinstance(value, dict) else value) for name, value in shown.items()),
                "settings",
            )
        )


@cli.command()
@click.option("--events", type=click.Path(path_type=Path), help="A log to use instead of generated cases.")
@click.option(
    "--cases", type=click.IntRange(100, 1_000_000), default=20_000, show_default=True, help="Cases to generate."
)
@click.option("--seed", type=int, default=1, show_default=True)
def demo(events: Path | None, cases: int, seed: int) -> None:
    """Show a whole restatement: history with a bug, the correction, its gates, what changed, and a refusal."""
    from backfill_assets.cli.demo import show

    show(events, cases, seed)


def main() -> None:
    """Run the command; a refusal is printed with its reasons and exits with 2, an unforeseen error in one line and with 1."""
    try:
        unexpected.require_text(sys.argv[1:])
        cli(standalone_mode=False, obj=WHOLE_PROCESS)
        sys.stdout.flush()
    except Refused as error:
        _refuse(error)
        sys.exit(EXIT_REFUSED)
    except click.exceptions.Abort:
        click.echo("interrupted; the same command again goes on from here", err=True)
        sys.exit(EXIT_FAILED)
    except click.ClickException as error:
        (unexpected.all_missing(error) if isinstance(error, click.MissingParameter) else error).show()
        sys.exit(EXIT_REFUSED)
    except BaseException as error:
        if not unexpected.is_unexpected(error):
            raise
        if (full := unexpected.full_disk(error)) is not None:
            _refuse(full)
            sys.exit(EXIT_REFUSED)
        unexpected.tell(error)
        sys.exit(EXIT_FAILED)


def _refuse(error: Refused) -> None:
    from backfill_assets.cli.console import make_console, refusal

    make_console(stderr=True).print(refusal(error))


if __name__ == "__main__":
    main()
