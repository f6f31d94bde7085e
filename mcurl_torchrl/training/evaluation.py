"""Evaluation: whole episodes in environments of their own, without an effect on training."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torchrl.data import Categorical, OneHot, TensorSpec
from torchrl.envs import EnvBase

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.training import tables
from mcurl_torchrl.training.episodes import EpisodeStream, check_envs
from mcurl_torchrl.training.seeds import derive_seed
from mcurl_torchrl.training.videos import side_by_side

__all__ = ["Evaluation", "EvaluationStopped", "evaluate", "read_evaluations"]

_FILMED_STEPS = 2_000  # 200 MB of Atari screens; its longest games have 27,000 steps


class EvaluationStopped(RuntimeError):
    """An evaluation was stopped before its end."""


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation: the return and length of each episode, and a film of the first.

    Args:
        returns (list of float), lengths (list of int): of each episode.
        frames (list of Tensor): the newest frame of the agent's observation at each step of the first episode.
        screens (list of array): the pictures that the environment renders at these steps; empty if it renders none.
        steps_per_second (float, optional): the number of steps in a second of the environment's own time.
    """

    returns: list[float]
    lengths: list[int]
    frames: list[Tensor] = field(default_factory=list)
    screens: list[np.ndarray] = field(default_factory=list)
    steps_per_second: float | None = None

    def film(self) -> Iterable[Any]:
        """Returns the pictures of a video: the screen beside the agent's frame, or the agent's frame alone."""
        return side_by_side(self.screens, self.frames) if self.screens else self.frames

    @property
    def mean(self) -> float:
        """The mean return."""
        return sum(self.returns) / len(self.returns)


