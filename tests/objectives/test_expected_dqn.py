"""ExpectedDQNLoss: targets by hand, updates against plain PyTorch, the same as TorchRL's DQNLoss where that is right.

Keys, noise, the target network, copies, compiling and bad input: for both value losses in test_categorical_dqn.py.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

from mcurl_torchrl.modules import RainbowNetwork
from mcurl_torchrl.objectives.categorical_dqn import CategoricalDQNLoss
from mcurl_torchrl.objectives.expected_dqn import ExpectedDQNLoss
from tests.objectives.test_categorical_dqn import (
    ACTIONS,
    ATOMS,
    Table,
    make_batch,
    make_policy,
    noises,
    plain_probabilities,
    table_batch,
)


def table_loss(**options) -> ExpectedDQNLoss:
    """State 0: values 0.3 and -0.5. In state 1 the online network likes action 1, the target network action 0."""
    now = [[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]]
    network = Table(torch.tensor([now, [[0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]]), torch.tensor([-1.0, 0.0, 1.0]))
    loss = ExpectedDQNLoss(network, gamma=0.5, **options)
    target = torch.tensor([now, [[0.1, 0.1, 0.8], [0.1, 0.5, 0.4]]])  # values 0.7 and 0.3
    loss.target_value_network_params["logits"].copy_(target.log())
    return loss


class TestByHand:
    @pytest.mark.parametrize(
        ("options", "changes", "target"),
        [
            ({}, {}, 0.15),  # the online network takes action 1, worth 0.3 to the target network; gamma 0.5
            ({"double": False}, {}, 0.35),  # the target's own choice, worth 0.7
            ({}, {"steps_to_next_obs": [[2]]}, 0.075),
            ({}, {"next_reward": [[1.0]]}, 1.15),  # beyond the support: nothing clips it
            ({}, {"next_reward": [1.0]}, 1.15),  # [B] instead of [B, 1]
            ({}, {"next_terminated": [[True]], "next_done": [[True]], "next_reward": [[0.25]]}, 0.25),
            ({}, {"next_truncated": [[True]], "next_done": [[True]]}, 0.15),  # bootstraps all the same
        ],
    )
    @pytest.mark.parametrize(("action", "value"), [(0, 0.3), (1, -0.5)])
    def test_targets(self, options: dict, changes: dict, target: float, action: int, value: float) -> None:
        loss, batch = table_loss(**options), table_batch(action=[action], **changes)
        out = loss(batch)
        torch.testing.assert_close(out["loss_value"], torch.tensor((value - target) ** 2))
        torch.testing.assert_close(out["q_mean"], torch.tensor(value))
        torch.testing.assert_close(out["q_target_mean"], torch.tensor(target))
        torch.testing.assert_close(batch["td_error"], torch.tensor([abs(value - target)]))

    def test_one_step_where_no_steps_are_given(self) -> None:
        batch = table_batch(steps_to_next_obs=[[7]])
        del batch["steps_to_next_obs"], batch["next", "done"], batch["next", "truncated"]
        torch.testing.assert_close(table_loss()(batch)["q_target_mean"], torch.tensor(0.15))

    def test_gradient(self) -> None:
        """That of (q - y)^2 with q the mean of a softmax: 2 (q - y) p (support - q), for the action taken alone."""
        for action in (torch.tensor([1]), torch.tensor([[1]]), torch.tensor([1], dtype=torch.int32)):
            loss = table_loss()
            loss(table_batch().set("action", action))["loss_value"].backward()
            gradient = loss.value_network.logits.grad
            probabilities, support = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([-1.0, 0.0, 1.0])
            expected = torch.zeros_like(gradient)
            expected[0, 1] = 2 * (-0.5 - 0.15) * probabilities * (support + 0.5)
            torch.testing.assert_close(gradient, expected)  # none for other actions, none through the next state

    def test_weights(self) -> None:
        """The mean of weight times loss, not divided by the sum of weights; priorities do without them."""
        loss, batch = table_loss(), torch.cat([table_batch(action=[0]), table_batch(action=[1])])
        first, second = (0.3 - 0.15) ** 2, (-0.5 - 0.15) ** 2
        for weights in (torch.tensor([1.0, 0.25]), torch.tensor([[1.0], [0.25]])):
            batch["priority_weight"] = weights
            torch.testing.assert_close(loss(batch)["loss_value"], torch.tensor((first + 0.25 * second) / 2))
        torch.testing.assert_close(batch["td_error"], torch.tensor([0.15, 0.65]))
        assert batch["td_error"].shape == (2,) and not batch["td_error"].requires_grad
        for reduction, expected in (("sum", first + 0.25 * second), ("none", [first, 0.25 * second])):
            value = table_loss(reduction=reduction)(batch)["loss_value"]
            torch.testing.assert_close(value, torch.tensor(expected))
        del batch["priority_weight"]
        torch.testing.assert_close(loss(batch)["loss_value"], torch.tensor((first + second) / 2))


# -- one update, in plain PyTorch --------------------------------------------------------------------------------------


def plain_update(
    params: dict[str, Tensor],
    target: dict[str, Tensor],
    noise: dict[str, Tensor],
    target_noise: dict[str, Tensor],
    batch: TensorDict,
    optimizer: torch.optim.Optimizer,
    *,
    double: bool,
) -> dict[str, Tensor]:
    """Sample by sample, each alone in its batch, so that nothing can be broadcast from one to another."""
    support = torch.linspace(-10, 10, ATOMS, dtype=torch.float64)
    errors, values, goals = [], [], []
    for row in range(len(batch)):
        sample, following = batch[row], batch[row]["next"]
        with torch.no_grad():
            online = plain_probabilities(params, noise, following["pixels"][None])[0]
            judged = plain_probabilities(target, target_noise, following["pixels"][None])[0]
            best = ((online if double else judged) @ support).argmax().item()
            goal = following["reward"].double().item()
            if not following["terminated"].item():
                goal = goal + 0.99 ** sample["steps_to_next_obs"].item() * (judged[best] @ support).item()
        value = plain_probabilities(params, noise, sample["pixels"][None])[0, sample["action"].item()] @ support
        errors.append(value - goal)
        values.append(value.detach())
        goals.append(torch.tensor(goal, dtype=torch.float64))
    total = sum(weight * error**2 for weight, error in zip(batch["priority_weight"].double(), errors, strict=True))
    optimizer.zero_grad()
    (total / len(batch)).backward()
    optimizer.step()
    return {
        "loss_value": (total / len(batch)).detach(),
        "q_mean": torch.stack(values).mean(),
        "q_target_mean": torch.stack(goals).mean(),
        "td_error": torch.stack(errors).detach().abs(),
    }


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("size", [ACTIONS, ATOMS, 6, 1])  # where wrong broadcasting would go unnoticed, and elsewhere
def test_updates_equal_those_in_plain_pytorch(size: int, double: bool) -> None:
    """Four agent steps: noise, loss, Adam, priorities, the target's copy at steps 2 and 4."""
    policy = make_policy(sigma_init=1.0).double()
    policy.network.support.copy_(torch.linspace(-10, 10, ATOMS, dtype=torch.float64))  # else in single precision
    loss = ExpectedDQNLoss(policy.network, double=double)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3, eps=1.5e-4)
    params = {name: value.detach().clone().requires_grad_() for name, value in policy.network.named_parameters()}
    target = {name: value.detach().clone() for name, value in params.items()}
    adam = torch.optim.Adam(params.values(), lr=1e-3, eps=1.5e-4)
    for step in range(1, 5):
        batch = make_batch(size)
        policy.reset_noise()
        loss.reset_target_noise()
        own = noises(policy.network.state_dict(), "")
        others = noises(loss.state_dict(), "target_value_network_params.")

        loss.zero_grad()
        out = loss(batch)
        out["loss_value"].backward()
        assert all(value.grad.abs().sum() > 0 for name, value in policy.named_parameters() if "sigma" in name)
        optimizer.step()
        expected = plain_update(params, target, own, others, batch, adam, double=double)
        if step % 2 == 0:
            loss.copy_to_target()
            target = {name: value.detach().clone() for name, value in params.items()}

        torch.testing.assert_close(batch["td_error"], expected.pop("td_error"), rtol=0, atol=1e-11)
        for name, value in expected.items():
            torch.testing.assert_close(out[name].detach(), value, rtol=1e-11, atol=1e-11, msg=name)
        for name, value in policy.network.named_parameters():
            torch.testing.assert_close(value.detach(), params[name].detach(), rtol=0, atol=1e-9, msg=name)


