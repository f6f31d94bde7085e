"""Sweeps by Hydra's launchers whose jobs are preempted or killed: they go on by themselves, or by the same command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mcurl_torchrl.training import Checkpoints, RunDirectory
from tests.recipes.running import RECIPES, results, train
from tests.recipes.test_suite_runs import LONG, PATIENCE, finished, resumed, trains, wait_for

pytestmark = pytest.mark.slow
SETTINGS = ["env=gym", "algo=rad", *LONG, "threads=1"]
SEEDS = (1, 2)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[RunDirectory]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return [train(folder / f"seed{seed}", *SETTINGS, f"seed={seed}") for seed in SEEDS]


@pytest.fixture
def runs(tmp_path: Path) -> list[RunDirectory]:
    return [RunDirectory(tmp_path / f"seed{seed}") for seed in SEEDS]


def sweep(folder: Path, *arguments: str) -> subprocess.Popen:
    """Starts both seeds in processes of a launcher."""
    place = [f"hydra.sweep.dir={folder}", "hydra.sweep.subdir=seed${seed}"]
    return subprocess.Popen(
        [sys.executable, str(RECIPES / "sac_mcurl.py"), "-m", "seed=1,2", *SETTINGS, *place, *arguments],
        cwd=folder,
        # Ray's workers stand back for other processes (15), which makes them slow on a busy machine.
        env={**os.environ, "PYTHONPATH": str(RECIPES.parent), "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"},
        stderr=subprocess.PIPE,
        text=True,
    )


def end_of(sweep: subprocess.Popen) -> str:
    """Returns what a sweep said."""
    said = sweep.communicate(timeout=PATIENCE)[1]
    assert "Traceback" not in said
    return said


def process_of(run: RunDirectory, *, resumptions: int = 0) -> int:
    """Waits until a run trains in its first process, or in one that resumed it, has come forward; returns its pid."""

    def process() -> int | None:
        if not run.manifest.is_file() or resumed(run) < resumptions:
            return None
        begun = run.read_manifest()["resumed"][-1]["step"] if resumptions else 0
        return trains(run) if (latest := Checkpoints(run.checkpoints).latest()) and latest.step > begun else None

    return wait_for(process)


def checksums(run: RunDirectory) -> dict[str, str]:
    """Of weights, optimizers and all else in the last checkpoint but the time."""
    states = Checkpoints(run.checkpoints).latest().states
    return {name: state["sha256"] for name, state in states.items() if name != "clock"}


def assert_same(runs: list[RunDirectory], others: list[RunDirectory]) -> None:
    for run, other in zip(runs, others, strict=True):
        assert finished(run)
        assert results(run) == results(other)
        assert checksums(run) == checksums(other)


def test_jobs_of_submitit(runs: list[RunDirectory], undisturbed: list[RunDirectory], tmp_path: Path):
    launched = sweep(tmp_path, "hydra/launcher=submitit_local")
    preempted, killed = runs
    for count, number in enumerate((signal.SIGUSR2, signal.SIGTERM, signal.SIGUSR1)):
        os.kill(process_of(preempted, resumptions=count), number)
        if count == 0:
            os.kill(process_of(killed), signal.SIGKILL)
    assert "the launcher gave up waiting for the jobs: UncompletedJobError: Job " in end_of(launched)
    assert launched.returncode == 1
    assert finished(preempted) and resumed(preempted) == 3 and not finished(killed)
    again = sweep(tmp_path, "hydra/launcher=submitit_local")
    end_of(again)
    assert again.returncode == 0 and resumed(preempted) == 3 and resumed(killed) == 1
    assert_same(runs, undisturbed)


def test_jobs_of_joblib(runs: list[RunDirectory], undisturbed: list[RunDirectory], tmp_path: Path):
    arguments = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "resume=auto"]
    launched = sweep(tmp_path, *arguments)
    stopped, killed = runs
    os.kill(process_of(stopped), signal.SIGTERM)
    assert f"stopped with code 143: {stopped.path}" in end_of(launched)
    assert launched.returncode == 1 and finished(killed) and not finished(stopped)  # the other went on
    again = sweep(tmp_path, *arguments)
    os.kill(process_of(stopped, resumptions=1), signal.SIGKILL)
    assert "the launcher gave up waiting for the jobs: TerminatedWorkerError: " in end_of(again)
    assert again.returncode == 1
    last = sweep(tmp_path, *arguments)
    end_of(last)
    assert last.returncode == 0 and resumed(stopped) == 2
    assert_same(runs, undisturbed)


def test_jobs_of_ray(runs: list[RunDirectory], undisturbed: list[RunDirectory], tmp_path: Path):
    launched = sweep(tmp_path, "hydra/launcher=ray")
    stopped, killed = runs
    os.kill(process_of(killed), signal.SIGKILL)  # Ray starts it again
    os.kill(process_of(stopped), signal.SIGTERM)
    end_of(launched)
    assert launched.returncode == 1 and finished(killed) and resumed(killed) == 1 and not finished(stopped)
    again = sweep(tmp_path, "hydra/launcher=ray")
    end_of(again)
    assert again.returncode == 0 and resumed(stopped) == 1
    assert_same(runs, undisturbed)
