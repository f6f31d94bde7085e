"""Sources: they write the steps of environments to a replay buffer, in this process or from workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from mcurl_torchrl.agents.explorers import Explorer
from mcurl_torchrl.checks import check_count
from mcurl_torchrl.replay import FrameReplayBuffer
from mcurl_torchrl.training.episodes import EnvironmentFailed, EpisodeStream
from mcurl_torchrl.training.rollouts import EpisodeStreams
from mcurl_torchrl.training.seeds import derive_seed
from mcurl_torchrl.training.workers import CollectorWorkers, Fragment

__all__ = ["InlineSource", "WorkerSource"]

_FLAGS = ("done", "terminated", "truncated")


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
        observation_key (str): the observation that the actions are chosen by. Defaults to ``"pixels"``.

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
            self._streams = EpisodeStream(envs[0], seed=seed, observation_key=observation_key)
        else:
            self._streams = EpisodeStreams(envs, seed=seed, observation_key=observation_key)
        self._num_envs = len(envs)
        self._explore = explore
        self._buffer = buffer

    @property
    def last_return(self) -> float | None:
        """The return of the last episode that ended; of several environments, the mean over them."""
        return self._streams.last_return

    def collect(self, step: int) -> None:
        """Takes the steps that the buffer has to have at an agent step; each agent step calls this once, in turn.

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


class WorkerSource:
    """Writes the steps that workers take to a replay buffer. The workers act while the loop learns.

    A worker takes ``fragment_len`` steps in each of its environments with the weights that it got before them. Then it
    waits for the next question. What holds at every agent step, with F steps in a fragment and N workers:

    - The buffer has had at least as many steps as the agent step says, and at most (N + 1) F more.
    - The weights of a step are at most 2 (N + 1) F agent steps older than the step's entry in the buffer: the loop
      waits for a worker that falls behind.
    - Exactly ``total_agent_steps`` are written in all, each once. Each environment has a column, so no sample mixes
      them.
    - A worker that dies, or does not answer within ``timeout_seconds``, is given up with a warning. Its last fragment
      is lost as a whole, its episode ends as truncated, and the others go on.

    Args:
        make_env (callable): makes one environment, in the worker.
        explorer (Explorer): chooses the actions; a worker has a copy of it.
        buffer (FrameReplayBuffer): gets the steps, with a column for each environment.

    Keyword Args:
        total_agent_steps (int): how many steps to write in all.
        options: the other arguments of :class:`CollectorWorkers`.
    """

    def __init__(
        self,
        make_env: Callable[[], EnvBase],
        explorer: Explorer,
        buffer: FrameReplayBuffer,
        *,
        total_agent_steps: int,
        seed: int,
        num_workers: int,
        envs_per_worker: int = 1,
        fragment_len: int = 32,
        observation_key: str = "pixels",
        **options: Any,
    ) -> None:
        self.total = check_count("total_agent_steps", total_agent_steps)
        self.written = 0
        self._buffer = buffer
        self._observation_key = observation_key
        self._num_envs = envs_per_worker
        self._fragment = fragment_len * envs_per_worker
        self._ahead = (num_workers + 1) * self._fragment
        self._returns = torch.zeros(num_workers, envs_per_worker)
        self._last_returns = torch.full_like(self._returns, torch.nan)

        def start() -> CollectorWorkers:
            # Other episodes than before it was stopped, if the run was resumed.
            return CollectorWorkers(
                make_env,
                explorer,
                seed=derive_seed(seed, "workers", self.written),
                num_workers=num_workers,
                envs_per_worker=envs_per_worker,
                fragment_len=fragment_len,
                observation_key=observation_key,
                **options,
            )

        self._start = start
        self._workers: CollectorWorkers | None = None

    @property
    def last_return(self) -> float | None:
        """The mean over the environments of the return of the last episode that ended; None before the first end."""
        ended = self._last_returns[~self._last_returns.isnan()]
        return ended.mean().item() if len(ended) else None

    def collect(self, step: int) -> None:
        """Writes until the buffer has had as many steps as the agent step says; starts the workers at the first call.

        Raises:
            EnvironmentFailed: if no worker is left.
        """
        if self._workers is None:
            self._workers = self._start()
        workers = self._workers
        while True:
            on_the_way = len(workers.busy) * self._fragment
            wanted = (min(step + self._ahead, self.total) - self.written - on_the_way) // self._fragment
            if self.written + on_the_way < min(step, self.total):
                wanted = max(wanted, 1)
            workers.ask(workers.idle[: max(0, wanted)], tag=step)
            falls_behind = any(step - asked >= 2 * self._ahead for asked in workers.busy.values())
            if self.written >= min(step, self.total) and not falls_behind:
                return
            if (fragment := workers.receive()) is not None:
                self._write(fragment)

    def _write(self, fragment: Fragment) -> None:
        """Writes a fragment, up to the last step of all, to the columns of its worker."""
        key, first = self._observation_key, fragment.worker * self._num_envs
        kept = [key, "action", ("next", key), ("next", "reward"), *(("next", flag) for flag in _FLAGS)]
        steps = fragment.steps.select(*kept, ("collector", "traj_ids"))
        steps = steps[..., : (self.total - self.written) // self._num_envs]
        if not steps.numel():
            return
        columns = first if self._num_envs == 1 else range(first, first + self._num_envs)
        try:
            self._buffer.extend(steps, columns=columns)
        except ValueError as error:  # a reward that is not finite, for example
            raise EnvironmentFailed(f"the steps of worker {fragment.worker} cannot be stored: {error}") from error
        self.written += steps.numel()
        self._note_returns(fragment.worker, steps)

    def _note_returns(self, worker: int, steps: TensorDictBase) -> None:
        rewards, ends = (steps["next", name].reshape(self._num_envs, -1).unbind(1) for name in ("reward", "done"))
        for reward, ended in zip(rewards, ends, strict=True):
            total = self._returns[worker] + reward
            self._last_returns[worker] = torch.where(ended, total, self._last_returns[worker])
            self._returns[worker] = torch.where(ended, 0.0, total)

    def close(self) -> None:
        """Ends the workers."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of steps written, and the last returns."""
        return {"written": self.written, "last_returns": self._last_returns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with that number. Workers keep no state: new episodes begin."""
        self.written, self._last_returns = state["written"], state["last_returns"]
