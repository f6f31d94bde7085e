"""What our samplers share: whether there is anything to draw, and having no state to keep."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage

from mcurl_torchrl.replay.rows import Rows

__all__ = ["WindowSampler"]


class WindowSampler(Sampler):
    """A sampler that derives everything from the storage."""

    def _find_one(self, rows: Rows, generator: torch.Generator) -> Tensor | None:
        """Draws one row that could be drawn, or None if there is none."""
        raise NotImplementedError

    def _sampleable_count(self, storage: Storage, batch_size: int) -> int:
        if not len(storage):
            return 0
        rows = Rows(storage)
        # A generator of its own: asking changes nobody's random numbers.
        found = self._find_one(rows, torch.Generator(rows.device).manual_seed(0))
        return 0 if found is None else batch_size

    def state_dict(self) -> dict[str, Any]:
        """Returns an empty dictionary: there is no state."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Does nothing: there is no state."""

    def dumps(self, path: Any) -> None:
        """Does nothing: there is no state, or the buffer saves it with its own."""

    def loads(self, path: Any) -> None:
        """Does nothing: there is no state, or the buffer loads it with its own."""

    def _empty(self) -> None:
        pass
