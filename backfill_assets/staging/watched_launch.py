"""One launch of a run in this process, and the thread that watches for its stops.

Put here how a process finds that its run was stopped, and what it does then: Spark's jobs are cancelled, and the work
ends with `RunStopped`. What is a launch, and what is a part of one, is said by those who wrap their work in `stopping`.

A signal does not raise where it arrives: an exception in the middle of a call to the JVM leaves its answer in the pipe for
the next call. A thread notes the signal (also while another handler is in force: it reads what the kernel was told, by
`signal.set_wakeup_fd`), puts the stop on record and cancels Spark's jobs, so that the call ends by itself. What Spark
cannot end (a loop in Python, the analysis of a plan) is interrupted after a moment.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from backfill_assets.installation import Platform
from manifests.errors import Problem, Refused, RunStopped
from manifests.lifecycle import ENDED, WAS_PUBLISHED
from manifests.model import Mode
from resources import actors, logs
from resources.actors import Channel
from resources.ledger import stops
from resources.ledger.stops import Stop

if TYPE_CHECKING:
    from dagster import DagsterInstance

_log = logging.getLogger(__name__)
LOOK_SECONDS = 1.0
"""How often a process asks the ledger, and Dagster, whether its run was stopped."""
_ASK_SECONDS = 10.0
"""After how long at most a process asks again how much time its run has left."""
_CANCEL_SECONDS = 0.25
_PATIENCE_SECONDS = 0.5
"""How long work outside the JVM may go on after a stop, before it is interrupted."""
_JVM_SECONDS = 2.0
"""How long a call to the JVM may take to answer after its jobs were cancelled.

