"""The keys of transforms: a list for what is read and one of the same length for what is written."""

from __future__ import annotations

from collections.abc import Sequence

from tensordict.utils import NestedKey, unravel_key

__all__ = ["paired_keys"]


def paired_keys(
    in_keys: Sequence[NestedKey] | str, out_keys: Sequence[NestedKey] | str | None
) -> tuple[list[NestedKey], list[NestedKey]]:
    """Returns both as lists; a string is one key, and without ``out_keys`` they are the ``in_keys``.

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


def _as_list(keys: Sequence[NestedKey] | str) -> list[NestedKey]:
    return [keys] if isinstance(keys, str) else [unravel_key(key) for key in keys]
