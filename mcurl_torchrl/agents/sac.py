"""SACAgent: SAC from pixels with an auxiliary task."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from mcurl_torchrl.agents.agent import Agent, named_parts
from mcurl_torchrl.agents.diagnostics import effective_rank, gradient_norm, latent_spread
from mcurl_torchrl.agents.explorers import SACExplorer
from mcurl_torchrl.agents.optimizing import optimize
from mcurl_torchrl.agents.resets import Resets, forget, part_to_keep, restart
from mcurl_torchrl.checks import check_choice, check_count, check_number
from mcurl_torchrl.objectives import AuxiliaryTask, LatentSAC, NoTask, inverse_sqrt_warmup
from mcurl_torchrl.ranks import ALONE, Ranks

__all__ = ["SACAgent"]

UPDATES = ("critic", "actor", "targets", "auxiliary")


class SACAgent(Agent):
    """SAC from pixels with an auxiliary task on the shared encoder, as CURL and M-CURL train it.

    Each part has its own Adam. Adam removes the scale of a loss, so that ``task.coeff`` in effect only switches the
    task on or off.

    Args:
        losses (LatentSAC): the networks and the losses.
        task (AuxiliaryTask, optional): the auxiliary task on ``losses.encoder``. Defaults to None: no task.

    Keyword Args:
        random_action (callable): returns an action at random, such as ``env.action_spec.rand``.
        random_agent_steps (int): how many steps act at random, before the first update. Defaults to 1000.
        updates_per_agent_step (int): Defaults to 1.
        actor_interval_updates, target_interval_updates (int): the number of updates from one step of the actor, or of
            the targets, to the next. Default to 2.
        update_order (sequence of str): the order of ``"critic"``, ``"actor"``, ``"targets"`` and ``"auxiliary"`` in an
            update. Defaults to this order, as in the released code.
        lr (float), betas (tuple of float): of critic, actor and auxiliary task. Default to 1e-3 and (0.9, 0.999).
        alpha_lr (float), alpha_betas (tuple of float): of the entropy coefficient. Default to 1e-4 and (0.5, 0.999).
        auxiliary_encoder_lr_scale (float): the learning rate of the auxiliary task's Adam on the encoder, in units of
            ``lr``. Defaults to 2.
        auxiliary_encoder_decays (bool): whether this rate falls after the warm-up of a task that has one. Defaults to
            True.
        auxiliary_encoder_warms_up (bool): whether this rate also grows during that warm-up, like the rate of the task's
            own networks, and as in MLR. Defaults to False.
        auxiliary_max_gradient_norm (float, optional): larger gradients of the auxiliary loss are scaled down to it.
            Defaults to None: no clipping.
        ranks (Ranks): the ranks that learn together, each from its share of every batch. Defaults to one process.

    Raises:
        ValueError: on numbers out of range, and if ``update_order`` does not have each of the four parts once.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl import LatentSAC
        >>> from mcurl_torchrl.agents import SACAgent
        >>> from mcurl_torchrl.modules import GaussianPolicy
        >>> losses = LatentSAC(GaussianPolicy([9, 32, 32], 2, hidden_dim=64), hidden_dim=64)
        >>> agent = SACAgent(losses, random_action=lambda: torch.rand(2) * 2 - 1, random_agent_steps=100)
        >>> agent.begin_step(1)
        >>> agent.explore(torch.zeros(9, 32, 32, dtype=torch.uint8)).shape
        torch.Size([2])
        >>> agent.updates_due(100), agent.updates_due(101)
        (0, 1)
    """

    explorer: SACExplorer

    def __init__(
        self,
        losses: LatentSAC,
        task: AuxiliaryTask | None = None,
        *,
        random_action: Callable[[], Tensor],
        random_agent_steps: int = 1000,
        updates_per_agent_step: int = 1,
        actor_interval_updates: int = 2,
        target_interval_updates: int = 2,
        update_order: Sequence[str] = UPDATES,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        alpha_lr: float = 1e-4,
        alpha_betas: tuple[float, float] = (0.5, 0.999),
        auxiliary_encoder_lr_scale: float = 2.0,
        auxiliary_encoder_decays: bool = True,
        auxiliary_encoder_warms_up: bool = False,
        auxiliary_max_gradient_norm: float | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        for part in update_order:
            check_choice("update_order", part, UPDATES)
        if sorted(update_order) != sorted(UPDATES):
            raise ValueError(f"update_order={list(update_order)}; each of {list(UPDATES)} must be there once")
        self.policy = losses.policy
        self.losses = losses
        self.ranks = losses.ranks = ranks
        self.task = NoTask(losses.encoder) if task is None else task
        self.explorer = SACExplorer(losses.policy, random_action)
        self.random_agent_steps = check_count("random_agent_steps", random_agent_steps)
        self.updates_per_agent_step = check_count("updates_per_agent_step", updates_per_agent_step)
        self.actor_interval = check_count("actor_interval_updates", actor_interval_updates)
        self.target_interval = check_count("target_interval_updates", target_interval_updates)
        self.update_order = tuple(update_order)
        self.resets: Resets | None = None
        self.auxiliary_max_gradient_norm = auxiliary_max_gradient_norm
        if auxiliary_max_gradient_norm is not None:
            check_number("auxiliary_max_gradient_norm", auxiliary_max_gradient_norm, above=0)
        self.first_update_step = random_agent_steps + 1
        self._update = 0  # the number of the next update
        for name, rate in (("lr", lr), ("alpha_lr", alpha_lr)):
            check_number(name, rate, above=0)
        if auxiliary_encoder_warms_up and not auxiliary_encoder_decays:
            raise ValueError(
                "auxiliary_encoder_warms_up=true needs auxiliary_encoder_decays=true: one schedule has the warm-up and "
                "the decay"
            )

        def adam(parameters: Any, rate: float, betas: tuple[float, float] = betas) -> Adam:
            return Adam(parameters, lr=rate, betas=(betas[0], betas[1]), fused=True)

        self.optimizers: dict[str, Optimizer] = {
            "critic": adam(losses.critic_parameters(), lr),
            "actor": adam(losses.actor_parameters(), lr),
            "alpha": adam([losses.sac.log_alpha], alpha_lr, alpha_betas),
        }
        self.schedules: dict[str, LRScheduler] = {}
        if encoder := list(losses.encoder.parameters()):  # the encoder of low-level states has none
            self.optimizers["auxiliary_encoder"] = adam(encoder, auxiliary_encoder_lr_scale * lr)
        if groups := self.task.param_groups(lr):
            self.optimizers["auxiliary"] = adam(groups, lr)
            if (schedule := self.task.make_schedule(self.optimizers["auxiliary"])) is not None:
                self.schedules["auxiliary"] = schedule
        if self.task.warmup_updates is not None and auxiliary_encoder_decays:
            falling = inverse_sqrt_warmup(
                self.task.warmup_updates,
                initial_scale=self.task.warmup_initial_scale,
                constant_warmup=not auxiliary_encoder_warms_up,
            )
            self.schedules["auxiliary_encoder"] = LambdaLR(self.optimizers["auxiliary_encoder"], falling)

    # -- acting --------------------------------------------------------------------------------------------------------

    def begin_step(self, step: int) -> None:
        """Sets whether the step acts at random, and the number of the next update."""
        self.explorer.at_random.fill_(step <= self.random_agent_steps)
        self._update = max(0, step - self.first_update_step) * self.updates_per_agent_step

    # -- learning ------------------------------------------------------------------------------------------------------

    def updates_due(self, step: int) -> int:
        """Returns 0 in the random steps, then ``updates_per_agent_step``."""
        return 0 if step < self.first_update_step else self.updates_per_agent_step

    def update(self, batch: TensorDictBase, views: TensorDictBase, *, measure: bool = False) -> dict[str, Tensor]:
        """Takes one update, part by part, in the order of ``update_order``."""
        metrics: dict[str, Tensor] = {}
        for part in self.update_order:
            if part == "critic":
                metrics |= self._update_critic(batch, measure)
            elif part == "actor" and self._update % self.actor_interval == 0:
                metrics |= self._update_actor(batch)
            elif part == "targets" and self._update % self.target_interval == 0:
                self.losses.target_critic.step()
                self.losses.target_encoder.step()
                self.task.update_targets()
            elif part == "auxiliary":
                metrics |= self._update_auxiliary(views, measure)
        self._update += 1
        if self.resets is not None and self.resets.due(self._update):
            with self.ranks.same_draws():
                self.reset(self.resets.keep)
        return self.ranks.average({name: value.detach() for name, value in metrics.items()})

    def _update_critic(self, batch: TensorDictBase, measure: bool) -> dict[str, Tensor]:
        out = self.compute(self.losses.critic_loss, batch)
        optimize(out["loss_qvalue"], self.optimizers["critic"], ranks=self.ranks)
        metrics = {"loss_qvalue": out["loss_qvalue"], "td_error": out["td_error"].mean()}
        if measure:
            metrics["gradient_norm_critic"] = gradient_norm(self.losses.critic_parameters())
            metrics["gradient_norm_encoder"] = gradient_norm(self.losses.encoder.parameters())
            latents = self.ranks.gather(out["critic_latent"])
            metrics["latent_spread"] = latent_spread(latents)
            metrics["latent_rank"] = effective_rank(latents)
        return metrics

    def _update_actor(self, batch: TensorDictBase) -> dict[str, Tensor]:
        out = self.compute(self.losses.actor_loss, batch)
        # One backward pass for both: the losses share no parameters, and a compiled graph allows one backward pass.
        both = self.optimizers["actor"], self.optimizers["alpha"]
        optimize(out["loss_actor"] + out["loss_alpha"], *both, ranks=self.ranks)
        # In each update of the actor, not only if measure is True: the actor may never step in a logged update.
        return dict(out.items()) | {"gradient_norm_actor": gradient_norm(self.losses.actor_parameters())}

    def _update_auxiliary(self, views: TensorDictBase, measure: bool) -> dict[str, Tensor]:
        metrics = dict(self.compute(self.task, views).items())
        if not metrics["loss_auxiliary"].requires_grad:  # no task, nothing to train
            return metrics
        own = [self.optimizers[name] for name in ("auxiliary_encoder", "auxiliary") if name in self.optimizers]
        optimize(metrics["loss_auxiliary"], *own, max_norm=self.auxiliary_max_gradient_norm, ranks=self.ranks)
        for schedule in self.schedules.values():
            schedule.step()
        if measure:
            metrics["gradient_norm_encoder_auxiliary"] = gradient_norm(self.losses.encoder.parameters())
        return metrics

    def use_resets(self, resets: Resets) -> None:
        """Resets the networks from now on, after the updates at which ``resets.due`` is True.

        Raises:
            ValueError: if the interval of the resets is shorter than 10 agent steps, or than twice the time in which
                actor and target critic follow: twice the actor's interval, or twice that of the targets over
                ``critic_tau``.
        """
        tau = self.losses.critic_tau
        updates = max(self.actor_interval, math.ceil(self.target_interval / tau))
        settings = f"actor_interval_updates={self.actor_interval}, target_interval_updates={self.target_interval}"
        why = f"twice the {updates} updates in which actor and target critic follow ({settings}, critic_tau={tau})"
        resets.check_interval(updates_per_agent_step=self.updates_per_agent_step, updates_to_follow=updates, why=why)
        self.resets = resets

    def reset(self, keep: float) -> None:
        """Draws new weights of actor, critics and task; the encoder keeps a part of its own, and Adam's moments.

        The schedules of the task's learning rates start again.
        """
        keep = part_to_keep(self.losses.encoder, keep)
        self.losses.reset_networks(keep)
        new = self.task.reset_networks(keep)
        encoder = set(self.losses.encoder.parameters())
        new += [value for value in self.losses.critic_parameters() if value not in encoder]
        new += self.losses.actor_parameters()
        for optimizer in self.optimizers.values():
            forget(optimizer, new)
        restart(self.schedules.values())

    def components(self) -> dict[str, Any]:
        """Returns the losses, the task, the optimizers and the schedules."""
        return {"losses": self.losses, "task": self.task, **named_parts(self.optimizers, self.schedules)}
