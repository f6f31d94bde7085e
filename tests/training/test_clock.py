"""How long parts of a run take, and the hint for a run that would take too long."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from mcurl_torchrl.modules import GaussianPolicy
from mcurl_torchrl.training import RunPlan, TrainingRun, tables
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


def test_a_row_has_the_times_of_the_steps_since_the_last_row(
    now: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also the first row of a run that is resumed between two rows."""
    plan = RunPlan("timed", 1, 400, evaluation_interval=10_000, checkpoint_interval=10_000, log_interval=100)
    monkeypatch.setattr(TrainingRun, "evaluate", lambda run, *args: setattr(run, "_evaluation_due", False))

    def go(resume: bool, stop_at: int) -> None:
        run = TrainingRun(tmp_path, plan, resume=resume, progress=False)
        run.track(GaussianPolicy([4], 1, hidden_dim=4))
        if not resume:
            run.directory.write_manifest()
        run.begin(lambda observations: observations, make_categorical())
        for step in run.agent_steps():
            spend(run._clock, "env", 0.002, now)
            run.finish_step(step, lambda observations: observations, [])
            if step == stop_at:
                run.stop.signal_name = "SIGTERM"

    go(resume=False, stop_at=290)
    go(resume=True, stop_at=-1)
    rows = tables.read(tmp_path / "metrics.csv")
    assert [row["step"] for row in rows] == [100, 200, 300, 400]
    assert [row["milliseconds_env"] for row in rows] == pytest.approx([2.0] * 4)


# 7.3 seconds for each step that is left, or 0.2 and four times 7.1. There are 8,990 after the first ten updates, 8,997
# after three steps with four each; of a resumed run it is said at once.
@pytest.mark.parametrize(
    ("resumed", "updates", "hours"), [(False, 1, 18), (True, 1, 18), (False, 4, 71), (True, 4, 71)]
)
def test_a_run_that_takes_too_long_says_so_once(
    resumed: bool, updates: int, hours: int, now: list[float], tmp_path: Path, capsys
):
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
        for part, seconds in (("env", 0.2), *updates * (("sample", 0.1), ("update", 7.0))):
            for _ in range(1000):
                spend(before, part, seconds, now)
        run._clock.load_state_dict(before.state_dict())
    run.begin(lambda observations: torch.zeros(len(observations), dtype=torch.long), make_categorical())
    for step in run.agent_steps():
        spend(run._clock, "env", 0.2, now)
        if step > 1000:  # random actions first
            for part, seconds in updates * (("sample", 0.1), ("update", 7.0)):
                spend(run._clock, part, seconds, now)
            run.record(step, {"loss_auxiliary": 0.0})
        if step > 1012:
            break
    said = [line for line in capsys.readouterr().err.splitlines() if "buy a GPU" in line]
    assert said == [f"at this speed the run takes about {hours} more hours: buy a GPU"]
