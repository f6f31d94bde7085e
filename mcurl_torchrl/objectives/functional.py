"""InfoNCE over slices, in functions without state."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mcurl_torchrl.checks import check_choice
from mcurl_torchrl.ranks import ALONE, Ranks

__all__ = [
    "NEGATIVES",
    "REDUCTIONS",
    "check_reduction",
    "info_nce",
    "masked_info_nce",
    "normalized_distance",
    "reduce_masked",
]

NEGATIVES = ("batch", "sequence")
REDUCTIONS = ("mean", "sum", "none")


def check_reduction(reduction: str | None) -> str:
    """Returns a reduction, ``"mean"`` for None as in TorchRL's losses, or raises an error that names the choices."""
    return "mean" if reduction is None else check_choice("reduction", reduction, REDUCTIONS)


def info_nce(
    queries: Tensor,
    keys: Tensor,
    *,
    negatives: str = "batch",
    temperature: float = 1.0,
    valid: Tensor | None = None,
    first_key: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes InfoNCE, the cross entropy of each query's own key among keys (https://arxiv.org/abs/1807.03748).

    Args:
        queries (torch.Tensor): ``[*, T, d]``.
        keys (torch.Tensor): ``[*, T, d]``; the key at the position of a query is its positive. With ``first_key`` there
            may be more keys than queries, such as those of other ranks.

    Keyword Args:
        negatives (str): the negatives of a query: ``"batch"``, all other keys, or ``"sequence"``, those of its slice.
        temperature (float): divides the logits.
        valid (torch.Tensor, optional): bool ``[*, T]`` for the keys, False at padding, whose keys are not negatives.
            The results at padding itself have no meaning. Defaults to None: no padding.
        first_key (int, optional): with ``negatives="batch"``, where the queries' own keys begin, along the first
            dimension of the keys. Defaults to None: all keys are the queries' own.

    Returns:
        The cross entropy at each position, and whether the positive had the largest logit: ``[*, T]`` each. Logits are
        float32 or better, also under autocast.
    """
    check_choice("negatives", negatives, NEGATIVES)
    own = keys if first_key is None else keys[first_key : first_key + len(queries)]
    if queries.shape != own.shape or (negatives == "sequence" and own is not keys):
        raise ValueError(f"queries {tuple(queries.shape)} and keys {tuple(keys.shape)} must have the same shape")
    shape = queries.shape[:-1]
    with torch.autocast(queries.device.type, enabled=False):
        precision = torch.promote_types(queries.dtype, torch.float32)
        queries, keys = queries.to(precision), keys.to(precision)
        first = 0
        if negatives == "batch":
            first = (first_key or 0) * math.prod(queries.shape[1:-1])
            queries, keys = queries.flatten(0, -2), keys.flatten(0, -2)
            valid = None if valid is None else valid.flatten()
        logits = queries @ keys.transpose(-1, -2) / temperature
        count = logits.shape[-1]
        if valid is not None:
            # Each position keeps its own key: a row that is -inf everywhere would have NaN gradients.
            own_key = torch.eye(count, dtype=torch.bool, device=logits.device)[first : first + logits.shape[-2]]
            logits = logits.masked_fill(~(valid.unsqueeze(-2) | own_key), -torch.inf)
        labels = torch.arange(first, first + logits.shape[-2], device=logits.device).expand(logits.shape[:-1])
        losses = F.cross_entropy(logits.reshape(-1, count), labels.reshape(-1), reduction="none")
        correct = logits.argmax(-1) == labels
    return losses.view(shape), correct.view(shape)


def reduce_masked(losses: Tensor, masked: Tensor | None, reduction: str = "mean", *, ranks: Ranks = ALONE) -> Tensor:
    """Returns the mean or the sum of losses ``[*]`` at ``masked`` positions, or all losses with 0 elsewhere.

    ``masked=None`` means all positions. If no position is masked, the result is 0, with a gradient of 0. With several
    ranks, each rank returns a number whose mean over the ranks is the mean, or the sum, over the positions of all
    ranks; the ranks may have different numbers of masked positions.
    """
    check_choice("reduction", reduction, REDUCTIONS)
    if masked is not None:
        losses = torch.where(masked, losses, 0.0)
    if reduction == "none":
        return losses
    if masked is None:
        return losses.sum() * ranks.count if reduction == "sum" else losses.mean()
    total = losses.sum() * ranks.count
    return total if reduction == "sum" else total / ranks.sum(masked.sum()).clamp(min=1)


def masked_info_nce(
    queries: Tensor,
    keys: Tensor,
    *,
    masked: Tensor,
    negatives: str = "batch",
    temperature: float = 1.0,
    reduction: str = "mean",
) -> Tensor:
    """Computes M-CURL's loss (https://arxiv.org/abs/2010.07470): InfoNCE at the hidden positions.

    Args:
        queries (torch.Tensor): ``[*, T, d]``, reconstructions.
        keys (torch.Tensor): ``[*, T, d]``, the latents that the reconstructions should match.

    Keyword Args:
        masked (torch.Tensor): bool ``[*, T]``, True where hidden.
        negatives (str): as in :func:`info_nce`. Defaults to ``"batch"``.
        temperature (float): as in :func:`info_nce`. Defaults to 1.
        reduction (str): ``"mean"`` over hidden positions (the released code), ``"sum"`` (the paper) or ``"none"``.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.objectives import masked_info_nce
        >>> keys = 2.0 * torch.eye(4)  # logits 4 on the diagonal, else 0
        >>> round(masked_info_nce(keys, keys, masked=torch.ones(4, dtype=torch.bool)).item(), 4)
        0.0535
    """
    losses, _ = info_nce(queries, keys, negatives=negatives, temperature=temperature)
    return reduce_masked(losses, masked, reduction)


def normalized_distance(predictions: Tensor, targets: Tensor, *, eps: float = 1e-3) -> Tensor:
    """Returns the squared distance ``[*]`` of vectors ``[*, d]`` after normalization: 2 minus twice their cosine.

    It is the loss of BYOL (https://arxiv.org/abs/2006.07733), of SPR and of MLR.

    Args:
        predictions (torch.Tensor): ``[*, d]``.
        targets (torch.Tensor): ``[*, d]``.

    Keyword Args:
        eps (float): vectors that are shorter than ``eps`` are divided by ``eps``. Defaults to 1e-3.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.objectives.functional import normalized_distance
        >>> normalized_distance(torch.tensor([3.0, 0.0]), torch.tensor([[2.0, 0.0], [0.0, 2.0], [-1.0, 0.0]]))
        tensor([0., 2., 4.])
    """
    with torch.autocast(predictions.device.type, enabled=False):
        precision = torch.promote_types(predictions.dtype, torch.float32)
        unit = (F.normalize(vectors.to(precision), dim=-1, eps=eps) for vectors in (predictions, targets))
        first, second = unit
        return (first - second).square().sum(-1)
