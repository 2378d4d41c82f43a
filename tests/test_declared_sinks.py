"""What products say of their sinks is refused when it is declared, all of it at once, if nobody could be told by it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import backfill_assets as ba
from backfill_assets.declarations.arguments import WrongArgumentsError
from backfill_assets.declarations.checking.products import problems_of
from backfill_assets.declarations.sources import sources_of
from resources.sinks.declared import CLASSES_OF, SinkClass
from resources.sinks.policy import SIDE_EFFECTS

OWNERS = ("team:metering",)
LOG = ba.Sink("meter_events", ba.SinkClass.EVENT_TOPIC, "what the meters' runs did", OWNERS, ba.ToEventLog())
SECRET = "https://hooks.example.com/services/T0/B0/XyZ-very-secret"
ADAPTERS = """
import backfill_assets as ba

raise_when_imported = RuntimeError

class Index:
    sink_class = ba.SinkClass.SEARCH_INDEX

    def __init__(self, settings): ...
    def send(self, told): ...

class Unclassed:
    def send(self, told): ...

class Silent:
    sink_class = ba.SinkClass.SEARCH_INDEX

def made(settings): ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "zzz_adapters.py").write_text(ADAPTERS)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("zzz_adapters", None)


def said(*sinks: Any, name: str = "metering") -> list[str]:
    return [str(one) for one in problems_of([ba.Product(name, (), (), sinks=sinks)])]


class TwoFaced(ba.Sink):
    """A sink that shows one adapter to the checks, and another to who opens it."""

    def __getattribute__(self, name: str) -> Any:
        if name == "adapter" and sys._getframe(1).f_code.co_name in {"_opened", "needs"}:
            return ba.ToWebhook()
        return super().__getattribute__(name)


