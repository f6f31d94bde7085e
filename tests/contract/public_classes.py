"""Finds the public classes of the package by their kind, so that no component is left out of the contract tests."""

from __future__ import annotations

import inspect
from types import ModuleType

__all__ = ["public_classes"]


def public_classes(kind: type, *modules: ModuleType) -> set[str]:
    """Returns the names of all classes of a kind that the modules export."""
    exported = [(name, getattr(module, name)) for module in modules for name in module.__all__]
    return {name for name, value in exported if inspect.isclass(value) and issubclass(value, kind)}
