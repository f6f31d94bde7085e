"""What one learner step costs beside the released codes, in one process, on the same threads and allocator settings.

    git clone https://github.com/aravindsrinivas/curl_rainbow
    git clone https://github.com/teslacool/m-curl
    pip install kornia scikit-image  # kornia for the first, scikit-image for the second
    python benchmarks/released.py --curl-rainbow curl_rainbow [--threads 2] [--json FILE] [--preset paper]
    python benchmarks/released.py --m-curl m-curl

The released code is imported from the clone; none of it is kept here. Contenders take turns, a block of steps each,
and a ratio is of two blocks of the same round, so that what else the machine does hits them alike. The C allocator is
told to keep freed pages, for all; `--default-allocator` leaves it alone, for all.

Atari (`--curl-rainbow`): data-efficient Rainbow, batch 32 of 4x84x84, 20-step returns, 18 actions, the same random
episodes in every replay. A step is what both main loops do once per decision, without acting: new noise, sample,
update, momentum copy, priorities. The bars: `algo=curl preset=paper`, which does the released code's work, 5 times as
fast; `algo=mcurl preset=paper`, which does more, faster. How CURL's work differs:

- The released code runs all heads in each of its five passes through the network; ours only those whose output is used.
- It moves a momentum copy of the whole network; ours of what the keys go through, encoder and projection.
- Its priorities contain the contrastive loss, ours do not, which costs nothing.

DMControl (`--m-curl`): one update of SAC with M-CURL as published, batch 128 and 16 x 32 observations of 9x84x84. Ours
multiplies less: it encodes all observations that are hidden by zeros as one, which is most of it, and in the actor's
step runs the convolutions that actor and critic share once.

`parameters` are those that are trained; `gflop` is the work of a step's matrix products and convolutions; `cpu_ms` is
of all threads, waiting ones included, and with `--threads 1` depends less on what else the machine does.

What the clones need on today's versions:

- curl_rainbow: nothing. Its augmentation is kornia's and part of every step, so kornia has to be there; agent.py,
  memory.py and model.py need no simulator.
- m-curl: in ctmr_sac.py `q = q * self.scaling` for `q *= self.scaling`, which autograd refuses today (with NumPy 1.24
  to 1.26 also `bool` for `np.bool` in utils.py). gym, of which utils.py uses a base class that is not needed here, is
  replaced while it is imported.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from tensordict import TensorDict
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torchrl.data import Bounded, Categorical, Composite, Unbounded

from mcurl_torchrl.training import check_finite, keep_freed_pages, seed_everything

sys.path.append(str(Path(__file__).parents[1] / "recipes"))
import rainbow_builders
import rainbow_mcurl
import sac_builders
import sac_mcurl
from command_line import config_folder
from shared_builders import sample_slices

NUM_ACTIONS, ATARI_FRAME, ATARI_STACK, ATARI_EPISODE = 18, (1, 84, 84), 4, 200
DMC_FRAME, DMC_STACK, DMC_EPISODE = (3, 100, 100), 3, 125
BARS = {"curl paper": 5.0, "mcurl paper": 1.0}  # how many times as fast as the released code


@dataclass
class Contender:
    """One step to be timed, and how many parameters it trains."""

    step: Callable[[], Any]
    parameters: int


@contextlib.contextmanager
def importable(folder: Path, **stand_ins: ModuleType) -> Iterator[None]:
    """Lets modules be imported from a folder, for a while, with stand-ins for what they import and do not need here."""
    if not folder.is_dir():
        raise SystemExit(f"{folder} is not a folder; it must be a clone of the released code")
    missing = {name: module for name, module in stand_ins.items() if name not in sys.modules}
    sys.path.insert(0, str(folder.resolve()))
    sys.modules.update(missing)
    try:
        yield
    finally:
        sys.path.remove(str(folder.resolve()))
        for name in missing:
            del sys.modules[name]


def settings(recipe: str, *overrides: str) -> DictConfig:
    """Composes a recipe's config."""
    with initialize_config_dir(str(config_folder(recipe)), version_base="1.3"):
        return compose(recipe, overrides=list(overrides))


