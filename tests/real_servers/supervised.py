"""An engine of Debezium that never goes on from an offset: the slot is read anew, by whole transactions, and overlaps what is on disk.

This is the recipe of `docs/change-data-capture.md` ("How to run the engine"), and says why. Put here the rule of a start, and the supervisor
that starts the engine again when it has ended; which records are acknowledged is `debezium_engine.py`'s (`behind`).
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import psycopg2

from real_servers.debezium import Debezium
from real_servers.postgresql import LogicalPostgres, lsn
from real_servers.processes import ended

UNSUPERVISED = {
    "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
    "errors.max.retries": "0",  # a restart within the engine would go on from an offset
    "lsn.flush.mode": "connector",  # what is acknowledged is what this process has on disk, and never what a driver has heard of
}
"""What differs from `SETTINGS`."""
_AGAIN_SECONDS = 0.3


class SlotLostError(Exception):
    """Why an engine is not started: its slot does not have what follows on the last transaction on disk."""


class Supervised(Debezium):
    """An engine that is started again whenever it ends, until it is stopped, each time by `rule`."""

    def __init__(
        self,
        server: LogicalPostgres,
        database: str,
        tables: Sequence[str],
        folder: Path,
        name: str = "tests",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Say what is captured and where it is written; `start` begins."""
        super().__init__(server, database, tables, folder, name, {**UNSUPERVISED, **(settings or {})}, "behind")
        self._server, self._database = server, database
        self._supervisor: threading.Thread | None = None
        self._over = threading.Event()
        self.refusal: SlotLostError | None = None
        self.starts = 0
        self.confirmed: list[int] = []

    def name_log(self, server: LogicalPostgres, database: str, **more: object) -> None:
        """Write which log the files are of, and what the slot had confirmed before each start."""
        super().name_log(server, database, **{"slot_confirmed_lsns": self.confirmed, **more})

    def start(self) -> None:
        """Have the engine run from now on."""
        self._over.clear()
        self.refusal = None
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._supervisor.start()

    @property
    def running(self) -> bool:
        """Whether it runs, or is about to be started again."""
        return self._supervisor is not None and self._supervisor.is_alive()

    def stop(self) -> None:
        """Let the engine end in order, and start it no more."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the engine at once, and start it no more."""
        self._end(signal.SIGKILL)

    def _end(self, by: signal.Signals) -> None:
        self._over.set()
        while self.running:
            ended(self._process, by)
            assert self._supervisor is not None
            self._supervisor.join(0.1)

    def _supervise(self) -> None:
        """Start the engine again and again; a process ends with the thread that has started it, so it is this one."""
        while not self._over.is_set():
            try:
                settings = self.rule()
            except psycopg2.Error:  # the server is being restarted
                self._over.wait(_AGAIN_SECONDS)
                continue
            except SlotLostError as reason:
                self.refusal = reason
                with (self.folder / "log").open("a", encoding="utf-8") as log:
                    log.write(f"the engine is not started: {reason}\n")
                return
            if settings is None:
                self._over.wait(_AGAIN_SECONDS)
                continue
            self._run(settings)
            self.starts += 1
            assert self._process is not None
            self._process.wait()
            self._over.wait(_AGAIN_SECONDS)

    def rule(self) -> dict[str, str] | None:
        """Return the settings that the engine is to be started with; None while another process still reads the slot.

        Raises:
            SlotLostError: if the slot is gone, or begins after what is on disk: changes between the two are lost.
            psycopg2.Error: if the server does not answer.
        """
        reached = reached_on_disk(self.files())
        with contextlib.closing(self._server.connection(self._database)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT active, confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
                    (self.slot,),
                )
                slot = cursor.fetchone()
                if slot is not None and slot[0]:
                    return None
                if (
                    reached is None
                ):  # a snapshot that was broken off is taken anew, at the consistent point of a slot of its own
                    if slot is not None:
                        cursor.execute("SELECT pg_drop_replication_slot(%s)", (self.slot,))
                    return {"snapshot.mode": "initial"}
        if slot is None:
            raise SlotLostError(f"the slot {self.slot} is gone, and {reached:,} was the last commit on disk")
        begins = lsn(slot[1])
        if begins > reached:
            raise SlotLostError(
                f"the slot {self.slot} begins at {begins:,}, after {reached:,}, the last commit on disk"
            )
        self.confirmed.append(begins)
        return {"snapshot.mode": "no_data"}


def reached_on_disk(files: Sequence[Path]) -> int | None:
    """Return the commit of the last END in the batches of an engine, or else the LSN of its whole snapshot; None if there is neither."""
    for file in reversed(files):
        for text in reversed(file.read_text(encoding="utf-8").splitlines()):
            value = json.loads(text)["value"] or ""
            if value.startswith('{"status":"END"'):
                return int(json.loads(value)["id"].partition(":")[2])
            if '"snapshot":"last"' in value and '"op":"r"' in value:
                return int(json.loads(value)["source"]["lsn"])
    return None
