"""A run of 40 agent steps, and stopping it where a test says."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from mcurl_torchrl.training import Checkpoints, RunDirectory
from tests.recipes.faulty_envs import Faulty
from tests.recipes.running import SMALL, train

# Random actions up to step 10, checkpoints after 10, 20, 30 and 40, evaluations of 2 episodes after 20 and 40.
RUN = [
    *SMALL,
    *("env=gym", "env.id=tests.recipes.faulty_envs:Faulty-v0", "algo=rad"),
    *("total_env_steps=40", "sac.random_agent_steps=10", "replay.capacity=200", "evaluation.video=false"),
    *("checkpoint.interval_agent_steps=10", "evaluation.interval_env_steps=20", "evaluation.episodes=2"),
]
TRAINING, EVALUATING = True, False


def press(name: str, phase: bool, at: int) -> Callable[[Faulty, float], float]:
    """A fault that sends a signal in a step, counted over all episodes of that environment."""

    def fault(env: Faulty, reward: float) -> float:
        if env.trains == phase and env.taken == at:
            os.kill(os.getpid(), signal.Signals[name])
        return reward

    return fault


def never(env: Faulty, reward: float) -> float:
    return reward


def stopped(folder: Path, *overrides: str) -> int:
    """Trains until a signal stops it; returns the exit code."""
    with pytest.raises(SystemExit) as ended:
        train(folder, *RUN, *overrides)
    assert isinstance(ended.value.code, int), ended.value
    return ended.value.code


def resumed(folder: Path, *overrides: str) -> RunDirectory:
    return train(folder, *RUN, *overrides, f"resume='{folder}'")


def saved(folder: Path) -> dict[int, float | None]:
    """The scores of the checkpoints, by step."""
    return {found.step: found.score for found in Checkpoints(folder / "checkpoints").list()}
