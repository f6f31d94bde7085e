"""make_dmc_env: its observations and rewards are those of dm_control."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.envs import EnvBase
from torchrl.envs.utils import check_env_specs

from mcurl_torchrl.envs import make_dmc_env
from tests.envs.random_state import global_random_states_untouched

SMALL = {"image_size": 24, "shadows": False, "multisampling": False}


def actions_of(env: EnvBase, steps: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(steps, *env.action_spec.shape, generator=generator) * 2 - 1


def play(env: EnvBase, actions: torch.Tensor) -> TensorDict:
    """Resets and takes the actions; the result's first row is the reset, without a reward."""
    step = env.reset()
    steps = [step.clone(False).set("reward", torch.zeros(1))]
    for action in actions:
        step = env.step(step.set("action", action))["next"]
        steps.append(step.clone(False))
    return torch.stack([step.exclude("action") for step in steps])


def load(task: str, seed: int) -> Any:
    from dm_control import suite

    return suite.load(*task.split("-"), task_kwargs={"random": seed})


def assert_same(left: TensorDict, right: TensorDict) -> None:
    assert sorted(left.keys()) == sorted(right.keys())
    for key in left.keys():  # noqa: SIM118, a tensordict iterates over its rows
        assert torch.equal(left[key], right[key]), key


@pytest.mark.parametrize("options", [{}, {"from_pixels": False}, {"num_frames": 1}, {"action_repeat": 4}])
def test_specs(options: dict) -> None:
    env = make_dmc_env("walker-walk", **SMALL, **options)
    check_env_specs(env)
    step = env.rollout(2)
    if options.get("from_pixels", True):
        channels = 3 * options.get("num_frames", 3)
        assert step["pixels"].shape == (2, channels, 24, 24) and step["pixels"].dtype == torch.uint8
    else:
        assert step["state"].shape == (2, 24) and step["state"].dtype == torch.float32
    assert step["next", "reward"].shape == (2, 1) and step["next", "reward"].dtype == torch.float32
    assert step["action"].dtype == torch.float32
    assert (env.action_spec.space.low == -1).all() and (env.action_spec.space.high == 1).all()


@pytest.mark.parametrize("task", ["cartpole-swingup", "reacher-easy", "quadruped-walk"])
def test_frames_and_rewards_are_those_of_dm_control(task: str) -> None:
    env = make_dmc_env(task, action_repeat=3, image_size=40, seed=7)
    actions = actions_of(env, 5)
    played = play(env, actions)

    direct = load(task, seed=7)
    spec = direct.action_spec()
    camera = 2 if task.startswith("quadruped") else 0
    direct.reset()
    frames, rewards = [direct.physics.render(40, 40, camera_id=camera)], [0.0]
    for action in actions.double().numpy():
        stretched = spec.minimum + (action + 1) / 2 * (spec.maximum - spec.minimum)
        rewards.append(sum(direct.step(stretched).reward for _ in range(3)))
        frames.append(direct.physics.render(40, 40, camera_id=camera))
    newest = played["pixels"][:, -3:].permute(0, 2, 3, 1)
    assert np.array_equal(newest.numpy(), np.stack(frames))
    torch.testing.assert_close(played["reward"].squeeze(-1), torch.tensor(rewards, dtype=torch.float32))


def test_stacks_start_with_the_first_frame_and_shift() -> None:
    env = make_dmc_env("walker-run", action_repeat=8, **SMALL)
    for _ in range(2):  # the second episode must not see the first one's frames
        frames = play(env, actions_of(env, 4))["pixels"].unflatten(1, (3, 3))
        assert all(torch.equal(frames[0, 0], frames[0, k]) for k in (1, 2))
        assert torch.equal(frames[1:, :-1], frames[:-1, 1:])
        assert (frames[1:, -1] != frames[:-1, -1]).flatten(1).any(1).all()


