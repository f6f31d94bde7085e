"""Checkpoints: the newest few and the best, whole or not at all, read without running code from the files.

A folder of checkpoints looks like this::

    checkpoint-000000010000     one file: a line of JSON with checksums, then the state dicts
    replay/                     the rows of the replay buffer, once for all checkpoints

A file is put in place by a single rename. TorchRL's ``Checkpoint`` writes a folder, which takes two renames to replace
and has no checksums, so it cannot promise that a killed run keeps a whole checkpoint; only its random states are used.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import math
import pickle
import re
import shutil
import uuid
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torchrl.checkpoint import GlobalRNGState

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.files import write_file
from mcurl_torchrl.replay import FrameReplayBuffer
from mcurl_torchrl.replay.archive import remove_unnamed

__all__ = ["CheckpointNotRestored", "CheckpointNotSaved", "Checkpoints", "SavedCheckpoint"]

_FORMAT = "mcurl_torchrl.checkpoint"
_VERSION = 2
_NAME = re.compile(r"checkpoint-([0-9]{12,})")
_REPLAY_NAME = re.compile(r"checkpoint-[0-9]{12,}-[0-9a-f]{8}")
_REPLAY_MANIFEST = re.compile(rf"\.?({_REPLAY_NAME.pattern})\.json(\.part)?")


class CheckpointNotSaved(OSError):
    """A checkpoint could not be written, mostly because the disk is full; earlier checkpoints are whole.

    Args:
        error (OSError): the cause.
        directory (Path): the folder of the checkpoints.
        needed (int, optional): the bytes of the file that did not fit, if known.
    """

    def __init__(self, error: OSError, directory: Path, needed: int | None = None) -> None:
        self.needed = needed
        room = "" if needed is None else f"; the file needs {needed:,} bytes"
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(directory).free
            # A quota or a limit of the file's size may end a write where the disk has room: free bytes would mislead.
            room += f"; {free:,} bytes are free" if needed is not None and free < needed else ""
        super().__init__(error.errno or errno.EIO, f"no checkpoint was saved in {directory}: {error}{room}")


class CheckpointNotRestored(RuntimeError):
    """No checkpoint could be restored; the message names the folder, and the reason for each checkpoint."""


class _Damaged(Exception):
    """A checkpoint cannot be used; the message names the file."""


@dataclass(frozen=True)
class SavedCheckpoint:
    """The first line of a checkpoint: step, score, info, the name of its replay, size and checksum of each state."""

    path: Path
    step: int
    score: float | None
    info: dict[str, Any] = field(repr=False)
    replay: str | None = field(repr=False)
    states: dict[str, dict[str, Any]] = field(repr=False)


class Checkpoints:
    """Saves all that a run needs to continue, keeps the newest and the best, and restores the newest that is whole.

    The replay buffer is saved a part at a time to a folder that all checkpoints share
    (:meth:`~mcurl_torchrl.FrameReplayBuffer.dumps`). Only the last ``keep_last`` checkpoints keep their replay: an
    older best checkpoint can be evaluated, not continued.

    After :meth:`restore`, the next save removes the checkpoints of later steps. Only one process may save to a folder;
    see :meth:`~mcurl_torchrl.training.run_directory.RunDirectory.lock`.

    Args:
        directory (str or Path): the folder, made with the first save.

    Keyword Args:
        keep_last (int): how many of the newest checkpoints to keep, at least 1; the one with the best score is kept as
            well. Defaults to 2, so that there is another if the newest is damaged.

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
        >>> checkpoints.save(1000, components=components, score=12.5, info={"episodes": 4}).name
        'checkpoint-000000001000'
        >>> other = torch.nn.Linear(4, 2)
        >>> restored = checkpoints.restore(components={"actor": other})
        >>> restored.step, restored.info, torch.equal(actor.weight, other.weight)
        (1000, {'episodes': 4}, True)
        >>> folder.cleanup()
    """

    def __init__(self, directory: str | Path, *, keep_last: int = 2) -> None:
        self.directory = Path(directory)
        self.replay_directory = self.directory / "replay"
        self.keep_last = check_count("keep_last", keep_last)
        self._given_up: set[Path] = set()  # the checkpoints of later steps than the restored one

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
        """Saves a checkpoint, then removes those that are no longer kept; returns its path.

        Args:
            step (int): the step of the run. A checkpoint of the same step is replaced.

        Keyword Args:
            components (mapping): objects with ``state_dict`` and ``load_state_dict``, by name.
            replay (FrameReplayBuffer, optional): the replay buffer.
            score (float, optional): larger is better. A score that is not finite counts as none.
            info (mapping, optional): JSON that :meth:`restore` returns.

        Raises:
            CheckpointNotSaved: if the files could not be written. All earlier checkpoints are whole.
            TypeError: if a state or the info cannot be read back.
            ValueError: if there are checkpoints of later steps, and none of this folder was restored.
        """
        if step < 0:
            raise ValueError(f"step={step}; it must be at least 0")
        path = self.directory / f"checkpoint-{step:012d}"
        if later := sorted(self._paths(after=step) - self._given_up):
            raise ValueError(
                f"step={step}, but {self.directory} has checkpoints of later steps, {[file.name for file in later]}; "
                "restore one of its checkpoints first, or use another directory"
            )
        # A random part in the name: a checkpoint that is replaced keeps its replay until the new one is in place.
        name = f"{path.name}-{uuid.uuid4().hex[:8]}"
        score = float(score) if score is not None and math.isfinite(score) else None
        header = {"step": step, "score": score, "info": dict(info or {}), "replay": None if replay is None else name}
        self._write(path, _make_content(components, header), replay, name)
        self._given_up.discard(path)
        try:
            self._prune(self._given_up)
            self._given_up = set()
        except OSError as error:
            warnings.warn(f"{path} is saved, but older checkpoints could not be removed: {error}", stacklevel=2)
        return path

    def _write(self, path: Path, content: bytes, replay: FrameReplayBuffer | None, name: str) -> None:
        unwritten = [len(content)]

        def save_replay() -> None:  # last: it takes the longest, and should not run in vain
            unwritten.clear()
            if replay is not None:
                replay.dumps(self.replay_directory, name=name)

        try:
            self._remove_debris()
            write_file(path, content, before_rename=save_replay)
        except BaseException as error:
            if _replay_of(path) != name:  # The file may be in place; then it needs its replay.
                with contextlib.suppress(OSError):
                    (self.replay_directory / f"{name}.json").unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise CheckpointNotSaved(error, self.directory, *unwritten) from error
            raise

    def _remove_debris(self) -> None:
        """Removes the unfinished files of a process that was killed while it saved."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for unfinished in self.directory.glob(".checkpoint-*.part"):
            unfinished.unlink()
        self._keep_replays_of(self._paths())

    def _prune(self, given_up: Iterable[Path]) -> None:
        for path in given_up:
            path.unlink(missing_ok=True)
        saved, best = self.list(), self.best()
        for old in saved[: -self.keep_last]:
            if old != best:
                old.path.unlink()
        self._keep_replays_of(new.path for new in saved[-self.keep_last :])

    def _keep_replays_of(self, kept: Iterable[Path]) -> None:
        """Removes the replays of all other checkpoints, with the rows that only they have."""
        names = {_replay_of(path) for path in kept}
        for file in self.replay_directory.glob("*"):
            match = _REPLAY_MANIFEST.fullmatch(file.name)
            if match and match[1] not in names:
                file.unlink(missing_ok=True)
        if self.replay_directory.is_dir():
            remove_unnamed(self.replay_directory)

    # -- restoring -----------------------------------------------------------------------------------------------------

    def restore(
        self, *, components: Mapping[str, Any], replay: FrameReplayBuffer | None = None, step: int | None = None
    ) -> SavedCheckpoint:
        """Restores the newest checkpoint that is whole, in place; warns about the other ones that are damaged.

        All files of a checkpoint are checked before anything is changed.

        Keyword Args:
            components (mapping): the objects to restore, by the names under which they were saved; not necessarily all.
            replay (FrameReplayBuffer, optional): the replay buffer to restore.
            step (int, optional): the step of the only checkpoint to try. Defaults to None, the newest first.

        Raises:
            CheckpointNotRestored: if there is no whole checkpoint, or its states do not fit the components.
        """
        found = sorted(self._paths(), key=_step_of, reverse=True)
        candidates = [path for path in found if step is None or _step_of(path) == step]
        if not candidates:
            wanted = "" if step is None else f" of step {step}"
            there = f"; there are those of {sorted(map(_step_of, found))}" if found else ""
            raise CheckpointNotRestored(f"there is no checkpoint{wanted} in {self.directory}{there}")
        reasons = []
        for path in candidates:
            try:
                saved = _read_header(path)
                states = _read_states(saved, set(components))
                if replay is not None:
                    self._load_replay(saved, replay)
            except (_Damaged, OSError) as error:
                reasons.append(f"{path}: {error}")
                if len(reasons) < len(candidates):
                    warnings.warn(f"checkpoint {path} is passed over: {error}", RuntimeWarning, stacklevel=2)
                continue
            _load_states(path, components, states)
            self._given_up = self._paths(after=saved.step)
            if step is None:
                self._warn_of_damage(candidates[candidates.index(path) + 1 :])
            return saved
        listed = "".join(f"\n  {reason}" for reason in reasons)
        raise CheckpointNotRestored(f"no checkpoint in {self.directory} can be restored:{listed}")

    def _warn_of_damage(self, older: Iterable[Path]) -> None:
        """Warns about older checkpoints that are damaged and cannot be used."""
        for path in older:
            try:
                _read_states(_read_header(path), set())
            except (_Damaged, OSError) as error:
                warnings.warn(f"an older checkpoint cannot be used: {error}", RuntimeWarning, stacklevel=3)

    def _load_replay(self, saved: SavedCheckpoint, replay: FrameReplayBuffer) -> None:
        if saved.replay is None:
            raise _Damaged(f"{saved.path} was saved without a replay buffer")
        manifest = self.replay_directory / f"{saved.replay}.json"
        if not manifest.is_file():
            raise _Damaged(f"{manifest} is missing (only the last {self.keep_last} checkpoints keep their replay)")
        try:  # It checks all its files before it changes anything.
            replay.loads(self.replay_directory, name=saved.replay)
        except (OSError, ValueError) as error:
            raise _Damaged(str(error)) from error

    # -- information ---------------------------------------------------------------------------------------------------

    def list(self) -> tuple[SavedCheckpoint, ...]:
        """Returns the checkpoints whose first line is whole, by step; warns about those of an earlier release."""
        saved = []
        for path in sorted(self._paths(), key=_step_of):
            try:
                saved.append(_read_header(path))
            except (_Damaged, OSError) as error:
                if path.is_dir():
                    warnings.warn(str(error), RuntimeWarning, stacklevel=2)
        return tuple(saved)

    def latest(self) -> SavedCheckpoint | None:
        """Returns the checkpoint of the largest step, None if there is none."""
        return max(self.list(), key=lambda saved: saved.step, default=None)

    def best(self) -> SavedCheckpoint | None:
        """Returns the checkpoint with the best score, the newest of equals, None if none has a score."""
        scored = [saved for saved in self.list() if saved.score is not None]
        return max(scored, key=lambda saved: (saved.score, saved.step), default=None)

    def _paths(self, *, after: int = -1) -> set[Path]:
        """Returns the paths that are named like a checkpoint of a later step than ``after``."""
        named = (path for path in self.directory.glob("checkpoint-*") if _NAME.fullmatch(path.name))
        return {path for path in named if _step_of(path) > after}


