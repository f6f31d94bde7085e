"""EpisodeStreams: several environments stepped side by side; their state can be saved between two rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.envs import EnvBase

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.training.episodes import EnvironmentFailed, EpisodeStream
from mcurl_torchrl.training.seeds import derive_seed

__all__ = ["EpisodeStreams"]


def step_keys(observation_key: str) -> list[NestedKey]:
    """Lists the keys of a step that are stored."""
    following = (observation_key, "reward", "done", "terminated", "truncated")
    return [observation_key, "action", *(("next", key) for key in following)]


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
        if not envs or len({id(env) for env in envs}) < len(envs):
            raise ValueError(f"envs has {len(envs)} environments; at least one is needed, and none of them twice")
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
            ``[environments, length]`` in TorchRL's layout: the observation, ``action`` and, under ``"next"``, the
            observation, ``reward``, ``done``, ``terminated`` and ``truncated``. The next observation of an episode's
            last step is that episode's last one.

        Raises:
            EnvironmentFailed: if an environment raises an error, or gives a reward that is not finite. The steps of
                this rollout are lost, and every environment begins a new episode with the next one.
        """
        keys, rows = step_keys(self.observation_key), []
        try:
            for _ in range(check_count("length", length)):
                actions = choose(torch.stack([stream.observe() for stream in self._streams]))
                steps = [stream.take(action) for stream, action in zip(self._streams, actions, strict=True)]
                rows.append(torch.stack([step.select(*keys) for step in steps]))
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
