"""A policy in a folder of its own: it acts as before, and what is damaged is refused with a reason."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch

from mcurl_torchrl import load_policy
from mcurl_torchrl.modules import GaussianPolicy, RainbowPolicy
from mcurl_torchrl.training import CheckpointNotRestored, FramePolicy, read_policy_folder, save_policy

SHAPE = [6, 40, 40]


def gaussian() -> FramePolicy:
    network = GaussianPolicy(SHAPE, 2, crop_size=32, num_filters=4, hidden_dim=16)
    bounds = {"action_low": [-2.0, 0.5], "action_high": [3.0, 0.75], "action_dtype": "float64"}
    return FramePolicy(network, num_frames=2, image_shape=[60, 50, 3], **bounds).eval()


def rainbow(**settings: bool) -> FramePolicy:
    network = RainbowPolicy([4, 40, 40], 6, hidden_dim=16, num_atoms=5, **settings)
    network.reset_noise()
    return FramePolicy(network, num_frames=4, padding="zeros").eval()


@pytest.mark.parametrize("policy", [gaussian(), rainbow(), rainbow(noisy=False, dueling=False)])
def test_it_acts_as_before(tmp_path: Path, policy: FramePolicy) -> None:
    again = load_policy(save_policy(policy, tmp_path / "new" / "folder"))
    assert not again.training and (again.num_frames, again.padding) == (policy.num_frames, policy.padding)
    shape = policy.image_shape or [40, 40]
    policy.reset()
    for _ in range(5):
        frame = torch.randint(256, shape, dtype=torch.uint8)
        assert torch.equal(again(frame), policy(frame))


def test_what_only_training_needs_is_left_out(tmp_path: Path) -> None:
    policy = rainbow()
    config, state = read_policy_folder(save_policy(policy, tmp_path, about={"env": {"game": "Pong"}}))
    assert config["env"] == {"game": "Pong"} and config["policy"]["settings"]["noisy"] is False
    assert not [name for name in state if "sigma" in name or "noise" in name]
    assert policy.network.settings["noisy"] is True  # left as it was
    stacks = torch.randint(256, (3, 4, 40, 40), dtype=torch.uint8)
    acting = policy.network.for_acting()
    assert torch.equal(acting.network(stacks), policy.network.network(stacks))
    with pytest.raises(ValueError, match=r"about=\['policy'\]: config.json has these entries already"):
        save_policy(policy, tmp_path, about={"policy": {}})


def test_what_is_damaged_is_refused(tmp_path: Path) -> None:
    save_policy(rainbow(), tmp_path)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    whole, described = weights.read_bytes(), json.loads(config.read_text())

    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "trapped",)

    for content in (whole[:-10], b"", pickle.dumps(Trap())):
        weights.write_bytes(content)
        with pytest.raises(CheckpointNotRestored, match="holds a damaged policy"):
            load_policy(tmp_path)
    assert not (tmp_path / "trapped").exists()
    weights.write_bytes(whole)

    wider = {**described["policy"], "settings": {**described["policy"]["settings"], "hidden_dim": 17}}
    for changed, error, message in (
        ({**described, "policy": wider}, CheckpointNotRestored, "do not fit what its config describes"),
        ({**described, "format": 2}, CheckpointNotRestored, "has the format 2; this release reads 1"),
        ({**described, "policy": {**described["policy"], "kind": "Trap"}}, ValueError, "of the kind 'Trap'; known are"),
        ({**described, "policy": []}, CheckpointNotRestored, "describes no policy"),
        ([], CheckpointNotRestored, "describes no policy"),
    ):
        config.write_text(json.dumps(changed))
        with pytest.raises(error, match=message):
            load_policy(tmp_path)
    config.write_text("{")
    with pytest.raises(CheckpointNotRestored, match="holds a damaged policy"):
        load_policy(tmp_path)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match="a checkpoint or a policy folder"):
        load_policy(tmp_path)
