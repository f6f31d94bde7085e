"""Measures the speed of whole recipes at preset=cpu, the time of each part, and how the time grows with the settings.

    python benchmarks/end_to_end.py                              # about six minutes on two cores
    python benchmarks/end_to_end.py --only rainbow --steps 1000 --json end_to_end.json --plot end_to_end.png
    python benchmarks/end_to_end.py --quick                      # tiny sizes: to see that it runs

The benchmark runs the recipes' own training loops, with their environments. It measures from some steps after the first
update on. Evaluations, checkpoints and TensorBoard are left out, because their intervals are settings.

- env: the simulator, rendering, stacking frames
- policy: choosing an action, drawing noise
- storing: writing to the replay
- sampling: drawing batches, crops, masks
- learning: the update, and new priorities
- loop: the rest, including the run's metrics.csv

All parts except sampling and learning are outside the learner. The goal is at most 15 % outside the learner on
DMControl, and 35 % on Atari.

The growth is that of the time of an update with sampling, with random frames and one changed setting at a time. For the
capacity of the replay it is the time of sampling only, with 44x44 images, so that a million rows are written quickly.
Learners run in turns; numbers are medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from measuring import milliseconds
from setups import LEARNERS, Stopwatch, machine, make_learner, prepare_process, rainbow_mcurl, sac_mcurl, settings

from mcurl_torchrl import FrameReplayBuffer
from mcurl_torchrl.training import EpisodeStream, RunPlan, TrainingRun

TRAIN = {"sac": sac_mcurl.train, "rainbow": rainbow_mcurl.train}
ENVS = {"sac": "env=cartpole-swingup", "rainbow": "env=RoadRunner"}
INSIDE_LEARNER = ("sampling", "learning")
LARGEST_SHARE_OUTSIDE = {"sac": 0.15, "rainbow": 0.35}
STEPS_BEFORE = 20  # after the first update, until everything is warm
NEVER = 10**9

# What grows: the settings that are changed together, and their values, around those of preset=cpu.
GROWTH = {
    "sac": {
        "slices": (("objective.num_slices",), [(4,), (8,), (16,), (32,)]),
        "slice length": (("objective.slice_len",), [(8,), (16,), (32,), (64,)]),
        "batch": (("sac.batch_size",), [(32,), (64,), (128,), (256,)]),
        "image size": (("encoder.crop_size", "env.image_size"), [(40, 48), (54, 64), (70, 84), (84, 100)]),
    },
    "rainbow": {
        "slices": (("objective.num_slices",), [(2,), (4,), (8,), (16,)]),
        "slice length": (("objective.slice_len",), [(8,), (16,), (32,), (64,)]),
        "batch": (("rainbow.batch_size",), [(16,), (32,), (64,), (128,)]),
        "image size": (("env.image_size",), [(50,), (75,), (84,), (100,)]),
    },
}
CAPACITIES = [10_000, 100_000, 1_000_000]


# -- the recipes' loops ------------------------------------------------------------------------------------------------


class MeasuredRun(TrainingRun):
    """A run that measures a number of agent steps after the first update and ends; it neither evaluates nor saves."""

    def __init__(self, directory: str, cfg: Any, steps: int, watch: Stopwatch) -> None:
        plan = RunPlan(
            name="benchmark",
            seed=cfg.seed,
            total_agent_steps=cfg.total_env_steps // cfg.env.action_repeat,
            evaluation_interval=NEVER,
            checkpoint_interval=NEVER,
            log_interval=cfg.logging.interval_agent_steps,
        )
        super().__init__(directory, plan, progress=False)
        self.wanted = steps
        self.watch = watch
        self.learning_steps: int | None = None
        self.seconds = 0.0

    def agent_steps(self) -> Iterator[int]:
        begin = 0.0
        for step in super().agent_steps():
            if self.learning_steps is not None:
                self.learning_steps += 1
                if self.learning_steps == STEPS_BEFORE:
                    self.watch.seconds.clear()
                    begin = time.perf_counter()
                if self.learning_steps == STEPS_BEFORE + self.wanted:
                    self.seconds = time.perf_counter() - begin
                    return
            with self.watch.part("loop"):
                yield step

    def record(self, step: int, metrics: Any, **more: float | None) -> None:
        if self.learning_steps is None and any(name.startswith("loss_") for name in metrics):
            self.learning_steps = 0
        super().record(step, metrics, **more)

    def timed(self, part: str) -> contextlib.AbstractContextManager[None]:
        # What is left of acting after the environment and the replay, which are watched themselves, is the policy.
        return self.watch.part({"env": "policy", "sample": "sampling", "update": "learning"}[part])

    def evaluate(self, *args: Any, **kwargs: Any) -> None:
        pass

    def save(self, *args: Any, **kwargs: Any) -> None:
        pass


def run_recipe(algorithm: str, preset: str, steps: int) -> dict[str, Any]:
    """Runs a recipe's training loop; returns steps per second and the share of each part."""
    cfg = settings(LEARNERS[algorithm].recipe, ENVS[algorithm], f"preset={preset}")
    watch = Stopwatch()
    watched = [
        (EpisodeStream, "observe", "env"),
        (EpisodeStream, "take", "env"),
        (FrameReplayBuffer, "add", "storing"),
        (FrameReplayBuffer, "update_tensordict_priority", "learning"),
    ]
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        for owner, method, part in watched:
            stack.enter_context(mock.patch.object(owner, method, watch.timed(part, getattr(owner, method))))
        run = MeasuredRun(directory, cfg, steps, watch)
        TRAIN[algorithm](cfg, run)
    watch.seconds["loop"] += run.seconds - sum(watch.seconds.values())  # between two steps, too
    total = run.seconds
    outside = sum(seconds for part, seconds in watch.seconds.items() if part not in INSIDE_LEARNER)
    return {
        "preset": preset,
        "steps_per_second": steps / run.seconds,
        "milliseconds_per_step": {part: seconds / steps * 1e3 for part, seconds in watch.seconds.items()},
        "share_outside_learner": outside / total,
        "largest_share_outside_learner": LARGEST_SHARE_OUTSIDE[algorithm],
        "met": outside / total <= LARGEST_SHARE_OUTSIDE[algorithm],
    }


