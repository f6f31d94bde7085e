"""Launchers of a suite: they start its runs as processes of this machine, or with joblib, submitit (Slurm) or Ray.

Each run is the process of a recipe. ``launcher=`` chooses the library that starts it. These libraries are used
directly, not through Hydra's plugins: a plugin waits for all of its jobs, while a suite retries each run separately.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recipes.command_line import BadCommand, did_you_mean
from recipes.launchers import EXTRA
from recipes.suites.processes import Launcher, LibraryRun, Local, NotStarted, Process, first_line, run_to_its_end
from recipes.suites.submitit_runs import Submitit


class Joblib:
    """Starts runs from the worker processes of joblib (loky), which replaces workers that have died."""

    def __init__(self, jobs: int) -> None:
        from joblib.externals.loky import get_reusable_executor

        self._executor = functools.partial(get_reusable_executor, max_workers=jobs)

    def start(self, command: list[str], log: Path, *, run: Path, nice: int) -> Process:
        return LibraryRun(self._executor().submit(run_to_its_end, command, log, nice), log, run)


class Ray:
    """Starts runs as tasks of a Ray cluster: the cluster at ``address`` or $RAY_ADDRESS, or a new one on this machine.

    Args:
        options: ``address``, and the options of each task: ``num_cpus`` (default 1), ``num_gpus``, ``memory`` and
            ``resources``.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        import ray

        address = options.pop("address", None)
        # The suite itself retries a lost run.
        self._task = ray.remote(run_to_its_end).options(**{"num_cpus": 1, "max_retries": 0, **options})
        ray.init(address, log_to_driver=False, logging_level="warning", ignore_reinit_error=True)

    def start(self, command: list[str], log: Path, *, run: Path, nice: int) -> Process:
        try:
            return RayRun(self._task.remote(command, log, nice), log, run)
        except Exception as error:
            raise NotStarted(first_line(error)) from None


class RayRun(LibraryRun):
    """A run in a task of Ray, which takes signals to any machine."""

    def _over(self) -> bool:
        import ray

        return bool(ray.wait([self._job], timeout=0)[0])

    def _result(self) -> int:
        import ray

        return ray.get(self._job)

    def send_signal(self, number: int) -> None:
        import ray

        ray.cancel(self._job, force=number == signal.SIGKILL)


# -- choosing ----------------------------------------------------------------------------------------------------------

MAKE: dict[str, Callable[[int, Path, dict[str, Any]], Launcher]] = {
    "local": lambda jobs, folder, options: Local(),
    "joblib": lambda jobs, folder, options: Joblib(jobs),
    "submitit_local": lambda jobs, folder, options: Submitit("local", folder, options),
    "submitit_slurm": lambda jobs, folder, options: Submitit("slurm", folder, options),
    "ray": lambda jobs, folder, options: Ray(options),
}
WITHOUT_OPTIONS = ("local", "joblib")


def check_launcher(name: str, options: dict[str, Any]) -> None:
    """Refuses an unknown launcher, and options for a launcher that has none."""
    if name not in MAKE:
        raise BadCommand(f"launcher={name}: {did_you_mean(name, list(MAKE))}")
    if options and name in WITHOUT_OPTIONS:
        raise BadCommand(f"launcher.{next(iter(options))}: launcher={name} has no options")


def make_launcher(name: str, *, jobs: int, folder: Path, options: dict[str, Any]) -> Launcher:
    """Makes a launcher.

    Raises:
        BadCommand: if it is not installed, or if it does not take the options.
    """
    try:
        return MAKE[name](jobs, folder, dict(options))
    except ImportError as error:
        raise BadCommand(f"launcher={name} is not installed ({error}); to install it: {EXTRA}") from None
    except Exception as error:
        raise BadCommand(f"launcher={name} cannot be used: {first_line(error)}") from None
