"""What is known of a transform's SQL without a session: what it reads, its parameters, and what it must not ask.

Put here a rule that the text itself breaks. That a column or a function exists is Spark's to say when the frame is built; that
rows are the same whenever they are computed, a trial's and the gates'. Polars, pandera and PySpark are not needed here, and
sqlglot is imported when a text is read: Spark's workers import declarations, and read none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlglot import Expr, Token

_CLOCK = "a transform asks no clock: `:run_clock` is the run's only now"
_CHANCE = "a row is the same whenever and wherever it is computed: an id is a hash of what identifies the row"
_LAYOUT = "rows do not depend on how files and partitions lie"
_WHO = "rows do not depend on who computes them, or on which installation"
_REACHES_OUT = "a transform reads what it is given, and calls nothing outside"
_ASKED: dict[str, str] = {
    **dict.fromkeys(
        ("now", "current_timestamp", "current_date", "current_time", "curdate", "localtimestamp", "current_timezone"),
        _CLOCK,
    ),
    **dict.fromkeys(("rand", "randn", "random", "uuid", "shuffle", "randstr", "uniform", "aes_encrypt"), _CHANCE),
    **dict.fromkeys(
        (
            "monotonically_increasing_id",
            "spark_partition_id",
            "input_file_name",
            "input_file_block_start",
            "input_file_block_length",
        ),
        _LAYOUT,
    ),
    **dict.fromkeys(
        ("current_user", "user", "session_user", "current_catalog", "current_database", "current_schema", "version"),
        _WHO,
    ),
    **dict.fromkeys(
        ("reflect", "java_method", "try_reflect", "identifier", "from_protobuf", "to_protobuf"), _REACHES_OUT
    ),
}
"""Functions that a transform does not call, each with the rule."""
_UNBRACKETED = frozenset(
    {
        "current_timestamp",
        "current_date",
        "current_time",
        "localtimestamp",
        "current_user",
        "session_user",
        "current_catalog",
        "current_database",
        "current_schema",
        "user",
    }
)
"""Those of them that Spark also calls without brackets, where no column has the name."""
_READS_FILES = re.compile(r"read_\w+")
_NOW_IN_WORDS = re.compile(r"\s*(now|today|yesterday|tomorrow)(\s*[^\sA-Za-z]\S*|\s+\S+)?\s*", re.IGNORECASE)
"""Text that Spark takes for a moment when it casts it, with a time zone or without."""
_MAKE_ROWS = frozenset(
    {
        *(
            "explode",
            "explode_outer",
            "inline",
            "inline_outer",
            "json_tuple",
            "posexplode",
            "posexplode_outer",
            "range",
        ),
        *("stack", "variant_explode", "variant_explode_outer"),
    }
)
"""Functions of Spark that make rows, and ask nothing of an installation."""
_BEGINNINGS = frozenset({"SELECT", "WITH", "("})


@dataclass(frozen=True)
class SqlProblem:
    """What is wrong with a query: in which line (from 1), what, by which rule, and what to do."""

    line: int
    what: str
    rule: str
    fix: str


@dataclass(frozen=True)
class ReadTable:
    """A table that a query reads: its name in small letters, where it stands in the text, and whether it is named otherwise there.

    `start` and `end` are offsets of characters, the end exclusive.
    """

    name: str
    line: int
    start: int
    end: int
    is_renamed: bool


@dataclass(frozen=True)
class SqlReading:
    """What is known of a query.

    Attributes:
        text: the query.
        tables: what it reads, in the order of the text; its own common table expressions are none.
        own: the names of its common table expressions, in small letters, each with its line.
        parameters: the names of its parameters, each with the line of its first use.
        problems: why no transform may have it.
    """

    text: str
    tables: tuple[ReadTable, ...]
    own: Mapping[str, int]
    parameters: Mapping[str, int]
    problems: tuple[SqlProblem, ...]

    def over(self, frames: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the query as `SparkSession.sql` takes it, and the frames that it is given by the names of places in it.

        A table stands in the query as a place, `{view_0}`, and Spark puts its frame there; braces of the text are doubled.
        A table that the query does not rename keeps its name.
        """
        places = {name: f"view_{number}" for number, name in enumerate(dict.fromkeys(one.name for one in self.tables))}
        parts: list[str] = []
        at = 0
        for table in self.tables:
            short = table.name.rpartition(".")[2]
            named = "" if table.is_renamed else f" AS `{short}`"
            parts += [_doubled(self.text[at : table.start]), f"{{{places[table.name]}}}{named}"]
            at = table.end
        query = "".join([*parts, _doubled(self.text[at:])])
        return query, {place: frames[name] for name, place in places.items()}


