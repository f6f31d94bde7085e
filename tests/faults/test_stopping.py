"""A stopped run ends within a step, saves before it evaluates, and gives the same results when it is resumed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from mcurl_torchrl.training import Checkpoints, RunDirectory, catch_stop_signals
from tests.faults.stopping import EVALUATING, RUN, TRAINING, never, press, resumed, saved, stopped
from tests.recipes.faulty_envs import Faulty
from tests.recipes.running import results, train


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run that was not stopped."""
    return train(tmp_path_factory.mktemp("whole") / "run", *RUN)


# The evaluations before training and after step 20 have 40 steps each.
@pytest.mark.parametrize(
    ("name", "phase", "at", "step"),
    [
        ("SIGTERM", EVALUATING, 3, 0),
        ("SIGTERM", EVALUATING, 43, 20),
        ("SIGTERM", EVALUATING, 83, 40),
        ("SIGHUP", TRAINING, 25, 25),
        ("SIGUSR1", TRAINING, 40, 40),
    ],
)
def test_stops_at_once_and_goes_on(
    name: str, phase: bool, at: int, step: int, whole: RunDirectory, fault, tmp_path: Path
):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that were started by nohup ignore it
    fault(press(name, phase, at))
    folder = tmp_path / "run"
    assert stopped(folder) == 128 + signal.Signals[name]
    pressed = next(env for env in Faulty.made if env.trains == phase)
    assert pressed.taken == at  # not one step more
    assert max(saved(folder)) == step
    fault(never)
    assert results(resumed(folder)) == results(whole)
    assert saved(folder) == saved(whole.path)


def test_a_signal_in_the_last_step_of_an_evaluation_keeps_its_score(whole: RunDirectory, fault, tmp_path: Path):
    fault(press("SIGTERM", EVALUATING, 80))
    assert stopped(tmp_path / "run") == 143
    assert saved(tmp_path / "run")[20] == saved(whole.path)[20] is not None


def test_an_evaluation_that_failed_is_played_again(whole: RunDirectory, fault, tmp_path: Path):
    def break_down(env: Faulty, reward: float) -> float:
        if not env.trains and env.taken == 50:
            raise OSError("the cable is loose")
        return reward

    fault(break_down)
    with pytest.raises(SystemExit, match="in the evaluation after agent step 20"):
        train(tmp_path / "run", *RUN)
    fault(never)
    assert results(resumed(tmp_path / "run")) == results(whole)


def test_an_ignored_hangup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with catch_stop_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.requested
            signal.raise_signal(signal.SIGUSR1)
            assert stop.requested and stop.exit_code == 138
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_scheduler_gets_its_signal_back_afterwards():
    came = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: came.append(number))  # as submitit does
    try:
        with catch_stop_signals() as stop:
            signal.raise_signal(signal.SIGUSR2)
            assert stop.requested and stop.exit_code == 140 and came == []
        signal.raise_signal(signal.SIGUSR2)
        assert came == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_the_best_checkpoint_is_of_a_trained_policy(fault, tmp_path: Path):
    fault(lambda env, reward: reward + 100 if not env.trains and env.taken <= 40 else reward)
    run = train(tmp_path / "run", *RUN)
    assert saved(run.path)[20] is not None
    result = json.loads(run.result.read_text())
    assert result["best_env_steps"] > 0 and result["best_return"] < 100
    assert Checkpoints(run.checkpoints).best().step == result["best_env_steps"]
