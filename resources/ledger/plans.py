"""Plans as the ledger keeps them: fetched where something needs one, and parsed once.

Put here how a recorded plan becomes a `Plan` again. A plan names each chunk, so it is long, and few questions about a run
need it: nothing that lists runs, moves them or stages chunks does. What a plan says never changes, so that a parsed one
is kept under its text, and a ledger that was changed by hand is not answered from memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles

from manifests.chunks import in_words
from manifests.errors import Problem, StateMoved
from manifests.plan import Plan, plan_from_json
from resources.ledger.cells import Text, legible
from resources.ledger.tables import runs

_KEPT = 16_000_000
"""Characters of the plans that are kept parsed, unless the newest one alone is longer."""
_parsed: OrderedDict[str, Plan] = OrderedDict()
_lock = Lock()


def parsed(text: str) -> Plan:
    """Return the plan of a text.

    Raises:
        IllegibleRow: if it is none.
    """
    with _lock:
        if (known := _parsed.get(text)) is not None:
            _parsed.move_to_end(text)
            return known
    with legible("a plan in the ledger"):
        plan = plan_from_json(text)
    with _lock:
        _parsed[text] = plan
        while len(_parsed) > 1 and sum(map(len, _parsed)) > _KEPT:
            _parsed.popitem(last=False)
    return plan


def fetch(engine: sa.Engine, run_id: str, plan_hash: str) -> Plan:
    """Return the plan of a run that was looked at.

    Raises:
        StateMoved: if the run has another plan by now: nobody had approved the one it had.
    """
    query = sa.select(runs.c.plan).where(runs.c.run_id == run_id, runs.c.plan_hash == plan_hash)
    with engine.connect() as connection:
        text = connection.execute(query).scalar()
    if text is None:
        raise planned_anew(run_id, plan_hash)
    return parsed(text)


def planned_anew(run_id: str, plan_hash: str) -> StateMoved:
    """Return what somebody is told who has looked at a plan that the run no longer has."""
    return StateMoved(
        Problem(
            f"run '{run_id}' was planned anew since: its plan is no longer {plan_hash}",
            "what is done with a run is done with the plan that was looked at",
            f"look at `backfill status {run_id}` again",
        )
    )


def computed_in_vain(run_id: str, keys: Sequence[str]) -> StateMoved:
    """Return what a launch is told that computes chunks by a plan which they have no longer."""
    return StateMoved(
        Problem(
            f"chunk(s) of run '{run_id}' were planned anew while this launch computed them by their earlier plan: {in_words(keys)}",
            "what is staged of a chunk was computed by the plan that it has",
            f"nothing has failed, and nothing of this attempt is used; `backfill run {run_id}` computes them by the new plan",
        )
    )


class said(sa.sql.functions.GenericFunction[str]):  # noqa: N801 - named as what it is in a query
    """What a plan says under a name, as text, read by the database: `said(runs.c.plan, "reads")`."""

    type = Text()
    inherit_cache = True

    def __init__(self, plan: sa.ColumnElement[Any], name: str) -> None:
        super().__init__(plan, sa.literal_column(f"'{name}'"))


@compiles(said, "sqlite")
def _sqlite(element: said, compiler: Any, **options: Any) -> str:
    plan, name = element.clauses
    return f"json_extract({compiler.process(plan, **options)}, '$.' || {compiler.process(name, **options)})"


@compiles(said, "postgresql")
def _postgres(element: said, compiler: Any, **options: Any) -> str:
    plan, name = element.clauses
    return f"({compiler.process(plan, **options)})::json ->> {compiler.process(name, **options)}"
