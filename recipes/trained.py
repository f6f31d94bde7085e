"""Opens a trained policy from a run directory or a packed folder, together with its environment."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor
from yaml import YAMLError

from mcurl_torchrl import load_policy
from mcurl_torchrl.checks import check_count
from mcurl_torchrl.training import (
    Evaluation,
    FramePolicy,
    RunDirectory,
    evaluate,
    is_policy_folder,
    read_policy_folder,
)
from recipes.building import make_env
from recipes.command_line import BadCommand
from recipes.schema import EnvConfig, EvaluateConfig, PlayConfig


@dataclass(frozen=True)
class Trained:
    """A policy, and the settings of the environment that it was trained in."""

    policy: FramePolicy
    env: DictConfig
    epsilon: float  # probability of a random action in the evaluations of training
    sample: bool  # whether these evaluations drew actions from the policy
    device: torch.device

    def play(self, cfg: EvaluateConfig | PlayConfig) -> Evaluation:
        """Plays whole episodes, in new environments, and prints their returns."""

        def act(observations: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
            return self.policy.network.act(observations.to(self.device), generator=generator).cpu()

        return evaluate(
            act,
            [make_env(self.env, training=False) for _ in range(check_count("num_envs", cfg.num_envs))],
            episodes=cfg.episodes,
            seed=cfg.seed,
            num_frames=self.policy.num_frames,
            record=cfg.video and self.env.observation == "pixels",
            observation_key=self.env.observation,
            epsilon=self.epsilon if cfg.epsilon is None else cfg.epsilon,
            sample=self.sample if cfg.sample is None else cfg.sample,
            on_episode=lambda episode, score: print(f"episode {episode}: {score:,.1f}", flush=True),
        )


def open_trained(path: Path, *, which: str = "latest", device: torch.device) -> Trained:
    """Opens a run directory, or a folder that ``evaluate.py pack=FOLDER`` made.

    Raises:
        BadCommand: if the folder does not exist or cannot be used, with the reason.
    """
    try:
        if is_policy_folder(path):
            settings = OmegaConf.create(read_policy_folder(path)[0])
        else:
            import_recipe(RunDirectory(path).read_manifest().get("recipe"))
            settings = OmegaConf.load(RunDirectory(path).config)
        env = OmegaConf.merge(OmegaConf.structured(EnvConfig), settings.env)
        epsilon = OmegaConf.select(settings, "evaluation.epsilon", default=0.0)
        sample = OmegaConf.select(settings, "evaluation.sample", default=False)
        return Trained(load_policy(path, which=which, device=device), env, epsilon, sample, device)
    except (OSError, ValueError, RuntimeError, YAMLError, OmegaConfBaseException) as error:
        raise BadCommand(f"run={path}: {error}") from error


def import_recipe(name: Any) -> None:
    """Imports the script that trained a run, which registers the class of its policy."""
    if (Path(__file__).parent / f"{name}.py").is_file():
        importlib.import_module(f"recipes.{name}")
