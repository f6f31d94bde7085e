"""Parameters: each once for one optimizer; a network with other parameters for a while."""

from __future__ import annotations

import copy

import pytest
import torch
from tensordict import TensorDict, TensorDictParams
from torch import Tensor, nn

from mcurl_torchrl import ContrastiveLoss, MaskedContrastiveLoss, joint_parameters
from mcurl_torchrl.modules import ContextTransformer, PixelEncoder
from mcurl_torchrl.objectives.parameters import call_with, replaced_params


def test_two_losses_that_share_an_encoder() -> None:
    encoder = PixelEncoder(3, 16, num_layers=2, num_filters=4, feature_dim=8)
    first = ContrastiveLoss(encoder, latent_dim=8)
    second = MaskedContrastiveLoss(encoder, ContextTransformer(8))
    joint = joint_parameters(first, second)
    counts = [len(list(part.parameters())) for part in (encoder, second.context_network)]
    assert len(joint) == len({id(value) for value in joint}) == counts[0] + 1 + counts[1]
    assert {id(value) for value in joint} == {id(v) for loss in (first, second) for v in loss.parameters()}
    torch.optim.Adam(joint)  # with doubles it warns


def test_modules_and_lists_of_parameters_in_their_order() -> None:
    first, second = nn.Linear(2, 3), nn.Linear(2, 4)
    second.bias.requires_grad_(False)
    joint = joint_parameters([second.weight], first, iter([first.bias, second.bias]))
    assert [value is other for value, other in zip(joint, (second.weight, first.weight, first.bias), strict=True)]


class Tied(nn.Module):
    """Has buffers, a layer under two names, and a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.again = self.first
        self.scale = nn.Parameter(torch.rand(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.again(self.norm(self.first(inputs))) * self.scale


def others(network: nn.Module) -> TensorDictParams:
    params = TensorDict.from_module(network).data.clone().apply(lambda value: value + 1)
    return TensorDictParams(params, no_convert=True)


@pytest.fixture
def network() -> nn.Module:
    return Tied()


def test_the_same_as_tensordicts_own(network: nn.Module) -> None:
    inputs, params = torch.randn(5, 3), others(network)
    found = call_with(params, network, inputs)
    counted = params["norm", "num_batches_tracked"].clone()
    params["norm", "num_batches_tracked"].sub_(1)
    with params.to_module(network, preserve_module_state=False):
        expected = network(inputs)
    assert torch.equal(found, expected)
    assert torch.equal(params["norm", "num_batches_tracked"], counted)  # buffers moved where they stand


def test_gradients_reach_the_given_parameters_and_no_others(network: nn.Module) -> None:
    params = TensorDict.from_module(copy.deepcopy(network), as_module=True)
    call_with(params, network, torch.randn(5, 3)).sum().backward()
    assert params["scale"].grad is not None and params["first", "weight"].grad is not None
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize("fails", [False, True])
def test_a_network_gets_its_own_back(network: nn.Module, fails: bool) -> None:
    before = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    values = {name: value.clone() for name, value in before.items()}
    with pytest.raises(RuntimeError) if fails else replaced_params(others(network), network):
        call_with(others(network), network, torch.randn(5, 7 if fails else 3))
    after = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    assert after.keys() == before.keys()
    for name, value in after.items():
        assert value is before[name] and torch.equal(value, values[name]), name
    assert all(isinstance(value, nn.Parameter) for value in network.parameters())
