"""Suites of real runs: to their end, with runs that fail, are killed or stopped, and started again."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from mcurl_torchrl.training import Checkpoints, RunDirectory
from recipes import suite as script
from recipes.command_line import BadCommand
from tests.no_room import files_at_most
from tests.recipes.running import RECIPES, results, train

DOT = ["env.id=tests.recipes.tiny_envs:Dot-v0", "preset=smoke", "logging.tensorboard=false", "evaluation.video=false"]
SHORT = [*DOT, "total_env_steps=40", "sac.random_agent_steps=10"]
LONG = [*DOT, "total_env_steps=300", "evaluation.interval_env_steps=150"]  # long enough to be killed in the middle
PATIENCE = 200  # seconds to wait for a process


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs find the environments of the tests."""
    monkeypatch.setenv("PYTHONPATH", str(RECIPES.parent))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def experiment(overrides: list[str], seeds: list[int], **more) -> dict:
    return {"recipe": "sac_mcurl", "envs": ["gym"], "algos": ["rad"], "seeds": seeds, "overrides": overrides, **more}


def write(folder: Path, *experiments: dict) -> list[str]:
    """Writes a suite; returns the arguments that run it."""
    OmegaConf.save({"experiments": list(experiments)}, folder / "dots.yaml")
    return [f"suite={folder}/dots.yaml", f"suite.dir={folder}/runs"]


def run_of(folder: Path, name: str) -> RunDirectory:
    return RunDirectory(folder / "runs" / "sac_mcurl" / "gym" / name)


def finished(run: RunDirectory) -> bool:
    return run.result.is_file() and json.loads(run.result.read_text())["finished"]


def resumed(run: RunDirectory) -> int:
    return len(run.read_manifest()["resumed"])


def wait_for(what: Callable[[], object]) -> object:
    """Waits until a function returns something."""
    until = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < until, "it never came"
        time.sleep(0.05)
    return found


def trains(run: RunDirectory) -> int | None:
    """Returns the process of a run that has learned and saved something; none until then."""
    with contextlib.suppress(OSError, ValueError):
        latest = Checkpoints(run.checkpoints).latest()
        if latest is not None and 20 < latest.step < 280:
            return int((run.path / ".lock").read_text())
    return None


@contextlib.contextmanager
def meanwhile(act: Callable[[], None]):
    """Runs a function in a thread; its error is raised here."""
    failures = []

    def acting() -> None:
        try:
            act()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=acting)
    thread.start()
    yield
    thread.join()
    if failures:
        raise failures[0]


def test_a_suite_to_its_end_and_more_seeds_later(tmp_path: Path, capsys: pytest.CaptureFixture):
    command, niceness = write(tmp_path, experiment(SHORT, [1, 2])), []

    def look_at_the_process() -> None:
        run = run_of(tmp_path, "rad-seed1")
        pid = wait_for(lambda: run.manifest.is_file() and (run.path / ".lock").read_text().strip())
        niceness.append(os.getpriority(os.PRIO_PROCESS, int(pid)))
        if (session := Path(f"/proc/{pid}/autogroup")).exists():  # else the system does not group by sessions
            niceness.append(int(session.read_text().split()[-1]))

    with meanwhile(look_at_the_process):
        assert script.main([*command, "jobs=2", "nice=7"]) == 0
    assert set(niceness) == {7}
    runs = [run_of(tmp_path, f"rad-seed{seed}") for seed in (1, 2, 3)]
    assert finished(runs[0]) and finished(runs[1]) and not runs[2].path.exists()
    assert [OmegaConf.load(run.config).threads for run in runs[:2]] == [1, 1]
    said = capsys.readouterr().out
    for run in runs[:2]:
        score = json.loads(run.result.read_text())["final_return"]
        assert f"done      sac_mcurl/gym/{run.path.name}  return {score:,.1f}\n" in said
        log = run.path.with_name(f"{run.path.name}.log").read_text()
        assert "hydra.run.dir=" in log and "finished:" in log
    assert said.endswith("dots: 2 runs: 2 done\n")

    before = [file.stat().st_mtime_ns for run in runs[:2] for file in sorted(run.path.rglob("*.*"))]
    assert script.main([*command, "suite.seeds=[1,2,3,4]", "only=*-seed[123]"]) == 0
    said = capsys.readouterr().out
    assert f"dots: 3 runs of 4 in {tmp_path / 'runs'}\n" in said
    assert said.count("started") == 1 and "started   sac_mcurl/gym/rad-seed3" in said
    assert finished(runs[2])
    unlocked = [file for run in runs[:2] for file in sorted(run.path.rglob("*.*"))]
    assert [a for a, file in zip(before, unlocked, strict=True) if file.name != ".lock"] == [
        file.stat().st_mtime_ns for file in unlocked if file.name != ".lock"
    ]
    assert OmegaConf.load(tmp_path / "runs" / "suite.yaml").experiments[0].seeds == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_run_that_fails_is_tried_again_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture):
    variants = {"broken": ["encoder.crop_size=90"], "foreign": ["sac.gamma=0.9"], "whole": []}
    command = write(tmp_path, experiment(SHORT, [1], variants=variants))
    foreign = train(run_of(tmp_path, "rad-foreign-seed1").path, "env=gym", "algo=rad", *SHORT, "seed=1", "threads=1")
    before = foreign.manifest.read_bytes()
    assert script.main([*command, "retries=1"]) == 1
    said = capsys.readouterr().out
    why = "ValueError: crop_size=90; it must be between 1 and the image's 36\n"
    assert said.count("started   sac_mcurl/gym/rad-broken-seed1") == 2
    assert f"again     sac_mcurl/gym/rad-broken-seed1  {why}" in said
    assert f"failed    sac_mcurl/gym/rad-broken-seed1  {why}" in said and "rad-broken-seed1.log)" in said
    assert "refused   sac_mcurl/gym/rad-foreign-seed1  it holds a run with other settings" in said
    assert "sac.gamma is 0.99, not 0.9" in said
    assert finished(run_of(tmp_path, "rad-whole-seed1"))
    assert said.rstrip().splitlines()[-1] == "dots: 3 runs: 1 done, 1 failed, 1 refused"
    assert foreign.manifest.read_bytes() == before
    tracebacks = (run_of(tmp_path, "rad-broken-seed1").path / "error.log").read_text()
    assert tracebacks.count("Traceback") == 2  # of both attempts


