"""Drawing valid rows, uniformly or in proportion to weights, at a cost that does not grow with the buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage

from mcurl_torchrl.replay.windows import Rows

__all__ = ["WindowSampler", "draw_uniform", "draw_valid", "draw_weighted", "for_all", "refusal"]

# Rejection proposes this many rows at first, four times more each round, and at most _MAX_PROPOSALS altogether. If more
# proposals are needed than that, or than there are rows, one scan of all rows finds the valid ones.
_FIRST_ROUND = 32
_MAX_PROPOSALS = 65_536
_SCAN_CHUNK = 65_536


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


def for_all(num_rows: int, function: Callable[[Tensor], Tensor], device: torch.device) -> Tensor:
    """Evaluates a function on the rows 0..num_rows-1, in chunks, which limits the memory."""
    chunks = torch.arange(num_rows, device=device).split(_SCAN_CHUNK)
    return torch.cat([function(chunk) for chunk in chunks])


def draw_weighted(weights: Tensor, count: int, generator: torch.Generator | None) -> Tensor | None:
    """Draws ``count`` indices in proportion to float64 ``weights``; None if all weights are 0."""
    sums = weights.cumsum(0)
    if not sums[-1] > 0:
        return None
    mass = torch.rand(count, dtype=torch.float64, device=sums.device, generator=generator) * sums[-1]
    mass = torch.minimum(mass, torch.nextafter(sums[-1], torch.zeros_like(sums[-1])))
    return torch.searchsorted(sums, mass, right=True)


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
        candidates = for_all(num_rows, is_valid, device).nonzero().squeeze(-1)
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

    def _find_one(self, rows: Rows, batch_size: int, generator: torch.Generator) -> Tensor | None:
        """Draws one valid row, or returns None if there is none."""
        raise NotImplementedError

    def _count(self, rows: Rows, batch_size: int) -> int:
        """Counts the rows or slices that can be drawn; it reads all rows."""
        raise NotImplementedError

    def can_sample(self, storage: Storage, batch_size: int) -> bool:
        """Returns whether a row or slice can be drawn; no random number of the buffer's generator is used."""
        if not len(storage):
            return False
        rows = Rows(storage)
        return self._find_one(rows, batch_size, torch.Generator(rows.device).manual_seed(0)) is not None

    def _sampleable_count(self, storage: Storage, batch_size: int) -> int:
        return self._count(Rows(storage), batch_size) if len(storage) else 0

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


def refusal(sampler: Sampler) -> str:
    """Returns the error message for a sampler of a frame replay that another buffer calls."""
    return (
        f"this {type(sampler).__name__} serves its FrameReplayBuffer alone: rows are single frames, and only that "
        f"buffer makes observations of them. A ReplayBufferEnsemble or another buffer would read rows as they are; "
        f"sample from each buffer and join the batches, as in torch.cat([first.sample(), second.sample()])"
    )
