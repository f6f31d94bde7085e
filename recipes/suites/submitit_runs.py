"""Runs of a suite as jobs of submitit: in Slurm's queue, or in local processes that behave like Slurm's jobs."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from recipes.requeueing import requeue
from recipes.suites.processes import LibraryRun, NotStarted, Process, append, lower_priority

A_DAY = 24 * 60  # minutes, the default time limit of a job
LOOK_INTO_QUEUE_SECONDS = 30.0


class RecipeJob:
    """Runs a recipe in a process of submitit, which requeues a preempted job because it has ``checkpoint``."""

    def __init__(self, command: list[str], log: Path, nice: int) -> None:
        self._command, self._log, self._nice = command, log, nice

    def __call__(self) -> int:
        if os.environ["SUBMITIT_EXECUTOR"] == "local":
            os.setsid()  # as in start_process
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        lower_priority(os.getpid(), max(os.getpriority(os.PRIO_PROCESS, 0), self._nice))
        with open(self._log, "ab") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        _, script, *sys.argv[1:] = self._command
        sys.argv[0] = script
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as ended:
            requeue(ended.code)
            if isinstance(ended.code, str):
                print(ended.code, file=sys.stderr, flush=True)
            return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        return 0

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class Submitit:
    """Hands runs to submitit, each as a job of its own.

    Args:
        cluster: ``"slurm"`` or ``"local"``.
        folder: where submitit's own files go.
        options: submitit's parameters, such as ``timeout_min`` and ``slurm_partition``.
    """

    def __init__(self, cluster: str, folder: Path, options: dict[str, Any]) -> None:
        from submitit import AutoExecutor

        # Each run saves and resumes, so it may reach its time limit any number of times.
        often = {f"{cluster}_max_num_timeout": 10_000}
        self._executor = AutoExecutor(folder / ".submitit" / "%j", cluster=cluster, **often)
        self._executor.update_parameters(**{"timeout_min": A_DAY, **options})

    def start(self, command: list[str], log: Path, *, run: Path, nice: int) -> Process:
        self._executor.update_parameters(name=run.name)
        # After Ctrl-C, submitit's local processes end within a second, before their jobs have saved: block the signal.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            job = self._executor.submit(RecipeJob(command, log, nice))
        except RuntimeError as error:  # submitit's own errors, with the message of sbatch
            raise NotStarted(str(error).strip()) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        append(log, f"job {job.job_id} of submitit; submitit's own log: {job.paths.stderr}")
        return (SlurmRun if self._executor.cluster == "slurm" else LocalSubmititRun)(job, log, run)


class LostJob(Exception):
    """A job has ended, and submitit has no result of it."""


class LocalSubmititRun(LibraryRun):
    """A job of submitit on this machine."""

    def _result(self) -> int:
        if not self._job.paths.result_pickle.exists():
            raise LostJob(f"job {self._job.job_id} ended without a result: it was killed, or its machine went down")
        return super()._result()

    def send_signal(self, number: int) -> None:
        """Sends SIGKILL or SIGINT: after any other signal submitit would requeue the job."""
        super().send_signal(number if number == signal.SIGKILL else signal.SIGINT)


class SlurmRun(LocalSubmititRun):
    """A job of submitit in Slurm's queue, or on one of its nodes."""

    _next_look = 0.0
    _missed = 0  # number of checks that did not find the job in the queue

    def send_signal(self, number: int) -> None:
        job_id = self._job.job_id
        how = [] if number == signal.SIGKILL else ["--state=PENDING"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["scancel", *how, job_id], capture_output=True, timeout=60)
            if number != signal.SIGKILL:
                subprocess.run(["scancel", "--signal=INT", job_id], capture_output=True, timeout=60)

    def _over(self) -> bool:
        """Checks the result file and the queue: submitit itself needs Slurm's accounting, which some clusters lack."""
        if self._job.paths.result_pickle.exists():
            return True
        if time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + LOOK_INTO_QUEUE_SECONDS
        command = ["squeue", "--noheader", f"--jobs={self._job.job_id}", "--format=%T"]
        try:
            asked = subprocess.run(command, capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return False
        unknown = "Invalid job id" in asked.stderr  # Slurm forgets jobs some time after their end
        self._missed += unknown or (asked.returncode == 0 and not asked.stdout.strip())
        return self._missed > 1  # the result file may appear on this machine with a delay
