"""The Rainbow recipe from end to end at the size of preset=smoke: each algorithm, what a run leaves behind."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from mcurl_torchrl import load_policy, make_atari_env
from mcurl_torchrl.training import (
    EpisodeStream,
    RunDirectory,
    derive_seed,
    evaluate,
    export_policy,
    human_normalized_score,
    tables,
)
from recipes import launch
from recipes.building import make_env
from recipes.rainbow_mcurl import make_agent, make_replay
from recipes.schema import RainbowRecipeConfig, SACRecipeConfig
from tests.recipes import running
from tests.recipes.running import HIDING, RECIPES, SMALL
from tests.recipes.test_rainbow_configs import ALGOS, settings
from tests.videos import read_video
from tests.warm_start import run_python

CATCH = ["env=gym", "env.id=tests.learning.catch:Catch-v0", "env.num_frames=2", "objective.slice_len=6"]


def train(folder: Path, *overrides: str) -> RunDirectory:
    return running.train(folder, *overrides, recipe="rainbow_mcurl")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """One whole run of M-CURL on RoadRunner with everything on."""
    return train(tmp_path_factory.mktemp("run") / "mcurl", "preset=smoke", "env=RoadRunner")


# -- what a run leaves behind ------------------------------------------------------------------------------------------


def test_a_run_directory_explains_itself(run: RunDirectory):
    there = {path.name for path in run.path.iterdir()}
    expected = {"config.yaml", "manifest.json", "metrics.csv", "eval.csv", "result.json", "curve.png", "run.html"}
    assert expected | {"videos", "checkpoints", "tensorboard"} <= there
    assert run.read_manifest()["recipe"] == "rainbow_mcurl"


def test_the_result_has_both_scores_raw_and_human_normalised(run: RunDirectory):
    result = json.loads(run.result.read_text())
    means = {}
    for row in tables.read(run.eval.path):
        means.setdefault(row["step"], []).append(row["return"])
    means = {step: sum(returns) / len(returns) for step, returns in means.items()}
    assert result["finished"] and result["env_steps"] == 120
    assert result["final_return"] == pytest.approx(means[120])
    assert result["best_return"] == max(mean for env_steps, mean in means.items() if env_steps > 0)
    assert (result["evaluation_episodes"], result["final_episodes"]) == (2, 3)
    for which in ("final", "best"):
        expected = human_normalized_score(result[f"{which}_return"], random=11.5, human=7845.0)
        assert result[f"{which}_human_normalized"] == pytest.approx(expected)


def test_the_tables(run: RunDirectory):
    steps = [(row["step"], row["env_steps"], row["episode"]) for row in tables.read(run.eval.path)]
    assert steps == [(s, s, n) for s, count in ((0, 2), (60, 2), (120, 3)) for n in range(count)]
    metrics = tables.read(run.metrics.path)
    assert [row["step"] for row in metrics] == list(range(10, 121, 10))
    wanted = ["loss_value", "loss_auxiliary", "q_mean", "q_target_mean", "td_error", "priority_correction", "epsilon"]
    wanted += ["contrastive_accuracy", "contrastive_accuracy_zeroed", "masked_fraction", "latent_rank", "latent_spread"]
    wanted += ["gradient_norm", "gradient_norm_encoder_clipped", "milliseconds_update", "milliseconds_env", "seconds"]
    wanted += ["episode_return"]
    for name in wanted:
        assert math.isfinite(metrics[-1][name]), name
    assert metrics[2]["loss_value"] is None and metrics[3]["loss_value"] is not None  # the first update is at step 40


def test_the_videos_show_the_game(run: RunDirectory):
    videos = sorted(path.name for path in run.videos.iterdir())
    assert videos == ["env_steps_0.mp4", "env_steps_120.mp4", "env_steps_60.mp4"]
    frames = read_video(run.videos / "env_steps_120.mp4")
    assert len(frames) == tables.read(run.eval.path)[-3]["length"]
    assert frames.float().std() > 5 and (frames[0] != frames[-1]).any()


def test_a_loaded_policy_acts_as_the_trained_one(run: RunDirectory):
    cfg = settings("preset=smoke", "env=RoadRunner")
    policy = load_policy(run.path)
    assert {name.split(".")[2] for name, _ in policy.named_parameters()} == {"encoder", "head"}
    expected = [row["return"] for row in tables.read(run.eval.path)[-3:]]
    lengths = [row["length"] for row in tables.read(run.eval.path)[-3:]]
    shared = {"episodes": 3, "seed": derive_seed(cfg.seed, "evaluation", 120), "epsilon": cfg.evaluation.epsilon}
    stacked = evaluate(policy.network, [make_env(cfg.env, training=False) for _ in range(2)], **shared)
    assert (stacked.returns, stacked.lengths) == (expected, lengths)

    # And on single raw frames, of which it makes the same stacks; zeros stand before a game's first ones.
    seen: list[torch.Tensor] = []
    policy.network.register_forward_pre_hook(lambda network, inputs: seen.append(inputs[0].clone()))
    evaluate(policy.network, make_env(cfg.env, training=False), **shared)
    stacks, seen[:] = torch.cat(seen), []
    single = make_atari_env("RoadRunner", training=False, num_frames=1, image_size=36, max_emulator_frames=400)
    raw = evaluate(
        lambda frames: policy(frames[0])[None], single, **shared, on_episode=lambda count, score: policy.reset()
    )
    assert (raw.returns, raw.lengths) == (expected, lengths)
    assert torch.equal(torch.cat(seen), stacks)


def test_an_exported_policy_needs_no_package(run: RunDirectory, tmp_path: Path):
    policy = load_policy(run.path, which="best")
    file = export_policy(policy, tmp_path / "policy.pt2")
    stacks = torch.randint(256, (3, 4, 36, 36), dtype=torch.uint8)
    actions = torch.export.load(file).module()(stacks)
    assert actions.shape == (3,) and torch.equal(actions, policy.network(stacks))


def test_evaluating_from_the_command_line(run: RunDirectory, tmp_path: Path):
    settings = [f"run={run.path}", "episodes=3", "num_envs=2", "seed=5", f"hydra.run.dir={tmp_path}"]
    done = run_python(RECIPES / "evaluate.py", *settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert len(scores["returns"]) == 3 and f"mean return {scores['mean']:,.1f}" in done.stdout
    assert scores["epsilon"] == 0.001
    assert len(read_video(tmp_path / "episode.mp4")) == scores["lengths"][0]


# -- every algorithm, every Rainbow ------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ALGOS)
def test_every_algorithm_runs(algo: str, tmp_path: Path):
    directory = train(tmp_path / "run", *SMALL, "env=Pong", f"algo={algo}", "total_env_steps=60")
    last = tables.read(directory.metrics.path)[-1]
    assert math.isfinite(last["loss_value"])
    assert (last["loss_auxiliary"] == 0) == (algo in ("rad", "rainbow"))
    assert ("contrastive_accuracy_zeroed" in last) == (algo in HIDING)
    load_policy(directory.path)


@pytest.mark.parametrize(
    "overrides",
    [
        ["reference=dopamine"],
        ["reference=otrainbow", "rainbow.first_update_agent_steps=40"],
        ["rainbow.loss=expected"],
        ["augmentation=none", "objective.projection=linear"],
        ["augmentation=shift_intensity"],
        ["replay.memmap=true"],
    ],
    ids=lambda lines: lines[0],
)
def test_other_settings_run(overrides: list[str], tmp_path: Path):
    directory = train(tmp_path / "run", *SMALL, *CATCH, *overrides, "total_env_steps=60")
    assert math.isfinite(tables.read(directory.metrics.path)[-1]["loss_value"])
    settings_of_policy = load_policy(directory.path).network.settings
    if "reference=otrainbow" in overrides:
        assert not settings_of_policy["noisy"] and settings_of_policy["architecture"] == "nature"


@pytest.mark.parametrize("algo", ALGOS)
def test_which_parameters_learn(algo: str, tmp_path: Path):
    """All of the policy and of the contrastive loss, once; nothing of a momentum copy or a target."""
    cfg = settings("preset=smoke", f"algo={algo}")
    agent = make_agent(cfg, make_env(cfg.env, training=True), make_replay(cfg, tmp_path), torch.device("cpu"))
    policy, value, optimizer, schedule = agent.policy, agent.value, agent.optimizer, agent.schedule
    contrastive, own = getattr(agent.task, "loss_module", None), agent.task.own_parameters()
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert len(trained) == len(set(trained)) and set(policy.parameters()) <= set(trained)
    assert all(parameter.requires_grad for parameter in trained)
    assert set(value.parameters()) == set(policy.parameters())
    if contrastive is not None:
        assert set(contrastive.parameters()) | set(policy.parameters()) == set(trained)
        momentum = contrastive.target_encoder_network_params.values(True, True)
        assert not any(copy.requires_grad for copy in momentum)
    assert set(trained) == {*policy.parameters(), *own}
    assert (schedule is not None) == (algo in HIDING)
    assert len(optimizer.param_groups) == (2 if own else 1)


def test_rainbow_sees_plain_frames_and_the_views_are_augmented(tmp_path: Path):
    cfg = settings("preset=smoke", "env=RoadRunner", "algo=curl", "rainbow.batch_size=32")
    env, buffer = make_env(cfg.env, training=True), make_replay(cfg, tmp_path)
    make_agent(cfg, env, buffer, torch.device("cpu"))  # its task adds the views
    stream = EpisodeStream(env, seed=1)
    steps = [stream.step(lambda observation: env.action_spec.rand()) for _ in range(100)]
    for step in steps:
        buffer.add(step)
    shown = {step["pixels"].numpy().tobytes() for step in steps}
    batch = buffer.sample()
    assert all(stack.numpy().tobytes() in shown for stack in batch["pixels"])
    views = batch["mcurl", "query_pixels"], batch["mcurl", "key_pixels"]
    assert views[0].shape == views[1].shape == batch["pixels"].shape
    assert (views[0] != views[1]).flatten(1).any(1).float().mean() > 0.5


def test_rewards_are_clipped_in_training_only():
    cfg = settings("env=gym", "env.id=tests.recipes.tiny_envs:Pay-v0", "env.clip_rewards=true", "env.image_size=36")
    for training, reward in ((True, 1.0), (False, 5.0)):
        env = make_env(cfg.env, training=training)
        assert env.rollout(3)["next", "reward"].unique().tolist() == [reward]


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "answers"),
    [
        (["rainbow.loss=quantile"], ["rainbow.loss", "quantile", "categorical", "expected"]),
        (["rainbow.loss=expected", "rainbow.priorities=kl"], ["rainbow.priorities=kl needs rainbow.loss=categorical"]),
        (["evaluation.sample=true"], ["evaluation.sample=true is for SAC and PPO", "evaluation.epsilon=0.001"]),
        (["objective.projection=mlp"], ["objective.projection", "mlp", "linear", "curl"]),
        (["augmentation.batch=flip"], ["augmentation.batch='flip'", "curl_shift"]),
        (["augmentation=crop"], ["augmentation.batch=crop is for SAC", "use shift"]),
        (["augmentation.views_intensity=-1"], ["augmentation.views_intensity=-1.0", "at least 0"]),
        (["algo=curl", "objective.views=half"], ["objective.views='half'", "slices"]),
        (["objective.coeff=-1"], ["objective.coeff=-1;", "at least 0"]),
        (["objective.coeff=nan"], ["objective.coeff=nan", "finite"]),
        (["rainbow.max_gradient_norm=0"], ["rainbow.max_gradient_norm=0.0", "above 0"]),
        (["objective.tau=2"], ["objective.tau=2;", "at most 1"]),
        (["objective.mask_ratio=0"], ["objective.mask_ratio=0;", "above 0"]),
        (["rainbow.lr=-1"], ["rainbow.lr=-1.0"]),
        (["rainbow.priority_exponent=-1"], ["rainbow.priority_exponent=-1.0"]),
        (["rainbow.value_bounds=[1,-1]"], ["rainbow.value_bounds=(1.0, -1.0)"]),
        (["rainbow.num_atoms=1"], ["rainbow.num_atoms=1", "at least 2"]),
        (["rainbow.noisy=false"], ["rainbow.epsilon_end=0", "noisy=false", "explore"]),
        (["evaluation.epsilon=2"], ["evaluation.epsilon=2"]),
        (["objective.slice_len=50"], ["at least 50", "rainbow.first_update_agent_steps=40"]),
        (["rainbow.n_step=0"], ["rainbow.n_step=0"]),
        (["rainbow.epsilon_begin=2"], ["rainbow.epsilon_begin=2"]),
        (["rainbow.first_update_agent_steps=4"], ["rainbow.first_update_agent_steps=4", "at least 8"]),
        (["rainbow.n_step=20", "rainbow.first_update_agent_steps=20"], ["agent_steps=20", "at least 21"]),
        (["rainbow.first_update_agent_steps=500"], ["rainbow.first_update_agent_steps=500", "total_env_steps=120"]),
        (["evaluation.num_envs=0"], ["evaluation.num_envs=0"]),
        (["evaluation.final_episodes=0"], ["evaluation.final_episodes=0"]),
        (["env.image_size=20"], ["image_size=20", "25"]),
        (["env=gym", "env.id=tests.recipes.tiny_envs:Dot-v0"], ["discrete actions", "sac_mcurl.py"]),
        (["env=cartpole-swingup", "total_env_steps=960"], ["discrete actions", "recipes/sac_mcurl.py"]),
        (["env=atari", "env.game=MsPackman"], ["MsPackman", "MsPacman"]),
    ],
    ids=lambda lines: lines[-1],
)
def test_settings_that_do_not_fit(overrides: list[str], answers: list[str], tmp_path: Path):
    with pytest.raises((SystemExit, launch.BadCommand)) as raised:
        train(tmp_path / "run", *SMALL, *overrides)
    for answer in answers:
        assert answer in str(raised.value)


def test_settings_that_do_not_fit_together_leave_no_folder(tmp_path: Path):
    for setting in ("rainbow.first_update_agent_steps=500", "collector.num_workers=2", "augmentation=crop"):
        with pytest.raises(launch.BadCommand):
            train(tmp_path / "run", *SMALL, setting)
        assert not (tmp_path / "run").exists()


def test_a_run_of_another_recipe_is_not_resumed(run: RunDirectory):
    with pytest.raises(launch.BadCommand, match=r"a run of recipes/rainbow_mcurl\.py, not of recipes/sac_mcurl\.py"):
        launch.prepare([f"resume={run.path}"], SACRecipeConfig, launch.config_folder("sac_mcurl"))
    launch.prepare([f"resume={run.path}"], RainbowRecipeConfig, launch.config_folder("rainbow_mcurl"))


def test_other_returns_are_refused_on_resuming(tmp_path: Path):
    folder = tmp_path / "run"
    train(folder, *SMALL, *CATCH, "total_env_steps=60")
    more = ["total_env_steps=90", "rainbow.value_bounds=[-20,20]", f"resume='{folder}'", "resume_changed=true"]
    with pytest.raises(SystemExit, match="saved with returns of -10 to 10 in 51 atoms; this one has -20 to 20"):
        train(folder, *SMALL, *CATCH, *more)
    assert "-10" in (folder / "config.yaml").read_text()  # and the run is as it was
