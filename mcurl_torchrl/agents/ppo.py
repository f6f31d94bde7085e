"""PPOAgent: PPO from pixels with an auxiliary task."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mcurl_torchrl.agents.agent import Agent, named_parts
from mcurl_torchrl.agents.diagnostics import effective_rank, gradient_norm, latent_spread
from mcurl_torchrl.agents.explorers import Explorer
from mcurl_torchrl.agents.optimizing import optimize
from mcurl_torchrl.checks import check_count, check_number
from mcurl_torchrl.modules import PPOPolicy
from mcurl_torchrl.objectives import AuxiliaryTask, LatentPPO, NoTask, linear_schedule

__all__ = ["PPOAgent"]


class PPOAgent(Agent):
    """PPO (https://arxiv.org/abs/1707.06347) with an auxiliary task, which learns from a replay of all rollouts.

    After each rollout a loop calls :meth:`update` with each of its :meth:`minibatches`: one step on PPO's loss, and one
    on the loss of the auxiliary task. Then it may call :meth:`update_auxiliary`, for more steps of the task. Each loss
    has its own Adam: PPO clips gradients to a small norm, and with one Adam for the sum of the losses the task's
    gradients would make up most of that norm.

    Args:
        losses (LatentPPO): the policy, the critic and their losses.
        task (AuxiliaryTask, optional): the auxiliary task on ``losses.encoder``. Defaults to None: no task.

    Keyword Args:
        total_agent_steps (int): the length of training, in all environments together: the end of the schedules.
        rollout_agent_steps (int): the agent steps of a rollout, in all environments together. Defaults to 1024.
        epochs (int): the number of passes over a rollout. Defaults to 3.
        minibatch_size (int): the number of steps in a minibatch. Defaults to 256.
        lr, adam_eps (float): of PPO's Adam. Default to 2.5e-4 and 1e-5.
        anneal (bool): whether ``lr`` and the clipping of the ratio fall linearly to 0 at the end. Defaults to True.
        max_gradient_norm (float, optional): larger gradients of PPO are scaled down to it. Defaults to 0.5; None: no
            clipping.
        auxiliary_lr (float): of the auxiliary task's Adam, for its networks and the encoder. Defaults to 1e-4.
        augmentation (callable, optional): images to images, called for each minibatch, as in RAD
            (https://arxiv.org/abs/2004.14990). Actions, advantages and the old probabilities in the ratio are computed
            from the images without augmentation. Defaults to None.

    Raises:
        ValueError: on numbers out of range.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.agents import PPOAgent
        >>> from mcurl_torchrl.modules import PPOPolicy
        >>> from mcurl_torchrl.objectives import LatentPPO
        >>> agent = PPOAgent(LatentPPO(PPOPolicy([4, 84, 84], num_actions=6)), total_agent_steps=100_000)
        >>> agent.begin_step(1024)
        >>> agent.explore(torch.zeros(8, 4, 84, 84, dtype=torch.uint8)).shape
        torch.Size([8])
        >>> agent.updates_due(1024)
        12
    """

    policy: PPOPolicy

    def __init__(
        self,
        losses: LatentPPO,
        task: AuxiliaryTask | None = None,
        *,
        total_agent_steps: int,
        rollout_agent_steps: int = 1024,
        epochs: int = 3,
        minibatch_size: int = 256,
        lr: float = 2.5e-4,
        adam_eps: float = 1e-5,
        anneal: bool = True,
        max_gradient_norm: float | None = 0.5,
        auxiliary_lr: float = 1e-4,
        augmentation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        for name, rate in (("lr", lr), ("adam_eps", adam_eps), ("auxiliary_lr", auxiliary_lr)):
            check_number(name, rate, above=0)
        if max_gradient_norm is not None:
            check_number("max_gradient_norm", max_gradient_norm, above=0)
        self.policy = losses.policy
        self.explorer = Explorer(losses.policy)
        self.losses = losses
        self.task = NoTask(losses.encoder) if task is None else task
        self.epochs = check_count("epochs", epochs)
        self.minibatch_size = check_count("minibatch_size", minibatch_size)
        self.first_update_step = first = check_count("rollout_agent_steps", rollout_agent_steps)
        self.max_gradient_norm = max_gradient_norm
        self.augmentation = augmentation
        # A rollout has the number of its last step: the first rollout has the full learning rate, none has rate 0.
        last = first + check_count("total_agent_steps", total_agent_steps)
        self._scale_of = linear_schedule((first, 1.0), (last, 0.0 if anneal else 1.0))
        self.lr = lr
        self.optimizers: dict[str, Optimizer] = {"ppo": Adam(losses.parameters(), lr=lr, eps=adam_eps, fused=True)}
        self.schedules: dict[str, LRScheduler] = {}
        encoder = {"params": list(losses.encoder.parameters())}
        groups = [encoder, *self.task.param_groups(auxiliary_lr)]
        self.optimizers["auxiliary"] = Adam(groups, lr=auxiliary_lr, fused=True)
        if (schedule := self.task.make_schedule(self.optimizers["auxiliary"])) is not None:
            self.schedules["auxiliary"] = schedule

    # -- acting --------------------------------------------------------------------------------------------------------

    def begin_step(self, step: int) -> None:
        """Sets the learning rate and the clipping for the rollout that ends at this step."""
        scale = self._scale_of(step)
        for group in self.optimizers["ppo"].param_groups:
            group["lr"] = scale * self.lr
        self.losses.scale_clipping(scale)

    # -- learning ------------------------------------------------------------------------------------------------------

    def updates_due(self, step: int) -> int:
        """Returns the number of updates with a whole rollout."""
        return self.epochs * math.ceil(self.first_update_step / self.minibatch_size)

    def minibatches(self, rollout: TensorDictBase) -> Iterator[TensorDictBase]:
        """Yields the minibatches of a rollout ``[environments, time]``: in each epoch all steps, in another order.

        Advantages and the old probabilities in the ratio are computed before the first update.
        """
        steps = self.compute(self.losses.estimate, rollout.to(self.device)).flatten()
        for _ in range(self.epochs):
            for chosen in torch.randperm(len(steps)).split(self.minibatch_size):
                batch = steps[chosen.to(self.device)]
                yield batch if self.augmentation is None else batch.set("pixels", self.augmentation(batch["pixels"]))

    def update(self, batch: TensorDictBase, views: TensorDictBase, *, measure: bool = False) -> dict[str, Tensor]:
        """Takes one step on PPO's loss of a minibatch, and one on the loss of the auxiliary task."""
        metrics = dict(self.compute(self.losses.loss, batch).items())
        latents = metrics.pop("latent")
        loss = metrics["loss_objective"] + metrics["loss_critic"] + metrics["loss_entropy"]
        norm = optimize(loss, self.optimizers["ppo"], max_norm=self.max_gradient_norm or math.inf)
        if measure:
            assert norm is not None
            metrics["gradient_norm"] = norm  # before clipping
            metrics["gradient_norm_encoder_clipped"] = gradient_norm(self.losses.encoder.parameters())
            metrics |= {"latent_spread": latent_spread(latents), "latent_rank": effective_rank(latents)}
        metrics |= self.update_auxiliary(views, measure=measure)
        return {name: number.detach() for name, number in metrics.items()}

    def update_auxiliary(self, views: TensorDictBase, *, measure: bool = False) -> dict[str, Tensor]:
        """Takes one step on the loss of the auxiliary task, if there is one, and updates its slow copies."""
        metrics = dict(self.compute(self.task, views).items())
        if metrics["loss_auxiliary"].requires_grad:  # else there is no task
            optimize(metrics["loss_auxiliary"], self.optimizers["auxiliary"])
            for schedule in self.schedules.values():
                schedule.step()
            self.task.update_targets()
            if measure:
                metrics["gradient_norm_encoder_auxiliary"] = gradient_norm(self.losses.encoder.parameters())
        return {name: number.detach() for name, number in metrics.items()}

    def end_step(self, step: int) -> dict[str, float]:
        """Returns the learning rate and the clipping of the rollout."""
        scale = self._scale_of(step)
        return {"lr": scale * self.lr, "clip_epsilon": scale * self.losses.clip_epsilon}

    def components(self) -> dict[str, Any]:
        """Returns the losses, the task, the optimizers and the schedules."""
        return {"losses": self.losses, "task": self.task, **named_parts(self.optimizers, self.schedules)}