# -- the file ----------------------------------------------------------------------------------------------------------


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("checkpoint-"))


def _serialize(name: str, component: Any) -> bytes:
    for method in ("state_dict", "load_state_dict"):
        if not callable(getattr(component, method, None)):
            raise TypeError(f"component {name!r} is a {type(component).__name__}, which has no {method}()")
    content = io.BytesIO()
    try:
        torch.save(component.state_dict(), content)
        content.seek(0)
        torch.load(content, weights_only=True)  # An error now is better than one when the run is resumed.
    except (pickle.PickleError, AttributeError, TypeError) as error:
        raise TypeError(
            f"the state of {name!r} ({type(component).__name__}) cannot be read back safely; a state may have tensors, "
            f"numbers, strings, lists, tuples and dicts: {error}"
        ) from error
    return content.getvalue()


def _make_content(components: Mapping[str, Any], header: Mapping[str, Any]) -> bytes:
    states = {name: _serialize(name, component) for name, component in sorted(components.items())}
    sums = {name: {"size": len(state), "sha256": hashlib.sha256(state).hexdigest()} for name, state in states.items()}
    try:
        text = json.dumps({**header, "states": sums}).encode()
    except (TypeError, ValueError) as error:
        raise TypeError(f"info must be JSON: {error}") from None
    first = f"{_FORMAT} {_VERSION} {hashlib.sha256(text).hexdigest()} ".encode()
    return b"".join([first, text, b"\n", *states.values()])


