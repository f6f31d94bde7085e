"""Runs a suite: recipes, environments, algorithms and seeds, as a YAML says it.

    python recipes/suite.py suite=smoke suite.dir=DIR jobs=2
    python recipes/suite.py suite=benchmarks/suites/atari_cpu.yaml jobs=2 nice=19
    python recipes/suite.py suite=cpu_small suite.seeds=[1,2,3,4,5]

It runs what is missing, resumes what was interrupted, skips what is finished and tries again what failed. Ctrl-C saves
all runs; the same command goes on. docs/suites.md has the format of a suite and of its folder.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from mcurl_torchrl.training import RunDirectory, RunDirectoryInUse, catch_stop_signals
from recipes.command_line import BadCommand, did_you_mean
from recipes.suites.board import Board
from recipes.suites.definition import Suite, find_suite, read_suite, suite_names
from recipes.suites.folder import note_start
from recipes.suites.provenance import current_commit, declare, files_that_differ
from recipes.suites.workers import Job, work

EXPERIMENT_KEYS = ("envs", "algos", "seeds", "overrides")


@dataclass
class Options:
    """What the command line may set, beside suite.KEY."""

    suite: str = ""  # one of recipes/conf/suite, or the path of a YAML file
    jobs: int = 1  # how many runs at a time
    nice: int = 0  # how much they stand back for other processes, 0 to 19
    retries: int = 2  # how often a run that failed is tried again
    declare: bool = False  # write commit and time into the suite's file, and run nothing
    dry_run: bool = False  # say what would be done, and do nothing


def main(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(f"{__doc__}\nSuites: {', '.join(suite_names())}. {describe_options()}")
        return 0
    options, changes = parse(arguments)
    folder = changes.pop("dir", None)
    suite = read_suite(find_suite(options.suite), changes, folder)
    if options.declare:
        if changes:
            raise BadCommand(f"declare=true writes the suite's file as it is; set {', '.join(changes)} in the file")
        target = declare(suite)
        print(f"declared: {target}; commit it, then run suite={target}")
        return 0
    if options.dry_run:
        return show_plan(suite)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(RunDirectory(suite.folder).lock())
            note_start(suite)
        except RunDirectoryInUse as error:
            raise BadCommand(f"another suite.py is at work: {error}") from None
        except OSError as error:
            raise BadCommand(f"nothing can be written in {suite.folder}: {error}") from None
        return run(suite, options)


def run(suite: Suite, options: Options) -> int:
    """Runs a suite to its end, or until it is stopped; returns the exit code."""
    jobs, board = make_jobs(suite), Board(suite.name, suite.declared)
    board.say(f"{suite.name}: {len(jobs)} runs in {suite.folder}")
    for line in other_code(suite):
        board.say(line)
    for job in jobs:
        job.look()
        if job.status != "waiting":
            board.note(job)
    with catch_stop_signals() as stop:
        work(
            jobs,
            at_once=options.jobs,
            nice=options.nice,
            retries=options.retries,
            stop=stop,
            show=board.show,
            note=board.note,
            on_stop=board.leave,
        )
    board.show(jobs, now=True)
    if stop.requested:
        print("stopped; the same command goes on")
        return stop.exit_code
    return 0 if all(job.status == "done" for job in jobs) else 1


def show_plan(suite: Suite) -> int:
    """Prints what would be done with each run."""
    doing = {"missing": "start", "unsaved": "start anew", "interrupted": "resume", "finished": "skip", "in use": "wait"}
    for job in make_jobs(suite):
        stage = job.look()
        print(f"{doing.get(stage, stage):10} {job.run.name}{f'  {job.reason}' if job.reason else ''}")
    return 0


def make_jobs(suite: Suite) -> list[Job]:
    return [Job(planned, RunDirectory(suite.folder / planned.name)) for planned in suite.runs()]


def other_code(suite: Suite) -> list[str]:
    """Says that what is started now is not of the declared code, if so."""
    if suite.declared is None or (commit := current_commit()) is None:
        return []
    declared = suite.declared["commit"]
    if files_that_differ(declared, commit) == ():
        return []
    return [f"declared for commit {declared[:7]}; this is {commit[:7]}, with other code: runs are marked"]


# -- the command line --------------------------------------------------------------------------------------------------


def parse(arguments: list[str]) -> tuple[Options, dict[str, Any]]:
    """Reads KEY=VALUE; returns the options, and what suite.KEY sets."""
    known = {option.name: type(option.default) for option in fields(Options)}
    options, changes = Options(), {}
    for argument in arguments:
        key, equals, typed = argument.partition("=")
        names = [*known, *(f"suite.{name}" for name in ("dir", *EXPERIMENT_KEYS))]
        if key not in names or not equals:
            raise BadCommand(f"{argument}: there is no such option; {did_you_mean(key, names)}")
        # A path is taken as it is typed.
        value = typed if key in ("suite", "suite.dir") else read_value(argument, typed)
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
    return options, changes


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
    return f"Options: {', '.join(listed)}, suite.dir=."


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (BadCommand, OSError) as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    except KeyboardInterrupt:
        print("interrupted before a run was started", file=sys.stderr)
        sys.exit(130)
