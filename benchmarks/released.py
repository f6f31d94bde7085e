"""Compares the time of a learner step with the released code, in one process, with the same threads and allocator.

    git clone https://github.com/aravindsrinivas/curl_rainbow
    git clone https://github.com/teslacool/m-curl
    pip install kornia scikit-image  # kornia for the first, scikit-image for the second
    python benchmarks/released.py --curl-rainbow curl_rainbow [--threads 2] [--json FILE] [--preset paper]
    python benchmarks/released.py --m-curl m-curl

The released code is imported from the clone and is not part of this repository. The compared programs run in turns, a
block of steps each, and a ratio compares two blocks of the same round, so that other processes slow both equally. The C
allocator is told to keep freed pages, for all programs; with `--default-allocator` it is not changed.

Atari (`--curl-rainbow`): data-efficient Rainbow, batch 32 of 4x84x84, 20-step returns, 18 actions, the same random
episodes in every replay. A step contains everything that both main loops do for each agent step, except acting: new
noise, sample, update, momentum copy, priorities. The goals: `algo=curl preset=paper`, which computes the same as the
released code, 5 times as fast; `algo=mcurl preset=paper`, which computes more, faster than the released code. The work
of both versions of CURL differs:

- The released code computes all heads in each of its five passes through the network; ours only those that are used.
- It updates a momentum copy of the whole network; ours has a momentum copy of encoder and projection only.
- Its priorities contain the contrastive loss, ours do not; this does not change the time.

`kernels alone` is CURL's step with torch's kernels only: bare.py.

DMControl (`--m-curl`): one update of SAC with M-CURL as published, batch 128 and 16 x 32 observations of 9x84x84. Ours
has fewer FLOPs: most of the difference is that it encodes all observations that were replaced by zeros once; and the
actor's update computes the convolutions that actor and critic share once.

`parameters` is the number of trained parameters; `gflop` counts the matrix products and convolutions of a step;
`cpu_ms` is the CPU time of all threads, including waiting threads, and with `--threads 1` other processes affect it
less.

What the clones need with current versions:

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
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import bare
import torch
from measuring import show
from setups import CountFlops, Learner, machine, make_learner, prepare_process
from tensordict import TensorDict

BARS = {"curl paper": 5.0, "mcurl paper": 1.0}  # how many times as fast as the released code


@dataclass
class Contender:
    """A step to time, and its number of trained parameters."""

    step: Callable[[], Any]
    parameters: int


@contextlib.contextmanager
def importable(folder: Path, **stand_ins: ModuleType) -> Iterator[None]:
    """Lets modules be imported from a folder for a while, with empty modules instead of imports that are not needed."""
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


def trained(*optimizers: torch.optim.Optimizer) -> int:
    """Counts the parameters that optimizers step, each once."""
    parameters = {p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    return sum(parameter.numel() for parameter in parameters)


def contender(learner: Learner) -> Contender:
    """Makes a contender of a recipe's learner; Rainbow's loop draws new noise before each step."""

    def step() -> None:
        learner.agent.begin_step(learner.agent.first_update_step + learner.number)
        learner.step()

    return Contender(step, trained(*learner.all_optimizers))


def released_rainbow(folder: Path, data: TensorDict, rows: int, num_actions: int) -> Contender:
    """Builds the released CURL-Rainbow with its defaults, and what its main.py does in a step of learning."""
    with importable(folder):
        agent_module, memory_module = importlib.import_module("agent"), importlib.import_module("memory")
    options = SimpleNamespace(
        device=torch.device("cpu"),
        game="ms_pacman",
        history_length=4,
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
    # With few rows its sampler would never end: a batch has one row of each 32nd part, without the newest 20 rows.
    for row in itertools.chain.from_iterable(itertools.repeat(data, max(1, rows // len(data)))):
        after = row["next"]
        memory.append(row["pixels"] / 255, int(row["action"]), float(after["reward"]), bool(after["truncated"]))
    agent = agent_module.Agent(options, SimpleNamespace(action_space=lambda: num_actions))

    def step() -> None:
        agent.reset_noise()
        agent.learn(memory)
        agent.update_momentum_net()

    return Contender(step, trained(agent.optimiser))


def released_sac(folder: Path, data: TensorDict) -> Contender:
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
    device = torch.device("cpu")
    buffer = utils.ReplayBuffer(
        obs_shape=tuple(data["pixels"].shape[1:]),
        action_shape=(1,),
        capacity=len(data) + 1,
        batch_size=128,
        device=device,
        image_size=84,
        mtm_bsz=16,
        mtm_length=32,
        mtm_ratio=0.5,
    )
    for row in data:
        after = row["next"]
        buffer.add(row["pixels"], row["action"], after["reward"], after["pixels"], bool(after["truncated"]))
    agent = agent_module.CtmrSacAgent(
        obs_shape=(9, 84, 84),
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


def gigaflops(contender: Contender) -> float:
    """Counts the work of a step, in 10^9 operations: the mean of two, as SAC's actor learns in every second."""
    with CountFlops() as counter:
        contender.step()
        contender.step()
    return counter.flops / 2e9


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


def atari(folder: Path, rows: int, presets: list[str], blocks: int, steps: int) -> list[dict[str, Any]]:
    """Compares learner steps on Atari and prints whether the goals are met."""

    def ours(loss: str, preset: str) -> Learner:
        return make_learner("rainbow", "env=RoadRunner", f"algo={loss}", f"preset={preset}", rows=rows)

    curl = ours("curl", "paper")
    contenders = {"released CURL": released_rainbow(folder, curl.episodes, rows, curl.num_actions)}
    if "paper" in presets:
        contenders["curl paper"] = contender(curl)
        contenders["kernels alone"] = Contender(*bare.make_step())
    contenders |= {f"mcurl {preset}": contender(ours("mcurl", preset)) for preset in presets}
    table = compare(contenders, blocks, steps)
    for row in table:
        if (bar := BARS.get(row["what"])) is not None:
            row |= {"bar": bar, "met": row["times_as_fast"] >= bar}
    show(f"Atari: one learner step, median of {blocks} blocks of {steps}", table, digits=2)
    for row in table:
        if "bar" in row:
            verdict = "met" if row["met"] else "NOT met"
            print(f"  {row['what']}: {row['times_as_fast']:.2f} times as fast; the bar of {row['bar']:g} is {verdict}")
    return table


def dmc(folder: Path, rows: int, blocks: int) -> list[dict[str, Any]]:
    """Compares updates of SAC with M-CURL; two a block, as the actor learns in every second."""
    ours = make_learner("sac", "env=cartpole-swingup", "algo=mcurl", "preset=paper", rows=rows)
    contenders = {"released M-CURL": released_sac(folder, ours.episodes), "mcurl paper": contender(ours)}
    table = compare(contenders, blocks, 2)
    show(f"DMControl: one update at the published size, median of {blocks} blocks of 2", table, digits=2)
    return table


def main() -> None:
    """Runs the comparisons for which a clone is given."""
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
    kept = prepare_process(arguments.threads, keep_pages=not arguments.default_allocator)

    results: dict[str, Any] = {"machine": machine(), "pages_kept": kept}
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
