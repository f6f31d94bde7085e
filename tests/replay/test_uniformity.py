"""Each valid slice, and each valid transition, is equally likely."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

from mcurl_torchrl import EpisodeSliceSampler
from mcurl_torchrl.replay.windows import Rows
from tests.replay.episodes import make_buffer, make_episode, make_episodes

# One very long and many short episodes: where drawing the episode first goes wrong.
ONE_LONG_MANY_SHORT = [900, *[11] * 40]


def is_uniform(counts: torch.Tensor) -> bool:
    return bool(stats.chisquare(counts).pvalue > 1e-3)


def slice_counts(buffer, slices, rounds: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts how often each row starts a slice; returns the counts and which rows can."""
    rows = Rows(buffer.storage)
    valid = slices.sampler.is_start(slices.sampler.windows(rows), torch.arange(len(rows)))
    counts = torch.zeros(len(rows), dtype=torch.int64)
    for _ in range(rounds):
        index = slices.sample()["index"].view(-1, slices.sampler.slice_len, max(1, rows.storage.ndim))[:, 0]
        flat = rows.from_index(index if rows.storage.ndim > 1 else index.squeeze(-1))
        counts += torch.bincount(flat, minlength=len(rows))
    return counts, valid


@pytest.mark.parametrize("capacity", [3000, 1000], ids=["half-full", "at-capacity"])
def test_slices(capacity: int) -> None:
    buffer = make_buffer(capacity, num_frames=3)
    buffer.extend(make_episodes(ONE_LONG_MANY_SHORT))
    slices = buffer.slices(num_slices=2000, slice_len=10)
    counts, valid = slice_counts(buffer, slices, 50)
    assert counts[~valid].sum() == 0
    assert is_uniform(counts[valid])


def test_slices_so_rare_that_all_rows_are_looked_at() -> None:
    buffer = make_buffer(40_000)
    buffer.extend(make_episodes([*[3] * 5000, 15, *[3] * 4000]))
    slices = buffer.slices(num_slices=500, slice_len=12)
    counts, valid = slice_counts(buffer, slices, 20)
    assert valid.sum() == 5
    assert counts[~valid].sum() == 0
    assert is_uniform(counts[valid])


def test_slices_of_unequal_columns() -> None:
    buffer = make_buffer(600, ndim=2)
    buffer.extend(torch.stack([make_episodes([2] * 60), make_episode(120, first=9000, ended=False)]))
    slices = buffer.slices(num_slices=1000, slice_len=3)
    counts, valid = slice_counts(buffer, slices, 40)
    assert valid.sum() == 60 + 118
    assert counts[~valid].sum() == 0
    assert is_uniform(counts[valid])


@pytest.mark.parametrize("capacity", [3000, 1000], ids=["half-full", "at-capacity"])
def test_transitions(capacity: int) -> None:
    buffer = make_buffer(capacity, num_frames=3, n_step=4, batch_size=2000)
    buffer.extend(make_episodes(ONE_LONG_MANY_SHORT))
    buffer.extend(make_episode(30, first=10_000, ended=False))
    valid = buffer.sampler.transitions(buffer.storage).valid(torch.arange(len(buffer)))
    counts = sum(torch.bincount(buffer.sample()["index"], minlength=len(buffer)) for _ in range(50))
    assert counts[~valid].sum() == 0
    assert is_uniform(counts[valid])


@pytest.mark.parametrize("sampler", ["ours", "torchrl"])
def test_on_a_stock_buffer_and_that_the_test_can_fail(sampler: str) -> None:
    episode = torch.cat([torch.full((length,), i) for i, length in enumerate(ONE_LONG_MANY_SHORT)])
    options = {"slice_len": 10, "traj_key": "episode"}
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(2000),
        sampler=EpisodeSliceSampler(**options) if sampler == "ours" else SliceSampler(**options),
        batch_size=10_000,
    )
    buffer.extend(TensorDict({"episode": episode, "row": torch.arange(len(episode))}, [len(episode)]))
    starts = torch.cat([buffer.sample()["row"].view(-1, 10)[:, 0] for _ in range(30)])
    counts = torch.bincount(starts, minlength=len(episode))
    can_start = torch.zeros(len(episode), dtype=torch.bool)
    can_start[:-9] = episode[:-9] == episode[9:]
    assert counts[~can_start].sum() == 0
    assert is_uniform(counts[can_start]) == (sampler == "ours")
