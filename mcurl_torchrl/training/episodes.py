"""EpisodeStream: an environment stepped one episode after another, which can be saved and taken up at any step."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from mcurl_torchrl.training.seeds import derive_seed

__all__ = ["EnvironmentFailed", "EpisodeStream", "ReplayedDifferently"]


class EnvironmentFailed(RuntimeError):
    """An environment raised an error or gave a reward that is no number; says in which episode and at which step."""


class ReplayedDifferently(RuntimeWarning):
    """An environment, given the same seed and actions, did not come to where it was; a new episode begins."""


class EpisodeStream:
    """Steps an environment, each episode from a seed of its own.

    The seed of an episode follows from the run's seed and the episode's number alone. So the state in the middle of an
    episode is that number and the actions so far: :meth:`load_state_dict` resets the environment to the same seed and
    takes the same actions again, and no simulator has to save its state.

    A TorchRL collector keeps such state to itself, and resets once more than it shows; this is why it is not used here.

    Args:
        env (EnvBase): one environment, without batch dimensions.

    Keyword Args:
        seed (int): the run's.
        pixels_key (str): the observation, given to who acts, and compared after taking up an episode again. Defaults to
            ``"pixels"``.

    Examples:
        >>> import torch
        >>> from torchrl.envs import GymEnv  # doctest: +SKIP
        >>> stream = EpisodeStream(GymEnv("Pendulum-v1"), seed=1, pixels_key="observation")  # doctest: +SKIP
        >>> step = stream.step(lambda observation: torch.zeros(1))  # doctest: +SKIP
    """

    def __init__(self, env: EnvBase, *, seed: int, pixels_key: str = "pixels") -> None:
        if env.batch_size:
            raise ValueError(f"the environment has batch_size={list(env.batch_size)}; give a single one")
        self.env = env
        self.seed = seed
        self.pixels_key = pixels_key
        self.episode = -1
        self.episode_return = 0.0
        self.last_return: float | None = None
        self._actions: list[Tensor] = []
        self._root: TensorDictBase | None = None

    def step(self, choose: Callable[[Tensor], Tensor]) -> TensorDictBase:
        """Takes one step, after a reset where an episode has ended.

        Args:
            choose (callable): the observation to an action.

        Returns:
            The step as TorchRL lays it out: observation, action and what came ``"next"``.

        Raises:
            EnvironmentFailed: if the environment raises an error, or gives a reward that is not finite. The next step
                begins a new episode.
        """
        if self._root is None:
            self._begin(self.episode + 1)
        return self._take(choose(self._observation()))

    @property
    def episode_length(self) -> int:
        """How many steps the current episode has, or the last one if none is under way."""
        return len(self._actions)

    def _begin(self, episode: int) -> None:
        self.episode, self.episode_return, self._actions = episode, 0.0, []
        self.env.set_seed(derive_seed(self.seed, "episode", episode))
        self._root = self._guarded(self.env.reset)

    def _take(self, action: Tensor) -> TensorDictBase:
        assert self._root is not None
        root = self._root.set("action", action)
        self._actions.append(action.detach().cpu().clone())
        step = self._guarded(lambda: _with_finite_reward(self.env.step(root)))
        self.episode_return += float(step["next", "reward"])
        over = bool(step["next", "done"])
        self._root = None if over else self.env.step_mdp(step)
        if over:
            self.last_return = self.episode_return
        return step

    def _guarded(self, call: Callable[[], TensorDictBase]) -> TensorDictBase:
        try:
            return call()
        except Exception as error:
            self._root = None  # who goes on, goes on with a new episode
            raise EnvironmentFailed(
                f"the environment failed in episode {self.episode} at step {len(self._actions)}: "
                f"{type(error).__name__}: {error}"
            ) from error

    # -- saving --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the episode's number, its actions so far and, to compare, the observation it has come to."""
        under_way = self._root is not None
        return {
            "seed": self.seed,
            "episode": self.episode,
            "last_return": self.last_return,
            "actions": torch.stack(self._actions) if under_way and self._actions else torch.empty(0),
            "observation": self._observation().cpu().clone() if under_way else None,
        }

    def _comes_to(self, state: dict[str, Any]) -> bool:
        """Takes an episode's actions again; tells whether that leads to the same observation."""
        self._begin(state["episode"])
        for action in state["actions"]:
            if bool(self._take(action)["next", "done"]):
                return False
        return torch.equal(self._observation().cpu(), state["observation"])

    def _observation(self) -> Tensor:
        assert self._root is not None
        return self._root.get(self.pixels_key)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Brings the environment to where it was.

        Warns with :class:`ReplayedDifferently` if it comes to something else, and stands before the next episode then:
        an environment that is not deterministic is no reason to lose a run.
        """
        self.seed, self.last_return = state["seed"], state["last_return"]
        self._root, self.episode, self._actions = None, state["episode"], []
        if state["observation"] is None:
            return
        try:
            otherwise = "" if self._comes_to(state) else "went another way: this environment is not deterministic"
        except EnvironmentFailed as error:
            otherwise = f"did not get there: {error}"
        if otherwise:
            self._root = None
            warnings.warn(
                f"episode {state['episode']}, given its seed and its {len(state['actions'])} actions again, "
                f"{otherwise}; the run continues with a new episode",
                ReplayedDifferently,
                stacklevel=2,
            )


def _with_finite_reward(step: TensorDictBase) -> TensorDictBase:
    # In the replay buffer it would spoil every later update, and every checkpoint.
    reward = float(step["next", "reward"])
    if not math.isfinite(reward):
        raise ValueError(f"its reward is {reward}; it must be finite")
    return step
