"""Suites on joblib, submitit and a local Ray cluster, with runs and their workers killed, preempted and stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from mcurl_torchrl.training import RunDirectory
from recipes import suite as script
from tests.recipes.test_launcher_faults import assert_same, process_of, undisturbed  # noqa: F401
from tests.recipes.test_suite_runs import LONG, experiment, finished, meanwhile, resumed, run_of, wait_for, write

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_worker_niceness", "0")


@pytest.fixture
def runs(tmp_path: Path) -> list[RunDirectory]:
    return [run_of(tmp_path, f"rad-seed{seed}") for seed in (1, 2)]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def has_signals(pid: int) -> bool:
    """Tells whether a process that is held has a signal to handle when it goes on."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("ShdPnd:")[2].split()[0], 16) != 0


@pytest.mark.parametrize("launcher", ["joblib", "ray"])
def test_a_run_and_a_worker_are_killed(launcher, runs, undisturbed, tmp_path: Path, capsys):  # noqa: F811
    command = [*write(tmp_path, experiment(LONG, [1, 2])), "jobs=2", f"launcher={launcher}"]

    def kill() -> None:
        os.kill(process_of(runs[0]), signal.SIGKILL)
        log = runs[0].path.with_name("rad-seed1.log")
        wait_for(lambda: log.read_text().count("sac_mcurl.py") == 2)  # the suite has noticed
        os.kill(parent_of(process_of(runs[1])), signal.SIGKILL)  # the run itself goes on

    with meanwhile(kill):
        assert script.main(command) == 0
    said = capsys.readouterr().out
    assert "again     sac_mcurl/gym/rad-seed1  killed by SIGKILL" in said
    assert "again     sac_mcurl/gym/rad-seed2  " in said and "elsewhere sac_mcurl/gym/rad-seed2" in said
    assert resumed(runs[0]) == 1 and resumed(runs[1]) == 0
    assert_same(runs, undisturbed)


def test_a_run_of_submitit_is_preempted_and_another_is_killed(runs, undisturbed, tmp_path: Path, capsys):  # noqa: F811
    command = [*write(tmp_path, experiment(LONG, [1, 2])), "jobs=2", "launcher=submitit_local"]

    def disturb() -> None:
        os.kill(process_of(runs[0]), signal.SIGTERM)
        os.kill(process_of(runs[1]), signal.SIGKILL)

    with meanwhile(disturb):
        assert script.main(command) == 0
    said = capsys.readouterr().out
    assert said.count("started   sac_mcurl/gym/rad-seed1") == 1  # submitit itself started it again
    assert "again     sac_mcurl/gym/rad-seed2  LostJob: job " in said
    assert resumed(runs[0]) == 1 and resumed(runs[1]) == 1
    assert_same(runs, undisturbed)


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local", "ray"])
def test_ctrl_c_saves_all_and_the_same_command_goes_on(launcher, runs, undisturbed, tmp_path, capsys):  # noqa: F811
    command = [*write(tmp_path, experiment(LONG, [1])), f"launcher={launcher}"]

    def press() -> None:
        pid = process_of(runs[0])
        os.kill(pid, signal.SIGSTOP)  # it must not be at its end before the signal comes
        os.kill(os.getpid(), signal.SIGINT)
        wait_for(lambda: has_signals(pid))
        os.kill(pid, signal.SIGCONT)

    with meanwhile(press):
        assert script.main(command) == 130
    assert "stopped   sac_mcurl/gym/rad-seed1\n" in capsys.readouterr().out
    assert not finished(runs[0])
    log = runs[0].path.with_name("rad-seed1.log").read_text()
    assert "stopped by SIG" in log  # not at its last checkpoint: where it was
    assert script.main(command) == 0
    assert resumed(runs[0]) == 1
    assert_same(runs[:1], undisturbed[:1])