def read_sql(text: str) -> SqlReading:
    """Return what is known of a query; what Spark's grammar has and this reading does not know is one of its problems."""
    from sqlglot.errors import SqlglotError  # noqa: PLC0415 - see above

    try:
        tokens = _tokens(text)
        statement = _parsed(text, tokens)
    except _UnreadableError as error:
        return SqlReading(text, (), {}, {}, (error.problem,))
    except RecursionError:
        return SqlReading(text, (), {}, {}, (_TOO_DEEP,))
    except SqlglotError as error:
        where = (getattr(error, "errors", None) or [{}])[0]
        said = where.get("description") or str(error).partition("\n")[0]
        return SqlReading(text, (), {}, {}, (_unreadable(int(where.get("line") or 1), said),))
    text = text[: tokens[-1].end + 1]
    own = _own_names(statement, text)
    tables = tuple(sorted(_tables(statement, own), key=lambda one: one.start))
    parameters, unnamed = _parameters(tokens)
    problems = (*_of_tokens(text, tokens), *unnamed, *_of_statement(statement, text))
    return SqlReading(text, tables, own, parameters, tuple(sorted(dict.fromkeys(problems), key=lambda one: one.line)))


_TOO_DEEP = SqlProblem(
    1,
    "its brackets, or its terms, lie too deep inside one another to be read",
    "what it reads and asks is known before anything is computed",
    "name parts of it in WITH, or write it as a function in Python",
)


class _UnreadableError(Exception):
    def __init__(self, problem: SqlProblem) -> None:
        self.problem = problem
        super().__init__(problem.what)


def _unreadable(line: int, said: str) -> SqlProblem:
    return SqlProblem(
        line,
        f"it cannot be read: {said}",
        "what it reads and asks is known before anything is computed",
        "correct it; what Spark takes and is not understood here is written as a function in Python",
    )


def _doubled(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _tokens(text: str) -> list[Token]:
    from sqlglot import TokenType  # noqa: PLC0415
    from sqlglot.dialects import Spark  # noqa: PLC0415 - see above

    tokens: list[Token] = Spark().tokenize(text)
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    if not tokens:
        raise _UnreadableError(
            SqlProblem(1, "it is empty", "a transform is one query", "write it: SELECT ... FROM source")
        )
    second = next((one for one in tokens if one.token_type is TokenType.SEMICOLON), None)
    if second is not None:
        raise _UnreadableError(
            SqlProblem(
                second.line, "it has several statements", "a transform is one query", "leave the query, and no other"
            )
        )
    piped = next((one for one in tokens if one.token_type is TokenType.PIPE_GT), None)
    if piped is not None:
        raise _UnreadableError(
            SqlProblem(
                piped.line,
                "it has the pipe |>",
                "what it reads and asks is known before anything is computed, and of a query with pipes it is not",
                "write its steps as subqueries: WITH step AS (SELECT ...) SELECT ... FROM step",
            )
        )
    if (first := tokens[0].text.upper()) not in _BEGINNINGS:
        raise _UnreadableError(
            SqlProblem(
                tokens[0].line,
                f"it begins with {first}",
                "a transform is a query: it defines, changes and sets nothing",
                "begin with SELECT or WITH",
            )
        )
    return tokens


def _parsed(text: str, tokens: Sequence[Token]) -> Expr:
    from sqlglot import exp  # noqa: PLC0415 - see above
    from sqlglot.dialects import Spark  # noqa: PLC0415

    (statement,) = Spark().parser().parse(list(tokens), text)
    if not isinstance(statement, exp.Query):
        what = type(statement).__name__.upper() if statement is not None else "nothing"
        raise _UnreadableError(
            SqlProblem(
                tokens[0].line,
                f"it is {what}",
                "a transform is a query: it defines, changes and sets nothing",
                "begin with SELECT or WITH",
            )
        )
    return statement


def _own_names(statement: Expr, text: str) -> dict[str, int]:
    """Return the common table expressions of a query, with the line of each."""
    from sqlglot import exp  # noqa: PLC0415 - see above

    return {one.alias.lower(): _line(one, text) for one in statement.find_all(exp.CTE)}


def _tables(statement: Expr, own: Collection[str]) -> Iterator[ReadTable]:
    """Yield each table that a query reads, but for its own common table expressions and for functions that make rows."""
    from sqlglot import exp  # noqa: PLC0415 - see above

    for table in statement.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier) or table.find_ancestor(exp.Hint) is not None:
            continue
        parts = [one for one in (table.args.get("catalog"), table.args.get("db"), table.this) if one is not None]
        name = ".".join(str(one.this) for one in parts).lower()
        if name in own:
            continue
        first, last = parts[0].meta, parts[-1].meta
        yield ReadTable(name, int(first["line"]), int(first["start"]), int(last["end"]) + 1, bool(table.alias))


def _parameters(tokens: Sequence[Token]) -> tuple[dict[str, int], list[SqlProblem]]:
    """Return the named parameters of a query, each with its first line; and what is wrong with others."""
    from sqlglot import TokenType  # noqa: PLC0415 - see above

    found: dict[str, int] = {}
    problems: list[SqlProblem] = []
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.token_type is TokenType.COLON and following is not None and following.start == token.end + 1:
            found.setdefault(following.text, following.line)
        elif token.token_type is TokenType.PLACEHOLDER:
            problems.append(
                SqlProblem(
                    token.line, "it has a parameter without a name", "a parameter is named", "write `:run_clock`"
                )
            )
    return found, problems


