"""EpisodeStream and EpisodeStreams: one environment, or several side by side, whose state can be saved at any step."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.envs import EnvBase

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.ranks import ALONE, Ranks
from mcurl_torchrl.training.seeds import derive_seed

__all__ = ["EnvironmentFailed", "EpisodeStream", "EpisodeStreams", "ReplayedDifferently", "check_envs", "step_keys"]


class EnvironmentFailed(RuntimeError):
    """An environment raised an error, or gave a reward that is not finite; the message has the episode and the step."""


class ReplayedDifferently(RuntimeWarning):
    """An environment, given the same seed and actions, reached another observation; a new episode begins."""


class EpisodeStream:
    """Steps an environment, each episode from its own seed.

    The seed of an episode follows from the run's seed and the episode's number alone. So the state in the middle of an
    episode is that number and the actions so far: :meth:`load_state_dict` resets the environment to the same seed and
    takes the same actions again, and no simulator has to save its state.

    An environment whose episodes may be parts of one game, as with Atari's lives, has ``env.starts_new_game``: while it
    is False the next episode continues where the last one ended and gets no seed. The state is then the number of the
    game's first episode and all actions since.

    A TorchRL collector is not used here: it has no access to such state, and resets once more than its steps show.

    Args:
        env (EnvBase): one environment, without batch dimensions.

    Keyword Args:
        seed (int): the run's seed.
        observation_key (str): the key of the observation for which actions are chosen. Defaults to ``"pixels"``.
        ranks (Ranks): the ranks that learn from the steps. The first one steps its environment and sends each step to
            the others, which do not step their environments. Defaults to one process.

    Examples:
        >>> import torch
        >>> from torchrl.envs import GymEnv
        >>> stream = EpisodeStream(GymEnv("Pendulum-v1"), seed=1, observation_key="observation")
        >>> step = stream.step(lambda observation: torch.zeros(1))
    """

    def __init__(self, env: EnvBase, *, seed: int, observation_key: str = "pixels", ranks: Ranks = ALONE) -> None:
        if env.batch_size:
            raise ValueError(f"the environment has batch_size={list(env.batch_size)}; give a single one")
        self.env = env
        self.seed = seed
        self.observation_key = observation_key
        self.ranks = ranks
        self.episode = -1
        self.episode_return = 0.0
        self.last_return: float | None = None
        self.episode_length = 0
        self._first_episode = 0  # of the game: the last episode that got a seed
        self._actions: list[Tensor] = []  # since then
        self._must_start_anew = False
        self._root: TensorDictBase | None = None

    def step(self, choose: Callable[[Tensor], Tensor]) -> TensorDictBase:
        """Takes the action that ``choose`` returns for the observation; result and errors are those of :meth:`take`."""

        def take(_: Callable[[], None]) -> tuple[TensorDictBase, float | None]:
            return self.take(choose(self.observe())), self.last_return

        step, self.last_return = self.ranks.on_first(take)
        return step

    def observe(self) -> Tensor:
        """Returns the observation for the next action, after a reset if the last episode has ended.

        Raises:
            EnvironmentFailed: if the environment raises an error.
        """
        if self._root is None:
            self._begin(self.episode + 1)
        return self._observation()

    def begin(self, episode: int) -> None:
        """Starts the episode with a given number at once, from its own seed, as a new game.

        This is for several streams that share the numbers; a single stream counts its episodes itself.

        Raises:
            EnvironmentFailed: if the environment raises an error.
        """
        self._must_start_anew = True
        self._begin(episode)

    def leave(self) -> None:
        """Leaves the episode under way: the next step begins a new episode of a new game."""
        self._root, self._must_start_anew = None, True

    def _begin(self, episode: int) -> None:
        if self._starts_new_game():
            self._first_episode, self._actions, self._must_start_anew = episode, [], False
            self.env.set_seed(derive_seed(self.seed, "episode", episode))
        self.episode, self.episode_return, self.episode_length = episode, 0.0, 0
        self._root = self._guarded(self.env.reset)

    def _starts_new_game(self) -> bool:
        return self._must_start_anew or getattr(self.env, "starts_new_game", True)

    def take(self, action: Tensor) -> TensorDictBase:
        """Takes an action after :meth:`observe`; returns the step in TorchRL's layout, with its ``"next"``.

        The first step of an episode has ``"is_init"``.

        Raises:
            RuntimeError: if no episode is under way.
            EnvironmentFailed: if the environment raises an error, or gives a reward that is not finite. The next step
                begins a new episode.
        """
        if self._root is None:
            raise RuntimeError("no episode is under way; observe() begins one")
        root = self._root.set("action", action)
        self._actions.append(action.detach().cpu().clone())
        self.episode_length += 1
        step = self._guarded(lambda: _with_finite_reward(self.env.step(root)))
        self.episode_return += float(step["next", "reward"])
        over = bool(step["next", "done"])
        self._root = None if over else self.env.step_mdp(step)
        if over:
            self.last_return = self.episode_return
        # An episode may begin where another one was left, with the same picture: the replay could not tell them apart.
        return step.set("is_init", torch.ones(1, dtype=torch.bool)) if self.episode_length == 1 else step

    def _guarded(self, call: Callable[[], TensorDictBase]) -> TensorDictBase:
        try:
            return call()
        except Exception as error:
            self.leave()
            raise EnvironmentFailed(
                f"the environment failed in episode {self.episode} at step {self.episode_length}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _observation(self) -> Tensor:
        assert self._root is not None
        return self._root.get(self.observation_key)

    def state_dict(self) -> dict[str, Any]:
        """Returns the episode's number, its game's actions so far and, for comparison, the current observation."""
        under_way = self._root is not None
        needed = under_way or not self._starts_new_game()
        return {
            "seed": self.seed,
            "episode": self.episode,
            "last_return": self.last_return,
            "first_episode": self._first_episode,
            "actions": torch.stack(self._actions) if needed and self._actions else torch.empty(0),
            "observation": self._observation().cpu().clone() if under_way else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Brings the environment to the saved state.

        If the environment reaches another state, warns with :class:`ReplayedDifferently`; the next step then begins a
        new episode. So a run can also be resumed in an environment that is not deterministic.
        """
        if not self.ranks.leads:
            self.last_return = state["last_return"]
            return
        self.seed, self._first_episode = state["seed"], state["first_episode"]
        self._root, self.episode, self._actions, self._must_start_anew = None, state["episode"], [], True
        if len(state["actions"]) or state["observation"] is not None:
            try:
                reason = "" if self._comes_to(state) else "reached another state: the environment is not deterministic"
            except EnvironmentFailed as error:
                reason = f"failed: {error}"
            if reason:
                self._root, self.episode, self._must_start_anew = None, state["episode"], True
                message = f"episode {state['episode']}, given its seed and its {len(state['actions'])} actions again"
                message = f"{message}, {reason}; the run continues with a new episode"
                warnings.warn(message, ReplayedDifferently, stacklevel=2)
        self.last_return = state["last_return"]

    def _comes_to(self, state: dict[str, Any]) -> bool:
        """Takes a game's actions again; returns whether they lead to the same observation."""
        observation, self.episode = state["observation"], state["first_episode"] - 1
        for action in state["actions"]:
            self.observe()
            self.take(action)
        if observation is not None:
            self.observe()
        if self.episode != state["episode"] or self._first_episode != state["first_episode"]:
            return False
        if observation is None:  # between two episodes of one game
            return self._root is None and not self._starts_new_game()
        return self._root is not None and torch.equal(self._observation().cpu(), observation)


