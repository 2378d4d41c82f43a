"""From the lines of a customer to domain events: pure, versioned, the same events for the same lines in any order.

Put here how lines become events: what repeats, what an order is, in which order things happened. What one line means is
`rules`'s, what a cancellation reverses `matching`'s. Nothing here knows Spark, files or tables.

The lines of a customer are translated together, for a cancellation reverses a sale of the same customer; lines without a
customer are translated invoice by invoice. No event depends on a line that comes later: with more lines there are more events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from enum import StrEnum

from backfill_assets.products.orders.lines import Line, identity
from backfill_assets.products.orders.matching import Reversal, Reversed, Sales
from backfill_assets.products.orders.rules import RULES, EventType, Unclassified, rule_of


class Origin(StrEnum):
    """Where an event is from."""

    NATIVE = "NATIVE"
    """A line of the source system says that it happened."""
    SYNTHETIC = "SYNTHETIC"
    """No line says so: it follows from lines that do."""


class SetAside(StrEnum):
    """Why a line is no event."""

    DUPLICATE = "DUPLICATE"
    UNCLASSIFIED = "UNCLASSIFIED"


@dataclass(frozen=True, slots=True)
class Event:
    """What happened, told by one line or following from several.

    Attributes:
        order_id: the order that it is about: of a cancellation the one it reverses, else the invoice of its line.
        order_day: the day of that order.
        line: the line that says so; of a synthetic event the one from which it is known.
        quantity: pieces, with the sign of the line; 0 of a synthetic event.
        part: which part of its line it is, where a line reverses several sales; of a cancelled order how often it was before.
        sequence: its place among the events of its order, from 0.
        reverses: the sale that it reverses; None where it reverses none.
        why: in a word, why it reverses nothing.
    """

    event_type: EventType
    origin: Origin
    order_id: str
    order_day: date
    line: Line
    quantity: int = 0
    part: int = 0
    sequence: int = 0
    reversal: Reversal | None = None
    reverses: Line | None = None
    why: str | None = None

    @property
    def event_id(self) -> str:
        """The same for the same event, whoever translates it and when."""
        if self.origin is Origin.SYNTHETIC:
            return identity(self.event_type, self.order_id, self.part)
        return identity(self.event_type, self.line.line_id, self.part)

    @property
    def amount(self) -> Decimal:
        """What it is worth, with the sign of the line."""
        return self.quantity * self.line.unit_price


@dataclass(frozen=True, slots=True)
class Aside:
    """A line that is no event: the one that it repeats, or the reason why it cannot be classified."""

    line: Line
    outcome: SetAside
    reason: str
    repeats: Line | None = None


@dataclass(frozen=True, slots=True)
class Translated:
    """What lines became: each is the line of native events, or is set aside."""

    events: tuple[Event, ...]
    aside: tuple[Aside, ...]


@dataclass(slots=True)
class Order:
    """What is to be known of an order, or of any other invoice, to go on from it: all of it follows from its lines so far.

    Attributes:
        day: its first day.
        placed: whether goods were ordered on it.
        left: pieces that were paid for and are not cancelled.
        cancelled: how often nothing of it was left.
        events: how many events there are of it.
    """

    day: date
    placed: bool = False
    left: int = 0
    cancelled: int = 0
    events: int = 0


class Book:
    """Orders and sales, as the lines so far leave them. A book that is written down and opened again goes on like one that was not."""

    def __init__(self) -> None:
        self.orders: dict[str, Order] = {}
        self.sales = Sales()

    def enter(self, lines: Iterable[Line], version: str) -> Translated:
        """Return what lines of one customer (or of one invoice without one) say that were not entered yet.

        Args:
            lines: of days after those of all lines that were entered before; in any order. A line repeats another one of its
                instant, so that none repeats a line of an earlier day.
            version: of the rules.

        Raises:
            KeyError: if there are no rules of that version.
        """
        rules = RULES[version]
        known, aside = _without_repetitions(sorted(lines, key=lambda line: line.place))
        classified = [(line, rule_of(line, rules)) for line in known]
        aside += [
            Aside(line, SetAside.UNCLASSIFIED, rule.meaning)
            for line, rule in classified
            if isinstance(rule.meaning, Unclassified)
        ]
        meant = [(line, rule.meaning) for line, rule in classified if isinstance(rule.meaning, EventType)]
        for line, _ in meant:
            self.orders.setdefault(line.invoice_no, Order(line.business_day))
        events = [self._in_sequence(event) for line, event_type in meant for event in self._events(line, event_type)]
        return Translated(tuple(events), tuple(aside))

    def _events(self, line: Line, event_type: EventType) -> Iterator[Event]:
        """Yield what a line tells of, each event after what it follows from."""
        if event_type is EventType.LINE_CANCELLED:
            yield from self._cancelled(self.sales.cancel(line))
            return
        order = self.orders[line.invoice_no]
        if event_type is EventType.ORDER_LINE_ADDED:
            if not order.placed:
                order.placed = True
                yield Event(EventType.ORDER_PLACED, Origin.SYNTHETIC, line.invoice_no, order.day, line)
            if line.unit_price:
                self.sales.sell(line)
                order.left += line.quantity
        yield Event(event_type, Origin.NATIVE, line.invoice_no, order.day, line, line.quantity)

    def _cancelled(self, parts: Sequence[Reversed]) -> Iterator[Event]:
        """Yield what a cancellation says of each order it reverses, and which of them it leaves nothing of.

        An order that got another line after it was cancelled may be cancelled once more.
        """
        for one in parts:
            name = (one.sale or one.line).invoice_no
            order = self.orders[name]
            yield Event(
                EventType.LINE_CANCELLED,
                Origin.NATIVE,
                name,
                order.day,
                one.line,
                -one.pieces,
                one.part,
                reversal=one.reversal,
                reverses=one.sale,
                why=one.why,
            )
            if one.sale is None:
                continue
            order.left -= one.pieces
            if not order.left:
                cancelled, day = EventType.ORDER_CANCELLED, order.day
                yield Event(cancelled, Origin.SYNTHETIC, name, day, one.line, part=order.cancelled)
                order.cancelled += 1

    def _in_sequence(self, event: Event) -> Event:
        order = self.orders[event.order_id]
        order.events += 1
        return replace(event, sequence=order.events - 1)


def translate(lines: Iterable[Line], version: str, book: Book | None = None) -> Translated:
    """Return the events that lines of one customer, or of one invoice without a customer, tell of.

    Args:
        lines: all that are known, in any order; of those that a book has not, where one is given.
        version: of the rules.
        book: what earlier lines have left, which goes on with these; None where there are none.

    Raises:
        KeyError: if there are no rules of that version.
    """
    return (book or Book()).enter(lines, version)


def _without_repetitions(lines: Sequence[Line]) -> tuple[list[Line], list[Aside]]:
    """Part lines into those that say something new, and those that say again what an earlier one said."""
    first: dict[str, Line] = {}
    aside = []
    for line in lines:
        said = first.setdefault(line.line_id, line)
        if said is not line:
            aside.append(Aside(line, SetAside.DUPLICATE, "REPEATS_A_LINE", said))
    return list(first.values()), aside
