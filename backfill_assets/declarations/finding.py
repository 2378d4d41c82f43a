"""Where products come from: entry points of installed distributions, or what the settings name instead.

Put here how a product is found, imported and refused. Whether what it declares can be used is `declarations.checking`'s.
The products that ship are found like anybody else's: nothing here imports one by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from backfill_assets.declarations.checking.imports import ENDS_THE_PROCESS, import_problems
from backfill_assets.declarations.checking.products import problems_of
from backfill_assets.declarations.deliveries import Loader
from backfill_assets.declarations.products import Products
from backfill_assets.declarations.target import Product
from manifests.errors import DeclarationRefused, Problem

GROUP = "backfill_assets.products"
"""The group of entry points that a distribution names its products in."""
_FROM = f'a product is the name of an entry point in the group "{GROUP}", or module:ATTRIBUTE'


def installed() -> dict[str, str]:
    """Return the products of every installed distribution: `module:ATTRIBUTE` by the entry point's name, sorted by name."""
    return {point.name: point.value for point in sorted(entry_points(group=GROUP))}


def find_products(names: Sequence[str] | None) -> Products:
    """Import the products that an installation serves: those that are named, or all that are installed.

    Args:
        names: names of entry points, or import paths `module:ATTRIBUTE`; None for every entry point.

    Raises:
        DeclarationRefused: if one is not there, cannot be imported, or declares what cannot be used; with every reason.
    """
    return _found(None if names is None else tuple(names))


@cache
def _found(names: tuple[str, ...] | None) -> Products:
    known = installed()
    paths = list(known.values()) if names is None else [known.get(name, name) for name in names]
    if problems := list(_problems_of_names(paths, known)):
        raise DeclarationRefused(problems)
    return check_products([_imported(path) for path in paths])


def check_products(declared: Iterable[Product]) -> Products:
    """Return products as they are handed in, if what they declare can be used together.

    Raises:
        DeclarationRefused: with everything that cannot.
    """
    products = Products(tuple(declared))
    if problems := problems_of(products.declared):
        raise DeclarationRefused(problems)
    return products


def imported_loader(path: str, product: str) -> Loader:
    """Import a loader that a product declares.

    Raises:
        DeclarationRefused: if it cannot be imported, or is no loader.
    """
    value = _attribute(path)
    if isinstance(value, Loader):
        return value
    raise DeclarationRefused(
        Problem(
            f"{path} is a {type(value).__name__}",
            "`loaders` of a product names each as module:ATTRIBUTE of a `backfill_assets.Loader`",
            "correct the path",
            f"product {product}",
        )
    )


def _problems_of_names(paths: Sequence[str], known: dict[str, str]) -> Iterable[Problem]:
    for path in dict.fromkeys(paths):
        if paths.count(path) > 1:
            yield Problem(
                f"the product {path} is named {paths.count(path)} times", "each is served once", "name it once"
            )
        if not re.fullmatch(r"[\w.]+:[\w.]+", path):
            close = get_close_matches(path, known, n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            yield Problem(
                f"no product is called {path!r}",
                f"{_FROM}; installed are {', '.join(known) or 'none'}",
                f"{meant}correct `products` in backfill.toml, or install the distribution that has it",
            )


def _imported(path: str) -> Product:
    value = _attribute(path)
    if not isinstance(value, Product):
        raise DeclarationRefused(
            Problem(
                f"{path} is a {type(value).__name__}",
                _FROM,
                "name the attribute that holds a `backfill_assets.Product`",
            )
        )
    return value


def _attribute(path: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        value: Any = import_module(module)
        for name in attribute.split("."):
            value = getattr(value, name)
    except (Exception, *ENDS_THE_PROCESS) as error:
        raise DeclarationRefused(import_problems(error, module)) from error
    return value
