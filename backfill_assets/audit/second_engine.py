"""Another engine than Spark for a reproduction: an installation that computes on it for a while, and what its errors mean.

Put here what an engine cannot be asked for, said before anything is computed, and how one that fails is named. What is compared is
`reproduce`'s; the engine's server and its session are `resources.spark.sail`'s. No other module of this project asks for one: what
is published was computed and judged by Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from pyspark.errors import PySparkException, PythonException, UnsupportedOperationException

from backfill_assets.audit.conditions import Cause, Condition
from backfill_assets.installation import Platform
from manifests.errors import EnvironmentRefused, Problem, Refused
from manifests.plan import Plan
from manifests.text import words_of
from resources.files.stores import is_local
from resources.spark import sail
from resources.spark.engines import OtherEngine
from resources.spark.failures import is_lost

ON_SPARK = "`backfill reproduce` without --engine"
_LINE = 400
_UNKNOWN = re.compile(
    r"(?:(?:not (?:yet )?(?:supported|implemented)|unsupported)[^:]*: *|cannot run )(.+)", re.IGNORECASE
)
"""How Sail says that it does not know what it was asked for, where the kind of its error does not."""
_KIND = re.compile(r"^(?:unknown )?(?:aggregate |window |table )?function: *")


class EngineName(StrEnum):
    """Which engine computes a reproduction."""

    SPARK = "spark"
    SAIL = "sail"


@dataclass(frozen=True)
class EngineUsed:
    """What has computed a reproduction. `notes` say what it does otherwise than Spark, and was made good or left out."""

    name: str
    version: str
    notes: tuple[str, ...] = ()


def require_usable(platform: Platform, plan: Plan) -> None:
    """Refuse a run that the second engine cannot compute, before anything of it is.

    Raises:
        EnvironmentRefused: if Sail is not installed, or a table that is read or written is in a store.
    """
    sail.require_installed()
    tables = dict.fromkeys(
        [
            plan.target,
            plan.source,
            *(pin.table for pin in plan.references),
            *(pin.table for pin in plan.sources if pin.snapshot_id is not None),
        ]
    )
    places = {table: platform.lakehouse.location(table) for table in tables}
    if far := {table: place for table, place in places.items() if not is_local(place)}:
        shown = ", ".join(f"{table} ({place.partition('://')[0]})" for table, place in far.items())
        raise EnvironmentRefused(
            Problem(
                f"{sail.NAME} does not compute on tables outside this machine's file system: {shown}",
                "its server has no credential of a store, and is given none",
                f"reproduce the run on Spark: {ON_SPARK}",
            )
        )


def condition_of(version: str = "") -> Condition:
    """Return the engine as what decides the output: what was published is Spark's."""
    return Condition(
        "engine",
        "Spark",
        f"{sail.NAME} {version}".strip(),
        same=False,
        cause=Cause.ENGINE,
        fix=f"{ON_SPARK} tells whether it is the engine: equal there, only {sail.NAME} computes something else",
    )


@contextmanager
def computing_on_sail(platform: Platform, plan: Plan, scratch: str) -> Iterator[tuple[Platform, OtherEngine]]:
    """Yield the installation with Sail in the place of Spark meanwhile; below `scratch` alone it reads and writes files.

    Raises:
        EnvironmentRefused: if Sail does not start.
    """
    code = platform.code_of_workers
    with sail.serving(platform.settings, plan.mode, scratch, modules=platform.worker_modules, code=code) as (
        spark,
        engine,
    ):
        engine.note(
            f"whether the frame asks for a clock, chance or a place was judged by Spark when the run was staged: {engine} shows no plan "
            "that could be judged"
        )
        yield platform.with_spark(spark), engine


def named(engine: OtherEngine, error: BaseException) -> tuple[str, bool]:
    """Return what an error of an engine means for people, and whether it would be any chunk's.

    Nothing is said of a refusal of this project, and of what Python code has raised: they speak for themselves.
    """
    cause: BaseException = error
    while not isinstance(cause, PySparkException) and cause.__cause__ is not None:
        cause = cause.__cause__
    if not isinstance(cause, PySparkException):
        return "", False
    if is_lost(cause):
        return f"the server of {engine} has ended while it computed: it may have had too little memory", True
    said = words_of(cause).strip().partition("\n")[0]
    unknown = _UNKNOWN.search(said)
    if unknown is None and not isinstance(cause, UnsupportedOperationException):
        is_its_own = not isinstance(error, Refused) and not isinstance(cause, PythonException)
        return (f"{engine} fails: {' '.join(said.split())[:_LINE]}" if is_its_own else ""), False
    what = _KIND.sub("", said if unknown is None else unknown[1])
    return f"{engine} does not know `{' '.join(what.split())[:_LINE].rstrip(' .')}`", True
