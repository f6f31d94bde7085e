"""Slices by priority: how often each is drawn and its weight, beside a plain list of all slices."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from scipy import stats
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from mcurl_torchrl import PrioritizedTransitionSampler
from mcurl_torchrl.replay import PrioritizedEpisodeSliceSampler
from tests.replay.episodes import make_buffer, make_episode, make_episodes, numbers_in
from tests.replay.test_slice_sampler import DONE, TRAJ, steps

ALPHA, BETA, SLICE_LEN = 0.7, 0.4, 4
REDUCE = {"mean": lambda weights: sum(weights) / SLICE_LEN, "max": max}


def plain_probabilities(
    episodes: list[list[int]], weight: dict[int, float], reduction: str, *, strict: bool = True
) -> dict[int, float]:
    """Lists every slice of the episodes by its first row, with its probability, by the definition alone."""
    found = {}
    for rows in episodes:
        for place in range(len(rows) - SLICE_LEN + 1):
            found[rows[place]] = REDUCE[reduction]([weight[row] for row in rows[place : place + SLICE_LEN]])
        if not strict and rows and len(rows) < SLICE_LEN:
            found[rows[0]] = REDUCE[reduction]([weight[row] for row in rows])
    total = sum(found.values())
    return {start: value / total for start, value in found.items()}


def check_frequencies(counts: Counter, probability: dict[int, float]) -> None:
    assert set(counts) <= {start for start, value in probability.items() if value > 0}
    likely = [start for start, value in probability.items() if value > 0]
    total = sum(counts.values())
    assert stats.chisquare([counts[start] for start in likely], [probability[s] * total for s in likely]).pvalue > 1e-3


def check_weights(batch: TensorDict, starts: torch.Tensor, probability: dict[int, float], slice_len: int) -> None:
    expected = torch.tensor([probability[start] for start in starts.tolist()], dtype=torch.float64) ** -BETA
    expected = (expected / expected.max()).float()
    torch.testing.assert_close(batch["priority_weight"].view(-1, slice_len), expected[:, None].expand(-1, slice_len))


def make_stock(capacity: int, reduction: str, *, ndim: int = 1, num_slices: int = 500, **options):
    sampler = PrioritizedEpisodeSliceSampler(SLICE_LEN, alpha=ALPHA, beta=BETA, eps=0.0, reduction=reduction, **options)
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity, ndim=ndim),
        sampler=sampler,
        batch_size=num_slices * SLICE_LEN,
        generator=torch.Generator().manual_seed(0),
    )


def priority_of(number: torch.Tensor) -> torch.Tensor:
    """Uneven priorities, some of them 0 and one of them high."""
    priority = (number * 7 % 5).double()
    priority[number == 33] = 40.0
    return priority


@pytest.mark.parametrize("keys", [(TRAJ, "step_count", DONE), (TRAJ,), (DONE,)], ids=["all", "ids", "done"])
@pytest.mark.parametrize("reduction", ["mean", "max"])
def test_any_buffer(reduction: str, keys: tuple) -> None:
    # 74 rows into 60: rows 0..13 are gone, and with them the beginning of the first episode.
    lengths = [25, 3, 20, 6, 20]
    buffer = make_stock(60, reduction)
    for part in steps(lengths).select("obs", *keys).split(37):
        buffer.extend(part)
    number = buffer.storage[:]["obs"]
    buffer.update_priority(torch.arange(60), priority_of(number))

    first = torch.tensor([0, *lengths]).cumsum(0).tolist()
    episodes = [[row for row in range(a, b) if row >= 14] for a, b in zip(first, first[1:], strict=False)]
    weight = {row: priority_of(torch.tensor([row])).item() ** ALPHA for row in range(74)}
    probability = plain_probabilities(episodes, weight, reduction)
    counts: Counter = Counter()
    for _ in range(40):
        batch = buffer.sample()
        slices = batch["obs"].view(-1, SLICE_LEN)
        assert (slices.diff(dim=1) == 1).all()
        counts.update(slices[:, 0].tolist())
        check_weights(batch, slices[:, 0], probability, SLICE_LEN)
    check_frequencies(counts, probability)


@pytest.mark.parametrize("reduction", ["mean", "max"])
def test_when_almost_no_proposal_is_a_slice(reduction: str) -> None:
    # Nearly all of the priority is in episodes that are too short: rejection gives up, and the exact draw takes over.
    buffer = make_stock(4000, reduction, num_slices=50)
    buffer.extend(steps([5, 6] + [3] * 40))
    priority = torch.full((131,), 1e9, dtype=torch.float64)
    priority[:11] = torch.arange(1, 12)
    buffer.update_priority(torch.arange(131), priority)
    weight = dict(enumerate((priority**ALPHA).tolist()))
    probability = plain_probabilities([list(range(5)), list(range(5, 11))], weight, reduction)
    counts: Counter = Counter()
    for _ in range(100):
        counts.update(buffer.sample()["obs"].view(-1, SLICE_LEN)[:, 0].tolist())
    check_frequencies(counts, probability)


@pytest.mark.parametrize("reduction", ["mean", "max"])
def test_short_episodes(reduction: str) -> None:
    lengths = [2, 9, 3, 1, 4]
    buffer = make_stock(100, reduction, strict_length=False)
    buffer.extend(steps(lengths))
    priority = torch.arange(1.0, 20.0, dtype=torch.float64)
    buffer.update_priority(torch.arange(19), priority)
    first = torch.tensor([0, *lengths]).cumsum(0).tolist()
    episodes = [list(range(a, b)) for a, b in zip(first, first[1:], strict=False)]
    weight = dict(enumerate((priority**ALPHA).tolist()))
    probability = plain_probabilities(episodes, weight, reduction, strict=False)
    counts: Counter = Counter()
    for _ in range(40):
        batch = buffer.sample()
        ends = batch["next", "truncated"].squeeze(-1)
        starts = torch.cat([torch.tensor([True]), ends[:-1]])
        assert batch["priority_weight"].shape == ends.shape
        counts.update(batch["obs"][starts].tolist())
    assert sum(counts.values()) == 40 * 500
    check_frequencies(counts, probability)


@pytest.mark.parametrize("reduction", ["mean", "max"])
def test_batched_environments(reduction: str) -> None:
    buffer = make_stock(60, reduction, ndim=2)
    data = torch.stack([steps([7, 9, 4]), steps([20], first=100), steps([3, 3, 14], first=200)])
    buffer.extend(data)
    batch = buffer.sample()
    batch["td_error"] = priority_of(batch["obs"]) + 1
    buffer.update_tensordict_priority(batch)
    drawn = torch.zeros(300, dtype=torch.bool)
    drawn[batch["obs"]] = True
    priority = torch.where(drawn, priority_of(torch.arange(300)) + 1, 1.0)  # new rows have the priority 1
    weight = dict(enumerate((priority**ALPHA).tolist()))
    runs = [(0, 7), (7, 16), (16, 20), (100, 120), (200, 203), (203, 206), (206, 220)]
    probability = plain_probabilities([list(range(*run)) for run in runs], weight, reduction)
    counts: Counter = Counter()
    for _ in range(40):
        counts.update(buffer.sample()["obs"].view(-1, SLICE_LEN)[:, 0].tolist())
    check_frequencies(counts, probability)


def test_interleaved_writers() -> None:
    buffer = make_stock(100, "mean", fragmented=True)
    data = steps([10, 8])
    order = torch.stack([torch.arange(8), torch.arange(10, 18)], 1).flatten().tolist() + [8, 9]
    for row in order:
        buffer.add(data[row].clone())
    number = buffer.storage[:]["obs"]
    buffer.update_priority(torch.arange(18), number.double() + 1)
    weight = {row: (row + 1) ** ALPHA for row in range(18)}
    probability = plain_probabilities([list(range(10)), list(range(10, 18))], weight, "mean")
    counts: Counter = Counter()
    for _ in range(20):
        slices = buffer.sample()["obs"].view(-1, SLICE_LEN)
        assert (slices.diff(dim=1) == 1).all()
        counts.update(slices[:, 0].tolist())
    check_frequencies(counts, probability)


def test_new_rows_get_the_largest_priority_so_far() -> None:
    buffer = make_stock(12, "mean")
    buffer.extend(steps([6]))
    buffer.update_priority(torch.tensor([0, 1]), torch.tensor([9.0, 2.0]))
    buffer.extend(steps([8], first=6))  # overwrites rows 0 and 1
    expected = torch.tensor([9.0, 9, 1, 1, 1, 1, 9, 9, 9, 9, 9, 9], dtype=torch.float64) ** ALPHA
    torch.testing.assert_close(buffer.sampler.tree.weights, expected)
    assert buffer.sampler.default_priority == pytest.approx(9.0)
    buffer.add(steps([1], first=14)[0])
    torch.testing.assert_close(buffer.sampler.tree.weights[2].item(), 9.0**ALPHA)


@pytest.mark.parametrize("method", ["dumps", "state_dict"])
def test_saved_with_the_buffer(method: str, tmp_path) -> None:
    buffer = make_stock(30, "max", num_slices=8)
    buffer.extend(steps([12, 13]))
    buffer.update_priority(torch.arange(25), torch.arange(25.0))
    buffer.sampler.beta = 0.9
    loaded = make_stock(30, "max", num_slices=8)
    if method == "dumps":
        buffer.dumps(tmp_path)
        loaded.loads(tmp_path)
    else:
        loaded.load_state_dict(buffer.state_dict())
    assert loaded.sampler.beta == 0.9
    for one in (buffer, loaded):
        one.set_rng(torch.Generator().manual_seed(5))
    for _ in range(3):
        assert torch.equal(buffer.sample()["obs"], loaded.sample()["obs"])
    buffer.extend(steps([3], first=50))
    loaded.extend(steps([3], first=50))
    assert torch.equal(buffer.sampler.tree.weights, loaded.sampler.tree.weights)


def test_a_storage_that_was_written_before() -> None:
    storage = LazyTensorStorage(30)
    TensorDictReplayBuffer(storage=storage).extend(steps([12, 13]))
    buffer = TensorDictReplayBuffer(
        storage=storage, sampler=PrioritizedEpisodeSliceSampler(SLICE_LEN, reduction="mean"), batch_size=40
    )
    assert (buffer.sample().reshape(10, 4)["obs"].diff(dim=1) == 1).all()


@pytest.mark.parametrize("priority", [-1.0, float("nan")])
def test_refuses_what_is_no_priority(priority: float) -> None:
    buffer = make_stock(30, "mean")
    buffer.extend(steps([12]))
    before = buffer.sampler.tree.weights.clone()
    with pytest.raises(ValueError, match=f"priorities must be finite and not negative; got {priority}"):
        buffer.update_priority(torch.tensor([0, 1]), torch.tensor([5.0, priority]))
    with pytest.raises(ValueError, match="got 2 priorities for 3 rows"):
        buffer.update_priority(torch.arange(3), torch.ones(2))
    assert torch.equal(buffer.sampler.tree.weights, before)


def test_bad_options() -> None:
    with pytest.raises(ValueError, match=r"reduction='sum'; choose one of \['max', 'mean'\]"):
        PrioritizedEpisodeSliceSampler(4, reduction="sum")
    with pytest.raises(ValueError, match=r"span=\(2, 2\); .*PrioritizedSliceSampler turns"):
        PrioritizedEpisodeSliceSampler(4, span=2)
    with pytest.raises(ValueError, match="alpha=-1"):
        PrioritizedEpisodeSliceSampler(4, alpha=-1)
    with pytest.raises(RuntimeError, match="empty"):
        make_stock(30, "mean").sample()


class TestFrameReplay:
    """``FrameReplayBuffer.slices(priority=...)``: the priorities are those of its transitions."""

    def make(self, reduction: str, capacity: int = 61, **options):
        buffer = make_buffer(
            capacity, num_frames=3, sampler=PrioritizedTransitionSampler(ALPHA, BETA, eps=0.0), **options
        )
        slices = buffer.slices(
            num_slices=500, slice_len=SLICE_LEN, priority=reduction, keys=["pixels", "action", ("next", "done")]
        )
        return buffer, slices

    @pytest.mark.parametrize("capacity", [61, 200], ids=["full", "not full"])
    @pytest.mark.parametrize("reduction", ["mean", "max"])
    def test_frequencies_and_weights(self, reduction: str, capacity: int) -> None:
        buffer, slices = self.make(reduction, capacity)
        lengths = [12, 1, 30, 7, 25]
        buffer.extend(make_episodes(lengths))  # L + 1 rows each, 80 in all
        alive = range(max(0, 80 - capacity), 80)
        frame = numbers_in(buffer.storage[:]["pixels"])[:, 0]
        is_final = buffer.storage[:]["final"]
        buffer.update_priority((~is_final).nonzero().squeeze(-1), priority_of(frame[~is_final]))
        finals = set(frame[is_final].tolist())
        weight = {row: 0.0 if row in finals else priority_of(torch.tensor([row])).item() ** ALPHA for row in range(80)}
        first = torch.tensor([0, *[length + 1 for length in lengths]]).cumsum(0).tolist()
        episodes = []
        for a, b in zip(first, first[1:], strict=False):
            rows = [row for row in range(a, b) if row in alive]
            # Without the two frames before it, an observation of an episode whose beginning is gone is not whole.
            episodes.append(rows if not rows or rows[0] == a else rows[2:])
        probability = plain_probabilities(episodes, weight, reduction)
        counts: Counter = Counter()
        for _ in range(40):
            batch = slices.sample()
            newest = numbers_in(batch["pixels"])[:, -1].view(-1, SLICE_LEN)
            assert (newest.diff(dim=1) == 1).all()
            counts.update(newest[:, 0].tolist())
            check_weights(batch, newest[:, 0], probability, SLICE_LEN)
        check_frequencies(counts, probability)

    def test_priorities_from_a_batch_of_slices(self) -> None:
        buffer, slices = self.make("mean", 100)
        buffer.extend(make_episodes([9, 9]))
        batch = slices.sample()
        batch["td_error"] = batch["action"].squeeze(-1) + 5
        slices.update_tensordict_priority(batch)
        expected = (torch.arange(20.0, dtype=torch.float64) + 5) ** ALPHA
        expected[[9, 19]] = 0  # the last observations start no transition
        torch.testing.assert_close(buffer.sampler.tree.weights[:20], expected)

    def test_a_buffer_without_priorities(self) -> None:
        with pytest.raises(TypeError, match="priority='mean'; this buffer has no priorities"):
            make_buffer().slices(num_slices=2, slice_len=3, priority="mean")
        buffer = make_buffer(sampler=PrioritizedTransitionSampler())
        with pytest.raises(ValueError, match=r"priority='median'; choose one of \['max', 'mean'\]"):
            buffer.slices(num_slices=2, slice_len=3, priority="median")

    def test_saved_with_the_buffer(self, tmp_path) -> None:
        (buffer, slices), (loaded, loaded_slices) = (self.make("max", prefetch=None) for _ in range(2))
        buffer.extend(make_episodes([12, 1, 30]))
        buffer.extend(make_episode(9, first=500, ended=False))
        buffer.update_tensordict_priority(buffer.sample().set("td_error", torch.arange(8.0)))
        buffer.dumps(tmp_path)
        loaded.loads(tmp_path)
        for _ in range(3):
            assert torch.equal(slices.sample()["pixels"], loaded_slices.sample()["pixels"])
