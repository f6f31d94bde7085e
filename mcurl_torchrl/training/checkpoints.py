"""Checkpoints: the newest few and the best, whole or not at all, read without running code from the files.

A folder of checkpoints looks like this::

    checkpoint-000000010000/        one checkpoint, published by a single rename
        manifest.json               TorchRL's manifest; under "metadata" the step, the score and the info
        components/0000-actor/
            state.pt                the state dict, torch.save, read with weights_only=True
            checksum.json           its size and SHA-256
        components/0001-~replay/
            replay.json             which saved state in replay/ belongs to this checkpoint
    replay/                         rows of the replay buffer, once for all checkpoints

While a checkpoint is written it has another name that starts with a dot. What a killed process leaves under such names
is never read, and removed by the next save.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import pickle
import re
import shutil
import stat
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torchrl.checkpoint import Checkpoint, CheckpointAdapter, CheckpointRotation, GlobalRNGState
from torchrl.checkpoint import CheckpointError as TorchRLCheckpointError

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.replay import FrameReplayBuffer
from mcurl_torchrl.replay.archive import _write_file as write_file

__all__ = ["CheckpointNotRestored", "CheckpointNotSaved", "Checkpoints", "RestoredCheckpoint", "SavedCheckpoint"]

_FORMAT = "mcurl_torchrl.checkpoint"
_VERSION = 1
_NAME = re.compile(r"checkpoint-([0-9]{12,})")
_LEFT_OVER = re.compile(r"\.(checkpoint-[0-9]{12,})\.(stage|backup|delete)-[0-9a-f]{32}")
_REPLAY_NAME = re.compile(r"checkpoint-[0-9]{12,}-[0-9a-f]{8}")
_COMPONENT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# TorchRL saves components in the order of their names, and no other name may start with "~": the replay comes last,
# when everything that could fail at less cost has been written.
_REPLAY = "~replay"


class CheckpointNotSaved(OSError):  # noqa: N818
    """A checkpoint could not be written, mostly for want of room; the ones from before are whole, training can go on.

    Args:
        error (OSError): what happened.
        directory (Path): where the checkpoints are.
        needed (int, optional): the bytes of the file that did not fit, if known.

    Attributes:
        needed (int, optional): as above.
        free (int, optional): the bytes that are free there, if known.

    Examples:
        >>> import errno, pathlib
        >>> from mcurl_torchrl.training.checkpoints import CheckpointNotSaved
        >>> error = CheckpointNotSaved(OSError(errno.ENOSPC, "No space left on device"), pathlib.Path("/"), 10**18)
        >>> error.errno == errno.ENOSPC, error.needed
        (True, 1000000000000000000)
    """

    def __init__(self, error: OSError, directory: Path, needed: int | None = None) -> None:
        self.needed = needed
        try:
            self.free: int | None = shutil.disk_usage(directory).free
        except OSError:
            self.free = None
        room = "" if needed is None else f"; the file needed {needed:,} bytes"
        room += "" if self.free is None else f"; {self.free:,} bytes are free"
        super().__init__(error.errno or errno.EIO, f"no checkpoint was saved in {directory}: {error}{room}")


class CheckpointNotRestored(RuntimeError):  # noqa: N818
    """There is no checkpoint that could be restored; says where, and what is wrong with each.

    Examples:
        >>> from mcurl_torchrl.training.checkpoints import CheckpointNotRestored, Checkpoints
        >>> try:
        ...     Checkpoints("no/such/folder").restore(components={})
        ... except CheckpointNotRestored as error:
        ...     print(error)
        there is no checkpoint in no/such/folder
    """


@dataclass(frozen=True)
class RestoredCheckpoint:
    """What :meth:`Checkpoints.restore` took over: from where, the step, and what was saved beside the components."""

    path: Path
    step: int
    info: dict[str, Any]


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint on disk, by its manifest: its files were not looked at."""

    path: Path
    step: int
    score: float | None
    info: dict[str, Any] = field(repr=False)
    created_at: str


