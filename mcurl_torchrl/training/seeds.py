"""Seeds: many independent seeds from the single seed of a run."""

from __future__ import annotations

import random

import numpy as np
import torch

__all__ = ["derive_seed", "seed_everything"]


def derive_seed(seed: int, purpose: str, *numbers: int) -> int:
    """Makes a seed for one purpose, independent of the seeds for other purposes.

    Args:
        seed (int): the run's seed.
        purpose (str): the name of the purpose.
        *numbers (int): for example the number of an episode. Give the same count of numbers for one purpose, because
            NumPy's seed sequences ignore zeros at the end.

    Examples:
        >>> from mcurl_torchrl.training import derive_seed
        >>> len({derive_seed(1, "episode", number) for number in range(1000)})
        1000
    """
    entropy = [seed, *purpose.encode(), *numbers]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0] & 0x7FFFFFFF)


def seed_everything(seed: int) -> None:
    """Seeds the global generators of torch, numpy and Python."""
    torch.manual_seed(derive_seed(seed, "torch"))
    np.random.seed(derive_seed(seed, "numpy"))
    random.seed(derive_seed(seed, "python"))