def trained(*optimizers: torch.optim.Optimizer) -> int:
    """Counts the parameters that optimizers step, each once."""
    parameters = {p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    return sum(parameter.numel() for parameter in parameters)


def random_episodes(
    count: int, length: int, frame: tuple[int, ...], stack: int, *, padding: str, action: Callable[[], torch.Tensor]
) -> list[TensorDict]:
    """Makes episodes in TorchRL's layout; before the first frame there are zeros, or the first frame again."""
    made = []
    for _ in range(count):
        frames = torch.randint(256, (length + stack, *frame), dtype=torch.uint8)
        frames[: stack - 1] = 0 if padding == "zeros" else frames[stack - 1]
        stacks = torch.cat([frames[k : k + length + 1] for k in range(stack)], 1)
        last = (torch.arange(length) == length - 1)[:, None]
        after = {"pixels": stacks[1:], "reward": torch.randint(-1, 2, (length, 1)).float()}
        after |= {"terminated": last, "truncated": torch.zeros_like(last)}
        made.append(TensorDict({"pixels": stacks[:-1], "action": action(), "next": after}, [length]))
    return made


def released_rainbow(folder: Path, data: list[TensorDict]) -> Contender:
    """Builds the released CURL-Rainbow with its defaults, and what its main.py does in a step of learning."""
    with importable(folder):
        agent_module, memory_module = importlib.import_module("agent"), importlib.import_module("memory")
    options = SimpleNamespace(
        device=torch.device("cpu"),
        game="ms_pacman",
        history_length=ATARI_STACK,
        architecture="data-efficient",
        hidden_size=256,
        noisy_std=0.1,
        atoms=51,
        V_min=-10,
        V_max=10,
        model=None,
        priority_exponent=0.5,
        priority_weight=0.4,
        multi_step=20,
        discount=0.99,
        learning_rate=1e-4,
        adam_eps=1.5e-4,
        batch_size=32,
        norm_clip=10,
    )
    memory = memory_module.ReplayMemory(options, 100_000)
    for episode in data:
        for row in episode:
            after = row["next"]
            memory.append(row["pixels"] / 255, int(row["action"]), float(after["reward"]), bool(after["terminated"]))
    agent = agent_module.Agent(options, SimpleNamespace(action_space=lambda: NUM_ACTIONS))

    def step() -> None:
        agent.reset_noise()
        agent.learn(memory)
        agent.update_momentum_net()

    return Contender(step, trained(agent.optimiser))


def our_rainbow(data: list[TensorDict], *overrides: str) -> Contender:
    """Builds the Rainbow recipe's parts, and what its loop does in a step of learning."""
    cfg = settings("rainbow_mcurl", *overrides)
    pixels = Unbounded((ATARI_STACK, *ATARI_FRAME[1:]), dtype=torch.uint8)
    env = SimpleNamespace(observation_spec=Composite(pixels=pixels), action_spec=Categorical(NUM_ACTIONS))
    policy = rainbow_builders.make_policy(cfg, env, torch.device("cpu"))
    value = rainbow_builders.make_value_loss(cfg, policy)
    contrastive, momentum = rainbow_builders.make_contrastive(cfg, policy)
    optimizer, schedule = rainbow_builders.make_optimizer(cfg, policy, contrastive)
    buffer, slices = rainbow_builders.make_replay(cfg, Path(tempfile.gettempdir()))
    for episode in data:
        buffer.extend(episode)

    def step() -> None:
        policy.reset_noise()
        batch = buffer.sample()
        views = batch if slices is None else sample_slices(cfg.contrastive, slices)
        metrics = rainbow_mcurl.update(
            cfg, policy, value, contrastive, momentum, optimizer, schedule, batch, views, False
        )
        check_finite(0, **{name: number for name, number in metrics.items() if name.startswith("loss_")})
        buffer.update_tensordict_priority(batch)

    return Contender(step, trained(optimizer))


def released_sac(folder: Path, data: list[TensorDict]) -> Contender:
    """Builds the released M-CURL as its README starts it on cartpole-swingup; its log is thrown away."""
    if "q *= self.scaling" in (folder / "ctmr_sac.py").read_text():
        raise SystemExit(
            "autograd refuses a line of the released code today. To change it in the clone:\n"
            f"  sed -i 's/q \\*= self.scaling/q = q * self.scaling/' {folder / 'ctmr_sac.py'}"
        )
    gym = ModuleType("gym")
    gym.Wrapper = object
    with importable(folder, gym=gym):
        agent_module, utils = importlib.import_module("ctmr_sac"), importlib.import_module("utils")
    device, channels = torch.device("cpu"), DMC_FRAME[0] * DMC_STACK
    buffer = utils.ReplayBuffer(
        obs_shape=(channels, *DMC_FRAME[1:]),
        action_shape=(1,),
        capacity=sum(len(episode) for episode in data) + 1,
        batch_size=128,
        device=device,
        image_size=84,
        mtm_bsz=16,
        mtm_length=32,
        mtm_ratio=0.5,
    )
    for episode in data:
        for row in episode:
            after = row["next"]
            buffer.add(row["pixels"], row["action"], after["reward"], after["pixels"], bool(after["terminated"]))
    agent = agent_module.CtmrSacAgent(
        obs_shape=(channels, 84, 84),
        action_shape=(1,),
        device=device,
        hidden_dim=1024,
        init_temperature=0.1,
        alpha_lr=1e-4,
        alpha_beta=0.5,
        critic_tau=0.01,
        encoder_tau=0.05,
        num_attn_layer=2,
        adam_warmup_step=3000,
        encoder_annealling=True,
        mtm_bsz=16,
        dropout=0.1,
    )
    log = SimpleNamespace(log=lambda *arguments: None)
    numbers = iter(range(1, 10_000))  # at step 0 it would log histograms

    def step() -> None:
        agent.update(buffer, log, next(numbers))

    optimizers = (agent.actor_optimizer, agent.critic_optimizer, agent.log_alpha_optimizer, agent.cpc_optimizer)
    return Contender(step, trained(*optimizers))


def our_sac(data: list[TensorDict], *overrides: str) -> Contender:
    """Builds the SAC recipe's parts, and what its loop does in a step of learning."""
    cfg = settings("sac_mcurl", *overrides)
    pixels = Unbounded((DMC_FRAME[0] * DMC_STACK, *DMC_FRAME[1:]), dtype=torch.uint8)
    env = SimpleNamespace(observation_spec=Composite(pixels=pixels), action_spec=Bounded(-1.0, 1.0, (1,)))
    sac = sac_builders.make_sac(cfg, env, torch.device("cpu"))
    contrastive = sac_builders.make_contrastive(cfg, sac)
    targets = sac_builders.make_targets(cfg, sac, contrastive)
    optimizers, schedules = sac_builders.make_optimizers(cfg, sac, contrastive)
    buffer, slices = sac_builders.make_replay(cfg, Path(tempfile.gettempdir()))
    for episode in data:
        buffer.extend(episode)
    numbers = iter(range(1, 10_000))

    def step() -> None:
        batch, views = buffer.sample(), sample_slices(cfg.contrastive, slices)
        metrics = sac_mcurl.update(
            cfg, next(numbers), sac, contrastive, targets, optimizers, schedules, batch, views, False
        )
        check_finite(0, **{name: number for name, number in metrics.items() if name.startswith("loss_")})

    return Contender(step, trained(*optimizers.values()))


class FlopCount(TorchDispatchMode):
    """Adds up the floating-point operations of matrix products and convolutions, forward and backward.

    By torch's own formulas; its FlopCounterMode keeps modules in a weak dictionary, where tensordict's cannot be.
    """

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=out)
        return out


