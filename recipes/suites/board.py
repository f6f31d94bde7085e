"""Shows the progress of a suite: a table on a terminal, otherwise lines from time to time."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from time import monotonic

from recipes.suites.definition import how_many
from recipes.suites.provenance import marks
from recipes.suites.state import progress_in, read_result
from recipes.suites.workers import Job

TABLE_SECONDS, LINES_SECONDS = 1.0, 300.0
UNDER_WAY, TROUBLED = {"running", "elsewhere", "stopped"}, {"failed", "refused"}
STATUSES = ("done", "running", "elsewhere", "waiting", "stopped", "failed", "refused")


class Board:
    """Prints events as permanent lines and, on a terminal, a table below them that is updated.

    Args:
        name: the name of the suite.
        declared: the declaration of the suite's YAML file; runs of other code are marked.
    """

    def __init__(self, name: str, declared: Mapping[str, str] | None = None) -> None:
        self._name, self._declared = name, declared
        self._live = sys.stdout.isatty()
        self._drawn = 0  # lines of the table that are on the screen
        self._next = monotonic() + (0.0 if self._live else LINES_SECONDS)

    def note(self, job: Job) -> None:
        """Prints that a job's status has changed."""
        self.say(self._event(job))
        if self._live:
            self._next = monotonic()  # the table was erased

    def say(self, text: str) -> None:
        """Prints a permanent line."""
        self._erase()
        print(text, flush=True)

    def show(self, jobs: list[Job], *, now: bool = False) -> None:
        """Draws the table, or prints the progress of the runs, if the last output is old enough."""
        if monotonic() < self._next and not now:
            return
        if self._live:
            width, height = shutil.get_terminal_size()
            lines = [self._counts(jobs), *table(jobs, TROUBLED | UNDER_WAY)]
            if len(lines) > height - 1:
                lines = [*lines[: height - 2], f"... and {len(lines) - height + 2} more"]
            self._erase()
            print("\n".join(line[: width - 1] for line in lines), flush=True)
            self._drawn = len(lines)
        else:
            self.say("\n".join([self._counts(jobs), *table(jobs, UNDER_WAY)]))  # failures were printed when they came
        self._next = monotonic() + (TABLE_SECONDS if self._live else LINES_SECONDS)

    def leave(self) -> None:
        """Keeps the current table on the screen, because other output follows."""
        self._drawn = 0

    def _erase(self) -> None:
        if self._drawn:
            print(f"\x1b[{self._drawn}F\x1b[J", end="")
            self._drawn = 0

    def _counts(self, jobs: list[Job]) -> str:
        counted = Counter(job.status for job in jobs)
        listed = ", ".join(f"{counted[status]} {status}" for status in STATUSES if counted[status])
        return f"{self._name}: {how_many(jobs)}: {listed}"

    def _event(self, job: Job) -> str:
        word, more = str(job.status), f"  {job.reason}" if job.reason else ""
        if job.status == "waiting" and job.attempts:
            word = "again"
        elif job.status == "running":
            word = "started"
        elif job.status == "done":
            more = f"  return {_number(read_result(job.directory).get('final_return'))}{more}{self._marked(job)}"
        elif job.status == "failed":
            more += f"\n          (its output is in {job.log})"
        return f"{word:9} {job.run.name}{more}"

    def _marked(self, job: Job) -> str:
        try:
            found = marks(job.directory.read_manifest(), self._declared)
        except (OSError, ValueError) as error:
            found = [str(error)]
        return f"  ({'; '.join(found)})" if found else ""


def table(jobs: list[Job], statuses: set[str]) -> list[str]:
    """Returns a line for each run of these statuses."""
    shown = [job for job in jobs if job.status in statuses]
    width = max((len(job.run.name) for job in shown), default=0)
    return [f"  {job.status:9} {job.run.name:{width}}  {_how_far(job)}" for job in shown]


def _how_far(job: Job) -> str:
    if job.status in ("failed", "refused"):
        return job.reason.partition("\n")[0]
    progress = progress_in(job.directory, job.run.settings()["total_env_steps"])
    steps = f"{progress.env_steps:>9,} of {progress.total:,} env steps"
    left = "" if progress.seconds_left is None else f"  {timedelta(seconds=round(progress.seconds_left))} left"
    return f"{steps}  return {_number(progress.last_return):>8}{left}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
