"""Checks of arguments and keys, with errors that name the value and the right values."""

from __future__ import annotations

import contextlib
import math
import numbers
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor

__all__ = ["check_choice", "check_count", "check_number", "leaf_keys", "needs", "require", "warn_caller"]

_LIBRARIES = ("mcurl_torchrl", "torchrl", "tensordict", "torch", "contextlib", "concurrent")


def leaf_keys(data: TensorDictBase) -> list[NestedKey]:
    """Returns the keys of all tensors in ``data``, nested ones as tuples."""
    return list(data.keys(include_nested=True, leaves_only=True))


def check_count(name: str, value: Any, *, least: int = 1) -> int:
    """Returns ``value`` if it is a whole number of at least ``least``, or raises an error that names it.

    Whole numbers of NumPy are accepted as well, and converted to ``int``.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}={value!r}; it must be a whole number")
    if value < least:
        raise ValueError(f"{name}={value}; it must be at least {least}")
    return int(value)


def check_number(
    name: str, value: float, *, above: float | None = None, least: float | None = None, most: float = math.inf
) -> float:
    """Returns ``value`` if it is finite and within the bounds, or raises a ValueError that names it."""
    low = least if above is None else above
    inside = low is None or (value >= low if above is None else value > low)
    if not (inside and value <= most and math.isfinite(value)):
        lowest = [] if low is None else [f"{'at least' if above is None else 'above'} {low:g}"]
        highest = [f"at most {most:g}"] if most < math.inf else ["finite"]
        raise ValueError(f"{name}={value}; it must be {' and '.join(lowest + highest)}")
    return value


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Returns ``value``, or raises a ValueError that names the choices."""
    if value not in choices:
        raise ValueError(f"{name}={value!r}; choose one of {list(choices)}")
    return value


def require(tensordict: TensorDictBase, key: NestedKey, user: object) -> Tensor:
    """Returns the tensor under ``key``, or raises a KeyError that names the user of the key and the keys that exist."""
    value = tensordict.get(key, None)
    if value is None:
        raise KeyError(f"{type(user).__name__} needs {key!r}; the tensordict has {leaf_keys(tensordict)}")
    return value


def warn_caller(message: str) -> None:
    """Warns; the warning names a line of the user's program, not a line of this package or of TorchRL."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


@contextlib.contextmanager
def needs(message: str, extra: str) -> Iterator[None]:
    """Turns an ImportError in the block into one with the message and the command that installs the extra."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{message}: pip install 'mcurl-torchrl[{extra}]'") from error
