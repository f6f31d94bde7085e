"""Checks the values of settings. These checks need no torch, so that an error is printed at once."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipes.schema import RecipeConfig

NAMED_BY = {"dmc": "task", "atari": "game", "gym": "id"}  # the key that names an environment of each backend
FREE = ("env.kwargs", "logging.wandb", "logging.mlflow")  # dictionaries with any keys, which are passed on
TRACKERS = ("wandb", "mlflow")
# The backend whose actions a recipe cannot take, the actions that it needs, and the recipe to use instead.
UNFIT = {"sac_mcurl": ("atari", "continuous", "rainbow_mcurl"), "rainbow_mcurl": ("dmc", "discrete", "sac_mcurl")}
AUTO = "auto"  # resume=auto starts or continues the run in its directory
FREE_CAMERA = -1  # MuJoCo's number of the free camera: the only setting below 0
# All numbers must be above 0, and integers therefore at least 1. These settings may also be 0.
MAY_BE_ZERO = {
    *("seed", "sample_ahead", "epsilon", "env.camera_id", "env.max_noops", "env.published.curl_coeff"),
    *("augmentation.batch_intensity", "augmentation.views_intensity", "evaluation.epsilon", "probe.episodes"),
    *("resets.interval_updates", "resets.keep", "sac.gamma", "sac.auxiliary_encoder_lr_scale"),
    *("ppo.gamma", "ppo.gae_lambda", "ppo.entropy_coeff", "ppo.auxiliary_phase"),
    *("rainbow.gamma", "rainbow.sigma_init", "rainbow.epsilon_begin", "rainbow.epsilon_end"),
    *("rainbow.priority_exponent", "rainbow.priority_correction_begin", "rainbow.priority_correction_end"),
    *("objective.coeff", "objective.zero", "objective.replace", "objective.dropout", "objective.warmup_initial_scale"),
}
AT_MOST_ONE = {
    *("epsilon", "evaluation.epsilon", "resets.keep", "sac.gamma", "sac.critic_tau", "sac.encoder_tau"),
    *("ppo.gamma", "ppo.gae_lambda", "rainbow.gamma", "rainbow.epsilon_begin", "rainbow.epsilon_end"),
    *("rainbow.priority_correction_begin", "rainbow.priority_correction_end", "rainbow.target_tau"),
    *("objective.mask_ratio", "objective.zero", "objective.replace", "objective.dropout"),
    *("objective.tau", "objective.target_tau", "env.published.mask_ratio"),
}

# These objectives have the bounds and the words of this file; a new one is checked by its own constructor.
KNOWN_OBJECTIVES = {"none", "mcurl", "curl", "seq_curl", "sym_curl", "cpc", "mcurl_actions", "mlr", "spr"}
# The settings of an objective have no schema.
WORDS = {
    "objective.layout": ("interleaved", "added"),
    "objective.negatives": ("batch", "sequence"),
    "objective.projection": ("none", "linear", "curl"),
    "objective.projector": ("mlp", "head"),
    "objective.reduction": ("mean", "sum", "none"),
    "objective.views": ("batch", "slices"),
}


class BadCommand(ValueError):
    """The command line is wrong; the message explains the error."""


def check_values(cfg: DictConfig) -> None:
    """Refuses a value outside its bounds, or not among its choices; the error names the setting."""
    check_choices(cfg, OmegaConf.get_type(cfg))
    if "env" in cfg:
        check_env(cfg.env)
        check_agent(cfg)
        check_observation(cfg)
    if "augmentation" in cfg and never_crops(cfg):
        check_augmentation(cfg.augmentation)
    if "encoder" in cfg and "init" in cfg.encoder:
        check_encoder(cfg.encoder, objective=cfg.objective.name, resume=cfg.resume)
    if "logging" in cfg:
        check_trackers(cfg.logging)
    if "total_env_steps" in cfg and cfg.total_env_steps < (least := max(cfg.env.action_repeat, 1)):
        raise BadCommand(f"total_env_steps={cfg.total_env_steps}; it must be at least {least}, one agent step")
    known = declared_here(OmegaConf.get_type(cfg))
    settings = OmegaConf.to_container(cfg, resolve=True)
    check_numbers({name: value for name, value in settings.items() if name in known})


def declared_here(schema: type) -> set[str]:
    """Returns the settings that recipes/schema.py declares: a recipe of somebody else may add settings of its own."""
    ours = [kind for kind in schema.__mro__ if kind.__module__ == RecipeConfig.__module__]
    return {name for kind in ours for name in kind.__annotations__}


def check_env(env: Any) -> None:
    """Refuses an environment without a name, with the name of another backend, or without the chosen observation."""
    if env.backend not in NAMED_BY:
        raise BadCommand(f"env.backend={env.backend!r}; choose one of {list(NAMED_BY)}")
    own = NAMED_BY[env.backend]
    if OmegaConf.is_missing(env, own) or env[own] is None:
        example = {"task": "humanoid-run", "game": "Tennis", "id": "my_module:MyEnv-v0"}[own]
        raise BadCommand(f"env={env.backend} needs env.{own}, such as env.{own}={example}")
    for backend, key in NAMED_BY.items():
        if key != own and env[key] is not None:
            raise BadCommand(f"env.{key}={env[key]} needs env={backend}; without it, {env[own]} would be trained")
    if env.kwargs is not None and not OmegaConf.is_dict(env.kwargs):
        raise BadCommand(f"env.kwargs={env.kwargs}; give keyword arguments, as in 'env.kwargs={{size: 8}}'")
    if env.observation == "state" and env.backend != "dmc":
        raise BadCommand(
            "env.observation=state, which algo=state_sac sets, is for tasks of DMControl; "
            f"env={env.backend} has images only"
        )


def check_agent(cfg: DictConfig) -> None:
    """Refuses an environment whose backend always has the wrong kind of actions for the recipe."""
    backend, needed, other = UNFIT.get(cfg.get("recipe"), (None, None, None))
    if cfg.env.backend == backend:
        name = cfg.env[NAMED_BY[backend]]
        raise BadCommand(
            f"env={name}: {cfg.recipe} needs {needed} actions, which it does not have; use recipes/{other}.py"
        )


def check_observation(cfg: DictConfig) -> None:
    """Refuses states for an objective that learns from images."""
    objective = cfg.get("objective") or {}
    if cfg.env.observation == "state" and is_known(objective) and objective["name"] != "none":
        raise BadCommand(
            f"objective={objective['name']} with env.observation=state: this objective learns from images; use "
            "algo=state_sac, which has no objective, or env.observation=pixels"
        )


def never_crops(cfg: DictConfig) -> bool:
    """Tells whether the encoder of one of our recipes, or of pre-training, takes whole images only."""
    return cfg.get("recipe") in ("rainbow_mcurl", "ppo_mcurl") or OmegaConf.select(cfg, "encoder.kind") == "atari"


def check_augmentation(augmentation: Any) -> None:
    """Refuses crops, for an encoder that takes whole images."""
    for part in ("batch", "views"):
        if augmentation[part] == "crop":
            raise BadCommand(
                f"augmentation.{part}=crop is for SAC, whose encoder takes a crop of the image; use shift or none"
            )


def check_encoder(encoder: Any, *, objective: str, resume: str | None) -> None:
    """Refuses an encoder file that is not there, and a frozen encoder without a file or with an auxiliary task.

    A resumed run has its encoder in its checkpoint: the file may be gone.
    """
    if encoder.frozen and objective != "none":
        raise BadCommand(
            f"encoder.frozen=true with objective={objective}: the auxiliary task would have nothing to train; choose "
            "an algo without an auxiliary task, or encoder.frozen=false"
        )
    if encoder.frozen and encoder.init is None:
        raise BadCommand("encoder.frozen=true without encoder.init would freeze untrained weights")
    if encoder.init is not None and resume in (None, AUTO) and not Path(encoder.init).is_file():
        raise BadCommand(f"encoder.init={encoder.init}: there is no encoder file {encoder.init}")


def check_trackers(logging: Any) -> None:
    """Refuses trackers without options, and trackers whose package is missing."""
    for name in TRACKERS:
        if (options := logging[name]) is None:
            continue
        if not OmegaConf.is_dict(options):
            raise BadCommand(f"logging.{name}={options}; give its options, as in 'logging.{name}={{project: mcurl}}'")
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:  # no origin: only a folder of that name, such as W&B's output folder
            raise BadCommand(f"logging.{name} needs the package {name}: pip install 'mcurl-torchrl[tracking]'")


def check_numbers(settings: Mapping[Any, Any], prefix: str = "") -> None:
    """Refuses numbers outside the bounds of their settings. A new objective checks its numbers itself."""
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            if key not in FREE and (key != "objective" or is_known(value)):
                check_numbers(value, f"{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            # MLR learns without a mask, too; M-CURL does not.
            maskless = key == "objective.mask_ratio" and settings.get("name") == "mlr"
            check_number(key, value, zero=key in MAY_BE_ZERO or maskless)


def is_known(objective: Mapping[Any, Any]) -> bool:
    """Returns whether the bounds and the words of this file are those of an objective."""
    return objective.get("name") in KNOWN_OBJECTIVES and str(objective.get("task")).startswith("mcurl_torchrl.")


def check_number(key: str, value: float, *, zero: bool) -> None:
    one = key in AT_MOST_ONE
    least = FREE_CAMERA if key == "env.camera_id" else 0
    if (value >= least if zero else value > 0) and math.isfinite(value) and not (one and value > 1):
        return
    whole = isinstance(value, int) and not key.startswith("objective.")  # the keys of objective have no types
    lowest = f"at least {least}" if zero else "at least 1" if whole else "above 0"
    highest = " and at most 1" if one else "" if isinstance(value, int) else " and finite"
    raise BadCommand(f"{key}={value}; it must be {lowest}{highest}")


def check_choices(cfg: DictConfig, schema: type) -> None:
    """Refuses a value that is not among the choices of its key in the schema, or in a known objective."""
    objective = OmegaConf.select(cfg, "objective") or {}
    words = {key: words for key, words in WORDS.items() if is_known(objective) and key.partition(".")[2] in objective}
    for key, choices in {**dict(choices_of(schema)), **words}.items():
        if not OmegaConf.is_missing(cfg, key) and (value := OmegaConf.select(cfg, key)) not in choices:
            raise BadCommand(f"{key}={value!r}; choose one of {list(choices)}")


def choices_of(schema: type, prefix: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields every dotted key of a schema that has a list of choices, and the list."""
    for one in fields(schema):
        if choices := one.metadata.get("choices"):
            yield f"{prefix}{one.name}", choices
        if is_dataclass(section := one.type):
            yield from choices_of(section, f"{prefix}{one.name}.")
