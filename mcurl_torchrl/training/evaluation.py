"""Evaluation: whole episodes in an environment of their own, that leave no trace in training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torchrl.data import Categorical, OneHot, TensorSpec
from torchrl.envs import EnvBase

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.training import tables
from mcurl_torchrl.training.episodes import EpisodeStream
from mcurl_torchrl.training.seeds import derive_seed

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
    envs: EnvBase | Sequence[EnvBase],
    *,
    episodes: int,
    seed: int,
    num_frames: int = 1,
    record: bool = False,
    pixels_key: str = "pixels",
    epsilon: float = 0.0,
    on_episode: Callable[[int, float], None] | None = None,
) -> Evaluation:
    """Plays whole episodes, each from a seed of its own, as many at a time as there are environments.

    An environment whose episode has ended begins the next one that nobody has begun. What happens in an episode follows
    from its number and from ``act`` alone: more environments are faster, where ``act`` is, and give the same returns as
    one. (A network may round a row of a large batch otherwise than a single one, and then choose otherwise.)

    With an ``act`` that draws no random numbers, nobody else's are drawn: not torch's, numpy's or Python's global ones,
    and not those of a training environment.

    Args:
        act (callable): observations ``[n, ...]`` to actions ``[n, ...]``, row by row. There are as many as episodes
            under way: at most one for each environment, fewer when no episode is left to begin.
        envs (EnvBase or sequence of EnvBase): one or several alike, which nobody else uses, without batch dimensions.

    Keyword Args:
        episodes (int): how many.
        seed (int): all episodes' seeds follow from it.
        num_frames (int): how many frames an observation stacks, to cut the newest out for a video. Defaults to 1.
        record (bool): whether to keep the frames of the first episode. Defaults to False.
        pixels_key (str): the observation. Defaults to ``"pixels"``.
        epsilon (float): the probability of a uniformly random action in the place of ``act``'s, by random numbers of
            the episode's own; for environments with :class:`~torchrl.data.Categorical` or
            :class:`~torchrl.data.OneHot` actions. Defaults to 0.
        on_episode (callable, optional): called as episodes end, with the number of those so far and the last one's
            return.

    Returns:
        Returns and lengths by the episodes' numbers, not in the order in which they ended.

    Raises:
        EnvironmentFailed: if an environment raises an error, or gives a reward that is not finite.
        ValueError: if there is no environment or one of them twice, if ``act`` gives actions of another shape, or if
            ``epsilon`` is no probability or the actions are of another kind.

    Examples:
        >>> import torch
        >>> from torchrl.envs import GymEnv
        >>> from mcurl_torchrl.training import evaluate
        >>> envs = [GymEnv("Pendulum-v1") for _ in range(2)]
        >>> still = lambda observations: torch.zeros(len(observations), 1)
        >>> evaluate(still, envs, episodes=3, seed=1, pixels_key="observation").lengths
        [200, 200, 200]
    """
    envs = _distinct([envs] if isinstance(envs, EnvBase) else list(envs))
    streams = [EpisodeStream(env, seed=seed, pixels_key=pixels_key) for env in envs]
    spec = envs[0].action_spec
    explore = _Exploration(spec, epsilon, seed)
    left = iter(range(check_count("episodes", episodes)))
    ended: dict[int, tuple[float, int]] = {}
    frames: list[Tensor] = []

    playing = streams[:episodes]
    for stream in playing:
        stream.begin(next(left))
    while playing:
        observations = torch.stack([stream.observe() for stream in playing])
        with torch.no_grad():
            actions = act(observations)
        if actions.shape != (len(playing), *spec.shape):
            wanted, got = [len(playing), *spec.shape], list(actions.shape)
            raise ValueError(f"act gives actions {got} for {len(playing)} observations; they must be {wanted}")
        for stream, observation, action in zip(playing, observations, actions, strict=True):
            if record and stream.episode == 0:
                frames.append(observation[-(len(observation) // num_frames) :].cpu().clone())
            step = stream.take(explore(action, stream.episode))
            if step["next", "done"]:
                ended[stream.episode] = stream.episode_return, stream.episode_length
                if on_episode is not None:
                    on_episode(len(ended), stream.episode_return)
                if (following := next(left, None)) is not None:
                    stream.begin(following)
        playing = [stream for stream in playing if stream.episode not in ended]
    returns, lengths = zip(*(ended[episode] for episode in range(episodes)), strict=True)
    return Evaluation(list(returns), list(lengths), frames)


def _distinct(envs: list[EnvBase]) -> list[EnvBase]:
    if not envs:
        raise ValueError("envs is empty; an evaluation needs an environment")
    if len({id(env) for env in envs}) < len(envs):
        raise ValueError("envs has the same environment twice; each plays an episode of its own")
    return envs


class _Exploration:
    """Puts a random action in the place of another now and then, by random numbers of each episode's own."""

    def __init__(self, spec: TensorSpec, epsilon: float, seed: int) -> None:
        if not 0 <= epsilon <= 1:
            raise ValueError(f"epsilon={epsilon}; it must be between 0 and 1")
        if epsilon > 0 and type(spec) not in (Categorical, OneHot):
            raise ValueError(
                f"epsilon={epsilon} with actions of the kind {type(spec).__name__}; random actions are for Categorical "
                "and OneHot ones"
            )
        self._spec = spec
        self._epsilon = epsilon
        self._seed = seed
        self._chances: dict[int, np.random.Generator] = {}

    def __call__(self, action: Tensor, episode: int) -> Tensor:
        if self._epsilon == 0:
            return action
        if episode not in self._chances:
            self._chances[episode] = np.random.default_rng(derive_seed(self._seed, "random actions", episode))
        chance = self._chances[episode]
        return self._draw(chance).to(action.device) if chance.random() < self._epsilon else action

    def _draw(self, chance: np.random.Generator) -> Tensor:
        one_hot = isinstance(self._spec, OneHot)
        shape = self._spec.shape[:-1] if one_hot else self._spec.shape
        index = torch.as_tensor(chance.integers(self._spec.space.n, size=tuple(shape)))
        return (functional.one_hot(index, self._spec.space.n) if one_hot else index).to(self._spec.dtype)


def read_evaluations(path: str | Path) -> list[tuple[int, list[float]]]:
    """Reads an ``eval.csv``: environment steps and the returns of all episodes, evaluation by evaluation."""
    points: dict[int, list[float]] = defaultdict(list)
    for row in tables.read(path):
        points[row["env_steps"]].append(row["return"])
    return sorted(points.items())
