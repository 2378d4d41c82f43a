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
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def daemon_of_workers() -> Callable[[], None]:
    """Import PySpark's own daemon, and return what runs it: it forks a Python worker whenever Spark asks, until Spark ends."""
    from pyspark.daemon import manager  # noqa: PLC0415 - not before the search path is without archives

    return manager


def refuse_work(why: str) -> None:
    """Have each Python worker that this process forks fail at the beginning of whatever it is given, with these words."""
    from pyspark import worker  # noqa: PLC0415 - not before the search path is without archives

    def refuse(_infile: Any) -> None:
        raise RuntimeError(why)

    looked_up: Any = worker  # by its `main`, first of all
    looked_up.check_python_version = refuse


def is_connected(of: Any) -> bool:
    """Return whether a session, or a frame of one, is a client's of a Spark Connect server."""
    return type(of).__module__.startswith("pyspark.sql.connect.")


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
    """Have `SparkSession.builder.getOrCreate()`, `active()` and the JVM hand out a session from now on.

    PySpark hands out the one that it has made first, whose settings are nobody's: neither confined nor of any mode.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    if is_connected(session):
        from pyspark.sql.connect.session import SparkSession as RemoteSession  # noqa: PLC0415

        remote: Any = RemoteSession
        remote._default_session = session  # noqa: SLF001
        remote._active_session.session = session  # noqa: SLF001
        return
    SparkSession._instantiatedSession = session  # noqa: SLF001
    SparkSession._activeSession = session  # noqa: SLF001
    of_jvm = SparkSession._get_j_spark_session_class(session._jvm)  # noqa: SLF001
    of_jvm.setDefaultSession(session._jsparkSession)  # noqa: SLF001
    of_jvm.setActiveSession(session._jsparkSession)  # noqa: SLF001


def put_setting(session: SparkSession, name: str, value: str | None) -> None:
    """Set a session's setting, or unset it (None): a classic one's whichever it is, since `SparkSession.builder` asks no more.

    A builder of Spark Connect sets what `conf` does.
    """
    if is_connected(session):
        session.conf.unset(name) if value is None else session.conf.set(name, value)
        return
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


def define_class(session: SparkSession, name: str, source: str, *, beside: str) -> str:
    """Compile a class of Java in the JVM of a classic session, and define it beside another of its package, for as long as the JVM lives.

    By the compiler that Spark has for its own generated code. Returns why the JVM has not taken it; nothing where it has.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415 - as above

    jvm: Any = session._jvm  # noqa: SLF001
    try:
        neighbour = jvm.org.apache.spark.util.Utils.classForName(beside, False, False)
        compiler = getattr(jvm, "org.codehaus.janino.SimpleCompiler")()
        compiler.setParentClassLoader(neighbour.getClassLoader())
        compiler.cook(source)
        methods = getattr(jvm, "java.lang.invoke.MethodHandles")
        methods.privateLookupIn(neighbour, methods.lookup()).defineClass(compiler.getBytecodes()[name])
    except Py4JError as error:
        return str(error).strip().partition("\n")[0]
    return ""


def versions(session: SparkSession) -> tuple[str, str]:
    """Return which Hadoop and which Spark a classic session is of."""
    jvm: Any = session._jvm  # noqa: SLF001
    return jvm.org.apache.hadoop.util.VersionInfo.getVersion(), session.version


def put_all(session: SparkSession, settings: Mapping[str, str]) -> None:
    """Set settings that a session may change: a server of Spark Connect is asked once, and not once for each."""
    if is_connected(session):
        conf: Any = session.conf
        conf._set_all(dict(settings), silent=False)  # noqa: SLF001
        return
    for name, value in settings.items():
        session.conf.set(name, value)


def modifiable(session: SparkSession, names: Sequence[str]) -> set[str]:
    """Return which of some settings a session may change; a server of Spark Connect is asked once."""
    if not is_connected(session):
        return {name for name in names if session.conf.isModifiable(name)}
    from pyspark.sql.connect import proto  # noqa: PLC0415 - without the extra there is none

    remote: Any = session
    requests: Any = proto.ConfigRequest
    answer = remote.client.config(requests.Operation(is_modifiable=requests.IsModifiable(keys=list(names))))
    return {name for name, said in answer.pairs if said == "true"}


def settings_of(session: SparkSession) -> dict[str, str]:
    """Return what `session.conf.getAll` does, of a classic session in a fifth of its time.

    PySpark asks the JVM for each name and value, and ends with an error that it makes a Python one of. A run asks many times.
    What was put past Spark into its settings, and cannot be written as a name and its text, PySpark is asked for.
    """
    if is_connected(session):
        remote: Any = session.conf
        said: dict[str, str] = remote.getAll
        return said
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - as above

    jvm: Any = session._jvm  # noqa: SLF001
    settings = session._jsparkSession.conf().getAllAsJava()  # noqa: SLF001
    try:
        # by its whole name: step by step, each step would be looked for as a class in every archive
        text = getattr(jvm, "com.fasterxml.jackson.databind.ObjectMapper")().writeValueAsString(settings)
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


def analysed_text(frame: DataFrame) -> str:
    """Return the analysed plan of a frame of Spark Connect as Spark words it: a client has no other way to it."""
    asked: Any = frame
    said = str(asked._explain_string(mode="extended"))  # noqa: SLF001
    return said.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]


_DRAWN_BY = {"Sample": "sample", "StatSampleBy": "rand"}
"""What a message asks a server for that names no function."""


