"""One step of optimizers on a loss, its gradients clipped or not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from mcurl_torchrl.agents import optimize


def zeros(number: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(2)) for _ in range(number)]


def test_gradients_are_clipped_together():
    first, second = zeros(2)
    loss = 3 * first[0] + 4 * second[1]
    norm = optimize(loss, SGD([first], lr=1.0), SGD([second], lr=10.0), max_norm=1.0)
    assert norm is not None and norm.item() == 5
    torch.testing.assert_close(first.data, torch.tensor([-0.6, 0.0]), rtol=1e-5, atol=0)
    torch.testing.assert_close(second.data, torch.tensor([0.0, -8.0]), rtol=1e-5, atol=0)


def test_a_parameter_of_two_optimizers_counts_once():
    (shared,) = zeros(1)
    norm = optimize(3 * shared[0], SGD([shared], lr=1.0), SGD([shared], lr=1.0), max_norm=1.0)
    assert norm is not None and norm.item() == 3
    torch.testing.assert_close(shared.data, torch.tensor([-2.0, 0.0]), rtol=1e-5, atol=0)  # both have stepped by 1


@pytest.mark.parametrize("max_norm", [None, 10.0, float("inf")])
def test_small_gradients_stay_as_they_are(max_norm: float | None):
    first, unused = zeros(2)
    norm = optimize(3 * first[0], SGD([first, unused], lr=1.0), max_norm=max_norm)
    assert first.tolist() == [-3, 0] and unused.tolist() == [0, 0]
    assert norm is None if max_norm is None else norm.item() == 3
    assert first.grad is not None and unused.grad is None


def test_gradients_of_before_are_cleared():
    (first,) = zeros(1)
    optimizer = SGD([first], lr=1.0)
    for _ in range(2):
        assert optimize(3 * first[0], optimizer, max_norm=10.0).item() == 3


@pytest.mark.parametrize("max_norm", [0.0, -1.0, float("nan")])
def test_no_norm_to_clip_to(max_norm: float):
    (first,) = zeros(1)
    with pytest.raises(ValueError, match=f"max_norm={max_norm}"):
        optimize(first[0], SGD([first], lr=1.0), max_norm=max_norm)
    assert first.grad is None and first.tolist() == [0, 0]