With the time until a stop is seen and that until a process has ended: less than the five seconds that are promised.
"""
_TRANSACTIONS = ("sqlalchemy.", "resources.ledger.")
"""Modules that an exception from outside could leave with a transaction that nobody ends."""
_NO_TRANSACTION = ("resources.ledger.telling",)
"""Among them, where a process only waits for its turn."""
_ENDING = (signal.SIGINT, signal.SIGTERM)
_TOLD_TO_END = "its process was told to end, as all are whose server or daemon in Dagster ends"
_CANCELLED = frozenset({"CANCELING", "CANCELED"})


class Interrupted(KeyboardInterrupt):
    """Raised in the main thread, wherever it is, where it would not end by itself."""


def _is_a_persons() -> bool:
    """Whether a person runs this process; so it is taken where a damaged policy keeps us from knowing who."""
    try:
        return actors.current().channel in {Channel.CLI, Channel.API}
    except Refused:
        return True


class Launch:
    """One launch of a run in this process, from its beginning to its end: what it knows of stops.

    `resumed` says that a stop ended with it, `signalled` that this process was told to end, `ended` that nothing but this
    process was: nobody has stopped the run.
    """

    def __init__(self, platform: Platform, run_id: str, known: int, by: str, *, resumed: bool = False) -> None:
        self.run_id, self.resumed = run_id, resumed
        self.stop: Stop | None = None
        self.signalled = self.ended = False
        self._platform, self._known = platform, known
        # who acts is known to the thread that begins, not to the one that watches; who signals a process of Dagster, to none
        self._by, self._why = (by, "") if _is_a_persons() else (actors.NOBODY_KNOWN, _TOLD_TO_END)
        self._began = platform.ledger.now()
        self._dagster: list[tuple[DagsterInstance, str, Callable[[], datetime | None]]] = []
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._shields = self._signals = 0
        self._work = -1  # the whole launch counts as one, and is no work that may be ended anywhere
        self._noticed: float | None = None
        self._deadline: tuple[float, Callable[[], float], Callable[[], Stop]] | None = None
        self._nudging = False
        self._read = self._write = -1
        self._heard_before: int | None = None

    # --- what the work asks ---------------------------------------------------------------------------------------

    def require_going_on(self) -> None:
        """End the work here if its run was stopped or is paused.

        Raises:
            RunStopped: saying by whom and when.
        """
        self._drain(0)
        if self.stop is not None:
            raise self._refusal(self.stop)
        self._refuse_paused()

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Let whatever the body raises because of a stop be the stop, and nothing else.

        Raises:
            RunStopped: if the run was stopped; also at the end of the body, unless it is published by then.
        """
        self._work += 1
        try:
            try:
                yield
            finally:
                self._work -= 1  # what follows is short, and puts on record what has happened
        except RunStopped:
            raise
        except BaseException as error:
            self._wait_for_the_reason(error)
            if self.stop is not None:
                raise self._refusal(self.stop) from error
            raise
        self._drain(0)
        if self._work < 0:
            self._look()  # a stop that came since the last look is one of this launch, too
            if self.stop is None and self._platform.ledger.run(self.run_id).state not in WAS_PUBLISHED:
                self._refuse_paused()
        if self.stop is None or (self.stop.note and is_being_published(self._platform, self.run_id)):
            return  # it goes on, in whatever process
        if self._platform.ledger.run(self.run_id).state not in WAS_PUBLISHED:
            raise self._refusal(self.stop)

    @contextmanager
    def within(self, left: Callable[[], float], pause: Callable[[], Stop]) -> Iterator[None]:
        """Interrupt the body as a stop does once no time is left; `pause` pauses the run then, and returns that.

        `left` says for how many seconds it may go on. It is asked again and again: other launches of the run take of the same.
        """
        self._deadline = time.monotonic() + _soon(left()), left, pause
        try:
            yield
        finally:
            with self._lock:  # a pause that is being put on record counts
                self._deadline = None

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Let the body end by itself: a commit is not interrupted, nor are the reads it needs."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1

    def _refuse_paused(self) -> None:
        """End the work between two steps if the run is paused: nothing is interrupted for that.

        Raises:
            RunStopped: saying by whom and when.
        """
        if (found := self._platform.ledger.pauses.held(self.run_id)) is not None:
            raise self._refusal(found)

    def _refusal(self, found: Stop) -> RunStopped:
        refusal = _process_ended(found) if self.ended else stops.refusal(found)
        refusal.signalled = self.signalled
        return refusal

    def _wait_for_the_reason(self, error: BaseException) -> None:
        """Learn of a stop that has reached Spark's processes before it has reached this one."""
        self._drain(0)
        lost = not isinstance(error, Exception) or type(error).__name__ in {
            "Py4JNetworkError",
            "ConnectionRefusedError",
        }
        if self.stop is None and lost:
            self._drain(LOOK_SECONDS)
        if self.stop is None:
            self._look()

    def drain(self) -> None:
        """Note the signals that have come."""
        self._drain(0)

    # --- how it is told -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin to look; in the main thread also for signals, whatever handler they have."""
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        if threading.current_thread() is threading.main_thread():
            self._heard_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._watcher = threading.Thread(target=self._watch, name=f"stops of {self.run_id}", daemon=True)
        self._watcher.start()

    def end(self) -> None:
        """Look no more."""
        with self._lock:
            self._ended.set()
        if self._heard_before is not None:
            signal.set_wakeup_fd(self._heard_before)
        os.write(self._write, b"\0")
        self._watcher.join(_JVM_SECONDS)
        os.close(self._write)
        if not self._watcher.is_alive():  # else it is cancelling Spark's jobs still, and ends with the process
            os.close(self._read)

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Have signals handled here during the body, whoever handled them before."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.getsignal(one) for one in _ENDING}
        for one in _ENDING:
            signal.signal(one, self._handle)
        try:
            yield
        finally:
            self._shields += 1
            with self._lock:  # nobody is nudged who does not listen any more
                for one, handler in before.items():
                    signal.signal(one, signal.SIG_DFL if handler is None else handler)
            self._shields -= 1

    @contextmanager
    def in_dagster(
        self, instance: DagsterInstance, dagster_run_id: str, terminated_at: Callable[[], datetime | None]
    ) -> Iterator[None]:
        """Take the cancelling of a Dagster run for a stop during the body, and cancel that run if there is another stop."""
        self._dagster.append((instance, dagster_run_id, terminated_at))
        try:
            yield
        finally:
            self._dagster.pop()

    def _handle(self, _number: int, frame: FrameType | None) -> None:
        """Interrupt the main thread if it was told before, or has gone on for too long; never where that does harm."""
        nudged, self._nudging = self._nudging, False
        self._signals += 0 if nudged else 1
        if self._shields or self._ended.is_set() or _inside(frame, _TRANSACTIONS, but=_NO_TRANSACTION):
            return
        if nudged:
            gone_on = time.monotonic() - (self._noticed or time.monotonic())
            if self._work < 1 or gone_on < (_JVM_SECONDS if _in_py4j(frame) else _PATIENCE_SECONDS):
                return
        elif self._waits(frame):
            return
        raise Interrupted

    def _waits(self, frame: FrameType | None) -> bool:
        """Whether work that has got a signal goes on for a moment, until it looks or Spark's jobs are cancelled."""
        del frame
        return self._signals == 1

    def _watch(self) -> None:
        due = time.monotonic() + LOOK_SECONDS
        while not self._ended.is_set():
            try:
                self._drain(_CANCEL_SECONDS)
                if self.stop is None:
                    self._pause_if_overdue()
                    if time.monotonic() >= due:
                        self._look()
                        due = time.monotonic() + LOOK_SECONDS
                elif not self._shields and not self._ended.is_set():
                    self._platform.spark.interrupt()
                    self._nudge()
            except Exception as error:  # noqa: BLE001 - whatever fails here, the watch goes on
                text = f"whether '{self.run_id}' was stopped could not be seen: {type(error).__name__}: {error}"
                logs.event(_log, logging.WARNING, "stop_unseen", text, told=True)
                self._ended.wait(_CANCEL_SECONDS)

    def _nudge(self) -> None:
        with self._lock:
            if self._ended.is_set() or signal.getsignal(signal.SIGINT) != self._handle:
                return
            if self._work > 0 and time.monotonic() - (self._noticed or 0.0) >= _PATIENCE_SECONDS:
                self._nudging = True
                main = threading.main_thread().ident
                assert main is not None
                signal.pthread_kill(main, signal.SIGINT)

    def _drain(self, seconds: float) -> None:
        """Note the signals that have come, waiting at most so long for one."""
        select.select([self._read], [], [], seconds)
        with self._lock:  # another thread may be putting on record what it has read just now
            try:
                numbers = os.read(self._read, 64)
            except BlockingIOError:
                return
            for number in numbers:
                if number in _ENDING:
                    self._signalled(signal.Signals(number))

    def _signalled(self, number: signal.Signals) -> None:
        self.signalled = True
        if self.stop is None:
            by, through = self._by, f"{number.name} to process {os.getpid()} on {socket.gethostname()}"
            if (terminated := self._terminated()) is not None:
                self._note(self._recorded(*terminated))
            elif number is signal.SIGTERM and self._platform.ledger.run(self.run_id).mode == Mode.LIVE:
                # a service that is restarted: LIVE is launched by its schedule, and nobody has decided against that
                self.ended = True
                self._note(
                    Stop(
                        0,
                        self.run_id,
                        by,
                        through,
                        "its process was ended",
                        "",
                        self._platform.ledger.now(),
                        None,
                        None,
                    )
                )
            else:
                self._note(self._recorded(by, through, reason=self._why))

    def _recorded(self, by: str, through: str, since: datetime | None = None, *, reason: str = "") -> Stop:
        """Put a stop on record; one that cannot be is a stop of this process all the same."""
        try:
            return self._platform.ledger.stops.stop(self.run_id, by=by, through=through, reason=reason, since=since)
        except (Refused, SQLAlchemyError) as error:
            why = error.problems[0].what if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
            return Stop(
                0, self.run_id, by, through, f"not put on record: {why}", "", self._platform.ledger.now(), None, None
            )

    def _look(self) -> None:
        """Ask the ledger and Dagster."""
        with self._lock:
            if self.stop is not None:
                return
            found = self._platform.ledger.stops.after(self.run_id, self._known) or self._run_ended()
            if found is None and (terminated := self._terminated()) is not None:
                found = self._recorded(*terminated)
            if found is not None:
                self._note(found)

    def _run_ended(self) -> Stop | None:
        """Return how the run has ended, if it is over while work of it goes on that may be ended anywhere; a publisher may end it itself."""
        if self._work < 1 or (state := self._platform.ledger.run(self.run_id).state) not in ENDED:
            return None
        last = self._platform.ledger.history(self.run_id)[-1]
        return Stop(0, self.run_id, last.actor, "for good", last.reason, "", last.at, None, None, kind=state)

    def _pause_if_overdue(self) -> None:
        """Pause the run, and end what is under way of it here, if that goes on for longer than it may."""
        with self._lock:
            if self._deadline is None or time.monotonic() < self._deadline[0]:
                return
            _, left, pause = self._deadline
            if (seconds := left()) > 0:
                self._deadline = time.monotonic() + _soon(seconds), left, pause
                return
            try:
                self._note(pause())
            except Refused:  # nothing of the run can be paused any more; anything else is tried again
                self._deadline = None
                self._look()  # it may be over
                if self.stop is None:
                    raise
            self._deadline = None

    def _note(self, found: Stop) -> None:
        self.stop, self._noticed = found, time.monotonic()
        what = f"the process of '{self.run_id}' was ended" if self.ended else f"'{self.run_id}' was {found}"
        logs.event(_log, logging.WARNING, "run_stopped", what, told=True)
        if found.note or self.ended:
            return  # its publication goes on; or its Dagster run fails, which nobody has cancelled
        for instance, dagster_run_id, _ in list(self._dagster):
            cancel_dagster_run(instance, dagster_run_id, str(found))

    def _terminated(self) -> tuple[str, str, datetime | None] | None:
        """Say who has terminated the Dagster run of this launch, how and when, if somebody has.

        Not before this launch has begun, whatever another clock says: it is what is stopped.
        """
        for instance, dagster_run_id, terminated_at in list(self._dagster):
            run = instance.get_run_by_id(dagster_run_id)
            if run is not None and run.status.value in _CANCELLED:
                since = terminated_at()
                since = None if since is None else max(since, self._began)
                return actors.UNKNOWN, f"{stops.TERMINATE} {dagster_run_id}", since
        return None


