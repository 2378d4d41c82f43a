"""Mistakes in the sinks that products declare, and in the grants of a policy for LIVE that name them.

Put here what can be said of a sink without opening it or importing its adapter: the source of an adapter says which class it
claims. Who may use a sink is `resources.sinks.policy`'s. No message here quotes a text that could be a secret.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backfill_assets.declarations.checking.names import NAME_WORDS, did_you_mean, is_name, names_of, no_tuple
from backfill_assets.declarations.checking.parts import parts_of_kind, wrong_parts
from backfill_assets.declarations.checking.table_fields import in_words
from backfill_assets.declarations.checking.tables import in_problems, of_name, of_owners, of_setting_name
from backfill_assets.declarations.checking.topic_sinks import of_topic
from backfill_assets.declarations.product import Product
from backfill_assets.declarations.schedules import LivePolicy
from backfill_assets.declarations.sinks import Sink
from manifests.errors import Problem
from manifests.model import Mode
from resources.code.sources import missing_of
from resources.sinks.declared import (
    ACTIONS,
    CLASSES_OF,
    KEEP_RUNS_APART,
    PLATFORM_SINKS,
    Declared,
    SinkClass,
    ToTable,
    ToTopic,
    ToWebhook,
)
from resources.sinks.policy import SIDE_EFFECTS, draft_problems

_PATH = re.compile(r"\w+(\.\w+)*:\w+")
_MOST_SECONDS = 3600
_SECRET = re.compile(
    r"://[^/\s]*@|\b(?:passw(?:or)?d|secret|token|api.?key|bearer)\s*[=:]\s*\S|hooks?\.[a-z.]+/\S+", re.IGNORECASE
)
_ADAPTERS = ", ".join(f"ba.{kind.__name__}" for kind in CLASSES_OF)
_ADAPTER_RULE = f"it is one of {_ADAPTERS}, or the product's own as `module:ATTRIBUTE`"


def wrong_sink_fields(product: Product) -> Iterator[Problem]:
    """Yield each field of a product's sinks that nobody can use, and each that cannot be so, whatever else is declared."""
    return wrong_parts(product, "sinks", Sink, of_sink, "SINK")


def usable_sinks(product: Product) -> tuple[Sink, ...]:
    """Return those sinks of a product of which it is known what they are called, and of which class they are."""
    parts = parts_of_kind(product, "sinks", Sink)
    return tuple(one for one in parts if isinstance(one.name, str) and isinstance(one.sink_class, SinkClass))


def of_sink(sink: Sink) -> Iterator[Problem]:
    """Say what is wrong with one sink."""
    where = in_problems("sink", sink.name)
    yield from of_setting_name("sink", sink.name, "meter_events", _shown)
    for field, shown in (("description", sink.description),):
        if not isinstance(shown, str) or not shown.strip():
            yield Problem(f"{field} is {_shown(shown)}", "it is a sentence", "say what it is", where)
        elif _SECRET.search(shown):
            yield Problem(
                f"{field} has what looks like a secret",
                "a declaration names settings, and has the value of none",
                "take it out, change the secret, and name the setting that has it",
                where,
            )
    yield from _of_owners(sink, where)
    if not isinstance(sink.sink_class, SinkClass):
        yield Problem(
            f"sink_class is {_shown(sink.sink_class)}",
            f"it is one of {', '.join(f'SinkClass.{one.name}' for one in SinkClass)}",
            "name what a write to it does to the world: by that the policy decides who may",
            where,
        )
    if not isinstance(sink.isolated, bool):
        yield Problem(f"isolated is {_shown(sink.isolated)}", "it is True or False", "or leave it out", where)
    limit: Any = sink.time_limit_seconds
    if type(limit) is not int or not 0 < limit <= _MOST_SECONDS:
        rule = f"it is a whole number of seconds, 1 to {_MOST_SECONDS}"
        yield Problem(f"time_limit_seconds is {_shown(limit)}", rule, "correct it, or leave it out", where)
    yield from _of_actions(sink, where)
    yield from _of_settings(sink, where)
    yield from _of_adapter(sink, where)


def _of_owners(sink: Sink, where: str) -> Iterator[Problem]:
    owners: Any = sink.owners
    if isinstance(owners, str) and owners.strip(" ,"):
        yield no_tuple(f"{where}: owners", "owners is", owners)
    else:
        yield from of_owners(owners, "a sink", where, _shown)


