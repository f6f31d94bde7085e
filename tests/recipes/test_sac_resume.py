"""A run that was killed and resumed is the same, bit for bit, as one that was not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mcurl_torchrl.training import Checkpoints, RunDirectory
from tests.recipes.running import RECIPES, SMALL, results, train

SETTINGS = [*SMALL, "total_env_steps=400", "evaluation.interval_env_steps=240", "checkpoint.interval_agent_steps=20"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run that nobody stopped: 50 agent steps, evaluations after 0, 30 and 50, checkpoints also after 20 and 40."""
    torch.set_num_threads(1)
    return train(tmp_path_factory.mktemp("whole") / "run", *SETTINGS)


def final_states(directory: RunDirectory) -> dict[str, object]:
    path = Checkpoints(directory.checkpoints).latest().path
    states = {file.parent.name: torch.load(file, weights_only=True) for file in path.rglob("state.pt")}
    return {name: state for name, state in states.items() if not name.endswith("-clock")}


def assert_same(ours, expected, where: str) -> None:
    assert type(ours) is type(expected), where
    if isinstance(expected, dict):
        assert list(ours) == list(expected), where
        for key in expected:
            assert_same(ours[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(ours) == len(expected), where
        for number, pair in enumerate(zip(ours, expected, strict=True)):
            assert_same(*pair, f"{where}.{number}")
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(ours, expected), where
    else:
        assert ours == expected, where


def assert_same_run(ours: RunDirectory, expected: RunDirectory) -> None:
    assert_same(results(ours), results(expected), "results")
    assert_same(final_states(ours), final_states(expected), "state")


def run_until_killed(folder: Path, where: str, step: int, *settings: str) -> int:
    command = [sys.executable, "-m", "tests.recipes.dying_run", where, str(step), str(folder), *settings]
    return subprocess.run(command, cwd=RECIPES.parent, capture_output=True, timeout=240).returncode


@pytest.mark.parametrize(
    ("where", "step", "last_whole"),
    [
        ("step", 5, 0),  # in the middle of the random steps
        ("step", 33, 30),  # between two checkpoints
        ("component", 40, 30),  # inside the writing of a checkpoint
        ("replay", 40, 30),  # with the replay saved, and the checkpoint not yet
        ("evaluation", 50, 40),  # with the evaluation's rows written, and nothing saved yet
        ("row", 40, 30),  # in the middle of logging
    ],
)
def test_killed_and_resumed(whole: RunDirectory, tmp_path: Path, where: str, step: int, last_whole: int):
    folder = tmp_path / "run"
    assert run_until_killed(folder, where, step, *SETTINGS) == -signal.SIGKILL
    assert Checkpoints(folder / "checkpoints").latest().step == last_whole
    resumed = train(folder, *SETTINGS, f"resume='{folder}'")
    assert [entry["step"] for entry in resumed.read_manifest()["resumed"]] == [last_whole]
    assert_same_run(resumed, whole)


def test_terminated_and_resumed(whole: RunDirectory, tmp_path: Path):
    folder = tmp_path / "run"
    assert run_until_killed(folder, "terminate", 37, *SETTINGS) == 128 + signal.SIGTERM
    assert Checkpoints(folder / "checkpoints").latest().step == 37  # saved at once, in the middle of an episode
    assert_same_run(train(folder, *SETTINGS, f"resume='{folder}'"), whole)


def test_the_same_seed_gives_the_same_run(whole: RunDirectory, tmp_path: Path):
    assert_same_run(train(tmp_path / "run", *SETTINGS), whole)


def test_another_seed_gives_another_run(whole: RunDirectory, tmp_path: Path):
    other = train(tmp_path / "run", *SETTINGS, "seed=2")
    assert results(other)["eval"] != results(whole)["eval"]
    assert results(other)["metrics"] != results(whole)["metrics"]
