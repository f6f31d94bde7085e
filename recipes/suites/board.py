"""Shows the progress of a suite: a table on a terminal, otherwise lines from time to time."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from time import monotonic

from recipes.suites.definition import how_many
from recipes.suites.provenance import marks
from recipes.suites.state import progress_in, read_result
from recipes.suites.workers import Job

TABLE_SECONDS, LINES_SECONDS = 1.0, 300.0
UNDER_WAY, TROUBLED = {"running", "elsewhere", "stopped"}, {"failed", "refused"}
HEADING = ("env steps", "return", "time left")
SHORTEST_NAME = 12  # characters of a name that stay on a terminal of any width
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
            lines = [self._counts(jobs), *table(jobs, width - 1)]
            if len(lines) > height - 1:
                lines = [*lines[: height - 2], f"... and {len(lines) - height + 2} more"]
            self._erase()
            print("\n".join(line[: width - 1] for line in lines), flush=True)
            self._drawn = len(lines)
        else:
            self.say("\n".join([self._counts(jobs), *lines_of(jobs)]))  # failures were printed when they came
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


def lines_of(jobs: list[Job]) -> list[str]:
    """Returns a line for each run that is under way."""
    shown = [job for job in jobs if job.status in UNDER_WAY]
    width = max((len(job.run.name) for job in shown), default=0)
    lines = []
    for job in shown:
        steps, last_return, left = _how_far(job)
        numbers = f"{steps:>9} env steps  return {last_return:>8}{f'  {left} left' if left else ''}"
        lines.append(f"  {job.status:9} {job.run.name:{width}}  {numbers}")
    return lines


def table(jobs: list[Job], width: int) -> list[str]:
    """Returns a heading, and a line for each run that is under way or in trouble.

    All numbers, or half a line of a reason, fit into ``width``: a name that is too long loses its beginning.
    """
    shown = [job for job in jobs if job.status in UNDER_WAY | TROUBLED]
    numbers = {id(job): _how_far(job) for job in shown if job.status in UNDER_WAY}
    columns = [*zip(HEADING, *numbers.values(), strict=True)] if numbers else []
    widths = [max(map(len, column)) for column in columns]
    room = min(width // 2, width - len("  elsewhere ") - sum(2 + cell for cell in widths))
    names = [_shortened(job.run.name, max(room, SHORTEST_NAME)) for job in shown]
    longest = max(map(len, names), default=0)

    def line(status: str, name: str, cells: tuple[str, ...]) -> str:
        aligned = (f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        return f"  {status:9} {name:{longest}}{''.join(aligned)}".rstrip()

    lines = [line("", "", HEADING)] if numbers else []
    for job, name in zip(shown, names, strict=True):
        if id(job) in numbers:
            lines.append(line(job.status, name, numbers[id(job)]))
        else:
            lines.append(f"  {job.status:9} {name:{longest}}  {job.reason.partition(chr(10))[0]}")
    return lines


def _how_far(job: Job) -> tuple[str, str, str]:
    """Returns env steps, return and time left of a run as text."""
    progress = progress_in(job.directory, job.run.settings()["total_env_steps"])
    seconds = None if progress.seconds_left is None else round(progress.seconds_left)
    left = "" if seconds is None else f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{progress.env_steps:,}/{progress.total:,}", _number(progress.last_return), left


def _shortened(name: str, width: int) -> str:
    return name if len(name) <= width else f"...{name[len(name) - width + 3 :]}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
