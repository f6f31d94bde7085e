"""Runs with two ranks: one directory, resumed bit for bit, stopped together, ended with an error message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mcurl_torchrl.training import Checkpoints, RunDirectory, TrainingRun
from tests import ranks_at_work as work
from tests.recipes.running import RECIPES, SMALL, results, train
from tests.recipes.test_resume import assert_same_run
from tests.two_ranks import on_ranks

# Both evaluate after 0, 30 and 50 agent steps, save after 20 and 40 as well, and draw networks anew once.
SHARED = [
    *("env=gym", "threads=1", "total_env_steps=50", "evaluation.interval_env_steps=30", "evaluation.episodes=2"),
    *("checkpoint.interval_agent_steps=20", "resets.interval_updates=12", "replay.capacity=200", "algo=mcurl"),
]
SETTINGS = {
    "sac_mcurl": [
        *SMALL,
        *SHARED,
        *("env.id=tests.recipes.faulty_envs:Faulty-v0", "sac.random_agent_steps=18"),
        "sac.critic_tau=0.4",  # a fast target allows the short interval of resets
    ],
    "rainbow_mcurl": [
        *SMALL,
        *SHARED,
        *("env.id=tests.learning.catch:Catch-v0", "env.num_frames=2", "env.image_size=25", "rainbow.n_step=2"),
        *("rainbow.first_update_agent_steps=20", "rainbow.target_interval_agent_steps=6", "rainbow.batch_size=8"),
        *("objective.num_slices=4", "objective.slice_len=6"),
    ],
}


def train_on_ranks(recipe: str, folder: Path, *more: str, **faults: Any) -> list[Any]:
    """Trains on two ranks, with faults on ``first`` or ``second``; returns how each ended."""
    found = {["first", "second"].index(name): fault for name, fault in faults.items()}
    return on_ranks(work.train_run, recipe, folder, [*SETTINGS[recipe], *more], found)


def resume_on_ranks(recipe: str, folder: Path) -> RunDirectory:
    assert train_on_ranks(recipe, folder, f"resume='{folder}'") == [0, 0]
    return RunDirectory(folder)


def last_step(folder: Path) -> int:
    return Checkpoints(folder / "checkpoints").latest().step


@pytest.fixture(scope="module", params=[pytest.param("sac_mcurl", marks=pytest.mark.slow), "rainbow_mcurl"])
def recipe(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def whole(recipe: str, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run with two ranks that was not stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert train_on_ranks(recipe, folder) == [0, 0]
    return RunDirectory(folder)


def test_one_directory_has_the_whole_run(whole: RunDirectory) -> None:
    assert whole.read_manifest()["ranks"] == 2
    assert sorted({int(row["step"]) for row in results(whole)["eval"]}) == [0, 30, 50]
    assert len(results(whole)["metrics"]) == 5  # every tenth step once, though both ranks get there
    saved = Checkpoints(whole.checkpoints).latest()
    assert saved.step == 50 and saved.info["ranks"] == 2 and "random_of_ranks" in saved.states


def test_a_signal_to_one_rank_stops_all_and_the_run_goes_on_bit_for_bit(
    recipe: str, whole: RunDirectory, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert train_on_ranks(recipe, folder, second=("terminate", 33)) == [128 + signal.SIGTERM] * 2
    assert last_step(folder) == 33
    assert_same_run(resume_on_ranks(recipe, folder), whole)


@pytest.mark.parametrize("recipe", ["rainbow_mcurl"], indirect=True, scope="module")
class TestFaults:
    @pytest.mark.slow
    def test_a_killed_rank_ends_the_run_with_a_sentence(self, recipe: str, whole: RunDirectory, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        said, code = train_on_ranks(recipe, folder, second=("step", 37))
        assert code == -signal.SIGKILL
        assert said.startswith("RankLost: another rank ended, or did not answer in time (")
        assert "to resume from the checkpoint of agent step 30:" in said
        assert_same_run(resume_on_ranks(recipe, folder), whole)

    @pytest.mark.slow
    def test_another_number_of_ranks_goes_on_and_says_so(self, recipe: str, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        with pytest.raises(SystemExit), pytest.MonkeyPatch.context() as patch:
            stop_at(patch, 25)
            train(folder, *SETTINGS[recipe], recipe=recipe)
        torch.set_num_threads(1)
        assert train_on_ranks(recipe, folder, f"resume='{folder}'", second=("terminate", 35))[0] == 143
        with pytest.warns(UserWarning, match="step 35 was saved by 2 rank.s., and 1 go on"):
            train(folder, *SETTINGS[recipe], f"resume='{folder}'", recipe=recipe)
        manifest = RunDirectory(folder).read_manifest()
        assert [(entry["step"], entry["ranks"]) for entry in manifest["resumed"]] == [(25, 2), (35, 1)]
        assert last_step(folder) == 50

    def test_ranks_that_drift_apart_are_stopped(self, recipe: str, tmp_path: Path) -> None:
        first, second = train_on_ranks(recipe, tmp_path / "run", second=work.drift)
        assert "RanksDiffer: at agent step 30 rank 1 has other " in first and "policy" in first
        assert "RanksDiffer" in second and last_step(tmp_path / "run") == 20

    def test_ranks_whose_replays_differ_are_stopped(self, recipe: str, tmp_path: Path) -> None:
        first, _ = train_on_ranks(recipe, tmp_path / "run", second=work.store_other_pictures)
        assert "rank 1 has other replay than rank 0" in first

    def test_a_batch_that_two_cannot_share_is_refused(self, recipe: str, tmp_path: Path) -> None:
        first, _ = train_on_ranks(recipe, tmp_path / "run", "rainbow.batch_size=7")
        assert "rainbow.batch_size=7 cannot be shared by 2 ranks" in first
        first, _ = train_on_ranks(recipe, tmp_path / "other", "objective.num_slices=3")
        assert "objective.num_slices=3 cannot be shared by 2 ranks" in first


@pytest.mark.parametrize("recipe", ["sac_mcurl"], indirect=True, scope="module")
def test_an_environment_that_fails_ends_all_ranks_and_the_step_before_is_saved(recipe: str, tmp_path: Path) -> None:
    first, second = train_on_ranks(recipe, tmp_path / "run", first=work.break_environment)
    assert "the joint is loose" in first and "to resume from the checkpoint of agent step 24:" in first
    assert "EnvironmentFailed" in second and "(rank 1 of 2)" in second
    assert last_step(tmp_path / "run") == 24


# -- by torchrun itself ------------------------------------------------------------------------------------------------


def torchrun(script: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*command, str(RECIPES / script), *words],
        cwd=RECIPES.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=900,
    )


def run_of_torchrun(folder: Path, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    pressing = "env.id=tests.recipes.faulty_envs:Pressing-v0"
    settings = [*SETTINGS["sac_mcurl"], pressing, "evaluation.interval_env_steps=1000", f"hydra.run.dir={folder}"]
    return torchrun("sac_mcurl.py", *settings, "sac.random_agent_steps=9", *more, **environment)


@pytest.mark.slow
def test_torchrun_trains_stops_and_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    stopped = run_of_torchrun(folder, PRESS="SIGTERM")
    assert stopped.returncode != 0
    assert "stopped by SIGTERM at agent step 15; to resume from the checkpoint of agent step 15:" in stopped.stderr
    assert f"torchrun --nproc-per-node=2 {RECIPES / 'sac_mcurl.py'} resume={folder}" in stopped.stderr
    assert "Traceback" not in stopped.stderr.partition("stopped by")[0]
    again = torchrun("sac_mcurl.py", f"resume={folder}", PRESS="SIGURG")  # which does nothing
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("finished: ") == 1 and last_step(folder) == 50


@pytest.mark.slow
def test_torchrun_and_a_rank_that_is_killed(tmp_path: Path) -> None:
    ended = run_of_torchrun(tmp_path / "run", PRESS="SIGKILL")
    assert ended.returncode != 0
    assert "RankLost: another rank ended, or did not answer in time (" in ended.stderr
    assert "(rank 1 of 2)" in ended.stderr


@pytest.mark.slow
def test_what_torchrun_cannot_start(tmp_path: Path) -> None:
    swept = torchrun("sac_mcurl.py", "-m", "seed=1,2", *SETTINGS["sac_mcurl"], f"hydra.sweep.dir={tmp_path}")
    assert swept.returncode != 0 and swept.stderr.count("sac_mcurl.py: torchrun starts the ranks of one run") == 1
    other = torchrun("ppo_mcurl.py", "env=gym", "env.id=tests.learning.catch:Catch-v0", "preset=smoke")
    assert other.returncode != 0 and other.stderr.count("ppo_mcurl.py: this script learns in one process; ") == 1
    wrong = torchrun("sac_mcurl.py", "sac.batchsize=3")
    assert wrong.returncode != 0 and wrong.stderr.count("there is no setting 'sac.batchsize'") == 1
    helped = torchrun("sac_mcurl.py", "--help")
    assert helped.returncode == 0 and helped.stdout.count("batch_size") == torchrun_less_help().count("batch_size")


def torchrun_less_help() -> str:
    command = [sys.executable, str(RECIPES / "sac_mcurl.py"), "--help"]
    return subprocess.run(command, capture_output=True, text=True, timeout=300).stdout


def stop_at(patch: pytest.MonkeyPatch, at: int) -> None:
    """Sends SIGTERM to this process at a step."""
    log_due = TrainingRun.log_due

    def look(run: TrainingRun, step: int) -> bool:
        if step == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return log_due(run, step)

    patch.setattr(TrainingRun, "log_due", look)
