"""FrameReplayBuffer: a TensorDictReplayBuffer that stores each frame once."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import LazyTensorStorage, Storage
from torchrl.envs.transforms import Transform

from mcurl_torchrl.checks import check_choice, check_count, leaf_keys
from mcurl_torchrl.ranks import ALONE, Ranks
from mcurl_torchrl.replay import archive
from mcurl_torchrl.replay import torchrl_internals as internals
from mcurl_torchrl.replay.plain_steps import steps_from_arrays, steps_from_mapping
from mcurl_torchrl.replay.saving import check_saved, check_state_dict, frozen, restore_readers, save_readers
from mcurl_torchrl.replay.slice_sampler import EpisodeSliceSampler
from mcurl_torchrl.replay.slices import FrameSlices, FrameView, check_keys
from mcurl_torchrl.replay.step_reader import COLUMN_KEY, StepReader
from mcurl_torchrl.replay.transition_sampler import PrioritizedTransitionSampler, TransitionSampler, bind_sampler
from mcurl_torchrl.replay.transitions import FrameWindows
from mcurl_torchrl.replay.windows import FINAL_KEY, STEP_KEY, TRAJECTORY_KEY, UNWRITTEN, Rows
from mcurl_torchrl.replay.writer import FrameWriter, check_num_columns, check_storage
from mcurl_torchrl.stacking import PADDINGS

__all__ = ["FrameReplayBuffer"]


def made(part: Any) -> Any:
    """Returns a storage or a sampler; if ``part`` is a function that makes one, calls it."""
    return part() if callable(part) and not isinstance(part, Storage | Sampler) else part


def columns_in(steps: TensorDictBase) -> int | list[int] | None:
    """Returns the columns that steps ``[time]`` or ``[environments, time]`` name, None if they name none.

    Raises:
        ValueError: if the steps of one environment name several columns.
    """
    named = steps.get(COLUMN_KEY, None)
    if named is None:
        return None
    named = named.reshape(-1, steps.shape[-1])
    if not (named == named[:, :1]).all():
        raise ValueError(f"{COLUMN_KEY!r} must be the same for all steps of an environment; got {named.tolist()}")
    return named[:, 0].tolist() if steps.ndim > 1 else int(named[0, 0])


class FrameReplayBuffer(FrameView):
    """A replay buffer for pixel RL that stores each frame once and returns exact transitions and slices.

    It takes steps in TorchRL's layout, from ``extend`` or a :class:`~torchrl.collectors.Collector`, and keeps one frame
    of each step and the last frame of each episode. It rebuilds observations when it samples: ``sample`` returns i.i.d.
    n-step transitions of stacked observations, and a view from :meth:`slices` returns slices of consecutive
    observations of one episode, from the same rows. No sample crosses an episode's end, the ring's seam or a gap, and
    all possible samples are equally likely (or in proportion to their priorities). The layout of the rows:
    :mod:`mcurl_torchrl.replay.windows`.

    A step needs ``pixels`` and ``("next", pixels)``, ``action``, ``("next", "reward")``, ``("next", "terminated")`` and
    ``("next", "truncated")`` or ``("next", "done")``.

    A sampled batch ``[batch_size]`` has ``pixels`` and ``("next", pixels)`` ``[K * C, H, W]``, ``action``, the extra
    keys, ``("next", "reward")``, the discounted sum of up to n rewards, ``("next", "terminated" | "truncated" |
    "done")`` and ``"steps_to_next_obs"`` ``[1]``, by which TorchRL's losses discount the value of the next observation;
    ``"trajectory"``, ``"step"`` and ``"index"``, its place in the buffer; with priorities, ``"priority_weight"``.

    Keyword Args:
        storage (LazyTensorStorage): an unused :class:`~torchrl.data.LazyTensorStorage` (in memory) or
            :class:`~torchrl.data.LazyMemmapStorage` (on disk). ``ndim=1`` is for one environment, ``ndim=2`` for a
            batch of environments: then steps are ``[environments, time]``, and each environment gets its own ring, a
            column of the storage. An episode of L steps takes L + 1 rows of the storage.
        num_columns (int, optional): the number of rings of a storage of ``ndim=2``. Defaults to None: as many as the
            first steps have environments. It is needed where several writers each write their own columns.
        num_frames (int): K, the frames of an observation. Defaults to 1.
        n_step (int): the number of steps over which rewards are summed. Defaults to 1.
        gamma (float): the discount of the rewards. Defaults to 0.99.
        padding (str): the frames from before an episode, ``"repeat"`` (its first frame) or ``"zeros"``. The
            environment must pad its stacks in the same way. Defaults to ``"repeat"``.
        channels_last (bool): whether sampled images have their channels last in memory (shapes and values are the
            same): a crop then copies fewer and longer pieces of memory, and convolutions need no other copy. This
            costs a copy, so it pays only with crops and convolutions. Defaults to False.
        stacked_input (bool): whether incoming observations are stacks of K frames, newest last, as the policy sees
            them; False if they are single frames. Defaults to True.
        pixels_key (NestedKey): the observation. Defaults to ``"pixels"``.
        action_key (NestedKey): the action. Defaults to ``"action"``.
        extra_keys (sequence of NestedKey): other keys of each step to keep. With ``n_step`` above 1, a key under
            ``"next"`` is read at the transition's last step, any other at its first. Defaults to none.
        frame_dtype (torch.dtype): the observation's dtype. Defaults to ``torch.uint8``; for low-level states,
            ``torch.float32``.
        sampler (TransitionSampler, optional): :class:`~mcurl_torchrl.replay.TransitionSampler` (uniform) or
            :class:`~mcurl_torchrl.replay.PrioritizedTransitionSampler`. Defaults to uniform.
        batch_size (int, optional): the number of transitions in a batch.
        prefetch (int, optional): the number of batches that threads make in advance.
        transform (Transform, optional): a transform of each batch.
        generator (torch.Generator, optional): the source of all random numbers, also for :meth:`slices`.
        pin_memory (bool): whether batches are put in pinned memory. Defaults to False.
        priority_key (str): the key under which :meth:`update_tensordict_priority` finds priorities. Defaults to
            ``"td_error"``.
        ranks (Ranks): the ranks that share each batch. Each rank has a buffer with the same rows: all ranks draw the
            same rows of the whole batch, and each rank reads its share, ``batch_size / ranks.count`` transitions. The
            same holds for slices. Transforms draw other random numbers on each rank. Defaults to one process.
        delayed_init (bool): only False; TorchRL's Ray buffers pass it.

    With ``service_backend="ray"`` the buffer is in a Ray actor: give the storage and the sampler as functions that make
    them, such as ``partial(LazyTensorStorage, 100_000, ndim=2)``; ``service_backend_options`` are TorchRL's.
    ``client()`` then has the methods of this class, :meth:`sample_slices` among them, and a
    ``Collector(backend="ray", replay_buffer=...)`` writes to it.

    Raises:
        TypeError: on another kind of storage or sampler.
        ValueError: on numbers out of range, and on data that does not fit; nothing is written then.
        KeyError: on data that lacks a key, with the keys that the data has; nothing is written then.
        RuntimeError: on sampling when no sample is possible, with the reason.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage
        >>> from mcurl_torchrl import FrameReplayBuffer
        >>> buffer = FrameReplayBuffer(
        ...     storage=LazyTensorStorage(1000), num_frames=3, n_step=2, stacked_input=False, batch_size=8
        ... )
        >>> slices = buffer.slices(num_slices=4, slice_len=16)
        >>> frames = torch.randint(256, (41, 3, 84, 84), dtype=torch.uint8)  # an episode of 40 steps
        >>> truncated = torch.zeros(40, 1, dtype=torch.bool)
        >>> truncated[-1] = True
        >>> episode = TensorDict(
        ...     {
        ...         "pixels": frames[:-1],
        ...         "action": torch.randn(40, 2),
        ...         "next": {
        ...             "pixels": frames[1:],
        ...             "reward": torch.ones(40, 1),
        ...             "terminated": torch.zeros(40, 1, dtype=torch.bool),
        ...             "truncated": truncated,
        ...         },
        ...     },
        ...     batch_size=[40],
        ... )
        >>> _ = buffer.extend(episode)
        >>> len(buffer)  # 40 steps and the last frame
        41
        >>> batch = buffer.sample()
        >>> batch["next", "pixels"].shape
        torch.Size([8, 9, 84, 84])
        >>> slices.sample().reshape(4, 16)["pixels"].shape
        torch.Size([4, 16, 9, 84, 84])
    """

    def __init__(
        self,
        *,
        storage: LazyTensorStorage | Callable[[], LazyTensorStorage],
        num_columns: int | None = None,
        num_frames: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        padding: str = "repeat",
        channels_last: bool = False,
        stacked_input: bool = True,
        pixels_key: NestedKey = "pixels",
        action_key: NestedKey = "action",
        extra_keys: Sequence[NestedKey] = (),
        frame_dtype: torch.dtype = torch.uint8,
        sampler: TransitionSampler | Callable[[], TransitionSampler] | None = None,
        batch_size: int | None = None,
        prefetch: int | None = None,
        transform: Transform | None = None,
        generator: torch.Generator | None = None,
        pin_memory: bool = False,
        priority_key: str = "td_error",
        ranks: Ranks = ALONE,
        delayed_init: bool = False,
    ) -> None:
        if delayed_init:
            raise ValueError("delayed_init=True; a FrameReplayBuffer has no delayed initialization: leave it False")
        storage, sampler = made(storage), made(sampler)
        check_storage(storage)
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma={gamma}; it must be between 0 and 1")
        if batch_size is not None:
            batch_size = check_count("batch_size", batch_size)
        if num_columns is not None:
            check_num_columns(num_columns, storage)
        self.num_frames = check_count("num_frames", num_frames)
        self.n_step = check_count("n_step", n_step)
        self.gamma = gamma
        self.padding = check_choice("padding", padding, PADDINGS)
        self.channels_last = channels_last
        self.pixels_key = unravel_key(pixels_key)
        self.action_key = unravel_key(action_key)
        self.extra_keys = tuple(unravel_key(key) for key in extra_keys)
        self._reader = StepReader(
            pixels_key=self.pixels_key,
            action_key=self.action_key,
            extra_keys=self.extra_keys,
            num_frames=self.num_frames if stacked_input else 1,
            padding=self.padding,
            frame_dtype=frame_dtype,
        )
        super().__init__(
            storage=storage,
            sampler=bind_sampler(TransitionSampler() if sampler is None else sampler, self.num_frames, self.n_step),
            writer=FrameWriter(self._reader, num_columns),
            batch_size=batch_size,
            prefetch=prefetch,
            transform=transform,
            generator=generator,
            pin_memory=pin_memory,
            priority_key=priority_key,
        )
        self.share_with(ranks, "batch_size", batch_size)
        self._views: list[weakref.ref[FrameSlices]] = []
        self._own_views: dict[str, FrameSlices] = {}  # of sample_slices
        self._archived: dict[Path, list[archive.RowSegment]] = {}

    def slices(
        self,
        *,
        num_slices: int,
        slice_len: int,
        keys: Sequence[NestedKey] | None = None,
        priority: str | None = None,
        prefetch: int | None = None,
        transform: Transform | None = None,
        generator: torch.Generator | None = None,
    ) -> FrameSlices:
        """Returns a view of the same rows that samples slices of consecutive observations of one episode.

        Keyword Args:
            num_slices (int): the number of slices in a batch.
            slice_len (int): the number of observations in a slice.
            keys (sequence of NestedKey, optional): the keys to read of each row: ``pixels``, ``action``, the extra
                keys, ``("next", "reward")`` of this one step, ``("next", "terminated" | "truncated" | "done")``.
                Defaults to the pixels alone.
            priority (str, optional): the priority of a slice, ``"mean"`` or ``"max"`` of ``priority ** alpha`` of its
                rows, in a buffer with a :class:`~mcurl_torchrl.PrioritizedTransitionSampler`. Defaults to None: all
                slices are equally likely.
            prefetch (int, optional): the number of batches that threads make in advance.
            transform (Transform, optional): a transform of each batch.
            generator (torch.Generator, optional): the source of random numbers. Defaults to this buffer's generator.
        """
        view = FrameSlices(
            self,
            num_slices=num_slices,
            slice_len=slice_len,
            keys=keys,
            priority=priority,
            prefetch=prefetch,
            transform=transform,
            generator=internals.generator_of(self) if generator is None else generator,
        )
        self._views.append(weakref.ref(view))
        return view

    @property
    def readers(self) -> list[FrameView]:
        """This buffer, and the views from :meth:`slices` that are in use."""
        return [self, *(view for reference in self._views if (view := reference()) is not None)]

    def sample_slices(self, num_slices: int, slice_len: int, **options: Any) -> TensorDictBase:
        """Samples slices, for a buffer in another process; the view of :meth:`slices` is kept for later calls.

        Args:
            num_slices (int): the number of slices in a batch.
            slice_len (int): the number of observations in a slice.

        Keyword Args:
            options: ``keys`` and ``priority``, as in :meth:`slices`.

        Returns:
            A flat batch ``[num_slices * slice_len]``.
        """
        name = repr((num_slices, slice_len, sorted(options.items())))
        if name not in self._own_views:
            self._own_views[name] = self.slices(num_slices=num_slices, slice_len=slice_len, **options)
        return self._own_views[name].sample()

    def slices_at(self, index: Any, *, slice_len: int, keys: Sequence[NestedKey] | None = None) -> TensorDict:
        """Reads the slices that begin at given rows, such as those of a prioritized batch.

        If an episode ends earlier, its slice is padded with the episode's last observation.

        Args:
            index (torch.Tensor or TensorDictBase): a storage index, as under ``"index"`` in a sampled batch; or that
                batch, whose rows are then compared with the buffer's.

        Keyword Args:
            slice_len (int): the number of observations in a slice.
            keys (sequence of NestedKey, optional): the keys to read of each row, as in :meth:`slices`.

        Returns:
            A flat batch ``[len(index) * slice_len]`` of the same form as the batches of :meth:`slices`.
            ``("collector", "mask")`` is True on observations of the slice. It is False on padding, on observations
            whose frames are no longer stored, and on all observations of a slice whose first row was overwritten since
            the batch was drawn (this can be checked for a batch, not for a plain index).

        Raises:
            IndexError: if the index is outside of the written rows.
        """
        keys = check_keys(keys, self)
        slice_len = check_count("slice_len", slice_len)
        with internals.locked(self):
            rows = Rows(self.storage)
            batch = index.reshape(-1) if isinstance(index, TensorDictBase) else None
            starts = rows.from_index(index if batch is None else batch.get("index")).reshape(-1)
            flat, mask = FrameWindows(rows, num_frames=self.num_frames).slices_at(starts, slice_len)
            if batch is not None:
                mask &= self._is_current(rows, starts, batch)[:, None]
            slices = self._read_rows(rows, flat.flatten(0, 1), keys)
        slices.set("index", self.writer.to_index(flat[..., -1].flatten()))
        slices.set(("collector", "mask"), mask.flatten())
        return slices

    def set_sampler(self, sampler: Any) -> Any:
        """Refuses: the sampler of a buffer is chosen when it is made, because priorities grow with the rows."""
        raise RuntimeError("a FrameReplayBuffer keeps its sampler; give it to the constructor")

    def set_writer(self, writer: Any) -> Any:
        """Refuses: no other writer writes the layout that the samplers read."""
        raise RuntimeError("a FrameReplayBuffer keeps its writer: no other one writes single frames")

    def set_storage(self, storage: Any, collate_fn: Any = None) -> Any:
        """Refuses: writer, sampler and views are bound to the storage that the buffer was made with."""
        raise RuntimeError("a FrameReplayBuffer keeps its storage; give it to the constructor of another buffer")

    def share(self, shared: bool = True) -> FrameReplayBuffer:
        """Refuses to be written by several processes: only one process knows the running episodes."""
        if shared:
            raise NotImplementedError(
                "a FrameReplayBuffer is written by one process. Take the batches that a collector of several processes "
                "yields, and write them: extend(batch, columns=...), or with a WriterColumn transform in each worker's "
                "environment. Or let the buffer live in an actor: service_backend='ray'"
            )
        return super().share(False)

    # -- writing -------------------------------------------------------------------------------------------------------

    def extend(
        self,
        tensordicts: TensorDictBase | Mapping[Any, Any],
        *,
        columns: int | Sequence[int] | None = None,
        valid: Any = None,
        update_priority: bool | None = None,
    ) -> Tensor:
        """Writes steps ``[time]``, or ``[environments, time]`` for a storage of ``ndim=2``.

        Several writers share a buffer if each writes columns of its own: their steps may come in any order and in
        pieces of any length, and no sample mixes them. Such a buffer needs ``num_columns``.

        Args:
            tensordicts (TensorDictBase or dict): the steps; a dictionary may hold NumPy arrays.

        Keyword Args:
            columns (int or sequence of int, optional): the columns to write, in a storage of ``ndim=2``: one for steps
                ``[time]``, or one for each environment of steps ``[environments, time]``. The other columns stay as
                they are. Defaults to None: the columns that the steps have under ``"column"``, which
                :class:`~mcurl_torchrl.transforms.WriterColumn` writes; without this key, all columns.
            valid (bool array, optional): which steps to write, of the steps' batch size; see :meth:`add`.
            update_priority (bool, optional): has no effect; TorchRL passes it. New rows get the largest priority so
                far.

        Returns:
            The storage index of the rows written, one more than steps for each episode that ended.
        """
        if columns is None and self.storage.ndim > 1 and isinstance(tensordicts, TensorDictBase):
            columns = columns_in(tensordicts)
        ndim = 1 if isinstance(columns, int) else self.storage.ndim
        steps = self._check_steps("extend", tensordicts, ["environments", "time"][-ndim:])
        valid = None if valid is None else self._check_valid(valid, steps)
        if isinstance(columns, int):
            columns, steps, valid = [columns], steps.unsqueeze(0), None if valid is None else valid.unsqueeze(0)
        if self.dim_extend:
            steps, valid = steps.transpose(self.dim_extend, 0), None if valid is None else valid.T
        return self._write(steps, valid=valid, columns=columns)

    def add(
        self,
        data: TensorDictBase | Mapping[Any, Any] | None = None,
        *,
        obs: Any = None,
        action: Any = None,
        reward: Any = None,
        terminated: Any = None,
        truncated: Any = None,
        next_obs: Any = None,
        valid: Any = None,
    ) -> Tensor:
        """Writes one step, or one of each environment for a storage of ``ndim=2``; returns the same as :meth:`extend`.

        A step is ``data``, or the six values that a loop around a Gymnasium environment has, as NumPy arrays, tensors
        or numbers. Images have their channels first.

        Args:
            data (TensorDictBase or dict, optional): the step; a dictionary may hold NumPy arrays.

        Keyword Args:
            obs (array, optional): the observation, under ``pixels_key``.
            action (array, optional): the action.
            reward (array or float, optional): the reward.
            terminated (bool or bool array, optional): whether the environment ended the episode.
            truncated (bool or bool array, optional): whether a limit ended the episode.
            next_obs (array, optional): the next observation, at an episode's end its last one.
            valid (bool or bool array, optional): which environments to write a step of. A vector environment of
                Gymnasium that resets itself on the next step (``AutoresetMode.NEXT_STEP``, its default) ignores the
                action of the step after an episode's end and returns a first observation: this is not a step. Give
                ``valid=~done`` with the ``done`` of the step before. Defaults to all.
        """
        if data is None or obs is not None or action is not None or reward is not None:
            fields = dict(
                obs=obs, action=action, reward=reward, terminated=terminated, truncated=truncated, next_obs=next_obs
            )
            if data is not None:
                raise TypeError(f"add takes a tensordict or a dictionary, or all of {list(fields)}; got both")
            data = steps_from_arrays(self._reader, self.storage.ndim - 1, fields)
        steps = self._check_steps("add", data, ["environments"][: self.storage.ndim - 1])
        valid = None if valid is None else self._check_valid(valid, steps).unsqueeze(0)
        if len(self.transform) or valid is not None:
            return self._write(steps.unsqueeze(0), valid=valid)  # a transform sees steps, time first
        return self._write(steps, one_step=True)

    def _check_steps(self, method: str, steps: Any, expected: list[str]) -> TensorDictBase:
        if not isinstance(steps, TensorDictBase):
            if not isinstance(steps, Mapping):
                raise TypeError(f"{method} takes a tensordict or a dictionary; got {type(steps).__name__}")
            steps = steps_from_mapping(self._reader, len(expected), steps)
        if steps.ndim != len(expected):
            raise ValueError(
                f"{method} takes steps of batch size [{', '.join(expected)}] for a storage of "
                f"ndim={self.storage.ndim}; got {list(steps.shape)}"
            )
        return steps

    @staticmethod
    def _check_valid(valid: Any, steps: TensorDictBase) -> Tensor:
        valid = torch.as_tensor(valid)
        if valid.dtype != torch.bool or valid.shape != steps.shape:
            raise ValueError(
                f"valid must be bools of shape {list(steps.shape)}; got {valid.dtype} of shape {list(valid.shape)}"
            )
        return valid

    def _write(
        self,
        steps: TensorDictBase,
        *,
        one_step: bool = False,
        valid: Tensor | None = None,
        columns: Sequence[int] | None = None,
    ) -> Tensor:
        """Writes steps, time first, or one step without a time dimension."""
        if len(self.transform):
            steps = self.transform.inv(steps)
        with internals.locked(self):
            flat, _ = self.writer.write_one(steps) if one_step else self.writer.write(steps, valid, columns)
            if not len(flat):
                return torch.zeros(0, *[2] * (self.storage.ndim - 1), dtype=torch.int64)
            if isinstance(self.sampler, PrioritizedTransitionSampler):
                self.sampler.make_tree(self.storage.max_size, flat.device)
                self.sampler.extend(flat)
                written = torch.cat([self.writer.closed.to(flat.device), flat])
                if (final := self.writer.column(FINAL_KEY)[written]).any():
                    self.sampler.discard(written[final])
            return self.writer.to_index(flat)

    def empty(self, empty_write_count: bool = True) -> None:
        """Deletes all rows. Trajectory ids continue, so that no id is used twice."""
        with internals.locked(self):
            super().empty(empty_write_count=empty_write_count)
            self._archived.clear()

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(self, rows: Rows, flat: Tensor) -> TensorDict:
        transitions, keys = self.sampler.transitions(self.storage), (self.action_key, *self.extra_keys)
        values, stack_rows, steps = transitions.read(flat, self.gamma, keys)
        pixels, next_pixels = self._read_stacks(rows, stack_rows, steps).chunk(2)
        return TensorDict(
            {self.pixels_key: pixels, self._reader.next_pixels_key: next_pixels, **values},
            batch_size=[len(flat)],
            device=self.storage.device,
        )

    def observations(self, count: int) -> Tensor:
        """Draws single observations, all equally likely, the last one of an episode too.

        :class:`~mcurl_torchrl.MaskObservations` replaces hidden observations by them.

        Args:
            count (int): the number of observations.

        Returns:
            Stacks ``[count, K * C, H, W]``.
        """
        sampler = EpisodeSliceSampler(1, num_frames=self.num_frames, truncated_key=None, init_key=None)
        internals.set_generator(sampler, internals.generator_of(self))
        with internals.locked(self):
            index, _ = sampler.draw(self.storage, count)
            rows = Rows(self.storage)
            flat = rows.from_index(index).view(count, self.num_frames)
            return self._read_stacks(rows, flat, rows.scalars(STEP_KEY)[flat[:, -1]])

    # -- priorities ----------------------------------------------------------------------------------------------------

    def update_priority(self, index: Any, priority: Any) -> None:
        """Sets the priorities of the rows at a storage index; rows that hold no step keep the priority 0."""
        if not isinstance(self.sampler, PrioritizedTransitionSampler):
            raise TypeError("this buffer has no priorities; build it with sampler=PrioritizedTransitionSampler(...)")
        priority = torch.as_tensor(priority).reshape(-1)
        with internals.locked(self):
            flat = Rows(self.storage).from_index(index).reshape(-1)
            if priority.numel() not in (1, flat.numel()):
                raise ValueError(
                    f"got {priority.numel()} priorities for {flat.numel()} rows; give one for each row, or one for all"
                )
            can_be_drawn = self._holds_steps(flat)
            self.sampler.update_priority(
                flat[can_be_drawn], priority.expand(flat.shape)[can_be_drawn.to(priority.device)]
            )

    def _holds_steps(self, flat: Tensor) -> Tensor:
        """Returns which flat rows hold a step: not those that were never written, and not those after a last step."""
        rows = Rows(self.storage)
        return ~rows.scalars(FINAL_KEY)[flat] & (rows.scalars(TRAJECTORY_KEY)[flat] != UNWRITTEN)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Sets priorities from a sampled batch, one under ``priority_key`` per transition.

        Rows that were overwritten after the batch was drawn do not change. A buffer without priorities does nothing.
        With several ranks, each rank gives the priorities of its share, and all ranks set those of the whole batch.
        """
        if not isinstance(self.sampler, PrioritizedTransitionSampler):
            return
        keys = (self.priority_key, "index", TRAJECTORY_KEY, STEP_KEY)
        for key in keys:
            if data.get(key, None) is None:
                raise KeyError(f"updating priorities needs {key!r}; the batch has {leaf_keys(data)}")
        data = data.reshape(-1)
        priority = data.get(self.priority_key)
        if priority.numel() != len(data):
            raise ValueError(
                f"{self.priority_key!r} must be one number per transition; "
                f"got shape {tuple(priority.shape)} for a batch of {len(data)}"
            )
        if self.ranks.count > 1:
            data = data.select(*keys).to(self.storage.device).apply(self.ranks.gather, batch_size=[])
            priority = data.get(self.priority_key)
        with internals.locked(self):
            if not len(self.storage):
                return
            rows = Rows(self.storage)
            flat = rows.from_index(data.get("index"))
            current = self._is_current(rows, flat, data) & ~rows.scalars(FINAL_KEY)[flat]
            self.sampler.update_priority(flat[current], priority.reshape(-1).to(flat.device)[current])

    @staticmethod
    def _is_current(rows: Rows, flat: Tensor, batch: TensorDictBase) -> Tensor:
        """Returns which flat rows were not overwritten since a batch of them was drawn."""
        current = rows.scalars(TRAJECTORY_KEY)[flat] == batch.get(TRAJECTORY_KEY).to(flat.device)
        return current & (rows.scalars(STEP_KEY)[flat] == batch.get(STEP_KEY).to(flat.device))

    # -- saving --------------------------------------------------------------------------------------------------------

    def dumps(self, path: str | Path, name: str = "latest") -> None:
        """Saves everything to a folder: rows, running episodes, priorities, random state and prefetched batches.

        Saving again to the same folder adds only the rows written since then. The earlier state stays whole until the
        new state is complete, so that a crash loses nothing. States under several names share their rows; delete
        ``NAME.json`` to delete a state. See :mod:`mcurl_torchrl.replay.archive`.

        Args:
            path (str or Path): the folder.
            name (str): the name of the state. Defaults to ``"latest"``.
        """
        path = Path(path).absolute()
        with self._frozen() as readers:
            self._archived[path] = save_readers(path, name, readers, self._archived.get(path, []))

    def loads(self, path: str | Path, name: str = "latest") -> None:
        """Loads a state saved by :meth:`dumps`. All files are checked first: if one is wrong, nothing changes.

        Random generators are restored in place. Views from :meth:`slices` get back their generators and prefetched
        batches if they are made before loading, in the same order and with the same settings.

        Args:
            path (str or Path): the folder.
            name (str): the name of the state. Defaults to ``"latest"``.

        Raises:
            FileNotFoundError: if there is no such saved state, or one of its files is missing.
            ValueError: if a file was cut short or damaged, is of another version, or does not fit this buffer.
        """
        path = Path(path).absolute()
        saved = archive.open_saved(path, name)
        batches = check_saved(saved, self)
        with self._frozen() as readers:
            self._archived.clear()
            restore_readers(saved, batches, readers)
            self._archived[path] = saved.segments

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state from ``state_dict``; random generators are restored in place.

        Raises:
            ValueError: if the state does not fit this buffer; nothing changes then.
        """
        check_state_dict(state_dict, self)
        generator = internals.generator_of(self)
        with self._frozen() as readers:
            for reader in readers:
                internals.clear_prefetched(reader)
            self._archived.clear()
            super().load_state_dict(state_dict)
            loaded = internals.generator_of(self)
            if generator is not None and loaded is not None and loaded is not generator:
                generator.set_state(loaded.get_state())
                self.set_rng(generator)

    def _frozen(self) -> contextlib.AbstractContextManager[list[FrameView]]:
        return frozen(self, self.readers[1:])

    def settings(self) -> dict[str, Any]:
        """Returns the settings that this buffer's batches depend on, as JSON."""
        return {**super().settings(), "n_step": self.n_step, "gamma": self.gamma}

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no views: the views read the original.
        return {**super().__getstate__(), "_views": [], "_own_views": {}, "_archived": {}}
