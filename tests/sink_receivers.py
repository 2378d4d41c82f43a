"""Adapters of a product's own, one of each class, that keep what they are told in a folder; and some that misbehave."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

import backfill_assets as ba


class Folder:
    """Keeps each record as a file of its run and action in the folder that a setting names."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.folder, self.token = Path(settings["folder"]), settings.get("token", "")
        self.folder.mkdir(parents=True, exist_ok=True)

    def send(self, told: ba.Told) -> None:
        text = json.dumps(
            {"table": told.table, "chunks": told.chunks, "mode": told.mode, "details": dict(told.details)}
        )
        (self.folder / f"{told.run_id}~{told.action}.json").write_text(text)


class View(Folder):
    sink_class = ba.SinkClass.MATERIALISED_VIEW


class Ticket(Folder):
    sink_class = ba.SinkClass.TICKET


class Index(Folder):
    sink_class = ba.SinkClass.SEARCH_INDEX


class Features(Folder):
    sink_class = ba.SinkClass.FEATURE_STORE


class Api(Folder):
    sink_class = ba.SinkClass.EXTERNAL_API


class Notification(Folder):
    sink_class = ba.SinkClass.NOTIFICATION


class Table(Folder):
    sink_class = ba.SinkClass.ANALYTICAL_TABLE


class Topic(Folder):
    sink_class = ba.SinkClass.EVENT_TOPIC


class Cache(Folder):
    sink_class = ba.SinkClass.CACHE


OF_CLASS = {one.sink_class: one for one in (View, Ticket, Index, Features, Api, Notification, Table, Topic, Cache)}


class Raises(Index):
    """Raises what `raised` holds, with its token in the words."""

    raised: type[BaseException] | None = None

    def send(self, told: ba.Told) -> None:
        if self.raised is not None:
            raise self.raised(f"the index answers 500 to the token {self.token}")
        super().send(told)


class Hangs(Index):
    """Waits until `released` is set."""

    released = threading.Event()

    def send(self, told: ba.Told) -> None:
        self.released.wait(60)
        super().send(told)


class OpensNothing(Index):
    """Hangs before there is anything to send with."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        Hangs.released.wait(60)
        super().__init__(settings)


class Appends(Index):
    """Breaks the contract: what is told again is there twice."""

    def send(self, told: ba.Told) -> None:
        with (self.folder / "all").open("a") as lines:
            lines.write(f"{told.run_id} {told.action}\n")


class Swallows(Index):
    """Breaks the contract: says that it has told, and has not."""

    def send(self, told: ba.Told) -> None:
        del told


def mute(settings: Mapping[str, str]) -> object:
    return settings


mute.sink_class = ba.SinkClass.SEARCH_INDEX  # type: ignore[attr-defined]


def unclassed(settings: Mapping[str, str]) -> Index:
    return Index(settings)
