"""Starts a suite's runs, some at a time, and retries those that fail."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mcurl_torchrl.training import RunDirectory, StopRequested
from recipes.command_line import quoted
from recipes.suites.definition import PlannedRun
from recipes.suites.processes import Launcher, NotStarted, Process
from recipes.suites.provenance import RECIPES, now
from recipes.suites.state import look, outcome, trained

if TYPE_CHECKING:  # it needs this module
    from recipes.suites.board import Board

Status = Literal["waiting", "running", "elsewhere", "done", "failed", "refused", "stopped"]
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
STOPPED = (*(128 + number for number in STOP_SIGNALS), *(-number for number in STOP_SIGNALS))  # negative: very early
START_AGAIN_SECONDS = 60.0  # the time before a launcher is asked again for a run that it could not start
CHECK_SECONDS = 0.5  # the time between two looks at the processes
KILLED_SECONDS = 10.0  # how long to wait for killed processes; a process on another machine may take longer
TWICE = "          (the same error twice, and no step was recorded: it is not tried again now)"
LITTLE_SPACE = 2**28  # bytes: with less free space, a message about a failed run includes the free space


@dataclass
class Job:
    """A run, its status, and the process that works on it."""

    run: PlannedRun
    directory: RunDirectory
    status: Status = "waiting"
    reason: str = ""
    attempts: int = 0
    process: Process | None = None
    log_begin: int = 0
    fault: str = ""  # the message of the last attempt, if nothing was trained in it
    not_before: float = 0.0  # when it may be started again, by the monotonic clock

    @property
    def log(self) -> Path:
        return self.directory.path.with_name(f"{self.directory.path.name}.log")

    def look(self) -> str:
        """Sets the status from the content of the run's folder; returns the stage that was found."""
        found = look(self.run, self.directory)
        known: dict[str, Status] = {"finished": "done", "refused": "refused", "in use": "elsewhere"}
        self.status, self.reason = known.get(found.stage, "waiting"), found.reason
        return found.stage

    def start(self, launcher: Launcher, nice: int, retries: int = 0) -> None:
        """Starts or resumes the run, unless it is finished, refused, or running in another process.

        A launcher that cannot start it, such as a cluster that does not answer, is asked again a minute later.
        """
        stage = self.look()
        if self.status != "waiting":
            return
        self.attempts += 1
        try:
            self.directory.path.parent.mkdir(parents=True, exist_ok=True)
            place = quoted(self.directory.path)
            # A preempted job is started again with the same command: resume=auto continues it, or starts it again if
            # it ended before its first checkpoint.
            anew = [*self.run.overrides, f"hydra.run.dir={place}", "resume=auto"]
            told = [f"resume={place}"] if stage == "interrupted" else anew
            command = [sys.executable, str(RECIPES / f"{self.run.recipe}.py"), *told]
            with open(self.log, "ab") as log:
                log.write(f"{now()} {shlex.join(command)}\n".encode())
                log.flush()
                self.log_begin = log.tell()
            self.process = launcher.start(command, self.log, run=self.directory.path, nice=nice)
            self.status = "running"
        except (OSError, NotStarted) as error:
            self.status, self.reason = "failed", f"it could not be started: {error}"
            if isinstance(error, NotStarted) and self.attempts <= retries:
                self.status, self.not_before = "waiting", time.monotonic() + START_AGAIN_SECONDS

    def end(self, code: int, retries: int, stopping: bool) -> None:
        """Sets the status after the process has ended."""
        self.process = None
        if over := outcome(self.run, self.directory):
            self.status = "done" if over.stage == "finished" else "refused"
            self.reason = over.reason or ("" if code == 0 else self._why(code))
        elif stopping:
            self.status, self.reason = "stopped", "" if code in STOPPED else self._why(code)
        else:
            self.reason, before = self._why(code), self.fault
            # Where no step was recorded, another attempt does the same again. A killed process has no message.
            self.fault = self.reason if code > 0 and not trained(self.directory) else ""
            hopeless = self.fault != "" and self.fault == before
            self.status = "failed" if hopeless or self.attempts > retries else "waiting"
            if hopeless and self.attempts <= retries:
                self.reason += f"\n{TWICE}"

    def _why(self, code: int) -> str:
        """Returns the reason why a process ended, from its exit code and its part of the log."""
        try:
            with open(self.log, "rb") as log:
                log.seek(self.log_begin)
                said = log.read().decode(errors="replace")
        except OSError as error:
            said = f"{self.log} cannot be read: {error}"
        why = f"killed by {signal.Signals(-code).name}" if code < 0 else last_message(said) or f"ended with code {code}"
        free = shutil.disk_usage(self.directory.path.parent).free
        return why if free > LITTLE_SPACE else f"{why} ({free:,} bytes are free in {self.directory.path.parent})"


