"""Running recipes in tests: composing their configs, and training without starting a process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from mcurl_torchrl.training import RunDirectory, tables
from recipes import launch, ppo_mcurl, rainbow_mcurl, sac_mcurl
from recipes.objective_files import drop_foreign_keys

RECIPES = Path(launch.__file__).parent
TRAIN = {"sac_mcurl": sac_mcurl.train, "rainbow_mcurl": rainbow_mcurl.train, "ppo_mcurl": ppo_mcurl.train}
SMALL = ["preset=smoke", "logging.tensorboard=false", "evaluation.video=false"]
HIDING = ("mcurl", "sym_curl", "mcurl_actions")  # the algorithms that hide whole observations
TIMINGS = ("milliseconds", "seconds")


def settings(*overrides: str, recipe: str = "sac_mcurl") -> DictConfig:
    with initialize_config_dir(str(launch.config_folder(recipe)), version_base="1.3"):
        cfg = compose(recipe, overrides=list(overrides))
    drop_foreign_keys(cfg)
    OmegaConf.set_readonly(cfg, True)
    return cfg


def train(folder: Path, *overrides: str, recipe: str = "sac_mcurl") -> RunDirectory:
    directory = RunDirectory(folder)
    check = sys.modules[TRAIN[recipe].__module__].check
    launch.run_job(TRAIN[recipe], settings(*overrides, recipe=recipe), directory, list(overrides), check=check)
    return directory


def results(directory: RunDirectory) -> dict[str, Any]:
    """Everything that a run wrote, without its times."""
    metrics = tables.read(directory.metrics.path)
    return {
        "metrics": [{k: v for k, v in row.items() if not k.startswith(TIMINGS)} for row in metrics],
        "eval": tables.read(directory.eval.path),
    }
