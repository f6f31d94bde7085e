"""Sees whether anything touches the global random states."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def global_random_states_untouched() -> Iterator[None]:
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    yield
    assert torch.equal(torch.get_rng_state(), before[0])
    for now, then in zip(np.random.get_state(), before[1], strict=True):
        assert np.array_equal(now, then)
    assert random.getstate() == before[2]
