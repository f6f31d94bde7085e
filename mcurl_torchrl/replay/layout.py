"""How a frame replay lays episodes out in rows.

An episode of L steps takes L + 1 consecutive rows. Row t holds frame t, the action taken there, and what came of it:
reward, terminated, truncated. The last row holds only its frame, and is marked ``final``. So each frame is stored once,
the true last observation of a truncated episode is there to bootstrap from, and stacks, slices and n-step returns all
obey one rule: they are made of rows with the same trajectory id and consecutive steps. Ids are never used twice, and
unwritten rows carry -1, so two rows ``d`` apart with equal ids and steps ``d`` apart enclose only rows of that episode.
"""

from __future__ import annotations

from tensordict.utils import NestedKey

__all__ = ["FINAL_KEY", "LAYOUT_KEYS", "STEP_KEY", "TRAJECTORY_KEY", "UNWRITTEN"]

TRAJECTORY_KEY: NestedKey = "trajectory"
STEP_KEY: NestedKey = "step"
FINAL_KEY: NestedKey = "final"
LAYOUT_KEYS = (TRAJECTORY_KEY, STEP_KEY, FINAL_KEY)
UNWRITTEN = -1
