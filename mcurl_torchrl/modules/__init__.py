"""Encoders, the context Transformer, and what stands on latents."""

from mcurl_torchrl.modules.context import ContextTransformer, sinusoidal_positions
from mcurl_torchrl.modules.encoders import AtariEncoder, PixelEncoder, StateEncoder
from mcurl_torchrl.modules.gaussian_policy import GaussianPolicy
from mcurl_torchrl.modules.heads import GaussianHead, LatentProjection, QHead
from mcurl_torchrl.modules.momentum import MomentumCopy
from mcurl_torchrl.modules.rainbow import DuelingHead, ExpectedValues, NoisyLinear, RainbowNetwork, RainbowPolicy

__all__ = [
    "AtariEncoder",
    "ContextTransformer",
    "DuelingHead",
    "ExpectedValues",
    "GaussianHead",
    "GaussianPolicy",
    "LatentProjection",
    "MomentumCopy",
    "NoisyLinear",
    "PixelEncoder",
    "QHead",
    "RainbowNetwork",
    "RainbowPolicy",
    "StateEncoder",
    "sinusoidal_positions",
]
