"""Small made-up episodes in TorchRL's layout, in which every frame carries its own number."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage

from mcurl_torchrl import FrameReplayBuffer


def frames_of(numbers: torch.Tensor) -> torch.Tensor:
    """Writes numbers into the pixels of frames ``[*, 1, 2, 2]``."""
    shifts = torch.tensor([0, 8, 16, 24])
    return (numbers[..., None] >> shifts & 255).to(torch.uint8).unflatten(-1, (1, 2, 2))


def numbers_in(pixels: torch.Tensor) -> torch.Tensor:
    """Reads the numbers out of stacks ``[*, K, 2, 2]``, giving ``[*, K]``."""
    return (pixels.flatten(-2).long() << torch.tensor([0, 8, 16, 24])).sum(-1)


def make_episode(length: int, first: int = 0, *, terminated: bool = False, ended: bool = True) -> TensorDict:
    """Makes an episode of ``length`` steps; frames are numbered from ``first``, rewards are their frames' numbers."""
    numbers = torch.arange(first, first + length + 1)
    last = torch.zeros(length, 1, dtype=torch.bool)
    last[-1] = ended
    never = torch.zeros_like(last)
    return TensorDict(
        {
            "pixels": frames_of(numbers[:-1]),
            "action": numbers[:-1, None].float(),
            "next": {
                "pixels": frames_of(numbers[1:]),
                "reward": numbers[:-1, None].float(),
                "terminated": last if terminated else never,
                "truncated": never if terminated else last,
            },
        },
        batch_size=[length],
    )


def make_episodes(lengths: list[int]) -> TensorDict:
    """Makes episodes one after the other; no frame number is used twice."""
    first, episodes = 0, []
    for length in lengths:
        episodes.append(make_episode(length, first))
        first += length + 1
    return torch.cat(episodes)


def make_buffer(capacity: int = 1000, *, ndim: int = 1, **kwargs) -> FrameReplayBuffer:
    """Makes a buffer for such episodes."""
    kwargs = {"stacked_input": False, "batch_size": 8, "generator": torch.Generator().manual_seed(0), **kwargs}
    return FrameReplayBuffer(storage=LazyTensorStorage(capacity, ndim=ndim), **kwargs)
