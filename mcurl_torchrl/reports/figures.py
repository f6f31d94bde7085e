"""Figures of a report: narrow enough to be read on a phone, each for a light and for a dark page."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcurl_torchrl.reports.statistics import Estimate, mean_over_seeds
from mcurl_torchrl.training.curves import COLOURS, score_text, short_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import LineStyleType

Array = NDArray[np.float64]

__all__ = ["Curve", "Drawing", "draw_curves", "draw_estimates", "draw_profiles"]

_WIDTH = 4.6  # inches: shown at the width of a phone, the letters keep their size
_DPI = 200
_NEAREST = 0.05  # half of the width of the shortest axis of scores
_LINES: tuple[LineStyleType, ...] = ("-", "-.", ":", (0, (3, 1, 1, 1, 1, 1)))  # a dashed line is an unfinished run
_REFERENCE_MARKERS = ("D", "s", "^", "v", "P", "X")


@dataclass(frozen=True)
class _Theme:
    page: str
    text: str
    quiet: str
    grid: str
    colours: tuple[str, ...]

    def style(self, label: str, order: Sequence[str]) -> tuple[str, LineStyleType]:
        """Returns the color and the line style of a method; when the colors repeat, the line style changes."""
        index = order.index(label)
        return self.colours[index % len(self.colours)], _LINES[index // len(self.colours) % len(_LINES)]


_THEMES = {
    "light": _Theme("#ffffff", "#1d2126", "#5c6570", "#e3e6ea", COLOURS),
    # The same order of hues, light enough for a dark page.
    "dark": _Theme(
        "#15181c", "#e8eaed", "#9aa4af", "#2c3238", ("#4fa8e0", "#ff8a4c", "#35c9a0", "#e79cc9", "#f2b632", "#9bd4f5")
    ),
}


@dataclass(frozen=True)
class Drawing:
    """A figure as two PNG images."""

    light: bytes
    dark: bytes


@dataclass(frozen=True)
class Curve:
    """The learning curves of a method on a task.

    Args:
        steps (list of int): the steps at which all of its finished runs were evaluated.
        returns (list of lists): the mean return of each run at each of these steps, ``[seeds][steps]``.
        unfinished (list): for each unfinished run, its points ``(step, return)`` so far.
    """

    steps: Sequence[int] = ()
    returns: Sequence[Sequence[float]] = ()
    unfinished: Sequence[Sequence[tuple[int, float]]] = field(default_factory=tuple)


def draw_curves(
    curves: Mapping[str, Curve],
    *,
    title: str,
    reference: Mapping[str, tuple[int, float]] | None = None,
    order: Sequence[str] = (),
) -> Drawing:
    """Draws learning curves: the mean over seeds, its 95 % interval as a band, and each seed as a thin line.

    There is no band for fewer than three seeds. Unfinished runs are dashed, and are not part of the mean.

    Args:
        curves (mapping of str to Curve): by method.

    Keyword Args:
        title (str): the text above the axes.
        reference (mapping of str to tuple, optional): published results, at ``(env_steps, value)``.
        order (list of str): all methods of the report, so that each has one color in all of its figures. Defaults to
            the methods of this figure.

    Examples:
        >>> from mcurl_torchrl.reports.figures import Curve, draw_curves
        >>> curve = Curve([0, 1000], [[1.0, 5.0], [2.0, 7.0], [0.0, 6.0]])
        >>> draw_curves({"mcurl": curve}, title="cartpole-swingup").light[1:4]
        b'PNG'
    """

    def draw(figure: Figure, theme: _Theme) -> None:
        axes = figure.add_subplot()
        heights: list[float] = []
        for label, curve in curves.items():
            heights += _draw_curve(axes, label, curve, theme.style(label, order or tuple(curves)))
        for (label, (steps, value)), marker in zip((reference or {}).items(), _REFERENCE_MARKERS, strict=False):
            axes.axhline(value, color=theme.quiet, linewidth=0.8, linestyle=(0, (1, 3)), zorder=1)
            axes.plot(
                [steps], [value], color=theme.quiet, linestyle="", marker=marker, markersize=4.5, fillstyle="none",
                label=f"{label}: {score_text(value)}", clip_on=False,
            )  # fmt: skip
            heights.append(value)
        _set_height(axes, heights)
        axes.set_xlim(0, max(1.0, axes.get_xlim()[1]))
        axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
        axes.yaxis.set_major_formatter(lambda v, _: short_number(v) if abs(v) >= 10_000 else f"{v:,.4g}")
        axes.set_xlabel("environment steps")
        axes.set_ylabel("return")
        _style_axes(axes, theme, title)
        _add_legend(figure, axes, theme)

    return _draw(draw, height=3.3 + 0.09 * (len(curves) + len(reference or {})))


def draw_profiles(
    profiles: Mapping[str, Sequence[Estimate]], thresholds: ArrayLike, *, x_label: str, order: Sequence[str] = ()
) -> Drawing:
    """Draws performance profiles: the fraction of runs with a score above each threshold."""
    places = np.asarray(thresholds)

    def draw(figure: Figure, theme: _Theme) -> None:
        axes = figure.add_subplot()
        for label, profile in profiles.items():
            colour, line = theme.style(label, order or tuple(profiles))
            values = [estimate.value for estimate in profile]
            axes.plot(places, values, color=colour, linestyle=line, linewidth=1.8, label=label, drawstyle="steps-post")
            if (band := _band(profile)) is not None:
                axes.fill_between(places, *band, color=colour, alpha=0.15, linewidth=0, step="post")
        axes.set_ylim(0, 1.02)
        axes.set_xlim(places.min(), places.max())
        axes.set_xlabel(x_label)
        axes.set_ylabel("fraction of runs above")
        _style_axes(axes, theme, "Performance profiles")
        _add_legend(figure, axes, theme)

    return _draw(draw, height=3.2 + 0.09 * len(profiles))


def draw_estimates(
    panels: Mapping[str, Mapping[str, Estimate]],
    *,
    columns: int = 2,
    neutral: float | None = None,
    order: Sequence[str] = (),
) -> Drawing:
    """Draws numbers as points with their intervals as lines, a row for each label and a panel for each quantity.

    Args:
        panels (mapping): quantity to label to estimate; all panels have the same labels.

    Keyword Args:
        columns (int): the number of panels in a row. Defaults to 2.
        neutral (float, optional): the place of a line that means "no difference", on an axis of probabilities; then all
            labels have one color. Defaults to None.
        order (list of str): as in :func:`draw_curves`.
    """
    columns = min(columns, len(panels))
    lines = -(-len(panels) // columns)
    labels = list(next(iter(panels.values())))

    def draw(figure: Figure, theme: _Theme) -> None:
        for place, (quantity, estimates) in enumerate(panels.items()):
            axes = figure.add_subplot(lines, columns, place + 1)
            for index, label in enumerate(labels):
                colour = theme.quiet if neutral is not None else theme.style(label, order or labels)[0]
                estimate, row = estimates[label], len(labels) - 1 - index
                axes.plot([estimate.value], [row], "o", color=colour, markersize=5, clip_on=False)
                if estimate.low is not None and estimate.high is not None:
                    axes.plot([estimate.low, estimate.high], [row, row], color=colour, linewidth=5, alpha=0.4)
            if neutral is not None:
                axes.axvline(neutral, color=theme.quiet, linewidth=1, linestyle=(0, (2, 2)), zorder=1)
                axes.set_xlim(-0.02, 1.02)
            else:
                axes.set_xlim(*_span(estimates.values()))
            axes.set_ylim(-0.6, len(labels) - 0.4)
            axes.set_yticks(range(len(labels)), [_wrap(label) for label in reversed(labels)])
            axes.locator_params(axis="x", nbins=3)
            _style_axes(axes, theme, quantity, title_size=9.5)
            if place % columns:
                axes.set_yticklabels([])

    height = lines * (0.75 + 0.26 * sum(1 + _wrap(label).count("\n") for label in labels))
    return _draw(draw, height=max(1.3, height))


# -- parts of figures --------------------------------------------------------------------------------------------------


def _draw(draw: Callable[[Figure, _Theme], None], *, height: float) -> Drawing:
    """Draws a figure once for each theme. matplotlib's global state is not changed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'mcurl-torchrl[recipes]'") from error
    images = {}
    for name, theme in _THEMES.items():
        figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, facecolor=theme.page, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure, theme)
        content = io.BytesIO()
        figure.savefig(content, format="png", metadata={"Software": None})
        images[name] = content.getvalue()
    return Drawing(**images)


