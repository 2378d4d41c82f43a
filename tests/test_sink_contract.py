"""A product's author can hold an adapter against its contract; each way of breaking it is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sink_receivers
from sink_receivers import OF_CLASS

import backfill_assets as ba
from backfill_assets.testing import SinkContractError, require_sink_contract
from resources.sinks.declared import SinkClass

INDEX = ba.Sink(
    "index",
    SinkClass.SEARCH_INDEX,
    "search",
    ("team:metering",),
    "sink_receivers:Index",
    settings=("folder", "token"),
    time_limit_seconds=1,
)


def broken(folder: Path, adapter: str, **changes: object) -> tuple[str, ...]:
    def received() -> list[tuple[str, str]]:
        return kept_in(folder) + (pairs((folder / "all").read_text().split()) if (folder / "all").exists() else [])

    sink = replace(INDEX, adapter=f"sink_receivers:{adapter}", **changes)  # type: ignore[arg-type]
    away = {"folder": str(folder / "nowhere"), "token": "s3cr3t"}
    with pytest.raises(SinkContractError) as refused:
        require_sink_contract(sink, {"folder": str(folder), "token": "s3cr3t"}, received, away=away)
    return refused.value.problems


def kept_in(folder: Path) -> list[tuple[str, str]]:
    return [(run, action) for run, _, action in (one.stem.partition("~") for one in folder.glob("*.json"))]


def pairs(words: list[str]) -> list[tuple[str, str]]:
    return list(zip(words[::2], words[1::2], strict=True))


@pytest.mark.parametrize("sink_class", list(SinkClass))
def test_an_adapter_of_each_class_that_keeps_the_contract_passes(sink_class: SinkClass, tmp_path: Path) -> None:
    sink = replace(INDEX, adapter=f"sink_receivers:{OF_CLASS[sink_class].__name__}", sink_class=sink_class)
    settings, away = {"folder": str(tmp_path), "token": "x"}, {"folder": "/proc/nowhere", "token": "x"}
    require_sink_contract(sink, settings, lambda: kept_in(tmp_path), away=away)
    assert len(kept_in(tmp_path)) == 2 * len(sink.told_of)


def test_an_adapter_that_breaks_the_contract_is_told_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = broken(tmp_path / "appends", "Appends")
    assert any("told again" in one and "publish of contract-1, and its receiver has it 2 times" in one for one in found)

    found = broken(tmp_path / "swallows", "Swallows")
    assert any("is told of the publish of contract-1, and its receiver has it 0 times" in one for one in found)
    assert "its receiver is away, and it says that it has told: it has to raise" in found

    monkeypatch.setattr(sink_receivers.Raises, "raised", ValueError)
    found = broken(tmp_path / "raises", "Raises")
    assert any("is told, and raises SinkRefused" in one and "s3cr3t" not in one for one in found)

    sink_receivers.Hangs.released.clear()
    found = broken(tmp_path / "hangs", "Hangs")
    sink_receivers.Hangs.released.set()
    assert any("took longer than 1 s" in one for one in found)
    assert "its receiver is away, and it does not raise within 1 s: give it a limit of its own" in found


def test_what_is_wrong_before_anything_is_sent_is_said_first(tmp_path: Path) -> None:
    assert (
        "of class SEARCH_INDEX, and the sink index of TICKET"
        in broken(tmp_path, "Index", sink_class=SinkClass.TICKET)[0]
    )
    assert broken(tmp_path, "Index", owners=()) == ("owners=()",)
    assert "lacks its setting region" in broken(tmp_path, "Index", settings=("folder", "token", "region"))[0]
    topic = ba.Sink("topic", SinkClass.EVENT_TOPIC, "events", ("team:metering",), ba.ToEventLog())
    with pytest.raises(SinkContractError, match="one that ships"):
        require_sink_contract(topic, {}, list)
