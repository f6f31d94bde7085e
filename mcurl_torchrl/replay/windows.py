"""Which stretches of rows lie inside one episode, and how to draw them with equal probability."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict.utils import NestedKey
from torch import Tensor

from mcurl_torchrl.replay.rows import Rows

__all__ = ["EpisodeWindows", "all_valid", "draw_uniform", "draw_valid"]

# Rejection proposes this many rows at first, four times more each round, no more than _MAX_PROPOSALS in all: what is
# rarer than that, and whatever takes more proposals than there are rows, is found by looking at all rows once.
_FIRST_ROUND = 32
_MAX_PROPOSALS = 65_536
_SCAN_CHUNK = 65_536


class EpisodeWindows:
    """Tells which windows of consecutive rows lie inside one episode, from whatever the storage knows of episodes.

    Row ``i`` *continues* row ``i - 1`` if no piece of evidence says otherwise: both carry the same trajectory id, the
    step grows by one, the earlier row is no episode's end, and the ring's seam is not between them. A window is valid
    if each of its rows continues the one before. With ids that are never used twice and a step (``unique_ids=True``,
    the layout of :class:`~mcurl_torchrl.FrameReplayBuffer`), comparing the window's two ends decides the same.

    Args:
        rows (Rows): the stored rows.

    Keyword Args:
        traj_key (NestedKey, optional): one integer per row, equal within an episode; negative where nothing is stored.
        step_key (NestedKey, optional): the row's number in its episode, from 0.
        end_key (NestedKey, optional): a flag on the last row of an episode.
        seam (int, optional): the time of the oldest row of a full ring (0 while it is not full): no window may go
            from the row before it to this row. Not needed with ``unique_ids``.
        unique_ids (bool): trajectory ids are never used twice, and a step is stored.
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
        """Tells whether the row at ``time`` goes on with the episode of the row before it."""
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
            How many of them belong to the same episode, and whether that is all there ever was: False where earlier
            rows of the episode existed but were overwritten; how many there are is then not known.
        """
        time, column = self.rows.split(start)
        if length == 0:
            return torch.zeros_like(start), torch.ones_like(start, dtype=torch.bool)
        if self._unique_ids:
            # The step says how many there were; the earliest of them says whether they are there still.
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
        """Lists the rows of windows, each led by ``before`` earlier rows.

        Returns:
            Flat rows, ``[len(start), before + length]``; the episode's first row stands for what would be earlier.
        """
        available, _ = self.history(start, before)
        time, column = self.rows.split(start)
        offsets = torch.arange(-before, length, device=start.device)
        offsets = torch.maximum(offsets, -available[:, None])
        return self.rows.join(time[:, None] + offsets, column[:, None])

    def longest(self) -> int:
        """Returns the largest number of consecutive rows of one episode, by looking at all rows."""
        time = torch.arange(self.rows.num_rows, device=self.rows.device)
        best = 0
        for column in range(self.rows.num_columns):
            linked = self.continues(time, torch.full_like(time, column))
            written = self.valid(self.rows.join(time, torch.full_like(time, column)), 1)
            # Walk the ring from its first break, so that a run over the array's end is counted as one.
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
    """Draws ``count`` valid rows: proposals are rejected until enough are valid, then one exact draw gives the rest.

    Keeping the valid ones among independent proposals leaves the proposal's own probabilities, restricted to what is
    valid: uniform proposals give each valid row the same chance, whatever the buffer looks like.

    Args:
        count (int): how many rows to draw, with replacement.
        num_rows (int): how many rows there are to look at.

    Keyword Args:
        propose (callable): draws that many rows.
        is_valid (callable): tells which rows are valid.
        draw_exhaustively (callable): draws that many valid rows by looking at all; None if there is no valid row.

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
    """Evaluates ``is_valid`` on the rows 0..num_rows-1, some at a time to bound the memory."""
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
