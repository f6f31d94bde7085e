"""Measures how often the cart of cartpole-swingup is outside the picture that the agent gets.

    python benchmarks/out_of_view.py --json benchmarks/results/out_of_view.json

SAC's first steps are random actions. A step counts as out of view if the centre of the cart is outside the centre crop
of the image, by the camera's place, direction and angle in the simulator; nothing is rendered.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import show

from mcurl_torchrl import make_dmc_env

# Image and crop: preset=cpu and preset=paper of SAC, and a whole image of the size that SAC+AE and DrQ render.
CROPS = [(60, 50), (100, 84), (84, 84)]
CAMERAS = {0: "fixed", 1: "follows the cart"}


def in_view(physics: Any, camera_id: int, share: float) -> bool:
    """Whether the cart's centre is in the camera's image, of which a centre crop leaves ``share`` of the width."""
    turned = physics.data.cam_xmat[camera_id].reshape(3, 3)  # columns: right, up, backwards
    right, up, backwards = (physics.named.data.xpos["cart"] - physics.data.cam_xpos[camera_id]) @ turned
    slope = math.tan(math.radians(physics.model.cam_fovy[camera_id]) / 2) * share
    return backwards < 0 and max(abs(right), abs(up)) <= -backwards * slope


def measure(episodes: int, seed: int) -> list[dict[str, Any]]:
    """Returns the share of steps out of view for each camera and crop, over the same episodes of random actions."""
    env = make_dmc_env("cartpole-swingup", from_pixels=False, action_repeat=8, seed=seed)
    torch.manual_seed(seed)  # of the actions
    outside: dict[tuple[int, int, int], list[bool]] = {(camera, *crop): [] for camera in CAMERAS for crop in CROPS}
    for _ in range(episodes):
        step = env.reset()
        while not step["done"].item():
            step = env.step(env.rand_action(step))["next"]
            for (camera, image_size, crop_size), steps in outside.items():
                steps.append(not in_view(env.physics, camera, crop_size / image_size))
    return [
        {"camera": CAMERAS[camera], "image_size": image_size, "crop_size": crop_size, "out_of_view": np.mean(steps)}
        for (camera, image_size, crop_size), steps in outside.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=100, help="of 125 steps each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    rows = measure(options.episodes, options.seed)
    show(f"share of steps out of view, {options.episodes} episodes of random actions", rows)
    if options.json:
        options.json.write_text(json.dumps({"episodes": options.episodes, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
