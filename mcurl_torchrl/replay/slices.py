"""FrameSlices: slices of consecutive observations from a frame replay, and the base class of all its readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torchrl.data import TensorDictReplayBuffer
from torchrl.data.replay_buffers.storages import Storage
from torchrl.data.replay_buffers.utils import pin_memory_output
from torchrl.data.replay_buffers.writers import ImmutableDatasetWriter
from torchrl.envs.transforms import Transform

from mcurl_torchrl.checks import check_choice, check_count
from mcurl_torchrl.ranks import ALONE, Ranks
from mcurl_torchrl.replay import torchrl_internals as internals
from mcurl_torchrl.replay.drawing import refusal
from mcurl_torchrl.replay.prioritized_slices import REDUCTIONS, SliceSamplerByWeight
from mcurl_torchrl.replay.slice_sampler import EpisodeSliceSampler
from mcurl_torchrl.replay.step_reader import DONE_KEY, TERMINATED_KEY, TRUNCATED_KEY
from mcurl_torchrl.replay.sum_tree import SumTree
from mcurl_torchrl.replay.transition_sampler import PrioritizedTransitionSampler
from mcurl_torchrl.replay.windows import LAYOUT_KEYS, STEP_KEY, Rows
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
    ranks: Ranks = ALONE

    def _read(self, rows: Rows, flat: Tensor) -> TensorDict:
        """Gathers the batch for the flat rows that the sampler drew."""
        raise NotImplementedError

    def share_with(self, ranks: Ranks, name: str, size: int | None) -> None:
        """Lets ranks share the batches of this reader: all draw the same ``size`` items, and each reads its part."""
        if ranks.count == 1:
            return
        if size is not None:
            ranks.share_of(name, size)
        if str(self.storage.device) != "cpu":
            raise ValueError(f"the storage is on {self.storage.device}; ranks that share batches need it on the CPU")
        if prefetch := internals.prefetch_limit(self):  # threads would draw in another order on each rank
            raise ValueError(
                f"prefetch={prefetch} with {ranks.count} ranks, which must draw in one order; leave it out"
            )
        self.ranks = ranks
        internals.set_generator(self.sampler, ranks.generator)

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

    def _read_rows(self, rows: Rows, flat: Tensor, keys: Sequence[NestedKey]) -> TensorDict:
        """Reads keys of flat rows ``[N]``, or of the newest of ``[N, K]`` with whole observations."""
        newest = flat if flat.ndim == 1 else flat[:, -1]
        marks = {key: rows.scalars(key)[newest] for key in LAYOUT_KEYS}
        batch = TensorDict(marks, batch_size=[len(newest)], device=self.storage.device)
        for key in keys:
            if key == self.pixels_key:
                stacks = newest[:, None] if flat.ndim == 1 else flat
                batch.set(key, self._read_stacks(rows, stacks, marks[STEP_KEY]))
            elif key == DONE_KEY:
                ended = [rows.column(key).index_select(0, newest) for key in (TERMINATED_KEY, TRUNCATED_KEY)]
                batch.set(key, ended[0] | ended[1])
            else:
                batch.set(key, rows.column(key).index_select(0, newest))
        return batch

    # Departs from TensorDictReplayBuffer, which reads every key at every row drawn: here an observation takes several
    # rows and a reward n rows, and only the keys that were asked for are read. The locks and the order are TorchRL's.
    @pin_memory_output
    def _sample(self, batch_size: int) -> tuple[TensorDictBase, dict[str, Any]]:
        storage = self.storage
        with internals.locked(self):
            index, info = self.sampler.draw(storage, batch_size)
            rows = Rows(storage)
            flat = rows.from_index(index)
            if self.ranks.count > 1:  # all ranks drew the same rows; each reads its own
                share = self.ranks.share_of("batch_size", len(flat))
                flat, info = flat[share], {key: value[share] for key, value in info.items()}
            data = self._read(rows, flat)
        info["index"] = rows.to_index(flat if flat.ndim == 1 else flat[:, -1])
        if len(self.transform):
            data = self.transform(data)
        return data, info


class FrameSliceSampler(EpisodeSliceSampler):
    """The sampler of :class:`FrameSlices`; no other buffer can use it, because it would read rows of single frames."""

    def sample(self, storage: Storage, batch_size: int) -> tuple[Any, dict[Any, Tensor]]:
        """Refuses: only the view of this sampler, which calls ``draw``, makes observations of rows."""
        raise RuntimeError(refusal(self))


class PrioritizedFrameSliceSampler(FrameSliceSampler, SliceSamplerByWeight):
    """The sampler of :class:`FrameSlices` that draws slices by the priorities of the buffer's transitions.

    Args:
        priorities (PrioritizedTransitionSampler): the sampler of the buffer.
        reduction (str): the priority of a slice from those of its rows, ``"mean"`` or ``"max"``.
        options: the arguments of :class:`EpisodeSliceSampler`.
    """

    def __init__(self, priorities: PrioritizedTransitionSampler, reduction: str, **options: Any) -> None:
        super().__init__(**options)
        self.priorities = priorities
        self.reduction = check_choice("priority", reduction, REDUCTIONS)

    @property
    def tree(self) -> SumTree:
        """The weight of every row."""
        return self.priorities.tree

    @property
    def beta(self) -> float:
        """The part of the unequal probabilities that importance weights correct."""
        return self.priorities.beta


class FrameSlices(FrameView):
    """Slices of consecutive observations from the rows of a :class:`FrameReplayBuffer`; made by its ``slices`` method.

    ``sample()`` gives a flat batch ``[num_slices * slice_len]``, slice after slice, of the form that TorchRL's slice
    samplers give; ``reshape(num_slices, slice_len)`` it before a sequence loss. It has ``pixels`` ``[K * C, H, W]``,
    the other keys that were asked for, ``"trajectory"``, ``"step"``, ``"final"`` (True on an episode's last
    observation, which has no action: its action and reward are 0) and ``"index"``; by priority,
    ``"priority_weight"``, equal on all rows of a slice.

    It shares the storage and the lock of its buffer, so it may prefetch while a program writes to the buffer.
    """

    def __init__(
        self,
        buffer: FrameReplayBuffer,
        *,
        num_slices: int,
        slice_len: int,
        keys: Sequence[NestedKey] | None,
        priority: str | None,
        prefetch: int | None,
        transform: Transform | None,
        generator: torch.Generator | None,
    ) -> None:
        self.pixels_key = buffer.pixels_key
        self.num_frames = buffer.num_frames
        self.padding = buffer.padding
        self.channels_last = buffer.channels_last
        self.keys = check_keys(keys, buffer)
        self.priority = priority
        self._prioritized = None if priority is None else buffer
        num_slices, slice_len = check_count("num_slices", num_slices), check_count("slice_len", slice_len)
        options: dict[str, Any] = {
            "slice_len": slice_len,
            "num_slices": num_slices,
            "num_frames": self.num_frames,
            "truncated_key": None,
            "init_key": None,
        }
        if priority is None:
            sampler: EpisodeSliceSampler = FrameSliceSampler(**options)
        elif isinstance(buffer.sampler, PrioritizedTransitionSampler):
            sampler = PrioritizedFrameSliceSampler(buffer.sampler, priority, **options)
        else:
            raise TypeError(
                f"priority={priority!r}; this buffer has no priorities: build it with "
                f"sampler=PrioritizedTransitionSampler(...)"
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
        self.share_with(buffer.ranks, "num_slices", num_slices)

    def _read(self, rows: Rows, flat: Tensor) -> TensorDict:
        return self._read_rows(rows, flat, self.keys)

    def settings(self) -> dict[str, Any]:
        """Returns the settings that this reader's batches depend on, as JSON."""
        keys = [[key] if isinstance(key, str) else list(key) for key in self.keys]
        priority = {} if self.priority is None else {"priority": self.priority}
        return {**super().settings(), "slice_len": self.sampler.slice_len, "keys": keys, **priority}

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("slices only read: write, save and load the FrameReplayBuffer that they come from")

    add = extend = empty = dumps = loads = state_dict = load_state_dict = _refuse

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Sets the buffer's priorities from a batch of slices, one number per row.

        The last observation of an episode starts no transition: its number is not used. Slices that are not drawn by
        priority do nothing.
        """
        if self._prioritized is not None:
            self._prioritized.update_tensordict_priority(data)


def check_keys(keys: Sequence[NestedKey] | None, buffer: FrameReplayBuffer) -> list[NestedKey]:
    """Returns the keys to read of each row of a slice; None means the pixels only.

    Raises:
        TypeError: on a single key.
        KeyError: on a key that the buffer does not store.
    """
    if keys is None:
        return [buffer.pixels_key]
    if isinstance(keys, str):
        raise TypeError(f"keys={keys!r}; give a list of keys, as in [{keys!r}]")
    unraveled: list[NestedKey] = [unravel_key(key) for key in keys]
    stored = [*buffer.writer.reader.stored_keys, DONE_KEY]
    for key in unraveled:
        if key == buffer.writer.reader.next_pixels_key:
            raise KeyError(
                f"{key!r} is not stored: the next observation of a row is that of the row after it; draw slices of one "
                f"row more"
            )
        if key not in (*stored, *LAYOUT_KEYS):
            raise KeyError(f"the buffer has no tensor under {key!r}; it holds {stored}; name others in its extra_keys")
    return [key for key in unraveled if key not in LAYOUT_KEYS]  # a batch has these anyway
