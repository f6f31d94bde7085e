"""RankedBatchNorm2d: batch normalization by the statistics of the whole batch, also where several ranks share it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mcurl_torchrl.ranks import ALONE, Ranks

__all__ = ["RankedBatchNorm2d"]


class RankedBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm of images ``[B, C, H, W]`` by the mean and the variance over the batches of all ranks.

    In one process it is :class:`~torch.nn.BatchNorm2d` to the last bit. :class:`~torch.nn.SyncBatchNorm` does the same
    between GPUs, and refuses a CPU.

    Args:
        num_features (int): C.

    Keyword Args:
        ranks (Ranks): the ranks, whose batches must have the same size. Defaults to one process.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.modules import RankedBatchNorm2d
        >>> images = torch.randn(4, 3, 5, 5)
        >>> torch.equal(RankedBatchNorm2d(3)(images), torch.nn.BatchNorm2d(3)(images))  # in one process
        True
    """

    def __init__(self, num_features: int, *, ranks: Ranks = ALONE) -> None:
        super().__init__(num_features)
        self.ranks = ranks

    def forward(self, input: Tensor) -> Tensor:
        """Normalizes images; in training mode it also updates the running statistics."""
        if self.ranks.count == 1 or not self.training:
            return super().forward(input)
        own = torch.stack([input.mean((0, 2, 3)), input.var((0, 2, 3), correction=0)])
        means, variances = self.ranks.gather(own.unsqueeze(0)).unbind(1)
        mean = means.mean(0)
        variance = variances.mean(0) + (means - mean).square().mean(0)  # within the ranks, and between them
        self._update_running(mean.detach(), variance.detach(), self.ranks.count * input.numel() // input.shape[1])
        scale = self.weight * (variance + self.eps).rsqrt()
        return input * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]

    @torch.no_grad()
    def _update_running(self, mean: Tensor, variance: Tensor, count: int) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance * count / (count - 1), self.momentum)
