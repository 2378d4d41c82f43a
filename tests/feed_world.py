"""An installation of a feed of meter readings, without Spark, for tests of files that are published again.

Put here the feed that these tests share: small enough to say what becomes of each file by hand. The product that ships has files of
its own (`tests/products/test_regional_reports.py`).
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandera.polars as pa
import polars as pl
from pyiceberg.manifest import clear_manifest_cache

import backfill_assets as ba
from backfill_assets.ingestion.receiving import Received, receive
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from resources.ledger.imports import ImportRecord
from resources.settings import Settings

HEADER = "meter,kwh,note"
METERS = ("m1", "m2", "m3")


class Readings(pa.DataFrameModel):
    """A meter in one version of the readings of one day."""

    report_date: pl.Date = pa.Field(description="The day.")
    published_at: ba.Instant = pa.Field(description="When this version was published.")
    file_id: str = pa.Field(description="This version.")
    source_row: pl.Int64 = pa.Field(ge=0, description="Record in its file.")
    meter: str = pa.Field(description="The meter.")
    kwh: pl.Int64 = pa.Field(le=1_000_000, description="What it said.")
    note: str = pa.Field(nullable=True, description="A note.")


def translate(records: Sequence[ba.RawRecord], facts: ba.FileFacts) -> ba.Translated:
    """Return a row a meter; each meter once, a reading a whole number, and all meters there."""
    rows: list[tuple[int, dict[str, Any]]] = []
    rejected: list[ba.RejectedRecord] = []
    for record in records:
        meter, kwh = record.fields["meter"], record.fields["kwh"]
        if meter == "raise":
            raise KeyError("a bug of the product")
        if meter not in METERS:
            rejected.append(ba.RejectedRecord(record.row, "a known meter", f"meter is {meter}"))
        elif any(row["meter"] == meter for _, row in rows):
            rejected.append(ba.RejectedRecord(record.row, "a meter once", f"{meter} was there before"))
        elif kwh is None or not re.fullmatch(r"-?[0-9]{1,9}", kwh):
            rejected.append(ba.RejectedRecord(record.row, "kwh: a whole number", f"kwh is {kwh}"))
        else:
            values = {"source_row": record.row, "meter": meter, "kwh": int(kwh), "note": record.fields.get("note")}
            rows.append((record.row, values))
    short = (
        ""
        if len(rows) + len(rejected) + facts.misshapen >= len(METERS)
        else f"it has {len(rows)} of {len(METERS)} meters: it was cut"
    )
    return ba.Translated(rows, rejected, short)


TABLE = ba.InputTable("bronze.readings", "A meter in one version of a day.", Readings, ("team:metering",))
FEED = ba.FileFeed(
    name="readings",
    description="Readings of one day, a record a meter.",
    owners=("team:metering",),
    table=TABLE.name,
    path=r"day=(?P<date>\d{8})/at=(?P<at>\d{8}T\d{6})\.csv",
    date_format="%Y%m%d",
    time=ba.TimeFromPath("at", "%Y%m%dT%H%M%S"),
    readers=(
        ba.FileReader("readings", "1", {"meter": "meter", "kwh": "kwh"}),
        ba.FileReader(
            "readings", "2", {"meter": "meter", "kwh": "kwh", "note": "note"}, encodings=("utf-8", "latin-1")
        ),
        ba.FileReader("readings", "2-semicolon", {"meter": "meter", "kwh": "kwh", "note": "note"}, ";"),
    ),
    translate=translate,
    translator_version="1.0.0",
    limits=ba.FileLimits(
        bytes=20_000, rows=100, field_chars=2_000, rejected_share=0.34, archive_bytes=1_000_000, archive_files=500
    ),
    skips=r"other/.*",
)


def product(feed: ba.FileFeed = FEED) -> ba.Product:
    """Return a product of one feed."""
    return ba.Product("metering", (TABLE,), (), feeds=(feed,), code=("feed_world",))


def path_of(day: str = "20240101", at: str = "20240102T060000") -> str:
    """Return the path of a file of the feed."""
    return f"day={day}/at={at}.csv"


def file_of(*kwh: object, header: str = HEADER, delimiter: str = ",", note: str = "") -> bytes:
    """Return a good file: a reading for each meter."""
    lines = [header.replace(",", delimiter)]
    lines += [delimiter.join((meter, str(value), note)) for meter, value in zip(METERS, kwh or (1, 2, 3), strict=True)]
    return ("\n".join(lines) + "\n").encode()


@dataclass
class Site:
    """An installation, with what tests ask of it."""

    platform: Platform
    landing: Path

    def land(self, content: bytes, path: str = "") -> Path:
        """Put a file into the landing folder."""
        place = self.landing / (path or path_of())
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        return place

    def receive(self, *sources: Path, again: Sequence[str] = ()) -> Received:
        """Receive what landed, or sources."""
        return receive(self.platform, FEED.name, sources, again=again)

    @property
    def entries(self) -> list[ImportRecord]:
        """The import ledger."""
        return self.platform.ledger.imports.of_feed(FEED.name)

    def statuses(self) -> list[str]:
        """What became of each file, in the order of entries."""
        return [str(one.status) for one in self.entries]

    def rows(self, table: str = TABLE.name) -> pl.DataFrame:
        """Return the rows of a table."""
        frame = pl.from_arrow(self.platform.lakehouse.table(table).scan().to_arrow())
        assert isinstance(frame, pl.DataFrame)
        return frame

    def as_of(self, at: datetime) -> dict[str, dict[str, int]]:
        """Return, by day, what was said at an instant: the readings of its newest version."""
        known = self.rows().filter(pl.col("published_at") <= at).sort("published_at", "file_id")
        found: dict[str, dict[str, int]] = {}
        for (day,), rows in known.group_by("report_date"):
            newest = rows["file_id"][-1]
            found[str(day)] = dict(rows.filter(pl.col("file_id") == newest).select("meter", "kwh").iter_rows())
        return found

    def archived(self, kind: str) -> set[str]:
        """Return the names of what is kept in a folder of the archive."""
        return {one.name for one in (self.platform.settings.home / "archive" / kind / FEED.name).iterdir()}


_kept: list[tempfile.TemporaryDirectory[str]] = []
"""Where the home of this process is, once there is one, and the copy that it is put back from."""


def fresh_site(feed: ba.FileFeed = FEED) -> Site:
    """Return an installation of the feed to which nothing has come yet: always the same home."""
    if not _kept:
        _kept.append(tempfile.TemporaryDirectory(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
        site = site_at(Path(_kept[0].name) / "home", feed)
        initialise(site.platform)
        site.platform.ledger.close()
        shutil.copytree(Path(_kept[0].name) / "home", Path(_kept[0].name) / "kept", symlinks=True)
    home = Path(_kept[0].name) / "home"
    shutil.rmtree(home)
    shutil.copytree(home.with_name("kept"), home, symlinks=True)
    clear_manifest_cache()  # it knows files by their names
    return site_at(home, feed)


def site_at(home: Path, feed: ba.FileFeed = FEED) -> Site:
    """Return the installation at a home, as a new process finds it."""
    landing = home / "landing" / feed.name
    landing.mkdir(parents=True, exist_ok=True)
    return Site(Platform.of(Settings(home=home), [product(feed)]), landing)


def with_changes(**changes: Any) -> ba.FileFeed:
    """Return the feed with other fields."""
    return replace(FEED, **changes)


def instant(text: str) -> datetime:
    """Return an instant as paths write it."""
    return datetime.strptime(text, "%Y%m%dT%H%M%S").replace(tzinfo=UTC)


def receive_at(home: str) -> None:
    """Receive what landed in the installation at a home: for a process of its own, which can be killed."""
    site_at(Path(home)).receive()
