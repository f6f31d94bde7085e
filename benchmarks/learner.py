"""Measures the time of an update, the time of its parts, its utilisation of this machine, and each optimisation's gain.

    python benchmarks/learner.py                                 # both recipes, about a quarter of an hour on two cores
    python benchmarks/learner.py --only rainbow --updates 400 --json learner.json --plot learner.png
    python benchmarks/learner.py --objectives                    # all objectives in turns, at preset=cpu: five minutes
    python benchmarks/learner.py --sizes                         # SAC at preset=cpu with larger sizes, in turns
    python benchmarks/learner.py --quick                         # tiny sizes: to see that it runs

SAC has the paper's sizes, Rainbow those of the paper and of preset=cpu. The learners are the recipes' own, on random
frames. Sampling and optimizers are included. SAC's actor is updated in every second update, so updates are counted in
pairs.

*Effective utilisation* is the number of FLOPs of the plain algorithm (every query encoded, one pass of the convolutions
for the actor and one for the critic), as PyTorch counts them, divided by the seconds of our update and by the FLOPs per
second of this machine's matrix product (4096^3 in float32, best of five before and five after, same threads).

Each learner has its own process, and they run in turns, so that other programs slow all of them equally; numbers are
medians. The peak memory is that of a whole process. The parts of an update are timed in a separate run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from setups import CountFlops, Learner, Stopwatch, machine, make_learner, prepare_process
from switches import SWITCHES, switched_off

# The optimisations that reduce the number of FLOPs; a plain update is without them.
MORE_WORK = ("zeros_once", "shared_conv_pass")


@dataclass(frozen=True)
class Case:
    """A learner to measure.

    Args:
        algorithm (str): whose recipe, ``sac`` or ``rainbow``.
        loss (str): the contrastive loss, by the recipe's name of it.
        preset (str): the sizes.
        updates (int): how many updates each contender takes.
        switches (tuple of str): the optimisations whose worth is measured.
        more (tuple of str): further settings.
    """

    algorithm: str
    loss: str
    preset: str
    updates: int
    switches: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.algorithm} {self.loss}/{self.preset}"

    @property
    def overrides(self) -> tuple[str, ...]:
        env = {"sac": "env=cartpole-swingup", "rainbow": "env=RoadRunner"}[self.algorithm]
        return env, f"algo={self.loss}", f"preset={self.preset}", *self.more


def all_of(learner: str) -> tuple[str, ...]:
    return tuple(name for name, switch in SWITCHES.items() if learner in switch.learners)


CASES = [
    Case("sac", "mcurl", "paper", 12, all_of("sac mcurl")),
    Case("rainbow", "mcurl", "cpu", 240, all_of("rainbow mcurl")),
    Case("rainbow", "mcurl", "paper", 240),
    Case("rainbow", "curl", "cpu", 240),
    Case("rainbow", "curl", "paper", 240, all_of("rainbow curl")),
]
# The agent alone, and with each objective; the number of updates of each.
OBJECTIVES = {
    "sac": (("sac", "rad", "curl", "seq_curl", "sym_curl", "mcurl", "mcurl_actions", "mlr", "cpc", "spr"), 32),
    "rainbow": (("rainbow", "rad", "curl", "seq_curl", "sym_curl", "mcurl", "mcurl_actions", "mlr", "cpc", "spr"), 160),
}
# Candidates for the sizes of SAC's preset=cpu, as in benchmarks/suites/sac_follow_sizes.yaml.
SIZES = {
    "as it is": (),
    "filters32": ("encoder.num_filters=32",),
    "size84": ("env.image_size=84", "encoder.crop_size=70"),
    "slices16": ("objective.num_slices=16",),
    "batch256": ("sac.batch_size=256",),
}
SIZES_UPDATES = 32
QUICK = [Case("sac", "mcurl", "smoke", 2, ("allocator",)), Case("rainbow", "curl", "smoke", 2)]


# -- in a contender's process ------------------------------------------------------------------------------------------


def serve(connection: Connection, case: Case, off: tuple[str, ...], threads: int) -> None:
    """Builds a learner with some optimisations switched off, and answers requests until the last one."""
    with switched_off(*off):
        prepare_process(threads)
        learner = make_learner(case.algorithm, *case.overrides)
        for _ in range(2):
            learner.step()
        answers = {
            "seconds": lambda count: seconds_per_update(learner, count),
            "parts": lambda count: seconds_by_part(learner, count),
            "gflop": lambda: plain_gflop(case),
            "gemm": gemm_gflops,
            "memory": lambda: memory_gb(learner),
            "machine": machine,
        }
        while (question := connection.recv()) is not None:
            name, arguments = question
            connection.send(answers[name](*arguments))


def seconds_per_update(learner: Learner, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        learner.step()
    return (time.perf_counter() - start) / count


def seconds_by_part(learner: Learner, count: int) -> dict[str, float]:
    """Times the parts of an update. It changes the learner permanently, so it comes last."""
    watch = Stopwatch()
    learner.watch_parts(watch)
    for _ in range(count):
        with watch.part("other"):
            learner.step()
    return {name: seconds / count for name, seconds in watch.seconds.items()}


def plain_gflop(case: Case) -> float:
    """Counts the work of an update of the plain algorithm, the mean of one with an actor step and one without."""
    with switched_off(*MORE_WORK):
        learner = make_learner(case.algorithm, *case.overrides)
        with CountFlops() as counter:
            for _ in range(2):
                learner.step()
    return counter.flops / 2 / 1e9


def gemm_gflops(side: int) -> float:
    """Measures the matrix product, best of five."""
    left, right, out = torch.randn(side, side), torch.randn(side, side), torch.empty(side, side)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        torch.mm(left, right, out=out)
        times.append(time.perf_counter() - start)
    return 2 * side**3 / min(times) / 1e9


def memory_gb(learner: Learner) -> dict[str, float]:
    """Returns the most memory this process had, the replay's part in it, and how much a full replay takes."""
    written, full = learner.replay_bytes()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak": peak / 1e9, "replay": written / 1e9, "full_replay": full / 1e9}


