"""Saving a frame replay to a folder, a part at a time, so that a crash never costs what was saved before.

The folder holds segments, files of rows in the order they were written, and manifests, small JSON files that each name
the segments of one saved state. A save adds segments for the rows written since the last one, then puts its manifest in
place in a single rename: until then the earlier manifest and all its segments stand untouched. Several manifests (say,
of several checkpoints) share segments, so k saved states do not take k times the room. Files that no manifest names are
removed after a save. All tensors are in the safetensors format: loading runs no code from the files.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.data import TensorDictReplayBuffer

from mcurl_torchrl.replay.rows import leaf_keys

__all__ = ["RowSegment", "SavedState", "layout_of", "open_saved", "save"]

_FORMAT = "mcurl_torchrl.FrameReplayBuffer"
_VERSION = 1
# Large enough for few files, small enough that saving and loading need little memory beside the buffer.
_SEGMENT_BYTES = 2**27


@dataclass(frozen=True)
class RowSegment:
    """A file with the rows that each column took as its ``first`` up to, not including, its ``last``."""

    file: str
    size: int
    first: list[int]
    last: list[int]


def encode_key(key: NestedKey) -> str:
    """Writes a key as JSON, the form it has in the files."""
    return json.dumps([key] if isinstance(key, str) else list(key))


def decode_key(name: str) -> NestedKey:
    """Reads a key written by :func:`encode_key`."""
    parts = json.loads(name)
    return parts[0] if len(parts) == 1 else tuple(parts)


def layout_of(data: TensorDictBase) -> dict[str, Any]:
    """Describes stored rows: how many, in how many columns, and the dtype and shape of each key."""
    keys = {key: data.get(key) for key in leaf_keys(data)}
    return {
        "rows": data.shape[0],
        "columns": data.shape[1:].numel(),
        "keys": {encode_key(key): [str(value.dtype), list(value.shape[data.ndim :])] for key, value in keys.items()},
    }


# -- saving ------------------------------------------------------------------------------------------------------------


def save(
    path: Path,
    name: str,
    *,
    data: TensorDictBase | None,
    written: Tensor,
    known: list[RowSegment],
    tensors: dict[str, Tensor],
    scalars: dict[str, Any],
) -> list[RowSegment]:
    """Saves rows and state as the manifest ``name`` in the folder ``path``.

    Args:
        path (Path): the folder, made if need be.
        name (str): the manifest's name.

    Keyword Args:
        data (TensorDictBase, optional): the rows, None if there are none yet.
        written (torch.Tensor): how many rows each column has ever taken.
        known (list of RowSegment): segments in this folder that hold rows of this very buffer.
        tensors (dict): the state that is not rows.
        scalars (dict): more of it, JSON.

    Returns:
        All segments that now hold rows of this buffer.
    """
    path.mkdir(parents=True, exist_ok=True)
    manifest: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION,
        "layout": None,
        "segments": [],
        "scalars": scalars,
    }
    fresh: list[Path] = []
    segments: list[RowSegment] = []
    try:
        if data is not None:
            manifest["layout"] = layout_of(data)
            segments = _save_rows(path, data, written.tolist(), known, fresh)
            manifest["segments"] = [asdict(segment) for segment in segments]
        state_file = _write_tensors(path, "state", tensors, fresh)
        manifest["state"] = {"file": state_file.name, "size": state_file.stat().st_size}
        _write_file(path / f"{name}.json", lambda file: file.write_text(json.dumps(manifest, indent=1)))
    except BaseException:
        for file in fresh:
            file.unlink(missing_ok=True)
        raise
    _remove_unnamed(path)
    return segments


def _save_rows(
    path: Path, data: TensorDictBase, written: list[int], known: list[RowSegment], fresh: list[Path]
) -> list[RowSegment]:
    ring = data.shape[0]
    columns_of = {encode_key(key): data.get(key).flatten(0, data.ndim - 1) for key in leaf_keys(data)}
    row_bytes = sum(column[0].numel() * column.element_size() for column in columns_of.values())
    limit = max(1, _SEGMENT_BYTES // row_bytes)
    oldest = [max(0, count - ring) for count in written]

    kept = [segment for segment in known if any(last > old for last, old in zip(segment.last, oldest, strict=True))]
    if not all(_is_whole(path / segment.file, segment.size) for segment in kept):
        kept = []
    # A short last segment is written again together with what follows, so that frequent saves do not leave many files.
    if kept and sum(kept[-1].last) - sum(kept[-1].first) < limit // 2:
        kept.pop()
    # The row that was the newest at the last save may have changed since (an episode left without its end is closed
    # later), so it is saved once more. In loading, later segments win.
    first = [max(last - 1, old) for last, old in zip(kept[-1].last, oldest, strict=True)] if kept else oldest
    parts = max(1, -((sum(written) - sum(first)) // -limit))
    bounds = [
        [start + (stop - start) * part // parts for part in range(parts + 1)]
        for start, stop in zip(first, written, strict=True)
    ]
    for part in range(parts):
        begin, end = [bound[part] for bound in bounds], [bound[part + 1] for bound in bounds]
        flat = _flat_rows(begin, end, ring)
        device = next(iter(columns_of.values())).device
        rows = {name: column.index_select(0, flat.to(device)).cpu() for name, column in columns_of.items()}
        file = _write_tensors(path, "rows", rows, fresh)
        kept.append(RowSegment(file.name, file.stat().st_size, begin, end))
    return kept


def _flat_rows(first: list[int], last: list[int], ring: int) -> Tensor:
    """Lists the flat rows in which the columns' rows number ``first`` to ``last`` lie, column after column."""
    return torch.cat(
        [
            torch.arange(begin, end) % ring * len(first) + column
            for column, (begin, end) in enumerate(zip(first, last, strict=True))
        ]
    )


