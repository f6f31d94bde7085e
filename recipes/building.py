"""Makes environments, storages and auxiliary tasks from the config sections that all recipes share."""

from __future__ import annotations

import contextlib
import errno
import importlib
import inspect
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torchrl.data import Categorical, LazyMemmapStorage, LazyTensorStorage
from torchrl.envs import EnvBase, RewardClipping, TransformedEnv

from mcurl_torchrl import AuxiliaryTask, FrameReplayBuffer, make_atari_env, make_dmc_env, make_pixel_env
from mcurl_torchrl.agents import Computing, RainbowAgent, Resets, SACAgent
from mcurl_torchrl.modules import start_encoder_from
from mcurl_torchrl.ranks import ALONE, Ranks
from mcurl_torchrl.training import InlineSource, WorkerSource
from mcurl_torchrl.transforms import make_augmentation
from recipes.schema import (
    AugmentationConfig,
    CollectorConfig,
    EnvConfig,
    RecipeConfig,
    ReplayConfig,
    ResetsConfig,
)
from recipes.value_checks import AUTO, check_augmentation, check_encoder, check_env

MANY_UPDATES = 4  # per agent step: from here on a run without resets gets advice


def make_env(env: EnvConfig, *, training: bool) -> EnvBase:
    """Makes an environment for training, or for evaluation with whole games and raw scores."""
    check_env(env)
    if env.backend == "dmc":
        return make_dmc_env(**settings_for(make_dmc_env, env), from_pixels=env.observation == "pixels")
    if env.backend == "atari":
        in_training = {key: training and env[key] for key in ("terminal_on_life_loss", "clip_rewards")}
        return make_atari_env(**settings_for(make_atari_env, env) | in_training, training=training)
    find_modules_here()
    made = make_pixel_env(
        env.id,
        **settings_for(make_pixel_env, env),
        categorical_actions=True,
        film=not training,
        env_kwargs=None if env.kwargs is None else OmegaConf.to_container(env.kwargs, resolve=True),
    )
    return TransformedEnv(made, RewardClipping(-1.0, 1.0)) if training and env.clip_rewards else made


def settings_for(made: Callable[..., Any], *sections: Any) -> dict[str, Any]:
    """Returns those settings of config sections that a class or a function takes: parameters have the same names."""
    parameters = inspect.signature(made).parameters
    found = {key: section[key] for section in sections for key in section if key in parameters}
    return {key: tuple(value) if OmegaConf.is_list(value) else value for key, value in found.items()}


def find_modules_here() -> None:
    """Adds the current folder to ``sys.path``: ``env.id`` and ``objective.task`` may name its modules."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)


def padding(env: EnvConfig) -> str:
    """Returns how stacks are padded at the start of an episode: with zeros on Atari, else with the first frame."""
    return "zeros" if env.backend == "atari" else "repeat"


def check_actions(env: EnvBase, *, discrete: bool, recipe: str, other: str) -> None:
    """Refuses an environment with continuous actions if the recipe needs discrete ones, and the reverse."""
    spec = env.action_spec
    kind = "discrete" if type(spec) is Categorical else "continuous" if spec.dtype.is_floating_point else "other"
    wanted = "discrete" if discrete else "continuous"
    if kind == "other":  # MultiDiscrete, for example
        raise ValueError(f"{recipe} needs {wanted} actions; this environment takes several numbers at once: {spec}")
    if kind == "continuous" and len(spec.shape) != 1:
        raise ValueError(
            f"the actions of this environment have the shape {list(spec.shape)}; one dimension is needed: reshape them "
            "with a gymnasium.ActionWrapper"
        )
    if kind != wanted:
        count = spec.space.n if kind == "discrete" else spec.shape[-1]
        raise ValueError(
            f"{recipe} needs {wanted} actions; this environment has {count} {kind} ones: use recipes/{other}.py"
        )


class ReservedMemmapStorage(LazyMemmapStorage):
    """A storage on disk that reserves all of its space at once.

    Otherwise a disk that becomes full later would end the process by SIGBUS, without an error message.
    """

    def _init(self, data: Any) -> None:
        super()._init(data)
        for rows in self._storage.values(include_nested=True, leaves_only=True):
            size = os.path.getsize(rows.filename)
            self.check_room(size, rows.filename)  # before the reservation: a failed reservation fills the disk
            try:
                with open(rows.filename, "r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                raise self._no_room(size, rows.filename, error) from None

    def check_room(self, size: int, place: str | Path) -> None:
        """Raises an OSError if the disk has less than ``size`` bytes of free space."""
        if size > shutil.disk_usage(Path(place).parent).free:
            raise self._no_room(size, place, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def _no_room(self, size: int, place: str | Path, error: OSError) -> OSError:
        return OSError(
            error.errno,
            f"replay.memmap=true: no room for {size:,} bytes of {place} ({error.strerror}); "
            f"replay.capacity={self.max_size} is the number of its rows",
        )


def check_room(buffer: FrameReplayBuffer, env: EnvBase) -> None:
    """Refuses a replay on disk that needs more than the free space; the space is reserved later, at the first step."""
    storage = buffer.storage
    if isinstance(storage, ReservedMemmapStorage):
        frames = env.observation_spec[buffer.pixels_key]
        size = frames.shape.numel() // buffer.num_frames * frames.dtype.itemsize
        storage.check_room(size * storage.max_size, storage.scratch_dir)


def make_storage(replay: ReplayConfig, directory: Path, *, ndim: int = 1, ranks: Ranks = ALONE) -> LazyTensorStorage:
    """Makes the storage of a replay buffer: ``ndim=2`` for a batch of environments, which share the capacity.

    On disk each rank has its own folder.
    """
    if not replay.memmap:
        return LazyTensorStorage(replay.capacity, device="cpu", ndim=ndim)
    folder = directory / ("replay_storage" if ranks.leads else f"replay_storage_rank{ranks.index}")
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed process; a resumed run reads rows from the checkpoint
    return ReservedMemmapStorage(replay.capacity, scratch_dir=folder, ndim=ndim)


def remove_storages(directory: Path) -> None:
    """Removes a run's replay on disk when the run ends: its checkpoints contain the rows, too."""
    for rows in directory.glob("replay_storage*"):
        shutil.rmtree(rows, ignore_errors=True)


