"""Runs that can be resumed are found by the names of their files."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from mcurl_torchrl.training import Checkpoints, RunDirectory
from recipes.finding_runs import CHECKPOINTS, MANIFEST, recent_runs, saved_steps, why_not_resumable


def save(folder: Path, *steps: int) -> list[Path]:
    checkpoints = Checkpoints(RunDirectory(folder).checkpoints)
    return [checkpoints.save(step, components={}) for step in steps]


def test_the_names_are_those_that_runs_have(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    assert (run.manifest, run.checkpoints) == (run.path / MANIFEST, run.path / CHECKPOINTS)
    files = save(run.path, 5, 1_234_567)
    assert saved_steps(run.path) == dict(zip((5, 1_234_567), files, strict=True))


def test_recent_runs(tmp_path: Path) -> None:
    for number, name in enumerate(["b/12-00", "a", "c/deep/er/0", "d"]):
        for path in save(tmp_path / name, number, 10 + number):
            os.utime(path, (0, 1000 * number))
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    (tmp_path / "d" / "checkpoints" / "checkpoint-half.part").touch()
    found = recent_runs(tmp_path)
    assert [line.partition(", ")[0] for line in found] == [
        f"{tmp_path}/d (step 13",
        f"{tmp_path}/c/deep/er/0 (step 12",
        f"{tmp_path}/a (step 11",
        f"{tmp_path}/b/12-00 (step 10",
    ]
    assert found[1].endswith(f", {datetime.fromtimestamp(2000):%Y-%m-%d %H:%M})")
    assert recent_runs(tmp_path, limit=2) == found[:2]
    assert recent_runs(tmp_path, depth=1) == [found[0], found[2]]
    assert recent_runs(tmp_path / "nowhere") == []


def test_what_a_run_lacks(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    assert why_not_resumable(run.path) == "it does not exist"
    run.path.mkdir()
    assert why_not_resumable(run.path) == "it has no manifest.json"
    run.manifest.touch()
    assert why_not_resumable(run.path) == "it has no checkpoint"
    assert why_not_resumable(run.manifest) == "it is a file, not a run directory"
    save(run.path, 7)
    assert why_not_resumable(run.path) is None
