"""StackFrames: observations of K frames from rows that hold one frame each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict import TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torchrl.envs.transforms import Transform

from mcurl_torchrl.checks import check_choice, check_count, require
from mcurl_torchrl.stacking import PADDINGS, stack_frames
from mcurl_torchrl.transforms.keys import is_left_out, paired_keys

__all__ = ["StackFrames"]


class StackFrames(Transform):
    """Rebuilds stacked observations in a replay buffer that stores single frames.

    It is for any :class:`~torchrl.data.TensorDictReplayBuffer` with an :class:`~mcurl_torchrl.EpisodeSliceSampler`,
    which reads each row together with the rows before it (``num_frames``). (:class:`~mcurl_torchrl.FrameReplayBuffer`
    needs no such transform, and reads less.) In an environment use :class:`~torchrl.envs.CatFrames`.

    Reads ``in_keys``, ``[*, K, C, H, W]`` where ``[*, K]`` is the batch size, and ``step_key``, ``[*, K]``; writes
    ``out_keys``, ``[*, K * C, H, W]``, oldest frame first. All other entries keep only their newest row, so that the
    batch size becomes ``[*]``.

    Args:
        num_frames (int): K, the frames of an observation.

    Keyword Args:
        in_keys (sequence of NestedKey): the frames. Defaults to ``["pixels"]``.
        out_keys (sequence of NestedKey, optional): the stacks. Defaults to ``in_keys``.
        padding (str): the frames from before the episode: ``"repeat"``, its first frame, as in DMControl pipelines, or
            ``"zeros"``, as in Atari pipelines. Defaults to ``"repeat"``.
        step_key (NestedKey, optional): the number of a row's step in its episode. None replaces no frame, which is
            right with ``padding="repeat"`` because the sampler already repeats the first row. Defaults to None.

    Raises:
        ValueError: on an unknown padding, on ``padding="zeros"`` without a ``step_key``, or when the last batch
            dimension is not ``num_frames``.
        KeyError: when a key is missing, with the keys of the batch.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> from mcurl_torchrl import EpisodeSliceSampler, StackFrames
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(100),
        ...     sampler=EpisodeSliceSampler(slice_len=5, num_frames=3, traj_key="episode", step_key="step"),
        ...     transform=StackFrames(3),
        ...     batch_size=10,
        ... )
        >>> frames = torch.arange(8, dtype=torch.uint8).view(8, 1, 1, 1).expand(8, 3, 16, 16)
        >>> episode = TensorDict({"pixels": frames, "episode": torch.zeros(8, dtype=torch.int64)}, [8])
        >>> _ = buffer.extend(episode.set("step", torch.arange(8)))
        >>> buffer.sample()["pixels"].shape
        torch.Size([10, 9, 16, 16])
    """

    def __init__(
        self,
        num_frames: int,
        *,
        in_keys: Sequence[NestedKey] | str = ("pixels",),
        out_keys: Sequence[NestedKey] | str | None = None,
        padding: str = "repeat",
        step_key: NestedKey | None = None,
    ) -> None:
        if check_choice("padding", padding, PADDINGS) == "zeros" and step_key is None:
            raise ValueError("padding='zeros' needs a step_key: it tells which frames are from before the episode")
        read, written = paired_keys(in_keys, out_keys)
        super().__init__(in_keys=read, out_keys=written)
        self.num_frames = check_count("num_frames", num_frames)
        self.padding = padding
        self.step_key = None if step_key is None else unravel_key(step_key)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stacks the frames of a batch ``[*, num_frames]``; returns a batch ``[*]``."""
        if not tensordict.ndim or tensordict.shape[-1] != self.num_frames:
            raise ValueError(
                f"StackFrames({self.num_frames}) needs {self.num_frames} rows in the last batch dimension, as "
                f"EpisodeSliceSampler(num_frames={self.num_frames}) gives them; got batch size {list(tensordict.shape)}"
            )
        newest = tensordict[..., -1]
        step = None if self.step_key is None else require(newest, self.step_key, self).reshape(newest.shape)
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            if is_left_out(self, tensordict, in_key):
                continue
            frames = require(tensordict, in_key, self)
            newest.set(out_key, stack_frames(frames, tensordict.ndim - 1, step=step, padding=self.padding))
        return newest

    def _refuse_env(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "StackFrames rebuilds stacks in a replay buffer; in an environment use torchrl.envs.CatFrames"
        )

    _step = _reset = _call = transform_observation_spec = _refuse_env
