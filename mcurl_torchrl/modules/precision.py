"""Precision under autocast: the values that must stay in float32."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["full_precision"]


def full_precision(values: Tensor) -> Tensor:
    """Converts values to float32; a larger dtype stays. Under autocast, layers return bfloat16.

    Values, logits and the parameters of distributions need float32. bfloat16 has 8 significant bits: logarithms and
    differences of such numbers would be wrong by several percent.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.modules.precision import full_precision
        >>> full_precision(torch.zeros(2, dtype=torch.bfloat16)).dtype, full_precision(torch.zeros(2).double()).dtype
        (torch.float32, torch.float64)
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))
