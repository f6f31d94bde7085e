"""TorchRL's requirements for samplers, tested on each of ours. A new sampler needs a line in CASES."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import Sampler

import mcurl_torchrl.replay
from mcurl_torchrl import EpisodeSliceSampler, FrameReplayBuffer, PrioritizedTransitionSampler
from mcurl_torchrl.replay import PrioritizedEpisodeSliceSampler, TransitionSampler
from mcurl_torchrl.replay.slices import FrameSliceSampler, PrioritizedFrameSliceSampler
from tests.contract.public_classes import public_classes
from tests.replay.episodes import make_episodes
from tests.replay.test_slice_sampler import steps

BATCH = 24


@dataclass(frozen=True)
class Case:
    """How a buffer with the sampler is made, ``make(storage, generator)``, and what the sampler does."""

    make: Callable[..., TensorDictReplayBuffer]
    alone: bool = False  # whether it serves TorchRL's own buffers
    prioritized: bool = False


def in_any_buffer(sampler: Callable[[], Sampler]) -> Callable[..., TensorDictReplayBuffer]:
    def make(storage, generator=None, **options) -> TensorDictReplayBuffer:
        return TensorDictReplayBuffer(
            storage=storage, sampler=sampler(), batch_size=BATCH, generator=generator, **options
        )

    return make


def in_a_frame_replay(sampler: Callable[[], Sampler], **slices) -> Callable[..., TensorDictReplayBuffer]:
    def make(storage, generator=None, **options) -> TensorDictReplayBuffer:
        buffer = FrameReplayBuffer(
            storage=storage,
            sampler=sampler(),
            batch_size=BATCH,
            num_frames=2,
            stacked_input=False,
            generator=generator,
            **({} if slices else options),
        )
        if not slices:
            return buffer
        view = buffer.slices(num_slices=6, slice_len=4, **slices, **options)
        view.extend, view.empty = buffer.extend, buffer.empty  # a view only reads
        view.update_priority = buffer.update_priority
        return view

    return make


CASES = {
    "EpisodeSliceSampler": Case(in_any_buffer(lambda: EpisodeSliceSampler(4)), alone=True),
    "PrioritizedEpisodeSliceSampler": Case(
        in_any_buffer(lambda: PrioritizedEpisodeSliceSampler(4)), alone=True, prioritized=True
    ),
    "TransitionSampler": Case(in_a_frame_replay(TransitionSampler)),
    "PrioritizedTransitionSampler": Case(in_a_frame_replay(PrioritizedTransitionSampler), prioritized=True),
    "FrameSliceSampler": Case(in_a_frame_replay(TransitionSampler, keys=["action"])),
    "PrioritizedFrameSliceSampler": Case(
        in_a_frame_replay(PrioritizedTransitionSampler, keys=["action"], priority="mean"), prioritized=True
    ),
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
PRIORITIZED = pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case.prioritized], ids=[n for n in CASES if CASES[n].prioritized]
)
ALONE = pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case.alone], ids=[n for n in CASES if CASES[n].alone]
)


def data(case: Case, lengths: list[int]) -> TensorDict:
    """Episodes in the form that the buffer takes; every row has its number under ``"action"``."""
    if not case.alone:
        return make_episodes(lengths)
    episodes = steps(lengths)
    return episodes.set("action", episodes["obs"][:, None].float())


def make(case: Case, capacity: int = 60, seed: int | None = 0, **options) -> TensorDictReplayBuffer:
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return case.make(LazyTensorStorage(capacity), generator, **options)


def make_filled(case: Case, **options) -> TensorDictReplayBuffer:
    buffer = make(case, **options)
    for lengths in ([9, 12], [5, 20, 6], [30]):  # more rows than there is room for
        buffer.extend(data(case, lengths))
    return buffer


def draws(buffer: TensorDictReplayBuffer, count: int = 3) -> list[TensorDict]:
    return [buffer.sample() for _ in range(count)]


def same(first: list[TensorDict], second: list[TensorDict]) -> bool:
    return all((one == other).all() for one, other in zip(first, second, strict=True))


def test_no_sampler_is_left_out() -> None:
    public = public_classes(Sampler, mcurl_torchrl, mcurl_torchrl.replay)
    assert public | {"FrameSliceSampler", "PrioritizedFrameSliceSampler"} == set(CASES)


@EVERY
def test_the_name_is_the_class(case: Case) -> None:
    name = next(name for name in CASES if CASES[name] is case)
    assert type(make(case).sampler).__name__ == name
    assert name in repr(make(case).sampler)


@EVERY
def test_an_index_of_rows_that_are_written(case: Case) -> None:
    buffer = make(case, 100)
    buffer.extend(data(case, [9, 12]))
    for batch in draws(buffer):
        assert batch.shape == (BATCH,)
        assert batch["index"].shape == (BATCH,) and batch["index"].dtype == torch.int64
        assert (batch["index"] >= 0).all() and (batch["index"] < len(buffer)).all()
        stored = buffer.storage[:]["action"][batch["index"]]
        assert torch.equal(batch["action"], stored)


@EVERY
def test_nothing_to_draw(case: Case) -> None:
    buffer = make(case)
    assert not buffer.can_sample()
    with pytest.raises(RuntimeError, match="empty"):
        buffer.sample()
    buffer.extend(data(case, [9, 12]))
    assert buffer.can_sample()
    buffer.empty()
    assert not buffer.can_sample()


@EVERY
def test_asking_changes_nothing(case: Case) -> None:
    asked, other = make_filled(case), make_filled(case)
    assert asked.can_sample()
    count = asked.sampler._sampleable_count(asked.storage, BATCH)
    assert 0 < count <= len(asked.storage)
    assert same(draws(asked), draws(other))


@EVERY
def test_the_count_is_that_of_all_that_can_be_drawn(case: Case) -> None:
    buffer = make(case, 100)
    buffer.extend(data(case, [5, 6]))
    seen = {
        int(start)
        for batch in draws(buffer, 60)
        for start in (batch["index"] if "Transition" in type(buffer.sampler).__name__ else batch["index"][::4])
    }
    assert buffer.sampler._sampleable_count(buffer.storage, BATCH) == len(seen)


@EVERY
def test_random_numbers_come_from_the_generator(case: Case) -> None:
    first, second, other = make_filled(case), make_filled(case), make_filled(case, seed=1)
    before = torch.get_rng_state()
    assert same(found := draws(first), draws(second))
    assert not same(found, draws(other))
    assert torch.equal(torch.get_rng_state(), before)


@EVERY
def test_the_global_generator_without_one(case: Case) -> None:
    buffer = make_filled(case, seed=None)
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found.append(draws(buffer))
    assert same(*found)


@EVERY
def test_memory_and_disk(case: Case) -> None:
    found = []
    for storage in (LazyTensorStorage, LazyMemmapStorage):
        buffer = case.make(storage(60), torch.Generator().manual_seed(0))
        buffer.extend(data(case, [9, 12, 30]))
        found.append(draws(buffer))
    assert same(*found)


@EVERY
def test_prefetching_gives_the_same(case: Case) -> None:
    assert same(draws(make_filled(case)), draws(make_filled(case, prefetch=1)))


@EVERY
def test_the_state_of_a_sampler(case: Case) -> None:
    first, second = make_filled(case), make_filled(case)
    if case.prioritized:
        for row in range(0, 40, 3):
            first.update_priority(torch.tensor([row]), torch.tensor([float(row)]))
    if "FrameSlice" not in type(first.sampler).__name__:  # a view has its buffer's state
        second.sampler.load_state_dict(copy.deepcopy(first.sampler.state_dict()))
        assert same(draws(first), draws(second))


@EVERY
def test_a_copy_is_independent(case: Case) -> None:
    sampler = make_filled(case).sampler
    for copied in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert type(copied) is type(sampler)
        assert copied is not sampler


@PRIORITIZED
def test_what_has_no_priority_is_never_drawn(case: Case) -> None:
    buffer = make(case, 100)
    buffer.extend(data(case, [9, 12]))
    buffer.update_priority(torch.arange(9), torch.zeros(9))
    starts = [
        batch["index"] if "Transition" in type(buffer.sampler).__name__ else batch["index"].view(-1, 4)[:, 0]
        for batch in draws(buffer, 10)
    ]
    rows = torch.cat(starts)
    weights = draws(buffer, 1)[0]["priority_weight"]
    assert weights.shape[:1] == (BATCH,) and (weights > 0).all() and weights.max() == 1
    assert (rows < 6).float().mean() < 0.01  # all of a slice from there on has the priority 0, and eps is above 0


@PRIORITIZED
@pytest.mark.parametrize("priority", [-1.0, float("nan"), float("inf")])
def test_what_is_no_priority(case: Case, priority: float) -> None:
    buffer = make_filled(case)
    with pytest.raises(ValueError, match=f"got {priority}"):
        buffer.update_priority(torch.tensor([0, 1]), torch.tensor([1.0, priority]))


@ALONE
def test_it_serves_torchrls_buffer(case: Case) -> None:
    buffer = make_filled(case)
    assert type(buffer) is TensorDictReplayBuffer
    for batch in draws(buffer):
        assert (batch["action"].view(-1, 4).diff(dim=1) == 1).all()


@EVERY
def test_a_batch_size_that_is_no_count(case: Case) -> None:
    buffer = make_filled(case)
    for size in (0, -4):
        with pytest.raises((ValueError, RuntimeError)):
            buffer.sampler.draw(buffer.storage, size)


def test_frame_samplers_are_what_views_use() -> None:
    assert issubclass(PrioritizedFrameSliceSampler, FrameSliceSampler)
