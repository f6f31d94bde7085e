"""Finds runs that can be resumed, by the names of their files: this needs no torch."""

from __future__ import annotations

import contextlib
import os
from datetime import datetime
from pathlib import Path

MANIFEST, CHECKPOINTS = "manifest.json", "checkpoints"


def saved_steps(run: Path) -> dict[int, Path]:
    """Returns the checkpoints of a run by their agent steps; whether they can be read is not known yet."""
    files = (run / CHECKPOINTS).glob("checkpoint-*")
    return {int(number): file for file in files if (number := file.name.partition("-")[2]).isdecimal()}


def why_not_resumable(run: Path) -> str | None:
    """Tells what a run lacks to be resumed, None if it lacks nothing. Looks at the names of its files only."""
    if not run.is_dir():
        return "it is a file, not a run directory" if run.exists() else "it does not exist"
    if not (run / MANIFEST).is_file():
        return f"it has no {MANIFEST}"
    return None if saved_steps(run) else "it has no checkpoint"


def runs_near(path: Path) -> str:
    """Lists runs beside a path, or below runs/, in lines of a message: a path that was mistyped is often one of them.

    It looks one level deep beside the path, which may lie in a folder with millions of files.
    """
    found = recent_runs(path.parent, depth=1) or recent_runs("runs")
    return "Runs with a checkpoint:" + ("".join(f"\n  {run}" for run in found) or " none")


def recent_runs(root: str | Path, *, limit: int = 5, depth: int | None = None) -> list[str]:
    """Lists the runs below a folder that have a checkpoint, the last saved first, with its step and time.

    Args:
        root (str or Path): the folder.

    Keyword Args:
        limit (int): how many to list at most. Defaults to 5.
        depth (int, optional): how many levels of folders to look into. Defaults to None, all.
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
