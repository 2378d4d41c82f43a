"""Which cases somebody means: by the beginning of an id, by a rule, or all that wait.

Put here how a case is named and what is wrong with a choice. What becomes of the chosen ones is `releases`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from backfill_assets.planning.quarantine_cases import Case, Cases, CaseState
from manifests.errors import InputRefused, Problem

_SHORTEST = 4
"""Characters of an id that name a case at least."""
_SHOWN = 5


@dataclass(frozen=True)
class Choice:
    """Cases of a table: named ones, those of a rule, or all; of the last two, those that a decision can be about."""

    cases: tuple[str, ...] = ()
    rule: str | None = None
    everything: bool = False


def case_meant(cases: Cases, text: str) -> Case:
    """Return the case that a text names: its id, or a beginning that no other case of the table has.

    Raises:
        InputRefused: if it names none, or several.
    """
    found, problems = _named(cases, [text])
    if problems:
        raise InputRefused(problems)
    return found[0]


def chosen(cases: Cases, choice: Choice, state: CaseState = CaseState.WAITING) -> list[Case]:
    """Return the cases that somebody means, the oldest first; of a rule or of all, those that are in a state.

    Raises:
        InputRefused: if a name names none or several cases, no case has broken the rule, or nothing is chosen, or twice.
    """
    ways = [bool(choice.cases), choice.rule is not None, choice.everything]
    if sum(ways) != 1:
        raise InputRefused(
            Problem(
                "no case is named" if not any(ways) else "cases are chosen in two ways at once",
                "a decision is about named cases, about those of one rule, or about all",
                "give CASE..., --rule RULE or --all, one of them",
            )
        )
    if choice.cases:
        found, problems = _named(cases, choice.cases)
        if problems:
            raise InputRefused(problems)
        return list({case.case_id: case for case in found}.values())
    those = [case for case in cases.all.values() if case.state is state]
    if choice.rule is None:
        return those
    require_rule(cases, choice.rule)
    return [case for case in those if case.rule == choice.rule]


def require_rule(cases: Cases, rule: str) -> None:
    """Refuse a rule that no case of a table has broken.

    Raises:
        InputRefused: naming those that some have.
    """
    rules = sorted({case.rule for case in cases.all.values()})
    if rule in rules:
        return
    close = get_close_matches(rule, rules, n=1)
    raise InputRefused(
        Problem(
            f"no case of {cases.table} has broken '{rule}'",
            f"rules that cases have broken are {'; '.join(rules) or 'none: the quarantine has no case'}",
            f"did you mean '{close[0]}'?" if close else f"see `backfill quarantine list {cases.table}`",
        )
    )


def _named(cases: Cases, texts: Sequence[str]) -> tuple[list[Case], list[Problem]]:
    found: list[Case] = []
    problems: list[Problem] = []
    for text in texts:
        meant = [case for case_id, case in cases.all.items() if case_id.startswith(text)]
        if len(meant) == 1 and len(text) >= _SHORTEST:
            found += meant
            continue
        shown = ", ".join(f"{case.short} ({case.rule})" for case in meant[:_SHOWN])
        what = (
            f"'{text}' names {len(meant):,} cases of {cases.table}: {shown}{', …' if len(meant) > _SHOWN else ''}"
            if len(meant) > 1
            else f"'{text}' is shorter than {_SHORTEST} characters"
            if meant
            else f"{cases.table} has no case '{text}'"
        )
        problems.append(
            Problem(
                what,
                f"a case is named by its id, or by a beginning of {_SHORTEST} characters or more that no other case has",
                f"`backfill quarantine list {cases.table}` shows the cases",
            )
        )
    return found, problems
