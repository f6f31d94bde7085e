"""Scores encoders of DMControl with a linear probe after a fixed number of updates: about an hour on one core.

    python benchmarks/probe_table.py            # runs what is missing, and writes the table
    python benchmarks/probe_table.py --table    # only writes the table

For each task and seed a random policy plays STEPS agent steps; every method trains the same encoder for UPDATES updates
on these frames, as ``python recipes/pretrain.py PRETRAIN algo=ALGO env=TASK seed=SEED`` does. Encoders are scored on
frames of FRESH_SEED, which were made for this table and which no setting was chosen on. Results are in
benchmarks/results/probe_table/.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import setups
import torch
from matplotlib.figure import Figure
from torch import nn

from mcurl_torchrl.modules import load_encoder
from mcurl_torchrl.replay import open_replay
from mcurl_torchrl.reports.statistics import Estimate, mean_over_seeds
from mcurl_torchrl.training import ProbeData, Table, collect_probe_data, probe_encoder, seed_everything
from mcurl_torchrl.training.tables import read
from mcurl_torchrl.transforms import augment_transitions
from recipes import pretrain, sac_mcurl
from recipes.building import make_augmentations, make_env

# -- declared before the first run -------------------------------------------------------------------------------------

# A first table (results/probe_table_first) told no method from another: 300 updates were too few, and 32 long episodes
# showed the probe too few different states. Tasks and sizes were then chosen with other seeds than these, by whether
# the pixels themselves and CURL's latents tell more than nothing.
TASKS = ("cartpole-swingup", "cheetah-run", "walker-walk")
SEEDS = (201, 202, 203)  # of the frames to learn from, of the weights and of the updates
FRESH_SEED = 8001  # of the frames to score on
STEPS = 3000  # of random play to learn from
UPDATES = 2000
OBSERVATIONS = 64  # in an update, each in two views; SPR has 64 sequences, in which six observations are encoded once
CAMERA = "env.camera_id=0"  # the camera that agent=sac_cpu and preset=cpu had when this was declared
PRETRAIN = ["agent=sac_cpu", CAMERA, f"updates={UPDATES}", f"data.agent_steps={STEPS}", "probe.episodes=0", "threads=1"]
# SAC on random crops, with its rewards: the encoder, images, crops, batch and learning rate of the others.
RAD = ["preset=cpu", CAMERA, "algo=rad", f"sac.batch_size={OBSERVATIONS}", "sac.hidden_dim=256", "sac.lr=1e-3"]
PROBE = {"episodes": 160, "steps": 20}  # the last quarter of the episodes is scored
METHODS = {
    "random": "weights as they are drawn",
    "crop only": "SAC with random crops and rewards (`algo=rad`): the only one that sees rewards",
    "CURL": "two crops of each observation",
    "M-CURL": "hidden observations of slices",
    "M-CURL with actions": "the same, and the Transformer sees the actions",
    "MLR": "hidden cubes of slices, with the actions",
    "SPR": "the five observations after each of 64, by the actions; declared later than the others, when their"
    " runs were finished and its own had not begun",
}
SLICES = f"objective.num_slices={OBSERVATIONS // 16}"  # of 16 observations
ALGOS = {
    "CURL": ["algo=curl", f"batch_size={OBSERVATIONS}"],
    "M-CURL": ["algo=mcurl", SLICES],
    "M-CURL with actions": ["algo=mcurl_actions", SLICES],
    "MLR": ["algo=mlr", SLICES],
    "SPR": ["algo=spr", f"batch_size={OBSERVATIONS}"],
}

# ----------------------------------------------------------------------------------------------------------------------

FOLDER = Path(__file__).resolve().parent / "results" / "probe_table"


def play(task: str, seed: int, folder: Path) -> None:
    """Saves the frames that all methods learn from."""
    cfg = setups.settings("pretrain", *PRETRAIN, f"env={task}", f"seed={seed}")
    seed_everything(seed)
    pretrain.fill_buffer(cfg).dumps(folder)


def train(method: str, task: str, seed: int, frames: Path, folder: Path) -> nn.Module:
    """Returns the encoder of a method, trained on the frames of a task and a seed."""
    chosen = [*ALGOS.get(method, []), f"env={task}", f"seed={seed}"]
    cfg = setups.settings("pretrain", *PRETRAIN, *chosen, "data.source=replay", f"data.path={frames}")
    if method in ALGOS:
        pretrain.pretrain(cfg, folder)
        return load_encoder(folder / "encoder.pt")
    seed_everything(seed)
    if method == "crop only":
        return train_with_rewards(task, frames)
    return pretrain.make_encoder(cfg, open_replay(frames))


def train_with_rewards(task: str, frames: Path) -> nn.Module:
    """Takes SAC's updates on the frames that the other methods learn from, with their rewards."""
    cfg = setups.settings("sac_mcurl", *RAD, f"env={task}")
    augmentation = make_augmentations(cfg.augmentation, crop_size=cfg.encoder.crop_size)["batch"]
    buffer = open_replay(frames, batch_size=cfg.sac.batch_size, channels_last=True)
    buffer.append_transform(augment_transitions(augmentation))
    agent = sac_mcurl.make_agent(cfg, make_env(cfg.env, training=True), buffer, torch.device("cpu"))
    agent.begin_step(agent.first_update_step)
    for _ in range(UPDATES):
        batch = buffer.sample()
        agent.update(batch, agent.task.sample(batch))
    return agent.losses.encoder


