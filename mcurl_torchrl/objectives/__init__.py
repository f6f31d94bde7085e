"""Losses as TorchRL modules, the auxiliary tasks made of them, and their math in functional.py."""

from mcurl_torchrl.objectives.auxiliary_task import AuxiliaryTask, NoTask
from mcurl_torchrl.objectives.categorical_dqn import CategoricalDQNLoss, project_distribution
from mcurl_torchrl.objectives.contrastive import ContrastiveLoss
from mcurl_torchrl.objectives.contrastive_task import ContrastiveTask
from mcurl_torchrl.objectives.expected_dqn import ExpectedDQNLoss
from mcurl_torchrl.objectives.functional import info_nce, masked_info_nce, reduce_masked
from mcurl_torchrl.objectives.latent_ppo import LatentPPO
from mcurl_torchrl.objectives.latent_sac import LatentSAC
from mcurl_torchrl.objectives.masked_contrastive import MaskedContrastiveLoss
from mcurl_torchrl.objectives.masked_contrastive_task import MaskedContrastiveTask
from mcurl_torchrl.objectives.parameters import joint_parameters
from mcurl_torchrl.objectives.schedules import inverse_sqrt_warmup, linear_schedule

__all__ = [
    "AuxiliaryTask",
    "CategoricalDQNLoss",
    "ContrastiveLoss",
    "ContrastiveTask",
    "ExpectedDQNLoss",
    "LatentPPO",
    "LatentSAC",
    "MaskedContrastiveLoss",
    "MaskedContrastiveTask",
    "NoTask",
    "info_nce",
    "inverse_sqrt_warmup",
    "joint_parameters",
    "linear_schedule",
    "masked_info_nce",
    "project_distribution",
    "reduce_masked",
]
