"""Encoders, the context Transformer, and the heads and policies on latents."""

from mcurl_torchrl.modules.actions import ActionContext, ActionEmbedding
from mcurl_torchrl.modules.batch_norm import RankedBatchNorm2d
from mcurl_torchrl.modules.context import ContextTransformer, sinusoidal_positions
from mcurl_torchrl.modules.dueling import DuelingHead, HeadProjection, NoisyLinear
from mcurl_torchrl.modules.encoder_files import load_encoder, save_encoder, start_encoder_from
from mcurl_torchrl.modules.encoders import AtariEncoder, PixelEncoder, StateEncoder
from mcurl_torchrl.modules.gaussian_policy import GaussianPolicy
from mcurl_torchrl.modules.heads import GaussianHead, LatentProjection, QHead
from mcurl_torchrl.modules.momentum import MomentumCopy
from mcurl_torchrl.modules.policy import Policy
from mcurl_torchrl.modules.ppo_policy import PPOPolicy
from mcurl_torchrl.modules.projections import CurlProjection, LinearProjection, ProjectedEncoder, project_encoder
from mcurl_torchrl.modules.rainbow import RainbowNetwork, RainbowPolicy
from mcurl_torchrl.modules.reconstruction import ReconstructionTransformer
from mcurl_torchrl.modules.transition import ConvTransition, LatentTransition

__all__ = [
    "ActionContext",
    "ActionEmbedding",
    "AtariEncoder",
    "ContextTransformer",
    "ConvTransition",
    "CurlProjection",
    "DuelingHead",
    "GaussianHead",
    "GaussianPolicy",
    "HeadProjection",
    "LatentProjection",
    "LatentTransition",
    "LinearProjection",
    "MomentumCopy",
    "NoisyLinear",
    "PPOPolicy",
    "PixelEncoder",
    "Policy",
    "ProjectedEncoder",
    "QHead",
    "RainbowNetwork",
    "RainbowPolicy",
    "RankedBatchNorm2d",
    "ReconstructionTransformer",
    "StateEncoder",
    "load_encoder",
    "project_encoder",
    "save_encoder",
    "sinusoidal_positions",
    "start_encoder_from",
]