@pytest.mark.slow
def test_a_killed_worker_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture):
    command, run = write(tmp_path, experiment(LONG, [1])), run_of(tmp_path, "rad-seed1")
    with meanwhile(lambda: os.kill(wait_for(lambda: trains(run)), signal.SIGKILL)):
        assert script.main(command) == 0
    assert "again     sac_mcurl/gym/rad-seed1  killed by SIGKILL" in capsys.readouterr().out
    assert finished(run) and resumed(run) == 1
    undisturbed = train(tmp_path / "undisturbed", "env=gym", "algo=rad", *LONG, "seed=1", "threads=1")
    assert results(run) == results(undisturbed)


@pytest.mark.slow
def test_ctrl_c_saves_all_and_the_same_command_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture):
    command, run = write(tmp_path, experiment(LONG, [1])), run_of(tmp_path, "rad-seed1")

    def press_twice_for_a_run_that_does_not_react() -> None:
        os.kill(wait_for(lambda: trains(run)), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGINT)

    with meanwhile(press_twice_for_a_run_that_does_not_react):
        assert script.main(command) == 130
    assert "  killed by SIGKILL\n" in capsys.readouterr().out
    saved = Checkpoints(run.checkpoints).latest().step

    def press() -> None:
        wait_for(lambda: resumed(run) and Checkpoints(run.checkpoints).latest().step > saved)
        os.kill(os.getpid(), signal.SIGINT)

    with meanwhile(press):
        assert script.main(command) == 130
    said = capsys.readouterr().out
    assert "stopped   sac_mcurl/gym/rad-seed1\n" in said and "the same command continues the suite" in said
    assert not finished(run)
    log = run.path.with_name("rad-seed1.log").read_text()
    (stopped_at,) = re.findall(r"stopped by SIGINT at agent step (\d+)", log)
    assert Checkpoints(run.checkpoints).latest().step == int(stopped_at)
    assert script.main(command) == 0
    assert finished(run) and [entry["step"] for entry in run.read_manifest()["resumed"]] == [saved, int(stopped_at)]


@pytest.fixture
def pids():
    """The processes of the runs, by run; they are ended with the test."""
    found: dict[RunDirectory, int] = {}
    yield found
    for pid in found.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_suite_that_was_killed_goes_on_and_starts_nothing_twice(tmp_path: Path, pids: dict[RunDirectory, int]):
    command = [sys.executable, str(RECIPES / "suite.py"), *write(tmp_path, experiment(LONG, [1, 2])), "jobs=2"]
    killed, orphan = run_of(tmp_path, "rad-seed1"), run_of(tmp_path, "rad-seed2")
    suite = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def both_are_held() -> bool:
        for run in {killed, orphan} - {*pids}:
            if pid := trains(run):
                os.kill(pid, signal.SIGSTOP)
                pids[run] = pid
        return len(pids) == 2

    wait_for(both_are_held)
    suite.kill()
    suite.wait()
    os.kill(pids[killed], signal.SIGKILL)
    terminal, child = pty.openpty()
    with subprocess.Popen(command, stdout=child, stderr=child) as again:
        os.close(child)
        said = ""

        def read() -> str:
            nonlocal said
            with contextlib.suppress(OSError):  # Linux: nobody writes any more
                said += os.read(terminal, 100_000).decode()
            return said

        rows = ("  elsewhere sac_mcurl/gym/rad-seed2 ", "  running   sac_mcurl/gym/rad-seed1 ")
        wait_for(lambda: read() and all(row in said for row in rows))
        os.kill(pids[orphan], signal.SIGCONT)
        wait_for(lambda: read() and again.poll() is not None)
    os.close(terminal)
    assert again.returncode == 0, said
    assert f"elsewhere sac_mcurl/gym/rad-seed2  process {pids[orphan]} works on it" in said
    assert "\x1b[" in said and said.rstrip().endswith("dots: 2 runs: 2 done")
    assert finished(killed) and resumed(killed) == 1
    assert finished(orphan) and resumed(orphan) == 0


def test_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture):
    command, run = write(tmp_path, experiment(SHORT, [1])), run_of(tmp_path, "rad-seed1")
    with files_at_most(0), pytest.raises(BadCommand, match=f"nothing can be written in {tmp_path}/runs"):
        script.main(command)
    with files_at_most(12_000):  # room for tables, for no checkpoint
        script.main(command)
    said = capsys.readouterr().out
    assert "trained to the end, but the last checkpoint could not be saved" in said
    assert finished(run)  # its evaluations are there


def test_no_room_to_start_a_run(tmp_path: Path, capsys: pytest.CaptureFixture):
    command, run = write(tmp_path, experiment(SHORT, [1])), run_of(tmp_path, "rad-seed1")
    run.path.parent.mkdir(parents=True)
    log = run.path.with_name("rad-seed1.log")
    log.write_bytes(b"x" * 2000)
    with files_at_most(1500):
        assert script.main(command) == 1
    assert "failed    sac_mcurl/gym/rad-seed1  it could not be started:" in capsys.readouterr().out
