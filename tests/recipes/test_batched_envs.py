"""collector.envs_per_worker: several environments that act in one forward pass, in runs of the recipes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from mcurl_torchrl import FrameReplayBuffer
from mcurl_torchrl.agents import RainbowAgent, SACAgent
from mcurl_torchrl.training import Checkpoints, RunDirectory
from recipes.resuming import comparable, differences, saved_config
from tests.recipes.running import RECIPES, SMALL, settings, train
from tests.recipes.test_resume import assert_same_run
from tests.warm_start import run_python

AGENTS = {"sac_mcurl": SACAgent, "rainbow_mcurl": RainbowAgent}
BATCHED = [*SMALL, "collector.envs_per_worker=5", "objective.slice_len=3", "checkpoint.interval_agent_steps=20"]
SETTINGS = {
    "sac_mcurl": [
        *BATCHED,
        *("env=gym", "env.id=tests.recipes.tiny_envs:Dot-v0", "env.image_size=36", "env.num_frames=2"),
        *("total_env_steps=50", "evaluation.interval_env_steps=50", "sac.random_agent_steps=20"),
        "sac.updates_per_agent_step=2",
    ],
    "rainbow_mcurl": [
        *BATCHED,
        *("env=RoadRunner", "total_env_steps=50", "evaluation.interval_env_steps=50", "evaluation.final_episodes=1"),
        *("rainbow.first_update_agent_steps=23", "rainbow.target_interval_agent_steps=6"),
    ],
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("recipe", SETTINGS)
def test_every_agent_step_has_its_updates(recipe: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    events: list[tuple[str, int]] = []
    agent, buffers = AGENTS[recipe], []
    update, explore, extend = agent.update, agent.explore, FrameReplayBuffer.extend

    def watch_update(self, *args, **kwargs):
        events.append(("update", 1))
        return update(self, *args, **kwargs)

    def watch_explore(self, observation):
        events.append(("act", len(observation)))
        return explore(self, observation)

    def watch_extend(self, *args, **kwargs):
        buffers.append(self)
        return extend(self, *args, **kwargs)

    monkeypatch.setattr(agent, "update", watch_update)
    monkeypatch.setattr(agent, "explore", watch_explore)
    monkeypatch.setattr(FrameReplayBuffer, "extend", watch_extend)
    train(tmp_path / "run", *SETTINGS[recipe], recipe=recipe)
    # A round of five is followed by the updates of five agent steps; the first update is at step 21, or 23.
    rounds = {"sac_mcurl": [0] * 4 + [10] * 6, "rainbow_mcurl": [0] * 4 + [3] + [5] * 5}[recipe]
    expected = [event for updates in rounds for event in [("act", 5), *[("update", 1)] * updates]]
    assert events == expected
    assert buffers[0].writer._write_count == 50


@pytest.mark.parametrize("recipe", SETTINGS)
def test_stopped_inside_a_round_and_resumed(recipe: str, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", *SETTINGS[recipe], recipe=recipe)
    words = [recipe, "terminate", "38", str(tmp_path / "run"), *SETTINGS[recipe]]
    assert run_python("-m", "tests.recipes.dying_run", *words, cwd=RECIPES.parent).returncode == 128 + signal.SIGTERM
    assert Checkpoints(tmp_path / "run" / "checkpoints").latest().step == 38
    resumed = train(tmp_path / "run", *SETTINGS[recipe], f"resume='{tmp_path / 'run'}'", recipe=recipe)
    assert_same_run(resumed, whole)


def test_a_run_from_before_there_were_collectors_has_the_default_one(tmp_path: Path) -> None:
    now = comparable(settings(*SMALL))
    before = {key: value for key, value in now.items() if key != "collector"}
    directory = RunDirectory(tmp_path)
    directory.write_config(OmegaConf.to_yaml(before))
    assert list(differences(saved_config(directory), now)) == []
    several = comparable(settings(*SMALL, "collector.envs_per_worker=5"))
    assert [key for key, _ in differences(saved_config(directory), several)] == ["collector.envs_per_worker"]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("collector.envs_per_worker=4", "collector.envs_per_worker=4 must divide them"),
        ("replay.capacity=1001", "replay.capacity=1001; it must be a multiple of 5"),
        ("collector.envs_per_worker=0", "collector.envs_per_worker=0; it must be at least 1"),
        ("rainbow.first_update_agent_steps=19", "first_update_agent_steps=19; it must be at least 20"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(setting: str, said: str, tmp_path: Path) -> None:
    with pytest.raises((SystemExit, Exception), match=said):
        train(tmp_path / "run", *SETTINGS["rainbow_mcurl"], setting, recipe="rainbow_mcurl")
