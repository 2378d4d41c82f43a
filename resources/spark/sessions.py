"""Spark sessions keyed by execution mode, on top of dagster-pyspark.

Put here how the session of a mode is had, in a JVM of this process or of a server, and what it is made to do for a while. A session
knows its mode and says so; a mode other than LIVE gets no JDBC, no credentials of sinks, and, on the embedded default, no file
system outside the lakehouse; that of RECONCILIATION writes no files at all. The settings themselves are `mode_settings`'.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from manifests.errors import EnvironmentRefused, Problem
from manifests.model import Mode
from manifests.text import words_of
from resources import processes
from resources.code import of_workers
from resources.settings import API_VARIABLES, TOPIC_VARIABLES, TRACE_VARIABLES, Settings
from resources.spark import (
    class_archive,
    connected,
    failures,
    kept_servers,
    local_files,
    object_store,
    one_reach,
    pyspark_private,
    surroundings,
)
from resources.spark.mode_settings import (
    HADOOP,
    JAVA_OPTIONS,
    JDBC_PROVIDERS,
    MODE_KEY,
    OF_HADOOP,
    WRITES_NOTHING,
    of_the_jvm,
    session_settings,
    working_folder,
    writing_settings,
)
from resources.spark.object_store import COMMIT_PROTOCOL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TELL_TWICE = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers of PySpark that write each error with the JVM's whole stack to stderr, besides raising it."""
_ADAPTIVE = "spark.sql.adaptive.enabled"
_OTHERWISE = {
    "spark.sql.shuffle.partitions": "3",
    _ADAPTIVE: "false",
}
"""Settings by which a chunk is computed again in another way than before."""
_OWN_CATALOG = "spark.sql.warehouse.dir"
_WITHOUT_SINKS = frozenset({Mode.DRY_RUN, Mode.RECONCILIATION})
"""Modes that write to no sink."""


