"""Groups the runs that may be averaged: runs of one method on one task that differ only in their seed."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from recipes.command_line import CONF
from recipes.reports.runs import DAMAGED, FINISHED, UNFINISHED, Run
from recipes.resuming import ONLY_TELLING, flat

# Settings that may differ between runs that are averaged: they affect neither learning nor scores.
NOT_COMPARED = (
    *("seed", "threads", "device", "resume", "resume_changed", "replay.memmap"),
    *("evaluation.video", "evaluation.num_envs"),
    *ONLY_TELLING,
)
# Settings that are computed from env.published are compared; its other values are of methods that the run does not use.
SECTIONS_NOT_COMPARED = ("logging.", "checkpoint.", "hydra.", "env.published.")
ALWAYS_COMPARED = ("preset_name", "total_env_steps")
NOT_SET = "not set"
OF_THE_TASK = "of the task"
STATUSES = (FINISHED, UNFINISHED, DAMAGED)  # which run of a seed counts
MOST_KEYS_IN_A_NAME = 2


@dataclass
class Group:
    """The runs of one method on one task."""

    method: str
    benchmark: str
    task: str
    runs: list[Run] = field(default_factory=list)  # finished, one for each seed, by seed
    unfinished: list[Run] = field(default_factory=list)

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    def numbers(self, key: str) -> list[float]:
        """Returns a number of each finished run's result.json."""
        return [value for run in self.runs if (value := run.number(key)) is not None]


@dataclass
class Split:
    """Runs of one label that are kept apart, because their settings differ."""

    label: str
    keys: tuple[str, ...]
    variants: dict[str, tuple[Any, ...]]  # method to the values of the keys


@dataclass
class Grouping:
    groups: list[Group] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)
    twice: list[tuple[Run, Run]] = field(default_factory=list)  # left out, kept
    between_tasks: dict[str, list[str]] = field(default_factory=dict)  # method to the settings that its tasks set


def group_runs(runs: Iterable[Run]) -> Grouping:
    """Groups runs that differ only in their seed; runs with other settings are in different groups."""
    grouping = Grouping()
    by_label: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        by_label[run.benchmark, run.recipe, run.label].append(run)
    recipes = Counter((benchmark, label) for benchmark, _, label in by_label)
    for (benchmark, recipe, label), alike in sorted(by_label.items()):
        name = label if recipes[benchmark, label] == 1 else f"{label} of {recipe}"
        methods = name_methods(name, alike, grouping)
        for method, of_method in methods.items():
            add_groups(method, of_method, grouping)
            differing = set(differing_keys([compared(run) for run in of_method])) - {"env.task", "env.game", "env.id"}
            if differing:
                grouping.between_tasks[method] = sorted(differing)
    return grouping


def name_methods(name: str, runs: list[Run], grouping: Grouping) -> dict[str, list[Run]]:
    """Splits the runs of a label into methods with equal settings, and names the methods."""
    keys = splitting_keys(runs)
    if not keys:
        return {name: runs}
    usual = usual_values(runs, keys)
    variants: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in runs:
        settings, own = compared(run), usual.get(run.task, {})
        found = [(settings.get(key, NOT_SET), own.get(key)) for key in keys]
        variants[tuple(OF_THE_TASK if value == usually else value for value, usually in found)].append(run)
    ordered = sorted(variants, key=str)
    telling = fewest_keys(keys, ordered)
    methods = {}
    for number, values in enumerate(ordered, start=1):
        told = ", ".join(f"{key.split('.')[-1]}={values[keys.index(key)]}" for key in telling)
        methods[f"{name} ({told or f'settings {number}'})"] = variants[values]
    grouping.splits.append(Split(name, keys, dict(zip(methods, ordered, strict=True))))
    return methods


def splitting_keys(runs: list[Run]) -> tuple[str, ...]:
    """Returns the settings that differ between runs of one task, or between tasks if the tasks do not set them."""
    by_task: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        by_task[run.task].append(compared(run))
    keys = {key for settings in by_task.values() for key in differing_keys(settings)}
    of_tasks = task_keys(runs[0].recipe)
    between = differing_keys([settings for each in by_task.values() for settings in each])
    return tuple(sorted(keys | {key for key in between if key in ALWAYS_COMPARED or key not in of_tasks}))


def usual_values(runs: list[Run], keys: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Returns, for each task, what most of its runs have for those settings that the tasks set differently."""
    counts: dict[str, dict[str, Counter[Any]]] = defaultdict(lambda: defaultdict(Counter))
    for run in runs:
        settings = compared(run)
        for key in task_keys(run.recipe).intersection(keys) - {*ALWAYS_COMPARED}:
            counts[run.task][key][settings.get(key, NOT_SET)] += 1
    usual = {
        task: {key: seen.most_common(1)[0][0] for key, seen in of_task.items()} for task, of_task in counts.items()
    }
    differing = differing_keys(list(usual.values()))
    return {task: {key: values[key] for key in differing} for task, values in usual.items()}


def fewest_keys(keys: tuple[str, ...], variants: list[tuple[Any, ...]]) -> tuple[str, ...]:
    """Returns one or two keys that distinguish all variants, preferably preset and length; empty if it takes more."""
    preferred = sorted(keys, key=lambda key: (key not in ALWAYS_COMPARED, key))
    for count in range(1, MOST_KEYS_IN_A_NAME + 1):
        for chosen in itertools.combinations(preferred, count):
            places = [keys.index(key) for key in chosen]
            if len({tuple(values[place] for place in places) for values in variants}) == len(variants):
                return chosen
    return ()


def compared(run: Run) -> dict[str, Any]:
    """Returns the settings that runs must share to be averaged."""
    return {
        key: value
        for key, value in run.settings.items()
        if key not in NOT_COMPARED and not key.startswith(SECTIONS_NOT_COMPARED)
    }


def differing_keys(settings: list[dict[str, Any]]) -> list[str]:
    keys = sorted({key for each in settings for key in each})
    return [key for key in keys if len({str(each.get(key, NOT_SET)) for each in settings}) > 1]


@cache
def task_keys(recipe: str) -> frozenset[str]:
    """Returns the settings that depend on the task: those in the tasks' YAML files, and those computed from them."""
    keys = {"env.task", "env.game", "env.id"}
    for main in (*CONF.glob(f"*/{recipe}.yaml"), CONF / "shared" / "hydra_run.yaml"):
        for file in main.parent.rglob("*.yaml"):
            prefix = f"{file.parent.name}." if file.parent.name in ("env", "objective") else ""
            for key, value in flat(OmegaConf.to_container(OmegaConf.load(file), resolve=False)):
                if file.parent.name == "env" or "${env." in str(value):
                    keys.add(f"{prefix}{key}")
    return frozenset(keys)


def add_groups(method: str, runs: list[Run], grouping: Grouping) -> None:
    """Groups a method's runs by task; if there are several runs of a seed, one counts."""
    by_task: dict[str, dict[int, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        by_task[run.task][run.seed].append(run)
    for task, by_seed in sorted(by_task.items()):
        group = Group(method, runs[0].benchmark, task)
        for _, same in sorted(by_seed.items()):
            # Prefer a finished run, then a run without remarks, then the run that was started first. Ignore the score.
            kept, *others = sorted(
                same, key=lambda run: (STATUSES.index(run.status), len(run.remarks), run.started, str(run.path))
            )
            grouping.twice += [(other, kept) for other in others]
            if kept.status == FINISHED:
                group.runs.append(kept)
            elif kept.status == UNFINISHED:
                group.unfinished.append(kept)
        grouping.groups.append(group)
