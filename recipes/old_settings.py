"""Converts settings of earlier versions to current settings, so that old runs can be resumed and compared."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from recipes.schema import CollectorConfig, EncoderStartConfig, ResetsConfig

# Settings that older runs do not have, with the values that these runs used.
CAME_LATER: dict[str, Any] = {
    "compile": False,
    "cuda_graphs": False,
    "precision": "float32",
    "sample_ahead": 0,
    "collector": asdict(CollectorConfig()),
}
LATER_IN_PPO = {
    "env": {"kwargs": None, "pixels_key": None, "following_camera_id": None},
    "evaluation": {"sample": False},
}
LATER_IN_ALL = LATER_IN_PPO | {"encoder": asdict(EncoderStartConfig()), "resets": asdict(ResetsConfig())}
LATER_IN_SECTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "sac": LATER_IN_ALL | {"sac": {"auxiliary_encoder_warms_up": False, "auxiliary_max_gradient_norm": None}},
    "rainbow": LATER_IN_ALL
    | {
        "rainbow": {
            "priorities": "cross_entropy",
            "rescale": False,
            "target_tau": 1.0,
            "act_with_target": False,
            "gradient_scale": 1.0,
        }
    },
    "ppo": LATER_IN_PPO | {"ppo": {"auxiliary_phase": 0}},
}  # the agent's section, then the sections with such settings
OLD_AUGMENTATIONS = {
    "encoder": {"random_crop": ("crop", "crop"), "center_crop": ("none", "crop")},
    "rainbow": {"shift": ("none", "curl_shift"), "none": ("none", "none")},
    "ppo": {"shift": ("none", "curl_shift"), "none": ("none", "none")},
}  # section, then the value of its former key augmentation: the augmentations of RL's batch and of the task's views


def as_of_today(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns a run's settings with the current keys; the settings of a new run do not change."""
    settings = {**CAME_LATER, **settings}
    for agent, sections in LATER_IN_SECTIONS.items():
        if agent in settings:
            settings |= {name: {**later, **(settings.get(name) or {})} for name, later in sections.items()}
    if "augmentation" in settings:
        return settings
    for name, meant in OLD_AUGMENTATIONS.items():
        old = dict(settings.get(name) or {})
        if (kind := old.pop("augmentation", None)) in meant:
            objective = dict(settings.get("objective") or {})
            batch, views = meant[kind]
            augmentation = {
                "batch": batch,
                "batch_intensity": 0.0,
                "views": views,
                "views_intensity": objective.pop("intensity_scale", 0.0),
                "second_next": False,
            }
            changed = {name: old, "augmentation": augmentation}
            return settings | changed | ({"objective": objective} if objective else {})
    return settings
