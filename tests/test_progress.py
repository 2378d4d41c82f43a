"""What is told while a batch is computed, and the charts of what changed."""

from __future__ import annotations

import base64
import time
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from matplotlib.axes import Axes

from backfill_assets.audit.charts import as_markdown, before_and_after, heat_map
from backfill_assets.staging import progress as staging_progress
from backfill_assets.staging.progress import Progress, written_chunks
from manifests.chunks import span

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


def test_work_of_which_nothing_is_heard_is_said_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_progress, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(staging_progress, "QUIET_SECONDS", 0.1)
    for event, word in (("attempt", "computing"), ("gating", "gating")):
        said: list[str] = []
        with closing(Progress(said.append)) as progress:
            progress(event, CHUNKS, "file:///nowhere/run=r/attempt-1")
            deadline = time.monotonic() + 10
            while len(said) < 3 and time.monotonic() < deadline:
                time.sleep(0.05)
        assert said[0].startswith(f"{word} 3 chunks, 2010-01 to 2010-03")
        assert said[1].startswith(f"still {word}, after 0 s")
        assert said[1].endswith("0 of 3 chunks written") is (event == "attempt")
        assert len(said) >= 3, "it is said again and again"


def test_a_failure_is_told_with_its_reason() -> None:
    said: list[str] = []
    Progress(said.append)("failed", ["2010-02"], "ValueError: no")
    assert said == ["failed: 1 chunk, 2010-02: ValueError: no"]


def test_a_launch_that_waits_for_a_limit_counts_no_chunks() -> None:
    said: list[str] = []
    Progress(said.append)("waiting", [], "limits.pauseBetweenBatchesSeconds is 5")
    assert said == ["waiting: limits.pauseBetweenBatchesSeconds is 5"]


def test_nothing_is_written_where_staging_is_no_folder(tmp_path: Path) -> None:
    assert written_chunks(f"file://{tmp_path}/gone") == set()
    assert span(["2010-02", "2010-01"]) == "2010-01 to 2010-02"
    assert span(["2010-02"]) == "2010-02"


def test_a_chart_of_what_changed_is_an_image_with_its_own_text() -> None:
    svg = before_and_after({"rows < all": ([10, None, None], [5, 20, 0])}, CHUNKS, "measures")
    drawn = as_markdown("what changed", svg)
    assert drawn.startswith("![what changed](data:image/svg+xml;base64,")
    root = ElementTree.fromstring(base64.b64decode(drawn.partition("base64,")[2].rstrip(")")))
    texts = {(one.text or "").strip() for one in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"rows < all", "before", "after", *CHUNKS} <= texts
    assert root.get("width") == "720"


def test_a_chart_of_very_many_chunks_has_no_more_places_than_can_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"2024-01-{number:05}" for number in range(43_200)]
    lost = [0.0 if number == 20_000 else 1.0 for number in range(len(keys))]
    drawn: list[np.ndarray[Any, Any]] = []
    plot, mesh = Axes.plot, Axes.pcolormesh

    def plotted(axes: Axes, values: Any, **how: Any) -> Any:
        drawn.append(values)
        return plot(axes, values, **how)

    def mapped(axes: Axes, *given: Any, **how: Any) -> Any:
        drawn.append(given[-1])
        return mesh(axes, *given, **how)

    monkeypatch.setattr(Axes, "plot", plotted)
    monkeypatch.setattr(Axes, "pcolormesh", mapped)
    charts = [
        before_and_after({"rows": ([1.0] * len(keys), lost)}, keys, "measures"),
        heat_map({"change": [value - 1 for value in lost], "none": [None] * len(keys)}, keys, is_change=True),
    ]
    before, after, change, *_ = drawn  # and the colour bar's own
    assert len(before) == len(after) == 240
    assert (before.sum(), after.sum()) == (43_200, 43_199)
    assert list(np.flatnonzero(before != after)) == [20_000 // 180]
    assert change.shape == (2, 240)
    assert list(np.flatnonzero(change[0])) == [20_000 // 180]  # one chunk of 180 is seen
    assert np.isnan(change[1]).all()
    for chart in charts:
        assert "each place stands for 180 chunks, beginning with the one named" in chart
        assert len(chart) < 200_000
    assert "rows" in before_and_after({"rows": ([], [])}, [], "measures")


def test_text_of_any_script_is_text_in_a_chart_and_warns_of_nothing(tmp_path: Path) -> None:
    name, font = "\u96fb\u6c17", "Glyphs of a test"
    charted = (
        lambda: before_and_after({name: ([10, None, None], [5, 20, 0])}, CHUNKS, "measures"),
        lambda: heat_map({name: [1, 2, 3]}, CHUNKS, is_change=False),
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        drawn = [draw() for draw in charted]
        write_font(tmp_path / "glyphs.ttf", font, name)
        font_manager.fontManager.addfont(tmp_path / "glyphs.ttf")
        try:
            with_a_font = [draw() for draw in charted]
            without_need = before_and_after({"rows": ([1, 2, 3], [1, 2, 3])}, CHUNKS, "measures")
        finally:
            font_manager.fontManager.ttflist.pop()
    assert [str(one.message) for one in told] == []
    for svg in (*drawn, *with_a_font):
        assert name in {
            (one.text or "").strip() for one in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
        }
    assert [font in svg for svg in (*drawn, *with_a_font, without_need)] == [False, False, True, True, False]


def write_font(file: Path, family: str, characters: str) -> None:
    """Write a font that draws some characters, all of them as a triangle."""
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    pen.lineTo((0, 900))
    pen.lineTo((900, 900))
    pen.closePath()
    glyphs = {".notdef": pen.glyph(), **{f"u{ord(one):X}": pen.glyph() for one in characters}}
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(list(glyphs))
    builder.setupCharacterMap({ord(one): f"u{ord(one):X}" for one in characters})
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (1000, 0)))
    builder.setupHorizontalHeader(ascent=900, descent=-100)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(file)
