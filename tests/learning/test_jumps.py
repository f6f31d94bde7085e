"""Tasks that see actions learn from a video in which actions alone tell what comes, and only from the true actions."""

from __future__ import annotations

from functools import partial

import pytest

from mcurl_torchrl.objectives.action_contrastive_task import ActionContrastiveTask
from tests.learning.jumps import ACTIONS, train

SMALL = {"action_spec": ACTIONS, "num_slices": 16, "slice_len": 6, "tau": 0.1}
MASKED = {**SMALL, "dropout": 0.0, "zero": 1.0, "replace": 0.0, "negatives": "sequence"}


@pytest.mark.parametrize(
    ("layout", "num_layers", "num_updates"),
    [("added", 1, 400), pytest.param("interleaved", 2, 1500, marks=pytest.mark.slow)],
)
def test_hidden_frames_are_recognised_by_the_actions(layout: str, num_layers: int, num_updates: int) -> None:
    task = partial(ActionContrastiveTask, layout=layout, num_layers=num_layers, **MASKED)
    accuracy, other = (
        train(task, "contrastive_accuracy_zeroed", true_actions=true_actions, num_updates=num_updates)
        for true_actions in (True, False)
    )
    assert accuracy > 0.8
    assert other < accuracy / 2  # what is left is to guess among the hidden frames of the slice
