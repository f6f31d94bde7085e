"""PPO's policy: how it starts, how it acts."""

from __future__ import annotations

import math

import pytest
import torch

from mcurl_torchrl.modules import PPOPolicy

PIXELS = torch.randint(256, (5, 3, 36, 36), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_weights_start_orthogonal():
    policy = PPOPolicy([3, 36, 36], num_actions=4, hidden_dim=8)
    gains = {name: value for name, value in policy.named_parameters() if name.endswith("weight")}
    assert len(gains) == 5
    for name, weight in gains.items():
        matrix = weight.flatten(1)
        small = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
        gain = 0.01 if name == "head.weight" else math.sqrt(2)
        torch.testing.assert_close(small, gain**2 * torch.eye(len(small)), atol=1e-5, rtol=0)
    assert not any(value.any() for name, value in policy.named_parameters() if name.endswith("bias"))


def test_discrete_actions_are_drawn_by_their_probabilities():
    policy = PPOPolicy([3, 36, 36], num_actions=4, hidden_dim=8)
    with torch.no_grad():
        policy.head.weight.mul_(100)
        expected = policy.head(policy.latent(PIXELS)).softmax(-1)
        drawn = torch.stack([policy.sample(PIXELS) for _ in range(4000)])
    shares = torch.stack([(drawn == action).float().mean(0) for action in range(4)], -1)
    torch.testing.assert_close(shares, expected, atol=0.04, rtol=0)
    assert (expected.max(-1).values - expected.min(-1).values > 0.1).any()
    assert torch.equal(policy(PIXELS), expected.argmax(-1))
    assert policy(PIXELS[0]).shape == policy.sample(PIXELS[0]).shape == ()
    assert torch.equal(policy.act(PIXELS), expected.argmax(-1))
    again = [policy.act(PIXELS, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, *range(2, 30))]
    assert torch.equal(again[0], again[1]) and len({tuple(actions.tolist()) for actions in again}) > 10


def test_continuous_actions_are_squashed():
    policy = PPOPolicy([3, 36, 36], action_dim=2, hidden_dim=8)
    with torch.no_grad():
        policy.head.loc.bias.copy_(torch.tensor([0.0, 0.5]))
        policy.head.log_scale.fill_(math.log(0.2))
        drawn = torch.atanh(torch.stack([policy.sample(PIXELS) for _ in range(4000)]))
        loc, scale = policy.head(policy.latent(PIXELS))
    torch.testing.assert_close(drawn.mean(0), loc, atol=0.02, rtol=0)
    torch.testing.assert_close(drawn.std(0), scale, atol=0.02, rtol=0)
    torch.testing.assert_close(policy(PIXELS), loc.tanh())
    assert policy(PIXELS[0]).shape == policy.sample(PIXELS[0]).shape == (2,)


@pytest.mark.parametrize(
    ("shape", "options", "answer"),
    [
        ([3, 36, 36], {}, "num_actions=None and action_dim=None; give one of them"),
        ([3, 36, 36], {"num_actions": 2, "action_dim": 2}, "give one of them"),
        ([3, 36, 40], {"num_actions": 2}, r"observation_shape=\[3, 36, 40\]"),
        ([3, 36, 36], {"num_actions": 0}, "num_actions=0"),
        ([3, 36, 36], {"num_actions": 2, "hidden_dim": 0}, "hidden_dim=0"),
        ([3, 30, 30], {"num_actions": 2}, "image_size=30"),
    ],
)
def test_bad_settings_name_themselves(shape, options, answer):
    with pytest.raises(ValueError, match=answer):
        PPOPolicy(shape, **options)
