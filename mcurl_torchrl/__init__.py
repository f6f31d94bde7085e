"""M-CURL: masked contrastive representation learning for pixel RL, as TorchRL components.

The paper: https://arxiv.org/abs/2010.07470. Importing this package loads no simulator: a simulator is imported when an
environment needs it.
"""

from mcurl_torchrl.import_order import check_import_order, import_torchrl

check_import_order()  # before the first import of TorchRL, which may end the process
import_torchrl()

from mcurl_torchrl.envs import make_atari_env, make_dmc_env, make_pixel_env
from mcurl_torchrl.modules import AtariEncoder, ContextTransformer, PixelEncoder
from mcurl_torchrl.objectives import (
    AuxiliaryTask,
    CategoricalDQNLoss,
    ContrastiveLoss,
    ContrastiveTask,
    LatentSAC,
    MaskedContrastiveLoss,
    MaskedContrastiveTask,
    inverse_sqrt_warmup,
    joint_parameters,
)
from mcurl_torchrl.replay import (
    EpisodeSliceSampler,
    FrameReplayBuffer,
    PrioritizedTransitionSampler,
    TransitionSampler,
)
from mcurl_torchrl.training import load_policy
from mcurl_torchrl.transforms import CenterCrop, MaskObservations, RandomCrop, RandomShift, StackFrames

__version__ = "0.1.0"

__all__ = [
    "AtariEncoder",
    "AuxiliaryTask",
    "CategoricalDQNLoss",
    "CenterCrop",
    "ContextTransformer",
    "ContrastiveLoss",
    "ContrastiveTask",
    "EpisodeSliceSampler",
    "FrameReplayBuffer",
    "LatentSAC",
    "MaskObservations",
    "MaskedContrastiveLoss",
    "MaskedContrastiveTask",
    "PixelEncoder",
    "PrioritizedTransitionSampler",
    "RandomCrop",
    "RandomShift",
    "StackFrames",
    "TransitionSampler",
    "inverse_sqrt_warmup",
    "joint_parameters",
    "load_policy",
    "make_atari_env",
    "make_dmc_env",
    "make_pixel_env",
]
