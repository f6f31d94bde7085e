"""Encoders of pixels and the context Transformer."""

from mcurl_torchrl.modules.context import ContextTransformer, sinusoidal_positions
from mcurl_torchrl.modules.encoders import AtariEncoder, PixelEncoder

__all__ = ["AtariEncoder", "ContextTransformer", "PixelEncoder", "sinusoidal_positions"]
