"""Rows of a replay storage, and windows of consecutive rows of one episode.

The layout of a frame replay: an episode of L steps takes L + 1 consecutive rows. Row t holds frame t, the action taken
there, and its outcome: reward, terminated, truncated. The last row holds only its frame, and is marked ``final``. So
each frame is stored once, the last observation of a truncated episode is stored too, and one rule holds for stacks,
slices and n-step returns: they consist of rows with the same trajectory id and consecutive steps. An id is never used
twice, and unwritten rows carry -1, so two rows ``d`` apart with equal ids and steps ``d`` apart enclose only rows of
that episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.data.replay_buffers.storages import LazyTensorStorage, Storage, TensorStorage

from mcurl_torchrl.checks import leaf_keys
from mcurl_torchrl.replay import torchrl_internals as internals

__all__ = [
    "FINAL_KEY",
    "LAYOUT_KEYS",
    "STEP_KEY",
    "TRAJECTORY_KEY",
    "UNWRITTEN",
    "EpisodeWindows",
    "OrderedRows",
    "Rows",
]

TRAJECTORY_KEY: NestedKey = "trajectory"
STEP_KEY: NestedKey = "step"
FINAL_KEY: NestedKey = "final"
LAYOUT_KEYS = (TRAJECTORY_KEY, STEP_KEY, FINAL_KEY)
UNWRITTEN = -1


class Rows:
    """The written part of a storage, addressed by ``(time, column)`` or by one flat row number.

    A storage of ``ndim=1`` is one ring; a storage of ``ndim=2`` (a batch of environments) is one ring per column. The
    flat number of a row is its offset in memory, so that one ``index_select`` reads a key for any ``ndim``.

    Args:
        storage (Storage): a :class:`~torchrl.data.LazyTensorStorage`, a :class:`~torchrl.data.LazyMemmapStorage` or
            another :class:`~torchrl.data.TensorStorage` that holds a tensordict.

    Raises:
        TypeError: if the storage is of another kind.
        RuntimeError: if the storage is empty.
    """

    def __init__(self, storage: Storage) -> None:
        if not isinstance(storage, TensorStorage):
            raise TypeError(
                "this needs a storage that holds a tensordict (LazyTensorStorage, LazyMemmapStorage or TensorStorage); "
                f"got {type(storage).__name__}"
            )
        if not storage.initialized or not len(storage):
            raise RuntimeError("the replay buffer is empty: write to it before sampling")
        data = internals.stored(storage)
        if not isinstance(data, TensorDictBase):
            raise TypeError(f"this needs a storage that holds a tensordict; it holds a {type(data).__name__}")
        if storage.ndim > 1 and not isinstance(storage, LazyTensorStorage):
            # TorchRL counts the rows of such a storage along its first dimension only, and would miss the others.
            raise TypeError("a TensorStorage made from data must have ndim=1; for ndim=2 write to a LazyTensorStorage")
        self.storage = storage
        self.data = data
        self.shape: torch.Size = storage.shape
        self.num_rows: int = self.shape[0]
        self.num_columns: int = self.shape[1:].numel()
        self.is_full: bool = internals.is_full(storage)
        self.device = data.device if data.device is not None else torch.device("cpu")

    def __len__(self) -> int:
        return self.num_rows * self.num_columns

    def has(self, key: NestedKey) -> bool:
        """Returns whether the storage holds a tensor under ``key``."""
        return isinstance(self.data.get(key, None), Tensor)

    def column(self, key: NestedKey) -> Tensor:
        """Returns the stored tensor under ``key`` with time and columns flattened into one dimension (a view)."""
        value = self.data.get(key, None)
        if not isinstance(value, Tensor):
            raise KeyError(f"the storage has no tensor under {key!r}; it holds {leaf_keys(self.data)}")
        return value.flatten(0, self.storage.ndim - 1)

    def scalars(self, key: NestedKey) -> Tensor:
        """Returns the column under ``key``, which must hold one number per row, as a 1-d tensor (a view)."""
        value = self.column(key)
        if value[:1].numel() != 1:
            raise ValueError(f"{key!r} must hold one number per row; its rows have shape {tuple(value.shape[1:])}")
        return value.view(-1)

    def split(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Splits flat row numbers into time and column."""
        return flat // self.num_columns, flat % self.num_columns

    def join(self, time: Tensor, column: Tensor) -> Tensor:
        """Returns the flat row number of ``(time, column)``; time wraps around the ring."""
        return (time % self.num_rows) * self.num_columns + column

    def locate(self, position: Tensor) -> Tensor:
        """Returns the flat rows at positions; here they are the same, in :class:`OrderedRows` they are not."""
        return position

    def position(self, flat: Tensor) -> Tensor:
        """Returns the positions of flat rows."""
        return flat

    def to_index(self, flat: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Turns flat row numbers into a storage index: a tensor for ``ndim=1``, else a tuple of coordinates."""
        if self.storage.ndim == 1:
            return flat
        coordinates: tuple[Tensor, ...] = torch.unravel_index(flat, self.shape)
        return coordinates

    def from_index(self, index: Any) -> Tensor:
        """Turns a storage index, or the coordinates under "index" in a batch, into flat row numbers."""
        if self.storage.ndim == 1:
            return torch.as_tensor(index, device=self.device)
        parts = index.unbind(-1) if isinstance(index, Tensor) else [torch.as_tensor(part) for part in index]
        flat = torch.zeros_like(parts[0])
        for size, coordinate in zip(self.shape, parts, strict=True):
            flat = flat * size + coordinate
        return flat.to(self.device)


class OrderedRows(Rows):
    """Rows in another order than that of the storage: windows are over positions in this order.

    Args:
        storage (Storage): the storage.
        order (torch.Tensor): the flat row at each position, a permutation.
    """

    def __init__(self, storage: Storage, order: Tensor) -> None:
        super().__init__(storage)
        self.order = order
        self.num_rows, self.num_columns = len(order), 1
        self.is_full = False
        self._positions = torch.empty_like(order)
        self._positions[order] = torch.arange(len(order), device=order.device)

    def locate(self, position: Tensor) -> Tensor:
        """Returns the flat rows at positions."""
        return self.order[position]

    def position(self, flat: Tensor) -> Tensor:
        """Returns the positions of flat rows."""
        return self._positions[flat]


class EpisodeWindows:
    """Returns which windows of consecutive rows lie inside one episode, from the keys that the storage has.

    Row ``i`` *continues* row ``i - 1`` if no stored key contradicts it: both carry the same trajectory id, the step
    grows by one, the earlier row is not the end of an episode, and the ring's seam is not between them. A window is
    valid if each of its rows continues the row before. If ids are never used twice and steps are stored
    (``unique_ids=True``, the layout of :class:`~mcurl_torchrl.FrameReplayBuffer`), a comparison of the first and the
    last row decides the same.

    Args:
        rows (Rows): the stored rows.

    Keyword Args:
        trajectory (torch.Tensor, optional): one integer per flat row, equal within an episode.
        step (torch.Tensor, optional): the row's number in its episode, from 0.
        ends (sequence of torch.Tensor): flags, any of which is set on the last row of an episode. Defaults to none.
        seam (int, optional): the time of the oldest row of a full ring (0 while it is not full): no window may go
            from the row before it to this row. Not needed with ``unique_ids``.
        unique_ids (bool): True if trajectory ids are never used twice and steps are stored.
        has_unwritten (bool): True if rows that carry the id -1 are unwritten, as in a frame replay. In any other
            storage an id may be any number.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        trajectory: Tensor | None = None,
        step: Tensor | None = None,
        ends: Sequence[Tensor] = (),
        seam: int | None = None,
        unique_ids: bool = False,
        has_unwritten: bool = False,
    ) -> None:
        self.rows = rows
        self._trajectory = trajectory
        self._step = step
        self._ends = ends
        self._seam = seam
        self._unique_ids = unique_ids
        self._has_unwritten = has_unwritten

    def with_seam(self, seam: int) -> EpisodeWindows:
        """Returns the same windows, except for those that go on to the row at time ``seam``."""
        return EpisodeWindows(self.rows, trajectory=self._trajectory, step=self._step, ends=self._ends, seam=seam)

    def valid(self, start: Tensor, length: int) -> Tensor:
        """Returns for each flat row in ``start`` whether the ``length`` rows from there on are of one episode."""
        if length > self.rows.num_rows:
            return torch.zeros_like(start, dtype=torch.bool)
        valid = self._same_ends(start, length)
        if self._unique_ids or length == 1:
            return valid
        survivors = valid.nonzero().squeeze(-1)
        time, column = self.rows.split(start[survivors])
        offsets = torch.arange(1, length, device=start.device)
        valid[survivors] = self.continues(time[:, None] + offsets, column[:, None]).all(-1)
        return valid

    def _same_ends(self, start: Tensor, length: int) -> Tensor:
        time, column = self.rows.split(start)
        stop = self.rows.join(time + length - 1, column)
        same = torch.ones_like(start, dtype=torch.bool)
        if self._trajectory is not None:
            first = self._trajectory[start]
            same &= first == self._trajectory[stop]
            if self._has_unwritten:
                same &= first != UNWRITTEN
        if self._step is not None:
            same &= self._step[stop] - self._step[start] == length - 1
        return same

    def continues(self, time: Tensor, column: Tensor) -> Tensor:
        """Returns whether the row at ``time`` continues the episode of the row before it."""
        here, before = self.rows.join(time, column), self.rows.join(time - 1, column)
        linked = torch.ones_like(here, dtype=torch.bool)
        if self._trajectory is not None:
            linked &= self._trajectory[here] == self._trajectory[before]
        if self._step is not None:
            linked &= self._step[here] == self._step[before] + 1
        for end in self._ends:
            linked &= end[before] == 0
        if self._seam is not None:
            linked &= time % self.rows.num_rows != self._seam
        return linked

    def history(self, start: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Looks at the ``length`` rows before ``start``.

        Returns:
            The number of these rows that belong to the same episode, and whether they are complete: False if earlier
            rows of the episode are needed but were overwritten; then the number has no meaning.
        """
        time, column = self.rows.split(start)
        if length == 0:
            return torch.zeros_like(start), torch.ones_like(start, dtype=torch.bool)
        if self._unique_ids:
            # The step tells the number of earlier rows; the oldest of them tells whether they are still stored.
            assert self._trajectory is not None and self._step is not None
            step = self._step[start]
            available = step.clamp(max=length)
            oldest = self.rows.join(time - available, column)
            whole = (self._trajectory[oldest] == self._trajectory[start]) & (self._step[oldest] == step - available)
            return available, whole
        offsets = torch.arange(length, device=start.device)
        linked = self.continues(time[:, None] - offsets, column[:, None])
        available = linked.long().cumprod(-1).sum(-1)
        oldest = time - available
        if self._step is not None:
            begins = self._step[self.rows.join(oldest, column)] == 0
        elif self._seam is not None and self.rows.is_full:
            begins = oldest % self.rows.num_rows != self._seam
        else:
            begins = torch.ones_like(start, dtype=torch.bool)
        return available, (available == length) | begins

    def run_length(self, start: Tensor, length: int) -> Tensor:
        """Counts the rows from each flat row in ``start`` on that are of one episode, up to ``length``."""
        time, column = self.rows.split(start)
        offsets = torch.arange(1, min(length, self.rows.num_rows), device=start.device)
        return 1 + self.continues(time[:, None] + offsets, column[:, None]).long().cumprod(-1).sum(-1)

    def begins_run(self, start: Tensor, before: int) -> Tensor:
        """Returns whether each flat row is the first of its episode that is stored with ``before`` earlier rows.

        Rows from before the episode do not count: there is padding in their place.
        """
        time, column = self.rows.split(start)
        earlier = self.rows.join(time - 1, column)
        linked = self.continues(time, column)
        return self.history(start, before)[1] & ~(linked & self.history(earlier, before)[1])

    def expand(self, start: Tensor, length: int, before: int) -> Tensor:
        """Lists the rows of windows, each with ``before`` earlier rows in front.

        Returns:
            Flat rows, ``[len(start), before + length]``; in place of rows from before the episode, its first row.
        """
        available, _ = self.history(start, before)
        time, column = self.rows.split(start)
        offsets = torch.arange(-before, length, device=start.device)
        offsets = torch.maximum(offsets, -available[:, None])
        return self.rows.join(time[:, None] + offsets, column[:, None])

    def longest(self) -> int:
        """Returns the largest number of consecutive rows of one episode; it reads all rows."""
        time = torch.arange(self.rows.num_rows, device=self.rows.device)
        best = 0
        for column in range(self.rows.num_columns):
            linked = self.continues(time, torch.full_like(time, column))
            written = self.valid(self.rows.join(time, torch.full_like(time, column)), 1)
            # Counted from the first break of the ring, so that a run over the end of the array is one run.
            breaks = (~linked | ~written).nonzero().squeeze(-1)
            if not len(breaks):
                return self.rows.num_rows
            edges = torch.cat([breaks, breaks[:1] + self.rows.num_rows])
            runs = edges.diff()[written[breaks]]
            best = max(best, int(runs.max()) if len(runs) else 0)
        return best