class TwoTexts(str):
    """A text that is equal to no other, whatever it says."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def test_a_part_or_a_name_of_a_class_of_its_own_could_show_each_reader_something_else_and_is_refused() -> None:
    (problem,) = said(TwoFaced("mail", ba.SinkClass.CACHE, "a cache, it says", OWNERS, ba.ToCache()))
    assert "sinks has a TwoFaced" in problem
    assert "of no class that inherits it" in problem
    for fields in ({"topic": TwoTexts("readings")}, {"topic": "readings", "backfill_topic": TwoTexts("readings")}):
        topic = ba.ToTopic(table="silver.readings", key=("meter",), **fields)
        sink = ba.Sink("readings", ba.SinkClass.EVENT_TOPIC, "each reading", OWNERS, topic)
        assert any("a topic is named by letters and digits" in one for one in said(sink))
    path = ba.Sink("index", ba.SinkClass.SEARCH_INDEX, "an index", OWNERS, TwoTexts("zzz:Index"))
    assert any("adapter is 'zzz:Index'" in one for one in said(path))
    source = ba.Topic("orders", "An order.", OWNERS, TwoTexts("orders"), "bronze.orders")
    assert any("topic is 'orders'" in str(one) for one in problems_of([ba.Product("shop", (), (), topics=(source,))]))


def test_every_shipped_adapter_can_be_declared_with_each_of_its_classes() -> None:
    adapters = (ba.ToTable("audit.meter_runs"), ba.ToEventLog(), ba.ToWebhook(token="token"), ba.ToCache())
    # a topic has rows of a target: `test_declared_topics`
    assert {type(one) for one in adapters} == set(CLASSES_OF) - {ba.ToTopic}
    for adapter, sink_class in itertools.product(adapters, SinkClass):
        problems = said(replace(LOG, adapter=adapter, sink_class=sink_class, isolated=None))
        assert (problems == []) is (sink_class in CLASSES_OF[type(adapter)]), (adapter, sink_class, problems)
        if problems:
            assert f"sink_class is {sink_class}, and the adapter {type(adapter).__name__}" in problems[0]


def test_a_sink_keeps_runs_apart_if_its_adapter_does_and_nothing_else_is_said() -> None:
    hook = ba.Sink("hook", ba.SinkClass.TICKET, "opens tickets", OWNERS, ba.ToWebhook())
    own = ba.Sink("index", ba.SinkClass.SEARCH_INDEX, "search", OWNERS, "json:dumps")
    assert (LOG.isolated, hook.isolated, own.isolated, replace(own, isolated=True).isolated) == (
        True,
        False,
        False,
        True,
    )
    assert any("isolated is True, and the adapter ToWebhook" in one for one in said(replace(hook, isolated=True)))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"name": "Meter Events"}, "name is 'Meter Events'"),
        ({"name": "a" * 65}, "name is 'aaaa"),
        ({"name": "two__in_a_row"}, "name is 'two__in_a_row'"),
        ({"name": ["a", "list"]}, "name is ['a', 'list']"),
        ({"name": None}, "name is None"),
        ({"description": " "}, "description is ' '"),
        ({"description": f"posts to {SECRET}"}, "description has what looks like a secret"),
        ({"description": "reads with password=hunter2"}, "description has what looks like a secret"),
        ({"owners": ()}, "owners=()"),
        ({"owners": "team:metering"}, "owners is the text 'team:metering'"),
        ({"owners": ("somebody",)}, "owners=('somebody',)"),
        ({"owners": 5}, "owners=5"),
        ({"sink_class": "EVENT_TOPIC"}, "sink_class is 'EVENT_TOPIC'"),
        ({"sink_class": "RADIO"}, "sink_class is 'RADIO'"),
        ({"sink_class": {}}, "sink_class is {}"),
        ({"isolated": "yes"}, "isolated is 'yes'"),
        ({"told_of": ()}, "told_of is ()"),
        ({"told_of": "publish"}, "told_of is the text 'publish'"),
        ({"told_of": ("publsh",)}, "told_of is ('publsh',); did you mean 'publish'?"),
        ({"told_of": ("publish", "publish")}, "told_of is ('publish', 'publish')"),
        ({"told_of": (["publish"],)}, "told_of is (['publish'],)"),
        ({"told_of": 7}, "told_of is 7"),
        ({"time_limit_seconds": 0}, "time_limit_seconds is 0"),
        ({"time_limit_seconds": True}, "time_limit_seconds is True"),
        ({"time_limit_seconds": 3601}, "time_limit_seconds is 3601"),
        ({"settings": ("token",)}, "settings has 1, and the adapter is ToEventLog"),
        ({"settings": "token"}, "settings is the text 'token'"),
        ({"settings": SECRET}, "settings is no tuple"),
        (
            {"settings": (SECRET,), "adapter": "json:dumps"},
            f"settings[0] is a text of {len(SECRET)} characters that is no name",
        ),
        ({"settings": ("token", "token"), "adapter": "json:dumps"}, "settings names one twice"),
        ({"adapter": None}, "adapter is None"),
        ({"adapter": ba.ToEventLog}, "adapter is the class ToEventLog"),
        ({"adapter": "no path"}, "adapter is 'no path'"),
        ({"adapter": SECRET}, "adapter is a text that looks like a secret"),
        ({"adapter": "zzz_nowhere:Index"}, "there is no zzz_nowhere"),
        ({"adapter": "json:Index"}, ""),
        ({"adapter": ba.ToTable("no table"), "sink_class": SinkClass.ANALYTICAL_TABLE}, "a table is named 'no table'"),
        ({"adapter": ba.ToTable(5), "sink_class": SinkClass.ANALYTICAL_TABLE}, "table is 5"),  # type: ignore[arg-type]
        (
            {"adapter": ba.ToTable("audit.run_audit"), "sink_class": SinkClass.ANALYTICAL_TABLE},
            "audit.run_audit is a table of the platform's own",
        ),
        (
            {"adapter": ba.ToWebhook(SECRET), "sink_class": SinkClass.NOTIFICATION, "isolated": None},
            f"adapter.url is a text of {len(SECRET)} characters that is no name",
        ),
        (
            {"adapter": ba.ToWebhook(token="Bearer XyZ-very-secret"), "sink_class": SinkClass.TICKET, "isolated": None},
            "adapter.token is a text of 22 characters that is no name",
        ),
    ],
)
def test_a_sink_that_nobody_could_use_is_refused_when_it_is_declared(changes: dict[str, Any], found: str) -> None:
    problems = said(replace(LOG, **changes))
    if found:
        assert any(found in one for one in problems), problems
        assert all("rule:" in one and "what to do:" in one for one in problems)
    assert not any(secret in one for one in problems for secret in ("XyZ", "hunter2"))


def test_everything_that_is_wrong_with_sinks_is_said_at_once() -> None:
    wrong = replace(LOG, name="No Name", owners=(), told_of=("fly",), time_limit_seconds=-1)
    other = replace(LOG, description="", adapter="zzz_nowhere:X")
    problems = said(wrong, other, "no sink", LOG)
    for found in ("No Name", "owners=()", "fly", "-1", "description is ''", "zzz_nowhere", "sinks has 'no sink'"):
        assert any(found in one for one in problems), (found, problems)


@pytest.mark.parametrize("sinks", ["meter_events", 5, {"a": LOG}, LOG])
def test_sinks_that_are_no_tuple_are_refused(sinks: Any) -> None:
    (problem,) = problems_of([ba.Product("metering", (), (), sinks=sinks)])
    assert problem.what.startswith("sinks is ")


def test_misspelt_arguments_of_a_sink_are_named_at_once() -> None:
    with pytest.raises(WrongArgumentsError) as refused:
        ba.Sink(name="a", sinkclass=SinkClass.CACHE, description="b", owner=OWNERS)  # type: ignore[call-arg]
    assert refused.value.reasons == (
        "Sink has no sinkclass; did you mean sink_class?",
        "Sink has no owner; did you mean owners?",
        "Sink lacks adapter",
    )


def test_a_name_stands_for_one_sink_and_a_table_for_one_thing() -> None:
    table = ba.Sink("audits", ba.SinkClass.ANALYTICAL_TABLE, "audits", OWNERS, ba.ToTable("audit.meters"))
    products = [
        ba.Product("one", (), (), sinks=(LOG, table, replace(LOG, name="run_audit"))),
        ba.Product("two", (), (), sinks=(LOG, replace(table, name="others"))),
    ]
    problems = [one.what for one in problems_of(products)]
    assert problems == [
        "sink meter_events is declared 2 times, by one, two",
        "run_audit is a sink of the platform's own",
        "audit.meters is the table of two sinks",
    ]


@pytest.mark.parametrize(
    ("attribute", "found"),
    [
        ("Index", None),
        ("made", None),  # a function says its class when it is called, and is held to it then
        ("Unclassed", "has no sink_class"),
        ("Silent", "has no send"),
        ("Nobody", "there is no Nobody in zzz_adapters"),
    ],
)
def test_an_adapter_is_held_to_the_contract_by_its_source(folder: Path, attribute: str, found: str | None) -> None:
    own = ba.Sink("index", ba.SinkClass.SEARCH_INDEX, "search", OWNERS, f"zzz_adapters:{attribute}")
    problems = said(own)
    assert (problems == []) if found is None else any(found in one for one in problems), problems
    assert "zzz_adapters" not in sys.modules, "nothing of an adapter is imported before the policy has allowed its sink"


@pytest.mark.parametrize("sink_class", [one for one in SinkClass if one is not SinkClass.SEARCH_INDEX])
def test_an_adapter_that_claims_another_class_is_refused(folder: Path, sink_class: SinkClass) -> None:
    (problem,) = said(ba.Sink("index", sink_class, "search", OWNERS, "zzz_adapters:Index"))
    assert f"the adapter zzz_adapters:Index is of class SEARCH_INDEX, and the sink of {sink_class}" in problem


def test_an_adapter_counts_as_its_products_code(folder: Path) -> None:
    own = ba.Sink("index", ba.SinkClass.SEARCH_INDEX, "search", OWNERS, "zzz_adapters:Index")
    assert "zzz_adapters" in sources_of(ba.Product("metering", (), (), sinks=(own,))).packages


def test_classes_with_side_effects_are_those_that_nobody_can_take_back() -> None:
    assert {one.value for one in SIDE_EFFECTS} == {"EVENT_TOPIC", "NOTIFICATION", "TICKET", "EXTERNAL_API"}
