"""Random histories of a replay buffer, and playing one on the real buffer and the plain one side by side."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, LazyTensorStorage

from mcurl_torchrl import FrameReplayBuffer, PrioritizedTransitionSampler
from mcurl_torchrl.replay.windows import Rows
from tests.replay.plain import PlainReplay, Step

GAMMA = 0.9


@dataclass(frozen=True)
class Setting:
    """What a buffer is built with."""

    ring: int
    num_columns: int
    num_frames: int
    n_step: int
    slice_len: int
    padding: str = "repeat"
    stacked_input: bool = False
    prioritized: bool = False
    memmap: bool = False
    # Each write is of some of the columns, as by several workers, whose trajectory ids collide.
    several_writers: bool = False

    @property
    def ndim(self) -> int:
        return 2 if self.several_writers or self.num_columns > 1 else 1


# What happens to each environment at a step: it goes on, ends one way or the other, was left and reset before this
# step, or is called truncated although it goes on (as Collector(set_truncated=True) does).
GOES_ON, TERMINATES, TRUNCATES, WAS_CUT, IS_SPLIT = range(5)
# A history is a list of these: steps for all environments at once, steps of some of them, or a save and load.
Chunk = list[list[int]]
SAVE = "save"


@dataclass(frozen=True)
class Part:
    """Steps of some columns, in this order: what one of several writers writes."""

    columns: list[int]
    steps: Chunk


History = list[Chunk | Part | str]


def settings() -> st.SearchStrategy[Setting]:
    """Draws settings of a buffer."""
    return st.builds(
        Setting,
        ring=st.integers(2, 80),
        num_columns=st.integers(1, 3),
        num_frames=st.integers(1, 4),
        n_step=st.integers(1, 20),
        slice_len=st.integers(1, 64),
        padding=st.sampled_from(["repeat", "zeros"]),
        stacked_input=st.booleans(),
        prioritized=st.booleans(),
        several_writers=st.booleans(),
    )


def histories(setting: Setting) -> st.SearchStrategy[History]:
    """Draws what happens, in a form that shrinks to something readable."""
    event = st.sampled_from([GOES_ON] * 8 + [TERMINATES, TRUNCATES, WAS_CUT, IS_SPLIT])

    def chunk(width: int) -> st.SearchStrategy[Chunk]:
        return st.lists(st.lists(event, min_size=width, max_size=width), min_size=1, max_size=40)

    if setting.several_writers:
        columns = st.lists(st.integers(0, setting.num_columns - 1), min_size=1, unique=True)
        part = columns.flatmap(lambda some: st.builds(Part, st.just(some), chunk(len(some))))
        return st.lists(st.one_of(part, part, part, st.just(SAVE)), min_size=1, max_size=9)
    whole = chunk(setting.num_columns)
    return st.lists(st.one_of(whole, whole, whole, st.just(SAVE)), min_size=1, max_size=6)


def random_setting(rng: random.Random) -> Setting:
    """Draws a setting fast, for many histories."""
    return Setting(
        ring=rng.choice([rng.randint(2, 12), rng.randint(2, 80)]),
        num_columns=rng.choice([1, 1, 2, 3]),
        num_frames=rng.randint(1, 4),
        n_step=rng.choice([1, 2, 3, rng.randint(1, 20)]),
        slice_len=rng.choice([1, 2, rng.randint(1, 12), rng.randint(1, 64)]),
        padding=rng.choice(["repeat", "zeros"]),
        stacked_input=rng.random() < 0.5,
        prioritized=rng.random() < 0.5,
        several_writers=rng.random() < 0.4,
    )


def random_history(rng: random.Random, setting: Setting) -> History:
    """Draws a history fast: episodes of one step up to several times the buffer."""
    end = rng.choice([0.0, 0.02, 0.1, 0.3, 0.8])
    cut = rng.choice([0.0, 0.0, 0.05])

    def event() -> int:
        if rng.random() < cut:
            return rng.choice([WAS_CUT, IS_SPLIT])
        return rng.choice([TERMINATES, TRUNCATES]) if rng.random() < end else GOES_ON

    history: History = []
    columns = list(range(setting.num_columns))
    for _ in range(rng.randint(1, 9 if setting.several_writers else 4)):
        length = rng.choice([1, rng.randint(1, 8), rng.randint(1, 60)])
        written = rng.sample(columns, rng.randint(1, len(columns))) if setting.several_writers else columns
        chunk = [[event() for _ in written] for _ in range(length)]
        history.append(Part(written, chunk) if setting.several_writers else chunk)
        if rng.random() < 0.15:
            history.append(SAVE)
    return history


def encode(number: int) -> torch.Tensor:
    """Writes a number into the four pixels of a frame ``[1, 2, 2]``."""
    return torch.tensor([number >> shift & 255 for shift in (0, 8, 16, 24)], dtype=torch.uint8).view(1, 2, 2)


def decode(frames: torch.Tensor) -> torch.Tensor:
    """Reads the numbers back out of frames ``[..., K, 2, 2]``."""
    return (frames.flatten(-2).long() << torch.tensor([0, 8, 16, 24])).sum(-1)


class Player:
    """Plays a history on both buffers."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        past = setting.num_frames - 1 if setting.stacked_input else 0
        self.plain = PlainReplay(setting.ring, setting.num_columns, past)
        self.folder = tempfile.TemporaryDirectory()
        self.buffer, self.slices = self.make()
        self._count = 0
        # The frames each environment shows now, newest last, and whether its episode is over.
        self._stacks: list[list[int]] = [[] for _ in range(setting.num_columns)]
        self._resets = [-1] * setting.num_columns

    def make(self) -> tuple:
        """Builds a buffer and its slices."""
        setting = self.setting
        ndim = setting.ndim
        size = setting.ring * setting.num_columns
        buffer = FrameReplayBuffer(
            storage=LazyMemmapStorage(size, ndim=ndim) if setting.memmap else LazyTensorStorage(size, ndim=ndim),
            num_columns=setting.num_columns if setting.several_writers else None,
            num_frames=setting.num_frames,
            n_step=setting.n_step,
            gamma=GAMMA,
            padding=setting.padding,
            stacked_input=setting.stacked_input,
            sampler=PrioritizedTransitionSampler(0.7, 0.5, eps=0.0) if setting.prioritized else None,
            batch_size=16,
            generator=torch.Generator().manual_seed(0),
        )
        keys = ["pixels", "action", ("next", "reward")]
        return buffer, buffer.slices(num_slices=4, slice_len=setting.slice_len, keys=keys)

    def play(self, history: History) -> None:
        """Writes everything, saving and loading where the history says so."""
        for part in history:
            if part == SAVE:
                self.save_and_load()
            elif isinstance(part, Part):
                self.write(part.steps, part.columns)
            else:
                self.write(part)

    def save_and_load(self) -> None:
        """Goes on with a new buffer that was loaded from what the old one saved."""
        self.buffer.dumps(Path(self.folder.name))
        self.buffer, self.slices = self.make()
        self.buffer.loads(Path(self.folder.name))

    def write(self, chunk: Chunk, columns: list[int] | None = None) -> None:
        """Writes steps of all columns, or of some, in one call."""
        names = list(range(self.setting.num_columns)) if columns is None else columns
        steps = [[self._step(name, event) for name, event in zip(names, events, strict=True)] for events in chunk]
        for events in steps:
            for name, (step, _, _) in zip(names, events, strict=True):
                self.plain.write(name, step)
        grid = [[entry for entry in row] for row in zip(*steps, strict=True)]  # [column][time]

        def gather(function, dtype=None) -> torch.Tensor:
            return torch.tensor([[function(entry[0]) for entry in row] for row in grid], dtype=dtype)[..., None]

        def frames(position: int) -> torch.Tensor:
            stacks = [torch.stack([torch.cat([encode(n) for n in entry[position]]) for entry in row]) for row in grid]
            return torch.stack(stacks)

        data = TensorDict(
            {
                "pixels": frames(1),
                "action": gather(lambda step: step.action),
                "next": {
                    "pixels": frames(2),
                    "reward": gather(lambda step: step.reward, torch.float64),
                    "terminated": gather(lambda step: step.terminated),
                    "truncated": gather(lambda step: step.truncated),
                },
            },
            batch_size=[len(names), len(chunk)],
        )
        if columns is None:
            self.buffer.extend(data[0] if self.setting.ndim == 1 else data)
            return
        data.set(("collector", "traj_ids"), gather(lambda step: step.traj_id).squeeze(-1))
        if len(columns) == 1 and len(chunk) % 2:
            self.buffer.extend(data[0], columns=columns[0])
        else:
            self.buffer.extend(data, columns=columns)

    def _step(self, column: int, event: int) -> tuple[Step, list[int], list[int]]:
        """Makes up the next step of an environment, with the observation before and after it."""
        stack = self._stacks[column]
        was_cut = event == WAS_CUT and bool(stack)
        if not stack or was_cut:
            stack = self._reset()
            self._resets[column] += 1
        self._count += 1
        next_stack = [*stack[1:], self._count]
        padding = [stack[-1] if self.setting.padding == "repeat" else 0] * (self.setting.num_frames - 1)
        step = Step(
            frame=stack[-1],
            next_frame=next_stack[-1],
            action=self._count,
            reward=float(self._count % 7),
            terminated=event == TERMINATES,
            truncated=event in (TRUNCATES, IS_SPLIT),
            cut=was_cut,
            has_past=stack[:-1] != padding,
            traj_id=self._resets[column],
        )
        self._stacks[column] = [] if event in (TERMINATES, TRUNCATES) else next_stack
        size = self.setting.num_frames if self.setting.stacked_input else 1
        return step, stack[-size:], next_stack[-size:]

    def _reset(self) -> list[int]:
        self._count += 1
        before = self._count if self.setting.padding == "repeat" else 0
        return [before] * (self.setting.num_frames - 1) + [self._count]

    # -- comparing -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compares everything that can be drawn, and what is drawn, with the plain buffer."""
        self._check_transitions()
        self._check_slices()

    def _check_transitions(self) -> None:
        setting, buffer = self.setting, self.buffer
        expected = self.plain.transitions(setting.num_frames, setting.n_step, GAMMA, setting.padding)
        rows = Rows(buffer.storage)
        transitions = buffer.sampler.transitions(buffer.storage)
        anchors = transitions.valid(torch.arange(len(rows))).nonzero().squeeze(-1)
        places = list(zip(*(part.tolist() for part in rows.split(anchors)), strict=True))
        assert set(places) == set(expected)
        assert buffer.can_sample(16) == bool(expected)
        if not expected:
            return
        self._compare_transitions(buffer._read(rows, anchors), places, expected)
        batch = buffer.sample()
        index = batch["index"].view(16, -1)
        places = [(place[0], place[1] if len(place) > 1 else 0) for place in index.tolist()]
        self._compare_transitions(batch, places, expected)

    def _compare_transitions(self, batch: TensorDict, places: list, expected: dict) -> None:
        def column(name: str) -> torch.Tensor:
            return torch.tensor([expected[place][name] for place in places])

        frame_count = self.setting.num_frames
        assert torch.equal(decode(batch["pixels"].unflatten(1, (frame_count, 1)).squeeze(2)), column("pixels"))
        assert torch.equal(
            decode(batch["next", "pixels"].unflatten(1, (frame_count, 1)).squeeze(2)), column("next_pixels")
        )
        assert torch.equal(batch["action"].squeeze(-1), column("action"))
        assert torch.equal(batch["step"], column("step"))
        assert torch.equal(batch["steps_to_next_obs"].squeeze(-1), column("steps"))
        assert torch.equal(batch["next", "terminated"].squeeze(-1), column("terminated"))
        assert torch.equal(batch["next", "truncated"].squeeze(-1), column("truncated"))
        assert torch.equal(batch["next", "done"], batch["next", "terminated"] | batch["next", "truncated"])
        torch.testing.assert_close(batch["next", "reward"].squeeze(-1), column("reward").double())

    def _check_slices(self) -> None:
        setting, slices = self.setting, self.slices
        expected = self.plain.slices(setting.num_frames, setting.slice_len, setting.padding)
        rows = Rows(self.buffer.storage)
        sampler = slices.sampler
        windows = sampler.windows(rows)
        starts = sampler.is_start(windows, torch.arange(len(rows))).nonzero().squeeze(-1)
        places = list(zip(*(part.tolist() for part in rows.split(starts)), strict=True))
        assert set(places) == set(expected)
        assert windows.longest() == self.plain.longest()
        assert slices.can_sample(4 * setting.slice_len) == bool(expected)
        if not expected:
            return
        self._compare_slices(slices._read(rows, sampler.expand(windows, starts)), places, expected)
        batch = slices.sample()
        index = batch["index"].view(4, setting.slice_len, -1)[:, 0]
        places = [(place[0], place[1] if len(place) > 1 else 0) for place in index.tolist()]
        self._compare_slices(batch, places, expected)

    def _compare_slices(self, batch: TensorDict, places: list, expected: dict) -> None:
        batch = batch.reshape(len(places), self.setting.slice_len)

        def column(name: str) -> torch.Tensor:
            return torch.tensor([expected[place][name] for place in places])

        assert torch.equal(
            decode(batch["pixels"].unflatten(2, (self.setting.num_frames, 1)).squeeze(3)), column("pixels")
        )
        assert torch.equal(batch["step"], column("step"))
        assert torch.equal(batch["final"], column("final"))
        assert torch.equal(batch["action"].squeeze(-1), column("action"))
        assert torch.equal(batch["next", "reward"].squeeze(-1), column("reward").double())
        assert (batch["trajectory"] == batch["trajectory"][:, :1]).all()


def play_and_check(setting: Setting, history: History) -> None:
    """Plays a history on a new pair of buffers and compares them."""
    player = Player(setting)
    with player.folder:
        player.play(history)
        if player.plain.num_episodes:
            player.check()
