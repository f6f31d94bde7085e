"""Measures the frame replay: index computation, sampling and memory, compared with TorchRL's own slice sampler.

    python benchmarks/replay.py [--quick] [--json FILE]

All comparisons are ratios within one run: the samplers run in turns, so that other processes slow all of them equally.
The C allocator is told to keep freed pages, for all samplers. Otherwise it returns large blocks to the system at some
times and not at others, and the next sampler pays for the page faults, up to four fifths of the time of a batch.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring import milliseconds, show
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

from mcurl_torchrl import EpisodeSliceSampler, FrameReplayBuffer, PrioritizedTransitionSampler
from mcurl_torchrl.replay import SumTree
from mcurl_torchrl.training import keep_freed_pages

NUM_SLICES, SLICE_LEN, NUM_FRAMES = 16, 32, 3
EPISODE = 125  # agent steps of a DMControl episode at action repeat 8
FRAME = (3, 100, 100)
TRAJ = ("collector", "traj_ids")


def resident_bytes() -> int:
    """Returns the memory this process really occupies."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def steps(first: int, count: int, channels: int, size: tuple[int, int], stored_frames: int = 1) -> TensorDict:
    """Makes steps of endless episodes of EPISODE steps, from step number ``first`` on."""
    number = torch.arange(first, first + count)
    shape = (count, channels * stored_frames, *size)
    last = ((number + 1) % EPISODE == 0)[:, None]
    value = (number % 251).to(torch.uint8).view(-1, 1, 1, 1)
    return TensorDict(
        {
            "pixels": value.expand(shape).clone(),
            "action": torch.zeros(count, 1),
            TRAJ: number // EPISODE,
            "next": {
                "pixels": ((number + 1) % 251).to(torch.uint8).view(-1, 1, 1, 1).expand(shape).clone(),
                "reward": torch.zeros(count, 1),
                "done": last,
                "terminated": torch.zeros_like(last),
                "truncated": last,
            },
        },
        batch_size=[count],
    )


def fill(buffer: TensorDictReplayBuffer, count: int, *args: Any, **kwargs: Any) -> None:
    """Writes ``count`` steps, some at a time."""
    for first in range(0, count, 100):
        buffer.extend(steps(first, min(100, count - first), *args, **kwargs))


def make_frame_buffer(capacity: int, **options: Any) -> FrameReplayBuffer:
    """Makes the buffer that is measured."""
    return FrameReplayBuffer(
        storage=LazyTensorStorage(capacity), num_frames=NUM_FRAMES, stacked_input=False, batch_size=128, **options
    )


def index_work(capacities: list[int], rounds: int) -> list[dict[str, Any]]:
    """Times what a sampler does before the batch is read, at full buffers of several sizes."""
    contenders: dict[str, Callable[[], Any]] = {}
    for capacity in capacities:
        buffer = make_frame_buffer(capacity, sampler=PrioritizedTransitionSampler(), n_step=3)
        fill(buffer, capacity + 500, 1, (1, 1))
        slices = buffer.slices(num_slices=NUM_SLICES, slice_len=SLICE_LEN)

        def draw_slices(slices: Any = slices) -> None:
            slices.sampler.draw(slices.storage, NUM_SLICES * SLICE_LEN)

        def draw_transitions(buffer: Any = buffer) -> None:
            buffer.sampler.draw(buffer.storage, 32)

        contenders[f"slices {capacity}"] = draw_slices
        contenders[f"priorities {capacity}"] = draw_transitions
    times = milliseconds(contenders, rounds, inner=20)
    return [
        {
            "rows": capacity,
            "slices_ms": times[f"slices {capacity}"],
            "slices_ratio": times[f"slices {capacity}"] / times[f"slices {capacities[0]}"],
            "prioritized_ms": times[f"priorities {capacity}"],
            "prioritized_ratio": times[f"priorities {capacity}"] / times[f"priorities {capacities[0]}"],
        }
        for capacity in capacities
    ]


