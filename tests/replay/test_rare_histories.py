"""The frame buffer in rare histories: cut compact episodes, refused and overlong batches, equal frames."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from mcurl_torchrl import PrioritizedTransitionSampler
from mcurl_torchrl.replay import PrioritizedEpisodeSliceSampler, archive, open_replay
from mcurl_torchrl.transforms import AugmentedViews, StackFrames
from tests.replay.episodes import frames_of, make_buffer, make_episode, make_episodes, numbers_in


def stacked(numbers: list[list[int]]) -> torch.Tensor:
    """Observations of several frames, ``[time, K, 2, 2]``."""
    return frames_of(torch.tensor(numbers)).flatten(1, 2)


def compact(numbers: list[int], trajectory: int, num_frames: int = 1) -> TensorDict:
    """Steps without next observations, as a collector with compact_obs=True gives them in the middle of an episode."""
    count, padded = len(numbers), [numbers[0]] * (num_frames - 1) + numbers
    never = torch.zeros(count, 1, dtype=torch.bool)
    return TensorDict(
        {
            "pixels": stacked([padded[place : place + num_frames] for place in range(count)]),
            "action": torch.tensor(numbers)[:, None].float(),
            "collector": {"traj_ids": torch.full((count,), trajectory)},
            "next": {"reward": torch.zeros(count, 1), "terminated": never, "truncated": never.clone()},
        },
        [count],
    )


def with_priorities(**options):
    return make_buffer(100, sampler=PrioritizedTransitionSampler(alpha=1.0, eps=0.0), **options)


def test_the_row_that_closes_a_cut_compact_episode_has_no_priority():
    buffer = with_priorities()
    buffer.extend(compact([10, 11, 12, 13], 0))
    buffer.extend(
        compact([50, 51, 52, 53], 1)
    )  # another trajectory: the row of 13 has no next frame, and ends the first
    assert buffer.storage[:]["final"].flatten().tolist()[:4] == [False, False, False, True]
    assert buffer.sampler.tree.weights[:8].tolist() == [1, 1, 1, 0, 1, 1, 1, 1]
    slices = buffer.slices(num_slices=200, slice_len=2, priority="max")
    starts = Counter(slices.sample()["index"].view(-1, 2)[:, 0].tolist())
    assert len(starts) > 3


def test_a_new_collector_begins_an_episode_though_its_ids_begin_again():
    buffer = make_buffer(num_frames=3, stacked_input=True)
    buffer.extend(compact([10, 11, 12, 13], 0, num_frames=3))
    buffer.extend(compact([50, 51, 52, 53], 0, num_frames=3))
    sampled = numbers_in(buffer.sample(300)["pixels"]).unique(dim=0).tolist()
    assert [50, 50, 50] in sampled and [12, 13, 50] not in sampled


def test_an_observation_whose_older_frames_differ_begins_an_episode():
    buffer = make_buffer(num_frames=3, stacked_input=True)
    before, after = [[1, 1, 1], [1, 1, 2], [3, 3, 3], [3, 3, 4]], [[1, 1, 2], [1, 2, 3], [3, 3, 4], [3, 4, 5]]
    never = torch.zeros(4, 1, dtype=torch.bool)
    following = {"pixels": stacked(after), "reward": torch.zeros(4, 1), "terminated": never, "truncated": never.clone()}
    buffer.extend(TensorDict({"pixels": stacked(before), "action": torch.zeros(4, 1), "next": following}, [4]))
    sampled = numbers_in(buffer.sample(300)["pixels"]).unique(dim=0).tolist()
    assert [3, 3, 3] in sampled and [1, 2, 3] not in sampled


def padded_episode(numbers: list[int], padding: str) -> TensorDict:
    """An episode of stacks of two frames."""
    first = numbers[0] if padding == "repeat" else 0
    pairs = stacked([list(pair) for pair in zip([first, *numbers], numbers, strict=False)])
    count = len(numbers) - 1
    last, never = torch.arange(count)[:, None] == count - 1, torch.zeros(count, 1, dtype=torch.bool)
    following = {"pixels": pairs[1:], "reward": torch.zeros(count, 1), "terminated": last, "truncated": never}
    action = torch.tensor(numbers[:-1])[:, None].float()
    return TensorDict({"pixels": pairs[:-1], "action": action, "next": following}, [count])


def test_a_refused_batch_leaves_no_row():
    buffer = with_priorities(num_frames=2, stacked_input=True, padding="zeros")
    buffer.extend(padded_episode([1, 2, 3], "zeros"))
    wrong = torch.cat([padded_episode([11, 12, 13], "zeros"), padded_episode([21, 22], "repeat")])
    before = buffer.writer.state_dict()
    for valid in (None, torch.ones(len(wrong), dtype=torch.bool)):
        with pytest.raises(ValueError, match="padded with 'repeat'"):
            buffer.extend(wrong, valid=valid)
        after = buffer.writer.state_dict()
        assert {name: before[name] for name in ("write_count", "next_trajectory")} == {
            name: after[name] for name in ("write_count", "next_trajectory")
        }
        assert all(torch.equal(value, after["columns"][name]) for name, value in before["columns"].items())
    buffer.extend(padded_episode([31, 32, 33], "zeros"))
    assert set(buffer.sample(100)["action"].flatten().tolist()) == {1, 2, 31, 32}


def test_kept_steps_that_are_longer_than_the_ring_count_once():
    steps = make_episodes([1, 1, 1, 20])
    steps["next", "truncated"][-1] = False
    whole, kept = (make_buffer(8, sampler=PrioritizedTransitionSampler()) for _ in range(2))
    expected = whole.extend(steps)
    found = kept.extend(steps, valid=torch.ones(len(steps), dtype=torch.bool))
    assert found.tolist() == expected.tolist()
    assert kept.sampler.tree.weights.tolist() == whole.sampler.tree.weights.tolist() == [1.0] * 8


def test_priorities_of_rows_without_a_step_stay_zero(tmp_path: Path):
    buffer = with_priorities()
    for first in (0, 10):
        buffer.extend(make_episode(3, first))
    zero = [1, 1, 1, 0, 1, 1, 1, 0]
    buffer.update_priority(torch.arange(20), 2.0)
    assert buffer.sampler.tree.weights[:8].tolist() == [2 * weight for weight in zero]
    assert not buffer.sampler.tree.weights[8:].any()
    buffer.dumps(tmp_path)
    uniform = open_replay(tmp_path, uniform=True)
    assert (uniform.sampler.tree.weights[:8] > 0).tolist() == [bool(weight) for weight in zero]


def test_a_flag_that_changed_after_a_save_is_saved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archive, "_SEGMENT_BYTES", 200)
    buffer, loaded = make_buffer(), make_buffer()
    buffer.extend(compact(list(range(10, 19)), 0))
    buffer.dumps(tmp_path)
    buffer.extend(compact([50, 51, 52, 53], 1))
    buffer.dumps(tmp_path)
    loaded.loads(tmp_path)
    assert buffer.storage[:]["next", "truncated"][7]
    assert (loaded.storage[:] == buffer.storage[:]).all()


def test_a_prefetched_batch_with_one_tensor_under_two_keys_is_saved(tmp_path: Path):
    buffer, loaded = make_buffer(), make_buffer()
    views, again = (
        one.slices(num_slices=2, slice_len=4, prefetch=1, transform=AugmentedViews(None)) for one in (buffer, loaded)
    )
    buffer.extend(make_episode(30))
    views.sample()
    buffer.dumps(tmp_path)
    loaded.loads(tmp_path)
    assert (views.sample()["mcurl"] == again.sample()["mcurl"]).all()


def test_names_and_words():
    with pytest.raises(ValueError, match=r"\('next', 'done'\) cannot be stored under that name"):
        make_buffer(extra_keys=[("next", "done")])
    buffer = with_priorities()
    buffer.extend(make_episode(30))
    buffer.update_priority(torch.arange(30), 0.0)
    with pytest.raises(RuntimeError, match="all priorities are 0"):
        buffer.slices(num_slices=2, slice_len=4, priority="mean").sample()


@pytest.mark.parametrize("ndim", [1, 2])
def test_priorities_of_stacked_slices_are_those_of_the_newest_frames(ndim: int):
    """The line that the class and the docs tell."""
    sampler = PrioritizedEpisodeSliceSampler(
        slice_len=5, num_frames=3, traj_key="episode", step_key="step", alpha=1.0, eps=0.0
    )
    storage = LazyTensorStorage(40, ndim=ndim)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, transform=StackFrames(3), batch_size=5)
    steps = torch.arange(20)
    data = TensorDict({"pixels": frames_of(steps), "episode": torch.zeros_like(steps), "step": steps}, [20])
    buffer.extend(data if ndim == 1 else torch.stack([data, data.clone()]))
    batch = buffer.sample()
    newest = batch["index"][:, -1]
    batch["index"], batch["td_error"] = newest, torch.arange(5).float() + 10
    buffer.update_tensordict_priority(batch)
    flat = newest if ndim == 1 else newest[:, 0] * 2 + newest[:, 1]
    assert sampler.tree.weights[flat].tolist() == [10, 11, 12, 13, 14]
