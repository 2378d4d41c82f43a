"""Expressions of Spark by which a frame's rows depend on more than the rows that are read: found in its plan, and refused.

Put here an expression of which nothing can be computed twice alike. What depends on the order of rows only where rows tie
(`first`, `collect_list`, `row_number`) is not named: many put what it gives in order afterwards, and computing again tells.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession, is_remote

from backfill_assets.declarations.target import PURITY_GATE
from manifests.errors import Problem, TransformRefused
from manifests.plan import Plan
from resources.spark.pyspark_private import analysed, analysed_text, asked_of_server, hearing_sql, is_connected

_CLOCK = "the clock of the machine", "`context.run_clock` is the only now there is"
_CHANCE = "chance", "take what is to look random from a hash of the key, for example xxhash64"
_PLACE = (
    "where rows lie, which is another place with each batch",
    "number rows by their key, and order by columns that no two rows share",
)
_INSTALLATION = "who computes, and where", "declare what it needs in the target's `configuration`"
_OUTSIDE = "whatever a method of Java answers", "use a function of Spark"
UNSTEADY: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        (
            "CurrentDate",
            "CurDateExpressionBuilder",
            "CurrentTimestamp",
            "CurrentTimestampLike",
            "Now",
            "LocalTimestamp",
            "CurrentTime",
        ),
        _CLOCK,
    ),
    **dict.fromkeys(("Rand", "Randn", "RandStr", "Uniform", "Uuid", "Shuffle", "Sample"), _CHANCE),
    **dict.fromkeys(
        (
            "MonotonicallyIncreasingID",
            "SparkPartitionID",
            "InputFileName",
            "InputFileBlockStart",
            "InputFileBlockLength",
        ),
        _PLACE,
    ),
    **dict.fromkeys(("CurrentUser", "CurrentDatabase", "CurrentCatalog"), _INSTALLATION),
    **dict.fromkeys(("CallMethodViaReflection", "TryReflect"), _OUTSIDE),
}
"""By the name of its class: on what an expression depends, and the way out."""
_MOMENTS = frozenset({"date", "timestamp", "timestamp_ntz"})
_PARSES = {"ParseToDate": "date", "ParseToTimestamp": "timestamp"}
_NOW_IN_WORDS = re.compile(r"\s*(now|today|yesterday|tomorrow)(\s*[^\sA-Za-z]\S*|\s+\S+)?\s*", re.IGNORECASE)
"""Text that Spark takes for a moment when it casts it, with a time zone or without."""


SAID: Mapping[str, str] = {
    "curdate": "CurrentDate",
    "current_catalog": "CurrentCatalog",
    "current_database": "CurrentDatabase",
    "current_date": "CurrentDate",
    "current_schema": "CurrentDatabase",
    "current_time": "CurrentTime",
    "current_timestamp": "CurrentTimestamp",
    "current_user": "CurrentUser",
    "input_file_block_length": "InputFileBlockLength",
    "input_file_block_start": "InputFileBlockStart",
    "input_file_name": "InputFileName",
    "java_method": "CallMethodViaReflection",
    "localtimestamp": "LocalTimestamp",
    "monotonically_increasing_id": "MonotonicallyIncreasingID",
    "now": "Now",
    "rand": "Rand",
    "randn": "Randn",
    "random": "Rand",
    "randstr": "RandStr",
    "reflect": "CallMethodViaReflection",
    "session_user": "CurrentUser",
    "shuffle": "Shuffle",
    "spark_partition_id": "SparkPartitionID",
    "try_reflect": "TryReflect",
    "uniform": "Uniform",
    "user": "CurrentUser",
    "uuid": "Uuid",
}
"""By the name of a function, in small letters: the class of its expression. A client of Spark Connect sees names alone."""
_COMES_TO = {"unix_timestamp": "CurrentTimestamp"}
"""By the name of a function: the class of what Spark may make of it."""
_MOST_FIELDS = "spark.sql.debug.maxToStringFields"
_CALL = re.compile(r"(?<![\w.'`])(\w+)\(")
_SAMPLE = re.compile(r"[\s:+|-]*Sample [\d.]")
_VIEW = re.compile(r"^[\s:+|-]*View \(", re.MULTILINE)
_NAMED = re.compile(r" AS (\w+)#\d+")
_CAST = re.compile(r"(?<!\w)(?:try_)?(cast|to_date|to_timestamp)(?:_ntz|_ltz)?\(")
_PARSED = {"to_date": "date", "to_timestamp": "timestamp"}


def require_steady(plan: Plan, rows: DataFrame) -> None:
    """Refuse a frame that has an expression of which nothing can be computed twice alike.

    Raises:
        TransformRefused: naming each, and the column that it is part of.
    """
    problems = [
        Problem(
            f"{plan.transform} {plan.transform_version} asks for {name}{f' in column {column}' if column else ''}",
            f"the same plan has the same rows, whenever and wherever it is computed: this depends on {on}",
            way_out,
        )
        for name, column in dict.fromkeys(unsteady(rows))
        for on, way_out in (UNSTEADY.get(name, _CLOCK),)
    ]
    if problems:
        raise TransformRefused(problems)


@contextmanager
def steady_texts(plan: Plan) -> Iterator[None]:
    """Refuse a transform that has Spark parse a word for now meanwhile: its parser puts a moment in its place, and no plan shows it.

    A run that has no gate of purity (planned before there was one) is judged as before.

    Raises:
        TransformRefused: naming each.
    """
    texts: list[str] = []
    with hearing_sql(texts.append, connected=is_remote()):
        yield
    if PURITY_GATE not in plan.gates:
        return
    found = dict.fromkeys(said for text in texts for said in words_for_now(text))
    if found:
        raise TransformRefused(
            Problem(
                f"{plan.transform} {plan.transform_version} asks for {said}",
                f"the same plan has the same rows, whenever and wherever it is computed: this depends on {_CLOCK[0]}",
                _CLOCK[1],
            )
            for said in found
        )


def words_for_now(text: str) -> Iterator[str]:
    """Yield the literals of a text of SQL in which Spark's parser puts the day or the instant of parsing: `DATE 'today'`."""
    for found in _TOKENS.finditer(text):
        if found["kind"] is None:
            continue
        said = found["raw"] if found["raw"] is not None else _unescaped(found["said"])
        if _NOW_IN_WORDS.fullmatch(said):
            yield f"{found['kind'].upper()} '{said}'"


