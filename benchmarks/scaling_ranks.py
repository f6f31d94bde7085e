"""Compares the time of an update with one rank and with two ranks that share each batch, one thread each.

    python benchmarks/scaling_ranks.py                           # some minutes on two cores that do nothing else
    python benchmarks/scaling_ranks.py --json benchmarks/results/scaling_ranks.json
    python benchmarks/scaling_ranks.py --quick                   # tiny sizes: to see that it runs

The learners are the recipes' own, on random frames, with communication by gloo; sampling, optimizers and priorities are
included. The batch is the same for any number of ranks. *Processor* is the CPU time of a rank for one update; it shows,
also on a busy machine, how much of the work is shared. *Messages* is the time in collective calls, including waiting
for the other rank.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from setups import Stopwatch, machine, make_learner, prepare_process

from mcurl_torchrl import joint_parameters
from mcurl_torchrl.ranks import ALONE, DistributedRanks

CASES = {
    "sac mcurl/cpu": ("sac", 40, ("env=cartpole-swingup", "algo=mcurl", "preset=cpu")),
    "rainbow mcurl/cpu": ("rainbow", 80, ("env=RoadRunner", "algo=mcurl", "preset=cpu")),
    "rainbow mcurl/paper": ("rainbow", 40, ("env=RoadRunner", "algo=mcurl", "preset=paper")),
}
QUICK = {"rainbow mcurl/smoke": ("rainbow", 4, ("env=RoadRunner", "algo=mcurl", "preset=smoke"))}
ROUNDS = 4


def serve(index: int, count: int, folder: str, case: tuple[str, int, tuple[str, ...]]) -> None:
    """Runs the updates of one rank; writes their times to a file."""
    algorithm, updates, overrides = case
    prepare_process(threads=1)
    ranks, watch = ALONE, Stopwatch()
    if count > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=index, world_size=count)
        ranks = DistributedRanks()
        for name in ("all_reduce", "all_gather"):
            watch.watch(dist, name, "messages")
    learner = make_learner(algorithm, *overrides, ranks=ranks)
    for _ in range(2):
        learner.step()
    watch.seconds.clear()
    walls, each = [], max(2, updates // ROUNDS // 2 * 2)  # pairs: SAC's actor steps in every second update
    processor = time.process_time()
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(each):
            learner.step()
        walls.append((time.perf_counter() - start) / each)
    learned = [group["params"] for optimizer in learner.all_optimizers for group in optimizer.param_groups]
    cost = {
        "seconds": statistics.median(walls),
        "processor_seconds": (time.process_time() - processor) / (ROUNDS * each),
        "message_seconds": watch.seconds["messages"] / (ROUNDS * each),
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "parameters": sum(value.numel() for value in joint_parameters(*learned)),
    }
    Path(folder, f"{index}.json").write_text(json.dumps(cost))


def measure(count: int, case: tuple[str, int, tuple[str, ...]]) -> dict[str, float]:
    """Runs a case on a number of ranks; returns the means over the ranks, and the slowest one's seconds."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=serve, args=(index, count, folder, case)) for index in range(count)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        found = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("*.json"))]
    if len(found) != count:
        raise RuntimeError(f"{count - len(found)} of {count} ranks failed")
    means = {name: statistics.mean(cost[name] for cost in found) for name in found[0]}
    return means | {"seconds": max(cost["seconds"] for cost in found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {"machine": machine(), "load_before": os.getloadavg()[0], "cases": {}}
    print(f"{'case':22} {'ranks':>5} {'ms/update':>10} {'processor ms':>13} {'messages ms':>12}  speed  peak GB")
    for name, case in (QUICK if arguments.quick else CASES).items():
        found = {count: measure(count, case) for count in arguments.ranks}
        first = found[arguments.ranks[0]]
        for count, cost in found.items():
            cost["speed"] = first["seconds"] / cost["seconds"]
            cost["shared_work"] = first["processor_seconds"] / cost["processor_seconds"]
            numbers = [1000 * cost[key] for key in ("seconds", "processor_seconds", "message_seconds")]
            print(f"{name:22} {count:5d} {numbers[0]:10.1f} {numbers[1]:13.1f} {numbers[2]:12.1f} ", end="")
            print(f"{cost['speed']:5.2f}x {cost['peak_gb']:8.2f}", flush=True)
        results["cases"][name] = found
    results["load_after"] = os.getloadavg()[0]
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
