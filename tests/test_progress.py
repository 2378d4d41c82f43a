"""What is told while a batch is computed, and the charts of what changed."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from xml.etree import ElementTree

from backfill_assets.charts import as_markdown, before_and_after
from backfill_assets.progress import Progress, span, written_chunks

CHUNKS = ("2010-01", "2010-02", "2010-03")


def write(folder: Path, day: str) -> None:
    (folder / "_temporary" / "0" / f"task_{day}" / f"chunk={day}").mkdir(parents=True)


def test_chunks_are_told_as_tasks_finish_them_and_never_twice(tmp_path: Path) -> None:
    said: list[str] = []
    folder = tmp_path / "run=r" / "attempt-1"
    progress = Progress(said.append)
    progress("attempt", CHUNKS, f"file://{folder}")
    assert said == ["computing 3 chunks, 2010-01 to 2010-03, into run=r/attempt-1"]
    for day in ("2010-01-01", "2010-02-01"):
        write(folder, day)
    deadline = time.monotonic() + 10
    while len(said) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    progress("staged", CHUNKS, "")
    assert said[1].startswith("written 2 of 3 chunks after ")
    assert said[1].endswith(": 2010-01 to 2010-02")
    assert said[2].startswith("staged 3 chunks, 2010-01 to 2010-03, after ")
    write(folder, "2010-03-01")
    time.sleep(1.2)
    assert len(said) == 3  # nobody looks any more


def test_a_failure_is_told_with_its_reason() -> None:
    said: list[str] = []
    Progress(said.append)("failed", ["2010-02"], "ValueError: no")
    assert said == ["failed: 1 chunk, 2010-02: ValueError: no"]


def test_nothing_is_written_where_staging_is_no_folder(tmp_path: Path) -> None:
    assert written_chunks(f"file://{tmp_path}/gone") == set()
    assert span(["2010-02", "2010-01"]) == "2010-01 to 2010-02"


def test_a_chart_of_what_changed_is_an_image_with_its_own_text() -> None:
    svg = before_and_after({"rows < all": ([10, None, None], [5, 20, 0])}, CHUNKS, "measures")
    drawn = as_markdown("what changed", svg)
    assert drawn.startswith("![what changed](data:image/svg+xml;base64,")
    root = ElementTree.fromstring(base64.b64decode(drawn.partition("base64,")[2].rstrip(")")))
    texts = {(one.text or "").strip() for one in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"rows < all", "before", "after", *CHUNKS} <= texts
    assert root.get("width") == "720"
