"""A tiny Gymnasium environment whose frames tell which step they show."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Tiny(gymnasium.Env):
    """Frame = (seed's number, step, 7); the reward is the step's number; ends after ``length`` steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 1}

    def __init__(
        self,
        layout: str = "HWC",
        kind: str = "uint8",
        length: int = 10,
        terminates: bool = False,
        render_mode: str | None = None,
        size: int = 12,
        action_space: spaces.Space | None = None,
    ) -> None:
        self.layout, self.kind, self.length, self.terminates = layout, kind, length, terminates
        self.render_mode, self.size = render_mode, size
        shape = {"HWC": (size, size, 3), "CHW": (3, size, size), "HW": (size, size)}[layout]
        self.observation_space: spaces.Space = spaces.Box(0, 255 if kind == "uint8" else 1, shape, kind)
        self.action_space = action_space or spaces.Box(-2.0, np.array([4.0, 2.0], np.float32), (2,), np.float32)
        self.renders, self.actions, self.step_in_episode, self.number = 0, [], 0, 0

    def frame(self) -> np.ndarray:
        """The frame in HWC and uint8; the right half is black, so that transposed pictures differ."""
        frame = np.zeros((self.size, self.size, 3), np.uint8)
        frame[:, : self.size // 2] = self.number, self.step_in_episode, 7
        return frame

    def observe(self) -> Any:
        frame = self.frame()
        frame = frame[..., 1] if self.layout == "HW" else frame.transpose(2, 0, 1) if self.layout == "CHW" else frame
        return frame if self.kind == "uint8" else (frame / 255).astype(self.kind)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.number, self.step_in_episode = int(self.np_random.integers(256)), 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.step_in_episode < self.length, "a step after the episode's end"
        self.actions.append(action)
        self.step_in_episode += 1
        over = self.step_in_episode == self.length
        return self.observe(), float(self.step_in_episode), over and self.terminates, over and not self.terminates, {}

    def render(self) -> np.ndarray:
        self.renders += 1
        return self.frame()
