"""EpisodeSliceSampler on TorchRL's own buffers: any keys, any layout, TorchRL's conventions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    SliceSampler,
    TensorDictReplayBuffer,
    TensorStorage,
)

from mcurl_torchrl import EpisodeSliceSampler, StackFrames
from mcurl_torchrl.replay.windows import Rows

TRAJ, DONE = ("collector", "traj_ids"), ("next", "done")


def steps(lengths: list[int], first: int = 0, *, cut_last: bool = False) -> TensorDict:
    """Episodes one after the other: trajectory ids, step counts, done flags, and a running number in ``obs``."""
    number = torch.arange(first, first + sum(lengths))
    done = torch.zeros(sum(lengths), 1, dtype=torch.bool)
    done[torch.tensor(lengths).cumsum(0) - 1] = True
    if cut_last:
        done[-1] = False
    return TensorDict(
        {
            "obs": number,
            TRAJ: torch.cat([torch.full((length,), i) for i, length in enumerate(lengths)]),
            "step_count": torch.cat([torch.arange(length)[:, None] for length in lengths]),
            DONE: done,
        },
        batch_size=[sum(lengths)],
    )


def make_stock(capacity: int, *, storage=LazyTensorStorage, ndim: int = 1, batch_size: int = 64, **options):
    return TensorDictReplayBuffer(
        storage=storage(capacity, ndim=ndim), sampler=EpisodeSliceSampler(**options), batch_size=batch_size
    )


def valid_starts(buffer: TensorDictReplayBuffer) -> set[int]:
    """Returns the ``obs`` at which a slice can start."""
    rows = Rows(buffer.storage)
    sampler = buffer.sampler
    starts = sampler.is_start(sampler.windows(rows), torch.arange(len(rows)))
    return set(rows.column("obs")[: len(rows)][starts].tolist())


def expected_starts(lengths: list[int], kept: int, slice_len: int) -> set[int]:
    """Says it from the episodes' lengths; only the last ``kept`` rows are still there."""
    starts, first = set(), 0
    for length in lengths:
        starts |= set(range(first, first + length - slice_len + 1))
        first += length
    return {start for start in starts if start >= first - kept}


EVIDENCE = {
    "all": (TRAJ, "step_count", DONE),
    "ids": (TRAJ,),
    "done": (DONE,),
    "ids and steps": (TRAJ, "step_count"),
}


@pytest.mark.parametrize("keys", EVIDENCE.values(), ids=EVIDENCE.keys())
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=12),
    capacity=st.integers(2, 60),
    slice_len=st.integers(1, 20),
    num_writes=st.integers(1, 4),
)
def test_valid_slices(keys: tuple, lengths: list[int], capacity: int, slice_len: int, num_writes: int) -> None:
    buffer = make_stock(capacity, slice_len=slice_len)
    data = steps(lengths).select("obs", *keys)
    for part in data.split(-(len(data) // -num_writes)):
        for chunk in part.split(capacity):
            buffer.extend(chunk)
    assert valid_starts(buffer) == expected_starts(lengths, min(capacity, sum(lengths)), slice_len)


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
@pytest.mark.parametrize("keys", EVIDENCE.values(), ids=EVIDENCE.keys())
def test_the_seam_of_a_full_buffer_is_known_after_loading(storage, keys: tuple, tmp_path) -> None:
    lengths = [30, 25]
    buffer = make_stock(40, storage=storage, slice_len=8)
    buffer.extend(steps(lengths).select("obs", *keys)[:40])
    buffer.extend(steps(lengths).select("obs", *keys)[40:])
    buffer.dumps(tmp_path)
    # Into a new buffer, and into one that was last written to at another place.
    loaded, used = (make_stock(40, storage=storage, slice_len=8) for _ in range(2))
    used.extend(steps([37]).select("obs", *keys))
    for other in (loaded, used):
        other.loads(tmp_path)
        assert valid_starts(other) == expected_starts(lengths, 40, 8)


def test_ids_that_start_again_with_a_new_collector() -> None:
    # Two collectors were stopped in the middle of their first episode: both wrote trajectory 0, and no done.
    buffer = make_stock(100, slice_len=4)
    buffer.extend(steps([10], cut_last=True))
    buffer.extend(steps([10], first=10, cut_last=True))
    assert valid_starts(buffer) == set(range(7)) | set(range(10, 17))


def test_the_names_of_our_layout_alone_do_not_make_ids_unique() -> None:
    buffer = make_stock(30, slice_len=4, traj_key="trajectory", step_key="step")
    by_search = make_stock(30, slice_len=4, traj_key="trajectory")
    for one in (buffer, by_search):
        data = steps([20, 20]).select("obs").set("trajectory", torch.zeros(40, dtype=torch.int64))
        data.set("step", torch.cat([torch.arange(20), torch.arange(20)]))
        one.extend(data[:30])
        one.extend(data[30:])
    assert valid_starts(buffer) == expected_starts([20, 20], 30, 4)
    assert not valid_starts(by_search) & {37, 38, 39}  # the seam


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32])
def test_flags_that_are_no_bools(dtype: torch.dtype) -> None:
    buffer = make_stock(100, slice_len=4, batch_size=40)
    data = steps([10, 10]).exclude(TRAJ, "step_count")
    buffer.extend(data.set(DONE, data[DONE].to(dtype)))
    assert valid_starts(buffer) == {*range(7), *range(10, 17)}
    assert buffer.sample()[DONE].dtype == torch.bool


