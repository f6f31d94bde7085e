"""A synthetic video to learn from: a few blobs of different colours that move and bounce."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.objectives import SoftUpdate

from mcurl_torchrl import ContextTransformer, MaskedContrastiveLoss, MaskObservations, PixelEncoder, inverse_sqrt_warmup

SIZE, NUM_BLOBS, RADIUS = 16, 3, 2.0
NUM_SLICES, SLICE_LEN, FEATURE_DIM = 8, 16, 64
MASK_RATIO, LEARNING_RATE, WARMUP, TAU = 0.3, 4e-3, 300, 0.1


def make_video(num_slices: int, length: int, generator: torch.Generator) -> Tensor:
    """Makes slices of video, uint8 ``[slices, length, 3, SIZE, SIZE]``: one blob in each colour channel."""
    shape = (num_slices, 1, NUM_BLOBS, 2)
    start = torch.rand(shape, generator=generator) * 2
    speed = 0.05 + 0.05 * torch.rand(shape, generator=generator)  # none so slow that two frames look the same
    velocity = torch.where(torch.rand(shape, generator=generator) < 0.5, -speed, speed)
    time = torch.arange(length).view(1, -1, 1, 1)
    place = (start + velocity * time) % 2
    place = torch.where(place > 1, 2 - place, place) * (SIZE - 1)  # back and forth between the walls
    grid = torch.arange(SIZE)
    rows = (grid - place[..., :1]).square()
    columns = (grid - place[..., 1:]).square()
    blobs = torch.exp(-(rows[..., :, None] + columns[..., None, :]) / (2 * RADIUS**2))
    return (blobs * 255).to(torch.uint8)


def make_loss(context_network: nn.Module | None = None) -> MaskedContrastiveLoss:
    """Makes a small M-CURL."""
    encoder = PixelEncoder(NUM_BLOBS, SIZE, num_layers=2, num_filters=16, feature_dim=FEATURE_DIM)
    return MaskedContrastiveLoss(encoder, context_network or ContextTransformer(FEATURE_DIM, dropout=0.0))


def train(loss: MaskedContrastiveLoss, num_updates: int, *, shuffle_time: bool = False, seed: int = 0) -> float:
    """Trains, and returns the accuracy on zeroed positions over the last tenth of the updates."""
    generator = torch.Generator().manual_seed(seed)
    mask = MaskObservations(MASK_RATIO, generator=generator)
    optimizer = torch.optim.Adam([p for p in loss.parameters() if p.requires_grad], lr=LEARNING_RATE, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, inverse_sqrt_warmup(WARMUP))
    target = SoftUpdate(loss, tau=TAU)
    accuracies = []
    for _ in range(num_updates):
        video = make_video(NUM_SLICES, SLICE_LEN, generator)
        if shuffle_time:
            order = torch.rand(NUM_SLICES, SLICE_LEN, generator=generator).argsort(1)
            video = video[torch.arange(NUM_SLICES)[:, None], order]
        views = {"query_pixels": video, "key_pixels": video}
        out = loss(mask(TensorDict({"mcurl": views}, [NUM_SLICES, SLICE_LEN])))
        optimizer.zero_grad()
        out["loss_contrastive"].backward()
        optimizer.step()
        schedule.step()
        target.step()
        accuracies.append(out["contrastive_accuracy_zeroed"])
    return torch.stack(accuracies[-num_updates // 10 :]).mean().item()
