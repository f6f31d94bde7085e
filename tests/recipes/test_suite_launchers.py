"""Launchers: which there are, what is refused, and that one job that fails does not end a sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import submitit

from recipes import command_line, launchers, suite
from recipes.requeueing import requeue
from recipes.schema import PretrainConfig, SACRecipeConfig
from recipes.suites.launchers import MAKE, make_launcher
from tests.recipes.running import RECIPES, SMALL

JOBS = ["-m", "encoder.crop_size=90,12", "threads=1", "algo=rad", "evaluation.video=false", *SMALL]
DOT = ["env=gym", "env.id=tests.recipes.tiny_envs:Dot-v0"]


def prepared(*arguments: str, schema: type = SACRecipeConfig, recipe: str = "sac_mcurl") -> list[str]:
    return command_line.prepare(list(arguments), schema, command_line.config_folder(recipe))


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [["-m", "hydra/launcher=joblib"], ["hydra.launcher.n_jobs=2", "hydra/sweeper=basic"]]
)
def test_hydras_own_groups_are_passed_on(arguments: list[str]):
    assert prepared(*arguments) == arguments


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["-m", "hydra/launcher=submitit_slrm"], "did you mean submitit_slurm"),
        (["-m", "hydra/launcher=job-lib"], "did you mean joblib"),
        (["hydra/launcher=joblib"], "hydra/launcher=joblib runs the jobs of a sweep: add -m"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_launcher_that_cannot_be_used(arguments: list[str], answer: str):
    with pytest.raises(command_line.BadCommand, match=answer):
        prepared(*arguments)


def test_a_launcher_that_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(launchers.INSTALL, "abacus", "pip install -e '.[cluster]'")
    answer = r"hydra/launcher=abacus is not installed; to install it: pip install -e '.\[cluster\]'"
    with pytest.raises(command_line.BadCommand, match=answer):
        prepared("-m", "hydra/launcher=abacus")


def test_all_launchers_have_an_answer():
    assert {*launchers.INSTALL} | {"local"} == {*MAKE}


@pytest.mark.parametrize("name", ["submitit_local", "submitit_slurm"])
def test_a_job_that_may_be_started_again_goes_on(name: str):
    launcher = f"hydra/launcher={name}"
    assert prepared("-m", "seed=1,2", launcher) == ["-m", "seed=1,2", launcher, "resume=auto"]
    assert prepared("-m", "seed=1,2", launcher, "resume=null") == ["-m", "seed=1,2", launcher, "resume=null"]
    given = ["-m", launcher]
    assert prepared(*given, schema=PretrainConfig, recipe="pretrain") == given  # it has nothing to resume


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["launcher=slurm"], "launcher=slurm: did you mean submitit_slurm"),
        (["launcher=joblib", "launcher.n_jobs=2"], "launcher.n_jobs: launcher=joblib has no options"),
        (["launcher=submitit_local", "launcher.timeout=3"], "launcher=submitit_local cannot be used: .*timeout"),
        (["launcher=submitit_slurm"], "launcher=submitit_slurm cannot be used: .*(srun|sbatch)"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_launcher_that_a_suite_cannot_use(arguments: list[str], answer: str, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(command_line.BadCommand, match=answer):
        suite.main(["suite=smoke", f"suite.dir={tmp_path}", *arguments])


@pytest.mark.parametrize(("name", "module"), [("joblib", "joblib"), ("submitit_local", "submitit"), ("ray", "ray")])
def test_an_engine_that_is_not_installed(name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for loaded in [*sys.modules]:
        if loaded.partition(".")[0] == module:
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    answer = rf"launcher={name} is not installed \(.*{module}.*\); to install it: pip install -e '.\[cluster\]'"
    with pytest.raises(command_line.BadCommand, match=answer):
        make_launcher(name, jobs=1, folder=tmp_path, options={})


# -- putting a job back into the queue ---------------------------------------------------------------------------------


@pytest.fixture
def preempted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The signals that come to where submitit waits for one."""
    came: list[int] = []
    number = signal.Signals[f"SIG{submitit.JobEnvironment.USR_SIG}"]
    before = signal.signal(number, lambda number, frame: came.append(number))
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    yield came
    signal.signal(number, before)


@pytest.mark.parametrize(
    ("exit_code", "times"),
    [(143, 1), (138, 1), (140, 1), (130, 0), (129, 0), (1, 0), (None, 0), ("ValueError: no", 0)],
)
def test_what_a_scheduler_stopped_goes_back_into_the_queue(exit_code, times: int, preempted: list[int]):
    requeue(exit_code)
    assert len(preempted) == times


def test_outside_of_submitit_nothing_is_put_back(preempted: list[int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SUBMITIT_EXECUTOR")
    requeue(143)
    assert preempted == []


def test_a_process_below_a_job_has_no_queue(preempted: list[int]):
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)  # it inherits the environment, not the handler
    requeue(143)  # or it would end here


# -- sweeps ------------------------------------------------------------------------------------------------------------


def sweep(folder: Path, *arguments: str) -> str:
    """Runs a job that fails and one that does not; returns the output."""
    place = [f"hydra.sweep.dir={folder}", "hydra.sweep.subdir=crop${encoder.crop_size}"]
    done = subprocess.run(
        [sys.executable, str(RECIPES / "sac_mcurl.py"), *JOBS, *DOT, *place, *arguments],
        cwd=folder,  # not where the recipes are
        env={**os.environ, "PYTHONPATH": str(RECIPES.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 1, done.stderr
    assert json.loads((folder / "crop12" / "result.json").read_text())["finished"]
    assert not (folder / "crop90" / "result.json").exists()
    assert "Traceback" not in done.stderr and "Traceback" in (folder / "crop90" / "error.log").read_text()
    return done.stderr


def test_a_failing_job_does_not_end_a_sweep(tmp_path: Path):
    said = sweep(tmp_path)
    assert said.count("ValueError: crop_size=90; it must be between 1 and") == 2  # when it failed, and at the end
    assert "the sweep has ended, but not all jobs are finished. The first failed job:\nValueError" in said


@pytest.mark.slow
def test_jobs_in_processes_of_joblib(tmp_path: Path):
    said = sweep(tmp_path, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    assert "the sweep has ended, but not all jobs are finished. The first failed job:\nValueError" in said
