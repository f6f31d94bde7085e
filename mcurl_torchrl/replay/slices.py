"""FrameSlices: slices of consecutive observations from a frame replay, and the base class of all its readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torchrl.data import TensorDictReplayBuffer
from torchrl.data.replay_buffers.utils import pin_memory_output
from torchrl.data.replay_buffers.writers import ImmutableDatasetWriter
from torchrl.envs.transforms import Transform

from mcurl_torchrl.replay import torchrl_internals as internals
from mcurl_torchrl.replay.slice_sampler import EpisodeSliceSampler
from mcurl_torchrl.replay.windows import FINAL_KEY, STEP_KEY, TRAJECTORY_KEY, Rows
from mcurl_torchrl.stacking import stack_frames

if TYPE_CHECKING:
    from mcurl_torchrl.replay.buffer import FrameReplayBuffer

__all__ = ["FrameSlices", "FrameView"]


class FrameView(TensorDictReplayBuffer):
    """A reader of a frame storage: it draws rows under a lock, rebuilds stacks and applies the transform."""

    pixels_key: NestedKey
    num_frames: int
    padding: str
    channels_last: bool

    def _read(self, rows: Rows, flat: Tensor) -> TensorDict:
        """Gathers the batch for the flat rows that the sampler drew."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """Returns the settings that this reader's batches depend on, as JSON."""
        return {
            "batch_size": self.batch_size,
            "prefetch": internals.prefetch_limit(self),
            "num_frames": self.num_frames,
            "padding": self.padding,
        }

    def _read_stacks(self, rows: Rows, flat: Tensor, step: Tensor) -> Tensor:
        """Gathers observations ``[N, K * C, ...]`` for flat rows ``[N, K]`` whose newest are at ``step`` ``[N]``."""
        frames = rows.column(self.pixels_key).index_select(0, flat.flatten())
        frames = frames.view(*flat.shape, *frames.shape[1:])
        # In place of rows from before the episode, ``flat`` has its first row: that is the padding "repeat" already.
        stacks = stack_frames(
            frames, 1, step=step if self.padding == "zeros" else None, padding=self.padding, inplace=True
        )
        if self.channels_last and stacks.ndim == 4:
            return stacks.contiguous(memory_format=torch.channels_last)
        return stacks

    # Departs from TensorDictReplayBuffer, which reads every key at every row drawn: here an observation takes several
    # rows and a reward n rows, and only the keys that were asked for are read. The locks and the order are TorchRL's.
    @pin_memory_output
    def _sample(self, batch_size: int) -> tuple[TensorDictBase, dict[str, Any]]:
        with internals.locked(self):
            index, info = self.sampler.sample(self.storage, batch_size)
            rows = Rows(self.storage)
            flat = rows.from_index(index)
            data = self._read(rows, flat)
        info["index"] = rows.to_index(flat if flat.ndim == 1 else flat[:, -1])
        if len(self.transform):
            data = self.transform(data)
        return data, info


class FrameSlices(FrameView):
    """Slices of consecutive observations from the rows of a :class:`FrameReplayBuffer`; made by its ``slices`` method.

    ``sample()`` gives a flat batch ``[num_slices * slice_len]``, slice after slice, of the form that TorchRL's slice
    samplers give; ``reshape(num_slices, slice_len)`` it before a sequence loss. It has ``pixels`` ``[K * C, H, W]``,
    the other keys that were asked for, ``"trajectory"``, ``"step"``, ``"final"`` (True on an episode's last
    observation, which has no action: its action and reward are 0) and ``"index"``.

    It shares the storage and the lock of its buffer, so it may prefetch while a program writes to the buffer.
    """

    def __init__(
        self,
        buffer: FrameReplayBuffer,
        *,
        num_slices: int,
        slice_len: int,
        keys: Sequence[NestedKey] | None,
        prefetch: int | None,
        transform: Transform | None,
        generator: torch.Generator | None,
    ) -> None:
        self.pixels_key = buffer.pixels_key
        self.num_frames = buffer.num_frames
        self.padding = buffer.padding
        self.channels_last = buffer.channels_last
        if isinstance(keys, str):
            raise TypeError(f"keys={keys!r}; give a list of keys, as in [{keys!r}]")
        self.keys = [self.pixels_key] if keys is None else [unravel_key(key) for key in keys]
        sampler = EpisodeSliceSampler(
            slice_len, num_slices, num_frames=buffer.num_frames, truncated_key=None, init_key=None
        )
        storage_generator = internals.generator_of(buffer.storage)
        super().__init__(
            storage=buffer.storage,
            sampler=sampler,
            writer=ImmutableDatasetWriter(),
            batch_size=num_slices * slice_len,
            prefetch=prefetch,
            transform=transform,
            generator=generator,
            pin_memory=internals.pins_memory(buffer),
        )
        internals.set_generator(buffer.storage, storage_generator)
        internals.share_lock(self, buffer)

    def _read(self, rows: Rows, flat: Tensor) -> TensorDict:
        newest = flat if flat.ndim == 1 else flat[:, -1]
        marks = {key: rows.scalars(key)[newest] for key in (TRAJECTORY_KEY, STEP_KEY, FINAL_KEY)}
        batch = TensorDict(marks, batch_size=[len(newest)], device=self.storage.device)
        for key in self.keys:
            if key == self.pixels_key:
                stacks = newest[:, None] if flat.ndim == 1 else flat
                batch.set(key, self._read_stacks(rows, stacks, marks[STEP_KEY]))
            else:
                batch.set(key, rows.column(key).index_select(0, newest))
        return batch

    def settings(self) -> dict[str, Any]:
        """Returns the settings that this reader's batches depend on, as JSON."""
        keys = [[key] if isinstance(key, str) else list(key) for key in self.keys]
        return {**super().settings(), "slice_len": self.sampler.slice_len, "keys": keys}

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("slices only read: write, save and load the FrameReplayBuffer that they come from")

    add = extend = empty = dumps = loads = state_dict = load_state_dict = _refuse

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Does nothing: slices have no priorities."""
