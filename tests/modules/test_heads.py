"""The heads of SAC, and the policy made of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from mcurl_torchrl.modules import GaussianHead, GaussianPolicy, LatentProjection, QHead, StateEncoder


def test_the_scale_stays_within_its_bounds():
    head = GaussianHead(8, 3, hidden_dim=16, log_std_bounds=(-10, 2))
    for factor, expected in ((1e6, None), (0.0, math.exp(-4))):
        loc, scale = head(factor * torch.randn(50, 8))
        assert loc.shape == scale.shape == (50, 3)
        assert (scale >= math.exp(-10) * 0.999).all() and (scale <= math.exp(2) * 1.001).all()
        if expected is not None:  # tanh(0) is the middle of the bounds
            torch.testing.assert_close(scale, torch.full_like(scale, expected))


def test_linear_layers_start_orthogonal_and_without_bias():
    for module in (GaussianHead(8, 3, hidden_dim=16), QHead(8, 3, hidden_dim=16), LatentProjection(40, 8)):
        for layer in (part for part in module.modules() if isinstance(part, nn.Linear)):
            rows, columns = layer.weight.shape
            gram = layer.weight @ layer.weight.T if rows <= columns else layer.weight.T @ layer.weight
            torch.testing.assert_close(gram, torch.eye(min(rows, columns)), atol=1e-5, rtol=0)
            assert not layer.bias.any()


def test_wrong_sizes_are_named():
    with pytest.raises(ValueError, match=r"log_std_bounds=\(2, -10\)"):
        GaussianHead(8, 3, log_std_bounds=(2, -10))
    with pytest.raises(ValueError, match="action_dim=0"):
        QHead(8, 0)
    with pytest.raises(ValueError, match="crop_size=90.*84"):
        GaussianPolicy([9, 84, 84], 2, crop_size=90)
    with pytest.raises(ValueError, match="84x100"):
        GaussianPolicy([9, 84, 100], 2)
    with pytest.raises(ValueError, match=r"\[9, 84\]"):
        GaussianPolicy([9, 84], 2)
    with pytest.raises(ValueError, match=r"\[\*, 5\].*\(2, 4\)"):
        StateEncoder(5)(torch.zeros(2, 4))


def test_a_policy_crops_at_the_centre_and_squashes():
    policy = GaussianPolicy([3, 24, 24], 2, crop_size=20, num_layers=2, num_filters=4, feature_dim=8, hidden_dim=16)
    pixels = torch.randint(256, (5, 3, 24, 24), dtype=torch.uint8)
    loc, scale = policy.head(policy.projection(policy.encoder.features(pixels[..., 2:22, 2:22])))
    torch.testing.assert_close(policy(pixels), torch.tanh(loc))
    noise = torch.randn(5, 2, generator=torch.Generator().manual_seed(3))
    sampled = policy.sample(pixels, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(sampled, torch.tanh(loc + scale * noise))
    edited = pixels.clone()
    edited[..., :2, :] = 0
    assert torch.equal(policy(edited), policy(pixels))  # what is outside of the crop is not seen