# -- next to its neighbours --------------------------------------------------------------------------------------------


class ExpectedValues(nn.Module):
    """The expected returns of a network, which ``QValueActor`` takes."""

    def __init__(self, network: RainbowNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Tensor) -> Tensor:
        return self.network.values(pixels)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("size", [6, ACTIONS])
def test_equals_torchrls_dqn_loss(size: int, double: bool) -> None:
    """Without weights, TorchRL's loss on its own actor has the same value and gradients; its priorities are squares."""
    policy = make_policy(sigma_init=1.0)
    loss, batch = ExpectedDQNLoss(policy.network, gamma=0.9, double=double), make_batch(size)
    actor = QValueActor(ExpectedValues(policy.network), in_keys=["pixels"], action_space="categorical")
    stock = DQNLoss(actor, action_space="categorical", double_dqn=double)
    stock.make_value_estimator(gamma=0.9)
    SoftUpdate(stock, tau=0.5)
    own = stock.target_value_network_params["module", "0", "module", "network"]
    with torch.no_grad():
        for name, value in loss.target_value_network_params.items(True, True):
            if value.is_floating_point() and "support" not in name:
                value.add_(0.05 * torch.randn_like(value))  # far enough for other actions to be best
            own.get(name).copy_(value)
    batch["next", "done"] = batch["next", "terminated"].clone()
    del batch["priority_weight"]
    results = []
    for each, key in ((loss, "loss_value"), (stock, "loss")):
        policy.zero_grad()
        seen = batch.copy()
        value = each(seen)[key]
        value.backward()
        gradients = {name: parameter.grad.clone() for name, parameter in policy.named_parameters()}
        results.append((value.detach(), gradients, seen["td_error"]))
    (value, gradients, errors), (stock_value, stock_gradients, squares) = results
    torch.testing.assert_close(value, stock_value)
    torch.testing.assert_close(gradients, stock_gradients)
    torch.testing.assert_close(errors.pow(2), squares.squeeze(-1))


