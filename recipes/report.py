"""Writes a report on many runs: report.html, and the same as report.md, report.csv and figures/.

    python recipes/report.py runs=runs/suites/cpu_small out=report
    python recipes/report.py 'runs=[runs/rainbow, runs/sac]' out=report title='M-CURL beside Rainbow'

Runs are found at any depth. docs/reports.md explains which runs are averaged.
"""

from __future__ import annotations

from recipes.early_answers import answer_early
from recipes.schema import ReportConfig

if __name__ == "__main__":  # before the imports that take seconds
    answer_early(config_name="report", schema=ReportConfig)

import csv
import io
from collections import Counter
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from mcurl_torchrl.files import write_file
from mcurl_torchrl.reports import (
    Block,
    Bullets,
    Estimate,
    FigureBlock,
    Heading,
    Paragraph,
    TableBlock,
    to_html,
    to_markdown,
)
from recipes.launch import BadCommand, launch
from recipes.published_scores import PUBLISHED, published_aggregates
from recipes.reports.groups import Grouping, group_runs
from recipes.reports.published import add_published, add_published_aggregates
from recipes.reports.results import NAMES, make_section
from recipes.reports.runs import DAMAGED, FINISHED, UNFINISHED, Found, find_runs
from recipes.reports.sections import add_section
from recipes.reports.writing import Pages, number, steps
from recipes.value_checks import check_values

FIGURES = "figures"
RECORD = (
    "kind", "benchmark", "task", "method", "other", "quantity", "value", "low", "high", "seeds", "tasks", "env_steps",
    "source",
)  # fmt: skip
MOST_LISTED = 12  # largest number of runs in the list of runs that are not there yet
HOW = [
    "Final return: the mean over the episodes of a run's last evaluation, after all of its steps. Only finished runs "
    "count.",
    "Per task: mean over seeds, Student's 95 % interval. A bootstrap interval of three numbers stays within their "
    "range, which misses the median of all runs in 1 of 4 cases; Student's interval is exact for normally "
    "distributed scores.",
    "Scale: on Atari 0 is a random and 1 a human player; on the DeepMind Control Suite the return is divided by 1000.",
    "IQM: the mean of the middle half of all runs of all tasks; a quarter of them, rounded down to whole runs, is left "
    "out on each side. Median and mean: over tasks, of the means over seeds. Optimality gap: how far runs fall short "
    "of 1 on average, where more than 1 counts as 1; lower is better.",
    "The 95 % intervals of these aggregates are percentiles of a bootstrap: seeds are drawn with replacement within "
    "each task (arXiv 2108.13264). They describe the variation over seeds on these tasks. With few tasks and few "
    "seeds they are too narrow; over a single task, Student's interval is given instead.",
    "Method against method: the seeds that both have are compared seed by seed, and the bootstrap draws the same seeds "
    "for both; runs with other seeds are left out. If they share no seed, all runs are compared, without pairs.",
]


def main(cfg: DictConfig) -> None:
    if OmegaConf.is_missing(cfg, "runs") or cfg.runs in (None, "", []) or OmegaConf.is_dict(cfg.runs):
        raise BadCommand("runs=DIR is needed: a folder with runs, or a list of folders: 'runs=[DIR, DIR]'")
    check_values(cfg)
    given = OmegaConf.to_container(cfg).get("runs")
    found = find_runs([Path(str(folder)) for folder in (given if isinstance(given, list) else [given])])
    grouping = group_runs(found.runs)
    pages = Pages()
    problems = list(found.problems)
    folder = PUBLISHED if cfg.published is None else Path(cfg.published)
    for benchmark in sorted(
        {group.benchmark for group in grouping.groups}, key=lambda name: [*NAMES, name].index(name)
    ):
        section, missing = make_section(benchmark, [g for g in grouping.groups if g.benchmark == benchmark], folder)
        problems += missing
        add_section(pages, section, cfg.bootstrap_repetitions)
        add_published(pages, section)
        if benchmark == "atari":
            try:
                add_published_aggregates(pages, published_aggregates(folder))
            except OSError as error:
                problems.append(f"Published aggregates on Atari cannot be read ({error}).")
    problems = [*left_out(found, grouping), *problems]
    blocks = [
        *beginning(found, pages, problems),
        *pages.blocks,
        *kept_apart(grouping),
        *all_runs(found, grouping, pages),
        Heading("How the numbers are computed"),
        Bullets(HOW),
    ]
    write(Path(cfg.out), cfg.title, blocks, pages)
    print("\n".join([*pages.in_short, *problems, f"written to {Path(cfg.out) / 'report.html'}"]))


# -- the blocks around the benchmarks ----------------------------------------------------------------------------------


def left_out(found: Found, grouping: Grouping) -> list[str]:
    """Names the runs that are in no mean although they should be finished, with the reason."""
    reasons = {
        run.path: "; ".join(run.remarks).removeprefix("left out: ") for run in found.runs if run.status == DAMAGED
    }
    reasons |= dict(found.unreadable)
    reasons = {
        run.path: f"seed {run.seed} has two runs; `{kept.path}` counts" for run, kept in grouping.twice
    } | reasons
    items = [f"Left out: `{path}`: {why}." for path, why in list(reasons.items())[:MOST_LISTED]]
    return items + ([f"{len(reasons) - MOST_LISTED} more runs are left out."] if len(reasons) > MOST_LISTED else [])


