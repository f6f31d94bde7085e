"""The directory of a run: finds a run to continue, compares its settings, and prints the command that resumes it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from mcurl_torchrl.ranks import ALONE, Ranks
from mcurl_torchrl.training import Checkpoints, RunDirectory
from recipes import console
from recipes.command_line import AUTO, BadCommand, check_recipe, quoted
from recipes.file_errors import in_words
from recipes.old_settings import as_of_today

# Settings that are not compared when a run is resumed, because they do not affect its numbers.
NOT_COMPARED = ("resume", "resume_changed", "logging.progress")
# Settings that only tell what another setting may take.
ONLY_TELLING = ("env.following_camera_id",)
# Settings that a resumed run may change: they change at most the last digits of its numbers.
MAY_CHANGE = ("threads", "compile", "cuda_graphs")


def continues(cfg: DictConfig, directory: RunDirectory) -> bool:
    """Tells whether there is a run to continue; removes the files of one that ended before its first checkpoint."""
    if cfg.resume not in (None, AUTO):
        return True
    if not directory.manifest.exists():
        if results_in(directory):
            raise BadCommand(f"{directory.path} {without_manifest(directory)}")
        return False
    place = quoted(directory.path)
    if Checkpoints(directory.checkpoints).latest() is not None:
        if cfg.resume is None:
            raise BadCommand(f"{directory.path} holds a run already; resume={place} continues it")
        check_recipe(directory, cfg.recipe)
        return True
    if any(directory.checkpoints.glob("checkpoint-*")):
        raise BadCommand(f"{directory.path} holds a run already, and none of its checkpoints can be read")
    if cfg.resume is None and directory.eval.path.exists():
        raise BadCommand(
            f"{directory.path} holds a run already, which has no checkpoint: remove it, or use another directory; "
            "resume=auto starts it again"
        )
    print(f"{directory.path} holds a run that has no checkpoint; it starts again", file=sys.stderr)
    directory.clear()
    return False


def results_in(directory: RunDirectory) -> list[str]:
    """Returns the names of files that only a run's training writes."""
    written = [path.name for path in (directory.eval.path, directory.result) if path.exists()]
    return written + (["checkpoints"] if any(directory.checkpoints.glob("checkpoint-*")) else [])


def without_manifest(directory: RunDirectory) -> str:
    listed = ", ".join(results_in(directory))
    return f"has {listed}, but no {directory.manifest.name} that says which run it is: restore it, or move the folder"


def prepare_directory(
    directory: RunDirectory,
    cfg: DictConfig,
    overrides: list[str],
    *,
    resume: bool,
    device: torch.device,
    ranks: Ranks = ALONE,
) -> Callable[[], None] | None:
    """Writes config and manifest of a new run; compares the settings of a resumed one.

    Returns a function that saves changed settings, None if there are none.
    """
    compared = comparable(cfg)
    overrides = [given for given in overrides if given.partition("=")[0] not in ("resume", "resume_changed")]
    if resume:
        changed = dict(differences(saved_config(directory), compared))
        refused = [line for key, line in changed.items() if key not in (*MAY_CHANGE, *ONLY_TELLING)]
        if refused and not cfg.resume_changed:
            listed = "".join(f"\n  {line}" for line in refused)
            raise BadCommand(
                f"the run was started with other settings:{listed}\nresume_changed=true continues with the new ones"
            )
        return functools.partial(change_settings, directory, compared, overrides) if changed else None
    directory.write_config(OmegaConf.to_yaml(compared))
    shared = {} if ranks.count == 1 else {"ranks": ranks.count}
    directory.write_manifest(overrides=overrides, device=device, recipe=cfg.recipe, **shared)
    return None


def change_settings(directory: RunDirectory, settings: dict[str, Any], overrides: list[str]) -> None:
    """Saves changed settings. Called once the checkpoint is restored: settings that do not fit it are never saved."""
    directory.change_overrides(overrides)
    directory.write_config(OmegaConf.to_yaml(settings))


def already_finished(cfg: DictConfig, directory: RunDirectory) -> str | None:
    """Returns a message if the run is finished, None otherwise."""
    repeat, latest = cfg.env.action_repeat, Checkpoints(directory.checkpoints).latest()
    env_steps = latest.step * repeat
    if env_steps < cfg.total_env_steps // repeat * repeat or latest.info.get("evaluation_due"):
        return None
    if not has_result(directory) and directory.eval.path.exists():
        return None  # it could not be written, for example on a full disk: the run writes it now
    longer = f"total_env_steps={2 * env_steps} resume_changed=true"
    return f"{directory.path} is finished, after {env_steps:,} env steps; to train for longer, add for example {longer}"


def read_result(file: Path) -> dict[str, Any]:
    """Reads ``result.json``, an empty dictionary if it is missing; raises ValueError if it is damaged."""
    try:
        result = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except json.JSONDecodeError as error:
        raise ValueError(f"{file.name} is damaged: {in_words(error)}") from error
    if not isinstance(result, dict):
        raise ValueError(f"{file.name} is damaged: it is no dictionary")
    return result


def has_result(directory: RunDirectory) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return bool(read_result(directory.result))
    return False


def how_to_resume(directory: RunDirectory) -> str:
    """Returns the step of the last checkpoint and the command that continues the run."""
    latest = Checkpoints(directory.checkpoints).latest()
    if latest is None:
        return "nothing was saved yet"
    local = os.environ.get("LOCAL_WORLD_SIZE", "1")
    ranked = ["torchrun", f"--nproc-per-node={local}", sys.argv[0]]
    started = ranked if local != "1" else console.words or [sys.orig_argv[0], sys.argv[0]]
    command = shlex.join([*started, f"resume={quoted(directory.path)}"])
    return f"to resume from the checkpoint of agent step {latest.step:,}:\n  {command}"


def saved_config(directory: RunDirectory) -> Any:
    try:
        saved = OmegaConf.to_container(OmegaConf.load(directory.config))
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise BadCommand(
            f"resume={directory.path}: {directory.config.name} cannot be read: {in_words(error)}"
        ) from None
    return as_of_today(saved) if isinstance(saved, dict) else saved


def comparable(cfg: DictConfig) -> dict[str, Any]:
    """Returns the settings that affect the numbers of a run."""
    settings = OmegaConf.to_container(cfg, resolve=True)
    for key in NOT_COMPARED:
        *sections, last = key.split(".")
        functools.reduce(dict.__getitem__, sections, settings).pop(last)
    return settings


def differences(before: Any, now: Any) -> Iterator[tuple[str, str]]:
    """Yields the key of each setting that differs, and a line about it; a missing setting counts as None."""
    before, now = dict(flat(before)), dict(flat(now))
    for key in sorted({*before, *now}):
        if before.get(key) != now.get(key):
            yield key, f"{key}: {before.get(key)} -> {now.get(key)}"


def flat(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields settings by dotted key; a damaged file, which holds no settings, has none."""
    for key, value in settings.items() if isinstance(settings, dict) else ():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
