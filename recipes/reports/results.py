"""The numbers of a report: normalised scores, aggregates over the tasks that methods share, comparisons of methods."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mcurl_torchrl.reports import (
    Estimate,
    difference_of_means,
    estimate_aggregates,
    estimate_improvement,
    estimate_profile,
)
from mcurl_torchrl.training import human_normalized_score
from recipes.published_scores import PUBLISHED, Published, published_atari, published_dmc, random_and_human_score
from recipes.reports.groups import Group

NAMES = {"atari": "Atari", "dmc": "DeepMind Control Suite", "gym": "Gymnasium"}
SCALES = {"atari": "human-normalised score", "dmc": "return / 1000"}
DMC_HIGHEST = 1000  # the highest possible return of an episode
THRESHOLDS = 101  # number of thresholds of a performance profile


@dataclass
class Section:
    """The runs and the published results of one benchmark."""

    benchmark: str
    groups: list[Group]
    published: list[Published] = field(default_factory=list)
    baselines: dict[str, tuple[float, float]] = field(default_factory=dict)  # of a game: random play, a human player

    @property
    def name(self) -> str:
        return NAMES.get(self.benchmark, self.benchmark)

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(group.method for group in self.groups))

    @property
    def tasks(self) -> list[str]:
        return sorted({group.task for group in self.groups})

    def group(self, method: str, task: str) -> Group | None:
        return next((group for group in self.groups if (group.method, group.task) == (method, task)), None)

    def env_steps(self, method: str) -> int:
        """Returns the length of a method's runs; runs of different lengths are different methods."""
        groups = [group for group in self.groups if group.method == method]
        return next(run.total_env_steps for group in groups for run in [*group.runs, *group.unfinished])

    def normalized(self, task: str, score: float) -> float | None:
        """Returns a score on the common scale of all tasks; None if there is no such scale."""
        if self.benchmark == "dmc":
            return score / DMC_HIGHEST
        if task in self.baselines:
            random, human = self.baselines[task]
            return human_normalized_score(score, random=random, human=human)
        return None

    def scores(self, method: str, task: str) -> list[float]:
        """Returns the normalised final scores of a method's finished runs, by seed; empty without a common scale."""
        group = self.group(method, task)
        found = [] if group is None else [self.normalized(task, run.number("final_return")) for run in group.runs]
        return [score for score in found if score is not None]


@dataclass(frozen=True)
class Comparable:
    """Methods with finished runs of one length on the same tasks, so that their aggregates can be compared."""

    tasks: tuple[str, ...]
    env_steps: int
    methods: tuple[str, ...]


def make_section(benchmark: str, groups: list[Group], folder: Path = PUBLISHED) -> tuple[Section, list[str]]:
    """Returns a section with groups and published results, and messages about missing files."""
    section, problems = Section(benchmark, groups), []
    try:
        if benchmark == "dmc":
            section.published = published_dmc(folder)
        elif benchmark == "atari":
            known = {task: random_and_human_score(task, folder) for task in section.tasks}
            section.baselines = {task: scores for task, scores in known.items() if scores is not None}
            section.published = published_atari(folder)
    except OSError as error:
        without = "" if section.baselines or benchmark != "atari" else ", and no human-normalised scores"
        problems.append(f"Published results cannot be read ({error}): {section.name} has no published rows{without}.")
    return section, problems


def comparable(section: Section) -> list[Comparable]:
    """Returns each set of tasks that some method has, with all methods that have these tasks; the largest set first.

    Averages over different games, or after different numbers of steps, cannot be compared.
    """
    covered = {
        method: frozenset(task for task in section.tasks if section.scores(method, task)) for method in section.methods
    }
    sets = {(tasks, section.env_steps(method)) for method, tasks in covered.items() if tasks}
    return [
        Comparable(
            tuple(sorted(tasks)),
            env_steps,
            tuple(
                method
                for method in section.methods
                if covered[method] >= tasks and section.env_steps(method) == env_steps
            ),
        )
        for tasks, env_steps in sorted(sets, key=lambda one: (-len(one[0]), -one[1], sorted(one[0])))
    ]


