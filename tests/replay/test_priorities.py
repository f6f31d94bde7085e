"""Prioritised transitions: how often each is drawn, its weight, and what an update changes."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from mcurl_torchrl import PrioritizedTransitionSampler
from tests.replay.episodes import make_buffer, make_episode, make_episodes

ALPHA, BETA = 0.7, 0.4


def prioritized(capacity: int, **kwargs):
    return make_buffer(capacity, sampler=PrioritizedTransitionSampler(ALPHA, BETA, eps=0.0), **kwargs)


@pytest.mark.parametrize("capacity", [1000, 61], ids=["half-full", "full"])
def test_frequencies_and_weights_follow_the_formula(capacity: int) -> None:
    buffer = prioritized(capacity, num_frames=3, n_step=3, batch_size=1000)
    buffer.extend(make_episodes([12, 1, 30, 7, 25]))
    buffer.extend(make_episode(9, first=500, ended=False))
    sampler = buffer.sampler
    transitions = sampler.transitions(buffer.storage)
    valid = transitions.valid(torch.arange(len(buffer))).nonzero().squeeze(-1)
    priority = torch.linspace(0, 3, len(valid))  # the first is 0: it must never be drawn
    buffer.update_priority(valid, priority)

    counts = torch.zeros(len(buffer), dtype=torch.int64)
    for _ in range(100):
        batch = buffer.sample()
        counts += torch.bincount(batch["index"], minlength=len(buffer))
        drawn = torch.zeros(len(buffer))
        drawn[valid] = priority
        weight = drawn[batch["index"]].double() ** (-ALPHA * BETA)
        torch.testing.assert_close(batch["priority_weight"], (weight / weight.max()).float())
    probability = priority.double() ** ALPHA / (priority.double() ** ALPHA).sum()
    assert counts.sum() == counts[valid].sum() == 100_000
    assert counts[valid[0]] == 0
    assert stats.chisquare(counts[valid[1:]], probability[1:] * 100_000).pvalue > 1e-3


def test_frequencies_when_almost_nothing_can_be_drawn() -> None:
    # The newest 20 rows are too new for n_step=20, and nearly all priority is theirs: rejection gives up, and the exact
    # draw takes over.
    buffer = prioritized(20_000, n_step=20, batch_size=500)
    buffer.extend(make_episodes([2, 3]))
    buffer.extend(make_episode(20, first=100, ended=False))
    rows = torch.tensor([0, 1, 3, 4, 5])
    priority = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    buffer.update_priority(rows, priority * 1e-9)
    counts = sum(torch.bincount(buffer.sample()["index"], minlength=len(buffer)) for _ in range(20))
    assert counts.sum() == counts[rows].sum() == 10_000
    probability = priority.double() ** ALPHA / (priority.double() ** ALPHA).sum()
    assert stats.chisquare(counts[rows], probability * 10_000).pvalue > 1e-3


def test_new_rows_get_the_largest_priority_so_far() -> None:
    buffer = prioritized(100)
    buffer.extend(make_episode(3))
    assert buffer.sampler.tree.weights[:4].tolist() == [1, 1, 1, 0]  # the last row only holds its frame
    buffer.update_priority(torch.tensor([0]), torch.tensor([16.0]))
    buffer.update_priority(torch.tensor([0]), torch.tensor([2.0]))
    buffer.extend(make_episode(1, first=10))
    torch.testing.assert_close(
        buffer.sampler.tree.weights[:6], torch.tensor([2**ALPHA, 1, 1, 0, 16**ALPHA, 0], dtype=torch.float64)
    )


def test_update_from_a_batch_leaves_overwritten_rows_alone() -> None:
    buffer = prioritized(12, batch_size=64)
    buffer.extend(make_episode(9))
    batch = buffer.sample()
    buffer.extend(make_episode(4, first=50))  # overwrites rows 10, 11, 0, 1, 2
    before = buffer.sampler.tree.weights.clone()
    batch["td_error"] = torch.full((64, 1), 7.0)
    buffer.update_tensordict_priority(batch)
    after = buffer.sampler.tree.weights
    drawn = torch.zeros(12, dtype=torch.bool)
    drawn[batch["index"]] = True
    overwritten = torch.tensor([True] * 3 + [False] * 9)
    assert drawn[overwritten].any()
    torch.testing.assert_close(after[drawn & ~overwritten], torch.full_like(after, 7**ALPHA)[drawn & ~overwritten])
    assert torch.equal(after[~drawn | overwritten], before[~drawn | overwritten])


def test_batched_environments() -> None:
    buffer = prioritized(80, ndim=2, batch_size=4000)
    buffer.extend(torch.stack([make_episodes([5, 4]), make_episodes([2, 7])]))
    batch = buffer.sample()
    batch["td_error"] = batch["next", "reward"] + 1
    buffer.update_tensordict_priority(batch)
    batch = buffer.sample()
    weight = (batch["next", "reward"].squeeze(-1).double() + 1) ** (-ALPHA * BETA)
    torch.testing.assert_close(batch["priority_weight"], (weight / weight.max()).float())


@pytest.mark.parametrize("priority", [-1.0, float("nan"), float("inf")])
def test_refuses_what_is_no_priority(priority: float) -> None:
    buffer = prioritized(100)
    buffer.extend(make_episode(3))
    before = buffer.sampler.tree.weights.clone()
    with pytest.raises(ValueError, match=f"priorities must be finite and not negative; got {priority}"):
        buffer.update_priority(torch.tensor([0, 1]), torch.tensor([5.0, priority]))
    assert torch.equal(buffer.sampler.tree.weights, before)


def test_says_what_is_missing() -> None:
    buffer = prioritized(100)
    buffer.extend(make_episode(3))
    batch = buffer.sample()
    with pytest.raises(KeyError, match="updating priorities needs 'td_error'; the batch has"):
        buffer.update_tensordict_priority(batch)
    batch["td_error"] = torch.ones(8, 2)
    with pytest.raises(ValueError, match=r"one number per transition; got shape \(8, 2\) for a batch of 8"):
        buffer.update_tensordict_priority(batch)
    with pytest.raises(TypeError, match="this buffer has no priorities"):
        make_buffer().update_priority(torch.tensor([0]), torch.tensor([1.0]))
    with pytest.raises(ValueError, match=r"beta=1\.5"):
        buffer.sampler.beta = 1.5
    with pytest.raises(ValueError, match="alpha=-1"):
        PrioritizedTransitionSampler(alpha=-1)


def test_all_priorities_zero() -> None:
    buffer = prioritized(100)
    buffer.extend(make_episode(3))
    buffer.update_priority(torch.arange(3), torch.zeros(3))
    with pytest.raises(RuntimeError, match="no transition can be drawn: the priorities of all 3 valid rows are 0"):
        buffer.sample()


def test_a_transition_whose_loss_was_zero_may_be_drawn_again() -> None:
    buffer = make_buffer(100, sampler=PrioritizedTransitionSampler(alpha=0.5), batch_size=1000)
    buffer.extend(make_episode(3))
    buffer.update_priority(torch.arange(3), torch.tensor([0.0, 1e-6, 1e-6]))
    weight = torch.tensor([1e-8, 1e-6 + 1e-8, 1e-6 + 1e-8], dtype=torch.float64).sqrt()
    counts = sum(torch.bincount(buffer.sample()["index"], minlength=3) for _ in range(20))
    assert stats.chisquare(counts, weight / weight.sum() * 20_000).pvalue > 1e-3
    with pytest.raises(ValueError, match=r"eps=-1"):
        PrioritizedTransitionSampler(eps=-1)


def test_a_batch_of_another_shape_and_one_from_before_emptying() -> None:
    buffer = prioritized(100)
    buffer.extend(make_episode(9))
    batch = buffer.sample()
    batch["td_error"] = batch["next", "reward"] + 5
    buffer.update_tensordict_priority(batch.reshape(2, 4))
    expected = batch["td_error"].squeeze(-1).double() ** ALPHA
    torch.testing.assert_close(buffer.sampler.tree.weights[batch["index"]], expected)
    buffer.empty()
    buffer.update_tensordict_priority(batch)
    with pytest.raises(ValueError, match="got 2 priorities for 3 rows"):
        buffer.extend(make_episode(9))
        buffer.update_priority(torch.arange(3), torch.ones(2))


def test_huge_priorities() -> None:
    buffer = prioritized(100)
    buffer.extend(make_episode(3))
    buffer.update_priority(torch.tensor([0]), torch.tensor([1e100], dtype=torch.float64))
    buffer.extend(make_episode(3, first=50))
    assert buffer.sample()["priority_weight"].isfinite().all()


def test_alpha_zero_is_uniform_whatever_the_priorities() -> None:
    buffer = make_buffer(100, sampler=PrioritizedTransitionSampler(alpha=0.0, beta=1.0), batch_size=9000)
    buffer.extend(make_episode(9))
    buffer.update_priority(torch.arange(9), torch.arange(9))
    batch = buffer.sample()
    assert (batch["priority_weight"] == 1).all()
    assert stats.chisquare(torch.bincount(batch["index"], minlength=9)).pvalue > 1e-3
