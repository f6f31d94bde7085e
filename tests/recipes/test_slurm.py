"""Jobs in the queue of a real Slurm: preempted, cancelled, killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mcurl_torchrl.training import RunDirectory
from tests.recipes.one_node_slurm import one_node_slurm
from tests.recipes.running import RECIPES
from tests.recipes.test_launcher_faults import SETTINGS, assert_same, process_of, undisturbed  # noqa: F401
from tests.recipes.test_suite_runs import LONG, experiment, finished, resumed, run_of, wait_for, write

pytestmark = pytest.mark.slow
PATIENCE = 600


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with one_node_slurm(tmp_path_factory.mktemp("slurm")) as env:
        yield {**env, "PYTHONPATH": str(RECIPES.parent), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def start(slurm: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts a command, which is ended with the test."""
    with contextlib.ExitStack() as stack:

        def popen(command: list[str]) -> subprocess.Popen:
            process = stack.enter_context(
                subprocess.Popen(command, env=slurm, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            return process

        yield popen


def states(env: dict[str, str]) -> list[str]:
    """Of all jobs that are waiting or running."""
    return subprocess.check_output(["squeue", "--noheader", "--format=%T"], env=env, text=True).split()


def test_a_preempted_job_requeues_itself_and_a_cancelled_one_does_not(slurm, start, undisturbed, tmp_path: Path):  # noqa: F811
    place = [f"hydra.sweep.dir={tmp_path}", "hydra.sweep.subdir=seed${seed}"]
    launcher = ["hydra/launcher=submitit_slurm", "hydra.launcher.partition=low"]
    command = [sys.executable, str(RECIPES / "sac_mcurl.py"), "-m", "seed=1", *SETTINGS, *place, *launcher]
    run = RunDirectory(tmp_path / "seed1")

    launched = start(command)
    process_of(run)
    subprocess.run(["scancel", "--user", str(os.getuid())], env=slurm, check=True)
    wait_for(lambda: not states(slurm))  # it has saved, and did not come back
    launched.kill()
    launched.wait()
    assert not finished(run)

    launched = start(command)
    process_of(run, resumptions=1)
    everything = ["sbatch", "--partition=high", "--exclusive", "--output=/dev/null", "--wrap=true"]
    subprocess.run(everything, env=slurm, check=True)
    assert launched.wait(PATIENCE) == 0  # Slurm lets a job that was requeued wait for two minutes
    assert resumed(run) == 2
    assert_same([run], undisturbed[:1])


def test_a_suite(slurm, start, undisturbed, tmp_path: Path):  # noqa: F811
    suite = write(tmp_path, experiment(LONG, [1, 2]))
    command = [sys.executable, str(RECIPES / "suite.py"), *suite, "launcher=submitit_slurm"]
    killed, stopped = runs = [run_of(tmp_path, f"rad-seed{seed}") for seed in (1, 2)]
    launched = start([*command, "jobs=2"])
    os.kill(process_of(killed), signal.SIGKILL)
    process_of(killed, resumptions=1)
    launched.send_signal(signal.SIGINT)
    said = launched.communicate(timeout=PATIENCE)[0]
    assert launched.returncode == 130 and "again     sac_mcurl/gym/rad-seed1  LostJob: job " in said
    assert not states(slurm) and not (finished(killed) and finished(stopped))
    assert subprocess.run([*command, "jobs=2"], env=slurm, timeout=PATIENCE).returncode == 0
    assert_same(runs, undisturbed)
