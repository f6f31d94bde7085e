"""The SAC recipe from end to end at the size of preset=smoke: each algorithm, each task, what a run leaves behind."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mcurl_torchrl import load_policy
from mcurl_torchrl.training import (
    Checkpoints,
    EpisodeStream,
    RunDirectory,
    derive_seed,
    evaluate,
    export_policy,
    tables,
)
from recipes.building import make_env
from recipes.sac_mcurl import make_agent, make_replay
from tests.recipes.running import HIDING, RECIPES, SMALL, settings, train
from tests.recipes.test_sac_configs import ALGOS, TASKS
from tests.videos import read_video
from tests.warm_start import run_python

DOT = ["env=gym", "env.id=tests.recipes.tiny_envs:Dot-v0"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """One whole run of M-CURL on cartpole-swingup with everything on."""
    return train(tmp_path_factory.mktemp("run") / "mcurl", "preset=smoke")


# -- what a run leaves behind ------------------------------------------------------------------------------------------


def test_a_run_directory_explains_itself(run: RunDirectory):
    there = {path.name for path in run.path.iterdir()}
    expected = {"config.yaml", "manifest.json", "metrics.csv", "eval.csv", "result.json", "curve.png", "run.html"}
    assert expected | {"videos", "checkpoints", "tensorboard"} <= there
    manifest = run.read_manifest()
    assert manifest["overrides"] == ["preset=smoke"] and manifest["versions"]["torchrl"]
    result = json.loads(run.result.read_text())
    assert result["finished"] and result["env_steps"] == 480
    assert result["best_return"] >= result["final_return"] > 0


def test_the_tables(run: RunDirectory):
    evaluations = tables.read(run.eval.path)
    steps = [(row["step"], row["env_steps"], row["length"]) for row in evaluations]
    assert steps == [(0, 0, 125), (30, 240, 125), (60, 480, 125)]
    metrics = tables.read(run.metrics.path)
    assert [row["step"] for row in metrics] == [10, 20, 30, 40, 50, 60]
    wanted = ["loss_qvalue", "loss_actor", "loss_alpha", "loss_auxiliary", "alpha", "entropy", "q_mean", "td_error"]
    wanted += ["contrastive_accuracy", "contrastive_accuracy_zeroed", "masked_fraction", "latent_rank", "latent_spread"]
    wanted += ["gradient_norm_critic", "gradient_norm_encoder", "gradient_norm_actor"]
    wanted += ["gradient_norm_encoder_auxiliary", "milliseconds_update", "milliseconds_env", "seconds"]
    for name in wanted:
        assert math.isfinite(metrics[-1][name]), name
    assert metrics[0]["loss_qvalue"] is None  # random actions first
    assert "episode_return" not in metrics[-1]  # no episode has ended yet


def test_the_checkpoints_are_the_last_two_and_the_best(run: RunDirectory):
    checkpoints = Checkpoints(run.checkpoints)
    returns = {row["step"]: row["return"] for row in tables.read(run.eval.path) if row["step"] > 0}  # once trained
    assert {found.step for found in checkpoints.list()} == {40, 60} | {max(returns, key=returns.get)}
    assert checkpoints.best().score == max(returns.values())


def test_the_videos_show_the_episode(run: RunDirectory):
    videos = sorted(path.name for path in run.videos.iterdir())
    assert videos == ["env_steps_0.mp4", "env_steps_240.mp4", "env_steps_480.mp4"]
    frames = read_video(run.videos / videos[-1])
    assert len(frames) == 125 and frames.float().std() > 5


def test_a_loaded_policy_acts_as_the_trained_one(run: RunDirectory):
    cfg = settings("preset=smoke")
    policy = load_policy(run.path)
    assert not any("context" in name for name, _ in policy.named_parameters())
    # The last evaluation again, once on stacks and once on raw frames.
    expected = tables.read(run.eval.path)[-1]["return"]
    seed = derive_seed(cfg.seed, "evaluation", 60)
    stacked = evaluate(policy.network, make_env(cfg.env, training=True), episodes=1, seed=seed)
    assert stacked.returns == [expected]

    single = settings("preset=smoke", "env.num_frames=1")
    policy.reset()
    raw = evaluate(lambda frames: policy(frames[0])[None], make_env(single.env, training=False), episodes=1, seed=seed)
    assert raw.returns == [expected]


def test_an_exported_policy_needs_no_package(run: RunDirectory, tmp_path: Path):
    policy = load_policy(run.path, which="best")
    file = export_policy(policy, tmp_path / "policy.pt2")
    stacks = torch.randint(256, (3, 9, 36, 36), dtype=torch.uint8)
    torch.save({"stacks": stacks, "actions": policy.network(stacks).detach()}, tmp_path / "expected.pt")
    program = f"""
