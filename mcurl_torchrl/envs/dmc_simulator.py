"""dm_env environments that repeat actions below the renderer; imported only where dm_control is needed."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np
from dm_env import specs

__all__ = ["Frames", "States"]

UNLIMITED = 1e10  # what MuJoCo reports as the bounds of an actuator that has none


class _RepeatedActions(dm_env.Environment):
    """Takes float32 actions in [-1, 1], each several times; rewards are summed, and repeats stop at the episode's end.

    What is observed is left to subclasses and happens once per agent step.

    Args:
        env (dm_env.Environment): The environment; ``physics``, ``task`` and so on are looked up there.
        action_repeat (int): How often each action is taken.
    """

    def __init__(self, env: dm_env.Environment, action_repeat: int) -> None:
        self._env = env
        self._action_repeat = action_repeat
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

    def _observed(self, time_step: dm_env.TimeStep) -> dm_env.TimeStep:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name == "_env":  # not set yet (while unpickling): looking it up would never end
            raise AttributeError(name)
        return getattr(self._env, name)


class States(_RepeatedActions):
    """Shows all observations of the task in its own order, as one float32 vector under "observation"."""

    def observation_spec(self) -> dict[str, specs.Array]:
        """Returns the spec of the vector."""
        size = sum(int(np.prod(part.shape)) for part in self._env.observation_spec().values())
        return {"observation": specs.Array((size,), np.float32, name="observation")}

    def _observed(self, time_step: dm_env.TimeStep) -> dm_env.TimeStep:
        vector = np.concatenate([np.ravel(part) for part in time_step.observation.values()], dtype=np.float32)
        return time_step._replace(observation={"observation": vector})


class Frames(_RepeatedActions):
    """Shows the last pictures under "pixels", uint8 [3 * num_frames, size, size]; at a reset all are the first one.

    The stack is made here, not by TorchRL's ``CatFrames``: numpy copies in one thread, while torch splits 90 kB over
    all threads and then waits for them, which costs milliseconds a step as soon as anything else uses a core. The
    camera is kept, while ``physics.render`` would make a new one for each picture, about 1 ms.

    Args:
        env (dm_env.Environment): A dm_control environment.
        action_repeat (int): How often each action is taken.
        image_size (int): Height and width.
        num_frames (int): Pictures per observation.
        camera_id (int): The model's camera.
    """

    def __init__(
        self, env: dm_env.Environment, action_repeat: int, image_size: int, num_frames: int, camera_id: int
    ) -> None:
        super().__init__(env, action_repeat)
        from dm_control import mujoco  # not above: without OpenGL the import may fail, and states need none

        self._camera = mujoco.Camera(env.physics, image_size, image_size, camera_id)
        self._stack = np.empty((num_frames, 3, image_size, image_size), np.uint8)
        self._camera.render()  # fails here rather than in the first step, where nothing renders

    def observation_spec(self) -> dict[str, specs.Array]:
        """Returns the spec of the stack."""
        num_frames, channels, height, width = self._stack.shape
        return {"pixels": specs.Array((num_frames * channels, height, width), np.uint8, name="pixels")}

    def _observed(self, time_step: dm_env.TimeStep) -> dm_env.TimeStep:
        frame = self._camera.render().transpose(2, 0, 1)
        stack = np.empty_like(self._stack)  # a new one each time: what was shown before must not change
        stack[:-1] = frame if time_step.first() else self._stack[1:]
        stack[-1] = frame
        self._stack = stack
        return time_step._replace(observation={"pixels": stack.reshape(-1, *stack.shape[2:])})
