"""Gymnasium environments that fail on command."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import ClassVar

import gymnasium

from tests.recipes.tiny_envs import Dot


def nothing(env: Faulty, reward: float) -> float:
    return reward


class Faulty(Dot):
    """A dot whose every step and reset asks ``fault`` first, which may raise or give another reward."""

    fault: Callable[[float], float] = nothing
    made: ClassVar[list[Faulty]] = []

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.taken = 0  # steps of all episodes
        self.made.append(self)

    @property
    def trains(self) -> bool:
        """Recipes make the environment to train in first, the one to evaluate in second."""
        return self.made.index(self) % 2 == 0

    def reset(self, *, seed=None, options=None):
        self.fault(0.0)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        observation, reward, *rest = super().step(action)
        self.taken += 1
        return observation, self.fault(reward), *rest


class Pressing(Faulty):
    """Sends a signal to its own process in the 15th training step, as a terminal or a scheduler would."""

    def fault(self, reward: float) -> float:
        if self.trains and self.taken == 15:
            self.taken += 1
            os.kill(os.getpid(), signal.Signals[os.environ["PRESS"]])
        return reward


class Buttons(Faulty):
    """Actions are one of three buttons."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Discrete(3)


for env in (Faulty, Pressing, Buttons):
    gymnasium.register(f"{env.__name__}-v0", entry_point=env)