def aggregates(section: Section, over: Comparable, repetitions: int) -> dict[str, dict[str, Estimate]]:
    """Returns the aggregates of each method, by name; over a single task without intervals.

    The bootstrap would give the mean of a single task a second interval, narrower than Student's.
    """
    found = {
        method: estimate_aggregates([section.scores(method, task) for task in over.tasks], repetitions=repetitions)
        for method in over.methods
    }
    if len(over.tasks) > 1:
        return found
    return {
        method: {name: Estimate(estimate.value) for name, estimate in estimates.items()}
        for method, estimates in found.items()
    }


def profiles(section: Section, over: Comparable) -> tuple[np.ndarray, dict[str, list[Estimate]]]:
    """Returns thresholds, and the performance profile of each method at these thresholds."""
    scores = {method: [section.scores(method, task) for task in over.tasks] for method in over.methods}
    pooled = [score for tasks in scores.values() for task in tasks for score in task]
    thresholds = np.linspace(min(0.0, *pooled), 1.05 * max(1.0, *pooled), THRESHOLDS)
    return thresholds, {method: estimate_profile(tasks, thresholds) for method, tasks in scores.items()}


@dataclass(frozen=True)
class Comparison:
    """One method against another over the tasks that both have."""

    ours: str
    theirs: str
    tasks: tuple[str, ...]
    paired: dict[str, tuple[int, ...]]  # task to the seeds that both have; without tasks on which they share none
    left_out: dict[str, int]  # task to the number of runs whose seed the other method does not have
    improvement: Estimate
    differences: dict[str, Estimate]  # of mean final returns, by task


def comparisons(section: Section, repetitions: int) -> list[Comparison]:
    """Compares all pairs of methods with runs of the same length: by the seeds that both have, if there are such."""
    found = []
    methods = [method for method in section.methods if any(g.runs for g in section.groups if g.method == method)]
    for ours, theirs in itertools.combinations(methods, 2):
        if section.env_steps(ours) != section.env_steps(theirs):
            continue
        pairs = {
            task: (one, other)
            for task in section.tasks
            if (one := section.group(ours, task)) and (other := section.group(theirs, task)) and one.runs and other.runs
        }
        if not pairs:
            continue
        shared = {task: tuple(sorted({*one.seeds} & {*other.seeds})) for task, (one, other) in pairs.items()}
        paired = {task: seeds for task, seeds in shared.items() if seeds}
        finals = [
            tuple(
                [run.number("final_return") for run in group.runs if run.seed in (shared[task] or group.seeds)]
                for group in both
            )
            for task, both in pairs.items()
        ]
        left_out = {task: len({*one.seeds} ^ {*other.seeds}) for task, (one, other) in pairs.items() if task in paired}
        # A rank does not change with the scale: no normalised scores are needed here.
        improvement = estimate_improvement(
            [one for one, _ in finals],
            [other for _, other in finals],
            paired=len(paired) == len(pairs),
            repetitions=repetitions,
        )
        differences = {
            task: difference_of_means(one, other, paired=task in paired)
            for task, (one, other) in zip(pairs, finals, strict=True)
        }
        if len(pairs) == 1:  # as in aggregates: with few seeds this bootstrap is far too narrow
            improvement = Estimate(improvement.value)
        found.append(Comparison(ours, theirs, tuple(pairs), paired, left_out, improvement, differences))
    return found


def published_beside(section: Section, task: str) -> list[Published]:
    """Returns the published results on a task at our numbers of steps, or at the next larger published number.

    After more steps than any published number there is nothing to compare with.
    """
    rows = [row for row in section.published if row.task == task]
    budgets = sorted({row.env_steps for row in rows})
    wanted = set()
    for group in section.groups:
        for run in [*group.runs, *group.unfinished] if group.task == task else []:
            wanted.add(next((budget for budget in budgets if budget >= run.total_env_steps), None))
    return [row for row in rows if row.env_steps in wanted]