def _of_actions(sink: Sink, where: str) -> Iterator[Problem]:
    told: Any = sink.told_of
    if isinstance(sink.adapter, ToTopic):
        if told != ():
            rule = "a topic gets the rows of publications, rollbacks and reinstatements, and is told of nothing else"
            yield Problem(f"told_of is {_shown(told)}, and the adapter ToTopic", rule, "leave it out", where)
        return
    if isinstance(told, str) and told.strip(" ,"):
        yield no_tuple(f"{where}: told_of", "told_of is", told)
        return
    names = names_of(told)
    wrong = [one for one in told if one not in ACTIONS] if isinstance(told, (tuple, list)) else [told]
    if wrong or not names or len(set(names)) < len(names):
        yield Problem(
            f"told_of is {_shown(told)}{did_you_mean(wrong[0], ACTIONS) if wrong else ''}",
            f"it has one or more of {', '.join(ACTIONS)}, each once",
            "leave it out to be told of all of them",
            where,
        )


def _of_settings(sink: Sink, where: str) -> Iterator[Problem]:
    settings: Any = sink.settings
    hook = sink.adapter if isinstance(sink.adapter, ToWebhook) else None
    named: dict[str, Any] = {} if hook is None else {"adapter.url": hook.url}
    named |= {} if hook is None or hook.token is None else {"adapter.token": hook.token}
    if isinstance(settings, (tuple, list)):
        named |= {f"settings[{number}]": one for number, one in enumerate(settings)}
        names = names_of(settings)
        if len(set(names)) < len(names):
            yield Problem("settings names one twice", "each is named once", "take one out", where)
    elif isinstance(settings, str) and all(is_name(one.strip()) for one in settings.split(",")):
        yield no_tuple(f"{where}: settings", "settings is", settings)
    else:
        yield Problem(
            "settings is no tuple",
            "it is a tuple of names of settings",
            "write settings=('token',), with the comma",
            where,
        )
    for field, name in named.items():
        if not is_name(name):
            said = f"a text of {len(name)} characters that is no name" if isinstance(name, str) else in_words(name)
            yield Problem(
                f"{field} is {said}",
                f"it is the name of a setting, never its value: {NAME_WORDS}",
                "name it, as in settings=('token',); its value stands in BACKFILL_SINKS__<sink>__<name>, or in backfill.toml",
                where,
            )
    if settings and isinstance(settings, (tuple, list)) and not isinstance(sink.adapter, str):
        yield Problem(
            f"settings has {len(settings)}, and the adapter is {type(sink.adapter).__name__}",
            "the settings of an adapter that ships are its own arguments",
            "leave them out",
            where,
        )


def _of_adapter(sink: Sink, where: str) -> Iterator[Problem]:
    adapter: Any = sink.adapter
    if type(adapter) is str:
        yield from _of_path(sink, adapter, where)
        return
    classes = CLASSES_OF.get(type(adapter))
    if classes is None:
        yield Problem(f"adapter is {_shown(adapter)}", _ADAPTER_RULE, "name one", where)
        return
    kind = type(adapter).__name__
    if isinstance(sink.sink_class, SinkClass) and sink.sink_class not in classes:
        yield Problem(
            f"sink_class is {sink.sink_class}, and the adapter {kind}",
            f"a {kind} is {' or '.join(sorted(classes))}: that is what a write by it does to the world",
            "correct the class, or name another adapter",
            where,
        )
    if sink.isolated is True and type(adapter) not in KEEP_RUNS_APART:
        yield Problem(
            f"isolated is True, and the adapter {kind}",
            f"a {kind} sends what it is given, and keeps no runs apart",
            "leave `isolated` out",
            where,
        )
    if isinstance(adapter, ToTopic):
        yield from of_topic(adapter, where)
    if isinstance(adapter, ToTable):
        table: Any = adapter.table
        if isinstance(table, str):
            yield from of_name(table, f"{where}: adapter")
        else:
            yield Problem(f"table is {_shown(table)}", "it is <namespace>.<table>", "name the table", where)