def test_batched_environments() -> None:
    buffer = make_stock(60, ndim=2, slice_len=5)
    data = torch.stack([steps([7, 9, 4]), steps([20], first=100), steps([3, 3, 14], first=200)])
    buffer.extend(data)
    expected = {0, 1, 2, *range(7, 12), *range(100, 116), *range(206, 216)}
    assert valid_starts(buffer) == expected
    slices = buffer.sample(5 * 40).reshape(40, 5)
    assert (slices["obs"].diff(dim=1) == 1).all()
    assert set(slices["obs"][:, 0].tolist()) <= expected


def test_a_data_set_without_a_write() -> None:
    buffer = TensorDictReplayBuffer(
        storage=TensorStorage(steps([6, 6])), sampler=EpisodeSliceSampler(slice_len=4), batch_size=40
    )
    assert valid_starts(buffer) == {0, 1, 2, 6, 7, 8}
    assert (buffer.sample().reshape(10, 4)["obs"].diff(dim=1) == 1).all()


def test_the_batch_is_of_the_form_that_torchrl_gives() -> None:
    data = steps([20, 20]).set("is_init", torch.zeros(40, 1, dtype=torch.bool))
    batches = []
    for sampler in (EpisodeSliceSampler(slice_len=5, traj_key=TRAJ), SliceSampler(slice_len=5, traj_key=TRAJ)):
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler, batch_size=20)
        buffer.extend(data.clone())
        batches.append(buffer.sample())
    ours, theirs = batches
    assert ours.shape == theirs.shape == (20,)
    assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
    for key in (("next", "truncated"), ("next", "terminated"), "is_init"):
        assert torch.equal(ours[key], theirs[key]), key
    for batch in batches:
        ends = batch["next", "truncated"] | data["next", "done"][batch["obs"]]
        assert torch.equal(batch["next", "done"], ends)


def test_nothing_but_the_batch_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = make_stock(1000, slice_len=5, batch_size=20)
    buffer.extend(steps([400, 400]))
    read = []
    get = LazyTensorStorage.get
    monkeypatch.setattr(LazyTensorStorage, "get", lambda self, index: read.append(index) or get(self, index))
    buffer.sample()
    assert len(read) == 1  # TorchRL's SliceSampler reads the batch twice, and the whole storage for its flags
    assert read[0].shape == (20,)


@pytest.mark.parametrize("padding", ["repeat", "zeros"])
def test_stacks_from_single_frames(padding: str) -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(50),
        sampler=EpisodeSliceSampler(slice_len=4, num_frames=3),
        transform=StackFrames(3, in_keys=["frame"], padding=padding, step_key="step_count"),
        batch_size=400,
    )
    data = steps([15, 25, 30])
    data["frame"] = data["obs"].add(1).view(-1, 1, 1, 1)
    for part in data.split(10):
        buffer.extend(part)  # 70 rows into 50: frames 0..19 are gone
    batch = buffer.sample()
    assert batch.shape == (400,)
    assert set(batch["obs"].view(100, 4)[:, 0].tolist()) <= {22, *range(23, 37), *range(40, 67)}
    first = torch.where(batch["obs"] < 40, 15, 40)
    wanted = batch["obs"][:, None] + torch.tensor([-2, -1, 0])
    missing = wanted < first[:, None]
    wanted = torch.where(missing, first[:, None], wanted) + 1
    if padding == "zeros":
        wanted = torch.where(missing, 0, wanted)
    assert missing.any()
    assert torch.equal(batch["frame"].flatten(1), wanted)


