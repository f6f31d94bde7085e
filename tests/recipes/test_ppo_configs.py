"""The PPO recipe's configs: all compose, say what is published, and refuse what is unknown."""

from __future__ import annotations

import math

import pytest
from omegaconf import DictConfig, OmegaConf

from recipes import launch
from recipes.command_line import group_choices
from recipes.schema import PPORecipeConfig
from tests.envs.games import ATARI_100K_GAMES
from tests.recipes import running

CONF = launch.config_folder("ppo_mcurl")
ALGOS = ["cpc", "curl", "mcurl", "mcurl_actions", "mlr", "ppo", "rad", "seq_curl", "spr", "sym_curl"]


def settings(*overrides: str) -> DictConfig:
    return running.settings(*overrides, recipe="ppo_mcurl")


def test_the_groups():
    assert set(group_choices("env", CONF)) >= {*ATARI_100K_GAMES, "atari", "gym"}
    assert set(ALGOS) <= set(group_choices("algo", CONF))
    assert group_choices("preset", CONF) == ["cpu", "paper", "smoke"]


@pytest.mark.parametrize("algo", ALGOS)
def test_every_combination_composes(algo: str):
    for preset in ("cpu", "paper", "smoke"):
        cfg = settings(f"algo={algo}", f"preset={preset}")
        assert cfg.algo_name == algo and cfg.preset_name == preset
        OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)


def test_the_defaults_are_the_published_settings():
    cfg = settings()
    env, ppo = cfg.env, cfg.ppo
    assert (env.image_size, env.num_frames, env.frame_skip) == (84, 4, 4)
    assert env.terminal_on_life_loss and env.clip_rewards
    assert (ppo.num_envs, ppo.rollout_len, ppo.epochs, ppo.minibatch_size) == (8, 128, 3, 32 * 8)
    assert (ppo.lr, ppo.clip_epsilon, ppo.anneal) == (2.5e-4, 0.1, True)
    assert (ppo.gamma, ppo.gae_lambda, ppo.critic_coeff, ppo.entropy_coeff) == (0.99, 0.95, 1.0, 0.01)
    assert (ppo.architecture, ppo.hidden_dim, ppo.max_gradient_norm) == ("nature", 512, 0.5)
    assert cfg.total_env_steps == 10_000_000
    assert cfg.objective.name == cfg.algo_name == "mcurl" and cfg.objective.projection == "linear"
    assert cfg.objective.temperature**2 == pytest.approx(cfg.objective.feature_dim, rel=0.01)
    assert cfg.ppo.auxiliary_phase == 0


@pytest.mark.parametrize(("algo", "updates"), [("mcurl", 37_626), ("curl", 37_626), ("ppo", 2346), ("rad", 2346)])
def test_preset_cpu_has_enough_updates_of_a_task_to_leave_the_plateau(algo: str, updates: int):
    cfg = settings("preset=cpu", f"algo={algo}")
    ppo, rollout = cfg.ppo, cfg.ppo.num_envs * cfg.ppo.rollout_len
    whole, rest = divmod(cfg.total_env_steps, rollout)
    of_ppo = ppo.epochs * (whole * math.ceil(rollout / ppo.minibatch_size) + math.ceil(rest / ppo.minibatch_size))
    assert of_ppo + ppo.auxiliary_phase * math.ceil(cfg.total_env_steps / rollout) == updates


def test_what_the_algorithms_change():
    assert set(settings("algo=ppo").objective) == {"name", "task"}
    for name, views in (("curl", "batch"), ("seq_curl", "slices")):
        objective = settings(f"algo={name}").objective
        assert (objective.views, objective.projection, objective.temperature) == (views, "curl", 10.0)


@pytest.mark.parametrize(
    ("argument", "answer"),
    [("algo=rainbow", "choose one of"), ("ppo.n_envs=4", "ppo.num_envs"), ("rollout_len=4", "ppo.rollout_len")],
)
def test_what_is_unknown_is_refused_with_what_is_close(argument: str, answer: str):
    with pytest.raises(launch.BadCommand, match=answer):
        launch.prepare([argument], PPORecipeConfig, CONF)