class EpisodeStreams:
    """Steps several environments side by side, one action for each at a time, and returns rollouts.

    Each environment is an :class:`~mcurl_torchrl.training.EpisodeStream` with a seed of its own, and begins its next
    episode when one ends, whatever the others do. So the state in the middle of all episodes is that of each stream:
    the number of its episode and the actions since its reset. :meth:`load_state_dict` takes these actions again; no
    simulator has to save its state, and training is not changed by a checkpoint.

    Args:
        envs (sequence of EnvBase): environments of one kind, each without batch dimensions.

    Keyword Args:
        seed (int): the run's seed.
        observation_key (str): the key of the observation for which actions are chosen. Defaults to ``"pixels"``.

    Raises:
        ValueError: if there is no environment, or one of them twice.

    Examples:
        >>> import torch
        >>> from torchrl.envs import GymEnv
        >>> from mcurl_torchrl.training import EpisodeStreams
        >>> envs = [GymEnv("Pendulum-v1") for _ in range(2)]
        >>> streams = EpisodeStreams(envs, seed=1, observation_key="observation")
        >>> streams.rollout(lambda observations: torch.zeros(len(observations), 1), 5).batch_size
        torch.Size([2, 5])
    """

    def __init__(self, envs: Sequence[EnvBase], *, seed: int, observation_key: str = "pixels") -> None:
        check_envs(envs)
        self.observation_key = observation_key
        self._streams = [
            EpisodeStream(env, seed=derive_seed(seed, "environment", number), observation_key=observation_key)
            for number, env in enumerate(envs)
        ]

    @property
    def last_return(self) -> float | None:
        """The mean over the environments of the return of the last episode that ended; None before the first end."""
        ended = [stream.last_return for stream in self._streams if stream.last_return is not None]
        return sum(ended) / len(ended) if ended else None

    def rollout(self, choose: Callable[[Tensor], Tensor], length: int) -> TensorDictBase:
        """Takes steps in all environments.

        Args:
            choose (callable): observations ``[environments, ...]`` to actions ``[environments, ...]``.
            length (int): the steps in each environment.

        Returns:
            ``[environments, length]`` in TorchRL's layout: the observation, ``action``, ``is_init`` (True on an
            episode's first step) and, under ``"next"``, the observation, ``reward``, ``done``, ``terminated`` and
            ``truncated``. The next observation of an episode's last step is that episode's last one.

        Raises:
            EnvironmentFailed: if an environment raises an error, or gives a reward that is not finite. The steps of
                this rollout are lost, and every environment begins a new episode with the next one.
        """
        keys, rows = step_keys(self.observation_key), []
        try:
            for _ in range(check_count("length", length)):
                actions = choose(torch.stack([stream.observe() for stream in self._streams]))
                steps = [stream.take(action) for stream, action in zip(self._streams, actions, strict=True)]
                begins = torch.tensor([[stream.episode_length == 1] for stream in self._streams])
                row: TensorDictBase = torch.stack([step.select(*keys) for step in steps])
                rows.append(row.set("is_init", begins))
        except EnvironmentFailed:
            # The other environments have taken steps that are not stored: their episodes would have a gap.
            for stream in self._streams:
                stream.leave()
            raise
        return torch.stack(rows, dim=1)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of each environment's stream."""
        return {"streams": [stream.state_dict() for stream in self._streams]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Brings each environment to its saved state; warns as :class:`EpisodeStream` does.

        Raises:
            ValueError: if the state is of another number of environments.
        """
        if len(state["streams"]) != len(self._streams):
            raise ValueError(f"the state is of {len(state['streams'])} environments; there are {len(self._streams)}")
        for stream, saved in zip(self._streams, state["streams"], strict=True):
            stream.load_state_dict(saved)


def check_envs(envs: Sequence[EnvBase]) -> None:
    """Raises a ValueError if there is no environment, or one of them twice: each plays its own episode."""
    if not envs or len({id(env) for env in envs}) < len(envs):
        raise ValueError(f"envs has {len(envs)} environments; at least one is needed, and none of them twice")


def step_keys(observation_key: str) -> list[NestedKey]:
    """Lists the keys of a step that are stored."""
    following = (observation_key, "reward", "done", "terminated", "truncated")
    return [observation_key, "action", *(("next", key) for key in following)]


def _with_finite_reward(step: TensorDictBase) -> TensorDictBase:
    # In the replay buffer, a reward that is not finite would ruin all later updates and checkpoints.
    reward = float(step["next", "reward"])
    if not math.isfinite(reward):
        raise ValueError(f"its reward is {reward}; it must be finite")
    return step
