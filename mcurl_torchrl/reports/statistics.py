"""Statistics of scores from few runs: aggregates over tasks, their uncertainty, and comparisons of two methods.

The definitions are those of "Deep RL at the Edge of the Statistical Precipice" (https://arxiv.org/abs/2108.13264).
Scores are a list with one array for each task; the runs (seeds) are an array's last dimension. Tasks may have different
numbers of runs. Dimensions before the last one are a batch, so that a bootstrap is one call instead of thousands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcurl_torchrl.checks import check_count

__all__ = [
    "AGGREGATES",
    "FEWEST_SEEDS",
    "Estimate",
    "difference_of_means",
    "estimate_aggregates",
    "estimate_improvement",
    "estimate_profile",
    "interquartile_mean",
    "mean_of_tasks",
    "mean_over_seeds",
    "median_of_tasks",
    "optimality_gap",
    "performance_profile",
    "probability_of_improvement",
]

Array = NDArray[np.float64]
Scores = Sequence[Array]

FEWEST_SEEDS = 3  # for an interval: two runs say almost nothing about the spread of runs
LEVEL = 0.95
_TRIMMED = 0.25  # of the scores, on each side
_MOST_CELLS = 2_000_000  # scores held at a time while resampling


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval, or without an interval if there are too few seeds."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval."""
        return self.low is not None and self.high is not None


# -- aggregates over tasks ---------------------------------------------------------------------------------------------


def interquartile_mean(scores: Scores) -> Array:
    """Returns the mean of the middle half of all runs of all tasks, each run with the same weight.

    A quarter of n runs, rounded down to whole runs, is left out on each side, as ``scipy.stats.trim_mean(x, 0.25)``
    does: of 6 runs 1 and 1, of 3 runs none.

    Examples:
        >>> import numpy as np
        >>> from mcurl_torchrl.reports.statistics import interquartile_mean
        >>> float(interquartile_mean([np.array([0.0, 1.0]), np.array([3.0, 100.0])]))
        2.0
    """
    pooled = np.concatenate(scores, axis=-1)
    count = pooled.shape[-1]
    cut = int(_TRIMMED * count)
    return np.partition(pooled, (cut, count - cut - 1), axis=-1)[..., cut : count - cut].mean(-1)


def mean_of_tasks(scores: Scores) -> Array:
    """Returns the mean over tasks of the mean over runs."""
    return _task_means(scores).mean(-1)


def median_of_tasks(scores: Scores) -> Array:
    """Returns the median over tasks of the mean over runs."""
    return np.median(_task_means(scores), axis=-1)


def optimality_gap(scores: Scores, *, gamma: float = 1.0) -> Array:
    """Returns how far runs are below ``gamma`` on average; scores above ``gamma`` count as ``gamma``.

    Examples:
        >>> import numpy as np
        >>> from mcurl_torchrl.reports.statistics import optimality_gap
        >>> float(optimality_gap([np.array([0.5, 3.0])]))
        0.25
    """
    return gamma - np.minimum(np.concatenate(scores, axis=-1), gamma).mean(-1)


AGGREGATES: Mapping[str, Callable[[Scores], Array]] = {
    "IQM": interquartile_mean,
    "median": median_of_tasks,
    "mean": mean_of_tasks,
    "optimality gap": optimality_gap,
}


def performance_profile(scores: Scores, thresholds: ArrayLike) -> Array:
    """Returns the fraction of all runs of all tasks with a score above each threshold.

    Args:
        scores (list of arrays): one ``[..., runs]`` for each task.
        thresholds (array): ``[N]``.

    Returns:
        ``[..., N]``.
    """
    pooled = np.concatenate(scores, axis=-1)
    return np.stack([(pooled > threshold).mean(-1) for threshold in np.asarray(thresholds)], axis=-1)


def probability_of_improvement(ours: Scores, theirs: Scores) -> Array:
    """Returns the probability that a run of ours beats one of theirs, on a task drawn at random.

    On each task it is the fraction of all pairs of runs in which ours is higher; a tie counts half.

    Examples:
        >>> import numpy as np
        >>> from mcurl_torchrl.reports.statistics import probability_of_improvement
        >>> float(probability_of_improvement([np.array([1.0, 2.0])], [np.array([1.0, 0.0])]))
        0.875
    """
    tasks = []
    for x, y in zip(ours, theirs, strict=True):
        first, second = x[..., :, None], y[..., None, :]
        tasks.append(((first > second) + 0.5 * (first == second)).mean((-2, -1)))
    return np.stack(tasks, axis=-1).mean(-1)


def _task_means(scores: Scores) -> Array:
    return np.stack([task.mean(-1) for task in scores], axis=-1)


