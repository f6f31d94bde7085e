"""MomentumCopy: a copy of a network that follows it slowly."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["MomentumCopy"]


class MomentumCopy(nn.Module):
    """A copy of a network that moves towards it: ``copy <- tau * network + (1 - tau) * copy``.

    TorchRL's :class:`~torchrl.objectives.SoftUpdate` moves the targets that a loss module holds. A target encoder that
    serves two losses, a critic's targets and the keys of a contrastive loss, belongs to neither: it is one of these.

    The copy takes no gradients. Its buffers, if any, are copied, not averaged.

    Args:
        network (nn.Module): what to follow. It is not registered here: saving, moving and training it stays its
            owner's.

    Keyword Args:
        tau (float): how far each :meth:`step` goes, in (0, 1].

    Raises:
        ValueError: on another ``tau``.

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
        target: list[Tensor] = list(self.copy.parameters())
        if target:
            torch._foreach_lerp_(target, list(network.parameters()), self.tau)
        for own, other in zip(self.copy.buffers(), network.buffers(), strict=True):
            own.copy_(other)

    def forward(self, *args: Any) -> Tensor:
        """Calls the copy."""
        return self.copy(*args)
