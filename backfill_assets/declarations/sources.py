"""Which code a product is: the packages of its models and functions, or those that it names itself.

Put here how the code of a declaration is found. Where its files lie, and their identity, is `resources.code`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from backfill_assets.declarations.product import Product
from backfill_assets.declarations.target import TargetTable
from resources.code.sources import Sources, imported_beside
from resources.sinks.declared import ToTopic

_SHIPPED = "backfill_assets.products."
_CORE = frozenset({"backfill_assets", "resources", "manifests"})


def sources_of(product: Product) -> Sources:
    """Return the code of a product: what its plans name, and what voids them when it changes.

    It is the whole top-level package (or single module) of each model and function that the product declares, so that
    helpers beside them count; of a product that ships with this package it is its own folder. `Product.code` names others.
    Packages and modules that this code imports count as well, unless they are installed: those are for the lock file.
    """
    modules = [*modules_of(product), *_named(product)]
    packages = tuple(sorted(product.code or set(filter(None, map(_package_of, modules)))))
    if all(package.startswith(_SHIPPED) for package in packages):
        return Sources(product.name, packages)  # they import nothing that is not installed: that need not be looked up
    return Sources(product.name, tuple(sorted((*packages, *imported_beside(packages, _CORE)))))


def modules_of(product: Product) -> tuple[str, ...]:
    """Return the modules that a product's models and functions are in, in order, each once: what workers import."""
    return tuple(dict.fromkeys(filter(_is_own, map(_module, _parts(product)))))


def _named(product: Product) -> list[str]:
    """Return the modules that a product names and that are imported for one purpose only: not by Spark's workers."""
    paths = [*product.loaders.values(), *([] if product.references is None else [product.references])]
    paths += [sink.adapter for sink in product.sinks if isinstance(sink.adapter, str)]
    translators = [module for feed in product.apis if _is_own(module := _module(feed.translate))]
    values = [sink.adapter.value for sink in product.sinks if isinstance(sink.adapter, ToTopic)]
    translators += [module for one in values if callable(one) and _is_own(module := _module(one))]
    return [*(path.partition(":")[0] for path in paths), *translators]


def _parts(product: Product) -> Iterator[Any]:
    """Yield the models and functions that a product declares."""
    for table in product.inputs:
        yield table.model
    yield from (feed.translate for feed in product.feeds)
    for target in product.targets:
        yield from _parts_of(target)


def _parts_of(target: TargetTable) -> Iterator[Any]:
    yield target.model
    yield from (version.function for version in target.versions.values())
    yield from (target.warm_up_days, target.measure)
    for readers in map(target.readers_of, target.every_source):
        yield from () if readers is None else readers.by_version.values()
    yield from (gate.check for gate in target.reconciliations)
    if target.outline is not None:
        yield target.outline.rows
    if target.corrections is not None:
        yield target.corrections.model


def _module(part: Any) -> str:
    while isinstance(part, partial):
        part = part.func
    return str(getattr(part, "__module__", "") or "")


def _is_own(module: str) -> bool:
    """Return whether a module is a product's: neither this package's nor Python's."""
    top = module.partition(".")[0]
    return module.startswith(_SHIPPED) or (bool(top) and top not in _CORE and top not in sys.stdlib_module_names)


def _package_of(module: str) -> str:
    if module.startswith(_SHIPPED):
        return ".".join(module.split(".")[:3])
    return module.partition(".")[0]
