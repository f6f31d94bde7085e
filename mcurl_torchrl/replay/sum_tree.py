"""A sum tree for prioritized sampling: vectorized torch, no loop over items."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["SumTree"]

# Children per node. For 100k leaves a binary tree has 17 levels; with 64 children a search takes 3 steps, and each step
# reads one row of 64 numbers for the whole batch. The cost is the number of torch calls, not the sums.
_FAN_OUT = 64
# The sum of any number of such weights is finite.
_LARGEST = 1e200


class SumTree:
    """Non-negative weights; drawing an index in proportion and changing weights take logarithmic time.

    TorchRL has a compiled segment tree, but its extension does not load on the torch version with which this package is
    tested. This tree is plain torch and works on any device. It is always used, so that results do not depend on the
    installed build. Inner nodes are sums of their children, never adjusted by differences, so that rounding errors do
    not grow over millions of updates. Sums are float64.

    Args:
        size (int): the number of weights; all start at 0.
        device (torch.device, optional): the device of the weights. Defaults to the CPU.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.replay import SumTree
        >>> tree = SumTree(4)
        >>> tree.update(torch.tensor([0, 2]), torch.tensor([1.0, 3.0]))
        >>> tree.total.item()
        4.0
        >>> tree.find(torch.tensor([0.5, 1.5, 3.9])).tolist()
        [0, 2, 2]
    """

    def __init__(self, size: int, device: torch.device | str | None = None) -> None:
        if size < 1:
            raise ValueError(f"size={size}; a sum tree needs at least one weight")
        self.size = size
        # From the leaves up, each level padded to whole nodes; the last level holds the children of the root.
        self._levels: list[Tensor] = []
        nodes = size
        while True:
            nodes = -(nodes // -_FAN_OUT)
            self._levels.append(torch.zeros(nodes, _FAN_OUT, dtype=torch.float64, device=device))
            if nodes == 1:
                break

    @property
    def total(self) -> Tensor:
        """The sum of all weights, a float64 scalar tensor."""
        return self._levels[-1].sum()

    @property
    def weights(self) -> Tensor:
        """All weights, ``[size]`` (a view: change them through :meth:`update`)."""
        return self._levels[0].view(-1)[: self.size]

    def __getitem__(self, index: Tensor) -> Tensor:
        return self.weights[index]

    def update(self, index: Tensor, weight: Tensor) -> None:
        """Sets the weights at ``index`` and the sums above them.

        Args:
            index (torch.Tensor): int64 of any shape. If an index occurs several times, the largest of its new weights
                counts, so that the result does not depend on the order of writing.
            weight (torch.Tensor): finite, non-negative numbers, one for each index or one for all.

        Raises:
            ValueError: on a weight that is negative, not a number or beyond 1e200; nothing is changed then.
            IndexError: on an index outside the tree; nothing is changed then.
        """
        index = index.reshape(-1)
        weight = torch.as_tensor(weight, device=index.device).to(torch.float64).expand(index.shape).reshape(-1)
        if not index.numel():
            return
        least, largest = _bounds(weight)
        if not 0 <= least <= largest <= _LARGEST:
            bad = ~((weight >= 0) & (weight <= _LARGEST))
            raise ValueError(f"weights must be between 0 and {_LARGEST}; got {weight[bad][0].item()}")
        low, high = _bounds(index)
        if low < 0 or high >= self.size:
            raise IndexError(f"index {low if low < 0 else high} is outside of a sum tree of size {self.size}")
        leaves = self._levels[0].view(-1)
        nodes: Tensor | int = index
        if index.numel() == 1:  # as after each agent step: a plain number needs no gather and no scatter
            nodes = int(low)
            leaves[nodes] = abs(least)  # -0.0 is 0.0
        else:
            leaves[index] = 0.0
            leaves.scatter_reduce_(0, index, weight, reduce="amax")
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            nodes = nodes // _FAN_OUT
            level.view(-1)[nodes] = below[nodes].sum(-1)

    def find(self, mass: Tensor) -> Tensor:
        """Returns for each number in ``[0, total)`` the index whose interval of the running sum contains it.

        It never returns an index of weight 0, even if rounding moves a number to the end of the sum.
        """
        remaining = mass.to(torch.float64)
        node = torch.zeros_like(mass, dtype=torch.int64)
        for level in reversed(self._levels):
            sums = level[node].cumsum(-1)
            # Keeps the number inside this node: a parent may differ from the sum of its children by a rounding error.
            below_end = torch.nextafter(sums[..., -1], torch.zeros_like(remaining))
            remaining = torch.minimum(remaining, below_end)
            child = torch.searchsorted(sums, remaining[..., None], right=True)[..., 0]
            before = torch.where(child > 0, sums.gather(-1, (child - 1).clamp(min=0)[..., None])[..., 0], 0.0)
            remaining = (remaining - before).clamp(min=0.0)
            node = node * _FAN_OUT + child
        return node

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws ``count`` indices independently, each in proportion to its weight.

        Raises:
            RuntimeError: if all weights are 0.
        """
        total = self.total
        if not total > 0:
            raise RuntimeError("all weights of the sum tree are 0: nothing can be drawn")
        mass = torch.rand(count, dtype=torch.float64, device=total.device, generator=generator) * total
        return self.find(mass)

    def fill(self, weights: Tensor) -> None:
        """Replaces all weights at once.

        Raises:
            ValueError: if ``weights`` is not ``[size]``, finite and non-negative.
        """
        if weights.shape != (self.size,):
            raise ValueError(f"weights must have shape ({self.size},); got {tuple(weights.shape)}")
        self.update(torch.arange(self.size, device=self._levels[0].device), weights.to(self._levels[0].device))


def _bounds(numbers: Tensor) -> tuple[float, float]:
    """Returns the smallest and the largest number; NaN if one of the numbers is NaN."""
    if numbers.numel() == 1:
        return numbers.item(), numbers.item()
    low, high = numbers.aminmax()
    return low.item(), high.item()
