"""EpisodeMarks: the keys or tensors that tell the episodes of a storage apart, and the windows inside episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage

from mcurl_torchrl.checks import leaf_keys, warn_caller
from mcurl_torchrl.replay import torchrl_internals as internals
from mcurl_torchrl.replay.windows import LAYOUT_KEYS, STEP_KEY, TRAJECTORY_KEY, EpisodeWindows, OrderedRows, Rows

__all__ = ["EpisodeMarks"]

# The keys to search for, in this order, if no key is given. All keys that are found are used together.
_TRAJ_KEYS: tuple[NestedKey, ...] = (("collector", "traj_ids"), "episode")
_STEP_KEYS: tuple[NestedKey, ...] = ("step_count",)
_END_KEYS: tuple[NestedKey, ...] = (("next", "done"),)


@dataclass
class EpisodeMarks:
    """The keys, or the tensors, that tell episodes apart; see :class:`~mcurl_torchrl.EpisodeSliceSampler`."""

    traj_key: NestedKey | None
    step_key: NestedKey | None
    end_keys: Sequence[NestedKey]
    ends: Tensor | None
    trajectories: Tensor | None
    fragmented: bool
    # The rows in the order of their trajectories, as long as the storage is the same and not written to.
    _ordered: tuple[Storage, int, OrderedRows] | None = field(default=None, repr=False)
    _is_endless: bool | None = field(default=None, repr=False)
    _has_warned: bool = field(default=False, repr=False)

    def windows(self, rows: Rows) -> EpisodeWindows:
        """Returns the windows in ``rows``.

        Raises:
            KeyError: if the storage has none of the keys.
            ValueError: if a given tensor does not have one entry per row.
        """
        if self.ends is not None or self.trajectories is not None:
            return self._given_windows(rows)
        has_layout = all(map(rows.has, LAYOUT_KEYS))
        if has_layout and self.traj_key is None and self.step_key is None and not self.end_keys:
            trajectory, step = rows.scalars(TRAJECTORY_KEY), rows.scalars(STEP_KEY)
            return EpisodeWindows(rows, trajectory=trajectory, step=step, unique_ids=True, has_unwritten=True)
        traj_key, step_key, end_keys = self._find_keys(rows)
        if self.fragmented:
            traj_key, step_key = (
                next(filter(rows.has, options), None) if key is None else key
                for key, options in ((traj_key, _TRAJ_KEYS), (step_key, _STEP_KEYS))
            )
            return self._ordered_windows(rows, traj_key, step_key)
        own_layout = has_layout and traj_key == TRAJECTORY_KEY
        return EpisodeWindows(
            rows,
            trajectory=None if traj_key is None else rows.scalars(traj_key),
            step=None if step_key is None else rows.scalars(step_key),
            ends=[rows.scalars(key) for key in end_keys],
            seam=internals.oldest_time(rows.storage, rows.num_rows),
            has_unwritten=own_layout,
        )

    def _find_keys(self, rows: Rows) -> tuple[NestedKey | None, NestedKey | None, Sequence[NestedKey]]:
        """Returns the keys to use: those that were given, or else those that the storage has."""
        given = [key for key in (self.traj_key, self.step_key, *self.end_keys) if key is not None]
        # If the given trajectory key, or all of the given end keys, are not stored, other keys are searched, as in
        # TorchRL.
        lost = self.traj_key is not None and not rows.has(self.traj_key)
        lost |= self.traj_key is None and bool(self.end_keys) and not any(map(rows.has, self.end_keys))
        if given and not lost:
            # A single end key must be stored; of several end keys, those that are stored are used.
            ends = [key for key in self.end_keys if rows.has(key)] if len(self.end_keys) > 1 else self.end_keys
            return self.traj_key, self.step_key, ends
        traj_key, step_key, end_key = (
            next(filter(rows.has, options), None) for options in (_TRAJ_KEYS, _STEP_KEYS, _END_KEYS)
        )
        step_key = self.step_key or step_key
        found = [key for key in (traj_key, step_key, end_key) if key is not None]
        if not found:
            raise KeyError(
                f"nothing in the storage tells episodes apart: it holds {leaf_keys(rows.data)}; give traj_key, step_key"
                f" or end_key, or store one of {[*_TRAJ_KEYS, *_STEP_KEYS, *_END_KEYS]}"
            )
        if lost and not self._has_warned:
            self._has_warned = True
            warn_caller(f"the storage has none of {given}; episodes are told apart by {found}")
        return traj_key, step_key, () if end_key is None else (end_key,)

    def _given_windows(self, rows: Rows) -> EpisodeWindows:
        """Returns the windows of the given tensors. An episode may continue from the last row to the first."""
        name, given = ("ends", self.ends) if self.trajectories is None else ("trajectories", self.trajectories)
        assert given is not None
        if given.shape not in (torch.Size([len(rows)]), rows.shape):
            raise ValueError(
                f"{name} has shape {tuple(given.shape)}; it must have one entry for each of {len(rows)} rows"
            )
        given = given.reshape(-1).to(rows.device)
        if self.trajectories is not None:
            windows = EpisodeWindows(rows, trajectory=given)
        else:
            windows = EpisodeWindows(rows, ends=[given])
        # A ring without any end would be an endless episode: it begins at the first row then.
        if self._is_endless is None:
            self._is_endless = bool(windows.continues(*rows.split(torch.arange(len(rows), device=rows.device))).all())
        return windows.with_seam(0) if self._is_endless else windows

    def _ordered_windows(self, rows: Rows, traj_key: NestedKey | None, step_key: NestedKey | None) -> EpisodeWindows:
        """Returns windows over rows sorted by trajectory and step, wherever they are in the storage."""
        if traj_key is None or step_key is None:
            raise KeyError(
                f"fragmented=True needs a trajectory key and a step key, to put rows in order; the storage holds "
                f"{leaf_keys(rows.data)}"
            )
        if rows.num_columns > 1:
            raise ValueError(
                "fragmented=True is for storages of ndim=1; with ndim=2 each environment has its own ring, where its "
                "rows follow each other: leave fragmented=False"
            )
        trajectory, step = rows.scalars(traj_key)[: len(rows)], rows.scalars(step_key)[: len(rows)]
        revision = internals.revision(rows.storage)
        if self._ordered is None or self._ordered[0] is not rows.storage or self._ordered[1] != revision:
            by_step = step.argsort(stable=True)
            order = by_step[trajectory[by_step].argsort(stable=True)]
            twice = ((trajectory[order].diff() == 0) & (step[order].diff() == 0)).nonzero()
            if len(twice):
                row = int(order[twice[0]])
                raise RuntimeError(
                    f"fragmented=True needs trajectory ids that are used once; trajectory {trajectory[row].item()} has "
                    f"step {step[row].item()} twice. A new collector starts its ids at 0 again: empty the buffer "
                    f"before, or store ids that differ"
                )
            self._ordered = rows.storage, revision, OrderedRows(rows.storage, order)
        ordered = self._ordered[2]
        return EpisodeWindows(ordered, trajectory=trajectory[ordered.order], step=step[ordered.order], seam=0)
