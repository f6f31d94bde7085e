"""Checks Hydra's launchers on a recipe's command line, and adds resume=auto for launchers that may restart a job."""

from __future__ import annotations

from dataclasses import fields

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins

from recipes.command_line import AUTO, BadCommand, did_you_mean

LAUNCHER = "hydra/launcher"
EXTRA = "pip install -e '.[cluster]'"
# The plugin for Ray requires cloudpickle < 3, but it works with version 3, which submitit and TorchRL use.
INSTALL = {
    "joblib": EXTRA,
    "submitit_local": EXTRA,
    "submitit_slurm": EXTRA,
    "ray": f"{EXTRA} && pip install --no-deps hydra-ray-launcher",
}
STARTS_AGAIN = ("submitit_local", "submitit_slurm", "ray")  # these restart a job that was preempted or has died


def check_launcher(overrides: list[Override], *, multirun: bool) -> None:
    """Refuses a launcher that is not installed, and a launcher for a single run, which Hydra would ignore.

    Raises:
        BadCommand: with the command that installs it, or with similar names.
    """
    if (name := launcher_of(overrides)) is None:
        return
    Plugins.instance()  # imports the plugins, which register their launchers
    there = [file.removesuffix(".yaml") for file in ConfigStore.instance().list(LAUNCHER)]
    if name not in there:
        if name in INSTALL:
            raise BadCommand(f"{LAUNCHER}={name} is not installed; to install it: {INSTALL[name]}")
        raise BadCommand(f"{LAUNCHER}={name}: {did_you_mean(name, sorted({*there, *INSTALL}))}")
    if not multirun and not any(override.key_or_group == "hydra.mode" for override in overrides):
        raise BadCommand(f"{LAUNCHER}={name} runs the jobs of a sweep: add -m, as in -m seed=1,2,3 {LAUNCHER}={name}")


def settings_to_start_again(overrides: list[Override], schema: type) -> list[str]:
    """Returns ``resume=auto`` for launchers that may restart a job, so that it continues from its checkpoint."""
    given = {override.key_or_group for override in overrides}
    resumes = "resume" in {one.name for one in fields(schema)} - given
    return [f"resume={AUTO}"] if resumes and launcher_of(overrides) in STARTS_AGAIN else []


def launcher_of(overrides: list[Override]) -> str | None:
    chosen = [override for override in overrides if override.key_or_group == LAUNCHER]
    return None if not chosen else str(chosen[-1].value())
