"""Saving a frame replay and loading it: rows, running episodes, priorities, random states and prefetched batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Tensor

from mcurl_torchrl.checks import leaf_keys
from mcurl_torchrl.replay import archive
from mcurl_torchrl.replay import torchrl_internals as internals
from mcurl_torchrl.replay.archive import RowSegment, SavedState, decode_key, encode_key
from mcurl_torchrl.replay.windows import LAYOUT_KEYS, TRAJECTORY_KEY, UNWRITTEN

if TYPE_CHECKING:
    from mcurl_torchrl.replay.buffer import FrameReplayBuffer
    from mcurl_torchrl.replay.slices import FrameView
    from mcurl_torchrl.replay.writer import FrameWriter

__all__ = ["Batches", "check_saved", "check_state_dict", "frozen", "restore_readers", "save_readers"]

# The settings of each reader that was saved, and its prefetched batches.
Batches = list[tuple[dict[str, Any], list[Future[Any]]]]


@contextlib.contextmanager
def frozen(buffer: FrameReplayBuffer, views: Sequence[FrameView]) -> Iterator[list[FrameView]]:
    """Waits for all prefetching, then locks the rows; yields the buffer and its views."""
    # A view's transform may draw from the buffer, so a thread that needs both locks takes the view's lock first. This
    # thread holds no lock while it waits for batches.
    order = [*views, buffer]
    while True:
        for reader in order:
            reader.synchronize()
        with contextlib.ExitStack() as stack:
            for reader in order:
                stack.enter_context(internals.futures_lock(reader))
            if all(future.done() for reader in order for future in internals.prefetched(reader)):
                stack.enter_context(internals.rows_lock(buffer))
                yield [buffer, *views]
                return


def save_readers(path: Path, name: str, readers: Sequence[FrameView], known: list[RowSegment]) -> list[RowSegment]:
    """Saves a buffer and its views to a folder; nothing may change them meanwhile.

    Args:
        path (Path): the folder.
        name (str): the name of the saved state.
        readers (sequence of FrameView): the buffer, then its views.
        known (list of RowSegment): segments in this folder that hold rows of this buffer.

    Returns:
        All segments that now hold rows of this buffer.
    """
    buffer = readers[0]
    writer, sampler = buffer.writer.state_dict(), buffer.sampler.state_dict()
    tensors = {f"writer/{key}": value for key, value in writer.pop("columns").items()}
    tensors |= {f"sampler/{key}": sampler.pop(key) for key in list(sampler) if isinstance(sampler[key], Tensor)}
    described = []
    for number, reader in enumerate(readers):
        generator = internals.generator_of(reader)
        if generator is not None:
            tensors[f"rng/{number}"] = generator.get_state()
        batches = _pack_batches(reader, f"prefetched/{number}/", tensors)
        described.append({"settings": reader.settings(), "batches": batches})
    return archive.save(
        path,
        name,
        data=internals.stored(buffer.storage) if buffer.writer.written.numel() else None,
        written=buffer.writer.written,
        known=known,
        tensors=tensors,
        scalars={
            "writer": writer,
            "sampler": {"type": type(buffer.sampler).__name__, **sampler},
            "readers": described,
        },
    )


def check_saved(saved: SavedState, buffer: FrameReplayBuffer) -> Batches:
    """Makes sure that a saved state fits a buffer, before anything is changed; returns the prefetched batches.

    Raises:
        ValueError: if the state is damaged or does not fit.
    """
    try:
        _check_rows(saved, buffer.writer)
        buffer.sampler.check_state({**saved.state("sampler/"), **saved.scalars["sampler"]})
        device = buffer.storage.device
        return [
            (entry["settings"], _unpack_batches(saved, f"prefetched/{number}/", entry["batches"], device))
            for number, entry in enumerate(saved.scalars["readers"])
        ]
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"the saved buffer in {saved.path} is damaged: {error!r}") from error
    except ValueError as error:
        raise ValueError(f"the saved buffer in {saved.path} does not fit: {error}") from None


def check_state_dict(state: dict[str, Any], buffer: FrameReplayBuffer) -> None:
    """Makes sure that a state of ``state_dict`` fits a buffer, before anything is changed.

    Raises:
        ValueError: if the state lacks something or does not fit.
    """
    try:
        stored = copy(state["_storage"]["_storage"])
        columns = state["_writer"]["columns"]
        if stored:
            rows = TensorDict().load_state_dict(stored, strict=False)
            rows.batch_size = rows.get(TRAJECTORY_KEY).shape
            if rows.numel() != -(buffer.storage.max_size // -rows.shape[1:].numel()) * rows.shape[1:].numel():
                raise ValueError(f"it has room for {rows.numel()} rows; this buffer for {buffer.storage.max_size}")
            _check_layout(archive.layout_of(rows), columns, buffer.writer)
        buffer.sampler.check_state({"type": type(buffer.sampler).__name__, **state["_sampler"]})
        internals.check_prefetched(buffer, state.get("_prefetch_state"))
        transforms = [set(transform) for transform in (buffer.transform.state_dict(), state["_transforms"])]
        if transforms[0] != transforms[1]:
            raise ValueError(f"its transforms have {sorted(transforms[1])}; this buffer's have {sorted(transforms[0])}")
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"the state is not a state of this buffer: {error!r}") from error
    except ValueError as error:
        raise ValueError(f"the state does not fit: {error}") from None


def restore_readers(saved: SavedState, batches: Batches, readers: Sequence[FrameView]) -> None:
    """Restores a buffer and its views from a saved state that :func:`check_saved` has checked."""
    buffer = readers[0]
    _restore_rows(saved, buffer.writer)
    buffer.sampler.load_state_dict({**saved.state("sampler/"), **saved.scalars["sampler"]})
    for number, reader in enumerate(readers):
        internals.clear_prefetched(reader)
        generator = internals.generator_of(reader)
        if generator is not None and f"rng/{number}" in saved.tensors:
            generator.set_state(saved.tensors[f"rng/{number}"])
        if number < len(batches) and batches[number][0] == reader.settings():
            internals.prefetched(reader).extend(batches[number][1])


# -- rows --------------------------------------------------------------------------------------------------------------


def _check_rows(saved: SavedState, writer: FrameWriter) -> None:
    """Makes sure that saved rows and cursors fit a writer's storage, or raises a ValueError with the difference."""
    for name in ("write_count", "next_trajectory"):
        if not isinstance(saved.scalars["writer"][name], int):
            raise ValueError(f"its {name} is {saved.scalars['writer'][name]!r}")
    if saved.layout is None:
        return
    _check_layout(saved.layout, saved.state("writer/"), writer)
    last = torch.tensor([segment.last for segment in saved.segments])
    if not torch.equal(last.amax(0), saved.state("writer/")["written"]):
        raise ValueError("its segments do not end where its rows do")


