"""Builds the recipes' own learners for benchmarks, with random frames and without a simulator.

The agents and the replay are made by the recipes' own functions from their configs. Only the environment is missing:
its shapes are given, and frames are random.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torchrl.data import Bounded, Categorical

from mcurl_torchrl.agents import Agent, rainbow, sac
from mcurl_torchrl.ranks import ALONE, Ranks
from mcurl_torchrl.stacking import stack_frames
from mcurl_torchrl.training import keep_freed_pages, seed_everything
from recipes import rainbow_mcurl, sac_mcurl
from recipes.command_line import config_folder
from recipes.objective_files import drop_foreign_keys

EPISODE = 125  # agent steps of the episodes that fill a replay
ATARI_ACTIONS = 18


def settings(recipe: str, *overrides: str) -> DictConfig:
    """Composes a recipe's config as its command line would."""
    with initialize_config_dir(str(config_folder(recipe)), version_base="1.3"):
        cfg = compose(recipe, overrides=list(overrides))
    drop_foreign_keys(cfg)
    OmegaConf.set_readonly(cfg, True)
    return cfg


def prepare_process(threads: int, *, keep_pages: bool = True) -> bool:
    """Sets this process up as recipes do, with a number of threads; tells whether freed pages are kept."""
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    torch.set_num_threads(threads)
    return keep_pages and keep_freed_pages()


def machine() -> dict[str, Any]:
    """Describes the machine in general words."""
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "cpu": names[0] if names else "unknown",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


class Stopwatch:
    """Adds up seconds by part; the time of a nested part does not count for the outer part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = 0.0

    def _pass(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._pass()
        self._running.append(name)
        try:
            yield
        finally:
            self._pass()
            self._running.pop()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that does the same, timed."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return call

    def watch(self, owner: Any, method: str, name: str) -> None:
        """Times a method of an object from now on."""
        setattr(owner, method, self.timed(name, getattr(owner, method)))


class CountFlops(TorchDispatchMode):
    """Counts FLOPs as torch's FlopCounterMode, whose tracking of modules does not work with tensordict."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        count = flop_registry.get(function._overloadpacket)
        self.flops += 0 if count is None else count(*args, **(kwargs or {}), out_val=out)
        return out


class Learner(ABC):
    """A recipe's learner with a replay of random frames: ``step()`` draws a batch and takes an update.

    Args:
        cfg (DictConfig): the recipe's config.
        rows (int): the number of agent steps in the replay.
        ranks (Ranks): the ranks that share each batch. Defaults to one process.
    """

    cfg: DictConfig
    agent: Agent
    buffer: Any
    networks: list[nn.Module]  # everything that learns or follows
    episodes: TensorDict  # which the replay has again and again

    def __init__(self, cfg: DictConfig, rows: int, ranks: Ranks = ALONE) -> None:
        self.cfg, self.ranks = cfg, ranks
        self.number = 0
        seed_everything(cfg.seed)
        self._build()
        self.episodes = fill(self.buffer, rows, self._frame_shape(), self._actions)

    @abstractmethod
    def _build(self) -> None: ...

    @abstractmethod
    def _frame_shape(self) -> tuple[int, int, int]: ...

    @abstractmethod
    def _actions(self, count: int) -> Tensor: ...

    @abstractmethod
    def update(self, batch: TensorDictBase, views: TensorDictBase) -> None:
        """Runs one update, and the recipe's further steps with the batch, such as new priorities."""

    def sample(self) -> tuple[TensorDictBase, TensorDictBase]:
        """Draws a batch for RL and the data of the auxiliary task."""
        batch = self.buffer.sample()
        return batch, self.agent.task.sample(batch)

    def step(self) -> None:
        self.update(*self.sample())
        self.number += 1

    @property
    @abstractmethod
    def all_optimizers(self) -> list[Optimizer]: ...

    @abstractmethod
    def watch_parts(self, watch: Stopwatch) -> None:
        """Measures the time of each part of an update with a stopwatch, permanently from now on."""

    def _watch_contrastive(self, watch: Stopwatch) -> None:
        watch.watch(self, "sample", "sample")
        loss = getattr(self.agent.task, "loss_module", None)
        if loss is not None:
            watch.watch(loss, "forward", "contrastive queries")
            watch.watch(loss, "encode_keys", "contrastive keys")

    def parameters(self) -> dict[str, Tensor]:
        """Returns all trained parameters and all slow copies by name, without gradients."""
        named = {}
        for number, network in enumerate(self.networks):
            named |= {f"{number}.{name}": value for name, value in network.state_dict().items()}
        return {
            name: value.detach() for name, value in named.items() if value is not None and value.is_floating_point()
        }

    def replay_bytes(self) -> tuple[int, int]:
        """Returns the size of the written rows and the size of all rows."""
        rows = self.buffer.storage._storage
        full = sum(value.numel() * value.element_size() for value in rows.values(True, True))
        return full * len(self.buffer) // self.buffer.storage.max_size, full


