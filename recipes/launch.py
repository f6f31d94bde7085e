"""Starts a recipe: checks the command line, composes the config with Hydra, opens or resumes the run directory."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mcurl_torchrl.ranks import ALONE, RankLost, Ranks
from mcurl_torchrl.reports import write_run_page
from mcurl_torchrl.training import (
    Checkpoints,
    EnvironmentFailed,
    RankedRun,
    RunDirectory,
    RunDirectoryInUse,
    RunPlan,
    StopRequested,
    Trackers,
    TrainingRun,
    catch_stop_signals,
    keep_freed_pages,
    make_trackers,
)
from recipes.building import make_computing, padding, remove_storages
from recipes.command_line import BadCommand, config_folder, is_multirun, message_of, prepare, program
from recipes.joining import joined_ranks
from recipes.objective_files import drop_foreign_keys
from recipes.published_scores import published_scores, random_and_human_score
from recipes.requeueing import requeue
from recipes.resuming import already_finished, continues, how_to_resume, prepare_directory
from recipes.value_checks import check_values

Train = Callable[[Any, TrainingRun], None]
Check = Callable[[Any], None]


class JobFailed(Exception):
    """A job of a sweep failed. Hydra runs the other jobs, and raises this error at the end."""


def recipe(
    train: Train, *, config_name: str, schema: type, check: Check | None = None, learns_on_ranks: bool = False
) -> None:
    """Trains a run with the settings of the command line; together with the other ranks if torchrun started several.

    ``check`` raises a ValueError for settings that do not fit together. It is called before anything is made.
    """

    def job(cfg: DictConfig) -> None:
        config = HydraConfig.get()
        run_job(train, cfg, RunDirectory(config.runtime.output_dir), list(config.overrides.task), ranks, check)

    with joined_ranks(allowed=learns_on_ranks) as ranks:
        if ranks.leads:
            launch(job, config_name=config_name, schema=schema)
        else:
            follow(train, ranks)


def launch(job: Callable[[DictConfig], None], *, config_name: str, schema: type) -> None:
    """Runs a job with the config of the command line; a wrong command line ends with an error message.

    If a job of a sweep fails, it prints the error, and the sweep continues. Hydra's launchers may run jobs in other
    processes.
    """
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises its errors; without this it prints tracebacks

    def checked(cfg: DictConfig) -> None:
        drop_foreign_keys(cfg)
        # The schema refuses to read an unknown key; this refuses to write one.
        OmegaConf.set_readonly(cfg, True)
        try:
            job(cfg)
        except BadCommand as error:
            folder = Path(HydraConfig.get().runtime.output_dir)
            if folder.resolve() != Path.cwd():  # never remove the current folder, even if it is empty
                with contextlib.suppress(OSError):  # the folder is not empty if it contains an earlier run
                    folder.rmdir()
            sys.exit(f"{program()}: {error}")
        except Exception as error:
            explain(Path(HydraConfig.get().runtime.output_dir), error)

    def swept(cfg: DictConfig) -> None:
        sys.argv[0] = script  # a launcher's process has another sys.argv[0]; the command that resumes the run needs it
        try:
            checked(cfg)
        except SystemExit as ended:
            # A stopped job ends with a number; a failed job ends with a message.
            stopped = not isinstance(ended.code, str)
            if HydraConfig.get().mode != RunMode.MULTIRUN or (stopped and os.getpid() == sweeper):
                raise
            requeue(ended.code)
            said = f"stopped with code {ended.code}: {HydraConfig.get().runtime.output_dir}" if stopped else ended.code
            print(said, file=sys.stderr, flush=True)
            raise JobFailed(said) from None

    script, conf = sys.argv[0], config_folder(config_name)
    sweeper = os.getpid()  # a stopped job ends the sweep only if it runs in this process
    try:
        sys.argv[1:] = prepare(sys.argv[1:], schema, conf)
        hydra.main(version_base="1.3", config_path=str(conf), config_name=config_name)(swept)()
    except JobFailed as first:
        sys.exit(f"{program()}: the sweep has ended, but not all jobs are finished. The first failed job:\n{first}")
    except (BadCommand, HydraException, OmegaConfBaseException, OSError) as error:
        sys.exit(f"{program()}: {message_of(error)}")
    except KeyboardInterrupt:
        print(f"{program()}: interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:  # an error of the launcher: errors of jobs arrive as JobFailed
        if not is_multirun(sys.argv):
            raise
        said = str(error).strip().partition("\n")[0]
        sys.exit(
            f"{program()}: the launcher gave up waiting for the jobs: {type(error).__name__}: {said}\n"
            "Checkpoints are kept: to continue, give the same command with resume=auto and hydra.sweep.dir=DIR, the "
            "folder of the sweep"
        )


# -- a run -------------------------------------------------------------------------------------------------------------


def run_job(
    train: Train,
    cfg: DictConfig,
    directory: RunDirectory,
    overrides: list[str],
    ranks: Ranks = ALONE,
    check: Check | None = None,
) -> None:
    """Trains in a run directory, from its beginning or from its last checkpoint."""
    check_settings(cfg, ranks, check)
    try:
        with directory.lock(), catch_stop_signals() as stop:
            run_locked(train, cfg, directory, overrides, stop, ranks)
    except RunDirectoryInUse as error:
        raise BadCommand(str(error)) from None


def run_locked(
    train: Train, cfg: DictConfig, directory: RunDirectory, overrides: list[str], stop: StopRequested, ranks: Ranks
) -> None:
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)  # before the manifest records the number of threads
    resume = continues(cfg, directory)
    device = pick_device(cfg.device, ranks)
    when_restored = prepare_directory(directory, cfg, overrides, resume=resume, device=device, ranks=ranks)
    said = already_finished(cfg, directory) if resume else None
    ranks.on_first(lambda _: None if said else (cfg, directory.path, resume))
    if said:
        print(said, file=sys.stderr)
        return
    keep_freed_pages()
    failed, trackers, run = True, Trackers([]), None
    try:
        trackers = open_trackers(cfg, directory, resume)
        run = open_run(cfg, directory, resume, when_restored, trackers, stop, ranks)
        train(cfg, run)
        failed = False
    except EnvironmentFailed as error:
        explain(directory.path, error, save_after(run), how_to_resume(directory))
    except Exception as error:
        explain(directory.path, error, how_to_resume(directory))
    except KeyboardInterrupt:
        print(f"interrupted in the middle of a step; {how_to_resume(directory)}", file=sys.stderr)
        sys.exit(130)
    finally:
        trackers.close(failed=failed)
        if run is not None:
            run.close()
        remove_storages(directory.path)
    ranks.meet()
    if stop.requested and not run.finished:
        print(
            f"stopped by {stop.signal_name} at agent step {run.completed:,}; {how_to_resume(directory)}",
            file=sys.stderr,
        )
        sys.exit(stop.exit_code)
    latest = Checkpoints(directory.checkpoints).latest()
    if latest is None or latest.step < run.completed:
        sys.exit(f"trained to the end, but the last checkpoint could not be saved; {how_to_resume(directory)}")
    print(f"finished: {directory.path}", file=sys.stderr)


def follow(train: Train, ranks: Ranks) -> None:
    """Trains together with the first rank, with the settings and the run directory that the first rank sends."""
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    try:
        start = ranks.on_first(lambda _: None)
    except RankLost:
        sys.exit(1)  # the first rank has printed the reason
    if start is None:
        return
    cfg, folder, resume = start
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    keep_freed_pages()
    with catch_stop_signals() as stop:
        run = None
        try:
            run = open_run(cfg, RunDirectory(folder), resume, None, Trackers([]), stop, ranks)
            train(cfg, run)
            ranks.meet()
        except Exception as error:
            if isinstance(error, EnvironmentFailed):
                save_after(run)  # saving needs all ranks
            explain(folder, error, f"(rank {ranks.index} of {ranks.count})")
    if stop.requested and not run.finished:
        sys.exit(stop.exit_code)


def check_settings(cfg: DictConfig, ranks: Ranks = ALONE, check: Check | None = None) -> None:
    """Refuses values outside their bounds, and settings that do not work here, with these ranks or with each other."""
    try:
        make_computing(cfg, pick_device(cfg.device, ranks))  # first: it says why precision=float16 is no choice
        check_values(cfg)
        check_ranks(cfg, ranks)
        if check is not None:
            check(cfg)
    except ValueError as error:
        raise BadCommand(str(error)) from None


def check_ranks(cfg: DictConfig, ranks: Ranks) -> None:
    """Refuses settings that need a run of one process, if there are several ranks."""
    alone = {"compile": False, "sample_ahead": 0, "collector.backend": "inline", "collector.envs_per_worker": 1}
    found = {key: OmegaConf.select(cfg, key) for key in alone}
    if ranks.count > 1 and (asked := [f"{key}={value}" for key, value in found.items() if value != alone[key]]):
        raise ValueError(f"{', '.join(asked)}: this works in one process only; torchrun started {ranks.count} ranks")


def env_name(cfg: DictConfig) -> str | None:
    """Returns the name of the task, game or environment; None if no name was given."""
    named = (OmegaConf.select(cfg, f"env.{key}", default=None) for key in ("task", "game", "id"))
    return next((name for name in named if name is not None), None)


def save_after(run: TrainingRun | None) -> str:
    """Saves the last complete step of a run whose environment failed; returns an error message if saving fails."""
    if run is None or run.completed == 0:
        return ""
    try:
        run.save_completed()
    except Exception as error:
        return f"not saved at agent step {run.completed:,}: {error}"
    return ""


def pick_device(name: str, ranks: Ranks = ALONE) -> torch.device:
    """Returns the device (with several ranks, that of this rank), or refuses a name that cannot be used."""
    if ranks.count > 1 and name.startswith("cuda:"):
        raise BadCommand(f"device={name} is one device for {ranks.count} ranks; device=cuda gives each rank its own")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and ranks.count > 1:
        name = f"cuda:{ranks.local_index}"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition(". ")[0]
        raise BadCommand(f"device={name} cannot be used here: {reason}; use device=cpu or device=auto") from None
    return device


def open_trackers(cfg: DictConfig, directory: RunDirectory, resume: bool) -> Trackers:
    return make_trackers(
        directory.path,
        tensorboard=cfg.logging.tensorboard,
        wandb=cfg.logging.wandb or None,
        mlflow=cfg.logging.mlflow or None,
        run_name=directory.path.name,
        config=OmegaConf.to_container(cfg, resolve=True),
        resume_step=Checkpoints(directory.checkpoints).latest().step * cfg.env.action_repeat if resume else None,
    )


def open_run(
    cfg: DictConfig,
    directory: RunDirectory,
    resume: bool,
    when_restored: Callable[[], None] | None,
    trackers: Trackers,
    stop: StopRequested,
    ranks: Ranks,
) -> TrainingRun:
    device, name = pick_device(cfg.device, ranks), env_name(cfg)
    pixels = cfg.env.observation == "pixels"
    plan = RunPlan(
        name=f"{name}, {cfg.algo_name}, seed {cfg.seed}",
        seed=cfg.seed,
        total_agent_steps=cfg.total_env_steps // cfg.env.action_repeat,
        action_repeat=cfg.env.action_repeat,
        evaluation_interval=max(1, cfg.evaluation.interval_env_steps // cfg.env.action_repeat),
        evaluation_episodes=cfg.evaluation.episodes,
        final_evaluation_episodes=cfg.evaluation.final_episodes,
        evaluation_epsilon=cfg.evaluation.epsilon,
        evaluation_sample=cfg.evaluation.sample,
        checkpoint_interval=cfg.checkpoint.interval_agent_steps,
        keep_last=cfg.checkpoint.keep_last,
        log_interval=cfg.logging.interval_agent_steps,
        observation_key=cfg.env.observation,
        num_frames=cfg.env.num_frames if pixels else 1,
        padding=padding(cfg.env),
        video=cfg.evaluation.video,
        reference=published_scores(name, cfg.total_env_steps),
        baselines=random_and_human_score(name),
    )
    slow = device.type == "cpu" and cfg.preset_name == "paper"
    made = TrainingRun if ranks.count == 1 else functools.partial(RankedRun, ranks=ranks)
    return made(
        directory.path,
        plan,
        device=device,
        resume=resume,
        when_restored=when_restored,
        when_evaluated=functools.partial(write_run_page, directory.path) if ranks.leads else None,
        trackers=trackers,
        stop=stop,
        progress=cfg.logging.progress if ranks.leads else False,
        hint_when_slow="preset=cpu has sizes for a CPU" if slow and ranks.leads else None,
    )


def explain(folder: Path, error: Exception, *what_next: str) -> NoReturn:
    """Ends the program with a message; the traceback goes to a file."""
    log = folder / "error.log"
    try:
        with open(log, "a", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
        where = f"the traceback is in {log}"
    except OSError as full:
        where = f"the traceback could not be written: {full}"
    sys.exit("\n".join([f"{type(error).__name__}: {error}", f"({where})", *filter(None, what_next)]))
