"""Reads published results from published/, to compare them with runs."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

PUBLISHED = Path(__file__).parent / "published"
DMC_METHODS = {
    "pixel_sac": "pixel SAC",
    "curl": "CURL",
    "drq": "DrQ",
    "spr": "SPR",
    "playvirtual": "PlayVirtual",
    "mlr": "MLR",
    "drqv2": "DrQ-v2",
    "dreamerv3": "DreamerV3",
    "mrq": "MR.Q",
}
DRAWN = ("pixel_sac", "eff_rainbow", "curl", "mcurl")  # the methods that are drawn beside a curve


@dataclass(frozen=True)
class Published:
    """A published result of a method on a task."""

    task: str
    method: str
    label: str
    env_steps: int
    mean: float
    std: float | None
    seeds: int | None  # None: unknown
    source: str


@dataclass(frozen=True)
class PublishedAggregate:
    """Published aggregates of a method over all 26 games of Atari-100k, as human-normalised scores."""

    method: str
    env_steps: int
    seeds: int | None
    iqm: float
    median: float | None
    mean: float | None
    source: str


def published_dmc(folder: Path = PUBLISHED) -> list[Published]:
    """Returns the published results on DMControl. Results with a standard deviation, from a paper, come first."""
    return [
        Published(
            task=row["task"],
            method=row["method"],
            label=DMC_METHODS[row["method"]],
            env_steps=int(row["env_steps"]),
            mean=float(row["mean"]),
            std=float(row["std"]) if row["std"] else None,
            seeds=int(row["seeds"]) if row["seeds"] else None,
            source=row["source"],
        )
        for row in sorted(read("dmc.csv", folder), key=lambda row: not row["std"])
    ]


def published_atari(folder: Path = PUBLISHED) -> list[Published]:
    """Returns the scores on Atari-100k that M-CURL's paper lists."""
    methods = read("atari100k_methods.csv", folder)
    return [
        Published(
            task=row["game"],
            method=method["method"],
            label=method["label"],
            env_steps=int(method["env_steps"]),
            mean=float(row[method["method"]]),
            std=None,
            seeds=int(method["seeds"]) if method["seeds"] else None,
            source=method["source"],
        )
        for row in read("atari100k.csv", folder)
        for method in methods
    ]


def published_aggregates(folder: Path = PUBLISHED) -> list[PublishedAggregate]:
    """Returns published aggregates over the 26 games of Atari-100k."""
    return [
        PublishedAggregate(
            method=row["method"],
            env_steps=int(row["env_steps"]),
            seeds=int(row["seeds"]) if row["seeds"] else None,
            iqm=float(row["iqm"]),
            median=float(row["median"]) if row["median"] else None,
            mean=float(row["mean"]) if row["mean"] else None,
            source=row["source"],
        )
        for row in read("atari100k_aggregates.csv", folder)
    ]


def published_scores(name: str | None, env_steps: int) -> dict[str, tuple[int, float]]:
    """Returns the published results on a task or game up to a number of environment steps, for a plot.

    If a result on DMControl was published twice, the result of a paper's table is preferred to the result of score
    files.

    Returns:
        A dictionary from labels to (env_steps, mean return).
    """
    return to_draw([*published_dmc(), *published_atari()], name, env_steps)


def to_draw(rows: list[Published], name: str | None, env_steps: int) -> dict[str, tuple[int, float]]:
    """Picks a few of the published results for a plot."""
    found: dict[str, tuple[int, float]] = {}
    for row in rows:
        if row.task == name and row.method in DRAWN and row.env_steps <= env_steps:
            found.setdefault(f"{row.label}, published at {row.env_steps // 1000}k", (row.env_steps, row.mean))
    return found


def random_and_human_score(game: str | None, folder: Path = PUBLISHED) -> tuple[float, float] | None:
    """Returns the scores of a random player and of a human; None for games outside the benchmark's 26."""
    found = [row for row in read("atari100k.csv", folder) if row["game"] == game]
    return (float(found[0]["random"]), float(found[0]["human"])) if found else None


def read(name: str, folder: Path = PUBLISHED) -> list[dict[str, str]]:
    with open(folder / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
