"""benchmarks/learning.py shows every run of a folder."""

from __future__ import annotations

from pathlib import Path

import learning
import pytest
import yaml
from matplotlib.figure import Figure

from mcurl_torchrl.training import Table


def add_run(folder: Path, *, task: str, seed: int, value: float, variant: str = "") -> None:
    run = folder / f"{task}-{seed}{variant}"
    table = Table(run / "eval.csv")
    for env_steps in (0, 1000):
        table.append({"step": env_steps, "env_steps": env_steps, "episode": 0, "return": value, "length": 9})
    config = {"algo_name": "mcurl", "seed": seed, "total_env_steps": 1000, "env": {"task": task, "game": None}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))


def test_two_tasks_of_two_seeds_are_four_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], figures: list[Figure]
) -> None:
    values = {("reacher-easy", 1): 11, ("reacher-easy", 2): 12, ("walker-walk", 1): 21, ("walker-walk", 2): 22}
    for (task, seed), value in values.items():
        add_run(tmp_path, task=task, seed=seed, value=value)
    learning.draw(tmp_path)
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        f"{tmp_path.name}, {task}, mcurl, seed {seed}: 0k: {value}, 1k: {value}"
        for (task, seed), value in values.items()
    ]
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["curve-reacher-easy.png", "curve-walker-walk.png"]
    for figure, task in zip(figures, ("reacher-easy", "walker-walk"), strict=True):
        (axes,) = figure.axes
        lines = {line.get_label(): set(line.get_ydata()) for line in axes.lines if "seed" in line.get_label()}
        assert lines == {f"mcurl, seed {seed}": {values[task, seed]} for seed in (1, 2)}


def test_runs_that_share_all_but_their_folder_are_both_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_run(tmp_path, task="walker-walk", seed=1, value=21)
    add_run(tmp_path, task="walker-walk", seed=1, value=31, variant="-small")
    learning.draw(tmp_path)
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("seed 1: 0k: 21, 1k: 21")
    assert second.endswith("seed 1, walker-walk-1-small: 0k: 31, 1k: 31")
    assert (tmp_path / "curve.png").is_file()
