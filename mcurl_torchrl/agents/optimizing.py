"""One step of optimizers on a loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from mcurl_torchrl.objectives import joint_parameters

__all__ = ["optimize"]


def optimize(loss: Tensor, *optimizers: Optimizer, max_norm: float | None = None) -> Tensor | None:
    """Takes one step: clears the gradients, computes them for ``loss``, and lets each optimizer move its parameters.

    The gradients (clipped ones, with ``max_norm``) stay in place afterwards, so that their size can be measured.

    Args:
        loss (torch.Tensor): a number with a graph.
        *optimizers (Optimizer): the optimizers that step, in this order, on the same gradients.

    Keyword Args:
        max_norm (float, optional): the largest norm of the gradients of all optimizers' parameters together, each
            parameter counted once; larger gradients are scaled down to it. Defaults to None, any norm.

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
    norm = None
    if max_norm is not None:
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        norm = torch.nn.utils.clip_grad_norm_(joint_parameters(*(group["params"] for group in groups)), max_norm)
    for optimizer in optimizers:
        optimizer.step()
    return norm
