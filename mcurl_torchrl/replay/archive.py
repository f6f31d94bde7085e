"""The files of a saved frame replay: saved in parts, so that a crash never destroys an earlier state.

The folder holds segments, files of rows in the order of writing, and manifests, small JSON files that each name the
segments of one saved state. A save adds segments for the rows written since the last save, then puts its manifest in
place with one rename: until then the earlier manifest and all its segments do not change. Several manifests (for
example of several checkpoints) share segments, so that k saved states do not take k times the space. After a save,
segments that no manifest names are removed; files of other programs are kept. All tensors are in the safetensors
format, with checksums in the manifest: loading runs no code from the files, and finds a damaged file before it changes
anything.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file
from safetensors.torch import save as serialize
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor

from mcurl_torchrl.checks import leaf_keys
from mcurl_torchrl.files import write_file

__all__ = ["RowSegment", "SavedState", "decode_key", "encode_key", "layout_of", "open_saved", "save"]

_FORMAT = "mcurl_torchrl.FrameReplayBuffer"
_VERSION = 2
# Large enough for few files, small enough that saving and loading need little extra memory.
_SEGMENT_BYTES = 2**27
_OUR_FILES = re.compile(r"\.?(rows|state)-[0-9a-f]{32}\.safetensors(\.part)?")


@dataclass(frozen=True)
class RowSegment:
    """A file with rows of each column: those with the numbers from ``first`` up to, not including, ``last``."""

    file: str
    size: int
    crc32: int
    first: list[int]
    last: list[int]

    def __len__(self) -> int:
        return sum(self.last) - sum(self.first)


def encode_key(key: NestedKey) -> str:
    """Writes a key as JSON, its form in the files."""
    return json.dumps([key] if isinstance(key, str) else list(key))


def decode_key(name: str) -> NestedKey:
    """Reads a key written by :func:`encode_key`."""
    parts = json.loads(name)
    return parts[0] if len(parts) == 1 else tuple(parts)


def layout_of(data: TensorDictBase) -> dict[str, Any]:
    """Describes stored rows: their number, the number of columns, and the dtype and shape of each key."""
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
        path (Path): the folder; it is made if it does not exist.
        name (str): the manifest's name.

    Keyword Args:
        data (TensorDictBase, optional): the rows, None if there are none yet.
        written (torch.Tensor): the number of rows that were ever written to each column.
        known (list of RowSegment): segments in this folder that hold rows of this buffer.
        tensors (dict): the tensors of the state besides the rows.
        scalars (dict): the rest of the state, JSON.

    Returns:
        All segments that now hold rows of this buffer.
    """
    _check_name(name)
    path.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        try:
            segments = [] if data is None else _save_rows(path, data, written.tolist(), known)
            manifest = {
                "format": _FORMAT,
                "version": _VERSION,
                "layout": None if data is None else layout_of(data),
                "segments": [asdict(segment) for segment in segments],
                "state": _write_tensors(path, "state", tensors),
                "scalars": scalars,
            }
            manifest["crc32"] = _checksum(manifest)
            write_file(path / f"{name}.json", json.dumps(manifest, indent=1).encode())
        finally:
            _remove_unnamed(path)
    return segments


def _checksum(manifest: dict[str, Any]) -> int:
    """Returns the checksum of a manifest without its entry ``crc32``."""
    content = {key: value for key, value in manifest.items() if key != "crc32"}
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _check_name(name: str) -> None:
    if not name or name != os.path.basename(name) or name.startswith("."):
        raise ValueError(f"name={name!r}; it must be a plain file name, without a folder")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Locks the folder against other saves; the lock ends with the process that holds it."""
    folder = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _save_rows(path: Path, data: TensorDictBase, written: list[int], known: list[RowSegment]) -> list[RowSegment]:
    ring = data.shape[0]
    stored = {encode_key(key): data.get(key).flatten(0, data.ndim - 1) for key in leaf_keys(data)}
    limit = max(1, _SEGMENT_BYTES // sum(value[0].numel() * value.element_size() for value in stored.values()))
    oldest = [max(0, count - ring) for count in written]

    kept = [segment for segment in known if any(last > old for last, old in zip(segment.last, oldest, strict=True))]
    if not all(_has_size(path / segment.file, segment.size) for segment in kept):
        kept = []
    # A short last segment is written again together with the new rows, so that frequent saves do not leave many files.
    if kept and len(kept[-1]) < limit // 2:
        kept.pop()
    # The two newest rows of the last save may have changed since then (an episode left without an end is closed later),
    # so that they are saved again. On loading, later segments replace earlier ones.
    first = [max(last - 2, old) for last, old in zip(kept[-1].last, oldest, strict=True)] if kept else oldest
    parts = max(1, -((sum(written) - sum(first)) // -limit))
    for part in range(parts):
        begin, end = (
            [start + (stop - start) * edge // parts for start, stop in zip(first, written, strict=True)]
            for edge in (part, part + 1)
        )
        flat = _flat_rows(begin, end, ring)
        rows = {name: value.index_select(0, flat.to(value.device)) for name, value in stored.items()}
        kept.append(RowSegment(**_write_tensors(path, "rows", rows), first=begin, last=end))
    return kept


def _flat_rows(first: list[int], last: list[int], ring: int) -> Tensor:
    """Lists the flat rows with the numbers from ``first`` up to, not including, ``last``, column after column."""
    numbers = [torch.arange(begin, end) for begin, end in zip(first, last, strict=True)]
    return torch.cat([number % ring * len(first) + column for column, number in enumerate(numbers)])


def _write_tensors(path: Path, stem: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Writes a file under a new name; returns the name, the size and the checksum."""
    name = f"{stem}-{uuid.uuid4().hex}.safetensors"
    content = serialize({key: value.detach().cpu().contiguous() for key, value in tensors.items()})
    write_file(path / name, content)
    return {"file": name, "size": len(content), "crc32": zlib.crc32(content)}


