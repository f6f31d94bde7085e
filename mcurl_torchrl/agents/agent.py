"""Agent: the interface between an RL algorithm and the training tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mcurl_torchrl.agents.computing import Computing, Loss
from mcurl_torchrl.agents.explorers import Explorer
from mcurl_torchrl.modules import Policy
from mcurl_torchrl.objectives import AuxiliaryTask
from mcurl_torchrl.ranks import ALONE, Ranks

__all__ = ["Agent"]


class Agent(ABC):
    """An RL algorithm with an auxiliary task: it acts, and it learns from batches.

    A training loop calls, for each agent step, :meth:`begin_step`, :meth:`explore`, :meth:`update` as often as
    :meth:`updates_due` says, and :meth:`end_step`. A new agent subclasses this class; no other code has to change.

    Attributes:
        policy (Policy): the part that is needed after training.
        explorer (Explorer): the policy with exploration that acts in training; worker processes act with copies of it.
        task (AuxiliaryTask): the auxiliary task.
        first_update_step (int): the agent step of the first update.
        ranks (Ranks): the ranks that learn together; one process by default.
        computing (Computing, optional): how losses are computed. Defaults to None: not compiled, in float32.
    """

    policy: Policy
    explorer: Explorer
    task: AuxiliaryTask
    first_update_step: int
    ranks: Ranks = ALONE
    computing: Computing | None = None

    @property
    def device(self) -> torch.device:
        """The device of the networks."""
        return next(self.policy.parameters()).device

    def begin_step(self, step: int) -> None:  # noqa: B027 - an agent may have nothing to prepare
        """Prepares acting and learning in an agent step: exploration, noise, schedules by the step."""

    @torch.inference_mode()
    def explore(self, observation: Tensor) -> Tensor:
        """Returns the explorer's action for one observation, or ``[n, ...]`` for several ``[n, ...]``, on the CPU."""
        return self.explorer(observation.to(self.device)).cpu()

    @torch.inference_mode()
    def exploit(self, observations: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Returns the policy's actions ``[n, ...]`` for observations ``[n, ...]`` in evaluation, on the CPU.

        With a generator they are drawn from the policy, otherwise they are its best or most likely ones.
        """
        return self.policy.act(observations.to(self.device), generator=generator).cpu()

    @abstractmethod
    def updates_due(self, step: int) -> int:
        """Returns the number of updates that follow an agent step."""

    @abstractmethod
    def update(self, batch: TensorDictBase, views: TensorDictBase, *, measure: bool = False) -> dict[str, Tensor]:
        """Takes one update of the RL algorithm and of the auxiliary task.

        Args:
            batch (TensorDictBase): the batch for RL.
            views (TensorDictBase): the data of the auxiliary task, from ``task.sample(batch)``.

        Keyword Args:
            measure (bool): whether to return gradient norms and statistics of the latents, too. Defaults to False.

        Returns:
            Losses and metrics, without gradients. Only losses have names that start with ``loss_``.
        """

    def compute(self, loss: Loss, data: TensorDictBase) -> TensorDictBase:
        """Computes a loss of the agent or of the task, with ``computing`` if it is set."""
        return loss(data) if self.computing is None else self.computing(loss, data)

    def end_step(self, step: int) -> dict[str, float]:
        """Does the work that follows the updates of an agent step; returns numbers to log."""
        return {}

    @abstractmethod
    def components(self) -> dict[str, Any]:
        """Returns by name all objects whose state a resumed run needs, except the policy."""


def named_parts(optimizers: dict[str, Optimizer], schedules: dict[str, LRScheduler]) -> dict[str, Any]:
    """Returns optimizers as ``<name>_optimizer`` and schedules as ``<name>_schedule``, in one dict."""
    named: dict[str, Any] = {f"{name}_optimizer": part for name, part in optimizers.items()}
    return named | {f"{name}_schedule": part for name, part in schedules.items()}