def test_lost_history_is_told_apart_from_an_episodes_start_without_a_step() -> None:
    buffer = make_stock(20, slice_len=2, num_frames=3, end_key=DONE)
    for part in steps([18, 12]).split(10):
        buffer.extend(part)  # rows 10..29 are left; the stacks of 10 and 11 need 8 and 9
    assert valid_starts(buffer) == {*range(12, 17), *range(18, 29)}


def test_asking_changes_no_random_numbers() -> None:
    buffer = make_stock(100, slice_len=4)
    buffer.extend(steps([10]))
    before = torch.get_rng_state()
    assert buffer.can_sample(8)
    assert torch.equal(torch.get_rng_state(), before)


def test_all_random_numbers_come_from_the_generator() -> None:
    before = torch.get_rng_state()
    draws = []
    for _ in range(2):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(100),
            sampler=EpisodeSliceSampler(slice_len=4),
            batch_size=40,
            generator=torch.Generator().manual_seed(3),
        )
        buffer.extend(steps([50]))
        draws.append(buffer.sample()["obs"])
    assert torch.equal(*draws)
    assert torch.equal(torch.get_rng_state(), before)


class TestBadInput:
    def test_no_episode_is_long_enough(self) -> None:
        buffer = make_stock(100, slice_len=32)
        buffer.extend(steps([10, 17, 3]))
        assert not buffer.can_sample(64)
        with pytest.raises(RuntimeError, match="slice_len=32 rows: the longest run .* one episode .* has 17 rows"):
            buffer.sample()

    def test_longer_than_the_buffer(self) -> None:
        buffer = make_stock(16, slice_len=32)
        buffer.extend(steps([60], cut_last=True)[:16])
        with pytest.raises(RuntimeError, match="the longest run of rows of one episode in the buffer has 16 rows"):
            buffer.sample()

    def test_stacks_that_can_never_be_whole(self) -> None:
        buffer = make_stock(10, slice_len=9, num_frames=4)
        for part in steps([40]).split(10):
            buffer.extend(part)
        with pytest.raises(RuntimeError, match="with whole stacks of num_frames=4"):
            buffer.sample(9)

    def test_empty(self) -> None:
        buffer = make_stock(16, slice_len=4)
        assert not buffer.can_sample(8)
        with pytest.raises(RuntimeError, match="the replay buffer is empty"):
            buffer.sample()

    def test_batch_size(self) -> None:
        buffer = make_stock(100, slice_len=5, num_slices=3)
        buffer.extend(steps([50]))
        with pytest.raises(ValueError, match="batch_size=64 does not fit slice_len=5, num_slices=3"):
            buffer.sample()

    def test_nothing_tells_episodes_apart(self) -> None:
        buffer = make_stock(100, slice_len=5, batch_size=10)
        buffer.extend(steps([50]).select("obs"))
        with pytest.raises(KeyError, match="nothing in the storage tells episodes apart: it holds .*'obs'"):
            buffer.sample()

    def test_missing_key(self) -> None:
        buffer = make_stock(100, slice_len=5, batch_size=10, step_key="run")
        buffer.extend(steps([50]))
        with pytest.raises(KeyError, match="no tensor under 'run'; it holds"):
            buffer.sample()

    def test_a_key_of_several_numbers(self) -> None:
        buffer = make_stock(100, slice_len=5, batch_size=10, traj_key="run")
        buffer.extend(steps([50]).set("run", torch.zeros(50, 2)))
        with pytest.raises(ValueError, match=r"'run' must hold one number per row; its rows have shape \(2,\)"):
            buffer.sample()

    @pytest.mark.parametrize("name", ["slice_len", "num_slices", "num_frames"])
    def test_numbers_below_one(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"{name}=0; it must be at least 1"):
            EpisodeSliceSampler(**{"slice_len": 4, name: 0})

    def test_batched_data_without_a_write(self) -> None:
        buffer = TensorDictReplayBuffer(
            storage=TensorStorage(torch.stack([steps([10])] * 3, 1), ndim=2),
            sampler=EpisodeSliceSampler(slice_len=2),
            batch_size=2,
        )
        with pytest.raises(TypeError, match="for ndim=2 write to a LazyTensorStorage"):
            buffer.sample()

    def test_another_kind_of_storage(self) -> None:
        buffer = TensorDictReplayBuffer(storage=ListStorage(10), sampler=EpisodeSliceSampler(slice_len=2), batch_size=2)
        buffer.extend(steps([5]))
        with pytest.raises(TypeError, match="got ListStorage"):
            buffer.sample()
