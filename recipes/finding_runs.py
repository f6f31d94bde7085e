"""Finds runs that can be resumed, by the names of their files: this needs no torch."""

from __future__ import annotations

import contextlib
import os
from datetime import datetime
from pathlib import Path

MANIFEST, CHECKPOINTS = "manifest.json", "checkpoints"


def saved_steps(run: Path) -> dict[int, Path]:
    """Returns the checkpoints of a run by their agent steps, without checking that they can be read."""
    files = (run / CHECKPOINTS).glob("checkpoint-*")
    return {int(number): file for file in files if (number := file.name.partition("-")[2]).isdecimal()}


def why_not_resumable(run: Path) -> str | None:
    """Returns the reason why a run cannot be resumed, None if it can. Checks only the names of its files."""
    if not run.is_dir():
        return "it is a file, not a run directory" if run.exists() else "it does not exist"
    if not (run / MANIFEST).is_file():
        return f"it has no {MANIFEST}"
    return None if saved_steps(run) else "it has no checkpoint"


def runs_near(path: Path) -> str:
    """Returns a message with the runs in the folder of a path, or else in runs/: a mistyped path is often one of them.

    It searches the folder of the path only one level deep, because this folder may contain millions of files.
    """
    found = recent_runs(path.parent, depth=1) or recent_runs("runs")
    return "Runs with a checkpoint:" + ("".join(f"\n  {run}" for run in found) or " none")


def recent_runs(root: str | Path, *, limit: int = 5, depth: int | None = None) -> list[str]:
    """Lists the runs in a folder that have a checkpoint, the last saved run first, with the checkpoint's step and time.

    Args:
        root (str or Path): the folder.

    Keyword Args:
        limit (int): the largest number of runs to list. Defaults to 5.
        depth (int, optional): the number of folder levels to search. Defaults to None, all.
    """
    runs = []
    for folder, subfolders, _ in os.walk(root):
        if CHECKPOINTS in subfolders:
            with contextlib.suppress(OSError):  # a run that cannot be read cannot be resumed
                if saved := saved_steps(Path(folder)):
                    time = datetime.fromtimestamp(saved[max(saved)].stat().st_mtime)
                    runs.append((time, f"{folder} (step {max(saved)}, {time:%Y-%m-%d %H:%M})"))
            subfolders.remove(CHECKPOINTS)
        deepest = depth is not None and len(Path(folder).relative_to(root).parts) >= depth
        subfolders[:] = [] if deepest else [name for name in subfolders if not name.startswith(".")]
    return [line for _, line in sorted(runs, reverse=True)[:limit]]