def remove_unnamed(path: Path) -> None:
    """Removes the files that no manifest in a folder names any more, after manifests were removed."""
    with _locked(path):
        _remove_unnamed(path)


def _remove_unnamed(path: Path) -> None:
    """Removes files of this format that no manifest in the folder names, also those of killed saves."""
    named: set[str] = set()
    for file in path.glob("*.json"):
        try:
            manifest = json.loads(file.read_text())
        except ValueError:
            return  # perhaps a damaged manifest: its files are not known, so all files stay
        if isinstance(manifest, dict) and manifest.get("format") == _FORMAT:
            named.update(entry["file"] for entry in (*manifest["segments"], manifest["state"]))
    for file in path.iterdir():
        if _OUR_FILES.fullmatch(file.name) and file.name not in named:
            file.unlink(missing_ok=True)


def _has_size(file: Path, size: int) -> bool:
    return file.is_file() and file.stat().st_size == size


# -- loading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SavedState:
    """A saved state; all its files were checked."""

    path: Path
    layout: dict[str, Any] | None
    segments: list[RowSegment]
    tensors: dict[str, Tensor]
    scalars: dict[str, Any]

    def state(self, prefix: str) -> dict[str, Tensor]:
        """Returns the saved tensors whose names start with a prefix, under names without it."""
        return {name.removeprefix(prefix): value for name, value in self.tensors.items() if name.startswith(prefix)}

    def rows(self) -> Iterator[tuple[Tensor, dict[NestedKey, Tensor]]]:
        """Yields flat rows and their values; later ones replace earlier ones."""
        assert self.layout is not None
        ring = self.layout["rows"]
        written = self.tensors["writer/written"]
        for segment in self.segments:
            flat = _flat_rows(segment.first, segment.last, ring)
            numbers = torch.cat([torch.arange(a, b) for a, b in zip(segment.first, segment.last, strict=True)])
            alive = numbers >= (written - ring)[flat % len(written)]
            values = load_file(self.path / segment.file)
            yield flat[alive], {decode_key(name): value[alive] for name, value in values.items()}


def open_saved(path: Path, name: str) -> SavedState:
    """Reads a manifest and checks that each file in it exists, is whole and has the right shape.

    Raises:
        FileNotFoundError: if there is no such manifest, or a file is missing.
        ValueError: if a file was cut short or damaged, or is of another format, version or shape.
    """
    _check_name(name)
    file = path / f"{name}.json"
    if not file.is_file():
        found = sorted(manifest.stem for manifest in path.glob("*.json")) if path.is_dir() else []
        raise FileNotFoundError(f"no saved replay buffer {name!r} in {path}; there: {found or 'none'}")
    try:
        manifest = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is damaged: it is not JSON ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise ValueError(f"{file} is not a saved FrameReplayBuffer (its format must be {_FORMAT!r})")
    if manifest.get("version") != _VERSION:
        raise ValueError(
            f"{file} has format version {manifest.get('version')!r}; this release reads version {_VERSION}"
        )
    if manifest.get("crc32") != _checksum(manifest):
        raise ValueError(f"{file} is damaged: the checksum of its content is not the saved one")
    try:
        layout, scalars = manifest["layout"], manifest["scalars"]
        segments = [RowSegment(**entry) for entry in manifest["segments"]]
        for segment in segments:
            _check_segment(path, segment, layout)
        tensors = _read_tensors(path, **manifest["state"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is damaged: {error!r}") from None
    return SavedState(path, layout, segments, tensors, scalars)


def _check_segment(path: Path, segment: RowSegment, layout: dict[str, Any]) -> None:
    ranges = list(zip(segment.first, segment.last, strict=True))
    if len(ranges) != layout["columns"] or any(
        not 0 <= first <= last <= first + layout["rows"] for first, last in ranges
    ):
        raise ValueError(f"the manifest in {path} is damaged: {segment} does not fit {layout['columns']} columns")
    values = _read_tensors(path, segment.file, segment.size, segment.crc32)
    found = {name: [str(value.dtype), list(value.shape)] for name, value in values.items()}
    expected = {name: [dtype, [len(segment), *shape]] for name, (dtype, shape) in layout["keys"].items()}
    if found != expected:
        raise ValueError(f"{path / segment.file} holds {found}; its manifest says {expected}")


def _read_tensors(path: Path, file: str, size: int, crc32: int) -> dict[str, Tensor]:
    if file != os.path.basename(file):
        raise ValueError(f"the manifest in {path} names {file!r}; all files must be in the folder itself")
    if not (path / file).is_file():
        raise FileNotFoundError(f"the saved replay buffer is incomplete: {path / file} is missing")
    content = (path / file).read_bytes()
    if len(content) != size:
        raise ValueError(f"{path / file} was cut short or changed: it has {len(content)} bytes, {size} were saved")
    if zlib.crc32(content) != crc32:
        raise ValueError(f"{path / file} is damaged: the checksum of its content is not the saved one")
    try:
        return load(content)
    except SafetensorError as error:
        raise ValueError(f"{path / file} is damaged: {error}") from None
