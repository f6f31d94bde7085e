"""RunDirectory: the folder of one run, with its settings, versions, machine, results and lock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import mcurl_torchrl
from mcurl_torchrl.files import write_file
from mcurl_torchrl.training.tables import Table

__all__ = ["RunDirectory", "RunDirectoryInUse"]

_PACKAGES = ("torch", "torchrl", "tensordict", "numpy", "dm_control", "mujoco", "gymnasium", "ale_py")


class RunDirectoryInUse(RuntimeError):
    """Another process works in this run directory; the message names it."""


class RunDirectory:
    r"""The folder of one run, with all settings, versions and results.

    Each file is put in place in one step, so that a reader never sees half of it. A file exists once the method that
    writes it was called.

    Args:
        path (str or Path): the folder.

    Attributes:
        config (Path): ``config.yaml``, all settings.
        manifest (Path): ``manifest.json``: versions, commit, command, machine, and each time the run was resumed.
        result (Path): ``result.json``.
        curve (Path): ``curve.png``.
        videos (Path): the folder of videos.
        checkpoints (Path): the folder of checkpoints.
        metrics (Table): ``metrics.csv``, with a column ``"step"``.
        eval (Table): ``eval.csv``, with a column ``"step"``.

    Examples:
        >>> import tempfile
        >>> from mcurl_torchrl.training.run_directory import RunDirectory
        >>> folder = tempfile.TemporaryDirectory()
        >>> run = RunDirectory(f"{folder.name}/cartpole")
        >>> with run.lock():
        ...     run.write_config("seed: 1\n")
        ...     run.write_manifest(overrides=["seed=1"])
        ...     run.metrics.append({"step": 100, "loss": 0.5})
        ...     run.write_result({"return": 812.0})
        >>> sorted(path.name for path in run.path.iterdir() if path.name[0] != ".")
        ['config.yaml', 'manifest.json', 'metrics.csv', 'result.json']
        >>> run.read_manifest()["overrides"]
        ['seed=1']
        >>> folder.cleanup()
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.manifest = self.path / "manifest.json"
        self.result = self.path / "result.json"
        self.curve = self.path / "curve.png"
        self.videos = self.path / "videos"
        self.checkpoints = self.path / "checkpoints"
        self.metrics = Table(self.path / "metrics.csv")
        self.eval = Table(self.path / "eval.csv")

    def write_config(self, text: str) -> None:
        """Writes ``config.yaml``."""
        self._write(self.config, text)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Writes ``result.json``."""
        self._write(self.result, json.dumps(dict(result), indent=2) + "\n")

    def write_manifest(
        self, *, overrides: Sequence[str] = (), device: torch.device | str | None = None, **extra: Any
    ) -> None:
        """Writes ``manifest.json``, once, at the start.

        Keyword Args:
            overrides (sequence of str): the settings that are not the defaults. Defaults to none.
            device (torch.device or str, optional): the device of the training. Defaults to the CPU.
            **extra: further entries, JSON.

        Raises:
            FileExistsError: if there is one already; a resumed run calls :meth:`record_resume`.
            ValueError: if the manifest has an extra entry already.
        """
        if self.manifest.exists():
            raise FileExistsError(f"{self.manifest} exists already; to continue this run, resume it")
        manifest = {
            "command": shlex.join(sys.orig_argv),
            "overrides": list(overrides),
            **_surroundings(device),
            "machine": _machine(device),
            "resumed": [],
        }
        if taken := sorted(set(manifest) & set(extra)):
            raise ValueError(f"{taken} cannot be given as extra: the manifest has them already")
        self._write_manifest({**manifest, **extra})

    def record_resume(self, step: int, *, device: torch.device | str | None = None, **extra: Any) -> None:
        """Adds to the manifest that the run was resumed from the checkpoint of a step, with the current versions.

        Args:
            step (int): the step of the checkpoint.

        Keyword Args:
            device (torch.device or str, optional): the device of the training. Defaults to the CPU.
            **extra: further entries, JSON.

        Raises:
            FileNotFoundError, ValueError: as :meth:`read_manifest` does.
        """
        manifest = self.read_manifest()
        manifest["resumed"] = [*manifest.get("resumed", []), {"step": step, **_surroundings(device), **extra}]
        self._write_manifest(manifest)

    def change_overrides(self, overrides: Sequence[str]) -> None:
        """Replaces the overrides in the manifest, for a run that goes on with other settings."""
        self._write_manifest({**self.read_manifest(), "overrides": list(overrides)})

    def read_manifest(self) -> dict[str, Any]:
        """Reads ``manifest.json``.

        Raises:
            FileNotFoundError: if there is none.
            ValueError: if it is damaged.
        """
        if not self.manifest.is_file():
            raise FileNotFoundError(f"{self.path} is not a run directory: it has no {self.manifest.name}")
        try:
            manifest = json.loads(self.manifest.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{self.manifest} is damaged: it is not JSON ({error})") from None
        if not isinstance(manifest, dict):
            raise ValueError(f"{self.manifest} is damaged: it is a {type(manifest).__name__}, not an object")
        return manifest

    def clear(self) -> None:
        """Removes the files of a run that never saved a checkpoint, so that it can start again.

        The files of trackers such as MLflow stay, because they may hold other runs.
        """
        for file in (self.config, self.result, self.curve, self.metrics.path, self.eval.path):
            file.unlink(missing_ok=True)
        for folder in (self.videos, self.path / "tensorboard", self.checkpoints):
            shutil.rmtree(folder, ignore_errors=True)
        self.manifest.unlink(missing_ok=True)  # last: a directory with a manifest holds a run

    def truncate_after(self, step: int) -> int:
        """Drops the rows of both tables after a step, which a resumed run writes once more; returns how many."""
        return sum(table.truncate_after("step", step) for table in (self.metrics, self.eval))

    def _write_manifest(self, manifest: Mapping[str, Any]) -> None:
        self._write(self.manifest, json.dumps(manifest, indent=2) + "\n")

    def _write(self, file: Path, text: str) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_file(file, text.encode())

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the run directory inside the block. A killed process leaves no lock.

        Raises:
            RunDirectoryInUse: if another process holds the lock, with its pid.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        # The file stays when the lock goes: if it were removed, two processes could each lock one of the same name.
        with open(self.path / ".lock", "a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise RunDirectoryInUse(
                    f"{self.path} is in use by process {file.read().strip() or 'unknown'}; wait until it has ended, "
                    "stop it, or use another run directory"
                ) from None
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                    raise
                # Some network file systems have no locks; a run can train there, too.
                warnings.warn(f"{self.path} cannot be locked ({error}); use it in one process only", stacklevel=3)
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)


# -- versions and machine ----------------------------------------------------------------------------------------------


def _surroundings(device: torch.device | str | None) -> dict[str, Any]:
    """Returns the entries that may differ the next time the run is resumed."""
    versions = {"python": platform.python_version(), "mcurl_torchrl": mcurl_torchrl.__version__}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions,
        "git": _git(),
        "device": str(device or "cpu"),
        "torch_threads": torch.get_num_threads(),
    }


def _git() -> dict[str, Any] | None:
    """Returns the commit of the checkout that this package is run from, None if it is not run from one."""
    package = Path(mcurl_torchrl.__file__).resolve()

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(package.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        # An installed package may be inside the checkout of another project, whose commit has no meaning here.
        git("ls-files", "--error-unmatch", package.name)
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _machine(device: torch.device | str | None) -> dict[str, Any]:
    device, cpu, memory = torch.device(device or "cpu"), platform.processor() or platform.machine(), None
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    with contextlib.suppress(AttributeError, OSError, ValueError):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    named = torch.cuda.get_device_name(device) if device.type == "cuda" and torch.cuda.is_available() else None
    return {
        "os": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cpu": cpu,
        "cpu_count": os.cpu_count(),
        "memory_bytes": memory,
        "device_name": named or (cpu if device.type == "cpu" else device.type),
    }
