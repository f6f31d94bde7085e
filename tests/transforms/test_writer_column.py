"""WriterColumn: steps that say which column of a replay buffer they are for."""

from __future__ import annotations

import pytest
import torch
from torchrl.data import LazyTensorStorage
from torchrl.envs import GymEnv, SerialEnv, TransformedEnv, check_env_specs

from mcurl_torchrl import FrameReplayBuffer
from mcurl_torchrl.transforms import WriterColumn


def pendulum() -> GymEnv:
    return GymEnv("Pendulum-v1")


def test_each_environment_of_a_batch_has_a_column_of_its_own() -> None:
    env = TransformedEnv(SerialEnv(2, pendulum), WriterColumn(3))
    check_env_specs(env)
    steps = env.rollout(4)
    expected = torch.tensor([3, 4])[:, None].expand(2, 4)
    assert torch.equal(steps["column"], expected) and torch.equal(steps["next", "column"], expected)


def test_the_buffer_keeps_apart_what_arrives_interleaved() -> None:
    buffer = FrameReplayBuffer(
        storage=LazyTensorStorage(40, ndim=2), num_columns=2, pixels_key="observation", frame_dtype=torch.float32
    )
    rollouts = [TransformedEnv(pendulum(), WriterColumn(column)).rollout(6) for column in range(2)]
    for start in range(0, 6, 2):
        for steps in rollouts:
            buffer.extend(steps[None, start : start + 2])
    for column, steps in enumerate(rollouts):
        assert torch.equal(buffer.storage["observation"][:6, column], steps["observation"])


def test_a_column_below_0() -> None:
    with pytest.raises(ValueError, match="first=-1; it must be at least 0"):
        WriterColumn(-1)
