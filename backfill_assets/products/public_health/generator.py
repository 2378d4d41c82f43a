"""Made-up reports with the dirt of the real ones, for where those are not at hand; equal seeds give equal files.

Put here what is wrong with published files in the wild: forms of the first line, delimiters, encodings, codes and names that changed,
dates in three formats, files that are published again, put back, taken back, or corrected by a negative figure later. What a record
means is `reports`'. `python -m backfill_assets.products.public_health.generator FOLDER --days 60` writes a landing.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl

from backfill_assets.declarations.feeds import FileReader
from backfill_assets.products.public_health.regions import REGIONS, Region
from backfill_assets.products.public_health.reports import READERS, REQUIRED

FIRST_DAY = date(2020, 2, 24)
INDEX = "generated_version_index.parquet"
_CORRECTED, _WITHDRAWN, _AS_IT_WAS = 0.25, 0.02, 0.3
"""Shares: of versions that are followed by another, of days whose report is taken back, of corrections that put back what was there."""
_SPLIT_UNTIL = 0.4
"""Share of all days in which the two provinces share a code."""
Figures = Mapping[str, int]


@dataclass(frozen=True)
class Published:
    """A version of a day's report: its path, bytes, and what it says by region; one that was taken back has neither."""

    day: date
    number: int
    published_at: datetime
    content: bytes
    figures: Mapping[str, Figures] = field(default_factory=dict)
    is_withdrawal: bool = False

    @property
    def commit(self) -> str:
        """A hash as that of the commit by which it was published."""
        return hashlib.sha1(f"{self.day}{self.number}".encode(), usedforsecurity=False).hexdigest()

    @property
    def path(self) -> str:
        """Where it lies."""
        return f"regioni/data={self.day:%Y%m%d}/v{self.number:02d}_{self.commit[:12]}.csv"


def generate(days: int, seed: int) -> Iterator[Published]:
    """Yield the versions of the reports of so many days, day by day, each day's in the order of publication."""
    rng = random.Random(seed)  # noqa: S311 - made-up figures
    state: dict[str, dict[str, int]] = {region.code: dict.fromkeys(REQUIRED, 0) for region in REGIONS}
    for number in range(days):
        day = FIRST_DAY + timedelta(days=number)
        age = number / max(days, 1)
        for figures in state.values():
            _go_on(figures, rng)
        yield from _versions(day, age, {code: dict(figures) for code, figures in state.items()}, rng)


def _go_on(figures: dict[str, int], rng: random.Random) -> None:
    """Let a day pass in a region; now and then cases of before are taken back, and the day's figure is below 0."""
    new = rng.randint(0, 90) if rng.random() > 0.01 else -rng.randint(1, 40)  # noqa: PLR2004 - one day in a hundred
    new = max(new, -figures["total_cases"])
    recovered, died = rng.randint(0, 30), rng.randint(0, 4)
    before = figures["total_positive"]
    figures["total_cases"] += new
    figures["discharged_recovered"] += recovered
    figures["deaths"] += died
    figures["total_positive"] = figures["total_cases"] - figures["discharged_recovered"] - figures["deaths"]
    figures["total_positive_change"] = figures["total_positive"] - before
    figures["intensive_care"] = rng.randint(0, 20)
    figures["hospitalised_with_symptoms"] = rng.randint(0, 200)
    figures["total_hospitalised"] = figures["intensive_care"] + figures["hospitalised_with_symptoms"]
    figures["home_isolation"] = figures["total_positive"] - figures["total_hospitalised"]


