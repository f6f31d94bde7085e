"""ExpectedDQNLoss: TorchRL's DQN loss on expected returns, in the clothes of CategoricalDQNLoss."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss, ValueEstimators

from mcurl_torchrl.modules.rainbow import expected_value
from mcurl_torchrl.objectives.noisy_targets import Comparison, NoisyTargetLoss, Transitions

__all__ = ["ExpectedDQNLoss"]


class ExpectedDQNLoss(NoisyTargetLoss):
    """Learns expected returns by squared TD errors (https://doi.org/10.1038/nature14236), with TorchRL's ``DQNLoss``.

    In place of :class:`~mcurl_torchrl.CategoricalDQNLoss`: the same network, whose distributions are free but for their
    means, the same keys and the same calls, so that Rainbow can be compared with and without learned distributions.

    The values of the network, ``sum of probability * return``, go to TorchRL's :class:`~torchrl.objectives.DQNLoss`,
    which takes those of the actions taken, bootstraps over ``steps_to_next_obs`` where not ``terminated``, and squares
    the difference. What is not left to it:

    - Which networks say what: as in ``CategoricalDQNLoss``. ``DQNLoss`` keeps buffers of its own, so that a network
      moved to another device or dtype later would act with other noise than it learns with.
    - Importance weights: ``mean(weight * l)``. ``DQNLoss`` divides by the sum of weights, and takes them only as
      ``[B]``.
    - Priorities: ``|TD error|``, ``[B]``, as prioritised replay has it (https://arxiv.org/abs/1511.05952). ``DQNLoss``
      writes its square.
    - ``q_mean`` and ``q_target_mean``, which it does not tell.

    Nothing random happens here; for noise see ``CategoricalDQNLoss``.

    Reads, from a batch ``[B]``: ``pixels`` and ``("next", "pixels")``, what the network takes; ``action``, integers
    ``[B]`` or ``[B, 1]``; ``("next", "reward")``, the discounted sum of n rewards, and ``("next", "terminated")``, each
    ``[B]`` or ``[B, 1]``; if they are there, ``steps_to_next_obs``, n, which may differ from sample to sample (else 1),
    and ``priority_weight``, importance weights (else 1). ``set_keys`` changes these names; those under ``"next"`` stay
    there. A truncated step bootstraps, so ``truncated`` and ``done`` are not read.

    Writes into the batch ``td_error`` ``[B]``, for priorities. Returns ``loss_value``, the mean of weight times squared
    TD error; without gradients ``q_mean``, the expected return of the actions taken, and ``q_target_mean``, of what
    they should be.

    Args:
        value_network (nn.Module): pixels to log-probabilities ``[B, num_actions, N]`` of the returns in its
            ``support``, ``[N]``, like :class:`~mcurl_torchrl.modules.RainbowNetwork`. The target network,
            ``target_value_network_params``, is a copy of it, moved by :meth:`copy_to_target` (or TorchRL's
            :class:`~torchrl.objectives.SoftUpdate`).

    Keyword Args:
        gamma (float): the discount of one step, the same as the replay buffer's. Defaults to 0.99.
        double (bool): whether the online network picks the next action; else the target network does. Defaults to True.
        reduction (str): ``"mean"``, ``"sum"`` or ``"none"``. Defaults to ``"mean"``.

    Raises:
        ValueError: on settings out of range, and on shapes or dtypes that do not fit.
        KeyError: on a missing key, with the keys that are there.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from mcurl_torchrl.modules import RainbowPolicy
        >>> from mcurl_torchrl.objectives import ExpectedDQNLoss
        >>> policy = RainbowPolicy([4, 84, 84], 6)
        >>> loss = ExpectedDQNLoss(policy.network)
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

    dqn: DQNLoss

    def __init__(
        self, value_network: nn.Module, *, gamma: float = 0.99, double: bool = True, reduction: str = "mean"
    ) -> None:
        super().__init__(value_network, None, gamma, double, reduction)
        reader = QValueActor(nn.Identity(), in_keys=["values"], action_space="categorical")
        dqn = DQNLoss(reader, delay_value=False, reduction="none", action_space="categorical")
        dqn.make_value_estimator(ValueEstimators.TD0, gamma=gamma)
        # The estimator rounds it to single precision; discounts have that of the steps, which is the network's.
        dqn.value_estimator.gamma = torch.tensor(gamma, dtype=torch.float64)
        # Not a submodule: it has nothing to save, and no discount must be rounded with the network.
        self.__dict__["dqn"] = dqn

    def _compare(self, transitions: Transitions) -> Comparison:
        values = expected_value(self._online(transitions.pixels), self.support)
        next_value = expected_value(self._best_next(transitions.next_pixels), self.support).unsqueeze(-1)
        # In place of observations DQNLoss sees values; the next action is chosen already, so there is only its value.
        following = {
            "values": next_value,
            "reward": transitions.reward.to(values.dtype),
            "terminated": transitions.terminated,
            "done": transitions.terminated,
        }
        seen = TensorDict(
            {
                "values": values,
                "action": transitions.action,
                "steps_to_next_obs": transitions.steps,
                "next": TensorDict(following, values.shape[:1]),
            },
            values.shape[:1],
        )
        target = self.dqn.value_estimator.value_estimate(seen, next_value=next_value)
        losses = self.dqn(seen)["loss"]
        chosen = values.detach().gather(1, transitions.action)
        return Comparison(losses, seen["td_error"].squeeze(-1).sqrt(), chosen.squeeze(-1), target.squeeze(-1))
