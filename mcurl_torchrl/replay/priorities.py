"""PrioritizedRows: the priorities of rows in a sum tree, for samplers of transitions and of slices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage

from mcurl_torchrl.replay.sum_tree import SumTree

__all__ = ["PrioritizedRows"]

_FILE = "priorities.safetensors"


class PrioritizedRows(Sampler):
    """The part of a prioritized sampler that keeps ``(priority + eps) ** alpha`` of every row.

    A new row gets the largest weight so far, at first 1.

    Args:
        alpha (float): the exponent; 0 is uniform.
        beta (float): how far importance weights correct for the unequal probabilities, from 0 to 1 (in full).
        eps (float): added to every priority.

    Raises:
        ValueError: on a negative ``alpha`` or ``eps``, or a ``beta`` outside of [0, 1].
    """

    def __init__(self, alpha: float, beta: float, eps: float) -> None:
        for name, value in (("alpha", alpha), ("eps", eps)):
            if value < 0:
                raise ValueError(f"{name}={value}; it must not be negative")
        self.alpha = alpha
        self.eps = eps
        self.beta = beta
        self._max_weight = 1.0
        self._tree: SumTree | None = None

    @property
    def beta(self) -> float:
        """The part of the unequal probabilities that importance weights correct, from 0 to 1."""
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        if not 0 <= value <= 1:
            raise ValueError(f"beta={value}; it must be between 0 and 1")
        self._beta = value

    def make_tree(self, size: int, device: torch.device) -> None:
        """Makes the tree for ``size`` rows, once the storage is allocated; does nothing if there is one."""
        if self._tree is None:
            self._tree = SumTree(size, device)

    @property
    def tree(self) -> SumTree:
        """``(priority + eps) ** alpha`` of every row."""
        if self._tree is None:
            raise RuntimeError("the replay buffer is empty: write to it before sampling")
        return self._tree

    def extend(self, index: Tensor) -> None:
        """Gives new flat rows the largest weight so far."""
        self.tree.update(index, torch.tensor(self._max_weight, dtype=torch.float64))

    def discard(self, index: Tensor) -> None:
        """Gives flat rows the weight 0."""
        self.tree.update(index, torch.tensor(0.0))

    def update_priority(self, index: Any, priority: Any, *, storage: Storage | None = None) -> None:
        """Sets the priorities of flat rows.

        Raises:
            ValueError: on a negative or non-finite priority, naming it; nothing is changed then.
        """
        priority = torch.as_tensor(priority).detach().to(self.tree.total.device, torch.float64).reshape(-1)
        bad = ~(priority.isfinite() & (priority >= 0))
        if bad.any():
            raise ValueError(f"priorities must be finite and not negative; got {priority[bad][0].item()}")
        # 0 ** 0 is 1: with alpha=0 all weights are equal, also for a priority of 0.
        weight = (priority + self.eps) ** self.alpha
        self.tree.update(torch.as_tensor(index, device=weight.device), weight)
        if weight.numel():
            self._max_weight = max(self._max_weight, weight.max().item())

    # -- state ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns all weights, the largest weight so far, alpha and beta."""
        weights = torch.zeros(0, dtype=torch.float64) if self._tree is None else self._tree.weights.clone()
        return {"weights": weights, "max_weight": self._max_weight, "alpha": self.alpha, "beta": self.beta}

    def check_state(self, state_dict: dict[str, Any]) -> None:
        """Makes sure that a saved state fits, before it is loaded; its weights are priorities to the power of alpha.

        Raises:
            ValueError: if it was saved with other settings, or is damaged.
        """
        if state_dict["alpha"] != self.alpha:
            raise ValueError(f"it was saved with alpha={state_dict['alpha']}; this one has alpha={self.alpha}")
        weights = state_dict["weights"]
        if len(weights) and self._tree is not None and len(weights) != self._tree.size:
            raise ValueError(f"it has {len(weights)} priorities; this one has {self._tree.size}")
        if weights.dtype != torch.float64 or not (weights.isfinite() & (weights >= 0)).all():
            raise ValueError("its priorities are not all numbers")
        float(state_dict["max_weight"]), float(state_dict["beta"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state from :meth:`state_dict`."""
        weights = state_dict["weights"]
        if len(weights):
            self._tree = SumTree(len(weights), weights.device if self._tree is None else self._tree.total.device)
            self._tree.fill(weights)
        else:
            self._empty()
        self._max_weight = state_dict["max_weight"]
        self.beta = state_dict["beta"]

    def dumps(self, path: Any) -> None:
        """Saves the priorities to a folder."""
        state = self.state_dict()
        numbers = {name: value for name, value in state.items() if name != "weights"}
        Path(path).mkdir(parents=True, exist_ok=True)
        save_file({"weights": state["weights"].cpu()}, Path(path) / _FILE)
        (Path(path) / _FILE).with_suffix(".json").write_text(json.dumps(numbers))

    def loads(self, path: Any) -> None:
        """Loads priorities that :meth:`dumps` saved; nothing changes if they do not fit."""
        numbers = json.loads((Path(path) / _FILE).with_suffix(".json").read_text())
        state = {"weights": load_file(Path(path) / _FILE)["weights"], **numbers}
        self.check_state(state)
        self.load_state_dict(state)

    def _empty(self) -> None:
        self._max_weight = 1.0
        if self._tree is not None:
            self._tree.fill(torch.zeros(self._tree.size))
