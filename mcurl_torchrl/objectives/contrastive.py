"""ContrastiveLoss: CURL as a TorchRL loss module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import dispatch
from tensordict.utils import NestedKey
from torch import nn

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.objectives.encoding import EncodingLoss
from mcurl_torchrl.objectives.functional import reduce_masked
from mcurl_torchrl.objectives.target_loss import valid_positions
from mcurl_torchrl.ranks import ALONE, Ranks

__all__ = ["ContrastiveLoss"]


class ContrastiveLoss(EncodingLoss):
    """Trains latents that match two views of the same observation (CURL, https://arxiv.org/abs/2004.04136).

    InfoNCE with a bilinear product: ``logits = q W k^T``. ``q`` are the encoder's latents of the query view, ``k`` the
    momentum encoder's latents of the key view; ``W`` is learned, and at first uniform in [0, 1). Every observation of
    the batch is a query, and all other keys of the batch are its negatives. With slices instead of i.i.d. observations
    it is M-CURL's ablation seq-CURL.

    Reads, from a batch of any shape ``[*]``: ``query_pixels`` and ``key_pixels`` ``[*, C, H, W]``, by default under
    ``("mcurl", ...)``. Writes ``loss_contrastive`` and, without gradients, ``contrastive_accuracy``. Observations that
    a mask hides (``loss_mask_key``, by default ``("collector", "mask")``) are neither queries nor keys.

    Args:
        encoder_network (nn.Module): pixels ``[*, C, H, W]`` to latents ``[*, latent_dim]``.

    Keyword Args:
        latent_dim (int): the size of a latent.
        temperature (float): divides the logits. Defaults to 1.
        reduction (str): ``"mean"``, ``"sum"`` or ``"none"``. Defaults to ``"mean"``.
        target_encoder_network (nn.Module, optional): encodes the keys in place of a momentum copy of this loss's own.
            Defaults to None.
        ranks (Ranks): as in :class:`~mcurl_torchrl.MaskedContrastiveLoss`. Defaults to one process.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from mcurl_torchrl import ContrastiveLoss, PixelEncoder
        >>> loss = ContrastiveLoss(PixelEncoder(9, 32, feature_dim=16), latent_dim=16)
        >>> pixels = torch.randint(256, (6, 9, 32, 32), dtype=torch.uint8)
        >>> out = loss(TensorDict({"mcurl": {"query_pixels": pixels, "key_pixels": pixels}}, [6]))
        >>> out["loss_contrastive"].backward()
        >>> loss.update_target(0.05)  # after each optimizer step
    """

    @dataclass
    class _AcceptedKeys:
        """The keys that the loss reads."""

        query_pixels: NestedKey = ("mcurl", "query_pixels")
        key_pixels: NestedKey = ("mcurl", "key_pixels")

    default_keys = _AcceptedKeys
    tensor_keys: _AcceptedKeys
    out_keys = ["loss_contrastive", "contrastive_accuracy"]

    def __init__(
        self,
        encoder_network: nn.Module,
        *,
        latent_dim: int,
        temperature: float = 1.0,
        reduction: str | None = "mean",
        target_encoder_network: nn.Module | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__(encoder_network, target_encoder_network, temperature, reduction)
        self.ranks = ranks
        size = getattr(encoder_network, "feature_dim", latent_dim)
        if size != check_count("latent_dim", latent_dim):
            raise ValueError(f"the encoder's latents have feature_dim={size}; got latent_dim={latent_dim}")
        self.bilinear = nn.Parameter(torch.rand(latent_dim, latent_dim))

    def reset_parameters_recursive(self) -> None:
        """Draws new weights for the encoder and the bilinear product."""
        super().reset_parameters_recursive()
        nn.init.uniform_(self.bilinear)

    @property
    def in_keys(self) -> list[NestedKey]:
        """The keys that the loss reads."""
        return [self.tensor_keys.query_pixels, self.tensor_keys.key_pixels]

    @in_keys.setter
    def in_keys(self, keys: Any) -> None:
        raise RuntimeError("in_keys follow from set_keys()")

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Computes the loss of a batch ``[*]``."""
        query_pixels, key_pixels = self._require_views(tensordict)
        queries, keys = self.encode(query_pixels), self.encode_keys(key_pixels)
        valid = valid_positions(tensordict, self.loss_mask_key, queries.shape[:-1])
        losses, correct = self._info_nce(queries @ self.bilinear, keys, valid)
        return TensorDict(
            {
                "loss_contrastive": reduce_masked(losses, valid, self.reduction, ranks=self.ranks),
                "contrastive_accuracy": reduce_masked(correct.float(), valid, ranks=self.ranks),
            }
        )
