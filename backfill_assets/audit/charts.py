"""Charts as inline SVG: still, sharp on paper and on a phone, drawn without a display and the same for the same figures.

Put here drawing only; what is drawn, and why, is `report`'s and the publish asset's. Imported where a chart is drawn:
Matplotlib takes a moment.
"""

from __future__ import annotations

import base64
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from io import StringIO
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib import font_manager
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from manifests.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

BEFORE, AFTER = "#9a9a9a", "#1f6fb2"
LESS, MORE = "#5e3c99", "#c26a00"
_WIDTH = 6.4
"""Inches: wide enough on a page, and still readable where a phone shrinks it."""
_PIXELS = 720
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": ["sans-serif"],
    "font.size": 11,
    "text.parse_math": False,  # a label is text, whatever it holds
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
}
_TICKS = 12
_MOST = 240
"""The most places side by side: more are no wider than a pixel or two each, and a file of megabytes."""
_PROLOG = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_SIZE = re.compile(r'(<svg[^>]*?) width="[^"]*"([^>]*?)', re.DOTALL)
_HEIGHT = re.compile(r'(<svg[^>]*?) height="[^"]*"', re.DOTALL)


def before_and_after(
    panels: Mapping[str, tuple[Sequence[float | None], Sequence[float | None]]], keys: Sequence[str], what: str
) -> str:
    """Return small charts, one a panel, of values by chunk before and after; None where there is none.

    Below each, where there is a before, the change as bars: lines that lie on each other hide it. Of more than `_MOST` chunks
    several stand in one place, added up.
    """
    many = max(1, -(-len(keys) // _MOST))
    keys = keys[::many]
    sides = {name: tuple(_added_up(_numbers(side), many) for side in both) for name, both in panels.items()}
    moved = {name: after - before for name, (before, after) in sides.items()}
    ratios = [ratio for name in sides for ratio in ([2.0, 1.0] if _is_known(moved[name]) else [2.0])]
    height, texts = 0.7 + 0.75 * sum(ratios) + _room_for(keys), [*panels, *keys]
    with _figure(_WIDTH, height, f"before-and-after {what}", texts) as (figure, result):
        grid = figure.subplots(len(ratios), 1, sharex=True, squeeze=False, height_ratios=ratios)
        rows = iter(grid[:, 0])
        for name, (before, after) in sides.items():
            axes = next(rows)
            for values, color, label in ((before, BEFORE, "before"), (after, AFTER, "after")):
                if _is_known(values):
                    width = 3.2 if color == BEFORE else 1.4
                    marker = "o" if len(keys) < _TICKS else ""
                    axes.plot(values, color=color, label=label, linewidth=width, marker=marker, markersize=3)
            axes.set_title(name, loc="left", fontsize=11)
            axes.set_ylim(bottom=0)
            _numbered(axes, 4, "{:,.0f}")
            if _is_known(moved[name]):
                bars = next(rows)
                bars.bar(range(len(keys)), np.nan_to_num(moved[name]), color=np.where(moved[name] < 0, LESS, MORE))
                bars.axhline(0, color="#666666", linewidth=0.8)
                bars.set_ylabel("change")
                if not np.nan_to_num(moved[name]).any():
                    bars.set_ylim(-1, 1)
                _numbered(bars, 2, "{:+,.0f}")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False)
        _label_chunks(grid[-1, 0], keys, together=many)
    return result[0]


def as_markdown(title: str, svg: str) -> str:
    """Return a chart as an image in Markdown that nothing has to be loaded for, as wide as Dagster shows it."""
    sized = svg.replace("<svg ", f'<svg width="{_PIXELS}" ', 1)
    return f"![{title}](data:image/svg+xml;base64,{base64.b64encode(sized.encode()).decode()})"


def _numbers(values: Sequence[float | None]) -> Any:
    return np.array([np.nan if value is None else float(value) for value in values])


def _added_up(values: Any, many: int) -> Any:
    """Return the sums of each so many values that follow one another; of none that is known no sum."""
    groups = _grouped(values, many)
    return np.where(np.isnan(groups).all(axis=-1), np.nan, np.nansum(groups, axis=-1))


def _furthest(values: Any, many: int) -> Any:
    """Return of each so many values that follow one another the one furthest from 0."""
    groups = _grouped(values, many)
    place = np.abs(np.nan_to_num(groups)).argmax(axis=-1)
    found = np.take_along_axis(groups, place[..., None], axis=-1)[..., 0]
    return np.where(np.isnan(groups).all(axis=-1), np.nan, np.nan_to_num(found))


def _grouped(values: Any, many: int) -> Any:
    missing = -values.shape[-1] % many
    padded = np.concatenate([values, np.full((*values.shape[:-1], missing), np.nan)], axis=-1)
    return padded.reshape(*values.shape[:-1], -1, many)


def _is_known(values: Any) -> bool:
    return not bool(np.isnan(values).all())


def _numbered(axes: Any, ticks: int, form: str) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(ticks, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: form.format(value) if value else "0"))
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)


