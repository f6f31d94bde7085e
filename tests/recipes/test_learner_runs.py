"""Whole runs with sample_ahead, bfloat16 and compile: two runs are equal, and a resumed run is equal to them."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from mcurl_torchrl.training import RunDirectory
from recipes.command_line import BadCommand
from recipes.old_settings import CAME_LATER
from recipes.resuming import comparable, prepare_directory
from tests.recipes.running import RECIPES, settings, train
from tests.recipes.test_resume import SETTINGS, assert_same_run
from tests.warm_start import run_python

PPO = ["preset=smoke", "env=RoadRunner", "logging.tensorboard=false", "evaluation.video=false"]
LINES = {**SETTINGS, "ppo_mcurl": PPO}
AHEAD = ["sample_ahead=2", "precision=bfloat16"]


def stopped_and_resumed(recipe: str, folder: Path, step: int, *more: str) -> None:
    place = [recipe, "terminate", str(step), str(folder)]
    run = run_python("-m", "tests.recipes.dying_run", *place, *LINES[recipe], *more, cwd=RECIPES.parent)
    assert run.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    "recipe",
    ["rainbow_mcurl", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sac_mcurl", "ppo_mcurl"))],
)
def test_sampling_ahead_resumes_exactly(recipe: str, tmp_path: Path) -> None:
    """With what was drawn before the stop, and is used after it."""
    whole = train(tmp_path / "whole", *LINES[recipe], *AHEAD, recipe=recipe)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sample_ahead")]
    folder = tmp_path / "run"
    stopped_and_resumed(recipe, folder, 80 if recipe == "ppo_mcurl" else 37, *AHEAD)
    resumed = train(folder, *LINES[recipe], *AHEAD, f"resume='{folder}'", recipe=recipe)
    assert_same_run(resumed, whole)


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("recipe", LINES)
def test_compiled_runs_resume_exactly(recipe: str, tmp_path: Path) -> None:
    """Compiled anew in each process, by the real compiler: the same code."""
    whole = train(tmp_path / "whole", *LINES[recipe], "compile=true", recipe=recipe)
    folder = tmp_path / "run"
    stopped_and_resumed(recipe, folder, 80 if recipe == "ppo_mcurl" else 37, "compile=true")
    torch._dynamo.reset()
    resumed = train(folder, *LINES[recipe], "compile=true", f"resume='{folder}'", recipe=recipe)
    assert_same_run(resumed, whole)


def test_settings_of_a_resumed_run(tmp_path: Path) -> None:
    """A run from before these settings goes on; compiled or not it is the same run; another precision is another."""
    directory, cpu = RunDirectory(tmp_path), torch.device("cpu")
    before = comparable(settings())
    directory.write_config(OmegaConf.to_yaml({key: value for key, value in before.items() if key not in CAME_LATER}))
    assert prepare_directory(directory, settings(), [], resume=True, device=cpu) is None
    for changed in ("precision=bfloat16", "sample_ahead=1"):
        with pytest.raises(BadCommand, match=rf"started with other settings:\n  {changed.partition('=')[0]}: "):
            prepare_directory(directory, settings(changed), [], resume=True, device=cpu)
    assert prepare_directory(directory, settings("compile=true"), [], resume=True, device=cpu) is not None