class ModeSpark:
    """The Spark sessions of one process, one a mode, made at first use.

    `worker_modules` are what Python workers have imported when they begin; `sinks` those that other modes than LIVE may use.
    `opened` returns the properties of the opened catalog, and is asked where the installation's own do not say where its tables are;
    `code` says which code the workers are to be.
    """

    def __init__(
        self,
        settings: Settings,
        worker_modules: Sequence[str] = (),
        sinks: Collection[str] = frozenset(),
        opened: Callable[[], Mapping[str, str]] | None = None,
        code: Callable[[], str] = of_workers.text_of,
    ) -> None:
        self._as_set, self._worker_modules, self._sinks = settings, worker_modules, sinks
        self._opened, self._say_code = opened, code
        self._sessions: dict[Mode, SparkSession] = {}

    @cached_property
    def _settings(self) -> Settings:
        """The settings, with what the catalog's server says of the warehouse where they have its name alone."""
        if self._opened is None or object_store.says_where(self._as_set.catalog):
            return self._as_set
        return self._as_set.model_copy(update={"catalog": self._as_set.catalog | dict(self._opened())})

    @cached_property
    def _code(self) -> str:
        """Which code the workers are to be: that of the disk when the first session of this process began."""
        return self._say_code()

    def session(self, mode: Mode) -> SparkSession:
        """Return the session of a mode.

        Static settings belong to the JVM: the first mode of a process decides them. Another mode in the same process
        gets a session of its own with its own runtime settings.

        Raises:
            EnvironmentRefused: if Java is missing or the session is not of that mode.
        """
        if mode not in self._sessions:
            self._sessions[mode] = self._start(mode)
        session = self._sessions[mode]
        try:
            said = session.conf.get(MODE_KEY)
        except Exception as error:
            if not failures.is_lost(error):
                raise
            session = self._sessions[mode] = self._start_again(mode, error)  # its server has ended, or given it up
            said = session.conf.get(MODE_KEY)
        if said != mode.value:
            raise EnvironmentRefused(
                Problem(
                    f"the Spark session for {mode} says it is {said}",
                    "a session is used in the mode it was made for",
                    f"nothing else may change {MODE_KEY}",
                )
            )
        # or what a product gets by `SparkSession.builder.getOrCreate()` would be a session that nothing confines
        pyspark_private.make_default(session)
        return session

    @contextmanager
    def writing_evidence(self, mode: Mode) -> Iterator[SparkSession]:
        """Yield the session of a mode; one that writes no files may write what a gate has found meanwhile."""
        session = self.session(mode)
        if mode is not Mode.RECONCILIATION:
            yield session
            return
        _set_or_unset(session, COMMIT_PROTOCOL, writing_settings(self._settings, mode).get(COMMIT_PROTOCOL))
        try:
            yield session
        finally:
            _set_runtime(session, self._wanted(session, mode))

    @contextmanager
    def settings_kept(self, mode: Mode) -> Iterator[None]:
        """Let nothing that is done meanwhile change the settings of a mode's session for what is done later."""
        session = self._sessions.get(mode)
        before = None if session is None else pyspark_private.settings_of(session)
        try:
            yield
        finally:
            if session is not None and before is not None:
                put_back(session, before)
            elif (started := self._sessions.get(mode)) is not None:
                _set_runtime(started, self._wanted(started, mode))

    def _wanted(self, session: SparkSession, mode: Mode) -> dict[str, str]:
        """Return the settings that a session of a mode has, and can have."""
        return local_files.without_programs(session, session_settings(self._settings, mode))

    def interrupt(self) -> None:
        """Cancel what the sessions of this process are doing, from any thread; what they are asked next, they do."""
        for session in tuple(self._sessions.values()):
            session.interruptAll()

    def _start_again(self, mode: Mode, error: Exception) -> SparkSession:
        """Return a session of a mode in the place of one that was lost."""
        kept_servers.has_lost(kept_servers.Kept(self._settings.home, mode))
        try:
            return self._start(mode)
        except connected.OtherKindRefused as refused:  # none is there any more, which is why
            raise failures.gone(error) from refused

    def _start(self, mode: Mode) -> SparkSession:
        reached = self._sinks if mode not in _WITHOUT_SINKS else ()
        one_reach.require_one_reach(self._settings, mode, self._sinks)
        # or the JVM and its Python workers would inherit them; what this process may need once rows are published comes back
        held_back = {name: os.environ.pop(name) for name in one_reach.credentials() if mode is not Mode.LIVE}
        for name in [one for one in os.environ if one.upper().startswith((API_VARIABLES, TOPIC_VARIABLES))]:
            del os.environ[name]  # only an extraction asks a server, and hands its workers what they need
        kept = {name: value for name, value in held_back.items() if one_reach.sink_of(name) in reached}
        for name in [one for one in os.environ if one.upper().startswith(TRACE_VARIABLES)]:
            kept[name] = os.environ.pop(name)  # processes that this one starts later send spans, workers do not
        try:
            return self._start_without_credentials(mode)
        finally:
            os.environ.update(kept)

    def _start_without_credentials(self, mode: Mode) -> SparkSession:
        os.environ["TZ"] = "UTC"  # collect() converts instants in the Python process's zone
        time.tzset()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("POLARS_MAX_THREADS", "1")  # workers are parallel already: one a core
        session = self._on_server(mode)
        if session is None:
            connected.require_kind(mode, connected=False)
            session = self._in_own_jvm(mode)
            connected.has_kind(connected=False)
        else:
            _tell_errors_once()
            wanted = session_settings(self._settings, mode)
            try:
                _set_runtime(session, wanted)
            except Exception as error:
                if (refusal := object_store.refusal(error, wanted)) is not None:
                    raise refusal from error
                raise
        return session

    def _on_server(self, mode: Mode) -> SparkSession | None:
        """Return a session of a server: the one that the settings name, or the one that is kept for the mode; None without one."""
        address = self._settings.server_of(mode)
        if not address and (self._settings.spark_server == "never" or connected.kind() is False):
            return None
        found: list[SparkSession] = []

        def begin() -> None:
            if address:
                session = connected.session_at(address)
                connected.require_server(session, address, self._code, self._required(mode))
                found.append(session)
            elif (kept := self._on_kept_server(mode)) is not None:
                found.append(kept)

        if address:
            connected.require_kind(mode, connected=True)
        _in_a_thread(begin, gives_way=mode is not Mode.LIVE)
        if not found:
            return None
        connected.of_this_process(found[0])
        return found[0]

    def _on_kept_server(self, mode: Mode) -> SparkSession | None:
        is_demanded = self._settings.spark_server == "always"
        try:
            return kept_servers.session_of(*self.kept(mode), start=is_demanded)
        except EnvironmentRefused as refusal:
            if is_demanded:
                raise
            kept_servers.not_used(mode, refusal.problems[0].what)
            return None

    def kept(self, mode: Mode) -> tuple[kept_servers.Kept, dict[str, str], dict[str, str]]:
        """Return the server that is kept for a mode, running or not, and the settings and the environment that it is started with.

        Raises:
            EnvironmentRefused: if runs of the mode compute on a server of somebody else, or the one that is kept could not open S3.
        """
        if self._settings.server_of(mode):
            raise EnvironmentRefused(
                Problem(
                    f"runs of {mode} compute on the server that `spark.remote` names",
                    "a server is kept for those runs alone that would compute on it",
                    f"take `spark.remote` out of the settings of {mode} (`spark`, `spark_by_mode`), or start no server",
                )
            )
        object_store.require_stated_keys(self._settings.catalog, session_settings(self._settings, mode), os.environ)
        code, python = self._code, os.environ.get("PYSPARK_PYTHON", sys.executable)
        settings = self._of_jvm(mode) | self._required(mode) | {connected.PYTHON_KEY: python}
        if settings["spark.master"].startswith("local"):
            settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        settings.pop(_OWN_CATALOG)  # it has a folder of its own for that
        environment = connected.environment(code, self._worker_modules)
        environment |= {"PYSPARK_PYTHON": python, "PYTHONSAFEPATH": "1"}  # or its own folder would be searched
        return kept_servers.Kept(self._settings.home, mode), settings, environment

    def required(self, mode: Mode, python: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return what a server of somebody else has to be started with for a mode: its settings, and its environment.

        `python` is the path of Python where its workers run.
        """
        settings = self._required(mode) | {connected.PYTHON_KEY: python}
        return settings, connected.environment(self._code, self._worker_modules) | {"PYSPARK_PYTHON": python}

    def _required(self, mode: Mode) -> dict[str, str]:
        store = one_reach.hash_of_store(session_settings(self._settings, mode))
        return connected.required(mode, self._code, JDBC_PROVIDERS, store)

    def _of_jvm(self, mode: Mode) -> dict[str, str]:
        """Return the settings that a JVM is started with whose first session is of a mode."""
        environment = connected.environment(self._code, self._worker_modules)
        wanted = {connected.DAEMON_KEY: connected.DAEMON}
        wanted |= {f"{connected.OF_EXECUTORS}{name}": value for name, value in environment.items()}
        wanted |= session_settings(self._settings, mode)
        # Spark makes the folder as soon as a name is looked up in its own catalog, by default where the process runs
        wanted.setdefault(_OWN_CATALOG, str(Path(tempfile.gettempdir()) / f"spark-warehouse-{os.getuid()}"))
        wanted[JAVA_OPTIONS] = f"{wanted[JAVA_OPTIONS]} {class_archive.java_options()}".strip()
        # the others have credentials as well: what is static is on the command line of the JVM, for everybody to read
        return of_the_jvm(wanted)

    def _in_own_jvm(self, mode: Mode) -> SparkSession:
        # most commands need no session, and Dagster's resource takes a second to import
        from dagster_pyspark import LazyPySparkResource  # noqa: PLC0415

        static = self._of_jvm(mode) | working_folder(self._worker_modules)
        started: list[SparkSession] = []

        def start() -> None:
            started.append(LazyPySparkResource(spark_config=cast("dict[str, Any]", static)).spark_session)

        try:
            pyspark_private.root_is_default()
            _in_a_thread(start, gives_way=mode is not Mode.LIVE)
            pyspark_private.keep_root(started[0])
        except Exception as error:
            raise EnvironmentRefused(
                Problem(
                    f"Spark does not start: {type(error).__name__}: {str(error)[:300]}",
                    "Java 17 or 21 is installed and the Spark settings are right",
                    "install a JDK (JAVA_HOME), and see `backfill config`",
                )
            ) from error
        _tell_errors_once()
        root, home = started[0], self._settings.home
        session = root.newSession()
        wanted = self._wanted(session, mode)
        s3 = one_reach.store_of(wanted)
        one_reach.require_one_store(root, home, mode, s3)
        object_store.require_classes(session, self._settings.catalog, writing_settings(self._settings, mode))
        _set_runtime(session, wanted)  # Spark refuses the name of a class that is missing
        one_reach.note_store(root, home, mode, s3)
        return session


@contextmanager
def writing_no_files(session: SparkSession) -> Iterator[None]:
    """Let a session of any mode write no file meanwhile: a write through its frames fails before it has removed or written.

    Files that are written by an RDD are not frames'.
    """
    before = pyspark_private.settings_of(session).get(COMMIT_PROTOCOL)
    session.conf.set(COMMIT_PROTOCOL, WRITES_NOTHING[COMMIT_PROTOCOL])
    try:
        yield
    finally:
        _set_or_unset(session, COMMIT_PROTOCOL, before)


def released_settings(session: SparkSession) -> list[str]:
    """Return the settings by which a session that writes no files is kept from it, if it is no more."""
    holds = pyspark_private.settings_of(session).get(COMMIT_PROTOCOL) == WRITES_NOTHING[COMMIT_PROTOCOL]
    return [] if holds else [COMMIT_PROTOCOL]


def put_back(session: SparkSession, before: Mapping[str, str]) -> list[str]:
    """Give a session the settings that it has had before; return those that it had not any more."""
    after = pyspark_private.settings_of(session)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    for name in changed:  # also what a builder sets, and a session's own `conf` would refuse to change
        pyspark_private.put_setting(session, name, before.get(name))
    return changed


def is_refused_write(error: BaseException) -> bool:
    """Return whether an error is how Spark says that a session which writes no files was asked to write one."""
    return f"{WRITES_NOTHING[COMMIT_PROTOCOL]}.<init>" in words_of(error)


@contextmanager
def computing_otherwise(session: SparkSession) -> Iterator[None]:
    """Have a session shuffle, join and read in another way meanwhile, by Python workers that are in other surroundings.

    Spark keeps the workers of another path to Python apart; where the path has no folder, they are the ones it has.
    """
    wanted = dict(_OTHERWISE)
    python = session.conf.get(connected.PYTHON_KEY, None) or session.conf.get("spark.pyspark.python", None)
    python = python or os.environ.get("PYSPARK_PYTHON", sys.executable)
    if (path := surroundings.python_elsewhere(python)) is not None:
        wanted[connected.PYTHON_KEY] = path
    if pyspark_private.settings_of(session).get(_ADAPTIVE, "true") == "false":
        wanted[_ADAPTIVE] = "true"
    before = {name: session.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            _set_or_unset(session, name, old)


def _tell_errors_once() -> None:
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - most commands need no session

    for name in _TELL_TWICE:
        PySparkLogger.getLogger(name).disabled = True


def _in_a_thread(start: Callable[[], None], *, gives_way: bool) -> None:
    """Start a session in a thread of its own, so that Ctrl-C ends the waiting at once, while the JVM starts.

    In the main thread PySpark would also handle Ctrl-C from then on: by a call to the JVM, in the middle of the call that
    it interrupts. A JVM that `gives_way` is below others in priority, with its Python workers: LIVE comes first.
    """
    failed: list[Exception] = []

    def run() -> None:
        try:
            if gives_way:
                processes.give_way()
            start()
        except Exception as error:  # noqa: BLE001 - raised below, where it is waited for
            failed.append(error)

    thread = threading.Thread(target=run, name="start of Spark", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def _set_or_unset(session: SparkSession, name: str, value: str | None) -> None:
    session.conf.unset(name) if value is None else session.conf.set(name, value)


def _set_runtime(session: SparkSession, wanted: Mapping[str, str]) -> None:
    # Hadoop's settings reach it through the session, so that each session has its own view of the file system
    own = {key: value for key, value in wanted.items() if key.startswith(HADOOP)}
    if pyspark_private.is_connected(session):  # its JVM has those of whoever started it
        of_hadoop = {key: value for key, value in wanted.items() if key.startswith(OF_HADOOP)}
        own |= {key.removeprefix(OF_HADOOP): value for key, value in of_hadoop.items()}
    of_sql = [key for key in wanted if key.startswith("spark.sql.")]
    own |= {key: wanted[key] for key in pyspark_private.modifiable(session, of_sql)}
    pyspark_private.put_all(session, own | {MODE_KEY: wanted[MODE_KEY]})
