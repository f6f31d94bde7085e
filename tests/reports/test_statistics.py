"""Statistics over seeds and tasks, against closed forms, scipy, and slow plain versions."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mcurl_torchrl.reports import statistics
from mcurl_torchrl.reports.statistics import (
    AGGREGATES,
    Estimate,
    difference_of_means,
    estimate_aggregates,
    estimate_improvement,
    estimate_profile,
    interquartile_mean,
    mean_of_tasks,
    mean_over_seeds,
    median_of_tasks,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
)

scores_of_a_task = st.lists(st.floats(-2, 3).map(lambda score: round(score, 1)), min_size=1, max_size=6)


def arrays(scores):
    return [np.array(task) for task in scores]


def all_resamples(scores):
    """Every choice of runs with replacement within each task: what a bootstrap draws from."""
    choices = [[np.array(drawn) for drawn in itertools.product(task, repeat=len(task))] for task in scores]
    return list(itertools.product(*choices))


# -- aggregates --------------------------------------------------------------------------------------------------------


@given(st.lists(scores_of_a_task, min_size=1, max_size=5))
def test_iqm_is_scipys_trimmed_mean(scores):
    expected = stats.trim_mean(np.concatenate(arrays(scores)), 0.25)
    assert interquartile_mean(arrays(scores)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([[0, 1, 10, 1000]], 5.5),  # one of four on each side
        ([[1, 2, 6]], 3),  # a quarter of three is no whole run
        ([[0, 1, 2], [3, 4, 500]], 2.5),  # one of six
        ([[0, 100], [1, 2], [3, 4], [5, 1000]], 3.5),  # two of eight, over all tasks
    ],
)
def test_iqm_by_hand(scores, expected):
    assert interquartile_mean(arrays(scores)) == expected


def test_mean_and_median_are_over_tasks_however_many_seeds_each_has():
    scores = arrays([[0.0, 1.0], [2.0], [6.0, 7.0, 8.0]])
    assert mean_of_tasks(scores) == pytest.approx((0.5 + 2 + 7) / 3)
    assert median_of_tasks(scores) == 2


def test_optimality_gap():
    assert optimality_gap(arrays([[0.25, 4.0], [-1.0, 1.0]])) == pytest.approx((0.75 + 0 + 2 + 0) / 4)
    assert optimality_gap(arrays([[3.0]]), gamma=5.0) == 2


def test_profile_counts_what_is_strictly_above():
    scores = arrays([[0.0, 0.5], [0.5, 2.0]])
    assert performance_profile(scores, [-1, 0, 0.5, 1, 2]).tolist() == [1, 0.75, 0.25, 0.25, 0]


@given(st.lists(st.tuples(scores_of_a_task, scores_of_a_task), min_size=1, max_size=4))
def test_improvement_is_mann_whitneys_u(pairs):
    ours, theirs = zip(*pairs, strict=True)
    expected = np.mean([stats.mannwhitneyu(x, y).statistic / (len(x) * len(y)) for x, y in pairs])
    assert probability_of_improvement(arrays(ours), arrays(theirs)) == pytest.approx(expected)


@pytest.mark.parametrize("name", AGGREGATES)
def test_a_batch_is_each_row_by_itself(name):
    generator = np.random.default_rng(0)
    batch = [generator.normal(size=(7, runs)) for runs in (3, 5, 4)]
    rows = [AGGREGATES[name]([task[row] for task in batch]) for row in range(7)]
    np.testing.assert_allclose(AGGREGATES[name](batch), rows)


# -- the bootstrap -----------------------------------------------------------------------------------------------------


def test_intervals_are_percentiles_of_all_resamples():
    """With two tasks of three seeds there are 27 x 27 resamples: the bootstrap draws from these, so their percentiles
    are where its own go.
    """
    scores = [[0.1, 0.35, 0.9], [0.2, 0.55, 1.6]]
    found = estimate_aggregates(scores, repetitions=200_000)
    for name, aggregate in AGGREGATES.items():
        exact = np.quantile([aggregate(drawn) for drawn in all_resamples(scores)], [0.025, 0.975])
        assert found[name].value == pytest.approx(float(aggregate(arrays(scores))))
        assert (found[name].low, found[name].high) == pytest.approx(tuple(exact), abs=0.02)


def test_the_interval_of_a_mean_comes_near_the_normal_one():
    generator = np.random.default_rng(1)
    scores = generator.normal(size=(20, 50))
    error = np.sqrt((scores.var(axis=1) / 50).sum()) / 20
    found = estimate_aggregates(list(scores), repetitions=20_000)["mean"]
    half = 1.96 * error
    assert (found.low, found.high) == pytest.approx((scores.mean() - half, scores.mean() + half), abs=0.03 * half)


def test_seeds_stay_within_their_task():
    """Each task's seeds agree: however they are drawn, nothing changes. Drawn across tasks, it would."""
    for estimate in estimate_aggregates([[0.0] * 3, [1.0] * 3, [5.0] * 4]).values():
        assert estimate.low == estimate.value == estimate.high


