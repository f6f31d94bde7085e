"""Line charts as SVG: drawn fast, without matplotlib, in the colors of the page around them."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

from mcurl_torchrl.training.curves import short_number

__all__ = ["Point", "line_chart"]

Point = tuple[float, float]

_WIDTH, _HEIGHT = 460, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 34, 28
_MOST_POINTS = 400  # a line that is 390 pixels wide shows no more
_KINDS = ("line", "line second")


def line_chart(
    name: str, lines: Mapping[str, Sequence[Point]], *, band: Sequence[tuple[float, float, float]] = ()
) -> str:
    """Draws up to two lines over environment steps.

    Args:
        name (str): the title of the chart.
        lines (mapping of str to list of points): by label, ``(x, y)`` in the order of x. Points that are not finite are
            left out; a label is shown where there are two.

    Keyword Args:
        band (list of tuples): ``(x, low, high)``, filled behind the lines.

    Raises:
        ValueError: if there is no point to draw, or if there are more than two lines.

    Examples:
        >>> from mcurl_torchrl.reports.charts import line_chart
        >>> line_chart("return", {"mean": [(0, 1.0), (1000, 5.0)]})[:18]
        '<svg class="chart"'
    """
    if not 1 <= len(lines) <= len(_KINDS):
        raise ValueError(f"lines has {len(lines)} entries; a chart has one or two")
    drawn = {label: _thinned([(x, y) for x, y in points if math.isfinite(y)]) for label, points in lines.items()}
    heights = [y for points in drawn.values() for _, y in points] + [y for _, *ends in band for y in ends]
    if not heights:
        raise ValueError(f"there is nothing to draw for {name!r}")
    ticks = _ticks(min(heights), max(heights))
    last = max([x for points in drawn.values() for x, _ in points] + [x for x, *_ in band] + [1.0])

    def place(x: float, y: float) -> str:
        across = _LEFT + (_WIDTH - _LEFT - _RIGHT) * x / last
        up = (y - ticks[0]) / (ticks[-1] - ticks[0])
        return f"{across:.1f},{_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * up:.1f}"

    parts = [_frame(name, ticks, last)]
    if band:
        around = [place(x, low) for x, low, _ in band] + [place(x, high) for x, _, high in reversed(band)]
        parts.append(f'<polygon class="band" points="{" ".join(around)}"/>')
    for kind, points in zip(_KINDS, drawn.values(), strict=False):
        parts.append(f'<polyline class="{kind}" points="{" ".join(place(*point) for point in points)}"/>')
        if len(points) == 1:  # one point is not a line
            across, down = place(*points[0]).split(",")
            parts.append(f'<circle class="{kind}" cx="{across}" cy="{down}" r="3"/>')
    if len(drawn) > 1:
        parts.append(_legend(list(drawn)))
    label = html.escape(f"{name} over environment steps")
    return f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _thinned(points: list[Point]) -> list[Point]:
    """Returns means of neighboring points, if there are more points than a chart can show."""
    size = math.ceil(len(points) / _MOST_POINTS) or 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(group[-1][0], math.fsum(y for _, y in group) / len(group)) for group in groups]


def _ticks(low: float, high: float) -> list[float]:
    """Returns round numbers from below the lowest to above the highest value, in about four steps."""
    if low == high:
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [step * number for number in range(first, last + 1)]


def _frame(name: str, ticks: list[float], last: float) -> str:
    """Draws the name, the horizontal lines with their values, and the ends of the axis of steps."""
    parts = [f'<text class="name" x="4" y="16">{html.escape(name)}</text>']
    for tick in ticks:
        y = _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (tick - ticks[0]) / (ticks[-1] - ticks[0])
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
    for x, anchor, value in ((_LEFT, "middle", 0.0), (_WIDTH - _RIGHT, "end", last)):
        parts.append(f'<text x="{x}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{short_number(value)}</text>')
    return "".join(parts)


def _number(value: float) -> str:
    return short_number(value) if abs(value) >= 10_000 else f"{value:.4g}"


def _legend(labels: list[str]) -> str:
    parts = []
    for number, (label, kind) in enumerate(zip(labels, _KINDS, strict=False)):
        x = _WIDTH - _RIGHT - 110 * (len(labels) - number)
        parts.append(f'<line class="{kind}" x1="{x}" x2="{x + 18}" y1="12" y2="12"/>')
        parts.append(f'<text x="{x + 24}" y="16">{html.escape(label)}</text>')
    return "".join(parts)
