"""Hydra's launchers on a recipe's command line: which there are, and what those need that may start a job twice."""

from __future__ import annotations

from dataclasses import fields

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins

from recipes.command_line import AUTO, BadCommand, did_you_mean

LAUNCHER = "hydra/launcher"
EXTRA = "pip install -e '.[cluster]'"
# The plugin for Ray asks for cloudpickle < 3 and works with 3, which submitit's jobs and TorchRL have.
INSTALL = {
    "joblib": EXTRA,
    "submitit_local": EXTRA,
    "submitit_slurm": EXTRA,
    "ray": f"{EXTRA} && pip install --no-deps hydra-ray-launcher",
}
STARTS_AGAIN = ("submitit_local", "submitit_slurm", "ray")  # a job that was preempted, or whose process died


def check_launcher(overrides: list[Override], *, multirun: bool) -> None:
    """Refuses a launcher that is not there, and one for a single run, which Hydra would ignore.

    Raises:
        BadCommand: with how to install it, or with names that are close.
    """
    if (name := launcher_of(overrides)) is None:
        return
    Plugins.instance()  # finds the plugins, which then list their names
    there = [file.removesuffix(".yaml") for file in ConfigStore.instance().list(LAUNCHER)]
    if name not in there:
        if name in INSTALL:
            raise BadCommand(f"{LAUNCHER}={name} is not installed; {INSTALL[name]} brings it")
        raise BadCommand(f"{LAUNCHER}={name}: {did_you_mean(name, sorted({*there, *INSTALL}))}")
    if not multirun and not any(override.key_or_group == "hydra.mode" for override in overrides):
        raise BadCommand(f"{LAUNCHER}={name} runs the jobs of a sweep: add -m, as in -m seed=1,2,3 {LAUNCHER}={name}")


def settings_to_start_again(overrides: list[Override], schema: type) -> list[str]:
    """Returns ``resume=auto`` for launchers that may start a job again: it goes on from its checkpoint then."""
    given = {override.key_or_group for override in overrides}
    resumes = "resume" in {one.name for one in fields(schema)} - given
    return [f"resume={AUTO}"] if resumes and launcher_of(overrides) in STARTS_AGAIN else []


def launcher_of(overrides: list[Override]) -> str | None:
    chosen = [override for override in overrides if override.key_or_group == LAUNCHER]
    return None if not chosen else str(chosen[-1].value())
