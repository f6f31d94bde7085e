"""Measures the effect of compile, precision and sample_ahead on the time of an update, on this machine.

    python benchmarks/gpu_ready.py --threads 1 --json benchmarks/results/gpu_ready.json  # ten minutes or more
    python benchmarks/gpu_ready.py --quick  # tiny sizes, without a compiler

The learners are the recipes' own at preset=cpu, on random frames; sampling and optimizers are included. All learners of
a case run in turns in one process, so that other processes slow all of them equally; numbers are medians. The first
update, in which code is compiled, is reported separately. The results do not apply to a GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from measuring import milliseconds, show
from setups import Learner, machine, make_learner, prepare_process

from mcurl_torchrl.training import Batches

SWITCHES = {
    "plain": [],
    "compile": ["compile=true"],
    "bfloat16": ["precision=bfloat16"],
    "sample_ahead": ["sample_ahead=1"],
}
CASES = {"rainbow": ["env=RoadRunner"], "sac": ["env=cartpole-swingup"]}


class Updates:
    """A learner that takes updates as the loop of its recipe does."""

    def __init__(self, algorithm: str, *overrides: str) -> None:
        self.learner: Learner = make_learner(algorithm, *overrides)
        cfg = self.learner.cfg
        device = torch.device("cpu")
        task = self.learner.agent.task
        self.batches = Batches(self.learner.buffer, task, device=device, ahead=cfg.sample_ahead, seed=cfg.seed)

    def __call__(self) -> None:
        agent, buffer = self.learner.agent, self.learner.buffer
        agent.begin_step(agent.first_update_step + self.learner.number)
        batch, views = self.batches.next()
        with self.batches.drawing():
            agent.update(batch, views)
        buffer.update_tensordict_priority(batch)
        self.learner.number += 1


def measure(algorithm: str, preset: str, names: list[str], rounds: int) -> list[dict[str, Any]]:
    """Measures the contenders of a recipe: milliseconds of an update, and seconds of the first one."""
    contenders, first = {}, {}
    for name in names:
        contenders[name] = Updates(algorithm, *CASES[algorithm], "algo=mcurl", f"preset={preset}", *SWITCHES[name])
        begin = time.perf_counter()
        for _ in range(2):  # SAC's actor learns in every second one
            contenders[name]()
        first[name] = time.perf_counter() - begin
    times = milliseconds(contenders, rounds, inner=2)
    return [
        {
            "learner": f"{algorithm} mcurl/{preset}",
            "with": name,
            "ms": value,
            "times_as_long": value / times["plain"],
            "first_two_s": first[name],
        }
        for name, value in times.items()
    ]


def main() -> None:
    """Measures both recipes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CASES), help="one of the recipes")
    parser.add_argument("--switches", nargs="+", choices=list(SWITCHES)[1:], default=list(SWITCHES)[1:])
    parser.add_argument("--rounds", type=int, default=20, help="turns of two updates of each contender (default: 20)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: as torch chooses")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, without compile, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    arguments = parser.parse_args()
    prepare_process(arguments.threads)
    names = ["plain", *(name for name in arguments.switches if not (arguments.quick and name == "compile"))]
    preset, rounds = ("smoke", 2) if arguments.quick else ("cpu", arguments.rounds)
    table = []
    for algorithm in CASES:
        if arguments.only in (None, algorithm):
            rows = measure(algorithm, preset, names, rounds)
            show(f"{algorithm}, {arguments.threads} thread(s)", rows)
            table += rows
            if arguments.json:
                arguments.json.write_text(json.dumps({"machine": machine(), "updates": table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