def evaluate(
    act: Callable[..., Tensor],
    envs: EnvBase | Sequence[EnvBase],
    *,
    episodes: int,
    seed: int,
    num_frames: int = 1,
    record: bool = False,
    observation_key: str = "pixels",
    epsilon: float = 0.0,
    sample: bool = False,
    on_episode: Callable[[int, float], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Evaluation:
    """Plays whole episodes, each from its own seed, as many at a time as there are environments.

    An environment whose episode has ended begins the next of the remaining episodes. An episode depends only on its
    number and on ``act``: several environments give the same returns as one, and are faster if ``act`` is faster for
    batches. (A network may round a row of a large batch differently from a single row, and then choose another action.)

    If ``act`` draws no random numbers of its own, the global generators of torch, numpy and Python stay as they are.

    Args:
        act (callable): observations ``[n, ...]`` to actions ``[n, ...]``, row by row; n is the number of episodes under
            way, at most one for each environment.
        envs (EnvBase or sequence of EnvBase): one or several of the same kind, for this evaluation only, without batch
            dimensions.

    Keyword Args:
        episodes (int): the number of episodes.
        seed (int): the seed from which the seeds of all episodes are derived.
        num_frames (int): how many frames an observation stacks; a video shows the newest. Defaults to 1.
        record (bool): whether to keep the frames of the first episode, 2,000 at most, and the screens beside them,
            where the environment has ``rendered_screen()``. Defaults to False.
        observation_key (str): the observation that ``act`` gets. Defaults to ``"pixels"``.
        epsilon (float): the probability of a uniformly random action instead of the action of ``act``; each episode has
            its own generator. For :class:`~torchrl.data.Categorical` and :class:`~torchrl.data.OneHot` actions.
            Defaults to 0.
        sample (bool): whether ``act`` draws its actions. It then gets observations one at a time, ``[1, ...]``, and as
            ``generator`` the episode's own :class:`torch.Generator`. Defaults to False.
        on_episode (callable, optional): called when an episode ends, with the number of ended episodes and its return.
        stop (callable, optional): called before each step; the evaluation stops if it returns True.

    Returns:
        Returns and lengths by the numbers of the episodes, not in the order in which they ended.

    Raises:
        EnvironmentFailed: if an environment raises an error, or gives a reward that is not finite.
        EvaluationStopped: if ``stop`` returns True.
        ValueError: if there is no environment or one of them twice, if ``act`` gives actions of another shape, or if
            ``epsilon`` is not a probability or the actions are of another kind.

    Examples:
        >>> import torch
        >>> from torchrl.envs import GymEnv
        >>> from mcurl_torchrl.training import evaluate
        >>> envs = [GymEnv("Pendulum-v1") for _ in range(2)]
        >>> still = lambda observations: torch.zeros(len(observations), 1)
        >>> evaluate(still, envs, episodes=3, seed=1, observation_key="observation").lengths
        [200, 200, 200]
    """
    envs = [envs] if isinstance(envs, EnvBase) else list(envs)
    check_envs(envs)
    streams = [EpisodeStream(env, seed=seed, observation_key=observation_key) for env in envs]
    spec = envs[0].action_spec
    explore = _make_exploration(spec, epsilon, seed)
    choose = _make_sampling(act, seed) if sample else lambda observations, _: act(observations)
    left = iter(range(check_count("episodes", episodes)))
    ended: dict[int, tuple[float, int]] = {}
    frames: list[Tensor] = []
    screens: list[np.ndarray] = []

    playing = streams[:episodes]
    for stream in playing:
        stream.begin(next(left))
    while playing:
        if stop is not None and stop():
            raise EvaluationStopped(f"stopped after {len(ended)} of {episodes} episodes")
        observations = torch.stack([stream.observe() for stream in playing])
        with torch.no_grad():
            actions = choose(observations, [stream.episode for stream in playing])
        if actions.shape != (len(playing), *spec.shape):
            wanted, got = [len(playing), *spec.shape], list(actions.shape)
            raise ValueError(f"act gives actions {got} for {len(playing)} observations; they must be {wanted}")
        for stream, observation, action in zip(playing, observations, actions, strict=True):
            if record and stream.episode == 0 and len(frames) < _FILMED_STEPS:
                frames.append(observation[-(len(observation) // num_frames) :].cpu().clone())
                if (screen := _draw(stream.env)) is not None:
                    screens.append(screen)
            step = stream.take(explore(action, stream.episode))
            if step["next", "done"]:
                ended[stream.episode] = stream.episode_return, stream.episode_length
                if on_episode is not None:
                    on_episode(len(ended), stream.episode_return)
                if (following := next(left, None)) is not None:
                    stream.begin(following)
        playing = [stream for stream in playing if stream.episode not in ended]
    returns, lengths = zip(*(ended[episode] for episode in range(episodes)), strict=True)
    speed = getattr(envs[0], "agent_steps_per_second", None)
    return Evaluation(list(returns), list(lengths), frames, screens, speed)


def _draw(env: EnvBase) -> np.ndarray | None:
    """Returns the picture that an environment renders, or None if it renders none."""
    draw = getattr(env, "rendered_screen", None)
    return None if draw is None else draw()


def _make_sampling(act: Callable[..., Tensor], seed: int) -> Callable[[Tensor, Sequence[int]], Tensor]:
    """Returns a function that draws an action for each observation with the generator of its episode."""

    @functools.cache
    def generator_of(episode: int) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(seed, "drawn actions", episode))

    def draw(observations: Tensor, episodes: Sequence[int]) -> Tensor:
        drawn = [
            act(observation[None], generator=generator_of(episode))
            for observation, episode in zip(observations, episodes, strict=True)
        ]
        return torch.cat(drawn)

    return draw


def _make_exploration(spec: TensorSpec, epsilon: float, seed: int) -> Callable[[Tensor, int], Tensor]:
    """Returns a function that replaces an action by a random one with probability ``epsilon``."""
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon={epsilon}; it must be between 0 and 1")
    if epsilon > 0 and type(spec) not in (Categorical, OneHot):
        kind = type(spec).__name__
        raise ValueError(f"epsilon={epsilon} with actions of the kind {kind}; it is for Categorical and OneHot ones")
    one_hot = isinstance(spec, OneHot)
    shape = tuple(spec.shape[:-1] if one_hot else spec.shape)

    @functools.cache
    def generator_of(episode: int) -> np.random.Generator:
        return np.random.default_rng(derive_seed(seed, "random actions", episode))

    def explore(action: Tensor, episode: int) -> Tensor:
        if epsilon == 0 or generator_of(episode).random() >= epsilon:
            return action
        index = torch.as_tensor(generator_of(episode).integers(spec.space.n, size=shape))
        return (functional.one_hot(index, spec.space.n) if one_hot else index).to(action.device, spec.dtype)

    return explore


def read_evaluations(path: str | Path) -> list[tuple[int, list[float]]]:
    """Reads an ``eval.csv``: for each evaluation, the environment steps and the returns of its episodes."""
    points: dict[int, list[float]] = defaultdict(list)
    for row in tables.read(path):
        points[row["env_steps"]].append(row["return"])
    return sorted(points.items())
