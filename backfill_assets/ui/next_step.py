"""What comes next for a run, in the words of its page.

Put here what a state, a launch or a stop asks of people. What has happened is `run_page`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from urllib.parse import quote

from backfill_assets.defs.addresses import run_path
from backfill_assets.defs.starting import Starting, publication_sensor
from backfill_assets.publication.requirements import ATTEMPTS, tried, waits_for_commit
from backfill_assets.ui.afterwards import afterwards
from backfill_assets.ui.html_parts import time_html
from manifests.chunks import in_words
from manifests.dry_run_samples import dry_run_id
from manifests.errors import RunStopped
from manifests.lifecycle import RunState
from resources.ledger.facade import RAISED, ChunkRecord, Ledger, RunRecord, Verdict
from resources.ledger.instants import CLOCK_TOLERANCE
from resources.ledger.stops import Stop, refuse_earlier

_NEXT = {
    RunState.DRAFT: "plan it: <code>backfill plan</code>",
    RunState.PLANNED: "somebody other than the requester approves or rejects it",
    RunState.APPROVED: "launch its chunks on the asset in Dagster, or <code>backfill run</code>",
    RunState.RUNNING: "its chunks are being computed and gated",
    RunState.STAGED: "its run-level gates judge it, in the launch that staged it; if that has ended, launch it again: nothing "
    "is computed again, and the gates judge",
}


def is_under_way(
    ledger: Ledger,
    record: RunRecord,
    starting: Sequence[Starting],
    switched_off: Callable[[str], bool] = lambda _: False,
) -> bool:
    """Return whether a run's page says something else in a moment, without a person's doing; `switched_off` as of `next_step`."""
    is_busy = record.state is RunState.RUNNING
    if record.state is RunState.VALIDATED and not starting:
        by_sensor = record.manifest.execution_mode.publishes and not record.plan.manual_publish
        is_busy = (
            by_sensor
            and not switched_off(publication_sensor(record.target))
            and tried(ledger, record.run_id) < ATTEMPTS
        )
    return bool(starting) or (is_busy and ledger.launches.waits(record) is None)


def launched_html(one: Starting) -> str:
    """Say of what Dagster was asked to do that it was, from its first moment on."""
    what = "Its publication was asked for" if one.publishes else "Launched"
    link = f"<a href='{escape(one.address)}'>in Dagster</a>"
    by = f" by {escape(one.by)}" if one.by else ""
    return f"<p><b>{what}</b> {time_html(one.at)}{by} {link}: {escape(one.doing)}.</p>"


def next_step(
    ledger: Ledger,
    record: RunRecord,
    chunks: Sequence[ChunkRecord],
    verdicts: Sequence[Verdict],
    starting: Sequence[Starting],
    switched_off: Callable[[str], bool] = lambda _: False,
) -> str:
    """Say what comes next: a launch where one is waited for and none is on its way, else what the state says.

    `switched_off` says of a sensor that somebody has stopped it in Dagster.
    """
    waiting = ledger.launches.waits(record, chunks=chunks)
    stop = None if waiting is None else waiting.stop
    stopped = "" if stop is None else _stopped(stop)
    if stop is not None and stop.is_pause:
        return stopped + _resumed_by_whom(record)
    launched = [one for one in starting if not one.publishes]
    goes_on = [one for one in launched if stop is None or _ends(stop, one)]
    if goes_on and (waiting is not None or record.state in {RunState.APPROVED, RunState.FAILED}):
        ends = "" if stop is None else " was asked for after the stop, which it ends: it"
        return f"{stopped}<p><b>Next:</b> the launch in Dagster{ends} computes its chunks and has them gated.</p>"
    if waiting is None:
        what = _unlaunched(ledger, record, verdicts, starting, switched_off)
        return f"<p><b>Next:</b> {what}.</p>" if what else ""
    what = f"its chunks {in_words(waiting.chunks)}" if waiting.chunks else "its chunks"
    command = f"<code>backfill {'run' if stop is None else 'resume'} {escape(record.run_id)}</code>"
    if launched:
        ended = "the launch in Dagster was, as far as is known, not asked for after the stop, and ends with it"
        return f"{stopped}<p><b>Next:</b> {ended}: launch {what} in Dagster again, or {command}.</p>"
    return f"{stopped}<p><b>Next:</b> it waits for a launch: launch {what} in Dagster, or {command}.</p>"


def _ends(stop: Stop, launch: Starting) -> bool:
    """Whether a stop ends with a launch, and not the launch with the stop: as it is decided once the launch begins."""
    if not launch.decided:
        return False
    try:
        refuse_earlier(stop, launch.at, CLOCK_TOLERANCE, launch.knows)
    except RunStopped:
        return False
    return True


def _unlaunched(
    ledger: Ledger,
    record: RunRecord,
    verdicts: Sequence[Verdict],
    starting: Sequence[Starting],
    switched_off: Callable[[str], bool],
) -> str:
    """Say what comes next for a run that waits for no launch."""
    what = _NEXT.get(record.state, "") + _dry_run_first(ledger, record) + afterwards(ledger, record)
    if (paced := ledger.admissions.waiting(record.run_id).get(record.run_id)) is not None:
        what = f"its next batch begins when its limits let it: {escape(str(paced))}"
    elif record.state is RunState.VALIDATED:
        what = _when_validated(ledger, record, starting, switched_off)
    elif record.state is RunState.STAGED and (asking := ledger.asking(record.run_id)):
        what = _when_asking(record, [escape(one.gate) for one in asking])
    elif record.state is RunState.FAILED and any(one.details.get(RAISED) for one in verdicts if not one.chunk):
        again = f"<code>backfill run {escape(record.run_id)}</code>"
        what = f"a gate could not judge; if the cause was outside it, launch again ({again}): nothing is computed again, and "
        what += "the gates judge. Else correct the gate: the corrected code is another one, and the change a new run"
    elif record.state is RunState.FAILED and all(one.passed for one in verdicts):
        again = f"<code>backfill run {escape(record.run_id)}</code>"
        what = f"if the cause was outside the code and its input, launch it again ({again}): what is staged is not computed "
        what += "again. Else correct them: the change is then a new run with a manifest of its own"
    elif record.state is RunState.FAILED:
        rows, end = (f"<code>backfill {one} {escape(record.run_id)}</code>" for one in ("exceptions", "reject"))
        what = f"see the gates below{f' and the rows that they found ({rows})' if _have_rows(verdicts) else ''}. "
        what += "What is computed stays; the corrected change is a "
        what += f"new run with a manifest of its own, and {end} ends this one"
    return what


def _stopped(stop: Stop) -> str:
    """Say who has stopped or paused a run, when and why."""
    return f"<p class=why><b>{stop.what.capitalize()}</b> {escape(str(stop).removeprefix(f'{stop.what} '))}.</p>"


def _resumed_by_whom(record: RunRecord) -> str:
    """Say how a paused run goes on: no launch ends a pause."""
    command = f"<code>backfill resume {escape(record.run_id)} --by NAME --reason TEXT</code>"
    return f"<p><b>Next:</b> somebody resumes it, and says why: {command}, or the job resume_run in Dagster.</p>"


def _have_rows(verdicts: Sequence[Verdict]) -> bool:
    """Whether `backfill exceptions` has rows of a gate that has failed: those of chunks are read again, others are kept."""
    return any(not one.passed and (one.chunk or "exceptions" in one.details) for one in verdicts)


def _dry_run_first(ledger: Ledger, record: RunRecord) -> str:
    """Say that a run is approved after a dry run only, and of the one that was made of its plan where it stands."""
    if record.state is not RunState.PLANNED or record.plan.dry_run is None:
        return ""
    own = ledger.find(dry_run_id(record.run_id, record.plan_hash))
    if own is None:
        return f", after a dry run: <code>backfill plan --dry-run-of {escape(record.run_id)}</code> makes one"
    return f", after a dry run: <a href='{run_path(own.run_id)}'>{escape(own.run_id)}</a> is {escape(own.state)}"


def _when_asking(record: RunRecord, gates: Sequence[str]) -> str:
    """Say how an owner takes what gates have found, or declines it."""
    run_id = escape(record.run_id)
    accept = " and ".join(
        f"<code>backfill accept-change {run_id} --gate {gate} --by NAME --reason TEXT</code>" for gate in gates
    )
    what = f"an owner of the table accepts what {' and '.join(gates)} found: {accept}, or the job accept_change in Dagster. "
    return f"{what}To decline, cancel it: <code>backfill cancel {run_id} --by NAME</code>"


def _when_validated(
    ledger: Ledger, record: RunRecord, starting: Sequence[Starting], switched_off: Callable[[str], bool]
) -> str:
    """Say what becomes of a run that has passed its gates."""
    if not record.manifest.execution_mode.publishes:
        return f"nothing: its mode is {record.mode}, and it is never published; what it has found is below"
    if any(one.publishes for one in starting):
        held = "a freeze, a stop, a limit or another change of its days"
        return f"its publication, which Dagster was asked for, shows it to readers when its turn comes, unless {held} is in the way"
    by_hand = f"<code>backfill publish {escape(record.run_id)}</code>"
    if tried(ledger, record.run_id) >= ATTEMPTS:
        return f"its publication was asked for {ATTEMPTS} times and failed: see the runs of Dagster, and then {by_hand}"
    by_person = f"{by_hand}, or the job publish_run in Dagster"
    sensor = publication_sensor(record.target)
    is_off = not record.plan.manual_publish and switched_off(sensor)
    if why := waits_for_commit(ledger, record):
        return f"{escape(why)}; {by_hand if record.plan.manual_publish or is_off else 'the sensor'} publishes it then"
    if record.plan.manual_publish:
        return f"somebody publishes it: {by_person}"
    if is_off:
        link = f"<a href='/locations/backfill_assets/sensors/{quote(sensor)}'>{escape(sensor)}</a>"
        return f"somebody publishes it ({by_person}), or starts its sensor again: {link} is stopped in Dagster, and publishes nothing. This page shows what has come of it once it is loaded again"
    return "the sensor publishes it within seconds, unless a freeze, a stop or another change of its days holds it"
