"""The section of one benchmark in a report: aggregates, results per task, comparisons of methods, learning curves."""

from __future__ import annotations

from statistics import fmean

from mcurl_torchrl.reports import (
    AGGREGATES,
    FEWEST_SEEDS,
    Curve,
    Estimate,
    FigureBlock,
    Heading,
    Paragraph,
    TableBlock,
    draw_curves,
    draw_estimates,
    draw_profiles,
    mean_over_seeds,
)
from recipes.published_scores import to_draw
from recipes.reports.groups import Group
from recipes.reports.published import published_aggregate_rows
from recipes.reports.results import (
    SCALES,
    Comparable,
    Comparison,
    Section,
    aggregates,
    comparable,
    comparisons,
    profiles,
)
from recipes.reports.writing import Pages, decimal, number, seeds_text, spread, steps

NO_INTERVAL = f"no interval where a task has fewer than {FEWEST_SEEDS} seeds"
FEW_SHARED = f"no interval where two methods share fewer than {FEWEST_SEEDS} seeds of a task"
MOST_IN_SHORT = 3  # comparisons at the beginning of the page
MOST_DIFFERENCES = 40  # rows on the page; report.csv has them all


def add_section(pages: Pages, section: Section, repetitions: int) -> None:
    pages.blocks.append(Heading(section.name))
    finished = [group for group in section.groups if group.runs]
    if not finished:
        pages.in_short.append(f"{section.name}: no run is finished, so there are no scores yet.")
        pages.blocks.append(Paragraph("No run is finished, so there are no scores yet."))
    else:
        add_overall(pages, section, repetitions)
        add_tasks(pages, section, finished)
        add_comparisons(pages, section, repetitions)
        add_few_seeds(pages, finished)
    add_curves(pages, section)


# -- over tasks --------------------------------------------------------------------------------------------------------


def add_overall(pages: Pages, section: Section, repetitions: int) -> None:
    if section.benchmark not in SCALES:
        pages.in_short.append(
            f"{section.name}: returns of different tasks have no common scale; see the table of tasks."
        )
        return
    without = [task for task in section.tasks if section.normalized(task, 0.0) is None]
    if without:
        pages.blocks.append(
            Paragraph(
                f"The scores of a random player and of a human are unknown for {', '.join(without)}: not in aggregates."
            )
        )
    for place, over in enumerate(comparable(section), start=1):
        add_aggregates(pages, section, over, repetitions, f"{section.benchmark}-{place}")


def add_aggregates(pages: Pages, section: Section, over: Comparable, repetitions: int, stem: str) -> None:
    scale = SCALES[section.benchmark]
    found = aggregates(section, over, repetitions)
    runs = {method: [len(section.scores(method, task)) for task in over.tasks] for method in over.methods}
    which = over.tasks[0] if len(over.tasks) == 1 else f"{len(over.tasks)} tasks"
    which = f"{which}, {steps(over.env_steps)} env steps"
    pages.blocks.append(Heading(f"Over {which}", level=3))
    if len(over.tasks) > 1:
        pages.blocks.append(Paragraph(f"Tasks: {', '.join(over.tasks)}."))
    rows = []
    for method in over.methods:
        estimates = found[method]
        rows.append([method, spread(runs[method]), *(decimal(estimates[name]) for name in AGGREGATES)])
        for name, estimate in estimates.items():
            pages.record(
                "aggregate", f"{name} of {scale}", estimate, benchmark=section.benchmark, method=method,
                tasks=" ".join(over.tasks), seeds=spread(runs[method]), env_steps=over.env_steps,
            )  # fmt: skip
    rows += published_aggregate_rows(section, over)
    columns = ["method", "seeds", *AGGREGATES]
    how = "95 % intervals by the stratified bootstrap" if len(over.tasks) > 1 else "the table of tasks has the interval"
    pages.blocks.append(TableBlock(f"Final scores as {scale}; {how}.", columns, rows))
    what, told = f"IQM of the {scale}", {method: found[method]["IQM"] for method in over.methods}
    write = decimal
    if len(over.tasks) == 1:
        what, write = "mean final return", number
        told = {method: mean_over_seeds(group.numbers("final_return")) for method, group in of_task(section, over)}
    few = "" if all(estimate.has_interval for estimate in told.values()) else f" ({NO_INTERVAL})"
    named = "; ".join(f"{method} {write(estimate)}" for method, estimate in told.items())
    pages.in_short.append(f"{section.name}, {which}, {what}: {named}{few}.")
    if any(len(set(counts)) > 1 for counts in runs.values()):
        pages.blocks.append(
            Paragraph("Tasks have different numbers of seeds. In IQM and optimality gap each run has the same weight.")
        )
    if max(sum(counts) for counts in runs.values()) < FEWEST_SEEDS:
        return  # a figure of one or two points
    if len(over.tasks) > 1:
        panels = {name: {method: found[method][name] for method in over.methods} for name in AGGREGATES}
        pages.blocks.append(
            FigureBlock(
                f"{stem}-aggregates",
                draw_estimates(panels, order=section.methods),
                f"Aggregates over {which}, as {scale}, with intervals: the numbers of the table above.",
            )
        )
    thresholds, drawn = profiles(section, over)
    pages.blocks.append(
        FigureBlock(
            f"{stem}-profiles",
            draw_profiles(drawn, thresholds, x_label=scale, order=section.methods),
            f"Performance profiles over {which}: the fraction of runs whose {scale} is above a threshold.",
        )
    )


