"""Seeds: many independent ones out of the single one that a user gives."""

from __future__ import annotations

import random

import numpy as np
import torch

__all__ = ["derive_seed", "seed_everything"]


def derive_seed(seed: int, purpose: str, *numbers: int) -> int:
    """Makes a seed for one purpose, unrelated to those for others.

    Args:
        seed (int): the run's.
        purpose (str): what it is for.
        *numbers (int): which of its kind, the number of an episode, say; always as many for one purpose (numpy's
            seed sequences take no notice of zeros at the end).

    Examples:
        >>> from mcurl_torchrl.training import derive_seed
        >>> derive_seed(1, "episode", 0) == derive_seed(1, "episode", 0)
        True
        >>> len({derive_seed(1, "episode", number) for number in range(1000)})
        1000
    """
    entropy = [seed, *purpose.encode(), *numbers]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0] & 0x7FFFFFFF)


def seed_everything(seed: int) -> None:
    """Seeds torch's, numpy's and Python's global generators."""
    torch.manual_seed(derive_seed(seed, "torch"))
    np.random.seed(derive_seed(seed, "numpy"))
    random.seed(derive_seed(seed, "python"))
