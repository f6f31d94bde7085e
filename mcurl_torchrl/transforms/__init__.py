"""Transforms of sampled frames: stack, crop, mask; their functions in functional.py."""

from mcurl_torchrl.transforms.crops import CenterCrop, RandomCrop, RandomShift
from mcurl_torchrl.transforms.functional import center_crop, crop, shift
from mcurl_torchrl.transforms.mask_observations import MaskObservations
from mcurl_torchrl.transforms.stack_frames import StackFrames

__all__ = [
    "CenterCrop",
    "MaskObservations",
    "RandomCrop",
    "RandomShift",
    "StackFrames",
    "center_crop",
    "crop",
    "shift",
]
