"""What processes of a test do; a module of its own, because each new process imports it.

Put here functions that take plain arguments and return plain data. The tests start them and judge what came of it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import date
from typing import Any

from launches import CONTEXT
from support import REQUESTER, a_manifest, a_plan, moved, publishing, staged_files

from manifests.errors import Refused
from manifests.lifecycle import RunState
from manifests.staged_file import StagedFile
from resources.ledger.admissions import MustWait
from resources.ledger.facade import Ledger

_barrier: Any = None


def _meet(barrier: Any) -> None:
    global _barrier  # noqa: PLW0603 - how a pool's initialiser hands something to its process
    _barrier = barrier


@contextmanager
def processes(number: int) -> Iterator[Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], list[Any]]]:
    """Yield a function that calls another one in each of `number` processes at the same moment; they are kept for it."""
    barrier = CONTEXT.Barrier(number)
    with ProcessPoolExecutor(number, CONTEXT, _meet, (barrier,)) as pool:

        def at_once(work: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
            assert len(arguments) == number, "each process waits for all the others"
            return [done.result(120) for done in [pool.submit(work, *one) for one in arguments]]

        yield at_once


def together() -> None:
    """Wait for the others."""
    _barrier.wait(60)


def begun(url: str, run_id: str, key: str, most: int) -> str:
    """Ask for the place of a batch at the same moment as others; say which attempt it is, or what it waits for."""
    ledger = Ledger(url)
    together()
    try:
        found = ledger.start_attempt(run_id, [key], edition=0, actor=REQUESTER, location="/staging", most_at_once=most)
    except MustWait as wait:
        return str(wait)
    finally:
        ledger.close()
    return "" if found is None else f"attempt {found[0]}"


def live_through(url: str, name: str, shared: Sequence[str], own: str) -> dict[str, list[Any]]:
    """Take part in runs that every process wants, and bring one of one's own to VALIDATED; say what was won."""
    ledger = Ledger(url)
    won: dict[str, list[Any]] = {"approved": [], "attempts": [], "validated": [], "published": []}
    together()
    for run_id in [*shared, own]:
        manifest = a_manifest(run_id, target=publishing("2012-01-01", "2012-03-31"))
        record = _unless_refused(lambda m=manifest: ledger.record_plan(m, a_plan(m), REQUESTER)) or ledger.run(run_id)
        together()
        decision = {"approve": True, "by": name, "comment": "", "self_approval": False, "plan_hash": record.plan_hash}
        if _unless_refused(lambda r=run_id, d=decision: ledger.decide(r, **d) or True):
            won["approved"].append(run_id)
        together()
        number, prefix = ledger.start_attempt(
            run_id, [chunk.key for chunk in record.plan.chunks], edition=0, actor=name, location="/lake"
        )
        won["attempts"].append((run_id, number, prefix))
        together()
        _unless_refused(lambda r=record, n=number: ledger.stage(r.run_id, n, staged_files(r, n)))
        _unless_refused(lambda r=run_id: ledger.settle(r, name))
        together()
        if _unless_refused(lambda r=run_id: moved(ledger, r, RunState.VALIDATED, name) or True):
            won["validated"].append(run_id)
        together()
        if _unless_refused(lambda r=run_id: _accept(ledger, r, name) or True):
            won["published"].append(run_id)
        together()
    ledger.engine.dispose()
    return won


def _accept(ledger: Ledger, run_id: str, name: str) -> None:
    publication = ledger.open_publication(run_id, "publish", 7, name, name)
    ledger.accept(run_id, publication, snapshot_id=100, added=3, removed=2, actor=name)


def _unless_refused(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except Refused:
        return None


def publish_month(
    catalog: dict[str, str], table: str, run_id: str, base: int, month: tuple[date, date], file: StagedFile
) -> int | None:
    """Replace a month of a table by one file; return the snapshot, or None where somebody else was there first."""
    from resources.lakehouse.facade import Lakehouse, Scope

    lakehouse = Lakehouse("lake", catalog)
    lakehouse.table(table)
    together()
    scope = Scope("day", *month)
    properties = {"backfill.run-id": run_id, "backfill.action": "publish"}
    done = _unless_refused(lambda: lakehouse.replace(table, [(scope, base)], staged=[file], properties=properties))
    return None if done is None else int(done.snapshot_id)


def migrate(url: str) -> str:
    """Bring a ledger to this version of its schema; return what was refused, if anything."""
    ledger = Ledger(url)
    together()
    try:
        ledger.migrate()
        ledger.require_current()
    except Refused as refusal:
        return str(refusal)
    finally:
        ledger.engine.dispose()
    return ""


def take_a_lease(url: str) -> int | None:
    """Try for a month that every process wants; return the token, or None where it is held."""
    from resources.ledger.leases import Leases

    leases = Leases(Ledger(url).engine, 60)
    together()
    lease = _unless_refused(lambda: leases.acquire("t", date(2020, 1, 1), date(2020, 1, 31), "r", "publish"))
    return None if lease is None else int(lease.token)


def publish_a_run(settings: dict[str, Any], run_id: str, stop_in_the_catalog: bool) -> None:
    """Publish a run of `benchmarks.publishers`; if so wished, stop where only the swap of the catalog's pointer is left."""
    from pyiceberg.catalog.sql import SqlCatalog

    from backfill_assets.publication.publisher import publish
    from benchmarks.publishers import opened

    if stop_in_the_catalog:
        write = SqlCatalog._write_metadata

        def stop(metadata: Any, io: Any, metadata_path: str) -> None:
            # every requirement was met by the table's present metadata
            write(metadata, io, metadata_path)
            snapshot = metadata.snapshot_by_id(metadata.current_snapshot_id) if metadata.current_snapshot_id else None
            if snapshot and snapshot.summary["backfill.run-id"] == run_id:
                os.kill(os.getpid(), signal.SIGSTOP)

        SqlCatalog._write_metadata = staticmethod(stop)
    publish(opened(settings), run_id)
