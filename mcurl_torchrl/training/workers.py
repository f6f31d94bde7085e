"""CollectorWorkers: environments in other processes or in actors of Ray, each with a copy of the policy.

Each worker is a :class:`torchrl.collectors.Collector` of its own, with ``backend="process"`` or ``"ray"``. TorchRL ends
a collector of several workers as a whole when one of them dies; with one collector each, the others go on. A thread
waits for each of them, because TorchRL waits without a time limit.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cloudpickle
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor
from torchrl.collectors import Collector
from torchrl.envs import EnvBase, SerialEnv

from mcurl_torchrl.agents.explorers import Explorer
from mcurl_torchrl.checks import check_choice, check_count, check_number, needs
from mcurl_torchrl.training.episodes import EnvironmentFailed
from mcurl_torchrl.training.seeds import derive_seed, seed_everything

__all__ = ["CollectorWorkers", "WorkerLost"]

BACKENDS = ("process", "ray")
START_SECONDS = 600.0  # the longest time in which a worker may make its environments
CLOSE_SECONDS = 10.0
LOOK_SECONDS = 0.5  # how often to check the workers while none of them answers


class WorkerLost(RuntimeWarning):
    """A worker ended, or returned no steps for too long; the others continue."""


class CollectorWorkers:
    """Workers that take steps on request, each with the weights that came with the request.

    Args:
        make_env (callable): makes one environment, in the worker.
        explorer (Explorer): chooses the actions; a worker has a copy of it.

    Keyword Args:
        backend (str): ``"process"``, processes of this machine; or ``"ray"``, actors of the Ray cluster that this
            process is connected to, or of a new one on this machine.
        num_workers (int): the number of workers.
        envs_per_worker (int): the environments of each worker, which act in one forward pass. Defaults to 1.
        fragment_len (int): the steps that each environment takes for one request. Defaults to 32.
        seed (int): the seed of the environments and of the actions.
        observation_key (str): the key of the observation for which actions are chosen. Defaults to ``"pixels"``.
        timeout_seconds (float): a worker that does not answer within this time is given up. Defaults to 300.

    Raises:
        ValueError: on another backend and on numbers out of range.
        EnvironmentFailed: if no worker starts, with the reason of the last.
        ImportError: if Ray is asked for and not installed.
    """

    def __init__(
        self,
        make_env: Callable[[], EnvBase],
        explorer: Explorer,
        *,
        backend: str,
        num_workers: int,
        envs_per_worker: int = 1,
        fragment_len: int = 32,
        seed: int,
        observation_key: str = "pixels",
        timeout_seconds: float = 300.0,
    ) -> None:
        self.backend = check_choice("backend", backend, BACKENDS)
        self.num_workers = check_count("num_workers", num_workers)
        self.envs_per_worker = check_count("envs_per_worker", envs_per_worker)
        self.fragment_len = check_count("fragment_len", fragment_len)
        self.timeout_seconds = check_number("timeout_seconds", timeout_seconds, above=0)
        self._policy = partial(TensorDictModule, in_keys=[observation_key], out_keys=["action"])
        self._explorer = self._policy(explorer)
        self._results: queue.SimpleQueue[tuple[_Worker, Any]] = queue.SimpleQueue()
        self._last_reason = ""
        threads = torch.get_num_threads()
        if backend == "ray":
            _connect_to_ray(num_workers)
        with _warm_start() if backend == "process" else contextlib.nullcontext():
            self._workers = {number: self._start(number, make_env, explorer, seed) for number in range(num_workers)}
            self._wait_for_start()
        torch.set_num_threads(threads)  # TorchRL changes it

    def _start(self, number: int, make_env: Callable[[], EnvBase], explorer: Explorer, seed: int) -> _Worker:
        make = partial(
            _make_worker_env,
            cloudpickle.dumps(make_env),
            num_envs=self.envs_per_worker,
            seed=derive_seed(seed, "worker", number),
            paths=list(sys.path),
        )
        frames = self.fragment_len * self.envs_per_worker
        options: dict[str, Any] = {
            "backend": self.backend,
            "sync": True,  # a fragment has the weights that were sent before it
            "frames_per_batch": frames,
            "total_frames": frames * 2**32,  # without end; -1 would end a collector of Ray at once
        }
        if self.backend == "process":
            options |= {"num_threads": torch.get_num_threads()}
        else:
            options |= {"remote_configs": {"num_cpus": 1, "max_restarts": 0}}
        make_collector = partial(Collector, [make], self._policy(explorer.for_worker()), **options)
        return _Worker(number, make_collector, self._results)

    def _wait_for_start(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        for worker in list(self._workers.values()):
            worker.started.wait(max(0.0, deadline - time.monotonic()))
            if worker.collector is None:
                reason = f"{START_SECONDS:g} s were too short" if worker.error is None else _in_a_line(worker.error)
                self._lose(worker, f"did not start: {reason}")
        if not self._workers:
            raise EnvironmentFailed(f"none of {self.num_workers} workers started; the last: {self._last_reason}")

    # -- asking --------------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> list[int]:
        """The workers that have nothing to do."""
        return [number for number, worker in self._workers.items() if worker.asked_at is None]

    @property
    def busy(self) -> dict[int, int]:
        """The workers that were asked and have not answered, each with the tag of the request."""
        return {number: worker.tag for number, worker in self._workers.items() if worker.asked_at is not None}

    def ask(self, numbers: list[int], tag: int) -> None:
        """Asks workers for a fragment each, with the current weights.

        Args:
            numbers (list of int): the workers.
            tag (int): a number that :attr:`busy` shows until they answer.
        """
        if not numbers:
            return
        weights = TensorDict.from_module(self._explorer).data.apply(_plain_copy)
        for number in numbers:
            self._workers[number].ask(weights, tag)

    def receive(self) -> tuple[int, TensorDictBase] | None:
        """Waits for a fragment of any worker; each fragment is returned once.

        A worker that fails or does not answer in time is given up, with a :class:`WorkerLost` warning.

        Returns:
            The worker and its steps in TorchRL's layout, ``[time]``, or ``[environments, time]`` if a worker has
            several environments; None if no worker that was asked is left.

        Raises:
            EnvironmentFailed: if no worker is left at all.
        """
        while waiting := [worker for worker in self._workers.values() if worker.asked_at is not None]:
            try:
                worker, result = self._results.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                self._lose_dead_or_late(waiting)
                continue
            if self._workers.get(worker.number) is not worker:
                continue  # it was given up before: another worker may have written its column since
            if isinstance(result, BaseException):
                self._lose(worker, f"failed: {_in_a_line(result)}")
                continue
            worker.asked_at = None
            return worker.number, result
        if not self._workers:
            raise EnvironmentFailed(f"no worker is left of {self.num_workers}; the last one {self._last_reason}")
        return None

    def _lose_dead_or_late(self, waiting: list[_Worker]) -> None:
        # TorchRL does not notice the end of a process while it sends weights to it.
        for worker in waiting:
            assert worker.asked_at is not None
            if (code := worker.exit_code()) is not None:
                self._lose(worker, f"failed: its process ended with exit code {code} (its error is above)")
            elif time.monotonic() - worker.asked_at > self.timeout_seconds:
                self._lose(worker, f"gave no steps for {self.timeout_seconds:g} s")

    def _lose(self, worker: _Worker, reason: str) -> None:
        del self._workers[worker.number]
        worker.kill()
        self._last_reason = f"(worker {worker.number}) {reason}"
        warnings.warn(
            f"worker {worker.number} of {self.num_workers} {reason}; {len(self._workers)} go on",
            WorkerLost,
            stacklevel=2,
        )

    def close(self) -> None:
        """Ends all workers."""
        threads, workers = torch.get_num_threads(), list(self._workers.values())
        self._workers = {}
        for worker in workers:
            worker.end()
        deadline = time.monotonic() + CLOSE_SECONDS
        for worker in workers:
            worker.thread.join(max(0.0, deadline - time.monotonic()))
        for worker in workers:
            worker.kill()
        torch.set_num_threads(threads)  # TorchRL changes it


class _Worker:
    """One collector, and the thread that waits for it."""

    def __init__(self, number: int, make: Callable[[], Any], results: queue.SimpleQueue[tuple[_Worker, Any]]) -> None:
        self.number = number
        self.collector: Any = None
        self.error: BaseException | None = None
        self.started = threading.Event()
        self.asked_at: float | None = None
        self.tag = 0
        self._questions: queue.SimpleQueue[TensorDictBase | None] = queue.SimpleQueue()
        # A daemon: a thread that waits for a hung worker must not keep the program from ending.
        self.thread = threading.Thread(target=self._run, args=(make, results), name=f"worker {number}", daemon=True)
        self.thread.start()

    def ask(self, weights: TensorDictBase, tag: int) -> None:
        self.asked_at, self.tag = time.monotonic(), tag
        self._questions.put(weights)

    def end(self) -> None:
        self._forget_actors_without_ray()
        self._questions.put(None)

    def _run(self, make: Callable[[], Any], results: queue.SimpleQueue[tuple[_Worker, Any]]) -> None:
        try:
            self.collector = make()
            self.started.set()
            batches: Iterator[TensorDictBase] = iter(self.collector)
            while (weights := self._questions.get()) is not None:
                self.collector.update_policy_weights_(weights)
                results.put((self, next(batches)[0]))  # TorchRL stacks the fragments of all workers; here there is one
            self.collector.shutdown(timeout=CLOSE_SECONDS / 2)
        except BaseException as error:
            self.error = error
            self.started.set()
            results.put((self, error))

    def exit_code(self) -> int | None:
        """Returns the exit code of a process that has ended; None while it lives, and for an actor."""
        return next((process.exitcode for process in getattr(self.collector, "procs", ())), None)

    def kill(self) -> None:
        """Ends the worker at once, if it still lives."""
        for process in getattr(self.collector, "procs", ()):
            with contextlib.suppress(ValueError):  # it is closed already
                process.kill()
        self._forget_actors_without_ray()
        if hasattr(self.collector, "stop_remote_collectors"):
            # This drops the actors. Otherwise they would be killed when Python ends, which starts Ray again and hangs.
            with contextlib.suppress(Exception):  # their node may be gone
                self.collector.stop_remote_collectors()

    def _forget_actors_without_ray(self) -> None:
        """Drops the actors if Ray was shut down: they are gone, and killing one of them would start Ray again."""
        if actors := getattr(self.collector, "remote_collectors", None):
            import ray

            if not ray.is_initialized():
                actors.clear()


def _plain_copy(weight: Tensor) -> Tensor:
    """Returns a contiguous copy on the CPU: Ray sends no other layout, and convolutions may be channels-last."""
    return weight.cpu().clone(memory_format=torch.contiguous_format)


def _in_a_line(error: BaseException) -> str:
    """Returns the first line of an error's message; errors of workers have whole tracebacks after it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


