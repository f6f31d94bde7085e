"""The parts of a report with published results beside our own."""

from __future__ import annotations

from statistics import fmean, median

from mcurl_torchrl.reports import Bullets, Estimate, Heading, TableBlock, mean_over_seeds
from recipes.published_scores import PublishedAggregate
from recipes.reports.groups import Group
from recipes.reports.results import Comparable, Section, published_beside
from recipes.reports.writing import Pages, known, number, spread, steps

ALL_GAMES = 26
PAPER = "paper"  # the preset with the published sizes


def published_aggregate_rows(section: Section, over: Comparable) -> list[list[str]]:
    """Returns mean and median over the same tasks from published means; IQM and optimality gap need single runs."""
    rows = []
    published = [row for row in section.published if row.env_steps == over.env_steps and row.task in over.tasks]
    for label, source in dict.fromkeys((row.label, row.source) for row in published):
        found = {row.task: row for row in published if (row.label, row.source) == (label, source)}
        if len(found) < len(over.tasks):
            continue
        counts = {row.seeds for row in found.values()}
        seeds = known(None) if None in counts else spread(sorted(counts))
        scores = [section.normalized(task, row.mean) for task, row in found.items()]
        twice = len({row.source for row in published if row.label == label}) > 1
        told = f", {'score files' if source.startswith('score files') else 'a table'}" if twice else ""
        rows.append([f"{label} (published{told})", seeds, "–", f"{median(scores):.3f}", f"{fmean(scores):.3f}", "–"])
    return rows


def apart(group: Group) -> str:
    """Says what our runs do not share with the published ones: the sizes of another preset, another camera."""
    settings = group.runs[0].settings
    preset, camera = settings.get("preset_name", PAPER), settings.get("env.camera_id")
    names = [f"preset={preset}"] * (preset != PAPER) + [f"env.camera_id={camera}"] * (camera is not None)
    return f" ({', '.join(names)})" if names else ""


def add_published(pages: Pages, section: Section) -> None:
    rows, sources = [], []
    for task in section.tasks:
        beside = published_beside(section, task)
        if not beside:
            continue
        ours = [group for group in section.groups if group.task == task and group.runs]
        for group in ours:
            final = mean_over_seeds(group.numbers("final_return"))
            budget = steps(group.runs[0].total_env_steps)
            rows.append([task, f"ours: {group.method}{apart(group)}", number(final), budget, str(len(group.runs)), "–"])
        for row in sorted(beside, key=lambda row: (row.env_steps, row.mean)):
            if row.source not in sources:
                sources.append(row.source)
            value = number(Estimate(row.mean)) + (f" ± {row.std:,.0f}" if row.std is not None else "")
            rows.append(
                [task, row.label, value, steps(row.env_steps), known(row.seeds), f"{sources.index(row.source) + 1}"]
            )
            pages.record(
                "published", "return", Estimate(row.mean), benchmark=section.benchmark, task=task, method=row.label,
                seeds=row.seeds, env_steps=row.env_steps, source=row.source,
            )  # fmt: skip
    if rows:
        columns = ["task", "method", "return", "env steps", "seeds", "source"]
        caption = (
            "Published results beside ours, at our budget or the next larger one. Ours are final returns with their "
            "intervals; ± is a standard deviation; – in the column seeds means that their number is unknown. Brackets "
            "name a preset with other sizes than the published ones, and another camera than theirs."
        )
        pages.blocks += [Heading("Beside published results", level=3), TableBlock(caption, columns, rows)]
        pages.blocks.append(Bullets([f"Source {place}: {source}." for place, source in enumerate(sources, start=1)]))


def add_published_aggregates(pages: Pages, rows: list[PublishedAggregate]) -> None:
    """Adds the published aggregates over all 26 games."""
    table = []
    for row in rows:
        median, mean = ("–" if value is None else f"{value:.3f}" for value in (row.median, row.mean))
        table.append([row.method, f"{row.iqm:.3f}", median, mean, steps(row.env_steps), known(row.seeds), row.source])
        about = {"benchmark": "atari", "method": row.method, "seeds": row.seeds, "env_steps": row.env_steps}
        pages.record("published", "IQM of human-normalised score", Estimate(row.iqm), source=row.source, **about)
    caption = f"Published human-normalised scores over all {ALL_GAMES} games. They cannot be compared with fewer games."
    columns = ["method", "IQM", "median", "mean", "env steps", "seeds", "source"]
    pages.blocks.append(TableBlock(caption, columns, table))
