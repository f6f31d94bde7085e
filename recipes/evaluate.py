"""Plays, scores and films the policy of a run, and exports it.

    python recipes/evaluate.py run=RUN_DIR which=best episodes=20 seed=7
    python recipes/evaluate.py run=RUN_DIR episodes=100 num_envs=10
    python recipes/evaluate.py run=RUN_DIR export=policy.pt2
    python recipes/evaluate.py run=RUN_DIR episodes=100 pack=my_policy licence=mit

Scores and the video are written to RUN_DIR/evaluations. export= writes a program for torch.export. pack= writes a
folder to share, which load_policy can read: weights, config, video and a model card.
"""

from __future__ import annotations

from recipes.early_answers import answer_early
from recipes.schema import EvaluateConfig

if __name__ == "__main__":  # before the imports that take seconds
    answer_early(config_name="evaluate", schema=EvaluateConfig)

import json
import statistics
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from mcurl_torchrl.training import export_policy, round_weights, write_video
from recipes.launch import BadCommand, launch, pick_device
from recipes.model_card import pack
from recipes.trained import open_trained


def main(cfg: DictConfig) -> None:
    if cfg.pack is not None and any((Path(cfg.pack) / name).exists() for name in ("manifest.json", "checkpoints")):
        raise BadCommand(f"pack={cfg.pack} is the folder of a run: its checkpoints could not be loaded any more")
    trained = open_trained(Path(cfg.run), which=cfg.which, device=pick_device(cfg.device))
    if cfg.half:
        round_weights(trained.policy.network)  # before playing, so that the packed weights are scored
    epsilon = trained.epsilon if cfg.epsilon is None else cfg.epsilon
    sample = trained.sample if cfg.sample is None else cfg.sample
    evaluation = trained.play(cfg)
    folder = Path(HydraConfig.get().runtime.output_dir)
    scores = {
        "run": str(Path(cfg.run)),
        "which": cfg.which,
        "seed": cfg.seed,
        "epsilon": epsilon,
        "sample": sample,
        "returns": evaluation.returns,
        "lengths": evaluation.lengths,
        "mean": evaluation.mean,
        "std": statistics.pstdev(evaluation.returns),
    }
    (folder / "scores.json").write_text(json.dumps(scores, indent=2) + "\n")
    print(f"mean return {evaluation.mean:,.1f}, standard deviation {scores['std']:,.1f}, over {cfg.episodes} episodes")
    if evaluation.frames:
        write_video(folder / "episode.mp4", evaluation.film(), fps=evaluation.steps_per_second or 30)
    if cfg.export is not None:
        print(f"exported to {export_policy(trained.policy, cfg.export)}")
    if cfg.pack is not None:
        print(f"packed into {pack(trained, evaluation, cfg, epsilon=epsilon, sample=sample)}")
    print(f"written to {folder}")


if __name__ == "__main__":
    launch(main, config_name="evaluate", schema=EvaluateConfig)
