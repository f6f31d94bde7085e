"""A Gymnasium environment that shows one image; imported only where Gymnasium is needed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from mcurl_torchrl.envs.images import choose_image, is_image

__all__ = ["OneImage"]


class OneImage(gymnasium.Wrapper):
    """Shows one image under the key "pixels", and takes each action several times.

    Rewards are summed; the repeats stop at the episode's end, and one picture is drawn per agent step.

    Args:
        env (gymnasium.Env): The environment.
        action_repeat (int): How often each action is taken.
        pixels_key (str, optional): Which part of a Dict observation is the image. Defaults to the only image.
        render (bool): Whether the image is what ``env.render()`` draws instead of the observation.
    """

    def __init__(self, env: gymnasium.Env, action_repeat: int, pixels_key: str | None, render: bool) -> None:
        super().__init__(env)
        self.next_seed: int | None = None
        self._action_repeat = action_repeat
        self._pixels_key = None
        self._draws = render
        image: spaces.Space
        if render:
            image = self._drawn_space()
        elif isinstance(env.observation_space, spaces.Dict):
            images = [key for key, space in env.observation_space.items() if _is_image_space(space)]
            self._pixels_key = choose_image(images, pixels_key, env.observation_space)
            image = env.observation_space[self._pixels_key]
        else:
            # One image without a name: asking for a name finds none.
            choose_image([None] if _is_image_space(env.observation_space) else [], pixels_key, env.observation_space)
            image = env.observation_space
        self.observation_space = spaces.Dict({"pixels": image})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode, with ``next_seed`` where one is waiting."""
        seed, self.next_seed = self.next_seed if seed is None else seed, None
        observation, info = self.env.reset(seed=seed, options=options)
        return self._image(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes ``action`` until it was repeated often enough, or until the episode ends."""
        total = 0.0
        for _ in range(self._action_repeat):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return self._image(observation), total, bool(terminated), bool(truncated), info

    def _image(self, observation: Any) -> dict[str, np.ndarray]:
        if self._draws:
            observation = self.env.render()
        elif self._pixels_key is not None:
            observation = observation[self._pixels_key]
        return {"pixels": observation}

    def _drawn_space(self) -> spaces.Box:
        if self.env.render_mode != "rgb_array":
            raise ValueError(
                f"render=True needs an environment with render_mode='rgb_array', not {self.env.render_mode!r}"
            )
        self.env.reset(seed=0)  # nothing can be drawn before
        picture = np.asarray(self.env.render())
        space = spaces.Box(0, 255, picture.shape, picture.dtype)
        choose_image(
            [None] if _is_image_space(space) else [], None, f"drawings of shape {picture.shape}, {picture.dtype}"
        )
        return space


def _is_image_space(space: spaces.Space) -> bool:
    if not isinstance(space, spaces.Box):
        return False
    return is_image(space.shape, str(space.dtype), float(space.low.min()), float(space.high.max()))
