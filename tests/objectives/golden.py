"""The values that the authors' released code computes for one small batch (``tests/data/masked_contrastive.npz``).

The file holds 64x64 observations, B = 3, T = 5, two convolutions of 4 filters, d = 10, two Transformer layers, dropout
off, random LayerNorm parameters; weights, latents, queries, keys, logits at masked places, losses and gradients.
``loss`` and ``grad/...`` are the code's reading; ``paper_...`` have negatives, reduction and attention as the paper
writes them. The file comes from the released code, not from this package: it is never refreshed from here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from mcurl_torchrl import ContextTransformer, MaskedContrastiveLoss, PixelEncoder
from mcurl_torchrl.modules.encoders import _ConvEncoder, rescale_latents

FILE = Path(__file__).parents[1] / "data" / "masked_contrastive.npz"
ENCODER_NAMES = {"linear": "fc", "norm": "ln"}
CONTEXT_NAMES = {
    "layers": "attn_layers",
    "in_projection": "self_attn.in_proj",
    "attention_norm": "attn_layer_norm",
    "ffn_in": "fc1",
    "ffn_out": "fc2",
    "ffn_norm": "final_layer_norm",
}
HEAD_NAMES = {"value.0": "value.1", "advantage.0": "advantage_hidden.1"}


class SmallAtariEncoder(_ConvEncoder):
    """The convolutions of the golden batches that released code for Atari computed."""

    def __init__(self, *, rescale: bool = False) -> None:
        sizes = ((2, 3, 8, 4), (3, 4, 4, 2), (4, 4, 3, 1))
        super().__init__([nn.Conv2d(a, b, kernel, stride=stride) for a, b, kernel, stride in sizes], 2, 44)
        self.rescale = rescale
        self.feature_dim = self.num_features

    def features(self, pixels: Tensor) -> Tensor:
        features = super().features(pixels)
        return rescale_latents(features) if self.rescale else features

    def project(self, features: Tensor) -> Tensor:
        return features


def released_head_name(name: str) -> str | None:
    """Turns our name of a head's parameter into that of released code; None for one that does not project."""
    part, _, rest = name.partition(".")
    prefix = {"projection": "head", "target_projection": "global_target_classifier.head"}[part]
    layer, _, kind = rest.removeprefix("copy.").removeprefix("head.").rpartition(".")
    return f"{prefix}.{HEAD_NAMES[layer]}.{kind}" if layer in HEAD_NAMES and kind.endswith("_mu") else None


def load_golden() -> dict[str, Tensor]:
    with np.load(FILE, allow_pickle=False) as file:
        return {name: torch.from_numpy(np.asarray(file[name])) for name in file.files}


def released_name(name: str, names: dict[str, str]) -> str:
    """Turns our name of a parameter into the released code's."""
    parts = [names.get(part, part) for part in name.split(".")]
    if parts[0] == "convs":
        parts[1] = str(int(parts[1]) // 2)  # ours counts the ReLUs in between
    return ".".join(parts)


def load_weights(module: nn.Module, golden: dict[str, Tensor], part: str, names: dict[str, str]) -> None:
    """Gives a module the golden weights, all of them."""
    state = {name: golden[f"param/{part}/{released_name(name, names)}"] for name in module.state_dict()}
    assert len(state) == len([name for name in golden if name.startswith(f"param/{part}/")])
    module.load_state_dict(state)


def make_golden_loss(golden: dict[str, Tensor], *, paper: bool = False, **options) -> MaskedContrastiveLoss:
    """Builds the loss with the golden weights, in the code's or the paper's reading."""
    encoder, key_encoder = (PixelEncoder(9, 64, num_layers=2, num_filters=4, feature_dim=10) for _ in range(2))
    context = ContextTransformer(10, dropout=0.0, scale_attention=not paper)
    load_weights(encoder, golden, "encoder", ENCODER_NAMES)
    load_weights(key_encoder, golden, "key_encoder", ENCODER_NAMES)
    load_weights(context, golden, "transformer", CONTEXT_NAMES)
    if paper:
        options = {"negatives": "sequence", "reduction": "sum", **options}
    return MaskedContrastiveLoss(encoder, context, target_encoder_network=key_encoder, **options)


def golden_batch(golden: dict[str, Tensor], *, with_zeroed: bool) -> TensorDict:
    """The batch; ``zeroed`` is where the masked observation is all zeros."""
    views = {"query_pixels": golden["obs_masked"], "key_pixels": golden["obs"], "masked": golden["mask"]}
    if with_zeroed:
        views["zeroed"] = (golden["obs_masked"] == 0).flatten(2).all(-1)
    return TensorDict({"mcurl": views}, [3, 5])