# -- how cost grows ----------------------------------------------------------------------------------------------------


def growth(algorithm: str, preset: str, rounds: int) -> dict[str, dict[str, float]]:
    """Times an update for several values of each setting."""
    table = {}
    for what, (keys, values) in GROWTH[algorithm].items():
        made = {}
        for value in values:
            changes = [f"{key}={number}" for key, number in zip(keys, value, strict=True)]
            made[str(value[0])] = make_learner(algorithm, ENVS[algorithm], f"preset={preset}", *changes).step
        # Two updates at a time: SAC's actor steps in every second one.
        table[what] = milliseconds(made, rounds, inner=2 if algorithm == "sac" else 6)
    return table


def growth_of_replay(capacities: list[int], rounds: int) -> dict[str, float]:
    """Times what Rainbow draws for an update from full replays of several sizes."""
    made = {}
    for capacity in capacities:
        overrides = (ENVS["rainbow"], "preset=cpu", "env.image_size=44", f"replay.capacity={capacity}")
        made[str(capacity)] = make_learner("rainbow", *overrides, rows=capacity).sample
    return milliseconds(made, rounds, inner=10)


# -- showing -----------------------------------------------------------------------------------------------------------


def show(results: dict[str, Any]) -> None:
    for name, result in results["recipes"].items():
        parts = result["milliseconds_per_step"]
        print(f"\n{name}, preset={result['preset']}: {result['steps_per_second']:.1f} agent steps per second")
        for part, value in sorted(parts.items(), key=lambda item: -item[1]):
            print(f"  {part:<10}{value:9.2f} ms{value / sum(parts.values()):8.1%}")
        print(
            f"  outside of the learner {result['share_outside_learner']:.1%}, at most "
            f"{result['largest_share_outside_learner']:.0%}: {'met' if result['met'] else 'NOT met'}"
        )
    for name, table in results["growth"].items():
        print(f"\n{name}, ms per {'sample' if name == 'replay' else 'update'}")
        for what, row in table.items():
            print(f"  {what:<14}" + "".join(f"{value:>10}: {time:7.1f}" for value, time in row.items()))


def plot(results: dict[str, Any], path: Path) -> None:
    """Draws the shares of an agent step, and how cost grows, each against its value at the smallest setting."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.5), layout="constrained")
    left, *rest = figure.subplots(1, 1 + len(results["growth"]), squeeze=False)[0]
    recipes = results["recipes"]
    parts = list(dict.fromkeys(part for result in recipes.values() for part in result["milliseconds_per_step"]))
    labels = [f"{name}\n{result['steps_per_second']:.0f} steps/s" for name, result in recipes.items()]
    base = [0.0] * len(recipes)
    for part in parts:
        times = [result["milliseconds_per_step"] for result in recipes.values()]
        shares = [by_part.get(part, 0.0) / sum(by_part.values()) for by_part in times]
        left.bar(labels, shares, bottom=base, label=part)
        base = [below + share for below, share in zip(base, shares, strict=True)]
    left.set(ylabel="share of an agent step", title="Where the time goes", ylim=(0, 1))
    left.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for axes, (name, table) in zip(rest, results["growth"].items(), strict=True):
        for what, row in table.items():
            sizes, times = [int(value) for value in row], list(row.values())
            axes.plot([size / sizes[0] for size in sizes], times, marker="o", label=f"{what}, from {sizes[0]}")
        title = "sampling" if name == "replay" else f"an update of {name}"
        axes.set(xlabel="times the smallest", ylabel="ms", title=f"How {title} grows")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measures everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["sac", "rainbow"], help="one of the recipes")
    parser.add_argument("--steps", type=int, default=300, help="agent steps to measure of each recipe (default: 300)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: as torch chooses")
    parser.add_argument("--no-growth", action="store_true", help="leave out how cost grows")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--plot", type=Path, default=Path("end_to_end.png"), help="default: end_to_end.png")
    arguments = parser.parse_args()
    prepare_process(arguments.threads)
    algorithms = [arguments.only] if arguments.only else list(TRAIN)
    preset, steps, rounds = ("smoke", 10, 1) if arguments.quick else ("cpu", arguments.steps, 5)
    results: dict[str, Any] = {"machine": machine(), "recipes": {}, "growth": {}}
    for algorithm in algorithms:
        results["recipes"][algorithm] = run_recipe(algorithm, preset, steps)
    for algorithm in [] if arguments.no_growth else algorithms:
        results["growth"][algorithm] = growth(algorithm, preset, rounds)
    if not arguments.no_growth:
        capacities = [1_000, 2_000] if arguments.quick else CAPACITIES
        results["growth"]["replay"] = {"rows": growth_of_replay(capacities, 4 * rounds)}
    show(results)
    plot(results, arguments.plot)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
