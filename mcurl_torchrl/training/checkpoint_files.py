"""What a checkpoint is on disk: how its components are written, and how they are read without trusting them.

Nothing here decides which checkpoints to keep or to restore: that is :mod:`mcurl_torchrl.training.checkpoints`.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import pickle
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torchrl.checkpoint import Checkpoint, CheckpointAdapter
from torchrl.checkpoint import CheckpointError as TorchRLCheckpointError

from mcurl_torchrl.files import write_file

__all__ = [
    "LEFT_OVER",
    "NAME",
    "REPLAY",
    "REPLAY_MANIFEST",
    "REPLAY_NAME",
    "Damaged",
    "ReplayAdapter",
    "StateAdapter",
    "check_components",
    "check_whole",
    "describe",
    "read_manifest",
    "read_reference",
    "replay_named_in",
    "step_of",
    "sync",
]

_FORMAT = "mcurl_torchrl.checkpoint"
_VERSION = 1
NAME = re.compile(r"checkpoint-([0-9]{12,})")
LEFT_OVER = re.compile(r"\.(checkpoint-[0-9]{12,})\.(stage|backup|delete)-[0-9a-f]{32}")
REPLAY_NAME = re.compile(r"checkpoint-[0-9]{12,}-[0-9a-f]{8}")
REPLAY_MANIFEST = re.compile(rf"\.?(?P<name>{REPLAY_NAME.pattern})\.json(\.part)?")
_COMPONENT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# TorchRL saves components in the order of their names, and no other name may start with "~": the replay comes last,
# when everything that could fail at less cost has been written.
REPLAY = "~replay"


class Damaged(Exception):
    """Why a checkpoint cannot be used; names the file."""


# -- how components are written ----------------------------------------------------------------------------------------


class StateAdapter(CheckpointAdapter):
    """Writes a state dict as one file with a checksum, and reads it without running code from it."""

    adapter_id = "mcurl_torchrl.state"
    files = ("checksum.json", "state.pt")

    def __init__(self) -> None:
        self.unwritten: int | None = None

    def save(self, component: Any, path: Path, *, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Writes the component's state dict into a folder of its own."""
        state = component.state_dict(*args, **kwargs)
        content = io.BytesIO()
        try:
            torch.save(state, content)
            content.seek(0)
            torch.load(content, weights_only=True)  # Better to hear of it now than when the run is to be resumed.
        except (pickle.PickleError, AttributeError, TypeError) as error:
            raise TypeError(
                f"the state of {path.name.partition('-')[2]!r} ({type(component).__name__}) holds what cannot be read "
                f"back safely; tensors, numbers, strings, lists, tuples and dicts can: {error}"
            ) from error
        whole = content.getvalue()
        checksum = {"size": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}
        path.mkdir(parents=True)
        self.unwritten = len(whole)
        write_file(path / "state.pt", whole)
        write_file(path / "checksum.json", json.dumps(checksum).encode())
        self.unwritten = None

    def load(
        self,
        component: Any,
        path: Path,
        *,
        map_location: Any,
        tensor_load_kwargs: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Hands the component the state that was saved."""
        # On the CPU: load_state_dict copies to where each tensor belongs, also on a machine with other devices.
        component.load_state_dict(_read_state(path), *args, **kwargs)


class ReplayAdapter(CheckpointAdapter):
    """Saves a replay buffer to the folder that all checkpoints share, and in the checkpoint only under which name."""

    adapter_id = "mcurl_torchrl.replay"
    files = ("replay.json",)

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.name = name

    def save(self, component: Any, path: Path, *, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Adds the buffer's rows to the folder that all checkpoints share, and notes which state is this one's."""
        component.dumps(self.directory, name=self.name)
        manifest = (self.directory / f"{self.name}.json").read_bytes()
        path.mkdir(parents=True)
        reference = {"name": self.name, "sha256": hashlib.sha256(manifest).hexdigest()}
        write_file(path / "replay.json", json.dumps(reference).encode())

    def load(self, component: Any, path: Path, **options: Any) -> None:
        """Is never called: :class:`Checkpoints` loads the replay itself, to see first whether it is whole."""
        raise NotImplementedError("Checkpoints loads the replay itself, to see first whether it is whole")


def check_components(components: Mapping[str, Any], methods: tuple[str, ...]) -> None:
    """Raises a TypeError or ValueError if a component cannot be saved under its name."""
    for name, component in components.items():
        if not isinstance(name, str) or not _COMPONENT_NAME.fullmatch(name):
            raise ValueError(f"a component is named {name!r}; use letters, digits, '_', '-' and '.'")
        for method in methods:
            if not callable(getattr(component, method, None)):
                raise TypeError(f"component {name!r} is a {type(component).__name__}, which has no {method}()")


def describe(step: int, score: float | None, info: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns what the manifest has to say of a checkpoint, with a checksum."""
    metadata: dict[str, Any] = {"format": _FORMAT, "version": _VERSION, "step": step}
    if score is not None and math.isfinite(score):
        metadata["score"] = float(score)
    try:
        metadata["info"] = json.loads(json.dumps(dict(info or {})))
    except (TypeError, ValueError) as error:
        raise TypeError(f"info must be JSON: {error}") from None
    return {**metadata, "sha256": _digest(metadata)}


def _digest(metadata: Mapping[str, Any]) -> str:
    described = {key: value for key, value in metadata.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def step_of(path: Path) -> int:
    """Returns the step in a checkpoint's name."""
    match = NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def sync(path: Path) -> None:
    """Waits until a file or folder is on disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


# -- how checkpoints are checked ---------------------------------------------------------------------------------------


def check_whole(path: Path, step: int, components: Mapping[str, Any]) -> dict[str, Any]:
    """Reads a checkpoint's metadata after checking its files; raises Damaged if it cannot be used."""
    manifest = read_manifest(path)
    if manifest["metadata"].get("step") != step:
        raise Damaged(f"{path / 'manifest.json'} is of step {manifest['metadata'].get('step')}")
    missing = sorted(set(components) - set(manifest["components"]))
    if missing:
        raise Damaged(f"{path} has no {missing}; it has {sorted(manifest['components'])}")
    for folder, _, files in os.walk(path):
        for file in files:
            _check_regular(Path(folder, file))
    for name in manifest["components"]:
        record = manifest["components"][name]
        folder_of = path / record["path"]
        for file in record["files"]:
            if not (folder_of / file).is_file():
                raise Damaged(f"{folder_of / file} is missing")
        if name != REPLAY:
            _read_state(folder_of)
    return manifest["metadata"]


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads a manifest and checks that it is one of ours and leads nowhere else."""
    file = path / "manifest.json"
    if path.is_symlink() or not path.is_dir():
        raise Damaged(f"{path} is not a folder of its own")
    if not file.exists():
        raise Damaged(f"{file} is missing")
    _check_regular(file)
    try:
        manifest = Checkpoint.manifest(path)
    except (TorchRLCheckpointError, OSError, AttributeError, RecursionError, TypeError, ValueError) as error:
        raise Damaged(f"{file} is no manifest of a checkpoint: {error}") from None
    metadata = manifest.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("format") != _FORMAT:
        raise Damaged(f"{path} is a checkpoint of another program (its format is not {_FORMAT!r})")
    if metadata.get("version") != _VERSION:
        raise Damaged(f"{file} has format version {metadata.get('version')!r}; this release reads {_VERSION}")
    score = metadata.get("score", 0.0)
    valid = isinstance(metadata.get("info"), dict) and isinstance(score, float) and math.isfinite(score)
    if not valid or metadata.get("sha256") != _digest(metadata):
        raise Damaged(f"{file} is damaged: its content is not what was saved (another checksum)")
    for index, name in enumerate(sorted(manifest["components"])):
        record, adapter = manifest["components"][name], ReplayAdapter if name == REPLAY else StateAdapter
        if (record["adapter"], record["adapter_version"]) != (adapter.adapter_id, adapter.format_version):
            raise Damaged(f"{file} says that {name!r} is saved as {record['adapter']!r}, which is not read here")
        expected = (f"components/{index:04d}-{name}", list(adapter.files))
        if "/" in name or (record["path"], record["files"]) != expected:
            raise Damaged(f"{file} names files of {name!r} that no checkpoint has: {record}")
        for folder in (path / "components", path / record["path"]):
            if folder.is_symlink():
                raise Damaged(f"{folder} is a link; all files must lie in the checkpoint itself")
    return manifest


def _read_state(path: Path) -> Any:
    """Reads a state dict if its checksum is right. Nothing in the file is executed."""
    file = path / "state.pt"
    for needed in (file, path / "checksum.json"):
        if not needed.exists():
            raise Damaged(f"{needed} is missing")
        _check_regular(needed)
    content = file.read_bytes()
    try:
        checksum = json.loads((path / "checksum.json").read_bytes())
        size, sha256 = checksum["size"], checksum["sha256"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Damaged(f"{path / 'checksum.json'} is damaged: {error!r}") from None
    if len(content) != size:
        raise Damaged(f"{file} was cut short or changed: it has {len(content)} bytes, checksum.json says {size}")
    if hashlib.sha256(content).hexdigest() != sha256:
        raise Damaged(f"{file} is damaged: it has another checksum than checksum.json says")
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load has no closed list of what it raises on a file that is none of its own.
        reason = str(error).strip().partition("\n")[0]
        raise Damaged(f"{file} is refused, nothing in it was run: it holds more than plain data ({reason})") from None


def read_reference(path: Path) -> dict[str, str] | None:
    """Reads under which name a checkpoint's replay is saved, None if it has none."""
    record = read_manifest(path)["components"].get(REPLAY)
    if record is None:
        return None
    file = path / record["path"] / "replay.json"
    if not file.exists():
        raise Damaged(f"{file} is missing")
    _check_regular(file)
    try:
        reference = json.loads(file.read_bytes())
        if not REPLAY_NAME.fullmatch(reference["name"]) or not isinstance(reference["sha256"], str):
            raise ValueError(f"it names {reference['name']!r}")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Damaged(f"{file} is damaged: {error!r}") from None
    return reference


def replay_named_in(path: Path) -> str | None:
    """Returns the name of a checkpoint's saved replay, None if it has none that can be read."""
    try:
        reference = read_reference(path)
    except Damaged:
        return None
    return None if reference is None else reference["name"]


def _check_regular(file: Path) -> None:
    """Refuses links, and pipes and devices that would keep the reader waiting."""
    if not stat.S_ISREG(file.lstat().st_mode):
        raise Damaged(f"{file} is no regular file; all files must lie in the checkpoint itself")
