"""Scores encoders in minutes with a linear probe, which predicts the simulator's state from their latents.

    python recipes/probe.py encoders=FOLDER/encoder.pt env=cartpole-swingup env.image_size=60
    python recipes/probe.py 'encoders=[a/encoder.pt,RUN_DIR]' env=Pong env.num_frames=4 env.image_size=84

The probe is fitted on some episodes of random play, and scored on others. All encoders get the same frames. Each
encoder is a file of recipes/pretrain.py, or a run directory, whose encoder is used.
"""

from __future__ import annotations

from recipes.early_answers import answer_early
from recipes.schema import ProbeCommandConfig, ProbeConfig

if __name__ == "__main__":  # before the imports that take seconds
    answer_early(config_name="probe", schema=ProbeCommandConfig)

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from torchrl.envs import EnvBase

from mcurl_torchrl import AtariEncoder, PixelEncoder, load_policy
from mcurl_torchrl.modules import load_encoder
from mcurl_torchrl.training import RunDirectory, collect_probe_data, probe_encoder
from recipes.building import make_env
from recipes.launch import BadCommand, launch, pick_device
from recipes.trained import import_recipe

Encoder = PixelEncoder | AtariEncoder


def main(cfg: DictConfig) -> None:
    score_all(cfg, Path(HydraConfig.get().runtime.output_dir))


def score_all(cfg: DictConfig, folder: Path) -> None:
    names = list(cfg.encoders) if OmegaConf.is_list(cfg.encoders) else [cfg.encoders]
    device = pick_device(cfg.device)
    try:
        encoders = {name: open_encoder(Path(name)).to(device) for name in map(str, names)}
    except (OSError, ValueError) as error:
        raise BadCommand(f"encoders: {error}") from error
    env = make_env(cfg.env, training=False)
    channels, size = env.observation_spec["pixels"].shape[:2]
    for name, encoder in encoders.items():
        if encoder.in_channels != channels or encoder.image_size > size:
            raise BadCommand(
                f"{name} takes {encoder.in_channels} channels of {encoder.image_size}x{encoder.image_size}; the "
                f"environment gives {channels} of {size}x{size}: set env.num_frames and env.image_size as in training"
            )
    folder.mkdir(parents=True, exist_ok=True)
    score(encoders, env, cfg.probe, seed=cfg.seed, folder=folder)
    print(f"written to {folder}")


def score(encoders: Mapping[str, Encoder], env: EnvBase, probe: ProbeConfig, *, seed: int, folder: Path) -> None:
    """Scores encoders on the same frames; writes probe.json and prints the scores."""
    data = collect_probe_data(env, episodes=probe.episodes, steps=probe.agent_steps, seed=seed)
    options = {"held_out": probe.held_out, "ridge": probe.ridge}
    scores = {name: probe_encoder(encoder, data, **options) for name, encoder in encoders.items()}
    told = {name: asdict(one) for name, one in scores.items()}
    for one in told.values():  # JSON has no NaN
        one["r2_of"] = [None if math.isnan(value) else value for value in one["r2_of"]]
    (folder / "probe.json").write_text(json.dumps(told, indent=2, allow_nan=False))
    for name, one in scores.items():
        print(f"{name}: R2 {one.r2:.3f}, error {one.error:.3f}")


def open_encoder(path: Path) -> Encoder:
    """Loads an encoder from a file, or from the policy of a run directory."""
    if not path.is_dir():
        return load_encoder(path)
    import_recipe(RunDirectory(path).read_manifest().get("recipe"))
    found = [part for part in load_policy(path).modules() if isinstance(part, Encoder)]
    if not found:
        raise ValueError(f"the policy of {path} has no encoder of images")
    return found[0]


if __name__ == "__main__":
    launch(main, config_name="probe", schema=ProbeCommandConfig)
