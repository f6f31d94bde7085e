"""M-CURL learns to reconstruct a hidden frame of a video from its neighbours, and only from them.

An observation that was zeroed can be told apart from the batch's 127 others only by its neighbours in time. If their
order says nothing, what is left is to guess among the hidden ones of the slice; if there is no Transformer, nothing.
"""

from __future__ import annotations

import pytest
from torch import nn

from tests.learning.blobs import make_loss, train

NUM_UPDATES = 2200


@pytest.fixture(scope="module")
def accuracy(_one_thread: None) -> float:
    return train(make_loss(), NUM_UPDATES)


def test_hidden_frames_are_recognised_by_their_neighbours(accuracy: float) -> None:
    assert accuracy >= 0.5


@pytest.mark.slow
def test_not_when_the_order_of_time_is_shuffled(accuracy: float) -> None:
    assert train(make_loss(), NUM_UPDATES, shuffle_time=True) < accuracy / 2


def test_not_without_a_transformer(accuracy: float) -> None:
    assert train(make_loss(nn.Identity()), NUM_UPDATES // 4) < accuracy / 2