def of_task(section: Section, over: Comparable) -> list[tuple[str, Group]]:
    """Returns the methods on a single task."""
    found = [(method, section.group(method, over.tasks[0])) for method in over.methods]
    return [(method, group) for method, group in found if group is not None]


# -- task by task ------------------------------------------------------------------------------------------------------


def add_tasks(pages: Pages, section: Section, groups: list[Group]) -> None:
    scaled = section.benchmark in SCALES
    rows = []
    for group in sorted(groups, key=lambda group: (group.task, section.methods.index(group.method))):
        final, best = (mean_over_seeds(group.numbers(key)) for key in ("final_return", "best_return"))
        about = {
            "benchmark": section.benchmark, "task": group.task, "method": group.method,
            "seeds": len(group.runs), "env_steps": group.runs[0].total_env_steps,
        }  # fmt: skip
        pages.record("task", "final return", final, **about)
        pages.record("task", "best evaluation's return", best, **about)
        row = [group.task, group.method, str(len(group.runs)), steps(group.runs[0].total_env_steps)]
        row += [number(final), number(Estimate(best.value))]
        if scaled:
            scores = section.scores(group.method, group.task)
            normalized = mean_over_seeds(scores) if scores else None
            row.append("–" if normalized is None else decimal(normalized))
            if normalized is not None:
                pages.record("task", SCALES[section.benchmark], normalized, **about)
        for quantity, minutes in minutes_of(group).items():
            row.append(f"{minutes:,.1f}" if minutes is not None else "–")
            if minutes is not None:
                pages.record("task", f"minutes of {quantity}", Estimate(minutes), **about)
        rows.append(row)
    columns = ["task", "method", "seeds", "env steps", "final return", "best evaluation"]
    columns += [SCALES[section.benchmark]] if scaled else []
    columns += ["training, minutes", "evaluation, minutes"]
    pages.blocks += [
        Heading("Task by task", level=3),
        TableBlock(
            "Means over seeds with Student's 95 % interval. Report the final return: the best evaluation is the "
            "maximum of many noisy means. Times are means, too: runs that share a machine slow each other down.",
            columns,
            rows,
        ),
    ]


def minutes_of(group: Group) -> dict[str, float | None]:
    """Returns the mean time of training and of evaluation."""
    whole, evaluation = group.numbers("seconds"), group.numbers("seconds_evaluation")
    if len(whole) < len(group.runs) or len(evaluation) < len(group.runs):
        return {"training": None, "evaluation": None}
    spent = fmean(evaluation) / 60
    return {"training": fmean(whole) / 60 - spent, "evaluation": spent}


def add_few_seeds(pages: Pages, groups: list[Group]) -> None:
    few = [group for group in groups if len(group.runs) < FEWEST_SEEDS]
    if few:
        named = "; ".join(f"{group.method} on {group.task} ({seeds_text(len(group.runs))})" for group in few)
        pages.blocks.append(
            Paragraph(
                f"There is no interval for fewer than {FEWEST_SEEDS} seeds: one or two runs do not show the variation "
                f"between runs. This concerns {named}, and all numbers that are computed from them."
            )
        )


# -- method against method ---------------------------------------------------------------------------------------------


def in_pairs(one: Comparison, task: str | None = None) -> str:
    """Says which seeds of a task are compared with each other, and how many runs have no partner."""
    task = one.tasks[0] if task is None else task
    if task not in one.paired:
        return "not paired: no seed in common"
    seeds = f"paired: {', '.join(map(str, one.paired[task]))}"
    return f"{seeds} ({one.left_out[task]} left out)" if one.left_out[task] else seeds


def over_tasks(one: Comparison) -> str:
    """Says on how many tasks seeds are compared with each other, and how many runs have no partner."""
    pairs = f"paired on {len(one.paired)} of {len(one.tasks)} tasks"
    return f"{pairs} ({left} left out)" if (left := sum(one.left_out.values())) else pairs


