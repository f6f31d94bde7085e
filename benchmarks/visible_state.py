"""Measures what encoders of different sizes can see: they are taught to read the simulator's state off their images.

    python benchmarks/visible_state.py --json benchmarks/results/visible_state.json

The poles and carts of cartpole-swingup start in random states inside the picture; an observation is the last three
frames of three random actions. Encoder and a small head are trained to predict the state from random crops, as SAC's
encoder gets them, and scored on other observations with centre crops, as SAC acts. This is the best that RL could hope
for after as many updates: no values, no exploration, only sight.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import show
from setups import machine, prepare_process
from torch import Tensor, nn

from mcurl_torchrl import CenterCrop, PixelEncoder, RandomCrop, make_dmc_env
from mcurl_torchrl.envs import simulator_state

# Size of the image, of its crop, and the filters: preset=cpu, two sizes between, preset=paper.
SIZES = [(60, 50, 16), (60, 50, 32), (84, 70, 16), (100, 84, 32)]
STATES = ("position", "cosine", "sine", "velocity", "angular_velocity")
ACTION_REPEAT, NUM_FRAMES, FEATURES, HIDDEN, BATCH, LR = 8, 3, 50, 256, 128, 1e-3


def observe(image_size: int, count: int) -> tuple[Tensor, Tensor]:
    """Returns observations uint8 ``[count, 9, H, W]`` and standardized states; the same states for every size."""
    env = make_dmc_env(
        "cartpole-swingup", action_repeat=ACTION_REPEAT, image_size=image_size, num_frames=NUM_FRAMES, shadows=False
    )
    random = np.random.default_rng(0)
    pixels, states = [], []
    for _ in range(count):
        env.reset()
        with env.physics.reset_context():
            env.physics.data.qpos[:] = random.uniform([-1, -math.pi], [1, math.pi])  # beyond 1.4 a cart is not in view
            env.physics.data.qvel[:] = random.normal(0, [0.5, 2])
        for action in random.uniform(-1, 1, [NUM_FRAMES, 1]):
            seen = env.step(env.rand_action().set("action", torch.tensor(action, dtype=torch.float32)))
        pixels.append(seen["next", "pixels"])
        states.append(simulator_state(env))
    known = torch.stack(states)
    return torch.stack(pixels), ((known - known.mean(0)) / known.std(0)).float()


def teach(
    pixels: Tensor, states: Tensor, *, crop_size: int, num_filters: int, points: list[int]
) -> list[dict[str, Any]]:
    """Trains on all but the last fifth of the observations; returns a row of scores for each number of updates."""
    torch.manual_seed(0)
    encoder = PixelEncoder(pixels.shape[1], crop_size, num_filters=num_filters, feature_dim=FEATURES)
    model = nn.Sequential(encoder, nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, states.shape[1]))
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    random_crop, center_crop = RandomCrop(crop_size), CenterCrop(crop_size)
    fitted = len(pixels) * 4 // 5
    rows, seconds = [], 0.0
    for update in range(1, max(points) + 1):
        drawn = torch.randint(fitted, (BATCH,))
        began = time.process_time()
        loss = nn.functional.mse_loss(model(random_crop(pixels[drawn])), states[drawn])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds += time.process_time() - began
        if update in points:
            with torch.no_grad():
                predicted = torch.cat([model(center_crop(part)) for part in pixels[fitted:].split(BATCH)])
            true = states[fitted:]
            explained = 1 - (predicted - true).square().mean(0) / true.var(0, correction=0)
            scores = dict(zip(STATES, explained.tolist(), strict=True))
            rows.append({"updates": update, "cpu_ms_per_update": seconds / update * 1e3} | scores)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--observations", type=int, default=3600, help="drawn states; a fifth is scored")
    parser.add_argument("--updates", type=int, nargs="+", default=[100, 200, 400], help="when to score")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    prepare_process(options.threads)
    rows: list[dict[str, Any]] = []
    for image_size, crop_size, num_filters in SIZES:
        pixels, states = observe(image_size, options.observations)
        size = {"image_size": image_size, "crop_size": crop_size, "filters": num_filters}
        scores = teach(pixels, states, crop_size=crop_size, num_filters=num_filters, points=options.updates)
        rows += [size | score for score in scores]
        show(f"explained variance, {size}", scores)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
