"""Sessions whose Spark is another process: a server of Spark Connect, of whom this process is a client.

Put here how a session of a server is had, what is held against the server first, and what it has to be started with. A mode's
settings are `sessions`'; the servers that this installation keeps itself are `kept_servers`'.

A client cannot set what belongs to a server's JVM. So a server says what it was started for, by settings of its own that
`required` names, and one that says something else is refused before anything is computed. What its workers really are, they are
asked: which code lies there, which time zone they are in, and whether their environment has a credential.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from manifests.errors import EnvironmentRefused, Problem
from manifests.model import Mode
from manifests.server_address import FORM, shown_address, without_secrets, wrong_address
from manifests.text import words_of
from resources.code import of_workers
from resources.settings import API_VARIABLES, SINK_VARIABLES, TOPIC_VARIABLES, TRACE_VARIABLES, WEBHOOK_VARIABLE
from resources.spark import failures, pyspark_private, worker_daemon

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

MODES_KEY = "spark.backfill.server.modes"
"""Setting in which a server says the modes that it was started for, with commas between them."""
STORE_KEY = "spark.backfill.server.s3"
"""Setting in which a server says by which settings its sessions open S3, as a hash: its JVM has what it has opened for all of them."""
PYTHON_KEY = "spark.sql.execution.pyspark.python"
JDBC_KEY = "spark.sql.sources.disabledJdbcConnProviderList"
DAEMON_KEY = "spark.python.daemon.module"
OF_EXECUTORS = "spark.executorEnv."
DAEMON = worker_daemon.__name__
"""The module that Spark forks its Python workers from."""
CODE_KEY = f"{OF_EXECUTORS}{of_workers.CODE_VARIABLE}"
_HASH_SEED = "PYTHONHASHSEED"
ANSWER_SECONDS = 10.0
"""How long a server may take to answer at all."""
RETRIES = 7
"""How often a call is tried again that a server does not answer: for a minute and a half in all."""
_MODE_SWITCH, _ADDRESS = "SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE"
_NO_ADDRESS = "sc://the-session-of-this-run.invalid"
"""Where `SparkSession.builder` would find a server if it did not find the mode's session first."""
_EXTRA = "pip install 'backfill-assets[connect]'"
_LINE = 300
_MANY = 10_000
"""Rows of a frame that has a partition for each task that runs at once, and no empty one."""
_first: list[bool] = []
"""Whether the first session of this process was of a server: PySpark's functions are of one kind or the other."""
_open: list[SparkSession] = []


class OtherKindRefused(EnvironmentRefused):
    """A session would be of the other kind than those that its process has had."""


def require_kind(mode: Mode, *, connected: bool) -> None:
    """Refuse a session of the other kind than the first of this process is, if there was one.

    Raises:
        OtherKindRefused: naming both kinds.
    """
    if _first and _first[0] is not connected:
        kinds = {True: "on a Spark server", False: "in a JVM of its own"}
        raise OtherKindRefused(
            Problem(
                f"a session of {mode} would compute {kinds[connected]} in a process that has computed {kinds[_first[0]]}",
                "a process computes in one of the two ways: PySpark's functions are made for one",
                "launch it in a process of its own, or give all modes a server, or none",
            )
        )


def has_kind(*, connected: bool) -> None:
    """Keep of which kind the sessions of this process are."""
    if not _first:
        _first.append(connected)


def kind() -> bool | None:
    """Return whether the sessions of this process are a server's; None where there was none yet."""
    return _first[0] if _first else None


def require_client() -> None:
    """Refuse a process without what a client of Spark Connect needs: a server is not silent that nobody here can ask.

    Raises:
        EnvironmentRefused: naming the package that is missing.
    """
    try:
        import grpc  # type: ignore[import-untyped] # noqa: F401, PLC0415 - without the extra there is none
        from pyspark.sql.connect.session import SparkSession as RemoteSession  # noqa: F401, PLC0415
    except ImportError as error:
        raise EnvironmentRefused(
            Problem(
                f"a session of a Spark server needs a package that is missing: {str(error)[:_LINE]}",
                "a client of Spark Connect has packages of its own",
                _EXTRA,
            )
        ) from error


