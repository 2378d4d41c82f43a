"""Mistakes in the run-level gates of a target: their names, tolerances, and what they look for by name.

Put here what can be said of a gate before it judges anything. What a gate may be given is `declarations.target`'s.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any
from zoneinfo import available_timezones

import polars as pl

from backfill_assets.declarations.arguments import NAME, is_amount
from backfill_assets.declarations.checking.columns import IN_MODEL, ColumnTypes, in_columns
from backfill_assets.declarations.checking.names import did_you_mean, names_of, no_tuple, texts
from backfill_assets.declarations.checking.table_fields import in_words
from backfill_assets.declarations.needs import Needs
from backfill_assets.declarations.target import (
    ACCEPTED_ROWS_GATE,
    PLATFORM_GATES,
    PUBLISHED_RULES_GATE,
    Level,
    Reconciliation,
    TargetTable,
)
from manifests.chunks import CHUNK_GATE
from manifests.data_terms import OLD_DATA_GATE
from manifests.errors import Problem
from manifests.expected import EXPECTED_FIGURES_GATE
from manifests.merge_policy import MERGE_DECISIONS_GATE
from manifests.timeliness import FUTURE_GATE

_OFFSET = re.compile(r"[+-](0\d|1[0-8]):[0-5]\d")


def _gates(target: TargetTable) -> Sequence[Any]:
    """Return what is declared as the gates of a target."""
    given: Any = target.reconciliations
    return given if isinstance(given, (tuple, list)) else (given,)


def not_gates(target: TargetTable) -> Iterator[Problem]:
    """Say of what is declared as the gates of a target that it is no gate."""
    field = f"{target.name}: reconciliations"
    if not isinstance(target.reconciliations, (tuple, list)):
        fix = "write (GATE,), with the comma"
        yield Problem(f"it is {target.reconciliations!r}"[:200], "several gates are a tuple", fix, field)
        return
    yield from (problem for gate in _gates(target) if (problem := _no_gate(gate, field)) is not None)


def with_gates(target: TargetTable) -> TargetTable:
    """Return a target with those of its gates that are some."""
    return replace(target, reconciliations=tuple(one for one in _gates(target) if _no_gate(one, "") is None))


def _no_gate(gate: Any, field: str) -> Problem | None:
    """Return why something is no gate, or one that cannot be looked into; None if it is one."""
    if not isinstance(gate, Reconciliation):
        made = "a gate is a Reconciliation, as `ba.change_gate()` returns one"
        return Problem(f"{in_words(gate)} is no gate", made, "call the function that makes it", field)
    if not isinstance(gate.needs, Needs):
        what = f"needs of gate {gate.name} is {in_words(gate.needs)}"
        return Problem(what, "it is a ba.Needs", "ba.Needs(...)", field)
    mistakes: Any = gate.mistakes
    if not (isinstance(mistakes, tuple) and all(isinstance(one, Problem) for one in mistakes)):
        what = f"mistakes of gate {gate.name} is {in_words(mistakes)}"
        return Problem(what, "they are those of the arguments that it was made of", "leave them out", field)
    if not isinstance(gate.tolerances, Mapping):
        what = f"tolerances of gate {gate.name} is {in_words(gate.tolerances)}"
        return Problem(what, "they are a mapping by name", 'for example {"energy_percent": 0.1}', field)
    return None


def _not_amounts(tolerances: Mapping[str, Any], where: str) -> Iterator[Problem]:
    for name, value in tolerances.items():
        if not (isinstance(name, str) and re.fullmatch(NAME, name)):
            rule = "a tolerance has a name of letters, digits and _"
            yield Problem(f"a tolerance is named {name!r}", rule, "for example energy_percent", where)
        if not is_amount(value):
            yield Problem(f"{name} is {value!r}", "a tolerance is a number, 0 or more", "for example 0.5", where)


def _of_gate(target: TargetTable, gate: Reconciliation) -> Iterator[Problem]:
    where = f"{target.name}: gate {gate.name}"
    if not (isinstance(gate.name, str) and re.fullmatch(NAME, gate.name)):
        rule = "a gate has a name of letters, digits and _"
        yield Problem(f"name is {gate.name!r}", rule, "for example totals_agree", where)
    if not isinstance(gate.level, Level):
        levels = ", ".join(f"Level.{one.name}" for one in Level)
        yield Problem(f"level is {gate.level!r}", f"it is one of {levels}", "for example ba.Level.STATE", where)
    yield from (replace(one, where=where) for one in gate.mistakes)
    yield from _not_amounts(gate.tolerances, where)
    if type(gate.exceptions_limit) is not int or gate.exceptions_limit < 0:
        rule = "it is how many rows that disagree are kept, 0 or more"
        yield Problem(f"exceptions_limit is {gate.exceptions_limit!r}", rule, "for example 10_000", where)


def of_gates(target: TargetTable) -> Iterator[Problem]:
    """Say what is wrong with the gates of a target, and with what is said of gates in it."""
    yield from _not_amounts(target.tolerances, f"{target.name}: tolerances")
    for gate in target.reconciliations:
        yield from _of_gate(target, gate)
    granted = {"live": target.live, "restated": target.restated}
    for field, policy in granted.items():
        if policy is not None:
            yield from _not_amounts(policy.tolerances, f"{target.name}: {field}")
    yield from _of_tolerances(target)
    yield from _of_defaults(target)
    own = [item.name for item in target.reconciliations if isinstance(item.name, str)]
    known = [*PLATFORM_GATES, *own]
    platforms = {
        *PLATFORM_GATES,
        CHUNK_GATE,
        PUBLISHED_RULES_GATE,
        ACCEPTED_ROWS_GATE,
        OLD_DATA_GATE,
        EXPECTED_FIGURES_GATE,
        FUTURE_GATE,
        MERGE_DECISIONS_GATE,
    }
    for name in dict.fromkeys(one for one in own if one in platforms):
        where = f"{target.name}: reconciliations"
        yield Problem(
            f"gate {name} is the platform's own", "its name stands for that", "give yours another name", where
        )
    for name, times in Counter(one for one in own if one not in platforms).items():
        if times > 1:
            yield Problem(
                f"gate {name} is declared {times} times",
                "a gate's name stands for one gate",
                "give one of them another name",
                f"{target.name}: reconciliations",
            )
    yield from _of_asked_gates(target, known)
    for field, name in ((field, name) for field, policy in granted.items() if policy for name in policy.tolerances):
        if name not in target.all_tolerances:
            yield Problem(
                f"{name!r} is no tolerance" + did_you_mean(name, target.all_tolerances),
                f"tolerances are {', '.join(target.all_tolerances) or 'none'}",
                "correct the name, or declare it in `tolerances`",
                f"{target.name}: {field}",
            )


def _of_asked_gates(target: TargetTable, known: Sequence[str]) -> Iterator[Problem]:
    """Say which gates that a policy of a target asks for are none."""
    asked = {
        "live": (target.live.gates if target.live else None, known),
        "restated": (target.restated.gates if target.restated else None, known),
        "reconciled": (target.reconciled.gates if target.reconciled else None, target.published_gates),
    }
    for field, (names, there) in asked.items():
        if isinstance(names, str):
            yield no_tuple(f"{target.name}: {field}", "gates is", names)
            continue
        for name in names or ():
            if name not in there:
                yield Problem(
                    f"{name!r} is a gate of a change, and what is published has not changed"
                    if name in known
                    else f"{name!r} is no gate" + did_you_mean(name, there),
                    f"gates are {', '.join(there)}",
                    "correct the name",
                    f"{target.name}: {field}",
                )


def _of_tolerances(target: TargetTable) -> Iterator[Problem]:
    """Say which of a target's tolerances is probably meant for one that its gates look for, under another name.

    Where one of the gates does not say which tolerances it looks for, nothing is said.
    """
    if any(gate.needs.tolerances is None for gate in target.reconciliations):
        return
    wanted = {name for gate in target.reconciliations for name in (*gate.tolerances, *(gate.needs.tolerances or ()))}
    for name in target.tolerances:
        if name not in wanted and (meant := did_you_mean(name, wanted - target.tolerances.keys())):
            yield Problem(
                f"no gate looks for the tolerance {name!r}{meant}",
                f"the gates look for {', '.join(sorted(wanted))}",
                "correct the name; a gate of your own that looks for it says so with `needs=ba.Needs(tolerances=(...,))`",
                f"{target.name}: tolerances",
            )


def _of_defaults(target: TargetTable) -> Iterator[Problem]:
    """Say which tolerance two gates bring along with another default each, and the target does not settle."""
    defaults: dict[str, set[float]] = {}
    for gate in target.reconciliations:
        for name, value in gate.tolerances.items():
            if is_amount(value):
                defaults.setdefault(name, set()).add(value)
    for name, values in defaults.items():
        if len(values) > 1 and name not in target.tolerances:
            yield Problem(
                f"gates bring the tolerance {name!r} along as {' and '.join(f'{one:g}' for one in sorted(values))}",
                "a tolerance has one value for all gates that look for it",
                "declare it in `tolerances`, or give it another name in one of the gates",
                f"{target.name}: tolerances",
            )


def of_needs(
    target: TargetTable, gate: Reconciliation, own: ColumnTypes | None, source: ColumnTypes | None
) -> Iterator[Problem]:
    """Say of what a gate looks for by name what is not there: while it judges it would raise, once everything is computed."""
    field, needs = f"gate {gate.name}", gate.needs
    of = target.name
    if own is not None:
        yield from in_columns(target.name, field, needs.rows, target.name, own)
        yield from _uncountable(gate, own, f"{target.name}: {field}")
    if own is not None and target.outline is not None:
        of = f"the outline of {target.name}"
        own = {name: own[name] for name in texts(target.outline.columns) if name in own}
    for side, names, table, columns in (
        ("source", needs.source, target.source, source),
        ("target", needs.target, of, own),
    ):
        if isinstance(names, str):
            yield no_tuple(f"{target.name}: {field}", f"its {side} columns are", names)
        elif columns is not None:
            is_outline = side == "target" and target.outline is not None
            fix = "correct the name, or add it to the outline" if is_outline else IN_MODEL
            yield from in_columns(target.name, field, names, table, columns, fix)
    yield from _of_measured(needs.measured, f"{target.name}: {field}")
    if not _is_zone(needs.zone):
        yield Problem(
            f"{needs.zone!r} is no time zone"
            + did_you_mean(needs.zone, {"UTC", *(name for name in _zones() if "/" in name)}),
            "a zone has its name in the time zone database, or is an offset",
            "for example Europe/Rome, UTC or +02:00",
            f"{target.name}: {field}",
        )
    if isinstance(needs.tolerances, str):
        yield no_tuple(f"{target.name}: {field}", "its tolerances are", needs.tolerances)
        return
    for name in needs.tolerances or ():
        if name not in target.all_tolerances:
            yield Problem(
                f"{name!r} is no tolerance" + did_you_mean(name, target.all_tolerances),
                f"tolerances of {target.name} are {', '.join(target.all_tolerances) or 'none'}",
                "correct the name, or declare it with its default in `tolerances`",
                f"{target.name}: {field}",
            )


def _uncountable(gate: Reconciliation, own: ColumnTypes, where: str) -> Iterator[Problem]:
    """Say by which columns a gate has rows counted whose values are no text that people could read."""
    for name in dict.fromkeys(name for tally in gate.tallies for name in tally.by if name in own):
        kind = own[name]
        if kind == pl.Binary or kind.is_nested():
            yield Problem(
                f"{name!r} is {kind}",
                "rows are counted by columns of text, numbers, truths, days and times",
                "name another column",
                where,
            )


def _of_measured(measured: Any, where: str) -> Iterator[Problem]:
    if isinstance(measured, str):
        yield no_tuple(where, "its measured columns are", measured)
    elif not isinstance(measured, (tuple, list)) or len(names_of(measured)) < len(measured):
        rule, fix = "they are names of columns that `measure` returns", "write them as a tuple of names"
        yield Problem(f"its measured columns are {measured!r}", rule, fix, where)


def _is_zone(name: Any) -> bool:
    return isinstance(name, str) and (name == "UTC" or _OFFSET.fullmatch(name) is not None or name in _zones())


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())
