"""The frame replay buffer and its samplers: transitions, slices, priorities."""

from mcurl_torchrl.replay.buffer import FrameReplayBuffer
from mcurl_torchrl.replay.copying import copy_to
from mcurl_torchrl.replay.datasets import atari_dqn_episodes, vd4rl_episodes
from mcurl_torchrl.replay.opening import open_replay
from mcurl_torchrl.replay.prioritized_slices import PrioritizedEpisodeSliceSampler
from mcurl_torchrl.replay.slice_sampler import EpisodeSliceSampler
from mcurl_torchrl.replay.slices import FrameSlices
from mcurl_torchrl.replay.sum_tree import SumTree
from mcurl_torchrl.replay.transition_sampler import PrioritizedTransitionSampler, TransitionSampler
from mcurl_torchrl.stacking import stack_frames

__all__ = [
    "EpisodeSliceSampler",
    "FrameReplayBuffer",
    "FrameSlices",
    "PrioritizedEpisodeSliceSampler",
    "PrioritizedTransitionSampler",
    "SumTree",
    "TransitionSampler",
    "atari_dqn_episodes",
    "copy_to",
    "open_replay",
    "stack_frames",
    "vd4rl_episodes",
]
