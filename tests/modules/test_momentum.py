"""MomentumCopy: it follows a network as TorchRL's SoftUpdate moves targets, and as AveragedModel does not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchrl.objectives import SoftUpdate
from torchrl.objectives.common import LossModule

from mcurl_torchrl.modules import MomentumCopy

TAU = 0.05


def make_network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def change(network: nn.Module) -> None:
    for value in network.parameters():
        value.data.add_(torch.randn(value.shape, dtype=value.dtype))


def test_a_momentum_copy_follows_by_tau() -> None:
    network = make_network()
    target = MomentumCopy(network, tau=TAU)
    start = {name: value.clone() for name, value in target.copy.named_parameters()}
    assert not any(value.requires_grad for value in target.parameters())
    change(network)
    network(torch.randn(8, 3))
    target.step()
    for name, value in network.named_parameters():
        torch.testing.assert_close(dict(target.copy.named_parameters())[name], 0.05 * value + 0.95 * start[name])
    assert torch.equal(target.copy[1].running_mean, network[1].running_mean)
    assert set(target.state_dict()) == {f"copy.{name}" for name in network.state_dict()}  # not the network itself
    for tau in (0, 1.5):
        with pytest.raises(ValueError, match=f"tau={tau}"):
            MomentumCopy(network, tau=tau)


class Holder(LossModule):
    """The smallest loss module: a network and its target."""

    network: nn.Module
    network_params: nn.Module
    target_network_params: nn.Module

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.convert_to_functional(network, "network", create_target_params=True)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_moves_as_softupdate_does(dtype: torch.dtype) -> None:
    network = make_network().to(dtype)
    ours, holder = MomentumCopy(network, tau=TAU), Holder(network)
    theirs = SoftUpdate(holder, tau=TAU)
    for _ in range(5):
        change(network)
        ours.step()
        theirs.step()
        for name, value in ours.copy.named_parameters():
            target = holder.target_network_params.get(tuple(name.split(".")))
            torch.testing.assert_close(value, target, rtol=0, atol=1e-15 if dtype == torch.float64 else 0.0)


def test_one_call_for_all_tensors_gives_the_same_numbers() -> None:
    """The loop over tensors took the place of torch's _foreach_lerp_: equal bits, no time lost."""
    for dtype in (torch.float32, torch.float64):
        network = nn.Sequential(nn.Linear(64, 32), nn.Conv2d(3, 8, 3)).to(dtype)
        target = MomentumCopy(network, tau=TAU)
        expected = [value.clone() for value in target.copy.parameters()]
        for _ in range(3):
            change(network)
            target.step()
            torch._foreach_lerp_(expected, [value.detach() for value in network.parameters()], TAU)
        assert all(torch.equal(ours, one) for ours, one in zip(target.copy.parameters(), expected, strict=True))


def test_the_first_update_of_averagedmodel_is_a_copy() -> None:
    network = make_network()
    averaged = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(1 - TAU))
    ours = MomentumCopy(network, tau=TAU)
    change(network)
    averaged.update_parameters(network)
    ours.step()
    assert torch.equal(averaged.module[0].weight, network[0].weight)
    assert not torch.equal(ours.copy[0].weight, network[0].weight)