def _read_header(path: Path) -> SavedCheckpoint:
    """Reads the first line of a checkpoint."""
    if path.is_dir() and not path.is_symlink():
        raise _Damaged(f"{path} is a folder, the format of version 1; this release reads files of version {_VERSION}")
    if path.is_symlink() or not path.is_file():  # A link may lead elsewhere, and a pipe would keep the reader waiting.
        raise _Damaged(f"{path} is not a regular file")
    with open(path, "rb") as file:
        form, version, digest, text = (file.readline().rstrip(b"\n").split(b" ", 3) + [b""] * 3)[:4]
    if form != _FORMAT.encode():
        raise _Damaged(f"{path} is not a checkpoint of this program (it does not begin with {_FORMAT!r})")
    if version != str(_VERSION).encode():
        raise _Damaged(f"{path} has format version {version.decode(errors='replace')!r}; this release reads {_VERSION}")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        raise _Damaged(f"{path} is damaged: its first line is not the one that was saved")
    try:
        saved = SavedCheckpoint(path, **json.loads(text))
        if saved.step != _step_of(path):
            raise ValueError(f"it is of step {saved.step}")
        if saved.replay is not None and not _REPLAY_NAME.fullmatch(saved.replay):
            raise ValueError(f"it names the replay {saved.replay!r}")
    except (TypeError, ValueError, RecursionError) as error:
        raise _Damaged(f"{path} is not a checkpoint of this program: {error}") from None
    return saved


