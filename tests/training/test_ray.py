"""Workers that are actors of Ray: what reaches the buffer, and what happens when actors and nodes die."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from functools import partial
from types import ModuleType

import numpy as np
import pytest

from mcurl_torchrl.training import EnvironmentFailed, WorkerLost, WorkerSource
from tests.training.marked_env import check_slices, check_transitions, make_explorer, make_marked_env, written_steps
from tests.training.test_workers import FRAGMENT, make_buffer

pytestmark = pytest.mark.slow


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Ray, which only slow tests need to be installed."""
    import ray

    monkeypatch.setenv("RAY_worker_niceness", "0")  # else actors get no processor on a busy machine
    yield ray
    ray.shutdown()


def make_source(buffer, total: int = 400, **options) -> WorkerSource:
    options = {"explorer": make_explorer(), "fragment_len": FRAGMENT, "num_workers": 2, **options}
    return WorkerSource(
        partial(make_marked_env),
        options.pop("explorer"),
        buffer,
        total_agent_steps=total,
        seed=1,
        backend="ray",
        **options,
    )


def test_what_is_in_the_buffer_at_each_step_and_after_an_actor_was_killed(ray: ModuleType) -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    explorer, buffer, ages = make_explorer(), make_buffer(4, prioritized=True), []
    source = make_source(buffer, explorer=explorer, envs_per_worker=2)
    extend, slices = buffer.extend, buffer.slices(num_slices=8, slice_len=4)

    def watch(steps, **options):
        ages.append(step - int(steps["action"].min()))
        return extend(steps, **options)

    buffer.extend = watch

    def go_on(first: int, last: int) -> None:
        nonlocal step
        for step in range(first, last + 1):
            explorer.policy.version.data.fill_(step)
            source.collect(step)
            assert step <= source.written <= min(step + 3 * 2 * FRAGMENT, 400)
            if step > 100:
                check_transitions(buffer, buffer.sample())
                check_slices(slices.sample(), 4)

    step = 0
    go_on(1, 200)
    actors = {process for process, *_ in written_steps(buffer)}
    assert len(actors) == 2 and os.getpid() not in actors
    os.kill(min(actors), signal.SIGKILL)
    # Ray says that the actor died, or gloo, by which weights are sent, that the connection is closed.
    with pytest.warns(WorkerLost, match="of 2 failed: .*; 1 go on"):
        go_on(201, 400)
    steps = written_steps(buffer)
    assert source.written == 400 == len(steps) == len(set(steps))
    assert 0 < max(ages) <= 6 * 2 * FRAGMENT
    source.close()


def test_the_object_store_is_full(ray: ModuleType) -> None:
    """Ray puts what has no room on the disk: nothing is lost."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
    buffer = make_buffer(2, ring=2500)
    source = make_source(buffer, total=2000, fragment_len=250)  # fragments too large to be sent without the store
    source.collect(1)
    kept = [ray.put(np.zeros(8 * 2**20, np.uint8)) for _ in range(20)]  # twice the store
    for step in range(2, 2001):
        source.collect(step)
    steps = written_steps(buffer)
    assert source.written == 2000 == len(steps) == len(set(steps)) and len(kept) == 20
    check_transitions(buffer, buffer.sample())
    source.close()


def test_a_node_is_lost_and_then_the_other_one(ray: ModuleType) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    buffer = make_buffer(2, ring=20_000)
    source = make_source(buffer, total=20_000)  # far more than is collected before Ray notices that a node is gone
    step = 0
    try:
        while step < 100:
            source.collect(step := step + 1)
        cluster.remove_node(nodes[0], allow_graceful=False)
        with pytest.warns(WorkerLost, match="; 1 go on") as seen:
            while not any(warning.category is WorkerLost for warning in seen):
                source.collect(step := step + 1)
                check_transitions(buffer, buffer.sample())
        for _ in range(100):
            source.collect(step := step + 1)
            check_transitions(buffer, buffer.sample())
        steps = written_steps(buffer)
        assert len(steps) == len(set(steps)) == source.written
        cluster.remove_node(nodes[1], allow_graceful=False)
        with pytest.warns(WorkerLost), pytest.raises(EnvironmentFailed, match="no worker is left of 2"):
            while True:
                source.collect(step := step + 1)
        check_transitions(buffer, buffer.sample())
    finally:
        source.close()
        ray.shutdown()
        cluster.shutdown()


def test_it_ends_where_ray_was_shut_down_first(ray: ModuleType) -> None:
    """TorchRL's collectors kill their actors when Python ends, which would start Ray again."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    source = make_source(make_buffer(2))
    source.collect(1)
    ray.shutdown()
    source.close()
    del source
    gc.collect()
    assert not ray.is_initialized()
