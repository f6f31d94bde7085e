"""Runs a suite and shows its progress, or prints the plan of a suite."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mcurl_torchrl.training import RunDirectory, RunDirectoryInUse, catch_stop_signals
from recipes.command_line import BadCommand
from recipes.suites.board import Board
from recipes.suites.definition import PlannedRun, Suite, how_many
from recipes.suites.folder import note_start, read_folder
from recipes.suites.processes import Launcher
from recipes.suites.provenance import current_commit, files_that_differ
from recipes.suites.workers import Job, work


@contextlib.contextmanager
def alone_in_its_folder(suite: Suite) -> Iterator[None]:
    """Locks the folder of a suite and notes the start there; refuses a folder that is in use."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(RunDirectory(suite.folder).lock())
            note_start(suite)
        except RunDirectoryInUse as error:
            raise BadCommand(f"another suite.py is running: {error}") from None
        except OSError as error:
            raise BadCommand(f"nothing can be written in {suite.folder}: {error}") from None
        yield


def run(suite: Suite, runs: list[PlannedRun], launcher: Launcher, *, at_once: int, nice: int, retries: int) -> int:
    """Runs these runs of a suite until all are done or the suite is stopped; returns the exit code."""
    jobs, board = make_jobs(suite, runs), Board(suite.name, suite.declared)
    others = len(suite.runs()) - len(jobs)
    board.say(f"{suite.name}: {how_many(jobs)}{f' of {len(jobs) + others}' if others else ''} in {suite.folder}")
    for line in other_code(suite):
        board.say(line)
    for job in jobs:
        job.look()
        if job.status != "waiting":
            board.note(job)
    with catch_stop_signals() as stop:
        work(jobs, launcher, board, stop, at_once=at_once, nice=nice, retries=retries)
    board.show(jobs, now=True)
    if stop.requested:
        print("stopped; the same command continues the suite")
        return stop.exit_code
    return 0 if all(job.status == "done" for job in jobs) else 1


def show_plan(suite: Suite, runs: list[PlannedRun]) -> int:
    """Prints the action for each run: start, resume, skip or wait; refuses a folder that the suite cannot use."""
    read_folder(suite)
    doing = {"missing": "start", "unsaved": "start anew", "interrupted": "resume", "finished": "skip", "in use": "wait"}
    for job in make_jobs(suite, runs):
        stage = job.look()
        print(f"{doing.get(stage, stage):10} {job.run.name}{f'  {job.reason}' if job.reason else ''}")
    return 0


def make_jobs(suite: Suite, runs: list[PlannedRun]) -> list[Job]:
    return [Job(planned, RunDirectory(suite.folder / planned.name)) for planned in runs]


def other_code(suite: Suite) -> list[str]:
    """Returns a warning if the current code is not the declared code."""
    if suite.declared is None or (commit := current_commit()) is None:
        return []
    declared = suite.declared["commit"]
    if files_that_differ(declared, commit) == ():
        return []
    return [f"declared for commit {declared[:7]}; this is {commit[:7]}, with other code: its runs will be marked"]
