"""Slices drawn by the priorities of their rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchrl.data.replay_buffers.samplers import PrioritizedSampler
from torchrl.data.replay_buffers.storages import Storage

from mcurl_torchrl.checks import check_choice
from mcurl_torchrl.replay import torchrl_internals as internals
from mcurl_torchrl.replay.drawing import draw_valid, draw_weighted, for_all
from mcurl_torchrl.replay.priorities import PrioritizedRows
from mcurl_torchrl.replay.slice_sampler import EpisodeSliceSampler
from mcurl_torchrl.replay.sum_tree import SumTree
from mcurl_torchrl.replay.windows import EpisodeWindows

__all__ = ["REDUCTIONS", "PrioritizedEpisodeSliceSampler", "SliceSamplerByWeight"]

REDUCTIONS = ("max", "mean")


class SliceSamplerByWeight(EpisodeSliceSampler):
    """Draws slices in proportion to the mean or the largest weight of their rows, from a sum tree of row weights.

    No tree of slices is kept. A row is drawn in proportion to its weight, then its place in the slice, uniformly. So a
    slice is proposed in proportion to the sum of its rows' weights, which is what the mean needs. For the maximum, a
    proposal is accepted only if the drawn row is the first row with the largest weight in its slice. Proposals that are
    not valid slices are rejected. The probabilities are exact, and the cost does not grow with the buffer. A row that a
    short slice lacks (``strict_length=False``) counts as 0.
    """

    reduction: str = "max"

    @property
    def tree(self) -> SumTree:
        """The weight of every row."""
        raise NotImplementedError

    @property
    def beta(self) -> float:
        """The part of the unequal probabilities that importance weights correct, from 0 to 1."""
        raise NotImplementedError

    def weights(self, windows: EpisodeWindows, starts: Tensor, slice_len: int) -> Tensor:
        """Returns the weights of slices, ``[slices]``; a start at which no slice is possible has the weight 0."""
        weights, present = self._row_weights(windows, starts, slice_len)
        weights = torch.where(present, weights, 0.0)
        return weights.amax(-1) if self.reduction == "max" else weights.mean(-1)

    def _row_weights(self, windows: EpisodeWindows, starts: Tensor, slice_len: int) -> tuple[Tensor, Tensor]:
        """Returns the weights of the rows of slices, and which rows the slices have, ``[slices, slice_len]`` each."""
        time, column = windows.rows.split(starts)
        offsets = torch.arange(slice_len, device=starts.device)
        positions = windows.rows.join(time[:, None] + offsets, column[:, None])
        present = offsets < self.lengths(windows, starts, slice_len)[:, None]
        return self.tree[windows.rows.locate(positions)], present

    def _is_chosen(self, windows: EpisodeWindows, proposals: Tensor, slice_len: int) -> Tensor:
        """Returns which proposals are accepted; each encodes a slice's first position and the drawn row's place."""
        starts, place = proposals // slice_len, (proposals % slice_len)[:, None]
        if self.reduction == "mean" and self._is_uniform:
            return self._is_whole(windows, starts, slice_len)
        weights, present = self._row_weights(windows, starts, slice_len)
        chosen = present.gather(1, place).squeeze(-1)
        if self.reduction == "max":
            drawn = weights.gather(1, place)
            is_before = torch.arange(slice_len, device=starts.device) < place
            larger = (weights > drawn) | ((weights == drawn) & is_before)
            chosen &= ~(larger & present).any(-1)
        return chosen

    def _explain_empty(self, windows: EpisodeWindows, slice_len: int) -> str:
        if self.tree.total > 0:
            return super()._explain_empty(windows, slice_len)
        return "no slice can be drawn by priority: all priorities are 0"

    def _draw(
        self, windows: EpisodeWindows, slice_len: int, count: int, generator: torch.Generator | None
    ) -> tuple[Tensor | None, dict[Any, Tensor]]:
        tree, rows = self.tree, windows.rows
        if not tree.total > 0:
            return None, {}

        def propose(size: int) -> Tensor:
            position = rows.position(tree.sample(size, generator))
            place = torch.randint(slice_len, (size,), device=position.device, generator=generator)
            time, column = rows.split(position)
            return rows.join(time - place, column) * slice_len + place

        def draw_exhaustively(size: int) -> Tensor | None:
            weights = for_all(len(rows), lambda starts: self.weights(windows, starts, slice_len), rows.device)
            starts = draw_weighted(weights, size, generator)
            return None if starts is None else starts * slice_len

        proposals = draw_valid(
            count,
            len(rows),
            propose=propose,
            is_valid=lambda proposals: self._is_chosen(windows, proposals, slice_len),
            draw_exhaustively=draw_exhaustively,
        )
        if proposals is None:
            return None, {}
        starts = proposals // slice_len
        # (N P(i)) ** -beta divided by the batch's largest: N and the sum of all weights cancel out.
        weights = self.weights(windows, starts, slice_len)
        weights = (weights / weights.min()) ** -self.beta
        return starts, {"priority_weight": weights.float().repeat_interleave(slice_len)}


class PrioritizedEpisodeSliceSampler(PrioritizedRows, SliceSamplerByWeight):
    """Draws slices of one episode in proportion to the mean or the largest ``priority ** alpha`` of their rows.

    It replaces :class:`~torchrl.data.PrioritizedSliceSampler` in any :class:`~torchrl.data.TensorDictReplayBuffer`.
    TorchRL's class needs a compiled extension that does not load on the torch version with which this package is
    tested, and it draws a slice by the priority of its first row only. Each row has a priority
    (https://arxiv.org/abs/1511.05952). It is set by ``buffer.update_tensordict_priority(batch)``, with one number per
    row under ``"td_error"``, or by ``buffer.update_priority(index, priority)``. A new row gets the largest priority so
    far. With ``num_frames`` the batch's ``"index"`` has a row for each frame of a stack, of which TorchRL takes the
    oldest: put ``batch["index"] = batch["index"][:, -1]``, the newest, before ``update_tensordict_priority(batch)``.

    For the slices of a :class:`~mcurl_torchrl.FrameReplayBuffer` call its method
    ``slices(..., priority="mean")``, which uses the priorities of its transitions.

    Args:
        slice_len (int, optional): the number of rows in a slice.
        num_slices (int, optional): the number of slices in a batch.

    Keyword Args:
        alpha (float): the exponent; 0 is uniform. Defaults to 0.5.
        beta (float): how far importance weights correct for the unequal probabilities, from 0 to 1. Set ``beta`` on the
            sampler to anneal it. Defaults to 0.4.
        eps (float): added to every priority. Defaults to 1e-8.
        reduction (str): ``"max"`` or ``"mean"``, the priority of a slice from those of its rows. Defaults to ``"max"``.
        options: the other arguments of :class:`~mcurl_torchrl.EpisodeSliceSampler`, except for ``span``.

    A batch has ``"priority_weight"``, equal on all rows of a slice: ``P ** -beta`` divided by the largest one of the
    batch, where ``P`` is the probability of the slice.

    Raises:
        ValueError: on a negative ``alpha`` or ``eps``, a ``beta`` outside of [0, 1], an unknown ``reduction``, and on
            ``span``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> from mcurl_torchrl.replay import PrioritizedEpisodeSliceSampler
        >>> sampler = PrioritizedEpisodeSliceSampler(slice_len=4, reduction="mean")
        >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler, batch_size=8)
        >>> _ = buffer.extend(TensorDict({"episode": torch.zeros(20), "observation": torch.arange(20)}, [20]))
        >>> buffer.update_priority(torch.arange(20), torch.zeros(20))
        >>> buffer.update_priority(torch.tensor([7]), torch.tensor([1.0]))
        >>> slices = buffer.sample().reshape(2, 4)
        >>> bool((slices["observation"] == 7).any(1).all())
        True
    """

    def __init__(
        self,
        slice_len: int | None = None,
        num_slices: int | None = None,
        *,
        alpha: float = 0.5,
        beta: float = 0.4,
        eps: float = 1e-8,
        reduction: str = "max",
        **options: Any,
    ) -> None:
        PrioritizedRows.__init__(self, alpha, beta, eps)
        SliceSamplerByWeight.__init__(self, slice_len, num_slices, **options)
        self.reduction = check_choice("reduction", reduction, REDUCTIONS)
        if any(self.span):
            raise ValueError(
                f"span={self.span}; a slice over an episode's edge has no rows there whose priorities could count. "
                f"(PrioritizedSliceSampler turns the left part of span off.) Use strict_length=False for short episodes"
            )

    # TorchRL's buffers call these with an index in the form of the storage. Their writers call mark_update for every
    # row that they write, before they call add or extend.

    def add(self, index: Any) -> None:
        """Does nothing: the row has its priority from :meth:`mark_update`."""

    def extend(self, index: Any) -> None:
        """Does nothing: the rows have their priority from :meth:`mark_update`."""

    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        """Gives rows that were written the largest weight so far."""
        PrioritizedRows.extend(self, self._flat(index, storage))

    def update_priority(self, index: Any, priority: Any, *, storage: Storage | None = None) -> None:
        """Sets the priorities of rows at a storage index: one for each, or one for all."""
        flat = self._flat(index, storage)
        priority = torch.as_tensor(priority).reshape(-1)
        if priority.numel() not in (1, flat.numel()):
            raise ValueError(
                f"got {priority.numel()} priorities for {flat.numel()} rows; give one for each row, or one for all"
            )
        super().update_priority(flat, priority.expand(flat.shape))

    def _flat(self, index: Any, storage: Storage | None) -> Tensor:
        """Turns a storage index into flat rows, and makes the tree if there is none."""
        if storage is None:
            raise TypeError("a PrioritizedEpisodeSliceSampler needs storage=; let the buffer call it")
        shape = internals.stored(storage).shape[: storage.ndim]
        parts = index if isinstance(index, (tuple, list)) else torch.as_tensor(index)
        if storage.ndim > 1:
            parts = parts.unbind(-1) if isinstance(parts, Tensor) else parts
            flat = torch.zeros_like(torch.as_tensor(parts[0]))
            for size, part in zip(shape, parts, strict=True):
                flat = flat * size + part
        else:
            flat = torch.as_tensor(parts)
        device = internals.stored(storage).device or torch.device("cpu")
        self.make_tree(shape.numel(), device)
        return flat.reshape(-1).to(device)

    @property
    def default_priority(self) -> float:
        """The priority of new rows: the largest so far, at first 1."""
        return max(self._max_weight ** (1 / self.alpha) - self.eps, 0.0) if self.alpha > 0 else 1.0

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(slice_len={self.slice_len}, num_slices={self.num_slices}, alpha={self.alpha}, "
            f"beta={self.beta}, reduction={self.reduction!r})"
        )


# TorchRL's buffers pass priorities only to samplers of this class. The class itself cannot be the base class: it needs
# the compiled tree.
PrioritizedSampler.register(PrioritizedEpisodeSliceSampler)
