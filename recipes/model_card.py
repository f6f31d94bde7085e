"""Writes a folder to share a trained policy: weights, config, video and a model card, as on the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from mcurl_torchrl.files import write_file
from mcurl_torchrl.reports import mean_over_seeds
from mcurl_torchrl.training import Evaluation, RunDirectory, save_policy, write_video
from recipes.launch import env_name
from recipes.schema import EvaluateConfig
from recipes.trained import Trained

VIDEO = "replay.mp4"  # the file name of the video that the Hub shows
TASKS = {"atari": "Atari", "dmc": "DeepMind Control Suite", "gym": "Gymnasium"}
USE = """```python
from mcurl_torchrl import load_policy

policy = load_policy("PATH/FOLDER")
policy.reset()  # at an episode's start; then policy(frame) is the action for each frame
```

Loading runs no code of these files: `config.json` names a class of the library, `model.safetensors` holds numbers.
"""


def pack(trained: Trained, evaluation: Evaluation, cfg: EvaluateConfig, *, epsilon: float, sample: bool) -> Path:
    """Writes the folder; :func:`~mcurl_torchrl.load_policy` reads it, and ``mcurl play`` plays it."""
    folder = Path(cfg.pack)
    estimate = mean_over_seeds(evaluation.returns)  # Student's 95 % interval, over episodes
    about = {
        "env": OmegaConf.to_container(trained.env),
        "training": describe_training(RunDirectory(cfg.run), trained.policy.agent_step),
        "evaluation": {
            "episodes": len(evaluation.returns),
            "seed": cfg.seed,
            "epsilon": epsilon,
            "sample": sample,
            "mean": evaluation.mean,
            "interval": [estimate.low, estimate.high] if estimate.has_interval else None,
            "returns": evaluation.returns,
        },
        "licence": cfg.licence,
    }
    save_policy(trained.policy, folder, about=about, half=cfg.half)
    if evaluation.frames:
        write_video(folder / VIDEO, evaluation.film(), fps=evaluation.steps_per_second or 30)
    write_file(folder / "README.md", card(about, folder.name, filmed=bool(evaluation.frames)).encode())
    return folder


def describe_training(run: RunDirectory, agent_steps: int) -> dict[str, Any]:
    """Returns the recipe of a run, its settings and its code, and how long the policy was trained."""
    manifest, config = run.read_manifest(), OmegaConf.load(run.config)
    return {
        "recipe": manifest.get("recipe"),
        "task": env_name(config),
        "algo": config.algo_name,
        "preset": config.preset_name,
        "overrides": manifest.get("overrides", []),
        "env_steps": agent_steps * OmegaConf.select(config, "env.action_repeat", default=1),
        "seed": config.seed,
        "commit": (manifest.get("git") or {}).get("commit"),
        "versions": manifest.get("versions", {}),
    }


def card(about: dict[str, Any], folder: str, *, filmed: bool) -> str:
    """Returns the README.md: metadata for the Hub, then the model card."""
    training, scores = about["training"], about["evaluation"]
    task, licence = training["task"], about["licence"]
    name = f"{training['algo']}-{task}".replace("/", "-")
    between = "" if scores["interval"] is None else " (95 % interval {:,.0f} to {:,.0f})".format(*scores["interval"])
    drawn = ", the others drawn from the policy" if scores.get("sample") else ""
    commit = training["commit"] or "not known"
    versions = ", ".join(f"{package} {version}" for package, version in training["versions"].items())
    rows = [
        ("task", f"{task} ({TASKS[about['env']['backend']]})"),
        ("score", f"{scores['mean']:,.1f} on average over {scores['episodes']} episodes{between}"),
        ("evaluated with", f"seed {scores['seed']}, {scores['epsilon']:g} of the actions at random{drawn}"),
        ("trained for", f"{training['env_steps']:,} environment steps"),
        ("seeds", f"one run, seed {training['seed']}: the interval is over episodes, not over runs"),
        ("agent", f"`{training['recipe']}`, `{' '.join(training['overrides'])}`"),
        ("code", f"commit `{commit}` of mcurl_torchrl; {versions}"),
        ("licence", licence or "none was stated"),
    ]
    shown = ["", f"The first of these episodes, at real speed: [{VIDEO}]({VIDEO})."] if filmed else []
    return "\n".join(
        [
            f"---\n{yaml.safe_dump(hub_metadata(about, name), sort_keys=False)}---\n",
            f"# {name}\n",
            f"A policy for {task} that sees {about['env']['observation']}, trained with mcurl_torchrl.\n",
            "| | |\n|---|---|",
            *(f"| {key} | {value} |" for key, value in rows),
            *shown,
            f"\nTo play it: `mcurl play PATH/{folder}`. To use it:\n",
            USE.replace("FOLDER", folder),
        ]
    )


def hub_metadata(about: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the metadata that the Hub shows and searches."""
    training, scores = about["training"], about["evaluation"]
    task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
    metric = {"type": "mean_reward", "name": "mean_reward", "value": round(scores["mean"], 1), "verified": False}
    dataset = {"name": training["task"], "type": training["task"]}
    return {
        "library_name": "mcurl_torchrl",
        "license": about["licence"] or "unknown",
        "tags": ["reinforcement-learning", training["task"], training["algo"], about["env"]["backend"], "torchrl"],
        "model-index": [{"name": name, "results": [{"task": task, "dataset": dataset, "metrics": [metric]}]}],
    }
