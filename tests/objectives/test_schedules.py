"""The schedules."""

from __future__ import annotations

import math

import pytest
import torch

from mcurl_torchrl.objectives import inverse_sqrt_warmup, linear_schedule


def test_the_released_codes_values() -> None:
    scale = inverse_sqrt_warmup(12_000)
    assert scale(0) == 5e-4
    assert math.isclose(scale(6_000), 5e-4 + (1 - 5e-4) / 2)
    assert scale(12_000) == 1.0
    assert math.isclose(scale(48_000), 0.5)


def test_the_encoders_optimizer() -> None:
    scale = inverse_sqrt_warmup(100, constant_warmup=True)
    assert [scale(0), scale(99), scale(100), scale(400)] == [1.0, 1.0, 1.0, 0.5]


def test_in_lambda_lr() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, inverse_sqrt_warmup(4, initial_scale=0.0))
    rates = []
    for _ in range(17):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates[:5] == [0.0, 0.5, 1.0, 1.5, 2.0] and rates[16] == 1.0


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="warmup_steps=0"):
        inverse_sqrt_warmup(0)
    with pytest.raises(ValueError, match="initial_scale=2"):
        inverse_sqrt_warmup(10, initial_scale=2)


def test_a_straight_line_that_stays_put_at_both_ends() -> None:
    value = linear_schedule((10, 0.4), (20, 1.0))
    assert [value(step) for step in (0, 10, 20, 1000)] == [0.4, 0.4, 1.0, 1.0]
    assert math.isclose(value(15), 0.7)
    falling = linear_schedule((0, 1.0), (4, 0.0))
    assert [falling(step) for step in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert [linear_schedule((5, 0.0), (5, 1.0))(step) for step in (4, 5, 6)] == [0.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="must not come before"):
        linear_schedule((5, 0.0), (4, 1.0))
