"""docs/extending.md, followed in a copy of the project: files are added, none is edited, and all of it is trained."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import torch

from mcurl_torchrl import load_policy
from mcurl_torchrl.training import tables
from tests.warm_start import run_python

REPO = Path(__file__).parents[2]
PAGE = (REPO / "docs" / "extending.md").read_text(encoding="utf-8")
QUICK = ["threads=1", "logging.tensorboard=false", "evaluation.video=false", "evaluation.episodes=1"]
MY_ENV = """
import gymnasium
import numpy as np


class MyEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        image = self.np_random.integers(256, size=(36, 36, 3), dtype=np.uint8)
        return image, float(action[0]), False, self.steps == 40, {}


gymnasium.register("MyEnv-v0", MyEnv)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the files of the page, each named in its first line."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("mcurl_torchrl", "recipes"):
        shutil.copytree(REPO / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    files = re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(files) == 5
    for name, content in files:
        path = folder / name
        assert not path.exists(), f"{name} exists: the page must add files only"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (folder / "my_module.py").write_text(MY_ENV)
    return folder


def run(project: Path, script: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"}
    done = run_python(f"recipes/{script}.py", *arguments, cwd=project, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("recipe", ["sac_mcurl", "rainbow_mcurl"])
def test_a_new_objective_takes_a_source_file_and_a_yaml(project: Path, tmp_path: Path, recipe: str):
    env = {"sac_mcurl": "env=my_env", "rainbow_mcurl": "env=RoadRunner"}[recipe]
    folder = tmp_path / "run"
    said = run(project, recipe, "preset=smoke", "algo=order", env, *QUICK, f"hydra.run.dir={folder}")
    last = tables.read(folder / "metrics.csv")[-1]
    assert 0 <= last["order_accuracy"] <= 1 and last["loss_auxiliary"] > 0
    assert "order accuracy" in said  # the progress shows what the task says
    if recipe == "sac_mcurl":
        assert tables.read(folder / "eval.csv")[-1]["length"] == 20  # the environment's file: two steps at a time


def test_a_new_objective_has_hints_for_misspelt_keys(project: Path):
    settings = ["algo=order", "objective.slice_lenn=4"]
    environment = {**os.environ, "PYTHONPATH": str(project)}
    done = run_python("recipes/sac_mcurl.py", *settings, cwd=project, environment=environment)
    assert done.returncode != 0 and "did you mean objective.slice_len" in done.stderr


def test_a_new_agent_takes_a_script_and_a_config_folder(project: Path, tmp_path: Path):
    folder = tmp_path / "run"
    small = ["total_env_steps=60", "dqn.first_update_step=30", "env.image_size=36", "env.max_emulator_frames=200"]
    small += ["objective.slice_len=8", "evaluation.interval_env_steps=30", "checkpoint.interval_agent_steps=20"]
    small += ["replay.capacity=500", "logging.interval_agent_steps=10"]
    run(project, "dqn_mcurl", "env=Breakout", *small, *QUICK, f"hydra.run.dir={folder}")
    last = tables.read(folder / "metrics.csv")[-1]
    assert last["loss_value"] > 0 and "contrastive_accuracy" in last
    more = run(project, "dqn_mcurl", f"resume={folder}", "total_env_steps=90", "resume_changed=true")
    assert "finished" in more and tables.read(folder / "metrics.csv")[-1]["step"] == 90
    run(project, "evaluate", f"run={folder}", "episodes=1", "video=false", f"hydra.run.dir={tmp_path / 'evaluation'}")
    # Objectives for which other recipes have a file in their own folder algo/, too.
    small.remove("objective.slice_len=8")
    run(project, "dqn_mcurl", "env=Breakout", *small, *QUICK, "algo=curl", f"hydra.run.dir={tmp_path / 'curl'}")
    assert tables.read(tmp_path / "curl" / "eval.csv")


def test_the_environment_of_the_tutorial_is_trained_by_its_command(tmp_path: Path):
    page = (REPO / "docs" / "tutorials" / "environment.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)\n\n\nenv = ", page, re.DOTALL)[1]
    register = re.search(r"`(gym\.register\(.*?\))`", page)[1]
    (tmp_path / "my_module.py").write_text(f"{code}\n\n\n{register}\n")
    command = re.search(r"^python recipes/rainbow_mcurl.py (.*Catch.*)$", page, re.MULTILINE)[1]
    small = ["total_env_steps=120", "rainbow.first_update_agent_steps=100", "evaluation.final_episodes=1", "threads=1"]
    folder = tmp_path / "run"
    arguments = [*command.split(), *small, *QUICK[1:], f"hydra.run.dir={folder}"]
    done = run_python(str(REPO / "recipes" / "rainbow_mcurl.py"), *arguments, cwd=tmp_path, environment={**os.environ})
    assert done.returncode == 0, done.stderr
    assert tables.read(folder / "eval.csv")[-1]["length"] == 11


def test_a_policy_of_an_unknown_agent_is_named(project: Path, tmp_path: Path):
    from mcurl_torchrl.modules import Policy
    from mcurl_torchrl.training import Checkpoints, describe_policy

    class Unknown(Policy):
        def __init__(self) -> None:
            super().__init__()
            self.settings = {}
            self.weight = torch.nn.Parameter(torch.zeros(1))

    info = {"policy": describe_policy(Unknown(), num_frames=1)}
    Checkpoints(tmp_path / "checkpoints").save(1, components={"policy": Unknown()}, info=info)
    load_policy(tmp_path)
    del Policy.kinds["Unknown"]
    with pytest.raises(ValueError, match=r"a policy of the kind 'Unknown'; known are \[.*import the module"):
        load_policy(tmp_path)
