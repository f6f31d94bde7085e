"""A TorchRL storage seen as rings of rows: one ring per column, time along the first dimension."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.data.replay_buffers.storages import LazyTensorStorage, Storage, TensorStorage

from mcurl_torchrl.checks import leaf_keys

__all__ = ["Rows"]


class Rows:
    """The written part of a storage, addressed by ``(time, column)`` or by one flat row number.

    A storage of ``ndim=1`` is one ring; one of ``ndim=2`` (batched environments) is a ring per column. The flat number
    of a row is its offset in memory, so that a key is read with a single ``index_select`` whatever the ``ndim``.

    Args:
        storage (Storage): a :class:`~torchrl.data.LazyTensorStorage`, a :class:`~torchrl.data.LazyMemmapStorage` or
            another :class:`~torchrl.data.TensorStorage` that holds a tensordict.

    Raises:
        TypeError: if the storage is of another kind.
        RuntimeError: if nothing was written yet.
    """

    def __init__(self, storage: Storage) -> None:
        if not isinstance(storage, TensorStorage):
            raise TypeError(
                "this needs a storage that holds a tensordict (LazyTensorStorage, LazyMemmapStorage or TensorStorage); "
                f"got {type(storage).__name__}"
            )
        if not storage.initialized or not len(storage):
            raise RuntimeError("the replay buffer is empty: write to it before sampling")
        data = storage._storage
        if not isinstance(data, TensorDictBase):
            raise TypeError(f"this needs a storage that holds a tensordict; it holds a {type(data).__name__}")
        if storage.ndim > 1 and not isinstance(storage, LazyTensorStorage):
            # TorchRL counts such a storage's rows along its first dimension only, and would hand out a part of them.
            raise TypeError("a TensorStorage made from data must have ndim=1; for ndim=2 write to a LazyTensorStorage")
        self.storage = storage
        self.data = data
        self.shape: torch.Size = storage.shape
        self.num_rows: int = self.shape[0]
        self.num_columns: int = self.shape[1:].numel()
        self.is_full: bool = storage._is_full
        self.device = data.device if data.device is not None else torch.device("cpu")

    def __len__(self) -> int:
        return self.num_rows * self.num_columns

    def has(self, key: NestedKey) -> bool:
        """Tells whether the storage holds a tensor under ``key``."""
        return isinstance(self.data.get(key, None), Tensor)

    def column(self, key: NestedKey) -> Tensor:
        """Returns the stored tensor under ``key`` with time and columns flattened into one dimension (a view)."""
        value = self.data.get(key, None)
        if not isinstance(value, Tensor):
            raise KeyError(f"the storage has no tensor under {key!r}; it holds {leaf_keys(self.data)}")
        return value.flatten(0, self.storage.ndim - 1)

    def scalars(self, key: NestedKey) -> Tensor:
        """Returns the column under ``key``, which has to hold one number per row, as a 1-d tensor (a view)."""
        value = self.column(key)
        if value[:1].numel() != 1:
            raise ValueError(f"{key!r} must hold one number per row; its rows have shape {tuple(value.shape[1:])}")
        return value.view(-1)

    def split(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Splits flat row numbers into time and column."""
        return flat // self.num_columns, flat % self.num_columns

    def join(self, time: Tensor, column: Tensor) -> Tensor:
        """Gives the flat row number of ``(time, column)``; time wraps around the ring."""
        return (time % self.num_rows) * self.num_columns + column

    def to_index(self, flat: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Turns flat row numbers into a storage index: a tensor for ``ndim=1``, else a tuple of coordinates."""
        if self.storage.ndim == 1:
            return flat
        coordinates: tuple[Tensor, ...] = torch.unravel_index(flat, self.shape)
        return coordinates

    def from_index(self, index: Any) -> Tensor:
        """Turns a storage index, or coordinates in the last dimension as a batch carries them, into flat rows."""
        if self.storage.ndim == 1:
            return torch.as_tensor(index, device=self.device)
        parts = index.unbind(-1) if isinstance(index, Tensor) else [torch.as_tensor(part) for part in index]
        flat = torch.zeros_like(parts[0])
        for size, coordinate in zip(self.shape, parts, strict=True):
            flat = flat * size + coordinate
        return flat.to(self.device)