# -- starting ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _warm_start() -> Iterator[None]:
    """Starts worker processes from one process that has imported the libraries, which would take seconds in each."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_forkserver_preload([__name__])
    multiprocessing.set_start_method("forkserver", force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)


def _connect_to_ray(num_workers: int) -> None:
    with needs("backend='ray' needs Ray", "cluster"):
        import ray
    # A thread that still waits for an actor after ray.shutdown() would start Ray again. RAY_ENABLE_AUTO_CONNECT=0 has
    # the same effect if it is set before TorchRL imports Ray.
    ray._private.auto_init_hook.enable_auto_connect = False
    if not ray.is_initialized():
        # RAY_ADDRESS names a cluster to connect to. Otherwise a new one starts here: an actor counts as a core.
        cores = None if "RAY_ADDRESS" in os.environ else max(num_workers, os.cpu_count() or 1)
        ray.init(include_dashboard=False, log_to_driver=False, num_cpus=cores)


def _make_worker_env(make_env: bytes, *, num_envs: int, seed: int, paths: list[str]) -> EnvBase:
    """Makes the environments of a worker; called in the worker."""
    # A signal to the whole group of processes is handled by the main process: it saves, and ends its workers.
    with contextlib.suppress(ValueError):  # an actor of Ray does not run in its main thread
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    sys.path.extend(path for path in paths if path not in sys.path)
    torch.set_num_threads(1)
    seed_everything(seed)
    # TorchRL waits for a new worker without a time limit: one that hangs has to end itself.
    faulthandler.dump_traceback_later(START_SECONDS, exit=True)
    try:
        make = cloudpickle.loads(make_env)
        env = make() if num_envs == 1 else SerialEnv(num_envs, make)
        env.set_seed(seed)
    finally:
        faulthandler.cancel_dump_traceback_later()
    return env
