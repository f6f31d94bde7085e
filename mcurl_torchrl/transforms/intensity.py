"""RandomIntensity: makes images brighter or darker at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict.utils import NestedKey
from torch import Tensor

from mcurl_torchrl.checks import check_number
from mcurl_torchrl.transforms.crops import _RandomImageTransform

__all__ = ["RandomIntensity"]


class RandomIntensity(_RandomImageTransform):
    """Multiplies each image by a random number close to 1, an augmentation of DrQ (https://arxiv.org/abs/2004.13649).

    The factor is ``1 + scale * x``, where x is normal and cut to [-2, 2]: one for all channels of an image, so for all
    frames of a stacked observation.

    Reads ``in_keys``, ``[*, C, H, W]``, uint8 or floating point; writes ``out_keys`` of the same shape in floating
    point. uint8 images are divided by 255, as the encoders do with them: a rounded factor of 1.05 would be lost.

    Args:
        scale (float): the size of the change. Defaults to 0.05.

    Keyword Args:
        in_keys, out_keys, per, slice_len, generator: as in :class:`~mcurl_torchrl.RandomCrop`.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.transforms import RandomIntensity
        >>> images = RandomIntensity(0.05)(torch.full((32, 4, 84, 84), 255, dtype=torch.uint8))
        >>> bool((images >= 0.9).all() and (images <= 1.1).all())
        True
    """

    def __init__(
        self,
        scale: float = 0.05,
        *,
        in_keys: Sequence[NestedKey] = ("pixels",),
        out_keys: Sequence[NestedKey] | None = None,
        per: str = "sample",
        slice_len: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, per, slice_len, generator)
        self.scale = check_number("scale", scale, least=0)

    def _transform_images(self, images: Tensor, repeats: int) -> Tensor:
        count, device = len(images) // repeats, images.device
        source = device if self.generator is None else self.generator.device
        drawn = torch.randn(count, generator=self.generator, device=source).to(device).repeat_interleave(repeats)
        factor = 1 + self.scale * drawn.clamp(-2, 2)
        if images.dtype == torch.uint8:
            images, factor = images.to(factor.dtype), factor / 255
        return images * factor.view(-1, 1, 1, 1).to(images.dtype)

    def _output_size(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def _refuse_env(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("RandomIntensity is for sampled batches, not for environments")

    _step = _reset = _call = transform_observation_spec = _refuse_env
