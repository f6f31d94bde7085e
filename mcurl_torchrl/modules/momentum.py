"""MomentumCopy: a copy of a network that follows it slowly."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["MomentumCopy"]


class MomentumCopy(nn.Module):
    """A copy of a network that moves towards it: ``copy <- tau * network + (1 - tau) * copy``.

    Two losses can share it: SAC's target critic and the keys of a contrastive loss. TorchRL's
    :class:`~torchrl.objectives.SoftUpdate` moves only targets that one loss module holds, and the first update of
    :class:`~torch.optim.swa_utils.AveragedModel` copies the network. ``SoftUpdate`` is used where a loss module holds
    its target.

    The copy has no gradients. Its buffers, if any, are copied, not averaged.

    Args:
        network (nn.Module): the network to follow. It is not a submodule here: its owner saves, moves and trains it.

    Keyword Args:
        tau (float): the part of the difference that each :meth:`step` removes, in (0, 1].

    Raises:
        ValueError: if ``tau`` is not in (0, 1].

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from mcurl_torchrl.modules import MomentumCopy
        >>> network = nn.Linear(1, 1, bias=False)
        >>> target = MomentumCopy(network, tau=0.25)
        >>> before = network.weight.item()
        >>> _ = network.weight.data.add_(4.0)
        >>> target.step()
        >>> round(target.copy.weight.item() - before, 5)
        1.0
    """

    def __init__(self, network: nn.Module, *, tau: float) -> None:
        super().__init__()
        if not 0 < tau <= 1:
            raise ValueError(f"tau={tau}; it must be above 0 and at most 1")
        self.tau = tau
        self.copy = copy.deepcopy(network).requires_grad_(False)
        self.__dict__["_network"] = network

    @torch.no_grad()
    def step(self) -> None:
        """Moves the copy towards the network."""
        network: nn.Module = self.__dict__["_network"]
        for target, source in zip(self.copy.parameters(), network.parameters(), strict=True):
            target.lerp_(source, self.tau)
        for own, other in zip(self.copy.buffers(), network.buffers(), strict=True):
            own.copy_(other)

    def follows(self, network: nn.Module) -> bool:
        """Returns whether this is a copy of ``network``."""
        return self.__dict__["_network"] is network

    def forward(self, *args: Any) -> Tensor:
        """Calls the copy."""
        return self.copy(*args)
