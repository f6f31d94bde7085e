"""Stacking frames: compared with stacking by hand, and equal in all parts of the package that stack frames."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import CatFrames, SerialEnv, TransformedEnv

from mcurl_torchrl import EpisodeSliceSampler, FrameReplayBuffer, StackFrames, make_pixel_env
from mcurl_torchrl.stacking import PADDINGS, FrameStack, stack_frames
from mcurl_torchrl.training import FramePolicy

PADDED = pytest.mark.parametrize("padding", PADDINGS)


def stacked_by_hand(frames: Tensor, num_frames: int, padding: str) -> Tensor:
    """Returns the observation at each frame of an episode ``[L, C, ...]``."""
    before = frames[:1] if padding == "repeat" else torch.zeros_like(frames[:1])
    padded = torch.cat([before] * (num_frames - 1) + [frames])
    return torch.stack([padded[last : last + num_frames].flatten(0, 1) for last in range(len(frames))])


def make_frames(*shape: int) -> Tensor:
    return torch.randint(1, 256, shape, dtype=torch.uint8)


@given(
    num_frames=st.integers(1, 4),
    channels=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    padding=st.sampled_from(PADDINGS),
)
def test_frame_by_frame(num_frames: int, channels: int, lengths: list[int], padding: str) -> None:
    stack = FrameStack(num_frames, padding=padding)
    for length in lengths:
        frames = make_frames(length, channels, 2, 3)
        stack.clear()
        shown = [stack.push(frame) for frame in frames]
        # Compared at the end: an observation must not change when the next frame arrives.
        assert torch.equal(torch.stack(shown), stacked_by_hand(frames, num_frames, padding))


@PADDED
def test_a_frame_may_be_overwritten_after_it_was_pushed(padding: str) -> None:
    stack, frames, buffer = FrameStack(3, padding=padding), make_frames(4, 1, 2, 2), torch.empty(1, 2, 2).byte()
    shown = [stack.push(buffer.copy_(frame)) for frame in frames]
    assert torch.equal(torch.stack(shown), stacked_by_hand(frames, 3, padding))


@PADDED
def test_episodes_of_a_batch_begin_apart(padding: str) -> None:
    frames, stack = make_frames(6, 2, 1, 2, 2), FrameStack(3, padding=padding, batch_size=[2])
    shown = [stack.push(frame) for frame in frames[:3]]
    begun = stack.begin(frames[3], torch.tensor([[False], [True]]))  # a flag [2, 1], as TorchRL has it
    assert torch.equal(begun[0], shown[-1][0])  # the first episode goes on: its observation stays
    shown = [begun] + [stack.push(frame) for frame in frames[4:]]
    first = stacked_by_hand(frames[[0, 1, 2, 4, 5], 0], 3, padding)[2:]
    second = stacked_by_hand(frames[3:, 1], 3, padding)
    assert torch.equal(torch.stack(shown), torch.stack([first, second], 1))
    assert torch.equal(stack.begin(frames[0])[1], stacked_by_hand(frames[:1, 1], 3, padding)[0])


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"padding='mirror'; choose one of \['repeat', 'zeros'\]"):
        FrameStack(3, padding="mirror")
    with pytest.raises(ValueError, match="num_frames=0"):
        FrameStack(0)
    with pytest.raises(ValueError, match="padding='mirror'"):
        stack_frames(make_frames(1, 3, 1, 2, 2), 1, padding="mirror")


# -- all users ---------------------------------------------------------------------------------------------------------


class Film(gymnasium.Env):
    """Shows the frames ``[L, H, W]`` of a film, again and again."""

    def __init__(self, frames: Tensor) -> None:
        self.frames = frames.numpy()
        self.observation_space = spaces.Box(0, 255, self.frames.shape[1:], np.uint8)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.number = 0
        return self.frames[0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.number += 1
        return self.frames[self.number], 0.0, self.number == len(self.frames) - 1, False, {}


class Shows(nn.Module):
    """A policy whose action is its observation."""

    def __init__(self, observation_shape: list[int]) -> None:
        super().__init__()
        self.settings = {"observation_shape": observation_shape}
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, observation: Tensor) -> Tensor:
        return observation


def stand_still(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("action", torch.zeros(2, 1))


def test_an_environment_stacks_as_catframes_does() -> None:
    """The batch of environments has episodes of 4 and 6 steps, so that it is reset in parts."""
    films = [make_frames(5, 12, 12), make_frames(7, 12, 12)]

    def make(num_frames: int):
        single = [lambda film=film: make_pixel_env(Film(film), num_frames=1) for film in films]
        return make_pixel_env(SerialEnv(2, single), num_frames=num_frames)

    ours = make(3)
    theirs = TransformedEnv(make(1), CatFrames(3, dim=-3, in_keys=["pixels"]), auto_unwrap=False)
    assert ours.observation_spec["pixels"] == theirs.observation_spec["pixels"]
    found, expected = (env.rollout(20, stand_still, break_when_any_done=False) for env in (ours, theirs))
    assert found["next", "done"].sum() == 5 + 3
    for key in ("pixels", ("next", "pixels")):
        assert torch.equal(found[key], expected[key])
    for number, film in enumerate(films):
        length = len(film) - 1
        assert torch.equal(found["pixels"][number, :length], stacked_by_hand(film[:, None], 3, "repeat")[:-1])


@PADDED
def test_policy_replay_and_transform_rebuild_the_same_observations(padding: str) -> None:
    frames = make_frames(8, 1, 5, 5)
    expected = stacked_by_hand(frames, 3, padding)

    policy = FramePolicy(Shows([3, 5, 5]), num_frames=3, padding=padding)
    for _ in range(2):
        policy.reset()
        assert torch.equal(torch.stack([policy(frame) for frame in frames]), expected)

    ended = torch.arange(7)[:, None] == 6
    following = {"pixels": expected[1:], "reward": torch.zeros(7, 1), "terminated": ended, "truncated": ended & False}
    steps = TensorDict({"pixels": expected[:-1], "action": torch.zeros(7, 1), "next": following}, [7])
    buffer = FrameReplayBuffer(storage=LazyTensorStorage(20), num_frames=3, padding=padding, batch_size=200)
    buffer.extend(steps)
    batch = buffer.sample()
    assert set(batch["step"].tolist()) == set(range(7))
    assert torch.equal(batch["pixels"], expected[batch["step"]])
    assert torch.equal(batch["next", "pixels"], expected[batch["step"] + 1])

    stock = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20),
        sampler=EpisodeSliceSampler(2, num_frames=3, traj_key="episode", step_key="step"),
        transform=StackFrames(3, padding=padding, step_key="step"),
        batch_size=200,
    )
    rows = TensorDict({"pixels": frames, "episode": torch.zeros(8, dtype=torch.int64), "step": torch.arange(8)}, [8])
    stock.extend(rows)
    batch = stock.sample()
    assert torch.equal(batch["pixels"], expected[batch["step"]])


def test_a_stack_is_pushed_in_one_thread_by_copies_of_single_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger copies are split over torch's threads, which costs milliseconds as soon as the cores are busy."""
    stack, sizes = FrameStack(3), []
    join = torch.stack
    monkeypatch.setattr(torch, "stack", lambda parts, dim: sizes.extend(map(Tensor.numel, parts)) or join(parts, dim))
    for frame in make_frames(5, 3, 100, 100):
        stack.push(frame)
    assert set(sizes) == {30_000}  # below 32,768, from which on torch uses several threads
