"""Clocks that pause as the register would have them, beside those that are there: what the reconciliations compare.

Put here how clocks are recomputed in another way than the transform's, so that a mistake there is not repeated here: a case is
lived through entry by entry, in Python, from the whole register; no stretch is cut by chunk, no day is made. Which local day an
entry falls on is all that both are told alike. Runs in Spark's Python workers, a part of the cases a task: keep it light.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa

CLOCK = ("case_id", "jurisdiction", "clock")
STATES = ("RUNNING", "PAUSED", "MET", "BREACHED")
CONDITIONS = ("expected", "missing", "extra", "days_differ", "both", "known_differs", "true_differs")
"""Of a clock: it has days in the range; all are missing; none is expected; it has another number of them; it has days on both
sides; they say otherwise what was known, or what was true."""
_NEVER: Final = 10**7
"""A day after all others; days are counted since 1970."""
_OF_A_SIDE = ("days", "known", "true", "known_sum", "true_sum")
SIDE_BY_SIDE = pa.schema(
    [
        *((name, pa.string()) for name in CLOCK),
        *(
            (f"{side}_{name}", pa.int64())
            for side in ("register", "found")
            for name in ("days", "known_sum", "true_sum")
        ),
        *((f"{side}_{name}", pa.string()) for side in ("register", "found") for name in ("known", "true")),
        *((name, pa.bool_()) for name in CONDITIONS),
    ]
)
"""A row a case, jurisdiction and clock. Of each side the days in the range, of each view how many of them are in each state (in
words) and `weight` added up; then the conditions."""


def weight(day: Any, state: Any, started: Any, due: Any, paused: Any) -> Any:
    """Return what a day adds to the sum of a view: two views with equal sums say the same, but for a coincidence.

    Each argument counts days (since 1970, or of the pauses), or is the place of a state in `STATES` plus one. Numbers or columns.
    """
    return (day + 1) * (state + 7 * started + 11 * due + 13 * paused)


class Entry(NamedTuple):
    """An entry of a case, by the days of its jurisdiction: from when it holds, and when it was known (never before that)."""

    at: int
    seq: int
    activity: str
    day: int
    known_on: int


class Stretch(NamedTuple):
    """Days of a clock in one state; `paused` is what had been paused before, `due` None where there is no deadline."""

    first: int
    last: int
    state: str
    started: int
    due: int | None
    paused: int


@dataclass(frozen=True)
class Rule:
    """A rule of a clock, in force for starts from `valid_from` to before `valid_until`."""

    start: str
    stops: frozenset[str]
    valid_from: int
    valid_until: int
    length: int
    in_business_days: bool


@dataclass(frozen=True)
class Terms:
    """What clocks are recomputed with.

    Attributes:
        first: the first day of the publish range.
        last: its last day.
        rules: by jurisdiction and clock, in the order in which they come into force.
        effects: by jurisdiction and clock, what an activity does: True if it pauses.
        business_days: by jurisdiction that counts them, those of the calendar in order.
        calendar: the first and the last day of each such calendar.
    """

    first: int
    last: int
    rules: Mapping[tuple[str, str], Sequence[Rule]]
    effects: Mapping[tuple[str, str], Mapping[str, bool]]
    business_days: Mapping[str, Sequence[int]]
    calendar: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def number(self, place: str, rule: Rule, day: int) -> int | None:
        """Return how many days that count there were up to and with a day; None if the calendar does not say."""
        if not rule.in_business_days:
            return day
        first, last = self.calendar.get(place, (_NEVER, -_NEVER))
        return bisect_right(self.business_days[place], day) if first <= day <= last else None

    def day_of(self, place: str, rule: Rule, number: int | None) -> int | None:
        """Return the day on which so many have been counted."""
        if number is None or not rule.in_business_days:
            return number
        days = self.business_days.get(place, ())
        return days[number - 1] if 0 < number <= len(days) else None


def lived(terms: Terms, place: str, clock: str, entries: Iterable[Entry]) -> list[Stretch]:
    """Live through a clock, entry by entry; return its stretches from the start on, the last without an end."""
    by_day: dict[int, list[Entry]] = defaultdict(list)
    for one in entries:
        by_day[one.day].append(one)
    begun = _begun(terms.rules[place, clock], by_day)
    if begun is None:
        return []
    rule, start = begun
    effects = terms.effects.get((place, clock), {})
    due = _plus(terms.number(place, rule, start), rule.length)
    found: list[Stretch] = []
    since, left, paused, total = start, None, False, 0
    for day in sorted(day for day in by_day if day >= start):
        deadline = None if paused else terms.day_of(place, rule, due)
        if deadline is not None and deadline <= day:
            break
        if any(one.activity in rule.stops for one in by_day[day]):
            so_far = total + (day - since if paused else 0)  # the day of the stop is not paused
            met = Stretch(day, _NEVER, "MET", start, deadline, so_far)
            return [*found, *_until(day - 1, since, start, deadline, total, paused=paused), met]
        will_be = _paused_after(paused, by_day[day], effects)
        if will_be is not paused:
            found += _until(day, since, start, deadline, total, paused=paused)
            number = terms.number(place, rule, day)
            if will_be:
                left = None if due is None or number is None else due - number
            else:
                due, total = _plus(number, left), total + day - since + 1
            since, paused = day + 1, will_be
    deadline = None if paused else terms.day_of(place, rule, due)
    if deadline is None:
        return [*found, *_until(_NEVER, since, start, None, total, paused=paused)]
    breached = Stretch(deadline, _NEVER, "BREACHED", start, deadline, total)
    return [*found, *_until(deadline - 1, since, start, deadline, total, paused=False), breached]


def _plus(number: int | None, more: int | None) -> int | None:
    return None if number is None or more is None else number + more


def _begun(rules: Sequence[Rule], by_day: Mapping[int, Sequence[Entry]]) -> tuple[Rule, int] | None:
    """Return the rule that was in force when its own start activity came first, and that day."""
    for rule in rules:
        start = min((day for day, of in by_day.items() if any(one.activity == rule.start for one in of)), default=None)
        if start is not None and rule.valid_from <= start < rule.valid_until:
            return rule, start
    return None


def _paused_after(paused: bool, of_day: Iterable[Entry], effects: Mapping[str, bool]) -> bool:
    switches = ((one.at, one.seq, not effects[one.activity]) for one in of_day if one.activity in effects)
    for _, _, resumes in sorted(switches):  # of one instant and place the pause comes first
        paused = not resumes
    return paused


def _until(last: int, since: int, start: int, due: int | None, total: int, *, paused: bool) -> Iterator[Stretch]:
    if since <= last:
        yield Stretch(since, last, "PAUSED" if paused else "RUNNING", start, None if paused else due, total)


def views(terms: Terms, place: str, clock: str, entries: Sequence[Entry]) -> dict[str, list[Stretch]]:
    """Return the stretches of what was known and of what is true; each day is in one of each at most."""
    belated = sorted({one.known_on for one in entries if one.known_on > one.day})
    since = [-_NEVER, *belated]
    known: list[Stretch] = []
    true: list[Stretch] = []
    for at, begins in enumerate(since):
        ends = since[at + 1] - 1 if at < len(belated) else _NEVER
        by_then = [one for one in entries if one.known_on == one.day or one.known_on <= begins]
        true = lived(terms, place, clock, by_then)
        known += [cut for one in true if (cut := _cut(one, begins, ends)) is not None]
    return {"known": known, "true": true}


def _cut(one: Stretch, first: int, last: int) -> Stretch | None:
    """Return the days of a stretch from `first` to `last`; of a paused one, what had been paused before grows with it."""
    begins, ends = max(one.first, first), min(one.last, last)
    if begins > ends:
        return None
    before = begins - one.first if one.state == "PAUSED" else 0
    return one._replace(first=begins, last=ends, paused=one.paused + before)


def summed(terms: Terms, of_clock: Mapping[str, Sequence[Stretch]]) -> dict[str, Any] | None:
    """Return what the published days of a clock add up to; None if it has none in the range.

    There is a day as long as either view is open, and up to the last day on which one of them says something else.
    """
    ends = min(terms.last, max(_last_change(stretches) for stretches in of_clock.values()))
    kept = {view: [cut for one in of if (cut := _cut(one, terms.first, ends))] for view, of in of_clock.items()}
    days = _days_of_either(*kept.values())
    if not days:
        return None
    told: dict[str, Any] = {"days": days}
    for view, stretches in kept.items():
        counts = {state: sum(one.last - one.first + 1 for one in stretches if one.state == state) for state in STATES}
        told |= {view: in_words(counts), f"{view}_sum": sum(map(_weight_of, stretches))}
    return told


def in_words(counts: Mapping[str, int | None]) -> str:
    """Return how many days are in each state: those that there are."""
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts.get(state))


def _last_change(stretches: Sequence[Stretch]) -> int:
    if not stretches:
        return -_NEVER
    if stretches[-1].state in {"RUNNING", "PAUSED"}:
        return stretches[-1].last
    at = len(stretches) - 1
    # an end that is known again, after something that changed nothing, is no other than before
    while at and stretches[at - 1][2:] == stretches[at][2:] and stretches[at - 1].last + 1 == stretches[at].first:
        at -= 1
    return stretches[at].first


def _days_of_either(one: Sequence[Stretch], other: Sequence[Stretch]) -> int:
    days, reached = 0, -_NEVER
    for stretch in sorted((*one, *other)):
        begins = max(stretch.first, reached + 1)
        if begins <= stretch.last:
            days, reached = days + stretch.last - begins + 1, stretch.last
    return days


def _weight_of(one: Stretch) -> int:
    """Return the weights of a stretch's days together: they are those of the first day, and in a pause one paused day more each day."""
    days = one.last - one.first + 1
    places = days * (one.first + 1) + days * (days - 1) // 2
    # of a paused day itself counts as paused
    paused = one.paused + (one.state == "PAUSED")
    own: int = places * weight(0, STATES.index(one.state) + 1, one.started, one.due or 0, paused)
    if one.state == "PAUSED":
        rising = (one.first + 1) * days * (days - 1) // 2 + (days - 1) * days * (2 * days - 1) // 6
        own += weight(0, 0, 0, 0, 1) * rising
    return own


