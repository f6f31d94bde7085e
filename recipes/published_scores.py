"""Published results to draw beside a run's own, from published/dmc.csv."""

from __future__ import annotations

import csv
from pathlib import Path

TABLE = Path(__file__).parent / "published" / "dmc.csv"
NAMES = {"curl": "CURL", "pixel_sac": "pixel SAC"}


def published_scores(task: str | None, env_steps: int) -> dict[str, tuple[int, float]]:
    """Returns what is published of a task up to a number of environment steps, as label to (env_steps, mean return).

    Some results were published twice. One with a standard deviation comes from a paper's table, and goes before one
    that was read off somebody's score files.
    """
    with open(TABLE, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["task"] == task and int(row["env_steps"]) <= env_steps]
    found: dict[str, tuple[int, float]] = {}
    for row in sorted(rows, key=lambda row: not row["std"]):
        steps = int(row["env_steps"])
        found.setdefault(f"{NAMES[row['method']]}, published at {steps // 1000}k", (steps, float(row["mean"])))
    return found
