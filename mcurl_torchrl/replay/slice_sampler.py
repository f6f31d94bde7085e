"""EpisodeSliceSampler: slices inside one episode, all equally likely; the cost does not grow with the buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torchrl.data.replay_buffers.storages import Storage

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.replay import torchrl_internals as internals
from mcurl_torchrl.replay.drawing import WindowSampler, draw_uniform, for_all
from mcurl_torchrl.replay.episode_marks import EpisodeMarks
from mcurl_torchrl.replay.windows import EpisodeWindows, Rows

__all__ = ["EpisodeSliceSampler"]

# TorchRL's name of the flag that is False on padding; its losses read it too.
_MASK_KEY: NestedKey = ("collector", "mask")


class EpisodeSliceSampler(WindowSampler):
    """Draws slices of consecutive rows of one episode; all valid slices are equally likely.

    It replaces :class:`~torchrl.data.SliceSampler` in any :class:`~torchrl.data.TensorDictReplayBuffer`, takes its
    arguments and returns batches of the same form: flat ``[num_slices * slice_len]``, slice after slice. It differs in
    three ways. TorchRL draws a trajectory first and a start inside it second, so that it draws a row of a long episode
    less often than a row of a short one; here all valid slices have the same probability. TorchRL reads the whole
    storage after each write and reads every key twice; here the cost depends on the batch alone. And a slice never
    crosses an episode's end, the ring's seam or a gap, also right after ``loads``, and also if a new collector starts
    its trajectory ids at 0 again (this needs a stored step, which differs between two episodes of one id).

    Args:
        slice_len (int, optional): the number of rows in a slice. Defaults to the batch size over ``num_slices``.
        num_slices (int, optional): the number of slices in a batch. Defaults to the batch size over ``slice_len``.
            At least one of the two is needed.

    Keyword Args:
        traj_key (NestedKey, optional): an integer per row that is equal within an episode. If the storage does not have
            it, the sampler warns and searches as if nothing was given.
        step_key (NestedKey, optional): the row's number within its episode.
        end_key (NestedKey, optional): a flag on the last row of an episode.
            If none of the three is given, the sampler recognizes the storage of a
            :class:`~mcurl_torchrl.FrameReplayBuffer`. In any other storage it searches for
            ``("collector", "traj_ids")`` or ``"episode"``, ``"step_count"`` and ``("next", "done")``, and uses all that
            it finds.
        end_keys (sequence of NestedKey, optional): several such flags, of which any ends an episode; those that the
            storage does not have are left out. Not together with ``end_key``.
        ends (torch.Tensor, optional): the flags themselves, one for each row, in place of keys: for a data set that is
            not written to. Without a flag on the last row its episode goes on at the first row.
        trajectories (torch.Tensor, optional): the ids themselves, one for each row, in place of keys.
        fragmented (bool): whether rows of one episode may be apart, as several writers leave them. The sampler then
            sorts the rows by ``traj_key`` and ``step_key`` after each write, and the cost grows with the buffer.
            Defaults to False.
        strict_length (bool): False also draws episodes shorter than ``slice_len``, as one slice each; a batch then has
            fewer rows. Defaults to True.
        pad_output (bool): whether shorter slices are padded with their last row, so that a batch has its full size.
            ``("collector", "mask")`` is False on padding. Defaults to False.
        span (bool, int or a pair of them): how many rows of a slice may be before its episode's first row and after its
            last one (True: all but one). Such rows are left out of the batch, or padded. Defaults to False.
        num_frames (int): for storages of single frames. Above 1, each row comes with the ``num_frames - 1`` rows before
            it (the episode's first row in place of rows from before the episode). A batch is then
            ``[num_slices * slice_len, num_frames]``, and the buffer needs the transform
            :class:`~mcurl_torchrl.StackFrames` to make it ``[num_slices * slice_len]`` again. Defaults to 1.
        truncated_key (NestedKey, optional): the key of a flag on the last row of each slice, written as TorchRL does,
            with ``"done"`` and ``"terminated"`` beside it. None writes none of them. Defaults to
            ``("next", "truncated")``.
        init_key (NestedKey, optional): if the storage has this flag, it is set on the first row of each slice, as
            TorchRL does. Defaults to ``"is_init"``.
        cache_values (bool): an option of TorchRL's sampler, without effect here: there is nothing to cache.
        compile (bool), use_gpu (bool): TorchRL's options for its search of the whole storage; only False is accepted.

    Raises:
        TypeError: if neither ``slice_len`` nor ``num_slices`` is given.
        ValueError: on options that exclude each other, and on sampling, if the batch size does not fit the slices.
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
        slice_len: int | None = None,
        num_slices: int | None = None,
        *,
        traj_key: NestedKey | None = None,
        step_key: NestedKey | None = None,
        end_key: NestedKey | None = None,
        end_keys: Sequence[NestedKey] | None = None,
        ends: Tensor | None = None,
        trajectories: Tensor | None = None,
        fragmented: bool = False,
        strict_length: bool = True,
        pad_output: bool = False,
        span: bool | int | tuple[bool | int, bool | int] = False,
        num_frames: int = 1,
        truncated_key: NestedKey | None = ("next", "truncated"),
        init_key: NestedKey | None = "is_init",
        cache_values: bool = False,
        compile: bool = False,
        use_gpu: bool = False,
    ) -> None:
        if slice_len is None and num_slices is None:
            raise TypeError("give slice_len, num_slices or both; got neither")
        self.slice_len = None if slice_len is None else check_count("slice_len", slice_len)
        self.num_slices = None if num_slices is None else check_count("num_slices", num_slices)
        self.num_frames = check_count("num_frames", num_frames)
        self.strict_length, self.pad_output = strict_length, pad_output
        self.span = tuple(span) if isinstance(span, (tuple, list)) else (span, span)
        self.truncated_key = None if truncated_key is None else unravel_key(truncated_key)
        self.init_key = None if init_key is None else unravel_key(init_key)
        _check_options(self, compile=compile, use_gpu=use_gpu)
        if end_key is not None and end_keys is not None:
            raise ValueError("end_key and end_keys exclude each other; give all flags as end_keys")
        keys = (end_key,) if end_key is not None else tuple(end_keys or ())
        given = ends is not None or trajectories is not None
        if ends is not None and trajectories is not None:
            raise ValueError("ends and trajectories exclude each other; give one of them")
        if given and (traj_key is not None or keys):
            raise ValueError("ends takes the place of keys, and so does trajectories; give no traj_key or end_key too")
        if given and fragmented:
            raise ValueError("fragmented=True needs keys that tell the order of rows; ends and trajectories do not")
        self.marks = EpisodeMarks(
            traj_key=None if traj_key is None else unravel_key(traj_key),
            step_key=None if step_key is None else unravel_key(step_key),
            end_keys=tuple(unravel_key(key) for key in keys),
            ends=ends,
            trajectories=trajectories,
            fragmented=fragmented,
        )

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor | tuple[Tensor, ...], dict[Any, Tensor]]:
        """Draws slices; returns their storage index, and flags to add to the batch."""
        return self.draw(storage, batch_size)

    def draw(self, storage: Storage, batch_size: int) -> tuple[Tensor | tuple[Tensor, ...], dict[Any, Tensor]]:
        """Draws slices, as :meth:`sample` does; a frame replay calls it."""
        slice_len, num_slices = self.shape(batch_size)
        rows = Rows(storage)
        windows = self.windows(rows)
        starts, info = self._draw(windows, slice_len, num_slices, internals.generator_of(self))
        if starts is None:
            raise RuntimeError(self._explain_empty(windows, slice_len))
        lengths = None if self._is_uniform else self.lengths(windows, starts, slice_len)
        flat, kept = self._rows_of(windows, starts, slice_len, lengths)
        if kept is not None and self.pad_output:
            info[_MASK_KEY] = kept.flatten()
        elif kept is not None:
            flat = flat[kept.flatten()]
            info = {key: value[kept.flatten()] for key, value in info.items()}
        if self.truncated_key is not None or self.init_key is not None:
            edges = _edges(num_slices, slice_len, lengths, flat.device)
            first, last = (edge.flatten() if kept is None or self.pad_output else edge[kept] for edge in edges)
            info |= self._flags(rows, flat if flat.ndim == 1 else flat[:, -1], first, last)
        return rows.to_index(flat), info

    def shape(self, batch_size: int) -> tuple[int, int]:
        """Returns the length and the number of slices in a batch.

        Raises:
            ValueError: if they do not fit the batch size.
        """
        batch_size = check_count("batch_size", batch_size)
        slice_len, num_slices = self.slice_len, self.num_slices
        if slice_len is None:
            assert num_slices is not None
            slice_len = batch_size // num_slices
        elif num_slices is None:
            num_slices = batch_size // slice_len
        if num_slices * slice_len != batch_size:
            raise ValueError(
                f"batch_size={batch_size} does not fit slice_len={self.slice_len}, num_slices={self.num_slices}; "
                f"the batch size counts rows: it must be num_slices * slice_len"
            )
        return slice_len, num_slices

    def windows(self, rows: Rows) -> EpisodeWindows:
        """Returns the windows in ``rows``, by the keys that tell episodes apart."""
        return self.marks.windows(rows)

    # -- which slices there are ----------------------------------------------------------------------------------------

    @property
    def _is_uniform(self) -> bool:
        """Whether all slices have the full length."""
        return self.strict_length and not any(self.span)

    def is_start(self, windows: EpisodeWindows, candidates: Tensor, slice_len: int | None = None) -> Tensor:
        """Returns at which positions a slice can start; the earlier frames that it needs must be stored too."""
        slice_len = self.slice_len if slice_len is None else slice_len
        assert slice_len is not None
        if not self._is_uniform:
            return self.lengths(windows, candidates, slice_len) > 0
        return self._is_whole(windows, candidates, slice_len)

    def _is_whole(self, windows: EpisodeWindows, starts: Tensor, slice_len: int) -> Tensor:
        """Returns at which positions a slice of ``slice_len`` rows starts, with all frames that it needs."""
        valid = windows.valid(starts, slice_len)
        if self.num_frames > 1:
            survivors = valid.nonzero().squeeze(-1)
            valid[survivors] = windows.history(starts[survivors], self.num_frames - 1)[1]
        return valid

    def lengths(self, windows: EpisodeWindows, candidates: Tensor, slice_len: int) -> Tensor:
        """Counts the rows of the slice at each candidate, 0 where there is no slice.

        A candidate below the number of rows is the position of the slice's first row. Further candidates are slices
        that begin before their episode: those from ``j`` times the number of rows on begin ``j`` rows before it.
        """
        starts, overhang = candidates % len(windows.rows), candidates // len(windows.rows)
        left, right = self._overhangs(slice_len)
        whole = self._is_whole(windows, starts, slice_len)
        lengths = torch.where(whole & (overhang == 0), slice_len, 0)
        if self.strict_length and not left and not right:
            return lengths
        rest = (lengths == 0).nonzero().squeeze(-1)
        starts, overhang = starts[rest], overhang[rest]
        length = windows.run_length(starts, slice_len)
        begins = windows.begins_run(starts, self.num_frames - 1) & windows.valid(starts, 1)
        if not self.strict_length:
            lengths[rest] = torch.where(begins & (length < slice_len), length, 0)
            return lengths
        # The slice from this row would end after the episode: the last slice_len rows of the episode must be stored.
        time, column = windows.rows.split(starts)
        ends_late = self._is_whole(windows, windows.rows.join(time + length - slice_len, column), slice_len)
        at_end = (overhang == 0) & (length < slice_len) & (slice_len - length <= right) & ends_late
        at_start = (overhang > 0) & begins & whole[rest]
        lengths[rest] = torch.where(at_end, length, torch.where(at_start, slice_len - overhang, 0))
        return lengths

    def _overhangs(self, slice_len: int) -> tuple[int, int]:
        """Returns how many rows of a slice may be before its episode and after it."""
        if self._is_uniform:
            return 0, 0
        overhangs = [(slice_len - 1 if part else 0) if isinstance(part, bool) else int(part) for part in self.span]
        if not all(0 <= overhang < slice_len for overhang in overhangs):
            raise ValueError(f"span={self.span}; each part must be below slice_len={slice_len}")
        return overhangs[0], overhangs[1]

    def _num_candidates(self, windows: EpisodeWindows, slice_len: int) -> int:
        return len(windows.rows) * (1 + self._overhangs(slice_len)[0])

    def expand(self, windows: EpisodeWindows, starts: Tensor, slice_len: int | None = None) -> Tensor:
        """Lists the flat rows of slices: ``[slices * slice_len]``, or ``[slices * slice_len, num_frames]``."""
        slice_len = self.slice_len if slice_len is None else slice_len
        assert slice_len is not None
        return self._rows_of(windows, starts, slice_len, None)[0]

    def _rows_of(
        self, windows: EpisodeWindows, starts: Tensor, slice_len: int, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Lists the flat rows of slices, and which of them are not padding, ``[slices, slice_len]`` (None: all).

        Slices with fewer rows, according to ``lengths``, are padded with their last row.
        """
        starts = starts if lengths is None else starts % len(windows.rows)
        positions = windows.expand(starts, slice_len, self.num_frames - 1)
        if self.num_frames > 1:
            positions = positions.unfold(1, self.num_frames, 1)
        if lengths is None:
            return windows.rows.locate(positions.flatten(0, 1)), None
        offsets = torch.arange(slice_len, device=starts.device).expand(len(starts), -1)
        filled = torch.minimum(offsets, lengths[:, None] - 1)
        slices = torch.arange(len(starts), device=starts.device)[:, None]
        return windows.rows.locate(positions[slices, filled].flatten(0, 1)), offsets < lengths[:, None]

    # -- drawing -------------------------------------------------------------------------------------------------------

    def _draw(
        self, windows: EpisodeWindows, slice_len: int, count: int, generator: torch.Generator | None
    ) -> tuple[Tensor | None, dict[Any, Tensor]]:
        """Draws slices; returns them (None if there are none), and other values to add to each row of the batch."""
        starts = draw_uniform(
            count,
            self._num_candidates(windows, slice_len),
            lambda candidates: self.is_start(windows, candidates, slice_len),
            device=windows.rows.device,
            generator=generator,
        )
        return starts, {}

    def _find_one(self, rows: Rows, batch_size: int, generator: torch.Generator) -> Tensor | None:
        return self._draw(self.windows(rows), self.shape(batch_size)[0], 1, generator)[0]

    def _count(self, rows: Rows, batch_size: int) -> int:
        windows, slice_len = self.windows(rows), self.shape(batch_size)[0]
        return int(
            for_all(
                self._num_candidates(windows, slice_len),
                lambda candidates: self.is_start(windows, candidates, slice_len),
                rows.device,
            ).sum()
        )

    def _flags(self, rows: Rows, newest: Tensor, first: Tensor, last: Tensor) -> dict[Any, Tensor]:
        """Returns the flags of a batch's rows, of which some are the first and the last of their slice."""
        info: dict[Any, Tensor] = {}
        if self.truncated_key is not None:
            for name in ("truncated", "done", "terminated"):
                key = name if isinstance(self.truncated_key, str) else (*self.truncated_key[:-1], name)
                stored = rows.scalars(key)[newest] != 0 if rows.has(key) else torch.zeros_like(last)
                # The sampler cuts a slice at its end, not the environment, so the cut never sets "terminated". As in
                # TorchRL, "truncated" marks this cut alone, and "done" keeps the stored ends too.
                flag = {"truncated": last, "done": last | stored, "terminated": stored}[name]
                info[key if name != "truncated" else self.truncated_key] = flag[:, None]
        if self.init_key is not None and rows.has(self.init_key):
            stored = rows.column(self.init_key)[newest] != 0
            info[self.init_key] = stored | first.view(-1, *[1] * (stored.ndim - 1))
        return info

    def _explain_empty(self, windows: EpisodeWindows, slice_len: int) -> str:
        longest = windows.longest()
        if self.num_frames > 1 and longest >= slice_len:
            return (
                f"no slice of slice_len={slice_len} rows with whole stacks of num_frames={self.num_frames}: the "
                f"{self.num_frames - 1} frames before each slice were overwritten; use a larger buffer"
            )
        return (
            f"no slice of slice_len={slice_len} rows: the longest run of rows of one episode in the buffer has "
            f"{longest} rows ({len(windows.rows)} rows stored); use slice_len <= {longest} (objective.slice_len in a "
            "recipe, or an objective without slices, such as algo=curl), strict_length=False, or longer episodes. If "
            "several environments were written one after the other, as with reshape(-1), use a storage of ndim=2 or "
            "fragmented=True"
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(slice_len={self.slice_len}, num_slices={self.num_slices}, "
            f"num_frames={self.num_frames})"
        )


def _edges(num_slices: int, slice_len: int, lengths: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns which rows are the first and the last of their slice, ``[num_slices, slice_len]`` each."""
    position = torch.arange(slice_len, device=device).expand(num_slices, -1)
    return position == 0, position == (slice_len if lengths is None else lengths[:, None]) - 1


def _check_options(sampler: EpisodeSliceSampler, *, compile: bool, use_gpu: bool) -> None:
    """Refuses options of TorchRL's sampler that have no meaning here, and those that exclude each other."""
    for name, value in (("compile", compile), ("use_gpu", use_gpu)):
        if value:
            raise ValueError(
                f"{name}={value!r}; this speeds up SliceSampler's search of the whole storage, and EpisodeSliceSampler "
                f"does not search it: leave the option out"
            )
    if len(sampler.span) != 2 or any(part < 0 for part in sampler.span):
        raise ValueError(f"span={sampler.span}; give a bool, a number of rows, or a pair of them")
    if any(sampler.span) and not sampler.strict_length:
        raise ValueError(
            "span and strict_length=False exclude each other: SliceSampler shortens a short episode's slice twice. "
            "Use span for slices over an episode's edge, strict_length=False for whole short episodes"
        )
    if sampler.pad_output and sampler._is_uniform:
        raise ValueError("pad_output=True fills shorter slices; it needs strict_length=False or span")
