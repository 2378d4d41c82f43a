"""What a session asks of a Sail server, on its way there: put into words that Sail knows, or refused.

Put here a request of Spark Connect that Sail does not take though an equal one does, and one that must not reach it. It is done on
the channel of one session, so that no other session of the process is touched. That session itself is `sail`'s.

Sail's sessions are not confined as Spark's are: it has no view of the file system with the warehouse alone, and writes whatever it is
told to. So files are read and written below the given folders only, and of SQL only queries are let through. Python functions
of a product run in Sail's process, with what that process may do, as they do in Spark's workers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import grpc  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]

from manifests.errors import Problem, TransformRefused
from resources.lakehouse.facade import local_path
from resources.spark.pyspark_private import messages_of

_ALLOWED = frozenset(
    {
        "register_function",
        "register_table_function",
        "create_dataframe_view",
        "get_resources_command",
        "sql_command",
        "write_operation",
        "checkpoint_command",
        "remove_cached_remote_relation_command",
    }
)
"""Commands by which nothing is changed outside the session, the one that writes files, whose folder is looked at, and checkpoints,
which lie where the server was told."""
_ASKS_CATALOG = (
    "current_",
    "list_",
    "get_",
    "table_exists",
    "database_exists",
    "function_exists",
    "drop_temp_view",
    "is_cached",
)
"""How what changes no table begins, among what a catalog is asked."""
_FILE_IN_SQL = re.compile(r"\.\s*`[^`]*[/:][^`]*`")
"""How SQL names a file as a table."""
_SHOWN = 80
_WAY_OUT = "return the rows, and write nothing; what it reads, declare as a reference table or a further source"


class SailRequests(grpc.UnaryStreamClientInterceptor, grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Looks at each request of a session: what it may not ask is refused here, and nothing is sent.

    `folders` are those below which files may be read and written.
    """

    def __init__(self, *folders: str) -> None:
        self._folders = tuple(f"{local_path(folder).rstrip('/')}/" for folder in folders)
        self._judges: dict[str, Callable[[Any], str]] = {
            "spark.connect.Command": _wrong_command,
            "spark.connect.Catalog": _wrong_question,
            "spark.connect.WriteOperation": self._wrong_write,
            "spark.connect.Read.DataSource": self._wrong_read,
            "spark.connect.Read.NamedTable": _wrong_table,
            "spark.connect.SQL": lambda message: _wrong_sql(message.query),
            "spark.connect.SqlCommand": lambda message: _wrong_sql(message.sql),
        }

    def intercept_unary_stream(self, ask: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        """Pass on a request whose answer is a stream: rows that are computed, and commands.

        Raises:
            TransformRefused: if it would read or write what a transform is not given.
        """
        return ask(details, self._passed_on(request))

    def intercept_unary_unary(self, ask: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        """Pass on a request with one answer: schemas of frames, and settings.

        Raises:
            TransformRefused: as above.
        """
        return ask(details, self._passed_on(request))

    def _passed_on(self, request: Any) -> Any:
        if not isinstance(request, Message):  # a stream of files
            return request
        passed = type(request)()
        passed.CopyFrom(request)
        for message in messages_of(passed):
            _reword(message)
        for message in messages_of(passed):
            self._judge(message)
        return passed

    def _judge(self, message: Any) -> None:
        judge = self._judges.get(message.DESCRIPTOR.full_name)
        if judge is not None and (wrong := judge(message)):
            raise _refused(wrong)

    def _wrong_write(self, message: Any) -> str:
        places = [message.path, *_paths_among(message.options)]
        is_right = message.WhichOneof("save_type") == "path" and all(map(self._is_within, places))
        return "" if is_right else "writes files or a table itself"

    def _wrong_read(self, message: Any) -> str:
        places = [*message.paths, *_paths_among(message.options)]
        is_right = message.format.lower() in _FORMATS and places and all(map(self._is_within, places))
        return "" if is_right else f"reads {', '.join(places) or message.format} itself"

    def _is_within(self, path: str) -> bool:
        if urlsplit(path).scheme not in {"", "file"}:
            return False
        place = local_path(path)
        return place.startswith(self._folders) and ".." not in place.split("/")


_FORMATS = frozenset({"parquet", "csv", "json", "text", "orc", "avro"})
"""Sources that are files."""


def _reword(message: Any) -> None:
    """Say in Sail's words what it does not know in Spark's; the rows that are asked for are the same."""
    kind = message.DESCRIPTOR.full_name
    if kind == "spark.connect.Relation":
        while message.WhichOneof("rel_type") == "collect_metrics":  # `observe`: the rows, without their count
            within = type(message)()
            within.CopyFrom(message.collect_metrics.input)
            message.CopyFrom(within)
    elif kind == "spark.connect.RepartitionByExpression":
        for place in message.partition_exprs:  # `repartitionById`: the place of a row in the layout is no part of it
            if place.WhichOneof("expr_type") == "direct_shuffle_partition_id":
                within = type(place)()
                within.CopyFrom(place.direct_shuffle_partition_id.child)
                place.CopyFrom(within)
    elif kind in {"spark.connect.LocalRelation", "spark.connect.Read.DataSource"} and message.schema.startswith("{"):
        message.schema = json.dumps(_name_and_type(json.loads(message.schema)))


def _name_and_type(schema: Any) -> Any:
    """Return a schema without what its columns say besides, the ids of Iceberg among it: Sail cannot parse it."""
    if isinstance(schema, list):
        return [_name_and_type(one) for one in schema]
    if isinstance(schema, dict):
        return {name: {} if name == "metadata" else _name_and_type(value) for name, value in schema.items()}
    return schema


def _wrong_command(message: Any) -> str:
    command = message.WhichOneof("command_type")
    return "" if command in _ALLOWED else f"asks for {_in_words(command)}"


def _wrong_question(message: Any) -> str:
    asked = message.WhichOneof("cat_type")
    return "" if asked is not None and asked.startswith(_ASKS_CATALOG) else f"asks the catalog for {_in_words(asked)}"


def _wrong_table(message: Any) -> str:
    name = message.unparsed_identifier
    return f"reads {name} itself" if {"/", ":"} & set(name) else ""


def _wrong_sql(text: str) -> str:
    """Say what is wrong with SQL that is more than a query of what a session has; nothing of no text."""
    from sqlglot import exp, parse  # noqa: PLC0415 - most reproductions ask for none
    from sqlglot.errors import SqlglotError  # noqa: PLC0415

    if not text.strip():
        return ""
    shown = " ".join(text.split())[:_SHOWN]
    try:
        statements = parse(text, read="spark")
    except SqlglotError:
        return f"asks for SQL that cannot be read: {shown}"
    if not all(isinstance(one, exp.Query) for one in statements):
        return f"asks for more than a query: {shown}"
    return f"reads files itself: {shown}" if _FILE_IN_SQL.search(text) else ""


def _paths_among(options: Mapping[str, str]) -> list[str]:
    return [value for name, value in options.items() if name.lower() == "path"]


def _in_words(command: str | None) -> str:
    return (command or "a command that is not known").removesuffix("_command").replace("_", " ")


def _refused(what: str) -> TransformRefused:
    return TransformRefused(
        Problem(
            f"the transform {what}; nothing was sent to Sail",
            "a transform reads what it is given, returns its rows and has no other effect",
            _WAY_OUT,
        )
    )
