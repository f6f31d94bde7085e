"""Policies out of checkpoints: stacking frames as in training, acting without noise, exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mcurl_torchrl import load_policy
from mcurl_torchrl.modules import GaussianPolicy, NoisyLinear, RainbowPolicy
from mcurl_torchrl.training import CheckpointNotRestored, Checkpoints, FramePolicy, describe_policy, export_policy

NUM_FRAMES = 3


def make_rainbow(channels: int = 1) -> RainbowPolicy:
    """A policy that chooses many actions, and others with its noise."""
    policy = RainbowPolicy([NUM_FRAMES * channels, 40, 40], 6, hidden_dim=16, num_atoms=5)
    with torch.no_grad():
        for layer in policy.modules():
            if isinstance(layer, NoisyLinear):
                layer.weight_mu.mul_(10)
                layer.bias_mu.zero_()
                layer.weight_sigma.fill_(1.0)
    return policy


def save(folder: Path, policy: RainbowPolicy | GaussianPolicy, **described: object) -> None:
    info = {"policy": {**describe_policy(policy, num_frames=NUM_FRAMES), **described}}
    Checkpoints(folder / "checkpoints").save(7, components={"policy": policy}, info=info)


def test_a_rainbow_policy_is_loaded_without_its_noise(tmp_path: Path):
    trained = make_rainbow()
    trained.reset_noise()
    stacks = torch.randint(256, (64, NUM_FRAMES, 40, 40), dtype=torch.uint8)
    noisy, expected = trained(stacks), trained.act_without_noise(stacks)
    assert len(expected.unique()) > 1 and not torch.equal(noisy, expected)
    save(tmp_path, trained)
    loaded = load_policy(tmp_path)
    assert isinstance(loaded.network, RainbowPolicy) and loaded.network.settings == trained.settings
    assert torch.equal(loaded.network(stacks), expected)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("padding", ["repeat", "zeros"])
def test_frames_are_stacked_as_in_training(padding: str, channels: int):
    network = make_rainbow(channels).eval()
    seen: list[torch.Tensor] = []
    network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    policy = FramePolicy(network, num_frames=NUM_FRAMES, padding=padding)
    for _ in range(2):  # two episodes
        frames = list(torch.randint(256, (5, channels, 40, 40), dtype=torch.uint8))
        before = frames[:1] if padding == "repeat" else [torch.zeros_like(frames[0])]
        padded = (NUM_FRAMES - 1) * before + frames
        policy.reset()
        for step, frame in enumerate(frames):
            action = policy(frame)
            expected = torch.cat(padded[step : step + NUM_FRAMES])
            assert torch.equal(seen[-1][0], expected)
            assert action.shape == () and action == network(expected[None])[0]


@pytest.mark.parametrize("layout", ["[H, W]", "[H, W, 1]", "[1, H, W]", "numpy"])
def test_a_frame_of_one_channel(layout: str):
    frame = torch.arange(1600).reshape(40, 40).to(torch.uint8)
    given = {"[H, W]": frame, "[H, W, 1]": frame[..., None], "[1, H, W]": frame[None], "numpy": frame.numpy()}[layout]
    network = make_rainbow().eval()
    seen: list[torch.Tensor] = []
    network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    FramePolicy(network, num_frames=NUM_FRAMES, padding="zeros")(given)
    assert torch.equal(seen[0][0, -1], frame) and not seen[0][0, :-1].any()


def test_frames_that_do_not_fit():
    policy = FramePolicy(make_rainbow(3).eval(), num_frames=NUM_FRAMES)
    for shape, dtype in (((40, 40), torch.uint8), ((3, 40, 41), torch.uint8), ((3, 40, 40), torch.float32)):
        with pytest.raises(ValueError, match=r"a frame must be torch.uint8 \[3, 40, 40\]"):
            policy(torch.zeros(shape, dtype=dtype))


def test_the_padding_is_saved(tmp_path: Path):
    policy = make_rainbow()
    assert describe_policy(policy, num_frames=NUM_FRAMES)["padding"] == "repeat"
    save(tmp_path, policy, **describe_policy(policy, num_frames=NUM_FRAMES, padding="zeros"))
    assert load_policy(tmp_path).padding == "zeros"
    for refused in (FramePolicy, describe_policy):
        with pytest.raises(ValueError, match="padding='mirror'"):
            refused(policy, num_frames=NUM_FRAMES, padding="mirror")


def test_a_checkpoint_of_before_there_was_a_padding(tmp_path: Path):
    policy = GaussianPolicy([9, 32, 32], 2, hidden_dim=16)
    info = {"policy": {"kind": "GaussianPolicy", "settings": policy.settings, "num_frames": NUM_FRAMES}}
    Checkpoints(tmp_path / "checkpoints").save(7, components={"policy": policy}, info=info)
    loaded = load_policy(tmp_path)
    frame = torch.randint(256, (3, 32, 32), dtype=torch.uint8)
    assert loaded.padding == "repeat"
    torch.testing.assert_close(loaded(frame), policy(torch.cat(NUM_FRAMES * [frame])))


@pytest.mark.parametrize("padding", ["mirror", 1, None])
def test_a_checkpoint_with_another_padding(padding: object, tmp_path: Path):
    save(tmp_path, make_rainbow(), padding=padding)
    with pytest.raises(CheckpointNotRestored, match="describes its policy wrongly: padding="):
        load_policy(tmp_path)


def test_an_exported_rainbow_policy(tmp_path: Path):
    trained = make_rainbow()  # in training mode
    stacks = torch.randint(256, (64, NUM_FRAMES, 40, 40), dtype=torch.uint8)
    expected = trained.act_without_noise(stacks)
    assert len(expected.unique()) > 1
    save(tmp_path, trained)
    file = export_policy(load_policy(tmp_path), tmp_path / "sub" / "policy.pt2")
    exported = torch.export.load(file).module()
    for size in (1, 2, 64):
        actions = exported(stacks[:size])
        assert actions.dtype == torch.int64 and torch.equal(actions, expected[:size])
    assert np.prod(actions.shape) == 64
    direct = export_policy(FramePolicy(trained, num_frames=NUM_FRAMES), tmp_path / "direct.pt2")
    assert torch.equal(torch.export.load(direct).module()(stacks), expected)
