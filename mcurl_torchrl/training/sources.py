"""Sources of steps: environments of this process or of workers, written to a replay buffer or given as rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.envs import EnvBase

from mcurl_torchrl.agents.explorers import Explorer
from mcurl_torchrl.checks import check_count
from mcurl_torchrl.replay import FrameReplayBuffer
from mcurl_torchrl.training.episodes import EnvironmentFailed, EpisodeStream, EpisodeStreams, step_keys
from mcurl_torchrl.training.seeds import derive_seed
from mcurl_torchrl.training.workers import CollectorWorkers

__all__ = ["InlineSource", "WorkerRollouts", "WorkerSource"]


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
            _check_alone(buffer)
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


class _CollectsByWorkers:
    """Starts workers when they are first needed, ends them, and keeps the returns of their episodes."""

    def __init__(
        self,
        make_env: Callable[[], EnvBase],
        explorer: Explorer,
        *,
        seed: int,
        num_workers: int,
        envs_per_worker: int = 1,
        fragment_len: int = 32,
        observation_key: str = "pixels",
        **options: Any,
    ) -> None:
        options |= {"num_workers": num_workers, "envs_per_worker": envs_per_worker}
        options |= {"fragment_len": fragment_len, "observation_key": observation_key}
        self._start = partial(CollectorWorkers, make_env, explorer, **options)
        self._workers: CollectorWorkers | None = None
        self._seed = seed
        self._keys = step_keys(observation_key)
        self._num_envs = envs_per_worker
        self._fragment = fragment_len * envs_per_worker
        self._ahead = (num_workers + 1) * self._fragment
        self._begun: set[int] = set()  # the workers whose first steps have come
        self._returns = torch.zeros(num_workers, envs_per_worker)  # of the episodes under way
        self._last_returns = torch.full_like(self._returns, torch.nan)

    def _started(self, done: int) -> CollectorWorkers:
        """Returns the workers. Their seed depends on ``done``, so that a resumed run starts with other episodes."""
        if self._workers is None:
            self._workers = self._start(seed=derive_seed(self._seed, "workers", done))
        return self._workers

    def _stored_part(self, worker: int, steps: TensorDictBase, *more: NestedKey) -> TensorDictBase:
        """Returns what is stored of steps ``[time]`` or ``[environments, time]``.

        A worker's first steps begin new episodes, which may show the same picture as those before a resume.
        """
        begins = torch.zeros_like(steps["next", "done"])
        if worker not in self._begun and begins.numel():
            begins[..., 0, :] = True
            self._begun.add(worker)
        return steps.select(*self._keys, *more).set("is_init", begins)

    def _note_returns(self, worker: int, steps: TensorDictBase) -> None:
        """Adds the rewards of steps ``[time]`` or ``[environments, time]`` to the returns of a worker's episodes."""
        rewards, ends = (steps["next", name].reshape(self._num_envs, -1).unbind(1) for name in ("reward", "done"))
        for reward, ended in zip(rewards, ends, strict=True):
            total = self._returns[worker] + reward
            self._last_returns[worker] = torch.where(ended, total, self._last_returns[worker])
            self._returns[worker] = torch.where(ended, 0.0, total)

    @property
    def last_return(self) -> float | None:
        """The mean over the environments of the return of the last episode that ended; None before the first end."""
        ended = self._last_returns[~self._last_returns.isnan()]
        return ended.mean().item() if len(ended) else None

    def close(self) -> None:
        """Ends the workers."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None


def _check_alone(buffer: FrameReplayBuffer) -> None:
    """Refuses a buffer of several ranks: each would get steps of its own."""
    if buffer.ranks.count > 1:
        raise ValueError(
            f"the buffer is one of {buffer.ranks.count} ranks, which share the steps of one environment; give one "
            "environment, in this process"
        )


class WorkerSource(_CollectsByWorkers):
    """Writes the steps that workers take to a replay buffer. The workers act while the loop learns.

    A worker takes ``fragment_len`` steps in each of its environments with the weights that it got before them. Then it
    waits for the next request. At every agent step, with F steps in a fragment and N workers, the following holds:

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
        **options: Any,
    ) -> None:
        super().__init__(make_env, explorer, **options)
        _check_alone(buffer)
        self.total = check_count("total_agent_steps", total_agent_steps)
        if self.total % self._num_envs:
            raise ValueError(f"total_agent_steps={self.total}; envs_per_worker={self._num_envs} must divide them")
        self.written = 0
        self._buffer = buffer

    def collect(self, step: int) -> None:
        """Writes until the buffer has had as many steps as the agent step says; starts the workers at the first call.

        Raises:
            EnvironmentFailed: if no worker is left.
        """
        workers = self._started(self.written)
        while True:
            on_the_way = len(workers.busy) * self._fragment
            wanted = (min(step + self._ahead, self.total) - self.written - on_the_way) // self._fragment
            if self.written + on_the_way < min(step, self.total):
                wanted = max(wanted, 1)
            workers.ask(workers.idle[: max(0, wanted)], tag=step)
            falls_behind = any(step - asked >= 2 * self._ahead for asked in workers.busy.values())
            if self.written >= min(step, self.total) and not falls_behind:
                return
            if (received := workers.receive()) is not None:
                self._write(*received)

    def _write(self, worker: int, steps: TensorDictBase) -> None:
        """Writes the steps of a worker, up to the last step of all, to its columns."""
        first = worker * self._num_envs
        steps = steps[..., : (self.total - self.written) // self._num_envs]
        if not steps.batch_size.numel():
            return
        steps = self._stored_part(worker, steps, ("collector", "traj_ids"))
        columns = first if self._num_envs == 1 else range(first, first + self._num_envs)
        try:
            self._buffer.extend(steps, columns=columns)
        except ValueError as error:  # a reward that is not finite, for example
            raise EnvironmentFailed(f"the steps of worker {worker} cannot be stored: {error}") from error
        self.written += steps.numel()
        self._note_returns(worker, steps)

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of steps written, and the last returns."""
        return {"written": self.written, "last_returns": self._last_returns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with that number. Workers keep no state: new episodes begin."""
        self.written, self._last_returns = state["written"], state["last_returns"]


class WorkerRollouts(_CollectsByWorkers):
    """Rollouts of workers, with the interface of :class:`~mcurl_torchrl.training.EpisodeStreams`.

    All workers take the steps of a rollout with the current weights, and the loop waits for the last of them: rollouts
    are on-policy. A rollout needs every environment, so a worker that is lost ends the run.

    Args:
        make_env (callable): makes one environment, in the worker.
        explorer (Explorer): chooses the actions; a worker has a copy of it.

    Keyword Args:
        rollout_len (int): the steps of a rollout in each environment.
        options: the other arguments of :class:`CollectorWorkers`.
    """

    def __init__(
        self, make_env: Callable[[], EnvBase], explorer: Explorer, *, rollout_len: int, **options: Any
    ) -> None:
        super().__init__(make_env, explorer, fragment_len=rollout_len, **options)
        self._taken = 0

    def rollout(self, choose: Callable[[Tensor], Tensor], length: int) -> TensorDictBase:
        """Takes steps in all environments; starts the workers at the first call.

        Args:
            choose (callable): not called: the workers act by themselves.
            length (int): the steps in each environment, at most ``rollout_len``.

        Returns:
            ``[environments, length]`` in TorchRL's layout.

        Raises:
            EnvironmentFailed: if a worker is lost.
        """
        workers = self._started(self._taken)
        workers.ask(workers.idle, tag=self._taken)
        found: dict[int, TensorDictBase] = {}
        while workers.busy and (received := workers.receive()) is not None:
            worker = received[0]
            steps = self._stored_part(worker, received[1][..., :length])
            found[worker] = steps.reshape(-1, length)
            self._note_returns(worker, steps)
        if len(found) < workers.num_workers:
            raise EnvironmentFailed(f"a rollout needs all workers; {len(found)} of {workers.num_workers} are left")
        self._taken += 1
        return torch.cat([found[worker] for worker in sorted(found)])

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of rollouts, and the last returns."""
        return {"taken": self._taken, "last_returns": self._last_returns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with that number. Workers keep no state: new episodes begin."""
        self._taken, self._last_returns = state["taken"], state["last_returns"]
