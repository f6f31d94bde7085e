"""Rows of a replay storage, windows of consecutive rows of one episode, and drawing them with equal probability.

The layout of a frame replay: an episode of L steps takes L + 1 consecutive rows. Row t holds frame t, the action taken
there, and its outcome: reward, terminated, truncated. The last row holds only its frame, and is marked ``final``. So
each frame is stored once, the last observation of a truncated episode is stored too, and one rule holds for stacks,
slices and n-step returns: they consist of rows with the same trajectory id and consecutive steps. An id is never used
twice, and unwritten rows carry -1, so two rows ``d`` apart with equal ids and steps ``d`` apart enclose only rows of
that episode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler
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
    "Rows",
    "WindowSampler",
    "all_valid",
    "draw_uniform",
    "draw_valid",
]

TRAJECTORY_KEY: NestedKey = "trajectory"
STEP_KEY: NestedKey = "step"
FINAL_KEY: NestedKey = "final"
LAYOUT_KEYS = (TRAJECTORY_KEY, STEP_KEY, FINAL_KEY)
UNWRITTEN = -1

# Rejection proposes this many rows at first, four times more each round, and at most _MAX_PROPOSALS altogether. If more
# proposals are needed than that, or than there are rows, one scan of all rows finds the valid ones.
_FIRST_ROUND = 32
_MAX_PROPOSALS = 65_536
_SCAN_CHUNK = 65_536


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
        """Tells whether the storage holds a tensor under ``key``."""
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


class EpisodeWindows:
    """Tells which windows of consecutive rows lie inside one episode, from the keys that the storage has.

    Row ``i`` *continues* row ``i - 1`` if no stored key contradicts it: both carry the same trajectory id, the step
    grows by one, the earlier row is not the end of an episode, and the ring's seam is not between them. A window is
    valid if each of its rows continues the row before. If ids are never used twice and steps are stored
    (``unique_ids=True``, the layout of :class:`~mcurl_torchrl.FrameReplayBuffer`), a comparison of the first and the
    last row decides the same.

    Args:
        rows (Rows): the stored rows.

    Keyword Args:
        traj_key (NestedKey, optional): one integer per row, equal within an episode; negative in unwritten rows.
        step_key (NestedKey, optional): the row's number in its episode, from 0.
        end_key (NestedKey, optional): a flag that is set on the last row of an episode.
        seam (int, optional): the time of the oldest row of a full ring (0 while it is not full): no window may go
            from the row before it to this row. Not needed with ``unique_ids``.
        unique_ids (bool): True if trajectory ids are never used twice and steps are stored.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        traj_key: NestedKey | None = None,
        step_key: NestedKey | None = None,
        end_key: NestedKey | None = None,
        seam: int | None = None,
        unique_ids: bool = False,
    ) -> None:
        self.rows = rows
        self._trajectory = None if traj_key is None else rows.scalars(traj_key)
        self._step = None if step_key is None else rows.scalars(step_key)
        self._end = None if end_key is None else rows.scalars(end_key)
        self._seam = seam
        self._unique_ids = unique_ids

    def valid(self, start: Tensor, length: int) -> Tensor:
        """Tells for each flat row in ``start`` whether the ``length`` rows from there on are of one episode."""
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
            same &= (first >= 0) & (first == self._trajectory[stop])
        if self._step is not None:
            same &= self._step[stop] - self._step[start] == length - 1
        return same

    def continues(self, time: Tensor, column: Tensor) -> Tensor:
        """Tells whether the row at ``time`` continues the episode of the row before it."""
        here, before = self.rows.join(time, column), self.rows.join(time - 1, column)
        linked = torch.ones_like(here, dtype=torch.bool)
        if self._trajectory is not None:
            linked &= self._trajectory[here] == self._trajectory[before]
        if self._step is not None:
            linked &= self._step[here] == self._step[before] + 1
        if self._end is not None:
            linked &= self._end[before] == 0
        if self._seam is not None:
            linked &= time % self.rows.num_rows != self._seam
        return linked

    def history(self, start: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Looks at the ``length`` rows before ``start``.

        Returns:
            The number of these rows that belong to the same episode, and whether they are complete: False if earlier
            rows of the episode are needed but were overwritten; the number means nothing then.
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


def draw_valid(
    count: int,
    num_rows: int,
    *,
    propose: Callable[[int], Tensor],
    is_valid: Callable[[Tensor], Tensor],
    draw_exhaustively: Callable[[int], Tensor | None],
) -> Tensor | None:
    """Draws ``count`` valid rows: proposals are rejected until enough are valid; one exact draw gives the rest.

    The valid rows among independent proposals keep the proposal's probabilities, restricted to valid rows: uniform
    proposals give all valid rows the same probability, whatever the episodes look like.

    Args:
        count (int): the number of rows to draw, with replacement.
        num_rows (int): the number of stored rows.

    Keyword Args:
        propose (callable): called with a number, draws that many rows.
        is_valid (callable): tells which rows are valid.
        draw_exhaustively (callable): called with a number, draws that many valid rows after a check of all rows;
            returns None if there is no valid row.

    Returns:
        The rows, or None if no row is valid.
    """
    accepted: list[Tensor] = []
    found, proposed, size = 0, 0, max(_FIRST_ROUND, count + count // 4)
    while proposed < min(num_rows, _MAX_PROPOSALS):
        rows = propose(size)
        rows = rows[is_valid(rows)]
        accepted.append(rows)
        found += len(rows)
        if found >= count:
            return torch.cat(accepted)[:count]
        proposed += size
        size *= 4
    rest = draw_exhaustively(count - found)
    return None if rest is None else torch.cat([*accepted, rest])


def all_valid(num_rows: int, is_valid: Callable[[Tensor], Tensor], device: torch.device) -> Tensor:
    """Evaluates ``is_valid`` on the rows 0..num_rows-1, in chunks, which limits the memory."""
    chunks = torch.arange(num_rows, device=device).split(_SCAN_CHUNK)
    return torch.cat([is_valid(chunk) for chunk in chunks])


def draw_uniform(
    count: int,
    num_rows: int,
    is_valid: Callable[[Tensor], Tensor],
    *,
    device: torch.device,
    generator: torch.Generator | None,
) -> Tensor | None:
    """Draws ``count`` of the valid rows below ``num_rows``, each with the same probability; None if there is none."""

    def draw(below: int, size: int) -> Tensor:
        return torch.randint(below, (size,), device=device, generator=generator)

    def draw_exhaustively(size: int) -> Tensor | None:
        candidates = all_valid(num_rows, is_valid, device).nonzero().squeeze(-1)
        return candidates[draw(len(candidates), size)] if len(candidates) else None

    return draw_valid(
        count,
        num_rows,
        propose=lambda size: draw(num_rows, size),
        is_valid=is_valid,
        draw_exhaustively=draw_exhaustively,
    )


class WindowSampler(Sampler):
    """A sampler without state: the storage alone decides which rows it can draw."""

    def _find_one(self, rows: Rows, generator: torch.Generator) -> Tensor | None:
        """Draws one valid row, or returns None if there is none."""
        raise NotImplementedError

    def _sampleable_count(self, storage: Storage, batch_size: int) -> int:
        if not len(storage):
            return 0
        rows = Rows(storage)
        # A new generator: this question must not change the random numbers of a later sample.
        found = self._find_one(rows, torch.Generator(rows.device).manual_seed(0))
        return 0 if found is None else batch_size

    def state_dict(self) -> dict[str, Any]:
        """Returns an empty dictionary: there is no state."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Does nothing: there is no state."""

    def dumps(self, path: Any) -> None:
        """Does nothing: the sampler has no state, or the buffer saves it."""

    def loads(self, path: Any) -> None:
        """Does nothing: the sampler has no state, or the buffer loads it."""

    def _empty(self) -> None:
        pass
