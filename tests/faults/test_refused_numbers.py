"""Numbers that no run can learn from are refused by both recipes, by the names under which they were set."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage

from mcurl_torchrl import FrameReplayBuffer
from recipes.command_line import BadCommand
from tests.recipes.running import SMALL, train

ENVS = {"sac_mcurl": ["env=cartpole-swingup", "env.action_repeat=50"], "rainbow_mcurl": ["env=Breakout"]}


@pytest.mark.parametrize("recipe", list(ENVS))
@pytest.mark.parametrize("override", ["mask_ratio=0", "coeff=-1", "coeff=nan"])
def test_a_senseless_objective_is_refused_by_both_recipes(tmp_path: Path, recipe: str, override: str) -> None:
    name, value = override.split("=")
    with pytest.raises(BadCommand, match=rf"^objective\.{name}={value}(\.0)?; it must be"):
        train(tmp_path, *SMALL, *ENVS[recipe], f"objective.{override}", recipe=recipe)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["0", "nan"])
def test_an_entropy_coefficient_without_a_logarithm_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(BadCommand, match=rf"^sac\.alpha_init={value}(\.0)?; it must be above 0 and finite"):
        train(tmp_path, *SMALL, *ENVS["sac_mcurl"], f"sac.alpha_init={value}")
    assert list(tmp_path.iterdir()) == []


# -- rewards -----------------------------------------------------------------------------------------------------------


def make_step(number: int, reward: float) -> TensorDict:
    def frame(value: int) -> torch.Tensor:
        return torch.full((1, 4, 4), value, dtype=torch.uint8)

    flags = {name: torch.zeros(1, dtype=torch.bool) for name in ("done", "terminated", "truncated")}
    following = {"pixels": frame(number + 1), "reward": torch.tensor([reward]), **flags}
    return TensorDict({"pixels": frame(number), "action": torch.zeros(2), "next": following})


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("earlier", [0, 1, 3])
def test_the_replay_takes_no_reward_that_is_not_finite(reward: float, earlier: int) -> None:
    """The first step of an episode and a later one are written in different ways."""
    buffer = FrameReplayBuffer(storage=LazyTensorStorage(20), num_frames=1, batch_size=2)
    for number in range(earlier):
        buffer.add(make_step(number, 1.0))
    with pytest.raises(ValueError, match=rf"\('next', 'reward'\) must be finite; got {reward}"):
        buffer.add(make_step(earlier, reward))
    assert len(buffer) == earlier
    buffer.add(make_step(earlier, 2.0))  # it can go on
    with pytest.raises(ValueError, match="must be finite"):
        buffer.extend(torch.stack([make_step(earlier + 1, 1.0), make_step(earlier + 2, reward)]))
    assert len(buffer) == earlier + 1
