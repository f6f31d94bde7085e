"""Breaks runs at random points: ``python -m tests.faults.many_faults FAULT RECIPE COUNT SEED FOLDER OVERRIDES...``.

FAULT is ``kill`` (SIGKILL at a random call), ``flip`` (a random bit of a random file of a stopped run) or ``fill`` (no
room on the disk from a random call on). Each time the same command, with resume=auto, goes on. The run has to end with
the same bits as one that nothing happened to, or with a refusal. Prints how often each outcome came, as JSON.
"""

from __future__ import annotations

import collections
import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from mcurl_torchrl.training import RunDirectory
from recipes.command_line import BadCommand
from tests.faults.stopping import TRAINING, press
from tests.recipes.faulty_envs import Faulty
from tests.recipes.running import results, train
from tests.recipes.test_resume import assert_same, states_of

DONE, REFUSED, BROKEN = 0, 1, 2


class Runs:
    """Trains in forked processes, which need not import anything again."""

    def __init__(self, recipe: str, overrides: list[str], folder: Path) -> None:
        self.recipe, self.overrides, self.folder = recipe, overrides, folder
        self.whole = folder / "whole"
        self.calls = folder / "calls"
        assert self.attempt(self.whole, self._count_calls) == DONE, self.said()
        self.total = int(self.calls.read_text())

    def attempt(self, run: Path, before: Callable[[], None] = lambda: None) -> int:
        """Starts or continues a run in a new process; returns how it ended."""
        reading, writing = os.pipe()  # not a file: that would be without room as well
        child = os.fork()
        if child:
            os.close(writing)
            with open(reading) as said:
                self.said_last = said.read()
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        code = BROKEN
        try:
            for output in (1, 2):
                os.dup2(writing, output)
            os.close(writing)
            torch.set_num_threads(1)
            before()
            try:
                train(run, *self.overrides, "resume=auto", recipe=self.recipe)
                code = DONE
            except (SystemExit, BadCommand, OSError) as ended:  # all three end a command with a sentence
                print(ended, flush=True)
                code = REFUSED
            except BaseException:
                traceback.print_exc()
            finally:
                sys.setprofile(None)
                if not self.calls.exists():
                    self.calls.write_text(str(self.seen))
        finally:
            os._exit(code)

    def said(self) -> str:
        return self.said_last

    def _count_calls(self) -> None:
        self.seen = 0

        def count(frame, event: str, _) -> None:
            self.seen += event == "call" and "mcurl_torchrl" in frame.f_code.co_filename

        sys.setprofile(count)

    def at_a_random_call(self, act: Callable[[], None]) -> Callable[[], None]:
        """Makes a function that lets ``act`` be called later, before a random call of the package's code."""
        number = random.randrange(self.total)

        def arm() -> None:
            left = number

            def count(frame, event: str, _) -> None:
                nonlocal left
                if event == "call" and "mcurl_torchrl" in frame.f_code.co_filename:
                    left -= 1
                    if left == 0:
                        sys.setprofile(None)
                        act()

            sys.setprofile(count)

        return arm

    def assert_same_state(self, run: Path) -> None:
        assert_same(states_of(run), states_of(self.whole), "state")

    def assert_same(self, run: Path) -> None:
        assert_same(results(RunDirectory(run)), results(RunDirectory(self.whole)), "results")
        self.assert_same_state(run)


def kill(runs: Runs, count: int, outcomes: collections.Counter) -> None:
    while outcomes["killed"] < count:
        run = runs.folder / "run"
        while (ended := runs.attempt(run, runs.at_a_random_call(lambda: os.kill(os.getpid(), signal.SIGKILL)))) != DONE:
            assert ended == -signal.SIGKILL, runs.said()
            outcomes["killed"] += 1
        runs.assert_same(run)
        outcomes["runs with the same bits"] += 1
        shutil.rmtree(run)


def flip(runs: Runs, count: int, outcomes: collections.Counter) -> None:
    stopped, run = runs.folder / "stopped", runs.folder / "run"

    def stop_later() -> None:
        Faulty.fault = press("SIGTERM", TRAINING, 25)

    assert runs.attempt(stopped, stop_later) == REFUSED, runs.said()
    for _ in range(count):
        shutil.copytree(stopped, run)
        file = random.choice(sorted(path for path in run.rglob("*") if path.is_file() and path.stat().st_size))
        content = bytearray(file.read_bytes())
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        file.write_bytes(content)
        ended = runs.attempt(run)
        where = f"{file.relative_to(run)}: {runs.said()}"
        if ended == REFUSED:
            assert "Traceback" not in runs.said(), where
            outcomes["refused"] += 1
        else:
            assert ended == DONE, where
            runs.assert_same_state(run)
            if RunDirectory(run).read_manifest()["resumed"][-1].get("changed_tables"):
                assert "does not have the rows" in runs.said(), where
                outcomes["noticed"] += 1
            else:
                runs.assert_same(run)
                outcomes["same bits"] += 1
        shutil.rmtree(run)


def fill(runs: Runs, count: int, outcomes: collections.Counter) -> None:
    run = runs.folder / "run"
    for _ in range(count):
        size = random.randrange(20_000)
        ended = runs.attempt(
            run, runs.at_a_random_call(lambda size=size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
        )
        assert ended in (DONE, REFUSED), runs.said()
        outcomes["ended with a message" if ended == REFUSED else "ended"] += 1
        assert runs.attempt(run) == DONE, runs.said()
        runs.assert_same(run)
        outcomes["runs with the same bits"] += 1
        shutil.rmtree(run)


if __name__ == "__main__":
    fault, recipe, count, seed, folder, *overrides = sys.argv[1:]
    random.seed(int(seed))
    warnings.simplefilter("always")
    outcomes: collections.Counter = collections.Counter()
    {"kill": kill, "flip": flip, "fill": fill}[fault](Runs(recipe, overrides, Path(folder)), int(count), outcomes)
    print(json.dumps(outcomes))
