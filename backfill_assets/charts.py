"""Small charts for Dagster's metadata: SVG as an image in Markdown, so that nothing has to be loaded to see them.

Put here drawings of numbers that are there already. What is drawn is chosen where the numbers are.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 190, 60, 34, 24
_BEFORE, _AFTER, _INK = "#b7bdc8", "#4f43dd", "#5b6474"
_LABELS = 6


def bars(title: str, keys: Sequence[str], before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Return a chart as Markdown: a bar for each key after a change and, where there was one, another before it."""
    top = max((*before.values(), *after.values(), 1))
    plot, step = _HEIGHT - _TOP - _BOTTOM, (_WIDTH - _LEFT - 10) / max(len(keys), 1)
    wide = max(step * (0.4 if before else 0.8), 0.6)
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="8" y="17" font-size="13" fill="#1b1f27">{escape(title)}</text>',
    ]
    legend = [*([("before", _BEFORE)] if before else []), ("after", _AFTER)]
    for place, (name, colour) in enumerate(reversed(legend)):
        x = float(_WIDTH - 70 - 70 * place)
        parts.append(f'<rect x="{x}" y="8" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="17" fill="{_INK}">{name}</text>')
    for share in (0.0, 0.5, 1.0):
        y = _TOP + plot * (1 - share)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - 10}" stroke="#e4e7ec"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="{_INK}">{top * share:,.0f}</text>')
    every = max(1, -(-len(keys) // _LABELS))
    for place, key in enumerate(keys):
        x = _LEFT + place * step
        for values, offset, colour in ((before, 0.0, _BEFORE), (after, wide if before else 0.0, _AFTER)):
            if values.get(key):
                tall = plot * values[key] / top
                parts.append(
                    f'<rect x="{x + offset:.1f}" y="{_TOP + plot - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}" '
                    f'fill="{colour}"><title>{escape(key)}: {values[key]:,}</title></rect>'
                )
        if place % every == 0:
            parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 8}" fill="{_INK}">{escape(key)}</text>')
    drawn = base64.b64encode("".join([*parts, "</svg>"]).encode()).decode()
    return f"![{title}](data:image/svg+xml;base64,{drawn})"
