"""InlineSource: what is in the buffer at each agent step, with one environment and with several."""

from __future__ import annotations

import pytest
import torch
from torchrl.data import LazyTensorStorage

from mcurl_torchrl import FrameReplayBuffer, make_pixel_env
from mcurl_torchrl.training import EpisodeStream, EpisodeStreams, InlineSource
from tests.training.test_episode_streams import act_for_all
from tests.training.test_episodes import Walk, act

LENGTHS = (10, 7, 4)


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
