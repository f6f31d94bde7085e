"""One step of one or several optimizers on a loss."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["optimize"]


def optimize(loss: Tensor, *optimizers: Optimizer) -> None:
    """Takes one step: clears the gradients, computes them for ``loss``, and lets each optimizer move what it owns.

    Gradients stay in place afterwards, for whoever wants to look at their size.

    Args:
        loss (torch.Tensor): a number with a graph.
        *optimizers (Optimizer): who steps, in this order, on the same gradients.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.training import optimize
        >>> weight = torch.nn.Parameter(torch.tensor(3.0))
        >>> optimize(2 * weight, torch.optim.SGD([weight], lr=1.0))
        >>> weight.item()
        1.0
    """
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
