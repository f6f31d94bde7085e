"""Optimizers that keep their options when their state is restored."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

__all__ = ["keep_optimizer_options"]


@contextlib.contextmanager
def keep_optimizer_options(parts: Iterable[Any]) -> Iterator[None]:
    """Lets optimizers and schedules keep their options, learning rates among them, while their states are restored.

    A saved state has the options of its time; a run may be resumed with other ones. A schedule goes on from its place.

    Args:
        parts (iterable): the objects that are restored inside; it may hold other objects than optimizers and schedules.
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
        # With a schedule, "lr" is the learning rate of the moment, and "initial_lr" the option.
        before, after = (options.get("initial_lr", options["lr"]) for options in (group, given))
        lr = group["lr"] if before == after else group["lr"] * after / before if before else after
        group.update({**given, "lr": lr})
    for schedule, base_lrs in schedules:
        schedule.base_lrs = base_lrs
