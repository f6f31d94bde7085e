"""NoisyTargetLoss: the base of the value losses. It reads transitions and holds a target network with its own noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import dispatch
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor, nn
from torchrl.objectives.common import LossModule

from mcurl_torchrl.checks import check_choice, require
from mcurl_torchrl.modules.rainbow import expected_value, refuse_another_support
from mcurl_torchrl.objectives.encoding import call_with, replaced_params
from mcurl_torchrl.objectives.functional import REDUCTIONS

__all__ = ["NoisyTargetLoss", "SampleLosses", "Transitions", "choose"]


class Transitions(NamedTuple):
    """A checked batch of n-step transitions: pixels ``[B, C, H, W]``, all other tensors ``[B, 1]``."""

    pixels: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    steps: Tensor
    next_pixels: Tensor


class SampleLosses(NamedTuple):
    """The losses, TD errors, values and targets of a batch, ``[B]`` each; only the losses have gradients."""

    losses: Tensor
    td_error: Tensor
    value: Tensor
    target: Tensor


def choose(log_probabilities: Tensor, action: Tensor) -> Tensor:
    """Returns the distributions ``[B, N]`` of actions ``[B, 1]``, of ``[B, num_actions, N]``."""
    index = action.unsqueeze(-1).expand(-1, 1, log_probabilities.shape[-1])
    return log_probabilities.gather(1, index).squeeze(1)


class NoisyTargetLoss(LossModule):
    """A loss of a network that gives distributions of returns; subclasses compute it in :meth:`_losses`.

    The target network is ``target_value_network_params``; :meth:`copy_to_target` or
    :class:`~torchrl.objectives.SoftUpdate` moves it. The loss draws no random numbers: ``value_network.reset_noise()``
    draws the noise to act and learn with, :meth:`reset_target_noise` draws the target's.
    """

    @dataclass
    class _AcceptedKeys:
        """The keys that the loss reads, and ``priority``, which it writes."""

        pixels: NestedKey = "pixels"
        action: NestedKey = "action"
        reward: NestedKey = "reward"
        terminated: NestedKey = "terminated"
        steps_to_next_obs: NestedKey = "steps_to_next_obs"
        priority_weight: NestedKey = "priority_weight"
        priority: NestedKey = "td_error"

    default_keys = _AcceptedKeys
    tensor_keys: _AcceptedKeys
    value_network: nn.Module
    value_network_params: TensorDictParams
    target_value_network_params: TensorDictParams
    support: Tensor
    out_keys = ["loss_value", "q_mean", "q_target_mean"]

    def __init__(
        self, value_network: nn.Module, support: Tensor | None, gamma: float, double: bool, reduction: str
    ) -> None:
        super().__init__()
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma={gamma}; it must be between 0 and 1")
        self.gamma = gamma
        self.double_dqn = double  # Module.double() is a method
        self.reduction = check_choice("reduction", reduction, REDUCTIONS)
        self.register_buffer("support", _check_support(value_network, support))
        self.register_load_state_dict_pre_hook(refuse_another_support)
        self.convert_to_functional(value_network, "value_network", create_target_params=True)
        # TorchRL warns if none of its updaters moves the targets; here copy_to_target() moves them.
        self._has_update_associated["value_network"] = True
        if hasattr(value_network, "reset_noise"):
            self.reset_target_noise()  # the copy starts with the noise of the online network

    def _forward_value_estimator_keys(self, **kwargs: Any) -> None:
        pass

    def _apply(self, fn: Callable[[Tensor], Tensor]) -> NoisyTargetLoss:
        super()._apply(fn)
        # When a loss is moved to a device or a dtype, it keeps the network's parameters but makes new buffers. Without
        # this loop the network would keep its old noise buffers.
        for path, module in self.value_network.named_modules():
            for name in module._buffers:
                module._buffers[name] = self.value_network_params.get((*filter(None, path.split(".")), name))
        return self

    @property
    def in_keys(self) -> list[NestedKey]:
        """The keys that the loss needs; ``steps_to_next_obs`` and ``priority_weight`` are optional."""
        keys = self.tensor_keys
        following = [("next", key) for key in (keys.pixels, keys.reward, keys.terminated)]
        return [unravel_key(key) for key in (keys.pixels, keys.action, *following)]

    @in_keys.setter
    def in_keys(self, keys: Any) -> None:
        raise RuntimeError("in_keys follow from set_keys()")

    @torch.no_grad()
    def copy_to_target(self) -> None:
        """Copies the online network's parameters to the target network, which keeps its own noise.

        Call it at the exact steps, ``if step % 2000 == 0``: TorchRL's ``HardUpdate`` counts its own calls and, with an
        interval of n, copies at every (n + 1)-th call.
        """
        for name, parameter in self.value_network_params.items(True, True):
            if isinstance(parameter, nn.Parameter):
                self.target_value_network_params.get(name).copy_(parameter)

    def reset_target_noise(self, generator: torch.Generator | None = None) -> None:
        """Draws new noise for the target network, not for the online network; without noisy layers it does nothing.

        Raises:
            TypeError: if the network has no ``reset_noise(generator)``.
        """
        reset = getattr(self.value_network, "reset_noise", None)
        if reset is None:
            raise TypeError(f"{type(self.value_network).__name__} has no reset_noise(generator)")
        with replaced_params(self.target_value_network_params, self.value_network):
            reset(generator)

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Computes the loss of a batch ``[B]``."""
        losses, td_error, value, target = self._losses(self._read(tensordict))
        tensordict.set(self.tensor_keys.priority, td_error)
        return TensorDict(
            {
                "loss_value": self._reduce(losses, tensordict),
                "q_mean": value.mean(),
                "q_target_mean": target.mean(),
            }
        )

    def _losses(self, transitions: Transitions) -> SampleLosses:
        raise NotImplementedError

    def _read(self, tensordict: TensorDictBase) -> Transitions:
        keys = self.tensor_keys
        pixels = require(tensordict, keys.pixels, self)
        if tensordict.shape != pixels.shape[:1]:
            raise ValueError(f"the batch must be [B]; got {list(tensordict.shape)}, {keys.pixels!r} {[*pixels.shape]}")
        action = self._column(tensordict, keys.action)
        if action.is_floating_point() or action.dtype == torch.bool:
            raise ValueError(f"{keys.action!r} must hold indices of actions, integers; got {action.dtype}")
        next_pixels = require(tensordict, unravel_key(("next", keys.pixels)), self)
        reward = self._column(tensordict, unravel_key(("next", keys.reward)))
        terminated = self._column(tensordict, unravel_key(("next", keys.terminated)))
        if terminated.dtype != torch.bool:
            raise ValueError(f"{unravel_key(('next', keys.terminated))!r} must be bool; got {terminated.dtype}")
        steps = torch.ones_like(reward)
        if tensordict.get(keys.steps_to_next_obs, None) is not None:
            steps = self._column(tensordict, keys.steps_to_next_obs)
        return Transitions(pixels, action.long(), reward, terminated, steps.to(self.support.dtype), next_pixels)

    def _column(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        """Returns one number per sample, as ``[B, 1]``."""
        value = require(tensordict, key, self)
        if value.shape not in (tensordict.shape, (*tensordict.shape, 1)):
            raise ValueError(f"{key!r} must be {[*tensordict.shape, 1]}; got {list(value.shape)}")
        return value.reshape(-1, 1)

    def _online(self, pixels: Tensor) -> Tensor:
        """Returns log-probabilities ``[B, num_actions, N]``, with gradients."""
        # The network itself, not a copy with its parameters: the network that acts learns, with the same noise.
        return self._check(self.value_network(pixels), len(pixels))

    @torch.no_grad()
    def _best_next(self, next_pixels: Tensor) -> Tensor:
        """Returns the target network's log-probabilities ``[B, N]`` of the next action."""
        following = call_with(self.target_value_network_params, self.value_network, next_pixels)
        following = self._check(following, len(next_pixels))
        chooser = self._online(next_pixels) if self.double_dqn else following
        return choose(following, expected_value(chooser, self.support).argmax(-1, keepdim=True))

    def _reduce(self, losses: Tensor, tensordict: TensorDictBase) -> Tensor:
        if tensordict.get(self.tensor_keys.priority_weight, None) is not None:
            losses = losses * self._column(tensordict, self.tensor_keys.priority_weight).squeeze(-1)
        if self.reduction == "none":
            return losses
        return losses.sum() if self.reduction == "sum" else losses.mean()

    def _check(self, log_probabilities: Tensor, count: int) -> Tensor:
        expected = [count, "actions", len(self.support)]
        if log_probabilities.ndim != 3 or list(log_probabilities.shape[::2]) != expected[::2]:
            raise ValueError(f"the value network must return {expected}; got {list(log_probabilities.shape)}")
        return log_probabilities


def _check_support(network: nn.Module, given: Tensor | None) -> Tensor:
    """Returns a copy of the support, the network's own if it has one."""
    own = getattr(network, "support", given)
    if not isinstance(own, Tensor):
        raise ValueError(f"{type(network).__name__} has no support: give support=, [N] returns")
    if given is not None and not torch.equal(given, own):
        raise ValueError("support differs from value_network.support; leave it out")
    spacing = own.double().diff() if own.ndim == 1 else own.new_zeros(0)
    if not len(spacing) or not (spacing > 0).all() or not torch.allclose(spacing, spacing.mean(), rtol=1e-3, atol=0):
        raise ValueError(f"support must be [N], N at least 2, rising and evenly spaced; got {own}")
    return own.detach().clone()