def test_the_same_draws_every_time_and_in_parts(monkeypatch):
    scores = [[0.1, 0.4, 0.9], [0.3, 0.5, 0.8]]
    assert estimate_aggregates(scores) == estimate_aggregates(scores)
    assert estimate_aggregates(scores) != estimate_aggregates(scores, seed=1)
    whole = estimate_aggregates(scores)["mean"]
    monkeypatch.setattr(statistics, "_MOST_CELLS", 60)
    parts = estimate_aggregates(scores)["mean"]
    assert (parts.low, parts.high) == pytest.approx((whole.low, whole.high), abs=0.02)


@pytest.mark.parametrize("scores", [[[0.1, 0.2]], [[0.1, 0.2, 0.3], [0.5, 0.6]], [[0.1]]])
def test_fewer_than_three_seeds_have_no_interval(scores):
    assert not any(estimate.has_interval for estimate in estimate_aggregates(scores).values())
    assert not any(estimate.has_interval for estimate in estimate_profile(scores, [0.0, 1.0]))
    assert not estimate_improvement(scores, scores, paired=True).has_interval
    assert not estimate_improvement(scores, [[0.1, 0.2, 0.3]] * len(scores), paired=False).has_interval
    assert not mean_over_seeds(scores[-1]).has_interval
    assert not difference_of_means([1.0, 2.0, 3.0], scores[-1], paired=False).has_interval


def test_profile_intervals():
    scores = [[0.1, 0.35, 0.9], [0.2, 0.55, 1.6]]
    found = estimate_profile(scores, [0.0, 0.5, 2.0], repetitions=50_000)
    exact = np.quantile([performance_profile(drawn, [0.5])[0] for drawn in all_resamples(scores)], [0.025, 0.975])
    assert found[0] == Estimate(1, 1, 1) and found[2] == Estimate(0, 0, 0)
    assert (found[1].value, found[1].low, found[1].high) == pytest.approx((0.5, *exact))


def test_paired_seeds_are_drawn_together():
    """Seeds that are easy for both: ours is always 1 ahead of theirs."""
    theirs = np.array([0.0, 10.0, 20.0])
    paired = [
        probability_of_improvement([(theirs + 1)[list(drawn)]], [theirs[list(drawn)]])
        for drawn in itertools.product(range(3), repeat=3)
    ]
    found = estimate_improvement([theirs + 1], [theirs], paired=True, repetitions=20_000)
    assert found.value == pytest.approx(6 / 9)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(paired, [0.025, 0.975])))
    assert found.low >= 0.5
    assert estimate_improvement([theirs + 1], [theirs], paired=False).low < 0.5


# -- means -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-100, 100), min_size=3, max_size=8).filter(lambda runs: np.std(runs) > 1e-3))
def test_the_mean_has_students_interval(runs):
    expected = stats.t.interval(0.95, len(runs) - 1, loc=np.mean(runs), scale=stats.sem(runs))
    found = mean_over_seeds(runs)
    assert (found.low, found.high) == pytest.approx(expected) and found.value == pytest.approx(np.mean(runs))


def test_students_interval_covers_95_percent_with_three_seeds_and_the_range_of_the_seeds_75():
    runs = np.random.default_rng(0).normal(size=(4000, 3))
    intervals = [mean_over_seeds(three) for three in runs]
    covered = np.mean([estimate.low <= 0 <= estimate.high for estimate in intervals])
    assert covered == pytest.approx(0.95, abs=0.015)
    assert np.mean((runs.min(1) <= 0) & (runs.max(1) >= 0)) == pytest.approx(0.75, abs=0.03)


def test_differences_paired_and_not():
    ours, theirs = [3.0, 5.0, 10.0, 12.0], [1.0, 4.0, 6.0, 11.0]
    paired = stats.ttest_rel(ours, theirs).confidence_interval()
    welch = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
    found = [difference_of_means(ours, theirs, paired=paired) for paired in (True, False)]
    assert [estimate.value for estimate in found] == [2.0, 2.0]
    assert (found[0].low, found[0].high) == pytest.approx((paired.low, paired.high))
    assert (found[1].low, found[1].high) == pytest.approx((welch.low, welch.high))
    assert difference_of_means([2.0] * 3, [1.0] * 4, paired=False) == Estimate(1.0, 1.0, 1.0)


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([], "scores is empty"),
        ([[1.0], []], r"scores\[1\] has the shape \[0\]"),
        ([[[1.0]]], r"scores\[0\] has the shape \[1, 1\]"),
        ([[1.0, float("nan")]], r"scores\[0\]=\[1.0, nan\]"),
    ],
)
def test_bad_scores(scores, message):
    with pytest.raises(ValueError, match=message):
        estimate_aggregates(scores)


def test_bad_pairs():
    with pytest.raises(ValueError, match="ours has 1 tasks and theirs 2"):
        estimate_improvement([[1.0]], [[1.0], [2.0]], paired=False)
    with pytest.raises(ValueError, match="the same number of runs"):
        estimate_improvement([[1.0]], [[1.0, 2.0]], paired=True)
    with pytest.raises(ValueError, match="1 of our runs and 2 of theirs"):
        difference_of_means([1.0], [1.0, 2.0], paired=True)
    with pytest.raises(ValueError, match="repetitions=0"):
        estimate_aggregates([[1.0, 2.0, 3.0]], repetitions=0)


def test_without_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(ImportError, match="recipes"):
        mean_over_seeds([1.0, 2.0, 3.0])
