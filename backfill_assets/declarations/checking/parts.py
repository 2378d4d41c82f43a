"""The parts of a product that come in tuples (sinks, feeds, servers): that they are what they are declared to be, one by one.

Put here what is asked of every such tuple. What a part of the right kind says wrongly is asked by the module of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from backfill_assets.declarations.checking.table_fields import in_words
from backfill_assets.declarations.product import Product
from manifests.errors import Problem

_Part = TypeVar("_Part")


def wrong_parts(
    product: Product, field: str, kind: type[_Part], of_one: Callable[[_Part], Iterator[Problem]], example: str
) -> Iterator[Problem]:
    """Yield what is wrong with a field that is a tuple of parts of a kind, and with each of them; `example` is how one is written."""
    parts: Any = getattr(product, field)
    where = f"product {product.name if isinstance(product.name, str) else in_words(product.name)}"
    rule, fix = f"it is a tuple of `{kind.__name__}`", f"write `{field}=({example},)`, or leave it out"
    if not isinstance(parts, (tuple, list)):
        yield Problem(f"{field} is {in_words(parts)}", rule, fix, where)
        return
    for part in parts:
        if type(part) is kind:  # one of a class of its own could show its reader what it does not show here
            yield from of_one(part)
        elif isinstance(part, kind):
            own = f"{rule} itself, and of no class that inherits it"
            yield Problem(f"{field} has {in_words(part)}", own, f"make it by `{kind.__name__}(...)`", where)
        else:
            yield Problem(f"{field} has {in_words(part)}", rule, fix, where)


def parts_of_kind(product: Product, field: str, kind: type[_Part]) -> tuple[_Part, ...]:
    """Return those parts in a field of a product that are of the declared kind, whatever else is in it."""
    parts: Any = getattr(product, field)
    return tuple(one for one in parts if type(one) is kind) if isinstance(parts, (tuple, list)) else ()