def _versions(day: date, age: float, figures: dict[str, dict[str, int]], rng: random.Random) -> Iterator[Published]:
    published_at = datetime(day.year, day.month, day.day, 17, tzinfo=UTC)
    said: list[tuple[bytes, dict[str, dict[str, int]]]] = []
    number = 1
    content = _content(day, age, figures, rng)
    while True:
        said.append((content, {code: dict(one) for code, one in figures.items()}))
        yield Published(day, number, published_at, content, said[-1][1])
        number += 1
        published_at += timedelta(hours=rng.randint(1, 2_000))
        if rng.random() < _WITHDRAWN:
            yield Published(day, number, published_at, b"", {}, is_withdrawal=True)
            return
        if rng.random() > _CORRECTED:
            return
        if len(said) > 1 and rng.random() < _AS_IT_WAS:
            content, figures = said[-2][0], {code: dict(one) for code, one in said[-2][1].items()}
        else:
            one = figures[rng.choice(REGIONS).code]
            one["total_cases"] = max(0, one["total_cases"] + rng.randint(-30, 30))
            content = _content(day, min(1.0, age + 0.2), figures, rng)
        if content == said[-1][0]:
            return


def _content(day: date, age: float, figures: Mapping[str, Figures], rng: random.Random) -> bytes:
    """Write a report in a form of its time."""
    reader = READERS[min(len(READERS) - 1, max(0, int(age * len(READERS)) + rng.randint(-1, 1)))]
    reported_at = _date_in_words(day, rng)
    is_split, short = age > _SPLIT_UNTIL, rng.random() < 0.1  # noqa: PLR2004 - one file in ten has codes without zeros
    lines = [list(reader.columns)]
    for region in REGIONS:
        record = {name: str(value) for name, value in figures[region.code].items()}
        code = region.code if is_split or region.code not in {"21", "22"} else "04"
        record |= {
            "reported_at": reported_at,
            "country": "ITA",
            "region_code": str(int(code)) if short else code,
            "region_name": _name(region, age, rng),
            "latitude": "42.35122196",
            "longitude": "13.39843823",
            "tests": str(int(record["total_cases"]) * 9),
            "new_positive": record["total_positive_change"],
            "notes": rng.choice(["", "", "Dati parziali, così comunicati", 'Ricalcolo: "casi" di ieri, più uno']),
        }
        lines.append([record.get(name, "") for name in reader.columns.values()])
    return _encoded(lines, reader, rng)


def _date_in_words(day: date, rng: random.Random) -> str:
    return rng.choice(
        [f"{day}T17:00:00", f"{day}T17:00:00", f"{day} 17:00:00", f"{day.day}/{day.month}/{day.year} 17:00"]
    )


def _name(region: Region, age: float, rng: random.Random) -> str:
    return rng.choice(region.former_names) if region.former_names and rng.random() > age else region.name


def _encoded(lines: Sequence[Sequence[str]], reader: FileReader, rng: random.Random) -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter=reader.delimiter, lineterminator=rng.choice(["\n", "\n", "\r\n"])).writerows(lines)
    encoding = rng.choice(["utf-8", "utf-8", "utf-8-sig", "latin-1"])
    return text.getvalue().encode(encoding)


def index_of(versions: Sequence[Published]) -> pl.DataFrame:
    """Return the delivery index of versions, with the columns of the real one."""
    return pl.DataFrame(
        [
            {
                "kind": "regioni",
                "partition": f"{one.day:%Y%m%d}",
                "version": one.number,
                "status": "D" if one.is_withdrawal else "A" if one.number == 1 else "M",
                "blob": "0" * 40 if one.is_withdrawal else _blob(one.content),
                "commit": one.commit,
                "commit_time": one.published_at.isoformat(),
            }
            for one in versions
        ]
    )


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def write_landing(folder: Path, days: int, seed: int) -> list[Published]:
    """Write the files of a landing, and their index, into a folder; return the versions."""
    versions = list(generate(days, seed))
    for one in versions:
        if not one.is_withdrawal:
            place = folder / one.path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(one.content)
    index_of(versions).write_parquet(folder / INDEX)
    return versions


def main() -> None:
    """Write a landing into a folder."""
    parser = argparse.ArgumentParser(description="Write made-up regional reports and their delivery index into FOLDER.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--days", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    written = write_landing(given.folder, given.days, given.seed)
    print(f"{len(written):,} versions of {given.days:,} days in {given.folder}")  # noqa: T201 - it is a command


if __name__ == "__main__":
    main()
