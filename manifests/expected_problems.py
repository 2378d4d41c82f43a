"""What in the expected figures of a manifest contradicts its target or its plan.

Put here what can be told before anything is computed. What the fields are is `expected`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from functools import reduce

from manifests.errors import Problem
from manifests.expected import Expected, Figures
from manifests.facts import TargetContract

_EXACT = Context(prec=1_000)
"""Python's own context rounds to 28 digits."""


def expected_problems(
    expected: Expected | None,
    contract: TargetContract,
    planned: Sequence[str] | None,
    *,
    derives: bool,
    part: bool,
    complete: bool = True,
) -> Iterator[Problem]:
    """Yield what in the expected figures no run of the manifest could be held against.

    Args:
        expected: what the manifest says; None: nothing.
        contract: the declared target.
        planned: the keys of the chunks that are computed; None where they are not known.
        derives: whether what is published is derived from the computed rows, so that these are not what readers see.
        part: whether the run, or each run of a series, computes a part of the publish range.
        complete: whether these are all figures; else nothing can be said of what they add up to.
    """
    if expected is None:
        return
    if planned is not None and (unknown := sorted(set(expected.chunks) - set(planned))):
        yield Problem(
            f"validation.expected.chunks names {_listed(unknown)}",
            f"the run computes chunks {planned[0]} to {planned[-1]}" if planned else "the run computes no chunk",
            "correct the chunk keys, or take them out",
        )
    if expected.whole is not None and part:
        yield Problem(
            "validation.expected.whole is given",
            "a sample, or a step of a progressive run, computes a part of the publish range",
            "give the figures by chunk",
        )
    if derives and (digests := sorted(key for key, one in expected.chunks.items() if one.digest is not None)):
        yield Problem(
            f"validation.expected has a digest of {_listed(digests)}",
            "the digest is that of computed rows, and readers of this publish mode see others beside or instead of them",
            "give rows and sums, which are those that readers see",
        )
    for column in sorted({name for one in _each(expected).values() for name in one.sums} - set(contract.summed)):
        yield Problem(
            f"validation.expected has a sum of {column}",
            f"whole numbers and decimals outside the key are added up, exactly: of {contract.table} these are "
            f"{', '.join(contract.summed) or 'none'}",
            "correct the column's name, or take the sum out",
        )
    if complete:
        yield from _unlike_their_total(expected, planned)


def _unlike_their_total(expected: Expected, planned: Sequence[str] | None) -> Iterator[Problem]:
    """Yield that figures of every chunk do not add up to those of the whole: no run could have both."""
    if expected.whole is None or planned is None or set(expected.chunks) != set(planned):
        return
    rows = [one.rows for one in expected.chunks.values()]
    total = None if None in rows else sum(one for one in rows if one is not None)
    if total is not None and expected.whole.rows not in {None, total}:
        yield _no_total("rows", f"{total:,}", f"{expected.whole.rows:,}")
    for column, whole in expected.whole.sums.items():
        values = [one.sums.get(column) for one in expected.chunks.values()]
        if None not in values and (found := _total_of(value for value in values if value)) != Decimal(whole):
            yield _no_total(column, str(found), whole)


def _total_of(values: Iterable[str]) -> Decimal:
    """Return what sums as text add up to, with every digit."""
    return reduce(_EXACT.add, map(Decimal, values), Decimal(0))


def _no_total(what: str, found: str, whole: str) -> Problem:
    return Problem(
        f"validation.expected: {what} of the chunks add up to {found}, and the whole is to have {whole}",
        "the whole is its chunks together",
        "correct one of them",
    )


def _each(expected: Expected) -> Mapping[str, Figures]:
    whole = {} if expected.whole is None else {"": expected.whole}
    return {**whole, **expected.chunks}


_SHOWN = 10


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(keys[:_SHOWN]) + (f" and {len(keys) - _SHOWN:,} more" if len(keys) > _SHOWN else "")
