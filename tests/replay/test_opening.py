"""Opening a saved replay without knowing how its buffer was built."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage

from mcurl_torchrl import FrameReplayBuffer, PrioritizedTransitionSampler
from mcurl_torchrl.replay import open_replay


def steps(*lead: int) -> TensorDict:
    """Steps of single frames; every tenth ends an episode."""
    frames = torch.randint(256, (*lead[:-1], lead[-1] + 1, 1, 5, 5), dtype=torch.uint8)
    truncated = (torch.arange(lead[-1]) % 10 == 9)[:, None].expand(*lead, 1).clone()
    outcome = {"pixels": frames[..., 1:, :, :, :], "reward": torch.rand(*lead, 1), "truncated": truncated}
    outcome["terminated"] = torch.zeros_like(truncated)
    extra = {"action": torch.rand(*lead, 2), "mood": torch.rand(*lead, 3)}
    return TensorDict({"pixels": frames[..., :-1, :, :, :], **extra, "next": outcome}, lead)


@pytest.mark.parametrize("ndim", [1, 2])
@pytest.mark.parametrize("prioritized", [False, True])
def test_the_same_samples_as_before(ndim: int, prioritized: bool, tmp_path: Path):
    buffer = FrameReplayBuffer(
        storage=LazyTensorStorage(90, ndim=ndim),
        num_frames=3,
        n_step=2,
        gamma=0.9,
        padding="zeros",
        stacked_input=False,
        extra_keys=["mood"],
        sampler=PrioritizedTransitionSampler(alpha=0.7) if prioritized else None,
        batch_size=8,
    )
    buffer.extend(steps(40) if ndim == 1 else steps(2, 40))
    buffer.dumps(tmp_path / "saved")
    opened = open_replay(tmp_path / "saved")
    torch.manual_seed(3)
    expected = buffer.sample()
    torch.manual_seed(3)
    found = opened.sample()
    for key in expected.keys(True, True):
        assert torch.equal(found[key], expected[key]), key
    torch.manual_seed(4)
    slices = buffer.slices(num_slices=4, slice_len=5).sample()["pixels"]
    torch.manual_seed(4)
    assert torch.equal(opened.slices(num_slices=4, slice_len=5).sample()["pixels"], slices)
    assert len(open_replay(tmp_path / "saved", batch_size=5).sample()) == 5


@pytest.mark.parametrize("ndim", [1, 2])
def test_uniformly_instead_of_by_the_saved_priorities(ndim: int, tmp_path: Path):
    buffer = FrameReplayBuffer(
        storage=LazyTensorStorage(90, ndim=ndim),
        stacked_input=False,
        sampler=PrioritizedTransitionSampler(alpha=0.7),
        batch_size=1000,
    )
    buffer.extend(steps(40) if ndim == 1 else steps(2, 40))
    batch = buffer.sample()
    batch["td_error"] = torch.where(batch["action"][:, :1] > 0.9, 1000.0, 0.001)
    buffer.update_tensordict_priority(batch)
    buffer.dumps(tmp_path / "saved")

    def drawn(opened: FrameReplayBuffer) -> TensorDict:
        return torch.cat([opened.sample() for _ in range(5)])

    often, uniform = drawn(open_replay(tmp_path / "saved")), drawn(open_replay(tmp_path / "saved", uniform=True))
    assert (often["action"][:, 0] > 0.9).float().mean() > 0.5
    assert (uniform["priority_weight"] == 1).all()
    _, counts = uniform["action"][:, 0].unique(return_counts=True)
    expected = 5000 / (40 * ndim)
    assert len(counts) == 40 * ndim and ((counts - expected) ** 2 / expected).sum() < 2 * len(counts)  # chi-squared


def test_what_cannot_be_opened(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="no saved replay buffer 'latest'"):
        open_replay(tmp_path)
    FrameReplayBuffer(storage=LazyTensorStorage(10)).dumps(tmp_path / "empty")
    with pytest.raises(ValueError, match="holds no rows"):
        open_replay(tmp_path / "empty")
    other = FrameReplayBuffer(storage=LazyTensorStorage(50), pixels_key="camera", stacked_input=False)
    data = steps(10).rename_key_("pixels", "camera").rename_key_(("next", "pixels"), ("next", "camera"))
    other.extend(data)
    other.dumps(tmp_path / "other")
    with pytest.raises(ValueError, match=r"has no \['pixels'\]"):
        open_replay(tmp_path / "other")
