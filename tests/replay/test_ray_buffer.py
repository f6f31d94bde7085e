"""FrameReplayBuffer in an actor of Ray, written by collectors that are actors, too."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage
from torchrl.envs import EnvBase, TransformedEnv

from mcurl_torchrl import FrameReplayBuffer, PrioritizedTransitionSampler
from mcurl_torchrl.transforms import WriterColumn
from tests.training.marked_env import check_slices, check_transitions, make_explorer, make_marked_env

pytestmark = pytest.mark.slow
BATCHES = 2000


@pytest.fixture(autouse=True)
def _ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import ray  # only slow tests need it to be installed

    monkeypatch.setenv("RAY_worker_niceness", "0")  # else actors get no processor on a busy machine
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def make_env(column: int) -> EnvBase:
    return TransformedEnv(make_marked_env(), WriterColumn(column))


def test_thousands_of_batches_while_collectors_write() -> None:
    buffer = FrameReplayBuffer(
        service_backend="ray",
        service_backend_options={"remote_config": {"num_cpus": 0}},
        storage=partial(LazyTensorStorage, 600, ndim=2),  # its rings wrap around many times
        num_columns=2,
        num_frames=3,
        sampler=PrioritizedTransitionSampler,
        batch_size=32,
    )
    client = buffer.client()
    policy = TensorDictModule(make_explorer(), in_keys=["pixels"], out_keys=["action"])
    collector = Collector(
        [partial(make_env, column) for column in range(2)],
        policy,
        backend="ray",
        sync=False,
        frames_per_batch=10,
        total_frames=10_000,
        replay_buffer=buffer,
        remote_configs={"num_cpus": 1},
    )
    collector.update_policy_weights_(policy)
    checked, one_step = 0, SimpleNamespace(n_step=1)
    batches = iter(collector)
    for _ in range(10):
        next(batches)
    while checked < BATCHES:
        next(batches)
        for _ in range(4):
            batch = client.sample()
            check_transitions(one_step, batch)
            check_slices(client.sample_slices(8, 4), 4)
            checked += 2
        batch["td_error"] = torch.rand(len(batch))
        client.update_tensordict_priority(batch)
    assert client.write_count > 600
    assert set(batch["index"][:, 1].tolist()) == {0, 1}
    collector.shutdown()
    buffer.shutdown()
