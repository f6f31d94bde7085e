"""PredictiveCodingTask against a plain version, and what it learns."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import LazyTensorStorage

from mcurl_torchrl import FrameReplayBuffer, PixelEncoder
from mcurl_torchrl.objectives.predictive_coding_task import PredictiveCodingTask


def make_buffer(num_frames: int = 1) -> FrameReplayBuffer:
    """Episodes of a bright column that moves to the right by one pixel a step, from a place of its own."""
    buffer = FrameReplayBuffer(storage=LazyTensorStorage(500), num_frames=num_frames, stacked_input=False)
    for start in range(12):
        column = (torch.arange(25) + start) % 12
        frames = 255 * torch.nn.functional.one_hot(column, 12).byte()[:, None, None, :].expand(-1, 1, 12, 12)
        last = torch.arange(24)[:, None] == 23
        outcome = {"pixels": frames[1:], "reward": torch.zeros(24, 1), "truncated": last}
        outcome["terminated"] = torch.zeros_like(last)
        buffer.extend(TensorDict({"pixels": frames[:-1], "action": torch.zeros(24, 1), "next": outcome}, [24]))
    return buffer


def make_task(**options) -> PredictiveCodingTask:
    encoder = PixelEncoder(1, 12, num_layers=1, num_filters=4, feature_dim=8)
    return PredictiveCodingTask(encoder, make_buffer(), num_slices=4, slice_len=6, context_dim=10, **options)


@torch.no_grad()
def test_the_loss_equals_a_plain_version():
    task = make_task(steps_ahead=2, temperature=0.5, coeff=0.25).double()
    views = task.sample()
    views["pixels"] = torch.randint(256, (4, 6, 1, 12, 12), dtype=torch.uint8)  # no two alike: no ties
    latents = task.encoder(views["pixels"])
    context, _ = task.context(latents)
    losses, hits = [], []
    for ahead, predict in enumerate(task.predictions, start=1):
        queries = [(b, t) for b in range(4) for t in range(6 - ahead)]
        entropies, correct = [], []
        for b, t in queries:
            scores = [float(predict(context[b, t]) @ latents[i, j + ahead]) / 0.5 for i, j in queries]
            own = queries.index((b, t))
            entropies.append(math.log(sum(math.exp(score) for score in scores)) - scores[own])
            correct.append(max(range(len(scores)), key=scores.__getitem__) == own)
        losses.append(sum(entropies) / len(entropies))
        hits.append(sum(correct) / len(correct))
    out = task(views)
    assert out["loss_auxiliary"].item() == pytest.approx(0.25 * sum(losses) / 2, rel=1e-9)
    assert out["prediction_accuracy"].item() == pytest.approx(sum(hits) / 2)


def test_it_learns_where_the_column_goes():
    torch.manual_seed(1)
    task = make_task(steps_ahead=1)
    optimizer = torch.optim.Adam(task.parameters(), lr=1e-2)
    first = task.loss().item()
    for _ in range(60):
        optimizer.zero_grad()
        loss = task.loss()
        loss.backward()
        optimizer.step()
    # Columns repeat after 12 steps, so that some of the 20 keys are equal: log 2 is about the best.
    assert loss.item() < 1.2 < first


def test_keys_of_a_target_encoder_have_no_gradients():
    target = PixelEncoder(1, 12, num_layers=1, num_filters=4, feature_dim=8)
    task = make_task(target_encoder=target)
    task.loss().backward()
    assert all(value.grad is None for value in target.parameters())
    assert not any(key.startswith("_target") for key in task.state_dict())


@pytest.mark.parametrize(
    ("options", "answer"),
    [({"steps_ahead": 6}, "steps_ahead=6; it must be below slice_len=6"), ({"temperature": 0.0}, "temperature=0.0")],
)
def test_bad_settings_name_themselves(options, answer):
    with pytest.raises(ValueError, match=answer):
        make_task(**options)


def test_an_augmentation_is_applied_once():
    calls = []

    class Count(nn.Module):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            calls.append(pixels.shape)
            return pixels

    make_task(augmentation=Count()).loss()
    assert calls == [(24, 1, 12, 12)]
