"""Catch: a ball falls, a paddle at the bottom has to be where it lands. A small image environment for Gymnasium."""

from __future__ import annotations

import gymnasium
import numpy as np

CELLS, PIXELS, SIDE = 12, 2, 25  # the encoder of data-efficient Rainbow sees all of 25 x 25 pixels, in 5 x 5 patches


class Catch(gymnasium.Env):
    """Twelve by twelve cells of two by two pixels; the paddle has three, the ball falls by two at each of six steps.

    Left, stay, right; at the end 1 for a catch, -1 for a miss.
    """

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.row, self.column, self.paddle = 0, int(self.np_random.integers(CELLS)), CELLS // 2
        return self._image(), {}

    def step(self, action):
        self.paddle = min(max(self.paddle + int(action) - 1, 0), CELLS - 1)
        self.row += 2
        over = self.row == CELLS
        reward = float(over) * (1.0 if abs(self.paddle - self.column) <= 1 else -1.0)
        return self._image(), reward, over, False, {}

    def _image(self) -> np.ndarray:
        cells = np.zeros((CELLS, CELLS), np.uint8)
        cells[min(self.row, CELLS - 1), self.column] = 255
        cells[-1, max(self.paddle - 1, 0) : self.paddle + 2] = 255
        image = np.zeros((SIDE, SIDE, 1), np.uint8)
        image[: CELLS * PIXELS, : CELLS * PIXELS, 0] = np.kron(cells, np.ones((PIXELS, PIXELS), np.uint8))
        return image


gymnasium.register("Catch-v0", entry_point=Catch)