_TOKENS = re.compile(
    r"""--[^\n]*|/\*.*?\*/|`(?:[^`]|``)*`|
    \b(?P<kind>DATE|TIMESTAMP(?:_NTZ|_LTZ)?)(?:\s|--[^\n]*\n|/\*.*?\*/)*
        (?:r(?P<mark>['"])(?P<raw>.*?)(?P=mark)|(?P<quote>['"])(?P<said>(?:\\.|(?!(?P=quote)).)*)(?P=quote))|
    '(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
"""What of a text of SQL is no word of it, comments and texts among them; and a text that is written as a day or an instant."""
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "b": "\b", "0": "\0"}


def _unescaped(said: str) -> str:
    def one(found: re.Match[str]) -> str:
        short, long, octal, letter = found.groups()
        if letter is not None:
            return _LETTERS.get(letter, letter)
        return chr(int(octal, 8) if octal is not None else int(short or long, 16))

    return _ESCAPE.sub(one, said)


def unsteady(rows: DataFrame) -> Iterator[tuple[str, str]]:
    """Yield the expressions in a frame's plan that are refused, each with the column that it is part of, or nothing."""
    if is_connected(rows):
        with _told_whole(rows.sparkSession):
            text = analysed_text(rows)
        return unsteady_in_text(text, *asked_of_server(rows))
    return _named(analysed(rows), "")


@contextmanager
def _told_whole(session: SparkSession) -> Iterator[None]:
    """Have Spark leave out nothing of the plans that it words meanwhile: it names 25 columns, else, and says how many more there are."""
    before = session.conf.get(_MOST_FIELDS, None)
    session.conf.set(_MOST_FIELDS, str(2**31 - 1))
    try:
        yield
    finally:
        session.conf.unset(_MOST_FIELDS) if before is None else session.conf.set(_MOST_FIELDS, before)


def unsteady_in_text(
    plan: str, asked: Collection[str], texts: Sequence[str], given: Collection[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield what `unsteady` does, from the words that Spark has for an analysed plan.

    Whatever looks like a function there is one, whoever has asked for it: `unix_timestamp()` comes to a clock, and a view has what
    another frame asked for. But the words show texts without quotes. So texts of the frame (`given`, and those in what Spark has
    parsed) that look like a function count only where that function was asked for, by its name (`asked`) or in a text of SQL, and
    where no view is read.
    """
    said = set(asked) | {word for text in texts for word in _words(text)}
    wanted = {found for word in said if (found := SAID.get(word) or _COMES_TO.get(word))}
    apart = [*given, *(one for text in texts for one in _quoted(text))]
    bare = plan if _VIEW.search(plan) else _without(plan, apart)
    yield from (one for one in _calls(plan) if one[0] in wanted)
    yield from (one for one in _calls(bare) if one[0] not in wanted)
    sampled = plan if said & {"sample", "tablesample"} else bare
    yield from (("Sample", "") for line in sampled.splitlines() if _SAMPLE.match(line))
    for line in plan.splitlines():
        for start, words, moment in _casts(line):
            yield f"'{words}' as a {moment}", _column_after(line, start)


def _calls(plan: str) -> Iterator[tuple[str, str]]:
    for line in plan.splitlines():
        for found in _CALL.finditer(line):
            name = SAID.get(found[1].lower())
            end = found.end() + len(_until_closed(line, found.end())) + 1
            if name is not None and line[end : end + 1] != "#":  # a column, or a function of Python, has a number
                yield name, _column_after(line, found.start())


def _without(plan: str, apart: Collection[str]) -> str:
    """Return a plan without those texts of its frame in which something looks like a function, or like a sample."""
    for text in sorted(set(apart), key=len, reverse=True):
        if any(found[1].lower() in SAID for found in _CALL.finditer(text)) or any(
            map(_SAMPLE.match, text.splitlines())
        ):
            plan = plan.replace(text, " ")
    return plan


def _quoted(text: str) -> Iterator[str]:
    """Yield the texts, and the quoted names, in a text of SQL."""
    for found in _TOKENS.finditer(text):
        if found[0].startswith(("'", '"')):
            yield _unescaped(found[0][1:-1])
        elif found[0].startswith("`"):
            yield found[0].strip("`")


def _words(text: str) -> Iterator[str]:
    """Yield the words of a text of SQL, in small letters, without those of its texts and remarks."""
    bare = _TOKENS.sub(lambda found: found[0][1:-1] if re.fullmatch(r"`\w+`", found[0]) else " ", text)
    yield from re.findall(r"\w+", bare.lower())


def _column_after(line: str, start: int) -> str:
    found = _NAMED.search(line, start)
    return "" if found is None else found[1]


def _casts(line: str) -> Iterator[tuple[int, str, str]]:
    """Yield where a line makes a day or an instant of a text that Spark takes for now, that text, and the type."""
    for found in _CAST.finditer(line):
        inside, _, kind = _until_closed(line, found.end()).rpartition(" as ")
        if found[1] != "cast":
            kind = _PARSED[found[1]]
            inside, without_form, _ = _until_closed(line, found.end()).partition(", None, ")
            if not without_form:  # with a format of its own there are no words
                continue
        if kind not in _MOMENTS or "#" in inside:  # what has a column inside is left to the rows
            continue
        words = "".join(re.split(r"\w+\(|, |\)", inside))
        if _NOW_IN_WORDS.fullmatch(words):
            yield found.start(), words, kind


def _until_closed(line: str, start: int) -> str:
    """Return what stands in a line until the bracket closes that was opened before `start`."""
    depth = 1
    for end in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[end], 0)
        if not depth:
            return line[start:end]
    return line[start:]


def _named(nodes: Sequence[Any], column: str) -> Iterator[tuple[str, str]]:
    for number, node in enumerate(nodes):
        if isinstance(node, list):
            yield from _named(node, column)
        elif isinstance(node, dict) and "class" in node:
            name = str(node["class"]).rpartition(".")[2]
            if name == "Alias" and isinstance(node.get("name"), str):
                column = node["name"]
            if name in UNSTEADY:
                yield name, column
            if (moment := _moment_of(name, node)) and (said := _now_in_words(nodes[number + 1 :])):
                yield f"'{said}' as a {moment}", column
            yield from _named([value for value in node.values() if isinstance(value, (list, dict))], column)


def _moment_of(name: str, node: Mapping[str, Any]) -> str:
    """Return of which type what an expression makes of a text is, where that is a day or an instant; else nothing."""
    if name == "Cast":
        kind = node.get("dataType")
        return kind if isinstance(kind, str) and kind in _MOMENTS else ""
    return _PARSES.get(name, "") if node.get("num-children") == 1 else ""  # with a format of its own there are no words


def _now_in_words(nodes: Sequence[Any]) -> str:
    """Return the text that the expression at the beginning of nodes is, where it is one of Spark's words for a moment; else nothing.

    Texts that are put together of others are read in their order. What has a column inside is left to the rows.
    """
    texts, left = [], 1
    for node in nodes:
        if not left or not isinstance(node, dict):
            break
        left += int(node.get("num-children", 0)) - 1
        if node.get("num-children", 0):
            continue
        if not str(node.get("class", "")).endswith(".Literal"):
            return ""
        texts.append(str(node.get("value") or ""))
    said = "".join(texts)
    return said if _NOW_IN_WORDS.fullmatch(said) else ""
