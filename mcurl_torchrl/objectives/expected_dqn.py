"""ExpectedDQNLoss: TorchRL's DQN loss on expected returns, with the keys and calls of CategoricalDQNLoss."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss, ValueEstimators

from mcurl_torchrl.modules.rainbow import expected_value
from mcurl_torchrl.objectives.noisy_targets import NoisyTargetLoss, SampleLosses, Transitions

__all__ = ["ExpectedDQNLoss"]


class ExpectedDQNLoss(NoisyTargetLoss):
    """Learns expected returns by squared TD errors (https://doi.org/10.1038/nature14236), with TorchRL's ``DQNLoss``.

    It takes the same network, keys and calls as :class:`~mcurl_torchrl.CategoricalDQNLoss`, so that Rainbow can be
    compared with and without learned distributions. Only the means of the network's distributions are learned.

    The values of the network, ``sum of probability * return``, go to TorchRL's :class:`~torchrl.objectives.DQNLoss`. It
    selects the values of the actions taken, bootstraps over ``steps_to_next_obs`` where not ``terminated``, and squares
    the difference. This class does the rest:

    - It chooses the networks as ``CategoricalDQNLoss`` does. ``DQNLoss`` keeps its own buffers: a network that is moved
      to another device or dtype later would act with other noise than it learns with.
    - Importance weights: ``mean(weight * l)``. ``DQNLoss`` divides by the sum of weights, and takes them only as
      ``[B]``.
    - Priorities: ``|TD error|``, ``[B]``, as in prioritized replay (https://arxiv.org/abs/1511.05952). ``DQNLoss``
      writes its square.
    - ``q_mean`` and ``q_target_mean``, which ``DQNLoss`` does not return.

    The loss draws no random numbers; for noise see ``CategoricalDQNLoss``.

    Reads, from a batch ``[B]``: ``pixels`` and ``("next", "pixels")``, the input of the network; ``action``, integers
    ``[B]`` or ``[B, 1]``; ``("next", "reward")``, the discounted sum of n rewards, and ``("next", "terminated")``, each
    ``[B]`` or ``[B, 1]``. Three keys are optional: ``steps_to_next_obs``, n, which may differ between samples (default
    1); ``priority_weight``, importance weights (default 1); and ``("next", "second_pixels")``, another view of the next
    observation, on which double Q-learning chooses the next action (default: ``("next", "pixels")``). ``set_keys``
    changes these names; names under ``"next"`` stay there. A truncated step bootstraps, so ``truncated`` and ``done``
    are not read. Samples that a mask hides (``loss_mask_key``, by default ``("collector", "mask")``) do not count.

    Writes into the batch ``td_error`` ``[B]``, for priorities. Returns ``loss_value``, the mean of weight times squared
    TD error; without gradients ``q_mean``, the mean expected return of the actions taken, and ``q_target_mean``, the
    mean of their targets.

    Args:
        value_network (nn.Module): pixels to log-probabilities ``[B, num_actions, N]`` of the returns in its
            ``support``, ``[N]``, like :class:`~mcurl_torchrl.modules.RainbowNetwork`. The target network,
            ``target_value_network_params``, is a copy of it; :meth:`copy_to_target`,
            :meth:`update_target` or TorchRL's :class:`~torchrl.objectives.SoftUpdate` moves it.

    Keyword Args:
        gamma (float): the discount of one step, the same as the replay buffer's. Defaults to 0.99.
        double (bool): whether the online network picks the next action; if False, the target network picks it.
            Defaults to True.
        reduction (str): ``"mean"``, ``"sum"`` or ``"none"``. Defaults to ``"mean"``.

    Raises:
        ValueError: on settings out of range, and on shapes or dtypes that do not fit.
        KeyError: on a missing key, with the keys of the batch.

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
        self, value_network: nn.Module, *, gamma: float = 0.99, double: bool = True, reduction: str | None = "mean"
    ) -> None:
        super().__init__(value_network, None, gamma, double, reduction)
        reader = QValueActor(nn.Identity(), in_keys=["values"], action_space="categorical")
        dqn = DQNLoss(reader, delay_value=False, reduction="none", action_space="categorical")
        # Not a submodule: it has no state to save, and moving the network to another dtype must not round gamma.
        self.__dict__["dqn"] = dqn
        self.make_value_estimator(gamma=gamma)

    def make_value_estimator(self, value_type: Any = None, *, gamma: float | None = None, **options: Any) -> Any:
        """Sets the discount of one step, as :meth:`CategoricalDQNLoss.make_value_estimator` does."""
        super().make_value_estimator(value_type, gamma=gamma, **options)
        self.dqn.make_value_estimator(ValueEstimators.TD0, gamma=self.gamma)
        # The estimator would round gamma to float32; the discounts have the dtype of the steps, which is the network's.
        self.dqn.value_estimator.gamma = torch.tensor(self.gamma, dtype=torch.float64)
        return self

    def _losses(self, transitions: Transitions) -> SampleLosses:
        values = expected_value(self._online(transitions.pixels), self.support)
        next_value = expected_value(self._best_next(transitions), self.support).unsqueeze(-1)
        # DQNLoss gets values, not observations; the next action is chosen already, so only its value is given.
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
        return SampleLosses(losses, seen["td_error"].squeeze(-1).sqrt(), chosen.squeeze(-1), target.squeeze(-1))
