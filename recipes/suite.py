"""Runs a suite: the recipes, environments, algorithms and seeds of a YAML file.

    python recipes/suite.py suite=smoke suite.dir=DIR jobs=2
    python recipes/suite.py suite=benchmarks/suites/atari_cpu.yaml jobs=2 nice=19
    python recipes/suite.py suite=cpu_small suite.seeds=[1,2,3,4,5]
    python recipes/suite.py suite=cpu_small 'only=*/RoadRunner/*,*/cartpole-swingup/mcurl-*'
    python recipes/suite.py suite=atari26 launcher=submitit_slurm launcher.slurm_partition=gpu launcher.gpus_per_node=1

It starts missing runs, resumes interrupted runs, skips finished runs and retries failed runs. Ctrl-C saves all runs;
the same command continues the suite. docs/suites.md describes the YAML file and the folder of a suite.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import yaml

from recipes.command_line import BadCommand, answer, did_you_mean
from recipes.file_errors import in_words
from recipes.suites.definition import find_suite, read_suite, suite_names

EXPERIMENT_KEYS = ("envs", "algos", "seeds", "overrides")


@dataclass
class Options:
    """The options of the command line, besides suite.KEY and launcher.KEY."""

    suite: str = ""  # a name in recipes/conf/suite, or the path of a YAML file
    only: str = "*"  # comma-separated glob patterns: start only runs whose names match one of them
    jobs: int = 1  # largest number of runs at a time, including jobs in a cluster's queue
    launcher: str = "local"  # local | joblib | submitit_local | submitit_slurm | ray: starts the runs
    nice: int = 0  # priority of the processes, 0 (normal) to 19 (lowest), as the command nice
    retries: int = 2  # how often a failed run is retried
    declare: bool = False  # write commit and time into the suite's file, and run nothing
    dry_run: bool = False  # print what would be done with each run, and do nothing


def main(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(f"{__doc__}\nSuites: {', '.join(suite_names())}. {describe_options()}")
        return 0
    options, changes, launcher_options = parse(arguments)
    file = find_suite(options.suite)
    # These modules import torch, which takes seconds; help and errors in the options come first.
    from recipes.suites.launchers import check_launcher, make_launcher
    from recipes.suites.provenance import declare
    from recipes.suites.running import alone_in_its_folder, run, show_plan

    check_launcher(options.launcher, launcher_options)
    folder = changes.pop("dir", None)
    suite = read_suite(file, changes, folder)
    if suite.declared and changes:
        changed = ", ".join(f"suite.{key}" for key in changes)
        raise BadCommand(
            f"{changed}: {file} was declared at {suite.declared['time']}, and another plan is another suite: copy the "
            "file under another name, change it there, and declare it"
        )
    if options.declare:
        if changes:
            raise BadCommand(
                f"declare=true cannot be combined with other changes: set {', '.join(changes)} in the file"
            )
        target = declare(suite)
        print(f"declared: {target}; commit it, then run suite={target}")
        return 0
    runs = suite.runs_like(options.only)
    if options.dry_run:
        return show_plan(suite, runs)
    with alone_in_its_folder(suite):
        # Before signals are caught: Ray sets handlers of its own.
        launcher = make_launcher(options.launcher, jobs=options.jobs, folder=suite.folder, options=launcher_options)
        return run(suite, runs, launcher, at_once=options.jobs, nice=options.nice, retries=options.retries)


# -- the command line --------------------------------------------------------------------------------------------------


def parse(arguments: list[str]) -> tuple[Options, dict[str, Any], dict[str, Any]]:
    """Reads KEY=VALUE; returns the options, the values of suite.KEY, and the values of launcher.KEY."""
    known = {option.name: type(option.default) for option in fields(Options)}
    options, changes, of_launcher = Options(), {}, {}
    for argument in arguments:
        key, equals, typed = argument.partition("=")
        if equals and key.startswith("launcher."):  # the launcher itself checks these names
            of_launcher[key.removeprefix("launcher.")] = read_value(argument, typed)
            continue
        names = [*known, *(f"suite.{name}" for name in ("dir", *EXPERIMENT_KEYS))]
        if key not in names or not equals:
            raise BadCommand(f"{argument}: there is no such option; {did_you_mean(key, names)}")
        # A path is taken as it is typed.
        value = typed if key in ("suite", "suite.dir", "launcher", "only") else read_value(argument, typed)
        if key.startswith("suite."):
            changes[key.removeprefix("suite.")] = value
        elif type(value) is not known[key]:
            raise BadCommand(f"{argument}; it must be {'true or false' if known[key] is bool else 'a whole number'}")
        else:
            setattr(options, key, value)
    if not options.suite:
        raise BadCommand(f"give suite=NAME or suite=FILE.yaml; the names are {', '.join(suite_names())}")
    if options.jobs < 1:
        raise BadCommand(f"jobs={options.jobs}; it must be at least 1")
    if options.retries < 0:
        raise BadCommand(f"retries={options.retries}; it must be at least 0")
    if not 0 <= options.nice <= 19:
        raise BadCommand(f"nice={options.nice}; it must be between 0 and 19")
    return options, changes, of_launcher


def read_value(argument: str, typed: str) -> Any:
    try:
        return yaml.safe_load(typed)
    except yaml.YAMLError as error:
        raise BadCommand(f"{argument} cannot be read: {in_words(error)}") from None


def describe_options() -> str:
    listed = [
        *(f"{one.name}={one.default}" for one in fields(Options)[1:]),
        *(f"suite.{key}=" for key in EXPERIMENT_KEYS),
    ]
    return f"Options: {', '.join(listed)}, suite.dir=, launcher.KEY=."


if __name__ == "__main__":
    answer(main)
