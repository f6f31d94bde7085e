"""Resetting the weights of networks, fully or in part."""

from __future__ import annotations

import copy

import torch
from torch import nn

from mcurl_torchrl.checks import check_number

__all__ = ["reset_network", "shrink_and_perturb"]


def reset_network(network: nn.Module) -> None:
    """Draws new weights in place: calls ``reset_parameters()`` of each module, inner modules first."""
    for child in network.children():
        reset_network(child)
    reset = getattr(network, "reset_parameters", None)
    if callable(reset):
        reset()


@torch.no_grad()
def shrink_and_perturb(network: nn.Module, keep: float) -> None:
    """Moves the weights of a network towards newly drawn ones, in place (https://arxiv.org/abs/1910.08475).

    ``weights <- keep * weights + (1 - keep) * new``. Buffers, such as the statistics of BatchNorm, stay, unless
    ``keep`` is 0.

    Args:
        network (nn.Module): the network, whose modules have ``reset_parameters()`` as PyTorch's have.
        keep (float): the part that stays, between 0 and 1; 0 draws a new network.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.modules.resetting import shrink_and_perturb
        >>> layer = torch.nn.LayerNorm(2)
        >>> _ = layer.weight.data.fill_(6.0)
        >>> shrink_and_perturb(layer, 0.8)  # new weights of a LayerNorm are 1
        >>> layer.weight.tolist()
        [5.0, 5.0]
    """
    check_number("keep", keep, least=0, most=1)
    fresh = copy.deepcopy(network)
    reset_network(fresh)
    for own, new in zip(network.parameters(), fresh.parameters(), strict=True):
        own.lerp_(new, 1 - keep)
    if keep == 0:
        for buffer, new_buffer in zip(network.buffers(), fresh.buffers(), strict=True):
            buffer.copy_(new_buffer)
