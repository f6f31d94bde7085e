"""FrameTransitions: which rows of a frame replay start an n-step transition, and reading its rewards."""

from __future__ import annotations

import torch
from tensordict.utils import NestedKey
from torch import Tensor

from mcurl_torchrl.replay.step_reader import DONE_KEY, REWARD_KEY, TERMINATED_KEY, TRUNCATED_KEY
from mcurl_torchrl.replay.windows import FINAL_KEY, STEP_KEY, TRAJECTORY_KEY, EpisodeWindows, Rows

__all__ = ["FrameTransitions"]


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
        self.windows = EpisodeWindows(rows, traj_key=TRAJECTORY_KEY, step_key=STEP_KEY, unique_ids=True)
        self._trajectory = rows.scalars(TRAJECTORY_KEY)
        self._step = rows.scalars(STEP_KEY)
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
        """Tells which flat rows start a transition: its frames exist, and its n rewards or the episode's end too."""
        valid = self._trajectory[anchors] >= 0
        ahead = self.steps_ahead(anchors)
        time, column = self.rows.split(anchors)
        ended = self._final[self.rows.join(time + ahead, column)]
        valid &= (ahead > 0) & (ended | (ahead == self.n_step))
        return valid & self.windows.history(anchors, self.num_frames - 1)[1]

    def read(self, anchors: Tensor, gamma: float) -> tuple[dict[NestedKey, Tensor], Tensor, Tensor]:
        """Reads transitions, except for their observations and actions.

        Args:
            anchors (torch.Tensor): flat rows that start a transition, ``[N]``.
            gamma (float): the discount of one step.

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
        return values, stack_rows, torch.cat([step, step + num_steps])

    def explain_empty(self) -> str:
        """Returns the reason why there is no transition."""
        needed = "1 later row" if self.n_step == 1 else f"{self.n_step} later rows"
        return (
            f"no transition can be drawn from {len(self.rows)} rows: it takes a row whose num_frames={self.num_frames} "
            f"frames are stored, and {needed} of its episode or the episode's end; the longest run of rows of one "
            f"episode has {self.windows.longest()} rows"
        )
