"""Images in the forms in which environments show them, and their conversion to frames."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torch.nn import functional as F
from torchrl.data import Bounded, Composite, TensorSpec
from torchrl.envs.transforms import Transform

__all__ = ["ToFrames", "choose_image", "is_image", "layout_of"]

CHANNELS = (1, 3, 4)


def layout_of(shape: Sequence[int]) -> str | None:
    """Returns "HW", "HWC" or "CHW", or None if ``shape`` is not that of an image of 1, 3 or 4 channels."""
    if len(shape) == 2:
        return "HW"
    if len(shape) == 3 and shape[-1] in CHANNELS:
        return "HWC"
    if len(shape) == 3 and shape[0] in CHANNELS:
        return "CHW"
    return None


def is_image(shape: Sequence[int], dtype: str, low: float, high: float) -> bool:
    """Tells whether arrays of this shape, dtype and range are images: uint8, or floats in [0, 1]."""
    in_range = dtype == "uint8" or (dtype.startswith("float") and low >= 0 and high <= 1)
    return in_range and layout_of(shape) is not None


def choose_image(images: Sequence[NestedKey], pixels_key: NestedKey | None, shown: object) -> NestedKey:
    """Returns the only one of ``images``, or ``pixels_key`` where given, or raises a ValueError with the choices."""
    if pixels_key is None and len(images) == 1:
        return images[0]
    if pixels_key is not None and pixels_key in images:
        return pixels_key
    wanted = "exactly one image" if pixels_key is None else f"an image under pixels_key={pixels_key!r}"
    raise ValueError(
        f"the environment shows {shown}; {wanted} is needed, the images are {list(images)}. An image is uint8, or "
        "float in [0, 1], of shape [H, W], [H, W, C] or [C, H, W] with C one of 1, 3, 4. Choose one of several images "
        "with pixels_key, or the drawing of a Gymnasium environment with render=True"
    )


class ToFrames(Transform):
    """Turns images of any layout into "pixels" uint8 [*, C, H, W], and removes the image's own key.

    Args:
        in_key (NestedKey): The key of the image.
        image_shape (sequence of int): The image's shape, without batch dimensions; it tells the layout.
        image_size (int, optional): Height and width, reached by antialiased bilinear interpolation. Defaults to the
            image's own.
    """

    def __init__(self, in_key: NestedKey, image_shape: Sequence[int], image_size: int | None = None) -> None:
        super().__init__(in_keys=[in_key], out_keys=["pixels"])
        self._layout = layout_of(image_shape)
        self._size = None if image_size is None else (image_size, image_size)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        image = next_tensordict.get(self.in_keys[0])
        if self.in_keys[0] != "pixels":
            next_tensordict.del_(self.in_keys[0])
        return next_tensordict.set("pixels", self._apply_transform(image))

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _apply_transform(self, image: Tensor) -> Tensor:
        if self._layout == "HW":
            image = image.unsqueeze(-3)
        elif self._layout == "HWC":
            image = image.movedim(-1, -3)
        if image.dtype != torch.uint8:
            image = image.clamp(0, 1).mul(255).round().to(torch.uint8)
        if self._size is None or image.shape[-2:] == self._size:
            return image
        flat = image.reshape(-1, *image.shape[-3:]).float()
        resized = F.interpolate(flat, self._size, mode="bilinear", antialias=True)
        return resized.round().to(torch.uint8).reshape(*image.shape[:-2], *self._size)

    def transform_observation_spec(self, observation_spec: Composite) -> TensorSpec:
        """Gives the frames' shape and dtype."""
        key = self.in_keys[0]
        spec = observation_spec[key]
        shape = self._apply_transform(torch.zeros(spec.shape, dtype=torch.uint8)).shape
        if key != "pixels":
            del observation_spec[key]
        observation_spec["pixels"] = Bounded(0, 255, shape, dtype=torch.uint8, device=spec.device)
        return observation_spec
