"""Where products come from: entry points of installed distributions, or what the settings name instead.

Put here how a product is found, imported and refused. Whether what it declares can be used is `declarations.checking`'s.
The products that ship are found like anybody else's: nothing here imports one by its name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from backfill_assets.declarations.arguments import WrongArgumentsError
from backfill_assets.declarations.checking.imports import (
    all_wrong_arguments,
    import_problems,
    python_words,
)
from backfill_assets.declarations.checking.products import problems_of
from backfill_assets.declarations.deliveries import Loader
from backfill_assets.declarations.product import Product
from backfill_assets.declarations.products import Products
from backfill_assets.declarations.raised_by_products import ENDS_THE_PROCESS
from manifests.errors import DeclarationRefused, Problem

GROUP = "backfill_assets.products"
"""The group of entry points that a distribution names its products in."""
_FROM = f'a product is the name of an entry point in the group "{GROUP}", or module:ATTRIBUTE'
_PATH = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")
_ENOUGH = "uninstall the distribution that is not meant, or say in `products` of backfill.toml which are served"


def installed() -> dict[str, dict[str, list[str]]]:
    """Return by the name of each entry point what it stands for, `module:ATTRIBUTE`, and the distributions that say so."""
    points: dict[str, dict[str, list[str]]] = {}
    for point in sorted(entry_points(group=GROUP)):
        names = points.setdefault(point.name, {}).setdefault(point.value, [])
        names.append("an unnamed distribution" if point.dist is None else point.dist.name)
    return points


def _paths(points: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, str]:
    return {name: path for name, paths in points.items() for path in paths if len(paths) == 1}


def _of_two(names: Iterable[str], points: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterator[Problem]:
    """Yield each name that distributions have given to different products: which one is meant, nobody can tell."""
    for name in dict.fromkeys(names):
        if len(paths := points.get(name, {})) > 1:
            said = ", and ".join(f"{path} of {' and '.join(whose)}" for path, whose in paths.items())
            yield Problem(
                f"the entry point {name} is {said}",
                "a name stands for one product",
                f"{_ENOUGH}, each as module:ATTRIBUTE",
            )


def _twice_installed(points: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterator[Problem]:
    """Yield each product that is installed under two names."""
    known = _paths(points)
    for path in dict.fromkeys(known.values()):
        names = [f"{name} of {' and '.join(points[name][path])}" for name in known if known[name] == path]
        if len(names) > 1:
            yield Problem(
                f"the entry points {', '.join(names)} are the same product, {path}", "each is served once", _ENOUGH
            )


def find_products(names: Sequence[str] | None) -> Products:
    """Import the products that an installation serves: those that are named, or all that are installed.

    Args:
        names: names of entry points, or import paths `module:ATTRIBUTE`; None for every entry point.

    Raises:
        DeclarationRefused: if one is not there, cannot be imported, or declares what cannot be used; with every reason.
    """
    return products_named(None if names is None else tuple(names))


@cache
def products_named(names: tuple[str, ...] | None) -> Products:
    """Import products once in a process; see `find_products`."""
    points = installed()
    known = _paths(points)
    if names is None:
        paths = list(dict.fromkeys(known.values()))
        problems = [*_of_two(points, points), *_twice_installed(points), *_problems_of_names(paths, known)]
    else:
        problems = list(_of_two(names, points))
        paths = [known.get(name, name) for name in names if name in known or name not in points]
        problems += _problems_of_names(paths, known)
    if problems:
        raise DeclarationRefused(problems)
    products: list[Product] = []
    for path in paths:
        try:
            products.append(_imported(path))
        except DeclarationRefused as refused:
            problems += refused.problems
    if problems:
        raise DeclarationRefused(problems)
    return check_products(products)


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
    value = _attribute(path, f"a loader of the product {product} is named as module:ATTRIBUTE")
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


def imported_adapter(path: str, sink: str) -> Any:
    """Import what a sink of a product names as its adapter.

    Raises:
        DeclarationRefused: if it cannot be imported, or cannot be called.
    """
    value = _attribute(path, f"the adapter of the sink {sink} is named as module:ATTRIBUTE")
    if callable(value):
        return value
    raise DeclarationRefused(
        Problem(
            f"{path} is a {type(value).__name__}",
            "`adapter` of a sink names, as module:ATTRIBUTE, what makes a `backfill_assets.SinkAdapter`",
            "correct the path",
            f"sink {sink}",
        )
    )


def imported_references(path: str, product: str) -> Callable[[], Iterable[tuple[str, Any, str]]]:
    """Import what yields the reference tables that a product ships.

    Raises:
        DeclarationRefused: if it cannot be imported, or cannot be called.
    """
    value = _attribute(path, f"the references of the product {product} are named as module:function")
    if callable(value):
        return value  # type: ignore[no-any-return]
    raise DeclarationRefused(
        Problem(
            f"{path} is a {type(value).__name__}",
            "`references` of a product names, as module:function, what yields name, Arrow rows and version of each table",
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


_STARTS_SPARK: set[str] = set()
"""Modules that have started Spark while they were imported: Python imports them once, and they are refused each time."""


def _spark_runs() -> bool:
    """Whether this process has a Spark session; nothing is imported to find out."""
    spark = sys.modules.get("pyspark.sql")
    return spark is not None and spark.SparkSession.getActiveSession() is not None


def _require_no_spark(module: str, *, ran_before: bool) -> None:
    """Refuse a module that has started Spark while it was imported, now or before.

    Raises:
        DeclarationRefused: naming the module.
    """
    if _spark_runs() and not ran_before:
        _STARTS_SPARK.add(module)
    if module in _STARTS_SPARK:
        raise DeclarationRefused(
            Problem(
                f"{module} starts Spark while it is imported",
                "a module declares, and computes nothing; sessions are the platform's, one a mode, with what each may reach",
                "take what makes the session out; a transform has one as `inputs.source.sparkSession`",
            )
        )


def _attribute(path: str, rule: str = _FROM) -> Any:
    module, _, attribute = path.partition(":")
    if not _PATH.fullmatch(path):
        raise DeclarationRefused(Problem(f"{path!r} is no path", "a path is module:ATTRIBUTE", "correct the path"))
    before = _spark_runs()
    try:
        value: Any = import_module(module)
    except WrongArgumentsError as error:
        raise DeclarationRefused(all_wrong_arguments(module) or import_problems(error, module)) from error
    except (Exception, *ENDS_THE_PROCESS) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise DeclarationRefused(
                Problem(f"{path}: {error}", rule, "correct the path, or install the distribution that has the module")
            ) from error
        raise DeclarationRefused(import_problems(error, module)) from error
    _require_no_spark(module, ran_before=before)
    folders = ", ".join(getattr(value, "__path__", ()))
    place = getattr(value, "__file__", None) or (f"a folder without code: {folders}" if folders else "part of Python")
    name = ""
    try:
        for name in attribute.split("."):
            value = getattr(value, name)
    except AttributeError as error:
        if error.obj is not value or error.name != name:  # it was raised within: by a module's own __getattr__
            raise DeclarationRefused(import_problems(error, module)) from error
        said = f"{path}: {python_words(error)}"
        raise DeclarationRefused(Problem(said, f"{rule} of that module, {place}", "correct the path")) from error
    except (Exception, *ENDS_THE_PROCESS) as error:
        raise DeclarationRefused(import_problems(error, module)) from error
    return value
