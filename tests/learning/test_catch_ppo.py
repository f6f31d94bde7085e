"""The PPO recipe learns to catch a ball, alone and with M-CURL, and does not from the rewards of other steps.

Returns are of 100 episodes without chance: 1 is a catch every time, about -0.6 is what a new network gets.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tensordict import TensorDictBase

from mcurl_torchrl.objectives import LatentPPO
from tests.recipes.running import train

SOLVED = 0.8
STEPS = 7168  # enough for the first seed; others take up to twice as many
SETTINGS = [
    "preset=smoke",
    "env=gym",
    "env.id=tests.learning.catch:Catch-v0",
    "env.num_frames=2",
    "env.image_size=25",
    "ppo.architecture=data_efficient",
    "ppo.hidden_dim=128",
    "ppo.num_envs=8",
    "ppo.rollout_len=32",
    "ppo.minibatch_size=64",
    "ppo.epochs=4",
    "ppo.lr=2e-3",
    "ppo.clip_epsilon=0.2",
    "replay.capacity=8000",
    "evaluation.episodes=10",
    "evaluation.final_episodes=100",
    "evaluation.num_envs=10",
    "evaluation.sample=false",
    "evaluation.video=false",
    "checkpoint.interval_agent_steps=10000",
    "logging.interval_agent_steps=1000",
    "logging.tensorboard=false",
]
ALGOS = {"ppo": ["algo=ppo"], "mcurl": ["algo=mcurl", "objective.num_slices=4", "objective.slice_len=6"]}


def learn(folder: Path, algo: str, seed: int, steps: int = STEPS) -> float:
    length = [f"total_env_steps={steps}", f"evaluation.interval_env_steps={steps}"]
    directory = train(folder / "run", *SETTINGS, *ALGOS[algo], *length, f"seed={seed}", recipe="ppo_mcurl")
    return json.loads(directory.result.read_text())["final_return"]


@pytest.mark.parametrize("algo", [pytest.param("ppo", marks=pytest.mark.slow), "mcurl"])
def test_it_learns(algo: str, tmp_path: Path) -> None:
    assert learn(tmp_path, algo, seed=1) >= SOLVED


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("algo", ALGOS)
def test_it_learns_with_other_seeds(algo: str, seed: int, tmp_path: Path) -> None:
    assert learn(tmp_path, algo, seed, 2 * STEPS) >= SOLVED


@pytest.mark.slow
def test_it_does_not_learn_from_the_rewards_of_other_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    estimate = LatentPPO.estimate

    def estimate_shuffled(losses: LatentPPO, rollout: TensorDictBase) -> TensorDictBase:
        rewards = rollout["next", "reward"]
        shuffled = rewards.flatten()[torch.randperm(rewards.numel())].view_as(rewards)
        rollout["next", "reward"] = shuffled
        return estimate(losses, rollout)

    monkeypatch.setattr(LatentPPO, "estimate", estimate_shuffled)
    assert learn(tmp_path, "mcurl", seed=1) < SOLVED - 0.2
