"""Help and wrong settings are answered before torch is imported, which takes seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from recipes import schema
from recipes.early_answers import choices_of

RECIPES = Path(schema.__file__).parent
# The script as it is started from a shell; then whether it imported torch on the way.
PROGRAM = """
import runpy, sys
script, sys.argv = sys.argv[1], sys.argv[1:]
try:
    runpy.run_path(script, run_name="__main__")
finally:
    print("torch" if "torch" in sys.modules else "no torch")
"""


def start(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(RECIPES / f"{script}.py"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("script", "argument"),
    [
        ("sac_mcurl", "--help"),
        ("rainbow_mcurl", "-h"),
        ("evaluate", "--help"),
        ("report", "--help"),
        ("suite", "--help"),
    ]
    + [("rainbow_mcurl", "--cfg=job"), ("sac_mcurl", "--hydra-help")],
)
def test_help_needs_no_torch(tmp_path: Path, script: str, argument: str) -> None:
    done = start(tmp_path, script, *argument.split("="))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "no torch" and len(done.stdout) > 300
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        ("sac_mcurl", "seeed=3", "there is no setting 'seeed'; did you mean seed"),
        ("rainbow_mcurl", "env=MsPackman", "env=MsPackman: did you mean MsPacman"),
        ("sac_mcurl", "preset=huge", "preset=huge: choose one of cpu, paper, smoke"),
        ("sac_mcurl", "-m seed=1,2 algo=mcurl,crul", "algo=crul: did you mean"),
        ("sac_mcurl", "sac.alpha_loss=beta", "sac.alpha_loss='beta'; choose one of ['alpha', 'log_alpha']"),
        (
            "rainbow_mcurl",
            "rainbow.loss=quantile",
            "rainbow.loss='quantile'; choose one of ['categorical'",
        ),
        ("sac_mcurl", "seed=first", "Value 'first' of type 'str' could not be converted to Integer"),
        ("evaluate", "run=here episodess=3", "there is no setting 'episodess'; did you mean episodes"),
        ("sac_mcurl", "sac.lr=-1", "sac.lr=-1.0; it must be at least 0 and finite"),
        ("rainbow_mcurl", "objective.coeff=nan", "objective.coeff=nan; it must be at least 0 and finite"),
        ("sac_mcurl", "replay.capacity=0", "replay.capacity=0; it must be at least 1"),
        ("evaluate", "episodes=3", "evaluate.py: run=RUN_DIR is needed"),
        ("probe", "", "probe.py: encoders=FILE is needed"),
        ("report", "out=here", "report.py: runs=DIR is needed"),
        ("report", "tittle=x", "there is no setting 'tittle'; did you mean title"),
        ("suite", "suite=smok", "suite=smok: did you mean smoke"),
        ("suite", "suite=smoke job=2", "job=2: there is no such option; did you mean jobs"),
        ("sac_mcurl", "env=gym", "env=gym needs env.id"),
        ("sac_mcurl", "env.id=CartPole-v1", "env.id=CartPole-v1 needs env=gym; without it, cartpole-swingup would be"),
        ("rainbow_mcurl", "env.task=humanoid-run", "env.task=humanoid-run needs env=dmc"),
        ("sac_mcurl", "threads=0", "threads=0; it must be at least 1"),
        ("pretrain", "seed=-1", "seed=-1; it must be at least 0"),
        ("rainbow_mcurl", "evaluation.num_envs=0", "evaluation.num_envs=0; it must be at least 1"),
        ("ppo_mcurl", "total_env_steps=0", "total_env_steps=0; it must be at least 1, one agent step"),
        (
            "sac_mcurl",
            "env=gym env.id=Some-v0 algo=state_sac",
            "env.observation=state, which algo=state_sac sets, is for",
        ),
    ],
)
def test_a_wrong_setting_needs_no_torch(tmp_path: Path, script: str, arguments: str, said: str) -> None:
    done = start(tmp_path, script, *arguments.split())
    assert done.returncode == 1
    assert said in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == "no torch\n"
    assert list(tmp_path.iterdir()) == []


def test_every_list_of_choices_has_the_default() -> None:
    listed = dict(choices_of(schema.SACRecipeConfig)) | dict(choices_of(schema.RainbowRecipeConfig))
    assert listed["env.interpolation"] == ("bilinear", "area") and listed["sac.alpha_loss"] == ("alpha", "log_alpha")
    assert schema.EnvConfig().observation == "pixels" and schema.RainbowConfig().architecture == "data_efficient"


def test_a_missing_opengl_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "nosuchgl")
    done = start(tmp_path, "sac_mcurl", "preset=smoke")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("sac_mcurl.py: MUJOCO_GL=nosuchgl: mujoco, which TorchRL imports, cannot load")
