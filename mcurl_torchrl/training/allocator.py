"""Keeping freed memory, instead of giving it back to the operating system at every update."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_pages"]

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_pages() -> bool:
    """Tells glibc to keep large blocks of freed memory for the next allocation.

    Batches of pixels are tens of megabytes. By default glibc maps such blocks anew each time, and the kernel clears
    every page of them: on a CPU this can be half of the time of an update. No environment variable is needed.

    Returns:
        Whether it was done; elsewhere than on Linux with glibc, nothing is.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, 2**30) and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