class TestInPlaceOfTheCategoricalLoss:
    def test_the_same_interface(self) -> None:
        network = make_policy().network
        ours, theirs = ExpectedDQNLoss(network), CategoricalDQNLoss(network)
        assert ours.in_keys == theirs.in_keys and ours.out_keys == theirs.out_keys
        assert vars(ours.tensor_keys) == vars(theirs.tensor_keys)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
        names = set(inspect.signature(CategoricalDQNLoss).parameters) - {"support", "priorities"}
        assert set(inspect.signature(ExpectedDQNLoss).parameters) == names

    def test_the_same_values_another_loss(self) -> None:
        """Where no return leaves the support, a projected target has the same mean."""
        network, batch = make_policy(value_bounds=(-50.0, 50.0)).network, make_batch()
        ours, theirs = ExpectedDQNLoss(network), CategoricalDQNLoss(network)
        theirs.load_state_dict(ours.state_dict())
        first, second = ours(batch), theirs(batch)
        for name in ("q_mean", "q_target_mean"):
            torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=1e-4)
        assert not torch.allclose(first["loss_value"], second["loss_value"])

    def test_moves_leave_the_discount_alone(self) -> None:
        """In half precision 0.99 is 0.988: what the network is rounded to, the discount must not be."""
        loss, batch = ExpectedDQNLoss(make_policy().network).bfloat16().float(), make_batch()
        batch["next", "reward"].zero_()
        batch["next", "terminated"].zero_()
        now = loss(batch.set("steps_to_next_obs", torch.zeros(6, 1)))["q_target_mean"]
        later = loss(batch.set("steps_to_next_obs", torch.full((6, 1), 50)))["q_target_mean"]
        torch.testing.assert_close(later, 0.99**50 * now)
