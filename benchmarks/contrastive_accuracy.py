"""Measures how soon the masked contrastive loss learns, and draws it for docs/losses.md.

    python benchmarks/contrastive_accuracy.py --measure
    python benchmarks/contrastive_accuracy.py

The first command plays RoadRunner at random, trains M-CURL's task alone on the same frames with each setting, and
writes benchmarks/results/contrastive_accuracy.csv. The second draws docs/contrastive_accuracy.png from that file and
from the runs in benchmarks/results that trained the task together with RL.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import yaml
from matplotlib.figure import Figure
from torchrl.data import LazyTensorStorage

import mcurl_torchrl as mcurl
from mcurl_torchrl.training.curves import COLOURS

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "benchmarks" / "results"
MEASURED = RESULTS / "contrastive_accuracy.csv"
FIGURE = REPO / "docs" / "contrastive_accuracy.png"
GAME, STEPS, NUM_FRAMES = "RoadRunner", 4000, 4
NUM_SLICES, SLICE_LEN, UPDATES_PER_POINT = 8, 16, 50
METRICS = ("loss_auxiliary", "contrastive_accuracy", "contrastive_accuracy_zeroed")
# Runs with M-CURL, by their folders in benchmarks/results.
RUNS = {
    "SAC, cartpole-swingup": "sac_cartpole_swingup_cpu/mcurl",
    "Rainbow, RoadRunner": "first_looks/rainbow_mcurl/RoadRunner/mcurl-seed1",
}
ROWS_PER_POINT = 10
# The arguments of each setting; all other arguments are the defaults of MaskedContrastiveTask.
SETTINGS: dict[str, dict[str, Any]] = {
    "shift, raw features, lr 1e-4": {},
    "no shift, raw features, lr 1e-4": {"augmentation": None},
    "shift, raw features, lr 1e-3": {"lr": 1e-3},
    "shift, 128 projected, lr 1e-4": {"projection": "linear"},
    "shift, 128 projected, lr 1e-3": {"projection": "linear", "lr": 1e-3},
    "shift, 128 projected, lr 1e-3, warm-up 1000": {"projection": "linear", "lr": 1e-3, "warmup_updates": 1000},
    "shift, raw features, lr 1e-4, temperature 0.1": {"temperature": 0.1, "updates": 800},
    "one shift a slice, raw features, lr 1e-4": {
        "augmentation": mcurl.RandomShift(per="slice", slice_len=SLICE_LEN),
        "updates": 800,
    },
}


def play() -> mcurl.FrameReplayBuffer:
    """Returns a buffer with random play."""
    env = mcurl.make_atari_env(GAME, num_frames=NUM_FRAMES, seed=1)
    buffer = mcurl.FrameReplayBuffer(storage=LazyTensorStorage(2 * STEPS), num_frames=NUM_FRAMES, padding="zeros")
    torch.manual_seed(1)
    env.set_seed(1)
    taken = 0
    while taken < STEPS:
        episode = env.rollout(STEPS - taken)
        buffer.extend(episode)
        taken += len(episode)
    return buffer


def measure(
    buffer: mcurl.FrameReplayBuffer, *, updates: int = 2000, lr: float = 1e-4, **options: Any
) -> list[dict[str, Any]]:
    """Trains the task alone; returns the mean metrics of every UPDATES_PER_POINT updates."""
    torch.manual_seed(1)
    encoder = mcurl.AtariEncoder(NUM_FRAMES)
    options = {"augmentation": mcurl.RandomShift(), **options}
    task = mcurl.MaskedContrastiveTask(encoder, buffer, num_slices=NUM_SLICES, slice_len=SLICE_LEN, **options)
    optimizer = torch.optim.Adam([{"params": encoder.parameters()}, *task.param_groups(lr)], lr=lr)
    schedule = task.make_schedule(optimizer)
    points, sums = [], dict.fromkeys(METRICS, 0.0)
    for update in range(1, updates + 1):
        out = task(task.sample())
        optimizer.zero_grad()
        out["loss_auxiliary"].backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        task.update_targets()
        sums = {name: value + out[name].item() for name, value in sums.items()}
        if update % UPDATES_PER_POINT == 0:
            points.append({"update": update} | {name: value / UPDATES_PER_POINT for name, value in sums.items()})
            sums = dict.fromkeys(METRICS, 0.0)
    return points


def read_measured() -> dict[str, list[tuple[float, float]]]:
    """Returns the accuracy after so many updates, by setting."""
    curves: dict[str, list[tuple[float, float]]] = {}
    with MEASURED.open(newline="") as file:
        for row in csv.DictReader(file):
            curves.setdefault(row["setting"], []).append((int(row["update"]), float(row["contrastive_accuracy"])))
    return curves


def read_run(folder: Path) -> tuple[list[tuple[float, float]], float]:
    """Returns the accuracy after so many updates, each point a mean of several logged updates, and that of chance."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [(int(row["step"]), row["contrastive_accuracy"]) for row in csv.DictReader(file)]
    logged = [(step, float(accuracy)) for step, accuracy in rows if accuracy]
    rainbow = config.get("rainbow")
    first = rainbow["first_update_agent_steps"] if rainbow else config["sac"]["random_agent_steps"]
    groups = [logged[start : start + ROWS_PER_POINT] for start in range(0, len(logged), ROWS_PER_POINT)]
    points = [(fmean(step for step, _ in group) - first, fmean(value for _, value in group)) for group in groups]
    task = config["contrastive"]
    return points, 1 / (task["num_slices"] * task["slice_len"])


def draw() -> None:
    figure = Figure(figsize=(11, 4.4), dpi=110, layout="constrained")
    alone, beside = figure.subplots(1, 2, sharey=True)
    for label, points in read_measured().items():
        alone.plot(*zip(*points, strict=True), label=label)
    alone.axhline(1 / (NUM_SLICES * SLICE_LEN), color="grey", linestyle=":", label="chance, 1 of 128 keys")
    alone.set_title(f"the task alone, on {STEPS} random steps of {GAME}", fontsize=10, loc="left")
    for (label, folder), colour in zip(RUNS.items(), COLOURS, strict=False):
        points, chance = read_run(RESULTS / folder)
        beside.plot(*zip(*points, strict=True), color=colour, label=f"{label} (chance {chance:.3f})")
        beside.axhline(chance, color=colour, linestyle=":")
    beside.set_title("beside RL, whole runs of the recipes at preset=cpu", fontsize=10, loc="left")
    for axes in (alone, beside):
        axes.set_yscale("log")
        axes.set_xlabel("updates")
        axes.grid(True, alpha=0.3)
        axes.legend(fontsize=7.5, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    alone.set_ylim(0.004, 4)  # above 1 there is room for the legend
    alone.set_ylabel("contrastive_accuracy")
    figure.savefig(FIGURE)
    print(FIGURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="train again; otherwise only draw the figure")
    arguments = parser.parse_args()
    if arguments.measure:
        buffer = play()
        with MEASURED.open("w", newline="") as file:
            table = csv.DictWriter(file, ["setting", "update", *METRICS], lineterminator="\n")
            table.writeheader()
            for name, options in SETTINGS.items():
                for point in measure(buffer, **options):
                    table.writerow({"setting": name} | {key: round(value, 4) for key, value in point.items()})
                file.flush()
                print(name, point, flush=True)
    draw()


if __name__ == "__main__":
    main()
