"""Tasks with actions learn from a video whose next frame depends on the action, and only from the true actions."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from mcurl_torchrl import FrameReplayBuffer
from mcurl_torchrl.modules import DuelingHead
from mcurl_torchrl.objectives.action_contrastive_task import ActionContrastiveTask
from mcurl_torchrl.objectives.masked_reconstruction_task import MaskedReconstructionTask
from mcurl_torchrl.objectives.self_prediction_task import SelfPredictionTask
from mcurl_torchrl.transforms import KEY_VIEW, QUERY_VIEW
from tests.learning.jumps import ACTIONS, SIZE, all_columns, share_recognised, train

SLICES = {"action_spec": ACTIONS, "num_slices": 16, "slice_len": 6}
MASKED = {**SLICES, "tau": 0.1, "dropout": 0.0, "zero": 1.0, "replace": 0.0, "negatives": "sequence"}


@pytest.mark.parametrize(
    ("layout", "num_layers", "num_updates"),
    [("added", 1, 400), pytest.param("interleaved", 2, 1500, marks=pytest.mark.slow)],
)
def test_mcurl_recognises_hidden_frames_by_the_actions(layout: str, num_layers: int, num_updates: int) -> None:
    make = partial(ActionContrastiveTask, layout=layout, num_layers=num_layers, **MASKED)

    def accuracy(true_actions: bool) -> float:
        _, _, outs = train(make, true_actions=true_actions, num_updates=num_updates)
        return torch.stack([out["contrastive_accuracy_zeroed"] for out in outs[-num_updates // 10 :]]).mean().item()

    learned = accuracy(true_actions=True)
    assert learned > 0.8
    assert accuracy(true_actions=False) < learned / 2  # a guess among the hidden frames of the slice


def test_mlr_reconstructs_hidden_halves_by_the_actions() -> None:
    sizes = {"patch_size": 6, "block_len": 2, "mask_ratio": 0.75, "tau": 0.01}

    def share(true_actions: bool) -> float:
        make = partial(MaskedReconstructionTask, **SLICES, **sizes)
        task, views, _ = train(make, true_actions=true_actions, num_updates=600, lr=4e-3)
        with torch.no_grad():
            made = task.context(task.encoder(views[QUERY_VIEW]), views["action"], views["final"])
            predictions = task.predictor(task.projection(made))[:, 1:]  # nothing tells of a slice's first frame
            return share_recognised(predictions, task._targets(all_columns()), views[KEY_VIEW][:, 1:])

    assert share(true_actions=True) > 0.85
    assert share(true_actions=False) < 0.7  # three of four patches are hidden: in half of the frames all of the column


@pytest.mark.parametrize("has_head", [True, False])
def test_spr_predicts_the_next_frames_by_the_actions(has_head: bool) -> None:
    def make(encoder: nn.Module, buffer: FrameReplayBuffer) -> SelfPredictionTask:
        head = DuelingHead(encoder.num_features, SIZE, hidden_dim=16) if has_head else None
        options = {"steps_ahead": 2, "target_tau": 0.01}
        return SelfPredictionTask(encoder, buffer, action_spec=ACTIONS, head=head, **options)

    def share(true_actions: bool) -> float:
        task, views, _ = train(make, true_actions=true_actions, num_updates=150, lr=4e-3)
        with torch.no_grad():
            latents = task._latents(task.encoder, views["pixels"])
            predictions = task.predictor(task.projection(task.transition(latents, views["action"][:, 0])))
            prototypes = task.target_projection(task._latents(task.target_encoder.copy, all_columns()))
            return share_recognised(predictions, prototypes, views["following"][:, 0])

    assert share(true_actions=True) > 0.85
    assert share(true_actions=False) < 0.4