# -- intervals by the bootstrap ----------------------------------------------------------------------------------------


def estimate_aggregates(
    scores: Sequence[ArrayLike], *, repetitions: int = 10_000, seed: int = 0
) -> dict[str, Estimate]:
    """Returns all :data:`AGGREGATES`, with intervals by the stratified bootstrap.

    Seeds are drawn with replacement within each task; the interval is from the 2.5th to the 97.5th percentile of the
    aggregates of the drawn seeds. The tasks are fixed: the interval covers other seeds, not other tasks.

    Args:
        scores (list of arrays): one ``[runs]`` for each task.

    Keyword Args:
        repetitions (int): how often to draw. Defaults to 10,000.
        seed (int): of the draws. Defaults to 0.

    Returns:
        The estimates by name; without intervals where a task has fewer than :data:`FEWEST_SEEDS` runs.

    Examples:
        >>> from mcurl_torchrl.reports.statistics import estimate_aggregates
        >>> found = estimate_aggregates([[0.1, 0.2, 0.3], [0.5, 0.6, 0.7]])
        >>> round(found["IQM"].value, 3), round(found["IQM"].low, 3), round(found["IQM"].high, 3)
        (0.4, 0.325, 0.475)
        >>> estimate_aggregates([[0.1, 0.3], [0.5, 0.6]])["mean"].has_interval
        False
    """
    tasks = _check(scores)

    def aggregates(drawn: Scores) -> Array:
        return np.stack([aggregate(drawn) for aggregate in AGGREGATES.values()], axis=-1)

    intervals = _intervals([tasks], aggregates, repetitions, seed, cells=sum(map(len, tasks)))
    return dict(zip(AGGREGATES, _with_intervals(aggregates(tasks), intervals), strict=True))


def estimate_profile(
    scores: Sequence[ArrayLike], thresholds: ArrayLike, *, repetitions: int = 2_000, seed: int = 0
) -> list[Estimate]:
    """Returns the performance profile at each threshold, with pointwise intervals by the stratified bootstrap."""
    tasks = _check(scores)
    intervals = _intervals(
        [tasks],
        lambda drawn: performance_profile(drawn, thresholds),
        repetitions,
        seed,
        cells=sum(map(len, tasks)),
    )
    return _with_intervals(performance_profile(tasks, thresholds), intervals)


