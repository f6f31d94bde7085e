"""Scalars of several devices as one tensor."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["stack_scalars"]


def stack_scalars(scalars: Iterable[Tensor]) -> Tensor:
    """Stacks tensors with one number each, on the accelerator if one of them is there.

    Not all numbers of an update come from its networks: the loss of an agent without a task is a 0 on the CPU.
    """
    flat = [scalar.detach().reshape(()) for scalar in scalars]
    device = next((scalar.device for scalar in flat if scalar.device.type != "cpu"), torch.device("cpu"))
    return torch.stack([scalar.to(device) for scalar in flat])
