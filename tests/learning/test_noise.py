"""Noisy layers learn the scale of their noise: it becomes 0 if noise only increases the loss.

A linear task: noise cannot be outgrown by larger weights, only by smaller sigmas.
"""

from __future__ import annotations

import pytest
import torch

from mcurl_torchrl.modules import NoisyLinear

INPUTS = 8


def loss_with_noise(layer: NoisyLinear, wanted: torch.nn.Linear) -> torch.Tensor:
    layer.reset_noise()
    inputs = torch.randn(64, INPUTS)
    return (layer(inputs) - wanted(inputs).detach()).square().mean()


def learn(*, frozen: bool) -> float:
    torch.manual_seed(0)
    layer, wanted = NoisyLinear(INPUTS, 1, sigma_init=1.0), torch.nn.Linear(INPUTS, 1)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(not (frozen and "sigma" in name))
    optimizer = torch.optim.Adam([part for part in layer.parameters() if part.requires_grad], lr=3e-3)
    for _ in range(1500):
        optimizer.zero_grad()
        loss_with_noise(layer, wanted).backward()
        optimizer.step()
    with torch.no_grad():
        return torch.stack([loss_with_noise(layer, wanted) for _ in range(200)]).mean().item()


def test_sigmas_are_learned():
    assert learn(frozen=False) < 0.05


def test_frozen_sigmas_leave_the_noise():
    # Each of 8 inputs and the bias adds sigma^2 = 1/8 times the noise's variances, E|x| = sqrt(2 / pi) for each factor.
    variance = (2 / torch.pi) ** 0.5
    assert learn(frozen=True) == pytest.approx(variance**2 + variance / 8, rel=0.15)
