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

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["make_dmc_env"]


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

    Each action is repeated below the renderer: one picture is drawn per agent step. After ``env.set_seed(s)``, all that
    follows the next ``env.reset()`` depends on ``s`` and the actions alone, on a new environment and on a used one. No
    global random state is read or changed.

    Writes "pixels" uint8 [3 * num_frames, image_size, image_size], the last ``num_frames`` frames, oldest first (at a
    reset all are the first frame), or "state" float32 [D]; "reward" float32 [1], the sum over the repeats; "done",
    "terminated" and "truncated" bool [1]: time limits are ``truncated``. Reads "action" float32 [A] in [-1, 1],
    stretched to the actuators' bounds where these differ.

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
        RuntimeError: if pictures are asked for and nothing on this machine renders.
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
    from mcurl_torchrl.envs.dmc_simulator import States

    # A few tasks draw their model when loaded: always the same one, so that seeds mean the same on every environment.
    simulator = suite.load(domain, name, task_kwargs={"random": 0})
    if from_pixels:
        if camera_id is None:
            camera_id = 2 if domain == "quadruped" else 0  # what published results from pixels look through
        _set_quality(simulator.physics, shadows, multisampling)
        env = _SuiteEnv(_rendered(simulator, action_repeat, image_size, num_frames, camera_id))
    else:
        # TorchRL takes no observation under the name "state".
        env = TransformedEnv(_SuiteEnv(States(simulator, action_repeat)), RenameTransform(["observation"], ["state"]))
    env.set_seed(seed)
    return env


class _SuiteEnv(DMControlWrapper):
    """TorchRL's wrapper, except for rewards in float32 and for the way of seeding."""

    def _check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Accepts any dm_env environment; TorchRL's check knows dm_control's own only."""

    def _make_specs(self, env: Any) -> None:
        super()._make_specs(env)
        self.reward_spec = Unbounded((1,), dtype=torch.float32)

    def _set_seed(self, seed: int | None) -> None:
        # TorchRL's also resets, which costs a picture and makes the next reset the seed's second episode.
        if seed is not None:
            self._env.task._random = np.random.RandomState(seed)


def _import_suite(rendering: bool) -> Any:
    if importlib.util.find_spec("dm_control") is None:
        # Its labmaze, which the suite does not use, cannot be installed there.
        and_then = ", then pip install --no-deps dm_control" if sys.version_info >= (3, 13) else ""
        raise ImportError(f"make_dmc_env needs dm_control: pip install 'mcurl-torchrl[dmc]'{and_then}")
    if rendering:
        choose_gl_backend()
        try:
            from dm_control import suite
        except Exception as error:  # PyOpenGL answers a missing library with an AttributeError, among others
            raise rendering_error(f"MUJOCO_GL={os.environ.get('MUJOCO_GL')} said {error!r}") from error
    else:
        with _rendering_disabled():
            from dm_control import suite
    return suite


@contextmanager
def _rendering_disabled() -> Iterator[None]:
    """Lets dm_control be imported on machines without OpenGL; choose_gl_backend makes up for it later."""
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


def _rendered(simulator: Any, action_repeat: int, image_size: int, num_frames: int, camera_id: int) -> Any:
    from mcurl_torchrl.envs.dmc_simulator import Frames

    try:
        return Frames(simulator, action_repeat, image_size, num_frames, camera_id)
    except ValueError:  # dm_control names a camera or an image size that the model does not have
        raise
    except Exception as error:
        raise rendering_error(f"MUJOCO_GL={os.environ.get('MUJOCO_GL')} said {error!r}") from error
