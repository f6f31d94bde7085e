"""Learning curves: what is drawn, read from the figure and from the pixels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from mcurl_torchrl.training.curves import plot_learning_curve

EVALUATIONS = [(20_000, [300.0, 500.0, 400.0]), (0, [10.0, 30.0]), (10_000, [100.0, 200.0])]


def test_mean_band_and_reference(figures: list[Figure], tmp_path: Path) -> None:
    reference = {"CURL, published at 100k": (100_000, 582.0)}
    plot_learning_curve({"M-CURL": EVALUATIONS}, tmp_path / "a.png", title="cartpole", reference=reference)
    (axes,) = figures[0].axes
    lines = {line.get_label(): line for line in axes.lines}
    assert lines["M-CURL"].get_xydata().tolist() == [[0, 20], [10_000, 150], [20_000, 400]]
    assert lines["M-CURL"].get_marker() == "o"
    assert lines["CURL, published at 100k: 582"].get_xydata().tolist() == [[100_000, 582]]
    band = {tuple(point) for point in axes.collections[0].get_paths()[0].vertices.tolist()}
    assert band == {(0, 10), (0, 30), (10_000, 100), (10_000, 200), (20_000, 300), (20_000, 500)}
    assert figures[0].get_supxlabel() == "line: mean of the evaluation episodes; band: lowest to highest"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["M-CURL", "CURL, published at 100k: 582"]
    assert axes.get_title(loc="left") == "cartpole"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("environment steps", "return")


def test_ticks(figures: list[Figure], tmp_path: Path) -> None:
    plot_learning_curve({"a": [(0, [0.0]), (100_000, [1000.0])]}, tmp_path / "a.png", title="")
    plot_learning_curve({"a": [(0, [0.0]), (2_000_000, [25_000.0])]}, tmp_path / "a.png", title="")
    small, large = ([tick.get_text() for tick in figure.axes[0].get_xticklabels()] for figure in figures)
    assert "20k" in small and "0" in small and "1.5M" in large
    small, large = ([tick.get_text() for tick in figure.axes[0].get_yticklabels()] for figure in figures)
    assert "1,000" in small and "25k" in large


@pytest.mark.parametrize(
    ("returns", "reference", "from_zero"), [([3.0, 9.0], 5.0, True), ([0.0], 0.0, True), ([-1.0, 9.0], 5.0, False)]
)
def test_from_zero_unless_something_is_below(
    returns: list[float], reference: float, from_zero: bool, figures: list[Figure], tmp_path: Path
) -> None:
    plot_learning_curve({"a": [(100, returns)]}, tmp_path / "a.png", title="", reference={"b": (100, reference)})
    bottom, top = figures[0].axes[0].get_ylim()
    assert (bottom == 0) == from_zero and top >= max(1, *returns)  # nothing but zeros: 0 to 1, not 0 to 0.05


def test_one_point_is_visible(figures: list[Figure], tmp_path: Path) -> None:
    plot_learning_curve({"a": [(0, [5.0])]}, tmp_path / "a.png", title="")
    image = imread(tmp_path / "a.png")[..., :3]
    assert image.shape == (675, 1080, 3)
    blue = np.array([0x00, 0x72, 0xB2]) / 255
    inside = image[:550, :300]  # the marker at the left edge, not the legend
    assert (np.abs(inside - blue).max(-1) < 0.02).sum() > 30
    assert not figures[0].axes[0].lines[0].get_clip_on()  # all of the marker, not its right half


def test_many_points_have_no_markers(figures: list[Figure], tmp_path: Path) -> None:
    plot_learning_curve({"a": [(step, [1.0]) for step in range(100)]}, tmp_path / "a.png", title="")
    assert figures[0].axes[0].lines[0].get_marker() == ""


def test_many_labels_have_their_own_colours(figures: list[Figure], tmp_path: Path) -> None:
    plot_learning_curve({str(n): EVALUATIONS for n in range(6)}, tmp_path / "a.png", title="")
    assert len({line.get_color() for line in figures[0].axes[0].lines}) == 6


def test_the_suffix_is_the_format(tmp_path: Path) -> None:
    for suffix, start in [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]:
        plot_learning_curve({"a": EVALUATIONS}, tmp_path / "new" / f"a.{suffix}", title="")
        assert (tmp_path / "new" / f"a.{suffix}").read_bytes().startswith(start)
    assert len(list((tmp_path / "new").iterdir())) == 3


def test_a_failure_keeps_the_old_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"the old one")

    def half(figure: Figure, file: Path, **_: Any) -> None:
        Path(file).write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(OSError, match="No space"):
        plot_learning_curve({"a": EVALUATIONS}, path, title="")
    assert path.read_bytes() == b"the old one" and list(tmp_path.iterdir()) == [path]


def test_matplotlib_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would choose a backend
    with matplotlib.rc_context({"font.size": 17, "axes.grid": False}):
        before = matplotlib.rcParams.copy()
        plot_learning_curve({"a": EVALUATIONS}, tmp_path / "a.png", title="")
        assert matplotlib.rcParams.copy() == before


def test_bad_input(tmp_path: Path) -> None:
    for nothing in ({}, {"a": []}):
        with pytest.raises(ValueError, match="at least one evaluation"):
            plot_learning_curve(nothing, tmp_path / "a.png", title="")
    with pytest.raises(ValueError, match="'M-CURL' at 3000 steps has no episodes"):
        plot_learning_curve({"M-CURL": [(3000, [])]}, tmp_path / "a.png", title="")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"matplotlib: pip install 'mcurl-torchrl\[recipes\]'"):
        plot_learning_curve({"a": EVALUATIONS}, tmp_path / "a.png", title="")
