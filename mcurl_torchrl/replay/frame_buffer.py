"""FrameReplayBuffer: a TensorDictReplayBuffer that stores each frame once."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torchrl.data.replay_buffers.storages import LazyTensorStorage
from torchrl.envs.transforms import Transform

from mcurl_torchrl.checks import check_choice, check_count, leaf_keys
from mcurl_torchrl.replay import archive
from mcurl_torchrl.replay.frame_view import FrameSlices, FrameView
from mcurl_torchrl.replay.frame_writer import FrameWriter
from mcurl_torchrl.replay.layout import STEP_KEY, TRAJECTORY_KEY
from mcurl_torchrl.replay.prefetched import pack_batches, unpack_batches
from mcurl_torchrl.replay.rows import Rows
from mcurl_torchrl.replay.slice_sampler import EpisodeSliceSampler
from mcurl_torchrl.replay.stacking import PADDINGS
from mcurl_torchrl.replay.steps import DONE_KEY, REWARD_KEY, TERMINATED_KEY, TRUNCATED_KEY, StepReader
from mcurl_torchrl.replay.transition_sampler import PrioritizedTransitionSampler, TransitionSampler

__all__ = ["FrameReplayBuffer"]


class FrameReplayBuffer(FrameView):
    """A replay buffer for pixel RL that stores each frame once and hands out exact transitions and slices.

    It takes steps in TorchRL's layout, from ``extend`` or a :class:`~torchrl.collectors.Collector`, keeps one frame of
    each (and the last frame of each episode), and rebuilds what is asked for when sampled: here i.i.d. n-step
    transitions of stacked observations; with :meth:`slices`, slices of consecutive observations of one episode, from
    the same rows. Nothing sampled ever crosses an episode's end, the ring's seam or a gap, and everything that could be
    sampled is equally likely (or as likely as its priority says). How rows are laid out:
    :mod:`mcurl_torchrl.replay.layout`.

    A step needs ``pixels`` and ``("next", pixels)``, ``action``, ``("next", "reward")``, ``("next", "terminated")`` and
    ``("next", "truncated")`` or ``("next", "done")``.

    A sampled batch ``[batch_size]`` has ``pixels`` and ``("next", pixels)`` ``[K * C, H, W]``, ``action``, the extra
    keys, ``("next", "reward")``, the discounted sum of up to n rewards, ``("next", "terminated" | "truncated" |
    "done")`` and ``"steps_to_next_obs"`` ``[1]``, by which TorchRL's losses discount the value of the next observation;
    ``"trajectory"``, ``"step"`` and ``"index"``, where it came from; with priorities, ``"priority_weight"``.

    Keyword Args:
        storage (LazyTensorStorage): an unused :class:`~torchrl.data.LazyTensorStorage` (in memory) or
            :class:`~torchrl.data.LazyMemmapStorage` (on disk), ``ndim=1`` for one environment, ``ndim=2`` for batched
            ones: then steps are ``[environments, time]``, and each environment gets its own ring. An episode of L steps
            takes L + 1 of the storage's rows.
        num_frames (int): K, the frames of an observation. Defaults to 1.
        n_step (int): over how many steps rewards are summed. Defaults to 1.
        gamma (float): their discount. Defaults to 0.99.
        padding (str): what stands for frames from before an episode, ``"repeat"`` (its first frame) or ``"zeros"``.
            It must be what the environment's own stack does. Defaults to ``"repeat"``.
        channels_last (bool): whether images that are handed out have their channels last in memory (shapes and values
            are the same): crops of them are then fewer, longer stretches, and convolutions take them as they are, which
            is worth more than it costs where there are both. Defaults to False.
        stacked_input (bool): whether incoming observations are stacks of K frames, newest last, as the policy sees
            them, or single frames. Defaults to True.
        pixels_key (NestedKey): the observation. Defaults to ``"pixels"``.
        action_key (NestedKey): the action. Defaults to ``"action"``.
        extra_keys (sequence of NestedKey): what else of each step to keep. Defaults to nothing.
        frame_dtype (torch.dtype): the observation's dtype. Defaults to ``torch.uint8``; for low-level states,
            ``torch.float32``.
        sampler (TransitionSampler, optional): :class:`~mcurl_torchrl.replay.TransitionSampler` (uniform) or
            :class:`~mcurl_torchrl.replay.PrioritizedTransitionSampler`. Defaults to uniform.
        batch_size (int, optional): how many transitions a batch has.
        prefetch (int, optional): how many batches are made ahead, in threads.
        transform (Transform, optional): what to do to each batch.
        generator (torch.Generator, optional): where all random numbers come from, those of :meth:`slices` too.
        pin_memory (bool): whether batches are put in pinned memory. Defaults to False.
        priority_key (str): where :meth:`update_tensordict_priority` finds priorities. Defaults to ``"td_error"``.

    Raises:
        TypeError: on another kind of storage or sampler.
        ValueError: on numbers out of range, and on writing data that does not fit; nothing is written then.
        KeyError: on writing data that lacks a key, with the keys it has; nothing is written then.
        RuntimeError: on sampling when there is nothing that could be, with the reason.

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
        storage: LazyTensorStorage,
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
        sampler: TransitionSampler | None = None,
        batch_size: int | None = None,
        prefetch: int | None = None,
        transform: Transform | None = None,
        generator: torch.Generator | None = None,
        pin_memory: bool = False,
        priority_key: str = "td_error",
    ) -> None:
        _check_storage(storage)
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma={gamma}; it must be between 0 and 1")
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
            num_frames=num_frames if stacked_input else 1,
            padding=self.padding,
            frame_dtype=frame_dtype,
        )
        super().__init__(
            storage=storage,
            sampler=self._bind(TransitionSampler() if sampler is None else sampler),
            writer=FrameWriter(self._reader),
            batch_size=batch_size,
            prefetch=prefetch,
            transform=transform,
            generator=generator,
            pin_memory=pin_memory,
            priority_key=priority_key,
        )
        self._views: list[weakref.ref[FrameSlices]] = []
        self._archived: dict[Path, list[archive.RowSegment]] = {}

    def slices(
        self,
        *,
        num_slices: int,
        slice_len: int,
        keys: Sequence[NestedKey] | None = None,
        prefetch: int | None = None,
        transform: Transform | None = None,
        generator: torch.Generator | None = None,
    ) -> FrameSlices:
        """Returns a second way to read the same rows: slices of consecutive observations of one episode.

        Keyword Args:
            num_slices (int): how many slices a batch has.
            slice_len (int): how many observations a slice has.
            keys (sequence of NestedKey, optional): what to read of each row. Defaults to the pixels alone.
            prefetch (int, optional): how many batches are made ahead, in threads.
            transform (Transform, optional): what to do to each batch.
            generator (torch.Generator, optional): where random numbers come from. Defaults to this buffer's generator.
        """
        view = FrameSlices(
            self,
            num_slices=num_slices,
            slice_len=slice_len,
            keys=keys,
            prefetch=prefetch,
            transform=transform,
            generator=self._rng if generator is None else generator,
        )
        self._views.append(weakref.ref(view))
        return view

    def _bind(self, sampler: Any) -> TransitionSampler:
        """Checks that a sampler can serve this buffer, and tells it what a transition is here."""
        if not isinstance(sampler, TransitionSampler):
            raise TypeError(
                f"sampler must be a TransitionSampler or a PrioritizedTransitionSampler; got {type(sampler).__name__}. "
                f"For slices call .slices(num_slices=..., slice_len=...)"
            )
        sampler.bind(self.num_frames, self.n_step)
        return sampler

    def set_sampler(self, sampler: Any) -> Any:
        """Refuses: priorities have to grow with the rows, so the sampler is chosen when the buffer is made."""
        raise RuntimeError("a FrameReplayBuffer keeps its sampler; give it to the constructor")

    def share(self, shared: bool = True) -> FrameReplayBuffer:
        """Refuses to be written by several processes: which rows are whose is known to one process only."""
        if shared:
            raise NotImplementedError(
                "a FrameReplayBuffer is written by one process; collect with a Collector in this process "
                "(batched environments may run in others)"
            )
        return super().share(False)

    # -- writing -------------------------------------------------------------------------------------------------------

    def extend(self, tensordicts: TensorDictBase, *, update_priority: bool | None = None) -> Tensor:
        """Writes steps ``[time]``, or ``[environments, time]`` for a storage of ``ndim=2``.

        Returns:
            The storage index of the rows written, one more than steps for each episode that ended.
        """
        if not isinstance(tensordicts, TensorDictBase):
            raise TypeError(f"extend takes a tensordict; got {type(tensordicts).__name__}")
        if tensordicts.ndim != self._storage.ndim:
            expected = "[time]" if self._storage.ndim == 1 else "[environments, time]"
            raise ValueError(
                f"steps must have batch size {expected} for a storage of ndim={self._storage.ndim}; "
                f"got {list(tensordicts.shape)}"
            )
        return self._write(tensordicts.transpose(self.dim_extend, 0) if self.dim_extend else tensordicts)

    def add(self, data: TensorDictBase) -> Tensor:
        """Writes one step, or one of each environment for a storage of ``ndim=2``; returns as :meth:`extend`."""
        if not isinstance(data, TensorDictBase):
            raise TypeError(f"add takes a tensordict; got {type(data).__name__}")
        if data.ndim != self._storage.ndim - 1:
            expected = "[]" if self._storage.ndim == 1 else "[environments]"
            raise ValueError(
                f"one step must have batch size {expected} for a storage of ndim={self._storage.ndim}; "
                f"got {list(data.shape)}"
            )
        if self._transform is not None and len(self._transform):
            return self._write(data.unsqueeze(0))  # a transform sees steps, time first
        return self._write(data, one_step=True)

    def _write(self, steps: TensorDictBase, one_step: bool = False) -> Tensor:
        """Writes steps, time first, or one step without a time dimension."""
        if self._transform is not None and len(self._transform):
            steps = self._transform.inv(steps)
        with self._replay_lock, self._write_lock:
            flat, final = self._writer.write_one(steps) if one_step else self._writer.write(steps)
            if isinstance(self._sampler, PrioritizedTransitionSampler):
                self._sampler.make_tree(self._storage.max_size, flat.device)
                self._sampler.extend(flat)
                if final.any():
                    self._sampler.discard(flat[final])
            return self._writer.to_index(flat)

    def empty(self, empty_write_count: bool = True) -> None:
        """Forgets all rows. Trajectory ids go on, so that none is used twice."""
        with self._replay_lock, self._write_lock:
            super().empty(empty_write_count=empty_write_count)
            self._archived.clear()

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(self, rows: Rows, flat: Tensor) -> TensorDict:
        transitions = self._sampler.transitions(self._storage)
        num_steps = transitions.steps_ahead(flat)
        around = transitions.windows.expand(flat, self.n_step + 1, self.num_frames - 1)
        offsets = torch.arange(self.num_frames, device=flat.device)
        stack_rows = torch.cat([around[:, : self.num_frames], around.gather(1, num_steps[:, None] + offsets)])
        step = rows.scalars(STEP_KEY)[flat]
        pixels, next_pixels = self._read_stacks(rows, stack_rows, torch.cat([step, step + num_steps])).chunk(2)

        offsets = torch.arange(self.n_step, device=flat.device)
        rewards = rows.scalars(REWARD_KEY)[around[:, self.num_frames - 1 : -1]]
        rewards = torch.where(offsets < num_steps[:, None], rewards, 0)
        reward = (rewards * torch.as_tensor(self.gamma, dtype=rewards.dtype) ** offsets).sum(-1, keepdim=True)
        last = around.gather(1, num_steps[:, None] + self.num_frames - 2)
        terminated, truncated = (rows.scalars(key)[last] for key in (TERMINATED_KEY, TRUNCATED_KEY))
        batch = {key: rows.column(key).index_select(0, flat) for key in (self.action_key, *self.extra_keys)}
        return TensorDict(
            {
                **batch,
                self.pixels_key: pixels,
                self._reader.next_pixels_key: next_pixels,
                REWARD_KEY: reward,
                TERMINATED_KEY: terminated,
                TRUNCATED_KEY: truncated,
                DONE_KEY: terminated | truncated,
                "steps_to_next_obs": num_steps[:, None],
                TRAJECTORY_KEY: rows.scalars(TRAJECTORY_KEY)[flat],
                STEP_KEY: step,
            },
            batch_size=[len(flat)],
            device=self._storage.device,
        )

    def observations(self, count: int) -> Tensor:
        """Draws single observations, each equally likely, an episode's last one too; for example to replace others by.

        Args:
            count (int): how many.

        Returns:
            Stacks ``[count, K * C, H, W]``.
        """
        sampler = EpisodeSliceSampler(1, num_frames=self.num_frames, truncated_key=None, init_key=None)
        sampler._rng = self._rng
        with self._replay_lock, self._write_lock:
            index, _ = sampler.sample(self._storage, count)
            rows = Rows(self._storage)
            flat = rows.from_index(index).view(count, self.num_frames)
            return self._read_stacks(rows, flat, rows.scalars(STEP_KEY)[flat[:, -1]])

    # -- priorities ----------------------------------------------------------------------------------------------------

    def update_priority(self, index: Any, priority: Any) -> None:
        """Sets the priorities of the rows at a storage index."""
        if not isinstance(self._sampler, PrioritizedTransitionSampler):
            raise TypeError("this buffer has no priorities; build it with sampler=PrioritizedTransitionSampler(...)")
        priority = torch.as_tensor(priority).reshape(-1)
        with self._replay_lock, self._write_lock:
            flat = Rows(self._storage).from_index(index).reshape(-1)
            if priority.numel() not in (1, flat.numel()):
                raise ValueError(f"got {priority.numel()} priorities for {flat.numel()} rows; give one each, or one")
            self._sampler.update_priority(flat, priority.expand(flat.shape))

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Sets priorities from a sampled batch, one under ``priority_key`` per transition.

        Rows that were overwritten since the batch was drawn are left alone. Without priorities this does nothing.
        """
        if not isinstance(self._sampler, PrioritizedTransitionSampler):
            return
        for key in (self.priority_key, "index", TRAJECTORY_KEY, STEP_KEY):
            if data.get(key, None) is None:
                raise KeyError(f"updating priorities needs {key!r}; the batch has {leaf_keys(data)}")
        data = data.reshape(-1)
        priority = data.get(self.priority_key)
        if priority.numel() != len(data):
            raise ValueError(
                f"{self.priority_key!r} must be one number per transition; "
                f"got shape {tuple(priority.shape)} for a batch of {len(data)}"
            )
        with self._replay_lock, self._write_lock:
            if not len(self._storage):
                return
            rows = Rows(self._storage)
            flat = rows.from_index(data.get("index"))
            current = rows.scalars(TRAJECTORY_KEY)[flat] == data.get(TRAJECTORY_KEY).to(flat.device)
            current &= rows.scalars(STEP_KEY)[flat] == data.get(STEP_KEY).to(flat.device)
            self._sampler.update_priority(flat[current], priority.reshape(-1).to(flat.device)[current])

    # -- saving --------------------------------------------------------------------------------------------------------

    def dumps(self, path: str | Path, name: str = "latest") -> None:
        """Saves everything to a folder: rows, episodes under way, priorities, random state and prefetched batches.

        Saving again to the same folder adds only what was written since. The state saved before stays whole until the
        new one is, so a crash in between costs nothing. States under several names share their rows; delete
        ``NAME.json`` to give one up. See :mod:`mcurl_torchrl.replay.archive`.

        Args:
            path (str or Path): the folder.
            name (str): under which name. Defaults to ``"latest"``.
        """
        path = Path(path).absolute()
        with self._frozen() as readers:
            writer, sampler = self._writer.state_dict(), self._sampler.state_dict()
            tensors = {f"writer/{key}": value for key, value in writer.pop("columns").items()}
            tensors |= {f"sampler/{key}": sampler.pop(key) for key in list(sampler) if isinstance(sampler[key], Tensor)}
            described = []
            for number, reader in enumerate(readers):
                if reader._rng is not None:
                    tensors[f"rng/{number}"] = reader._rng.get_state()
                batches = pack_batches(reader, f"prefetched/{number}/", tensors)
                described.append({"settings": reader.settings(), "batches": batches})
            self._archived[path] = archive.save(
                path,
                name,
                data=self._storage._storage if self._writer.written.numel() else None,
                written=self._writer.written,
                known=self._archived.get(path, []),
                tensors=tensors,
                scalars={
                    "writer": writer,
                    "sampler": {"type": type(self._sampler).__name__, **sampler},
                    "readers": described,
                },
            )

    def loads(self, path: str | Path, name: str = "latest") -> None:
        """Takes over a state saved by :meth:`dumps`. All files are checked first: if one is wrong, nothing changes.

        Random generators are restored in place. So that :meth:`slices` views get theirs back, and everyone the batches
        that were prefetched, views have to be made before loading, in the same order and with the same settings.

        Args:
            path (str or Path): the folder.
            name (str): the name it was saved under. Defaults to ``"latest"``.

        Raises:
            FileNotFoundError: if there is no such saved state, or one of its files is missing.
            ValueError: if a file was cut short or damaged, is of another version, or does not fit this buffer.
        """
        path = Path(path).absolute()
        saved = archive.open_saved(path, name)
        try:
            self._writer.check_saved(saved)
            self._sampler.check_state({**saved.state("sampler/"), **saved.scalars["sampler"]})
            described = [(entry["settings"], entry["batches"]) for entry in saved.scalars["readers"]]
            queues = [
                unpack_batches(saved, f"prefetched/{number}/", batches, self._storage.device)
                for number, (_, batches) in enumerate(described)
            ]
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise ValueError(f"the saved buffer in {path} is damaged: {error!r}") from error
        except ValueError as error:
            raise ValueError(f"the saved buffer in {path} does not fit: {error}") from None
        with self._frozen() as readers:
            self._archived.clear()
            self._writer.restore(saved)
            self._sampler.load_state_dict({**saved.state("sampler/"), **saved.scalars["sampler"]})
            for number, reader in enumerate(readers):
                reader._clear_prefetch_queue_locked()
                if reader._rng is not None and f"rng/{number}" in saved.tensors:
                    reader._rng.set_state(saved.tensors[f"rng/{number}"])
                if number < len(described) and described[number][0] == reader.settings():
                    reader._prefetch_queue.extend(queues[number])
            self._archived[path] = saved.segments

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over a state from ``state_dict``; random generators are restored in place."""
        rows = state_dict["_storage"]["_storage"].get(TRAJECTORY_KEY)
        if rows is not None and rows.numel() != self._storage.max_size:
            raise ValueError(f"the state has room for {rows.numel()} rows; this buffer for {self._storage.max_size}")
        generator = self._rng
        with self._frozen() as readers:
            for reader in readers:
                reader._clear_prefetch_queue_locked()
            self._archived.clear()
            super().load_state_dict(state_dict)
            if generator is not None and self._rng is not generator:
                generator.set_state(self._rng.get_state())
                self.set_rng(generator)

    @contextlib.contextmanager
    def _frozen(self) -> Iterator[list[FrameView]]:
        """Lets all prefetching come to rest and keeps everyone from the rows; yields this buffer and its views."""
        views = [view for reference in self._views if (view := reference()) is not None]
        # A view's transform may draw from this buffer, so whoever needs both locks takes the view's first; and nobody's
        # lock is held while another's batches are waited for.
        order = [*views, self]
        while True:
            for reader in order:
                reader.synchronize()
            with contextlib.ExitStack() as stack:
                for reader in order:
                    stack.enter_context(reader._futures_lock)
                if all(future.done() for reader in order for future in reader._prefetch_queue):
                    stack.enter_context(self._replay_lock)
                    yield [self, *views]
                    return

    def settings(self) -> dict[str, Any]:
        """Says what shapes this buffer's batches, in JSON."""
        return {**super().settings(), "n_step": self.n_step, "gamma": self.gamma}

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no views: theirs read the original.
        return {**super().__getstate__(), "_views": [], "_archived": {}}


def _check_storage(storage: Any) -> None:
    if not isinstance(storage, LazyTensorStorage):
        raise TypeError(f"storage must be a LazyTensorStorage or a LazyMemmapStorage; got {type(storage).__name__}")
    if storage.ndim not in (1, 2):
        raise ValueError(f"storage.ndim={storage.ndim}; use 1 for one environment, 2 for batched ones")
    if storage.max_size < 2:
        raise ValueError(f"the storage's max_size={storage.max_size}; an episode of one step takes 2 rows")
    if storage.device == "auto":
        raise ValueError("storage.device='auto'; name the device, as in LazyTensorStorage(max_size, device='cpu')")
    if storage.initialized or storage._attached_entities:
        raise ValueError("the storage is in use already; give this buffer one of its own")
