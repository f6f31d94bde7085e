"""FrameReplayBuffer with TorchRL's collectors: its samples are the observations that the policy saw."""

from __future__ import annotations

import os

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.data import LazyMemmapStorage, LazyTensorStorage
from torchrl.envs import (
    CatFrames,
    Compose,
    DMControlWrapper,
    DoubleToFloat,
    EnvBase,
    GymWrapper,
    InitTracker,
    SerialEnv,
    ToTensorImage,
    TransformedEnv,
)
from torchrl.envs.utils import RandomPolicy

from mcurl_torchrl import FrameReplayBuffer


class CountingEnv(gym.Env):
    """Frames show how many steps were ever taken; episodes have different lengths and both kinds of end."""

    observation_space = gym.spaces.Dict({"pixels": gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)})
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, first: int = 0) -> None:
        self.count, self.step_in_episode, self.episode = first, 0, first

    def _observe(self) -> dict[str, np.ndarray]:
        self.count += 1
        pixels = np.zeros((8, 8, 3), np.uint8)
        pixels[..., 0], pixels[..., 1], pixels[..., 2] = self.count % 251, self.count // 251, self.step_in_episode
        return {"pixels": pixels}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        self.episode += 1
        self.step_in_episode = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple:
        self.step_in_episode += 1
        over = self.step_in_episode == 1 + self.episode * 7 % 23
        return self._observe(), float(self.count), over and self.episode % 2 == 0, over and self.episode % 2 == 1, {}


def make_counting_env(first: int = 0, padding: str = "same") -> EnvBase:
    return TransformedEnv(
        GymWrapper(CountingEnv(first)),
        Compose(
            ToTensorImage(from_int=False, dtype=torch.uint8, in_keys=["pixels"], shape_tolerant=True),
            InitTracker(),
            CatFrames(3, dim=-3, in_keys=["pixels"], padding=padding),
        ),
    )


def make_cartpole() -> EnvBase:
    """A rendered DMControl task."""
    os.environ.setdefault("MUJOCO_GL", "egl")
    from dm_control import suite

    env = suite.load("cartpole", "swingup", task_kwargs={"random": 0}, environment_kwargs={"flat_observation": False})
    env._step_limit = 20
    render = {"height": 24, "width": 24, "camera_id": 0}
    env = DMControlWrapper(env, from_pixels=True, pixels_only=True, render_kwargs=render)
    image = ToTensorImage(from_int=False, dtype=torch.uint8, in_keys=["pixels"], shape_tolerant=True)
    return TransformedEnv(env, Compose(image, DoubleToFloat(), CatFrames(3, dim=-3, in_keys=["pixels"])))


class Recorder:
    """Keeps every step that a collector writes, by what identifies it."""

    def __init__(self, buffer: FrameReplayBuffer) -> None:
        self.seen: dict[bytes, TensorDict] = {}
        extend, add = buffer.extend, buffer.add
        buffer.extend = lambda data, **kwargs: self._keep(data.reshape(-1)) or extend(data, **kwargs)
        buffer.add = lambda data: self._keep(data.reshape(-1)) or add(data)

    def _keep(self, data: TensorDict) -> None:
        for step in data.clone().unbind(0):
            self.seen[self.name(step)] = step

    @staticmethod
    def name(step: TensorDict) -> bytes:
        return step["pixels"].numpy().tobytes() + step["action"].numpy().tobytes()

    def check(self, batch: TensorDict) -> None:
        """Every sampled transition is one that was written, stacks and all."""
        for sample in batch.unbind(0):
            step = self.seen[self.name(sample)]
            for key in (("next", "pixels"), ("next", "reward"), ("next", "terminated")):
                assert torch.equal(sample[key], step[key]), key
            assert not step["next", "truncated"].any() or sample["next", "truncated"].all()


def collect(env: EnvBase, buffer: FrameReplayBuffer, frames: int, **options) -> None:
    collector = Collector(
        env, RandomPolicy(env.action_spec), frames_per_batch=40, total_frames=frames, replay_buffer=buffer, **options
    )
    for _ in collector:
        pass
    collector.shutdown()


