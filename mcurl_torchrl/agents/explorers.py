"""Explorers: the policies with exploration that act in training; worker processes act with copies of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mcurl_torchrl.modules import Policy

__all__ = ["Explorer", "RainbowExplorer", "SACExplorer"]


class Explorer(nn.Module):
    """A policy that explores: observations ``[*, ...]`` to actions ``[*, ...]``, of one environment or of several.

    The amount of exploration (random actions, epsilon) is stored in buffers: workers get it together with the weights.

    Args:
        policy (Policy): the policy of the agent.
    """

    acts_alone = False  # True in a worker, where no agent calls begin_step

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy: Any = policy

    def is_single(self, observation: Tensor) -> bool:
        """Returns whether this is the observation of one environment, without a batch dimension."""
        return observation.ndim == len(self.policy.settings["observation_shape"])

    def forward(self, observation: Tensor) -> Tensor:
        """Samples actions from the policy."""
        return self.policy.sample(observation)

    def for_worker(self) -> Explorer:
        """Returns a copy on the CPU that acts without the agent."""
        worker = copy.deepcopy(self).cpu().requires_grad_(False)
        for parameter in worker.parameters():
            parameter.data = parameter.data.contiguous()  # weights are sent in this layout; the learner's may differ
        worker.acts_alone = True
        return worker


class _WithRandomActions(Explorer):
    """An explorer that may act at random, without its policy.

    Args:
        policy (Policy): the policy of the agent.
        random_action (callable): returns one action at random.
    """

    def __init__(self, policy: Policy, random_action: Callable[[], Tensor]) -> None:
        super().__init__(policy)
        self.random_action = random_action

    def random_actions(self, observation: Tensor) -> Tensor:
        if self.is_single(observation):
            return self.random_action()
        return torch.stack([self.random_action() for _ in observation])


class SACExplorer(_WithRandomActions):
    """Acts at random in the first steps, then draws from the policy."""

    at_random: Tensor

    def __init__(self, policy: Policy, random_action: Callable[[], Tensor]) -> None:
        super().__init__(policy, random_action)
        self.register_buffer("at_random", torch.tensor(True))

    def forward(self, observation: Tensor) -> Tensor:
        """Draws actions."""
        return self.random_actions(observation) if self.at_random else self.policy.sample(observation)


class RainbowExplorer(_WithRandomActions):
    """Takes the best action under the noise of the policy, or a random one with probability epsilon.

    Several environments that act at once share the noise. Each decides for itself whether it acts at random.
    """

    epsilon: Tensor

    def __init__(self, policy: Policy, random_action: Callable[[], Tensor], epsilon: float) -> None:
        super().__init__(policy, random_action)
        self.register_buffer("epsilon", torch.tensor(epsilon, dtype=torch.float64))

    def forward(self, observation: Tensor) -> Tensor:
        """Chooses actions; in a worker, under new noise."""
        epsilon = self.epsilon.item()
        if self.acts_alone:
            self.policy.reset_noise()
        if self.is_single(observation):
            acts_at_random = epsilon > 0 and bool(torch.rand(()) < epsilon)
            return self.random_action() if acts_at_random else self.policy(observation)
        actions: Tensor = self.policy(observation)
        if epsilon > 0:
            at_random = torch.rand(len(observation)) < epsilon
            actions = torch.where(at_random, self.random_actions(observation), actions.cpu())
        return actions
