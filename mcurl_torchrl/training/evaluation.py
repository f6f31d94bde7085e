"""Evaluation: whole episodes in an environment of their own, that leave no trace in training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torchrl.envs import EnvBase

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.training import tables
from mcurl_torchrl.training.episodes import EpisodeStream

__all__ = ["Evaluation", "evaluate", "read_evaluations"]


@dataclass(frozen=True)
class Evaluation:
    """What came out of an evaluation: the return and length of each episode, and the frames of the first."""

    returns: list[float]
    lengths: list[int]
    frames: list[Tensor] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """The mean return."""
        return sum(self.returns) / len(self.returns)


def evaluate(
    act: Callable[[Tensor], Tensor],
    env: EnvBase,
    *,
    episodes: int,
    seed: int,
    num_frames: int = 1,
    record: bool = False,
    pixels_key: str = "pixels",
    on_episode: Callable[[int, float], None] | None = None,
) -> Evaluation:
    """Plays whole episodes, each from a seed of its own.

    With an ``act`` that draws no random numbers, nobody else's are drawn: not torch's, numpy's or Python's global ones,
    and not those of a training environment.

    Args:
        act (callable): an observation to an action.
        env (EnvBase): an environment that nobody else uses.

    Keyword Args:
        episodes (int): how many.
        seed (int): all episodes' seeds follow from it.
        num_frames (int): how many frames an observation stacks, to cut the newest out for a video. Defaults to 1.
        record (bool): whether to keep the frames of the first episode. Defaults to False.
        pixels_key (str): the observation. Defaults to ``"pixels"``.
        on_episode (callable, optional): called with the number of episodes so far and the last one's return.
    """
    stream = EpisodeStream(env, seed=seed, pixels_key=pixels_key)
    returns: list[float] = []
    lengths: list[int] = []
    frames: list[Tensor] = []

    @torch.no_grad()
    def choose(observation: Tensor) -> Tensor:
        if record and not returns:
            frames.append(observation[-(len(observation) // num_frames) :].cpu().clone())
        return act(observation)

    for _ in range(check_count("episodes", episodes)):
        over = False
        while not over:
            over = bool(stream.step(choose)["next", "done"])
        returns.append(stream.episode_return)
        lengths.append(stream.episode_length)
        if on_episode is not None:
            on_episode(len(returns), returns[-1])
    return Evaluation(returns, lengths, frames)


def read_evaluations(path: str | Path) -> list[tuple[int, list[float]]]:
    """Reads an ``eval.csv``: environment steps and the returns of all episodes, evaluation by evaluation."""
    points: dict[int, list[float]] = defaultdict(list)
    for row in tables.read(path):
        points[row["env_steps"]].append(row["return"])
    return sorted(points.items())