def _replay_of(path: Path) -> str | None:
    """Returns the name of a checkpoint's saved replay, None if it has none that can be read."""
    try:
        return _read_header(path).replay
    except (_Damaged, OSError):
        return None


def _read_states(saved: SavedCheckpoint, names: set[str]) -> dict[str, Any]:
    """Reads some of the states, after a check of all of them. Nothing in the file is executed."""
    if missing := sorted(names - set(saved.states)):
        raise _Damaged(f"{saved.path} has no {missing}; it has {sorted(saved.states)}")
    contents = {}
    with open(saved.path, "rb") as file:
        file.readline()
        for name, state in saved.states.items():
            content = file.read(state["size"])
            if hashlib.sha256(content).hexdigest() != state["sha256"]:
                raise _Damaged(f"{saved.path} is damaged: the state of {name!r} was cut short or changed")
            if name in names:
                contents[name] = io.BytesIO(content)
    try:
        # On the CPU: load_state_dict copies each tensor to its place, also on a machine with other devices.
        return {name: torch.load(content, map_location="cpu", weights_only=True) for name, content in contents.items()}
    except Exception as error:  # torch.load has no closed list of errors for a file that it did not write.
        reason = str(error).strip().partition("\n")[0]
        raise _Damaged(
            f"{saved.path} is refused, nothing in it was run: a state holds more than plain data ({reason})"
        ) from None


def _load_states(path: Path, components: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    # Random states come last: the load_state_dict of another component may draw random numbers.
    for name in sorted(components, key=lambda name: (isinstance(components[name], GlobalRNGState), name)):
        try:
            components[name].load_state_dict(states[name])
        except Exception as error:  # The file is whole, so an older one would not fit either.
            raise CheckpointNotRestored(f"{path} is whole but does not fit {name!r}: {error}") from error