def _draw_curve(axes: Axes, label: str, curve: Curve, style: tuple[str, LineStyleType]) -> list[float]:
    """Draws a method's curve; returns the heights of its points, which the axes have to show."""
    colour, line = style
    heights = [value for run in curve.returns for value in run]
    for run in curve.returns:
        axes.plot(curve.steps, run, color=colour, linewidth=0.7, alpha=0.45)
    if curve.returns:
        means = [mean_over_seeds(values) for values in zip(*curve.returns, strict=True)]
        seeds = f"{len(curve.returns)} seed{'s' if len(curve.returns) > 1 else ''}"
        values = [mean.value for mean in means]
        axes.plot(curve.steps, values, color=colour, linestyle=line, linewidth=1.9, label=f"{label}, {seeds}")
        if (band := _band(means)) is not None:
            axes.fill_between(curve.steps, *band, color=colour, alpha=0.15, linewidth=0)
    for number, points in enumerate(curve.unfinished):
        steps, returns = zip(*points, strict=True)
        (drawn,) = axes.plot(steps, returns, color=colour, linewidth=1, linestyle=(0, (4, 2)), marker=".", markersize=3)
        if number == 0:
            drawn.set_label(f"{label}, unfinished")
        heights += returns
    return heights


def _band(estimates: Sequence[Estimate]) -> tuple[Array, Array] | None:
    """Returns the lower and the upper ends; None where an interval is missing."""
    if not all(estimate.has_interval for estimate in estimates):
        return None
    low, high = np.array([[estimate.low, estimate.high] for estimate in estimates], dtype=np.float64).T
    return low, high


