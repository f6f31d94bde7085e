"""InlineSource: what is in the buffer at each agent step, with one environment and with several."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torchrl.data import LazyTensorStorage

from mcurl_torchrl import FrameReplayBuffer, make_pixel_env
from mcurl_torchrl.ranks import Ranks
from mcurl_torchrl.training import EnvironmentFailed, EpisodeStream, EpisodeStreams, InlineSource, WorkerSource
from tests.envs.tiny import Tiny
from tests.training.marked_env import make_explorer
from tests.training.test_episode_streams import act_for_all
from tests.training.test_episodes import Walk, act

LENGTHS = (10, 7, 4)


class TwoRanks(Ranks):
    count = 2


def make_envs(lengths: tuple[int, ...] = LENGTHS) -> list:
    return [make_pixel_env(Walk(length=length), num_frames=2) for length in lengths]


def make_buffer(num_columns: int) -> FrameReplayBuffer:
    storage = LazyTensorStorage(60 * num_columns, ndim=1 if num_columns == 1 else 2)
    return FrameReplayBuffer(storage=storage, num_columns=num_columns, num_frames=2, batch_size=8)


def frames(buffer: FrameReplayBuffer) -> torch.Tensor:
    """Returns what was written, row by row."""
    rows = buffer.storage[:]
    return rows["pixels"][rows["trajectory"] >= 0]


def test_one_environment_takes_a_step_for_each():
    ours, expected = make_buffer(1), make_buffer(1)
    source = InlineSource(make_envs((10,)), act, ours, seed=3)
    stream = EpisodeStream(*make_envs((10,)), seed=3)
    for step in range(1, 30):
        source.collect(step)
        expected.add(stream.step(act))
    assert torch.equal(frames(ours), frames(expected))
    assert source.last_return == stream.last_return is not None


def test_several_environments_take_a_step_each_in_one_forward_pass():
    ours, expected, seen = make_buffer(3), make_buffer(3), []
    streams = EpisodeStreams(make_envs(), seed=3)

    def choose(observations: torch.Tensor) -> torch.Tensor:
        seen.append((step, len(observations)))
        return act_for_all(observations)

    source = InlineSource(make_envs(), choose, ours, seed=3)
    for step in range(1, 31):
        source.collect(step)
    expected.extend(streams.rollout(act_for_all, 10))
    assert seen == [(step, 3) for step in range(1, 31, 3)]
    assert ours.writer.written.tolist() == [11, 11, 12]  # 10 steps and the ends of episodes
    assert torch.equal(frames(ours), frames(expected))
    assert source.last_return == streams.last_return is not None


class Title(Tiny):
    """Shows the same picture in its first steps; fails once in its third, if it is told to."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__(length=100, action_space=gymnasium.spaces.Box(-1, 1, (1,)))
        self.fails = fails

    def frame(self) -> np.ndarray:
        return np.full((self.size, self.size, 3), 50 if self.step_in_episode < 5 else 90, np.uint8)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        if self.fails and self.step_in_episode == 2:
            self.fails = False
            raise ConnectionError("the simulator is gone")
        return super().step(action)


@pytest.mark.parametrize("count", [1, 2])
def test_an_episode_that_is_left_does_not_go_on_in_the_buffer(count: int):
    """Also if the next episode begins with the picture of the last one, and also those of the healthy environments."""
    buffer = make_buffer(count)
    envs = [make_pixel_env(Title(fails=number == 0), num_frames=2) for number in range(count)]
    source = InlineSource(envs, act if count == 1 else act_for_all, buffer, seed=3)
    with pytest.raises(EnvironmentFailed, match="the simulator is gone"):
        for step in range(1, 100):
            source.collect(step)
    for later in range(step, step + 3 * count):
        source.collect(later)
    rows = buffer.storage[:]
    for column in range(count):
        trajectory, number = (rows[key].reshape(-1, count)[:, column] for key in ("trajectory", "step"))
        steps = [(int(one), int(two)) for one, two in zip(trajectory, number, strict=True) if one >= 0]
        first, second = steps[0][0], steps[-1][0]
        assert first != second
        assert steps == [(first, 0), (first, 1), (first, 2), (second, 0), (second, 1), (second, 2)]


def test_several_environments_are_not_for_several_ranks():
    buffer = make_buffer(2)
    buffer.ranks = TwoRanks()
    with pytest.raises(ValueError, match="one of 2 ranks"):
        InlineSource(make_envs((10, 7)), act_for_all, buffer, seed=3)
    with pytest.raises(ValueError, match="one of 2 ranks"):
        WorkerSource(Title, make_explorer(), buffer, total_agent_steps=8, backend="process", seed=1, num_workers=2)


@pytest.mark.parametrize("stopped_after", [12, 13, 14])
def test_taken_up_between_two_rounds_and_inside_one(stopped_after: int):
    whole, parts = make_buffer(3), make_buffer(3)
    source = InlineSource(make_envs(), act_for_all, whole, seed=3)
    for step in range(1, 31):
        source.collect(step)
    first, second = (InlineSource(make_envs(), act_for_all, parts, seed=3) for _ in range(2))
    for step in range(1, stopped_after + 1):
        first.collect(step)
    second.load_state_dict(first.state_dict())
    for step in range(stopped_after + 1, 31):
        second.collect(step)
    assert torch.equal(parts.writer.written, whole.writer.written)
    assert torch.equal(frames(parts), frames(whole))
