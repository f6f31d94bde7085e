"""Lists runs with their state, step, return of the last evaluation, and age. The last written run comes first.

    python recipes/runs.py
    python recipes/runs.py runs/suites/smoke elsewhere/runs

The default folder is runs/. A run is running, finished, failed, interrupted (it can be resumed), unsaved (it ended
before its first checkpoint) or damaged (its files contradict each other).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.command_line import BadCommand, answer

if TYPE_CHECKING:  # these import torch, which takes seconds: help and errors in the options come first
    from mcurl_torchrl.training import RunDirectory
    from recipes.reports.runs import Run

DEFAULT = "runs"
COLUMNS = ("state", "step", "return", "last written", "run")


@dataclass(frozen=True)
class Standing:
    """The state and the progress of a run."""

    run: Run
    state: str
    env_steps: int
    last_return: float | None
    written: float  # time of the last change of one of its files, in seconds since 1970


def main(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    if wrong := [argument for argument in arguments if argument.startswith("-") or "=" in argument]:
        raise BadCommand(f"{wrong[0]}: there is no such option; give folders")
    folders = [Path(argument) for argument in arguments or [DEFAULT]]
    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise BadCommand(f"{missing[0]}: there is no such folder; give the folder with your runs")
    from recipes.reports.runs import find_runs

    found = find_runs(folders)
    print(table([standing(run) for run in found.runs], datetime.now(timezone.utc).timestamp()))
    for path, why in found.unreadable:
        print(f"{path} cannot be read: {why}", file=sys.stderr)
    return 0


def standing(run: Run) -> Standing:
    """Reads the state and the progress of a run from its files."""
    from mcurl_torchrl.training import RunDirectory
    from recipes.suites.state import progress_in

    directory = RunDirectory(run.path)
    progress = progress_in(directory, run.total_env_steps)
    files = (directory.manifest, directory.result, directory.metrics.path, directory.eval.path, error_log(directory))
    written = max(file.stat().st_mtime for file in files if file.is_file())
    last = run.curve[-1][1] if run.curve else progress.last_return
    return Standing(run, state_of(run, directory), progress.env_steps or 0, last, written)


def state_of(run: Run, directory: RunDirectory) -> str:
    """Tells whether a run is running and, if not, how it ended."""
    from mcurl_torchrl.training import Checkpoints
    from recipes.reports.runs import DAMAGED, FINISHED
    from recipes.suites.state import user_of

    with contextlib.suppress(PermissionError):  # a folder of another user
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


def table(standings: Iterable[Standing], now: float) -> str:
    """Writes a line for each run, the last written first."""
    rows = [COLUMNS, *(row(one, now) for one in sorted(standings, key=lambda one: -one.written))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = ("step", "return")
    pad = [str.rjust if name in right else str.ljust for name in COLUMNS]
    return "\n".join(
        "  ".join(fill(cell, width) for fill, cell, width in zip(pad, cells, widths, strict=True)).rstrip()
        for cells in rows
    )


def row(one: Standing, now: float) -> tuple[str, ...]:
    far = f"{one.env_steps:,} of {one.run.total_env_steps:,}"
    score = "-" if one.last_return is None else f"{one.last_return:,.1f}"
    return one.state, far, score, f"{ago(now - one.written)} ago", str(one.run.path)


def ago(seconds: float) -> str:
    """Writes an age in its largest unit."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"


if __name__ == "__main__":
    answer(main)
