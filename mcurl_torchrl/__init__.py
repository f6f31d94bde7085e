"""M-CURL: masked contrastive representation learning for pixel RL, as TorchRL components.

The paper: https://arxiv.org/abs/2010.07470. Importing this package loads no simulator: each is imported by what needs
it.
"""

from mcurl_torchrl.replay import (
    EpisodeSliceSampler,
    FrameReplayBuffer,
    PrioritizedTransitionSampler,
    TransitionSampler,
)
from mcurl_torchrl.transforms import StackFrames

__version__ = "0.1.0"

__all__ = [
    "EpisodeSliceSampler",
    "FrameReplayBuffer",
    "PrioritizedTransitionSampler",
    "StackFrames",
    "TransitionSampler",
]