def _of_tokens(text: str, tokens: Sequence[Token]) -> Iterator[SqlProblem]:
    """Say what words of a query ask for that a transform may not know."""
    from sqlglot import TokenType  # noqa: PLC0415 - see above

    for at in (found.start() for found in re.finditer(r"\$\{", text)):
        yield SqlProblem(
            text.count("\n", 0, at) + 1,
            "it has `${`",
            "Spark would put a setting or a variable of the environment there",
            "write a parameter, `:name`, and give it in the target's `configuration`",
        )
    texts = {TokenType.STRING, TokenType.RAW_STRING, TokenType.NATIONAL_STRING}
    for number, token in enumerate(tokens):
        before = tokens[number - 1].text if number else ""
        after = tokens[number + 1].text if number + 1 < len(tokens) else ""
        name = token.text.lower()
        if token.token_type in texts:
            if _NOW_IN_WORDS.fullmatch(token.text):
                yield SqlProblem(
                    token.line,
                    f"it has the text '{token.text}'",
                    f"Spark takes it for a day or an instant where one is wanted; {_CLOCK}",
                    "write `:run_clock`; where it is a value of a column, give it in `configuration` and write `:name`",
                )
        elif after == "(" and (name in _ASKED or _READS_FILES.fullmatch(name)):
            yield _asked(token.line, f"{name}()", _ASKED.get(name, _REACHES_OUT))
        elif name in _UNBRACKETED and "." not in {before, after} and after != "(" and before.upper() != "AS":
            yield _asked(token.line, name, _ASKED[name])
        elif name == "unix_timestamp" and [one.text for one in tokens[number + 1 : number + 3]] == ["(", ")"]:
            yield _asked(token.line, "unix_timestamp()", _CLOCK)


def _asked(line: int, what: str, rule: str) -> SqlProblem:
    fix = "write `:run_clock`" if rule is _CLOCK else "compute it from columns of the inputs, or take it out"
    if what in _UNBRACKETED:
        fix += f"; a column of that name is written with its table, `source.{what}`"
    return SqlProblem(line, f"it asks {what}", rule, fix)


def _of_statement(statement: Expr, text: str) -> Iterator[SqlProblem]:
    """Say which clauses of a query leave its rows to chance, or to a program outside."""
    from sqlglot import exp  # noqa: PLC0415 - see above

    for limited in statement.find_all(exp.Select, exp.SetOperation):
        if (limited.args.get("limit") or limited.args.get("offset")) and not limited.args.get("order"):
            yield SqlProblem(
                _line(limited, text), "it has LIMIT or OFFSET without ORDER BY", "which rows are left is not left to chance", "say ORDER BY"
            )  # fmt: skip
    for sampled in statement.find_all(exp.TableSample):
        yield SqlProblem(
            _line(sampled, text),
            "it has TABLESAMPLE",
            _CHANCE,
            "compute all rows; `sample` of a manifest computes some chunks",
        )
    for made in statement.find_all(exp.Table, exp.Lateral):
        name = _unknown_function(made)
        if name:
            yield SqlProblem(
                _line(made, text),
                f"it reads rows of {name}()",
                f"rows come from declared tables, or from a function of Spark: {', '.join(sorted(_MAKE_ROWS))}",
                f"{_meant(name)}declare the table that it reads, or write it as a function in Python",
            )
    for piped in statement.find_all(exp.QueryTransform):
        yield SqlProblem(
            _line(piped, text), "it has TRANSFORM ... USING", _REACHES_OUT, "write it as a function in Python"
        )
    for travelled in statement.find_all(exp.Version):
        yield SqlProblem(
            _line(travelled, text), "it has VERSION or TIMESTAMP AS OF", "the plan pins what is read", "take it out"
        )


def _unknown_function(made: Expr) -> str:
    """Return the name of a function that rows are read of, where Spark brings none of that name along; else nothing.

    What sqlglot knows by itself, as `explode`, is Spark's, and no `Anonymous` function.
    """
    from sqlglot import exp  # noqa: PLC0415 - see above

    function = made.this
    if isinstance(function, exp.Anonymous) and function.name.lower() == "table" and function.expressions:
        function = function.expressions[0]  # TABLE(function(...))
    if not isinstance(function, exp.Anonymous):
        return ""
    name = function.name.lower()
    if name in {*_MAKE_ROWS, *_ASKED, "table"} or _READS_FILES.fullmatch(name):  # of those asked it is said already
        return ""
    return function.name


def _meant(name: str) -> str:
    close = get_close_matches(name.lower(), _MAKE_ROWS, n=1)
    return f"did you mean {close[0]}? Else " if close else ""


def _line(part: Expr, text: str) -> int:
    """Return the line in which a part of a query begins, as far as its words say; they stand in the parts within."""
    starts = [one.meta["start"] for one in part.walk() if "start" in one.meta]
    return text.count("\n", 0, min(starts)) + 1 if starts else 1
