"""Images in the layouts in which environments return them, and their conversion to frames."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torch.nn import functional as F
from torchrl.data import Bounded, Composite, TensorSpec
from torchrl.envs.transforms import Transform

__all__ = ["ToFrames", "check_image", "choose_image", "is_image", "layout_of", "to_frame"]

CHANNELS = (1, 3, 4)
SMALLEST_SIDE = 12  # a board or a grid of symbols is smaller (MiniGrid's is 7 x 7), and too small for the encoders
LARGEST_GRID, NUM_SYMBOLS = 64, 16  # up to this size, an image that has values below 16 only may be a grid of symbols
DARK_FRAMES = 32  # so many dark frames are a grid: an episode may begin with a dark image, but a grid stays dark
TOLERANCE = 1 / 255  # of float images: a rounding error may leave [0, 1], by less than one of 256 gray levels


def layout_of(shape: Sequence[int]) -> str | None:
    """Returns "HW", "HWC" or "CHW", or None if ``shape`` is not that of an image of 1, 3 or 4 channels."""
    if len(shape) == 2:
        return "HW"
    if len(shape) == 3 and shape[-1] in CHANNELS:
        return "HWC"
    if len(shape) == 3 and shape[0] in CHANNELS:
        return "CHW"
    return None


def is_large_enough(shape: Sequence[int]) -> bool:
    """Returns whether both sides of an image are at least as long as the smallest."""
    sides = shape[1:] if layout_of(shape) == "CHW" else shape[:2]
    return min(sides) >= SMALLEST_SIDE


def is_image(shape: Sequence[int], dtype: str, low: float, high: float) -> bool:
    """Returns whether arrays of this shape, dtype and range are images: uint8, or floats in [0, 1]; not too small."""
    in_range = dtype == "uint8" or (dtype.startswith("float") and low >= 0 and high <= 1)
    return in_range and layout_of(shape) is not None and is_large_enough(shape)


def check_image(image: np.ndarray | Tensor, declared: str, name: str) -> None:
    """Refuses an image of another dtype than its environment declares, and floats outside of [0, 1].

    A conversion would turn floats in [0, 1] into black uint8 images, without an error.
    """
    dtype = str(image.dtype).removeprefix("torch.")
    as_declared = dtype == declared or (dtype.startswith("float") and declared.startswith("float"))
    low, high = (0, 0) if dtype == "uint8" else (image.min().item(), image.max().item())
    if as_declared and low >= -TOLERANCE and high <= 1 + TOLERANCE:
        return
    low, high = image.min().item(), image.max().item()
    wanted = "uint8" if declared == "uint8" else f"{declared} in [0, 1]"
    raise ValueError(f"{name} is declared {wanted}, but the environment returned {dtype} from {low:g} to {high:g}")


def may_be_symbols(image: Tensor, layout: str | None) -> bool:
    """Returns whether an image is as small as a grid of symbols, and has numbers that are as low."""
    sides = image.shape[-3:-1] if layout == "HWC" else image.shape[-2:]
    return image.dtype == torch.uint8 and min(sides) <= LARGEST_GRID and image.max().item() < NUM_SYMBOLS


def choose_image(images: Sequence[NestedKey], pixels_key: NestedKey | None, shown: object) -> NestedKey:
    """Returns the only one of ``images``, or ``pixels_key`` where given, or raises a ValueError with the choices."""
    if pixels_key is None and len(images) == 1:
        return images[0]
    if pixels_key is not None and pixels_key in images:
        return pixels_key
    wanted = "exactly one image" if pixels_key is None else f"an image under pixels_key={pixels_key!r}"
    raise ValueError(
        f"the environment shows {shown}; {wanted} is needed, the images are {list(images)}. An image is uint8, or "
        "float in [0, 1], of shape [H, W], [H, W, C] or [C, H, W] with C one of 1, 3, 4, and H and W at least "
        f"{SMALLEST_SIDE}: less is a board or a grid of symbols, not an image. Choose one of several images with "
        "pixels_key, or the drawing of a Gymnasium environment with render=True"
    )


def to_frame(image: Tensor, layout: str | None, size: tuple[int, int] | None = None) -> Tensor:
    """Returns images ``[*, ...]`` of a layout as uint8 ``[*, C, H, W]``, resized to ``size`` where given."""
    if layout == "HW":
        image = image.unsqueeze(-3)
    elif layout == "HWC":
        image = image.movedim(-1, -3)
    if image.dtype != torch.uint8:
        image = image.clamp(0, 1).mul(255).round().to(torch.uint8)
    if size is None or image.shape[-2:] == size:
        return image
    flat = image.reshape(-1, *image.shape[-3:]).float()
    resized = F.interpolate(flat, size, mode="bilinear", antialias=True)
    return resized.round().to(torch.uint8).reshape(*image.shape[:-2], *size)


class ToFrames(Transform):
    """Turns images of any layout into "pixels" uint8 [*, C, H, W], and removes the image's own key.

    Args:
        in_key (NestedKey): The key of the image.
        image_shape (sequence of int): The image's shape, without batch dimensions; it tells the layout.
        dtype (str, optional): The declared dtype; other images are refused. Defaults to None: not checked.
        image_size (int, optional): Height and width, reached by antialiased bilinear interpolation. Defaults to the
            image's own.
    """

    def __init__(
        self, in_key: NestedKey, image_shape: Sequence[int], image_size: int | None = None, dtype: str | None = None
    ) -> None:
        super().__init__(in_keys=[in_key], out_keys=["pixels"])
        self._declared = dtype
        self._layout = layout_of(image_shape)
        self._size = None if image_size is None else (image_size, image_size)
        self._dark_frames, self._was_bright = 0, False  # what there was so far

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        image = next_tensordict.get(self.in_keys[0])
        if self._declared is not None:
            check_image(image, self._declared, f"the image {self.in_keys[0]!r}")
        if not self._was_bright:
            self._check_brightness(image)
        if self.in_keys[0] != "pixels":
            next_tensordict.del_(self.in_keys[0])
        return next_tensordict.set("pixels", self._apply_transform(image))

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _check_brightness(self, image: Tensor) -> None:
        """Refuses small images that have low numbers only, frame after frame: grids of symbols look like that.

        An encoder divides by 255. Such images would be nearly black, and the encoder would learn nothing.
        """
        if not may_be_symbols(image, self._layout):
            self._was_bright = True
        elif image.min() < image.max():  # a blank frame tells nothing
            self._dark_frames += 1
            if self._dark_frames >= DARK_FRAMES:
                height, width = image.shape[-3:-1] if self._layout == "HWC" else image.shape[-2:]
                raise ValueError(
                    f"the image {self.in_keys[0]!r}, {height} x {width}, has no number above {NUM_SYMBOLS - 1} in its "
                    f"first {DARK_FRAMES} frames: it is a grid of symbols, or nearly black. Images have numbers from 0 "
                    "to 255: give another image with pixels_key, the drawing of a Gymnasium environment with "
                    "render=True, or scale the numbers"
                )

    def _apply_transform(self, image: Tensor) -> Tensor:
        return to_frame(image, self._layout, self._size)

    def transform_observation_spec(self, observation_spec: Composite) -> TensorSpec:
        """Gives the frames' shape and dtype."""
        key = self.in_keys[0]
        spec = observation_spec[key]
        shape = self._apply_transform(torch.zeros(spec.shape, dtype=torch.uint8)).shape
        if key != "pixels":
            del observation_spec[key]
        observation_spec["pixels"] = Bounded(0, 255, shape, dtype=torch.uint8, device=spec.device)
        return observation_spec
