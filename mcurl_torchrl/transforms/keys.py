"""The keys of transforms: a list of keys to read, and a list of the same length of keys to write."""

from __future__ import annotations

from collections.abc import Sequence

from tensordict import TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torchrl.envs.transforms import Transform

__all__ = ["is_left_out", "paired_keys"]


def paired_keys(
    in_keys: Sequence[NestedKey] | str, out_keys: Sequence[NestedKey] | str | None
) -> tuple[list[NestedKey], list[NestedKey]]:
    """Returns both as lists; a string is one key, and ``out_keys=None`` means the ``in_keys``.

    Raises:
        ValueError: if the lengths differ.

    Examples:
        >>> from mcurl_torchrl.transforms.keys import paired_keys
        >>> paired_keys("pixels", [("mcurl", "query_pixels")])
        (['pixels'], [('mcurl', 'query_pixels')])
    """
    read = _as_list(in_keys)
    written = list(read) if out_keys is None else _as_list(out_keys)
    if len(written) != len(read):
        raise ValueError(f"out_keys={written} must have the length of in_keys={read}")
    return read, written


def is_left_out(transform: Transform, tensordict: TensorDictBase, key: NestedKey) -> bool:
    """Returns whether a key is missing and the transform allows it (``transform.set_missing_tolerance(True)``)."""
    return transform.missing_tolerance and tensordict.get(key, None) is None


def _as_list(keys: Sequence[NestedKey] | str) -> list[NestedKey]:
    return [keys] if isinstance(keys, str) else [unravel_key(key) for key in keys]
