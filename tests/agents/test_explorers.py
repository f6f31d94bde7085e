"""Explorers: how agents act in one environment, in several, and in a worker."""

from __future__ import annotations

import pickle

import pytest
import torch
from torchrl.data import Bounded, Categorical

from mcurl_torchrl.agents.explorers import RainbowExplorer, SACExplorer
from mcurl_torchrl.modules import GaussianPolicy, RainbowPolicy

PIXELS = torch.randint(256, (400, 4, 36, 36), dtype=torch.uint8)


def make_rainbow(epsilon: float, **options) -> RainbowExplorer:
    policy = RainbowPolicy([4, 36, 36], 6, hidden_dim=16, **options)
    return RainbowExplorer(policy, Categorical(6).rand, epsilon)


def make_sac() -> SACExplorer:
    policy = GaussianPolicy([4, 36, 36], 2, num_layers=2, num_filters=4, hidden_dim=16)
    return SACExplorer(policy, Bounded(-1, 1, (2,)).rand)


@torch.no_grad()
def test_sac_acts_at_random_first():
    explorer = make_sac()
    actions = explorer(PIXELS)
    assert actions.shape == (400, 2) and explorer(PIXELS[0]).shape == (2,)
    assert actions.min() < -0.95 and actions.max() > 0.95 and len(actions.unique(dim=0)) == 400
    explorer.at_random.fill_(False)
    torch.manual_seed(3)
    actions = explorer(PIXELS[:5])
    torch.manual_seed(3)
    assert torch.equal(actions, explorer.policy.sample(PIXELS[:5]))


@torch.no_grad()
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_each_environment_decides_for_itself_whether_it_acts_at_random(epsilon: float):
    explorer = make_rainbow(epsilon, noisy=False)
    best = explorer.policy(PIXELS)
    others = (explorer(PIXELS) != best).float().mean().item()
    assert others == pytest.approx(epsilon * 5 / 6, abs=0.1)
    single = (torch.stack([explorer(frame) for frame in PIXELS]) != best).float().mean().item()
    assert single == pytest.approx(epsilon * 5 / 6, abs=0.1)


@torch.no_grad()
def test_a_worker_draws_its_own_noise():
    explorer = make_rainbow(0.0, sigma_init=5.0)
    worker = pickle.loads(pickle.dumps(explorer.for_worker()))
    explorer.policy.reset_noise()
    assert torch.equal(explorer(PIXELS), explorer(PIXELS))  # the agent draws it, at each step
    assert not torch.equal(worker(PIXELS), worker(PIXELS))


def test_a_worker_has_a_copy():
    explorer = make_sac()
    explorer.policy.to(memory_format=torch.channels_last)
    assert not all(parameter.is_contiguous() for parameter in explorer.parameters())
    worker = explorer.for_worker()
    assert all(parameter.is_contiguous() for parameter in worker.parameters())  # Ray sends no others
    with torch.no_grad():
        for parameter in explorer.parameters():
            parameter.add_(1)
        explorer.at_random.fill_(False)
    assert worker.at_random and worker.acts_alone and not explorer.acts_alone
    assert not any(parameter.requires_grad for parameter in worker.parameters())
    assert all(not torch.equal(a, b) for a, b in zip(worker.parameters(), explorer.parameters(), strict=True))
