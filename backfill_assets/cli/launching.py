"""The commands that compute a run and take it as far as its manifest allows: `run`, `resume`.

Put here which chunks are launched, and what a person sees of it. A launch itself is `defs.launch`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import click

from backfill_assets.cli.bars import bars
from backfill_assets.cli.base import (
    EXIT_FAILED,
    json_option,
    opened_instance,
    opened_platform,
)
from manifests.errors import (
    InputRefused,
    Problem,
    RunStopped,
)
from manifests.lifecycle import ENDED, WAS_PUBLISHED, ChunkState, RunState
from resources.processes import age, has_ended

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from backfill_assets.installation import Platform
    from resources.ledger.facade import RunRecord
from backfill_assets.cli.base import WHOLE_PROCESS, refuse, tell
from backfill_assets.cli.decisions import by_option
from backfill_assets.cli.status import show_run

_DONE_COMPUTING = frozenset({RunState.VALIDATED, RunState.PUBLISHED, RunState.SUPERSEDED})


@click.command()
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

    Exit code 0 also where somebody has to decide before it goes on: --json says in which state the run is.
    """
    _run(run_id, ranges, as_json)


@click.command()
@click.argument("run_id")
@by_option
@click.option("--reason", "--comment", "comment", default="", help="Why; of a run that is paused it is asked for.")
@click.option("--no-launch", is_flag=True, help="Only end the pause: somebody else launches the run.")
@json_option
def resume(run_id: str, by: str | None, comment: str, no_launch: bool, as_json: bool) -> None:
    """Launch RUN_ID again, which somebody has stopped (`backfill stop`, Ctrl-C, Terminate) or paused: what is staged is kept.

    A pause ends by this decision, which is on record with its reason. A stop ends with any launch, `backfill run RUN_ID` as well.
    Safe to repeat: of a run that nothing holds it says so, records nothing, and launches what is left, if anything is.
    """
    _run(run_id, (), as_json, first=partial(_go_on, run_id, by, comment, no_launch=no_launch))
    if no_launch and not as_json:
        tell(f"  `backfill run {run_id}` launches it, or its chunks in Dagster")


def _go_on(run_id: str, by: str | None, comment: str, platform: Platform, *, no_launch: bool) -> bool:
    """Decide that a paused run goes on; return whether it is launched here.

    Raises:
        TransitionRefused: if nothing is to be launched, and it is not paused; or if it may not go on.
    """
    from backfill_assets.operations import pausing

    if no_launch or platform.ledger.pauses.held(run_id) is not None:
        for one in pausing.resume(platform, run_id, by=by, reason=comment):
            tell(f"{run_id}: resumed by {one.resumed_by}; it was {one}", err=True)
    elif said := _not_resumed(platform, run_id, by, comment):
        tell(f"{run_id}: {said}", err=True)
    return not no_launch


def _not_resumed(platform: Platform, run_id: str, by: str | None, comment: str) -> str:
    """Say what a launch of a run that is not paused ends, if that is not what a person who resumes it expects; and what is on no record."""
    state, is_stopped = platform.ledger.run(run_id).state, platform.ledger.stops.held(run_id) is not None
    if state in ENDED or state is RunState.ROLLED_BACK:
        return ""  # the launch is refused, and why
    given = " and ".join(name for name, text in (("--by", by), ("--reason", comment)) if text)
    if state in WAS_PUBLISHED:
        said = [f"there is nothing to resume: it is {state}"]
    elif is_stopped:
        said = ["a launch ends its stop, and takes no decision"] if given else []
    elif any(one.is_running and has_ended(one) for one in platform.ledger.attempts(run_id)):
        ended = "nobody has stopped or paused it: the process that computed it has ended without a word"
        said = [f"{ended}. It is launched again, as `backfill run` does, and what is staged is kept"]
    else:
        said = ["there is nothing to resume: no stop and no pause holds it. It is launched, as `backfill run` does"]
    if given:
        said.append(
            f"what {given} {'say' if ' and ' in given else 'says'} is on no record: only of a pause it is asked for"
        )
    return "; ".join(said)


