"""The state of the simulator of a pixel environment, for measurements: agents never see it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrl.envs import EnvBase

__all__ = ["simulator_state"]


def simulator_state(env: EnvBase) -> Tensor:
    """Returns the state of the simulator at the current step, float64 ``[D]``.

    DMControl: the task's observations without pixels, such as positions, sines and cosines of angles, and velocities.
    Atari: the 128 bytes of the console's memory. Gymnasium: the attribute ``state`` of the environment inside all
    wrappers, which classic control has; your own environment may have it, too.

    Args:
        env (EnvBase): from :func:`~mcurl_torchrl.make_dmc_env`, :func:`~mcurl_torchrl.make_atari_env` or
            :func:`~mcurl_torchrl.make_pixel_env`.

    Raises:
        ValueError: if the environment has no state that is known here.

    Examples:
        >>> from mcurl_torchrl.envs import make_dmc_env, simulator_state
        >>> env = make_dmc_env("cartpole-swingup", image_size=32)
        >>> _ = env.reset()
        >>> simulator_state(env).shape  # the cart's position, cosine and sine of the pole's angle, two velocities
        torch.Size([5])
    """
    base: Any = env
    while isinstance(getattr(base, "base_env", None), EnvBase) and base.base_env is not base:
        base = base.base_env
    if hasattr(base, "ram"):
        return torch.from_numpy(np.asarray(base.ram, np.float64))
    simulator: Any = getattr(base, "_env", None)
    if (physics := getattr(simulator, "physics", None)) is not None:
        observed = simulator.task.get_observation(physics)
        return torch.from_numpy(np.concatenate([np.ravel(part) for part in observed.values()]).astype(np.float64))
    state = getattr(getattr(simulator, "unwrapped", None), "state", None)
    if state is None:
        raise ValueError(
            f"{type(base).__name__} shows no state of its simulator: DMControl, Atari, and Gymnasium environments with "
            "an attribute 'state' do"
        )
    return torch.from_numpy(np.array(state, np.float64).reshape(-1))
