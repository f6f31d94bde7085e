"""Starts a recipe: checks the command line, composes the config with Hydra, opens or resumes the run directory.

Nothing here knows what is trained.
"""

from __future__ import annotations

import difflib
import logging
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf

from mcurl_torchrl.training import (
    Checkpoints,
    EnvironmentFailed,
    RunDirectory,
    TrainingRun,
    catch_stop_signals,
    keep_freed_pages,
    make_trackers,
    recent_runs,
)

CONF = Path(__file__).parent / "conf"
# What may differ between a run and its resumption without changing what it computes.
NOT_COMPARED = ("resume", "resume_changed", "logging.progress")

Train = Callable[[Any, TrainingRun], None]


class BadCommand(Exception):
    """The command line is wrong in a way that the message explains."""


def recipe(train: Train, *, config_name: str, schema: type) -> None:
    """Trains as the command line says, in a run directory."""

    def job(cfg: DictConfig) -> None:
        hydra_config = HydraConfig.get()
        run_job(train, cfg, RunDirectory(hydra_config.runtime.output_dir), list(hydra_config.overrides.task))

    launch(job, config_name=config_name, schema=schema)


def launch(job: Callable[[DictConfig], None], *, config_name: str, schema: type) -> None:
    """Runs a job with the config that the command line asks for; a wrong command ends with a sentence."""
    logging.getLogger("torchrl").setLevel(logging.WARNING)

    def checked(cfg: DictConfig) -> None:
        # Reading a key that is not there is an error already, by the schema; now writing one is, too.
        OmegaConf.set_readonly(cfg, True)
        try:
            job(cfg)
        except BadCommand as error:
            sys.exit(f"{Path(sys.argv[0]).name}: {error}")

    try:
        sys.argv[1:] = prepare(sys.argv[1:], schema)
    except BadCommand as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(checked)()


# -- the command line --------------------------------------------------------------------------------------------------


def prepare(arguments: list[str], schema: type) -> list[str]:
    """Checks what is set on the command line; to resume a run, adds what that run had set."""
    settings = [argument for argument in arguments if not argument.startswith("-")]
    if {"-h", "--help", "--hydra-help", "-sc", "--shell-completion"} & set(arguments):
        return arguments
    try:
        overrides = OverridesParser.create().parse_overrides(settings)
    except OverrideParseException as error:
        raise BadCommand(f"{error}".strip()) from None
    for override in overrides:
        check_override(override, schema)
    named = [override for override in overrides if override.key_or_group == "resume"]
    if not named or named[-1].value() is None:
        return arguments
    if {"-m", "--multirun"} & set(arguments):
        raise BadCommand("resume continues one run; it does not go with --multirun")
    directory = RunDirectory(Path(str(named[-1].value())).absolute())
    check_resumable(directory)
    flags = [argument for argument in arguments if argument.startswith("-")]
    # Hydra's own record of the first start, .hydra/, stays as it is.
    place = [f"hydra.run.dir={quoted(directory.path)}", "hydra.output_subdir=null"]
    return [*flags, *directory.read_manifest()["overrides"], *settings, *place]


def quoted(path: Path) -> str:
    """Writes a path so that Hydra's grammar reads it as one string, whatever is in it."""
    text = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"


def check_override(override: Override, schema: type) -> None:
    key = override.key_or_group
    if key.partition(".")[0] == "hydra":
        return
    group = key.partition("@")[0]
    if (CONF / group).is_dir():
        choices = sorted(file.stem for file in (CONF / group).glob("*.yaml"))
        for choice in chosen(override):
            if choice not in choices:
                raise BadCommand(f"{group}={choice}: {did_you_mean(str(choice), choices)}")
        return
    names = dict(known_keys(OmegaConf.structured(schema)))
    parts = key.split(".")
    # Below a key that takes a dictionary, anything goes.
    if key not in names and not any(names.get(".".join(parts[:count])) for count in range(1, len(parts))):
        groups = sorted(folder.name for folder in CONF.iterdir() if folder.is_dir())
        raise BadCommand(f"there is no setting {key!r}; {did_you_mean(key, [*groups, *names])}")


def chosen(override: Override) -> list[Any]:
    value = override.value()
    if isinstance(value, ChoiceSweep):
        return list(value.list)
    return [value]


