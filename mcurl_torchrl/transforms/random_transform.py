"""RandomTransform: a transform that draws random numbers, from a generator that can be pickled."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchrl.envs.transforms import Transform

__all__ = ["RandomTransform"]


class RandomTransform(Transform):
    """A transform that draws random numbers from its own generator, or from torch's global one."""

    generator: torch.Generator | None = None

    def _rand(self, count: int, device: torch.device) -> Tensor:
        """Draws numbers in [0, 1)."""
        source = device if self.generator is None else self.generator.device
        return torch.rand(count, generator=self.generator, device=source).to(device)

    def _randint(self, below: int, count: int, device: torch.device) -> Tensor:
        """Draws whole numbers in [0, below)."""
        source = device if self.generator is None else self.generator.device
        return torch.randint(below, (count,), generator=self.generator, device=source).to(device)

    def __getstate__(self) -> dict[str, Any]:
        # A generator cannot be pickled, but its state can.
        state = super().__getstate__()
        generator = state.pop("generator", None)
        state["_generator_state"] = None if generator is None else (str(generator.device), generator.get_state())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.pop("_generator_state", None)
        super().__setstate__(state)
        self.generator = None
        if saved is not None:
            self.generator = torch.Generator(saved[0])
            self.generator.set_state(saved[1])