def _write_tensors(path: Path, stem: str, tensors: dict[str, Tensor], fresh: list[Path]) -> Path:
    taken = {file.name for file in path.iterdir()}
    name = next(name for number in itertools.count() if (name := f"{stem}-{number:06d}.safetensors") not in taken)
    tensors = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    fresh.append(path / name)
    _write_file(path / name, lambda file: save_file(tensors, file))
    return path / name


def _write_file(target: Path, write: Callable[[Path], Any]) -> None:
    """Writes a file under another name, makes sure it is on disk, and puts it in place."""
    part = target.with_name(f".{target.name}.part")
    try:
        write(part)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove_unnamed(path: Path) -> None:
    """Removes segments and state files that no manifest in the folder names."""
    named: set[str] = set()
    for manifest in path.glob("*.json"):
        try:
            content = json.loads(manifest.read_text())
            named.update(entry["file"] for entry in [*content["segments"], content["state"]])
        except (ValueError, KeyError, TypeError):
            return  # Something else lies here, or a damaged manifest: what it names is not known, so all stays.
    for file in path.glob("*.safetensors"):
        if file.name not in named:
            file.unlink(missing_ok=True)


def _is_whole(file: Path, size: int) -> bool:
    return file.is_file() and file.stat().st_size == size


# -- prefetched batches ------------------------------------------------------------------------------------------------


