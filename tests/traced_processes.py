"""What processes of their own do for a run, and trace: of the small table, without Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

from backfill_assets import faults
from backfill_assets.publication.publisher import publish
from benchmarks.small_table import declared, opened, staged
from manifests.trace_settings import Traces
from resources.logs import traces


def staged_and_published(home: Path, collector: str, run_id: str) -> None:
    traces.configure(Traces(endpoint=collector))
    with declared():
        platform = opened(home)
        staged(platform, run_id)
        publish(platform, run_id)


def killed_once_committed(home: Path, collector: str, run_id: str) -> None:
    def reach(point: str) -> None:
        if point == "publishing.recorded":
            time.sleep(2.5)  # what has ended is sent each second
            os.kill(os.getpid(), 9)

    with mock.patch.object(faults, "reach", reach):
        staged_and_published(home, collector, run_id)


def started(context: BaseContext, work: Callable[..., None], *arguments: Any) -> BaseProcess:
    process: BaseProcess = context.Process(target=work, args=arguments)  # type: ignore[attr-defined]
    process.start()
    return process


def ended(process: BaseProcess) -> int | None:
    """Return how a process ended; None, and it is killed, if it has not within two minutes."""
    process.join(120)
    found = process.exitcode
    if found is None:
        process.kill()
    return found
