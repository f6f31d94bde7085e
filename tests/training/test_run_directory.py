"""A run directory has a manifest, is cut back to its checkpoint on resume, and belongs to one process at a time."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mcurl_torchrl
from mcurl_torchrl.training import run_directory
from mcurl_torchrl.training.run_directory import RunDirectory, RunDirectoryInUse
from mcurl_torchrl.training.tables import read


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "runs" / "first")


def test_looking_makes_nothing(run: RunDirectory) -> None:
    names = [path.name for path in (run.config, run.manifest, run.result, run.curve, run.videos, run.checkpoints)]
    assert names == ["config.yaml", "manifest.json", "result.json", "curve.png", "videos", "checkpoints"]
    assert run.truncate_after(3) == 0
    assert not run.path.parent.exists()


def test_the_manifest_says_what_was_run(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "task=a b"])
    run.write_manifest(overrides=["task=a b"], task="a b")
    manifest = json.loads(run.manifest.read_text())
    assert manifest["command"] == "python train.py 'task=a b'"
    assert (manifest["overrides"], manifest["task"], manifest["resumed"]) == (["task=a b"], "a b", [])
    versions = manifest["versions"]
    assert versions["python"] == platform.python_version()
    assert versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert versions["mcurl_torchrl"] == mcurl_torchrl.__version__
    assert {"torchrl", "tensordict", "numpy"} <= set(versions)
    assert manifest["torch_threads"] == torch.get_num_threads()
    assert manifest["time"].endswith("+00:00")
    machine = manifest["machine"]
    assert machine["cpu_count"] == os.cpu_count() and machine["memory_bytes"] > 2**28
    assert machine["os"].startswith(platform.system()) and machine["device_name"] == machine["cpu"] != ""
    assert platform.node() not in run.manifest.read_text().replace("\n", " ").split()


def test_the_manifest_is_written_once_and_grows_with_each_resume(run: RunDirectory) -> None:
    with pytest.raises(FileNotFoundError, match="not a run directory"):
        run.record_resume(3)
    run.write_manifest(overrides=["seed=1"])
    with pytest.raises(FileExistsError, match="to continue this run, resume it"):
        run.write_manifest(overrides=["seed=2"])
    first = run.read_manifest()
    for step in (100, 250):
        RunDirectory(run.path).record_resume(step)
    resumed = run.read_manifest().pop("resumed")
    assert [entry["step"] for entry in resumed] == [100, 250]
    assert all(entry["versions"] == first["versions"] and entry["time"] >= first["time"] for entry in resumed)
    assert {**run.read_manifest(), "resumed": []} == first
    with pytest.raises(ValueError, match="'versions'"):
        RunDirectory(run.path / "other").write_manifest(versions={})


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_manifest_is_named(run: RunDirectory, content: str) -> None:
    run.path.mkdir(parents=True)
    run.manifest.write_text(content)
    with pytest.raises(ValueError, match="manifest.json is damaged"):
        run.record_resume(3)


class TestGit:
    def git(self, folder: Path, *arguments: str) -> str:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
        done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    @pytest.fixture
    def package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The folder of a package that stands for this one."""
        file = tmp_path / "checkout" / "mcurl_torchrl" / "__init__.py"
        file.parent.mkdir(parents=True)
        file.write_text("")
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
        monkeypatch.setattr(run_directory, "mcurl_torchrl", SimpleNamespace(__file__=str(file), __version__="0"))
        return file.parent

    def noted(self, run: RunDirectory) -> Any:
        run.manifest.unlink(missing_ok=True)
        run.write_manifest()
        return run.read_manifest()["git"]

    @pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
    def test_commit_and_dirty(self, run: RunDirectory, package: Path) -> None:
        assert self.noted(run) is None  # no checkout
        self.git(package.parent, "init")
        (package.parent / "other").write_text("")
        self.git(package.parent, "add", "other")
        self.git(package.parent, "commit", "-m", "another project")
        assert self.noted(run) is None  # a checkout, but of something else
        self.git(package.parent, "add", ".")
        self.git(package.parent, "commit", "-m", "this one")
        commit = self.git(package.parent, "rev-parse", "HEAD")
        assert self.noted(run) == {"commit": commit, "dirty": False}
        (package / "run.log").write_text("not part of the code")
        assert self.noted(run) == {"commit": commit, "dirty": False}
        (package / "__init__.py").write_text("changed = True")
        assert self.noted(run) == {"commit": commit, "dirty": True}

    def test_without_git(self, run: RunDirectory, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        assert self.noted(run) is None


def test_config_and_result(run: RunDirectory) -> None:
    run.write_config("seed: 1  # ünï\n")
    run.write_result({"return": 0.1})
    run.write_result({"return": 0.1 + 0.2})
    assert run.config.read_text(encoding="utf-8") == "seed: 1  # ünï\n"
    assert json.loads(run.result.read_text()) == {"return": 0.1 + 0.2}
    with pytest.raises(TypeError):
        run.write_result({"return": torch.ones(2)})
    assert json.loads(run.result.read_text()) == {"return": 0.1 + 0.2}
    assert sorted(os.listdir(run.path)) == ["config.yaml", "result.json"]


def test_json_is_written_atomically(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    run.write_manifest()
    run.write_result({"return": 1})
    before = [run.manifest.read_bytes(), run.result.read_bytes()]

    def crash(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    for write in (lambda: run.record_resume(1), lambda: run.write_result({"return": 2})):
        with pytest.raises(KeyboardInterrupt):
            write()
    assert [run.manifest.read_bytes(), run.result.read_bytes()] == before


def test_both_tables_are_cut_back(run: RunDirectory) -> None:
    for step in (100, 200, 300):
        run.metrics.append({"step": step, "loss": 0.5})
        if step > 100:
            run.eval.append({"step": step, "return": 1.0})
    resumed = RunDirectory(run.path)
    assert resumed.truncate_after(200) == 2
    resumed.metrics.append({"step": 300, "loss": 0.25})
    assert read(run.metrics.path) == [{"step": step, "loss": 0.5} for step in (100, 200)] + [
        {"step": 300, "loss": 0.25}
    ]
    assert read(run.eval.path) == [{"step": 200, "return": 1.0}]


# -- locking -----------------------------------------------------------------------------------------------------------

# Without the package, whose import takes seconds: the lock is an flock on this file.
HOLDER = """
import fcntl, os, signal, sys
file = open(sys.argv[1], "a+")
fcntl.flock(file, fcntl.LOCK_EX)
file.truncate(0)
file.write(f"{os.getpid()}\\n")
file.flush()
print("locked", flush=True)
signal.pause()
"""


def test_a_second_process_is_refused_until_the_first_is_killed(run: RunDirectory) -> None:
    run.path.mkdir(parents=True)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run.path / ".lock")], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
            for _ in range(2):  # a refused one takes no notes away
                with pytest.raises(RunDirectoryInUse, match=f"in use by process {holder.pid};"), run.lock():
                    pytest.fail("two in one run directory")
        finally:
            holder.send_signal(signal.SIGKILL)
    with run.lock():
        assert (run.path / ".lock").read_text() == f"{os.getpid()}\n"
    with run.lock():
        pass


def test_two_in_one_process(run: RunDirectory, tmp_path: Path) -> None:
    refused = pytest.raises(RunDirectoryInUse, match=str(os.getpid()))
    with run.lock(), RunDirectory(tmp_path / "another").lock(), refused, RunDirectory(run.path).lock():
        pytest.fail("two in one run directory")
    with pytest.raises(ZeroDivisionError), run.lock():
        raise ZeroDivisionError
    with run.lock():
        pass


def test_a_file_system_without_locks(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(run_directory.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(run_directory.fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match="cannot be locked") as record, run.lock():
        pass
    assert record[0].filename == __file__
