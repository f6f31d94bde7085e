"""The SAC recipe's configs: all compose, say what is published, and refuse what is unknown."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path

import pytest
import torch
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ReadonlyConfigError

from recipes import launch, resuming
from recipes.building import make_env
from recipes.command_line import group_choices
from recipes.published_scores import published_scores
from recipes.sac_mcurl import make_agent, make_replay
from recipes.schema import SACRecipeConfig
from tests.envs.games import ATARI_100K_GAMES
from tests.recipes.running import settings

TASKS = [
    *(
        "ball_in_cup-catch",
        "cartpole-balance",
        "cartpole-balance_sparse",
        "cartpole-swingup",
        "cartpole-swingup_sparse",
    ),
    *("cheetah-run", "finger-spin", "finger-turn_easy", "finger-turn_hard", "hopper-hop", "hopper-stand"),
    *("pendulum-swingup", "reacher-easy", "reacher-hard", "walker-stand", "walker-walk"),
]
CONF = launch.config_folder("sac_mcurl")
ALGOS = ["curl", "mcurl", "mcurl_actions", "mlr", "rad", "sac", "seq_curl", "spr", "state_sac", "sym_curl"]


def options(group: str) -> list[str]:
    return group_choices(group, CONF)


def test_the_groups_hold_what_the_paper_has():
    assert options("env") == sorted([*TASKS, *ATARI_100K_GAMES, "dmc", "atari", "gym"])
    assert {"curl", "mcurl", "none", "seq_curl", "sym_curl"} <= set(options("objective"))
    assert set(ALGOS) <= set(options("algo"))
    assert options("preset") == ["cpu", "paper", "smoke"]
    assert options("reference") == ["code", "mlr", "paper"]


def check_composes(*chosen: str):
    cfg = settings(*chosen)
    OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    return cfg


def test_compositions_share_the_stored_configs_and_change_none():
    store = ConfigStore.instance()
    assert copy.deepcopy(store) is store
    before = OmegaConf.to_yaml(store.load("sac_schema.yaml").node)
    assert settings("seed=7", "sac.gamma=0.5").sac.gamma == 0.5
    assert OmegaConf.to_yaml(store.load("sac_schema.yaml").node) == before
    assert settings().sac.gamma == 0.99


@pytest.mark.parametrize("algo", ALGOS)
def test_an_algorithm_composes_with_each_preset_and_reference(algo):
    for group, names in (("preset", options("preset")), ("reference", options("reference"))):
        for name in names:
            assert check_composes(f"algo={algo}", f"{group}={name}").algo_name == algo


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGOS)
def test_every_combination_composes(algo):
    for preset, reference in itertools.product(options("preset"), options("reference")):
        assert check_composes(f"algo={algo}", f"preset={preset}", f"reference={reference}").algo_name == algo


@pytest.mark.parametrize("task", TASKS)
def test_a_task_has_its_published_settings(task):
    cfg = settings(f"env={task}")
    repeat = {"cartpole-swingup": 8, "finger-spin": 2, "walker-walk": 2}.get(task, 4)
    assert cfg.env.action_repeat == repeat
    assert cfg.sac.batch_size == (512 if task == "cheetah-run" else 128)
    assert cfg.sac.lr == (2e-4 if task == "cheetah-run" else 1e-3)
    assert cfg.objective.mask_ratio == (0.6 if task in ("finger-spin", "walker-walk") else 0.5)
    assert cfg.objective.warmup_updates == 24000 // repeat


@pytest.mark.parametrize("task", TASKS)
def test_presets_choose_the_camera(task):
    assert settings(f"env={task}").env.camera_id is None
    follows = settings(f"env={task}", "preset=cpu").env.camera_id
    assert follows == (1 if task.startswith("cartpole") else None)
    assert settings(f"env={task}", "preset=cpu", "env.camera_id=0").env.camera_id == 0


def test_the_defaults_are_the_published_settings():
    cfg = settings()
    assert (cfg.env.image_size, cfg.encoder.crop_size, cfg.env.num_frames) == (100, 84, 3)
    assert (cfg.encoder.num_layers, cfg.encoder.num_filters, cfg.encoder.feature_dim) == (4, 32, 50)
    assert (cfg.sac.hidden_dim, cfg.sac.gamma, cfg.replay.capacity) == (1024, 0.99, 100_000)
    assert (cfg.sac.alpha_lr, tuple(cfg.sac.alpha_betas), cfg.sac.alpha_init) == (1e-4, (0.5, 0.999), 0.1)
    assert (cfg.sac.critic_tau, cfg.sac.encoder_tau, cfg.sac.random_agent_steps) == (0.01, 0.05, 1000)
    assert (cfg.objective.num_slices, cfg.objective.slice_len, cfg.objective.dropout) == (16, 32, 0.1)
    assert (cfg.evaluation.interval_env_steps, cfg.evaluation.episodes) == (20_000, 10)
    assert cfg.env.shadows and cfg.env.multisampling


def test_the_paper_reading_differs_where_the_paper_does():
    code, paper = (OmegaConf.to_container(settings(f"reference={name}"), resolve=True) for name in ("code", "paper"))
    assert dict(line.split(": ", 1) for _, line in resuming.differences(code, paper)) == {
        "objective.dropout": "0.1 -> 0.0",
        "objective.negatives": "batch -> sequence",
        "objective.num_slices": "16 -> 8",
        "objective.reduction": "mean -> sum",
        "objective.scale_attention": "True -> False",
        "objective.warmup_initial_scale": "0.0005 -> 0.0",
        "objective.warmup_updates": "3000 -> 6000",
        "sac.actor_interval_updates": "2 -> 1",
        "sac.auxiliary_encoder_decays": "True -> False",
        "sac.auxiliary_encoder_lr_scale": "2.0 -> 1.0",
        "sac.lr": "0.001 -> 0.0001",
        "sac.target_interval_updates": "2 -> 1",
        "sac.update_order": "['critic', 'actor', 'targets', 'auxiliary'] -> "
        "['critic', 'actor', 'auxiliary', 'targets']",
    }


@pytest.mark.parametrize(
    "overrides",
    [
        [f"objective.mask_ratio={ratio}" for ratio in (0.1, 0.3, 0.5, 0.7, 0.9)],
        [f"objective.num_layers={layers}" for layers in (1, 2, 3, 4)],
        [f"objective.slice_len={length},objective.num_slices={512 // length}" for length in (16, 32, 64, 128, 256)],
    ],
    ids=["mask ratio", "layers", "T at constant T*B"],
)
def test_the_papers_ablations_are_plain_overrides(overrides):
    for pairs in overrides:
        assert launch.prepare(pairs.split(","), SACRecipeConfig, CONF) == pairs.split(",")
        settings(*pairs.split(","))


def test_a_config_knows_its_keys():
    cfg = settings()
    with pytest.raises(ConfigAttributeError, match="bach_size"):
        _ = cfg.sac.bach_size
    with pytest.raises((ConfigAttributeError, ReadonlyConfigError)):
        cfg.sac.batch_size = 3


@pytest.mark.parametrize(
    ("argument", "answers"),
    [
        ("env=cartpole-swingupp", ["env=cartpole-swingupp", "cartpole-swingup"]),
        ("env=walker", ["walker-walk", "walker-stand"]),
        ("env=dmc env.task=walker-walk", ["use env=walker-walk"]),
        ("algo=m-curl", ["mcurl"]),
        ("algo=zzz", ["curl, mcurl,", "rad, sac,", "seq_curl, spr, state_sac,"]),
        ("preset=gpu", ["cpu"]),
        ("reference=papers", ["paper"]),
        ("sac.bach_size=64", ["'sac.bach_size'", "sac.batch_size"]),
        ("batch_size=64", ["sac.batch_size"]),
        ("mask_ratio=0.3", ["objective.mask_ratio"]),
        ("sed=3", ["seed"]),
        ("+speed=3", ["speed"]),
        ("sac.lr.x=1", ["sac.lr"]),
        ("algo=mcurl,currl", ["curl"]),
    ],
)
def test_what_is_unknown_is_refused_with_what_is_close(argument, answers):
    with pytest.raises(launch.BadCommand) as raised:
        launch.prepare(["seed=2", *argument.split(" ")], SACRecipeConfig, CONF)
    for answer in answers:
        assert answer in str(raised.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["env=dmc", "env.task=humanoid-run"],
        ["-m", "seed=1,2,3", "algo=mcurl,sac"],
        ["logging.wandb={project: mcurl, mode: offline}"],
        ["+logging.mlflow.experiment=mcurl"],
        ["hydra.run.dir=somewhere", "sac.update_order=[critic,actor]"],
        ["--help"],
    ],
)
def test_what_is_known_is_passed_on(arguments):
    assert launch.prepare(list(arguments), SACRecipeConfig, CONF) == arguments


def test_a_command_that_cannot_be_read_is_refused():
    with pytest.raises(launch.BadCommand, match="seed"):
        launch.prepare(["seed"], SACRecipeConfig, CONF)


@pytest.mark.parametrize(("reference", "expected"), [("code", 2e-3 * 0.5), ("paper", 1e-4)])
def test_only_the_released_code_lets_the_encoders_contrastive_rate_fall(reference, expected):
    cfg = settings("preset=smoke", f"reference={reference}", "objective.warmup_updates=5")
    env = make_env(cfg.env, training=True)
    agent = make_agent(cfg, env, make_replay(cfg, Path("unused")), torch.device("cpu"))
    optimizers, schedules = agent.optimizers, agent.schedules
    for _ in range(20):  # four times the warm-up: sqrt(1 / 4)
        for optimizer in optimizers.values():
            optimizer.step()
        for schedule in schedules.values():
            schedule.step()
    assert optimizers["auxiliary_encoder"].param_groups[0]["lr"] == pytest.approx(expected)
    assert optimizers["auxiliary"].param_groups[0]["lr"] == pytest.approx(cfg.sac.lr * 0.5)
    assert optimizers["critic"].param_groups[0]["lr"] == cfg.sac.lr


def test_published_scores_prefer_a_papers_table():
    found = published_scores("cartpole-swingup", 100_000)
    assert found == {"CURL, published at 100k": (100_000, 582.0), "pixel SAC, published at 100k": (100_000, 354.0)}
    assert published_scores(None, 100_000) == {}