def last_message(said: str) -> str:
    """Returns the last message of a recipe's output: from the last line that begins with an error or a script name."""
    lines = [line for line in said.splitlines() if line.strip()]
    begins = [n for n, line in enumerate(lines) if re.match(r"(\w+\.py|[A-Z]\w*[a-z]\w*): |trained to the end", line)]
    kept = lines[begins[-1] :] if begins else lines[-1:]
    # The path of the traceback and the command to resume are for a user who starts the recipe directly.
    hints = ("(the traceback", "nothing was saved", "to resume from")
    beyond = [n for n, line in enumerate(kept) if line.startswith(hints)]
    return "\n".join(kept[: beyond[0]] if beyond else kept).partition("; to resume from")[0]


def work(
    jobs: list[Job], launcher: Launcher, board: Board, stop: StopRequested, *, at_once: int, nice: int, retries: int
) -> None:
    """Runs jobs until each is done, failed or refused, or until a stop is requested; returns after all processes ended.

    A run that another process works on counts for ``at_once``, and the function waits for it.

    Args:
        jobs: the jobs, in the order to start them.
        launcher: starts the processes.
        board: shows the jobs after each check, and each job whose status has changed.
        stop: tells whether a stop was requested.
        at_once: the largest number of runs at a time.
        nice: the priority of the processes, 0 to 19, as the command ``nice``.
        retries: how often a failed run is retried.
    """
    asked = False
    try:
        while True:
            for job in jobs:
                _follow(job, retries, stop, board)
            busy = sum(job.status in ("running", "elsewhere") for job in jobs)
            if not stop.requested:
                ready = [job for job in jobs if job.status == "waiting" and job.not_before <= time.monotonic()]
                for job in ready[: max(0, at_once - busy)]:
                    job.start(launcher, nice, retries)
                    board.note(job)
            elif not asked:
                asked = True
                _signal(jobs, signal.Signals[stop.signal_name])
                board.leave()
            board.show(jobs)
            running = any(job.status == "running" for job in jobs)
            if not running and (stop.requested or not any(job.status in ("waiting", "elsewhere") for job in jobs)):
                return
            time.sleep(CHECK_SECONDS)
    except KeyboardInterrupt:  # the second Ctrl-C
        _signal(jobs, signal.SIGKILL)
        until = time.monotonic() + KILLED_SECONDS
        while any(job.process is not None for job in jobs) and time.monotonic() < until:
            for job in jobs:
                _follow(job, retries, stop, board)
            time.sleep(CHECK_SECONDS / 10)


def _follow(job: Job, retries: int, stop: StopRequested, board: Board) -> None:
    if job.process is not None and (code := job.process.poll()) is not None:
        job.end(code, retries, stopping=stop.requested)
        board.note(job)
    elif job.status == "elsewhere":
        job.look()
        if job.status != "elsewhere":
            board.note(job)


def _signal(jobs: list[Job], number: signal.Signals) -> None:
    for job in jobs:
        if job.process is not None:
            job.process.send_signal(number)
