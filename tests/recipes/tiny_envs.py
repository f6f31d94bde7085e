"""Small image environments for Gymnasium."""

from __future__ import annotations

import gymnasium
import numpy as np


class Dot(gymnasium.Env):
    """A white dot on black; the action moves it, being near the middle pays. Episodes end after 20 steps."""

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (40, 40, 3), np.uint8)
        self.action_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.uniform(0, 1, 2), 0
        return self._image(), {}

    def step(self, action):
        self.place = np.clip(self.place + 0.1 * np.asarray(action), 0, 1)
        self.steps += 1
        return self._image(), float(1 - np.abs(self.place - 0.5).sum()), False, self.steps == 20, {}

    def _image(self) -> np.ndarray:
        image = np.zeros((40, 40, 3), np.uint8)
        row, column = (self.place * 36).astype(int)
        image[row : row + 4, column : column + 4] = 255
        return image


gymnasium.register("Dot-v0", entry_point=Dot)


class Pay(gymnasium.Env):
    """Pays five for anything, for ever."""

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (40, 40, 1), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((40, 40, 1), np.uint8), {}

    def step(self, action):
        return np.zeros((40, 40, 1), np.uint8), 5.0, False, False, {}


gymnasium.register("Pay-v0", entry_point=Pay)
