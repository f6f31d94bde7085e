"""Published results to set beside a run's own, from published/."""

from __future__ import annotations

import csv
from pathlib import Path

PUBLISHED = Path(__file__).parent / "published"
DMC_METHODS = {"curl": "CURL", "pixel_sac": "pixel SAC"}
ATARI_METHODS = {"eff_rainbow": "data-efficient Rainbow", "curl": "CURL", "mcurl": "M-CURL"}
ATARI_ENV_STEPS = 100_000


def published_scores(name: str | None, env_steps: int) -> dict[str, tuple[int, float]]:
    """Returns what is published of a task or a game up to a number of environment steps, for a plot.

    Some results on DMControl were published twice. One with a standard deviation comes from a paper's table, and goes
    before one that was read off somebody's score files. The Atari scores are those that M-CURL's paper lists.

    Returns:
        A label to (env_steps, mean return).
    """
    rows = [
        (DMC_METHODS[row["method"]], int(row["env_steps"]), float(row["mean"]))
        for row in sorted(read("dmc.csv"), key=lambda row: not row["std"])
        if row["task"] == name
    ]
    rows += [
        (label, ATARI_ENV_STEPS, float(row[method]))
        for row in read("atari100k.csv")
        for method, label in ATARI_METHODS.items()
        if row["game"] == name
    ]
    found: dict[str, tuple[int, float]] = {}
    for label, steps, score in rows:
        if steps <= env_steps:
            found.setdefault(f"{label}, published at {steps // 1000}k", (steps, score))
    return found


def random_and_human_score(game: str | None) -> tuple[float, float] | None:
    """Returns what a random player and a human score; None for games that are not among the benchmark's 26."""
    found = [row for row in read("atari100k.csv") if row["game"] == game]
    return (float(found[0]["random"]), float(found[0]["human"])) if found else None


def read(name: str) -> list[dict[str, str]]:
    with open(PUBLISHED / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
