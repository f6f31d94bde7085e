"""Plays a trained policy, prints its returns, and films the first episode at real speed, without training.

    python recipes/play.py roadrunner
    python recipes/play.py RUN_DIR episodes=3 seed=1 out=film.mp4
    python recipes/play.py MY_POLICY episodes=100 num_envs=10 video=false

The policy is the name of a policy in recipes/policies, a run directory, or a folder of `evaluate.py pack=FOLDER`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from recipes.command_line import BadCommand, program, quoted
from recipes.early_answers import answer_early
from recipes.policies import find_policy
from recipes.schema import PlayConfig


def name_policy(arguments: list[str]) -> list[str]:
    """Turns a first argument without a key, as in ``play roadrunner``, into policy=PATH; refuses an unknown policy."""
    first = arguments[0] if arguments else ""
    # Hydra names the folders of a sweep KEY=VALUE,KEY=VALUE.
    if first and (("=" not in first and not first.startswith("-")) or Path(first).is_dir()):
        return [f"policy={quoted(find_policy(first).absolute())}", *arguments[1:]]
    return arguments


if __name__ == "__main__":  # before the imports that take seconds
    try:
        sys.argv[1:] = name_policy(sys.argv[1:])
    except BadCommand as error:
        sys.exit(f"{program()}: {error}")
    answer_early(config_name="play", schema=PlayConfig)

from omegaconf import DictConfig

from mcurl_torchrl.training import write_video
from recipes.launch import launch, pick_device
from recipes.trained import open_trained


def main(cfg: DictConfig) -> None:
    folder = find_policy(cfg.policy)
    trained = open_trained(folder, which=cfg.which, device=pick_device(cfg.device))
    evaluation = trained.play(cfg)
    if cfg.episodes > 1:
        print(f"mean return {evaluation.mean:,.1f} over {cfg.episodes} episodes")
    if evaluation.frames:
        out, speed = Path(cfg.out or f"{folder.resolve().name}.mp4"), evaluation.steps_per_second or 30
        write_video(out, evaluation.film(), fps=speed)
        print(f"filmed: {out} ({len(evaluation.frames) / speed:.0f} s)")


if __name__ == "__main__":
    launch(main, config_name="play", schema=PlayConfig)
