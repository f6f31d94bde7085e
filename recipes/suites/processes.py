"""The process of a run: what a suite asks of it, wherever it is, and how one is started on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Protocol

from mcurl_torchrl.training import RunDirectory
from recipes.suites.state import user_of

LOST = 1  # the exit code of a run whose engine does not tell one


class Process(Protocol):
    """A run that was started somewhere: what the suite needs of a ``subprocess.Popen``."""

    def poll(self) -> int | None:
        """Returns the exit code; none while it runs or waits for its turn."""

    def send_signal(self, number: int) -> None:
        """Asks it to save and to end, or ends it (SIGKILL)."""


class Launcher(Protocol):
    """Starts runs."""

    def start(self, command: list[str], log: Path, *, run: Path, nice: int) -> Process:
        """Starts a command whose output is added to a log, and which works in the folder of a run.

        Raises:
            OSError or NotStarted: if that is not possible, with the reason.
        """


class NotStarted(Exception):
    """A cluster does not take a run; the message says why."""


def start_process(command: list[str], log: Path, nice: int) -> subprocess.Popen:
    with open(log, "ab") as output:
        # A session of its own: Ctrl-C in the terminal reaches the suite only, which decides what to do.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    # Threads and processes that it starts inherit it.
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, process.pid, max(os.getpriority(os.PRIO_PROCESS, 0), nice))
    return process


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
    """Sends a signal to the process on this machine that works in a run's folder; tells whether there is one."""
    with contextlib.suppress(OSError, ValueError):
        if user_of(RunDirectory(run)) is not None:
            os.kill(int((run / ".lock").read_text()), number)
            return True
    return False


class FoundByItsLock:
    """A run on this machine that is no child of the suite: signals go to the process that has its folder's lock."""

    def __init__(self, log: Path, run: Path) -> None:
        self._log, self._run = log, run
        self._signal: int | None = None

    def send_signal(self, number: int) -> None:
        self._signal = number
        self._deliver()

    def _deliver(self) -> None:
        """Called again and again: a process cannot be told before it works in its folder."""
        if self._signal is not None and signal_owner(self._run, self._signal):
            self._signal = None


class Local:
    """Starts processes of this machine."""

    def start(self, command: list[str], log: Path, *, run: Path, nice: int) -> Process:
        return start_process(command, log, nice)
