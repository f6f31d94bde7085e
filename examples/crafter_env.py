"""An adapter for Crafter (https://arxiv.org/abs/2109.06780), which has the interface of the older library gym.

    pip install crafter
    cd examples && mcurl train rainbow env=gym env.id=crafter_env:Crafter-v0 env.image_size=64

The adapter adds Gymnasium's spaces, a reset with a seed, and the difference between an end because the player died
(terminated) and an end by the time limit (truncated), where values must be bootstrapped. Started as a script, this file
plays at random.
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from mcurl_torchrl import make_pixel_env


class Crafter(gymnasium.Env):
    """Survive, gather and build in a world of blocks, seen from above."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, size: int = 64, length: int = 10_000, render_mode: str | None = None) -> None:
        import crafter  # here, so that this file can be read without it

        self.render_mode = render_mode
        self._make = lambda seed: crafter.Env(size=(size, size), length=length, seed=seed)
        self._world = self._make(None)
        self.observation_space = spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.action_space = spaces.Discrete(self._world.action_space.n)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Starts in a new world; the same seed gives the same worlds."""
        super().reset(seed=seed)
        if seed is not None:
            self._world = self._make(seed)
        return self._world.reset(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Takes a step. Crafter's discount is 0 if the player died, and 1 if the time limit was reached."""
        image, reward, done, info = self._world.step(int(action))
        died = info["discount"] == 0
        return image, float(reward), died, done and not died, info

    def render(self) -> np.ndarray:
        """Draws the world for a video."""
        return self._world.render((256, 256))


gymnasium.register("Crafter-v0", entry_point=Crafter)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000)
    options = parser.parse_args()
    env = make_pixel_env("Crafter-v0", num_frames=4, categorical_actions=True)
    steps = env.rollout(options.steps, break_when_any_done=False)
    ends = steps["next", "done"].sum().item()
    print(f"steps {len(steps)}  ended episodes {ends}  reward {steps['next', 'reward'].sum().item():.1f}")
    print(f"pixels {list(steps['pixels'].shape[1:])} of {steps['pixels'].dtype}")


if __name__ == "__main__":
    main()