def fresh_frames(task: str) -> ProbeData:
    cfg = setups.settings("pretrain", *PRETRAIN, f"env={task}")
    return collect_probe_data(make_env(cfg.env, training=False), **PROBE, seed=FRESH_SEED)


def missing(rows: list[dict[str, object]]) -> Iterator[tuple[str, int, str]]:
    """Yields the cases without a row, seed by seed, so that an interrupted table is complete for its seeds."""
    there = {(row["task"], row["seed"], row["method"]) for row in rows}
    for seed in SEEDS:
        for task in TASKS:
            yield from ((task, seed, method) for method in METHODS if (task, seed, method) not in there)


def run(table: Table) -> None:
    setups.prepare_process(1)
    fresh: dict[str, ProbeData] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for task, seed, method in list(missing(read(table.path) if table.path.is_file() else [])):
            if task not in fresh:
                fresh[task] = fresh_frames(task)
            frames = Path(temporary, f"{task}-{seed}")
            if not frames.exists():
                play(task, seed, frames)
            began = time.process_time()
            encoder = train(method, task, seed, frames, Path(temporary, f"{task}-{seed}-{method}"))
            score = probe_encoder(encoder, fresh[task])
            row = {"task": task, "seed": seed, "method": method, "error": score.error, "r2": score.r2}
            table.append(row | {"cpu_seconds": round(time.process_time() - began, 1)})
            print(f"{task}, seed {seed}, {method}: error {score.error:.3f}, R2 {score.r2:.3f}", flush=True)


# -- the table ---------------------------------------------------------------------------------------------------------


def estimates(rows: list[dict[str, object]], column: str) -> dict[str, dict[str, Estimate]]:
    """Returns each method's mean over the seeds, by task and, under ``mean``, of the mean over the tasks."""
    value = {(row["method"], row["task"], row["seed"]): float(row[column]) for row in rows}
    found: dict[str, dict[str, Estimate]] = {}
    for method in METHODS:
        seeds = [seed for seed in SEEDS if all((method, task, seed) in value for task in TASKS)]
        if seeds:
            scores = {task: [value[method, task, seed] for seed in seeds] for task in TASKS}
            scores["mean"] = [sum(of_seed) / len(TASKS) for of_seed in zip(*scores.values(), strict=True)]
            found[method] = {task: mean_over_seeds(of_task) for task, of_task in scores.items()}
    return found


def text(estimate: Estimate) -> str:
    interval = f" ({estimate.low:.2f} to {estimate.high:.2f})" if estimate.has_interval else ""
    return f"{estimate.value:.3f}{interval}"


