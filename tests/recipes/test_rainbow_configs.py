"""The Rainbow recipe's configs: all compose, say what is published, and refuse what is unknown."""

from __future__ import annotations

import itertools

import pytest
import torch
from omegaconf import OmegaConf

from mcurl_torchrl import AtariEncoder
from recipes import launch, resuming
from recipes.command_line import group_choices
from recipes.published_scores import published_scores, random_and_human_score
from recipes.schema import RainbowRecipeConfig
from tests.envs.games import ATARI_100K_GAMES
from tests.recipes import running

CONF = launch.config_folder("rainbow_mcurl")
ALGOS = ["curl", "mcurl", "mcurl_actions", "mlr", "rad", "rainbow", "seq_curl", "spr", "sym_curl"]
REFERENCES = ["der", "dopamine", "otrainbow", "spr", "sr_spr"]


def settings(*overrides: str):
    return running.settings(*overrides, recipe="rainbow_mcurl")


def options(group: str) -> list[str]:
    return group_choices(group, CONF)


def changes(*overrides: str) -> dict[str, str]:
    """What differs from the defaults, by key."""
    before, now = (OmegaConf.to_container(settings(*given), resolve=True) for given in ((), overrides))
    return dict(line.split(": ", 1) for _, line in resuming.differences(before, now))


def test_the_groups_hold_what_the_benchmark_has():
    assert set(options("env")) >= {*ATARI_100K_GAMES, "atari", "gym"}
    assert set(ALGOS) <= set(options("algo"))
    assert options("preset") == ["cpu", "paper", "smoke"]
    assert options("reference") == REFERENCES


def check_composes(*chosen: str):
    cfg = settings(*chosen)
    OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    return cfg


@pytest.mark.parametrize("algo", ALGOS)
def test_an_algorithm_composes_with_each_preset_and_reference(algo):
    for group, names in (("preset", options("preset")), ("reference", REFERENCES)):
        for name in names:
            assert check_composes(f"algo={algo}", f"{group}={name}").algo_name == algo


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGOS)
def test_every_combination_composes(algo):
    for preset, reference in itertools.product(options("preset"), REFERENCES):
        assert check_composes(f"algo={algo}", f"preset={preset}", f"reference={reference}").algo_name == algo


@pytest.mark.parametrize("game", ATARI_100K_GAMES)
def test_every_game_has_its_published_settings(game):
    cfg = settings(f"env={game}", "algo=curl")
    assert cfg.env.game == game
    assert cfg.objective.coeff == (0.01 if game in ("Pong", "Boxing", "PrivateEye", "Freeway") else 1.0)
    assert settings(f"env={game}", "algo=mcurl").objective.coeff == 1.0
    assert random_and_human_score(game) is not None
    assert len(published_scores(game, 100_000)) == 3 and published_scores(game, 99_999) == {}


def test_the_defaults_are_the_published_settings():
    cfg = settings()
    env, rainbow, contrastive = cfg.env, cfg.rainbow, cfg.objective
    assert (env.image_size, env.num_frames, env.frame_skip, env.max_noops) == (84, 4, 4, 29)
    assert env.terminal_on_life_loss and env.clip_rewards and env.max_emulator_frames == 108_000
    assert rainbow.noisy and rainbow.dueling and rainbow.double and rainbow.loss == "categorical"
    assert (rainbow.num_atoms, tuple(rainbow.value_bounds), rainbow.hidden_dim) == (51, (-10.0, 10.0), 256)
    assert (rainbow.n_step, rainbow.gamma, rainbow.batch_size, rainbow.sigma_init) == (20, 0.99, 32, 0.1)
    assert (rainbow.lr, rainbow.adam_eps, rainbow.max_gradient_norm) == (1e-4, 1.5e-4, 10.0)
    assert (rainbow.priority_exponent, rainbow.priority_correction_begin, rainbow.priority_correction_end) == (
        0.5,
        0.4,
        1.0,
    )
    assert (rainbow.first_update_agent_steps, rainbow.target_interval_agent_steps) == (1600, 2000)
    assert (rainbow.updates_per_agent_step, rainbow.epsilon_begin, rainbow.epsilon_end) == (1, 0.0, 0.0)
    assert (contrastive.num_slices, contrastive.slice_len, contrastive.projection) == (8, 16, "none")
    assert (contrastive.mask_ratio, contrastive.num_layers, contrastive.num_heads) == (0.5, 2, 1)
    assert (contrastive.tau, contrastive.temperature, cfg.augmentation.views) == (0.001, 1.0, "curl_shift")
    assert (cfg.total_env_steps, cfg.replay.capacity) == (100_000, 100_000)
    assert (cfg.evaluation.interval_env_steps, cfg.evaluation.episodes, cfg.evaluation.final_episodes) == (
        10_000,
        10,
        100,
    )
    assert cfg.evaluation.epsilon == 0.001


def test_what_the_algorithms_change():
    curl, seq_curl = settings("algo=curl").objective, settings("algo=seq_curl").objective
    assert (curl.name, curl.views, seq_curl.name, seq_curl.views) == ("curl", "batch", "seq_curl", "slices")
    for objective in (curl, seq_curl):
        assert (objective.projection, objective.temperature, objective.tau) == ("curl", 10.0, 0.001)
        assert "mask_ratio" not in objective and "warmup_updates" not in objective
    assert (seq_curl.num_slices, seq_curl.slice_len) == (8, 16)
    assert changes("algo=sym_curl") == {
        "algo_name": "mcurl -> sym_curl",
        "objective.name": "mcurl -> sym_curl",
        "objective.key_context": "False -> True",
    }
    rainbow = settings("algo=rainbow")
    assert rainbow.algo_name == "rainbow" and set(rainbow.objective) == {"name", "task"}


