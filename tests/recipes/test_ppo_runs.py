"""The PPO recipe from end to end at the size of preset=smoke: what a run leaves behind, resuming, other settings."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mcurl_torchrl import load_policy
from mcurl_torchrl.modules import PPOPolicy
from mcurl_torchrl.training import Checkpoints, RunDirectory, derive_seed, evaluate, export_policy, tables
from recipes import launch
from recipes.building import make_env
from recipes.ppo_mcurl import make_agent, make_replay
from recipes.suites.definition import read_suite
from tests.recipes import running
from tests.recipes.running import RECIPES, SMALL
from tests.recipes.test_ppo_configs import settings
from tests.recipes.test_resume import assert_same_run, states_of

OVERRIDES = ["preset=smoke", "env=RoadRunner", "checkpoint.keep_last=9", "evaluation.video=false", "threads=1"]
CATCH = ["env=gym", "env.id=tests.learning.catch:Catch-v0", "env.image_size=36", "evaluation.video=false"]
CATCH += ["total_env_steps=40", "evaluation.interval_env_steps=40"]


def train(folder: Path, *overrides: str) -> RunDirectory:
    return running.train(folder, *overrides, recipe="ppo_mcurl")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """One whole run of M-CURL on RoadRunner, from the command line."""
    folder = tmp_path_factory.mktemp("run") / "mcurl"
    command = [sys.executable, str(RECIPES / "ppo_mcurl.py"), *OVERRIDES, f"hydra.run.dir={folder}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return RunDirectory(folder)


def test_a_run_directory_explains_itself(run: RunDirectory):
    expected = {"config.yaml", "manifest.json", "metrics.csv", "eval.csv", "result.json", "curve.png", "checkpoints"}
    assert expected <= {path.name for path in run.path.iterdir()}
    assert run.read_manifest()["recipe"] == "ppo_mcurl"
    result = json.loads(run.result.read_text())
    assert result["finished"] and result["env_steps"] == 120 and "final_human_normalized" in result
    steps = [(row["step"], row["episode"]) for row in tables.read(run.eval.path)]
    assert steps == [(step, number) for step, count in ((0, 2), (80, 2), (120, 3)) for number in range(count)]
    metrics = tables.read(run.metrics.path)
    assert [row["step"] for row in metrics] == [40, 80, 120]
    wanted = [
        "loss_objective",
        "loss_critic",
        "loss_entropy",
        "loss_auxiliary",
        "entropy",
        "clip_fraction",
        "kl_approx",
    ]
    wanted += ["explained_variance", "contrastive_accuracy", "latent_rank", "latent_spread", "gradient_norm"]
    wanted += ["gradient_norm_encoder_auxiliary", "milliseconds_env", "milliseconds_sample", "milliseconds_update"]
    for name in wanted:
        assert math.isfinite(metrics[-1][name]), name
    assert [row["lr"] / 2.5e-4 for row in metrics] == pytest.approx([1, 2 / 3, 1 / 3])
    assert [row["clip_epsilon"] / 0.1 for row in metrics] == pytest.approx([1, 2 / 3, 1 / 3])


def test_the_replay_has_a_ring_for_each_environment(run: RunDirectory):
    cfg = settings(*OVERRIDES)
    buffer = make_replay(cfg, run.path)
    make_agent(cfg, make_env(cfg.env, training=True), buffer, torch.device("cpu"))  # with the views of its task
    (state,) = run.checkpoints.glob("replay/*120*.json")
    buffer.loads(run.checkpoints / "replay", state.stem)
    assert buffer.storage._storage.shape == (500, 2)
    assert buffer._writer.written.min() >= 60  # 60 steps in each, and the last observations of lives that ended
    slices = buffer.slices(num_slices=50, slice_len=8, keys=["pixels", "action"]).sample().reshape(50, 8)
    assert (slices["step"].diff(dim=1) == 1).all() and (slices["trajectory"].diff(dim=1) == 0).all()


def test_a_loaded_policy_acts_as_the_trained_one(run: RunDirectory, tmp_path: Path):
    cfg, policy = settings(*OVERRIDES), load_policy(run.path)
    assert isinstance(policy.network, PPOPolicy)
    rows = tables.read(run.eval.path)[-3:]
    played = evaluate(
        policy.network.sample,
        [make_env(cfg.env, training=False) for _ in range(2)],
        episodes=3,
        seed=derive_seed(cfg.seed, "evaluation", 120),
        sample=True,
    )
    assert (played.returns, played.lengths) == ([row["return"] for row in rows], [row["length"] for row in rows])
    stacks = torch.randint(256, (3, 4, 36, 36), dtype=torch.uint8)
    actions = torch.export.load(export_policy(policy, tmp_path / "policy.pt2")).module()(stacks)
    assert actions.shape == (3,) and torch.equal(actions, policy.network(stacks))


@pytest.mark.parametrize("step", [40, 80])
def test_a_resumed_run_is_the_same(run: RunDirectory, tmp_path: Path, step: int):
    folder = tmp_path / "run"
    shutil.copytree(run.path, folder)
    for saved in Checkpoints(folder / "checkpoints").list():
        if saved.step > step:
            saved.path.unlink()
    streams = states_of(folder)["streams"]["streams"]
    assert all(stream["observation"] is not None and len(stream["actions"]) for stream in streams)  # in mid-game
    resumed = train(folder, *OVERRIDES, f"resume='{folder}'")
    assert [entry["step"] for entry in resumed.read_manifest()["resumed"]] == [step]
    assert_same_run(resumed, run)


@pytest.mark.parametrize(
    "overrides",
    [
        ["algo=ppo"],
        ["algo=curl"],
        ["algo=spr"],
        *([f"algo={name}", "objective.slice_len=6"] for name in ("mcurl_actions", "mlr")),
    ],
    ids=lambda lines: lines[0],
)
def test_every_algorithm_runs(overrides: list[str], tmp_path: Path):
    last = tables.read(train(tmp_path / "run", *SMALL, *CATCH, *overrides).metrics.path)[-1]
    assert math.isfinite(last["loss_objective"])
    assert (last["loss_auxiliary"] == 0) == (overrides == ["algo=ppo"])


def test_continuous_actions_and_an_action_repeat(tmp_path: Path):
    dot = ["env=gym", "env.id=tests.recipes.tiny_envs:Dot-v0", "env.action_repeat=2"]
    dot += ["total_env_steps=80", "evaluation.interval_env_steps=80", "objective.slice_len=6", "evaluation.video=false"]
    directory = train(tmp_path / "run", *SMALL, *dot)
    last = tables.read(directory.metrics.path)[-1]
    assert (last["step"], last["env_steps"]) == (40, 80) and math.isfinite(last["entropy"])
    network = load_policy(directory.path).network
    assert network(torch.zeros(2, 12, 36, 36, dtype=torch.uint8)).shape == (2, 2)


@pytest.mark.parametrize(
    ("overrides", "answers"),
    [
        (["ppo.num_envs=7"], ["total_env_steps=120", "ppo.num_envs=7"]),
        (["ppo.num_envs=0"], ["ppo.num_envs=0"]),
        (["replay.capacity=30"], ["replay.capacity=30", "at least 40"]),
        (["ppo.rollout_len=4"], ["ppo.rollout_len=4", "at least 8"]),
        (["ppo.lr=0"], ["ppo.lr=0.0"]),
        (["ppo.clip_epsilon=-1"], ["ppo.clip_epsilon=-1.0"]),
        (["ppo.gae_lambda=2"], ["ppo.gae_lambda=2.0"]),
        (["ppo.minibatch_size=0"], ["ppo.minibatch_size=0"]),
        (["augmentation.views=flip"], ["augmentation.views='flip'", "curl_shift"]),
        (["ppo.architecture=impala"], ["ppo.architecture", "nature"]),
        (["env.image_size=30"], ["image_size=30"]),
        (
            ["env=gym", "env.id=tests.recipes.tiny_envs:Dot-v0", "evaluation.epsilon=0.01"],
            ["epsilon=0.01", "Categorical"],
        ),
    ],
    ids=lambda lines: lines[-1],
)
def test_settings_that_do_not_fit(overrides: list[str], answers: list[str], tmp_path: Path):
    with pytest.raises((SystemExit, launch.BadCommand)) as raised:
        train(tmp_path / "run", *SMALL, *overrides)
    for answer in answers:
        assert answer in str(raised.value)


def test_a_suite_takes_the_recipe(tmp_path: Path):
    file = tmp_path / "games.yaml"
    file.write_text("experiments: [{recipe: ppo_mcurl, envs: [Pong, Breakout], algos: [ppo, mcurl], seeds: [1, 2]}]")
    names = [run.name for run in read_suite(file, {}).runs()]
    assert len(names) == 8 and names[0] == "ppo_mcurl/Pong/ppo-seed1"