def _of_path(sink: Sink, path: str, where: str) -> Iterator[Problem]:
    if not _PATH.fullmatch(path):
        said = "a text that looks like a secret" if _SECRET.search(path) or "://" in path else _shown(path)
        yield Problem(
            f"adapter is {said}", _ADAPTER_RULE, "write the full name of the module, a colon and the name", where
        )
        return
    module, _, attribute = path.partition(":")
    if (missing := missing_of(module, attribute)) is not None:
        yield Problem(
            f"adapter is {path!r}, and there is no {missing}",
            "it is imported once the policy has allowed the sink, and its code counts as the product's",
            "correct the name, or install the distribution that has it",
            where,
        )
        return
    written = _class_in(module, attribute)
    if written is None:
        return
    claimed, has_send = written
    if claimed is not None and isinstance(sink.sink_class, SinkClass) and claimed != sink.sink_class.name:
        yield Problem(
            f"the adapter {path} is of class {claimed}, and the sink of {sink.sink_class}",
            "both say what a write does to the world, and the policy goes by it",
            "give both the same `sink_class`",
            where,
        )
    if claimed is None:
        what, fix = f"the adapter {path} has no sink_class", "write `sink_class = ba.SinkClass.…` into the class"
        yield Problem(what, "it says what a write by it does to the world (`ba.SinkAdapter`)", fix, where)
    if not has_send:
        what, fix = f"the adapter {path} has no send", "write `def send(self, told: ba.Told) -> None`"
        yield Problem(what, "it takes one record at a time (`ba.SinkAdapter`)", fix, where)


def _class_in(module: str, attribute: str) -> tuple[str | None, bool] | None:
    """Return which class of sinks a class of Python claims, and whether it has `send`, as its source says.

    None where that is not known before it is imported: it is no class of that file, or it inherits.
    """
    try:
        file = Path(getattr(find_spec(module), "origin", None) or "")
        tree = ast.parse(file.read_text("utf-8"))
    except (OSError, ValueError, ImportError, SyntaxError):
        return None
    found = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == attribute]
    if len(found) != 1 or found[0].bases or found[0].keywords or found[0].decorator_list:
        return None
    claimed: str | None = None
    for line in found[0].body:
        named = (
            line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
        )
        if any(isinstance(one, ast.Name) and one.id == "sink_class" for one in named):
            value = line.value if isinstance(line, (ast.Assign, ast.AnnAssign)) else None
            if not isinstance(value, ast.Attribute):
                return None
            claimed = value.attr
    functions = {one.name for one in found[0].body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))}
    if claimed is None and {"sink_class", "__getattr__"} & functions:
        return None
    return claimed, bool({"send", "__getattr__"} & functions) or _assigns_send(found[0])


def _assigns_send(written: ast.ClassDef) -> bool:
    targets = (one for line in written.body if isinstance(line, ast.Assign) for one in line.targets)
    return any(isinstance(one, ast.Name) and one.id == "send" for one in targets)


def of_all_sinks(declared: Sequence[Product], tables: Iterable[str]) -> Iterator[Problem]:
    """Say what is wrong with the sinks of all products together: each name and each table stands for one thing."""
    sinks = [(product.name, sink) for product in declared for sink in product.sinks]
    for name, times in Counter(sink.name for _, sink in sinks).items():
        whose = ", ".join(product for product, sink in sinks if sink.name == name)
        if name in PLATFORM_SINKS:
            rule = "a name stands for one sink: manifests grant it, and records have it"
            yield Problem(f"{name} is a sink of the platform's own", rule, "give it another name", f"product {whose}")
        elif times > 1:
            yield Problem(
                f"sink {name} is declared {times} times, by {whose}",
                "a name stands for one sink in all products: manifests grant it, and records have it",
                "give one of them another name",
            )
    own = Counter(sink.table for _, sink in sinks if isinstance(sink.table, str))
    taken = set(tables)
    for table, times in own.items():
        if times > 1 or table in taken:
            what = "of two sinks" if times > 1 else "of a sink, and declared beside it"
            yield Problem(f"{table} is the table {what}", "a name stands for one table", "give the sink another table")


def of_live_sinks(live: LivePolicy, where: str, declared: Declared) -> Iterator[Problem]:
    """Say which sinks a policy for LIVE grants that there are not, or that have side effects which it does not allow."""
    if isinstance(live.sinks, str):
        yield no_tuple(where, "sinks is", live.sinks)
        return
    told = [one for one in live.sinks if one in declared and declared[one].sink_class in SIDE_EFFECTS]
    if told and not live.side_effects_allowed:
        yield Problem(
            f"sinks has {', '.join(told)}, and side_effects_allowed is False",
            "what somebody outside sees at once is granted in so many words",
            "write side_effects_allowed=True, or take the sink out",
            where,
        )
    for problem in draft_problems(live.sinks, Mode.LIVE, declared):
        yield Problem(
            f"sinks: {problem.what.removeprefix('safety.sinks ')}",
            problem.rule,
            "correct the name, or remove it",
            where,
        )


def _shown(value: Any) -> str:
    """Return a value as it is written; of a text that could be a secret, that it is one."""
    said = in_words(value)
    return "what looks like a secret" if isinstance(value, (str, list, tuple, dict)) and _SECRET.search(said) else said
