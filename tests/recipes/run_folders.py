"""Run directories as a run leaves them, with scores that a test chooses: training many seeds would take hours."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from mcurl_torchrl.training import RunDirectory
from tests.recipes.running import settings

COMMIT = "a" * 40
EVALUATIONS = 5  # after the first, before training


@functools.cache
def composed(*overrides: str, recipe: str) -> str:
    return OmegaConf.to_yaml(settings(*overrides, recipe=recipe), resolve=True)


def write_run(
    folder: Path,
    *overrides: str,
    recipe: str = "rainbow_mcurl",
    seed: int = 1,
    final: float = 100.0,
    best: float | None = None,
    evaluations: int = EVALUATIONS,
    commit: str | None = COMMIT,
) -> RunDirectory:
    """Writes a run whose returns rise to ``final``; with fewer evaluations it is not finished."""
    cfg = OmegaConf.create(composed(*overrides, recipe=recipe))
    cfg.seed = seed
    directory = RunDirectory(folder)
    directory.write_config(OmegaConf.to_yaml(cfg))
    directory.write_manifest(overrides=list(overrides), recipe=recipe)
    change(directory.manifest, git=None if commit is None else {"commit": commit, "dirty": False})
    means = []
    for number in range(evaluations + 1):
        mean = final * number / EVALUATIONS
        if best is not None and number == EVALUATIONS - 1:
            mean = best
        env_steps = cfg.total_env_steps * number // EVALUATIONS
        last = number == EVALUATIONS
        count = (cfg.evaluation.final_episodes if last else None) or cfg.evaluation.episodes
        for episode in range(count):
            aside = 0.0 if episode == count - 1 and count % 2 else (1.0 if episode % 2 else -1.0)
            row = {"step": env_steps, "env_steps": env_steps, "episode": episode, "return": mean + aside, "length": 10}
            directory.eval.append(row)
        means.append((mean, env_steps, count))
    highest = max(means)
    directory.write_result(
        {
            "finished": evaluations == EVALUATIONS,
            "env_steps": means[-1][1],
            "final_return": means[-1][0],
            "best_return": highest[0],
            "best_env_steps": highest[1],
            "final_episodes": means[-1][2],
            "evaluation_episodes": cfg.evaluation.episodes,
            "seconds": 660.0,
            "seconds_evaluation": 60.0,
        }
    )
    return directory


def change(file: Path, **values: Any) -> None:
    """Changes entries of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
