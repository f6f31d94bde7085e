"""MaskCubes: hides cubes of space and time in slices of observations."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor

from mcurl_torchrl.checks import check_count, check_number, require
from mcurl_torchrl.transforms.keys import is_left_out
from mcurl_torchrl.transforms.random_transform import RandomTransform

__all__ = ["MaskCubes"]


class MaskCubes(RandomTransform):
    """Sets cubes of space and time to zero in slices of observations (MLR, https://arxiv.org/abs/2201.12096).

    An image is divided into a grid of ``H // patch_size`` by ``W // patch_size`` patches, time into blocks of
    ``block_len`` observations (the last block may be shorter). In each block the same number of patches,
    ``int(mask_ratio * patches)``, is hidden, all such sets equally likely. A patch is hidden in all observations of the
    block and in all their channels. All slices of a batch have the same cubes, as in the released code.

    Reads ``in_key``, ``[*, C, H, W]`` with slices of ``slice_len`` in a row; writes ``out_key``, the same with zeros in
    the cubes, and ``masked_key``, bool ``[*, H, W]``, True where hidden. The tensor under ``in_key`` is not changed in
    place. Works in a replay buffer, in ``Compose`` and as a module.

    Args:
        mask_ratio (float): the part of the patches that is hidden, between 0 and 1.

    Keyword Args:
        patch_size (int): the side of a patch in pixels, about: if it does not divide the image, patches are a bit
            larger. MLR has 10 for images of 100 and 12 for images of 84. Defaults to 10.
        block_len (int): the number of observations in a cube. Defaults to 8.
        slice_len (int, optional): the length of a slice in a flat batch. Defaults to the last batch dimension.
        in_key, out_key, masked_key (NestedKey): default to ``"pixels"``, ``("mcurl", "query_pixels")`` and
            ``("mcurl", "cubes")``.
        generator (torch.Generator, optional): the source of random numbers. Defaults to torch's global one.

    Raises:
        ValueError: on numbers out of range, on images smaller than a patch, and on batches that are not whole slices.
        KeyError: on a missing key, with the keys of the batch.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from mcurl_torchrl.transforms import MaskCubes
        >>> pixels = torch.randint(1, 256, (4, 16, 9, 100, 100), dtype=torch.uint8)
        >>> batch = MaskCubes(0.5, patch_size=10, block_len=8)(TensorDict({"pixels": pixels}, [4, 16]))
        >>> cubes = batch["mcurl", "cubes"]
        >>> cubes.shape, round(cubes.float().mean().item(), 3)
        (torch.Size([4, 16, 100, 100]), 0.5)
        >>> bool((batch["mcurl", "query_pixels"] == 0).all(2).eq(cubes).all())
        True
    """

    def __init__(
        self,
        mask_ratio: float,
        *,
        patch_size: int = 10,
        block_len: int = 8,
        slice_len: int | None = None,
        in_key: NestedKey = "pixels",
        out_key: NestedKey = ("mcurl", "query_pixels"),
        masked_key: NestedKey = ("mcurl", "cubes"),
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(in_keys=[unravel_key(in_key)], out_keys=[unravel_key(key) for key in (out_key, masked_key)])
        self.mask_ratio = check_number("mask_ratio", mask_ratio, least=0, most=1)
        self.patch_size = check_count("patch_size", patch_size)
        self.block_len = check_count("block_len", block_len)
        self.slice_len = None if slice_len is None else check_count("slice_len", slice_len)
        self.generator = generator

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Hides cubes of a batch ``[*]``."""
        if is_left_out(self, tensordict, self.in_keys[0]):
            return tensordict
        pixels = require(tensordict, self.in_keys[0], self)
        lead = tensordict.batch_size
        if pixels.ndim != len(lead) + 3:
            raise ValueError(f"{self.in_keys[0]!r} must be {[*lead, 'C', 'H', 'W']}; got {list(pixels.shape)}")
        length = self.slice_len or max(1, lead[-1] if lead else 1)  # a single observation is a slice of one
        if lead.numel() % length:
            raise ValueError(f"{lead.numel()} observations are not a whole number of slices of slice_len={length}")
        cubes = self._draw(length, pixels.shape[-2], pixels.shape[-1], pixels.device)
        cubes = cubes.repeat(lead.numel() // length, 1, 1).view((*lead, *cubes.shape[1:]))
        for key, value in zip(self.out_keys, (pixels.masked_fill(cubes.unsqueeze(-3), 0), cubes), strict=True):
            tensordict.set(key, value)
        return tensordict

    def _draw(self, length: int, height: int, width: int, device: torch.device) -> Tensor:
        """Draws the cubes of a slice, bool ``[length, height, width]``."""
        rows, columns = height // self.patch_size, width // self.patch_size
        if not rows * columns:
            raise ValueError(f"patch_size={self.patch_size} is larger than the images, {height}x{width}")
        blocks, patches = -(-length // self.block_len), rows * columns
        # The order of random numbers is a random permutation, whose first patches are hidden: a fixed number of them.
        order = self._rand(blocks * patches, device).view(blocks, patches).argsort(-1)
        hidden = torch.zeros(blocks, patches, dtype=torch.bool, device=device)
        hidden.scatter_(1, order[:, : int(self.mask_ratio * patches)], True)
        row = torch.arange(height, device=device) * rows // height
        column = torch.arange(width, device=device) * columns // width
        grid = hidden.view(blocks, rows, columns)[:, row][:, :, column]
        return grid.repeat_interleave(self.block_len, dim=0)[:length]

    def _refuse_env(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("MaskCubes is for sampled batches, not for environments")

    _step = _reset = _call = transform_observation_spec = _refuse_env