def _check_layout(layout: dict[str, Any], columns: dict[str, Tensor], writer: FrameWriter) -> None:
    """Makes sure that rows and the cursors of their columns fit a writer, or raises a ValueError that tells why not."""
    for name, value in _expected_layout(layout, writer).items():
        if layout[name] != value:
            raise ValueError(f"it has {name} {layout[name]}; this one has {value}")
    frame_shape = torch.Size(layout["keys"][encode_key(writer.reader.pixels_key)][1])
    for name, tensor in writer.new_columns(layout["columns"], frame_shape).items():
        found = columns[name]
        if (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
            raise ValueError(
                f"its {name} is {found.dtype} {tuple(found.shape)}, not {tensor.dtype} {tuple(tensor.shape)}"
            )


def _expected_layout(saved: dict[str, Any], writer: FrameWriter) -> dict[str, Any]:
    """Describes the rows that the storage has or, before the first write, must have.

    A storage without rows takes the sizes that it does not know from the saved layout.
    """
    storage = writer.storage
    if storage.initialized:
        return archive.layout_of(internals.stored(storage))
    columns = 1 if storage.ndim == 1 else writer.num_columns or saved["columns"]
    names = [encode_key(key) for key in (*writer.reader.stored_keys, *LAYOUT_KEYS)]
    keys = {name: saved["keys"].get(name, "anything") for name in names}
    pixels = encode_key(writer.reader.pixels_key)
    keys[pixels] = [str(writer.reader.frame_dtype), *keys[pixels][1:]]
    return {"rows": -(storage.max_size // -columns), "columns": columns, "keys": keys}


def _restore_rows(saved: SavedState, writer: FrameWriter) -> None:
    storage = writer.storage
    if saved.layout is None:
        writer.forget_rows()
        internals.empty_storage(storage)
        writer.load_state_dict({"columns": {}, **saved.scalars["writer"]})
        return
    if not storage.initialized:
        count = saved.layout["columns"]
        empty = {
            decode_key(name): torch.zeros(count, *shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
            for name, (dtype, shape) in saved.layout["keys"].items()
        }
        writer.allocate(TensorDict(empty, [count], device=storage.device))
    internals.stored(storage).get(TRAJECTORY_KEY).fill_(UNWRITTEN)
    for flat, values in saved.rows():
        for key, value in values.items():
            writer.column(key).index_copy_(0, flat.to(storage.device), value.to(storage.device))
    writer.load_state_dict({"columns": saved.state("writer/"), **saved.scalars["writer"]})


# -- prefetched batches ------------------------------------------------------------------------------------------------


def _pack_batches(reader: FrameView, prefix: str, tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Adds a reader's prefetched batches to ``tensors``; returns the JSON that is also needed to rebuild them."""
    batches = []
    for number, future in enumerate(internals.prefetched(reader)):
        data, info = future.result()
        for key in leaf_keys(data):
            # A copy: a batch may hold one tensor under two keys, which the file format refuses.
            tensors[f"{prefix}{number}/data/{encode_key(key)}"] = data.get(key).clone()
        for key, value in info.items():
            for part, tensor in enumerate(value if isinstance(value, tuple) else [value]):
                tensors[f"{prefix}{number}/info/{part}/{encode_key(key)}"] = tensor
        tuples = {encode_key(key): len(value) for key, value in info.items() if isinstance(value, tuple)}
        batches.append({"batch_size": list(data.batch_size), "tuples": tuples})
    return batches


def _unpack_batches(saved: SavedState, prefix: str, batches: list[dict[str, Any]], device: Any) -> list[Future[Any]]:
    """Rebuilds the batches that :func:`_pack_batches` saved."""
    futures = []
    for number, batch in enumerate(batches):
        values = {decode_key(name): value for name, value in saved.state(f"{prefix}{number}/data/").items()}
        info: dict[Any, Any] = {
            decode_key(name): value for name, value in saved.state(f"{prefix}{number}/info/0/").items()
        }
        for name, length in batch["tuples"].items():
            parts = [saved.tensors[f"{prefix}{number}/info/{part}/{name}"] for part in range(length)]
            info[decode_key(name)] = tuple(parts)
        future: Future[Any] = Future()
        future.set_result((TensorDict(values, batch["batch_size"], device=device), info))
        futures.append(future)
    return futures
