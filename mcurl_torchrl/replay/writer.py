"""FrameWriter: turns steps in TorchRL's layout into rows of single frames, one ring per environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.data.replay_buffers.storages import LazyTensorStorage, TensorStorage
from torchrl.data.replay_buffers.writers import Writer

from mcurl_torchrl.checks import check_count, warn_caller
from mcurl_torchrl.replay import torchrl_internals as internals
from mcurl_torchrl.replay.step_reader import TERMINATED_KEY, TRUNCATED_KEY, StepReader, Steps
from mcurl_torchrl.replay.windows import FINAL_KEY, LAYOUT_KEYS, STEP_KEY, TRAJECTORY_KEY, UNWRITTEN

__all__ = ["FrameWriter", "check_num_columns", "check_storage"]

# True for columns whose newest step came without its next frame. The entry exists once such a step was written
# (compact_obs=True).
NEXT_UNKNOWN = "next_unknown"


@dataclass
class _Plan:
    """The episode of each step, ``[time, columns]`` each."""

    # True for columns whose episode was left, without an end, before the first of the steps, ``[columns]``.
    cut: Tensor
    truncated: Tensor
    ends: Tensor
    trajectory: Tensor
    step: Tensor
    num_new: int
    # The number of episodes that were left without an end inside these steps.
    num_inner_cuts: int


class FrameWriter(Writer):
    """Writes steps as rows of single frames (see :mod:`mcurl_torchrl.replay.windows`), one ring per column.

    The end of an episode takes one more row, so columns fill at different speeds and each column has its own cursor.
    The writer decides the episode of each row: an episode begins after a ``done``, where ``("collector", "traj_ids")``
    changes or ``"is_init"`` is set, and where an observation is not the next observation of the step before (a new
    collector, or one that stopped in the middle of an episode). An episode left without ``done`` is closed as
    truncated.

    Args:
        reader (StepReader): reads and checks the steps.
        num_columns (int, optional): the number of columns. Defaults to None: that of the first steps.
    """

    def __init__(self, reader: StepReader, num_columns: int | None = None) -> None:
        super().__init__()
        self.reader = reader
        self.num_columns = num_columns
        self._write_count = 0
        self._next_trajectory = 0
        # One entry per column, made at the first write.
        self._columns: dict[str, Tensor] = {}
        self._has_warned_of_cuts = False
        # The flat rows of earlier writes that the last write turned into final rows.
        self.closed = torch.zeros(0, dtype=torch.int64)

    @property
    def storage(self) -> TensorStorage:
        """The storage of the buffer that this writer serves."""
        storage: TensorStorage = internals.storage_of(self)
        return storage

    @property
    def written(self) -> Tensor:
        """The number of rows that were ever written to each column, ``[columns]``."""
        return self._columns["written"] if self._columns else torch.zeros(0, dtype=torch.int64)

    @property
    def _cursor(self) -> int:
        """The next row of the first column (TorchRL's name; here every column has its own cursor)."""
        return int(self.written[0]) % self._ring() if self._columns else 0

    def _ring(self) -> int:
        rows: int = internals.stored(self.storage).shape[0]
        return rows

    def add(self, data: TensorDictBase) -> Tensor:
        """Writes one step (of each column); returns the index of the rows written."""
        return self.to_index(self.write_one(data)[0])

    def extend(self, data: TensorDictBase) -> Tensor:
        """Writes steps, time first; returns the index of the rows written, ``[rows]`` or ``[rows, ndim]``."""
        return self.to_index(self.write(data)[0])

    def to_index(self, flat: Tensor) -> Tensor:
        """Turns flat rows into their storage index, ``[rows]`` or ``[rows, ndim]``."""
        if self.storage.ndim == 1:
            return flat
        return torch.stack(torch.unravel_index(flat, internals.stored(self.storage).shape), -1)

    def write_one(self, data: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Writes one step (of each column); returns the same as :meth:`write`."""
        written = self._write_next(data)
        return self.write(data.unsqueeze(0)) if written is None else written

    def write(
        self, data: TensorDictBase, valid: Tensor | None = None, columns: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Writes steps, time first; returns the flat rows written and which of them are final rows.

        Args:
            data (TensorDictBase): the steps.
            valid (torch.Tensor, optional): False for steps that are not written, of the shape of the steps.
            columns (sequence of int, optional): the columns of the steps. Defaults to all columns.
        """
        self.closed = torch.zeros(0, dtype=torch.int64)
        names = None if columns is None else self._check_columns(columns)
        steps = self._check(data, valid, names)
        # The check and the plan may refuse the steps; up to here nothing is changed.
        state = self._columns or self.new_columns(self._count_columns(steps), steps.frames.shape[2:])
        if steps.keep is not None:
            flat, final = self._write_kept(data, steps, state, names)
        elif names is not None:
            flat, final = self._write_part(data, steps, state, names)
        else:
            plan = self._plan(steps, state, torch.arange(len(state["written"]), device=steps.frames.device))
            self._begin(data, steps, state)
            if plan.num_inner_cuts and self.storage.ndim == 1 and not self._has_warned_of_cuts:
                self._warn_of_cuts(plan.num_inner_cuts, steps)
            flat, final = self._write_rows(steps, plan, state)
        if len(flat):
            self._publish()
        self._write_count += data.shape.numel() if steps.keep is None else int(steps.keep.sum())
        return flat, final

    def _begin(self, data: TensorDictBase, steps: Steps, state: dict[str, Tensor]) -> None:
        """Makes the storage and its columns at the first write."""
        if not self._columns:
            self._make_storage(steps, len(state["written"]))
            self._columns = state
            self._warn_of_dropped_keys(data)

    def _write_part(
        self, data: TensorDictBase, steps: Steps, state: dict[str, Tensor], columns: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Writes steps of some columns; the others stay as they are."""
        if steps.next_known is not None:
            state.setdefault(NEXT_UNKNOWN, torch.zeros_like(state["is_open"]))
        own = {name: value[columns] for name, value in state.items()}
        plan = self._plan(steps, own, columns)
        self._begin(data, steps, state)
        flat, final = self._write_rows(steps, plan, own, columns)
        for name, value in own.items():
            state[name] = state[name].index_copy(0, columns, value)
        return flat, final

    def _write_kept(
        self, data: TensorDictBase, steps: Steps, state: dict[str, Tensor], names: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Writes the steps that are kept, one time after the other, each time to the columns that have such a step."""
        assert steps.keep is not None
        names = torch.arange(len(state["written"]), device=steps.keep.device) if names is None else names
        if len(steps.keep) > 1:  # one time is planned before it is written anyway
            self._plan_kept(steps, state, names)
        flats, finals = [state["written"][:0]], [state["is_open"][:0]]
        for time, kept in enumerate(steps.keep):
            self._learn_next_frames(steps, time, ~kept, state, names)
            places = kept.nonzero().squeeze(-1)
            if not len(places):
                continue
            flat, final = self._write_part(data, steps.select(time, places), state, names[places])
            flats.append(flat)
            finals.append(final)
        flat, final = torch.cat(flats), torch.cat(finals)
        if not len(flat) or len(flat) <= self._ring():
            return flat, final
        # Steps that are longer than the ring write some rows twice; only the last time counts.
        at = torch.arange(len(flat), device=flat.device)
        kept_last = torch.full_like(self.column(STEP_KEY), -1).scatter_reduce_(0, flat, at, "amax")[flat] == at
        return flat[kept_last], final[kept_last]

    def _plan_kept(self, steps: Steps, state: dict[str, Tensor], names: Tensor) -> None:
        """Plans all kept steps, on a copy of the state: what is refused is refused before anything is written."""
        assert steps.keep is not None
        state = {name: value.clone() for name, value in state.items()}
        if steps.next_known is not None:
            state.setdefault(NEXT_UNKNOWN, torch.zeros_like(state["is_open"]))
        begun = self._next_trajectory
        try:
            for time, kept in enumerate(steps.keep):
                self._learn_next_frames(steps, time, ~kept, state, names)
                if len(places := kept.nonzero().squeeze(-1)):
                    own = {name: value[names[places]] for name, value in state.items()}
                    part = steps.select(time, places)
                    self._advance(part, self._plan(part, own), own)
                    for name, value in own.items():
                        state[name] = state[name].index_copy(0, names[places], value)
        finally:
            self._next_trajectory = begun

    @staticmethod
    def _learn_next_frames(steps: Steps, time: int, dropped: Tensor, state: dict[str, Tensor], names: Tensor) -> None:
        """Stores the frames of dropped steps as next frames, where the step before came without its next frame."""
        if steps.next_known is None or NEXT_UNKNOWN not in state or steps.traj_ids is None:
            return
        continued = dropped & state["is_open"][names] & state[NEXT_UNKNOWN][names]
        places = (continued & (steps.traj_ids[time] == state["traj_id"][names])).nonzero().squeeze(-1)
        state["next_frame"] = state["next_frame"].index_copy(0, names[places], steps.frames[time, places])
        state[NEXT_UNKNOWN] = state[NEXT_UNKNOWN].index_fill(0, names[places], False)

    def _write_next(self, data: TensorDictBase) -> tuple[Tensor, Tensor] | None:
        """Writes one step of one column as :meth:`write` does, if the step continues its episode and does not end it.

        Most steps of a training run are like this: one row, with nothing to plan. For any other step the method
        returns None and writes nothing.
        """
        storage, state = self.storage, self._columns
        if storage.ndim > 1 or data.ndim or not state or not state["is_open"]:
            return None
        columns = {key: internals.stored(storage).get(key) for key in (*self.reader.stored_keys, *LAYOUT_KEYS)}
        read = self.reader.read_next(data, state["next_frame"][0], columns)
        if read is None:
            return None
        values, next_frame = read
        flat = state["written"] % self._ring()
        row = int(flat)
        for key, value in values.items():
            columns[key][row] = value
        for key in (TERMINATED_KEY, TRUNCATED_KEY, FINAL_KEY):
            columns[key][row] = False
        columns[TRAJECTORY_KEY][row], columns[STEP_KEY][row] = state["trajectory"][0], state["next_step"][0]
        state["written"], state["next_step"] = state["written"] + 1, state["next_step"] + 1
        state["next_frame"] = next_frame[None].clone()
        state.pop(NEXT_UNKNOWN, None)
        self._write_count += 1
        self._publish()
        return flat, torch.zeros_like(flat, dtype=torch.bool)

    def _check_columns(self, columns: Sequence[int]) -> Tensor:
        """Makes sure that the buffer has the columns that a writer names, each once."""
        count = len(self.written) or self.num_columns
        if self.storage.ndim == 1:
            raise ValueError(f"columns={list(columns)}; a storage of ndim=1 has one column: give it ndim=2")
        if count is None:
            raise ValueError(
                f"columns={list(columns)}; the first write must cover all columns, unless the buffer is told their "
                f"number: FrameReplayBuffer(num_columns=...)"
            )
        if not columns or len(set(columns)) < len(columns) or not all(0 <= column < count for column in columns):
            raise ValueError(f"columns={list(columns)}; give columns from 0 to {count - 1}, each at most once")
        return torch.tensor(list(columns), device=self.storage.device)

    def _count_columns(self, steps: Steps) -> int:
        return steps.frames.shape[1] if self.num_columns is None else self.num_columns

    def _check(self, data: TensorDictBase, valid: Tensor | None, names: Tensor | None) -> Steps:
        """Reads steps and makes sure that they fit, before anything is written."""
        storage = self.storage
        if data.ndim != storage.ndim or not data.shape.numel():
            raise ValueError(
                f"steps must have {storage.ndim} batch dimensions, time first, and not be empty; got {list(data.shape)}"
            )
        steps = self.reader.read(data, storage.device, valid)
        count, given = self._count_columns(steps) if not self._columns else len(self.written), steps.frames.shape[1]
        if names is not None and given != len(names):
            raise ValueError(f"columns={names.tolist()} are {len(names)}; the steps are of {given} environments")
        if names is None and given != count:
            raise ValueError(f"the buffer has {count} columns, one per environment; got {given}")
        if not self._columns:
            return steps
        for key, value in {self.reader.pixels_key: steps.frames, **steps.values}.items():
            stored = internals.stored(storage).get(key)
            shape = stored.shape[storage.ndim :]
            if value.dtype != stored.dtype or value.shape[2:] != shape:
                raise ValueError(
                    f"{key!r} is stored as {stored.dtype} of shape {tuple(shape)} per step; "
                    f"got {value.dtype} of shape {tuple(value.shape[2:])}"
                )
        return steps

    def _warn_of_dropped_keys(self, data: TensorDictBase) -> None:
        dropped = self.reader.dropped_keys(data)
        if dropped:
            warn_caller(
                f"of each step the replay buffer keeps {list(self.reader.stored_keys)} and drops {dropped}; to keep "
                f"more, name it in extra_keys",
            )

    def _warn_of_cuts(self, count: int, steps: Steps) -> None:
        self._has_warned_of_cuts = True
        warn_caller(
            f"{count} of the episodes in one write of {len(steps.frames)} steps were left without an end. Steps of "
            f"several environments one after the other, as from data.reshape(-1) of [environments, time], cut every "
            f"environment at every write. Write such data as it is, buffer.extend(data), to a buffer for a batch of "
            f"environments: FrameReplayBuffer(storage=LazyTensorStorage(max_size, ndim=2), ...)",
        )

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _make_storage(self, steps: Steps, columns: int) -> None:
        """Allocates the storage from the first steps; all its rows are unwritten."""
        storage = self.storage

        def like(value: Tensor) -> Tensor:
            return value[0, :1].expand(columns, *value.shape[2:])

        example = TensorDict(
            {
                self.reader.pixels_key: like(steps.frames),
                **{key: like(value) for key, value in steps.values.items()},
                TERMINATED_KEY: like(steps.terminated[..., None]),
                TRUNCATED_KEY: like(steps.truncated[..., None]),
                TRAJECTORY_KEY: torch.zeros(columns, dtype=torch.int64),
                STEP_KEY: torch.zeros(columns, dtype=torch.int64),
                FINAL_KEY: torch.zeros(columns, dtype=torch.bool),
            },
            batch_size=[columns],
            device=storage.device,
        )
        self.allocate(example)

    def allocate(self, example: TensorDict) -> None:
        """Allocates the storage for rows like those of ``example``, one per column; all are unwritten."""
        internals.allocate(self.storage, example if self.storage.ndim > 1 else example[0])
        internals.stored(self.storage).get(TRAJECTORY_KEY).fill_(UNWRITTEN)

    def new_columns(self, columns: int, frame_shape: torch.Size) -> dict[str, Tensor]:
        """Returns the cursors and running episodes of columns without rows."""
        zeros = torch.zeros(columns, dtype=torch.int64, device=self.storage.device)
        return {
            "written": zeros,
            "trajectory": zeros + UNWRITTEN,
            "next_step": zeros.clone(),
            "is_open": zeros.bool(),
            "traj_id": zeros + UNWRITTEN,
            "next_frame": torch.zeros(columns, *frame_shape, dtype=self.reader.frame_dtype, device=zeros.device),
        }

    def _plan(self, steps: Steps, state: dict[str, Tensor], names: Tensor | None = None) -> _Plan:
        """Decides which episode each step belongs to; with the columns' ``names``, it reads what is stored of them."""
        begins = steps.begins.clone()
        differs = (steps.frames[0] != state["next_frame"]).flatten(1).any(-1)
        begins[0] |= differs if NEXT_UNKNOWN not in state else differs & ~state[NEXT_UNKNOWN]
        begins[1:] |= (steps.frames[1:] != steps.next_frames[:-1]).flatten(2).any(-1)
        if self.reader.num_frames > 1:  # also the older frames of an observation are those of the step before
            older = torch.cat([steps.older_frames[:-1, :, 1:], steps.frames[:-1, :, None]], 2)
            begins[1:] |= (steps.older_frames[1:] != older).flatten(2).any(-1)
            if (
                names is not None
                and NEXT_UNKNOWN in state
                and (goes_on := state[NEXT_UNKNOWN] & state["is_open"]).any()
            ):
                newest = (state["written"] - 1) % self._ring() * len(self.written) + names
                differs = self.column(self.reader.pixels_key)[newest] != steps.older_frames[0, :, -1]
                begins[0] |= goes_on & differs.flatten(1).any(-1)
        if steps.traj_ids is not None:
            begins[0] |= (state["traj_id"] >= 0) & (steps.traj_ids[0] != state["traj_id"])
            begins[1:] |= steps.traj_ids[1:] != steps.traj_ids[:-1]
        cut = begins[0] & state["is_open"]
        truncated = steps.truncated.clone()
        inner_cuts = begins[1:] & ~(steps.terminated | steps.truncated)[:-1]
        truncated[:-1] |= inner_cuts
        ends = steps.terminated | truncated

        first = ends.roll(1, 0)
        first[0] = cut | ~state["is_open"]
        ids = (first.flatten().cumsum(0) - 1 + self._next_trajectory).view_as(first)
        trajectory = torch.where(first, ids, UNWRITTEN)
        trajectory[0] = torch.where(first[0], trajectory[0], state["trajectory"])
        trajectory = trajectory.cummax(0).values
        # An episode whose beginning is missing starts at step num_frames - 1: the sampler then knows that its first
        # observations need frames that were never stored, and never returns them.
        start, firsts = torch.zeros_like(ids), first.flatten().nonzero().squeeze(-1)
        start.view(-1)[firsts] = torch.where(self.reader.begins_padded(steps, firsts), 0, self.reader.num_frames - 1)
        time = torch.arange(len(first), device=first.device)[:, None]
        began = torch.where(first, time, -1).cummax(0).values
        step = torch.where(began >= 0, time - began + start.gather(0, began.clamp(min=0)), time + state["next_step"])
        return _Plan(cut, truncated, ends, trajectory, step, len(firsts), int(inner_cuts.sum()))

    def _close_cut_episodes(self, cut: Tensor, state: dict[str, Tensor], names: Tensor) -> Tensor:
        """Marks the last step of cut episodes as truncated; returns which of them need a final row.

        Where the next frame of that step is unknown, the step cannot be a transition: its own row becomes the final
        row, and the step before it is the last.
        """
        if not cut.any():
            return cut

        def rows(which: Tensor, back: int) -> Tensor:
            columns = which.nonzero().squeeze(-1)
            return (state["written"][columns] - back) % self._ring() * len(self.written) + names[columns]

        needs_row = cut & ~state[NEXT_UNKNOWN] if NEXT_UNKNOWN in state else cut
        self.column(TRUNCATED_KEY)[rows(needs_row, 1)] = True
        if needs_row is not cut:
            last, before = rows(cut & ~needs_row, 1), rows(cut & ~needs_row, 2)
            self.closed = torch.cat([self.closed.to(last.device), last])
            same = self.column(TRAJECTORY_KEY)[last] == self.column(TRAJECTORY_KEY)[before]
            self.column(TRUNCATED_KEY)[before[same]] = True
            for key in (*self.reader.stored_keys[1:], FINAL_KEY):
                self.column(key)[last] = key == FINAL_KEY
        return needs_row

    def _write_rows(
        self, steps: Steps, plan: _Plan, state: dict[str, Tensor], columns: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Writes planned steps, of all columns or of some, and updates the state of these columns."""
        ring = self._ring()
        names = torch.arange(len(self.written), device=plan.cut.device) if columns is None else columns
        cut, ends, trajectory, step = plan.cut, plan.ends, plan.trajectory, plan.step
        cut = self._close_cut_episodes(cut, state, names)
        num_steps, num_columns = ends.shape
        device = ends.device
        time = torch.arange(num_steps, device=device)[:, None]

        # The position of each step: one row further for every final row before it in its column.
        position = time + cut + (ends.long().cumsum(0) - ends.long())
        total = num_steps + cut + ends.sum(0)
        at_step, at_end = torch.arange(num_steps * num_columns, device=device), ends.flatten().nonzero().squeeze(-1)
        column = at_step % num_columns
        cut_columns = cut.nonzero().squeeze(-1)
        zero = torch.zeros_like(cut_columns)

        position = torch.cat([zero, position.flatten(), position.flatten()[at_end] + 1])
        columns = torch.cat([cut_columns, column, column[at_end]])
        final = torch.ones_like(position, dtype=torch.bool)
        final[len(zero) : len(zero) + len(at_step)] = False
        # Steps that are longer than the ring would write some rows twice: only the last value of each is written.
        kept = (position >= (total - ring)[columns]).nonzero().squeeze(-1)
        position, columns, final = position[kept], columns[kept], final[kept]
        flat = ((state["written"][columns] + position) % ring) * len(self.written) + names[columns]

        # index_select, not [kept]: torch splits even one frame over its threads for [kept], and waits for them.
        def write(key: NestedKey, at_cut: Tensor, at_steps: Tensor, at_ends: Tensor) -> None:
            self.column(key).index_copy_(0, flat, torch.cat([at_cut, at_steps, at_ends]).index_select(0, kept))

        def write_steps(key: NestedKey, values: Tensor) -> None:
            values = values.flatten(0, 1)
            write(key, values.new_zeros(len(zero), *values.shape[1:]), values, torch.zeros_like(values[at_end]))

        write(
            self.reader.pixels_key,
            state["next_frame"].index_select(0, cut_columns),
            steps.frames.flatten(0, 1),
            steps.next_frames.flatten(0, 1).index_select(0, at_end),
        )
        for key, value in steps.values.items():
            write_steps(key, value)
        write_steps(TERMINATED_KEY, steps.terminated[..., None])
        write_steps(TRUNCATED_KEY, plan.truncated[..., None])
        write(TRAJECTORY_KEY, state["trajectory"][cut_columns], trajectory.flatten(), trajectory.flatten()[at_end])
        write(STEP_KEY, state["next_step"][cut_columns], step.flatten(), step.flatten()[at_end] + 1)
        self.column(FINAL_KEY).index_copy_(0, flat, final)

        state["written"] = state["written"] + total
        self._advance(steps, plan, state)
        order = position.argsort(stable=True)
        return flat[order], final[order]

    def _advance(self, steps: Steps, plan: _Plan, state: dict[str, Tensor]) -> None:
        """Moves the state of columns on to the end of planned steps."""
        state["trajectory"], state["next_step"] = plan.trajectory[-1], plan.step[-1] + 1
        state["is_open"], state["next_frame"] = ~plan.ends[-1], steps.next_frames[-1].clone()
        if steps.next_known is not None:
            state[NEXT_UNKNOWN] = ~steps.next_known[-1]
        elif NEXT_UNKNOWN in state:
            state[NEXT_UNKNOWN] = torch.zeros_like(state["is_open"])
        if steps.traj_ids is not None:
            state["traj_id"] = steps.traj_ids[-1].clone()
        self._next_trajectory += plan.num_new

    def _publish(self) -> None:
        """Tells the storage the number of written rows."""
        filled = min(int(self.written.max()), self._ring())
        newest = (int(self.written[0]) - 1) % self._ring()
        internals.publish(self.storage, filled * len(self.written), newest)

    def column(self, key: NestedKey) -> Tensor:
        """Returns the stored tensor under ``key`` with time and columns flattened into one dimension (a view)."""
        column: Tensor = internals.stored(self.storage).get(key).flatten(0, self.storage.ndim - 1)
        return column

    # -- state ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the cursors and the state of the running episodes."""
        return {
            "columns": {name: value.clone() for name, value in self._columns.items()},
            "write_count": self._write_count,
            "next_trajectory": self._next_trajectory,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state from :meth:`state_dict`; the rows of the storage must be loaded before."""
        self._columns = {name: value.clone().to(self.storage.device) for name, value in state_dict["columns"].items()}
        self._write_count = state_dict["write_count"]
        self._next_trajectory = state_dict["next_trajectory"]
        if self._columns:
            self._publish()

    def dumps(self, path: Any) -> None:
        """Not used: :meth:`FrameReplayBuffer.dumps` saves rows and cursors together."""
        raise NotImplementedError("save the FrameReplayBuffer as a whole, with its dumps()")

    def loads(self, path: Any) -> None:
        """Not used: :meth:`FrameReplayBuffer.loads` loads rows and cursors together."""
        raise NotImplementedError("load the FrameReplayBuffer as a whole, with its loads()")

    def forget_rows(self) -> None:
        """Begins at the first row again; trajectory ids continue."""
        if self._columns:
            internals.stored(self.storage).get(TRAJECTORY_KEY).fill_(UNWRITTEN)
            self._columns = self.new_columns(len(self.written), self._columns["next_frame"].shape[1:])

    def _empty(self, empty_write_count: bool = True) -> None:
        self.forget_rows()
        if empty_write_count:
            self._write_count = 0


def check_num_columns(num_columns: int, storage: TensorStorage) -> None:
    """Makes sure that a storage can have this number of columns.

    Raises:
        ValueError: if it cannot.
    """
    check_count("num_columns", num_columns)
    if storage.ndim == 1 and num_columns > 1:
        raise ValueError(f"num_columns={num_columns}; a storage of ndim=1 has one column: give it ndim=2")
    if storage.max_size % num_columns or storage.max_size < 2 * num_columns:
        raise ValueError(
            f"num_columns={num_columns}; it must divide the storage's max_size={storage.max_size} into at least 2 rows"
        )


def check_storage(storage: Any) -> None:
    """Makes sure that a frame replay can use a storage.

    Raises:
        TypeError: if the storage is of another type.
        ValueError: if its settings do not fit, or if it is in use.
    """
    if not isinstance(storage, LazyTensorStorage):
        raise TypeError(f"storage must be a LazyTensorStorage or a LazyMemmapStorage; got {type(storage).__name__}")
    if storage.ndim not in (1, 2):
        raise ValueError(f"storage.ndim={storage.ndim}; use 1 for one environment, 2 for a batch of environments")
    if storage.max_size < 2:
        raise ValueError(f"the storage's max_size={storage.max_size}; an episode of one step takes 2 rows")
    if storage.device == "auto":
        raise ValueError("storage.device='auto'; name the device, as in LazyTensorStorage(max_size, device='cpu')")
    if storage.initialized or internals.has_reader(storage):
        raise ValueError("the storage is in use already; give this buffer another one")
