"""Slices at given rows: what follows each transition of a batch, and what is masked."""

from __future__ import annotations

import pytest
import torch

from mcurl_torchrl import PrioritizedTransitionSampler
from tests.replay.episodes import make_buffer, make_episode, make_episodes, numbers_in

MASK = ("collector", "mask")


def expected_slice(start: int, last: int, slice_len: int) -> list[int]:
    """Numbers the frames from ``start`` on; behind the episode's last frame, that frame again."""
    return [min(start + offset, last) for offset in range(slice_len)]


@pytest.mark.parametrize("ndim", [1, 2])
def test_what_follows_the_transitions_of_a_batch(ndim: int) -> None:
    buffer = make_buffer(100 * ndim, ndim=ndim, num_frames=3, sampler=PrioritizedTransitionSampler(), batch_size=64)
    data = make_episodes([12, 2, 9])
    buffer.extend(data if ndim == 1 else torch.stack([data, data]))
    batch = buffer.sample()
    slices = buffer.slices_at(batch["index"], slice_len=5, keys=["pixels", "action"]).reshape(64, 5)
    shown, mask = numbers_in(slices["pixels"]), slices[MASK]
    assert torch.equal(slices["pixels"][:, 0], batch["pixels"])
    assert torch.equal(slices["index"][:, 0], batch["index"])
    first_of = {**dict.fromkeys(range(13), 0), **dict.fromkeys(range(13, 16), 13), **dict.fromkeys(range(16, 26), 16)}
    last_of = {0: 12, 13: 15, 16: 25}
    for row, start in enumerate(numbers_in(batch["pixels"])[:, -1].tolist()):
        first = first_of[start]
        numbers = expected_slice(start, last_of[first], 5)
        assert shown[row, :, -1].tolist() == numbers
        assert shown[row, :, 0].tolist() == [max(number - 2, first) for number in numbers]
        assert mask[row].tolist() == [start + offset <= last_of[first] for offset in range(5)]
        actions = [0 if number == last_of[first] else number for number in numbers]
        assert slices["action"][row, :, 0].tolist() == actions
    assert not mask.all() and mask[:, :2].all()


def test_rows_that_were_overwritten_since() -> None:
    buffer = make_buffer(20, num_frames=2, batch_size=200)
    buffer.extend(make_episode(9))
    batch = buffer.sample()
    buffer.extend(make_episode(13, first=100))  # rows 10..19 and 0..3: frames 0..3 are gone
    slices = buffer.slices_at(batch, slice_len=3).reshape(200, 3)
    start = numbers_in(batch["pixels"])[:, -1]
    assert not slices[MASK][start < 4].any()
    # Frame 4 is there, but not the frame before it, of which its observation needs one.
    assert slices[MASK][start == 4].tolist() == [[False, True, True]] * int((start == 4).sum())
    assert slices[MASK][(start > 4) & (start < 8)].all()
    # An index alone does not tell that another episode is there now.
    plain = buffer.slices_at(batch["index"], slice_len=3).reshape(200, 3)
    assert plain[MASK][start == 1].any()


def test_a_row_outside() -> None:
    buffer = make_buffer(50)
    buffer.extend(make_episode(9))
    with pytest.raises(IndexError, match="row 10 is outside of the 10 rows stored"):
        buffer.slices_at(torch.tensor([3, 10]), slice_len=2)
    with pytest.raises(KeyError, match="no tensor under 'speed'"):
        buffer.slices_at(torch.tensor([3]), slice_len=2, keys=["speed"])


def test_the_keys_of_slices() -> None:
    extra = ("next", "life_lost")
    buffer = make_buffer(50, extra_keys=["velocity", extra])
    episode = make_episode(9, terminated=True)
    episode["velocity"], episode[extra] = torch.arange(9.0), torch.arange(9) % 3 == 0
    buffer.extend(episode)
    keys = ["action", "velocity", extra, *(("next", name) for name in ("reward", "terminated", "truncated", "done"))]
    batch = buffer.slices(num_slices=30, slice_len=4, keys=keys).sample()
    assert "pixels" not in set(batch.keys())
    step, final = batch["step"], batch["final"]
    number = torch.where(final, 0, step)
    assert torch.equal(batch["action"].squeeze(-1), number.float())
    assert torch.equal(batch["velocity"], number.float())
    assert torch.equal(batch[extra], (number % 3 == 0) & ~final)
    assert torch.equal(batch["next", "reward"].squeeze(-1), number.float())
    for name, last in (("terminated", step == 8), ("truncated", step == 9), ("done", step == 8)):
        assert torch.equal(batch["next", name].squeeze(-1), last & ~final), name
    with pytest.raises(KeyError, match="the next observation of a row is that of the row after it"):
        buffer.slices(num_slices=3, slice_len=4, keys=[("next", "pixels")])
