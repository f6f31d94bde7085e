"""Distributions of returns on a fixed support, in functions without state."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["project_distribution"]


def project_distribution(next_probabilities: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """Projects the distribution of ``reward + discount * next_return`` onto the support (C51).

    The probability of each shifted atom goes to the two atoms around it, the more the nearer; what falls outside of the
    support goes to its end. See https://arxiv.org/abs/1707.06887, algorithm 1.

    Every atom asks how much of each shifted atom is its own, ``[B, N, N]`` in all, rather than each shifted atom
    looking for its neighbours: nothing is lost where a shifted atom falls on one of the support, and sums are in the
    same order every time, on a GPU too.

    Args:
        next_probabilities (torch.Tensor): ``[B, N]``.
        reward (torch.Tensor): ``[B, 1]``, the discounted sum of rewards up to the next observation.
        discount (torch.Tensor): ``[B, 1]``, gamma to the power of the steps up to it; 0 where nothing follows.
        support (torch.Tensor): ``[N]``, at least 2 atoms, rising and evenly spaced.

    Returns:
        ``[B, N]``, with the same sum over atoms as ``next_probabilities``.

    Raises:
        ValueError: on other shapes.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.objectives.categorical import project_distribution
        >>> support = torch.linspace(-1, 1, 5)
        >>> certain = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]])  # a return of 1
        >>> project_distribution(certain, torch.tensor([[0.25]]), torch.tensor([[0.5]]), support)
        tensor([[0.0000, 0.0000, 0.0000, 0.5000, 0.5000]])
    """
    count, num_atoms = next_probabilities.shape
    # Without this, a reward [B] would pass for one per atom where B = N.
    for name, value, expected in (
        ("reward", reward, (count, 1)),
        ("discount", discount, (count, 1)),
        ("support", support, (num_atoms,)),
    ):
        if value.shape != expected:
            raise ValueError(f"{name} must be {list(expected)}; got {list(value.shape)}")
    low, high = support[0], support[-1]
    # In atoms from the lowest one, so that the distance between neighbours is exactly 1.
    position = (reward + discount * support - low) * ((num_atoms - 1) / (high - low))
    atoms = torch.arange(num_atoms, device=support.device, dtype=position.dtype)
    distance = (position.clamp(0, num_atoms - 1).unsqueeze(1) - atoms.unsqueeze(1)).abs()  # [B, atom, shifted atom]
    return (next_probabilities.unsqueeze(1) * (1 - distance).clamp(min=0)).sum(-1)