def how_certain(one: Comparison) -> str:
    """Names the tasks of a comparison; a single one with the difference of returns, which has an interval there."""
    if len(one.tasks) == 1:
        return f"{one.tasks[0]}; the difference of their mean final returns is {number(one.differences[one.tasks[0]])}"
    return f"{len(one.tasks)} tasks{'' if one.improvement.has_interval else f' ({FEW_SHARED})'}"


def add_comparisons(pages: Pages, section: Section, repetitions: int) -> None:
    found = comparisons(section, repetitions)
    if not found:
        return
    rows, differences = [], []
    for one in found:
        how = in_pairs(one) if len(one.tasks) == 1 else over_tasks(one)
        rows.append([one.ours, one.theirs, decimal(one.improvement, 2), str(len(one.tasks)), how])
        about = {"benchmark": section.benchmark, "method": one.ours, "other": one.theirs}
        pages.record(
            "comparison", "probability of improvement", one.improvement, tasks=" ".join(one.tasks), seeds=how, **about
        )
        for task, difference in one.differences.items():
            how = in_pairs(one, task)
            differences.append([task, one.ours, one.theirs, number(difference), how])
            pages.record("comparison", "difference of final returns", difference, task=task, seeds=how, **about)
    pages.blocks += [
        Heading("Method against method", level=3),
        TableBlock(
            "Probability that a run of the first method ends higher than a run of the second, over all combinations of "
            "their runs on a task drawn from those that both have; a tie counts half. Over several tasks with 95 % "
            "intervals by the stratified bootstrap. Only seeds that both have count; if they share none, all do.",
            ["first", "second", "probability", "tasks", "seeds"],
            rows,
        ),
    ]
    if len(found) <= MOST_IN_SHORT:
        pages.in_short += [
            f"{section.name}: a run of {one.ours} ends higher than one of {one.theirs} with probability "
            f"{decimal(one.improvement, 2)}, on {how_certain(one)}."
            for one in found
        ]
    if len(differences) <= MOST_DIFFERENCES:
        caption = "Final return of the first method minus that of the second: mean and Student's 95 % interval."
        columns = ["task", "first", "second", "difference", "seeds"]
        pages.blocks.append(TableBlock(caption, columns, sorted(differences)))
    else:
        pages.blocks.append(Paragraph("`report.csv` has the differences of final returns on each task."))
    if not any(one.improvement.has_interval for one in found):
        return  # points alone would look certain
    panel = {f"{one.ours} over {one.theirs}": one.improvement for one in found}
    drawing = draw_estimates({"Probability of improvement": panel}, columns=1, neutral=0.5)
    text = "Probabilities of improvement with their intervals, from the table above; at 0.5 there is no difference."
    pages.blocks.append(FigureBlock(f"{section.benchmark}-improvement", drawing, text))


# -- learning curves ---------------------------------------------------------------------------------------------------


def add_curves(pages: Pages, section: Section) -> None:
    pages.blocks += [
        Heading("Learning curves", level=3),
        Paragraph(
            "Thick: the mean over seeds; thin: each seed, the mean of an evaluation's episodes; band: Student's 95 % "
            f"interval of the mean, from {FEWEST_SEEDS} seeds on. Dashed: a run that is not finished; it is in no "
            "mean."
        ),
    ]
    for task in section.tasks:
        curves = {group.method: make_curve(group) for group in section.groups if group.task == task}
        curves = {method: curve for method, curve in curves.items() if curve.returns or curve.unfinished}
        if not curves:
            pages.blocks.append(Paragraph(f"{task}: no evaluation yet."))
            continue
        ends = [run.total_env_steps for group in section.groups if group.task == task for run in group.runs]
        reference = to_draw(section.published, task, max(ends, default=0))
        drawing = draw_curves(curves, title=task, reference=reference, order=section.methods)
        name = f"{section.benchmark}-{''.join(c if c.isalnum() or c in '-_' else '_' for c in task)}"
        text = f"Learning curves on {task}: {', '.join(curves)}. The table has the final returns."
        pages.blocks.append(FigureBlock(name, drawing, text))


def make_curve(group: Group) -> Curve:
    """Makes the curve of a group from the steps at which all finished runs have an evaluation."""
    of_runs = [dict(run.curve) for run in group.runs]
    shared = sorted(set.intersection(*(set(curve) for curve in of_runs))) if of_runs else []
    unfinished = [run.curve for run in group.unfinished if run.curve]
    return Curve(shared, [[curve[step] for step in shared] for curve in of_runs] if shared else [], unfinished)
