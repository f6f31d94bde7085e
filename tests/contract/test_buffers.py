"""TorchRL's requirements for replay buffers, tested on each of ours. A new buffer needs a line in CASES."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from torchrl.envs.transforms import Compose, Transform
from torchrl.trainers import ReplayBufferTrainer

import mcurl_torchrl.replay
from mcurl_torchrl import FrameReplayBuffer, PrioritizedTransitionSampler
from tests.contract.public_classes import public_classes
from tests.replay.episodes import make_episode, make_episodes

BATCH = 12


class AddOne(Transform):
    """Marks what passed it on the way out."""

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("action", tensordict["action"] + 1)

    _call = forward

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict


@dataclass(frozen=True)
class Case:
    """How a buffer is made, ``make(storage, **options)``, and the buffer that is written to."""

    make: Callable[..., tuple[TensorDictReplayBuffer, FrameReplayBuffer]]
    writes: bool = True


def frame_replay(storage, *, prioritized: bool = False, **options) -> tuple[FrameReplayBuffer, FrameReplayBuffer]:
    buffer = FrameReplayBuffer(
        storage=storage,
        num_frames=2,
        stacked_input=False,
        batch_size=BATCH,
        sampler=PrioritizedTransitionSampler() if prioritized else None,
        **options,
    )
    return buffer, buffer


def view(storage, *, prioritized: bool = False, **options) -> tuple[TensorDictReplayBuffer, FrameReplayBuffer]:
    generator = options.pop("generator", None)
    buffer, _ = frame_replay(storage, prioritized=prioritized, generator=generator)
    priority = {"priority": "max"} if prioritized else {}
    return buffer.slices(num_slices=4, slice_len=3, keys=["pixels", "action"], **priority, **options), buffer


CASES = {
    "FrameReplayBuffer": Case(frame_replay),
    "FrameReplayBuffer, prioritized": Case(
        lambda storage, **options: frame_replay(storage, prioritized=True, **options)
    ),
    "FrameSlices": Case(view, writes=False),
    "FrameSlices, prioritized": Case(
        lambda storage, **options: view(storage, prioritized=True, **options), writes=False
    ),
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
WRITERS = pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case.writes], ids=[n for n in CASES if CASES[n].writes]
)


def make(case: Case, capacity: int = 60, **options) -> tuple[TensorDictReplayBuffer, FrameReplayBuffer]:
    options = {"generator": torch.Generator().manual_seed(0), **options}
    return case.make(LazyTensorStorage(capacity), **options)


def make_filled(case: Case, **options) -> tuple[TensorDictReplayBuffer, FrameReplayBuffer]:
    buffer, written = make(case, **options)
    written.extend(make_episodes([9, 12, 20]))
    return buffer, written


def same(first: TensorDict, second: TensorDict) -> bool:
    return bool((first == second).all())


def test_no_buffer_is_left_out() -> None:
    public = public_classes(ReplayBuffer, mcurl_torchrl, mcurl_torchrl.replay)
    assert public == {name.split(",")[0] for name in CASES}


@EVERY
def test_it_is_a_tensordict_buffer(case: Case) -> None:
    buffer, _ = make_filled(case)
    assert isinstance(buffer, TensorDictReplayBuffer)
    batch = buffer.sample()
    assert isinstance(batch, TensorDict) and batch.shape == (BATCH,)
    assert type(buffer).__name__ in repr(buffer)


@EVERY
def test_the_length_is_that_of_the_storage(case: Case) -> None:
    buffer, written = make(case)
    assert len(buffer) == 0
    written.extend(make_episode(9))
    assert len(buffer) == len(buffer.storage) == 10
    for _ in range(10):
        written.extend(make_episode(9, first=100))
    assert len(buffer) == 60


@EVERY
def test_info(case: Case) -> None:
    buffer, _ = make_filled(case)
    batch, info = buffer.sample(return_info=True)
    assert torch.equal(batch["index"], torch.as_tensor(info["index"]))


@EVERY
def test_another_batch_size(case: Case) -> None:
    buffer, _ = make_filled(case)
    with pytest.warns(UserWarning, match="conflicting batch_sizes"):
        if case.writes:
            assert buffer.sample(6).shape == (6,)
        else:  # a view has the size that it was made with
            with pytest.raises(ValueError, match="batch_size=6 does not fit slice_len=3, num_slices=4"):
                buffer.sample(6)


@EVERY
def test_it_can_be_iterated(case: Case) -> None:
    buffer, _ = make_filled(case)
    for number, batch in enumerate(buffer):
        assert batch.shape == (BATCH,)
        if number == 2:
            break
    assert buffer.next().shape == (BATCH,)


@EVERY
def test_can_sample(case: Case) -> None:
    buffer, written = make(case)
    assert not buffer.can_sample()
    written.extend(make_episode(9))
    assert buffer.can_sample()


@EVERY
def test_transforms(case: Case) -> None:
    plain, _ = make_filled(case)
    given, _ = make_filled(case, transform=AddOne())
    appended, _ = make_filled(case)
    appended.append_transform(AddOne())
    inserted, _ = make_filled(case, transform=Compose(AddOne()))
    inserted.insert_transform(0, AddOne())
    expected = plain.sample()
    for buffer, times in ((given, 1), (appended, 1), (inserted, 2)):
        assert torch.equal(buffer.sample()["action"], expected["action"] + times)


@EVERY
def test_prefetching_gives_the_same(case: Case) -> None:
    plain, _ = make_filled(case)
    ahead, _ = make_filled(case, prefetch=1)
    for _ in range(4):
        assert same(plain.sample(), ahead.sample())
    ahead.shutdown()


@EVERY
def test_pickling_and_copying(case: Case) -> None:
    buffer, _ = make_filled(case)
    for other in (pickle.loads(pickle.dumps(buffer)), copy.deepcopy(buffer)):
        assert len(other) == len(buffer)
        assert same(other.sample(), make_filled(case)[0].sample())


@EVERY
def test_statistics(case: Case) -> None:
    buffer, _ = make_filled(case)
    stats = buffer.stats()
    assert stats["size"] == len(buffer) and stats["capacity"] == 60


@EVERY
def test_a_generator_that_is_set_later(case: Case) -> None:
    buffer, _ = make_filled(case)
    found = []
    for _ in range(2):
        buffer.set_rng(torch.Generator().manual_seed(4))
        found.append(buffer.sample())
    assert same(*found)


@EVERY
def test_memory_and_disk(case: Case) -> None:
    found = []
    for storage in (LazyTensorStorage, LazyMemmapStorage):
        buffer, written = case.make(storage(60), generator=torch.Generator().manual_seed(0))
        written.extend(make_episodes([9, 12, 20]))
        found.append(buffer.sample())
    assert same(*found)


@EVERY
def test_the_arguments_of_torchrls_methods_are_taken(case: Case) -> None:
    buffer, _ = make(case)
    for name in ("extend", "add", "sample", "empty", "update_priority", "update_tensordict_priority", "set_sampler"):
        theirs = inspect.signature(getattr(TensorDictReplayBuffer, name)).parameters
        ours = inspect.signature(getattr(type(buffer), name)).parameters
        kinds = {parameter.kind for parameter in ours.values()}
        assert set(theirs) <= set(ours) or inspect.Parameter.VAR_KEYWORD in kinds, name


@WRITERS
def test_add_and_extend_write_the_same(case: Case) -> None:
    (one, _), (other, _) = make(case), make(case)
    index = one.extend(make_episodes([4, 7]))
    indices = [other.add(step) for step in make_episodes([4, 7]).unbind(0)]
    assert torch.equal(index, torch.cat(indices))
    assert one.write_count == other.write_count == 11
    assert (one.storage[:] == other.storage[:]).all()


@WRITERS
@pytest.mark.parametrize("form", ["dumps", "state_dict"])
def test_saving(case: Case, form: str, tmp_path) -> None:
    saved, _ = make_filled(case)
    saved.sample()
    loaded, _ = make(case, generator=torch.Generator().manual_seed(9))
    if form == "dumps":
        saved.dumps(tmp_path)
        loaded.loads(tmp_path)
    else:
        loaded.load_state_dict(saved.state_dict())
    for _ in range(3):
        assert same(saved.sample(), loaded.sample())
    assert loaded.write_count == saved.write_count


@WRITERS
def test_emptying(case: Case) -> None:
    buffer, _ = make_filled(case)
    buffer.empty()
    assert len(buffer) == 0 and buffer.write_count == 0
    buffer.extend(make_episode(9, first=50))
    assert (buffer.sample()["action"] >= 50).all()


@WRITERS
def test_under_torchrls_trainer_hooks(case: Case) -> None:
    buffer, _ = make(case)
    hook = ReplayBufferTrainer(buffer, batch_size=BATCH)
    hook.extend(make_episodes([9, 12]))
    batch = hook.sample(TensorDict())
    assert batch.shape == (BATCH,)
    batch["td_error"] = torch.rand(BATCH, 1)
    hook.update_priority(batch)


@WRITERS
def test_counts_of_numpy(case: Case) -> None:
    buffer, _ = case.make(LazyTensorStorage(np.int64(60)), generator=torch.Generator().manual_seed(0))
    buffer.extend(make_episode(9))
    with pytest.warns(UserWarning, match="conflicting batch_sizes"):
        assert buffer.sample(np.int64(5)).shape == (5,)