class SACLearner(Learner):
    """The learner of recipes/sac_mcurl.py."""

    recipe = "sac_mcurl"
    action_dim = 1  # cartpole's

    def _build(self) -> None:
        cfg, env = self.cfg, self.cfg.env
        spaces = SimpleNamespace(
            observation_spec={"pixels": torch.empty(3 * env.num_frames, env.image_size, env.image_size, device="meta")},
            action_spec=Bounded(-1, 1, shape=(self.action_dim,)),
        )
        self.buffer = sac_mcurl.make_replay(cfg, Path(tempfile.gettempdir()), self.ranks)
        self.agent = sac_mcurl.make_agent(cfg, spaces, self.buffer, torch.device("cpu"))
        self.networks = [self.agent.losses, self.agent.task]

    def _frame_shape(self) -> tuple[int, int, int]:
        return 3, self.cfg.env.image_size, self.cfg.env.image_size

    def _actions(self, count: int) -> Tensor:
        return torch.rand(count, self.action_dim) * 2 - 1

    @property
    def all_optimizers(self) -> list[Optimizer]:
        return list(self.agent.optimizers.values())

    def update(self, batch: TensorDictBase, views: TensorDictBase) -> None:
        self.agent.begin_step(self.agent.first_update_step + self.number)
        self.agent.update(batch, views)

    def watch_parts(self, watch: Stopwatch) -> None:
        self._watch_contrastive(watch)
        losses = self.agent.losses
        watch.watch(losses, "critic_loss", "critic")
        watch.watch(losses, "actor_loss", "actor")
        for target, step in (
            (losses.target_critic, "step"),
            (losses.target_encoder, "step"),
            (self.agent.task, "update_targets"),
        ):
            watch.watch(target, step, "targets")
        parts = {"alpha": "actor", "auxiliary_encoder": "contrastive queries", "auxiliary": "contrastive queries"}
        owners = {optimizer: parts.get(name, name) for name, optimizer in self.agent.optimizers.items()}
        for optimizer in owners:
            watch.watch(optimizer, "step", "optimizers")
        optimize = sac.optimize

        def optimize_timed(loss: Tensor, *optimizers: Any, **options: Any) -> Any:
            with watch.part(owners[optimizers[0]]):  # all but the optimizers' time is the way back through a loss
                return optimize(loss, *optimizers, **options)

        sac.optimize = optimize_timed


class RainbowLearner(Learner):
    """The learner of recipes/rainbow_mcurl.py."""

    recipe = "rainbow_mcurl"
    num_actions = ATARI_ACTIONS

    def _build(self) -> None:
        cfg, env = self.cfg, self.cfg.env
        spaces = SimpleNamespace(
            observation_spec={"pixels": torch.empty(env.num_frames, env.image_size, env.image_size, device="meta")},
            action_spec=Categorical(ATARI_ACTIONS),
        )
        self.buffer = rainbow_mcurl.make_replay(cfg, Path(tempfile.gettempdir()), self.ranks)
        self.agent = rainbow_mcurl.make_agent(cfg, spaces, self.buffer, torch.device("cpu"))
        self.networks = [self.agent.value, self.agent.task]

    def _frame_shape(self) -> tuple[int, int, int]:
        return 1, self.cfg.env.image_size, self.cfg.env.image_size

    def _actions(self, count: int) -> Tensor:
        return torch.randint(ATARI_ACTIONS, (count,))

    @property
    def all_optimizers(self) -> list[Optimizer]:
        return [self.agent.optimizer]

    def update(self, batch: TensorDictBase, views: TensorDictBase) -> None:
        self.agent.update(batch, views)
        self.buffer.update_tensordict_priority(batch)

    def watch_parts(self, watch: Stopwatch) -> None:
        self._watch_contrastive(watch)
        watch.watch(self.agent.value, "forward", "value")
        watch.watch(self.agent.value, "reset_target_noise", "targets")
        watch.watch(self.agent.task, "update_targets", "targets")
        watch.watch(self.agent.optimizer, "step", "optimizers")
        watch.watch(self.buffer, "update_tensordict_priority", "priorities")
        rainbow.optimize = watch.timed("backward and clipping", rainbow.optimize)


LEARNERS = {"sac": SACLearner, "rainbow": RainbowLearner}


def make_learner(algorithm: str, *overrides: str, rows: int = 4 * EPISODE, ranks: Ranks = ALONE) -> Learner:
    """Builds the learner of a recipe, ``sac`` or ``rainbow``, with overrides as on its command line."""
    made = LEARNERS[algorithm]
    return made(settings(made.recipe, *overrides), rows, ranks)


def fill(buffer: Any, rows: int, frame_shape: tuple[int, int, int], actions: Callable[[int], Tensor]) -> TensorDict:
    """Writes at least ``rows`` rows by repeating a few random episodes; returns these episodes."""
    episodes = [random_episode(buffer, frame_shape, actions) for _ in range(4)]
    block = torch.cat(episodes[: max(1, rows // EPISODE)])
    for _ in range(0, rows, len(block)):
        buffer.extend(block)
    return block


def random_episode(buffer: Any, frame_shape: tuple[int, int, int], actions: Callable[[int], Tensor]) -> TensorDict:
    """Makes the steps of an episode, observations stacked as an environment stacks them."""
    frames = torch.randint(256, (EPISODE + buffer.num_frames, *frame_shape), dtype=torch.uint8)
    windows = frames.unfold(0, buffer.num_frames, 1).movedim(-1, 1)
    stacks = stack_frames(windows, 1, step=torch.arange(len(windows)), padding=buffer.padding)
    last = torch.arange(EPISODE)[:, None] == EPISODE - 1
    following = {
        "pixels": stacks[1:],
        "reward": torch.rand(EPISODE, 1),
        "terminated": torch.zeros_like(last),
        "truncated": last,
    }
    return TensorDict({"pixels": stacks[:-1], "action": actions(EPISODE), "next": following}, [EPISODE])
