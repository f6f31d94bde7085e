"""TorchRL's datasets, on small data in their formats that TorchRL's own code writes."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage
from torchrl.data.datasets import AtariDQNExperienceReplay, VD4RLExperienceReplay

from mcurl_torchrl import FrameReplayBuffer
from mcurl_torchrl.replay import atari_dqn_episodes, datasets, vd4rl_episodes


def write_atari(root: Path, parts: list[dict[str, np.ndarray]]) -> None:
    """Writes the logs of DQN as they were published, and lets TorchRL turn them into its own files."""
    for number, part in enumerate(parts):
        logs = root / "logs" / str(number)
        logs.mkdir(parents=True)
        for name, values in part.items():
            with gzip.open(logs / f"$store$_{name}_ckpt.{number}.gz", "wb") as file:
                np.save(file, values)
        listed = AtariDQNExperienceReplay._list_runs(logs)
        AtariDQNExperienceReplay._preproc_run(root / "Pong/1" / str(number), listed, number)


def atari_rows(lengths: list[int], seed: int, *, last_ends: bool = True) -> dict[str, np.ndarray]:
    rng, count = np.random.default_rng(seed), sum(lengths)
    terminal = np.zeros(count, np.uint8)
    terminal[np.cumsum(lengths) - 1] = 1
    terminal[-1] = last_ends
    return {
        "observation": rng.integers(1, 256, (count, 84, 84), np.uint8),
        "action": rng.integers(0, 6, count).astype(np.int32),
        "reward": rng.normal(size=count).astype(np.float32),
        "terminal": terminal,
    }


def test_episodes_of_dqn_on_atari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Episodes of 4, 1 and 6 rows; the last one goes on in the second file, for 3 more; then 5 that never end.
    first, second = atari_rows([4, 1, 3], 0, last_ends=False), atari_rows([3, 5], 1, last_ends=False)
    write_atari(tmp_path, [first, second])
    whole = {name: np.concatenate([first[name], second[name]]) for name in first}
    monkeypatch.setattr(datasets, "_ROWS_AT_A_TIME", 6)
    episodes = list(atari_dqn_episodes("Pong/1", root=tmp_path))
    bounds = [(0, 4), (5, 11), (11, 16)]  # an episode of one observation has no step
    assert [len(episode) for episode in episodes] == [stop - start - 1 for start, stop in bounds]
    for episode, (start, stop) in zip(episodes, bounds, strict=True):
        frames = torch.from_numpy(whole["observation"][start:stop])[:, None]
        assert torch.equal(episode["pixels"], frames[:-1]) and torch.equal(episode["next", "pixels"], frames[1:])
        assert episode["action"].tolist() == whole["action"][start : stop - 1].tolist()
        assert episode["next", "reward"][:, 0].tolist() == whole["reward"][start : stop - 1].tolist()
        assert episode["next", "truncated"][:, 0].tolist() == [False] * (len(episode) - 1) + [True]
        assert not episode["next", "terminated"].any()
    buffer = FrameReplayBuffer(storage=LazyTensorStorage(50), num_frames=2, stacked_input=False, padding="zeros")
    for episode in episodes:
        buffer.extend(episode)
    assert len(buffer) == 4 + 6 + 5
    assert buffer.slices(num_slices=3, slice_len=4).sample()["pixels"].shape == (12, 2, 84, 84)


def vd4rl_rows(lengths: list[int], names: dict[str, str], shape: tuple[int, ...]) -> TensorDict:
    count = sum(lengths)
    first = torch.zeros(count, dtype=torch.bool)
    first[torch.tensor([0, *lengths[:-1]]).cumsum(0)] = True
    rows = {
        names["image"]: torch.randint(256, (count, *shape), dtype=torch.uint8),
        "action": torch.rand(count, 2, dtype=torch.float64),
        "reward": torch.rand(count),
    }
    if names["image"] == "image":  # the files of Dreamer's format
        last = first.roll(-1)
        return TensorDict({**rows, "is_first": first, "is_last": last, "is_terminal": torch.zeros_like(last)}, [count])
    kinds = torch.ones(count, dtype=torch.int64)
    kinds[first.roll(-1)], kinds[first] = 2, 0
    return TensorDict({**rows, "step_type": kinds, "discount": torch.ones(count)}, [count])


@pytest.mark.parametrize(("image", "shape"), [("image", (8, 8, 3)), ("observation", (3, 8, 8))])
def test_episodes_of_vd4rl(image: str, shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lengths = [5, 1, 4]
    rows = vd4rl_rows(lengths, {"image": image}, shape)
    VD4RLExperienceReplay._process_data(rows.clone()).memmap(tmp_path / "main/walker_walk/random/64px")
    episodes = list(vd4rl_episodes("main/walker_walk/random/64px", root=tmp_path))
    # Without a root, the data is in TorchRL's own folder.
    monkeypatch.setattr("torchrl.data.datasets.utils._get_root_dir", lambda name: tmp_path)
    assert len(list(vd4rl_episodes("main/walker_walk/random/64px"))) == len(episodes)
    frames = rows[image] if shape[0] == 3 else rows[image].permute(0, 3, 1, 2)
    assert [len(episode) for episode in episodes] == [4, 3]
    for episode, start in zip(episodes, (0, 6), strict=True):
        stop = start + len(episode)
        assert torch.equal(episode["pixels"], frames[start:stop])
        assert torch.equal(episode["next", "pixels"], frames[start + 1 : stop + 1])
        assert torch.equal(episode["action"], rows["action"][start + 1 : stop + 1].float())  # it led to the next row
        assert torch.equal(episode["next", "reward"][:, 0], rows["reward"][start + 1 : stop + 1])


def test_data_without_the_beginnings_of_episodes_is_refused(tmp_path: Path):
    rows = TensorDict({"pixels": torch.zeros(4, 3, 8, 8, dtype=torch.uint8), "action": torch.zeros(4, 1)}, [4])
    rows.memmap(tmp_path / "main/x")
    with pytest.raises(ValueError, match="neither 'is_init' nor 'step_type'"):
        next(vd4rl_episodes("main/x", root=tmp_path))