def heat_map(rows: Mapping[str, Sequence[float | None]], keys: Sequence[str], *, is_change: bool) -> str:
    """Return a map of values, a line of `rows` by chunk: changes in percent around 0, or shares of the line's largest.

    Of more than `_MOST` chunks several stand in one place: of changes the largest of theirs, so that none is lost, else their sum.
    """
    many = max(1, -(-len(keys) // _MOST))
    keys = keys[::many]
    values = (_furthest if is_change else _added_up)(np.array([_numbers(row) for row in rows.values()]), many)
    with _figure(_WIDTH, 1.2 + 0.24 * len(rows) + _room_for(keys), "heat map", [*rows, *keys]) as (figure, result):
        axes = figure.subplots()
        known = np.abs(values[~np.isnan(values)])
        limit = float(known.max()) if known.size and known.max() > 0 else 1.0
        if is_change:
            image = axes.pcolormesh(values, cmap="PuOr_r", norm=TwoSlopeNorm(0, -limit, limit), rasterized=False)
        else:
            image = axes.pcolormesh(values, cmap="Blues", vmin=0, vmax=limit)
        axes.set_facecolor("#f2f2f2")
        axes.set_yticks(np.arange(len(rows)) + 0.5, [visible(name) for name in rows])
        axes.invert_yaxis()
        axes.tick_params(length=0)
        _label_chunks(axes, keys, offset=0.5, together=many)
        bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 0.5 + 2 / max(len(rows), 1)), pad=0.02)
        bar.outline.set_visible(False)
        bar.ax.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:+g}%" if is_change else f"{value:,.0f}")
        )
    return result[0]


def _room_for(keys: Sequence[str]) -> float:
    """Return how many inches more than for a month's key the slanted labels of chunks take."""
    return 0.06 * max(0, max(map(len, keys), default=0) - len("2024-01"))


def _label_chunks(axes: Any, keys: Sequence[str], offset: float = 0.0, together: int = 1) -> None:
    step = max(1, -(-len(keys) // _TICKS))
    shown = range(0, len(keys), step)
    axes.set_xticks([place + offset for place in shown], [keys[place] for place in shown], rotation=40, ha="right")
    if together > 1:
        axes.set_xlabel(f"each place stands for {together} chunks, beginning with the one named")


@contextmanager
def _figure(width: float, height: float, salt: str, texts: Iterable[str]) -> Iterator[tuple[Figure, list[str]]]:
    """Yield a figure and where its SVG is put once it is drawn; `texts` is what will be written in it."""
    result: list[str] = []
    fonts = [*_STYLE["font.family"], *_fonts_for(frozenset("".join(texts)))]
    with mpl.rc_context(_STYLE | {"svg.hashsalt": salt, "font.family": fonts}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, result
        text = StringIO()
        with warnings.catch_warnings():
            # text stays text, so that whoever shows the chart draws it, and has other fonts than this machine
            warnings.filterwarnings("ignore", message=r"Glyph \d+ .*missing from")
            figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = _METADATA.sub("", _PROLOG.sub("", text.getvalue()))
    result.append(_HEIGHT.sub(r"\1", _SIZE.sub(r"\1\2", svg, count=1), count=1).strip())


def _fonts_for(characters: frozenset[str]) -> tuple[str, ...]:
    """Return fonts of this machine for what the usual one lacks, by which the text is measured: few, or none."""
    usual = font_manager.findfont(font_manager.FontProperties(family=_STYLE["font.family"]))
    missing = frozenset(ord(one) for one in characters if one.isprintable()) - _drawn_by(usual)
    return _having(missing, len(font_manager.fontManager.ttflist)) if missing else ()


@lru_cache(maxsize=100)
def _having(missing: frozenset[int], of_fonts: int) -> tuple[str, ...]:
    """Return fonts that have between them what is missing, as far as any has; looked for once while there are as many."""
    del of_fonts
    found = []
    for font in sorted(font_manager.fontManager.ttflist, key=lambda one: one.name):
        # the last resort has a box for every character
        if missing and font.style == "normal" and not font.name.startswith("Last Resort"):
            drawn = missing & _drawn_by(font.fname)
            found += [font.name] if drawn else []
            missing -= drawn
    return tuple(found)


def _drawn_by(file: str) -> frozenset[int]:
    try:
        return frozenset(font_manager.get_font(file).get_charmap())
    except (OSError, RuntimeError):  # it is gone, or is no font that Matplotlib reads
        return frozenset()
