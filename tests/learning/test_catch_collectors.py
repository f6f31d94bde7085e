"""Catch is learned, too, with several environments in one forward pass, in processes and in actors of Ray."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.learning.test_catch import SETTINGS, SOLVED
from tests.recipes.running import train

pytestmark = pytest.mark.slow
WORKERS = ["collector.num_workers=2", "collector.fragment_agent_steps=4"]  # weights at most 24 steps old
# With the 1800 steps of test_catch.py, eight environments came to 0.54 and two actors of Ray to 0.66 with this seed
# (two processes passed): all get twice the steps. Why they are slower was not looked into.
LONGER = ["total_env_steps=3600", "evaluation.interval_env_steps=3600"]


@pytest.fixture(autouse=True)
def _ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else actors get no processor on a busy machine
    yield
    import ray

    ray.shutdown()


@pytest.mark.parametrize(
    "collector",
    [
        ["collector.envs_per_worker=8"],
        ["collector.backend=process", *WORKERS],
        ["collector.backend=ray", *WORKERS],
    ],
    ids=["8 in one pass", "2 processes", "2 actors of Ray"],
)
def test_it_learns(collector: list[str], tmp_path: Path) -> None:
    directory = train(tmp_path / "run", *SETTINGS, *LONGER, *collector, "seed=1", recipe="rainbow_mcurl")
    assert json.loads(directory.result.read_text())["final_return"] >= SOLVED