# -- collecting --------------------------------------------------------------------------------------------------------


def num_columns(collector: CollectorConfig) -> int:
    """Returns the number of training environments: each has its own ring, a column of the replay."""
    return collector.envs_per_worker * (1 if collector.backend == "inline" else collector.num_workers)


def storage_ndim(collector: CollectorConfig) -> int:
    """Returns 1 for a single ring, with one environment in this process, and 2 for a replay with columns."""
    return 1 if collector.backend == "inline" and collector.envs_per_worker == 1 else 2


def check_collector(cfg: RecipeConfig) -> None:
    """Refuses a number of steps or rows that cannot be divided among the environments."""
    columns, total = num_columns(cfg.collector), cfg.total_env_steps // cfg.env.action_repeat
    check_workers(cfg.collector)
    if total % cfg.collector.envs_per_worker:
        raise ValueError(
            f"total_env_steps={cfg.total_env_steps} are {total} agent steps; "
            f"collector.envs_per_worker={cfg.collector.envs_per_worker} must divide them"
        )
    if columns > 1 and (cfg.replay.capacity % columns or cfg.replay.capacity < 2 * columns):
        raise ValueError(
            f"replay.capacity={cfg.replay.capacity}; it must be a multiple of {columns}, the number of environments "
            "that the collector has, with at least 2 rows for each"
        )


def check_workers(collector: CollectorConfig) -> None:
    """Refuses several workers with the backend inline, which has none."""
    if collector.backend == "inline" and collector.num_workers > 1:
        raise ValueError(
            f"collector.num_workers={collector.num_workers} needs collector.backend=process or ray; in this process, "
            "collector.envs_per_worker (of PPO: ppo.num_envs) is the number of environments"
        )


def worker_options(cfg: RecipeConfig) -> dict[str, Any]:
    """Returns the options of workers that are the same in every recipe."""
    return {
        "backend": cfg.collector.backend,
        "num_workers": cfg.collector.num_workers,
        "timeout_seconds": cfg.collector.timeout_seconds,
        "seed": cfg.seed,
        "observation_key": cfg.env.observation,
    }


def make_source(cfg: RecipeConfig, env: EnvBase, agent: SACAgent | RainbowAgent, buffer: FrameReplayBuffer) -> Any:
    """Makes the object that collects steps: in ``env`` and further environments in this process, or in workers."""
    if cfg.collector.backend != "inline":
        total = cfg.total_env_steps // cfg.env.action_repeat
        make = partial(make_env, cfg.env, training=True)
        return WorkerSource(
            make,
            agent.explorer,
            buffer,
            total_agent_steps=total,
            envs_per_worker=cfg.collector.envs_per_worker,
            fragment_len=cfg.collector.fragment_agent_steps,
            **worker_options(cfg),
        )
    more = [make_env(cfg.env, training=True) for _ in range(cfg.collector.envs_per_worker - 1)]
    return InlineSource([env, *more], agent.explore, buffer, seed=cfg.seed, observation_key=cfg.env.observation)


