"""collector.backend=process in runs of the recipes: trained to the end, stopped and resumed, workers lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from tensordict import TensorDictBase

from mcurl_torchrl.agents import RainbowAgent, SACAgent
from mcurl_torchrl.training import Checkpoints, WorkerLost, WorkerRollouts, WorkerSource
from tests.recipes.running import RECIPES, SMALL, results, train
from tests.recipes.test_resume import states_of
from tests.warm_start import run_python

WORKERS = ["collector.backend=process", "collector.num_workers=2", "collector.fragment_agent_steps=4"]
SETTINGS = {
    "sac_mcurl": [
        *(*SMALL, *WORKERS, "objective.slice_len=3", "checkpoint.interval_agent_steps=20"),
        *("env=gym", "env.id=tests.recipes.tiny_envs:Dot-v0", "env.image_size=36", "env.num_frames=2"),
        *("total_env_steps=90", "evaluation.interval_env_steps=90", "sac.random_agent_steps=20"),
    ],
    "rainbow_mcurl": [
        *(*SMALL, *WORKERS, "objective.slice_len=3", "checkpoint.interval_agent_steps=20"),
        *("env=Breakout", "total_env_steps=90", "evaluation.interval_env_steps=90", "evaluation.final_episodes=1"),
        *("collector.envs_per_worker=2", "rainbow.first_update_agent_steps=20", "rainbow.epsilon_begin=0.5"),
    ],
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("recipe", SETTINGS)
def test_trains_to_the_end(recipe: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    agent = {"sac_mcurl": SACAgent, "rainbow_mcurl": RainbowAgent}[recipe]
    updates, sources = [], []
    update, collect = agent.update, WorkerSource.collect
    monkeypatch.setattr(agent, "update", lambda self, *a, **k: updates.append(1) or update(self, *a, **k))
    monkeypatch.setattr(WorkerSource, "collect", lambda self, step: sources.append(self) or collect(self, step))
    directory = train(tmp_path / "run", *SETTINGS[recipe], recipe=recipe)
    assert len(updates) == {"sac_mcurl": 70, "rainbow_mcurl": 71}[recipe]
    assert [row["step"] for row in results(directory)["metrics"]] == list(range(10, 91, 10))
    assert states_of(directory.path)["stream"]["written"] == 90
    assert sources[0]._workers is None  # ended with the run


def test_stopped_and_resumed(tmp_path: Path) -> None:
    settings = SETTINGS["sac_mcurl"]
    words = ["sac_mcurl", "terminate", "38", str(tmp_path / "run"), *settings]
    ended = run_python("-m", "tests.recipes.dying_run", *words, cwd=RECIPES.parent)
    assert ended.returncode == 128 + signal.SIGTERM, ended.stderr
    assert Checkpoints(tmp_path / "run" / "checkpoints").latest().step == 38
    written = states_of(tmp_path / "run")["stream"]["written"]
    assert 38 <= written <= 38 + 3 * 4
    resumed = train(tmp_path / "run", *settings, f"resume='{tmp_path / 'run'}'")
    assert states_of(resumed.path)["stream"]["written"] == 90


def test_without_workers_it_stops_with_a_checkpoint_and_goes_on_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    collect, settings = WorkerSource.collect, SETTINGS["sac_mcurl"]

    def collect_and_kill(self: WorkerSource, step: int) -> None:
        if step == 31:
            for worker in self._workers._workers.values():
                os.kill(worker.collector.procs[0].pid, signal.SIGKILL)
        collect(self, step)

    with monkeypatch.context() as patch, pytest.warns(WorkerLost):
        patch.setattr(WorkerSource, "collect", collect_and_kill)
        with pytest.raises(SystemExit, match="EnvironmentFailed: no worker is left of 2.*\n.*\nto resume from the"):
            train(tmp_path / "run", *settings)
    assert Checkpoints(tmp_path / "run" / "checkpoints").latest().step >= 30
    resumed = train(tmp_path / "run", *settings, f"resume='{tmp_path / 'run'}'")
    assert states_of(resumed.path)["stream"]["written"] == 90


def test_ppo_takes_its_rollouts_in_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rollouts, rollout = [], WorkerRollouts.rollout
    steps = ["total_env_steps=120", "ppo.num_envs=4", "ppo.rollout_len=10", "evaluation.interval_env_steps=120"]
    settings = [*SMALL, *WORKERS[:2], *steps, "env=gym", "env.id=tests.recipes.tiny_envs:Dot-v0", "env.image_size=36"]
    settings += ["evaluation.sample=false", "env.num_frames=2"]

    def watch(self: WorkerRollouts, *args: object) -> TensorDictBase:
        rollouts.append(rollout(self, *args))
        return rollouts[-1]

    monkeypatch.setattr(WorkerRollouts, "rollout", watch)
    directory = train(tmp_path / "run", *settings, recipe="ppo_mcurl")
    assert [taken.shape for taken in rollouts] == [(4, 10)] * 3
    before, after = rollouts[0], rollouts[1]  # each environment goes on where it was
    goes_on = ~before["next", "done"][:, -1, 0]
    assert torch.equal(before["next", "pixels"][:, -1][goes_on], after["pixels"][:, 0][goes_on])
    assert states_of(directory.path)["streams"]["taken"] == 3
    with pytest.raises((SystemExit, Exception), match="collector.num_workers=3 must divide ppo.num_envs=4"):
        train(tmp_path / "other", *settings, "collector.num_workers=3", recipe="ppo_mcurl")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("collector.backend=inline", "collector.num_workers=2 needs collector.backend=process or ray"),
        ("collector.num_workers=0", "collector.num_workers=0; it must be at least 1"),
        ("collector.timeout_seconds=0", "collector.timeout_seconds=0.0; it must be above 0"),
        ("replay.capacity=1001", "replay.capacity=1001; it must be a multiple of 2"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(setting: str, said: str, tmp_path: Path) -> None:
    with pytest.raises((SystemExit, Exception), match=said):
        train(tmp_path / "run", *SETTINGS["sac_mcurl"], setting)
