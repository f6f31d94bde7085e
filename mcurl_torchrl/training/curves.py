"""Learning curves as images."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

from mcurl_torchrl.checks import needs
from mcurl_torchrl.files import replacing

__all__ = ["COLOURS", "plot_learning_curve", "score_text", "short_number"]

# The colors of Okabe and Ito, which color-blind readers can tell apart; blue first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_TEXT, _QUIET, _GRID = "#222222", "#6b6b6b", "#e4e4e4"
_REFERENCE_MARKERS = ("D", "s", "^", "v")
_MOST_MARKERS = 60
_CAPTION = "line: mean of the evaluation episodes; band: lowest to highest"


def plot_learning_curve(
    points: Mapping[str, Sequence[tuple[int, Sequence[float]]]],
    path: str | os.PathLike[str],
    *,
    title: str,
    reference: Mapping[str, tuple[int, float]] | None = None,
) -> None:
    """Draws the mean return over training, with a band from the lowest to the highest episode.

    The file appears under its name only once it is whole. The global state of matplotlib (backend, open figures, style)
    is not changed, so that a notebook can call this.

    Args:
        points (mapping of str to list): for each label, the evaluations as ``(env_steps, [episode returns])``.
        path (path): the image; its suffix (.png, .pdf, .svg) is its format. Missing folders are made.

    Keyword Args:
        title (str): the text above the axes.
        reference (mapping of str to tuple, optional): other results to compare with, each drawn in gray at
            ``(env_steps, value)``.

    Raises:
        ValueError: if there is nothing to draw, or an evaluation has no episodes.
        ImportError: if matplotlib is missing.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from mcurl_torchrl.training.curves import plot_learning_curve
        >>> evaluations = [(0, [20.0, 31.0]), (10_000, [180.0, 240.0]), (20_000, [400.0, 520.0])]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plot_learning_curve({"M-CURL, seed 1": evaluations}, f"{folder}/curve.png", title="cartpole-swingup")
        ...     [file.name for file in Path(folder).iterdir()]
        ['curve.png']
    """
    with needs("learning curves need matplotlib", "recipes"):
        from matplotlib.figure import Figure
    if not any(points.values()):
        raise ValueError(f"points={dict(points)!r}; a curve needs at least one evaluation")
    for label, evaluations in points.items():
        for env_steps, returns in evaluations:
            if len(returns) == 0:
                raise ValueError(f"the evaluation of {label!r} at {env_steps} steps has no episodes")

    figure = Figure(figsize=(7.2, 4.5), dpi=150, facecolor="white", layout="constrained")
    axes = figure.add_subplot(facecolor="white")
    for index, (label, evaluations) in enumerate(points.items()):
        _draw_curve(axes, label, evaluations, COLOURS[index % len(COLOURS)])
    for index, (label, (env_steps, value)) in enumerate((reference or {}).items()):
        marker = _REFERENCE_MARKERS[index % len(_REFERENCE_MARKERS)]
        axes.axhline(value, color=_QUIET, linewidth=0.8, linestyle=(0, (2, 3)), zorder=1)
        (point,) = axes.plot([env_steps], [value], marker, color=_QUIET, label=f"{label}: {score_text(value)}")
        point.set(markersize=5, fillstyle="none", clip_on=False)
    _style(axes, title)
    figure.supxlabel(_CAPTION, fontsize=8, color=_QUIET)
    heights = [value for evaluations in points.values() for _, returns in evaluations for value in returns]
    heights += [value for _, value in (reference or {}).values()]
    if min(heights) >= 0:
        axes.set_ylim(0, None if max(heights) > 0 else 1)

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        figure.savefig(partial, format=path.suffix.lstrip(".") or "png")


def _draw_curve(axes: Axes, label: str, evaluations: Sequence[tuple[int, Sequence[float]]], colour: str) -> None:
    evaluations = sorted(evaluations, key=lambda evaluation: evaluation[0])
    steps = [env_steps for env_steps, _ in evaluations]
    lowest, highest = [min(returns) for _, returns in evaluations], [max(returns) for _, returns in evaluations]
    axes.fill_between(steps, lowest, highest, color=colour, alpha=0.16, linewidth=0)
    if len(steps) == 1:  # a band of no width cannot be seen
        axes.vlines(steps, lowest, highest, color=colour, alpha=0.4, linewidth=2)
    marker = "o" if len(steps) <= _MOST_MARKERS else ""
    means = [fmean(returns) for _, returns in evaluations]
    # Not clipped: the markers at 0 steps and at a return of 0 lie on the edges of the axes.
    axes.plot(steps, means, color=colour, linewidth=2, marker=marker, markersize=4.5, label=label, clip_on=False)


def _style(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=13, color=_TEXT, loc="left", pad=12)
    axes.set_xlabel("environment steps", fontsize=11, color=_TEXT)
    axes.set_ylabel("return", fontsize=11, color=_TEXT)
    axes.tick_params(labelsize=10, colors=_QUIET, length=0)
    axes.grid(True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_QUIET)
    axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
    # DMControl's returns end at 1,000, which is read best as it is; Atari's scores reach millions.
    axes.yaxis.set_major_formatter(lambda value, _: short_number(value) if abs(value) >= 10_000 else f"{value:,.4g}")
    axes.set_xlim(0, max(1.0, axes.get_xlim()[1]))
    axes.legend(fontsize=10, labelcolor=_TEXT, frameon=True, framealpha=0.9, edgecolor="none")


def score_text(value: float) -> str:
    """Writes a score with four digits, or with all of its digits before the point."""
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def short_number(value: float) -> str:
    """Writes 20000 as 20k and 1500000 as 1.5M."""
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{suffix}"
    return f"{value:.4g}"
