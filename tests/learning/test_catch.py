"""The Rainbow recipe with M-CURL learns to catch a ball, and does not learn if a part of it is broken.

Returns are of 100 episodes without noise: 1 is a catch every time, about -0.6 is what a new network gets. Frozen sigmas
do not stop it here, because the other weights outgrow the noise; test_noise.py has a task where they cannot.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tensordict import TensorDictBase

from mcurl_torchrl.agents import RainbowAgent
from mcurl_torchrl.objectives import CategoricalDQNLoss
from mcurl_torchrl.training import RunDirectory
from tests.ranks_at_work import train_run
from tests.recipes.running import train
from tests.two_ranks import on_ranks

SOLVED = 0.8
SETTINGS = [
    "preset=smoke",
    "env=gym",
    "env.id=tests.learning.catch:Catch-v0",
    "env.num_frames=2",
    "env.image_size=25",
    "total_env_steps=1800",
    "rainbow.hidden_dim=128",
    "rainbow.value_bounds=[-1.5,1.5]",
    "rainbow.sigma_init=0.5",
    "rainbow.n_step=2",  # of six: the rest has to come by the target network
    "rainbow.batch_size=64",
    "rainbow.lr=1e-3",
    "rainbow.first_update_agent_steps=200",
    "rainbow.target_interval_agent_steps=50",
    "objective.num_slices=4",
    "objective.slice_len=6",
    "replay.capacity=4000",
    "evaluation.interval_env_steps=1800",
    "evaluation.episodes=10",
    "evaluation.final_episodes=100",
    "evaluation.num_envs=10",
    "evaluation.video=false",
    "checkpoint.interval_agent_steps=10000",
    "logging.interval_agent_steps=100",
    "logging.tensorboard=false",
]


def learn(folder: Path, seed: int) -> float:
    directory = train(folder / "run", *SETTINGS, f"seed={seed}", recipe="rainbow_mcurl")
    return json.loads(directory.result.read_text())["final_return"]


def test_it_learns(tmp_path: Path) -> None:
    assert learn(tmp_path, seed=1) >= SOLVED


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_it_learns_with_other_seeds(seed: int, tmp_path: Path) -> None:
    assert learn(tmp_path, seed) >= SOLVED


@pytest.mark.slow
def test_it_learns_on_two_ranks(tmp_path: Path) -> None:
    overrides = [*SETTINGS, "seed=1", "threads=1"]
    assert on_ranks(train_run, "rainbow_mcurl", tmp_path / "run", overrides, {}) == [0, 0]
    assert json.loads(RunDirectory(tmp_path / "run").result.read_text())["final_return"] >= SOLVED


# -- broken ------------------------------------------------------------------------------------------------------------


def never_copy_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CategoricalDQNLoss, "copy_to_target", lambda loss: None)


def shuffle_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    update = RainbowAgent.update

    def update_shuffled(agent: RainbowAgent, batch: TensorDictBase, *args: object, **options: object) -> object:
        batch["next", "reward"] = batch["next", "reward"][torch.randperm(len(batch))]
        return update(agent, batch, *args, **options)

    monkeypatch.setattr(RainbowAgent, "update", update_shuffled)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [never_copy_the_target, shuffle_rewards], ids=lambda how: how.__name__)
def test_it_does_not_learn_once_broken(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken(monkeypatch)
    assert learn(tmp_path, seed=1) < SOLVED - 0.2