import sys, torch
class Refuse:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("mcurl_torchrl", "torchrl", "tensordict"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
policy = torch.export.load({str(file)!r}).module()
expected = torch.load({str(tmp_path / "expected.pt")!r})
torch.testing.assert_close(policy(expected["stacks"]), expected["actions"])
torch.testing.assert_close(policy(expected["stacks"][:1]), expected["actions"][:1])
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


def test_evaluating_from_the_command_line(run: RunDirectory, tmp_path: Path):
    command = [sys.executable, str(RECIPES / "evaluate.py"), f"run={run.path}", "episodes=2", "which=60", "seed=5"]
    done = subprocess.run([*command, f"hydra.run.dir={tmp_path}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert len(scores["returns"]) == 2 and f"mean return {scores['mean']:,.1f}" in done.stdout
    assert len(read_video(tmp_path / "episode.mp4")) == scores["lengths"][0]


# -- every algorithm, every task ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ALGOS)
def test_every_algorithm_runs(algo: str, tmp_path: Path):
    directory = train(tmp_path / "run", *SMALL, f"algo={algo}", "total_env_steps=240", "evaluation.video=false")
    last = tables.read(directory.metrics.path)[-1]
    assert math.isfinite(last["loss_qvalue"])
    assert (last["loss_auxiliary"] == 0) == (algo in ("rad", "sac", "state_sac"))
    assert ("contrastive_accuracy_zeroed" in last) == (algo in HIDING)
    load_policy(directory.path)


@pytest.mark.parametrize("reference", ["code", "paper"])
def test_both_readings_run_on_a_gymnasium_environment(reference: str, tmp_path: Path):
    directory = train(tmp_path / "run", *SMALL, *DOT, f"reference={reference}", "objective.num_slices=2")
    assert json.loads(directory.result.read_text())["env_steps"] == 60


@pytest.mark.parametrize("task", TASKS)
def test_every_task_runs(task: str):
    cfg = settings(f"env={task}", "preset=smoke")
    env, buffer = make_env(cfg.env, training=True), make_replay(cfg, Path("unused"))
    agent = make_agent(cfg, env, buffer, torch.device("cpu"))
    stream = EpisodeStream(env, seed=1)
    for _ in range(12):
        buffer.add(stream.step(lambda observation: agent.policy.sample(observation).detach()))
    batch = buffer.sample()
    metrics = agent.update(batch, agent.task.sample(batch), measure=True)
    assert all(torch.isfinite(value).all() for value in metrics.values())


@pytest.mark.slow
def test_sweeps(tmp_path: Path):
    sweep = ["-m", "seed=1,2", *SMALL, *DOT, f"hydra.sweep.dir={tmp_path}", "algo=rad"]
    environment = {**os.environ, "PYTHONPATH": str(RECIPES.parent)}
    done = run_python(RECIPES / "sac_mcurl.py", *sweep, cwd=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    results = sorted(tmp_path.glob("*/result.json"))
    assert len(results) == 2
    one, two = (json.loads(file.read_text()) for file in results)
    assert one["final_return"] != two["final_return"]


# -- gradients and random numbers --------------------------------------------------------------------------------------


def test_evaluation_leaves_no_trace():
    cfg = settings("preset=smoke")
    env, evaluation_env = make_env(cfg.env, training=True), make_env(cfg.env, training=True)
    sac = make_agent(cfg, env, make_replay(cfg, Path("unused")), torch.device("cpu")).losses
    stream, undisturbed = (EpisodeStream(made, seed=3) for made in (env, make_env(cfg.env, training=True)))

    def still(observation: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1)

    def states() -> tuple:
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()

    for _ in range(3):
        stream.step(still)
        undisturbed.step(still)
    before = states()
    first = evaluate(sac.policy, evaluation_env, episodes=2, seed=9)
    assert states() == before
    assert evaluate(sac.policy, evaluation_env, episodes=2, seed=9).returns == first.returns
    assert first.returns[0] != first.returns[1]
    for _ in range(3):
        assert torch.equal(stream.step(still)["next", "pixels"], undisturbed.step(still)["next", "pixels"])


def test_the_actor_loss_never_reaches_the_convolutions():
    cfg = settings("preset=smoke", *DOT)
    env, buffer = make_env(cfg.env, training=True), make_replay(cfg, Path("unused"))
    agent = make_agent(cfg, env, buffer, torch.device("cpu"))
    sac = agent.losses
    stream = EpisodeStream(env, seed=1)
    for _ in range(30):
        buffer.add(stream.step(lambda observation: env.action_spec.rand()))
    batch = buffer.sample()

    def moved_by(loss: torch.Tensor) -> set[str]:
        sac.zero_grad(set_to_none=True)
        loss.backward()
        named = [(name, part) for name, part in sac.named_parameters() if part.grad is not None and part.grad.any()]
        return {".".join(name.split(".")[:3]) for name, _ in named}

    critic = moved_by(sac.critic_loss(batch)["loss_qvalue"])
    assert {"policy.encoder.convs", "policy.encoder.linear"} <= critic
    assert not any("projection" in name or "head" in name or "target" in name for name in critic)
    actor = moved_by(sac.actor_loss(batch)["loss_actor"])
    assert not any("encoder" in name or "qvalue" in name for name in actor)
    assert {"policy.projection.0", "policy.head.layers"} <= actor
    assert moved_by(agent.task.loss()) == {
        "policy.encoder.convs",
        "policy.encoder.linear",
        "policy.encoder.norm",
    }


def test_the_manifest_names_the_threads_that_a_run_was_given(tmp_path: Path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run = train(tmp_path / "run", *SMALL, "algo=state_sac", "threads=1")
        assert run.read_manifest()["torch_threads"] == 1
    finally:
        torch.set_num_threads(before)
