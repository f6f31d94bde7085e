"""Resets: the updates after which the networks of an agent get new weights."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mcurl_torchrl.checks import check_count, check_number

__all__ = ["Resets", "forget", "part_to_keep", "restart"]

_LEAST_AGENT_STEPS = 10  # with fewer between two resets, the new networks would learn from hardly any new data


class Resets:
    """Resets networks at intervals, so that many updates per step do no harm (https://arxiv.org/abs/2205.07802).

    As in SR-SPR (https://openreview.net/forum?id=OpC-9aBBVJe), heads get new weights; the encoder keeps a part of its
    weights, and Adam's moments of all of them. The warm-up of an auxiliary task starts again: the released code of BBF
    (https://arxiv.org/abs/2305.19452), the successor of SR-SPR, restarts all of its schedules. The last reset is at
    least one interval before the end of training.

    Args:
        interval_updates (int): the number of updates from one reset to the next.

    Keyword Args:
        keep (float): the part of the encoder's weights that stays. Defaults to 0.8.
        total_updates (int, optional): the number of updates in training. Defaults to None: no end.

    Raises:
        ValueError: on numbers out of range, and if there would be no reset at all.

    Examples:
        >>> from mcurl_torchrl.agents import Resets
        >>> resets = Resets(100, total_updates=350)
        >>> [update for update in range(1, 351) if resets.due(update)]
        [100, 200]
    """

    def __init__(self, interval_updates: int, *, keep: float = 0.8, total_updates: int | None = None) -> None:
        self.interval = check_count("interval_updates", interval_updates)
        self.keep = check_number("keep", keep, least=0, most=1)
        self.total_updates = total_updates
        if total_updates is not None and 2 * interval_updates > total_updates:
            raise ValueError(
                f"interval_updates={interval_updates}; the last {interval_updates} of {total_updates} updates have no "
                f"reset, so there would be no reset; it must be at most {total_updates // 2}, or null for no resets"
            )

    def due(self, updates: int) -> bool:
        """Returns whether there is a reset after this number of updates."""
        last = self.total_updates is None or updates + self.interval <= self.total_updates
        return updates > 0 and updates % self.interval == 0 and last

    def check_interval(self, *, updates_per_agent_step: int, updates_to_follow: int, why: str) -> None:
        """Refuses resets that are too close to each other: the new networks would learn nothing in between.

        The interval is at least 10 agent steps long, and twice the time in which targets follow the networks. In a run
        that is too short for this, it is at least half of the run: there is a valid interval for every run.

        Keyword Args:
            updates_per_agent_step (int): the agent's.
            updates_to_follow (int): in how many updates the targets follow.
            why (str): the words for twice this number of updates, with the settings that it comes from.

        Raises:
            ValueError: if the interval is too short.
        """
        least = 2 * updates_to_follow
        if least < (updates := _LEAST_AGENT_STEPS * updates_per_agent_step):
            least, why = updates, f"{_LEAST_AGENT_STEPS} agent steps"
        if self.total_updates is not None and least > (half := self.total_updates // 2):
            least, why = half, "half of the run"
        if self.interval < least:
            raise ValueError(
                f"interval_updates={self.interval} with updates_per_agent_step={updates_per_agent_step}; it must be at "
                f"least {least}, {why}: networks that are reset sooner learn nothing in between"
            )


def part_to_keep(encoder: nn.Module, keep: float) -> float:
    """Returns the part of an encoder's weights that stays: ``keep``, or 1 for a frozen encoder."""
    return keep if any(value.requires_grad for value in encoder.parameters()) else 1.0


def forget(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Deletes an optimizer's state for the given parameters: it treats them as new."""
    for parameter in parameters:
        optimizer.state.pop(parameter, None)


def restart(schedules: Iterable[LRScheduler]) -> None:
    """Sets schedules of learning rates back to their first step: new networks need the warm-up again."""
    for schedule in schedules:
        schedule.last_epoch = -1
        schedule.step()
