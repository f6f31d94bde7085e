"""How SAC's optimizers train an auxiliary task: rates, warm-up, clipping."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from mcurl_torchrl import AuxiliaryTask, LatentSAC
from mcurl_torchrl.agents import SACAgent, gradient_norm
from mcurl_torchrl.modules import GaussianPolicy


class LargeGradients(AuxiliaryTask):
    def __init__(self, encoder: nn.Module, **options) -> None:
        super().__init__(encoder, **options)
        self.own = nn.Linear(1, 1)

    def forward(self, views: TensorDict) -> TensorDict:
        shared = sum(value.sum() for value in self.__dict__["_encoder"].parameters())
        return TensorDict({"loss_auxiliary": 1e3 * shared + 1e3 * self.own.weight.sum() + 1e3 * self.own.bias.sum()})


def make_agent(options: dict, **settings) -> SACAgent:
    losses = LatentSAC(GaussianPolicy([3, 12, 12], 2, num_layers=1, num_filters=2, hidden_dim=8), hidden_dim=8)
    task = LargeGradients(losses.encoder, **options)
    return SACAgent(losses, task, random_action=lambda: torch.zeros(2), lr=1e-3, **settings)


def rates(agent: SACAgent) -> tuple[float, float]:
    return tuple(agent.optimizers[name].param_groups[0]["lr"] for name in ("auxiliary_encoder", "auxiliary"))


def test_the_encoders_rate_warms_up_only_if_asked():
    warmed = {"warmup_updates": 4, "warmup_initial_scale": 0.5}
    assert rates(make_agent(warmed)) == pytest.approx((2e-3, 5e-4))
    agent = make_agent(warmed | {"lr_scale": 0.5}, auxiliary_encoder_lr_scale=0.5, auxiliary_encoder_warms_up=True)
    assert rates(agent) == pytest.approx((2.5e-4, 2.5e-4))
    seen = []
    for _ in range(16):
        agent._update_auxiliary(TensorDict(), measure=False)
        seen.append(rates(agent))
    assert seen[3] == pytest.approx((5e-4, 5e-4)) and seen[15] == pytest.approx((2.5e-4, 2.5e-4))  # sqrt(4 / 16)


def test_gradients_of_encoder_and_task_are_clipped_together():
    agent = make_agent({}, auxiliary_max_gradient_norm=10.0)
    agent._update_auxiliary(TensorDict(), measure=False)
    together = [*agent.losses.encoder.parameters(), *agent.task.own_parameters()]
    assert gradient_norm(together).item() == pytest.approx(10, rel=1e-4)
    free = make_agent({})
    free._update_auxiliary(TensorDict(), measure=False)
    assert gradient_norm(free.task.own_parameters()).item() == pytest.approx(1e3 * 2**0.5, rel=1e-4)
    with pytest.raises(ValueError, match="auxiliary_max_gradient_norm=0; it must be above 0"):
        make_agent({}, auxiliary_max_gradient_norm=0)


def test_a_warm_up_of_the_encoder_without_its_decay_is_refused():
    with pytest.raises(ValueError, match="auxiliary_encoder_warms_up=true needs auxiliary_encoder_decays=true"):
        make_agent({}, auxiliary_encoder_warms_up=True, auxiliary_encoder_decays=False)
