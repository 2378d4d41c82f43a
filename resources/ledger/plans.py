"""Plans as the ledger keeps them: fetched where something needs one, and parsed once.

Put here how a recorded plan becomes a `Plan` again. A plan names each chunk, so it is long, and few questions about a run
need it: nothing that lists runs, moves them or stages chunks does. What a plan says never changes, so that a parsed one
is kept under the hash of its text, and a ledger that was changed by hand is not answered from memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles

from manifests.chunks import in_words
from manifests.errors import Problem, StateMoved
from manifests.plan import Plan, plan_from_json
from resources.ledger.cells import Text, legible
from resources.ledger.cells import parsed as cell
from resources.ledger.tables import amendments, runs

_BATCH = 400
_KEPT = 16_000_000
"""Characters of the plans that are kept parsed, unless the newest one alone is longer."""


class _Parsed:
    """The plans that were parsed last, by the hashes of their texts."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._plans: OrderedDict[str, tuple[int, Plan]] = OrderedDict()
        self._characters = 0

    def find(self, own: str) -> Plan | None:
        with self._lock:
            known = self._plans.get(own)
            if known is None:
                return None
            self._plans.move_to_end(own)
            return known[1]

    def keep(self, own: str, characters: int, plan: Plan) -> None:
        with self._lock:
            if own in self._plans:
                return
            self._plans[own] = characters, plan
            self._characters += characters
            while len(self._plans) > 1 and self._characters > _KEPT:
                _, (gone, _) = self._plans.popitem(last=False)
                self._characters -= gone


_parsed = _Parsed()


def parsed(text: str) -> Plan:
    """Return the plan of a text.

    Raises:
        IllegibleRow: if it is none.
    """
    own = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    if (known := _parsed.find(own)) is not None:
        return known
    with legible("a plan in the ledger"):
        plan = plan_from_json(text)
    _parsed.keep(own, len(text), plan)
    return plan


@dataclass(frozen=True)
class Terms:
    """What the plans of one run say but for their chunks: nothing here names one, whatever the run has.

    For whoever looks at many runs, of which each may have a million chunks. `anew` has by chunk the plan that it was planned anew with.
    """

    approved: Plan
    anew: Mapping[str, Plan]

    def of(self, chunk: str) -> Plan:
        """Return what the plan says that a chunk is computed by."""
        return self.anew.get(chunk, self.approved)

    @property
    def each(self) -> list[Plan]:
        """What each of the run's plans says."""
        return list({id(one): one for one in (self.approved, *self.anew.values())}.values())


def terms(engine: sa.Engine, run_ids: Collection[str] | None = None) -> dict[str, Terms]:
    """Return what the plans of runs say but for their chunks, by run: of all, or of those that are named."""
    found: dict[str, Plan] = {}
    anew: dict[str, dict[str, Plan]] = {}
    with engine.connect() as connection:
        for mine in _in_batches(runs.c.run_id, run_ids):
            query = sa.select(runs.c.run_id, without_chunks(runs.c.plan)).where(mine)
            for run_id, text in connection.execute(query).yield_per(_BATCH):
                found[run_id] = parsed(text)
        for mine in _in_batches(amendments.c.run_id, run_ids):
            query = sa.select(amendments.c.run_id, amendments.c.chunks, without_chunks(amendments.c.plan)).where(mine)
            for run_id, keys, text in connection.execute(query.order_by(amendments.c.number)).yield_per(_BATCH):
                anew.setdefault(run_id, {}).update(dict.fromkeys(cell(amendments.c.chunks, keys, list), parsed(text)))
    return {run_id: Terms(plan, anew.get(run_id, {})) for run_id, plan in found.items()}


def _in_batches(column: sa.Column[str], run_ids: Collection[str] | None) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the conditions by which the rows of some runs are read, so many runs at a time."""
    if run_ids is None:
        yield sa.true()
        return
    ordered = sorted(run_ids)
    for start in range(0, len(ordered), _BATCH):
        yield column.in_(ordered[start : start + _BATCH])


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


def still(engine: sa.Engine, plan: Plan) -> Plan:
    """Return a plan that was recorded just now, without reading it back.

    Raises:
        StateMoved: as `fetch`.
    """
    query = sa.select(runs.c.plan_hash).where(runs.c.run_id == plan.run_id)
    with engine.connect() as connection:
        if connection.execute(query).scalar() != plan.hash:
            raise planned_anew(plan.run_id, plan.hash)
    return plan


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


class without_chunks(sa.sql.functions.GenericFunction[str]):  # noqa: N801 - named as what it is in a query
    """The text of a plan without its chunks, cut out by the database: `without_chunks(runs.c.plan)`.

    Its keys are in order, so that they stand between those two; in a text of it the quotes of a key have backslashes before them.
    """

    type = Text()
    inherit_cache = True


_CHUNKS, _AFTER = '"chunks":[', '],"code":'


@compiles(without_chunks, "sqlite")
def _sqlite_without(element: without_chunks, compiler: Any, **options: Any) -> str:
    return _cut(element, compiler, "instr", options)


@compiles(without_chunks, "postgresql")
def _postgres_without(element: without_chunks, compiler: Any, **options: Any) -> str:
    return _cut(element, compiler, "strpos", options)


def _cut(element: without_chunks, compiler: Any, position: str, options: dict[str, Any]) -> str:
    (plan,) = (compiler.process(one, **options) for one in element.clauses)
    before = f"substr({plan}, 1, {position}({plan}, '{_CHUNKS}') + {len(_CHUNKS) - 1})"
    return f"({before} || substr({plan}, {position}({plan}, '{_AFTER}')))"


class said(sa.sql.functions.GenericFunction[str]):  # noqa: N801 - named as what it is in a query
    """What a plan says under a name but `chunks`, as text, read by the database: `said(runs.c.plan, "reads")`."""

    type = Text()
    inherit_cache = True

    def __init__(self, plan: sa.ColumnElement[Any], name: str) -> None:
        super().__init__(without_chunks(plan), sa.literal_column(f"'{name}'"))


@compiles(said, "sqlite")
def _sqlite(element: said, compiler: Any, **options: Any) -> str:
    plan, name = element.clauses
    return f"json_extract({compiler.process(plan, **options)}, '$.' || {compiler.process(name, **options)})"


@compiles(said, "postgresql")
def _postgres(element: said, compiler: Any, **options: Any) -> str:
    plan, name = element.clauses
    return f"({compiler.process(plan, **options)})::json ->> {compiler.process(name, **options)}"