def _set_height(axes: Axes, heights: Sequence[float]) -> None:
    """Sets the height of the axes to show all lines. A band may be cut off: with three seeds it can be very wide."""
    if not heights:
        return
    low, high = min(heights), max(heights)
    room = 0.08 * (high - low) or 1.0
    axes.set_ylim(0 if low >= 0 else low - room, high + room)


def _style_axes(axes: Axes, theme: _Theme, title: str, *, title_size: float = 11) -> None:
    axes.set_facecolor(theme.page)
    axes.set_title(title, fontsize=title_size, color=theme.text, loc="left", pad=7, fontweight="bold")
    axes.xaxis.label.set(color=theme.quiet, fontsize=9)
    axes.yaxis.label.set(color=theme.quiet, fontsize=9)
    axes.tick_params(labelsize=8.5, colors=theme.quiet, length=0)
    axes.grid(True, color=theme.grid, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(theme.quiet)


def _add_legend(figure: Figure, axes: Axes, theme: _Theme) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    # Below the axes: on a narrow figure it would cover the curves.
    short = max(map(len, labels)) <= 24
    figure.legend(
        handles,
        [_wrap(label, 56) for label in labels],
        loc="outside lower center",
        ncols=2 if short else 1,
        fontsize=8.5,
        labelcolor=theme.text,
        frameon=False,
        handlelength=1.6,
    )


def _span(estimates: Iterable[Estimate]) -> tuple[float, float]:
    """Returns the ends of an axis, which are far enough apart that a tiny difference does not look large."""
    ends = [end for e in estimates for end in (e.value, e.low, e.high) if end is not None]
    middle, reach = (min(ends) + max(ends)) / 2, 0.6 * (max(ends) - min(ends))
    return middle - max(reach, _NEAREST), middle + max(reach, _NEAREST)


def _wrap(label: str, width: int = 26) -> str:
    """Breaks a long label into lines at spaces."""
    lines = [""]
    for word in label.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
