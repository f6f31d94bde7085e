"""Augmentations by name, for the batches of RL and for the views of an auxiliary task."""

from __future__ import annotations

from collections.abc import Callable

from tensordict.utils import NestedKey, unravel_key
from torch import Tensor, nn
from torchrl.envs.transforms import Compose

from mcurl_torchrl.checks import check_choice, check_number
from mcurl_torchrl.transforms.crops import CenterCrop, RandomCrop, RandomShift
from mcurl_torchrl.transforms.intensity import RandomIntensity
from mcurl_torchrl.transforms.views import SECOND_NEXT_VIEW, AugmentedViews

__all__ = ["AUGMENTATIONS", "augment_transitions", "make_augmentation"]

AUGMENTATIONS = ("none", "crop", "shift", "curl_shift")


def make_augmentation(
    kind: str = "none", *, intensity_scale: float = 0.0, crop_size: int | None = None
) -> Callable[[Tensor], Tensor] | None:
    """Makes an augmentation by its name: images ``[*, C, H, W]`` to images, random for each image.

    Args:
        kind (str): ``"none"``; ``"crop"``, at a random place (RAD, CURL with SAC); ``"shift"``, by up to 4 pixels, the
            border repeated (DrQ, SPR); or ``"curl_shift"``, CURL's on Atari: crop, repeat the border, crop back.
            Defaults to ``"none"``.

    Keyword Args:
        intensity_scale (float): the size of a change of brightness that comes last, as in
            :class:`~mcurl_torchrl.transforms.RandomIntensity`; 0 leaves it out. Defaults to 0.
        crop_size (int, optional): the side of the square that the encoder gets. Augmentations other than ``"crop"``
            start from the middle of the image. Defaults to None: the whole image.

    Returns:
        The augmentation, or None where images stay as they are.

    Raises:
        ValueError: on an unknown name, a scale below 0, and on ``"crop"`` without a ``crop_size``.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.transforms import make_augmentation
        >>> images = torch.zeros(32, 9, 100, 100, dtype=torch.uint8)
        >>> make_augmentation("crop", crop_size=84)(images).shape
        torch.Size([32, 9, 84, 84])
        >>> make_augmentation("shift", intensity_scale=0.05)(images).dtype
        torch.float32
        >>> make_augmentation("none") is None
        True
    """
    check_choice("kind", kind, AUGMENTATIONS)
    check_number("intensity_scale", intensity_scale, least=0)
    steps: list[nn.Module] = []
    if kind == "crop":
        if crop_size is None:
            others = [name for name in AUGMENTATIONS if name != "crop"]
            raise ValueError(f"kind='crop' needs a crop_size, the side of the encoder's images; or use {others}")
        steps.append(RandomCrop(crop_size))
    elif crop_size is not None:
        steps.append(CenterCrop(crop_size))
    if kind == "shift":
        steps.append(RandomShift(margin=0, padding=4))
    elif kind == "curl_shift":
        steps.append(RandomShift())
    if intensity_scale:
        steps.append(RandomIntensity(intensity_scale))
    return nn.Sequential(*steps) if steps else None


def augment_transitions(
    augmentation: Callable[[Tensor], Tensor] | None, *, pixels_key: NestedKey = "pixels", second_next: bool = False
) -> Compose | None:
    """Makes the transform of RL's batches: it augments observations and next observations independently.

    Args:
        augmentation (callable, optional): images to images; None: batches stay as they are.

    Keyword Args:
        pixels_key (NestedKey): the observations. Defaults to ``"pixels"``.
        second_next (bool): whether to write another augmented view of the next observations, under
            ``("next", "second_pixels")``: the value losses choose the next action on it. Defaults to False.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from mcurl_torchrl.transforms import augment_transitions, make_augmentation
        >>> images = torch.zeros(32, 4, 84, 84, dtype=torch.uint8)
        >>> batch = TensorDict({"pixels": images, "next": {"pixels": images}}, [32])
        >>> sorted(augment_transitions(make_augmentation("shift"), second_next=True)(batch)["next"].keys())
        ['pixels', 'second_pixels']
    """
    if augmentation is None:
        return None
    following = unravel_key(("next", pixels_key))
    written = [following, SECOND_NEXT_VIEW] if second_next else [following]
    return Compose(
        AugmentedViews(augmentation, in_key=pixels_key, out_keys=[pixels_key]),
        AugmentedViews(augmentation, in_key=following, out_keys=written),
    )
