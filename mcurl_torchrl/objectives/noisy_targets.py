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
from torchrl.objectives import ValueEstimators

from mcurl_torchrl.checks import check_number, require
from mcurl_torchrl.modules.rainbow import expected_value, refuse_another_support
from mcurl_torchrl.objectives.functional import reduce_masked
from mcurl_torchrl.objectives.parameters import call_with, replaced_params
from mcurl_torchrl.objectives.target_loss import TargetLoss, valid_positions

__all__ = ["NoisyTargetLoss", "SampleLosses", "Transitions", "choose"]


class Transitions(NamedTuple):
    """A checked batch of n-step transitions: pixels ``[B, C, H, W]``, all other tensors ``[B, 1]``."""

    pixels: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    steps: Tensor
    next_pixels: Tensor
    second_next_pixels: Tensor  # the view on which the next action is chosen; next_pixels if the batch has no other


class SampleLosses(NamedTuple):
    """The losses, TD errors, values and targets of a batch, ``[B]`` each; only the losses have gradients."""

    losses: Tensor
    td_error: Tensor
    value: Tensor
    target: Tensor


def choose(log_probabilities: Tensor, action: Tensor) -> Tensor:
    """Selects the distributions ``[B, N]`` of actions ``[B, 1]`` from ``[B, num_actions, N]``."""
    index = action.unsqueeze(-1).expand(-1, 1, log_probabilities.shape[-1])
    return log_probabilities.gather(1, index).squeeze(1)


