"""A long run at the smallest size: memory stays flat once the buffer is full, and steps do not get slower."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from mcurl_torchrl.training import TrainingRun, tables
from tests.recipes.running import SMALL, train

STEPS = 6000
SETTINGS = [
    *SMALL,
    f"total_env_steps={8 * STEPS}",
    "replay.capacity=600",  # full after a tenth of the run
    "evaluation.interval_env_steps=8000",
    "checkpoint.interval_agent_steps=500",
    "logging.interval_agent_steps=100",
    "threads=1",
]


def resident_megabytes() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


@pytest.mark.slow
def test_memory_is_flat_and_steps_do_not_get_slower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    memory: dict[int, float] = {}
    speed: dict[int, float] = {}
    original = TrainingRun.log
    fixed = torch.nn.Sequential(torch.nn.Conv2d(9, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3))
    images = torch.rand(8, 9, 32, 32)

    def milliseconds_of_fixed_work() -> float:
        """Measures the machine's speed at this moment: other programs come and go."""
        begin = time.perf_counter()
        for _ in range(10):
            fixed(images)
        return 1000 * (time.perf_counter() - begin)

    def log(self: TrainingRun, step: int) -> None:
        original(self, step)
        gc.collect()
        memory[step] = resident_megabytes()
        speed[step] = milliseconds_of_fixed_work()

    monkeypatch.setattr(TrainingRun, "log", log)
    threads = torch.get_num_threads()
    directory = train(tmp_path / "run", *SETTINGS)
    torch.set_num_threads(threads)

    print("\nresident MB:", {step: round(size) for step, size in memory.items() if step % 500 == 0})
    settled = [size for step, size in memory.items() if step >= 2000]
    slope = np.polyfit(range(len(settled)), settled, 1)[0] * len(settled)
    print(f"after step 2000 the memory grows by {slope:.1f} MB in {100 * len(settled)} steps")
    assert slope < 30

    rows = [row for row in tables.read(directory.metrics.path) if row["step"] > 1000]
    for part in ("env", "sample", "update"):
        times = [row[f"milliseconds_{part}"] / speed[row["step"]] for row in rows]
        early, late = np.median(times[: len(times) // 3]), np.median(times[-len(times) // 3 :])
        print(f"{part}: {early:.3f} times the fixed work early, {late:.3f} times late")
        assert late < 1.5 * early  # by medians within one run: work that grows with the steps would be many times that

    files = sum(file.stat().st_size for file in (directory.checkpoints / "replay").glob("*.safetensors"))
    print(f"replay on disk: {files / 2**20:.1f} MB")
    assert files < 3 * 600 * 3 * 36 * 36 + 2**20  # not a file for each checkpoint
