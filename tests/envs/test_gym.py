"""make_pixel_env: any image environment in, stacked uint8 frames out."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase
from torch.nn import functional as F
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import (
    ActionScaling,
    Compose,
    EnvBase,
    GymWrapper,
    SerialEnv,
    StepCounter,
    ToTensorImage,
    TransformedEnv,
)
from torchrl.envs.utils import check_env_specs

from mcurl_torchrl.envs import make_pixel_env
from mcurl_torchrl.envs.images import ToFrames
from tests.envs.random_state import global_random_states_untouched
from tests.envs.test_dmc import assert_same, play
from tests.envs.tiny import Tiny


class TwoViews(Tiny):
    """Shows two images and a vector."""

    def __init__(self, views: tuple[str, ...]) -> None:
        super().__init__()
        image = self.observation_space
        self.observation_space = spaces.Dict({"speed": spaces.Box(-1, 1, (3,))} | dict.fromkeys(views, image))

    def observe(self) -> dict[str, np.ndarray]:
        shown = {"speed": np.zeros(3, np.float32)}
        for number, name in enumerate(key for key in self.observation_space if key != "speed"):
            shown[name] = self.frame() + np.uint8(100 * number)
        return shown


def newest(env: EnvBase, steps: int = 3) -> torch.Tensor:
    """The last frame's value in the left half, per step and channel."""
    pixels = play(env, torch.zeros(steps, *env.action_spec.shape))["pixels"]
    return pixels[:, -pixels.shape[1] // 3 :, 0, 0]


def tiny_frames(seed: int, steps: int) -> torch.Tensor:
    number = int(np.random.default_rng(seed).integers(256))
    return torch.tensor([[number, step, 7] for step in range(steps + 1)], dtype=torch.uint8)


@pytest.mark.parametrize("kind", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("layout", ["HWC", "CHW", "HW"])
def test_any_layout_and_dtype(layout: str, kind: str) -> None:
    env = make_pixel_env(Tiny(layout, kind), seed=4)
    check_env_specs(env)
    env.set_seed(4)
    expected = tiny_frames(4, 3)[:, 1:2] if layout == "HW" else tiny_frames(4, 3)
    assert torch.equal(newest(env), expected)
    pixels = env.reset()["pixels"]
    assert pixels.dtype == torch.uint8 and pixels.shape == (3 * expected.shape[1], 12, 12)
    assert (pixels[..., :6] == pixels[..., :1]).all() and (pixels[..., 6:] == 0).all()  # neither turned nor mirrored


def test_float_images_are_rounded_to_the_nearest_of_256_values() -> None:
    values = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    to_frames = ToFrames("pixels", (1, 16, 16))
    for dtype in (torch.float32, torch.float64):
        for off in (-0.4, 0.0, 0.4):
            assert torch.equal(to_frames._apply_transform((values.to(dtype) + off) / 255), values)


def test_stacks_start_with_the_first_frame_and_shift() -> None:
    env = make_pixel_env(Tiny(length=5), num_frames=4)
    for _ in range(2):
        steps = play(env, torch.zeros(5, 2))["pixels"].unflatten(1, (4, 3))[:, :, 1, 0, 0]
        assert steps.tolist() == [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]


@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("wrap", [lambda env: env, GymWrapper], ids=["gymnasium", "torchrl"])
def test_repeats_stop_at_the_end(wrap, terminates: bool) -> None:
    tiny = Tiny(length=10, terminates=terminates)
    env = make_pixel_env(wrap(tiny), action_repeat=4)
    played = play(env, torch.zeros(3, 2))
    assert played["reward"].flatten().tolist() == [0, 1 + 2 + 3 + 4, 5 + 6 + 7 + 8, 9 + 10]
    assert played["reward"].dtype == torch.float32
    assert played["terminated"].flatten().tolist() == [False, False, False, terminates]
    assert played["truncated"].flatten().tolist() == [False, False, False, not terminates]
    assert torch.equal(played["done"], played["terminated"] | played["truncated"])
    assert played["pixels"][:, -2, 0, 0].tolist() == [0, 4, 8, 10]
    assert np.stack(tiny.actions).tolist() == [[1, 0]] * 10  # every repeat stretched to the bounds


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("wrap", [lambda env: env, GymWrapper], ids=["gymnasium", "torchrl"])
def test_bounded_actions_are_stretched(wrap, dtype: str) -> None:
    tiny = Tiny(action_space=spaces.Box(np.array([-2, -2], dtype), np.array([4, 2], dtype), dtype=dtype))
    env = make_pixel_env(wrap(tiny))
    assert env.action_spec.dtype == torch.float32
    assert env.action_spec.space.low.tolist() == [-1, -1] and env.action_spec.space.high.tolist() == [1, 1]
    play(env, torch.tensor([[1.0, -1.0], [-1.0, 0.5], [0.0, 0.0]]))
    assert np.stack(tiny.actions).tolist() == [[4, -2], [-2, 1], [1, 0]]


def test_actions_without_bounds_and_discrete_actions_stay() -> None:
    free = Tiny(action_space=spaces.Box(-np.inf, np.inf, (2,), np.float32))
    env = make_pixel_env(free)
    play(env, torch.tensor([[30.0, -5.0]]))
    assert free.actions[0].tolist() == [30, -5]
    assert env.action_spec.rand([1000]).abs().max() <= 1
    discrete = Tiny(action_space=spaces.Discrete(4))
    env = make_pixel_env(discrete)
    assert env.action_spec.shape == (4,)
    play(env, torch.tensor([[0, 0, 1, 0]]))
    assert discrete.actions == [2]


def test_actions_with_bounds_in_some_dimensions() -> None:
    low, high = np.array([-2, -np.inf], np.float32), np.array([4, np.inf], np.float32)
    tiny = Tiny(action_space=spaces.Box(low, high))
    env = make_pixel_env(tiny)
    play(env, torch.tensor([[1.0, -0.5]]))
    assert tiny.actions[0].tolist() == [4, -0.5]
    assert env.action_spec.rand([1000]).abs().max() <= 1
    assert env.raw_interface["action_low"] == [-2, -1] and env.raw_interface["action_high"] == [4, 1]


def test_discrete_actions_may_be_numbers() -> None:
    tiny = Tiny(action_space=spaces.Discrete(4))
    env = make_pixel_env(tiny, num_frames=1, categorical_actions=True)
    assert env.action_spec.shape == () and env.action_spec.n == 4
    step = env.reset().set("action", torch.tensor(2))
    assert env.step(step)["action"].shape == () and tiny.actions == [2]


def test_images_are_resized_with_antialiasing() -> None:
    env = make_pixel_env(Tiny(size=13), image_size=5)
    check_env_specs(env)
    own = make_pixel_env(Tiny(size=13), image_size=13)
    frame = own.reset()["pixels"]
    assert frame.shape == (9, 13, 13)
    expected = F.interpolate(frame[None].float(), (5, 5), mode="bilinear", antialias=True)[0].round().byte()
    env.set_seed(0)
    assert torch.equal(env.reset()["pixels"], expected)


def test_one_image_of_several() -> None:
    only = make_pixel_env(TwoViews(("eye",)))
    assert sorted(only.reset().keys()) == ["done", "pixels", "terminated", "truncated"]
    assert newest(make_pixel_env(TwoViews(("eye", "top")), pixels_key="top"))[1, 1] == 101
    assert newest(make_pixel_env(TwoViews(("eye", "top")), pixels_key="eye"))[1, 1] == 1


def test_drawn_images() -> None:
    tiny = Tiny("HW", render_mode="rgb_array")
    env = make_pixel_env(tiny, render=True, action_repeat=3, seed=4)
    tiny.renders = 0
    frames = newest(env)
    assert tiny.renders == 4
    assert torch.equal(frames[:, 1], torch.tensor([0, 3, 6, 9], dtype=torch.uint8)) and (frames[:, 2] == 7).all()


def test_a_registered_environment() -> None:
    gymnasium.register("mcurl/Tiny-v0", Tiny, max_episode_steps=4)
    try:
        for options in ({}, {"render": True}):
            steps = make_pixel_env("mcurl/Tiny-v0", **options).rollout(100)
            assert len(steps) == 4 and steps["next", "truncated"][-1]
        with pytest.raises(ValueError, match=r"env='mcurl/Tiny-v1'.*'mcurl/Tiny-v0'"):
            make_pixel_env("mcurl/Tiny-v1")
    finally:
        del gymnasium.registry["mcurl/Tiny-v0"]


def test_torchrl_environments() -> None:
    float_images = ToTensorImage(in_keys=["pixels"], out_keys=["image"], shape_tolerant=True)
    counted = TransformedEnv(GymWrapper(Tiny()), Compose(float_images, StepCounter()))
    env = make_pixel_env(counted, pixels_key="image")
    check_env_specs(env)
    played = play(env, torch.zeros(3, 2))
    assert "image" not in played.keys() and played["step_count"].flatten().tolist() == [0, 1, 2, 3]  # noqa: SIM118
    assert played["pixels"][:, -2, 0, 0].tolist() == [0, 1, 2, 3]


class Stateless(EnvBase):
    """Counts steps, and keeps nothing: the count is in the step, as with TorchRL's PendulumEnv."""

    def __init__(self) -> None:
        super().__init__()
        image = Bounded(0, 255, (3, 12, 12), dtype=torch.uint8)
        self.observation_spec = Composite(image=image, count=Unbounded((1,), dtype=torch.int64))
        self.state_spec = Composite(count=Unbounded((1,), dtype=torch.int64))
        self.action_spec, self.reward_spec = Bounded(-1, 1, (1,)), Unbounded((1,))

    def shown(self, count: torch.Tensor) -> TensorDict:
        flag = torch.zeros(1, dtype=torch.bool)
        image = torch.full((3, 12, 12), 10 * int(count), dtype=torch.uint8)
        return TensorDict({"image": image, "count": count, "done": flag, "terminated": flag.clone()})

    def _reset(self, tensordict: TensorDictBase | None = None, **options: Any) -> TensorDictBase:
        return self.shown(torch.zeros(1, dtype=torch.int64))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        count = tensordict["count"] + 1
        return self.shown(count).set("reward", count.float())

    def _set_seed(self, seed: int | None) -> None:
        pass


def test_repeats_go_on_from_the_state_that_a_step_holds() -> None:
    played = make_pixel_env(Stateless(), action_repeat=4, num_frames=1).rollout(3)
    assert played["next", "count"].flatten().tolist() == [4, 8, 12]
    assert played["next", "reward"].flatten().tolist() == [1 + 2 + 3 + 4, 5 + 6 + 7 + 8, 9 + 10 + 11 + 12]
    assert played["next", "pixels"][:, 0, 0, 0].tolist() == [40, 80, 120]


def test_action_transforms_of_a_torchrl_environment_are_applied_once_per_repeat() -> None:
    tiny = Tiny()
    scaled = TransformedEnv(GymWrapper(tiny), ActionScaling(loc=0.0, scale=2.0))
    play(make_pixel_env(scaled, action_repeat=3), torch.tensor([[1.0, -1.0]]))
    assert np.stack(tiny.actions).tolist() == [[4, -2]] * 3


def test_batched_torchrl_environments() -> None:
    env = make_pixel_env(SerialEnv(2, lambda: GymWrapper(Tiny())), image_size=8)
    assert env.rollout(4)["pixels"].shape == (2, 4, 9, 8, 8)
    with pytest.raises(ValueError, match="action_repeat=2"):
        make_pixel_env(SerialEnv(2, lambda: GymWrapper(Tiny())), action_repeat=2)


def test_what_follows_a_seed_depends_on_the_seed_alone() -> None:
    actions = torch.zeros(4, 2)
    new, used = make_pixel_env(Tiny(), seed=5), make_pixel_env(Tiny(), seed=11)
    other = play(used, actions)
    used.set_seed(5)
    for _ in range(2):
        first = play(new, actions)
        assert_same(first, play(used, actions))
        assert not torch.equal(first["pixels"], other["pixels"])
        other = first
    new.set_seed(5)
    assert torch.equal(newest(new), tiny_frames(5, 3))  # the seed's first episode, not its second


@pytest.mark.parametrize("render", [True, False])
def test_global_random_states_are_left_alone(render: bool) -> None:
    with global_random_states_untouched():
        env = make_pixel_env(Tiny(render_mode="rgb_array"), render=render, image_size=8)
        env.set_seed(3)
        play(env, torch.zeros(3, 2))


HALF = spaces.Box(np.array([0, -1], np.float32), np.array([np.inf, 1], np.float32))


class Shows(Tiny):
    """An environment with a given observation space, for refusals."""

    def __init__(self, space: spaces.Space) -> None:
        super().__init__()
        self.observation_space = space


@pytest.mark.parametrize(
    ("env", "options", "error", "message"),
    [
        (Shows(spaces.Box(-1, 1, (4,))), {}, ValueError, r"Box\(-1.0, 1.0, \(4,\), float32\).*render=True"),
        (Shows(spaces.Box(-1, 1, (8, 8))), {}, ValueError, "exactly one image"),
        (Shows(spaces.Box(0, 255, (8, 8, 5), np.uint8)), {}, ValueError, "C one of 1, 3, 4"),
        (Shows(spaces.Discrete(3)), {}, ValueError, r"Discrete\(3\)"),
        (TwoViews(("eye", "top")), {}, ValueError, r"'eye', 'top'.*pixels_key"),
        (TwoViews(("eye", "top")), {"pixels_key": "speed"}, ValueError, "pixels_key='speed'"),
        (Tiny(), {"pixels_key": "eye"}, ValueError, "pixels_key='eye'"),
        (Tiny(), {"render": True}, ValueError, "render_mode='rgb_array'"),
        (GymWrapper(Tiny()), {"render": True}, ValueError, "render=True is for Gymnasium"),
        (GymWrapper(Tiny()), {"pixels_key": "eye"}, ValueError, "pixels_key='eye'"),
        ("InvertedPendulm-v5", {}, ValueError, "env='InvertedPendulm-v5'.*'InvertedPendulum-v5'"),
        ("xyz", {}, ValueError, "env='xyz'.*gymnasium.registry"),
        ("CartPole-v1", {}, ValueError, "exactly one image"),
        (3, {}, TypeError, "env is a int"),
        (Tiny(action_space=spaces.Box(0, np.inf, (2,))), {}, ValueError, r"Box\(0.0, inf, \(2,\).*one infinite bound"),
        (GymWrapper(Tiny(action_space=HALF)), {}, ValueError, r"low=\[0.0, -1.0\].*inf.*no random action"),
        (Tiny(), {"num_frames": 0}, ValueError, "num_frames=0"),
        (Tiny(), {"action_repeat": 0}, ValueError, "action_repeat=0"),
        (Tiny(), {"image_size": 8.0}, TypeError, "image_size=8.0"),
    ],
)
def test_refusals(env, options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_pixel_env(env, **options)


def test_a_missing_gymnasium_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install gymnasium"):
        make_pixel_env("CarRacing-v3")