def session_at(
    address: str, *, retries: int = RETRIES, seconds: float = ANSWER_SECONDS, requests: Any = None
) -> SparkSession:
    """Return a new session of the server at an address, `sc://host:port`, with its own settings and no other's.

    `requests` looks at each of the session's requests before it is sent (an interceptor of gRPC).

    Raises:
        EnvironmentRefused: if it is no address, the client's packages are missing, or nothing answers there.
    """
    shown = shown_address(address)
    if wrong := wrong_address(address):
        raise EnvironmentRefused(
            Problem(
                f"the Spark server at {shown} cannot be used: {wrong}",
                f"the address of a Spark server is written {FORM}",
                "correct `spark.remote`; see `backfill config`",
            )
        )
    require_client()
    import grpc  # noqa: PLC0415 - without the extra there is none
    from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415
    from pyspark.sql.connect.session import SparkSession as RemoteSession  # noqa: PLC0415

    session: Any = None
    try:
        builder = DefaultChannelBuilder(address)
        builder.set("user_id", "backfill")
        with builder.toChannel() as channel:
            grpc.channel_ready_future(channel).result(timeout=seconds)
        if requests is not None:
            builder.add_interceptor(requests)
        session = RemoteSession.builder.channelBuilder(builder).create()
        session.client.set_retry_policies([DefaultPolicy(max_retries=retries)])
        session.conf.get("spark.app.id", None)  # asks the server for the first time
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing can be computed there
        if session is not None:
            _given_back(session)
        said = words_of(error)
        why = without_secrets(said, address).strip().partition("\n")[0] or f"no answer in {seconds:g} seconds"
        raise EnvironmentRefused(
            Problem(
                f"the Spark server at {shown} cannot be used: {type(error).__name__}: {why[:_LINE]}",
                f"a server answers at the address that `spark.remote` names, within {seconds:g} seconds",
                "start it, or correct the address and its token; see `backfill config`",
            )
        ) from (error if without_secrets(said, address) == said else None)
    found: SparkSession = session
    _open.append(found)
    return found


def of_this_process(session: SparkSession) -> None:
    """Have PySpark's functions and its builder be of a server's session from now on, in this whole process."""
    has_kind(connected=True)
    for name, value in ((_MODE_SWITCH, "1"), (_ADDRESS, _NO_ADDRESS)):
        os.environ[name] = value
        os.unsetenv(name)  # PySpark looks in `os.environ`; programs that this process starts are not told
    pyspark_private.make_default(session)


def give_back(session: SparkSession) -> None:
    """End a session whose server is about to end."""
    _open[:] = [one for one in _open if one is not session]
    _given_back(session)


def _given_back(session: SparkSession) -> None:
    with suppress(Exception):
        session.stop()


@atexit.register
def _release() -> None:
    """Give the sessions of this process back to their servers; one that does not answer notices by itself."""

    def give_back() -> None:
        for session in _open:
            _given_back(session)

    thread = threading.Thread(target=give_back, daemon=True)
    thread.start()
    thread.join(1.0)


# --- what a server is held against ------------------------------------------------------------------------------------


def required(mode: Mode, code: str, providers: str, store: str = "") -> dict[str, str]:
    """Return the settings that a server of a mode is started with, whoever starts it; of PYTHON_KEY any value will do.

    `providers` are the JDBC connection providers that a session of the mode may not have; `store` is the hash of the settings by which
    one opens S3, if it does.
    """
    settings = {
        MODES_KEY: mode.value,
        DAEMON_KEY: DAEMON,
        CODE_KEY: code,
        f"{OF_EXECUTORS}TZ": "UTC",
        f"{OF_EXECUTORS}{_HASH_SEED}": "0",
        PYTHON_KEY: "",
    }
    settings |= {STORE_KEY: store} if store else {}
    return settings if mode is Mode.LIVE else settings | {JDBC_KEY: providers}


def environment(code: str, modules: Sequence[str] = ()) -> dict[str, str]:
    """Return what the environment of Spark's Python workers has: that of executors, and of a server that is its own executor."""
    return {
        of_workers.CODE_VARIABLE: code,
        worker_daemon.MODULES_VARIABLE: ",".join(modules),
        "TZ": "UTC",
        _HASH_SEED: "0",
        "POLARS_MAX_THREADS": os.environ.get("POLARS_MAX_THREADS", "1"),
    }


