"""Line charts: where points are drawn, and which numbers are beside them."""

from __future__ import annotations

import math
import re

import pytest

from mcurl_torchrl.reports.charts import _ticks, line_chart


def points(chart: str, kind: str = "line") -> list[tuple[float, float]]:
    drawn = re.search(rf'class="{kind}" points="([^"]*)"', chart)[1]
    return [tuple(map(float, pair.split(","))) for pair in drawn.split()]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 400.0, [0, 100, 200, 300, 400]),
        (0.0, 0.39, [0.0, 0.1, 0.2, 0.3, 0.4]),
        (-21.0, 3.0, [-30, -20, -10, 0, 10]),
        (5.0, 5.0, [2, 4, 6, 8]),
        (0.0, 0.0, [-0.5, 0.0, 0.5]),
    ],
)
def test_ticks_are_round_and_enclose_all_values(low: float, high: float, expected: list[float]) -> None:
    assert _ticks(low, high) == pytest.approx(expected)


def test_a_line_lies_between_the_axes() -> None:
    """From the lower left to the upper right corner of 460 x 250 with margins of 58, 14, 34 and 28."""
    assert points(line_chart("x", {"a": [(0, 0.0), (1000, 4.0)]})) == [(58.0, 222.0), (446.0, 34.0)]


def test_a_band_goes_around() -> None:
    chart = line_chart("x", {"mean": [(0, 1.0), (10, 1.0)]}, band=[(0, 0.0, 2.0), (10, 0.0, 4.0)])
    assert points(chart, "band") == [(58.0, 222.0), (446.0, 222.0), (446.0, 34.0), (58.0, 128.0)]


def test_what_is_not_finite_is_left_out() -> None:
    assert len(points(line_chart("x", {"a": [(0, 1.0), (1, math.nan), (2, math.inf), (3, 2.0)]}))) == 2
    with pytest.raises(ValueError, match="nothing to draw for 'loss'"):
        line_chart("loss", {"a": [(0, math.nan)]})


def test_many_points_become_means_of_neighbours() -> None:
    chart = line_chart("x", {"a": [(x, float(x % 2)) for x in range(800)]})
    assert {y for _, y in points(chart)} == {points(line_chart("x", {"a": [(0, 0.5)]}, band=[(1, 0.5, 0.5)]))[0][1]}
    assert len(points(chart)) == 400


def test_two_lines_have_a_legend_and_three_are_refused() -> None:
    chart = line_chart("<accuracy>", {"all": [(0, 1.0)], "zeroed": [(0, 2.0)]})
    assert ">all</text>" in chart and ">zeroed</text>" in chart
    assert "&lt;accuracy&gt;" in chart
    with pytest.raises(ValueError, match="lines has 3 entries"):
        line_chart("x", dict.fromkeys("abc", [(0, 1.0)]))