class WatchedCommand(Launch):
    """A command that computes without being a launch of a run: a signal ends it, and that is all."""

    def _refuse_paused(self) -> None:
        """Ask nobody: it is of no run."""

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform, "this command", 0, "")
        self._work = 1

    def _look(self) -> None:
        """Ask nobody: what a command looks at may be stopped, which is no matter of its own."""

    def _recorded(self, by: str, through: str, since: datetime | None = None, *, reason: str = "") -> Stop:  # noqa: ARG002 - nothing is on record
        return Stop(0, self.run_id, by, through, "", "", self._platform.ledger.now(), None, None)

    def _signalled(self, number: signal.Signals) -> None:
        self.signalled = True
        if self.stop is None:
            self.stop, self._noticed = self._recorded(self._by, number.name), time.monotonic()

    def _waits(self, frame: FrameType | None) -> bool:
        return self._signals == 1 and _in_py4j(frame)


def _soon(seconds: float) -> float:
    """Return in how many seconds it is asked again how many are left."""
    return min(max(seconds, 0.0), _ASK_SECONDS)


def is_being_published(platform: Platform, run_id: str) -> bool:
    """Return whether somebody is at a publication of a run: what a stop has not interrupted may have come to nothing since."""
    intents = (one for one in platform.ledger.publications(run_id) if one.is_intent)
    return not all(platform.ledger.repairs.is_given_up(one) for one in intents)


