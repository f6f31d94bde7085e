"""InlineSource: writes the steps of environments in this process to a replay buffer, as a training loop needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torchrl.envs import EnvBase

from mcurl_torchrl.replay import FrameReplayBuffer
from mcurl_torchrl.training.episodes import EpisodeStream
from mcurl_torchrl.training.rollouts import EpisodeStreams

__all__ = ["InlineSource"]


class InlineSource:
    """Steps environments of this process and writes their steps to a replay buffer.

    One environment takes one step for each agent step. Of n environments, each takes a step at every n-th agent step,
    all in one forward pass: at agent steps 1, n + 1, 2n + 1 and so on. The loop has its updates at every agent step, so
    the number of updates per step of an environment is the same for any n.

    Args:
        envs (sequence of EnvBase): environments of one kind, each without batch dimensions.
        explore (callable): the observation of one environment to its action; observations ``[n, ...]`` of several to
            actions ``[n, ...]``.
        buffer (FrameReplayBuffer): gets the steps, with a column for each environment.

    Keyword Args:
        seed (int): the run's seed.
        observation_key (str): the key of the observation for which actions are chosen. Defaults to ``"pixels"``.

    Examples:
        >>> import torch
        >>> from torchrl.data import LazyTensorStorage
        >>> from torchrl.envs import GymEnv
        >>> from mcurl_torchrl import FrameReplayBuffer
        >>> from mcurl_torchrl.training import InlineSource
        >>> states = {"pixels_key": "observation", "frame_dtype": torch.float32}
        >>> buffer = FrameReplayBuffer(storage=LazyTensorStorage(1000, ndim=2), **states)
        >>> envs = [GymEnv("Pendulum-v1") for _ in range(4)]
        >>> source = InlineSource(
        ...     envs, lambda seen: torch.zeros(len(seen), 1), buffer, seed=1, observation_key="observation"
        ... )
        >>> for step in range(1, 7):
        ...     source.collect(step)
        >>> buffer.writer.written  # of each environment
        tensor([2, 2, 2, 2])
    """

    def __init__(
        self,
        envs: Sequence[EnvBase],
        explore: Callable[[Tensor], Tensor],
        buffer: FrameReplayBuffer,
        *,
        seed: int,
        observation_key: str = "pixels",
    ) -> None:
        self._streams: EpisodeStream | EpisodeStreams
        if len(envs) == 1:
            self._streams = EpisodeStream(envs[0], seed=seed, observation_key=observation_key, ranks=buffer.ranks)
        else:
            self._streams = EpisodeStreams(envs, seed=seed, observation_key=observation_key)
        self._num_envs = len(envs)
        self._explore = explore
        self._buffer = buffer

    @property
    def last_return(self) -> float | None:
        """The return of the last episode that ended; with several environments, the mean over them."""
        return self._streams.last_return

    def collect(self, step: int) -> None:
        """Takes the steps that the buffer must have at an agent step; call it once for each agent step, in order.

        Raises:
            EnvironmentFailed: if an environment raises an error, or gives a reward that is not finite.
        """
        if isinstance(self._streams, EpisodeStream):
            self._buffer.add(self._streams.step(self._explore))
        elif step % self._num_envs == 1:
            self._buffer.extend(self._streams.rollout(self._explore, 1))

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the environments' streams."""
        return self._streams.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Brings each environment to its saved state; warns as :class:`EpisodeStream` does."""
        self._streams.load_state_dict(state)
