"""Sweeps by Hydra's launchers: one job that fails does not end them, and joblib's processes find the recipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from recipes import command_line
from recipes.schema import SACRecipeConfig
from tests.recipes.running import RECIPES, SMALL

JOBS = ["-m", "sac.batch_size=0,8", "threads=1", "algo=rad", "evaluation.video=false", *SMALL]
DOT = ["env=gym", "env.id=tests.recipes.tiny_envs:Dot-v0"]


@pytest.mark.parametrize("arguments", [["hydra/launcher=joblib"], ["hydra.launcher.n_jobs=2", "hydra/sweeper=basic"]])
def test_hydras_own_groups_are_passed_on(arguments: list[str]):
    assert command_line.prepare(arguments, SACRecipeConfig, command_line.config_folder("sac_mcurl")) == arguments


def sweep(folder: Path, *arguments: str, python: str | Path = sys.executable) -> str:
    """Runs a job that fails and one that does not; returns the output."""
    place = [f"hydra.sweep.dir={folder}", "hydra.sweep.subdir=batch${sac.batch_size}"]
    done = subprocess.run(
        [python, str(RECIPES / "sac_mcurl.py"), *JOBS, *DOT, *place, *arguments],
        cwd=folder,  # not where the recipes are
        env={**os.environ, "PYTHONPATH": str(RECIPES.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 1, done.stderr
    assert json.loads((folder / "batch8" / "result.json").read_text())["finished"]
    assert not (folder / "batch0" / "result.json").exists()
    assert "Traceback" not in done.stderr and "Traceback" in (folder / "batch0" / "error.log").read_text()
    return done.stderr


def test_a_failing_job_does_not_end_a_sweep(tmp_path: Path):
    said = sweep(tmp_path)
    assert said.count("ValueError: sac.batch_size=0; it must be at least 1") == 2  # when it failed, and at the end
    assert "the sweep is over; not all of its jobs were finished. The first that failed:\nValueError" in said


@pytest.fixture(scope="module")
def python_with_joblib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of a new venv with Hydra's joblib launcher, which borrows the rest from the running environment."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    command = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    (site / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*install, "hydra-joblib-launcher==1.2.0", "joblib"], check=True)
    return python


@pytest.mark.slow
def test_jobs_in_processes_of_joblib(python_with_joblib: Path, tmp_path: Path):
    said = sweep(tmp_path, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", python=python_with_joblib)
    assert "the sweep is over; not all of its jobs were finished. The first that failed:\nValueError" in said