def pack_batches(reader: TensorDictReplayBuffer, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Adds the batches that a buffer has prefetched to ``tensors``; returns what else it takes to make them again."""
    batches = []
    for number, future in enumerate(reader._prefetch_queue):
        data, info = future.result()
        for key in leaf_keys(data):
            tensors[f"{prefix}/{number}/data/{encode_key(key)}"] = data.get(key)
        tuples = {encode_key(key): len(value) for key, value in info.items() if isinstance(value, tuple)}
        for key, value in info.items():
            for part, tensor in enumerate(value if isinstance(value, tuple) else [value]):
                tensors[f"{prefix}/{number}/info/{part}/{encode_key(key)}"] = tensor
        batches.append({"batch_size": list(data.batch_size), "tuples": tuples})
    return {"capacity": reader._prefetch_cap, "batches": batches}


def unpack_batches(reader: TensorDictReplayBuffer, prefix: str, saved: SavedState) -> None:
    """Gives a buffer the batches it had prefetched, unless it prefetches another number of them now."""
    packed = saved.scalars["prefetched"][int(prefix.rsplit("/", 1)[1])]
    if packed["capacity"] != reader._prefetch_cap:
        return
    for number, batch in enumerate(packed["batches"]):
        values = saved.state(f"{prefix}/{number}/data/")
        data = TensorDict(
            {decode_key(name): value for name, value in values.items()},
            batch["batch_size"],
            device=reader.storage.device,
        )
        info: dict[Any, Any] = {
            decode_key(name): value for name, value in saved.state(f"{prefix}/{number}/info/0/").items()
        }
        for name, length in batch["tuples"].items():
            info[decode_key(name)] = tuple(
                saved.tensors[f"{prefix}/{number}/info/{part}/{name}"] for part in range(length)
            )
        future: Future[Any] = Future()
        future.set_result((data, info))
        reader._prefetch_queue.append(future)


# -- loading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SavedState:
    """A saved state whose files were all found whole."""

    path: Path
    layout: dict[str, Any] | None
    segments: list[RowSegment]
    tensors: dict[str, Tensor]
    scalars: dict[str, Any]

    def state(self, prefix: str) -> dict[str, Tensor]:
        """Returns the saved tensors under a prefix, without it."""
        return {name.removeprefix(prefix): value for name, value in self.tensors.items() if name.startswith(prefix)}

    def rows(self, written: list[int]) -> Iterator[tuple[Tensor, dict[NestedKey, Tensor]]]:
        """Yields flat rows and their values, in an order in which later ones replace earlier ones."""
        assert self.layout is not None
        ring = self.layout["rows"]
        for segment in self.segments:
            flat = _flat_rows(segment.first, segment.last, ring)
            numbers = torch.cat([torch.arange(a, b) for a, b in zip(segment.first, segment.last, strict=True)])
            oldest = torch.tensor([count - ring for count in written])[flat % len(written)]
            live = numbers >= oldest
            values = load_file(self.path / segment.file)
            yield flat[live], {decode_key(name): value[live] for name, value in values.items()}


def open_saved(path: Path, name: str) -> SavedState:
    """Reads a manifest and checks that every file it names is there, whole and of the shape it should have.

    Raises:
        FileNotFoundError: if there is no such manifest, or a file is missing.
        ValueError: if a file was cut short or is of another format, version or shape.
    """
    file = path / f"{name}.json"
    if not file.is_file():
        present = sorted(manifest.stem for manifest in path.glob("*.json")) if path.is_dir() else []
        raise FileNotFoundError(
            f"no saved replay buffer {name!r} in {path}; there {'is ' + str(present) if present else 'is none'}"
        )
    try:
        manifest = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is damaged: it is no JSON ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise ValueError(f"{file} is no saved FrameReplayBuffer (format must be {_FORMAT!r})")
    if manifest.get("version") != _VERSION:
        raise ValueError(
            f"{file} has format version {manifest.get('version')!r}; this release reads version {_VERSION}"
        )
    try:
        segments = [RowSegment(**entry) for entry in manifest["segments"]]
        layout, scalars, state = manifest["layout"], manifest["scalars"], manifest["state"]
        for entry in (*manifest["segments"], state):
            if entry["file"] != os.path.basename(entry["file"]):
                raise ValueError(f"{file} names {entry['file']!r}; all files must lie in the folder itself")
        for segment in segments:
            count = sum(segment.last) - sum(segment.first)
            shapes = {key: [count, *shape] for key, (_, shape) in layout["keys"].items()}
            _check_tensors(path / segment.file, segment.size, shapes)
        _check_tensors(path / state["file"], state["size"], None)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged: {error!r}") from None
    return SavedState(path, layout, segments, load_file(path / state["file"]), scalars)


def _check_tensors(file: Path, size: int, shapes: dict[str, list[int]] | None) -> None:
    if not file.is_file():
        raise FileNotFoundError(f"the saved replay buffer is incomplete: {file} is missing")
    if file.stat().st_size != size:
        raise ValueError(f"{file} was cut short or changed: it has {file.stat().st_size} bytes, {size} were saved")
    try:
        with safe_open(file, framework="pt") as content:
            found = {key: list(content.get_slice(key).get_shape()) for key in content.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged: {error}") from None
    if shapes is not None and found != shapes:
        raise ValueError(f"{file} holds {found}; its manifest says {shapes}")
