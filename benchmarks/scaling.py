"""Measures frames per second by number of workers, the overhead of each backend, and the time of a Ray buffer.

    python benchmarks/scaling.py [--quick] [--backends process ray] [--json FILE]

Environments sleep at each step, like a simulator on another machine, so that the number of cores does not limit the
workers and only the overhead of the backend remains. Ray gives its workers a low priority: set RAY_worker_niceness=0 if
other programs use the machine.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from measuring import milliseconds, show
from torchrl.data import LazyTensorStorage
from torchrl.envs import EnvBase

from mcurl_torchrl import FrameReplayBuffer, make_pixel_env
from mcurl_torchrl.agents.explorers import SACExplorer
from mcurl_torchrl.modules import GaussianPolicy
from mcurl_torchrl.training import InlineSource, WorkerSource

SIDE, NUM_FRAMES = 84, 4


class Slow(gymnasium.Env):
    """An environment with grey images, whose steps take a given time."""

    observation_space = gymnasium.spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, seconds: float) -> None:
        self.seconds, self.count = seconds, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        self.count = 0
        return self._image(), {}

    def step(self, action: np.ndarray) -> tuple:
        time.sleep(self.seconds)
        self.count += 1
        return self._image(), 0.0, False, self.count == 200, {}

    def _image(self) -> np.ndarray:
        return np.full((SIDE, SIDE, 1), self.count % 251, np.uint8)


def make_env(seconds: float) -> EnvBase:
    return make_pixel_env(Slow(seconds), num_frames=NUM_FRAMES)


def random_action() -> torch.Tensor:
    return torch.rand(2) * 2 - 1


def make_explorer() -> SACExplorer:
    """A random policy: a network would take time that is not to be measured here."""
    return SACExplorer(GaussianPolicy([NUM_FRAMES, SIDE, SIDE], 2, hidden_dim=64), random_action)


def frames_per_second(backend: str, workers: int, *, seconds: float, frames: int) -> float:
    """Collects into a buffer, without learning, and returns the steps of all environments in a second."""
    inline, explorer, warm = backend == "inline", make_explorer(), 40 * workers
    storage = LazyTensorStorage(2000 * workers, ndim=1 if inline else 2)
    buffer = FrameReplayBuffer(storage=storage, num_columns=workers, num_frames=NUM_FRAMES)
    source: Any
    if inline:
        source = InlineSource([make_env(seconds)], explorer, buffer, seed=1)
    else:
        source = WorkerSource(
            partial(make_env, seconds),
            explorer,
            buffer,
            backend=backend,
            num_workers=workers,
            fragment_len=16,
            total_agent_steps=2 * (warm + frames),
            seed=1,
        )
    for step in range(1, warm + 1):
        source.collect(step)
    written, begin = buffer.write_count, time.perf_counter()
    for step in range(warm + 1, warm + frames + 1):
        source.collect(step)
    rate = (buffer.write_count - written) / (time.perf_counter() - begin)
    if not inline:
        source.close()
    return rate


def scaling(backends: list[str], workers: list[int], *, seconds: float, frames: int) -> list[dict[str, Any]]:
    """Measures frames per second against the number of workers."""
    table = []
    for backend in backends:
        for count in workers:
            rate = frames_per_second(backend, count, seconds=seconds, frames=frames * count)
            first = next((row for row in table if row["backend"] == backend), None)
            speedup = rate / first["frames_per_second"] if first else 1.0
            row = {"backend": backend, "workers": count, "frames_per_second": rate, "speedup": speedup}
            table.append({**row, "of_the_possible": rate * seconds / count})
            show("so far", table[-1:])
    return table


def overhead(backends: list[str], *, frames: int) -> list[dict[str, Any]]:
    """Measures one worker of each backend against one environment in this process, whose steps take 5 ms or none."""
    table = []
    for seconds in (0.0, 0.005):
        rates = {name: frames_per_second(name, 1, seconds=seconds, frames=frames) for name in ("inline", *backends)}
        table += [
            {
                "backend": name,
                "step_ms": 1e3 * seconds,
                "frames_per_second": rate,
                "inline_is_1": rate / rates["inline"],
            }
            for name, rate in rates.items()
        ]
    return table


def ray_round_trip(rounds: int) -> list[dict[str, Any]]:
    """Times a batch from a buffer in this process and from one in an actor, of frames of Rainbow's size."""
    import ray

    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False)
    table = []
    for batch_size in (32, 128):
        options = {"num_columns": 1, "num_frames": NUM_FRAMES, "batch_size": batch_size}
        here = FrameReplayBuffer(storage=LazyTensorStorage(2000, ndim=2), **options)
        there = FrameReplayBuffer(
            service_backend="ray",
            service_backend_options={"remote_config": {"num_cpus": 0}},
            storage=partial(LazyTensorStorage, 2000, ndim=2),
            **options,
        )
        steps = make_env(0.0).rollout(200)
        for buffer in (here, there):
            buffer.extend(steps[None])
        client = there.client()
        times = milliseconds({"here": here.sample, "there": client.sample}, rounds)
        megabytes = here.sample().bytes() / 1e6
        table.append(
            {
                "batch_size": batch_size,
                "batch_mb": megabytes,
                "here_ms": times["here"],
                "ray_ms": times["there"],
                "round_trip_ms": times["there"] - times["here"],
            }
        )
        there.shutdown()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="seconds rather than minutes")
    parser.add_argument("--backends", nargs="+", default=["process", "ray"], choices=["process", "ray"])
    parser.add_argument("--json", type=Path, help="where to keep the numbers")
    chosen = parser.parse_args()
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    seconds, frames = 0.05, 48 if chosen.quick else 320
    workers = [1, 2] if chosen.quick else [1, 2, 4, 8]
    if "ray" in chosen.backends:
        import ray

        ray.init(include_dashboard=False, log_to_driver=False, num_cpus=max(workers))
    result: dict[str, Any] = {
        "cores": os.cpu_count(),
        "step_seconds": seconds,
        "workers": scaling(chosen.backends, workers, seconds=seconds, frames=frames),
        "overhead": overhead(chosen.backends, frames=4 * frames),
    }
    show("frames per second against workers", result["workers"])
    show("one worker; inline is 1", result["overhead"])
    if "ray" in chosen.backends:
        result["ray_round_trip"] = ray_round_trip(10 if chosen.quick else 50)
        show("a batch from a buffer in an actor of Ray", result["ray_round_trip"])
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
