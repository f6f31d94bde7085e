"""The sum tree against a plain running sum."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mcurl_torchrl.replay import SumTree


def find_plainly(weights: list[float], mass: float) -> int:
    """Adds up weights until the sum passes ``mass``."""
    total = 0.0
    for index, weight in enumerate(weights):
        total += weight
        if total > mass:
            return index
    raise AssertionError("mass is not below the total")


# Whole numbers add up without rounding, so that the plain sum and the tree have to agree exactly, ties included.
@given(st.lists(st.integers(0, 5), min_size=1, max_size=300).filter(any), st.data())
def test_finds_what_a_running_sum_finds(weights: list[int], data: st.DataObject) -> None:
    tree = SumTree(len(weights))
    tree.update(torch.arange(len(weights)), torch.tensor(weights))
    assert tree.total.item() == sum(weights)
    masses = [*range(sum(weights)), *(data.draw(st.floats(0, sum(weights), exclude_max=True)) for _ in range(10))]
    found = tree.find(torch.tensor(masses, dtype=torch.float64)).tolist()
    assert found == [find_plainly(weights, mass) for mass in masses]


@pytest.mark.parametrize("size", [1, 63, 64, 65, 4096, 4097, 300_000])
def test_updates_at_all_sizes(size: int) -> None:
    tree = SumTree(size)
    plain = torch.zeros(size, dtype=torch.float64)
    generator = torch.Generator().manual_seed(size)
    for _ in range(30):
        index = torch.randperm(size, generator=generator)[:32]
        weight = torch.rand(len(index), generator=generator, dtype=torch.float64)
        weight[1::5] = 0.0
        tree.update(index, weight)
        plain[index] = weight
        assert torch.equal(tree.weights, plain)
        torch.testing.assert_close(tree.total, plain.sum())
    mass = torch.rand(1000, generator=generator, dtype=torch.float64) * plain.sum()
    sums = plain.cumsum(0)
    found = tree.find(mass)
    # The two add up in another order: where a mass lies within rounding of a border, both neighbours are right.
    assert ((sums[found] > mass * (1 - 1e-12)) & (sums[found] - plain[found] <= mass * (1 + 1e-12))).all()
    assert (plain[found] > 0).all()


@pytest.mark.parametrize("size", [1, 65, 5000])
def test_one_weight_is_set_as_several_are(size: int) -> None:
    alone, twice = SumTree(size), SumTree(size)
    generator = torch.Generator().manual_seed(size)
    for _ in range(200):
        index = torch.randint(size, (1,), generator=generator)
        weight = torch.rand(1, generator=generator) ** 20
        alone.update(index, weight)
        twice.update(index.repeat(2), weight)
    assert all(torch.equal(*levels) for levels in zip(alone._levels, twice._levels, strict=True))


def test_a_million_updates_leave_no_rounding_behind() -> None:
    tree = SumTree(1000)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        index = torch.randint(1000, (3000,), generator=generator)
        tree.update(index, torch.rand(3000, generator=generator) * 1e6)
    tree.update(torch.arange(1000), torch.tensor(1.0))
    assert tree.total.item() == 1000.0


def test_zero_is_never_found() -> None:
    tree = SumTree(200)
    tree.update(torch.tensor([0, 77, 199]), torch.tensor([0.0, 1e-300, 0.0], dtype=torch.float64))
    assert (tree.sample(1000) == 77).all()
    # Rounding may carry a mass to the total itself, and past the last weight that is not 0.
    assert tree.find(tree.total.expand(3)).tolist() == [77] * 3


def test_the_largest_of_several_weights_for_one_index_wins() -> None:
    tree = SumTree(3)
    tree.update(torch.tensor([1, 1, 1]), torch.tensor([2.0, 5.0, 3.0]))
    assert tree.weights.tolist() == [0, 5, 0]
    tree.update(torch.tensor([1]), torch.tensor([1.0]))
    assert tree.total.item() == 1


def test_draws_in_proportion() -> None:
    weights = torch.tensor([0.0, 1.0, 1.0, 4.0, 0.0, 10.0] * 20)
    tree = SumTree(len(weights))
    tree.fill(weights)
    drawn = tree.sample(200_000, torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn, minlength=len(weights))
    assert (counts[weights == 0] == 0).all()
    expected = weights / weights.sum() * len(drawn)
    positive = weights > 0
    assert stats.chisquare(counts[positive], expected[positive].double()).pvalue > 1e-3


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), 1e250])
def test_refuses_what_is_no_weight_and_keeps_the_rest(weight: float) -> None:
    tree = SumTree(4)
    tree.fill(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    with pytest.raises(ValueError, match=re.escape(str(weight))):
        tree.update(torch.tensor([0, 1]), torch.tensor([9.0, weight], dtype=torch.float64))
    with pytest.raises(ValueError, match=re.escape(str(weight))):
        tree.update(torch.tensor([1]), torch.tensor([weight], dtype=torch.float64))
    assert tree.weights.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("index", [-1, 4])
@pytest.mark.parametrize("others", [[], [0]])
def test_refuses_what_is_outside(index: int, others: list[int]) -> None:
    tree = SumTree(4)
    with pytest.raises(IndexError, match=f"index {index} is outside of a sum tree of size 4"):
        tree.update(torch.tensor([*others, index]), torch.tensor(1.0))
    assert tree.total.item() == 0


def test_says_what_is_wrong_when_there_is_nothing_to_draw() -> None:
    with pytest.raises(RuntimeError, match="all weights of the sum tree are 0"):
        SumTree(4).sample(1)
    with pytest.raises(ValueError, match="size=0"):
        SumTree(0)
    with pytest.raises(ValueError, match=r"shape \(4,\); got \(3,\)"):
        SumTree(4).fill(torch.ones(3))