def grid(found: dict[str, dict[str, Estimate]]) -> list[str]:
    """Returns the rows of a table in Markdown, one for each method."""
    lines = [f"| | {' | '.join(TASKS)} | mean of the tasks |", "|" + "---|" * (len(TASKS) + 2)]
    for method, by_task in found.items():
        lines.append(f"| {method} | {' | '.join(text(by_task[task]) for task in (*TASKS, 'mean'))} |")
    return lines


def page(rows: list[dict[str, object]]) -> str:
    """Returns the table in Markdown, the settings beside it."""
    planned = len(list(missing([])))
    lines = [
        "# What a linear probe reads off encoders of DMControl",
        "",
        "The error of a linear probe, in standard deviations of the simulator's state (lower is better), after"
        f" {UPDATES} updates of {OBSERVATIONS} observations on {STEPS} agent steps of random play.",
        f"Means over the seeds whose runs are all finished (planned: {', '.join(map(str, SEEDS))}), with Student's 95 %"
        " intervals.",
        f"All encoders are scored on the same fresh frames. {len(rows)} of {planned} runs are there.",
        "How it is measured: [pre-training](../../../docs/pretraining.md).",
        "",
    ]
    for column, title in (("error", "Error"), ("r2", "Explained variance (R2; higher is better)")):
        if found := estimates(rows, column):
            lines += [f"## {title}", "", *grid(found), ""]
    lines += ["![The errors](plot.png)", ""] if found else []
    lines += ["## What was run", ""]
    lines += ["Declared in `benchmarks/probe_table.py`, and committed, before the first run:", ""]
    lines += [f"- {method}: {meaning}" for method, meaning in METHODS.items()]
    lines += [
        "",
        "```bash",
        *(
            f"python recipes/pretrain.py {' '.join([*PRETRAIN, *chosen])} env=TASK seed=SEED"
            for chosen in ALGOS.values()
        ),
        f"python recipes/sac_mcurl.py {' '.join(RAD)} env=TASK seed=SEED  # its agent and updates, on the same frames",
        "python benchmarks/probe_table.py  # all of it: runs what is missing, and writes this page",
        "```",
        "",
        f"Scored on {PROBE['episodes']} episodes of {PROBE['steps']} steps of random play, seed {FRESH_SEED};",
        "the probe is fitted to three quarters of the episodes and scored on the last. Every number is in results.csv.",
        "",
    ]
    return "\n".join(lines)


def draw(rows: list[dict[str, object]], file: Path) -> None:
    """Draws the errors of all runs, and the mean of the tasks with its interval."""
    found = estimates(rows, "error")
    figure = Figure(figsize=(11, 3.2), dpi=110, layout="constrained")
    for axes, task in zip(figure.subplots(1, len(TASKS) + 1, sharey=True), (*TASKS, "mean"), strict=True):
        for place, (method, by_task) in enumerate(found.items()):
            estimate = by_task[task]
            if estimate.has_interval:
                axes.plot([estimate.low, estimate.high], [place, place], color="tab:blue", linewidth=4, alpha=0.3)
            axes.plot(estimate.value, place, "o", color="tab:blue")
            each = [float(row["error"]) for row in rows if (row["method"], row["task"]) == (method, task)]
            axes.plot(each, [place] * len(each), "|", color="black")
        axes.set_title("mean of the tasks" if task == "mean" else task, fontsize=10, loc="left")
        axes.set_yticks(range(len(found)), list(found))
        axes.set_xlabel("error of the probe")
        axes.grid(True, axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].invert_yaxis()
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="write the table of what is there; run nothing")
    table = Table(FOLDER / "results.csv")
    if not parser.parse_args().table:
        run(table)
    rows = read(table.path) if table.path.is_file() else []
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "README.md").write_text(page(rows), encoding="utf-8")
    if estimates(rows, "error"):
        draw(rows, FOLDER / "plot.png")
    print(page(rows))


if __name__ == "__main__":
    main()
