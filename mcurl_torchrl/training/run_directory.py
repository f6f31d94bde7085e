"""A run's folder: what was run, with what, how it went, and who is working in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import mcurl_torchrl
from mcurl_torchrl.checks import check_count
from mcurl_torchrl.files import write_file
from mcurl_torchrl.training.checkpoints import Checkpoints
from mcurl_torchrl.training.tables import Table

__all__ = ["RecentRun", "RunDirectory", "RunDirectoryInUse", "recent_runs"]

_ALWAYS = ("torch", "torchrl", "tensordict", "numpy")
_WHERE_INSTALLED = ("dm_control", "mujoco", "gymnasium", "ale_py")


class RunDirectoryInUse(RuntimeError):
    """Another process works in this run directory; the message names it."""


class RunDirectory:
    r"""The folder of one run, which explains itself.

    It holds ``config.yaml``, ``manifest.json`` (versions, commit, command, machine, and each time the run was resumed),
    ``metrics.csv``, ``eval.csv``, ``result.json``, ``curve.png``, ``videos/`` and ``checkpoints/``. Each file is put in
    place in one step, so that none is ever seen half-written. Nothing is written before it is asked for.

    Args:
        path (str or Path): the folder.

    Attributes:
        metrics (Table): ``metrics.csv``, with a column ``"step"``.
        eval (Table): ``eval.csv``, with a column ``"step"``.

    Examples:
        >>> import tempfile
        >>> from mcurl_torchrl.training.run_directory import RunDirectory
        >>> folder = tempfile.TemporaryDirectory()
        >>> run = RunDirectory(f"{folder.name}/cartpole")
        >>> with run.lock():
        ...     run.write_config("seed: 1\n")
        ...     run.write_manifest(command=["train.py", "seed=1"], overrides=["seed=1"])
        ...     run.metrics.append({"step": 100, "loss": 0.5})
        ...     run.write_result({"return": 812.0})
        >>> sorted(path.name for path in run.path.iterdir() if path.name[0] != ".")
        ['config.yaml', 'manifest.json', 'metrics.csv', 'result.json']
        >>> run.read_manifest()["command"]
        'train.py seed=1'
        >>> folder.cleanup()
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metrics = Table(self.path / "metrics.csv")
        self.eval = Table(self.path / "eval.csv")

    @property
    def config(self) -> Path:
        """The run's configuration, ``config.yaml``."""
        return self.path / "config.yaml"

    @property
    def manifest(self) -> Path:
        """What was run and on what, ``manifest.json``."""
        return self.path / "manifest.json"

    @property
    def result(self) -> Path:
        """How it came out, ``result.json``."""
        return self.path / "result.json"

    @property
    def curve(self) -> Path:
        """The learning curve, ``curve.png``."""
        return self.path / "curve.png"

    @property
    def videos(self) -> Path:
        """The folder of videos."""
        return self.path / "videos"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    # -- writing -------------------------------------------------------------------------------------------------------

    def write_config(self, text: str) -> None:
        """Writes ``config.yaml``.

        Args:
            text (str): the YAML.
        """
        self._write(self.config, text)

    def write_manifest(
        self,
        *,
        command: Sequence[str] | None = None,
        overrides: Sequence[str] = (),
        device: torch.device | str | None = None,
        **extra: Any,
    ) -> None:
        """Writes ``manifest.json``, once, at the start.

        Keyword Args:
            command (sequence of str, optional): the command line. Defaults to this process's.
            overrides (sequence of str): what was changed from the defaults. Defaults to nothing.
            device (torch.device or str, optional): where it is trained, to name the device. Defaults to the CPU.
            extra: more to note, JSON.

        Raises:
            FileExistsError: if there is one already; a resumed run calls :meth:`record_resume`.
        """
        if self.manifest.exists():
            raise FileExistsError(f"{self.manifest} is there already; is this run to be resumed?")
        manifest = {
            "command": shlex.join(sys.orig_argv if command is None else command),
            "overrides": list(overrides),
            **_surroundings(device),
            "machine": _machine(device),
            "resumed": [],
        }
        taken = sorted(set(manifest) & set(extra))
        if taken:
            raise ValueError(f"{taken} cannot be given as extra: the manifest has them already")
        self._write(self.manifest, json.dumps({**manifest, **extra}, indent=2) + "\n")

    def record_resume(self, step: int, *, device: torch.device | str | None = None, **extra: Any) -> None:
        """Notes in the manifest that the run goes on from a step, with the versions of now.

        Args:
            step (int): the step of the checkpoint it goes on from.

        Keyword Args:
            device (torch.device or str, optional): as in :meth:`write_manifest`.
            extra: more to note, JSON.

        Raises:
            FileNotFoundError: if there is no manifest.
            ValueError: if the manifest is damaged.
        """
        manifest = self.read_manifest()
        entry = {"step": step, **_surroundings(device), **extra}
        manifest["resumed"] = [*manifest.get("resumed", []), entry]
        self._write(self.manifest, json.dumps(manifest, indent=2) + "\n")

    def change_overrides(self, overrides: Sequence[str]) -> None:
        """Notes in the manifest that the run goes on with other settings than it was started with.

        Args:
            overrides (sequence of str): what is changed from the defaults now.
        """
        self._write(self.manifest, json.dumps({**self.read_manifest(), "overrides": list(overrides)}, indent=2) + "\n")

    def read_manifest(self) -> dict[str, Any]:
        """Reads ``manifest.json``.

        Raises:
            FileNotFoundError: if there is none.
            ValueError: if it is damaged.
        """
        if not self.manifest.is_file():
            raise FileNotFoundError(f"{self.path} is no run directory: it has no {self.manifest.name}")
        try:
            manifest = json.loads(self.manifest.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{self.manifest} is damaged: it is no JSON ({error})") from None
        if not isinstance(manifest, dict):
            raise ValueError(f"{self.manifest} is damaged: it is a {type(manifest).__name__}, not an object")
        return manifest

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Writes ``result.json``.

        Args:
            result (mapping): how the run came out, JSON.
        """
        self._write(self.result, json.dumps(dict(result), indent=2) + "\n")

    def truncate_after(self, step: int) -> int:
        """Drops the rows of both tables that were written after a step; a resumed run writes them once more.

        Args:
            step (int): the step of the checkpoint the run goes on from.

        Returns:
            How many rows were dropped.
        """
        return sum(table.truncate_after("step", step) for table in (self.metrics, self.eval))

    def _write(self, file: Path, text: str) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_file(file, text.encode())

    # -- locking -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes out of this run while inside; a killed process keeps nobody out.

        Raises:
            RunDirectoryInUse: if another process is inside, with its pid.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        # The file stays when the lock goes: were it removed, two processes could each lock one of the same name.
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
                # Some network file systems have no locks; that is no reason not to train.
                warnings.warn(f"{self.path} cannot be locked ({error}); use it in one process only", stacklevel=3)
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)


@dataclass(frozen=True)
class RecentRun:
    """A run that could be resumed: where, up to which step, and when that was saved."""

    path: Path
    step: int
    time: datetime

    def __str__(self) -> str:
        return f"{self.path} (step {self.step}, {self.time.astimezone():%Y-%m-%d %H:%M})"


def recent_runs(root: str | Path, limit: int = 5) -> list[RecentRun]:
    """Finds the run directories below a folder that have a checkpoint, those saved last first.

    Args:
        root (str or Path): the folder.
        limit (int): how many at most. Defaults to 5.

    Examples:
        >>> from mcurl_torchrl.training.run_directory import recent_runs
        >>> recent_runs("no/such/folder")
        []
    """
    check_count("limit", limit)
    runs = []
    for folder, subfolders, _ in os.walk(root):
        if "checkpoints" in subfolders:
            run = RunDirectory(folder)
            with contextlib.suppress(OSError):  # A run that cannot be read is none to propose.
                latest = Checkpoints(run.checkpoints).latest()
                if latest is not None:
                    saved = datetime.fromtimestamp(latest.path.stat().st_mtime, timezone.utc)
                    runs.append(RecentRun(run.path, latest.step, saved))
            subfolders.remove("checkpoints")
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
    return sorted(runs, key=lambda run: run.time, reverse=True)[:limit]


# -- what a run runs on ------------------------------------------------------------------------------------------------


def _surroundings(device: torch.device | str | None) -> dict[str, Any]:
    """Says what may be different the next time the run is resumed."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": _versions(),
        "git": _git(),
        "device": str(device or "cpu"),
        "torch_threads": torch.get_num_threads(),
    }


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "mcurl_torchrl": mcurl_torchrl.__version__}
    for name in (*_ALWAYS, *_WHERE_INSTALLED):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _git() -> dict[str, Any] | None:
    """Returns the commit of the checkout this package is run from, None if it is not run from one."""
    package = Path(mcurl_torchrl.__file__).resolve()

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(package.parent), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
        return done.stdout.strip()

    try:
        # An installed package may lie inside the checkout of another project; then that one's commit says nothing.
        git("ls-files", "--error-unmatch", package.name)
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _machine(device: torch.device | str | None) -> dict[str, Any]:
    device = torch.device(device or "cpu")
    named = torch.cuda.get_device_name(device) if device.type == "cuda" and torch.cuda.is_available() else None
    return {
        "os": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cpu": _cpu_model(),
        "cpu_count": os.cpu_count(),
        "memory_bytes": _memory(),
        "device_name": named or (_cpu_model() if device.type == "cpu" else device.type),
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> int | None:
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
