"""Decisions about quarantined rows: a release brings them into their table by a load of their own, a rejection keeps them out until it is taken back.

Put here the order of things. Under a lease of the table, so that decisions come one after the other: what an interrupted release
has left is settled, the rows are held against the rules of today, the release is put on record, its rows are appended as one
snapshot, and the release ends. A process that dies anywhere leaves what the next decision settles: the rows are in the table or they
are not, and then they never will be, since the append carries the token of the lease that was lost. Whether a row passes is
`judged_again`'s to say, which cases are meant `case_names`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from backfill_assets import faults
from backfill_assets.decisions import decider
from backfill_assets.declarations.checking.rules import rule_problems
from backfill_assets.declarations.product import InputTable
from backfill_assets.ingestion.case_names import Choice, chosen
from backfill_assets.ingestion.columns_in_place import require_declared_columns
from backfill_assets.ingestion.deliveries import append_delivered
from backfill_assets.ingestion.judged_again import Judged, judge_again
from backfill_assets.installation import Platform
from backfill_assets.planning.quarantine_cases import Case, Cases, CaseState, RawRow, cases_of, raw_rows
from backfill_assets.publication.leasing import input_lease
from manifests.canonical import sha256_of
from manifests.errors import DeclarationRefused, InputRefused, LeaseLost, Problem
from manifests.text import seen
from resources import actors
from resources.actors import Actor
from resources.lakehouse.loads import ACTOR_PROPERTY, FILE_PROPERTY, LOAD_PROPERTY, REJECTED_PROPERTY, load_to_make
from resources.ledger.locks import lost
from resources.ledger.quarantine_decisions import INTENT

_SHOWN = 5
RELEASE = "release"
"""What the id of a load begins with by which quarantined rows come into their table."""


@dataclass(frozen=True)
class Released:
    """What a release has brought.

    Attributes:
        table: the input table.
        load_id: the load that has brought the rows, `rows` of them, as `snapshot_id`; empty where none has passed.
        released: the cases whose rows came in by it.
        waiting: the cases that wait on, each with the rule that it breaks now.
        before: by load, the chosen cases whose rows came in by an earlier release: one that was interrupted, or this one again.
    """

    table: str
    load_id: str = ""
    rows: int = 0
    snapshot_id: int | None = None
    released: tuple[Case, ...] = ()
    waiting: tuple[tuple[Case, str], ...] = ()
    before: dict[str, tuple[Case, ...]] = field(default_factory=dict)

    @property
    def loads(self) -> list[str]:
        """The loads that have brought the rows of the chosen cases."""
        return [*self.before, *([self.load_id] if self.load_id else [])]


@dataclass(frozen=True)
class Rejected:
    """What was decided: the cases that were rejected, and those that had been before."""

    table: str
    rejected: tuple[Case, ...]
    before: tuple[Case, ...]


@dataclass(frozen=True)
class Reopened:
    """What was decided: the cases that had been rejected and wait again, and those that waited before."""

    table: str
    reopened: tuple[Case, ...]
    before: tuple[Case, ...]


def quarantined_table(platform: Platform, name: str) -> InputTable:
    """Return a declared input table that has a quarantine.

    Raises:
        InputRefused: if it is not declared, is a quarantine itself, or a reference table, which has none.
    """
    table = platform.products.input(name)
    if table.quarantine_of:
        raise InputRefused(
            Problem(
                f"{name} is the quarantine of {table.quarantine_of}",
                "cases are asked for by the table that they were loaded into",
                f"name {table.quarantine_of}",
            )
        )
    if table.is_reference:
        raise InputRefused(
            Problem(
                f"{name} has no quarantine",
                "a reference table is replaced whole or not at all: a load with a row that its model refuses is refused",
                f"`backfill loads {name}` lists what was loaded",
            )
        )
    return table


def release(
    platform: Platform, name: str, choice: Choice, *, by: str | None, reason: str, beside_equal: bool = False
) -> Released:
    """Bring quarantined rows into their table that pass the rules of today, by a load of their own; safe to repeat.

    Args:
        platform: the installation.
        name: the input table.
        choice: which cases.
        by: who decides; None: who acts.
        reason: why.
        beside_equal: whether a row comes in although the table has an equal one.

    Raises:
        InputRefused: if the table or a case is not there, a named case was rejected, a rule about the whole table is not met, or the
            rows' loader cannot read them back. Nothing is written then.
        DeclarationRefused: if a rule of the model could be answered for no row.
        EnvironmentRefused: if table or quarantine do not have the columns of their models.
        LeaseHeld: if somebody else decides about the table's cases just now, or loads or takes back rows of it.
        LeaseLost: if this process stood still for so long that somebody else has taken the table over; nothing came in by it.
        TransitionRefused: if the policy wants to know who decides, and nothing but a name says so.
    """
    table, who = _about(platform, name, by, reason)
    require_declared_columns(platform, table)
    if problems := [*rule_problems({table.name: table.model})]:
        raise DeclarationRefused(problems)
    with input_lease(platform, table.name, RELEASE) as lease:
        settled = settle(platform, table)
        cases = cases_of(platform, table)
        meant = chosen(cases, choice)
        _require_none_rejected(platform, cases, meant, choice)
        free = _with_siblings(cases, [case for case in meant if case.state is CaseState.WAITING])
        free, held = _without_decided_rows(cases, free)
        done = Released(table.name, waiting=tuple(held), before=_released_before(cases, meant, settled))
        return _release(platform, table, cases, free, done, who, reason, token=lease.token, beside_equal=beside_equal)


def _release(
    platform: Platform,
    table: InputTable,
    cases: Cases,
    free: Sequence[Case],
    done: Released,
    who: Actor,
    reason: str,
    *,
    token: int,
    beside_equal: bool,
) -> Released:
    """Bring in the rows of cases that nobody has decided about, as far as they pass."""
    at = platform.ledger.now().replace(microsecond=0)
    rows = _to_come_in(raw_rows(platform, table, [case.case_id for case in free]))
    judged = judge_again(platform, table, rows, at, beside_equal=beside_equal)
    broken = {rows[number].row_id: rule for number, rule in judged.broken.items()}
    if broken and any(row.row_id not in broken for row in rows):  # a row that comes twice passes twice, or not at all
        rows = [row for row in rows if row.row_id not in broken]
        judged = judge_again(platform, table, rows, at, beside_equal=beside_equal)
        broken |= {rows[number].row_id: rule for number, rule in judged.broken.items()}
    waits = tuple((case, broken[case.row_id]) for case in free if case.row_id in broken)
    done = replace(done, waiting=(*done.waiting, *waits))
    passing = [case for case in free if case.row_id not in broken]
    if not passing:
        return done
    faults.reach("releasing.judged")
    content = f"{RELEASE}:{sha256_of({'table': table.name, 'cases': sorted(case.case_id for case in passing)})}"
    load_id = load_to_make(list(cases.loads), content).load_id
    number = platform.ledger.quarantine.begin_release(
        table.name,
        load_id,
        [case.case_id for case in passing],
        rows=judged.rows,
        loads=sorted({row.load_id for row in rows if row.row_id not in broken}),
        by=who.name,
        reason=reason,
        known=cases.known,
    )
    faults.reach("releasing.begun")
    snapshot_id = _append(platform, table, judged, load_id, who, token)
    faults.reach("releasing.appended")
    if not platform.ledger.quarantine.end_release(number, snapshot_id=snapshot_id):
        raise LeaseLost(
            lost(table.name, token)
        )  # whoever took over has settled it, and may have brought in the same rows
    faults.reach("releasing.recorded")
    return replace(done, load_id=load_id, rows=judged.rows, snapshot_id=snapshot_id, released=tuple(passing))


def _append(platform: Platform, table: InputTable, judged: Judged, load_id: str, who: Actor, token: int) -> int | None:
    properties = {
        LOAD_PROPERTY: load_id,
        FILE_PROPERTY: "quarantine",
        ACTOR_PROPERTY: who.name,
        REJECTED_PROPERTY: "0",
    }
    batches: Iterator[object] = (batch for make in judged.batches for batch in make())
    append_delivered(platform, table.name, "the quarantine", batches, properties, token=token)
    found = platform.lakehouse.find_load(table.name, load_id)
    return None if found is None else found.snapshot_id


def reject(platform: Platform, name: str, choice: Choice, *, by: str | None, reason: str) -> Rejected:
    """Put on record that cases are not to come in; their rows stay in the quarantine. Safe to repeat.

    Raises:
        InputRefused: if the table or a case is not there, or a named case was released.
        LeaseHeld: if somebody else decides about the table's cases just now, or loads or takes back rows of it.
        TransitionRefused: if the policy wants to know who decides, and nothing but a name says so.
    """
    table, who = _about(platform, name, by, reason)
    with input_lease(platform, table.name, "reject"):
        settle(platform, table)
        cases = cases_of(platform, table)
        meant = chosen(cases, choice)
        _require_none_released(table, meant, "a row that is in the table is not rejected")
        free = [case for case in meant if case.state is CaseState.WAITING]
        if free:
            platform.ledger.quarantine.reject(
                table.name, [case.case_id for case in free], by=who.name, reason=reason, known=cases.known
            )
        before = [case for case in meant if case.state is CaseState.REJECTED]
        return Rejected(table.name, tuple(free), tuple(before))


def reopen(platform: Platform, name: str, choice: Choice, *, by: str | None, reason: str) -> Reopened:
    """Put on record that rejected cases wait again, because the rejection was wrong; safe to repeat.

    Raises:
        InputRefused: if the table or a case is not there, or a named case was released.
        LeaseHeld: if somebody else decides about the table's cases just now, or loads or takes back rows of it.
        TransitionRefused: if the policy wants to know who decides, and nothing but a name says so.
    """
    table, who = _about(platform, name, by, reason)
    with input_lease(platform, table.name, "reopen"):
        settle(platform, table)
        cases = cases_of(platform, table)
        meant = chosen(cases, choice, CaseState.REJECTED)
        _require_none_released(table, meant, "a row that is in the table waits for no decision")
        rejected = [case for case in meant if case.state is CaseState.REJECTED]
        if rejected:
            platform.ledger.quarantine.reopen(
                table.name, [case.case_id for case in rejected], by=who.name, reason=reason, known=cases.known
            )
        waiting = [case for case in meant if case.state is CaseState.WAITING]
        return Reopened(table.name, tuple(rejected), tuple(waiting))


def _require_none_released(table: InputTable, meant: Sequence[Case], rule: str) -> None:
    """Refuse cases whose rows are in the table."""
    in_table = [case for case in meant if case.state is CaseState.RELEASED]
    if in_table:
        raise InputRefused(
            Problem(
                f"case {case.short} was released by {case.decided_by}, as load {case.released_by}",
                rule,
                f"take the release back first: `backfill unload {table.name} {case.released_by} --by NAME --reason TEXT`",
            )
            for case in in_table[:_SHOWN]
        )


def settle(platform: Platform, table: InputTable) -> list[str]:
    """Put on record what came of releases whose processes did not live to say so; only under the table's lease.

    One whose rows are not in the table by now never brings them: its lease was fenced. Return the loads of the others.
    """
    found = []
    for one in platform.ledger.quarantine.releases(table.name):
        if one.state == INTENT:
            landed = platform.lakehouse.find_load(table.name, one.load_id)
            platform.ledger.quarantine.end_release(one.id, snapshot_id=None if landed is None else landed.snapshot_id)
            found += [] if landed is None else [one.load_id]
    return found


def require_none_released(platform: Platform, table: InputTable, load_id: str) -> None:
    """Refuse to take a load back while rows that it had quarantined are in the table; only under the table's lease.

    Raises:
        InputRefused: naming the releases that have brought them in.
    """
    settle(platform, table)
    loads = {one.load_id for one in platform.lakehouse.loads(table.name) if one.undone_by is None}
    problems = [
        Problem(
            f"{one.cases:,} case(s) that load '{load_id}' had quarantined were released, as load '{one.load_id}'",
            "a load is taken back with all of its rows: with those that were released later as well",
            f"take the release back first: `backfill unload {table.name} {one.load_id} --by NAME --reason TEXT`",
        )
        for one in platform.ledger.quarantine.releases(table.name)
        if one.load_id in loads and load_id in one.from_loads
    ]
    if problems:
        raise InputRefused(problems)


def _about(platform: Platform, name: str, by: str | None, reason: str) -> tuple[InputTable, Actor]:
    """Return the table that is decided about, and who decides."""
    table = quarantined_table(platform, name)
    problems = actors.no_reason(reason)
    if not seen(reason):
        problems.append(Problem("no reason is given", "a decision about a row has a reason", "give --reason"))
    if problems:
        raise InputRefused(problems)
    return table, decider(platform, by, f"the quarantined rows of {table.name}")


def _corrected(platform: Platform, table: str) -> str:
    """Say how a corrected row comes into a table: by the feed that fills it, or by a file."""
    for feed in platform.products.feeds.values():
        if feed.table == table:
            return f"have its file published again, corrected (`backfill receive {feed.name}`)"
    for api in platform.products.apis.values():
        if api.table == table:
            return (
                f"have the record corrected at the source (`backfill extract {api.name}`, `backfill load {api.name}`)"
            )
    return f"deliver the row again in a corrected file (`backfill load {table} FILE`)"


def _require_none_rejected(platform: Platform, cases: Cases, meant: Sequence[Case], choice: Choice) -> None:
    """Refuse named cases that somebody has rejected."""
    rejected = [case for case in meant if case.state is CaseState.REJECTED] if choice.cases else []
    if rejected:
        raise InputRefused(
            Problem(
                f"case {case.short} was rejected by {case.decided_by}: {case.why}",
                "what was rejected is not released",
                f"leave it out; {_corrected(platform, cases.table)}; or, if the rejection was wrong, "
                f"`backfill quarantine reopen {cases.table} {case.short} --by NAME --reason TEXT`",
            )
            for case in rejected[:_SHOWN]
        )


def _with_siblings(cases: Cases, free: Sequence[Case]) -> list[Case]:
    """Return cases with every other one of the same raw row that waits: a row comes in once, whichever rules it has broken."""
    rows = {case.row_id for case in free}
    return [case for case in cases.all.values() if case.row_id in rows and case.state is CaseState.WAITING]


def _without_decided_rows(cases: Cases, free: Sequence[Case]) -> tuple[list[Case], list[tuple[Case, str]]]:
    """Part the cases whose raw row somebody has decided about, under another rule that it has broken; and say why these wait on."""
    decided = {case.row_id: case for case in cases.all.values() if case.state is not CaseState.WAITING}
    held = [
        (case, f"its row was {decided[case.row_id].state.lower()} as case {decided[case.row_id].short}")
        for case in free
        if case.row_id in decided
    ]
    return [case for case in free if case.row_id not in decided], held


def _released_before(cases: Cases, meant: Sequence[Case], settled: Sequence[str]) -> dict[str, tuple[Case, ...]]:
    """Return by load the chosen cases whose rows came in earlier, and those of interrupted releases that were settled just now."""
    found: dict[str, list[Case]] = {}
    chosen_ids = {case.case_id for case in meant}
    for case in cases.all.values():
        if case.released_by and (case.case_id in chosen_ids or case.released_by in settled):
            found.setdefault(case.released_by, []).append(case)
    return {load: tuple(some) for load, some in found.items()}


def _to_come_in(rows: Sequence[RawRow]) -> list[RawRow]:
    """Return each raw row as often as the load has it that has it most often: delivered again, it is the same row."""
    by_row: dict[str, dict[str, list[RawRow]]] = {}
    for row in rows:
        by_row.setdefault(row.row_id, {}).setdefault(row.load_id, []).append(row)
    return [row for by_load in by_row.values() for row in max(by_load.values(), key=len)]