def require_server(session: SparkSession, address: str, code: str, wanted: Mapping[str, str]) -> None:
    """Refuse a server that was not started with what is `required` of it, or whose workers are others than a run's have to be.

    Raises:
        EnvironmentRefused: naming each setting with what it has to be, or what is wrong with the workers.
    """
    shown = shown_address(address)
    problems = list(_wrong_settings(pyspark_private.settings_of(session), shown, wanted))
    if not problems:
        problems = list(_wrong_workers(session, shown, code))
    if problems:
        raise EnvironmentRefused(problems)


def _wrong_settings(found: Mapping[str, str], shown: str, wanted: Mapping[str, str]) -> Iterator[Problem]:
    for name, value in wanted.items():
        has = found.get(name)
        if name == MODES_KEY:
            right = value in (has or "").split(",")
        else:
            right = bool(has) if name == PYTHON_KEY else has == value
        if not right:
            means = "the path of Python there" if name == PYTHON_KEY else value
            yield Problem(
                f"the Spark server at {shown} has {name} = {has or 'nothing'}",
                f"it was started with --conf {name}={means}: a client cannot set what belongs to a server",
                "start it with what `backfill spark settings` prints, in an environment with the same code installed",
            )


def _wrong_workers(session: SparkSession, shown: str, code: str) -> Iterator[Problem]:
    """Ask the Python workers of a server, as many as run at once, what they are."""
    frame = session.range(_MANY).mapInArrow(partial(_say_what_i_am, code), "said string")
    try:
        said = {str(row["said"]) for row in frame.distinct().collect()}
    except Exception as error:  # noqa: BLE001 - whatever it is, it would be each run's
        why = failures.refusal(error)
        yield Problem(
            f"the Python workers of the Spark server at {shown} cannot be asked what they are: "
            + (why.problems[0].what if why else raised(error)),
            "they have the same Python packages, and the same code of this project and of the products, as this process",
            "install them where Spark's workers run, and start the server anew",
        )
        return
    for one in sorted(said):
        worker: dict[str, Any] = json.loads(one)
        where = f"a Python worker of the Spark server at {shown} ({worker['at']})"
        if worker["differing"]:
            yield Problem(
                f"{where} has other code of {', '.join(worker['differing'])}",
                "rows are computed by the code that the plan names, in Spark's workers as well",
                "install the same version there as here, and start the server anew",
            )
        if worker["environment"] != ["UTC", "0"]:
            yield Problem(
                f"{where} has TZ and {_HASH_SEED} = {worker['environment']}",
                "what Python code asks of its process has the same answer wherever it runs",
                f"start the server in an environment with TZ=UTC and {_HASH_SEED}=0",
            )
        if worker["credentials"]:
            yield Problem(
                f"{where} has {', '.join(worker['credentials'])} in its environment",
                "no server has the credential of a sink, a feed or a topic: a process that needs one has it itself",
                "start the server in an environment without",
            )


def raised(error: BaseException) -> str:
    """Return the last line of what an error says: of one in a worker, what was raised there."""
    lines = [line for line in words_of(error).strip().splitlines() if line.strip() and "\tat " not in line]
    return f"{type(error).__name__}: {(lines or [''])[-1].strip()[:_LINE]}"


def _say_what_i_am(code: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Say in a worker, once, which code lies there and what of its environment counts."""
    import socket  # noqa: PLC0415 - this runs where the module of a client is not needed
    import sys  # noqa: PLC0415

    import pyarrow  # noqa: PLC0415

    for _ in batches:
        pass
    secret = (SINK_VARIABLES, API_VARIABLES, TOPIC_VARIABLES, TRACE_VARIABLES, WEBHOOK_VARIABLE)
    said = {
        "at": f"{sys.prefix} on {socket.gethostname()}",
        "differing": of_workers.differing(code),
        "environment": [os.environ.get("TZ"), os.environ.get(_HASH_SEED)],
        "credentials": sorted(name for name in os.environ if name.upper().startswith(secret)),
    }
    yield pyarrow.RecordBatch.from_pydict({"said": [json.dumps(said)]})
