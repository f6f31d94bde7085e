"""Workers in other processes: what reaches the buffer, with which weights, and what happens when they fail."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torchrl.data import LazyTensorStorage

from mcurl_torchrl import FrameReplayBuffer, PrioritizedTransitionSampler
from mcurl_torchrl.training import CollectorWorkers, EnvironmentFailed, WorkerLost, WorkerSource
from tests.training.marked_env import (
    check_slices,
    check_transitions,
    make_explorer,
    make_marked_env,
    written_steps,
)
from tests.warm_start import run_python

FRAGMENT = 8


def make_buffer(num_columns: int, *, ring: int = 1200, prioritized: bool = False, n_step: int = 1) -> FrameReplayBuffer:
    return FrameReplayBuffer(
        storage=LazyTensorStorage(ring * num_columns, ndim=2),
        num_columns=num_columns,
        num_frames=3,
        n_step=n_step,
        sampler=PrioritizedTransitionSampler() if prioritized else None,
        batch_size=64,
    )


Make = Callable[..., tuple[WorkerSource, FrameReplayBuffer]]


@pytest.fixture
def make_source(tmp_path: Path) -> Iterator[Make]:
    """Makes sources of two workers in processes, and ends them."""
    made: list[WorkerSource] = []

    def make(total: int = 400, *, envs_per_worker: int = 1, seconds: float = 0.0, **options):
        buffer = make_buffer(
            2 * envs_per_worker, **{k: options.pop(k) for k in ("prioritized", "n_step") & options.keys()}
        )
        explorer = options.pop("explorer", None) or make_explorer()
        source = WorkerSource(
            partial(make_marked_env, tmp_path, seconds=seconds),
            explorer,
            buffer,
            total_agent_steps=total,
            **{"backend": "process", "seed": 1, "num_workers": 2, "fragment_len": FRAGMENT} | options,
            envs_per_worker=envs_per_worker,
        )
        made.append(source)
        return source, buffer

    yield make
    for source in made:
        source.close()


def processes(source: WorkerSource) -> list[int]:
    return [worker.collector.procs[0].pid for worker in source._workers._workers.values()]


@pytest.mark.parametrize("envs_per_worker", [1, 3])
def test_what_is_in_the_buffer_at_each_step(make_source: Make, envs_per_worker: int) -> None:
    total, fragment = 300, FRAGMENT * envs_per_worker
    explorer, threads = make_explorer(), torch.get_num_threads()
    source, buffer = make_source(total, envs_per_worker=envs_per_worker, explorer=explorer, prioritized=True)
    extend, ages, begins = buffer.extend, [], []

    def watch(steps, **options):
        begins.append(steps["is_init"].reshape(envs_per_worker, -1))
        ages.append(step - int(steps["action"].min()))
        return extend(steps, **options)

    buffer.extend = watch
    slices = buffer.slices(num_slices=8, slice_len=4)
    for step in range(1, total + 1):
        explorer.policy.version.data.fill_(step)
        source.collect(step)
        assert step <= source.written <= min(step + 3 * fragment, total)
        if step > 60:
            batch = buffer.sample()
            check_transitions(buffer, batch)
            check_slices(slices.sample(), 4)
            batch["td_error"] = torch.rand(64)
            buffer.update_tensordict_priority(batch)
    assert source.written == total
    steps = written_steps(buffer)
    assert len(steps) == len(set(steps)) == total
    assert len({(process, number) for process, number, _, _ in steps}) == 2 * envs_per_worker
    assert os.getpid() not in {process for process, *_ in steps}
    assert 0 < max(ages) <= 6 * fragment
    # The first steps of each worker begin episodes: in a resumed run, their first picture may be the last one stored.
    assert sum(int(begin[:, 0].sum()) for begin in begins) == 2 * envs_per_worker
    assert not any(begin[:, 1:].any() for begin in begins)
    assert source.last_return is not None
    assert torch.get_num_threads() == threads


def test_a_total_that_the_environments_of_a_worker_do_not_divide(make_source: Make) -> None:
    with pytest.raises(ValueError, match="total_agent_steps=10; envs_per_worker=4 must divide them"):
        make_source(10, envs_per_worker=4)


def test_a_worker_that_falls_behind_is_waited_for(make_source: Make) -> None:
    explorer = make_explorer()
    source, buffer = make_source(200, explorer=explorer)
    source.collect(1)
    slow = processes(source)[0]
    os.kill(slow, signal.SIGSTOP)
    threading.Timer(2.0, os.kill, (slow, signal.SIGCONT)).start()  # long after the other one could have done it all
    for step in range(2, 201):
        source.collect(step)
        assert all(step - asked < 6 * FRAGMENT for asked in source._workers.busy.values())
    assert source.written == 200
    assert slow in {process for process, *_ in written_steps(buffer)}


def test_a_killed_worker_loses_its_fragment_and_no_more(make_source: Make) -> None:
    source, buffer = make_source(400, seconds=0.002, n_step=3)
    source.collect(30)
    killed = processes(source)[1]
    os.kill(killed, signal.SIGKILL)
    with pytest.warns(WorkerLost, match="worker 1 of 2 failed.*; 1 go on"):
        for step in range(31, 401):
            source.collect(step)
            if step % 10 == 0:
                check_transitions(buffer, buffer.sample())
    assert source.written == 400
    steps = written_steps(buffer)
    assert len(steps) == len(set(steps)) == 400
    theirs = [step for process, _, *step in steps if process == killed]
    assert len(theirs) % FRAGMENT == 0 and 0 < len(theirs) < 200
    # What was written of it has no gap: episodes from the first on, each from step 0 on.
    episodes: dict[int, list[int]] = {}
    for episode, step in theirs:
        episodes.setdefault(episode, []).append(step)
    assert all(numbers == list(range(len(numbers))) for numbers in episodes.values())


def test_a_worker_that_hangs_is_given_up(make_source: Make, tmp_path: Path) -> None:
    source, buffer = make_source(400)
    source.collect(20)
    hung = processes(source)[0]
    (tmp_path / f"hang-{hung}").touch()
    step = 20
    while not (tmp_path / f"hangs-{hung}").exists():
        source.collect(step := step + 1)
    source._workers._workers[0].asked_at -= 1000.0  # as if it had hung for so long
    with pytest.warns(WorkerLost, match="worker 0 of 2 gave no steps for 300 s; 1 go on"):
        for later in range(step + 1, 401):
            source.collect(later)
    assert source.written == 400
    check_transitions(buffer, buffer.sample())
    while alive(hung):
        time.sleep(0.1)


def test_the_last_worker_that_fails_ends_it(make_source: Make, tmp_path: Path) -> None:
    source, buffer = make_source(400)
    source.collect(20)
    first, second = processes(source)
    (tmp_path / f"fail-{first}").touch()
    with pytest.warns(WorkerLost, match="worker 0 of 2 failed: .*; 1 go on"):
        for step in range(21, 100):
            source.collect(step)
    (tmp_path / f"fail-{second}").touch()
    with pytest.warns(WorkerLost), pytest.raises(EnvironmentFailed, match="no worker is left of 2.*failed: "):
        for step in range(100, 401):
            source.collect(step)
    check_transitions(buffer, buffer.sample())


def test_a_reward_that_is_not_finite(make_source: Make, tmp_path: Path) -> None:
    source, buffer = make_source(400)
    source.collect(20)
    (tmp_path / "lie-all").touch()
    with pytest.raises(
        EnvironmentFailed, match="steps of worker . cannot be stored: .*reward.* must be finite; got nan"
    ):
        for step in range(21, 401):
            source.collect(step)
    check_transitions(buffer, buffer.sample())


def broken() -> None:
    raise ArithmeticError("no such simulator")


def test_workers_that_do_not_start() -> None:
    with pytest.warns(WorkerLost, match="did not start"), pytest.raises(EnvironmentFailed, match="no such simulator"):
        CollectorWorkers(broken, make_explorer(), backend="process", num_workers=2, seed=1)


def test_a_resumed_source_goes_on_counting(make_source: Make) -> None:
    first, buffer = make_source(100)
    for step in range(1, 51):
        first.collect(step)
    state, before = first.state_dict(), written_steps(buffer)
    first.close()
    second, _ = make_source(100)
    second._buffer = buffer
    second.load_state_dict(state)
    for step in range(51, 101):
        second.collect(step)
    steps = written_steps(buffer)
    assert second.written == 100 == len(set(steps)) == len(steps)
    assert set(before) < set(steps)
    check_transitions(buffer, buffer.sample())


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


ORPHANS = """
import os, signal
from tests.training.test_workers import *
buffer = make_buffer(2)
source = WorkerSource(make_marked_env, make_explorer(), buffer, total_agent_steps=100, backend="process", seed=1,
    num_workers=2, fragment_len=FRAGMENT)
source.collect(1)
print(*processes(source), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_with_a_main_process_that_is_killed() -> None:
    ended = run_python("-c", ORPHANS, cwd=Path(__file__).parents[2])
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    workers = [int(word) for word in ended.stdout.split()[-2:]]
    while any(alive(worker) for worker in workers):  # the suite's time limit ends a wait in vain
        time.sleep(0.1)
