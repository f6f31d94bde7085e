"""Draws the learning curves of benchmarks/results: ``python benchmarks/learning.py [FOLDER...]``.

A folder has a README.md with the commands, and a sub-folder for each run with eval.csv, config.yaml and result.json.
There is a figure for each task. ``--add RUN_DIR`` copies these files of a finished run into the given folder.
"""

from __future__ import annotations

import argparse
import shutil
from collections import defaultdict
from pathlib import Path

import yaml

from mcurl_torchrl.training import plot_learning_curve, read_evaluations
from recipes.published_scores import published_scores

RESULTS = Path(__file__).parent / "results"
KEPT = ("eval.csv", "metrics.csv", "config.yaml", "result.json")


def draw(folder: Path) -> None:
    """Draws the runs of each task in one figure, and prints all of them."""
    tasks = read_runs(folder)
    if not tasks:
        raise SystemExit(f"{folder} has no runs: no sub-folder with an eval.csv")
    for task, runs in tasks.items():
        curves = {label: points for label, (points, _) in runs.items()}
        longest = max(env_steps for _, env_steps in runs.values())
        picture = folder / ("curve.png" if len(tasks) == 1 else f"curve-{task}.png")
        plot_learning_curve(curves, picture, title=task, reference=published_scores(task, longest))
        for label, points in curves.items():
            means = ", ".join(f"{steps // 1000}k: {sum(returns) / len(returns):.0f}" for steps, returns in points)
            print(f"{folder.name}, {task}, {label}: {means}")


def read_runs(folder: Path) -> dict[str, dict[str, tuple[list[tuple[int, list[float]]], int]]]:
    """Reads the curve and the length in env steps of each run, by task and by label.

    If several runs have the same algorithm, seed and task, their labels include the names of their folders.
    """
    tasks: dict[str, dict[str, tuple[list[tuple[int, list[float]]], int]]] = defaultdict(dict)
    for run in sorted(path.parent for path in folder.glob("*/eval.csv")):
        config = yaml.safe_load((run / "config.yaml").read_text())
        task = next(config["env"][key] for key in ("task", "game", "id") if config["env"].get(key))
        label = f"{config['algo_name']}, seed {config['seed']}"
        label = f"{label}, {run.name}" if label in tasks[task] else label
        tasks[task][label] = read_evaluations(run / "eval.csv"), config["total_env_steps"]
    return tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, help="default: all folders of benchmarks/results with runs")
    parser.add_argument("--add", type=Path, action="append", default=[], help="a run directory to copy from")
    arguments = parser.parse_args()
    folders = arguments.folders or sorted({path.parents[1] for path in RESULTS.glob("*/*/eval.csv")})
    if arguments.add and len(folders) != 1:
        parser.error("--add needs exactly one folder")
    for run in arguments.add:
        place = folders[0] / run.name
        place.mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            shutil.copy(run / name, place / name)
    for folder in folders:
        draw(folder)


if __name__ == "__main__":
    main()
