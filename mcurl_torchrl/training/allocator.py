"""The memory allocator: it keeps freed memory, instead of returning it to the operating system at every update."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_pages"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h


def keep_freed_pages() -> bool:
    """Tells glibc to keep large blocks of freed memory for the next allocation; returns whether it does.

    Batches of pixels are tens of megabytes. By default glibc asks the kernel for such blocks each time, and the kernel
    clears every page of them: on a CPU this can be half of the time of an update. Only Linux with glibc has this
    setting.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another system, or another libc
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, 2**30) and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
