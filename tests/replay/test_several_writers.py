"""Several writers of one buffer: a column each, whatever the order in which their steps come."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from mcurl_torchrl import PrioritizedTransitionSampler
from tests.replay.episodes import make_buffer, make_episode, numbers_in


def fragments(writer: int, lengths: list[int], size: int) -> list[TensorDict]:
    """Makes what a worker sends: its episodes, numbered from 0 as each worker does, cut into pieces."""
    episodes, first = [], writer * 10_000
    for number, length in enumerate(lengths):
        episode = make_episode(length, first)
        episode.set(("collector", "traj_ids"), torch.full([length], number))
        episodes.append(episode)
        first += length + 1
    return list(torch.cat(episodes).split(size))


@pytest.mark.parametrize("prioritized", [False, True])
def test_pieces_of_workers_interleave_and_never_mix(prioritized: bool) -> None:
    sampler = PrioritizedTransitionSampler() if prioritized else None
    buffer = make_buffer(900, ndim=2, num_columns=3, num_frames=3, n_step=2, sampler=sampler, batch_size=512)
    # The second worker sends twice as much as the first, and the third nothing at all.
    pieces = {0: fragments(0, [7, 11, 5], 4), 1: fragments(1, [7, 11, 5, 20], 3)}
    while any(pieces.values()):
        for column in (1, 0, 1):
            if pieces[column]:
                buffer.extend(pieces[column].pop(0), columns=column)
    assert buffer.writer.written.tolist() == [26, 47, 0]
    batch = buffer.sample()
    frames, after = numbers_in(batch["pixels"]), numbers_in(batch["next", "pixels"])
    assert set(batch["index"][:, 1].tolist()) == {0, 1}
    assert torch.equal(batch["index"][:, 1], frames[:, -1] // 10_000)
    assert torch.equal(after[:, -1] - frames[:, -1], batch["steps_to_next_obs"].squeeze(-1))
    assert torch.equal(frames[:, -1] - frames[:, 0], batch["step"].clamp(max=2))
    windows = buffer.slices(num_slices=200, slice_len=6).sample().reshape(200, 6)
    assert (numbers_in(windows["pixels"])[..., -1].diff(dim=1) == 1).all()


def test_one_writer_of_several_columns() -> None:
    buffer, whole = (make_buffer(80, ndim=2, num_columns=4) for _ in range(2))
    steps = torch.stack([make_episode(8, 100 * number) for number in range(4)])
    whole.extend(steps)
    buffer.extend(steps[[3, 1]], columns=[3, 1])
    buffer.extend(steps[:1], columns=[0])
    buffer.extend(steps[2], columns=2)
    assert torch.equal(buffer.storage[:]["pixels"], whole.storage[:]["pixels"])
    assert torch.equal(buffer.storage[:]["final"], whole.storage[:]["final"])


def test_a_part_of_the_steps_of_one_column() -> None:
    buffer = make_buffer(60, ndim=2, num_columns=2)
    valid = torch.tensor([True] * 5 + [False] * 3)
    buffer.extend(make_episode(8, ended=False), columns=1, valid=valid)
    buffer.extend(make_episode(4, 5), columns=1)
    assert buffer.writer.written.tolist() == [0, 10]
    assert buffer.storage[:]["trajectory"][:10, 1].unique().tolist() == [0]


def test_a_new_worker_in_a_column_ends_the_episode_of_the_old_one() -> None:
    buffer = make_buffer(60, ndim=2, num_columns=2)
    buffer.extend(make_episode(5, ended=False), columns=0)
    buffer.extend(make_episode(5, 500, ended=False), columns=0)
    rows = buffer.storage[:11][:, 0]
    assert rows["next", "truncated"].flatten().tolist() == [False] * 4 + [True] + [False] * 6
    assert rows["final"].tolist() == [False] * 5 + [True] + [False] * 5


@pytest.mark.parametrize("columns", [[], [4], [-1], [1, 1], 4])
def test_columns_that_are_not_there(columns: list[int] | int) -> None:
    buffer = make_buffer(80, ndim=2, num_columns=4)
    steps = make_episode(3) if isinstance(columns, int) else torch.stack([make_episode(3)] * len(columns or [0]))
    with pytest.raises(ValueError, match="from 0 to 3, each at most once"):
        buffer.extend(steps, columns=columns)
    assert not len(buffer)


def test_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="a storage of ndim=1 has one column"):
        make_buffer(80).extend(make_episode(3), columns=0)
    with pytest.raises(ValueError, match="the first write must cover all columns"):
        make_buffer(80, ndim=2).extend(make_episode(3), columns=0)
    with pytest.raises(ValueError, match=r"columns=\[0, 1\] are 2; the steps are of 1"):
        make_buffer(80, ndim=2, num_columns=4).extend(make_episode(3)[None], columns=[0, 1])
    with pytest.raises(ValueError, match="the buffer has 4 columns, one per environment; got 1"):
        make_buffer(80, ndim=2, num_columns=4).extend(make_episode(3)[None])
    with pytest.raises(ValueError, match="num_columns=3; it must divide the storage's max_size=80"):
        make_buffer(80, ndim=2, num_columns=3)
    with pytest.raises(ValueError, match="num_columns=2; a storage of ndim=1 has one column"):
        make_buffer(80, num_columns=2)


def test_a_saved_buffer_of_another_number_of_columns(tmp_path: Path) -> None:
    buffer = make_buffer(80, ndim=2, num_columns=4)
    buffer.extend(make_episode(3), columns=2)
    buffer.dumps(tmp_path)
    with pytest.raises(ValueError, match="it has rows 20; this one has 40|it has columns 4; this one has 2"):
        make_buffer(80, ndim=2, num_columns=2).loads(tmp_path)
    again = make_buffer(80, ndim=2, num_columns=4)
    again.loads(tmp_path)
    again.extend(make_episode(3), columns=0)
    assert again.writer.written.tolist() == [4, 0, 4, 0]
