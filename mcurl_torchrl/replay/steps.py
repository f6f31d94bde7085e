"""Steps in TorchRL's layout, checked before a frame replay writes any of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor

from mcurl_torchrl.replay.rows import leaf_keys

__all__ = ["DONE_KEY", "REWARD_KEY", "TERMINATED_KEY", "TRUNCATED_KEY", "StepReader", "Steps"]

REWARD_KEY: NestedKey = ("next", "reward")
TERMINATED_KEY: NestedKey = ("next", "terminated")
TRUNCATED_KEY: NestedKey = ("next", "truncated")
DONE_KEY: NestedKey = ("next", "done")
_TRAJ_IDS_KEY: NestedKey = ("collector", "traj_ids")
_IS_INIT_KEY: NestedKey = "is_init"


@dataclass
class Steps:
    """Checked steps, time first: each tensor is ``[time, columns, ...]``."""

    frames: Tensor
    next_frames: Tensor
    values: dict[NestedKey, Tensor]
    terminated: Tensor
    truncated: Tensor
    # What the data itself says of where episodes begin, where it says something.
    is_init: Tensor | None
    traj_ids: Tensor | None


@dataclass(frozen=True)
class StepReader:
    """Reads steps out of tensordicts; errors name the key, what came and what was expected."""

    pixels_key: NestedKey
    action_key: NestedKey
    extra_keys: Sequence[NestedKey]
    num_frames: int
    frame_dtype: torch.dtype

    @property
    def stored_keys(self) -> tuple[NestedKey, ...]:
        """What is stored of a step."""
        return (self.pixels_key, self.action_key, *self.extra_keys, REWARD_KEY, TERMINATED_KEY, TRUNCATED_KEY)

    @property
    def next_pixels_key(self) -> NestedKey:
        """Where a step has the observation that it led to."""
        return unravel_key(("next", self.pixels_key))

    def read(self, data: TensorDictBase, device: torch.device) -> Steps:
        """Reads steps ``[time]`` or ``[time, environments]``.

        Raises:
            KeyError: if a key is missing.
            ValueError: if a shape or a dtype is wrong.
        """
        frames, next_frames = (
            self._newest_frame(key, self._require(data, key)) for key in (self.pixels_key, self.next_pixels_key)
        )
        if frames.shape != next_frames.shape:
            raise ValueError(
                f"{self.next_pixels_key!r} must have the shape of {self.pixels_key!r}, {tuple(frames.shape[2:])}; "
                f"got {tuple(next_frames.shape[2:])}"
            )
        values = {key: self._require(data, key) for key in (self.action_key, *self.extra_keys, REWARD_KEY)}
        if values[REWARD_KEY][0, 0].numel() != 1:
            raise ValueError(
                f"{REWARD_KEY!r} must be one number per step; got shape {tuple(values[REWARD_KEY].shape[2:])} per step"
            )
        values[REWARD_KEY] = values[REWARD_KEY].flatten(1)[..., None]

        terminated = self._flag(TERMINATED_KEY, self._require(data, TERMINATED_KEY))
        truncated, done, is_init = (
            None if (value := self._find(data, key)) is None else self._flag(key, value)
            for key in (TRUNCATED_KEY, DONE_KEY, _IS_INIT_KEY)
        )
        if truncated is None and done is None:
            raise KeyError(f"a step must have {TRUNCATED_KEY!r} or {DONE_KEY!r}; it has {leaf_keys(data)}")
        truncated = torch.zeros_like(terminated) if truncated is None else truncated
        if done is not None:
            truncated = truncated | (done & ~terminated)
        traj_ids = self._find(data, _TRAJ_IDS_KEY)
        return Steps(
            frames=frames.to(device),
            next_frames=next_frames.to(device),
            values={key: value.to(device) for key, value in values.items()},
            terminated=terminated.to(device),
            truncated=truncated.to(device),
            is_init=None if is_init is None else is_init.to(device),
            traj_ids=None if traj_ids is None else traj_ids.flatten(1).to(device, torch.int64),
        )

    @staticmethod
    def _find(data: TensorDictBase, key: NestedKey) -> Tensor | None:
        """Returns the value under ``key`` as ``[time, columns, ...]``, or None."""
        value = data.get(key, None)
        return None if value is None else value.reshape(len(data), -1, *value.shape[data.ndim :])

    def _require(self, data: TensorDictBase, key: NestedKey) -> Tensor:
        value = self._find(data, key)
        if value is None:
            raise KeyError(f"a step must have {key!r}; it has {leaf_keys(data)}")
        return value

    @staticmethod
    def _flag(key: NestedKey, value: Tensor) -> Tensor:
        if value[0, 0].numel() != 1 or value.dtype != torch.bool:
            raise ValueError(
                f"{key!r} must be one bool per step; got {value.dtype} of shape {tuple(value.shape[2:])} per step"
            )
        return value.flatten(1)

    def _newest_frame(self, key: NestedKey, pixels: Tensor) -> Tensor:
        if pixels.dtype != self.frame_dtype:
            hint = "; keep pixels uint8, they are scaled in the encoder" if self.frame_dtype == torch.uint8 else ""
            raise ValueError(f"{key!r} must be {self.frame_dtype}; got {pixels.dtype}{hint}")
        if pixels.ndim < 3 or pixels.shape[2] % self.num_frames:
            raise ValueError(
                f"{key!r} must be a stack of {self.num_frames} frames along the channels (or stacked_input=False); "
                f"got shape {tuple(pixels.shape[2:])} per step"
            )
        return pixels[:, :, -(pixels.shape[2] // self.num_frames) :]