@pytest.mark.parametrize("extend_buffer", [True, False])
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
@pytest.mark.parametrize("padding", ["repeat", "zeros"])
def test_one_environment(storage, extend_buffer: bool, padding: str) -> None:
    buffer = FrameReplayBuffer(storage=storage(250), num_frames=3, padding=padding, batch_size=500)
    slices = buffer.slices(num_slices=100, slice_len=5)
    recorder = Recorder(buffer)
    env_padding = "same" if padding == "repeat" else "constant"
    # Two collectors, the second of which starts while the first's episode is under way.
    for first in (0, 3000):
        collect(make_counting_env(first, env_padding), buffer, 240, extend_buffer=extend_buffer)
        recorder.check(buffer.sample())
        windows = slices.sample().reshape(100, 5)
        shown = windows["pixels"][:, :, -3:, 0, 0].long()  # the newest frame's three channels
        assert (shown[..., 2] == windows["step"]).all()
        assert ((shown[..., 1] * 251 + shown[..., 0]).diff(dim=1) == 1).all()
    assert len(buffer) == 250


@pytest.mark.parametrize("num_envs", [1, 3])
def test_batched_environments(num_envs: int) -> None:
    buffer = FrameReplayBuffer(storage=LazyTensorStorage(100 * num_envs, ndim=2), num_frames=3, batch_size=500)
    recorder = Recorder(buffer)
    makers = [lambda first=first: make_counting_env(first) for first in range(0, 3000 * num_envs, 3000)]
    collect(SerialEnv(num_envs, makers), buffer, 120 * num_envs)
    recorder.check(buffer.sample())
    assert buffer.writer.written.shape == (num_envs,)
    assert (buffer.writer.written >= 120).all()


def test_a_rendered_environment() -> None:
    buffer = FrameReplayBuffer(storage=LazyTensorStorage(100), num_frames=3, batch_size=200)
    recorder = Recorder(buffer)
    collect(make_cartpole(), buffer, 120)
    batch = buffer.sample()
    recorder.check(batch)
    # The last frames of truncated episodes are kept: their transitions bootstrap from what was really seen.
    last = batch[batch["next", "truncated"].squeeze(-1)]
    assert len(last) and not last["next", "terminated"].any()
    assert (last["step"] == 19).all()
    assert (last["next", "pixels"] != last["pixels"]).flatten(1).any(-1).all()


@pytest.mark.parametrize(
    ("frames_per_batch", "extend_buffer", "num_envs"),
    [(39, True, None), (3, True, None), (39, False, None), (39, True, 3), (3, True, 3)],
)
def test_without_next_observations(frames_per_batch: int, extend_buffer: bool, num_envs: int | None) -> None:
    """``compact_obs=True`` leaves out ``("next", "pixels")``; what is lost is the last observation of an episode."""
    ndim = 1 if num_envs is None else 2
    makers = [lambda first=first: make_counting_env(first) for first in range(0, 3000 * (num_envs or 1), 3000)]
    whole, compact = (
        FrameReplayBuffer(
            storage=LazyTensorStorage(900, ndim=ndim),
            num_frames=3,
            batch_size=4000,
            generator=torch.Generator().manual_seed(0),
        )
        for _ in range(2)
    )
    for buffer in (whole, compact):
        torch.manual_seed(0)
        collector = Collector(
            makers[0]() if num_envs is None else SerialEnv(num_envs, makers),
            RandomPolicy(make_counting_env().action_spec) if num_envs is None else None,
            frames_per_batch=frames_per_batch,
            total_frames=234,
            replay_buffer=buffer,
            extend_buffer=extend_buffer,
            compact_obs=buffer is compact,
        )
        for _ in collector:
            pass
        collector.shutdown()
    batches = [buffer.sample() for buffer in (whole, compact)]

    def transitions(batch: TensorDict) -> dict[bytes, tuple]:
        return {
            step["pixels"].numpy().tobytes(): (
                step["next", "reward"].item(),
                step["next", "terminated"].item(),
                # After a termination no loss looks at the next observation.
                None if step["next", "terminated"] else step["next", "pixels"].numpy().tobytes(),
            )
            for step in batch.unbind(0)
        }

    all_steps, found = (transitions(batch) for batch in batches)
    truncated = {
        step["pixels"].numpy().tobytes()
        for step in batches[0].unbind(0)
        if step["next", "truncated"] and not step["next", "terminated"]
    }
    assert {name: value for name, value in all_steps.items() if name not in truncated} == {
        name: value for name, value in found.items() if name in all_steps
    }
    # The newest step of each environment has no next row yet.
    assert len(set(found) - set(all_steps)) == 0 and len(truncated) > 3
    assert any(value[1] for value in found.values())
    slices = compact.slices(num_slices=300, slice_len=3).sample().reshape(300, 3)
    shown = slices["pixels"][:, :, -3:, 0, 0].long()
    number = shown[..., 1] * 251 + shown[..., 0]
    # A terminated episode's last frame is lost too: the one before it stands in for it.
    moved = torch.where(slices["final"][:, 1:], number.diff(dim=1) <= 1, number.diff(dim=1) == 1)
    assert moved.all()