def side_by_side(terms: Terms, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compare the clocks of one part of the cases, all of which fits into memory; see `SIDE_BY_SIDE`.

    Rows of the register have `case_id, jurisdiction, activity, at, event_seq, day, known_on`; rows of found clocks have no
    activity, but `clock`, `days`, the number of days in each state of each view (`known_RUNNING`, ...), and both sums.
    """
    entries: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            case, place = row["case_id"], row["jurisdiction"]
            if row["activity"] is None:
                found[case, place, row["clock"]] = row
            else:
                own = (row["at"], row["event_seq"], row["activity"], row["day"], row["known_on"])
                entries[case, place].append(Entry(*own))
    rows = list(_compared(terms, entries, found))
    if rows:
        yield from pa.Table.from_pylist(rows, schema=SIDE_BY_SIDE).to_batches()


def _compared(
    terms: Terms,
    entries: Mapping[tuple[str, str], Sequence[Entry]],
    found: dict[tuple[str, str, str], dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    clocks: dict[str, list[str]] = defaultdict(list)
    for place, clock in terms.rules:
        clocks[place].append(clock)
    for (case, place), of_case in entries.items():
        for clock in clocks[place]:
            expected = summed(terms, views(terms, place, clock, of_case))
            there = found.pop((case, place, clock), None)
            if expected is not None or there is not None:
                yield _row((case, place, clock), expected, there)
    for key, there in found.items():
        yield _row(key, None, there)


def _row(
    key: tuple[str, str, str], expected: Mapping[str, Any] | None, found: Mapping[str, Any] | None
) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(CLOCK, key, strict=True))
    told = {
        "register": expected or {},
        "found": {}
        if found is None
        else {name: found[name] for name in ("days", "known_sum", "true_sum")}
        | {view: in_words({state: found[f"{view}_{state}"] for state in STATES}) for view in ("known", "true")},
    }
    for side, values in told.items():
        row |= {f"{side}_{name}": values.get(name) for name in _OF_A_SIDE}
    both = bool(expected) and bool(found)
    differs = {name: both and row[f"register_{name}"] != row[f"found_{name}"] for name in _OF_A_SIDE}
    return row | {
        "expected": expected is not None,
        "missing": found is None,
        "extra": expected is None,
        "days_differ": differs["days"],
        "both": both,
        "known_differs": differs["known"] or differs["known_sum"],
        "true_differs": differs["true"] or differs["true_sum"],
    }