def sum_tree(sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """Times drawing and updating 32 weights."""
    contenders: dict[str, Callable[[], Any]] = {}
    for size in sizes:
        tree = SumTree(size)
        tree.fill(torch.rand(size))
        index, weight = torch.randint(size, (32,)), torch.rand(32)
        contenders[f"sample {size}"] = lambda tree=tree: tree.sample(32)
        contenders[f"update {size}"] = lambda tree=tree, index=index, weight=weight: tree.update(index, weight)
    times = milliseconds(contenders, rounds, inner=50)
    return [
        {"rows": size, "sample_32_ms": times[f"sample {size}"], "update_32_ms": times[f"update {size}"]}
        for size in sizes
    ]


def make_stock(sampler: Any, rows: int, *, pixels_only: bool = False) -> TensorDictReplayBuffer:
    """Makes a buffer of TorchRL's own for slices."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(rows), sampler=sampler, batch_size=NUM_SLICES * sampler.slice_len
    )
    if pixels_only:
        extend = buffer.extend
        buffer.extend = lambda data: extend(data.select("pixels", TRAJ))
    return buffer


def memory(rows: int) -> list[dict[str, Any]]:
    """Measures the memory of full buffers, by the growth of the process."""
    layouts: dict[str, tuple[Callable[[], Any], int]] = {
        "frames, ours": (lambda: make_frame_buffer(rows), 1),
        "stacks and next stacks, TorchRL": (lambda: make_stock(SliceSampler(slice_len=SLICE_LEN), rows), NUM_FRAMES),
    }
    table = []
    for name, (make, stored_frames) in layouts.items():
        gc.collect()
        before = resident_bytes()
        buffer = make()
        fill(buffer, rows, FRAME[0], FRAME[1:], stored_frames)
        gc.collect()
        table.append({"layout": name, "GB per 100k steps": (resident_bytes() - before) * (100_000 / rows) / 1e9})
        del buffer
    return table


def end_to_end(rows: int, rounds: int) -> list[dict[str, Any]]:
    """Times a write and a sample, as they follow each other in training."""
    frame = (FRAME[0], FRAME[1:])
    ours = make_frame_buffer(rows)
    slices = ours.slices(num_slices=NUM_SLICES, slice_len=SLICE_LEN)
    stacked = make_stock(SliceSampler(slice_len=SLICE_LEN, traj_key=TRAJ), rows)
    fill(stacked, rows, *frame, stored_frames=NUM_FRAMES)
    bare: dict[str, Any] = {"traj_key": TRAJ, "truncated_key": None, "init_key": None}
    single = make_stock(SliceSampler(slice_len=SLICE_LEN, **bare), rows, pixels_only=True)
    single_ours = make_stock(EpisodeSliceSampler(SLICE_LEN, **bare), rows, pixels_only=True)
    # A slice of T stacks by hand takes K - 1 frames more, and misses every slice that begins at an episode's start.
    longer = SLICE_LEN + NUM_FRAMES - 1
    by_hand = make_stock(SliceSampler(slice_len=longer, **bare), rows, pixels_only=True)
    for buffer in (ours, single, single_ours, by_hand):
        fill(buffer, rows, *frame)

    one_frame, one_stack = (steps(rows, 1, *frame, stored_frames=n) for n in (1, NUM_FRAMES))

    def stack_by_hand() -> torch.Tensor:
        frames = by_hand.sample()["pixels"].view(NUM_SLICES, longer, *FRAME)
        stacks = [frames[:, offset : offset + SLICE_LEN] for offset in range(NUM_FRAMES)]
        return torch.cat(stacks, 2)

    def write_and_sample(writer: Any, data: TensorDict, sample: Callable[[], Any]) -> Callable[[], None]:
        def call() -> None:
            writer.extend(data.clone())
            sample()

        return call

    times = milliseconds(
        {
            "ours: stacks rebuilt from frames": write_and_sample(ours, one_frame, slices.sample),
            "SliceSampler: stacks and next stacks": write_and_sample(stacked, one_stack, stacked.sample),
            "SliceSampler: frames, pixels only, stacked by hand": write_and_sample(by_hand, one_frame, stack_by_hand),
            "SliceSampler: frames, pixels only, no stacks": write_and_sample(single, one_frame, single.sample),
            "EpisodeSliceSampler: the same": write_and_sample(single_ours, one_frame, single_ours.sample),
        },
        rounds,
    )
    first = times["ours: stacks rebuilt from frames"]
    return [{"what": name, "ms": value, "times ours": value / first} for name, value in times.items()]


def main() -> None:
    """Runs everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller buffers and fewer rounds")
    parser.add_argument("--json", type=Path, help="where to write the numbers as well")
    arguments = parser.parse_args()
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    torch.manual_seed(0)
    rounds = 5 if arguments.quick else 30
    rows = 2_000 if arguments.quick else 20_000
    sizes = [1_000, 10_000] if arguments.quick else [10_000, 100_000, 1_000_000]

    results: dict[str, Any] = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    results["memory"] = memory(rows)
    show(f"Memory of full buffers, measured at {rows} rows of 3x100x100", results["memory"])
    keep_freed_pages()
    results["index_work"] = index_work(sizes, rounds)
    show(f"Index work: {NUM_SLICES} slices of {SLICE_LEN}; 32 prioritised 3-step transitions", results["index_work"])
    results["sum_tree"] = sum_tree(sizes, rounds)
    show("Sum tree", results["sum_tree"])
    results["end_to_end"] = end_to_end(rows, rounds)
    show(f"One write and one sample of {NUM_SLICES} x {SLICE_LEN}, {rows} rows of 3x100x100", results["end_to_end"])
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
