"""The contrastive losses on slices that TorchRL's SliceSampler has padded."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import Compose

from mcurl_torchrl import (
    ContextTransformer,
    ContrastiveLoss,
    MaskedContrastiveLoss,
    MaskObservations,
    PixelEncoder,
    RandomCrop,
)

SLICE_LEN = 6


def make_encoder() -> PixelEncoder:
    return PixelEncoder(1, 14, num_layers=2, num_filters=4, feature_dim=8)


def sample_padded() -> TensorDict:
    """Slices ``[8, 6]`` of episodes with 2 to 9 steps: the short ones are padded."""
    views = [RandomCrop(14, out_keys=[("mcurl", name)]) for name in ("query_pixels", "key_pixels")]
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100),
        sampler=SliceSampler(slice_len=SLICE_LEN, traj_key="episode", strict_length=False, pad_output=True),
        batch_size=8 * SLICE_LEN,
        transform=Compose(*views, MaskObservations(0.5, slice_len=SLICE_LEN)),
    )
    for episode, length in enumerate([2, 9, 3, 5, 2, 7]):
        pixels = torch.randint(1, 256, (length, 1, 16, 16), dtype=torch.uint8)
        buffer.extend(TensorDict({"pixels": pixels, "episode": torch.full((length,), episode)}, [length]))
    batch = buffer.sample().reshape(8, SLICE_LEN)
    lengths = batch["collector", "mask"].sum(1)
    assert (lengths < SLICE_LEN).any() and (lengths == SLICE_LEN).any()
    return batch


def unpadded(batch: TensorDict) -> list[TensorDict]:
    return [one[: int(one["collector", "mask"].sum())].exclude("collector") for one in batch]


@pytest.mark.parametrize("encode_zeros_once", [True, False])
@pytest.mark.parametrize("with_zeroed", [True, False])
def test_each_slice_is_worth_what_it_is_alone(encode_zeros_once: bool, with_zeroed: bool) -> None:
    loss = MaskedContrastiveLoss(
        make_encoder(),
        ContextTransformer(8, dropout=0.0),
        negatives="sequence",
        reduction="sum",
        encode_zeros_once=encode_zeros_once,
    )
    loss.update_target(1.0)
    batch = sample_padded()
    if not with_zeroed:
        batch = batch.exclude(("mcurl", "zeroed"))
    alone = [loss(one.unsqueeze(0))["loss_contrastive"] for one in unpadded(batch)]
    out = loss(batch)
    torch.testing.assert_close(out["loss_contrastive"], torch.stack(alone).sum())
    hidden = sum(int(one["mcurl", "masked"].sum()) for one in unpadded(batch))
    torch.testing.assert_close(out["masked_fraction"], hidden / batch["collector", "mask"].sum())
    loss.loss_mask_key = None
    assert not torch.isclose(loss(batch)["loss_contrastive"], out["loss_contrastive"], rtol=0.05)


def test_padding_is_no_negative_in_the_batch() -> None:
    loss = ContrastiveLoss(make_encoder(), latent_dim=8)
    loss.update_target(1.0)
    batch = sample_padded()
    torch.testing.assert_close(loss(batch), loss(torch.cat(unpadded(batch))))


class Sum(nn.Module):
    """A user's context network without a mask: each position sees the whole slice."""

    feature_dim = 8

    def forward(self, latents: Tensor) -> Tensor:
        return latents.sum(1, keepdim=True).expand_as(latents)


def test_padding_never_shows_what_a_hidden_observation_was() -> None:
    """TorchRL pads with the last observation: a context network that sees it need not reconstruct anything."""
    loss = MaskedContrastiveLoss(make_encoder(), Sum(), reduction="none")
    loss.update_target(1.0)
    batch = sample_padded()
    padding = ~batch["collector", "mask"].squeeze(-1)
    other = batch.clone()
    for name in ("query_pixels", "key_pixels"):
        other["mcurl", name][padding] = torch.randint(256, (int(padding.sum()), 1, 14, 14), dtype=torch.uint8)
    torch.testing.assert_close(loss(other), loss(batch))
