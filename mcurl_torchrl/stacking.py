"""Observations of K frames: stacked while an episode goes on, or rebuilt from rows that hold one frame each.

Environments, the replay buffer and the transform ``StackFrames`` all stack with :func:`stack_frames`, so that a policy
learns from the same observations with which it acts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mcurl_torchrl.checks import check_choice, check_count

__all__ = ["PADDINGS", "FrameStack", "stack_frames"]

PADDINGS = ("repeat", "zeros")


def stack_frames(
    frames: Tensor, dim: int, *, step: Tensor | None = None, padding: str = "repeat", inplace: bool = False
) -> Tensor:
    """Merges K frames, oldest first, into one observation along the channels.

    Args:
        frames (torch.Tensor): ``[*, K, C, ...]``.
        dim (int): the dimension of size K.

    Keyword Args:
        step (torch.Tensor, optional): ``[*]``, the number of steps from the start of the episode to the newest frame.
            Frames from before step 0 are replaced by padding. None: no frame is replaced.
        padding (str): ``"repeat"`` (the episode's first frame) or ``"zeros"``. Defaults to ``"repeat"``.
        inplace (bool): whether padding may overwrite ``frames``. Defaults to False.

    Returns:
        ``[*, K * C, ...]``.

    Raises:
        ValueError: if the padding is unknown.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.stacking import stack_frames
        >>> frames = torch.tensor([7, 8, 9]).view(1, 3, 1, 1, 1)
        >>> stack_frames(frames, 1, step=torch.tensor([1])).flatten().tolist()
        [8, 8, 9]
        >>> stack_frames(frames, 1, step=torch.tensor([1]), padding="zeros").flatten().tolist()
        [0, 8, 9]
    """
    check_choice("padding", padding, PADDINGS)
    if step is not None:
        num_frames = frames.shape[dim]
        missing = (num_frames - 1 - step).clamp(min=0)
        short = (missing > 0).nonzero(as_tuple=True)
        if len(short[0]):
            position = torch.arange(num_frames, device=frames.device)
            missing, padded = missing[short][:, None], frames[short]
            if padding == "repeat":
                padded = padded[
                    torch.arange(len(padded), device=frames.device)[:, None], torch.maximum(position, missing)
                ]
            else:
                padded[position < missing] = 0
            frames = frames if inplace else frames.clone()
            frames[short] = padded
    return frames.flatten(dim, dim + 1)


class FrameStack:
    """Keeps the newest K frames of running episodes and stacks them into observations.

    Args:
        num_frames (int): K.

    Keyword Args:
        padding (str): the frames from before an episode, ``"repeat"`` (its first frame) or ``"zeros"``. Defaults to
            ``"repeat"``.
        batch_size (sequence of int): the batch dimensions ``[*]`` of the frames, one episode each. Defaults to none.

    Raises:
        ValueError: if ``num_frames`` is below 1 or the padding is unknown.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.stacking import FrameStack
        >>> stack = FrameStack(3, padding="zeros")
        >>> [stack.push(torch.tensor([frame])).tolist() for frame in (7, 8, 9)]
        [[0, 0, 7], [0, 7, 8], [7, 8, 9]]
        >>> stack.clear()
        >>> stack.push(torch.tensor([5])).tolist()
        [0, 0, 5]
    """

    def __init__(self, num_frames: int, *, padding: str = "repeat", batch_size: Sequence[int] = ()) -> None:
        self.num_frames = check_count("num_frames", num_frames)
        self.padding = check_choice("padding", padding, PADDINGS)
        # A single episode is a batch of one.
        self._batch = torch.Size(batch_size) or torch.Size([1])
        self._is_single = not batch_size
        self._frames: Tensor | None = None  # [*, K, C, ...]
        self._step = torch.zeros(self._batch, dtype=torch.int64)

    def clear(self) -> None:
        """Ends all episodes: the next frames are first frames."""
        self._frames = None

    def push(self, frame: Tensor) -> Tensor:
        """Adds the next frame ``[*, C, ...]`` of each episode; returns the observations ``[*, K * C, ...]``."""
        if self._frames is None:
            return self.begin(frame)
        newest = frame[None] if self._is_single else frame
        # Frame by frame: torch splits a copy of a whole stack over its threads, and waits for them.
        older = self._frames.unbind(len(self._batch))[1:]
        self._frames = torch.stack([*older, newest], len(self._batch))
        self._step = self._step + 1
        return self._observations()

    def begin(self, frame: Tensor, begins: Tensor | None = None) -> Tensor:
        """Begins episodes with their first frames ``[*, C, ...]``; returns all observations, ``[*, K * C, ...]``.

        Args:
            frame (torch.Tensor): the frames.
            begins (torch.Tensor, optional): bool ``[*]``, False where an episode goes on and its frames stay as they
                are. Defaults to None: all episodes begin.
        """
        newest = frame[None] if self._is_single else frame
        dim = len(self._batch)
        frames = newest.unsqueeze(dim).repeat_interleave(self.num_frames, dim)
        step = torch.zeros(self._batch, dtype=torch.int64, device=frame.device)
        if begins is not None and self._frames is not None:
            begins = begins.reshape(self._batch)
            frames = torch.where(begins.reshape(*self._batch, *[1] * (frames.ndim - dim)), frames, self._frames)
            step = torch.where(begins, step, self._step)
        self._frames, self._step = frames, step
        return self._observations()

    def _observations(self) -> Tensor:
        assert self._frames is not None
        stacked = stack_frames(self._frames, len(self._batch), step=self._step, padding=self.padding)
        return stacked[0] if self._is_single else stacked
