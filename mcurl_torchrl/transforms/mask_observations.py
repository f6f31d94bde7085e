"""MaskObservations: hides whole observations of a slice, as BERT hides words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor

from mcurl_torchrl.checks import check_count, require
from mcurl_torchrl.transforms.crops import each_by_itself
from mcurl_torchrl.transforms.keys import is_left_out
from mcurl_torchrl.transforms.random_transform import RandomTransform

__all__ = ["MaskObservations"]


class MaskObservations(RandomTransform):
    """Hides a random part of the observations of the query view (https://arxiv.org/abs/2010.07470).

    Each observation is hidden with probability ``mask_ratio``. One part of the hidden observations becomes all zeros,
    one part becomes another observation, and the rest stays as it is; the loss is computed at all of them. An
    observation is hidden as a whole, with all its frames.

    Reads ``in_key``, ``[*, C, H, W]``, the query view; writes ``out_key``, the same with some observations hidden,
    ``masked_key``, bool ``[*]``, True where hidden, and ``zeroed_key``, bool ``[*]``, True where all zeros. The tensor
    under ``in_key`` is not changed in place, and the key view is not read. Works in a replay buffer, in ``Compose`` and
    as a module.

    Args:
        mask_ratio (float): the probability that an observation is hidden.

    Keyword Args:
        zero (float): the part of the hidden observations that becomes zeros. Defaults to 0.8.
        replace (float): the part of them that becomes another observation. Defaults to 0.1.
        source (callable, optional): called with a number, returns that many observations drawn from the replay buffer,
            ``[n, C, h, w]``, like :meth:`FrameReplayBuffer.observations
            <mcurl_torchrl.FrameReplayBuffer.observations>`. Defaults to None: replacements then come from other slices
            of the batch.
        augment (callable, optional): a transform of the observations from ``source``, for example
            :class:`~mcurl_torchrl.RandomCrop`: each observation gets its own crop. Defaults to none.
        slice_len (int, optional): the length of a slice in a flat batch: replacements come from other slices. Defaults
            to the last batch dimension; in a flat batch without ``slice_len``, each observation is its own slice.
        in_key, out_key, masked_key, zeroed_key (NestedKey): default to ``("mcurl", "query_pixels")`` twice,
            ``("mcurl", "masked")`` and ``("mcurl", "zeroed")``.
        generator (torch.Generator, optional): the source of random numbers. Defaults to torch's global one.

    Raises:
        ValueError: on probabilities outside [0, 1] or with a sum above 1, and on replacements of another shape.
        KeyError: on a missing key, with the keys of the batch.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from mcurl_torchrl import MaskObservations
        >>> views = {"query_pixels": torch.randint(1, 256, (4, 16, 9, 84, 84), dtype=torch.uint8)}
        >>> batch = MaskObservations(0.5)(TensorDict({"mcurl": views}, [4, 16]))
        >>> bool((batch["mcurl", "query_pixels"][batch["mcurl", "zeroed"]] == 0).all())
        True
        >>> bool((batch["mcurl", "masked"] | ~batch["mcurl", "zeroed"]).all())
        True
    """

    def __init__(
        self,
        mask_ratio: float,
        *,
        zero: float = 0.8,
        replace: float = 0.1,
        source: Callable[[int], Tensor] | None = None,
        augment: Callable[[Tensor], Tensor] | None = None,
        slice_len: int | None = None,
        in_key: NestedKey = ("mcurl", "query_pixels"),
        out_key: NestedKey = ("mcurl", "query_pixels"),
        masked_key: NestedKey = ("mcurl", "masked"),
        zeroed_key: NestedKey = ("mcurl", "zeroed"),
        generator: torch.Generator | None = None,
    ) -> None:
        for name, value in (("mask_ratio", mask_ratio), ("zero", zero), ("replace", replace)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name}={value}; it must be between 0 and 1")
        if zero + replace > 1 + 1e-9:
            raise ValueError(
                f"zero={zero} and replace={replace} are parts of the hidden observations: their sum is above 1"
            )
        keys = [unravel_key(key) for key in (out_key, masked_key, zeroed_key)]
        super().__init__(in_keys=[unravel_key(in_key)], out_keys=keys)
        self.mask_ratio = mask_ratio
        self.zero = zero
        self.replace = replace
        self.source = source
        # Replacements are not slices: a transform with one place per slice would refuse their number.
        self.augment = None if augment is None else each_by_itself(augment)
        self.slice_len = None if slice_len is None else check_count("slice_len", slice_len)
        self.generator = generator

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Hides observations of a batch ``[*]``."""
        if is_left_out(self, tensordict, self.in_keys[0]):
            return tensordict
        pixels = require(tensordict, self.in_keys[0], self)
        lead = tensordict.batch_size
        if pixels.ndim <= len(lead):
            raise ValueError(
                f"{self.in_keys[0]!r} must be [{', '.join(map(str, lead))}, C, H, W]; got {tuple(pixels.shape)}"
            )
        images = pixels.reshape(lead.numel(), *pixels.shape[len(lead) :])  # also of a single observation, and of none
        masked = self._rand(len(images), images.device) < self.mask_ratio
        drawn = self._rand(len(images), images.device)
        zeroed = masked & (drawn < self.zero)
        replaced = (masked & ~zeroed & (drawn < self.zero + self.replace)).nonzero().squeeze(-1)

        hidden = images.clone()
        hidden.index_fill_(0, zeroed.nonzero().squeeze(-1), 0)
        if len(replaced):
            hidden[replaced] = self._replacements(images, replaced, lead)
        for key, value in zip(self.out_keys, (hidden, masked, zeroed), strict=True):
            tensordict.set(key, value.view((*lead, *value.shape[1:])))
        return tensordict

    def _replacements(self, images: Tensor, replaced: Tensor, lead: torch.Size) -> Tensor:
        if self.source is None:
            return images[self._others(replaced, len(images), lead)]
        others = self.source(len(replaced)).to(images.device)
        if self.augment is not None:
            others = self.augment(others)
        if others.shape[1:] != images.shape[1:] or others.dtype != images.dtype:
            raise ValueError(
                f"replacements must be {images.dtype} {tuple(images.shape[1:])} like the observations of the batch; "
                f"got {others.dtype} {tuple(others.shape[1:])}: give an augment that crops them"
            )
        return others

    def _others(self, replaced: Tensor, count: int, lead: torch.Size) -> Tensor:
        """Draws for each replaced observation a place in another slice; if there is one slice only, any other place."""
        length = self.slice_len or (lead[-1] if len(lead) > 1 else 1)
        if count % length:
            raise ValueError(f"{count} observations are not a whole number of slices of slice_len={length}")
        if count == length:
            length = 1
        if count == 1:
            return replaced
        # Counted from the slice's end around the batch, each number is one place of the other slices.
        number = self._randint(count - length, len(replaced), replaced.device)
        return ((replaced // length + 1) * length + number) % count

    def _refuse_env(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("MaskObservations is for sampled batches, not for environments")

    _step = _reset = _call = transform_observation_spec = _refuse_env