def gigaflops(contender: Contender) -> float:
    """Counts the work of a step, in 10^9 operations: the mean of two, as SAC's actor learns in every second."""
    with FlopCount() as count:
        contender.step()
        contender.step()
    return count.total / 2e9


def compare(contenders: dict[str, Contender], blocks: int, steps: int) -> list[dict[str, Any]]:
    """Lets contenders take turns, a block of steps each; the first is the one that the others are compared with."""
    gflop = {name: gigaflops(contender) for name, contender in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    cpu_times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(blocks):
        for name, contender in contenders.items():
            start, cpu_start = time.perf_counter(), time.process_time()
            for _ in range(steps):
                contender.step()
            times[name].append((time.perf_counter() - start) / steps * 1e3)
            cpu_times[name].append((time.process_time() - cpu_start) / steps * 1e3)
    first = next(iter(contenders))
    table = []
    for name, contender in contenders.items():
        ratios = [theirs / ours for theirs, ours in zip(times[first], times[name], strict=True)]
        table.append(
            {
                "what": name,
                "ms": statistics.median(times[name]),
                "cpu_ms": statistics.median(cpu_times[name]),
                "times_as_fast": statistics.median(ratios),
                "lowest": min(ratios),
                "highest": max(ratios),
                "gflop": gflop[name],
                "parameters": contender.parameters,
                "blocks_ms": times[name],
                "blocks_cpu_ms": cpu_times[name],
                "ratios": ratios,
            }
        )
    return table


def show(title: str, table: list[dict[str, Any]]) -> None:
    """Prints a table, but for its lists."""
    print(f"\n{title}")
    columns = [name for name, value in table[0].items() if not isinstance(value, list)]
    cells = [columns] + [
        [f"{row[name]:.2f}" if isinstance(row[name], float) else str(row[name]) for name in columns] for row in table
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(columns))]
    for row in cells:
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def atari(folder: Path, rows: int, presets: list[str], blocks: int, steps: int) -> list[dict[str, Any]]:
    """Compares learner steps on Atari and says whether the bars are met."""
    count, length = math.ceil(rows / ATARI_EPISODE), ATARI_EPISODE
    data = random_episodes(
        count,
        length,
        ATARI_FRAME,
        ATARI_STACK,
        padding="zeros",
        action=lambda: torch.randint(NUM_ACTIONS, (length,)),
    )
    contenders = {"released CURL": released_rainbow(folder, data)}
    if "paper" in presets:
        contenders["curl paper"] = our_rainbow(data, "env=RoadRunner", "algo=curl", "preset=paper")
    for preset in presets:
        contenders[f"mcurl {preset}"] = our_rainbow(data, "env=RoadRunner", "algo=mcurl", f"preset={preset}")
    table = compare(contenders, blocks, steps)
    for row in table:
        if (bar := BARS.get(row["what"])) is not None:
            row |= {"bar": bar, "met": row["times_as_fast"] >= bar}
    show(f"Atari: one learner step, median of {blocks} blocks of {steps}", table)
    for row in table:
        if "bar" in row:
            verdict = "met" if row["met"] else "NOT met"
            print(f"  {row['what']}: {row['times_as_fast']:.2f} times as fast; the bar of {row['bar']:g} is {verdict}")
    return table


