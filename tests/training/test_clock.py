"""How long parts of a run take, and the hint for a run that would take too long."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from mcurl_torchrl.modules import GaussianPolicy
from mcurl_torchrl.training import RunPlan, TrainingRun
from mcurl_torchrl.training.clock import Clock
from tests.training.test_evaluation import make_categorical


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set by hand."""
    moment = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: moment[0])
    return moment


def spend(clock: Clock, part: str, seconds: float, now: list[float]) -> None:
    with clock.timed(part):
        now[0] += seconds


def test_a_resumed_clock_goes_on_counting(now: list[float]):
    clock, resumed = Clock(), Clock()
    clock.start()
    for seconds in (1.0, 3.0):
        spend(clock, "update", seconds, now)
    resumed.load_state_dict(clock.state_dict())
    now[0] += 100  # between two processes
    resumed.start()
    spend(resumed, "update", 5.0, now)
    assert (resumed.counts["update"], resumed.totals["update"], resumed.seconds) == (3, 9.0, 9.0)
    assert resumed.take(steps=10) == {"milliseconds_update": 500.0, "seconds": 9.0}
    assert resumed.take(steps=10) == {"seconds": 9.0}


# 7.3 seconds for each step that is left: 8,990 after the first ten updates; of a resumed run it is said at once.
@pytest.mark.parametrize(("resumed", "hours"), [(False, 18), (True, 20)])
def test_a_run_that_takes_too_long_says_so_once(resumed: bool, hours: int, now: list[float], tmp_path: Path, capsys):
    plan = RunPlan(
        name="slow",
        seed=1,
        total_agent_steps=10_000,
        evaluation_interval=10_000,
        checkpoint_interval=10_000,
        evaluation_episodes=1,
        video=False,
    )
    run = TrainingRun(tmp_path, plan, hint_when_slow="buy a GPU", progress=False)
    run.track(GaussianPolicy([4], 1, hidden_dim=4))
    if resumed:
        before = Clock()
        for part, seconds in (("env", 0.2), ("sample", 0.1), ("update", 7.0)):
            for _ in range(1000):
                spend(before, part, seconds, now)
        run._clock.load_state_dict(before.state_dict())
    run.begin(lambda observations: torch.zeros(len(observations), dtype=torch.long), make_categorical())
    for step in run.agent_steps():
        spend(run._clock, "env", 0.2, now)
        if step > 1000:  # random actions first
            for part, seconds in (("sample", 0.1), ("update", 7.0)):
                spend(run._clock, part, seconds, now)
        if step > 1012:
            break
    said = [line for line in capsys.readouterr().err.splitlines() if "buy a GPU" in line]
    assert said == [f"at this speed the run takes about {hours} more hours: buy a GPU"]
