"""One step of optimizers on a loss, and optimizers that keep their options when a state is restored."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

__all__ = ["keeping_options", "optimize"]


def optimize(loss: Tensor, *optimizers: Optimizer, max_norm: float | None = None) -> Tensor | None:
    """Takes one step: clears the gradients, computes them for ``loss``, and lets each optimizer move what it owns.

    Gradients stay in place afterwards, clipped if they were, for whoever wants to look at their size.

    Args:
        loss (torch.Tensor): a number with a graph.
        *optimizers (Optimizer): who steps, in this order, on the same gradients.

    Keyword Args:
        max_norm (float, optional): the largest norm that the gradients of all optimizers' parameters together may
            have, each parameter counted once; larger ones are scaled down to it. Defaults to None, any.

    Returns:
        With ``max_norm``, the norm that the gradients had before, as a tensor, so that nobody waits for the device.

    Raises:
        ValueError: if ``max_norm`` is not above 0.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.training import optimize
        >>> weight = torch.nn.Parameter(torch.tensor(3.0))
        >>> optimize(2 * weight, torch.optim.SGD([weight], lr=1.0))
        >>> weight.item()
        1.0
        >>> optimize(2 * weight, torch.optim.SGD([weight], lr=1.0), max_norm=0.5)
        tensor(2.)
        >>> round(weight.item(), 3)
        0.5
    """
    if max_norm is not None and not max_norm > 0:
        raise ValueError(f"max_norm={max_norm}; it must be above 0")
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = None if max_norm is None else torch.nn.utils.clip_grad_norm_(_parameters(optimizers), max_norm)
    for optimizer in optimizers:
        optimizer.step()
    return norm


def _parameters(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """Returns what the optimizers own, once each: two of them may share some."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return list(dict.fromkeys(parameter for group in groups for parameter in group["params"]))


@contextlib.contextmanager
def keeping_options(parts: Iterable[Any]) -> Iterator[None]:
    """Lets optimizers and schedules keep the options they were built with, while their states are restored inside.

    A saved state has the options of old, learning rates among them; a run may be resumed with other ones.

    Args:
        parts (iterable): whatever is restored; optimizers and schedules are found in it.
    """
    parts = list(parts)
    optimizers = [part for part in parts if isinstance(part, Optimizer)]
    schedules = [part for part in parts if isinstance(part, LRScheduler)]
    options = [[_options(group) for group in optimizer.param_groups] for optimizer in optimizers]
    rates = [list(schedule.base_lrs) for schedule in schedules]
    yield
    for optimizer, wanted in zip(optimizers, options, strict=True):
        for group, given in zip(optimizer.param_groups, wanted, strict=True):
            _change_options(group, given)
    for schedule, base_lrs in zip(schedules, rates, strict=True):
        schedule.base_lrs = base_lrs


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """Returns what an optimizer's group was built with: with a schedule, not the learning rate of now."""
    given = {name: value for name, value in group.items() if name not in ("params", "lr", "initial_lr")}
    return {**given, "base_lr": group.get("initial_lr", group["lr"])}


def _change_options(group: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Gives a group other options; a schedule goes on from where it is."""
    before, after = _options(group)["base_lr"], wanted["base_lr"]
    group.update({name: value for name, value in wanted.items() if name != "base_lr"})
    if before != after:
        group["lr"] = group["lr"] * after / before if before else after
        if "initial_lr" in group:
            group["initial_lr"] = after