def test_one_picture_per_agent_step(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_dmc_env("cartpole-swingup", action_repeat=8, **SMALL)
    from dm_control.mujoco import Camera

    drawn, draw = [], Camera.render
    monkeypatch.setattr(Camera, "render", lambda *args, **options: drawn.append(args) or draw(*args, **options))
    env.set_seed(1)
    assert len(drawn) == 0
    play(env, actions_of(env, 10))
    assert len(drawn) == 11  # the reset's and ten


def test_the_last_step_repeats_only_to_the_time_limit() -> None:
    env = make_dmc_env("cartpole-balance", action_repeat=3, from_pixels=False, seed=2)
    played = play(env, torch.zeros(334, 1))  # 333 * 3 + 1

    direct = load("cartpole-balance", seed=2)
    direct.reset()
    rewards = [direct.step(np.zeros(1)).reward for _ in range(1000)]
    assert direct.step(np.zeros(1)).first()
    expected = torch.tensor([sum(rewards[start : start + 3]) for start in range(0, 1000, 3)], dtype=torch.float32)
    torch.testing.assert_close(played["reward"][1:].squeeze(-1), expected)
    assert played["truncated"].squeeze(-1).nonzero().tolist() == [[334]]
    assert torch.equal(played["done"], played["truncated"]) and not played["terminated"].any()


def test_time_limits_truncate_a_rendered_episode() -> None:
    env = make_dmc_env("cartpole-swingup", action_repeat=8, **SMALL)
    steps = env.rollout(200)["next"]
    assert len(steps) == 125
    assert steps["truncated"].squeeze(-1).nonzero().tolist() == [[124]]
    assert not steps["terminated"].any()


def test_an_end_that_the_task_declares_terminates(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_dmc_env("cartpole-swingup", action_repeat=4, from_pixels=False)
    monkeypatch.setattr(env.task, "get_termination", lambda physics: 0.0 if physics.time() > 0.055 else None)
    played = play(env, torch.zeros(2, 1))  # 0.01 s a step: the episode ends in the second step's second repeat
    assert played["terminated"].flatten().tolist() == [False, False, True]
    assert not played["truncated"].any()
    assert env.physics.time() == pytest.approx(0.06)


@pytest.mark.parametrize("options", [{"from_pixels": False}, SMALL])
@pytest.mark.parametrize("task", ["reacher-easy", "finger-turn_hard"])
def test_what_follows_a_seed_depends_on_the_seed_alone(task: str, options: dict) -> None:
    new = make_dmc_env(task, action_repeat=2, seed=5, **options)
    used = make_dmc_env(task, action_repeat=2, seed=11, **options)
    actions = actions_of(new, 6)
    other = play(used, actions)
    play(used, actions[:3])  # left in the middle of an episode
    used.set_seed(5)
    for _ in range(2):  # the seed's first and second episode
        first, second = play(new, actions), play(used, actions)
        assert_same(first, second)
        key = "state" if "state" in first.keys() else "pixels"  # noqa: SIM118
        assert not torch.equal(first[key], other[key])
        other = first


@pytest.mark.parametrize("options", [{"from_pixels": False}, SMALL])
def test_global_random_states_are_left_alone(options: dict) -> None:
    with global_random_states_untouched():
        env = make_dmc_env("reacher-easy", **options)
        env.set_seed(3)
        play(env, torch.zeros(3, 2))


def test_state_is_all_observations_in_the_tasks_order() -> None:
    env = make_dmc_env("humanoid-run", from_pixels=False, seed=4)
    direct = load("humanoid-run", seed=4)
    parts = direct.reset().observation
    assert parts["head_height"].shape == ()
    expected = np.concatenate([np.ravel(part) for part in parts.values()]).astype(np.float32)
    assert np.array_equal(env.reset()["state"].numpy(), expected)


@pytest.mark.parametrize(("task", "default"), [("cartpole-swingup", 0), ("quadruped-run", 2)])
def test_cameras(task: str, default: int) -> None:
    shown = {camera: make_dmc_env(task, camera_id=camera, **SMALL).reset()["pixels"] for camera in (None, default, 1)}
    assert torch.equal(shown[None], shown[default])
    assert not torch.equal(shown[None], shown[1])


def test_shadows_and_multisampling() -> None:
    options = {"image_size": 48}
    envs = {
        (shadows, smooth): make_dmc_env("walker-walk", shadows=shadows, multisampling=smooth, **options)
        for shadows in (True, False)
        for smooth in (True, False)
    }
    pictures = []
    for (shadows, smooth), env in envs.items():
        quality = env.physics.model.vis.quality
        assert (quality.shadowsize > 0) == shadows
        assert (quality.offsamples > 0) == smooth
        pictures.append(env.reset()["pixels"])
    for k, picture in enumerate(pictures):
        assert not any(torch.equal(picture, other) for other in pictures[k + 1 :])


def test_unlimited_actuators_take_actions_as_they_are() -> None:
    env = make_dmc_env("lqr-lqr_2_1", from_pixels=False)
    play(env, torch.full((1, 1), 0.5))
    assert env.physics.control().tolist() == [0.5]


def test_a_task_that_needs_opengl_even_for_states() -> None:
    assert make_dmc_env("quadruped-escape", from_pixels=False).reset()["state"].isfinite().all()


def test_the_builder_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(make_dmc_env)) is make_dmc_env
    assert "seed" in inspect.signature(make_dmc_env).parameters


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"task": "cartpole-swingdown"}, ValueError, "task='cartpole-swingdown'.*'cartpole-swingup'"),
        ({"task": "cartpole_swingup"}, ValueError, "'cartpole-swingup'"),
        ({"task": "xyz"}, ValueError, "task='xyz'.*'acrobot-swingup'"),
        ({"action_repeat": 0}, ValueError, "action_repeat=0"),
        ({"action_repeat": 2.0}, TypeError, "action_repeat=2.0"),
        ({"image_size": 0}, ValueError, "image_size=0"),
        ({"image_size": 5000}, ValueError, "5000"),
        ({"num_frames": 0}, ValueError, "num_frames=0"),
        ({"camera_id": 9}, ValueError, "camera_id=9"),
        ({"seed": -1}, ValueError, "[Ss]eed"),
    ],
)
def test_refusals(options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_dmc_env(**{"task": "cartpole-swingup", "image_size": 24} | options)


def test_a_missing_dm_control_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'mcurl-torchrl\[dmc\]'"):
        make_dmc_env("cartpole-swingup")
