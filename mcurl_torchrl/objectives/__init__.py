"""Losses as TorchRL modules; their maths in functional.py."""

from mcurl_torchrl.objectives.categorical_dqn import CategoricalDQNLoss, project_distribution
from mcurl_torchrl.objectives.contrastive import ContrastiveLoss
from mcurl_torchrl.objectives.expected_dqn import ExpectedDQNLoss
from mcurl_torchrl.objectives.functional import info_nce, masked_info_nce, reduce_masked
from mcurl_torchrl.objectives.latent_sac import LatentSAC
from mcurl_torchrl.objectives.masked_contrastive import MaskedContrastiveLoss

__all__ = [
    "CategoricalDQNLoss",
    "ContrastiveLoss",
    "ExpectedDQNLoss",
    "LatentSAC",
    "MaskedContrastiveLoss",
    "info_nce",
    "masked_info_nce",
    "project_distribution",
    "reduce_masked",
]
