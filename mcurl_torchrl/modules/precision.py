"""Precision under autocast: what must not be rounded."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["full_precision"]


def full_precision(values: Tensor) -> Tensor:
    """Returns values in float32, or as they are in a larger dtype: under autocast, layers give bfloat16.

    Values, logits and the parameters of distributions need it. Logarithms and differences of numbers with 8 bits would
    be wrong by percents.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.modules.precision import full_precision
        >>> full_precision(torch.zeros(2, dtype=torch.bfloat16)).dtype, full_precision(torch.zeros(2).double()).dtype
        (torch.float32, torch.float64)
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))
