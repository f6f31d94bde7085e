"""Runs a suite: recipes, environments, algorithms and seeds, as a YAML says it.

    python recipes/suite.py suite=smoke suite.dir=DIR jobs=2
    python recipes/suite.py suite=benchmarks/suites/atari_cpu.yaml jobs=2 nice=19
    python recipes/suite.py suite=cpu_small suite.seeds=[1,2,3,4,5]
    python recipes/suite.py suite=cpu_small 'only=*/RoadRunner/*,*/cartpole-swingup/mcurl-*'
    python recipes/suite.py suite=atari26 launcher=submitit_slurm launcher.slurm_partition=gpu launcher.gpus_per_node=1

It runs what is missing, resumes what was interrupted, skips what is finished and tries again what failed. Ctrl-C saves
all runs; the same command goes on. docs/suites.md has the format of a suite and of its folder.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import Any

import yaml

from recipes.command_line import BadCommand, answer, did_you_mean
from recipes.suites.definition import find_suite, read_suite, suite_names

EXPERIMENT_KEYS = ("envs", "algos", "seeds", "overrides")


@dataclass
class Options:
    """What the command line may set, beside suite.KEY."""

    suite: str = ""  # one of recipes/conf/suite, or the path of a YAML file
    only: str = "*"  # which runs now, by patterns of their names, separated by commas; the others wait
    jobs: int = 1  # how many runs at a time; those in a cluster's queue count
    launcher: str = "local"  # where they run: local, joblib, submitit_local, submitit_slurm, ray
    nice: int = 0  # how much they stand back for other processes, 0 to 19
    retries: int = 2  # how often a run that failed is tried again
    declare: bool = False  # write commit and time into the suite's file, and run nothing
    dry_run: bool = False  # say what would be done, and do nothing


def main(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(f"{__doc__}\nSuites: {', '.join(suite_names())}. {describe_options()}")
        return 0
    options, changes, launcher_options = parse(arguments)
    file = find_suite(options.suite)
    # With torch, which takes seconds: help and wrong options are answered before.
    from recipes.suites.launchers import check_launcher, make_launcher
    from recipes.suites.provenance import declare
    from recipes.suites.running import run_alone, show_plan

    check_launcher(options.launcher, launcher_options)
    folder = changes.pop("dir", None)
    suite = read_suite(file, changes, folder)
    if options.declare:
        if changes:
            raise BadCommand(f"declare=true writes the suite's file as it is; set {', '.join(changes)} in the file")
        target = declare(suite)
        print(f"declared: {target}; commit it, then run suite={target}")
        return 0
    runs = suite.runs_like(options.only)
    if options.dry_run:
        return show_plan(suite, runs)
    make = functools.partial(
        make_launcher, options.launcher, jobs=options.jobs, folder=suite.folder, options=launcher_options
    )
    return run_alone(suite, runs, make, jobs=options.jobs, nice=options.nice, retries=options.retries)


# -- the command line --------------------------------------------------------------------------------------------------


def parse(arguments: list[str]) -> tuple[Options, dict[str, Any], dict[str, Any]]:
    """Reads KEY=VALUE; returns the options, what suite.KEY sets, and what launcher.KEY sets."""
    known = {option.name: type(option.default) for option in fields(Options)}
    options, changes, of_launcher = Options(), {}, {}
    for argument in arguments:
        key, equals, typed = argument.partition("=")
        if equals and key.startswith("launcher."):  # the launcher's own names
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
        raise BadCommand(f"{argument} cannot be read: {error}") from None


def describe_options() -> str:
    listed = [
        *(f"{one.name}={one.default}" for one in fields(Options)[1:]),
        *(f"suite.{key}=" for key in EXPERIMENT_KEYS),
    ]
    return f"Options: {', '.join(listed)}, suite.dir=, launcher.KEY=."


if __name__ == "__main__":
    answer(main)
