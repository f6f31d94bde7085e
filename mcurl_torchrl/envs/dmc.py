"""Tasks of the DeepMind Control Suite, from pixels or from the simulator's state."""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torchrl.data import Unbounded
from torchrl.envs import DMControlWrapper, EnvBase, RenameTransform, TransformedEnv

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.envs.gl import choose_gl_backend, rendering_error
from mcurl_torchrl.stacking import FrameStack

if TYPE_CHECKING:
    from collections.abc import Iterator

    import dm_env

__all__ = ["make_dmc_env"]

UNLIMITED = 1e10  # MuJoCo reports these bounds for an actuator without bounds
SCREEN_SIZE = (240, 320)  # height and width of the pictures for videos


def make_dmc_env(
    task: str,
    *,
    action_repeat: int = 1,
    image_size: int = 100,
    num_frames: int = 3,
    camera_id: int | None = None,
    from_pixels: bool = True,
    shadows: bool = True,
    multisampling: bool = True,
    seed: int = 0,
) -> EnvBase:
    """Builds a task of the DeepMind Control Suite (https://arxiv.org/abs/1801.00690) as a TorchRL environment.

    Each action is repeated without rendering: one picture is drawn per agent step. After ``env.set_seed(s)``,
    everything from the next ``env.reset()`` on depends on ``s`` and the actions alone, on a new environment and on a
    used one. No global random state is read or changed.

    Writes "pixels" uint8 [3 * num_frames, image_size, image_size], the last ``num_frames`` frames, oldest first (at a
    reset all are the first frame), or "state" float32 [D]; "reward" float32 [1], the sum over the repeats; "done",
    "terminated" and "truncated" bool [1]: time limits are ``truncated``. Reads "action" float32 [A] in [-1, 1],
    stretched to the actuators' bounds where these differ. For videos, ``env.rendered_screen()`` draws a larger picture,
    and ``env.agent_steps_per_second`` is the speed of the simulated time.

    Args:
        task (str): Domain and task, such as "cartpole-swingup" or "ball_in_cup-catch".
        action_repeat (int): Simulator steps per agent step. Defaults to 1.
        image_size (int): Height and width of the pictures. Defaults to 100.
        num_frames (int): Frames per observation. Defaults to 3.
        camera_id (int, optional): The model's camera. Defaults to 0, for the quadruped to 2.
        from_pixels (bool): Whether observations are pictures. False writes "state" instead, all observations of the
            task in one vector, and needs no OpenGL. Defaults to True.
        shadows (bool): Whether shadows are drawn. Defaults to True, as published; software rendering is several times
            faster without shadows and multisampling.
        multisampling (bool): Whether edges are smoothed. Defaults to True, as published.
        seed (int): The seed of the first episodes, from 0 to 2**32 - 1. Defaults to 0.

    Raises:
        ImportError: if dm_control is not installed.
        RuntimeError: if ``from_pixels`` is True and nothing on this machine renders.
        TypeError: if a count is not a whole number.
        ValueError: if there is no such task or camera, or if a count is below 1.

    Examples:
        >>> from mcurl_torchrl.envs import make_dmc_env
        >>> env = make_dmc_env("cartpole-swingup", action_repeat=8, image_size=24)
        >>> steps = env.rollout(5)
        >>> steps["pixels"].shape, steps["pixels"].dtype
        (torch.Size([5, 9, 24, 24]), torch.uint8)
        >>> make_dmc_env("cartpole-swingup", from_pixels=False).reset()["state"].shape
        torch.Size([5])
    """
    check_count("action_repeat", action_repeat)
    check_count("image_size", image_size)
    check_count("num_frames", num_frames)
    domain, _, name = task.partition("-")
    # The terrain of quadruped-escape is sent to the renderer at each reset, whether or not anything is drawn.
    suite = _import_suite(rendering=from_pixels or task == "quadruped-escape")
    _check_task(task, suite.ALL_TASKS)
    # A few tasks draw their model at random when they are loaded; with this seed it is the same in every environment.
    simulator = suite.load(domain, name, task_kwargs={"random": 0})
    if from_pixels:
        if camera_id is None:
            camera_id = 2 if domain == "quadruped" else 0  # the cameras of published results from pixels
        _set_quality(simulator.physics, shadows, multisampling)
        env = _SuiteEnv(_make_frames(simulator, action_repeat, image_size, num_frames, camera_id))
    else:
        # TorchRL takes no observation under the name "state".
        env = TransformedEnv(_SuiteEnv(_States(simulator, action_repeat)), RenameTransform(["observation"], ["state"]))
    env.set_seed(seed)
    return env


