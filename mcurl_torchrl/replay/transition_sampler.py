"""Samplers of the rows of a frame replay that start a transition: uniformly or by priority."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.replay import torchrl_internals as internals
from mcurl_torchrl.replay.drawing import (
    WindowSampler,
    draw_uniform,
    draw_valid,
    draw_weighted,
    for_all,
    refusal,
)
from mcurl_torchrl.replay.priorities import PrioritizedRows
from mcurl_torchrl.replay.transitions import FrameTransitions
from mcurl_torchrl.replay.windows import Rows

__all__ = ["PrioritizedTransitionSampler", "TransitionSampler", "bind_sampler"]


class TransitionSampler(WindowSampler):
    """Draws rows that start a transition, each with the same probability.

    The :class:`~mcurl_torchrl.FrameReplayBuffer` that gets the sampler decides the shape of the transitions
    (``num_frames``, ``n_step``).

    Examples:
        >>> from mcurl_torchrl import FrameReplayBuffer
        >>> from mcurl_torchrl.replay import TransitionSampler
        >>> from torchrl.data import LazyTensorStorage
        >>> buffer = FrameReplayBuffer(storage=LazyTensorStorage(100), sampler=TransitionSampler(), batch_size=4)
    """

    num_frames: int = 1
    n_step: int = 1
    _is_bound = False

    def bind(self, num_frames: int, n_step: int) -> None:
        """Takes a buffer's settings; a sampler serves one buffer only."""
        if self._is_bound:
            raise ValueError(f"this {type(self).__name__} serves a buffer already; give each buffer another sampler")
        self.num_frames, self.n_step, self._is_bound = num_frames, n_step, True

    def transitions(self, storage: Storage) -> FrameTransitions:
        """Returns the transitions in ``storage``."""
        return FrameTransitions(Rows(storage), num_frames=self.num_frames, n_step=self.n_step)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Any, dict[str, Tensor]]:
        """Refuses: only the buffer of this sampler, which calls :meth:`draw`, makes transitions of rows."""
        raise RuntimeError(refusal(self))

    def draw(self, storage: Storage, batch_size: int) -> tuple[Tensor | tuple[Tensor, ...], dict[str, Tensor]]:
        """Draws rows; returns their storage index, and other values to add to the batch."""
        batch_size = check_count("batch_size", batch_size)
        transitions = self.transitions(storage)
        anchors, info = self._draw(transitions, batch_size, internals.generator_of(self))
        if anchors is None:
            raise RuntimeError(self._explain_empty(transitions))
        return transitions.rows.to_index(anchors), info

    def _draw(
        self, transitions: FrameTransitions, count: int, generator: torch.Generator | None
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        rows = transitions.rows
        return draw_uniform(count, len(rows), transitions.valid, device=rows.device, generator=generator), {}

    def _find_one(self, rows: Rows, batch_size: int, generator: torch.Generator) -> Tensor | None:
        return self._draw(self.transitions(rows.storage), 1, generator)[0]

    def _count(self, rows: Rows, batch_size: int) -> int:
        return int(for_all(len(rows), self.transitions(rows.storage).valid, rows.device).sum())

    def _explain_empty(self, transitions: FrameTransitions) -> str:
        return transitions.explain_empty()

    def check_state(self, state_dict: dict[str, Any]) -> None:
        """Makes sure that a saved state fits, before it is loaded.

        Raises:
            ValueError: if it was saved by another kind of sampler, or with other settings.
        """
        if state_dict["type"] != type(self).__name__:
            raise ValueError(f"it was saved with a {state_dict['type']}; this one has a {type(self).__name__}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_frames={self.num_frames}, n_step={self.n_step})"


class PrioritizedTransitionSampler(PrioritizedRows, TransitionSampler):
    """Draws rows that start a transition in proportion to ``priority ** alpha`` (https://arxiv.org/abs/1511.05952).

    A new row gets the largest priority so far, at first 1. A row that cannot start a transition (yet) is replaced by
    another draw, so the probability of a valid row is its share among the valid rows.

    TorchRL's :class:`~torchrl.data.PrioritizedSampler` needs a compiled extension that does not load on the torch
    version with which this package is tested, and it cannot exclude rows. This sampler uses a
    :class:`~mcurl_torchrl.replay.SumTree`.

    Args:
        alpha (float): the exponent; 0 is uniform. Defaults to 0.5.
        beta (float): how far importance weights correct for the unequal probabilities, from 0 to 1 (in full). Set
            ``beta`` on the sampler to anneal it. Defaults to 0.4.

    Keyword Args:
        eps (float): added to every priority, so that a transition can be drawn again after a loss of 0. Defaults to
            1e-8, as in TorchRL.

    A batch has ``"priority_weight"``: ``p ** (-alpha * beta)`` divided by the largest one of the batch.

    Raises:
        ValueError: on a negative ``alpha`` or ``eps``, or a ``beta`` outside of [0, 1].

    Examples:
        >>> from mcurl_torchrl import FrameReplayBuffer, PrioritizedTransitionSampler
        >>> from torchrl.data import LazyTensorStorage
        >>> sampler = PrioritizedTransitionSampler(alpha=0.5, beta=0.4)
        >>> buffer = FrameReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler, batch_size=4)
        >>> sampler.beta = 0.7  # later in training
    """

    def __init__(self, alpha: float = 0.5, beta: float = 0.4, *, eps: float = 1e-8) -> None:
        super().__init__(alpha, beta, eps)

    def _draw(
        self, transitions: FrameTransitions, count: int, generator: torch.Generator | None
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        tree = self.tree

        def draw_exhaustively(size: int) -> Tensor | None:
            valid = for_all(len(transitions.rows), transitions.valid, transitions.rows.device)
            return draw_weighted(tree.weights[: len(valid)] * valid, size, generator)

        if not tree.total > 0:
            return None, {}
        anchors = draw_valid(
            count,
            len(transitions.rows),
            propose=lambda size: tree.sample(size, generator),
            is_valid=transitions.valid,
            draw_exhaustively=draw_exhaustively,
        )
        if anchors is None:
            return None, {}
        # (N P(i)) ** -beta divided by the batch's largest: N and the sum of all priorities cancel out.
        weight = tree[anchors]
        weight = (weight / weight.min()) ** -self.beta
        return anchors, {"priority_weight": weight.float()}

    def check_state(self, state_dict: dict[str, Any]) -> None:
        """Makes sure that a saved state fits, before it is loaded."""
        TransitionSampler.check_state(self, state_dict)
        PrioritizedRows.check_state(self, state_dict)

    def dumps(self, path: Any) -> None:
        """Does nothing: the buffer saves the priorities."""

    def loads(self, path: Any) -> None:
        """Does nothing: the buffer loads the priorities."""

    def _explain_empty(self, transitions: FrameTransitions) -> str:
        valid = for_all(len(transitions.rows), transitions.valid, transitions.rows.device)
        if valid.any():
            return f"no transition can be drawn: the priorities of all {int(valid.sum())} valid rows are 0"
        return super()._explain_empty(transitions)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(alpha={self.alpha}, beta={self.beta})"


def bind_sampler(sampler: Any, num_frames: int, n_step: int) -> TransitionSampler:
    """Gives a sampler the shape of a buffer's transitions, and returns the sampler.

    Raises:
        TypeError: if it is not a sampler of transitions.
        ValueError: if another buffer uses it.
    """
    if not isinstance(sampler, TransitionSampler):
        raise TypeError(
            f"sampler must be a TransitionSampler or a PrioritizedTransitionSampler; got {type(sampler).__name__}. "
            f"For slices call .slices(num_slices=..., slice_len=...)"
        )
    sampler.bind(num_frames, n_step)
    return sampler
