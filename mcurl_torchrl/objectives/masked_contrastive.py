"""MaskedContrastiveLoss: M-CURL as a TorchRL loss module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import dispatch
from tensordict.utils import NestedKey
from torch import Tensor, nn

from mcurl_torchrl.checks import check_choice, require
from mcurl_torchrl.objectives.encoding import EncodingLoss, call_with
from mcurl_torchrl.objectives.functional import NEGATIVES, info_nce, reduce_masked

__all__ = ["MaskedContrastiveLoss"]


class MaskedContrastiveLoss(EncodingLoss):
    """Reconstructs hidden observations of a slice from their neighbours, in latent space (M-CURL).

    Query observations, some hidden, are encoded; a Transformer reconstructs the latents of hidden ones from their
    neighbours; InfoNCE asks that each reconstruction match the momentum encoder's latent of the true observation, and
    of no other. See https://arxiv.org/abs/2010.07470. The defaults compute what the authors' released code computes;
    ``negatives="sequence", reduction="sum"`` and ``ContextTransformer(scale_attention=False)`` what the paper writes.

    Reads, from a batch ``[B, T]``: ``query_pixels`` and ``key_pixels`` ``[B, T, C, H, W]``, two views of the same
    observations, the query's with some hidden; ``masked`` ``[B, T]``, True where hidden, which is where the loss is
    taken; and, if it is there, ``zeroed`` ``[B, T]``, True where the query view is all zeros. By default under
    ``("mcurl", ...)``; ``set_keys`` changes that.

    Writes ``loss_contrastive``; without gradients ``contrastive_accuracy``, how often a reconstruction is closest to
    its own key, ``contrastive_accuracy_zeroed``, the same where the observation was zeroed and only its neighbours can
    tell (0 if there is none), and ``masked_fraction``.

    All-zero observations have one and the same latent, so with ``zeroed`` given they are encoded once instead of one by
    one: the same value and gradients for about 0.6 of the work. It is not done where the encoder has dropout or batch
    statistics, for which the latents would differ.

    Args:
        encoder_network (nn.Module): pixels ``[*, C, H, W]`` to latents ``[*, d]``, like
            :class:`~mcurl_torchrl.PixelEncoder`.
        context_network (nn.Module): latents ``[B, T, d]`` to reconstructions ``[B, T, d]``, like
            :class:`~mcurl_torchrl.ContextTransformer`.

    Keyword Args:
        negatives (str): the keys that a reconstruction is told apart from: ``"batch"``, all B * T, as the released code
            does, or ``"sequence"``, the T of its slice, as the paper writes. Defaults to ``"batch"``.
        temperature (float): divides the logits. Defaults to 1.
        key_context (bool): whether keys go through a momentum copy of the context network too (without dropout): the
            paper's ablation sym-CURL. Defaults to False.
        reduction (str): ``"mean"`` or ``"sum"`` over hidden positions, or ``"none"``: ``[B, T]``, 0 where not hidden.
            Defaults to ``"mean"``.
        target_encoder_network (nn.Module, optional): encodes the keys in place of a momentum copy of this loss's own,
            so that it can be shared with a target critic, which then moves it. Defaults to None.
        encode_zeros_once (bool): the shortcut above. Defaults to True.

    Raises:
        ValueError: on an unknown choice, and on shapes or dtypes that do not fit.
        KeyError: on a missing key, with the keys that are there.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.objectives import SoftUpdate
        >>> from mcurl_torchrl import ContextTransformer, MaskedContrastiveLoss, PixelEncoder
        >>> loss = MaskedContrastiveLoss(PixelEncoder(9, 32, feature_dim=16), ContextTransformer(16))
        >>> target = SoftUpdate(loss, tau=0.05)
        >>> pixels = torch.randint(256, (2, 8, 9, 32, 32), dtype=torch.uint8)
        >>> masked = torch.rand(2, 8) < 0.5
        >>> views = {"query_pixels": pixels * ~masked[..., None, None, None], "key_pixels": pixels, "masked": masked}
        >>> out = loss(TensorDict({"mcurl": views}, [2, 8]))
        >>> out["loss_contrastive"].backward()
        >>> target.step()
    """

    @dataclass
    class _AcceptedKeys:
        """The keys that the loss reads."""

        query_pixels: NestedKey = ("mcurl", "query_pixels")
        key_pixels: NestedKey = ("mcurl", "key_pixels")
        masked: NestedKey = ("mcurl", "masked")
        zeroed: NestedKey = ("mcurl", "zeroed")

    default_keys = _AcceptedKeys
    tensor_keys: _AcceptedKeys
    context_network: nn.Module
    context_network_params: TensorDictParams
    target_context_network_params: TensorDictParams
    out_keys = ["loss_contrastive", "contrastive_accuracy", "contrastive_accuracy_zeroed", "masked_fraction"]

    def __init__(
        self,
        encoder_network: nn.Module,
        context_network: nn.Module,
        *,
        negatives: str = "batch",
        temperature: float = 1.0,
        key_context: bool = False,
        reduction: str = "mean",
        target_encoder_network: nn.Module | None = None,
        encode_zeros_once: bool = True,
    ) -> None:
        super().__init__(encoder_network, target_encoder_network, temperature, reduction)
        self.negatives = check_choice("negatives", negatives, NEGATIVES)
        self.key_context = key_context
        self.convert_to_functional(context_network, "context_network", create_target_params=key_context)
        sizes = [getattr(network, "feature_dim", None) for network in (encoder_network, context_network)]
        if None not in sizes and sizes[0] != sizes[1]:
            raise ValueError(f"the encoder's latents have feature_dim={sizes[0]}, the context network's {sizes[1]}")
        self.encode_zeros_once = encode_zeros_once

    @property
    def in_keys(self) -> list[NestedKey]:
        """The keys that the loss needs; ``zeroed`` is optional."""
        return [self.tensor_keys.query_pixels, self.tensor_keys.key_pixels, self.tensor_keys.masked]

    @in_keys.setter
    def in_keys(self, keys: Any) -> None:
        raise RuntimeError("in_keys follow from set_keys()")

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Computes the loss of a batch ``[B, T]``."""
        query_pixels, key_pixels, masked, zeroed = self._read(tensordict)
        latents = self._encode_queries(query_pixels, zeroed)
        queries = call_with(self.context_network_params, self.context_network, latents)
        losses, correct = info_nce(
            queries, self._keys(key_pixels), negatives=self.negatives, temperature=self.temperature
        )
        return TensorDict(
            {
                "loss_contrastive": reduce_masked(losses, masked, self.reduction),
                "contrastive_accuracy": _fraction(correct, masked),
                "contrastive_accuracy_zeroed": _fraction(
                    correct, torch.zeros_like(masked) if zeroed is None else zeroed
                ),
                "masked_fraction": masked.float().mean(),
            }
        )

    def _read(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        if tensordict.ndim != 2:
            raise ValueError(
                f"the batch must be [slices, time]; got {list(tensordict.shape)}: reshape(num_slices, slice_len) first"
            )
        query, key = self._require_views(tensordict)
        masked = self._flag(self.tensor_keys.masked, require(tensordict, self.tensor_keys.masked, self), tensordict)
        zeroed = tensordict.get(self.tensor_keys.zeroed, None)
        return query, key, masked, None if zeroed is None else self._flag(self.tensor_keys.zeroed, zeroed, tensordict)

    @staticmethod
    def _flag(key: NestedKey, value: Tensor, tensordict: TensorDictBase) -> Tensor:
        if value.dtype != torch.bool or value.numel() != tensordict.numel():
            raise ValueError(
                f"{key!r} must be bool {list(tensordict.shape)}; got {value.dtype} of shape {tuple(value.shape)}"
            )
        return value.view(tensordict.shape)

    def _keys(self, pixels: Tensor) -> Tensor:
        keys = self.encode_keys(pixels)
        if self.key_context:
            was_training = self.context_network.training
            self.context_network.eval()  # no dropout on this side
            with torch.no_grad():
                keys = call_with(self.target_context_network_params, self.context_network, keys)
            self.context_network.train(was_training)
        return keys

    def _encode_queries(self, pixels: Tensor, zeroed: Tensor | None) -> Tensor:
        if zeroed is None or not self.encode_zeros_once or _is_stochastic(self.encoder_network):
            return self.encode(pixels)
        lead, pixels, zeroed = pixels.shape[:2], pixels.flatten(0, 1), zeroed.flatten()
        shown = (~zeroed).nonzero().squeeze(-1)
        # Channels last, as they are in memory: index_select would copy them into another format first.
        images = pixels.movedim(1, -1)
        images = torch.cat([images.index_select(0, shown), torch.zeros_like(images[:1])]).movedim(-1, 1)
        # Each shown observation's place among those encoded; all zeros share the last.
        place = torch.where(zeroed, len(shown), (~zeroed).cumsum(0) - 1)
        return self.encode(images).index_select(0, place).unflatten(0, lead)


def _fraction(correct: Tensor, among: Tensor) -> Tensor:
    """Returns how large a part is correct, 0 of nothing."""
    return (correct & among).sum() / among.sum().clamp(min=1)


def _is_stochastic(network: nn.Module) -> bool:
    """Tells whether equal inputs may have different outputs: with dropout, or statistics of the batch."""
    stochastic = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
    return any(isinstance(module, stochastic) and module.training for module in network.modules())
