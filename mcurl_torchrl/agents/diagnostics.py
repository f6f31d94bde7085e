"""Numbers that tell whether learning is healthy, and the check that stops a run where it is not."""

from __future__ import annotations

import math
from collections.abc import Iterable
from os import PathLike

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from mcurl_torchrl.scalars import stack_scalars

__all__ = ["NonFiniteLoss", "check_finite", "effective_rank", "gradient_norm", "latent_spread"]


def _as_matrix(latents: Tensor) -> Tensor:
    """Flattens ``[*, d]`` to ``[N, d]``, without gradients and at least in float32."""
    if latents.ndim < 2 or latents.numel() == 0:
        raise ValueError(f"latents have the shape {list(latents.shape)}; [*, d] with at least one latent is needed")
    matrix = latents.detach().flatten(end_dim=-2)
    return matrix if matrix.dtype == torch.float64 else matrix.float()


def effective_rank(latents: Tensor) -> Tensor:
    r"""Counts the dimensions that a batch of latents really uses, a number between 1 and d (0 if all are equal).

    With the singular values :math:`\sigma_i` of the centered matrix and :math:`p_i = \sigma_i / \sum_j \sigma_j`, this
    is :math:`\exp(-\sum_i p_i \log p_i)`: Roy and Vetterli, "The effective rank: a measure of effective
    dimensionality", EUSIPCO 2007. A fall towards 1 during training is the sign of a collapsing representation.

    Args:
        latents (Tensor): ``[*, d]``, any floating dtype. N latents, centered, span at most N - 1 dimensions.

    Returns:
        A scalar on the same device, without gradient; NaN where a latent is not finite.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.agents.diagnostics import effective_rank
        >>> square = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> round(effective_rank(square).item(), 4)
        2.0
        >>> round(effective_rank(square * torch.tensor([1.0, 0.0])).item(), 4)
        1.0
    """
    matrix = _as_matrix(latents)
    finite = matrix.isfinite().all()
    matrix = torch.where(finite, matrix, 0.0)  # svdvals refuses NaN; check_finite stops a run with such latents
    sizes = torch.linalg.svdvals(matrix - matrix.mean(dim=0))
    # Centering equal latents leaves rounding errors in all dimensions: they would hide a collapse.
    noise = torch.finfo(matrix.dtype).eps * max(matrix.shape) * matrix.norm()
    sizes = torch.where(sizes > noise, sizes, 0.0)
    total = sizes.sum()
    shares = sizes / torch.where(total > 0, total, 1.0)
    rank = torch.special.entr(shares).sum().exp() * (total > 0)
    return torch.where(finite, rank, torch.nan)


def latent_spread(latents: Tensor) -> Tensor:
    """Returns the standard deviation over the batch, averaged over the dimensions: 0 if all latents are equal.

    Args:
        latents (Tensor): ``[*, d]``, any floating dtype.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.agents.diagnostics import latent_spread
        >>> latent_spread(torch.tensor([[1.0, 5.0], [-1.0, 5.0]])).item()
        0.5
    """
    # correction=0: a single latent has the spread 0, not NaN.
    return _as_matrix(latents).std(dim=0, correction=0).mean()


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Returns the global L2 norm of the gradients, as a scalar on their device; without gradients, a 0 on the CPU.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.agents.diagnostics import gradient_norm
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> (weight * torch.tensor([3.0, 4.0])).sum().backward()
        >>> gradient_norm([weight]).item()
        5.0
    """
    return get_total_norm(parameter.grad for parameter in parameters if parameter.grad is not None)


class NonFiniteLoss(FloatingPointError):
    """A loss became NaN or infinite: see :func:`check_finite`."""


def check_finite(step: int, *, last_good: str | PathLike[str] | None = None, **losses: Tensor | float) -> None:
    """Raises :class:`NonFiniteLoss` if any of the losses is NaN or infinite.

    All losses go to the host in one transfer: on a GPU, call this once a step with all of them.

    Args:
        step (int): the current step, for the message.

    Keyword Args:
        last_good (path, optional): the last checkpoint with finite losses, for the message.
        **losses (scalar Tensor or float): the losses; their names appear in the message.

    Raises:
        NonFiniteLoss: names the step, each non-finite loss with its value, and ``last_good``.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.agents.diagnostics import NonFiniteLoss, check_finite
        >>> check_finite(7, loss_actor=torch.tensor(0.5), loss_critic=torch.tensor(2.0))
        >>> try:
        ...     check_finite(8, loss_actor=torch.tensor(0.5), loss_critic=torch.tensor(torch.inf))
        ... except NonFiniteLoss as error:
        ...     print(error)
        non-finite loss at step 8: loss_critic=inf
    """
    for name, loss in losses.items():
        if isinstance(loss, Tensor) and loss.numel() != 1:
            raise ValueError(f"{name} has the shape {list(loss.shape)}; check_finite takes one number for each loss")
    tensors = [loss for loss in losses.values() if isinstance(loss, Tensor)]
    moved = iter(stack_scalars(tensors).tolist() if tensors else [])
    values = {name: next(moved) if isinstance(loss, Tensor) else float(loss) for name, loss in losses.items()}
    if bad := [f"{name}={value}" for name, value in values.items() if not math.isfinite(value)]:
        where = "" if last_good is None else f"; the last good checkpoint is {last_good}"
        raise NonFiniteLoss(f"non-finite loss at step {step}: {', '.join(bad)}{where}")
