"""RainbowAgent: data-efficient Rainbow with an auxiliary task."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.optim import Adam
from torch.optim.lr_scheduler import LRScheduler

from mcurl_torchrl.agents.agent import Agent, named_parts
from mcurl_torchrl.agents.diagnostics import effective_rank, gradient_norm, latent_spread
from mcurl_torchrl.agents.explorers import RainbowExplorer
from mcurl_torchrl.agents.optimizing import optimize
from mcurl_torchrl.agents.resets import Resets, forget, part_to_keep, restart
from mcurl_torchrl.checks import check_count, check_number
from mcurl_torchrl.modules import RainbowPolicy
from mcurl_torchrl.modules.resetting import shrink_and_perturb
from mcurl_torchrl.objectives import AuxiliaryTask, CategoricalDQNLoss, ExpectedDQNLoss, NoTask, linear_schedule
from mcurl_torchrl.ranks import ALONE, Ranks
from mcurl_torchrl.replay import PrioritizedTransitionSampler

__all__ = ["RainbowAgent"]


class RainbowAgent(Agent):
    """Rainbow (https://arxiv.org/abs/1710.02298) with an auxiliary task: the sum of both losses, one Adam.

    The noise of the online network is drawn once per agent step, for acting and for the first update; each further
    update of the step draws its own. The noise of the target network is drawn at each update. The online network is
    copied to the target network at multiples of the interval.

    Args:
        policy (RainbowPolicy): the network.
        value (CategoricalDQNLoss or ExpectedDQNLoss): the loss of ``policy.network``.
        task (AuxiliaryTask, optional): the auxiliary task on ``policy.network.encoder``. Defaults to None: no task.

    Keyword Args:
        sampler (PrioritizedTransitionSampler): the replay buffer's; its ``beta`` follows the schedule.
        random_action (callable): returns an action at random, such as ``env.action_spec.rand``.
        total_agent_steps (int): the length of training: the end of the schedule of ``beta``.
        first_update_agent_steps (int): the step of the first update. Defaults to 1600.
        updates_per_agent_step (int): Defaults to 1.
        target_interval_agent_steps (int): steps between copies to the target network. Defaults to 2000.
        priority_correction_begin, priority_correction_end (float): ``beta``, the exponent of the importance weights, at
            the first update and at the end. Default to 0.4 and 1.
        epsilon_begin, epsilon_end (float): the probability of a random action before the first update, and after the
            decay. Default to 0.
        epsilon_decay_agent_steps (int): how long the decay takes, from the first update on. Defaults to 1.
        lr, adam_eps (float): of Adam. Default to 1e-4 and 1.5e-4.
        max_gradient_norm (float, optional): larger gradients are scaled down to it. Defaults to 10; None: no clipping.
        target_tau (float): below 1, the target network follows at each update, ``target <- tau * network + (1 - tau) *
            target``, and is never copied. Defaults to 1: it is copied at intervals.
        act_with_target (bool): whether the target network acts, in training and in evaluations, as in SR-SPR. Its noise
            to act with is drawn once per agent step, too. Defaults to False: the online network acts.
        ranks (Ranks): the ranks that learn together, each from its share of every batch. Noise is the same on all.
            Defaults to one process.

    Attributes:
        policy (RainbowPolicy): the network that acts, and is needed after training: the given policy or, with
            ``act_with_target``, another one with the parameters of the target network.
        network (RainbowNetwork): the network that learns.

    Raises:
        ValueError: on numbers out of range, and if the agent would never explore.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl import CategoricalDQNLoss, PrioritizedTransitionSampler
        >>> from mcurl_torchrl.agents import RainbowAgent
        >>> from mcurl_torchrl.modules import RainbowPolicy
        >>> policy = RainbowPolicy([4, 84, 84], 6)
        >>> agent = RainbowAgent(
        ...     policy,
        ...     CategoricalDQNLoss(policy.network),
        ...     sampler=PrioritizedTransitionSampler(),
        ...     random_action=lambda: torch.randint(6, ()),
        ...     total_agent_steps=100_000,
        ... )
        >>> agent.begin_step(1)
        >>> agent.explore(torch.zeros(4, 84, 84, dtype=torch.uint8)).shape
        torch.Size([])
    """

    policy: RainbowPolicy
    explorer: RainbowExplorer

    def __init__(
        self,
        policy: RainbowPolicy,
        value: CategoricalDQNLoss | ExpectedDQNLoss,
        task: AuxiliaryTask | None = None,
        *,
        sampler: PrioritizedTransitionSampler,
        random_action: Callable[[], Tensor],
        total_agent_steps: int,
        first_update_agent_steps: int = 1600,
        updates_per_agent_step: int = 1,
        target_interval_agent_steps: int = 2000,
        priority_correction_begin: float = 0.4,
        priority_correction_end: float = 1.0,
        epsilon_begin: float = 0.0,
        epsilon_end: float = 0.0,
        epsilon_decay_agent_steps: int = 1,
        lr: float = 1e-4,
        adam_eps: float = 1.5e-4,
        max_gradient_norm: float | None = 10.0,
        target_tau: float = 1.0,
        act_with_target: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        for name, rate in (("lr", lr), ("adam_eps", adam_eps)):
            check_number(name, rate, above=0)
        if max_gradient_norm is not None:
            check_number("max_gradient_norm", max_gradient_norm, above=0)
        for name, share in (
            ("priority_correction_begin", priority_correction_begin),
            ("priority_correction_end", priority_correction_end),
            ("epsilon_begin", epsilon_begin),
            ("epsilon_end", epsilon_end),
        ):
            check_number(name, share, least=0, most=1)
        if not policy.settings["noisy"] and epsilon_begin == epsilon_end == 0:
            raise ValueError(
                "epsilon_end=0 with epsilon_begin=0 and noisy=false would never explore; set it to 0.01, say"
            )
        self.network = policy.network
        self.act_with_target = act_with_target
        self.policy = _with_target_of(value, policy) if act_with_target else policy
        self.value = value
        self.ranks = value.ranks = ranks
        self.task = NoTask(policy.network.encoder) if task is None else task
        self.sampler = sampler
        self.explorer = RainbowExplorer(self.policy, random_action, epsilon_begin)
        self.first_update_step = first = check_count("first_update_agent_steps", first_update_agent_steps)
        self.updates_per_agent_step = check_count("updates_per_agent_step", updates_per_agent_step)
        self.target_interval = check_count("target_interval_agent_steps", target_interval_agent_steps)
        self.max_gradient_norm = max_gradient_norm
        self.target_tau = check_number("target_tau", target_tau, above=0, most=1)
        self.resets: Resets | None = None
        self._update = 0  # the number of updates so far
        self.epsilon = epsilon_begin
        self._beta_of = linear_schedule(
            (first, priority_correction_begin), (max(first, total_agent_steps), priority_correction_end)
        )
        self._epsilon_of = linear_schedule(
            (first, epsilon_begin),
            (first + check_count("epsilon_decay_agent_steps", epsilon_decay_agent_steps), epsilon_end),
        )
        groups: list[dict[str, Any]] = [{"params": list(policy.parameters())}, *self.task.param_groups(lr)]
        self.optimizer = Adam(groups, lr=lr, eps=adam_eps, fused=True)
        self.schedule: LRScheduler | None = self.task.make_schedule(self.optimizer)

    # -- acting --------------------------------------------------------------------------------------------------------

    def begin_step(self, step: int) -> None:
        """Draws the online noise of the step, and sets epsilon and beta."""
        with self.ranks.same_draws():
            self.network.reset_noise()  # to act with, and for the first update
            if self.act_with_target:
                self.policy.reset_noise()
        self._update = max(0, step - self.first_update_step) * self.updates_per_agent_step
        self.epsilon = self._epsilon_of(step)
        self.explorer.epsilon.fill_(self.epsilon)
        self.sampler.beta = self._beta_of(step)

    # -- learning ------------------------------------------------------------------------------------------------------

    def updates_due(self, step: int) -> int:
        """Returns 0 before the first update, then ``updates_per_agent_step``."""
        return 0 if step < self.first_update_step else self.updates_per_agent_step

    def update(self, batch: TensorDictBase, views: TensorDictBase, *, measure: bool = False) -> dict[str, Tensor]:
        """Takes one update: one loss for Rainbow and the auxiliary task, one step of one Adam."""
        with self.ranks.same_draws():
            if self._update % self.updates_per_agent_step:  # not the first update of the step
                self.network.reset_noise()
            self.value.reset_target_noise()
        keys = self.value.tensor_keys
        metrics = dict(self.compute(self.value, batch).items()) | {"td_error": batch[keys.priority].mean()}
        metrics |= dict(self.compute(self.task, views).items())
        loss = metrics["loss_value"] + metrics["loss_auxiliary"]
        norm = optimize(loss, self.optimizer, max_norm=self.max_gradient_norm or math.inf, ranks=self.ranks)
        if self.schedule is not None:
            self.schedule.step()
        self.task.update_targets()
        if self.target_tau < 1:
            self.value.update_target(self.target_tau)
        if measure:
            assert norm is not None
            metrics["gradient_norm"] = norm  # of all parameters, before clipping
            metrics["gradient_norm_encoder_clipped"] = gradient_norm(self.network.encoder.parameters())
            with torch.no_grad():
                latents = self.ranks.gather(self.network.encoder.features(batch[keys.pixels]))
            metrics |= {"latent_spread": latent_spread(latents), "latent_rank": effective_rank(latents)}
        self._update += 1
        if self.resets is not None and self.resets.due(self._update):
            with self.ranks.same_draws():
                self.reset(self.resets.keep)
        return self.ranks.average({name: number.detach() for name, number in metrics.items()})

    def use_resets(self, resets: Resets) -> None:
        """Resets the networks from now on, after the updates at which ``resets.due`` is True.

        Raises:
            ValueError: if the interval of the resets is shorter than 10 agent steps, or than twice the time in which
                the target network follows: that of two copies, or 2 / ``target_tau`` updates.
        """
        if self.target_tau == 1:
            updates = self.target_interval * self.updates_per_agent_step
            why = f"two copies to the target network (target_interval_agent_steps={self.target_interval})"
        else:
            updates = math.ceil(1 / self.target_tau)
            why = f"twice the {updates} updates in which the target network follows (target_tau={self.target_tau})"
        resets.check_interval(updates_per_agent_step=self.updates_per_agent_step, updates_to_follow=updates, why=why)
        self.resets = resets

    def reset(self, keep: float) -> None:
        """Draws new weights of head and task; the encoder keeps a part of its own, and Adam's moments.

        The schedule of the task's learning rate starts again.
        """
        network = self.network
        keep = part_to_keep(network.encoder, keep)
        shrink_and_perturb(network.encoder, keep)
        shrink_and_perturb(network.head, 0.0)
        self.value.reset_targets({"value_network.encoder": keep, "value_network.head": 0.0})
        forget(self.optimizer, [*self.task.reset_networks(keep), *network.head.parameters()])
        restart([] if self.schedule is None else [self.schedule])

    def end_step(self, step: int) -> dict[str, float]:
        """Copies the online network to the target network if the step is a multiple of the interval."""
        if self.target_tau == 1 and step % self.target_interval == 0:
            self.value.copy_to_target()
        return {"priority_correction": self.sampler.beta, "epsilon": self.epsilon}

    def components(self) -> dict[str, Any]:
        """Returns the loss with its target network, the task, the optimizer and the schedule."""
        schedules = {} if self.schedule is None else {"adam": self.schedule}
        return {"value": self.value, "task": self.task, **named_parts({"adam": self.optimizer}, schedules)}


def _with_target_of(value: CategoricalDQNLoss | ExpectedDQNLoss, policy: RainbowPolicy) -> RainbowPolicy:
    """Returns a policy that shares the parameters of the loss's target network, and has noise of its own."""
    acting = copy.deepcopy(policy).requires_grad_(False)
    for name, parameter in acting.network.named_parameters():
        parameter.data = value.target_value_network_params.get(tuple(name.split("."))).data
    return acting
