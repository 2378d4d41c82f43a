"""How a computation ends at once: Ctrl-C, SIGTERM, Terminate in Dagster, and `backfill stop` from anywhere.

Put here what work is wrapped in so that a stop of its run ends it, and what a commit is wrapped in so that none does. What is
done when a stop comes is `watched_launch`'s; who stopped a run is on record in `resources.ledger.stops`. Work that was
stopped ends with `RunStopped`, which is never the failure of a batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from backfill_assets.installation import Platform
from backfill_assets.staging.watched_launch import Launch, WatchedCommand
from manifests.errors import Refused
from resources.ledger import stops
from resources.ledger.facade import operator
from resources.ledger.stops import Stop

_active: dict[str, Launch] = {}
"""The launches of this process that are under way, by run."""


@contextmanager
def launched(
    platform: Platform,
    run_id: str,
    *,
    asked_at: datetime | None = None,
    tolerance: timedelta = timedelta(0),
    knows: int | None = None,
    resumes: bool = True,
) -> Iterator[Launch]:
    """Watch for stops of a run during the body, which is a launch of it or part of one.

    Args:
        platform: the installation.
        run_id: the run.
        asked_at: when somebody asked for the launch, if not now; a stop that came later holds.
        tolerance: how long before that a stop holds as well, where the clocks of two machines are compared.
        knows: the newest stop that held the run when that was asked for, where somebody looked; no clock is compared then.
        resumes: whether a stop before it ends with this launch; a sensor's publication is nobody's launch.

    Raises:
        RunStopped: at the beginning or the end, if the run is stopped.
    """
    if (under_way := _active.get(run_id)) is not None:
        under_way.require_going_on()
        with under_way.hearing():
            yield under_way
        return
    on_record = platform.ledger.stops
    if resumes:
        resumed = on_record.held(run_id) is not None
        known = on_record.launched(run_id, by=operator(), asked_at=asked_at, tolerance=tolerance, knows=knows)
    else:
        resumed = False
        known = on_record.newest(run_id)  # first: a stop that comes between the two looks is seen by the second
        if (held := on_record.held(run_id)) is not None:
            raise stops.refusal(held)
    launch = Launch(platform, run_id, known, operator(), resumed=resumed)
    with _active_launch(launch), launch.ending():
        yield launch


@contextmanager
def _active_launch(launch: Launch) -> Iterator[None]:
    launch.begin()
    outer = _active.get(launch.run_id)
    _active[launch.run_id] = launch
    try:
        with launch.hearing():
            yield
    finally:
        if outer is None:
            del _active[launch.run_id]
        else:
            _active[launch.run_id] = outer
        launch.end()


@contextmanager
def interruptible(platform: Platform) -> Iterator[None]:
    """Let a signal end the body at once, Spark's jobs included.

    Raises:
        KeyboardInterrupt: in place of whatever Spark says of jobs that were cancelled for it.
    """
    command = WatchedCommand(platform)
    with _active_launch(command):
        try:
            yield
        except KeyboardInterrupt:
            raise
        except Exception as error:
            command.drain()
            if command.stop is not None and not isinstance(error, Refused):
                raise KeyboardInterrupt from error
            raise


def going_on(run_id: str) -> Callable[[], None]:
    """Return what ends the work of a run if it was stopped: nothing does where nobody watches."""
    launch = _active.get(run_id)
    return (lambda: None) if launch is None else launch.require_going_on


@contextmanager
def ending(run_id: str) -> Iterator[None]:
    """Let what the body raises because of a stop be the stop; see `Launch.ending`."""
    launch = _active.get(run_id)
    if launch is None:
        yield
        return
    with launch.ending():
        yield


@contextmanager
def within(run_id: str, left: Callable[[], float], pause: Callable[[], Stop]) -> Iterator[None]:
    """Have the run paused, and the body interrupted, once no time is `left`; where nobody watches, nothing does that."""
    launch = _active.get(run_id)
    if launch is None:
        yield
        return
    with launch.within(left, pause):
        yield


@contextmanager
def undisturbed(platform: Platform, run_id: str) -> Iterator[None]:
    """Let a change of what readers see end by itself, once it has begun.

    A signal during the body stops the run where it may be stopped: what is not under way then is refused by the ledger.
    """
    launch = _active.get(run_id)
    if launch is not None:
        with launch.shielded(), launch.hearing():
            yield
        return
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    launch = Launch(platform, run_id, platform.ledger.stops.newest(run_id), operator())
    with _active_launch(launch), launch.shielded():
        yield
