"""What both recipes build alike from their configs: the contrastive loss, the views that it sees, storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from schema import ContrastiveConfig, ReplayConfig
from tensordict import TensorDictBase
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torchrl.data import LazyMemmapStorage, LazyTensorStorage
from torchrl.envs import Compose
from torchrl.envs.transforms import Transform

from mcurl_torchrl import (
    ContextTransformer,
    ContrastiveLoss,
    FrameReplayBuffer,
    MaskedContrastiveLoss,
    MaskObservations,
)
from mcurl_torchrl.checks import check_choice
from mcurl_torchrl.replay import FrameSlices

QUERY, KEY = ("mcurl", "query_pixels"), ("mcurl", "key_pixels")


def check_contrastive(settings: ContrastiveConfig) -> None:
    """Refuses choices that there are not, and masks where there is nothing to mask."""
    check_choice("contrastive.objective", settings.objective, ("none", "masked", "bilinear"))
    check_choice("contrastive.views", settings.views, ("slices", "batch"))
    check_choice("contrastive.negatives", settings.negatives, ("batch", "sequence"))
    check_choice("contrastive.reduction", settings.reduction, ("mean", "sum"))
    if settings.objective == "masked" and settings.views == "batch":
        raise ValueError("contrastive.views=batch has no neighbours to mask; contrastive.objective=masked needs slices")


def steps_before_a_slice(settings: ContrastiveConfig) -> int:
    """Returns how many steps there have to be, at least, before the loss has something to see."""
    return settings.slice_len if settings.objective != "none" and settings.views == "slices" else 1


def make_contrastive_loss(
    settings: ContrastiveConfig, encoder: nn.Module, target_encoder: nn.Module | None = None
) -> MaskedContrastiveLoss | ContrastiveLoss | None:
    """Makes the loss beside RL's. Its keys come from a target encoder if one is given, else from a copy of its own."""
    device = next(encoder.parameters()).device if settings.objective != "none" else None
    shared: dict[str, Any] = {
        "temperature": settings.temperature,
        "reduction": settings.reduction,
        "target_encoder_network": target_encoder,
    }
    if settings.objective == "masked":
        context = ContextTransformer(
            encoder.feature_dim,
            num_layers=settings.num_layers,
            num_heads=settings.num_heads,
            dropout=settings.dropout,
            scale_attention=settings.scale_attention,
        )
        return MaskedContrastiveLoss(
            encoder, context.to(device), negatives=settings.negatives, key_context=settings.key_context, **shared
        )
    if settings.objective == "bilinear":
        return ContrastiveLoss(encoder, latent_dim=encoder.feature_dim, **shared).to(device)
    return None


def make_storage(settings: ReplayConfig, directory: Path) -> LazyTensorStorage:
    if settings.memmap:
        return LazyMemmapStorage(settings.capacity, scratch_dir=directory / "replay_storage")
    return LazyTensorStorage(settings.capacity, device="cpu")


def make_slices(
    settings: ContrastiveConfig, buffer: FrameReplayBuffer, augmentation: Callable[..., Transform]
) -> FrameSlices | None:
    """Makes the slices of a buffer that the loss sees: two views, each augmented by itself, the query's masked."""
    if settings.objective == "none" or settings.views == "batch":
        return None
    views = [augmentation(in_keys=["pixels"], out_keys=[view]) for view in (QUERY, KEY)]
    if settings.objective == "masked":
        views.append(
            MaskObservations(
                settings.mask_ratio,
                zero=settings.zero,
                replace=settings.replace,
                source=buffer.observations,
                augment=augmentation(),
                slice_len=settings.slice_len,
            )
        )
    return buffer.slices(num_slices=settings.num_slices, slice_len=settings.slice_len, transform=Compose(*views))


def sample_slices(settings: ContrastiveConfig, slices: FrameSlices) -> TensorDictBase:
    """Draws slices, [num_slices, slice_len]."""
    return slices.sample().reshape(settings.num_slices, settings.slice_len)


def named(optimizers: dict[str, Optimizer], schedules: dict[str, LambdaLR]) -> dict[str, Optimizer | LambdaLR]:
    """Names optimizers and schedules apart, for a checkpoint."""
    return {f"{name}_optimizer": part for name, part in optimizers.items()} | {
        f"{name}_schedule": part for name, part in schedules.items()
    }
