"""Why CategoricalDQNLoss does not build on TorchRL's DistributionalDQNLoss: what fails there, and not here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.data import MultiStep
from torchrl.modules import DistributionalQValueActor
from torchrl.objectives import DistributionalDQNLoss, SoftUpdate

from mcurl_torchrl import CategoricalDQNLoss

ATOMS, ACTIONS, FEATURES, GAMMA = 5, 3, 4, 0.5


class Linear(nn.Module):
    """Features to log-probabilities ``[B, actions, atoms]``."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, ATOMS * ACTIONS)
        self.register_buffer("support", torch.linspace(-1, 1, ATOMS))

    def logits(self, pixels: Tensor) -> Tensor:
        return self.linear(pixels).unflatten(-1, (ACTIONS, ATOMS))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.logits(pixels).log_softmax(-1)


class AtomsFirst(nn.Module):
    """The same network as TorchRL's actor takes it: logits ``[B, atoms, actions]``."""

    def __init__(self, network: Linear) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Tensor) -> Tensor:
        return self.network.logits(pixels).transpose(-1, -2)


def make_losses(network: Linear) -> tuple[CategoricalDQNLoss, DistributionalDQNLoss]:
    actor = DistributionalQValueActor(
        module=AtomsFirst(network),
        spec=None,
        in_keys=["pixels"],
        support=network.support,
        action_space="categorical",
    )
    stock = DistributionalDQNLoss(actor, gamma=GAMMA, delay_value=True)
    SoftUpdate(stock, tau=0.5)  # TorchRL warns of targets without an updater
    return CategoricalDQNLoss(network, gamma=GAMMA), stock


def make_batch(size: int) -> TensorDict:
    following = {
        "pixels": torch.randn(size, FEATURES),
        "reward": torch.rand(size, 1) - 0.5,
        "done": torch.arange(size)[:, None] == 0,
        "terminated": torch.arange(size)[:, None] == 0,
    }
    batch = {"pixels": torch.randn(size, FEATURES), "action": torch.randint(ACTIONS, (size,)), "next": following}
    return TensorDict({**batch, "steps_to_next_obs": torch.arange(size)[:, None] % 3 + 1}, [size])


def flat_steps(batch: TensorDict) -> TensorDict:
    return batch.copy().set("steps_to_next_obs", batch["steps_to_next_obs"].squeeze(-1))


def test_both_agree_on_steps_in_a_column() -> None:
    ours, stock = make_losses(Linear())
    batch = make_batch(8)
    torch.testing.assert_close(stock(batch.copy())["loss"], ours(batch.copy())["loss_value"])


def test_torchrl_writes_flat_steps_and_cannot_read_them() -> None:
    batch = make_batch(8)
    written = MultiStep(gamma=GAMMA, n_steps=2)(batch.exclude("steps_to_next_obs").unsqueeze(0))
    assert written["steps_to_next_obs"].shape == written.shape
    ours, stock = make_losses(Linear())
    with pytest.raises(RuntimeError, match="size of tensor"):
        stock(flat_steps(batch))
    assert torch.equal(ours(flat_steps(batch))["loss_value"], ours(batch)["loss_value"])


def test_as_many_samples_as_atoms_give_wrong_targets_without_an_error() -> None:
    ours, stock = make_losses(Linear())
    batch = make_batch(ATOMS)
    right = stock(batch.copy())["loss"]
    assert not torch.allclose(stock(flat_steps(batch))["loss"], right, rtol=1e-3)
    torch.testing.assert_close(ours(flat_steps(batch))["loss_value"], right)


def test_the_mean_is_divided_by_the_sum_of_weights() -> None:
    ours, stock = make_losses(Linear())
    batch = make_batch(4).set("priority_weight", torch.tensor([1.0, 2.0, 3.0, 4.0]))
    seen = batch.copy()
    weighted = stock(seen)["loss"]
    losses, weights = seen["td_error"].squeeze(-1), batch["priority_weight"]
    torch.testing.assert_close(weighted, (weights * losses).sum() / weights.sum())
    torch.testing.assert_close(ours(batch)["loss_value"], (weights * losses).mean())


def test_it_works_in_float32_only() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        network, batch = Linear(), make_batch(8)
        ours, stock = make_losses(network)
    finally:
        torch.set_default_dtype(torch.float32)
    assert ours(batch.copy())["loss_value"].dtype == torch.float64
    with pytest.raises(RuntimeError, match="same scalar type"):
        stock(batch)


class CountReads(TorchDispatchMode):
    """Counts how often a number is read from the device, for which a GPU has to finish all its work."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.reads += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_it_reads_numbers_from_the_device() -> None:
    ours, stock = make_losses(Linear())
    counts = []
    for loss in (ours, stock):
        with CountReads() as counter:
            loss(make_batch(8))
        counts.append(counter.reads)
    assert counts[0] == 0 and counts[1] >= 2