def test_an_objective_alone_names_the_algorithm():
    assert settings("objective=sym_curl").algo_name == "sym_curl"
    assert settings("algo=rainbow", "objective=curl").objective.name == "curl"


def test_the_cpu_preset_shrinks_the_contrastive_task_and_nothing_else():
    assert changes("preset=cpu") == {
        "preset_name": "paper -> cpu",
        "objective.num_slices": "8 -> 2",
        "objective.num_layers": "2 -> 1",
        "objective.projection": "none -> linear",
    }
    assert settings("preset=cpu", "algo=curl").objective.projection == "curl"


@pytest.mark.parametrize(("size", "sees", "features"), [(50, 50, 256), (75, 75, 576), (84, 75, 576)])
def test_convolutions_see_75_of_the_84_published_rows_and_columns(size, sees, features):
    encoder, screen = AtariEncoder(1, size), torch.zeros(1, size, size, requires_grad=True)
    encoder(screen).sum().backward()
    seen = screen.grad[0] != 0
    assert seen[:sees, :sees].all() and not seen[sees:].any() and not seen[:, sees:].any()
    assert encoder.num_features == features


def test_the_other_rainbows_differ_where_they_do():
    dopamine, otrainbow = changes("reference=dopamine"), changes("reference=otrainbow")
    assert {name.removeprefix("rainbow.") for name in dopamine} == {
        *("architecture", "hidden_dim", "n_step", "sigma_init", "epsilon_begin", "epsilon_end"),
        *("epsilon_decay_agent_steps", "priority_correction_begin", "priority_correction_end", "max_gradient_norm"),
        *("replay.capacity", "env.interpolation"),
    }
    assert {name.removeprefix("rainbow.") for name in otrainbow} == {
        *("architecture", "hidden_dim", "n_step", "noisy", "dueling", "double", "epsilon_begin", "epsilon_end"),
        *("epsilon_decay_agent_steps", "priority_correction_begin", "priority_correction_end", "max_gradient_norm"),
        *("lr", "first_update_agent_steps", "updates_per_agent_step", "target_interval_agent_steps"),
        *("replay.capacity", "env.interpolation"),
    }
    assert dopamine["rainbow.n_step"] == "20 -> 10" and otrainbow["rainbow.n_step"] == "20 -> 3"
    spr, sr_spr = changes("reference=spr"), changes("reference=sr_spr")
    assert {name.removeprefix("rainbow.") for name in spr} == {
        *("architecture", "rescale", "gradient_scale", "n_step", "sigma_init", "epsilon_begin"),
        *("first_update_agent_steps", "updates_per_agent_step", "target_interval_agent_steps", "priorities"),
        *(f"augmentation.{key}" for key in ("batch", "batch_intensity", "views", "views_intensity", "second_next")),
    }
    assert {name.removeprefix("rainbow.") for name in sr_spr} - {name.removeprefix("rainbow.") for name in spr} == {
        *("hidden_dim", "noisy", "epsilon_decay_agent_steps", "target_tau", "resets.interval_updates"),
        *("act_with_target", "priority_correction_begin", "priority_correction_end", "max_gradient_norm"),
    }
    assert {name for name in spr if name not in sr_spr} == {
        *("augmentation.second_next", "rainbow.gradient_scale", "rainbow.priorities"),
    }


@pytest.mark.parametrize(
    ("argument", "answers"),
    [
        ("env=MsPackman", ["env=MsPackman", "MsPacman"]),
        ("env=mspacman", ["MsPacman"]),
        ("env=ROADRUNNER", ["RoadRunner"]),
        ("env=Demon", ["DemonAttack"]),
        ("env=atari env.game=Pong", ["use env=Pong"]),
        ("algo=sac", ["choose one of", "mcurl,", "rainbow,", "sym_curl"]),
        ("algo=rainbo", ["rainbow"]),
        ("reference=dopamin", ["dopamine"]),
        ("rainbow.nstep=3", ["rainbow.n_step"]),
        ("batch_size=64", ["rainbow.batch_size"]),
        ("sac.batch_size=64", ["rainbow.batch_size"]),
        ("objective.mask_ratios=0.3", ["'objective.mask_ratios'", "objective.mask_ratio"]),
        ("algo=curl objective.mask_ratio=0.3", ["'objective.mask_ratio'"]),
    ],
)
def test_what_is_unknown_is_refused_with_what_is_close(argument, answers):
    with pytest.raises(launch.BadCommand) as raised:
        launch.prepare(["seed=2", *argument.split(" ")], RainbowRecipeConfig, CONF)
    for answer in answers:
        assert answer in str(raised.value)


@pytest.mark.parametrize(
    "arguments", [["env=atari", "env.game=Tennis"], ["-m", "seed=1,2", "env=Pong,Qbert", "algo=mcurl,rainbow"]]
)
def test_what_is_known_is_passed_on(arguments):
    assert launch.prepare(list(arguments), RainbowRecipeConfig, CONF) == arguments


def test_published_scores():
    assert random_and_human_score("RoadRunner") == (11.5, 7845.0)
    assert random_and_human_score("Tennis") is None and random_and_human_score(None) is None
    assert published_scores("RoadRunner", 100_000) == {
        "data-efficient Rainbow, published at 100k": (100_000, 9600.0),
        "CURL, published at 100k": (100_000, 5661.0),
        "M-CURL, published at 100k": (100_000, 8890.0),
    }
