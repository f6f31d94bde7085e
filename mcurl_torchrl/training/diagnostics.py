"""The check that stops a run with a loss that is not finite."""

from __future__ import annotations

import math
from os import PathLike

import torch
from torch import Tensor

__all__ = ["NonFiniteLoss", "check_finite"]


class NonFiniteLoss(FloatingPointError):
    """A loss became NaN or infinite: see :func:`check_finite`."""


def check_finite(step: int, *, last_good: str | PathLike[str] | None = None, **losses: Tensor | float) -> None:
    """Raises :class:`NonFiniteLoss` if any of the losses is NaN or infinite.

    All losses go to the host in one transfer: on a GPU, call this once a step with all of them.

    Args:
        step (int): the current step, for the message.

    Keyword Args:
        last_good (path, optional): the last checkpoint with finite losses, for the message.
        **losses (scalar Tensor or float): the losses; their names appear in the message.

    Raises:
        NonFiniteLoss: names the step, each non-finite loss with its value, and ``last_good``.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.training.diagnostics import NonFiniteLoss, check_finite
        >>> check_finite(7, loss_actor=torch.tensor(0.5), loss_critic=torch.tensor(2.0))
        >>> try:
        ...     check_finite(8, loss_actor=torch.tensor(0.5), loss_critic=torch.tensor(torch.inf))
        ... except NonFiniteLoss as error:
        ...     print(error)
        non-finite loss at step 8: loss_critic=inf
    """
    for name, loss in losses.items():
        if isinstance(loss, Tensor) and loss.numel() != 1:
            raise ValueError(f"{name} has the shape {list(loss.shape)}; check_finite takes one number for each loss")
    tensors = [loss.detach().reshape(()) for loss in losses.values() if isinstance(loss, Tensor)]
    moved = iter(torch.stack(tensors).tolist() if tensors else [])
    values = {name: next(moved) if isinstance(loss, Tensor) else float(loss) for name, loss in losses.items()}
    if bad := [f"{name}={value}" for name, value in values.items() if not math.isfinite(value)]:
        where = "" if last_good is None else f"; the last good checkpoint is {last_good}"
        raise NonFiniteLoss(f"non-finite loss at step {step}: {', '.join(bad)}{where}")