class _SuiteEnv(DMControlWrapper):
    """TorchRL's wrapper with rewards in float32 and another way of seeding."""

    def _check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Accepts any environment of dm_env's form; TorchRL's check knows dm_control's own classes only."""

    def _make_specs(self, env: Any) -> None:
        super()._make_specs(env)
        self.reward_spec = Unbounded((1,), dtype=torch.float32)

    def _set_seed(self, seed: int | None) -> None:
        # TorchRL's method also resets. That costs a picture, and the next reset gives the seed's second episode.
        if seed is not None:
            self._env.task._random = np.random.RandomState(seed)


class _RepeatedActions:
    """A dm_env environment that takes float32 actions in [-1, 1], each several times, and sums their rewards.

    The repeats stop at the episode's end. Subclasses make the observations, one per agent step.

    Args:
        env (dm_env.Environment): The environment; ``physics``, ``task`` and other attributes are looked up there.
        action_repeat (int): How often each action is taken.
    """

    def __init__(self, env: dm_env.Environment, action_repeat: int) -> None:
        self._env = env
        self._action_repeat = action_repeat
        spec = env.action_spec()
        low, high = np.asarray(spec.minimum), np.asarray(spec.maximum)
        # With bounds of 1e10 every action would break the simulation: actions without bounds are not stretched.
        unlimited = (low <= -UNLIMITED) | (high >= UNLIMITED)
        low, high = np.where(unlimited, -1.0, low), np.where(unlimited, 1.0, high)
        self._center, self._half_range = (high + low) / 2, (high - low) / 2

    @property
    def raw_interface(self) -> dict[str, Any]:
        """The bounds of the actuators, where actions are stretched to them."""
        if (self._center == 0).all() and (self._half_range == 1).all():
            return {}
        low, high = self._center - self._half_range, self._center + self._half_range
        return {"action_low": low.tolist(), "action_high": high.tolist(), "action_dtype": "float64"}

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode."""
        return self._observed(self._env.reset())

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        """Takes ``action`` several times, or until the episode ends."""
        action = self._center + self._half_range * action.astype(np.float64)
        reward = 0.0
        for _ in range(self._action_repeat):
            time_step = self._env.step(action)
            reward += time_step.reward
            if time_step.last():
                break
        return self._observed(time_step._replace(reward=reward))

    @property
    def agent_steps_per_second(self) -> float:
        """How fast the agent acts in the simulated time."""
        return 1 / (self._env.control_timestep() * self._action_repeat)

    def action_spec(self) -> Any:
        """Returns bounds of -1 and 1 in float32."""
        from dm_env import specs

        return specs.BoundedArray(self._center.shape, np.float32, -1.0, 1.0, name="action")

    def _observed(self, time_step: dm_env.TimeStep) -> dm_env.TimeStep:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name == "_env":  # not set yet, while unpickling: the lookup below would never end
            raise AttributeError(name)
        return getattr(self._env, name)


class _States(_RepeatedActions):
    """Shows all observations of the task in its own order, as one float32 vector under "observation"."""

    def observation_spec(self) -> dict[str, Any]:
        """Returns the spec of the vector."""
        from dm_env import specs

        size = sum(int(np.prod(part.shape)) for part in self._env.observation_spec().values())
        return {"observation": specs.Array((size,), np.float32, name="observation")}

    def _observed(self, time_step: dm_env.TimeStep) -> dm_env.TimeStep:
        vector = np.concatenate([np.ravel(part) for part in time_step.observation.values()], dtype=np.float32)
        return time_step._replace(observation={"observation": vector})


class _Frames(_RepeatedActions):
    """Shows the last pictures under "pixels", uint8 [3 * num_frames, size, size]; at a reset all are the first one.

    The camera is kept, because ``physics.render`` makes a new camera for each picture, which takes about 1 ms.

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
        from dm_control import mujoco

        self._camera = mujoco.Camera(env.physics, image_size, image_size, camera_id)
        self._camera_id = camera_id
        self._large_camera: Any = None
        self._stack = FrameStack(num_frames, padding="repeat")
        self._shape = (3 * num_frames, image_size, image_size)
        self._camera.render()  # if nothing renders, this fails here, not in the first step

    def observation_spec(self) -> dict[str, Any]:
        """Returns the spec of the stack."""
        from dm_env import specs

        return {"pixels": specs.Array(self._shape, np.uint8, name="pixels")}

    def rendered_screen(self) -> np.ndarray:
        """Draws a larger picture of the scene, for videos, uint8 [240, 320, 3]."""
        if self._large_camera is None:
            from dm_control import mujoco

            self._large_camera = mujoco.Camera(self._env.physics, *SCREEN_SIZE, self._camera_id)
        return self._large_camera.render().copy()  # the camera draws the next one into the same memory

    def _observed(self, time_step: dm_env.TimeStep) -> dm_env.TimeStep:
        if time_step.first():
            self._stack.clear()
        frame = np.ascontiguousarray(self._camera.render().transpose(2, 0, 1))
        return time_step._replace(observation={"pixels": self._stack.push(torch.from_numpy(frame)).numpy()})


