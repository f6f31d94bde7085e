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
import os
import shutil
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchrl.checkpoint import Checkpoint, CheckpointRotation, GlobalRNGState
from torchrl.checkpoint import CheckpointError as TorchRLCheckpointError

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.replay import FrameReplayBuffer
from mcurl_torchrl.training.checkpoint_files import (
    LEFT_OVER,
    NAME,
    REPLAY,
    REPLAY_MANIFEST,
    Damaged,
    ReplayAdapter,
    StateAdapter,
    check_components,
    check_whole,
    describe,
    read_manifest,
    read_reference,
    replay_named_in,
    step_of,
    sync,
)

__all__ = ["CheckpointNotRestored", "CheckpointNotSaved", "Checkpoints", "RestoredCheckpoint", "SavedCheckpoint"]


class CheckpointNotSaved(OSError):
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


class CheckpointNotRestored(RuntimeError):
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
        check_components(components, ("state_dict", "load_state_dict"))
        metadata = describe(step, score, info)
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
        adapter = StateAdapter()
        checkpoint = Checkpoint()
        for name, component in components.items():
            checkpoint.register(name, component, adapter=adapter)
        if replay is not None:
            checkpoint.register(REPLAY, replay, adapter=ReplayAdapter(self.replay_directory, replay_name))
        try:
            self._clean_up()
            checkpoint.save(path, metadata=metadata)
            # TorchRL does not wait for these to be on disk; the older checkpoints stay until they are.
            for written in (path / "manifest.json", *path.glob("components"), path, self.directory):
                sync(written)
        except BaseException as error:
            if replay_named_in(path) != replay_name:  # It may have been published: then it needs its replay.
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
                read_manifest(path)
            except Damaged:
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
        names = {replay_named_in(path) for path in kept}
        if self.replay_directory.is_dir():
            for file in self.replay_directory.iterdir():
                match = REPLAY_MANIFEST.fullmatch(file.name)
                if match and match["name"] not in names:
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
        check_components(components, ("load_state_dict",))
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
                metadata = check_whole(path, candidates[path], components)
                if replay is not None:
                    self._load_replay(path, replay)
            except Damaged as error:
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
        reference = read_reference(path)
        if reference is None:
            raise Damaged(f"{path} was saved without a replay buffer")
        manifest = self.replay_directory / f"{reference['name']}.json"
        if not manifest.is_file():
            raise Damaged(f"{manifest} is missing (only the last {self.keep_last} checkpoints keep their replay)")
        if hashlib.sha256(manifest.read_bytes()).hexdigest() != reference["sha256"]:
            raise Damaged(f"{manifest} is damaged: it has another checksum than replay.json says")
        try:
            # It checks all its files before it changes anything.
            replay.loads(self.replay_directory, name=reference["name"])
        except (OSError, ValueError) as error:
            raise Damaged(str(error)) from error

    @staticmethod
    def _load_components(path: Path, components: Mapping[str, Any]) -> None:
        checkpoint = Checkpoint()
        for name, component in components.items():
            checkpoint.register(name, component, adapter=StateAdapter())
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
        named = ((path, NAME.fullmatch(path.name)) for path in self.directory.iterdir())
        return tuple(path for path, match in named if match and int(match[1]) > after)

    def _left_over(self) -> tuple[tuple[Path, Path], ...]:
        """Returns what killed processes left behind, and where it was to go."""
        if not self.directory.is_dir():
            return ()
        named = ((path, LEFT_OVER.fullmatch(path.name)) for path in self.directory.iterdir())
        return tuple((path, self.directory / match[1]) for path, match in named if match)

    def _candidates(self) -> dict[Path, int]:
        """Returns what could be restored, with its step."""
        aside = {
            left_over: step_of(path)
            for left_over, path in self._left_over()
            if ".backup-" in left_over.name and not path.exists()
        }
        return {path: step_of(path) for path in self._paths()} | aside

    def list(self) -> tuple[SavedCheckpoint, ...]:
        """Returns the checkpoints with a readable manifest by step."""
        saved = []
        for path in sorted(self._paths(), key=step_of):
            try:
                manifest = read_manifest(path)
            except Damaged:
                continue
            metadata = manifest["metadata"]
            saved.append(
                SavedCheckpoint(
                    path, step_of(path), metadata.get("score"), metadata["info"], str(manifest.get("created_at"))
                )
            )
        return tuple(saved)
