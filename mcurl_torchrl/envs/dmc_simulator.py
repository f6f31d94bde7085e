"""A dm_env environment that repeats each action below the renderer; imported only where dm_control is needed."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np
from dm_env import specs

__all__ = ["RepeatedActions"]

UNLIMITED = 1e10  # what MuJoCo reports as the bounds of an actuator that has none


class RepeatedActions(dm_env.Environment):
    """Takes float32 actions in [-1, 1], and takes each several times.

    Rewards are summed; the repeats stop at the episode's end. Nothing is rendered here, so that a renderer around this
    environment draws one picture per agent step.

    Args:
        env (dm_env.Environment): The environment; ``physics``, ``task`` and so on are looked up there.
        action_repeat (int): How often each action is taken.
        flatten (bool): Whether observations are concatenated into one float32 vector, in the task's order, under the
            key "observation".
    """

    def __init__(self, env: dm_env.Environment, action_repeat: int, flatten: bool = False) -> None:
        self._env = env
        self._action_repeat = action_repeat
        self._flatten = flatten
        spec = env.action_spec()
        low, high = np.asarray(spec.minimum), np.asarray(spec.maximum)
        # Stretching [-1, 1] to bounds of 1e10 would make every action an explosion: without bounds, taken as they are.
        unlimited = (low <= -UNLIMITED) | (high >= UNLIMITED)
        low, high = np.where(unlimited, -1.0, low), np.where(unlimited, 1.0, high)
        self._center, self._half_range = (high + low) / 2, (high - low) / 2

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode."""
        return self._observed(self._env.reset())

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        """Takes ``action`` until it was repeated often enough, or until the episode ends."""
        action = self._center + self._half_range * action.astype(np.float64)
        reward = 0.0
        for _ in range(self._action_repeat):
            time_step = self._env.step(action)
            reward += time_step.reward
            if time_step.last():
                break
        return self._observed(time_step._replace(reward=reward))

    def action_spec(self) -> specs.BoundedArray:
        """Returns bounds of -1 and 1 in float32."""
        return specs.BoundedArray(self._center.shape, np.float32, -1.0, 1.0, name="action")

    def observation_spec(self) -> dict[str, specs.Array]:
        """Returns the task's own specs, or that of one vector."""
        spec = self._env.observation_spec()
        if not self._flatten:
            return spec
        size = sum(int(np.prod(part.shape)) for part in spec.values())
        return {"observation": specs.Array((size,), np.float32, name="observation")}

    def _observed(self, time_step: dm_env.TimeStep) -> dm_env.TimeStep:
        if not self._flatten:
            return time_step
        vector = np.concatenate([np.ravel(part) for part in time_step.observation.values()], dtype=np.float32)
        return time_step._replace(observation={"observation": vector})

    def __getattr__(self, name: str) -> Any:
        if name == "_env":  # not set yet (while unpickling): looking it up would never end
            raise AttributeError(name)
        return getattr(self._env, name)
