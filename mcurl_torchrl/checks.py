"""Checks of arguments and keys, with errors that name the value and the right values."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor

__all__ = ["check_choice", "check_count", "leaf_keys", "require"]


def leaf_keys(data: TensorDictBase) -> list[NestedKey]:
    """Returns the keys of all tensors in ``data``, nested ones as tuples."""
    return list(data.keys(include_nested=True, leaves_only=True))


def check_count(name: str, value: Any) -> int:
    """Returns ``value`` if it is a whole number of at least 1, or raises an error that names it."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r}; it must be a whole number")
    if value < 1:
        raise ValueError(f"{name}={value}; it must be at least 1")
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