def beginning(found: Found, pages: Pages, problems: list[str]) -> list[Block]:
    """Lists the main results, then missing runs and problems."""
    statuses = Counter(run.status for run in found.runs)
    counted = [f"{statuses[status]} {status}" for status in (FINISHED, UNFINISHED, DAMAGED) if statuses[status]]
    counted += [f"{len(found.unreadable)} unreadable"] if found.unreadable else []
    count = len(found.runs) + len(found.unreadable)
    items = [*pages.in_short, f"{count} run{'s' if count != 1 else ''}: {', '.join(counted)}."]
    if remarked := [run for run in found.runs if run.remarks and run.status != DAMAGED]:
        have = "has" if len(remarked) == 1 else "have"
        items.append(f"{len(remarked)} of them {have} a remark, such as another commit than declared: see All runs.")
    for suite in found.suites:
        if left := found.not_started(suite):
            named = ", ".join(f"`{'/'.join(folder.parts[1:])}`" for folder in left[:MOST_LISTED])
            more = f" and {len(left) - MOST_LISTED} more" if len(left) > MOST_LISTED else ""
            items.append(f"{len(left)} of the {len(suite.planned)} runs of the suite are not there yet: {named}{more}.")
    items += problems
    return [Bullets(items)]


def kept_apart(grouping: Grouping) -> list[Block]:
    """Lists the settings that differ between runs, which are therefore not averaged."""
    blocks: list[Block] = []
    for split in grouping.splits:
        rows = [
            [f"`{key}`", *(str(values[place]) for values in split.variants.values())]
            for place, key in enumerate(split.keys)
        ]
        caption = f"Runs of {split.label} differ in these settings, so they are not averaged."
        blocks.append(TableBlock(caption, ["setting", *split.variants], rows))
    if grouping.between_tasks:
        named = [
            f"{method}: {', '.join(f'`{key}`' for key in keys)}."
            for method, keys in sorted(grouping.between_tasks.items())
        ]
        blocks += [Paragraph("These settings differ between tasks, because the tasks set them:"), Bullets(named)]
    return [Heading("Settings that differ"), *blocks] if blocks else []


def all_runs(found: Found, grouping: Grouping, pages: Pages) -> list[Block]:
    methods = {run.path: group.method for group in grouping.groups for run in [*group.runs, *group.unfinished]}
    twice = {run.path: f"left out: seed {run.seed} has two runs; `{kept.path}` counts" for run, kept in grouping.twice}
    rows = []
    for run in sorted(found.runs, key=lambda run: (run.benchmark, run.task, run.label, run.seed, str(run.path))):
        remarks = "; ".join([*([twice[run.path]] if run.path in twice else []), *run.remarks])
        final, best = (run.number(key) if run.status == FINISHED else None for key in ("final_return", "best_return"))
        returns = ["–" if value is None else number(Estimate(value)) for value in (final, best)]
        how_far = f"{steps(run.env_steps)} of {steps(run.total_env_steps)}"
        about = [run.task, methods.get(run.path, run.label), str(run.seed), run.status, how_far, *returns]
        rows.append([*about, run.code, f"`{run.path}`", remarks or "–"])
        if final is not None and run.path not in twice:
            pages.record(
                "run", "final return", Estimate(final), benchmark=run.benchmark, task=run.task,
                method=methods.get(run.path, run.label), seeds=f"seed {run.seed}", env_steps=run.env_steps,
                source=str(run.path),
            )  # fmt: skip
    columns = ["task", "method", "seed", "status", "env steps", "final", "best", "commit", "folder", "remarks"]
    blocks: list[Block] = [Heading("All runs")]
    if rows:
        blocks.append(TableBlock("Only finished runs are in means, each seed once.", columns, rows))
    if found.unreadable:
        blocks.append(Paragraph("These folders could not be read as runs and are left out:"))
        blocks.append(Bullets([f"`{path}`: {why}" for path, why in found.unreadable]))
    return blocks


# -- files -------------------------------------------------------------------------------------------------------------


def write(out: Path, title: str, blocks: list[Block], pages: Pages) -> None:
    (out / FIGURES).mkdir(parents=True, exist_ok=True)
    for block in blocks:
        if isinstance(block, FigureBlock):
            write_file(out / FIGURES / f"{block.name}.png", block.drawing.light)
            write_file(out / FIGURES / f"{block.name}-dark.png", block.drawing.dark)
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, RECORD, lineterminator="\n")
    writer.writeheader()
    writer.writerows(pages.records)
    write_file(out / "report.csv", table.getvalue().encode())
    write_file(out / "report.md", to_markdown(title, blocks, figures=FIGURES).encode())
    write_file(out / "report.html", to_html(title, blocks).encode())


if __name__ == "__main__":
    launch(main, config_name="report", schema=ReportConfig)
