"""A tour of the frame replay, filled by a random policy on a rendered DMControl task.

    python examples/replay_demo.py [--steps 600] [--out replay_demo.png]

Collects with a TorchRL collector, samples transitions and slices, compares memory with the usual layout, saves, loads,
and draws one slice of stacked observations.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

os.environ.setdefault("MUJOCO_GL", "egl")  # before dm_control is imported; "osmesa" works as well

import matplotlib
import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage
from torchrl.envs import CatFrames, Compose, DMControlWrapper, DoubleToFloat, ToTensorImage, TransformedEnv
from torchrl.envs.utils import RandomPolicy

from mcurl_torchrl import FrameReplayBuffer

from dm_control import suite

matplotlib.use("agg")
import matplotlib.pyplot as plt  # noqa: E402

NUM_FRAMES = 3


def make_env() -> TransformedEnv:
    """Makes cheetah-run from pixels, observations of three uint8 frames."""
    env = suite.load("cheetah", "run", task_kwargs={"random": 0})
    env._step_limit = 100  # short episodes, to see some ends
    env.physics.model.vis.quality.shadowsize = 0  # several times faster to render in software
    render = {"height": 100, "width": 100, "camera_id": 0}
    env = DMControlWrapper(env, from_pixels=True, pixels_only=True, render_kwargs=render)
    image = ToTensorImage(from_int=False, dtype=torch.uint8, in_keys=["pixels"], shape_tolerant=True)
    return TransformedEnv(env, Compose(image, DoubleToFloat(), CatFrames(NUM_FRAMES, dim=-3, in_keys=["pixels"])))


def main() -> None:
    """Collects, samples, saves, loads and draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", default="replay_demo.png")
    arguments = parser.parse_args()
    torch.manual_seed(0)

    env = make_env()
    buffer = FrameReplayBuffer(storage=LazyTensorStorage(100_000), num_frames=NUM_FRAMES, n_step=3, batch_size=128)
    slices = buffer.slices(num_slices=16, slice_len=32)
    collector = Collector(
        env, RandomPolicy(env.action_spec), frames_per_batch=50, total_frames=arguments.steps, replay_buffer=buffer
    )
    for number, _ in enumerate(collector, start=1):
        print(f"\rcollected {50 * number} steps, {len(buffer)} rows", end="", flush=True)
    print()

    start = time.perf_counter()
    batch, windows = buffer.sample(), slices.sample().reshape(16, 32)
    print(f"128 transitions and 16 slices of 32 in {1e3 * (time.perf_counter() - start):.0f} ms")
    print(f"  transition: pixels {tuple(batch['pixels'].shape)}, reward over {batch['steps_to_next_obs'].max()} steps")
    print(f"  slices: pixels {tuple(windows['pixels'].shape)}, steps {windows['step'][0, 0]}..{windows['step'][0, -1]}")
    frame = windows["pixels"][0, 0].numel() // NUM_FRAMES
    stacked = 2 * NUM_FRAMES * frame
    print(f"  per 100k steps: {frame / 1e4:.1f} GB of frames; as stacks with next stacks {stacked / 1e4:.1f} GB")
    with tempfile.TemporaryDirectory() as folder:
        buffer.dumps(folder)
        restored = FrameReplayBuffer(
            storage=LazyTensorStorage(100_000), num_frames=NUM_FRAMES, n_step=3, batch_size=128
        )
        restored.loads(folder)
    print(f"saved and loaded: {len(restored)} rows")

    figure, axes = plt.subplots(NUM_FRAMES, 8, figsize=(12, 5), layout="constrained")
    for column, time_step in enumerate(range(0, 32, 4)):
        stack = windows["pixels"][0, time_step].unflatten(0, (NUM_FRAMES, 3))
        for row in range(NUM_FRAMES):
            axes[row, column].imshow(stack[row].permute(1, 2, 0))
            axes[row, column].axis("off")
        axes[0, column].set_title(f"step {int(windows['step'][0, time_step])}")
    figure.suptitle("One slice: observations (columns) of three frames (rows, oldest on top)")
    figure.savefig(arguments.out, dpi=80)
    print(f"a slice is drawn in {arguments.out}")


if __name__ == "__main__":
    main()
