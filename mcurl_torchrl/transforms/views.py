"""AugmentedViews: several views of the same images, augmented independently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensordict import TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torchrl.envs.transforms import Transform

from mcurl_torchrl.checks import require
from mcurl_torchrl.transforms.keys import is_left_out

__all__ = ["KEY_VIEW", "QUERY_VIEW", "SECOND_NEXT_VIEW", "AugmentedViews"]

QUERY_VIEW: NestedKey = ("mcurl", "query_pixels")
KEY_VIEW: NestedKey = ("mcurl", "key_pixels")
SECOND_NEXT_VIEW: NestedKey = ("next", "second_pixels")


class AugmentedViews(Transform):
    """Writes views of the same images, augmented independently. For sampled batches.

    Reads ``in_key``, ``[*, C, H, W]``; writes each of ``out_keys``, in this order.

    Args:
        augment (callable, optional): images ``[*, C, H, W]`` to images, such as :class:`~mcurl_torchrl.RandomCrop` or
            :class:`~mcurl_torchrl.RandomShift`. None: every view is the images as they are. Defaults to None.

    Keyword Args:
        in_key (NestedKey): the images. Defaults to ``"pixels"``.
        out_keys (sequence of NestedKey): the views. Defaults to ``("mcurl", "query_pixels")`` and
            ``("mcurl", "key_pixels")``.

    Raises:
        KeyError: on a missing key, with the keys that are there.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from mcurl_torchrl import RandomCrop
        >>> from mcurl_torchrl.transforms import AugmentedViews
        >>> batch = TensorDict({"pixels": torch.zeros(4, 9, 100, 100, dtype=torch.uint8)}, [4])
        >>> AugmentedViews(RandomCrop(84))(batch)["mcurl", "key_pixels"].shape
        torch.Size([4, 9, 84, 84])
    """

    def __init__(
        self,
        augment: Callable[[Tensor], Tensor] | None = None,
        *,
        in_key: NestedKey = "pixels",
        out_keys: Sequence[NestedKey] = (QUERY_VIEW, KEY_VIEW),
    ) -> None:
        super().__init__(in_keys=[unravel_key(in_key)], out_keys=[unravel_key(key) for key in out_keys])
        self.augment = augment

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Adds the views to a batch, in place."""
        if is_left_out(self, tensordict, self.in_keys[0]):
            return tensordict
        images = require(tensordict, self.in_keys[0], self)
        for key in self.out_keys:
            tensordict.set(key, images if self.augment is None else self.augment(images))
        return tensordict

    def _refuse_env(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("AugmentedViews is for sampled batches, not for environments")

    _step = _reset = _call = transform_observation_spec = _refuse_env