def dmc(folder: Path, rows: int, blocks: int) -> list[dict[str, Any]]:
    """Compares updates of SAC with M-CURL; two a block, as the actor learns in every second."""
    count, length = math.ceil(rows / DMC_EPISODE), DMC_EPISODE
    data = random_episodes(
        count, length, DMC_FRAME, DMC_STACK, padding="repeat", action=lambda: torch.rand(length, 1) * 2 - 1
    )
    contenders = {
        "released M-CURL": released_sac(folder, data),
        "mcurl paper": our_sac(data, "env=cartpole-swingup", "algo=mcurl", "preset=paper"),
    }
    table = compare(contenders, blocks, 2)
    show(f"DMControl: one update at the published size, median of {blocks} blocks of 2", table)
    return table


def main() -> None:
    """Runs what clones are given for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curl-rainbow", type=Path, metavar="CLONE", help="of aravindsrinivas/curl_rainbow")
    parser.add_argument("--m-curl", type=Path, metavar="CLONE", help="of teslacool/m-curl")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="torch's; %(default)s by default")
    parser.add_argument("--preset", nargs="+", choices=("paper", "cpu"), default=["paper", "cpu"], help="of ours")
    parser.add_argument("--blocks", type=int, default=9, help="how often all take turns on Atari (%(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="of a block on Atari (%(default)s)")
    parser.add_argument(
        "--sac-blocks", type=int, default=2, help="the same with SAC, two updates a block (%(default)s)"
    )
    parser.add_argument("--rows", type=int, default=5_000, help="in a replay on Atari (%(default)s)")
    parser.add_argument("--default-allocator", action="store_true", help="do not tell glibc to keep freed pages")
    parser.add_argument("--json", type=Path, help="where to write the numbers as well")
    arguments = parser.parse_args()
    if arguments.curl_rainbow is None and arguments.m_curl is None:
        parser.error("nothing to compare with: give --curl-rainbow, --m-curl, or both")
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    torch.set_num_threads(arguments.threads)
    kept = not arguments.default_allocator and keep_freed_pages()
    seed_everything(1)

    results: dict[str, Any] = {"threads": torch.get_num_threads(), "torch": torch.__version__, "pages_kept": kept}
    if arguments.curl_rainbow is not None:
        results["kornia"] = importlib.import_module("kornia").__version__
        results["atari"] = atari(
            arguments.curl_rainbow, arguments.rows, arguments.preset, arguments.blocks, arguments.steps
        )
    if arguments.m_curl is not None:
        results["dmc"] = dmc(arguments.m_curl, 1_000, arguments.sac_blocks)
    print("\n" + ", ".join(f"{name}: {value}" for name, value in results.items() if not isinstance(value, list)))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
