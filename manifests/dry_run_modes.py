"""Policies under which no dry run could count: one that sees another column as it is than the run that it is of.

Put here what is judged from the policy alone, when it is proposed. What a run may not see is `data_terms`'; which dry run counts,
`dry_run_proof`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from manifests.errors import Problem
from manifests.model import Kind, Mode, mode_of
from manifests.policy import Otherwise, Policy, Rule, SourceRule

_OF_PEOPLE = tuple(kind for kind in Kind if kind not in {Kind.LIVE, Kind.RECONCILIATION})
"""Kinds of runs of which a policy may ask for a dry run."""


def dry_run_mode_problems(policy: Policy, where: str) -> list[Problem]:
    """Name each column that runs and their dry runs would see otherwise, where a rule asks for dry runs.

    A dry run is held to the mode DRY_RUN, and the run to the mode of its kind: what one has masked and the other has not is computed
    from other values, and no approval would ever rest on it.
    """
    return [
        Problem(
            f"column {column} of {source.table} is {name}, which lets mode {natural} read it and not mode {Mode.DRY_RUN}"
            if sees
            else f"column {column} of {source.table} is {name}, which lets mode {Mode.DRY_RUN} read it and not mode {natural}",
            f"a rule for {', '.join(rule.tables)} asks for dry runs, and one counts that has read what the run reads",
            f"list {Mode.DRY_RUN} beside {natural} in classifications.{name}.modes, or neither of them; or let a rule without "
            f"dryRun be for the kinds of mode {natural}",
            f"{where}: classifications.{name}.modes",
        )
        for source, column, name, natural, sees in _seen_otherwise(policy)
        if (rule := _asking(policy, source, natural)) is not None
    ]


def _seen_otherwise(policy: Policy) -> Iterator[tuple[SourceRule, str, str, Mode, bool]]:
    """Yield each column whose class tells a mode from DRY_RUN: of which source, of which class, which mode, and whether that sees it."""
    modes = list(dict.fromkeys(map(mode_of, _OF_PEOPLE)))
    for source in policy.sources:
        for column, classified in sorted(source.columns.items()):
            found = policy.classifications[classified.classification]
            for natural in modes if found.modes is not None else ():
                sees, dry = natural in (found.modes or ()), Mode.DRY_RUN in (found.modes or ())
                refused = not sees and found.otherwise is Otherwise.REFUSE  # such a run is never planned
                if sees != dry and not refused:
                    yield source, column, classified.classification, natural, sees


def _asking(policy: Policy, source: SourceRule, natural: Mode) -> Rule | None:
    """Return a rule that may ask for a dry run of a run of a mode that reads a source; None where none does."""
    kinds = [kind for kind in source.kinds or _OF_PEOPLE if kind in _OF_PEOPLE and mode_of(kind) is natural]
    return next(
        (
            rule
            for rule in policy.rules
            if rule.dry_run is not None
            and any(_may_meet(one, other) for one in rule.tables for other in source.targets)
            and any(_is_held(policy, rule, kind) for kind in kinds)
        ),
        None,
    )


def _is_held(policy: Policy, rule: Rule, kind: Kind) -> bool:
    """Whether runs of a kind may be held to a rule: also where it names others only, unless one for all its tables is for that kind."""
    if rule.kinds is None or kind in rule.kinds:
        return True
    return not any(
        (one.kinds is None or kind in one.kinds) and ("*" in one.tables or set(rule.tables) <= set(one.tables))
        for one in policy.rules
    )


def _may_meet(one: str, other: str) -> bool:
    """Whether there may be a name that both patterns fit."""
    if not set("*?") & set(one):
        return fnmatchcase(one, other)
    if not set("*?") & set(other):
        return fnmatchcase(other, one)
    first, second = (text[: min(text.find(mark) % (len(text) + 1) for mark in "*?")] for text in (one, other))
    return first.startswith(second) or second.startswith(first)
