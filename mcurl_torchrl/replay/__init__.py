"""One frame buffer and its samplers: transitions, slices, priorities."""

from mcurl_torchrl.replay.frame_buffer import FrameReplayBuffer
from mcurl_torchrl.replay.frame_view import FrameSlices
from mcurl_torchrl.replay.slice_sampler import EpisodeSliceSampler
from mcurl_torchrl.replay.stacking import stack_frames
from mcurl_torchrl.replay.sum_tree import SumTree
from mcurl_torchrl.replay.transition_sampler import PrioritizedTransitionSampler, TransitionSampler

__all__ = [
    "EpisodeSliceSampler",
    "FrameReplayBuffer",
    "FrameSlices",
    "PrioritizedTransitionSampler",
    "SumTree",
    "TransitionSampler",
    "stack_frames",
]
