"""RandomCrop, CenterCrop and RandomShift: TorchRL transforms that crop images."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.data import Bounded, Composite, TensorSpec
from torchrl.envs.transforms import Transform

from mcurl_torchrl.checks import check_choice, check_count, require
from mcurl_torchrl.transforms.functional import center_crop, crop, shift, sides
from mcurl_torchrl.transforms.keys import is_left_out, paired_keys
from mcurl_torchrl.transforms.random_transform import RandomTransform

__all__ = ["CenterCrop", "RandomCrop", "RandomShift"]

_PER = ("sample", "slice")


def _check_size(size: int | Sequence[int]) -> int | tuple[int, int]:
    if not isinstance(size, Sequence):
        return check_count("size", size)
    if len(size) != 2:
        raise ValueError(f"size={size!r}; it must be a whole number, or height and width")
    return check_count("size[0]", size[0]), check_count("size[1]", size[1])


def _check_fits(size: int | tuple[int, int], height: int, width: int) -> tuple[int, int]:
    kept = sides(size)
    if kept[0] > height or kept[1] > width:
        raise ValueError(f"size={size} is larger than the images, {height}x{width}")
    return kept


class _ImageTransform(Transform):
    """A transform of images ``[*, C, H, W]`` in a tensordict, or of one tensor."""

    def __init__(self, in_keys: Sequence[NestedKey] | str, out_keys: Sequence[NestedKey] | str | None) -> None:
        read, written = paired_keys(in_keys, out_keys)
        super().__init__(in_keys=read, out_keys=written)

    def forward(self, tensordict: TensorDictBase | Tensor) -> TensorDictBase | Tensor:
        """Transforms a tensordict, in place, or a tensor."""
        if isinstance(tensordict, Tensor):
            return self._apply_transform(tensordict)
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            if is_left_out(self, tensordict, in_key):
                continue
            tensordict.set(out_key, self._apply_transform(require(tensordict, in_key, self)))
        return tensordict

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self.forward(next_tensordict)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self.forward(tensordict_reset)

    def _apply_transform(self, obs: Tensor) -> Tensor:
        raise NotImplementedError

    def _output_size(self, height: int, width: int) -> tuple[int, int]:
        raise NotImplementedError

    def transform_observation_spec(self, observation_spec: TensorSpec) -> TensorSpec:
        """Returns the spec of the transformed images."""
        if not isinstance(observation_spec, Composite):
            return self._transform_image_spec(observation_spec)
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            spec = observation_spec.get(in_key, None)
            if spec is None:
                if self.missing_tolerance:
                    continue
                found = list(observation_spec.keys(True, True))
                raise KeyError(f"{type(self).__name__} needs {in_key!r}; the environment has {found}")
            observation_spec[out_key] = self._transform_image_spec(spec)
        return observation_spec

    def _transform_image_spec(self, spec: TensorSpec) -> TensorSpec:
        self._check_images(spec.shape)
        shape = torch.Size([*spec.shape[:-2], *self._output_size(*spec.shape[-2:])])
        space = spec.space
        if isinstance(spec, Bounded):
            return Bounded(space.low.min(), space.high.max(), shape=shape, dtype=spec.dtype, device=spec.device)
        return type(spec)(shape=shape, dtype=spec.dtype, device=spec.device)

    def _check_images(self, shape: torch.Size) -> None:
        if len(shape) < 3:
            raise ValueError(f"{type(self).__name__} takes images [*, C, H, W]; got shape {tuple(shape)}")


class CenterCrop(_ImageTransform):
    """Cuts the middle out of images, for acting and evaluation.

    Reads ``in_keys``, ``[*, C, H, W]`` of any dtype; writes ``out_keys``, ``[*, C, height, width]``. Works in an
    environment, in a replay buffer, in ``Compose``, and on a tensor. (TorchRL's own CenterCrop needs torchvision.)

    Args:
        size (int or tuple of int): the side of the square that is kept, or height and width of a rectangle.

    Keyword Args:
        in_keys (sequence of NestedKey): the images. Defaults to ``["pixels"]``.
        out_keys (sequence of NestedKey, optional): the crops. Defaults to ``in_keys``.

    Raises:
        ValueError: if the images are smaller than ``size``.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl import CenterCrop
        >>> CenterCrop(84)(torch.zeros(9, 100, 100, dtype=torch.uint8)).shape
        torch.Size([9, 84, 84])
    """

    def __init__(
        self,
        size: int | Sequence[int],
        *,
        in_keys: Sequence[NestedKey] | str = ("pixels",),
        out_keys: Sequence[NestedKey] | str | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.size = _check_size(size)

    def _apply_transform(self, obs: Tensor) -> Tensor:
        self._check_images(obs.shape)
        self._output_size(*obs.shape[-2:])
        return center_crop(obs, self.size).contiguous()

    def _output_size(self, height: int, width: int) -> tuple[int, int]:
        return _check_fits(self.size, height, width)


def each_by_itself(augmentation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Returns an augmentation that draws once per image, with the same generators: for images that are not slices."""
    if not isinstance(augmentation, nn.Module):
        return augmentation
    parts = [part for part in augmentation.modules() if isinstance(part, _RandomImageTransform)]
    if all(part.per == "sample" for part in parts):
        return augmentation
    twin = copy.deepcopy(augmentation)
    copies = (part for part in twin.modules() if isinstance(part, _RandomImageTransform))
    for part, made in zip(parts, copies, strict=True):
        made.per, made.generator = "sample", part.generator
    return twin


class _RandomImageTransform(RandomTransform, _ImageTransform):
    """Draws one place per image, or one per slice of images."""

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | str,
        out_keys: Sequence[NestedKey] | str | None,
        per: str,
        slice_len: int | None,
        generator: torch.Generator | None,
    ) -> None:
        _ImageTransform.__init__(self, in_keys, out_keys)
        self.per = check_choice("per", per, _PER)
        self.slice_len = None if slice_len is None else check_count("slice_len", slice_len)
        self.generator = generator

    def _apply_transform(self, obs: Tensor) -> Tensor:
        self._check_images(obs.shape)
        self._output_size(*obs.shape[-2:])
        lead = obs.shape[:-3]
        images = obs.reshape(lead.numel(), *obs.shape[-3:])
        out = self._transform_images(images, self._repeats(lead))
        return out.view(*lead, *out.shape[1:])

    def _repeats(self, lead: torch.Size) -> int:
        """Returns the number of consecutive images that share a place."""
        if self.per == "sample":
            return 1
        if self.slice_len is not None:
            if lead.numel() % self.slice_len:
                raise ValueError(
                    f"{lead.numel()} images are not a whole number of slices of slice_len={self.slice_len}"
                )
            return self.slice_len
        if len(lead) < 2:
            raise ValueError(
                f"per='slice' needs images [slices, time, C, H, W], or a slice_len; got {tuple(lead)} images"
            )
        return lead[-1]

    def _draw(self, below: int, images: Tensor, repeats: int) -> Tensor:
        """Draws a number below ``below`` for each image."""
        return self._randint(below, len(images) // repeats, images.device).repeat_interleave(repeats)

    def _transform_images(self, images: Tensor, repeats: int) -> Tensor:
        raise NotImplementedError


class RandomCrop(_RandomImageTransform):
    """Cuts a square (or rectangle) at a random place out of each image, the augmentation of CURL and RAD.

    Every one of the ``(H - height + 1) * (W - width + 1)`` places is equally likely: 17 x 17 for 100 -> 84. All
    channels of an image, so all frames of a stacked observation, are cut at the same place.

    Reads ``in_keys``, ``[*, C, H, W]`` of any dtype; writes ``out_keys``, ``[*, C, height, width]``. Works in a replay
    buffer, in an environment, in ``Compose``, and on a tensor. For two views of the same images use two transforms with
    different ``out_keys``: they draw independently.

    Args:
        size (int or tuple of int): the side of the square that is kept, or height and width of a rectangle.

    Keyword Args:
        in_keys (sequence of NestedKey): the images; places are drawn for each key. Defaults to ``["pixels"]``.
        out_keys (sequence of NestedKey, optional): the crops. Defaults to ``in_keys``.
        per (str): ``"sample"``, a place per image, or ``"slice"``, one for all images of a slice. Defaults to
            ``"sample"``.
        slice_len (int, optional): the length of a slice, for ``per="slice"`` and flat batches. Defaults to the last
            batch dimension.
        generator (torch.Generator, optional): the source of random numbers. Defaults to torch's global one.

    Raises:
        ValueError: if the images are smaller than ``size``, or ``per`` is unknown.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from mcurl_torchrl import RandomCrop
        >>> batch = TensorDict({"pixels": torch.zeros(4, 16, 9, 100, 100, dtype=torch.uint8)}, [4, 16])
        >>> RandomCrop(84, in_keys=["pixels"], out_keys=[("mcurl", "query_pixels")])(batch)[
        ...     "mcurl", "query_pixels"
        ... ].shape
        torch.Size([4, 16, 9, 84, 84])
    """

    def __init__(
        self,
        size: int | Sequence[int],
        *,
        in_keys: Sequence[NestedKey] | str = ("pixels",),
        out_keys: Sequence[NestedKey] | str | None = None,
        per: str = "sample",
        slice_len: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, per, slice_len, generator)
        self.size = _check_size(size)

    def _transform_images(self, images: Tensor, repeats: int) -> Tensor:
        pairs = zip(images.shape[-2:], sides(self.size), strict=True)
        top, left = (self._draw(side - kept + 1, images, repeats) for side, kept in pairs)
        return crop(images, top, left, self.size)

    def _output_size(self, height: int, width: int) -> tuple[int, int]:
        return _check_fits(self.size, height, width)


class RandomShift(_RandomImageTransform):
    """Moves images by some pixels at random, CURL's augmentation on Atari: crop, repeat the border, crop back.

    A random piece whose height and width are ``2 * margin`` pixels smaller is cut out (80 of 84), its border is
    repeated ``padding`` times (88), and a random piece of the images' own size is cut out of the result (84).

    Reads ``in_keys``, ``[*, C, H, W]`` of any dtype; writes ``out_keys`` of the same shape. Works in a replay buffer,
    in an environment, in ``Compose``, and on a tensor.

    Keyword Args:
        margin (int): the number of pixels that the first crop removes on each side, on average. Defaults to 2.
        padding (int): the number of times that the border is repeated. Defaults to 4.
        in_keys, out_keys, per, slice_len, generator: as in :class:`RandomCrop`.

    Raises:
        ValueError: if images are not larger than ``2 * margin``, or if not ``0 <= margin <= padding``.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl import RandomShift
        >>> RandomShift()(torch.zeros(32, 4, 84, 84, dtype=torch.uint8)).shape
        torch.Size([32, 4, 84, 84])
    """

    def __init__(
        self,
        *,
        margin: int = 2,
        padding: int = 4,
        in_keys: Sequence[NestedKey] | str = ("pixels",),
        out_keys: Sequence[NestedKey] | str | None = None,
        per: str = "sample",
        slice_len: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, per, slice_len, generator)
        self.margin = check_count("margin", margin, least=0)
        self.padding = check_count("padding", padding, least=0)
        if padding < margin:
            raise ValueError(f"margin={margin}, padding={padding}; it must be 0 <= margin <= padding")

    def _transform_images(self, images: Tensor, repeats: int) -> Tensor:
        height, width = images.shape[-2:]
        inner = height - 2 * self.margin, width - 2 * self.margin
        top, left = (self._draw(2 * self.margin + 1, images, repeats) for _ in range(2))
        down, right = (self._draw(2 * (self.padding - self.margin) + 1, images, repeats) for _ in range(2))
        return shift(images, top, left, inner, self.padding, down, right)

    def _output_size(self, height: int, width: int) -> tuple[int, int]:
        if min(height, width) <= 2 * self.margin:
            raise ValueError(f"RandomShift takes images larger than {2 * self.margin}; got {height}x{width}")
        return height, width
