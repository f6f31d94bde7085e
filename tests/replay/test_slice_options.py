"""EpisodeSliceSampler in the place of TorchRL's SliceSampler: the same options give the same slices."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer, TensorStorage

from mcurl_torchrl import EpisodeSliceSampler, StackFrames
from tests.replay.test_slice_sampler import DONE, TRAJ, steps

CLASSES = [EpisodeSliceSampler, SliceSampler]
IDS = ["ours", "torchrl"]
MASK, CUT = ("collector", "mask"), ("next", "truncated")


def fill(buffer: TensorDictReplayBuffer, data: TensorDict, parts: int = 1) -> None:
    for part in data.split(-(len(data) // -parts)):
        buffer.extend(part.clone())


def make(sampler, data: TensorDict, *, capacity: int = 100, batch_size: int = 40, parts: int = 1):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity),
        sampler=sampler,
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(0),
    )
    fill(buffer, data, parts)
    return buffer


def split(batch: TensorDict) -> list[tuple[int, ...]]:
    """Cuts a batch into slices, behind each row that is marked as cut."""
    ends = (batch[CUT].squeeze(-1).nonzero().squeeze(-1) + 1).tolist()
    return [tuple(batch["obs"][a:b].tolist()) for a, b in zip([0, *ends], ends, strict=False)]


def drawn(buffer: TensorDictReplayBuffer, rounds: int = 60) -> set[tuple[int, ...]]:
    """Lists the slices that are drawn in many batches."""
    return {one for _ in range(rounds) for one in split(buffer.sample())}


def windows(lengths: list[int], slice_len: int, *, short: bool = False) -> set[tuple[int, ...]]:
    """Lists the slices of episodes, numbered on from 0, by the definition."""
    found, first = set(), 0
    for length in lengths:
        found |= {tuple(range(a, a + slice_len)) for a in range(first, first + length - slice_len + 1)}
        if short and length < slice_len:
            found.add(tuple(range(first, first + length)))
        first += length
    return found


LENGTHS = [5, 2, 9, 1, 6]
ALL = steps(LENGTHS)
ENDS = ALL[DONE].squeeze(-1)
SAME = {
    "slice_len": dict(slice_len=4),
    "num_slices": dict(num_slices=10),
    "end_key": dict(slice_len=4, end_key=DONE),
    "traj_key": dict(slice_len=4, traj_key=TRAJ),
    "ends": dict(slice_len=4, ends=ENDS, cache_values=True),
    "trajectories": dict(slice_len=4, trajectories=ALL[TRAJ], cache_values=True),
    "not strict": dict(slice_len=4, strict_length=False),
    "not strict, by end": dict(num_slices=10, end_key=DONE, strict_length=False),
    "fragmented": dict(slice_len=4, fragmented=True, traj_key=TRAJ, step_key="step_count"),
    "fragmented, not strict": dict(slice_len=4, fragmented=True, traj_key=TRAJ, strict_length=False),
}


@pytest.mark.parametrize("options", SAME.values(), ids=SAME.keys())
@pytest.mark.parametrize("cls", CLASSES, ids=IDS)
def test_the_same_slices(cls, options: dict) -> None:
    if "cache_values" in options:  # SliceSampler forgets given marks at a write
        buffer = TensorDictReplayBuffer(storage=TensorStorage(ALL.clone()), sampler=cls(**options), batch_size=40)
    else:
        buffer = make(cls(**options), ALL)
    short = not options.get("strict_length", True)
    assert drawn(buffer) == windows(LENGTHS, 4, short=short)


def test_all_slices_are_equally_likely_with_short_ones() -> None:
    buffer = make(EpisodeSliceSampler(slice_len=4, strict_length=False), ALL, batch_size=4000)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(12):
        for one in split(buffer.sample()):
            counts[one] = counts.get(one, 0) + 1
    expected = 12_000 / len(windows(LENGTHS, 4, short=True))
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 40  # chi-squared, 12 degrees, 1e-4


@pytest.mark.parametrize("cls", CLASSES, ids=IDS)
def test_any_of_several_flags_ends_an_episode(cls) -> None:
    data = ALL.select("obs")
    for name in ("terminated", "truncated"):
        data["next", name] = torch.zeros(len(data), 1, dtype=torch.bool)
    ends = ENDS.nonzero().squeeze(-1)
    data["next", "terminated"][ends[::2]] = True
    data["next", "truncated"][ends[1::2]] = True
    keys = [("next", name) for name in ("done", "terminated", "truncated")]
    assert drawn(make(cls(slice_len=4, end_keys=keys), data)) == windows(LENGTHS, 4)


@pytest.mark.parametrize("cls", CLASSES, ids=IDS)
@pytest.mark.parametrize("name", ["ends", "trajectories"])
def test_given_marks_go_around_the_end_of_the_storage(cls, name: str) -> None:
    # The last five rows and the first three are one episode.
    data = TensorDict({"obs": torch.arange(12)}, [12])
    ends = torch.zeros(12, dtype=torch.bool)
    ends[[2, 6]] = True
    given = {"ends": ends, "trajectories": torch.tensor([5] * 3 + [1] * 4 + [5] * 5)}[name]
    buffer = TensorDictReplayBuffer(
        storage=TensorStorage(data), sampler=cls(slice_len=4, cache_values=True, **{name: given}), batch_size=40
    )
    around = [(8 + a) % 12 for a in range(-1, 7)]
    assert drawn(buffer) == {(3, 4, 5, 6)} | {tuple(around[a : a + 4]) for a in range(5)}


@pytest.mark.parametrize("cls", CLASSES, ids=IDS)
def test_given_marks_without_an_end(cls) -> None:
    data = TensorDict({"obs": torch.arange(6)}, [6])
    sampler = cls(slice_len=4, cache_values=True, ends=torch.zeros(6, dtype=torch.bool))
    buffer = TensorDictReplayBuffer(storage=TensorStorage(data), sampler=sampler, batch_size=40)
    assert drawn(buffer) == windows([6], 4)


@pytest.mark.parametrize("cls", CLASSES, ids=IDS)
def test_padding(cls) -> None:
    data = ALL.clone().set("is_init", torch.zeros(len(ALL), 1, dtype=torch.bool))
    buffer = make(cls(slice_len=4, strict_length=False, pad_output=True), data)
    seen = set()
    for _ in range(60):
        batch = buffer.sample()
        assert batch.shape == (40,)
        slices = batch.reshape(10, 4)
        length = slices[MASK].sum(1)
        position = torch.arange(4).expand(10, 4)
        assert torch.equal(slices[MASK], position < length[:, None])
        assert torch.equal(slices[CUT].squeeze(-1), position == length[:, None] - 1)
        assert torch.equal(slices["is_init"].squeeze(-1), position == 0)
        last = slices["obs"].gather(1, length[:, None] - 1)
        assert torch.equal(slices["obs"], torch.where(slices[MASK], slices["obs"], last))
        seen |= {tuple(row[mask].tolist()) for row, mask in zip(slices["obs"], slices[MASK], strict=True)}
    assert seen == windows(LENGTHS, 4, short=True)


def spanned(lengths: list[int], slice_len: int, left: int, right: int) -> set[tuple[int, ...]]:
    """Lists slices that may lie over an edge of their episode, cut off there; episodes are long enough for one."""
    found, first = set(), 0
    for length in lengths:
        if length >= slice_len:
            for start in range(-left, length - slice_len + right + 1):
                rows = range(max(start, 0), min(start + slice_len, length))
                found.add(tuple(first + row for row in rows))
        first += length
    return found


@pytest.mark.parametrize(("cls", "left"), [(cls, left) for cls in CLASSES for left in (True, 2)])
def test_slices_over_an_episodes_beginning(cls, left: bool | int) -> None:
    buffer = make(cls(slice_len=4, span=(left, False)), ALL)
    assert drawn(buffer, 120) == spanned(LENGTHS, 4, 3 if left is True else left, 0)


@pytest.mark.parametrize(
    ("span", "left", "right"), [(True, 3, 3), (1, 1, 1), ((False, 2), 0, 2), ((2, True), 2, 3), (0, 0, 0)]
)
def test_slices_over_both_edges(span, left: int, right: int) -> None:
    # SliceSampler's right part does not do what its documentation says: with True it also gives slices without a row.
    buffer = make(EpisodeSliceSampler(slice_len=4, span=span), ALL)
    assert drawn(buffer, 120) == spanned(LENGTHS, 4, left, right)


def test_spans_are_filled() -> None:
    buffer = make(EpisodeSliceSampler(slice_len=4, span=2, pad_output=True), ALL)
    slices = buffer.sample().reshape(10, 4)
    assert slices[MASK][:, :2].all() and not slices[MASK].all()


def test_a_full_ring() -> None:
    lengths = [12, 3, 20, 6, 9]
    for options in (dict(strict_length=False), dict(span=2)):
        found = [drawn(make(EpisodeSliceSampler(slice_len=4, **options), steps(lengths), capacity=25, parts=5), 120)]
        # Rows 0..24 are gone, and with them the first ten rows of the third episode.
        left = [[row + 25 for row in one] for one in spanned([10, 6, 9], 4, *(2, 2) if "span" in options else (0, 0))]
        assert found[0] == {tuple(one) for one in left}


def test_stacks_of_short_slices() -> None:
    data = steps([6, 2, 1, 7])
    data["frame"] = data["obs"].view(-1, 1, 1, 1)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(14),
        sampler=EpisodeSliceSampler(slice_len=4, num_frames=3, strict_length=False, pad_output=True),
        transform=StackFrames(3, in_keys=["frame"], step_key="step_count"),
        batch_size=400,
    )
    fill(buffer, data, parts=4)  # rows 0 and 1 are gone: the stacks of 2 and 3 are not whole
    batch = buffer.sample()
    mask = batch[MASK]
    first = torch.tensor([0] * 6 + [6] * 2 + [8] + [9] * 7)[batch["obs"]]
    stacks = torch.maximum(batch["obs"][:, None] + torch.tensor([-2, -1, 0]), first[:, None])
    assert torch.equal(batch["frame"].flatten(1), stacks)  # filling repeats the last stack as a whole
    starts = {tuple(row[keep].tolist()) for row, keep in zip(batch["obs"].view(-1, 4), mask.view(-1, 4), strict=True)}
    assert starts == {(4, 5), (6, 7), (8,), *(tuple(range(a, a + 4)) for a in range(9, 13))}


@pytest.mark.parametrize("cls", CLASSES, ids=IDS)
def test_interleaved_writers(cls) -> None:
    data = steps([10, 8, 3])
    order = torch.argsort(torch.rand(21, generator=torch.Generator().manual_seed(0)))
    buffer = make(cls(slice_len=4, fragmented=True, traj_key=TRAJ), data[order])
    assert drawn(buffer) == windows([10, 8, 3], 4)
    buffer.extend(steps([12], first=100).set(TRAJ, torch.full((12,), 7))[torch.randperm(12)])
    slices = drawn(buffer)
    assert {one for one in slices if one[0] >= 100} == {tuple(range(a, a + 4)) for a in range(100, 109)}


def test_interleaved_writers_of_which_rows_were_overwritten() -> None:
    data = torch.stack([steps([20]), steps([20], first=100).set(TRAJ, torch.ones(20, dtype=torch.int64))], 1).flatten()
    buffer = make(EpisodeSliceSampler(slice_len=4, fragmented=True), data, capacity=16, parts=4)
    assert drawn(buffer) == {tuple(range(a, a + 4)) for first in (0, 100) for a in range(first + 12, first + 17)}


def test_ids_that_were_used_twice_are_no_order() -> None:
    buffer = make(EpisodeSliceSampler(slice_len=4, fragmented=True), steps([8]))
    buffer.extend(steps([8], first=50))
    with pytest.raises(RuntimeError, match="trajectory 0 has step 0 twice"):
        buffer.sample()


def test_negative_ids_are_ids() -> None:
    data = ALL.select("obs").set("episode", -1 - ALL[TRAJ])  # as hashes are, and -1 among them
    assert drawn(make(EpisodeSliceSampler(slice_len=4), data)) == windows(LENGTHS, 4)


def test_a_trajectory_key_that_is_not_there() -> None:
    buffer = make(EpisodeSliceSampler(slice_len=4, traj_key="run"), ALL)
    with pytest.warns(UserWarning, match=r"the storage has none of \['run'\]; episodes are told apart by .*traj_ids"):
        buffer.sample()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert drawn(buffer) == windows(LENGTHS, 4)  # it warns once
    buffer = make(EpisodeSliceSampler(slice_len=4, end_keys=["over", "lost"]), ALL.select("obs", TRAJ))
    with pytest.warns(UserWarning, match=r"the storage has none of \['over', 'lost'\]"):
        buffer.sample()


def test_every_argument_of_torchrls_sampler_is_taken_or_refused_by_name() -> None:
    theirs = set(inspect.signature(SliceSampler.__init__).parameters)
    ours = set(inspect.signature(EpisodeSliceSampler.__init__).parameters)
    assert theirs <= ours


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (dict(), "give slice_len, num_slices or both"),
        (dict(slice_len=4, compile=True), "compile=True; this speeds up SliceSampler's search"),
        (dict(slice_len=4, use_gpu=True), "use_gpu=True; this speeds up SliceSampler's search"),
        (dict(slice_len=4, end_key=DONE, end_keys=[DONE]), "end_key and end_keys exclude each other"),
        (dict(slice_len=4, pad_output=True), "pad_output=True fills shorter slices; it needs strict_length=False"),
        (dict(slice_len=4, span=1, strict_length=False), "span and strict_length=False exclude each other"),
        (dict(slice_len=4, span=(1, 2, 3)), r"span=\(1, 2, 3\); give a bool"),
        (dict(slice_len=4, ends=ENDS, trajectories=ALL[TRAJ]), "ends and trajectories exclude each other"),
        (dict(slice_len=4, ends=ENDS, end_key=DONE), "ends takes the place of keys"),
        (dict(slice_len=4, ends=ENDS, fragmented=True), "fragmented=True needs keys"),
    ],
)
def test_what_is_refused(options: dict, match: str) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        EpisodeSliceSampler(**options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (dict(slice_len=4, span=4), "each part must be below slice_len=4"),
        (dict(slice_len=4, ends=torch.zeros(7, dtype=torch.bool)), r"ends has shape \(7,\); .* each of 23 rows"),
        (dict(num_slices=7), "batch_size=40 does not fit slice_len=None, num_slices=7"),
    ],
)
def test_what_is_refused_on_sampling(options: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make(EpisodeSliceSampler(**options), ALL).sample()


def test_fragmented_needs_ids_and_steps() -> None:
    with pytest.raises(KeyError, match="fragmented=True needs a trajectory key and a step key"):
        make(EpisodeSliceSampler(slice_len=4, fragmented=True), ALL.select("obs", DONE)).sample()
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(46, ndim=2), sampler=EpisodeSliceSampler(4, fragmented=True), batch_size=4
    )
    buffer.extend(torch.stack([ALL, ALL]))
    with pytest.raises(ValueError, match="fragmented=True is for storages of ndim=1"):
        buffer.sample()


def test_numbers_of_numpy() -> None:
    sampler = EpisodeSliceSampler(slice_len=np.int64(4), num_slices=np.int32(10), num_frames=np.int64(1))
    assert drawn(make(sampler, ALL, batch_size=np.int64(40))) == windows(LENGTHS, 4)
    with pytest.raises(TypeError, match=r"slice_len=4\.0; it must be a whole number"):
        EpisodeSliceSampler(slice_len=4.0)