class _Damaged(Exception):  # noqa: N818
    """Why a checkpoint cannot be used; names the file."""


class Checkpoints:
    """Saves what a run needs to continue, keeps the newest and the best, and restores the newest that is whole.

    Built on TorchRL's :class:`~torchrl.checkpoint.Checkpoint`, with an adapter of our own: TorchRL's recognises several
    formats by what it finds, one of which can unpickle. Here a state dict is one file with a checksum, and loading runs
    no code from it.

    The replay buffer is saved a part at a time to a folder that all checkpoints share
    (:meth:`~mcurl_torchrl.FrameReplayBuffer.dumps`). Only the last ``keep_last`` checkpoints keep their replay: the
    best one, once it is older than these, is there to be evaluated, not to be continued.

    After :meth:`restore`, the next save removes checkpoints of later steps, whole or damaged: they belong to a course
    of the run that was given up. Only one process may save to a folder; see
    :meth:`~mcurl_torchrl.training.run_directory.RunDirectory.lock`.

    Args:
        directory (str or Path): the folder, made with the first save.

    Keyword Args:
        keep_last (int): how many of the newest to keep. The one with the best score is kept as well. With less than 2
            there is nothing to fall back on if the newest is damaged. Defaults to 2.

    Raises:
        TypeError, ValueError: if ``keep_last`` is not a whole number of at least 1.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from torchrl.checkpoint import GlobalRNGState
        >>> from mcurl_torchrl.training.checkpoints import Checkpoints
        >>> folder = tempfile.TemporaryDirectory()
        >>> checkpoints = Checkpoints(folder.name)
        >>> actor = torch.nn.Linear(4, 2)
        >>> adam = torch.optim.Adam(actor.parameters())
        >>> components = {"actor": actor, "actor_adam": adam, "rng": GlobalRNGState()}
        >>> path = checkpoints.save(1000, components=components, score=12.5, info={"episodes": 4})
        >>> path.name
        'checkpoint-000000001000'
        >>> other = torch.nn.Linear(4, 2)
        >>> restored = checkpoints.restore(components={"actor": other})
        >>> restored.step, restored.info, torch.equal(actor.weight, other.weight)
        (1000, {'episodes': 4}, True)
        >>> folder.cleanup()
    """

    def __init__(self, directory: str | Path, *, keep_last: int = 2) -> None:
        self.directory = Path(directory)
        self.keep_last = check_count("keep_last", keep_last)
        self._rotation = CheckpointRotation(directory, keep_last=keep_last, keep_best=("score", "max"))
        self._restored_step: int | None = None
        self._saved_here: set[Path] = set()

    @property
    def replay_directory(self) -> Path:
        """The folder of the replay's rows."""
        return self.directory / "replay"

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(
        self,
        step: int,
        *,
        components: Mapping[str, Any],
        replay: FrameReplayBuffer | None = None,
        score: float | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> Path:
        """Saves a checkpoint, then removes those that are no longer kept.

        Args:
            step (int): the step it is of. A checkpoint of the same step is replaced.

        Keyword Args:
            components (mapping): whatever has ``state_dict`` and ``load_state_dict``, by name.
            replay (FrameReplayBuffer, optional): the replay buffer.
            score (float, optional): the larger the better. One that is not finite counts as none.
            info (mapping, optional): more to keep, JSON; :meth:`restore` gives it back.

        Returns:
            The checkpoint's folder.

        Raises:
            CheckpointNotSaved: if it could not be written (no room, say). All earlier ones are whole.
            TypeError: if a state or the info holds what could not be read back.
            ValueError: if there are checkpoints of later steps that this object has not gone back from.
        """
        self._rotation._validate_step(step)
        _check_components(components, ("state_dict", "load_state_dict"))
        metadata = _describe(step, score, info)
        path = self.directory / f"checkpoint-{step:012d}"
        given_up = self._given_up()
        later = sorted(set(self._paths(after=step)) - set(given_up))
        if later:
            raise ValueError(
                f"step={step}, but {self.directory} has checkpoints of later steps, {[file.name for file in later]}; "
                "restore one of its checkpoints first, or use another directory"
            )
        # Not just the step: a checkpoint that is replaced keeps its own replay until the new one is in place.
        replay_name = f"{path.name}-{uuid.uuid4().hex[:8]}"
        adapter = _StateAdapter()
        checkpoint = Checkpoint()
        for name, component in components.items():
            checkpoint.register(name, component, adapter=adapter)
        if replay is not None:
            checkpoint.register(_REPLAY, replay, adapter=_ReplayAdapter(self.replay_directory, replay_name))
        try:
            self._clean_up()
            checkpoint.save(path, metadata=metadata)
            # TorchRL does not wait for these to be on disk; the older checkpoints stay until they are.
            for written in (path / "manifest.json", path / "components", path, self.directory):
                _sync(written)
        except BaseException as error:
            if _replay_named_in(path) != replay_name:  # It may have been published: then it needs its replay.
                with contextlib.suppress(OSError):
                    (self.replay_directory / f"{replay_name}.json").unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise CheckpointNotSaved(error, self.directory, adapter.unwritten) from error
            raise
        self._saved_here.add(path)
        try:
            self._prune([file for file in given_up if file != path and os.path.lexists(file)])
        except OSError as error:
            warnings.warn(f"{path} is saved, but older checkpoints could not be removed: {error}", stacklevel=2)
        return path

    def _given_up(self) -> tuple[Path, ...]:
        """Returns the checkpoints of a course that was left by restoring an earlier step."""
        if self._restored_step is None:
            return ()
        return tuple(path for path in self._paths(after=self._restored_step) if path not in self._saved_here)

    def _clean_up(self) -> None:
        """Puts the folder in order after a process that was killed while saving."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for left_over, path in self._left_over():
            # TorchRL moves a checkpoint of the same step aside before it puts the new one in place.
            if ".backup-" in left_over.name and not path.exists():
                os.replace(left_over, path)
            else:
                Checkpoint._remove_path(left_over)
        for path in self._paths():
            try:
                _read_manifest(path)
            except _Damaged:
                # TorchRL's rotation passes over most of these, and fails on some.
                os.replace(path, path.with_name(f"{path.name}.damaged-{uuid.uuid4().hex[:8]}"))
        self._drop_replays(self._paths())

    def _prune(self, given_up: list[Path]) -> None:
        for path in given_up:
            self._rotation._remove_atomically(path)
        self._rotation.prune()
        self._drop_replays(tuple(saved.path for saved in self.list()[-self.keep_last :]))

    def _drop_replays(self, kept: tuple[Path, ...]) -> None:
        """Gives up the replays of all but the given checkpoints; their rows go with the next save."""
        names = {_replay_named_in(path) for path in kept}
        if self.replay_directory.is_dir():
            for file in self.replay_directory.glob("*.json"):
                if _REPLAY_NAME.fullmatch(file.stem) and file.stem not in names:
                    file.unlink(missing_ok=True)

    # -- restoring -----------------------------------------------------------------------------------------------------

    def restore(
        self,
        *,
        components: Mapping[str, Any],
        replay: FrameReplayBuffer | None = None,
        step: int | None = None,
    ) -> RestoredCheckpoint:
        """Restores the newest checkpoint that is whole, in place; warns about newer ones that are damaged.

        All files of a checkpoint are checked before anything is changed.

        Keyword Args:
            components (mapping): what to restore, by the names it was saved under; not necessarily all.
            replay (FrameReplayBuffer, optional): the replay buffer to restore.
            step (int, optional): the checkpoint of this step and no other. Defaults to the newest.

        Returns:
            The step and the info that were saved.

        Raises:
            CheckpointNotRestored: if there is no whole checkpoint, or its states do not fit the components.
        """
        _check_components(components, ("load_state_dict",))
        candidates = self._candidates()
        if step is not None:
            candidates = {path: number for path, number in candidates.items() if number == step}
        if not candidates:
            there = sorted(self._candidates().values())
            wanted = "" if step is None else f" of step {step}"
            found = f"; there are those of {there}" if there else ""
            raise CheckpointNotRestored(f"there is no checkpoint{wanted} in {self.directory}{found}")
        reasons = []
        for path in sorted(candidates, key=lambda path: candidates[path], reverse=True):
            try:
                metadata = _check(path, candidates[path], components)
                if replay is not None:
                    self._load_replay(path, replay)
            except _Damaged as error:
                reasons.append(f"{path}: {error}")
                if len(reasons) < len(candidates):
                    warnings.warn(f"checkpoint {path} is passed over: {error}", RuntimeWarning, stacklevel=2)
                continue
            self._load_components(path, components)
            self._restored_step = candidates[path]
            self._saved_here.clear()
            return RestoredCheckpoint(path, candidates[path], metadata["info"])
        listed = "".join(f"\n  {reason}" for reason in reasons)
        raise CheckpointNotRestored(f"no checkpoint in {self.directory} can be restored:{listed}")

    def _load_replay(self, path: Path, replay: FrameReplayBuffer) -> None:
        reference = _read_reference(path)
        if reference is None:
            raise _Damaged(f"{path} was saved without a replay buffer")
        manifest = self.replay_directory / f"{reference['name']}.json"
        if not manifest.is_file():
            raise _Damaged(f"{manifest} is missing (only the last {self.keep_last} checkpoints keep their replay)")
        if hashlib.sha256(manifest.read_bytes()).hexdigest() != reference["sha256"]:
            raise _Damaged(f"{manifest} is damaged: it has another checksum than replay.json says")
        try:
            # It checks all its files before it changes anything.
            replay.loads(self.replay_directory, name=reference["name"])
        except (OSError, ValueError) as error:
            raise _Damaged(str(error)) from error

    @staticmethod
    def _load_components(path: Path, components: Mapping[str, Any]) -> None:
        checkpoint = Checkpoint()
        for name, component in components.items():
            checkpoint.register(name, component, adapter=_StateAdapter())
        # Random states last: another component's load_state_dict may draw.
        random = {name for name, component in components.items() if isinstance(component, GlobalRNGState)}
        try:
            checkpoint.load(path, components=set(components) - random)
            checkpoint.load(path, components=random)
        except TorchRLCheckpointError as error:
            # The files are whole, so older ones would not fit either.
            raise CheckpointNotRestored(f"{path} is whole but does not fit: {error}") from error

    # -- information ---------------------------------------------------------------------------------------------------

    def latest(self) -> SavedCheckpoint | None:
        """Returns the checkpoint of the largest step, None if there is none."""
        saved = self.list()
        return saved[-1] if saved else None

    def best(self) -> SavedCheckpoint | None:
        """Returns the checkpoint with the best score, the newest of equals, None if none has a score."""
        saved = [saved for saved in self.list() if saved.score is not None]
        return max(saved, key=lambda saved: (saved.score, saved.step), default=None)

    def _paths(self, *, after: int = -1) -> tuple[Path, ...]:
        """Returns what is named like a checkpoint of a step later than ``after``."""
        if not self.directory.is_dir():
            return ()
        named = ((path, _NAME.fullmatch(path.name)) for path in self.directory.iterdir())
        return tuple(path for path, match in named if match and int(match[1]) > after)

    def _left_over(self) -> tuple[tuple[Path, Path], ...]:
        """Returns what killed processes left behind, and where it was to go."""
        if not self.directory.is_dir():
            return ()
        named = ((path, _LEFT_OVER.fullmatch(path.name)) for path in self.directory.iterdir())
        return tuple((path, self.directory / match[1]) for path, match in named if match)

    def _candidates(self) -> dict[Path, int]:
        """Returns what could be restored, with its step."""
        aside = {
            left_over: _step_of(path)
            for left_over, path in self._left_over()
            if ".backup-" in left_over.name and not path.exists()
        }
        return {path: _step_of(path) for path in self._paths()} | aside

    def list(self) -> tuple[SavedCheckpoint, ...]:
        """Returns the checkpoints with a readable manifest by step."""
        saved = []
        for path in sorted(self._paths(), key=_step_of):
            try:
                manifest = _read_manifest(path)
            except _Damaged:
                continue
            metadata = manifest["metadata"]
            saved.append(
                SavedCheckpoint(
                    path, _step_of(path), metadata.get("score"), metadata["info"], str(manifest.get("created_at"))
                )
            )
        return tuple(saved)


# -- how components are written ----------------------------------------------------------------------------------------


class _StateAdapter(CheckpointAdapter):
    """Writes a state dict as one file with a checksum, and reads it without running code from it."""

    adapter_id = "mcurl_torchrl.state"
    files = ("checksum.json", "state.pt")

    def __init__(self) -> None:
        self.unwritten: int | None = None

    def save(self, component: Any, path: Path, *, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
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
        # On the CPU: load_state_dict copies to where each tensor belongs, also on a machine with other devices.
        component.load_state_dict(_read_state(path), *args, **kwargs)


class _ReplayAdapter(CheckpointAdapter):
    """Saves a replay buffer to the folder that all checkpoints share, and in the checkpoint only under which name."""

    adapter_id = "mcurl_torchrl.replay"
    files = ("replay.json",)

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.name = name

    def save(self, component: Any, path: Path, *, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        component.dumps(self.directory, name=self.name)
        manifest = (self.directory / f"{self.name}.json").read_bytes()
        path.mkdir(parents=True)
        reference = {"name": self.name, "sha256": hashlib.sha256(manifest).hexdigest()}
        write_file(path / "replay.json", json.dumps(reference).encode())

    def load(self, component: Any, path: Path, **options: Any) -> None:
        raise NotImplementedError("Checkpoints loads the replay itself, to see first whether it is whole")


def _check_components(components: Mapping[str, Any], methods: tuple[str, ...]) -> None:
    for name, component in components.items():
        if not isinstance(name, str) or not _COMPONENT_NAME.fullmatch(name):
            raise ValueError(f"a component is named {name!r}; use letters, digits, '_', '-' and '.'")
        for method in methods:
            if not callable(getattr(component, method, None)):
                raise TypeError(f"component {name!r} is a {type(component).__name__}, which has no {method}()")


def _describe(step: int, score: float | None, info: Mapping[str, Any] | None) -> dict[str, Any]:
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


def _step_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


# -- how checkpoints are checked ---------------------------------------------------------------------------------------


def _check(path: Path, step: int, components: Mapping[str, Any]) -> dict[str, Any]:
    """Reads a checkpoint's metadata after checking its files; raises _Damaged if it cannot be used."""
    manifest = _read_manifest(path)
    if manifest["metadata"].get("step") != step:
        raise _Damaged(f"{path / 'manifest.json'} is of step {manifest['metadata'].get('step')}")
    missing = sorted(set(components) - set(manifest["components"]))
    if missing:
        raise _Damaged(f"{path} has no {missing}; it has {sorted(manifest['components'])}")
    for folder, _, files in os.walk(path):
        for file in files:
            _check_regular(Path(folder, file))
    for name in manifest["components"]:
        record = manifest["components"][name]
        folder_of = path / record["path"]
        for file in record["files"]:
            if not (folder_of / file).is_file():
                raise _Damaged(f"{folder_of / file} is missing")
        if name != _REPLAY:
            _read_state(folder_of)
    return manifest["metadata"]


def _read_manifest(path: Path) -> dict[str, Any]:
    """Reads a manifest and checks that it is one of ours and leads nowhere else."""
    file = path / "manifest.json"
    if path.is_symlink() or not path.is_dir():
        raise _Damaged(f"{path} is not a folder of its own")
    if not file.exists():
        raise _Damaged(f"{file} is missing")
    _check_regular(file)
    try:
        manifest = Checkpoint.manifest(path)
    except (TorchRLCheckpointError, OSError, AttributeError, RecursionError, TypeError, ValueError) as error:
        raise _Damaged(f"{file} is no manifest of a checkpoint: {error}") from None
    metadata = manifest.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("format") != _FORMAT:
        raise _Damaged(f"{path} is a checkpoint of another program (its format is not {_FORMAT!r})")
    if metadata.get("version") != _VERSION:
        raise _Damaged(f"{file} has format version {metadata.get('version')!r}; this release reads {_VERSION}")
    score = metadata.get("score", 0.0)
    valid = isinstance(metadata.get("info"), dict) and isinstance(score, float) and math.isfinite(score)
    if not valid or metadata.get("sha256") != _digest(metadata):
        raise _Damaged(f"{file} is damaged: its content is not what was saved (another checksum)")
    for index, name in enumerate(sorted(manifest["components"])):
        record, adapter = manifest["components"][name], _ReplayAdapter if name == _REPLAY else _StateAdapter
        if (record["adapter"], record["adapter_version"]) != (adapter.adapter_id, adapter.format_version):
            raise _Damaged(f"{file} says that {name!r} is saved as {record['adapter']!r}, which is not read here")
        expected = (f"components/{index:04d}-{name}", list(adapter.files))
        if "/" in name or (record["path"], record["files"]) != expected:
            raise _Damaged(f"{file} names files of {name!r} that no checkpoint has: {record}")
        for folder in (path / "components", path / record["path"]):
            if folder.is_symlink():
                raise _Damaged(f"{folder} is a link; all files must lie in the checkpoint itself")
    return manifest


def _read_state(path: Path) -> Any:
    """Reads a state dict if its checksum is right. Nothing in the file is executed."""
    file = path / "state.pt"
    for needed in (file, path / "checksum.json"):
        if not needed.exists():
            raise _Damaged(f"{needed} is missing")
        _check_regular(needed)
    content = file.read_bytes()
    try:
        checksum = json.loads((path / "checksum.json").read_bytes())
        size, sha256 = checksum["size"], checksum["sha256"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _Damaged(f"{path / 'checksum.json'} is damaged: {error!r}") from None
    if len(content) != size:
        raise _Damaged(f"{file} was cut short or changed: it has {len(content)} bytes, checksum.json says {size}")
    if hashlib.sha256(content).hexdigest() != sha256:
        raise _Damaged(f"{file} is damaged: it has another checksum than checksum.json says")
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load has no closed list of what it raises on a file that is none of its own.
        reason = str(error).strip().partition("\n")[0]
        raise _Damaged(f"{file} is refused, nothing in it was run: it holds more than plain data ({reason})") from None


def _read_reference(path: Path) -> dict[str, str] | None:
    """Reads under which name a checkpoint's replay is saved, None if it has none."""
    record = _read_manifest(path)["components"].get(_REPLAY)
    if record is None:
        return None
    file = path / record["path"] / "replay.json"
    if not file.exists():
        raise _Damaged(f"{file} is missing")
    _check_regular(file)
    try:
        reference = json.loads(file.read_bytes())
        if not _REPLAY_NAME.fullmatch(reference["name"]) or not isinstance(reference["sha256"], str):
            raise ValueError(f"it names {reference['name']!r}")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _Damaged(f"{file} is damaged: {error!r}") from None
    return reference


def _replay_named_in(path: Path) -> str | None:
    try:
        reference = _read_reference(path)
    except _Damaged:
        return None
    return None if reference is None else reference["name"]


def _check_regular(file: Path) -> None:
    """Refuses links, and pipes and devices that would keep the reader waiting."""
    if not stat.S_ISREG(file.lstat().st_mode):
        raise _Damaged(f"{file} is no regular file; all files must lie in the checkpoint itself")
