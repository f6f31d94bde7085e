"""Plays, scores and films what a run has learned, and exports it.

    python recipes/evaluate.py run=RUN_DIR which=best episodes=20 seed=7
    python recipes/evaluate.py run=RUN_DIR episodes=100 num_envs=10
    python recipes/evaluate.py run=RUN_DIR export=policy.pt2

Everything goes to RUN_DIR/evaluations, but for the exported file.
"""

from __future__ import annotations

from recipes.early_answers import answer_early
from recipes.schema import EvaluateConfig

if __name__ == "__main__":  # before the imports that take seconds
    answer_early(config_name="evaluate", schema=EvaluateConfig)

import importlib
import json
import statistics
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor
from yaml import YAMLError

from mcurl_torchrl import load_policy
from mcurl_torchrl.checks import check_count
from mcurl_torchrl.training import RunDirectory, evaluate, export_policy, write_video
from recipes.building import make_env
from recipes.launch import BadCommand, launch, pick_device
from recipes.schema import EnvConfig


def main(cfg: DictConfig) -> None:
    directory = RunDirectory(cfg.run)
    try:
        device = pick_device(cfg.device)
        import_recipe(directory.read_manifest().get("recipe"))
        policy = load_policy(directory.path, which=cfg.which, device=device)
        settings = OmegaConf.load(directory.config)
        env = OmegaConf.merge(OmegaConf.structured(EnvConfig), settings.env)
    except (OSError, ValueError, RuntimeError, YAMLError, OmegaConfBaseException) as error:
        raise BadCommand(f"run={cfg.run}: {error}") from error
    key = env.observation
    epsilon = OmegaConf.select(settings, "evaluation.epsilon", default=0.0) if cfg.epsilon is None else cfg.epsilon

    def act(observations: Tensor) -> Tensor:
        return policy.network(observations.to(device)).cpu()

    def report(episode: int, score: float) -> None:
        print(f"episode {episode}: {score:.1f}", flush=True)

    evaluation = evaluate(
        act,
        [make_env(env, training=False) for _ in range(check_count("num_envs", cfg.num_envs))],
        episodes=cfg.episodes,
        seed=cfg.seed,
        num_frames=policy.num_frames,
        record=cfg.video and key == "pixels",
        observation_key=key,
        epsilon=epsilon,
        on_episode=report,
    )
    folder = Path(HydraConfig.get().runtime.output_dir)
    scores = {
        "run": str(directory.path),
        "which": cfg.which,
        "seed": cfg.seed,
        "epsilon": epsilon,
        "returns": evaluation.returns,
        "lengths": evaluation.lengths,
        "mean": evaluation.mean,
        "std": statistics.pstdev(evaluation.returns),
    }
    (folder / "scores.json").write_text(json.dumps(scores, indent=2) + "\n")
    print(f"mean return {evaluation.mean:.1f}, standard deviation {scores['std']:.1f}, over {cfg.episodes} episodes")
    if evaluation.frames:
        write_video(folder / "episode.mp4", evaluation.film(), fps=evaluation.steps_per_second or 30)
    if cfg.export is not None:
        print(f"exported to {export_policy(policy, cfg.export)}")
    print(f"written to {folder}")


def import_recipe(name: str | None) -> None:
    """Imports the script that trained a run, so that the class of its policy is known."""
    if (Path(__file__).parent / f"{name}.py").is_file():
        importlib.import_module(f"recipes.{name}")


if __name__ == "__main__":
    launch(main, config_name="evaluate", schema=EvaluateConfig)
