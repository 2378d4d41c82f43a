"""What is to be done with chunks, each on its own: of which type its task and its result are, how they travel, who does it.

Put here what is true of any such work. What is done with a chunk is the worker modules' of the package; how Spark has it done
is `workers`'. Spark's Python workers import this module: nothing of PySpark or Dagster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

import polars as pl
import pyarrow as arrow
from pydantic import TypeAdapter

from manifests.canonical import plain, reader_of
from manifests.model import Mode
from resources.files import stores
from resources.files.stores import StoreAccess

_RESULTS_AT_ONCE = 100


class ChunkTask(Protocol):
    """What is needed to do the work of one chunk: plain data, a frozen dataclass."""

    @property
    def chunk(self) -> str:
        """The chunk's key."""


Task = TypeVar("Task", bound=ChunkTask)
Result = TypeVar("Result")
Weighed = tuple[Task, int]
"""A task, and the rows that it is about: what it weighs beside others."""


@dataclass(frozen=True)
class ChunkWork(Generic[Task, Result]):
    """What is done with each of many chunks, by whom and wherever it is done.

    Attributes:
        do: takes tasks, one after the other, and yields results; a function that can be imported, or a `partial` of one.
        task: the type of a task, by which it is read from JSON.
        result: the type of a result, or a union of some.
    """

    do: Callable[[Iterator[Task]], Iterable[Result]]
    task: type[Task]
    result: Any

    def batches(self, batches: Iterable[arrow.RecordBatch]) -> Iterator[arrow.RecordBatch]:
        """Do the tasks of Arrow batches with a column `task` (JSON); yield batches with a column `result` (JSON), some results each."""
        texts = (json.dumps(plain(result)) for result in self.do(tasks_of(self.task, batches)))
        while some := list(islice(texts, _RESULTS_AT_ONCE)):
            yield arrow.RecordBatch.from_pydict({"result": some})

    def results(self, texts: Iterable[str]) -> list[Result]:
        """Return the results that workers sent as JSON."""
        reads: TypeAdapter[Result] = reader_of(self.result)
        return [reads.validate_json(text) for text in texts]


def in_worker(
    work: ChunkWork[Any, Any], access: StoreAccess, batches: Iterable[arrow.RecordBatch]
) -> Iterator[arrow.RecordBatch]:
    """Do work in a worker of Spark, of which there is one a core."""
    with at_work(access):
        yield from work.batches(batches)


@contextmanager
def at_work(access: StoreAccess) -> Iterator[None]:
    """Have a worker of Spark, which has one core, open files by an access: in this work, and in none that the worker does later.

    Polars hands nothing from thread to thread: frames are in memory already.
    """
    pl.Config.set_engine_affinity("in-memory")
    with stores.opened_by(access):
        yield


def task_text(task: ChunkTask) -> str:
    """Return a task as JSON."""
    return json.dumps(plain(task))


def tasks_of(kind: type[Task], batches: Iterable[arrow.RecordBatch]) -> Iterator[Task]:
    """Yield the tasks of Arrow batches with a column `task` (JSON)."""
    reads = reader_of(kind)
    for batch in batches:
        for text in batch.column("task").to_pylist():
            yield reads.validate_json(text)


class Workers(Protocol):
    """Who does work on chunks."""

    def do(
        self, mode: Mode, work: ChunkWork[Task, Result], tasks: Sequence[Weighed[Task]], at_once: int = 0
    ) -> list[Result]:
        """Have tasks done as an execution mode has it, so many `at_once` at most (0: any number), and return the results, in no order."""


class ThisProcess:
    """Does the work itself, one chunk after the other; memory is one chunk's, as in a worker."""

    def do(
        self, mode: Mode, work: ChunkWork[Task, Result], tasks: Sequence[Weighed[Task]], at_once: int = 0
    ) -> list[Result]:
        """Do the tasks; what goes in and comes out is written and read as it is where workers do them."""
        del mode, at_once
        batch = arrow.RecordBatch.from_pydict({"task": [task_text(task) for task, _ in tasks]})
        return work.results(text for found in work.batches([batch]) for text in found.column("result").to_pylist())
