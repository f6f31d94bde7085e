"""CategoricalDQNLoss: C51 with n-step returns and importance weights, and the projection of its targets."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mcurl_torchrl.checks import check_choice
from mcurl_torchrl.modules.rainbow import expected_value
from mcurl_torchrl.objectives.noisy_targets import NoisyTargetLoss, SampleLosses, Transitions, choose

__all__ = ["CategoricalDQNLoss", "project_distribution"]


def project_distribution(next_probabilities: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """Projects the distribution of ``reward + discount * next_return`` onto the support (C51).

    The probability of each shifted atom is divided between the two atoms around it, the nearer atom gets the larger
    part; the probability of a shifted atom outside of the support goes to the nearer end of the support. See
    https://arxiv.org/abs/1707.06887, algorithm 1.

    For every atom the part of each shifted atom is computed, ``[B, N, N]`` in all; the algorithm of the paper searches
    the neighbors of each shifted atom. So no probability is lost if a shifted atom is equal to an atom of the support,
    and sums have the same order every time, on a GPU too.

    Args:
        next_probabilities (torch.Tensor): ``[B, N]``.
        reward (torch.Tensor): ``[B, 1]``, the discounted sum of rewards up to the next observation.
        discount (torch.Tensor): ``[B, 1]``, gamma to the power of the steps up to it; 0 after a terminal step.
        support (torch.Tensor): ``[N]``, at least 2 atoms, rising and evenly spaced.

    Returns:
        ``[B, N]``, with the same sum over atoms as ``next_probabilities``.

    Raises:
        ValueError: on other shapes.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.objectives import project_distribution
        >>> support = torch.linspace(-1, 1, 5)
        >>> certain = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]])  # a return of 1
        >>> project_distribution(certain, torch.tensor([[0.25]]), torch.tensor([[0.5]]), support)
        tensor([[0.0000, 0.0000, 0.0000, 0.5000, 0.5000]])
    """
    count, num_atoms = next_probabilities.shape
    # Without this check, a reward [B] with B = N would be used as one reward per atom.
    for name, value, expected in (
        ("reward", reward, (count, 1)),
        ("discount", discount, (count, 1)),
        ("support", support, (num_atoms,)),
    ):
        if value.shape != expected:
            raise ValueError(f"{name} must be {list(expected)}; got {list(value.shape)}")
    low, high = support[0], support[-1]
    # In atoms from the lowest one, so that the distance between neighbors is exactly 1.
    position = (reward + discount * support - low) * ((num_atoms - 1) / (high - low))
    atoms = torch.arange(num_atoms, device=support.device, dtype=position.dtype)
    distance = (position.clamp(0, num_atoms - 1).unsqueeze(1) - atoms.unsqueeze(1)).abs()  # [B, atom, shifted atom]
    return (next_probabilities.unsqueeze(1) * (1 - distance).clamp(min=0)).sum(-1)


class CategoricalDQNLoss(NoisyTargetLoss):
    """Learns the distribution of returns (C51, https://arxiv.org/abs/1707.06887) as Rainbow does.

    It is the cross entropy between the distribution of the action taken and the distribution of the n-step target,
    projected onto the support. By double Q-learning the online network picks the next action, by expected return, and
    the target network gives its distribution (https://arxiv.org/abs/1509.06461). The whole agent is described in
    https://arxiv.org/abs/1710.02298.

    TorchRL's :class:`~torchrl.objectives.DistributionalDQNLoss` cannot be used. It needs ``steps_to_next_obs``
    ``[B, 1]``: with ``[B]``, which TorchRL's own ``MultiStep`` writes, it fails, and if B is the number of atoms it
    computes wrong targets without an error. It divides by the sum of the importance weights, works in float32 only,
    and reads numbers from the device at each call.

    The loss draws no random numbers. Noisy layers: draw the online network's noise once per agent step
    (``network.reset_noise()``), to act and learn with, or at each update; draw the target's noise at each update
    (:meth:`reset_target_noise`). The network must be in training mode, otherwise there is no noise. With plain layers
    both calls do nothing.

    Reads, from a batch ``[B]``: ``pixels`` and ``("next", "pixels")``, the input of the network; ``action``, integers
    ``[B]`` or ``[B, 1]``; ``("next", "reward")``, the discounted sum of n rewards, and ``("next", "terminated")``, each
    ``[B]`` or ``[B, 1]``. Three keys are optional: ``steps_to_next_obs``, n, which may differ between samples (default
    1); ``priority_weight``, importance weights (default 1); and ``("next", "second_pixels")``, another view of the next
    observation, on which double Q-learning chooses the next action (default: ``("next", "pixels")``). ``set_keys``
    changes these names; names under ``"next"`` stay there. A truncated step bootstraps, so ``truncated`` and ``done``
    are not read. Samples that a mask hides (``loss_mask_key``, by default ``("collector", "mask")``) do not count.

    Writes into the batch ``td_error`` ``[B]``, each sample's ``priorities``. Returns ``loss_value``, the
    mean of weight times cross entropy; without gradients ``q_mean``, the mean expected return of the actions taken, and
    ``q_target_mean``, the mean of their targets. The name is ``loss_value``, not TorchRL's ``loss``: trainers sum all
    entries whose names start with ``loss_``, and the name tells this loss from ``loss_contrastive``.

    Args:
        value_network (nn.Module): pixels to log-probabilities ``[B, num_actions, N]``, like
            :class:`~mcurl_torchrl.modules.RainbowNetwork`. The target network, ``target_value_network_params``, is a
            copy of it; :meth:`copy_to_target`, :meth:`update_target` or TorchRL's
            :class:`~torchrl.objectives.SoftUpdate` moves it.

    Keyword Args:
        support (torch.Tensor, optional): ``[N]``, the returns to which a distribution gives probabilities, rising and
            evenly spaced. Defaults to ``value_network.support``.
        gamma (float): the discount of one step, the same as the replay buffer's. Defaults to 0.99.
        double (bool): whether the online network picks the next action; if False, the target network picks it.
            Defaults to True.
        reduction (str): ``"mean"``, ``"sum"`` or ``"none"``. Defaults to ``"mean"``. With weights, the mean is
            ``mean(weight * l)``, as in Rainbow; TorchRL's own losses divide by the sum of weights.
        priorities (str): what is written as ``td_error``: ``"cross_entropy"``, as in Rainbow, or ``"kl"``, the cross
            entropy without the entropy of the target, as in the released code of SPR: 0 for a perfect prediction.
            Defaults to ``"cross_entropy"``.

    Raises:
        ValueError: on settings out of range, and on shapes or dtypes that do not fit.
        KeyError: on a missing key, with the keys of the batch.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from mcurl_torchrl import CategoricalDQNLoss
        >>> from mcurl_torchrl.modules import RainbowPolicy
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
        reduction: str | None = "mean",
        priorities: str = "cross_entropy",
    ) -> None:
        super().__init__(value_network, support, gamma, double, reduction)
        self.priorities = check_choice("priorities", priorities, ("cross_entropy", "kl"))

    def _losses(self, transitions: Transitions) -> SampleLosses:
        target = self._target(transitions)
        chosen = choose(self._online(transitions.pixels), transitions.action)
        losses = -(target * chosen).sum(-1)
        value = expected_value(chosen.detach(), self.support)
        priorities = losses.detach()
        if self.priorities == "kl":
            priorities = (priorities + torch.xlogy(target, target).sum(-1)).clamp(min=0)  # rounding may go below 0
        return SampleLosses(losses, priorities, value, (target * self.support).sum(-1))

    @torch.no_grad()
    def _target(self, transitions: Transitions) -> Tensor:
        """Returns the distribution of n-step returns, ``[B, N]``."""
        discount = torch.where(transitions.terminated, 0.0, torch.pow(self.gamma, transitions.steps))
        following = self._best_next(transitions).exp()
        return project_distribution(following, transitions.reward, discount, self.support)
