"""The interface of a run's process for a suite, on this or another machine, and starting a process on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Protocol

from mcurl_torchrl.training import RunDirectory
from recipes.suites.state import user_of

LOST = 1  # the exit code of a run if its launcher does not return one


class Process(Protocol):
    """A started run, with two methods of ``subprocess.Popen``."""

    def poll(self) -> int | None:
        """Returns the exit code; None while the run is running or waits in a queue."""

    def send_signal(self, number: int) -> None:
        """Lets the run save and end, or kills it (SIGKILL)."""


class Launcher(Protocol):
    """Starts runs."""

    def start(self, command: list[str], log: Path, *, run: Path, nice: int) -> Process:
        """Starts a command that works in the folder of a run; its output is appended to the log.

        Raises:
            OSError or NotStarted: if the command cannot be started, with the reason.
        """


class NotStarted(Exception):
    """A cluster does not accept a run; the message gives the reason."""


def start_process(command: list[str], log: Path, nice: int) -> subprocess.Popen:
    with open(log, "ab") as output:
        # In a new session, so that Ctrl-C in the terminal reaches only the suite.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    lower_priority(process.pid, max(os.getpriority(os.PRIO_PROCESS, 0), nice))
    return process


def lower_priority(pid: int, nice: int) -> None:
    """Sets the nice value of a process that leads a session, and of its session; threads and children inherit both.

    Linux shares the processor between sessions first (man 7 sched, autogroup): without the second value the runs
    would get as much of it as the user's other sessions.
    """
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    with contextlib.suppress(OSError):  # another system, or the process has ended
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def run_to_its_end(command: list[str], log: Path, nice: int) -> int:
    """Runs a recipe from a worker process of joblib or Ray; returns its exit code."""
    process = start_process(command, log, nice)
    while process.poll() is None:
        try:
            time.sleep(0.2)  # Ray's cancel does not interrupt a wait() for the process
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
    return process.returncode


def append(log: Path, text: str) -> None:
    with contextlib.suppress(OSError), open(log, "a", encoding="utf-8") as output:
        output.write(f"{text}\n")


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def signal_owner(run: Path, number: int) -> bool:
    """Sends a signal to the process on this machine that works in a run's folder; returns False if there is none."""
    with contextlib.suppress(OSError, ValueError):
        if user_of(RunDirectory(run)) is not None:
            os.kill(int((run / ".lock").read_text()), number)
            return True
    return False


class LibraryRun:
    """A run that another library started: signals go to the process on this machine that holds its folder's lock.

    Args:
        job: the run's job or future in that library.
        log: the file for its output.
        run: its folder.
    """

    def __init__(self, job: Any, log: Path, run: Path) -> None:
        self._job, self._log, self._run = job, log, run
        self._signal: int | None = None

    def poll(self) -> int | None:
        """Returns the exit code, or LOST with a line in the log if the library does not return one; None before."""
        if not self._over():
            self._deliver()
            return None
        try:
            return self._result()
        except Exception as error:  # its worker or its machine is lost; the recipe may still run, and has its lock
            append(self._log, first_line(error))
            return LOST

    def _over(self) -> bool:
        return self._job.done()

    def _result(self) -> int:
        return self._job.result()

    def send_signal(self, number: int) -> None:
        self._signal = number
        self._deliver()

    def _deliver(self) -> None:
        """Sends the signal, if the process already has its lock; otherwise the next call tries again."""
        if self._signal is not None and signal_owner(self._run, self._signal):
            self._signal = None


class Local:
    """Starts processes of this machine."""

    def start(self, command: list[str], log: Path, *, run: Path, nice: int) -> Process:
        return start_process(command, log, nice)
