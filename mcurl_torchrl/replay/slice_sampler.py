"""EpisodeSliceSampler: slices inside one episode, all equally likely; the cost does not grow with the buffer."""

from __future__ import annotations

from typing import Any

import torch
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage

from mcurl_torchrl.checks import check_count, leaf_keys
from mcurl_torchrl.replay import torchrl_internals as internals
from mcurl_torchrl.replay.windows import (
    LAYOUT_KEYS,
    STEP_KEY,
    TRAJECTORY_KEY,
    EpisodeWindows,
    Rows,
    WindowSampler,
    draw_uniform,
)

__all__ = ["EpisodeSliceSampler"]

# The keys to search for, in this order, if no key is given. All keys that are found are used together.
_TRAJ_KEYS: tuple[NestedKey, ...] = (("collector", "traj_ids"), "episode")
_STEP_KEYS: tuple[NestedKey, ...] = ("step_count",)
_END_KEYS: tuple[NestedKey, ...] = (("next", "done"),)


class EpisodeSliceSampler(WindowSampler):
    """Draws slices of consecutive rows of one episode; all valid slices are equally likely.

    It replaces :class:`~torchrl.data.SliceSampler` in any :class:`~torchrl.data.TensorDictReplayBuffer` and returns
    batches of the same form: flat ``[num_slices * slice_len]``, slice after slice. It differs in three ways. TorchRL
    draws a trajectory first and a start inside it second, so that it draws a row of a long episode less often than a
    row of a short one; here all valid slices have the same probability. TorchRL reads the whole storage after each
    write and reads every key twice; here the cost depends on the batch alone. And a slice never crosses an episode's
    end, the ring's seam or a gap, also right after ``loads``, and also if a new collector starts its trajectory ids at
    0 again (this needs a stored step, which differs between two episodes of one id).

    Args:
        slice_len (int): the number of rows in a slice.
        num_slices (int, optional): the number of slices in a batch. Defaults to the batch size over ``slice_len``.

    Keyword Args:
        traj_key (NestedKey, optional): an integer per row that is equal within an episode.
        step_key (NestedKey, optional): the row's number within its episode.
        end_key (NestedKey, optional): a flag on the last row of an episode.
            If none of the three is given, the sampler recognises the storage of a
            :class:`~mcurl_torchrl.FrameReplayBuffer`. In any other storage it searches for
            ``("collector", "traj_ids")`` or ``"episode"``, ``"step_count"`` and ``("next", "done")``, and uses all that
            it finds.
        num_frames (int): for storages of single frames. Above 1, each row comes with the ``num_frames - 1`` rows before
            it (the episode's first row in place of rows from before the episode). A batch is then
            ``[num_slices * slice_len, num_frames]``, and the buffer needs the transform
            :class:`~mcurl_torchrl.StackFrames` to make it ``[num_slices * slice_len]`` again. Defaults to 1.
        truncated_key (NestedKey, optional): the key of a flag on the last row of each slice, written as TorchRL does,
            with ``"done"`` and ``"terminated"`` beside it. None writes none of them. Defaults to
            ``("next", "truncated")``.
        init_key (NestedKey, optional): if the storage has this flag, it is set on the first row of each slice, as
            TorchRL does. Defaults to ``"is_init"``.

    Raises:
        ValueError: on sampling, if the batch size does not fit the slices.
        RuntimeError: on sampling, if no episode is long enough, with the length of the longest one.
        KeyError: on sampling, if the storage has none of the keys.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> from mcurl_torchrl import EpisodeSliceSampler
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(100), sampler=EpisodeSliceSampler(slice_len=4), batch_size=8
        ... )
        >>> episode = torch.tensor([0] * 10 + [1] * 5)
        >>> _ = buffer.extend(TensorDict({"episode": episode, "observation": torch.arange(15)}, [15]))
        >>> slices = buffer.sample().reshape(2, 4)
        >>> bool((slices["observation"].diff(dim=1) == 1).all())
        True
        >>> bool((slices["episode"][:, 0] == slices["episode"][:, -1]).all())
        True
    """

    def __init__(
        self,
        slice_len: int,
        num_slices: int | None = None,
        *,
        traj_key: NestedKey | None = None,
        step_key: NestedKey | None = None,
        end_key: NestedKey | None = None,
        num_frames: int = 1,
        truncated_key: NestedKey | None = ("next", "truncated"),
        init_key: NestedKey | None = "is_init",
    ) -> None:
        self.slice_len = check_count("slice_len", slice_len)
        self.num_slices = None if num_slices is None else check_count("num_slices", num_slices)
        self.num_frames = check_count("num_frames", num_frames)
        self.traj_key = None if traj_key is None else unravel_key(traj_key)
        self.step_key = None if step_key is None else unravel_key(step_key)
        self.end_key = None if end_key is None else unravel_key(end_key)
        self.truncated_key = None if truncated_key is None else unravel_key(truncated_key)
        self.init_key = None if init_key is None else unravel_key(init_key)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor | tuple[Tensor, ...], dict[Any, Tensor]]:
        """Draws slices; returns their storage index and the flags that the batch gets besides."""
        num_slices = self._count_slices(batch_size)
        rows = Rows(storage)
        windows = self.windows(rows)
        starts = self._draw(windows, num_slices, internals.generator_of(self))
        if starts is None:
            raise RuntimeError(self._explain_empty(windows))
        flat = self.expand(windows, starts)
        return rows.to_index(flat), self._flags(rows, flat)

    def windows(self, rows: Rows) -> EpisodeWindows:
        """Returns the windows in ``rows``, by the keys that tell episodes apart."""
        if self.traj_key is self.step_key is self.end_key is None:
            if all(map(rows.has, LAYOUT_KEYS)):
                return EpisodeWindows(rows, traj_key=TRAJECTORY_KEY, step_key=STEP_KEY, unique_ids=True)
            keys = [next(filter(rows.has, options), None) for options in (_TRAJ_KEYS, _STEP_KEYS, _END_KEYS)]
        else:
            keys = [self.traj_key, self.step_key, self.end_key]
        if all(key is None for key in keys):
            raise KeyError(
                f"nothing in the storage tells episodes apart: it holds {leaf_keys(rows.data)}; give traj_key, step_key"
                f" or end_key, or store one of {[*_TRAJ_KEYS, *_STEP_KEYS, *_END_KEYS]}"
            )
        seam = internals.oldest_time(rows.storage, rows.num_rows)
        return EpisodeWindows(rows, traj_key=keys[0], step_key=keys[1], end_key=keys[2], seam=seam)

    def is_start(self, windows: EpisodeWindows, candidates: Tensor) -> Tensor:
        """Tells at which flat rows a slice can start; the earlier frames that it needs must be stored too."""
        valid = windows.valid(candidates, self.slice_len)
        if self.num_frames > 1:
            survivors = valid.nonzero().squeeze(-1)
            valid[survivors] = windows.history(candidates[survivors], self.num_frames - 1)[1]
        return valid

    def expand(self, windows: EpisodeWindows, starts: Tensor) -> Tensor:
        """Lists the flat rows of slices: ``[slices * slice_len]``, or ``[slices * slice_len, num_frames]``."""
        flat = windows.expand(starts, self.slice_len, self.num_frames - 1)
        if self.num_frames == 1:
            return flat.flatten()
        return flat.unfold(1, self.num_frames, 1).flatten(0, 1)

    def _count_slices(self, batch_size: int) -> int:
        check_count("batch_size", batch_size)
        num_slices = batch_size // self.slice_len if self.num_slices is None else self.num_slices
        if num_slices * self.slice_len != batch_size or num_slices < 1:
            raise ValueError(
                f"batch_size={batch_size} does not fit slice_len={self.slice_len}, num_slices={self.num_slices}; "
                f"the batch size counts rows: it must be num_slices * slice_len"
            )
        return num_slices

    def _flags(self, rows: Rows, flat: Tensor) -> dict[Any, Tensor]:
        newest = flat if flat.ndim == 1 else flat[:, -1]
        position = torch.arange(len(newest), device=flat.device) % self.slice_len
        info: dict[Any, Tensor] = {}
        if self.truncated_key is not None:
            truncated = position == self.slice_len - 1
            for name in ("truncated", "done", "terminated"):
                key = name if isinstance(self.truncated_key, str) else (*self.truncated_key[:-1], name)
                stored = rows.scalars(key)[newest] != 0 if rows.has(key) else torch.zeros_like(truncated)
                # The sampler cuts a slice at its end, not the environment, so the cut never sets "terminated". As in
                # TorchRL, "truncated" marks this cut alone, and "done" keeps the stored ends too.
                flag = {"truncated": truncated, "done": truncated | stored, "terminated": stored}[name]
                info[key if name != "truncated" else self.truncated_key] = flag[:, None]
        if self.init_key is not None and rows.has(self.init_key):
            stored = rows.column(self.init_key)[newest] != 0
            first = (position == 0).view(-1, *[1] * (stored.ndim - 1))
            info[self.init_key] = stored | first
        return info

    def _explain_empty(self, windows: EpisodeWindows) -> str:
        longest = windows.longest()
        rows = windows.rows
        message = (
            f"no slice of slice_len={self.slice_len} rows: the longest run of rows of one episode in the buffer has "
            f"{longest} rows ({len(rows)} rows stored); use slice_len <= {longest} or collect longer episodes"
        )
        if self.num_frames > 1 and longest >= self.slice_len:
            message = (
                f"no slice of slice_len={self.slice_len} rows with whole stacks of num_frames={self.num_frames}: the "
                f"{self.num_frames - 1} frames before each slice were overwritten; use a larger buffer"
            )
        return message

    def _find_one(self, rows: Rows, generator: torch.Generator) -> Tensor | None:
        return self._draw(self.windows(rows), 1, generator)

    def _draw(self, windows: EpisodeWindows, count: int, generator: torch.Generator | None) -> Tensor | None:
        rows = windows.rows
        return draw_uniform(
            count,
            len(rows),
            lambda candidates: self.is_start(windows, candidates),
            device=rows.device,
            generator=generator,
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(slice_len={self.slice_len}, num_slices={self.num_slices}, "
            f"num_frames={self.num_frames})"
        )
