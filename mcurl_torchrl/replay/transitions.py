"""FrameTransitions: finds the rows of a frame replay that start an n-step transition, and reads the transitions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict.utils import NestedKey
from torch import Tensor

from mcurl_torchrl.replay.step_reader import DONE_KEY, REWARD_KEY, TERMINATED_KEY, TRUNCATED_KEY
from mcurl_torchrl.replay.windows import FINAL_KEY, STEP_KEY, TRAJECTORY_KEY, EpisodeWindows, Rows

__all__ = ["FrameTransitions", "FrameWindows"]


class FrameWindows(EpisodeWindows):
    """The windows in the rows of a frame replay.

    Args:
        rows (Rows): rows in the layout that :mod:`mcurl_torchrl.replay.windows` describes.

    Keyword Args:
        num_frames (int): the frames of an observation. Defaults to 1.
    """

    def __init__(self, rows: Rows, *, num_frames: int = 1) -> None:
        self.num_frames = num_frames
        self.trajectory, self.step = rows.scalars(TRAJECTORY_KEY), rows.scalars(STEP_KEY)
        super().__init__(rows, trajectory=self.trajectory, step=self.step, unique_ids=True, has_unwritten=True)

    def slices_at(self, starts: Tensor, slice_len: int) -> tuple[Tensor, Tensor]:
        """Lists the rows of the slices that begin at flat rows, padded after an episode's end with its last row.

        Returns:
            Flat rows ``[slices, slice_len, num_frames]``, and which of these observations are part of the slice with
            all their frames, ``[slices, slice_len]``.

        Raises:
            IndexError: if a start is outside of the written part of the storage.
        """
        outside = (starts < 0) | (starts >= len(self.rows))
        if outside.any():
            raise IndexError(f"row {int(starts[outside][0])} is outside of the {len(self.rows)} rows stored")
        lengths = self.run_length(starts, slice_len)[:, None]
        offsets = torch.arange(slice_len, device=starts.device).expand(len(starts), -1)
        around = self.expand(starts, slice_len, self.num_frames - 1).unfold(1, self.num_frames, 1)
        flat = around[torch.arange(len(starts), device=starts.device)[:, None], torch.minimum(offsets, lengths - 1)]
        newest = flat[..., -1].flatten()
        whole = self.valid(newest, 1) & self.history(newest, self.num_frames - 1)[1]
        return flat, (offsets < lengths) & whole.view_as(offsets)


class FrameTransitions:
    """The n-step transitions in the rows of a frame replay.

    Args:
        rows (Rows): rows in the layout that :mod:`mcurl_torchrl.replay.windows` describes.

    Keyword Args:
        num_frames (int): the frames of an observation.
        n_step (int): the steps of a transition; fewer where the episode ends earlier.
    """

    def __init__(self, rows: Rows, *, num_frames: int, n_step: int) -> None:
        self.rows = rows
        self.num_frames = num_frames
        self.n_step = n_step
        self.windows = FrameWindows(rows, num_frames=num_frames)
        self._trajectory, self._step = self.windows.trajectory, self.windows.step
        self._final = rows.scalars(FINAL_KEY)

    def steps_ahead(self, anchors: Tensor) -> Tensor:
        """Counts the rows after each flat row that belong to the same episode, up to ``n_step``."""
        time, column = self.rows.split(anchors)
        offsets = torch.arange(1, self.n_step + 1, device=anchors.device)
        later = self.rows.join(time[:, None] + offsets, column[:, None])
        same = self._trajectory[later] == self._trajectory[anchors][:, None]
        # Around the ring, older rows of the same episode may follow: their steps differ.
        same &= self._step[later] == self._step[anchors][:, None] + offsets
        return same.sum(-1)

    def valid(self, anchors: Tensor) -> Tensor:
        """Returns which flat rows start a transition: its frames exist, and its n rewards or the episode's end too."""
        valid = self._trajectory[anchors] >= 0
        ahead = self.steps_ahead(anchors)
        time, column = self.rows.split(anchors)
        ended = self._final[self.rows.join(time + ahead, column)]
        valid &= (ahead > 0) & (ended | (ahead == self.n_step))
        return valid & self.windows.history(anchors, self.num_frames - 1)[1]

    def read(
        self, anchors: Tensor, gamma: float, keys: Sequence[NestedKey] = ()
    ) -> tuple[dict[NestedKey, Tensor], Tensor, Tensor]:
        """Reads transitions, except for their observations.

        Args:
            anchors (torch.Tensor): flat rows that start a transition, ``[N]``.
            gamma (float): the discount of one step.
            keys (sequence of NestedKey): other keys to read. A key under ``"next"`` is a result of a step: it is read
                at the transition's last step, like the flags. Any other key is read at the first step.

        Returns:
            The values of a batch ``[N]``; the flat rows of its observations and then of its next observations,
            ``[2 * N, num_frames]``; and the steps of their newest frames, ``[2 * N]``.
        """
        rows, num_steps = self.rows, self.steps_ahead(anchors)
        around = self.windows.expand(anchors, self.n_step + 1, self.num_frames - 1)
        offsets = torch.arange(self.num_frames, device=anchors.device)
        stack_rows = torch.cat([around[:, : self.num_frames], around.gather(1, num_steps[:, None] + offsets)])
        step = self._step[anchors]

        offsets = torch.arange(self.n_step, device=anchors.device)
        rewards = rows.scalars(REWARD_KEY)[around[:, self.num_frames - 1 : -1]]
        rewards = torch.where(offsets < num_steps[:, None], rewards, 0)
        reward = (rewards * torch.as_tensor(gamma, dtype=rewards.dtype) ** offsets).sum(-1, keepdim=True)
        last = around.gather(1, num_steps[:, None] + self.num_frames - 2)
        terminated, truncated = (rows.scalars(key)[last] for key in (TERMINATED_KEY, TRUNCATED_KEY))
        values: dict[NestedKey, Tensor] = {
            REWARD_KEY: reward,
            TERMINATED_KEY: terminated,
            TRUNCATED_KEY: truncated,
            DONE_KEY: terminated | truncated,
            "steps_to_next_obs": num_steps[:, None],
            TRAJECTORY_KEY: self._trajectory[anchors],
            STEP_KEY: step,
        }
        for key in keys:
            at_end = isinstance(key, tuple) and key[0] == "next"
            values[key] = rows.column(key).index_select(0, last.squeeze(-1) if at_end else anchors)
        return values, stack_rows, torch.cat([step, step + num_steps])

    def explain_empty(self) -> str:
        """Returns the reason why there is no transition."""
        needed = "1 later row" if self.n_step == 1 else f"{self.n_step} later rows"
        return (
            f"no transition can be drawn from {len(self.rows)} rows: it takes a row whose num_frames={self.num_frames} "
            f"frames are stored, and {needed} of its episode or the episode's end; the longest run of rows of one "
            f"episode has {self.windows.longest()} rows"
        )
