"""Optimizers: one step on a loss, and restoring their state without their old options."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mcurl_torchrl.objectives import joint_parameters
from mcurl_torchrl.ranks import ALONE, Ranks

__all__ = ["keep_optimizer_options", "optimize"]


def optimize(
    loss: Tensor, *optimizers: Optimizer, max_norm: float | None = None, ranks: Ranks = ALONE
) -> Tensor | None:
    """Takes one step: clears the gradients, computes them for ``loss``, and lets each optimizer move its parameters.

    The gradients (clipped ones, with ``max_norm``) stay in place afterwards, so that their size can be measured.

    Args:
        loss (torch.Tensor): a scalar with gradients.
        *optimizers (Optimizer): the optimizers that step, in this order, on the same gradients.

    Keyword Args:
        max_norm (float, optional): the largest norm of the gradients of all optimizers' parameters together, each
            parameter counted once; larger gradients are scaled down to it. Defaults to None, any norm.
        ranks (Ranks): the ranks that learn together: gradients are averaged over them, before they are scaled.
            Defaults to one process.

    Returns:
        With ``max_norm``, the norm before the scaling, as a tensor, so that no step waits for the device.

    Raises:
        ValueError: if ``max_norm`` is not above 0.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.agents import optimize
        >>> weight = torch.nn.Parameter(torch.tensor(3.0))
        >>> optimize(2 * weight, torch.optim.SGD([weight], lr=1.0), max_norm=0.5)
        tensor(2.)
        >>> round(weight.item(), 3)
        2.5
    """
    if max_norm is not None and not max_norm > 0:
        raise ValueError(f"max_norm={max_norm}; it must be above 0")
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss.backward()
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    parameters = joint_parameters(*(group["params"] for group in groups))
    ranks.average_gradients(parameters)
    norm = None if max_norm is None else torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    for optimizer in optimizers:
        optimizer.step()
    return norm


@contextlib.contextmanager
def keep_optimizer_options(parts: Iterable[Any]) -> Iterator[None]:
    """Lets optimizers and schedules keep their options, learning rates among them, while their states are restored.

    A saved state contains the options of the run that saved it; a run may be resumed with other options. A schedule
    continues from its saved step.

    Args:
        parts (iterable): the objects that are restored in the block; objects other than optimizers and schedules are
            ignored.
    """
    parts = list(parts)
    groups = [
        (part, number, {name: value for name, value in group.items() if name != "params"})
        for part in parts
        if isinstance(part, Optimizer)
        for number, group in enumerate(part.param_groups)
    ]
    schedules = [(part, list(part.base_lrs)) for part in parts if isinstance(part, LRScheduler)]
    yield
    for optimizer, number, given in groups:
        group = optimizer.param_groups[number]  # a new dict: load_state_dict replaces it
        # With a schedule, "lr" is the current learning rate, and "initial_lr" the option.
        before, after = (options.get("initial_lr", options["lr"]) for options in (group, given))
        lr = group["lr"] if before == after else group["lr"] * after / before if before else after
        group.update({**given, "lr": lr})
    for schedule, base_lrs in schedules:
        schedule.base_lrs = base_lrs
