"""Draws the learning curves that are kept under benchmarks/results: ``python benchmarks/learning.py [FOLDER...]``.

A folder has a README.md with the commands, and of each run a sub-folder with its eval.csv, config.yaml and result.json.
``--add RUN_DIR`` copies these of a finished run into the one folder that is named.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import yaml

from mcurl_torchrl.training import plot_learning_curve, read_evaluations
from recipes.published_scores import published_scores

RESULTS = Path(__file__).parent / "results"
KEPT = ("eval.csv", "metrics.csv", "config.yaml", "result.json")


def draw(folder: Path) -> None:
    curves, config = {}, {}
    for run in sorted(path.parent for path in folder.glob("*/eval.csv")):
        config = yaml.safe_load((run / "config.yaml").read_text())
        curves[f"{config['algo_name']}, seed {config['seed']}"] = read_evaluations(run / "eval.csv")
    if not curves:
        raise SystemExit(f"{folder} has no runs: no sub-folder with an eval.csv")
    task = next(config["env"][key] for key in ("task", "game", "id") if config["env"].get(key))
    plot_learning_curve(
        curves, folder / "curve.png", title=task, reference=published_scores(task, config["total_env_steps"])
    )
    for label, points in curves.items():
        means = ", ".join(f"{steps // 1000}k: {sum(returns) / len(returns):.0f}" for steps, returns in points)
        print(f"{folder.name}, {label}: {means}")


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
