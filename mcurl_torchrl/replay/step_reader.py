"""StepReader: reads steps in TorchRL's layout and checks them before a frame replay writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor

from mcurl_torchrl.checks import leaf_keys
from mcurl_torchrl.replay.windows import LAYOUT_KEYS
from mcurl_torchrl.stacking import PADDINGS, stack_frames

__all__ = ["COLUMN_KEY", "DONE_KEY", "REWARD_KEY", "TERMINATED_KEY", "TRUNCATED_KEY", "StepReader", "Steps"]

REWARD_KEY: NestedKey = ("next", "reward")
TERMINATED_KEY: NestedKey = ("next", "terminated")
TRUNCATED_KEY: NestedKey = ("next", "truncated")
DONE_KEY: NestedKey = ("next", "done")
COLUMN_KEY: NestedKey = "column"  # optional: the column of the buffer that a step is for
# Optional keys that tell where an episode begins, and which steps are only padding.
_TRAJ_IDS_KEY: NestedKey = ("collector", "traj_ids")
_STEP_COUNT_KEY: NestedKey = "step_count"
_IS_INIT_KEY: NestedKey = "is_init"
_MASK_KEY: NestedKey = ("collector", "mask")
# Flags and numbers that environments and collectors write with each step; the stored layout has the same information.
_MARKS: set[NestedKey] = {
    *(name for name in ("done", "terminated", "truncated", "is_init", "step_count", COLUMN_KEY)),
    *(("next", name) for name in ("done", "is_init", "step_count", COLUMN_KEY)),
}
# Names that a sampled batch uses for other values.
_RESERVED = {*LAYOUT_KEYS, "index", "steps_to_next_obs", "priority_weight"}
_RESERVED |= {REWARD_KEY, TERMINATED_KEY, TRUNCATED_KEY, DONE_KEY}


@dataclass
class Steps:
    """Checked steps, time first: each tensor is ``[time, columns, ...]``."""

    frames: Tensor
    next_frames: Tensor
    values: dict[NestedKey, Tensor]
    terminated: Tensor
    truncated: Tensor
    # True where the data itself says that an episode begins; and the trajectory ids, if the data has them.
    begins: Tensor
    traj_ids: Tensor | None
    # The frames before the newest of each observation, ``[time, columns, num_frames - 1, channels, ...]``.
    older_frames: Tensor
    # False for steps that are not written; None if all are.
    keep: Tensor | None = None
    # False where ``next_frames`` is only a placeholder, because the data has no next observations; None if it has them.
    next_known: Tensor | None = None

    def select(self, time: int, columns: Tensor) -> Steps:
        """Returns the steps of one time in some columns, all of which are to be written."""

        def part(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: part(entry) for key, entry in value.items()}
            return None if value is None else value[time, columns][None]

        return replace(
            self,
            keep=None,
            **{entry.name: part(getattr(self, entry.name)) for entry in fields(self) if entry.name != "keep"},
        )


@dataclass(frozen=True)
class StepReader:
    """Reads steps from tensordicts; errors name the key, the value and the expected value."""

    pixels_key: NestedKey
    action_key: NestedKey
    extra_keys: Sequence[NestedKey]
    num_frames: int
    padding: str
    frame_dtype: torch.dtype

    def __post_init__(self) -> None:
        keys = [self.pixels_key, self.action_key, *self.extra_keys]
        for key in keys:
            if key in _RESERVED or key == self.next_pixels_key:
                raise ValueError(f"{key!r} cannot be stored under that name: a batch uses it for another value")
        if len(set(keys)) < len(keys):
            raise ValueError(f"pixels_key, action_key and extra_keys must differ; got {keys}")

    @property
    def stored_keys(self) -> tuple[NestedKey, ...]:
        """The keys of a step that are stored."""
        return (self.pixels_key, self.action_key, *self.extra_keys, REWARD_KEY, TERMINATED_KEY, TRUNCATED_KEY)

    @property
    def next_pixels_key(self) -> NestedKey:
        """The key of a step's next observation."""
        return unravel_key(("next", self.pixels_key))

    def dropped_keys(self, data: TensorDictBase) -> list[NestedKey]:
        """Lists the keys of ``data`` that are neither stored nor used to find where episodes begin and end."""
        used = {*self.stored_keys, self.next_pixels_key, _MASK_KEY, _TRAJ_IDS_KEY, *_MARKS}
        return sorted((key for key in leaf_keys(data) if key not in used), key=str)

    def read(self, data: TensorDictBase, device: torch.device, valid: Tensor | None = None) -> Steps:
        """Reads steps ``[time]`` or ``[time, environments]``.

        Args:
            data (TensorDictBase): the steps.
            device (torch.device): where the steps are stored.
            valid (torch.Tensor, optional): False for entries that are not steps, of the shape of ``data``.

        Raises:
            KeyError: if a key is missing.
            ValueError: if a shape or a dtype is wrong, or if a reward is not finite.
        """
        mask = data.get(_MASK_KEY, None)
        if mask is not None and not mask.all():
            raise ValueError(f"{_MASK_KEY!r} says that some steps are padding; give whole steps (split_trajs=False)")
        valid = None if valid is None else valid.reshape(len(data), -1)
        terminated, truncated, begins = self._read_flags(data)
        traj_ids = self._number(data, _TRAJ_IDS_KEY)
        pixels = self._pixels(self.pixels_key, self._require(data, self.pixels_key))
        next_known = None
        if traj_ids is not None and data.get(self.next_pixels_key, None) is None:
            next_pixels, next_known = self._next_pixels(pixels, terminated | truncated, begins, traj_ids)
            # The observation after a truncated step is lost, and a transition without it would be wrong.
            is_step = next_known | terminated
            is_step[-1] |= ~truncated[-1]
            valid = is_step if valid is None else valid & is_step
            valid = None if valid.all() else valid
        else:
            next_pixels = self._pixels(self.next_pixels_key, self._require(data, self.next_pixels_key))
        if pixels.shape != next_pixels.shape:
            raise ValueError(
                f"{self.next_pixels_key!r} must have the shape of {self.pixels_key!r}, {tuple(pixels.shape[2:])}; "
                f"got {tuple(next_pixels.shape[2:])}"
            )
        channels = pixels.shape[2] // self.num_frames
        older, newer = pixels[:, :, channels:], next_pixels[:, :, :-channels]
        if not (torch.equal(older, newer) if valid is None else torch.equal(older[valid], newer[valid])):
            raise ValueError(
                f"{self.next_pixels_key!r} is not {self.pixels_key!r} moved on by one frame: observations of shape "
                f"{tuple(pixels.shape[2:])} must stack {self.num_frames} frames along the first dimension, newest last."
                f" For single frames give stacked_input=False. If they are such stacks: VecNorm, or another transform "
                f"after CatFrames, has changed frames that were seen before (store what CatFrames gives); an "
                f"environment that resets itself has put its first observation in place of the last (give valid=, see "
                f"add); or CatFrames went on with frames of another episode, after it was restored or missed a reset"
            )
        values = {key: self._require(data, key) for key in (self.action_key, *self.extra_keys, REWARD_KEY)}
        if values[REWARD_KEY][0, 0].numel() != 1:
            raise ValueError(
                f"{REWARD_KEY!r} must be one number per step; got shape {tuple(values[REWARD_KEY].shape[2:])} per step"
            )
        if not values[REWARD_KEY].is_floating_point():
            raise ValueError(f"{REWARD_KEY!r} must be floating point; got {values[REWARD_KEY].dtype}")
        if not values[REWARD_KEY].isfinite().all():  # one such reward would ruin all later updates
            first = values[REWARD_KEY][~values[REWARD_KEY].isfinite()][0]
            raise ValueError(f"{REWARD_KEY!r} must be finite; got {first.item()}")
        values[REWARD_KEY] = values[REWARD_KEY].flatten(1)[..., None]

        return Steps(
            frames=pixels[:, :, -channels:].to(device),
            next_frames=next_pixels[:, :, -channels:].to(device),
            values={key: value.to(device) for key, value in values.items()},
            terminated=terminated.to(device),
            truncated=truncated.to(device),
            begins=begins.to(device),
            traj_ids=None if traj_ids is None else traj_ids.to(device, torch.int64),
            older_frames=pixels[:, :, :-channels].unflatten(2, (self.num_frames - 1, channels)).to(device),
            keep=None if valid is None else valid.to(device),
            next_known=None if next_known is None else next_known.to(device),
        )

    def _read_flags(self, data: TensorDictBase) -> tuple[Tensor, Tensor, Tensor]:
        """Returns which steps terminate an episode, which truncate one, and where the data says that one begins."""
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
        begins = torch.zeros_like(terminated) if is_init is None else is_init
        step_count = self._number(data, _STEP_COUNT_KEY)
        return terminated, truncated, begins if step_count is None else begins | (step_count == 0)

    def _next_pixels(self, pixels: Tensor, ends: Tensor, begins: Tensor, traj_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Finds the next observations that a collector with ``compact_obs=True`` left out.

        Returns:
            The next observations, and where they are known: at steps that the next step of the data continues.
            Elsewhere the newest frame replaces the missing one.
        """
        channels = pixels.shape[2] // self.num_frames
        next_pixels = torch.cat([pixels[:, :, channels:], pixels[:, :, -channels:]], 2)
        known = torch.zeros_like(ends)
        known[:-1] = ~ends[:-1] & ~begins[1:] & (traj_ids[1:] == traj_ids[:-1])
        next_pixels[:-1][known[:-1]] = pixels[1:][known[:-1]]
        return next_pixels, known

    def read_next(
        self, data: TensorDictBase, frame: Tensor, columns: Mapping[NestedKey, Tensor]
    ) -> tuple[dict[NestedKey, Tensor], Tensor] | None:
        """Reads one step without batch dimensions that continues an episode and does not end it, as most steps do.

        It is several times faster than :meth:`read`. It returns None for every other step, and for every step that
        :meth:`read` would convert or refuse.

        Args:
            data (TensorDictBase): the step.
            frame (torch.Tensor): the newest frame after the step before.
            columns (mapping): the stored values of each key, rows first.

        Returns:
            The values to store, the step's frame among them, and the newest frame after the step.
        """
        if any(data.get(key, None) is not None for key in ("collector", _STEP_COUNT_KEY, _IS_INIT_KEY)):
            return None
        terminated, *others = (data.get(key, None) for key in (TERMINATED_KEY, TRUNCATED_KEY, DONE_KEY))
        others = [flag for flag in others if flag is not None]
        if not others or not all(_is_false(flag) for flag in (terminated, *others)):
            return None
        pixels, next_pixels = data.get(self.pixels_key, None), data.get(self.next_pixels_key, None)
        channels = len(frame)
        shape = (self.num_frames * channels, *frame.shape[1:])
        if not all(_is_like(stack, frame, shape) for stack in (pixels, next_pixels)):
            return None
        newest, next_newest = pixels[-channels:], next_pixels[-channels:]
        if not torch.equal(newest, frame):
            return None
        # Frame by frame: torch splits the comparison of a large stack over its threads, and waits for them.
        moved_on = zip(pixels.split(channels)[1:], next_pixels.split(channels), strict=False)
        if not all(torch.equal(before, after) for before, after in moved_on):
            return None
        values = {key: data.get(key, None) for key in (self.action_key, *self.extra_keys, REWARD_KEY)}
        if not all(_is_like(value, columns[key], columns[key].shape[1:]) for key, value in values.items()):
            return None
        if not math.isfinite(values[REWARD_KEY]):
            return None
        return {self.pixels_key: newest, **values}, next_newest

    def begins_padded(self, steps: Steps, firsts: Tensor) -> Tensor:
        """Returns which first observations of an episode are padded, ``[firsts]``; the others lack earlier frames.

        Args:
            steps (Steps): the steps.
            firsts (torch.Tensor): the numbers of the steps that are the first of an episode, time before columns.

        Raises:
            ValueError: if an observation has another padding than this buffer: the buffer would rebuild other
                observations than the policy saw.
        """
        newest, older = (frames.flatten(0, 1).index_select(0, firsts) for frames in (steps.frames, steps.older_frames))
        repeated = newest.unsqueeze(1).repeat_interleave(self.num_frames, 1)
        begins = torch.zeros_like(firsts)
        is_padded = {}
        for padding in PADDINGS:
            expected = stack_frames(repeated, 1, step=begins, padding=padding)
            is_padded[padding] = (older.flatten(1) == expected.flatten(1)[:, : older.shape[1:].numel()]).all(-1)
        other = next(padding for padding in PADDINGS if padding != self.padding)
        if (is_padded[other] & ~is_padded[self.padding]).any():
            raise ValueError(
                f"an episode's first observation is padded with {other!r}, but this buffer has padding="
                f"{self.padding!r}; give it padding={other!r}, or change the padding of the environment"
            )
        return is_padded[self.padding]

    def _number(self, data: TensorDictBase, key: NestedKey) -> Tensor | None:
        value = self._find(data, key)
        if value is not None and value[0, 0].numel() != 1:
            raise ValueError(f"{key!r} must be one number per step; got shape {tuple(value.shape[2:])} per step")
        return None if value is None else value.flatten(1)

    @staticmethod
    def _find(data: TensorDictBase, key: NestedKey) -> Tensor | None:
        """Returns the value under ``key`` as ``[time, columns, ...]``, or None if there is no such key."""
        value = data.get(key, None)
        if value is not None and not isinstance(value, Tensor):
            raise ValueError(f"{key!r} must be a tensor; got a {type(value).__name__}")
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

    def _pixels(self, key: NestedKey, pixels: Tensor) -> Tensor:
        if pixels.dtype != self.frame_dtype:
            hint = "; keep pixels uint8, they are scaled in the encoder" if self.frame_dtype == torch.uint8 else ""
            raise ValueError(f"{key!r} must be {self.frame_dtype}; got {pixels.dtype}{hint}")
        if pixels.ndim < 3 or pixels.shape[2] % self.num_frames:
            raise ValueError(
                f"{key!r} must be a stack of {self.num_frames} frames along the channels (or stacked_input=False); "
                f"got shape {tuple(pixels.shape[2:])} per step"
            )
        return pixels


def _is_false(flag: Any) -> bool:
    """Returns whether ``flag`` is a tensor of one bool that is False."""
    return isinstance(flag, Tensor) and flag.dtype == torch.bool and flag.numel() == 1 and not flag


def _is_like(value: Any, stored: Tensor, shape: Sequence[int]) -> bool:
    """Returns whether ``value`` can be stored without a conversion."""
    return (
        isinstance(value, Tensor)
        and value.shape == shape
        and value.dtype == stored.dtype
        and value.device == stored.device
    )