def start_encoder(encoder: nn.Module, cfg: RecipeConfig) -> None:
    """Loads the weights of ``encoder.init`` into an encoder, if it is set; call it before slow copies are made.

    The weights of a resumed run come from its checkpoint.
    """
    start = cfg.encoder
    check_encoder(start, objective=cfg.objective.name, resume=cfg.resume)
    if start.init is None:
        return
    if cfg.resume not in (None, AUTO):
        encoder.requires_grad_(not start.frozen)
        return
    try:
        start_encoder_from(start.init, encoder, frozen=bool(start.frozen))
    except (OSError, ValueError) as error:
        raise ValueError(f"encoder.init={start.init}: {error}") from None


def use_resets(agent: SACAgent | RainbowAgent, resets: ResetsConfig, *, total_updates: int) -> None:
    """Turns on resets of an agent's networks, in a run of ``total_updates``, if the config has an interval.

    With many updates per agent step and no word about resets, it prints a sentence of advice.
    """
    if resets.interval_updates:
        with section("resets"):
            agent.use_resets(Resets(resets.interval_updates, keep=resets.keep, total_updates=total_updates))
    elif resets.interval_updates is None and agent.updates_per_agent_step >= MANY_UPDATES and agent.ranks.leads:
        print(
            f"{agent.updates_per_agent_step} updates per agent step without resets: with so many, networks often stop "
            "learning; resets.interval_updates draws them anew (docs/algorithms/resets.md), and 0 says that there are "
            "none on purpose",
            file=sys.stderr,
        )


def make_computing(cfg: RecipeConfig, device: torch.device) -> Computing:
    """Makes the object that computes the losses; raises a ValueError if this machine cannot use the settings."""
    return Computing(device, compile=cfg.compile, precision=cfg.precision, cuda_graphs=cfg.cuda_graphs)


# -- augmentation ------------------------------------------------------------------------------------------------------


def make_augmentations(
    augmentation: AugmentationConfig, *, crop_size: int | None = None
) -> dict[str, Callable[[Tensor], Tensor] | None]:
    """Makes the augmentations of RL's ``"batch"`` and of the auxiliary task's ``"views"``; None: no augmentation.

    ``crop_size`` is the size of the encoder's input, if it is smaller than the image.
    """
    if crop_size is None:
        check_augmentation(augmentation)
    made = {}
    for part in ("batch", "views"):
        kind, scale = augmentation[part], augmentation[f"{part}_intensity"]
        made[part] = make_augmentation(kind, intensity_scale=scale, crop_size=crop_size)
    return made


# -- the auxiliary task ------------------------------------------------------------------------------------------------


def make_task(objective: DictConfig, encoder: nn.Module, buffer: FrameReplayBuffer, **offered: Any) -> AuxiliaryTask:
    """Makes the auxiliary task that an objective's file names, with the file's other keys as keyword arguments.

    ``offered`` are further arguments of the recipe (networks, specs, the augmentation). A task gets those that are
    parameters of its constructor.
    """
    options = {str(key): value for key, value in OmegaConf.to_container(objective, resolve=True).items()}
    options.pop("name")
    module, _, name = str(options.pop("task")).rpartition(".")
    find_modules_here()
    try:
        made = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"objective.task={module}.{name} cannot be imported: {error}") from error
    if not (isinstance(made, type) and issubclass(made, AuxiliaryTask)):
        raise ValueError(f"objective.task={module}.{name} is not an AuxiliaryTask")
    given = wanted(made, options, offered, str(objective.name))
    with section("objective"):
        return made(encoder, buffer, **given, **options)


def wanted(made: type, options: dict[str, Any], offered: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the offered arguments that are parameters of a task's constructor; refuses a task that needs others."""
    parameters = inspect.signature(made).parameters.values()
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
        return offered
    named = [parameter for parameter in parameters if parameter.kind == parameter.KEYWORD_ONLY]
    needed = [parameter.name for parameter in named if parameter.default is parameter.empty]
    if missing := [key for key in needed if key not in offered and key not in options]:
        raise ValueError(f"objective={name} needs {missing} of the agent; this recipe offers {sorted(offered)}")
    return {parameter.name: offered[parameter.name] for parameter in named if parameter.name in offered}


@contextlib.contextmanager
def section(name: str) -> Iterator[None]:
    """Adds the name of a config section to the argument's name in an error message."""
    try:
        yield
    except ValueError as error:
        error.args = (f"{name}.{error}",)
        raise
