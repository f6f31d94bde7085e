"""All private attributes of TorchRL that the frame replay uses, in one place.

TorchRL has no public way to do these things: to reach the tensors of a storage without a copy, to allocate a storage
and tell it its length, to find the oldest row of a ring, and to lock a buffer together with its prefetched batches.
``tests/replay/test_torchrl_internals.py`` names each attribute that is used here. It fails if TorchRL changes one of
them, or if another module uses one. Methods that TorchRL calls on its subclasses (such as ``_sample`` and ``_empty``)
are not listed: to define them is the way to write a buffer, a sampler or a writer.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.data import ReplayBuffer
from torchrl.data.replay_buffers.storages import Storage, TensorStorage
from torchrl.data.replay_buffers.writers import Writer

__all__ = [
    "allocate",
    "check_prefetched",
    "clear_prefetched",
    "datasets_folder",
    "empty_storage",
    "futures_lock",
    "generator_of",
    "has_reader",
    "is_full",
    "locked",
    "oldest_time",
    "pins_memory",
    "prefetch_limit",
    "prefetched",
    "publish",
    "revision",
    "rows_lock",
    "set_generator",
    "share_lock",
    "storage_of",
    "stored",
]


def datasets_folder(name: str) -> str:
    """Returns the folder to which TorchRL downloads a family of datasets."""
    from torchrl.data.datasets.utils import _get_root_dir

    return str(_get_root_dir(name))


# -- storages ----------------------------------------------------------------------------------------------------------


def stored(storage: TensorStorage) -> Any:
    """Returns the stored data with room for all rows: no copy, and no check of the number of written rows."""
    return storage._storage


def is_full(storage: Storage) -> bool:
    """Returns whether all rows are written."""
    return bool(storage._is_full)


def has_reader(storage: Storage) -> bool:
    """Returns whether a buffer uses the storage."""
    return bool(storage._attached_entities)


def allocate(storage: TensorStorage, example: TensorDictBase) -> None:
    """Makes room for all rows, each like ``example``; writes none."""
    storage._init(example)


def publish(storage: TensorStorage, length: int, newest: int) -> None:
    """Tells a storage that rows were written: their number now, and the time of the newest."""
    storage._len = length
    storage._set_last_cursor(newest)
    storage._bump_mutation_revision()


def storage_of(writer: Writer) -> Any:
    """Returns the storage that a buffer gave to its writer."""
    return writer._storage


def revision(storage: Storage) -> int:
    """Returns a number that grows with every write to the storage, also from other buffers and processes."""
    return int(storage._mutation_revision)


def empty_storage(storage: Storage) -> None:
    """Deletes all rows."""
    storage._empty()


def oldest_time(storage: Storage, num_rows: int) -> int:
    """Returns the time of the oldest row of a full ring; 0 for a ring that is not full.

    It is read from the cursor of the buffer's writer, because after ``loads`` the storage's own record of its last
    write is missing or out of date. A storage to which nothing was written is a data set, which begins at row 0.
    """
    if not is_full(storage):
        return 0
    writers: list[Any] = [getattr(buffer, "writer", None) for buffer in storage._attached_entities]
    writers = [writer for writer in writers if hasattr(writer, "_cursor") and writer._write_count]
    if writers:
        latest = max(writers, key=lambda writer: writer._write_count)
        return int(latest._cursor) % num_rows
    newest = storage._last_cursor_index
    return 0 if newest is None else (int(newest) + 1) % num_rows


# -- random generators -------------------------------------------------------------------------------------------------


def generator_of(component: Any) -> torch.Generator | None:
    """Returns the generator of a buffer, of its sampler or of its storage."""
    generator: torch.Generator | None = component._rng
    return generator


def set_generator(component: Any, generator: torch.Generator | None) -> None:
    """Sets the generator of a sampler or a storage; a buffer has ``set_rng``."""
    component._rng = generator


# -- locks and prefetched batches --------------------------------------------------------------------------------------


def rows_lock(buffer: ReplayBuffer) -> Any:
    """Returns the lock that threads hold while they read or write rows."""
    return buffer._replay_lock


class locked:  # noqa: N801 (used like a function; a generator would take twice as long, and it is in every write)
    """Locks the rows against other threads and, if the buffer is shared, against other processes."""

    __slots__ = ("locks",)

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.locks = buffer._replay_lock, buffer._write_lock

    def __enter__(self) -> None:
        self.locks[0].__enter__()
        try:
            self.locks[1].__enter__()
        except BaseException:
            self.locks[0].__exit__(None, None, None)
            raise

    def __exit__(self, *error: Any) -> None:
        try:
            self.locks[1].__exit__(*error)
        finally:
            self.locks[0].__exit__(*error)


def share_lock(reader: ReplayBuffer, buffer: ReplayBuffer) -> None:
    """Lets two buffers over one storage use one lock: with two, a prefetching reader would read half-written rows."""
    reader._replay_lock = buffer._replay_lock


def futures_lock(buffer: ReplayBuffer) -> Any:
    """Returns the lock of the prefetched batches; a thread takes it before that of the rows."""
    return buffer._futures_lock


def prefetched(buffer: ReplayBuffer) -> deque[Future[Any]]:
    """Returns the queue of prefetched batches, oldest first."""
    queue: deque[Future[Any]] = buffer._prefetch_queue
    return queue


def clear_prefetched(buffer: ReplayBuffer) -> None:
    """Drops the prefetched batches; the caller holds :func:`futures_lock`."""
    buffer._clear_prefetch_queue_locked()


def check_prefetched(buffer: ReplayBuffer, state: Any) -> None:
    """Makes sure that the prefetched batches in a state of ``state_dict`` fit the buffer, or raises as TorchRL does."""
    buffer._validate_prefetch_state(state)


def prefetch_limit(buffer: ReplayBuffer) -> int:
    """Returns the number of batches that the buffer makes in advance."""
    return int(buffer._prefetch_cap)


def pins_memory(buffer: ReplayBuffer) -> bool:
    """Returns whether batches are put in pinned memory."""
    return bool(buffer._pin_memory)