def estimate_improvement(
    ours: Sequence[ArrayLike],
    theirs: Sequence[ArrayLike],
    *,
    paired: bool,
    repetitions: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """Returns the probability of improvement, with an interval by the stratified bootstrap.

    Args:
        ours (list of arrays): one ``[runs]`` for each task.
        theirs (list of arrays): the same tasks in the same order.

    Keyword Args:
        paired (bool): whether run i of ours and run i of theirs have the same seed, on each task; then both are drawn
            together.
        repetitions (int): how often to draw. Defaults to 10,000.
        seed (int): of the draws. Defaults to 0.

    Examples:
        >>> from mcurl_torchrl.reports.statistics import estimate_improvement
        >>> estimate_improvement([[1.0, 2.0, 3.0]], [[0.0, 0.5, 0.7]], paired=True)
        Estimate(value=1.0, low=1.0, high=1.0)
    """
    x, y = _check(ours), _check(theirs)
    if len(x) != len(y):
        raise ValueError(f"ours has {len(x)} tasks and theirs {len(y)}; they must be the same tasks")
    if paired and [len(task) for task in x] != [len(task) for task in y]:
        raise ValueError("paired=True; then ours and theirs must have the same number of runs on each task")
    value = probability_of_improvement(x, y)
    cells = sum(len(task) * len(other) for task, other in zip(x, y, strict=True))
    if paired:
        pairs = [np.stack(task, axis=-1) for task in zip(x, y, strict=True)]

        def improvement(drawn: Scores) -> Array:
            return probability_of_improvement([task[..., 0] for task in drawn], [task[..., 1] for task in drawn])

        intervals = _intervals([pairs], improvement, repetitions, seed, cells=cells)
    else:
        intervals = _intervals([x, y], probability_of_improvement, repetitions, seed, cells=cells)
    return _with_intervals(value[None], None if intervals is None else intervals[:, None])[0]


def _intervals(
    groups: Sequence[Scores], statistic: Callable[..., Array], repetitions: int, seed: int, *, cells: int
) -> NDArray[np.float64] | None:
    """Returns the lower and the upper end of a statistic's interval, None if there are too few seeds.

    One repetition takes memory for ``cells`` numbers; this limits the number of repetitions at a time.
    """
    check_count("repetitions", repetitions)
    if min(len(task) for tasks in groups for task in tasks) < FEWEST_SEEDS:
        return None
    generator = np.random.default_rng(seed)
    at_once = max(1, _MOST_CELLS // cells)
    draws = []
    for start in range(0, repetitions, at_once):
        size = min(at_once, repetitions - start)
        drawn = [[_resample(task, size, generator) for task in tasks] for tasks in groups]
        draws.append(statistic(*drawn))
    tail = (1 - LEVEL) / 2
    return np.quantile(np.concatenate(draws), [tail, 1 - tail], axis=0)


def _resample(runs: Array, repetitions: int, generator: np.random.Generator) -> Array:
    """Draws runs with replacement: [runs, ...] to [repetitions, runs, ...]."""
    return runs[generator.integers(len(runs), size=(repetitions, len(runs)))]


def _with_intervals(values: Array, intervals: NDArray[np.float64] | None) -> list[Estimate]:
    if intervals is None:
        return [Estimate(float(value)) for value in values]
    return [Estimate(float(v), float(low), float(high)) for v, low, high in zip(values, *intervals, strict=True)]


# -- means of one task -------------------------------------------------------------------------------------------------


def mean_over_seeds(scores: ArrayLike) -> Estimate:
    """Returns the mean of a task's runs with Student's interval.

    With few seeds a bootstrap interval is too narrow: it is between the lowest and the highest of n runs, and this
    range misses the median of the distribution of runs in 2 of 2^n cases, 25 % with three seeds. Student's interval is
    exact for scores that are normally distributed, also with three seeds.

    Args:
        scores (array): ``[runs]``.

    Returns:
        The estimate, without an interval for fewer than :data:`FEWEST_SEEDS` runs.

    Examples:
        >>> from mcurl_torchrl.reports.statistics import mean_over_seeds
        >>> found = mean_over_seeds([1.0, 2.0, 3.0])
        >>> found.value, round(found.low, 3), round(found.high, 3)
        (2.0, -0.484, 4.484)
    """
    (runs,) = _check([scores])
    error = math.sqrt(runs.var(ddof=1) / len(runs)) if len(runs) > 1 else 0.0
    return _student(float(runs.mean()), error, len(runs) - 1, fewest=len(runs))


def difference_of_means(ours: ArrayLike, theirs: ArrayLike, *, paired: bool) -> Estimate:
    """Returns the mean of our runs minus the mean of theirs, with Student's interval.

    Args:
        ours (array): ``[runs]`` of one task.
        theirs (array): the other method's runs of that task.

    Keyword Args:
        paired (bool): whether run i of both has the same seed; then it is the interval of the mean of the differences.
            Otherwise it is Welch's, for two variances that need not be the same.

    Examples:
        >>> from mcurl_torchrl.reports.statistics import difference_of_means
        >>> difference_of_means([2.0, 4.0, 7.0], [1.0, 3.0, 6.0], paired=True)
        Estimate(value=1.0, low=1.0, high=1.0)
    """
    x, y = _check([ours, theirs])
    if paired:
        if len(x) != len(y):
            raise ValueError(f"paired=True with {len(x)} of our runs and {len(y)} of theirs; the numbers must be equal")
        return mean_over_seeds(x - y)
    fewest = min(len(x), len(y))
    value = float(x.mean() - y.mean())
    if fewest < FEWEST_SEEDS:
        return Estimate(value)
    parts = [float(runs.var(ddof=1)) / len(runs) for runs in (x, y)]
    if sum(parts) == 0:
        return Estimate(value, value, value)
    degrees = sum(parts) ** 2 / sum(part**2 / (len(runs) - 1) for part, runs in zip(parts, (x, y), strict=True))
    return _student(value, math.sqrt(sum(parts)), degrees, fewest=fewest)


def _student(value: float, error: float, degrees: float, *, fewest: int) -> Estimate:
    if fewest < FEWEST_SEEDS:
        return Estimate(value)
    try:
        from scipy.special import stdtrit
    except ImportError as missing:
        raise ImportError("Student's intervals need scipy: pip install 'mcurl-torchrl[recipes]'") from missing
    half = float(stdtrit(degrees, 0.5 + LEVEL / 2)) * error
    return Estimate(value, value - half, value + half)


def _check(scores: Sequence[Any]) -> list[Array]:
    tasks = [np.asarray(task, dtype=np.float64) for task in scores]
    if not tasks:
        raise ValueError("scores is empty; it must have at least one task")
    for number, task in enumerate(tasks):
        if task.ndim != 1 or len(task) == 0:
            raise ValueError(f"scores[{number}] has the shape {list(task.shape)}; it must be [runs], with a run")
        if not np.isfinite(task).all():
            raise ValueError(f"scores[{number}]={task.tolist()}; scores must be finite")
    return tasks