def _import_suite(rendering: bool) -> Any:
    if importlib.util.find_spec("dm_control") is None:
        # dm_control depends on labmaze, which the suite does not use and which cannot be installed on Python 3.13.
        and_then = ", then pip install --no-deps dm_control" if sys.version_info >= (3, 13) else ""
        raise ImportError(f"make_dmc_env needs dm_control: pip install 'mcurl-torchrl[dmc]'{and_then}")
    if rendering:
        choose_gl_backend()
        try:
            from dm_control import suite
        except Exception as error:  # PyOpenGL raises an AttributeError, among others, if a library is missing
            raise rendering_error(f"MUJOCO_GL={os.environ.get('MUJOCO_GL')} said {error!r}") from error
    else:
        with _rendering_disabled():
            from dm_control import suite
    return suite


@contextmanager
def _rendering_disabled() -> Iterator[None]:
    """Lets dm_control be imported on machines without OpenGL; choose_gl_backend chooses a backend later."""
    if "MUJOCO_GL" in os.environ:
        yield
        return
    os.environ["MUJOCO_GL"] = "disable"
    try:
        yield
    finally:
        del os.environ["MUJOCO_GL"]


def _check_task(task: str, known: tuple[tuple[str, str], ...]) -> None:
    names = ["-".join(parts) for parts in known]
    if task not in names:
        close = difflib.get_close_matches(task, names) or sorted(names)
        raise ValueError(f"task={task!r}; did you mean one of {close}?")


def _set_quality(physics: Any, shadows: bool, multisampling: bool) -> None:
    if not shadows:
        physics.model.vis.quality.shadowsize = 0
    if not multisampling:
        physics.model.vis.quality.offsamples = 0


def _make_frames(simulator: Any, action_repeat: int, image_size: int, num_frames: int, camera_id: int) -> _Frames:
    try:
        return _Frames(simulator, action_repeat, image_size, num_frames, camera_id)
    except ValueError:  # dm_control names a camera or an image size that the model does not have
        raise
    except Exception as error:
        raise rendering_error(f"MUJOCO_GL={os.environ.get('MUJOCO_GL')} said {error!r}") from error
