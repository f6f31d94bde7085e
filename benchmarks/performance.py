"""Writes tables of the docs from the files in benchmarks: times, the results of README.md, suites and their curves.

    python benchmarks/learner.py --json benchmarks/results/learner.json --plot docs/learner.png
    python benchmarks/learner.py --objectives --threads 1 --json benchmarks/results/objectives.json
    python benchmarks/learner.py --sizes --threads 1 --json benchmarks/results/sizes.json
    python benchmarks/end_to_end.py --json benchmarks/results/end_to_end.json --plot docs/end_to_end.png
    python benchmarks/released.py --curl-rainbow CLONE --m-curl CLONE --json benchmarks/results/released.json
    python benchmarks/performance.py

A table is between ``<!-- table NAME -->`` and ``<!-- end -->``; the rest of the page is not changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from learner import SIZES

from mcurl_torchrl.reports import Estimate, mean_over_seeds
from recipes.published_scores import published_atari, published_dmc
from recipes.reports.groups import Group, group_runs
from recipes.reports.runs import FINISHED, find_runs
from recipes.reports.writing import number, seeds_text
from recipes.suites.definition import read_suite

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "benchmarks" / "results"
PAGES = [
    *(REPO / page for page in ("README.md", "docs/index.md", "docs/performance.md", "docs/guides/presets.md")),
    REPO / "benchmarks" / "suites" / "README.md",
    *(page for page in sorted(RESULTS.glob("*/README.md")) if "<!-- table " in page.read_text()),
]
NAMES = {"mcurl": "M-CURL", "curl": "CURL"}
TASKS = {"sac": "SAC, cartpole-swingup", "rainbow": "Rainbow, RoadRunner"}
SUITES = ("atari_cpu", "sac_camera", "sac_follow")  # whose runs are in the table of results: preset=cpu, 100k steps
ENV_STEPS = 100_000
METHODS = {  # column of the table of results: methods here, methods in the files of published results
    "M-CURL": (("mcurl",), ("mcurl",)),
    "CURL": (("curl",), ("curl",)),
    "augmentation alone": (("rad",), ("drq",)),
    "RL alone": (("rainbow", "sac"), ("eff_rainbow", "pixel_sac")),
}


def read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cases() -> dict[str, dict[str, Any]]:
    """Returns the results of every learner, by its name for readers."""
    learner = read("learner")
    found = {("SAC", learner["sac"]["case"]): learner["sac"]}
    found |= {("Rainbow", case): result for case, result in learner["rainbow"]["cases"].items()}
    named = {}
    for (algorithm, case), result in found.items():
        loss, preset = case.split("/")
        named[f"{algorithm} with {NAMES[loss]}, `preset={preset}`"] = result
    return named


def learner_table() -> str:
    head = ["one update, sampling included", "ms", "plain GFLOP", "effective utilisation", "peak memory, replay empty"]
    rows = [
        [
            name,
            f"{result['seconds_per_update'] * 1e3:.0f}",
            f"{result['gflop']:.3g}",
            f"{result['effective_utilisation']:.2f}",
            f"{result['peak_memory_gb'] - result['replay_in_peak_gb']:.1f} GB",
        ]
        for name, result in cases().items()
    ]
    return table(head, rows)


def parts_table() -> str:
    measured = cases()
    parts = list(dict.fromkeys(part for result in measured.values() for part in result["parts"]))
    rows = []
    for part in parts:
        shares = [result["parts"].get(part, 0.0) / sum(result["parts"].values()) for result in measured.values()]
        rows.append([part, *(f"{share:.0%}" if share else "" for share in shares)])
    return table(["part of an update", *measured], rows)


def switches_table() -> str:
    measured = {name: result["worth"] for name, result in cases().items() if result["worth"]}
    switches = list(dict.fromkeys(switch for worth in measured.values() for switch in worth))
    rows = [
        [f"`{switch}`", *(f"{worth[switch]:.2f}" if switch in worth else "" for worth in measured.values())]
        for switch in switches
    ]
    return table(["times as long without", *measured], rows)


def objectives_table() -> str:
    measured = {algorithm: read("objectives")[algorithm] for algorithm in TASKS}
    alone = {"sac", "rainbow"}
    losses = list(dict.fromkeys(loss for results in measured.values() for loss in results if loss not in alone))
    rows = [["none", *(cell for name, results in measured.items() for cell in _cost(results[name]))]]
    for loss in losses:
        cells = [cell for results in measured.values() for cell in _cost(results.get(loss))]
        rows.append([f"`{loss}`", *cells])
    return table(["objective", *(cell for task in TASKS.values() for cell in (f"{task}: ms", "times M-CURL"))], rows)


def _cost(result: dict[str, float] | None) -> list[str]:
    if result is None:
        return ["", ""]
    spread = f" ({result['lowest']:.2f} to {result['highest']:.2f})" if result["times_mcurl"] != 1 else ""
    return [f"{result['ms']:.0f}", f"{result['times_mcurl']:.2f}{spread}"]


def sizes_table() -> str:
    """The time of SAC's update with each size, and of a run: cartpole-swingup has an update in all but 1000 steps."""
    measured, rows = read("sizes")["sac"], []
    for name, change in SIZES.items():
        ms, times = _cost(measured[name])
        minutes = measured[name]["ms"] / 60_000 * (ENV_STEPS / 8 - 1000)
        rows.append([" ".join(f"`{word}`" for word in change) or "`preset=cpu` as it is", ms, times, f"{minutes:.0f}"])
    return table(["SAC with M-CURL", "an update, ms", "times as long", "minutes of updates in 100k steps"], rows)


