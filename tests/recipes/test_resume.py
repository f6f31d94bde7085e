"""A run that was killed and resumed is the same, bit for bit, as one that was not."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from mcurl_torchrl.training import Checkpoints, RunDirectory
from tests.recipes.running import RECIPES, SMALL, results, train
from tests.warm_start import run_python

# Both recipes evaluate after 0, 30 and 50 agent steps, and save after 20 and 40 as well.
SETTINGS = {
    "sac_mcurl": [
        *SMALL,
        *("total_env_steps=400", "evaluation.interval_env_steps=240"),
        "sac.critic_tau=0.4",  # a fast target allows the short interval of resets
    ],
    "rainbow_mcurl": [
        *SMALL,
        "env=RoadRunner",  # its first life is lost in the first evaluation, and before step 50
        "total_env_steps=50",
        "evaluation.interval_env_steps=30",
        "rainbow.first_update_agent_steps=20",
        "rainbow.target_interval_agent_steps=6",
    ],
}
# Networks are drawn anew once, after step 31 or 32.
SHARED = ["checkpoint.interval_agent_steps=20", "resets.interval_updates=12"]
SETTINGS = {recipe: [*lines, *SHARED] for recipe, lines in SETTINGS.items()}


@pytest.fixture(scope="module", params=SETTINGS)
def recipe(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def whole(recipe: str, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run that was not stopped."""
    torch.set_num_threads(1)
    return train(tmp_path_factory.mktemp("whole") / "run", *SETTINGS[recipe], recipe=recipe)


class Kept:
    """Keeps the state that it is given."""

    def load_state_dict(self, state: object) -> None:
        self.state = state


def states_of(folder: Path) -> dict[str, object]:
    """The states of the last checkpoint, without its times."""
    checkpoints = Checkpoints(folder / "checkpoints")
    parts = {name: Kept() for name in checkpoints.latest().states if name != "clock"}
    checkpoints.restore(components=parts, step=checkpoints.latest().step)
    return {name: part.state for name, part in parts.items()}


def resume(recipe: str, folder: Path) -> RunDirectory:
    return train(folder, *SETTINGS[recipe], f"resume='{folder}'", recipe=recipe)


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
    assert_same(states_of(ours.path), states_of(expected.path), "state")


def run_until_killed(recipe: str, where: str, step: int, folder: Path) -> int:
    place = [recipe, where, str(step), str(folder)]
    return run_python("-m", "tests.recipes.dying_run", *place, *SETTINGS[recipe], cwd=RECIPES.parent).returncode


@pytest.mark.parametrize(
    ("where", "step", "last_whole"),
    [
        pytest.param("step", 5, 0, marks=pytest.mark.slow),  # in the middle of the random steps
        ("step", 33, 30),  # between two checkpoints
        ("checkpoint", 40, 30),  # inside the writing of a checkpoint
        pytest.param("replay", 40, 30, marks=pytest.mark.slow),  # with the replay saved, and the checkpoint not yet
        # with the evaluation's rows written, and its score not yet saved
        pytest.param("evaluation", 50, 50, marks=pytest.mark.slow),
        pytest.param("row", 40, 30, marks=pytest.mark.slow),  # in the middle of logging
    ],
)
def test_killed_and_resumed(recipe: str, whole: RunDirectory, tmp_path: Path, where: str, step: int, last_whole: int):
    folder = tmp_path / "run"
    assert run_until_killed(recipe, where, step, folder) == -signal.SIGKILL
    assert Checkpoints(folder / "checkpoints").latest().step == last_whole
    resumed = resume(recipe, folder)
    assert [entry["step"] for entry in resumed.read_manifest()["resumed"]] == [last_whole]
    assert_same_run(resumed, whole)


@pytest.mark.parametrize("step", [pytest.param(37, marks=pytest.mark.slow), 48])
def test_terminated_and_resumed(recipe: str, whole: RunDirectory, tmp_path: Path, step: int):
    folder = tmp_path / "run"
    assert run_until_killed(recipe, "terminate", step, folder) == 128 + signal.SIGTERM
    assert Checkpoints(folder / "checkpoints").latest().step == step  # saved at once, in the middle of an episode
    if recipe == "rainbow_mcurl" and step == 48:
        stream = states_of(folder)["stream"]
        assert stream["episode"] > stream["first_episode"], (
            "no life was lost: a game goes on in no episode after another"
        )
    assert_same_run(resume(recipe, folder), whole)


def test_the_same_seed_gives_the_same_run(recipe: str, whole: RunDirectory, tmp_path: Path):
    assert_same_run(train(tmp_path / "run", *SETTINGS[recipe], recipe=recipe), whole)


@pytest.mark.slow
def test_another_seed_gives_another_run(recipe: str, whole: RunDirectory, tmp_path: Path):
    other = train(tmp_path / "run", *SETTINGS[recipe], "seed=2", recipe=recipe)
    assert results(other)["eval"] != results(whole)["eval"]
    assert results(other)["metrics"] != results(whole)["metrics"]
