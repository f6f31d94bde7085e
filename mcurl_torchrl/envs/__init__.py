"""Pixel environments of DMControl, Atari and Gymnasium: stacked uint8 frames, channels first."""

from mcurl_torchrl.envs.atari import make_atari_env
from mcurl_torchrl.envs.dmc import make_dmc_env
from mcurl_torchrl.envs.gym import make_pixel_env
from mcurl_torchrl.envs.states import simulator_state

__all__ = ["make_atari_env", "make_dmc_env", "make_pixel_env", "simulator_state"]
