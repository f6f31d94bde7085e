"""A loaded policy acts in the environment itself: on its own images, within its own bounds."""

from __future__ import annotations

import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from mcurl_torchrl import load_policy, make_dmc_env, make_pixel_env
from mcurl_torchrl.modules import GaussianPolicy, RainbowPolicy
from mcurl_torchrl.training import (
    CheckpointNotRestored,
    Checkpoints,
    FramePolicy,
    RunPlan,
    TrainingRun,
    describe_policy,
    export_policy,
)

NUM_FRAMES = 3
LOW, HIGH = [-2.0, 0.5], [3.0, 0.75]


class Painter(gymnasium.Env):
    """Every picture depends on all actions so far, to the last bit."""

    def __init__(self, kind: str = "uint8", layout: str = "HWC", dtype: str = "float32", length: int = 6) -> None:
        shape = {"HWC": (50, 44, 3), "CHW": (3, 50, 44), "HW": (50, 44)}[layout]
        self.kind, self.length, self.actions = kind, length, []
        self.observation_space = spaces.Box(0, 255 if kind == "uint8" else 1, shape, kind)
        self.action_space = spaces.Box(np.array(LOW, dtype), np.array(HIGH, dtype), dtype=dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.actions, self.draw = [], np.random.default_rng(seed)
        return self.paint(), {}

    def step(self, action):
        self.actions.append(np.array(action))
        self.draw = np.random.default_rng(np.frombuffer(np.array(action).tobytes(), np.uint8))
        return self.paint(), float(action[0]), False, len(self.actions) == self.length, {}

    def paint(self):
        image = self.draw.integers(256, size=self.observation_space.shape, dtype=np.uint8)
        return image if self.kind == "uint8" else (image / 255).astype(self.kind)


def make_policy(channels: int) -> GaussianPolicy:
    return GaussianPolicy([NUM_FRAMES * channels, 36, 36], 2, crop_size=32, num_filters=4, hidden_dim=16)


def trained(folder: Path, painter: Painter) -> None:
    """A run of one step, as a recipe makes it."""
    env = make_pixel_env(painter, num_frames=NUM_FRAMES, image_size=36)
    policy = make_policy(env.observation_spec["pixels"].shape[0] // NUM_FRAMES)
    plan = RunPlan("painter", 1, total_agent_steps=1, evaluation_interval=1, checkpoint_interval=1, video=False)
    run = TrainingRun(folder, RunPlan(**{**vars(plan), "num_frames": NUM_FRAMES}), progress=False)
    run.track(policy)
    act = torch.no_grad()(policy.forward)
    run.begin(act, env)
    for step in run.agent_steps():
        run.finish_step(step, act, env)


@pytest.mark.parametrize(
    ("kind", "layout", "dtype"),
    [("uint8", "HWC", "float32"), ("float32", "CHW", "float64"), ("float64", "HW", "float32")],
)
def test_the_environment_sees_the_actions_of_training(tmp_path: Path, kind: str, layout: str, dtype: str) -> None:
    trained(tmp_path, Painter(kind, layout, dtype))
    policy = load_policy(tmp_path)
    as_trained = Painter(kind, layout, dtype)
    wrapped = make_pixel_env(as_trained, num_frames=NUM_FRAMES, image_size=36)
    wrapped.set_seed(5)
    step = wrapped.reset()
    for _ in range(6):
        with torch.no_grad():
            action = policy.network(step["pixels"][None])[0]
        step = wrapped.step(step.set("action", action))["next"]

    raw = Painter(kind, layout, dtype)
    for _ in range(2):  # the second episode knows nothing of the first
        policy.reset()
        frame, over = raw.reset(seed=5)[0], False
        while not over:
            action = policy(frame)
            assert str(action.dtype) == f"torch.{dtype}"
            frame, _, _, over, _ = raw.step(action.numpy())
        assert np.array_equal(np.stack(raw.actions), np.stack(as_trained.actions))
    assert (np.stack(raw.actions) >= LOW).all() and (np.stack(raw.actions) <= HIGH).all()
    assert np.stack(raw.actions).dtype == dtype


def test_frames_of_the_trained_size_are_taken_too_and_others_are_named(tmp_path: Path) -> None:
    trained(tmp_path, Painter())
    policy = load_policy(tmp_path)
    assert policy(torch.zeros(36, 36, 3, dtype=torch.uint8)).shape == (2,)
    for shape in ([44, 50, 3], [50, 44]):
        with pytest.raises(ValueError, match=r"\[3, 36, 36\], or the environment's own \[50, 44, 3\]; got .*uint8"):
            policy(torch.zeros(shape, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"image_shape": [50]}, r"image_shape=\[50\]"),
        ({"action_low": [0.0]}, "action_high=None"),
        ({"action_low": [0.0], "action_high": [1.0, 2.0]}, "one number for each action"),
        ({"action_dtype": "int8"}, "action_dtype='int8'"),
    ],
)
def test_a_description_that_does_not_fit(tmp_path: Path, described: dict, message: str) -> None:
    policy = make_policy(3)
    with pytest.raises(ValueError, match=message):
        FramePolicy(policy, num_frames=NUM_FRAMES, **described)
    info = {"policy": describe_policy(policy, num_frames=NUM_FRAMES, **described)}
    Checkpoints(tmp_path / "checkpoints").save(7, components={"policy": policy}, info=info)
    with pytest.raises(CheckpointNotRestored, match=f"describes its policy wrongly: .*{message}"):
        load_policy(tmp_path)


def test_dmc_names_the_bounds_of_its_actuators() -> None:
    assert make_dmc_env("cartpole-swingup", from_pixels=False).raw_interface == {}
    env = make_dmc_env("cartpole-swingup", from_pixels=False).base_env._env
    env._center, env._half_range = np.array([1.0]), np.array([0.5])
    assert env.raw_interface == {"action_low": [0.5], "action_high": [1.5], "action_dtype": "float64"}


@pytest.mark.parametrize("kind", ["gaussian", "rainbow"])
def test_an_exported_program_has_no_gradients_and_no_warnings(tmp_path: Path, kind: str) -> None:
    rainbow = RainbowPolicy([NUM_FRAMES, 40, 40], 6, hidden_dim=16, num_atoms=5)
    network = rainbow if kind == "rainbow" else make_policy(3)
    policy = FramePolicy(network, num_frames=NUM_FRAMES)
    stacks = torch.randint(256, (4, *network.settings["observation_shape"]), dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actions = torch.export.load(export_policy(policy, tmp_path / "policy.pt2")).module()(stacks)
    assert not actions.requires_grad and actions.grad_fn is None
    assert network.training and all(weight.requires_grad for weight in network.parameters())  # left as it was
    torch.testing.assert_close(actions, network.eval()(stacks).detach())