def released_table() -> str:
    released = read("released")
    rows = []
    for section, algorithm in (("atari", "Rainbow"), ("dmc", "SAC")):
        for row in released.get(section, []):
            loss, _, preset = row["what"].partition(" ")
            name = f"{row['what']} ({algorithm})"
            if loss in NAMES:
                name = f"ours: {algorithm} with {NAMES[loss]}, `preset={preset}`"
            spread = (
                f"{row['times_as_fast']:.2f} ({row['lowest']:.2f} to {row['highest']:.2f})"
                if loss != "released"
                else "1"
            )
            rows.append([name, f"{row['ms']:.0f}", f"{row['gflop']:.3g}", spread])
    return table(["one learner step", "ms", "GFLOP", "times as fast"], rows)


def end_to_end_table() -> str:
    recipes = read("end_to_end")["recipes"]
    parts = ["env", "policy", "storing", "sampling", "learning", "loop"]
    rows = []
    for name, result in recipes.items():
        times = result["milliseconds_per_step"]
        shares = [f"{times.get(part, 0.0) / sum(times.values()):.1%}" for part in parts]
        outside = f"{result['share_outside_learner']:.1%}"
        rows.append([TASKS[name], f"{result['steps_per_second']:.1f}", *shares, outside])
    return table(["`preset=cpu`", "agent steps/s", *parts, "outside the learner"], rows)


def growth_table() -> str:
    growth = read("end_to_end")["growth"]
    rows = []
    for name, settings in growth.items():
        for what, times in settings.items():
            cells = ", ".join(f"{size}: {time:.1f}" for size, time in times.items())
            label = "a sample of Rainbow's replay" if name == "replay" else f"an update, {TASKS[name]}"
            rows.append([label, what, cells])
    return table(["ms of", "by", "size: ms"], rows)


def results_table() -> str:
    """The mean return of each method on each task, with Student's 95 % interval, and what is published."""
    groups = [group for group in group_runs(find_runs([RESULTS / suite for suite in SUITES]).runs).groups if group.runs]
    listed = [row for row in (*published_dmc(), *published_atari()) if row.env_steps == ENV_STEPS]
    published = {(row.task, row.method): row for row in reversed(listed)}  # the first of two counts
    rows = []
    for task in dict.fromkeys(group.task for group in groups):
        cells = [task]
        for ours, theirs in METHODS.values():
            found = [_result(group) for group in groups if group.task == task and group.method in ours]
            rows_of = [published[task, name] for name in theirs if (task, name) in published]
            found += [f"published{f' ({row.label})' * (row.method == 'drq')}: {row.mean:,.0f}" for row in rows_of]
            cells.append("<br>".join(found))
        rows.append(cells)
    return table(["", *METHODS], rows)


def _result(group: Group) -> str:
    mean = mean_over_seeds(group.numbers("final_return"))
    if mean.has_interval:
        return f"**{mean.value:,.0f}** ({mean.low:,.0f} to {mean.high:,.0f})"
    return f"{mean.value:,.0f} ({seeds_text(len(group.runs))})"


def suites_table() -> str:
    """Each declared suite: its question, which is the first sentence of its file, and how many of its runs are done."""
    rows = []
    for file in sorted((REPO / "benchmarks" / "suites").glob("*.yaml")):
        suite, results = read_suite(file, {}), RESULTS / file.stem
        text = " ".join(line.lstrip("# ") for line in file.read_text().splitlines() if line.startswith("#"))
        planned = {run.name for run in suite.runs()}
        runs = find_runs([results]).runs if results.is_dir() else []
        done = {run.path.relative_to(results).as_posix() for run in runs if run.status == FINISHED}
        assert suite.declared is not None, file
        rows.append(
            [
                f"[{file.stem}]({file.name})",
                re.split(r"(?<=[.?:;]) ", text)[0].rstrip(".:;"),
                suite.declared["time"][:10],
                f"{len(planned & done)} of {len(planned)}",
                f"[results](../results/{file.stem}/README.md)" if results.is_dir() else "",
            ]
        )
    return table(["suite", "what it asks", "declared", "runs done", ""], rows)


def curves_table(folder: Path) -> str:
    """The mean return of each evaluation of the runs in a folder."""
    curves = {run.path.relative_to(folder).as_posix(): dict(run.curve) for run in find_runs([folder]).runs}
    places = sorted({env_steps for curve in curves.values() for env_steps in curve})
    rows = [
        [f"`{name}`", *(number(Estimate(curve[place])) if place in curve else "" for place in places)]
        for name, curve in curves.items()
    ]
    return table(["run", *(f"{place // 1000}k" if place else "0" for place in places)], rows)


TABLES: dict[str, Callable[[], str]] = {
    "results": results_table,
    "suites": suites_table,
    "learner": learner_table,
    "parts": parts_table,
    "switches": switches_table,
    "objectives": objectives_table,
    "sizes": sizes_table,
    "released": released_table,
    "end_to_end": end_to_end_table,
    "growth": growth_table,
}


def filled(page: Path) -> str:
    """Returns the text of a page with its tables made anew."""
    text = page.read_text()
    for name, make in {**TABLES, "curves": partial(curves_table, page.parent)}.items():
        pattern = re.compile(rf"(<!-- table {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if pattern.search(text):
            made = make()
            text = pattern.sub(lambda match, made=made: f"{match[1]}{made}\n{match[2]}", text)
    return text


def main() -> None:
    """Fills all pages."""
    for page in PAGES:
        page.write_text(filled(page))


if __name__ == "__main__":
    main()
