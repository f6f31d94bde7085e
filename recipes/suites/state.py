"""Reads the state of a run from its folder: missing, interrupted, finished or in use, and its progress."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from omegaconf import OmegaConf

from mcurl_torchrl.training import Checkpoints, RunDirectory, RunDirectoryInUse, read_evaluations, tables
from recipes.reports.runs import DAMAGED, FINISHED, read_outcome
from recipes.resuming import ONLY_TELLING, flat, results_in, saved_config, without_manifest
from recipes.resuming import read_result as result_of
from recipes.suites.definition import PlannedRun

# Settings in which a run may differ from the suite's plan: they do not affect learning.
NOT_COMPARED = ("threads", "device", "logging")

Stage = Literal["missing", "unsaved", "interrupted", "finished", "in use", "refused"]


@dataclass(frozen=True)
class Found:
    """The stage of a run, and the reason if its folder cannot be used."""

    stage: Stage
    reason: str = ""


@dataclass(frozen=True)
class Progress:
    """The progress of a run; None for a value that its files do not contain."""

    env_steps: int
    total: int
    last_return: float | None  # the mean of the last evaluation
    seconds_left: float | None


def look(run: PlannedRun, directory: RunDirectory) -> Found:
    """Returns the stage of a run."""
    try:
        return _look(run, directory)
    except (OSError, ValueError) as error:
        return Found("refused", str(error))


def _look(run: PlannedRun, directory: RunDirectory) -> Found:
    if not directory.manifest.is_file():
        if used := user_of(directory):
            return Found("in use", used)
        return Found("refused", without_manifest(directory)) if results_in(directory) else Found("missing")
    manifest = directory.read_manifest()
    if manifest.get("recipe") != run.recipe:
        return Found("refused", f"it holds a run of the recipe {manifest.get('recipe')}, not of {run.recipe}")
    set_there = {*map(_key, run.overrides), *map(_key, manifest.get("overrides", []))}
    if differing := list(disagreements(saved_config(directory), run.settings(), set_there)):
        return Found("refused", f"it holds a run with other settings, which is not changed: {', '.join(differing)}")
    if used := user_of(directory):
        return Found("in use", used)
    if over := outcome(run, directory):
        return over
    if Checkpoints(directory.checkpoints).latest() is not None:
        return Found("interrupted")
    if any(directory.checkpoints.glob("checkpoint-*")):
        return Found("refused", f"no checkpoint in {directory.checkpoints} can be read")
    points = read_evaluations(directory.eval.path) if directory.eval.path.is_file() else []
    if points and points[-1][0] >= run.env_steps:
        why = "has the last evaluation, but there is no result.json and no checkpoint: restore one of them, or move"
        return Found("refused", f"{directory.eval.path.name} {why} {directory.path}")
    return Found("unsaved")


def outcome(run: PlannedRun, directory: RunDirectory) -> Found | None:
    """Returns that a run is finished, or that its files contradict each other, as in a report; None before its end."""
    try:
        if result_of(directory.result).get("finished") is not True:
            return None
    except ValueError as error:
        if Checkpoints(directory.checkpoints).latest() is not None:
            return None  # the resumed run writes it again
        return Found("refused", f"{error}; restore it, or move {directory.path}")
    status, _, _, remarks = read_outcome(directory, OmegaConf.create(run.settings()))
    if status == FINISHED:
        return Found("finished")
    if status == DAMAGED:
        why = remarks[-1].removeprefix("left out: ")
        again = f"to run it again, move or delete {directory.path}, and start the suite again"
        return Found("refused", f"it does not count as finished, and is not changed: {why}; {again}")
    return None  # it is now trained for longer


def user_of(directory: RunDirectory) -> str | None:
    """Names the process that works in a run's folder; None if there is none."""
    lock = directory.path / ".lock"
    if not lock.exists():
        return None
    try:
        with directory.lock():
            return None
    except RunDirectoryInUse:
        return f"process {lock.read_text().strip() or 'unknown'} works on it"


def disagreements(saved: Any, planned: dict[str, Any], set_there: set[str]) -> Iterator[str]:
    """Yields the settings in which a run differs from the plan.

    A setting that only one of them has belongs to another version of the code: it counts only if it was set explicitly.
    """
    before, now = dict(flat(saved)), dict(flat(planned))
    for key in sorted({*before, *now}):
        if key.partition(".")[0] in NOT_COMPARED or key in ONLY_TELLING or before.get(key) == now.get(key):
            continue
        if (key in before and key in now) or key in set_there:
            yield f"{key} is {before.get(key)}, not {now.get(key)}"


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def read_result(directory: RunDirectory) -> dict[str, Any]:
    """Reads ``result.json``; returns an empty dictionary if it is missing or damaged."""
    with contextlib.suppress(OSError, ValueError):
        return result_of(directory.result)
    return {}


def trained(directory: RunDirectory) -> bool:
    """Tells whether a run's folder has a step of training: a checkpoint after step 0, or a row of ``metrics.csv``."""
    latest = Checkpoints(directory.checkpoints).latest()
    return (latest is not None and latest.step > 0) or directory.metrics.path.is_file()


def progress_in(directory: RunDirectory, total: int) -> Progress:
    """Reads the progress of a run with ``total`` env steps from its files."""
    result, rows = read_result(directory), []
    with contextlib.suppress(OSError, ValueError):
        rows = [(row["env_steps"], row["seconds"]) for row in tables.read(directory.metrics.path)]
    steps = max([result.get("env_steps") or 0, *(step for step, _ in rows[-1:])], default=0)
    return Progress(steps, total, result.get("final_return"), _seconds_left(rows, total))


def _seconds_left(rows: list[tuple[int, float]], total: int) -> float | None:
    """Estimates the remaining time from the later half of the rows: the first steps have no updates and are fast."""
    if len(rows) < 2:
        return None
    (first, began), (last, now) = rows[len(rows) // 2 - 1], rows[-1]
    return (total - last) * (now - began) / (last - first) if last > first else None