# -- in the main process -----------------------------------------------------------------------------------------------


class Contender:
    """A learner in a process of its own."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def ask(self, question: str, *arguments: Any) -> Any:
        self.connection.send((question, arguments))
        return self.connection.recv()


@contextlib.contextmanager
def contender(case: Case, threads: int, off: tuple[str, ...] = ()) -> Iterator[Contender]:
    context = multiprocessing.get_context("spawn")  # a forked process would inherit this one's allocator
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, case, off, threads), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Contender(ours)
        ours.send(None)
        process.join()
    finally:
        process.terminate()


def blocks(updates: int) -> tuple[int, int]:
    """Splits updates into rounds and the updates of each, an even number."""
    rounds = max(1, min(8, updates // 2))
    return rounds, max(2, updates // rounds // 2 * 2)


def take_turns(contenders: dict[str, Contender], updates: int) -> dict[str, list[float]]:
    """Returns each one's seconds per update, in each of its turns."""
    rounds, count = blocks(updates)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        names = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
        for name in names:
            times[name].append(contenders[name].ask("seconds", count))
    return times


def measure(case: Case, threads: int, gemm_side: int) -> dict[str, Any]:
    """Measures a learner: alone, against itself without each optimisation, and by part."""
    with contender(case, threads) as ours:
        gemm = ours.ask("gemm", gemm_side)
        seconds = statistics.median(take_turns({"ours": ours}, case.updates)["ours"])
        gemm = max(gemm, ours.ask("gemm", gemm_side))
        memory = ours.ask("memory")
        worth = measure_switches(case, threads, ours)
        gflop = ours.ask("gflop")
        parts = ours.ask("parts", max(2, case.updates // 2 * 2))
        return {
            "machine": ours.ask("machine"),
            "gemm_gflops": gemm,
            "seconds_per_update": seconds,
            "effective_utilisation": gflop / seconds / gemm,
            "gflop": gflop,
            "parts": dict(sorted(parts.items(), key=lambda item: -item[1])),
            "peak_memory_gb": memory["peak"],
            "replay_in_peak_gb": memory["replay"],
            "full_replay_gb": memory["full_replay"],
            **worth,
        }


def measure_switches(case: Case, threads: int, ours: Contender) -> dict[str, dict[str, float]]:
    """Measures each optimisation, and all of them together: seconds with it, seconds without it, and their ratio."""
    worth: dict[str, dict[str, float]] = {"with": {}, "without": {}, "worth": {}}
    labels = {name: (name,) for name in case.switches}
    if len(case.switches) > 1:
        labels["all"] = case.switches
    for label, off in labels.items():
        with contender(case, threads, off) as plain:
            turns = take_turns({"with": ours, "without": plain}, case.updates)
        times = {name: statistics.median(seconds) for name, seconds in turns.items()}
        worth["with"][label], worth["without"][label] = times["with"], times["without"]
        worth["worth"][label] = times["without"] / times["with"]
        print(f"  without {label}: {worth['worth'][label]:.2f} times as long", flush=True)
    return worth


def measure_objectives(algorithm: str, preset: str, updates: int, threads: int) -> dict[str, dict[str, float]]:
    """Measures an agent with each objective, in turns: milliseconds, and the ratios to M-CURL within each round."""
    losses, _ = OBJECTIVES[algorithm]
    cases = {loss: Case(algorithm, loss, preset, updates) for loss in losses}
    return measure_in_turns(cases, threads, beside="mcurl")


def measure_in_turns(cases: dict[str, Case], threads: int, *, beside: str) -> dict[str, dict[str, float]]:
    """Measures learners in turns: milliseconds, and the ratios to one of them (with M-CURL) within each round."""
    with contextlib.ExitStack() as stack:
        contenders = {name: stack.enter_context(contender(case, threads)) for name, case in cases.items()}
        turns = take_turns(contenders, cases[beside].updates)
    measured = {}
    for name, seconds in turns.items():
        ratios = [ours / theirs for ours, theirs in zip(seconds, turns[beside], strict=True)]
        measured[name] = {
            "ms": statistics.median(seconds) * 1e3,
            "times_mcurl": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
        }
        told = f"{cases[name].algorithm} {name}"
        print(f"  {told:<22}{measured[name]['ms']:9.1f} ms, {statistics.median(ratios):.2f} times {beside}", flush=True)
    return measured


# -- showing -----------------------------------------------------------------------------------------------------------


def show(name: str, result: dict[str, Any]) -> None:
    print(
        f"\n{name}: {result['seconds_per_update'] * 1e3:.1f} ms per update, {result['gflop']:.2f} GFLOP in the plain "
        f"algorithm, matrix product {result['gemm_gflops']:.0f} GFLOP/s: effective utilisation "
        f"{result['effective_utilisation']:.2f}"
    )
    print(
        f"  peak memory {result['peak_memory_gb']:.2f} GB, {result['replay_in_peak_gb']:.2f} of it replay; a full "
        f"replay takes {result['full_replay_gb']:.2f} GB"
    )
    total = sum(result["parts"].values())
    for part, seconds in result["parts"].items():
        print(f"  {part:<24}{seconds * 1e3:10.2f} ms{seconds / total:8.1%}")
    for label, ratio in result["worth"].items():
        before, after = result["without"][label] * 1e3, result["with"][label] * 1e3
        what = SWITCHES[label].description if label in SWITCHES else "everything above"
        print(f"  without {label:<22}{before:9.2f} ms, with {after:9.2f} ms: {ratio:5.2f} times  ({what})")


def plot(results: dict[str, dict[str, Any]], path: Path) -> None:
    """Draws the parts of an update, as shares, and what each optimisation is worth."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 5.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    parts = list(dict.fromkeys(part for result in results.values() for part in result["parts"]))
    left.set_prop_cycle(color=colormaps["tab20"].colors)
    labels = [
        name.replace(" ", "\n") + f"\n{result['seconds_per_update'] * 1e3:.0f} ms" for name, result in results.items()
    ]
    base = [0.0] * len(results)
    for part in parts:
        shares = [result["parts"].get(part, 0.0) / sum(result["parts"].values()) for result in results.values()]
        left.bar(labels, shares, bottom=base, label=part)
        base = [below + share for below, share in zip(base, shares, strict=True)]
    left.set(ylabel="share of an update", title="Where the time of an update goes", ylim=(0, 1))
    left.tick_params(axis="x", labelsize=8)
    left.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))

    switched = {name: result["worth"] for name, result in results.items() if result["worth"]}
    rows = list(dict.fromkeys(label for worth in switched.values() for label in worth))[::-1]
    height = 0.8 / max(1, len(switched))
    for number, (name, worth) in enumerate(switched.items()):
        places = [row - number * height for row, label in enumerate(rows) if label in worth]
        bars = right.barh(places, [worth[label] for label in rows if label in worth], height, label=name)
        right.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
    right.set_yticks(range(len(rows)), rows)
    right.axvline(1.0, color="black", linewidth=0.8)
    right.set(xlabel="time without it / time with it", title="What each optimisation is worth")
    right.margins(x=0.2)
    if switched:
        right.legend(fontsize=8, loc="upper right")
    figure.savefig(path, dpi=120)


def as_json(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Puts SAC's numbers and those of Rainbow's first case in front; all of Rainbow's under ``cases``."""
    first = next(iter(results.values()))
    out: dict[str, Any] = {
        "machine": first["machine"],
        "gemm_gflops": max(result["gemm_gflops"] for result in results.values()),
    }
    plain = {name: {k: v for k, v in result.items() if k != "machine"} for name, result in results.items()}
    for name, result in plain.items():
        algorithm, case = name.split(" ")
        if algorithm == "sac":
            out["sac"] = {**result, "case": case}
        else:
            out.setdefault("rainbow", {**result, "case": case, "cases": {}})["cases"][case] = result
    return out


def compare_objectives(arguments: argparse.Namespace) -> None:
    """Measures the objectives of each agent, and writes the numbers."""
    preset, results = "smoke" if arguments.quick else "cpu", {}
    for algorithm, (_, updates) in OBJECTIVES.items():
        if arguments.only in (None, algorithm):
            updates = arguments.updates or (2 if arguments.quick else updates)
            results[algorithm] = measure_objectives(algorithm, preset, updates, arguments.threads)
    if arguments.json:
        about = {**machine(), "threads": arguments.threads}
        arguments.json.write_text(json.dumps({"machine": about, **results}, indent=2))


def compare_sizes(arguments: argparse.Namespace) -> None:
    """Measures SAC with M-CURL at each size, and writes the numbers."""
    preset, updates = ("smoke", 2) if arguments.quick else ("cpu", arguments.updates or SIZES_UPDATES)
    cases = {name: Case("sac", "mcurl", preset, updates, more=more) for name, more in SIZES.items()}
    results = measure_in_turns(cases, arguments.threads, beside="as it is")
    if arguments.json:
        about = {**machine(), "threads": arguments.threads}
        arguments.json.write_text(json.dumps({"machine": about, "sac": results}, indent=2))


def main() -> None:
    """Measures every case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["sac", "rainbow"], help="one of the recipes")
    parser.add_argument("--objectives", action="store_true", help="compare the time of other objectives with M-CURL")
    parser.add_argument("--sizes", action="store_true", help="compare the time of other sizes with preset=cpu of SAC")
    parser.add_argument("--updates", type=int, help="how many updates each contender takes")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: as torch chooses")
    parser.add_argument("--no-switches", action="store_true", help="leave out the gain of each optimisation")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--plot", type=Path, default=Path("learner.png"), help="where to draw (default: learner.png)")
    arguments = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    if arguments.objectives:
        compare_objectives(arguments)
        return
    if arguments.sizes:
        compare_sizes(arguments)
        return
    for case in QUICK if arguments.quick else CASES:
        if arguments.only not in (None, case.algorithm):
            continue
        case = replace(
            case,
            updates=arguments.updates or case.updates,
            switches=() if arguments.no_switches else case.switches,
        )
        print(f"{case.name} ...", flush=True)
        results[case.name] = measure(case, arguments.threads, 256 if arguments.quick else 4096)
        show(case.name, results[case.name])
        plot(results, arguments.plot)  # after each case, so that an interrupted benchmark keeps its results
        if arguments.json:
            arguments.json.write_text(json.dumps(as_json(results), indent=2))


if __name__ == "__main__":
    main()