def _process_ended(found: Stop) -> RunStopped:
    """Return what a launch is told whose process was ended, and no more: its run goes on with the next launch."""
    refusal = RunStopped(
        Problem(
            f"the process that worked for run '{found.run_id}' was ended ({found.through})",
            "the run was not stopped: what is staged stays, and LIVE launches it again",
            f"nothing, where LIVE is on; else `backfill run {found.run_id}`",
        )
    )
    refusal.only_the_process = True
    return refusal


def cancel_dagster_run(instance: DagsterInstance, dagster_run_id: str, why: str) -> None:
    """Tell Dagster that a run is being cancelled, so that its end is CANCELED and not a failure."""
    run = instance.get_run_by_id(dagster_run_id)
    if run is not None and not run.is_finished and run.status.value not in _CANCELLED:
        instance.report_run_canceling(run, f"The backfill run was {why}.")


def _in_py4j(frame: FrameType | None) -> bool:
    """Return whether a frame is inside a call to the JVM, whose answer would be left in the pipe, or to a server of Spark."""
    return _inside(frame, ("py4j.", "grpc."))


def _inside(frame: FrameType | None, modules: tuple[str, ...], *, but: tuple[str, ...] = ()) -> bool:
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(modules) and not (but and name.startswith(but)):
            return True
        frame = frame.f_back
    return False
