"""Plays popular environments through make_pixel_env, and compares frames, rewards, actions and ends with the original.

    python tests/envs/real_envs.py NAME

Run by tests/envs/test_real_envs.py with the python of an environment that has their packages.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from mcurl_torchrl import make_pixel_env

Make = Callable[[], gymnasium.Env]
SEED = 3


def car_racing(**options: Any) -> gymnasium.Env:
    return gymnasium.make("CarRacing-v3", max_episode_steps=60, **options)


def minigrid(wrapped: bool = True) -> gymnasium.Env:
    import minigrid  # noqa: F401 - it registers its environments
    from minigrid.wrappers import RGBImgObsWrapper

    env = gymnasium.make("MiniGrid-Empty-5x5-v0", max_steps=30)
    return RGBImgObsWrapper(env) if wrapped else env


def vizdoom() -> gymnasium.Env:
    from vizdoom import gymnasium_wrapper  # noqa: F401 - it registers its environments

    return gymnasium.make("VizdoomBasic-v1")


def crafter() -> gymnasium.Env:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
    import crafter_env

    return crafter_env.Crafter(length=40)


# What makes the environment, what is told to make_pixel_env, how many agent steps.
ENVS: dict[str, tuple[Make, dict[str, Any], int]] = {
    "car_racing": (car_racing, {"action_repeat": 4}, 40),
    "car_racing_rendered": (lambda: car_racing(render_mode="rgb_array"), {"render": True, "action_repeat": 4}, 5),
    "minigrid": (minigrid, {}, 400),
    "vizdoom": (vizdoom, {"action_repeat": 4, "pixels_key": "screen"}, 200),
    "crafter": (crafter, {}, 200),
}


def image_of(env: gymnasium.Env, observation: Any, options: dict[str, Any]) -> np.ndarray:
    if options.get("render"):
        return np.asarray(env.render())
    if isinstance(observation, dict):
        return observation[options.get("pixels_key", "image")]
    return observation


def own_action(space: gymnasium.Space, action: torch.Tensor) -> Any:
    """The action in the environment's own bounds, by the formula."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(action)
    return space.low + (action.numpy() + 1) / 2 * (space.high - space.low)


class Recorder(gymnasium.Wrapper):
    """Keeps what goes in and out of an environment."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.seeds, self.observation, self.steps = [], None, []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        self.seeds.append(seed)
        self.observation, info = self.env.reset(seed=seed, options=options)
        return self.observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.observation, reward, terminated, truncated, info = self.env.step(action)
        self.steps.append((np.array(action), float(reward), bool(terminated), bool(truncated)))
        return self.observation, reward, terminated, truncated, info


def play(name: str) -> dict[str, Any]:
    make, options, steps = ENVS[name]
    own = Recorder(make())
    env = make_pixel_env(own, num_frames=2, categorical_actions=True, **options)
    torch.manual_seed(SEED)
    env.set_seed(SEED)
    own.seeds.clear()
    seen = env.reset()
    before = image = image_of(own, own.observation, options)
    counted = {"steps": steps, "terminated": 0, "truncated": 0, "reward": 0.0, "colours": 0}
    for _ in range(steps):
        check_stack(seen["pixels"], before, image)
        counted["colours"] = max(counted["colours"], len(np.unique(image)))
        seen["action"] = env.action_spec.rand()
        asked = own_action(own.action_space, seen["action"])
        own.steps.clear()
        seen = env.step(seen)["next"]
        before, image = image, image_of(own, own.observation, options)
        actions, rewards, terminated, truncated = zip(*own.steps, strict=True)
        ended = terminated[-1] or truncated[-1]
        assert len(actions) == options.get("action_repeat", 1) or ended
        np.testing.assert_allclose(np.stack(actions), np.stack([asked] * len(actions)), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(seen["reward"].item(), sum(rewards), rtol=1e-5, atol=1e-5)
        assert (seen["terminated"].item(), seen["truncated"].item()) == (terminated[-1], truncated[-1])
        counted["reward"] += sum(rewards)
        counted["terminated"] += terminated[-1]
        counted["truncated"] += truncated[-1]
        if ended:
            check_stack(seen["pixels"], before, image)
            seen = env.reset()
            before = image = image_of(own, own.observation, options)
    assert own.seeds == [SEED, *[None] * (len(own.seeds) - 1)]
    small = make_pixel_env(make(), num_frames=3, image_size=84, categorical_actions=True, **options).rollout(3)
    assert small["pixels"].shape[1:] == (9, 84, 84) and small["pixels"].dtype == torch.uint8
    return {**counted, "shape": list(image.shape)}


def check_stack(pixels: torch.Tensor, before: np.ndarray, image: np.ndarray) -> None:
    """The last two images, the older first, channels first."""
    expected = np.concatenate([before.transpose(2, 0, 1), image.transpose(2, 0, 1)])
    assert pixels.dtype == torch.uint8 and np.array_equal(pixels.numpy(), expected)


def large_grid() -> gymnasium.Env:
    import minigrid  # noqa: F401 - it registers its environments
    from minigrid.wrappers import FullyObsWrapper

    return FullyObsWrapper(gymnasium.make("MiniGrid-Empty-16x16-v0"))


def refuse_symbols() -> dict[str, Any]:
    said = []
    for make in (lambda: minigrid(wrapped=False), large_grid):
        try:
            make_pixel_env(make()).rollout(40, break_when_any_done=False)
        except ValueError as error:
            said.append(str(error))
    return {"said": said}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=[*ENVS, "symbols"])
    name = parser.parse_args().name
    print(json.dumps(refuse_symbols() if name == "symbols" else play(name)))