def asked_of_server(frame: DataFrame) -> tuple[set[str], list[str], set[str]]:
    """Return what a frame of Spark Connect asks its server for: the names of functions, and the texts that it is to parse.

    In the third place are all its other texts: values, and names of columns.
    """
    asked: Any = frame
    names: set[str] = set()
    texts: list[str] = []
    given: set[str] = set()
    for message in messages_of(asked._plan.to_proto(asked.sparkSession.client)):  # noqa: SLF001
        kind = message.DESCRIPTOR.name
        if kind in {"UnresolvedFunction", "CallFunction"}:
            names.add(message.function_name.lower())
        elif kind in _DRAWN_BY:
            names.add(_DRAWN_BY[kind])
        elif kind in {"ExpressionString", "SQL"}:
            texts.append(message.expression if kind == "ExpressionString" else message.query)
        for field, value in message.ListFields():
            if kind not in {"ExpressionString", "SQL"} and field.cpp_type == field.CPPTYPE_STRING:
                values = [value] if isinstance(value, (str, bytes)) else value
                given |= {one.strip("`") for one in values if isinstance(one, str)}
    return names, texts, given


def messages_of(message: Any) -> Iterator[Any]:
    """Yield a message of Spark Connect and all that are within it, each before what is within."""
    from google.protobuf.message import Message  # type: ignore[import-untyped] # noqa: PLC0415 - as above

    waiting = [message]
    while waiting:
        one = waiting.pop()
        yield one
        for field, value in one.ListFields():
            if field.message_type is None:
                continue
            if field.message_type.GetOptions().map_entry:
                waiting += [each for each in value.values() if isinstance(each, Message)]
            elif isinstance(value, Message):
                waiting.append(value)
            else:
                waiting += value


_heard = threading.local()
"""In each thread, what hears the texts that Spark is given to parse."""
_hears: list[bool] = []
"""Which listeners are there: those of a client of Spark Connect (True), those of a classic session (False)."""


@contextmanager
def hearing_sql(hear: Callable[[str], None], *, connected: bool = False) -> Iterator[None]:
    """Have a function hear each text that this thread gives Spark to parse as SQL: expressions, conditions and queries.

    Of some words nothing is left in the plan that Spark makes of them: its parser puts a day in their place. `connected` is said
    where the session is a client's of Spark Connect: its server parses.
    """
    _hear_texts(connected=connected)
    before = getattr(_heard, "by", None)
    _heard.by = hear
    try:
        yield
    finally:
        _heard.by = before


def _hear_texts(*, connected: bool) -> None:
    """Put a listener before the few functions of PySpark by which text gets to the parser, once for the life of the process."""
    if connected in _hears:
        return
    _hears.append(connected)
    if connected:
        from pyspark.sql.connect.expressions import SQLExpression  # noqa: PLC0415 - without the extra there is none
        from pyspark.sql.connect.session import SparkSession as RemoteSession  # noqa: PLC0415

        # `expr`, `selectExpr` and a condition that is a text make one
        _before(SQLExpression, "__init__", lambda _, expr: expr)
        _before(RemoteSession, "sql", _texts_of_query)
        return
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the daemon of workers does without
    from pyspark.sql.classic.dataframe import DataFrame  # noqa: PLC0415
    from pyspark.sql.functions import builtin  # noqa: PLC0415

    # `expr`, whoever has imported it, looks this one up when it is called
    _before(builtin, "_invoke_function", lambda name, *given: given if name == "expr" else ())
    _before(DataFrame, "selectExpr", lambda _, *given: given)
    _before(DataFrame, "filter", lambda _, condition: condition)  # `where` asks it
    _before(SparkSession, "sql", _texts_of_query)


_written = threading.local()
"""In each thread, whether expressions are to know the line that they are written in."""
_asks: list[bool] = []
"""Not empty: PySpark asks here as well."""


@contextmanager
def with_lines(*, wanted: bool = True) -> Iterator[None]:
    """Have expressions that this thread writes meanwhile know in which line that was, or not, as they do by themselves.

    For each one that is to know it, PySpark asks the JVM ten questions.
    """
    _ask_here()
    before = getattr(_written, "with_lines", True)
    _written.with_lines = wanted
    try:
        yield
    finally:
        _written.with_lines = before


def without_lines() -> AbstractContextManager[None]:
    """Have expressions of the platform know no line: nobody is shown it. What a product writes in between does `with_lines`."""
    return with_lines(wanted=False)


def _ask_here() -> None:
    """Have PySpark ask whether lines are wanted, once for the life of the process."""
    if _asks:
        return
    _asks.append(True)
    from pyspark.errors import utils  # noqa: PLC0415 - the daemon of workers does without

    looked_up: Any = utils  # by each function that writes an expression
    by_setting = looked_up.is_debugging_enabled
    looked_up.is_debugging_enabled = lambda: getattr(_written, "with_lines", True) and by_setting()


def _before(owner: Any, name: str, texts: Callable[..., Any]) -> None:
    """Have a function tell the texts that it is given, before it does what it does."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def told(*given: Any, **named: Any) -> Any:
        _tell(texts(*given, **named))
        return original(*given, **named)

    setattr(owner, name, told)


def _tell(*texts: Any) -> None:
    if (hear := getattr(_heard, "by", None)) is not None:
        for text in texts:
            _tell(*text) if isinstance(text, (list, tuple)) else isinstance(text, str) and hear(text)


def _texts_of_query(_: Any, sqlQuery: str, *given: Any, **named: Any) -> tuple[str, list[str]]:  # noqa: N803 - as it is called
    return sqlQuery, _texts_within(given, named)


def _texts_within(given: Sequence[Any], named: Mapping[str, Any]) -> list[str]:
    """Return the texts that a query is formatted with."""
    return [one for one in (*given, *named.values()) if isinstance(one, str)]
