"""CategoricalDQNLoss: C51 with n-step returns and importance weights as a TorchRL loss module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mcurl_torchrl.modules.rainbow import expected_value
from mcurl_torchrl.objectives.categorical import project_distribution
from mcurl_torchrl.objectives.noisy_targets import Comparison, NoisyTargetLoss, Transitions, choose

__all__ = ["CategoricalDQNLoss"]


class CategoricalDQNLoss(NoisyTargetLoss):
    """Learns the distribution of returns (C51, https://arxiv.org/abs/1707.06887) as Rainbow does.

    The cross entropy between the distribution of the action taken and that of the n-step target, projected onto the
    support. By double Q-learning the online network picks the next action, by expected return, and the target network
    says what it is worth (https://arxiv.org/abs/1509.06461). See https://arxiv.org/abs/1710.02298 for the whole.

    In place of TorchRL's :class:`~torchrl.objectives.DistributionalDQNLoss`, which knows no n-step discounts per sample
    and leaves the device.

    Nothing random happens here. Noisy layers: draw the online network's noise once per agent step
    (``network.reset_noise()``), to act and learn with; the target's at each update (:meth:`reset_target_noise`). The
    network has to be in training mode, or there is none. With plain layers both calls do nothing.

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

    def __init__(
        self,
        value_network: nn.Module,
        *,
        support: Tensor | None = None,
        gamma: float = 0.99,
        double: bool = True,
        reduction: str = "mean",
    ) -> None:
        super().__init__(value_network, support, gamma, double, reduction)

    def _compare(self, transitions: Transitions) -> Comparison:
        target = self._target(transitions)
        chosen = choose(self._online(transitions.pixels), transitions.action)
        losses = -(target * chosen).sum(-1)
        value = expected_value(chosen.detach(), self.support)
        return Comparison(losses, losses.detach(), value, (target * self.support).sum(-1))

    @torch.no_grad()
    def _target(self, transitions: Transitions) -> Tensor:
        """Returns the distribution of n-step returns, ``[B, N]``."""
        discount = torch.where(transitions.terminated, 0.0, torch.pow(self.gamma, transitions.steps))
        following = self._best_next(transitions.next_pixels).exp()
        return project_distribution(following, transitions.reward, discount, self.support)
