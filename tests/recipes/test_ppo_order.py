"""The order of things in the PPO recipe's loop: steps, the replay, advantages, updates, slow copies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcurl_torchrl import FrameReplayBuffer
from mcurl_torchrl.agents import PPOAgent
from mcurl_torchrl.objectives import LatentPPO, MaskedContrastiveTask
from mcurl_torchrl.training import TrainingRun
from tests.recipes.running import SMALL, train

ENVS, TOTAL = 2, 48  # two rollouts of ten steps in both environments, and one of four


@pytest.mark.parametrize("phase", [0, 3])
def test_steps_come_in_the_published_order(phase: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    events: list[str] = []
    for owner, method, event in (
        (TrainingRun, "begin", "begin"),
        (PPOAgent, "begin_step", "anneal"),
        (PPOAgent, "explore", "act"),
        (FrameReplayBuffer, "extend", "store"),
        (LatentPPO, "estimate", "estimate"),
        (FrameReplayBuffer, "sample", "batch"),  # which a task that reads slices has no use for
        (MaskedContrastiveTask, "sample", "sample"),
        (LatentPPO, "loss", "ppo"),
        (MaskedContrastiveTask, "forward", "auxiliary"),
        (MaskedContrastiveTask, "update_targets", "move"),
        (TrainingRun, "finish_step", "finish"),
    ):
        note(monkeypatch, owner, method, event, events)
    overrides = ["env=gym", "env.id=tests.learning.catch:Catch-v0", "objective.slice_len=6", "ppo.rollout_len=10"]
    overrides += ["ppo.minibatch_size=10", f"total_env_steps={TOTAL}", f"evaluation.interval_env_steps={TOTAL}"]
    overrides += [f"ppo.auxiliary_phase={phase}"]
    train(tmp_path / "run", *SMALL, *overrides, "evaluation.video=false", recipe="ppo_mcurl")
    assert events[events.index("begin") + 1 :] == list(expected_events(phase))


def expected_events(phase: int) -> Iterator[str]:
    for length in (10, 10, 4):
        yield "anneal"
        yield from ["act"] * length  # once for both environments
        yield from ("store", "estimate")
        for _ in range(2 * (2 if length == 10 else 1)):  # epochs times minibatches: 20 steps are 10 + 10, 8 are 8
            yield from ("sample", "ppo", "auxiliary", "move")
        for _ in range(phase):  # of the task alone, once a rollout
            yield from ("sample", "auxiliary", "move")
        yield "finish"


def note(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, event: str, events: list[str]) -> None:
    original = getattr(owner, method)

    def noted(*args: Any, **kwargs: Any) -> Any:
        events.append(event)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, method, noted)
