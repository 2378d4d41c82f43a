"""What it costs to ask what a table said at an instant, on reports that are published again; each answer is held against plain loops.

    python -m benchmarks.as_of [--data FOLDER] [--days 400] [--questions 1000] [--seed 1]

FOLDER has the real reports of all versions (archive and index); without it they are made up. Prints how long the files took, the median
and the 95th percentile of the questions, in seconds, and how many answers differ: every question is about up to 30 days at a random instant.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from datetime import date, datetime, timedelta
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any

from rich.console import Console

from backfill_assets.audit.as_of import rows_at, versions_at
from backfill_assets.ingestion.receiving import receive
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.products.public_health import PRODUCT, REGIONAL_FILES, generator
from manifests.model import DayRange
from resources.settings import load_settings

ARCHIVE, INDEX = "pcm_covid_landing_all_versions.tar.xz", "pcm_covid_regioni_version_index.parquet"
TABLE = "bronze.regional_reports"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--days", type=int, default=400)
    parser.add_argument("--questions", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random = Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        platform = Platform.of(load_settings(home=Path(folder)), [PRODUCT])
        initialise(platform)
        began = time.perf_counter()
        sources = [] if options.data is None else [options.data / ARCHIVE, options.data / INDEX]
        if not sources:
            landing = Path(folder) / "landing" / REGIONAL_FILES.name
            landing.mkdir(parents=True, exist_ok=True)
            generator.write_landing(landing, days=options.days, seed=options.seed)
        done = receive(platform, REGIONAL_FILES.name, sources)
        Console().print(
            f"{sum(done.by_status.values()):,} files, {done.rows:,} rows: {time.perf_counter() - began:.1f} s"
        )
        said = _said(platform)
        moments = sorted({published for versions in said.values() for published, _ in versions})
        days = sorted(said)
        took, different = [], 0
        for _ in range(options.questions):
            at = random.choice(moments) + timedelta(seconds=random.randrange(-1, 90_000))
            first = random.choice(days)
            asked = DayRange(start=first, end=first + timedelta(days=random.randrange(30)))
            began = time.perf_counter()
            frames = list(rows_at(platform, versions_at(platform, TABLE, at, asked, ())))
            took.append(time.perf_counter() - began)
            found = sorted(
                (row["report_date"], row["file_id"], row["source_row"]) for one in frames for row in one.to_dicts()
            )
            different += found != _expected(said, at, asked)
        p95 = quantiles(took, n=20)[-1]
        Console().print(
            f"{options.questions:,} questions: median {median(took):.3f} s, p95 {p95:.3f} s, {different:,} differ"
        )


def _said(platform: Platform) -> dict[date, dict[tuple[datetime, str], list[int]]]:
    """Return, of each day, the rows of each version."""
    said: dict[date, dict[tuple[datetime, str], list[int]]] = defaultdict(lambda: defaultdict(list))
    rows = platform.lakehouse.table(TABLE).scan(
        selected_fields=("report_date", "published_at", "file_id", "source_row")
    )
    for row in rows.to_arrow().to_pylist():
        said[row["report_date"]][row["published_at"], row["file_id"]].append(row["source_row"])
    return said


def _expected(said: Any, at: datetime, asked: DayRange) -> list[tuple[date, str, int]]:
    found = []
    for day, versions in said.items():
        known = [version for version in versions if version[0] <= at]
        if known and asked.start <= day <= asked.end:
            found += [(day, max(known)[1], row) for row in versions[max(known)]]
    return sorted(found)


if __name__ == "__main__":
    main()