def _run(
    run_id: str, ranges: Sequence[str], as_json: bool, *, first: Callable[[Platform], bool] = lambda _: True
) -> None:
    """Launch a run, and show what came of it; why it did not succeed goes to stderr. `first` is asked whether to."""
    from backfill_assets.staging.watched_launch import is_being_published
    from resources.ledger import stops

    failures: list[str] = []
    stopped: RunStopped | None = None
    is_whole = click.get_current_context().find_root().obj is WHOLE_PROCESS
    with opened_platform() as platform, opened_instance(platform.settings) as instance:
        # a stop that comes while Python starts is a stop of this launch; it is on record by the ledger's clock
        asked_at = platform.ledger.now() - begun if is_whole and (begun := age()) is not None else None
        if not first(platform):
            show_run(platform, run_id, as_json)
            return
        try:
            success = execute(
                platform, instance, run_id, ranges, progress=not as_json, failed=failures.append, asked_at=asked_at
            )
        except RunStopped as error:
            stopped, success = error, False
        late = None if stopped is not None else platform.ledger.stops.held(run_id)
        goes_on = late is not None and late.note != "" and is_being_published(platform, run_id)
        is_published = platform.ledger.run(run_id).state in WAS_PUBLISHED
        if late is not None and not (is_published or goes_on):
            stopped, success = stops.refusal(late), False
        show_run(platform, run_id, as_json)
        for why in failures:
            tell(why, err=True)
        if stopped is not None:
            refuse(stopped)
        elif late is not None:
            said = "its publication had begun, and was let finish" if is_published else late.note
            tell(f"{run_id}: {late}: {said}", err=True)
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
    from backfill_assets.staging import stopping
    from backfill_assets.staging.executor import require_computable

    record = platform.ledger.run(run_id)
    keys = select_chunks(record, ranges)
    if record.state not in _DONE_COMPUTING:
        require_computable(platform, run_id, keys, target=platform.products.target(record.target))
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
    from backfill_assets.execution import execute_publication
    from backfill_assets.review.kept_diffs import after_publication, for_decision
    from backfill_assets.staging.executor import require_computable

    run_id, target = record.run_id, platform.products.target(record.target)
    end_lost_runs(instance)
    while True:
        success = True
        if record.state not in _DONE_COMPUTING:
            announce_approval(platform, instance, record)
            with _progress(platform, run_id, keys) if progress else nullcontext():
                success = run_chunks(platform, instance, record, keys, failed=failed)
        else:
            for_decision(platform, run_id)  # a launch that ended between the verdict and the diff has left none
        if platform.ledger.run(run_id).state is RunState.PUBLISHED:
            execute_publication(platform, run_id)  # nothing is published twice; what a crash left untold is told now
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
        keys = [chunk.chunk for chunk in platform.ledger.chunks(run_id) if chunk.state is ChunkState.PLANNED]
        require_computable(platform, run_id, keys, target=target)


def select_chunks(record: RunRecord, ranges: Sequence[str]) -> list[str]:
    """Return the planned chunks that ranges like `2012-01..2012-06` name; all of them without a range.

    Of a table that is divided beside time, `2012-01..2012-06` are those of every value or bucket, `2012-01~CA..2012-06~CA` those of
    one, and `CA` is every chunk of it.

    Raises:
        InputRefused: for a malformed range, or one outside the plan.
    """
    from manifests.chunks import PART, first_day, part_of, time_of

    planned = [chunk.key for chunk in record.plan.chunks]
    if not ranges:
        return planned
    chosen: set[str] = set()
    times, parts = {time_of(key) for key in planned}, {chunk.part for chunk in record.plan.chunks}
    for text in ranges:
        if text.removeprefix(PART) in parts:
            _require_one_meaning(text, parts & times)
            chosen.update(key for key in planned if part_of(key) == text.removeprefix(PART))
            continue
        first, separator, last = text.partition("..")
        last = last if separator else first
        for key in (first, last):
            first_day(record.plan.chunking, key)
        part, begins, ends = part_of(first), time_of(first), time_of(last)
        of_plan = {begins, ends} <= times and part == part_of(last) and (part in parts or not part) and begins <= ends
        if not of_plan:
            if times == {""}:
                of_plan_there = f"'{record.run_id}' has {', '.join(sorted(parts))}"
                raise InputRefused(
                    Problem(f"--chunks {text} is no part of the plan", of_plan_there, "name each part by itself")
                )
            of_each = f", in each of {', '.join(sorted(parts))}" if parts != {""} else ""
            raise InputRefused(
                Problem(
                    f"--chunks {text} is not a range of the plan",
                    f"'{record.run_id}' has {min(times)} to {max(times)}{of_each}",
                    "correct the range"
                    + ("; both of its ends name the same value or bucket, or none" if of_each else ""),
                )
            )
        chosen.update(key for key in planned if begins <= time_of(key) <= ends and part in {"", part_of(key)})
    return [key for key in planned if key in chosen]


def _require_one_meaning(text: str, both: Collection[str]) -> None:
    """Refuse a text that is a value of the plan as well as a time of it.

    Raises:
        InputRefused: with how each is written.
    """
    if text in both:
        raise InputRefused(
            Problem(
                f"--chunks {text} is a value of the plan, and a time of it",
                "what is launched is named so that it means one thing",
                f"write ~{text} for the value in each time, or {text}..{text} for the time in each value",
            )
        )


@contextmanager
def _progress(platform: Platform, run_id: str, keys: Sequence[str]) -> Iterator[None]:
    """Show a bar by chunk while the body runs; another thread looks at the ledger and at what Spark has written."""
    from backfill_assets.staging.progress import written_chunks
    from resources.ledger.facade import STAGED, Ledger, chunks_of

    wanted = set(keys)
    ledger = Ledger(platform.ledger.url)
    most: dict[str, int] = {}

    def look() -> tuple[int, int]:
        chunks = [chunk for chunk in ledger.chunks(run_id) if chunk.chunk in wanted]
        staged = sum(chunk.state in STAGED for chunk in chunks)
        running = [attempt for attempt in ledger.attempts(run_id) if attempt.is_running]
        # another launch of the run may compute others of its chunks
        under_way = [attempt.prefix for attempt in running if not wanted.isdisjoint(chunks_of(attempt))]
        # between Spark's commit of an attempt and the ledger's row of it there is nothing to see
        for prefix in under_way[-1:]:
            most[prefix] = max(most.get(prefix, 0), len(written_chunks(prefix)))
        computed = staged + sum(most[prefix] for prefix in under_way[-1:])
        return computed, sum(chunk.state is ChunkState.PASSED for chunk in chunks)

    try:
        with bars(len(wanted), look):
            yield
    finally:
        ledger.close()
