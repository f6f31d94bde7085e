"""How the recipes act: without the parts that only learning needs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mcurl_torchrl.modules import RainbowPolicy
from mcurl_torchrl.modules.gaussian_policy import GaussianPolicy
from tests.recipes.running import SMALL, train


@pytest.mark.parametrize(
    ("recipe", "policy", "methods", "overrides"),
    [
        (
            "sac_mcurl",
            GaussianPolicy,
            ["sample", "forward"],
            ["env=cartpole-swingup", "env.action_repeat=50", "total_env_steps=2000", "sac.random_agent_steps=35"],
        ),
        (
            "rainbow_mcurl",
            RainbowPolicy,
            ["forward", "act_without_noise"],
            ["env=Breakout", "env.max_emulator_frames=120", "total_env_steps=45", "evaluation.final_episodes=1"],
        ),
    ],
)
def test_policies_act_under_inference_mode(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    recipe: str,
    policy: type[torch.nn.Module],
    methods: list[str],
    overrides: list[str],
) -> None:
    modes: dict[str, set[bool]] = {name: set() for name in methods}

    def watch(name: str) -> None:
        method = getattr(policy, name)

        def watched(*args, **kwargs):
            modes[name].add(torch.is_inference_mode_enabled())
            return method(*args, **kwargs)

        monkeypatch.setattr(policy, name, watched)

    for name in methods:
        watch(name)
    train(tmp_path / "run", *SMALL, "evaluation.video=false", *overrides, recipe=recipe)
    assert modes == {name: {True} for name in methods}
