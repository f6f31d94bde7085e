"""Writing files in one step: a file is either absent or whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["replacing", "write_file"]


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yields a temporary path in the same folder; at the end the file there replaces the target in one step."""
    part = target.with_name(f".{target.name}.part")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def write_file(target: Path, content: bytes, *, before_rename: Callable[[], None] | None = None) -> None:
    """Writes a file in one step, unless ``before_rename`` raises, and makes sure that it is on disk."""
    with replacing(target) as part:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if before_rename is not None:
            before_rename()
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
