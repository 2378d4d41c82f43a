"""Everything private of PySpark that this project uses, behind names of its own; `tests/test_upstream.py` pins each.

Put here what PySpark documents nowhere. No other module names it, and a test looks that none does. Nothing here may import
PySpark before it is asked to: the daemon of Python workers imports this module while PySpark would still come from an archive
(see `worker_daemon`).
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def daemon_of_workers() -> Callable[[], None]:
    """Import PySpark's own daemon, and return what runs it: it forks a Python worker whenever Spark asks, until Spark ends."""
    from pyspark.daemon import manager  # noqa: PLC0415 - not before the search path is without archives

    return manager


def gateway_of(session: SparkSession) -> Any:
    """Return the connection of a classic session to the JVM that it has started; `proc` is the JVM's process."""
    return session.sparkContext._gateway  # noqa: SLF001


_roots: list[SparkSession] = []
"""The session that PySpark has made first in this process; those of modes are made of it."""


def root_is_default() -> None:
    """Have PySpark hand out the session that it has made first in this process, if another was put in its place."""
    if _roots and _roots[0].sparkContext._jsc is not None:  # noqa: SLF001 - None where Spark was stopped
        make_default(_roots[0])


def keep_root(session: SparkSession) -> None:
    """Keep what PySpark has made in this process, so that sessions of modes can be made of it later."""
    _roots[:] = [session]


def make_default(session: SparkSession) -> None:
    """Have `SparkSession.builder.getOrCreate()`, `active()` and the JVM hand out a classic session from now on.

    PySpark hands out the one that it has made first, whose settings are nobody's: neither confined nor of any mode.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    SparkSession._instantiatedSession = session  # noqa: SLF001
    SparkSession._activeSession = session  # noqa: SLF001
    of_jvm = SparkSession._get_j_spark_session_class(session._jvm)  # noqa: SLF001
    of_jvm.setDefaultSession(session._jsparkSession)  # noqa: SLF001
    of_jvm.setActiveSession(session._jsparkSession)  # noqa: SLF001


def put_setting(session: SparkSession, name: str, value: str | None) -> None:
    """Set a classic session's setting, or unset it (None), whichever it is: `SparkSession.builder` asks no more."""
    settings = session._jsparkSession.sessionState().conf()  # noqa: SLF001
    settings.unsetConf(name) if value is None else settings.setConfString(name, value)


def has_class(session: SparkSession, name: str) -> bool:
    """Whether the JVM of a classic session finds a class, as Hadoop would look for it; True of a session that does not say."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # noqa: PLC0415 - as above

    jvm: Any = getattr(session, "_jvm", None)
    if jvm is None:
        return True
    try:
        jvm.org.apache.spark.util.Utils.classForName(name, False, False)
    except Py4JJavaError:
        return False
    return True


def versions(session: SparkSession) -> tuple[str, str]:
    """Return which Hadoop and which Spark a classic session is of."""
    jvm: Any = session._jvm  # noqa: SLF001
    return jvm.org.apache.hadoop.util.VersionInfo.getVersion(), session.version


def settings_of(session: SparkSession) -> dict[str, str]:
    """Return what `session.conf.getAll` does of a classic session, in a fifth of its time.

    PySpark asks the JVM for each name and value, and ends with an error that it makes a Python one of. A run asks many times.
    What was put past Spark into its settings, and cannot be written as a name and its text, PySpark is asked for.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - as above

    jvm: Any = session._jvm  # noqa: SLF001
    settings = session._jsparkSession.conf().getAllAsJava()  # noqa: SLF001
    try:
        text = jvm.com.fasterxml.jackson.databind.ObjectMapper().writeValueAsString(settings)
        pairs: list[tuple[str, str]] = json.loads(text, object_pairs_hook=list)
    except (Py4JJavaError, ValueError):
        return session.conf.getAll
    found = dict(pairs)
    plain = len(found) == len(pairs) and all(isinstance(value, str) for value in found.values())
    return found if plain else session.conf.getAll


def analysed(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the nodes of a classic frame's analysed plan, each with the class, the arguments and the number of its children."""
    nodes: list[dict[str, Any]] = json.loads(frame._jdf.queryExecution().analyzed().toJSON())  # noqa: SLF001
    return nodes


_heard = threading.local()
"""In each thread, what hears the texts that Spark is given to parse."""
_hears: list[bool] = []


@contextmanager
def hearing_sql(hear: Callable[[str], None]) -> Iterator[None]:
    """Have a function hear each text that this thread gives Spark to parse as SQL: expressions, conditions and queries.

    Of some words nothing is left in the plan that Spark makes of them: its parser puts a day in their place.
    """
    _hear_texts()
    before = getattr(_heard, "by", None)
    _heard.by = hear
    try:
        yield
    finally:
        _heard.by = before


def _hear_texts() -> None:
    """Put a listener before the few functions of PySpark by which text gets to the parser, once for the life of the process."""
    if _hears:
        return
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the daemon of workers does without
    from pyspark.sql.classic.dataframe import DataFrame  # noqa: PLC0415
    from pyspark.sql.functions import builtin  # noqa: PLC0415

    def tell(*texts: Any) -> None:
        if (hear := getattr(_heard, "by", None)) is not None:
            for text in texts:
                tell(*text) if isinstance(text, (list, tuple)) else isinstance(text, str) and hear(text)

    def before(owner: Any, name: str, texts: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def told(*given: Any, **named: Any) -> Any:
            tell(texts(*given, **named))
            return original(*given, **named)

        setattr(owner, name, told)

    # `expr`, whoever has imported it, looks this one up when it is called
    before(builtin, "_invoke_function", lambda name, *given: given if name == "expr" else ())
    before(DataFrame, "selectExpr", lambda _, *given: given)
    before(DataFrame, "filter", lambda _, condition: condition)  # `where` asks it
    before(SparkSession, "sql", lambda _, sqlQuery, *given, **named: (sqlQuery, _texts_within(given, named)))  # noqa: N803
    _hears.append(True)


def _texts_within(given: Sequence[Any], named: Mapping[str, Any]) -> list[str]:
    """Return the texts that a query is formatted with."""
    return [one for one in (*given, *named.values()) if isinstance(one, str)]