def known_keys(config: DictConfig, prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Yields every dotted key of a config, and whether it takes a dictionary of whatever."""
    for key in config:
        name = f"{prefix}{key}"
        node = config._get_node(key)
        sections = isinstance(node, DictConfig) and not node._is_none()
        yield name, name in ("logging.wandb", "logging.mlflow")
        if sections:
            yield from known_keys(node, f"{name}.")


def did_you_mean(word: str, choices: list[str]) -> str:
    close = difflib.get_close_matches(word, choices, n=4, cutoff=0.5)
    # A key given without its section, or in a wrong one, is close to the key of the same last name.
    close += [name for name in choices if name.split(".")[-1] == word.split(".")[-1] and name not in close]
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"choose one of {', '.join(choices)}"


def check_resumable(directory: RunDirectory) -> None:
    if directory.manifest.is_file() and Checkpoints(directory.checkpoints).latest() is not None:
        return
    why = "has no checkpoint" if directory.path.is_dir() else "does not exist"
    found = recent_runs(directory.path.parent) or recent_runs("runs")
    listed = "".join(f"\n  resume={run}" for run in found) or " none"
    raise BadCommand(f"resume={directory.path}: it {why}. Runs that can be resumed:{listed}")


# -- a run -------------------------------------------------------------------------------------------------------------


def run_job(train: Train, cfg: DictConfig, directory: RunDirectory, overrides: list[str]) -> None:
    """Trains in a run directory, from its beginning or from its last checkpoint."""
    resume = cfg.resume is not None
    command = shlex.join(["python", sys.argv[0], f"resume={directory.path}"])
    prepare_directory(directory, cfg, overrides, resume)
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    keep_freed_pages()
    with directory.lock(), catch_stop_signals() as stop:
        trackers = make_trackers(
            directory.path,
            tensorboard=cfg.logging.tensorboard,
            wandb=cfg.logging.wandb,
            mlflow=cfg.logging.mlflow,
            run_name=directory.path.name,
            config=OmegaConf.to_container(cfg, resolve=True),
            resume_step=Checkpoints(directory.checkpoints).latest().step * cfg.env.action_repeat if resume else None,
        )
        run = open_run(cfg, directory, resume, trackers, stop)
        failed = True
        try:
            train(cfg, run)
            failed = False
        except EnvironmentFailed as error:
            run.save(run.completed)
            explain(directory, error, f"saved at agent step {run.completed}; to go on with a new episode:\n  {command}")
        except Exception as error:
            explain(directory, error, f"to go on from the last checkpoint, if there is one:\n  {command}")
        finally:
            trackers.close(failed=failed)
    if stop.requested and not run.finished:
        print(f"stopped by {stop.signal_name} at agent step {run.completed:,}; to go on:\n  {command}", file=sys.stderr)
        sys.exit(130 if stop.signal_name == "SIGINT" else 143)
    print(f"finished: {directory.path}", file=sys.stderr)


def prepare_directory(directory: RunDirectory, cfg: DictConfig, overrides: list[str], resume: bool) -> None:
    """Writes down what is run, or sees that it is what was run before."""
    compared = comparable(cfg)
    if resume:
        saved = OmegaConf.load(directory.config)
        changed = list(differences(OmegaConf.to_container(saved), compared))
        if changed and not cfg.resume_changed:
            listed = "".join(f"\n  {line}" for line in changed)
            raise BadCommand(
                f"the run was started with other settings:{listed}\nresume_changed=true goes on with the new ones"
            )
        if changed:
            directory.write_config(OmegaConf.to_yaml(compared))
        return
    if directory.manifest.exists():
        raise BadCommand(f"{directory.path} holds a run already; resume={directory.path} continues it")
    directory.write_config(OmegaConf.to_yaml(compared))
    overrides = [given for given in overrides if given.partition("=")[0] not in ("resume", "resume_changed")]
    directory.write_manifest(overrides=overrides, device=pick_device(cfg.device), recipe=cfg.recipe)


def comparable(cfg: DictConfig) -> dict[str, Any]:
    """Returns the settings that a run computes with."""
    settings = OmegaConf.to_container(cfg, resolve=True)
    for key in NOT_COMPARED:
        *sections, last = key.split(".")
        place = settings
        for section in sections:
            place = place[section]
        place.pop(last)
    return settings


def differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
    """Yields a line for each setting that is not what it was."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            yield from differences(before.get(key), now.get(key), f"{name}.{key}" if name else key)
    elif before != now:
        yield f"{name}: {before} -> {now}"


def pick_device(name: str) -> torch.device:
    if name != "auto":
        return torch.device(name)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def open_run(cfg: DictConfig, directory: RunDirectory, resume: bool, trackers: Any, stop: Any) -> TrainingRun:
    repeat = cfg.env.action_repeat
    device = pick_device(cfg.device)
    return TrainingRun(
        directory.path,
        total_agent_steps=cfg.total_env_steps // repeat,
        action_repeat=repeat,
        evaluation_interval=max(1, cfg.evaluation.interval_env_steps // repeat),
        evaluation_episodes=cfg.evaluation.episodes,
        checkpoint_interval=cfg.checkpoint.interval_agent_steps,
        keep_last=cfg.checkpoint.keep_last,
        log_interval=cfg.logging.interval_agent_steps,
        seed=cfg.seed,
        name=f"{cfg.env.task or cfg.env.id}, {cfg.algo_name}, seed {cfg.seed}",
        device=device,
        video=cfg.evaluation.video,
        num_frames=cfg.env.num_frames,
        resume=resume,
        trackers=trackers,
        stop=stop,
        progress=cfg.logging.progress,
        hint_when_slow="preset=cpu has sizes for this machine" if device.type == "cpu" else None,
    )


def explain(directory: RunDirectory, error: Exception, what_next: str) -> None:
    """Ends the program with a message; the traceback goes to a file."""
    log = directory.path / "error.log"
    with open(log, "a", encoding="utf-8") as file:
        traceback.print_exception(error, file=file)
    sys.exit(f"{type(error).__name__}: {error}\n(the traceback is in {log})\n{what_next}")
