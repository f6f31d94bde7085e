"""Lists runs with their state, step, return of the last evaluation, and age. The last written run comes first.

    python recipes/runs.py
    python recipes/runs.py runs/suites/smoke elsewhere/runs

The default folder is runs/. A run is running, finished, failed, interrupted (it can be resumed), unsaved (it ended
before its first checkpoint) or damaged (its files contradict each other).
"""

from __future__ import annotations

import contextlib
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.command_line import BadCommand, answer

if TYPE_CHECKING:  # these import torch, which takes seconds: help and errors in the options come first
    from mcurl_torchrl.training import RunDirectory
    from recipes.reports.runs import Run

DEFAULT = "runs"
COLUMNS = ("state", "step", "return", "last written", "run")


def main(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    options = [argument for argument in arguments if argument.startswith("-") or "=" in argument]
    if wrong := [argument for argument in options if not Path(argument).is_dir()]:  # sweeps have folders like seed=1
        raise BadCommand(f"{wrong[0]}: there is no such option; give folders")
    folders = [Path(argument) for argument in arguments or [DEFAULT]]
    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise BadCommand(f"{missing[0]}: there is no such folder; give the folder with your runs")
    from recipes.reports.runs import find_runs

    found = find_runs(folders)
    ages = {run.path: age(run) for run in found.runs}
    print(table([row(run, ages[run.path]) for run in sorted(found.runs, key=lambda run: ages[run.path])]))
    for path, why in found.unreadable:
        print(f"{path} cannot be read: {why}", file=sys.stderr)
    return 0


def age(run: Run) -> float:
    """Returns the seconds since one of a run's files was written."""
    from mcurl_torchrl.training import RunDirectory

    directory = RunDirectory(run.path)
    files = (directory.manifest, directory.result, directory.metrics.path, directory.eval.path, error_log(directory))
    return time.time() - max(file.stat().st_mtime for file in files if file.is_file())


def state_of(run: Run, directory: RunDirectory) -> str:
    """Tells whether a run is running and, if not, how it ended."""
    from mcurl_torchrl.training import Checkpoints
    from recipes.reports.runs import DAMAGED, FINISHED
    from recipes.suites.state import user_of

    with contextlib.suppress(OSError):  # a folder of another user, or on a disk that cannot be written
        if user_of(directory):
            return "running"
    if run.status in (FINISHED, DAMAGED):
        return run.status
    if failed_last(directory):
        return "failed"
    return "unsaved" if Checkpoints(directory.checkpoints).latest() is None else "interrupted"


def failed_last(directory: RunDirectory) -> bool:
    """Tells whether a run wrote a traceback since it was last started."""
    log, manifest = error_log(directory), directory.read_manifest() if directory.manifest.is_file() else {}
    starts = [manifest, *manifest.get("resumed", [])]
    if not log.is_file() or "time" not in starts[-1]:
        return log.is_file()
    return log.stat().st_mtime >= datetime.fromisoformat(starts[-1]["time"]).timestamp()


def error_log(directory: RunDirectory) -> Path:
    return directory.path / "error.log"


# -- the table ---------------------------------------------------------------------------------------------------------


def table(rows: list[tuple[str, ...]]) -> str:
    """Writes the rows below the names of the columns."""
    rows = [COLUMNS, *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = ("step", "return")
    pad = [str.rjust if name in right else str.ljust for name in COLUMNS]
    return "\n".join(
        "  ".join(fill(cell, width) for fill, cell, width in zip(pad, cells, widths, strict=True)).rstrip()
        for cells in rows
    )


def row(run: Run, seconds: float) -> tuple[str, ...]:
    """Returns a run's state, step, last return, age and folder."""
    from mcurl_torchrl.training import RunDirectory
    from recipes.suites.state import progress_in

    directory = RunDirectory(run.path)
    progress = progress_in(directory, run.total_env_steps)
    last = run.curve[-1][1] if run.curve else progress.last_return
    far = f"{progress.env_steps:,} of {run.total_env_steps:,}"
    score = "-" if last is None else f"{last:,.1f}"
    return state_of(run, directory), far, score, f"{ago(seconds)} ago", str(run.path)


def ago(seconds: float) -> str:
    """Writes an age in its largest unit."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"


if __name__ == "__main__":
    answer(main)
