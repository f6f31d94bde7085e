"""Transforms of sampled frames: stack, crop, mask; their functions are in functional.py. One is for environments."""

from mcurl_torchrl.transforms.augmentation import AUGMENTATIONS, augment_transitions, make_augmentation
from mcurl_torchrl.transforms.crops import CenterCrop, RandomCrop, RandomShift
from mcurl_torchrl.transforms.functional import center_crop, crop, shift
from mcurl_torchrl.transforms.intensity import RandomIntensity
from mcurl_torchrl.transforms.mask_cubes import MaskCubes
from mcurl_torchrl.transforms.mask_observations import MaskObservations
from mcurl_torchrl.transforms.stack_frames import StackFrames
from mcurl_torchrl.transforms.views import KEY_VIEW, QUERY_VIEW, AugmentedViews
from mcurl_torchrl.transforms.writer_column import WriterColumn

__all__ = [
    "AUGMENTATIONS",
    "KEY_VIEW",
    "QUERY_VIEW",
    "AugmentedViews",
    "CenterCrop",
    "MaskCubes",
    "MaskObservations",
    "RandomCrop",
    "RandomIntensity",
    "RandomShift",
    "StackFrames",
    "WriterColumn",
    "augment_transitions",
    "center_crop",
    "crop",
    "make_augmentation",
    "shift",
]
