"""Figures of a report: what is drawn, read from the figure."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from matplotlib.figure import Figure

from mcurl_torchrl.reports import Curve, Estimate, draw_curves, draw_estimates, draw_profiles, mean_over_seeds


def lines(figure: Figure) -> dict[str, Any]:
    return {line.get_label(): line for line in figure.axes[0].lines if not line.get_label().startswith("_")}


def test_a_curve_has_a_mean_a_band_and_its_seeds(figures: list[Figure]):
    seeds = [[0.0, 3.0], [0.0, 6.0], [0.0, 9.0]]
    drawing = draw_curves({"mcurl": Curve([0, 10], seeds)}, title="Pong", reference={"CURL": (10, 12_345.6)})
    light, dark = figures
    assert drawing.light[:4] == drawing.dark[:4] == b"\x89PNG" and drawing.light != drawing.dark
    assert lines(light)["mcurl, 3 seeds"].get_xydata().tolist() == [[0, 0], [10, 6]]
    thin = [line.get_ydata().tolist() for line in light.axes[0].lines if line.get_linewidth() < 0.75]
    assert thin == seeds
    interval = mean_over_seeds([3.0, 6.0, 9.0])
    band = {tuple(point) for point in light.axes[0].collections[0].get_paths()[0].vertices.tolist()}
    assert {(10, interval.low), (10, interval.high)} <= band
    assert "CURL: 12,346" in lines(light)
    assert light.get_facecolor()[:3] == (1, 1, 1) and max(dark.get_facecolor()[:3]) < 0.2


def test_the_axes_show_the_seeds_and_cut_off_a_band_that_is_far_wider(figures: list[Figure]):
    draw_curves({"mcurl": Curve([0, 10], [[0.0, 0.0], [0.0, 100.0], [0.0, 200.0]])}, title="")
    draw_curves({"mcurl": Curve([0, 10], [[-20.0, -20.0], [-20.0, 5.0], [-20.0, 30.0]])}, title="")
    assert figures[0].axes[0].get_ylim() == pytest.approx((0, 216))
    assert figures[2].axes[0].get_ylim() == pytest.approx((-24, 34))


def test_two_seeds_have_no_band(figures: list[Figure]):
    draw_curves({"mcurl": Curve([0, 10], [[0.0, 3.0], [0.0, 6.0]])}, title="")
    assert len(figures[0].axes[0].collections) == 0 and "mcurl, 2 seeds" in lines(figures[0])


def test_runs_under_way_are_dashed_and_in_no_mean(figures: list[Figure]):
    draw_curves({"mcurl": Curve([0, 10], [[0.0, 3.0]], [((0, 0.0), (5, 90.0)), ((0, 1.0),)])}, title="")
    drawn = lines(figures[0])
    assert drawn["mcurl, 1 seed"].get_ydata().tolist() == [0, 3]
    assert drawn["mcurl, unfinished"].get_ydata().tolist() == [0, 90] and drawn["mcurl, unfinished"].is_dashed()
    assert figures[0].axes[0].get_ylim()[1] > 90


def test_a_method_keeps_its_colour(figures: list[Figure]):
    curve = Curve([0, 1], [[0.0, 1.0]])
    draw_curves({"b": curve}, title="", order=["a", "b"])
    draw_profiles({"a": [Estimate(0.5)] * 2, "b": [Estimate(0.5)] * 2}, [0.0, 1.0], x_label="", order=["a", "b"])
    draw_estimates({"IQM": {"b": Estimate(0.5, 0.4, 0.6)}}, order=["a", "b"])
    colours = [figures[0].axes[0].lines[-1], lines(figures[2])["b"], figures[4].axes[0].lines[0]]
    assert len({line.get_color() for line in colours}) == 1
    assert lines(figures[2])["a"].get_color() != colours[0].get_color()


def test_seven_methods_can_be_told_apart(figures: list[Figure]):
    draw_profiles({str(number): [Estimate(0.5)] * 2 for number in range(7)}, [0.0, 1.0], x_label="")
    styles = {(line.get_color(), line.get_linestyle()) for line in lines(figures[0]).values()}
    assert len(styles) == 7


def test_profiles_have_bands_where_there_are_intervals(figures: list[Figure]):
    draw_profiles({"a": [Estimate(0.5, 0.2, 0.8)] * 2, "b": [Estimate(0.5)] * 2}, [0.0, 1.0], x_label="score")
    assert len(figures[0].axes[0].collections) == 1
    assert figures[0].axes[0].get_xlabel() == "score"


def test_estimates_are_points_with_lines(figures: list[Figure]):
    draw_estimates(
        {"IQM": {"a": Estimate(0.5, 0.4, 0.6), "b": Estimate(0.3)}, "mean": {"a": Estimate(1), "b": Estimate(2)}}
    )
    first, second = figures[0].axes
    assert [list(line.get_xdata()) for line in first.lines] == [[0.5], [0.4, 0.6], [0.3]]
    assert [label.get_text() for label in first.get_yticklabels()] == ["b", "a"]
    assert (first.get_title(loc="left"), second.get_title(loc="left")) == ("IQM", "mean")


def test_an_axis_does_not_make_much_of_nothing(figures: list[Figure]):
    draw_estimates(
        {"IQM": {"a": Estimate(0.5), "b": Estimate(0.501)}, "mean": {"a": Estimate(0.0), "b": Estimate(1.0)}}
    )
    near, far = figures[0].axes
    assert near.get_xlim() == pytest.approx((0.4505, 0.5505)) and far.get_xlim() == pytest.approx((-0.1, 1.1))


def test_a_line_at_no_difference(figures: list[Figure]):
    draw_estimates({"P": {"a over b": Estimate(0.5)}}, columns=1, neutral=0.5)
    assert figures[0].axes[0].lines[-1].get_xdata() == [0.5, 0.5]


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="recipes"):
        draw_estimates({"IQM": {"a": Estimate(0.5)}})
