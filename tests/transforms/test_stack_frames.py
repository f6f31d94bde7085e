"""StackFrames as a module, in Compose and in buffers; stack_frames against doing it by hand."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.envs import Compose, TransformedEnv
from torchrl.envs.libs.gym import GymEnv

from mcurl_torchrl import StackFrames
from mcurl_torchrl.replay import stack_frames


@given(
    num_frames=st.integers(1, 4),
    channels=st.integers(1, 3),
    steps=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    padding=st.sampled_from(["repeat", "zeros"]),
)
def test_against_doing_it_by_hand(num_frames: int, channels: int, steps: list[int], padding: str) -> None:
    frames = torch.randint(1, 256, (len(steps), num_frames, channels, 2, 3), dtype=torch.uint8)
    given_frames = frames.clone()
    expected = []
    for window, step in zip(frames, steps, strict=True):
        missing = max(0, num_frames - 1 - step)
        real = list(window[missing:])
        pad = real[0] if padding == "repeat" else torch.zeros_like(real[0])
        expected.append(torch.cat([pad] * missing + real))
    stacked = stack_frames(frames, 1, step=torch.tensor(steps), padding=padding)
    assert torch.equal(stacked, torch.stack(expected))
    assert torch.equal(frames, given_frames)
    assert torch.equal(stack_frames(frames, 1, step=torch.tensor(steps), padding=padding, inplace=True), stacked)
    assert torch.equal(stack_frames(given_frames, 1), given_frames.flatten(1, 2))


def make_batch() -> TensorDict:
    data = {
        "pixels": torch.rand(2, 5, 3, 1, 4, 4),
        "action": torch.rand(2, 5, 3, 6),
        "step": torch.arange(30).view(2, 5, 3),
    }
    return TensorDict(data, [2, 5, 3])


def test_keys_and_shapes() -> None:
    batch = make_batch()
    nested = batch.clone().rename_key_("pixels", ("obs", "pixels"))
    transform = StackFrames(3, in_keys=[("obs", "pixels")], out_keys=[("obs", "stack")])
    for module in (transform, Compose(transform)):
        out = module(nested.clone())
        assert out.shape == (2, 5)
        assert torch.equal(out["obs", "stack"], batch["pixels"].flatten(2, 3))
        assert torch.equal(out["obs", "pixels"], batch["pixels"][:, :, -1])
        assert torch.equal(out["action"], batch["action"][:, :, -1])


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: x.clone()])
def test_copies_do_the_same(duplicate) -> None:
    transform = StackFrames(3, padding="zeros", step_key="step")
    batch = make_batch()
    assert torch.equal(duplicate(transform)(batch.clone())["pixels"], transform(batch.clone())["pixels"])


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"padding='mirror'; choose one of \['repeat', 'zeros'\]"):
        StackFrames(3, padding="mirror")
    with pytest.raises(ValueError, match="num_frames=0"):
        StackFrames(0)
    with pytest.raises(ValueError, match="padding='zeros' needs a step_key"):
        StackFrames(3, padding="zeros")
    with pytest.raises(ValueError, match="must have the length of in_keys"):
        StackFrames(3, in_keys=["a"], out_keys=["a", "b"])
    with pytest.raises(ValueError, match=r"needs 4 rows in the last batch dimension.*got batch size \[2, 5, 3\]"):
        StackFrames(4)(make_batch())
    with pytest.raises(KeyError, match="StackFrames needs 'frame'; the tensordict has"):
        StackFrames(3, in_keys=["frame"])(make_batch())


def test_refuses_environments() -> None:
    with pytest.raises(RuntimeError, match="in an environment use torchrl.envs.CatFrames"):
        TransformedEnv(GymEnv("CartPole-v1"), StackFrames(3, in_keys=["observation"])).reset()
