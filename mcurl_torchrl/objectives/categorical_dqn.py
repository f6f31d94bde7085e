"""CategoricalDQNLoss: C51 with n-step returns and importance weights as a TorchRL loss module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import dispatch
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor, nn
from torchrl.objectives.common import LossModule

from mcurl_torchrl.checks import check_choice, require
from mcurl_torchrl.modules.rainbow import expected_value
from mcurl_torchrl.objectives.categorical import project_distribution
from mcurl_torchrl.objectives.encoding import call_with
from mcurl_torchrl.objectives.functional import REDUCTIONS

__all__ = ["CategoricalDQNLoss"]


class CategoricalDQNLoss(LossModule):
    """Learns the distribution of returns (C51, https://arxiv.org/abs/1707.06887) as Rainbow does.

    The cross entropy between the distribution of the action taken and that of the n-step target, projected onto the
    support. By double Q-learning the online network picks the next action, by expected return, and the target network
    says what it is worth (https://arxiv.org/abs/1509.06461). See https://arxiv.org/abs/1710.02298 for the whole.

    In place of TorchRL's :class:`~torchrl.objectives.DistributionalDQNLoss`, which knows no n-step discounts per sample
    and leaves the device.

    Nothing random happens here. Noisy layers: draw the online network's noise once per agent step
    (``network.reset_noise()``), to act and learn with; the target's at each update (:meth:`reset_target_noise`). The
    network has to be in training mode, or there is none.

    Reads, from a batch ``[B]``: ``pixels`` and ``("next", "pixels")``, what the network takes; ``action``, integers
    ``[B]`` or ``[B, 1]``; ``("next", "reward")``, the discounted sum of n rewards, and ``("next", "terminated")``, each
    ``[B]`` or ``[B, 1]``; if they are there, ``steps_to_next_obs``, n, which may differ from sample to sample (else 1),
    and ``priority_weight``, importance weights (else 1). ``set_keys`` changes these names; those under ``"next"`` stay
    there. A truncated step bootstraps, so ``truncated`` and ``done`` are not read.

    Writes into the batch ``td_error`` ``[B]``, each sample's cross entropy, for priorities. Returns ``loss_value``, the
    mean of weight times cross entropy; without gradients ``q_mean``, the expected return of the actions taken, and
    ``q_target_mean``, of what they should be. ``loss_value`` and not TorchRL's ``loss``: next to a
    ``loss_contrastive`` it says whose it is, and trainers add up what starts with ``loss_``.

    Args:
        value_network (nn.Module): pixels to log-probabilities ``[B, num_actions, N]``, like
            :class:`~mcurl_torchrl.modules.RainbowNetwork`. The target network, ``target_value_network_params``, is a
            copy of it, moved by :meth:`copy_to_target` (or TorchRL's :class:`~torchrl.objectives.SoftUpdate`).

    Keyword Args:
        support (torch.Tensor, optional): ``[N]``, the returns that a distribution is over, rising and evenly spaced.
            Defaults to ``value_network.support``.
        gamma (float): the discount of one step, the same as the replay buffer's. Defaults to 0.99.
        double (bool): whether the online network picks the next action; else the target network does. Defaults to True.
        reduction (str): ``"mean"``, ``"sum"`` or ``"none"``. Defaults to ``"mean"``. With weights, the mean is
            ``mean(weight * l)``, as Rainbow has it; TorchRL's own losses divide by the sum of weights.

    Raises:
        ValueError: on settings out of range, and on shapes or dtypes that do not fit.
        KeyError: on a missing key, with the keys that are there.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from mcurl_torchrl.modules.rainbow import RainbowPolicy
        >>> from mcurl_torchrl.objectives.categorical_dqn import CategoricalDQNLoss
        >>> policy = RainbowPolicy([4, 84, 84], 6)
        >>> loss = CategoricalDQNLoss(policy.network)
        >>> def images():
        ...     return torch.randint(256, (8, 4, 84, 84), dtype=torch.uint8)
        >>> terminated = torch.zeros(8, 1, dtype=torch.bool)
        >>> following = {"pixels": images(), "reward": torch.rand(8, 1), "terminated": terminated}
        >>> batch = TensorDict({"pixels": images(), "action": torch.randint(6, (8,)), "next": following}, [8])
        >>> batch["steps_to_next_obs"] = torch.full((8, 1), 20)
        >>> policy.reset_noise()
        >>> loss.reset_target_noise()
        >>> loss(batch)["loss_value"].backward()
        >>> batch["td_error"].shape
        torch.Size([8])
        >>> loss.copy_to_target()
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
        self,
        value_network: nn.Module,
        *,
        support: Tensor | None = None,
        gamma: float = 0.99,
        double: bool = True,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma={gamma}; it must be between 0 and 1")
        self.gamma = gamma
        self.double_dqn = double  # Module.double() is a method
        self.reduction = check_choice("reduction", reduction, REDUCTIONS)
        self.register_buffer("support", _check_support(value_network, support))
        self.convert_to_functional(value_network, "value_network", create_target_params=True)
        # TorchRL warns of targets that none of its updaters moves: copy_to_target() does.
        self._has_update_associated["value_network"] = True
        if hasattr(value_network, "reset_noise"):
            self.reset_target_noise()  # the copy begins with the online network's

    def _forward_value_estimator_keys(self, **kwargs: Any) -> None:
        pass

    def _apply(self, fn: Callable[[Tensor], Tensor]) -> CategoricalDQNLoss:
        super()._apply(fn)
        # Moved to a device or a dtype, a loss keeps a network's parameters but makes new buffers: without this, the
        # network would go on with noise of its own, left where it was.
        for path, module in self.value_network.named_modules():
            for name in module._buffers:
                module._buffers[name] = self.value_network_params.get((*filter(None, path.split(".")), name))
        return self

    @property
    def in_keys(self) -> list[NestedKey]:
        """The keys that the loss needs; the steps to the next observation and the weights are optional."""
        keys = self.tensor_keys
        following = [("next", key) for key in (keys.pixels, keys.reward, keys.terminated)]
        return [unravel_key(key) for key in (keys.pixels, keys.action, *following)]

    @in_keys.setter
    def in_keys(self, keys: Any) -> None:
        raise RuntimeError("in_keys follow from set_keys()")

    @torch.no_grad()
    def copy_to_target(self) -> None:
        """Makes the target network's parameters the online network's; its noise stays its own.

        For exact steps call it when they come, ``if step % 2000 == 0``: TorchRL's ``HardUpdate`` counts its own calls
        and, with an interval of n, copies at every (n + 1)-th.
        """
        for name, parameter in self.value_network_params.items(True, True):
            if isinstance(parameter, nn.Parameter):
                self.target_value_network_params.get(name).copy_(parameter)

    def reset_target_noise(self, generator: torch.Generator | None = None) -> None:
        """Draws new noise for the target network; the online network's stays.

        Raises:
            TypeError: if the network has no ``reset_noise(generator)``.
        """
        reset = getattr(self.value_network, "reset_noise", None)
        if reset is None:
            raise TypeError(f"{type(self.value_network).__name__} has no reset_noise(generator)")
        with self.target_value_network_params.to_module(self.value_network, preserve_module_state=False):
            reset(generator)

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Computes the loss of a batch ``[B]``."""
        keys = self.tensor_keys
        pixels = require(tensordict, keys.pixels, self)
        if tensordict.shape != pixels.shape[:1]:
            raise ValueError(f"the batch must be [B]; got {list(tensordict.shape)}, {keys.pixels!r} {[*pixels.shape]}")
        action = self._column(tensordict, keys.action)
        if action.is_floating_point() or action.dtype == torch.bool:
            raise ValueError(f"{keys.action!r} must hold indices of actions, integers; got {action.dtype}")
        target = self._target(tensordict)

        # The network itself, not its parameters in a copy: what learns is what acts, noise included.
        log_probabilities = self._check(self.value_network(pixels), len(pixels))
        chosen = _choose(log_probabilities, action.long())
        losses = -(target * chosen).sum(-1)
        tensordict.set(keys.priority, losses.detach())
        return TensorDict(
            {
                "loss_value": self._reduce(losses, tensordict),
                "q_mean": expected_value(chosen.detach(), self.support).mean(),
                "q_target_mean": (target * self.support).sum(-1).mean(),
            }
        )

    @torch.no_grad()
    def _target(self, tensordict: TensorDictBase) -> Tensor:
        """Returns the distribution of n-step returns, ``[B, N]``."""
        keys = self.tensor_keys
        next_pixels = require(tensordict, unravel_key(("next", keys.pixels)), self)
        reward = self._column(tensordict, unravel_key(("next", keys.reward)))
        terminated = self._column(tensordict, unravel_key(("next", keys.terminated)))
        if terminated.dtype != torch.bool:
            raise ValueError(f"{unravel_key(('next', keys.terminated))!r} must be bool; got {terminated.dtype}")
        steps = torch.ones_like(reward)
        if tensordict.get(keys.steps_to_next_obs, None) is not None:
            steps = self._column(tensordict, keys.steps_to_next_obs)
        discount = torch.where(terminated, 0.0, torch.pow(self.gamma, steps.to(self.support.dtype)))

        following = self._check(
            call_with(self.target_value_network_params, self.value_network, next_pixels), len(next_pixels)
        )
        judge = self.value_network(next_pixels) if self.double_dqn else following
        best = expected_value(judge, self.support).argmax(-1, keepdim=True)
        return project_distribution(_choose(following, best).exp(), reward, discount, self.support)

    def _reduce(self, losses: Tensor, tensordict: TensorDictBase) -> Tensor:
        if tensordict.get(self.tensor_keys.priority_weight, None) is not None:
            losses = losses * self._column(tensordict, self.tensor_keys.priority_weight).squeeze(-1)
        if self.reduction == "none":
            return losses
        return losses.sum() if self.reduction == "sum" else losses.mean()

    def _column(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        """Returns one number per sample, as ``[B, 1]``."""
        value = require(tensordict, key, self)
        if value.shape not in (tensordict.shape, (*tensordict.shape, 1)):
            raise ValueError(f"{key!r} must be {[*tensordict.shape, 1]}; got {list(value.shape)}")
        return value.reshape(-1, 1)

    def _check(self, log_probabilities: Tensor, count: int) -> Tensor:
        expected = [count, "actions", len(self.support)]
        if log_probabilities.ndim != 3 or list(log_probabilities.shape[::2]) != expected[::2]:
            raise ValueError(f"the value network must return {expected}; got {list(log_probabilities.shape)}")
        return log_probabilities


def _choose(log_probabilities: Tensor, action: Tensor) -> Tensor:
    """Returns the distributions ``[B, N]`` of actions ``[B, 1]``."""
    index = action.unsqueeze(-1).expand(-1, 1, log_probabilities.shape[-1])
    return log_probabilities.gather(1, index).squeeze(1)


def _check_support(network: nn.Module, given: Tensor | None) -> Tensor:
    """Returns a copy of the support, the network's own where it has one."""
    own = getattr(network, "support", given)
    if not isinstance(own, Tensor):
        raise ValueError(f"{type(network).__name__} has no support: give support=, [N] returns")
    if given is not None and not torch.equal(given, own):
        raise ValueError("support differs from value_network.support; leave it out")
    spacing = own.double().diff() if own.ndim == 1 else own.new_zeros(0)
    if not len(spacing) or not (spacing > 0).all() or not torch.allclose(spacing, spacing.mean(), rtol=1e-3, atol=0):
        raise ValueError(f"support must be [N], N at least 2, rising and evenly spaced; got {own}")
    return own.detach().clone()
