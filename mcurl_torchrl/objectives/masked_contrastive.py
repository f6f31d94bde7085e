"""MaskedContrastiveLoss: M-CURL as a TorchRL loss module."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import dispatch
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor, nn

from mcurl_torchrl.checks import check_choice, require
from mcurl_torchrl.objectives.encoding import EncodingLoss
from mcurl_torchrl.objectives.functional import NEGATIVES, reduce_masked
from mcurl_torchrl.objectives.parameters import call_with
from mcurl_torchrl.objectives.target_loss import valid_positions
from mcurl_torchrl.ranks import ALONE, Ranks

__all__ = ["MaskedContrastiveLoss"]


class _Views(NamedTuple):
    """A checked batch: two views ``[B, T, C, H, W]``, and flags of the observations, bool ``[B, T]`` each."""

    query: Tensor
    key: Tensor
    masked: Tensor  # where the loss is taken
    zeroed: Tensor | None  # where the query view is zeros because it was masked
    valid: Tensor | None  # False at padding
    blank: Tensor | None  # where the query view is zeros, for either reason


class MaskedContrastiveLoss(EncodingLoss):
    """Reconstructs hidden observations of a slice from their neighbors, in latent space (M-CURL).

    The encoder encodes query observations, some of them hidden. A Transformer reconstructs the latents of the hidden
    observations from their neighbors. InfoNCE trains each reconstruction to match the momentum encoder's latent of the
    true observation, and no other latent. See https://arxiv.org/abs/2010.07470. The defaults compute the loss of the
    authors' released code; ``negatives="sequence", reduction="sum"`` and ``ContextTransformer(scale_attention=False)``
    compute the loss of the paper.

    Reads, from a batch ``[B, T]``: ``query_pixels`` and ``key_pixels`` ``[B, T, C, H, W]``, two views of the same
    observations, some of them hidden in the query view; ``masked`` ``[B, T]``, True where hidden, which is where the
    loss is computed; and, optionally, ``zeroed`` ``[B, T]``, True where the query view is all zeros. By default under
    ``("mcurl", ...)``; ``set_keys`` changes that.

    Writes ``loss_contrastive``; without gradients ``contrastive_accuracy``, how often a reconstruction is closest to
    its own key, ``contrastive_accuracy_zeroed``, the same for zeroed observations, which only their neighbors can
    reconstruct (0 if no observation was zeroed), and ``masked_fraction``.

    Observations that a mask hides (``loss_mask_key``, by default ``("collector", "mask")``, which is False at the
    padding of short slices) are not queries, keys or context: they become zeros, and a context network whose
    ``forward`` has an argument ``valid``, like :class:`~mcurl_torchrl.ContextTransformer`'s, gets the mask.

    All-zero observations have the same latent, so with ``zeroed`` given they are encoded once instead of one by one:
    the same value and gradients for about 0.6 of the work. This is not done if the encoder has dropout or batch
    statistics, because then their latents differ.

    Args:
        encoder_network (nn.Module): pixels ``[*, C, H, W]`` to latents ``[*, d]``, like
            :class:`~mcurl_torchrl.PixelEncoder`.
        context_network (nn.Module): latents ``[B, T, d]`` to reconstructions ``[B, T, d]``, like
            :class:`~mcurl_torchrl.ContextTransformer`.

    Keyword Args:
        negatives (str): the keys among which a reconstruction must find its own: ``"batch"``, all B * T keys, as in the
            released code, or ``"sequence"``, the T keys of its slice, as in the paper. Defaults to ``"batch"``.
        temperature (float): divides the logits. Defaults to 1.
        key_context (bool): whether keys go through a momentum copy of the context network too (without dropout): the
            paper's ablation sym-CURL. Defaults to False.
        reduction (str): ``"mean"`` or ``"sum"`` over hidden positions, or ``"none"``: ``[B, T]``, 0 where not hidden.
            Defaults to ``"mean"``.
        target_encoder_network (nn.Module, optional): encodes the keys in place of a momentum copy of this loss's own,
            so that it can be shared with a target critic, which then updates it. Defaults to None.
        encode_zeros_once (bool): the shortcut above. Defaults to True.
        context_keys (sequence of NestedKey): entries of the batch, ``[B, T, ...]``, that the context network gets after
            the latents, such as ``"action"``. Defaults to none.
        ranks (Ranks): the ranks that share each batch, such as ``DistributedRanks()``: with ``negatives="batch"`` the
            keys of all ranks are gathered, and the mean over the ranks of the loss is that of the whole batch. Defaults
            to one process.

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
        reduction: str | None = "mean",
        target_encoder_network: nn.Module | None = None,
        encode_zeros_once: bool = True,
        context_keys: Sequence[NestedKey] = (),
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__(encoder_network, target_encoder_network, temperature, reduction)
        self.negatives = check_choice("negatives", negatives, NEGATIVES)
        self.ranks = ranks
        self.key_context = key_context
        self.convert_to_functional(context_network, "context_network", create_target_params=key_context)
        sizes = [getattr(network, "feature_dim", None) for network in (encoder_network, context_network)]
        if None not in sizes and sizes[0] != sizes[1]:
            raise ValueError(f"the encoder's latents have feature_dim={sizes[0]}, the context network's {sizes[1]}")
        self.encode_zeros_once = encode_zeros_once
        self._context_takes_valid = "valid" in inspect.signature(context_network.forward).parameters
        self.context_keys = tuple(unravel_key(key) for key in context_keys)

    @property
    def in_keys(self) -> list[NestedKey]:
        """The keys that the loss needs; ``zeroed`` is optional."""
        return [
            self.tensor_keys.query_pixels,
            self.tensor_keys.key_pixels,
            self.tensor_keys.masked,
            *self.context_keys,
        ]

    @in_keys.setter
    def in_keys(self, keys: Any) -> None:
        raise RuntimeError("in_keys follow from set_keys()")

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Computes the loss of a batch ``[B, T]``."""
        views = self._read(tensordict)
        latents = self._encode_queries(views.query, views.blank)
        besides = [require(tensordict, key, self) for key in self.context_keys]
        queries = self._reconstruct(self.context_network_params, latents, views.valid, besides)
        keys = self._keys(views.key, views.valid, besides)
        losses, correct = self._info_nce(queries, keys, views.valid, negatives=self.negatives)
        zeroed = torch.zeros_like(views.masked) if views.zeroed is None else views.zeroed
        return TensorDict(
            {
                "loss_contrastive": reduce_masked(losses, views.masked, self.reduction, ranks=self.ranks),
                "contrastive_accuracy": reduce_masked(correct.float(), views.masked, ranks=self.ranks),
                "contrastive_accuracy_zeroed": reduce_masked(correct.float(), zeroed, ranks=self.ranks),
                "masked_fraction": reduce_masked(views.masked.float(), views.valid, ranks=self.ranks),
            }
        )

    def _read(self, tensordict: TensorDictBase) -> _Views:
        names = self.tensor_keys
        query, key = self._require_views(tensordict)
        masked = require(tensordict, names.masked, self)
        shape = tensordict.shape if tensordict.ndim else masked.shape[:2]  # a call with keywords has no batch size
        if len(shape) != 2:
            raise ValueError(
                f"the batch must be [slices, time]; got {list(shape)}: reshape(num_slices, slice_len) first"
            )
        masked = self._flag(names.masked, masked, shape)
        zeroed = tensordict.get(names.zeroed, None)
        zeroed = None if zeroed is None else self._flag(names.zeroed, zeroed, shape)
        valid = valid_positions(tensordict, self.loss_mask_key, shape)
        if valid is None:
            return _Views(query, key, masked, zeroed, None, zeroed)
        # Padding repeats the last observation of its slice: in the context, it could reveal a hidden observation.
        query = query.masked_fill(~valid.reshape(*shape, *[1] * (query.ndim - 2)), 0)
        blank = ~valid if zeroed is None else zeroed | ~valid
        return _Views(query, key, masked & valid, None if zeroed is None else zeroed & valid, valid, blank)

    @staticmethod
    def _flag(key: NestedKey, value: Tensor, shape: torch.Size) -> Tensor:
        if value.dtype != torch.bool or value.numel() != shape.numel():
            raise ValueError(f"{key!r} must be bool {list(shape)}; got {value.dtype} of shape {tuple(value.shape)}")
        return value.view(shape)

    def _reconstruct(
        self, params: TensorDictParams, latents: Tensor, valid: Tensor | None, besides: Sequence[Tensor]
    ) -> Tensor:
        options = {"valid": valid} if valid is not None and self._context_takes_valid else {}
        return call_with(params, self.context_network, latents, *besides, **options)

    def _keys(self, pixels: Tensor, valid: Tensor | None = None, besides: Sequence[Tensor] = ()) -> Tensor:
        keys = self.encode_keys(pixels)
        if self.key_context:
            was_training = self.context_network.training
            self.context_network.eval()  # no dropout on this side
            with torch.no_grad():
                keys = self._reconstruct(self.target_context_network_params, keys, valid, besides)
            self.context_network.train(was_training)
        return keys

    def _encode_queries(self, pixels: Tensor, blank: Tensor | None) -> Tensor:
        # Compiled code has fixed shapes; the number of observations that are not blank differs between batches.
        shortcut = self.encode_zeros_once and not torch.compiler.is_compiling()
        if blank is None or not shortcut or _is_stochastic(self.encoder_network):
            return self.encode(pixels)
        lead, pixels, blank = pixels.shape[:2], pixels.flatten(0, 1), blank.flatten()
        shown = (~blank).nonzero().squeeze(-1)
        # Channels last, as they are in memory: index_select would copy them into another format first.
        images = pixels.movedim(1, -1)
        images = torch.cat([images.index_select(0, shown), torch.zeros_like(images[:1])]).movedim(-1, 1)
        # The index of each observation's latent in the encoder's output; blank observations share the last one.
        place = torch.where(blank, len(shown), (~blank).cumsum(0) - 1)
        return self.encode(images).index_select(0, place).unflatten(0, lead)


def _is_stochastic(network: nn.Module) -> bool:
    """Returns whether equal inputs may have different outputs: with dropout, or statistics of the batch."""
    stochastic = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
    return any(isinstance(module, stochastic) and module.training for module in network.modules())