class NoisyTargetLoss(TargetLoss):
    """A loss of a network that gives distributions of returns; subclasses compute it in :meth:`_losses`.

    The target network is ``target_value_network_params``; :meth:`copy_to_target`, :meth:`update_target` or
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
        second_pixels: NestedKey = "second_pixels"

    default_keys = _AcceptedKeys
    tensor_keys: _AcceptedKeys
    value_network: nn.Module
    value_network_params: TensorDictParams
    target_value_network_params: TensorDictParams
    support: Tensor
    default_value_estimator = ValueEstimators.TD0

    def __init__(
        self, value_network: nn.Module, support: Tensor | None, gamma: float, double: bool, reduction: str | None
    ) -> None:
        super().__init__(reduction)
        # Here and not in the class: select_out_keys() needs a subclass's out_keys to be tensordict's property.
        self.out_keys = ["loss_value", "q_mean", "q_target_mean"]
        self.gamma = check_number("gamma", gamma, least=0, most=1)
        self.double_dqn = double  # Module.double() is a method
        self.register_buffer("support", _check_support(value_network, support))
        self.register_load_state_dict_pre_hook(refuse_another_support)
        self.convert_to_functional(value_network, "value_network", create_target_params=True)
        self.expect_updates()  # the loop copies at exact steps
        if hasattr(value_network, "reset_noise"):
            self.reset_target_noise()  # the copy was made with the noise of the online network

    def make_value_estimator(self, value_type: Any = None, *, gamma: float | None = None, **options: Any) -> Any:
        """Sets the discount of one step, as ``make_value_estimator`` of TorchRL's DQN losses does.

        Args:
            value_type (ValueEstimators, optional): ``ValueEstimators.TD0``, the only one: n-step returns come from the
                replay buffer. Defaults to it.

        Keyword Args:
            gamma (float, optional): the discount. Defaults to None: it stays as it is.
            **options: options of other estimators, which are refused.

        Returns:
            The loss itself.

        Raises:
            NotImplementedError: on another estimator.
            TypeError: on options of other estimators.
            ValueError: if ``gamma`` is not between 0 and 1.
        """
        options.pop("device", None)  # TorchRL passes a device; the discount here is a plain number
        if value_type not in (None, ValueEstimators.TD0):
            raise NotImplementedError(
                f"value_type={value_type}; {type(self).__name__} has {ValueEstimators.TD0} only: sum rewards over "
                "several steps in the replay buffer (n_step)"
            )
        if options:
            raise TypeError(f"{sorted(options)} are options of other estimators; {type(self).__name__} has gamma only")
        if gamma is not None:
            self.gamma = check_number("gamma", float(gamma), least=0, most=1)
        return self

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
        """The keys that the loss needs; ``steps_to_next_obs``, ``priority_weight``, ``second_pixels`` are optional."""
        keys = self.tensor_keys
        following = [("next", key) for key in (keys.pixels, keys.reward, keys.terminated)]
        return [unravel_key(key) for key in (keys.pixels, keys.action, *following)]

    @in_keys.setter
    def in_keys(self, keys: Any) -> None:
        raise RuntimeError("in_keys follow from set_keys()")

    def reset_parameters_recursive(self) -> None:
        """Draws new weights, and new noise for both networks."""
        super().reset_parameters_recursive()
        reset_noise: Any = getattr(self.value_network, "reset_noise", None)
        if reset_noise is not None:
            reset_noise()
            self.reset_target_noise()

    def copy_to_target(self) -> None:
        """Copies the online network's parameters to the target network, which keeps its own noise.

        Call it at the exact steps, ``if step % 2000 == 0``: TorchRL's ``HardUpdate`` counts its own calls and, with an
        interval of n, copies at every (n + 1)-th call.
        """
        self.update_target(1.0)

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

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Computes the loss of a batch ``[B]``."""
        losses, td_error, value, target = self._losses(self._read(tensordict))
        tensordict.set(self.tensor_keys.priority, td_error)
        valid = valid_positions(tensordict, self.loss_mask_key, losses.shape)
        if tensordict.get(self.tensor_keys.priority_weight, None) is not None:
            losses = losses * self._column(tensordict, self.tensor_keys.priority_weight, len(losses)).squeeze(-1)
        return TensorDict(
            {
                "loss_value": reduce_masked(losses, valid, self.reduction, ranks=self.ranks),
                "q_mean": reduce_masked(value, valid, ranks=self.ranks),
                "q_target_mean": reduce_masked(target, valid, ranks=self.ranks),
            }
        )

    def _losses(self, transitions: Transitions) -> SampleLosses:
        raise NotImplementedError

    def _read(self, tensordict: TensorDictBase) -> Transitions:
        keys = self.tensor_keys
        pixels = require(tensordict, keys.pixels, self)
        # A call with keywords has no batch size.
        if tensordict.ndim and tensordict.shape != pixels.shape[:1]:
            raise ValueError(f"the batch must be [B]; got {list(tensordict.shape)}, {keys.pixels!r} {[*pixels.shape]}")
        next_pixels = require(tensordict, unravel_key(("next", keys.pixels)), self)
        reward = self._column(tensordict, unravel_key(("next", keys.reward)), len(pixels))
        terminated = self._column(tensordict, unravel_key(("next", keys.terminated)), len(pixels))
        if terminated.dtype != torch.bool:
            raise ValueError(f"{unravel_key(('next', keys.terminated))!r} must be bool; got {terminated.dtype}")
        steps = torch.ones_like(reward)
        if tensordict.get(keys.steps_to_next_obs, None) is not None:
            steps = self._column(tensordict, keys.steps_to_next_obs, len(pixels))
        action = self._action(tensordict, len(pixels))
        second = tensordict.get(unravel_key(("next", keys.second_pixels)), next_pixels)
        return Transitions(pixels, action, reward, terminated, steps.to(self.support.dtype), next_pixels, second)

    def _action(self, tensordict: TensorDictBase, count: int) -> Tensor:
        """Returns the indices of the actions, ``[B, 1]``."""
        name = self.tensor_keys.action
        action = require(tensordict, name, self)
        if action.ndim == 2 and len(action) == count and action.shape[1] > 1:
            raise ValueError(
                f"{name!r} is {list(action.shape)}, the shape of one-hot actions; the loss takes the index of each "
                f"action. Convert the batch, batch[{name!r}] = batch[{name!r}].long().argmax(-1), or make the "
                "environment with categorical actions, such as GymEnv(..., categorical_action_encoding=True)"
            )
        action = self._column(tensordict, name, count)
        if action.is_floating_point() or action.dtype == torch.bool:
            raise ValueError(f"{name!r} must hold integer indices of actions; got {action.dtype}")
        return action.long()

    def _column(self, tensordict: TensorDictBase, key: NestedKey, count: int) -> Tensor:
        """Returns one number per sample, as ``[B, 1]``."""
        value = require(tensordict, key, self)
        if value.shape not in ((count,), (count, 1)):
            raise ValueError(f"{key!r} must be {[count, 1]}; got {list(value.shape)}")
        return value.reshape(-1, 1)

    def _online(self, pixels: Tensor) -> Tensor:
        """Returns log-probabilities ``[B, num_actions, N]``, with gradients."""
        # The network itself, without replaced parameters: the network that acts learns, with the same noise.
        return self._check(self.value_network(pixels), len(pixels))

    @torch.no_grad()
    def _best_next(self, transitions: Transitions) -> Tensor:
        """Returns the target network's log-probabilities ``[B, N]`` of the next action."""
        following = call_with(self.target_value_network_params, self.value_network, transitions.next_pixels)
        following = self._check(following, len(transitions.next_pixels))
        chooser = self._online(transitions.second_next_pixels) if self.double_dqn else following
        return choose(following, expected_value(chooser, self.support).argmax(-1, keepdim=True))

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
