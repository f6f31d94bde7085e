"""Crops and shifts of images in functions without state: one gather, any device, no torchvision."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["center_crop", "crop", "shift", "sides"]


def crop(images: Tensor, top: Tensor, left: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Cuts a square or rectangle out of each image, each at its own place.

    Args:
        images (torch.Tensor): ``[N, C, H, W]`` of any dtype.
        top (torch.Tensor): ``[N]``, the first row kept.
        left (torch.Tensor): ``[N]``, the first column kept.
        size (int or tuple of int): the square's side, or height and width.

    Returns:
        ``[N, C, height, width]``, in the images' memory format: contiguous, or channels-last.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.transforms import crop
        >>> images = torch.arange(16).view(1, 1, 4, 4)
        >>> crop(images, torch.tensor([1]), torch.tensor([2]), 2).tolist()
        [[[[6, 7], [10, 11]]]]
    """
    height, width = sides(size)
    rows = top[:, None] + torch.arange(height, device=images.device)
    return _images(_cut(_planes(images), rows, left, width))


def shift(
    images: Tensor,
    top: Tensor,
    left: Tensor,
    size: int | tuple[int, int],
    padding: int,
    down: Tensor,
    right: Tensor,
) -> Tensor:
    """Cuts a piece out of each image, repeats its border, and cuts a piece of the image's own size out of the result.

    Padded rows are not stored: a repeated row of the border is read again.

    Args:
        images (torch.Tensor): ``[N, C, H, W]`` of any dtype.
        top (torch.Tensor): ``[N]``, the first row of the first piece.
        left (torch.Tensor): ``[N]``, its first column.
        size (int or tuple of int): its side, or its height and width.
        padding (int): the number of times that its border is repeated.
        down (torch.Tensor): ``[N]``, the first row of the second piece.
        right (torch.Tensor): ``[N]``, its first column.

    Returns:
        ``[N, C, H, W]``, in the images' memory format.
    """
    height, width = sides(size)
    number = torch.arange(images.shape[-2], device=images.device)
    rows = (down[:, None] + number - padding).clamp_(0, height - 1) + top[:, None]
    planes = _cut(_planes(images), rows, left, width)
    wide = planes.new_empty(*planes.shape[:3], width + 2 * padding, planes.shape[4])
    wide[:, :, :, padding : padding + width] = planes
    wide[:, :, :, :padding] = planes[:, :, :, :1]
    wide[:, :, :, padding + width :] = planes[:, :, :, -1:]
    return _images(_cut(wide, number.expand(len(wide), -1), right, images.shape[-1]))


def sides(size: int | tuple[int, int]) -> tuple[int, int]:
    """Returns height and width; one number is both."""
    return (size, size) if isinstance(size, int) else size


def _planes(images: Tensor) -> Tensor:
    """Views images ``[N, C, H, W]`` as planes ``[N, P, H, W, c]`` that are contiguous in memory.

    An image is C planes of numbers; with the channels last in memory it is one plane of pixels.
    """
    if images.is_contiguous(memory_format=torch.channels_last):
        return images.permute(0, 2, 3, 1).unsqueeze(1)
    return images.contiguous().unsqueeze(-1)


def _images(planes: Tensor) -> Tensor:
    """Views planes ``[N, P, H, W, c]`` as images ``[N, P * c, H, W]``: one of P and c is 1."""
    return planes.squeeze(-1) if planes.shape[-1] == 1 else planes.squeeze(1).permute(0, 3, 1, 2)


def _cut(planes: Tensor, rows: Tensor, left: Tensor, width: int) -> Tensor:
    """Reads rows ``[N, R]`` of planes ``[N, P, H, W, c]`` from column ``left`` ``[N]`` on: ``[N, P, R, width, c]``."""
    number, count, height, columns, depth = planes.shape
    # Every piece of memory of this length is a row of the view; rows overlap, so that the view needs no memory. One
    # index_select then copies whole pieces, 2.5 times faster than indexing pixel by pixel.
    length = width * depth
    pieces = planes.as_strided((max(planes.numel() - length + 1, 0), length), (1, 1))
    plane = torch.arange(number * count, device=planes.device).view(number, count, 1) * height
    start = ((plane + rows.unsqueeze(1)) * columns + left.view(-1, 1, 1)) * depth
    return pieces.index_select(0, start.flatten()).view(number, count, rows.shape[1], width, depth)


def center_crop(images: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Cuts the middle out of images ``[*, H, W]``; if two places are equally central, takes the upper or left one."""
    height, width = sides(size)
    if height > images.shape[-2] or width > images.shape[-1]:
        raise ValueError(f"images of {images.shape[-2]}x{images.shape[-1]} have no center of {height}x{width}")
    top, left = (images.shape[-2] - height) // 2, (images.shape[-1] - width) // 2
    return images[..., top : top + height, left : left + width]
