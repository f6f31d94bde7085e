"""Checkpoints are exact and complete, and loading them never executes code from a file."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import os
import pathlib
import pickle
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchrl.checkpoint import Checkpoint, GlobalRNGState

from mcurl_torchrl import (
    ContextTransformer,
    FrameReplayBuffer,
    MaskedContrastiveLoss,
    PixelEncoder,
    inverse_sqrt_warmup,
)
from mcurl_torchrl.replay import archive
from mcurl_torchrl.training import checkpoints as checkpoints_module
from mcurl_torchrl.training.checkpoints import CheckpointNotRestored, CheckpointNotSaved, Checkpoints
from tests.no_room import files_at_most
from tests.replay.episodes import make_buffer, make_episode, make_episodes
from tests.training.forging import read_first_line, replace_first_line, replace_states
from tests.warm_start import run_python

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the wait for the disk, most of the time of these small saves; the wait has a test of its own."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


class Counter:
    """A plain object with state, here a step that says which save it comes from."""

    def __init__(self, step: int = 0) -> None:
        self.step = step

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "tensor": torch.full((300,), float(self.step))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert torch.equal(state["tensor"], torch.full((300,), float(state["step"])))
        self.step = state["step"]


def save(checkpoints: Checkpoints, step: int, *, replay: FrameReplayBuffer | None = None, **options: Any) -> Path:
    return checkpoints.save(step, components={"a": Counter(step), "b": Counter(step)}, replay=replay, **options)


def restored_step(directory: Path, replay: FrameReplayBuffer | None = None, step: int | None = None) -> int:
    """Restores and checks that all parts are of one save."""
    a, b = Counter(), Counter()
    restored = Checkpoints(directory).restore(components={"a": a, "b": b}, replay=replay, step=step)
    assert a.step == b.step
    assert restored.step == a.step
    return a.step


def steps(checkpoints: Checkpoints) -> list[int]:
    return [saved.step for saved in checkpoints.list()]


def replays(directory: Path) -> list[int]:
    """The steps whose replay is kept."""
    return sorted(int(file.stem.split("-")[1]) for file in (directory / "replay").glob("*.json"))


def files_in(directory: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(directory)): file.read_bytes() for file in sorted(directory.rglob("*")) if file.is_file()
    }


def no_debris(directory: Path, replay: FrameReplayBuffer) -> bool:
    """Whether there is nothing but checkpoints, and after one more save no row file that no replay names."""
    replay.dumps(directory / "replay", name="one_more")
    entries = {path.name for path in directory.iterdir()} - {"replay"}
    rows = {path.name for path in (directory / "replay").glob("*.safetensors")}
    for manifest in (directory / "replay").glob("*.json"):
        content = json.loads(manifest.read_text())
        rows -= {entry["file"] for entry in (*content["segments"], content["state"])}
    (directory / "replay" / "one_more.json").unlink()
    hidden = list(directory.rglob(".*"))
    return all(re.fullmatch("checkpoint-[0-9]{12}", name) for name in entries) and not rows and not hidden


# -- round trips -------------------------------------------------------------------------------------------------------


class Learner:
    """A small network in training, with everything that a step depends on."""

    def __init__(self) -> None:
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
        self.adam = torch.optim.Adam(self.net.parameters(), lr=1e-2, amsgrad=True)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.adam, inverse_sqrt_warmup(3))
        self.replay = make_buffer(60)

    @property
    def components(self) -> dict[str, Any]:
        return {"net": self.net, "adam": self.adam, "schedule": self.schedule, "rng": GlobalRNGState()}

    def train(self) -> None:
        noise = random.random() + np.random.randn() + torch.randn(())
        self.replay.extend(make_episode(7, first=100))
        batch = self.replay.sample()
        loss = (self.net(batch["action"].expand(-1, 4) + noise) ** 2).mean()
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        self.schedule.step()


def bits(value: Any) -> Any:
    """Makes states comparable down to the bit."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), value.contiguous().view(-1).view(torch.uint8).tolist())
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(bits, value)]
    return (type(value).__name__, repr(value))


def test_a_restored_run_goes_on_bit_by_bit(tmp_path: Path) -> None:
    learner = Learner()
    for _ in range(5):
        learner.train()
    before = {name: bits(part.state_dict()) for name, part in learner.components.items()}
    Checkpoints(tmp_path).save(5, components=learner.components, replay=learner.replay, info={"lr": 0.1 + 0.2})
    assert before == {name: bits(part.state_dict()) for name, part in learner.components.items()}
    for _ in range(5):
        learner.train()
    never_stopped = {name: bits(part.state_dict()) for name, part in learner.components.items()}

    for draw in (random.seed, np.random.seed, torch.manual_seed):
        draw(987)
    resumed = Learner()
    restored = Checkpoints(tmp_path).restore(components=resumed.components, replay=resumed.replay)
    assert (restored.step, restored.info) == (5, {"lr": 0.1 + 0.2})
    assert before == {name: bits(part.state_dict()) for name, part in resumed.components.items()}
    for _ in range(5):
        resumed.train()
    assert never_stopped == {name: bits(part.state_dict()) for name, part in resumed.components.items()}
    assert (learner.replay.sample() == resumed.replay.sample()).all()


def test_random_states_are_restored_last(tmp_path: Path) -> None:
    class Drawing(Counter):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            torch.rand(3)

    components = {"a_rng": GlobalRNGState(), "z_drawing": Drawing()}
    Checkpoints(tmp_path).save(1, components=components)
    expected = torch.rand(4)
    Checkpoints(tmp_path).restore(components=components)
    assert torch.equal(torch.rand(4), expected)


def test_a_loss_with_its_target_network(tmp_path: Path) -> None:
    def make_loss() -> MaskedContrastiveLoss:
        return MaskedContrastiveLoss(PixelEncoder(3, 40, feature_dim=8), ContextTransformer(8))

    loss, same = make_loss(), make_loss()
    Checkpoints(tmp_path).save(1, components={"loss": loss})
    Checkpoints(tmp_path).restore(components={"loss": same})
    assert any("target_encoder_network_params" in name for name in loss.state_dict())
    assert bits(dict(loss.state_dict())) == bits(dict(same.state_dict()))


def test_some_of_the_components(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 3)
    only = Counter()
    assert Checkpoints(tmp_path).restore(components={"b": only}).step == 3
    assert only.step == 3


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(1, components={"net": torch.nn.Linear(2, 2)})
    with pytest.raises(CheckpointNotRestored, match=r"whole but does not fit(.|\n)*'net'(.|\n)*size mismatch"):
        Checkpoints(tmp_path).restore(components={"net": torch.nn.Linear(3, 2)})
    with pytest.raises(CheckpointNotRestored, match=r"has no \['actor'\]; it has \['net'\]"):
        Checkpoints(tmp_path).restore(components={"actor": torch.nn.Linear(2, 2)})
    with pytest.raises(CheckpointNotRestored, match="was saved without a replay buffer"):
        Checkpoints(tmp_path).restore(components={}, replay=make_buffer())
    with pytest.raises(CheckpointNotRestored, match=r"no checkpoint of step 7 in .*; there are those of \[1\]"):
        Checkpoints(tmp_path).restore(components={}, step=7)


def test_states_that_could_not_be_read_back_are_refused_when_saved(tmp_path: Path) -> None:
    class Odd(Counter):
        def state_dict(self) -> dict[str, Any]:
            return {"where": Path("x")}

    class Local(Counter):
        def state_dict(self) -> dict[str, Any]:
            return {"function": lambda: None}

    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    for component in (Odd(), Local()):
        with pytest.raises(TypeError, match="'odd'.*cannot be read back"):
            checkpoints.save(2, components={"odd": component})
    with pytest.raises(TypeError, match="info must be JSON"):
        save(checkpoints, 2, info={"where": Path("x")})
    with pytest.raises(TypeError, match=r"'x' is a int, which has no state_dict\(\)"):
        checkpoints.save(2, components={"x": 1})
    with pytest.raises(ValueError, match="step=-1"):
        checkpoints.save(-1, components={})
    with pytest.raises(ValueError, match="keep_last=0"):
        Checkpoints(tmp_path, keep_last=0)
    assert os.listdir(tmp_path) == ["checkpoint-000000000001"]


# -- which are kept ----------------------------------------------------------------------------------------------------


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints, replay = Checkpoints(tmp_path, keep_last=2), make_buffer(60)
    scores = {10: 1.0, 20: 5.0, 30: None, 40: float("nan"), 50: 4.0, 60: 5.0, 70: 2.0, 80: None}
    kept = {}
    for step, score in scores.items():
        replay.extend(make_episode(5, first=step))
        save(checkpoints, step, replay=replay, score=score)
        kept[step] = (steps(checkpoints), replays(tmp_path))
        assert no_debris(tmp_path, replay)
    assert kept == {
        10: ([10], [10]),
        20: ([10, 20], [10, 20]),
        30: ([20, 30], [20, 30]),
        40: ([20, 30, 40], [30, 40]),
        50: ([20, 40, 50], [40, 50]),
        60: ([50, 60], [50, 60]),
        70: ([60, 70], [60, 70]),
        80: ([60, 70, 80], [70, 80]),
    }
    latest, best = checkpoints.latest(), checkpoints.best()
    assert latest is not None and (latest.step, latest.score) == (80, None)
    assert best is not None and (best.step, best.score) == (60, 5.0)
    assert restored_step(tmp_path, step=60) == 60  # to be evaluated
    with pytest.raises(CheckpointNotRestored, match="only the last 2 checkpoints keep their replay"):
        restored_step(tmp_path, make_buffer(60), step=60)


def test_the_replay_is_on_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_SEGMENT_BYTES", 2000)
    replay = make_buffer(3000)
    replay.extend(make_episodes([100] * 20))
    checkpoints = Checkpoints(tmp_path / "many", keep_last=5)
    for step in range(1, 8):
        replay.extend(make_episode(5, first=step))
        save(checkpoints, step, replay=replay)
    save(Checkpoints(tmp_path / "one"), 7, replay=replay)

    def rows(directory: str) -> int:
        return sum(file.stat().st_size for file in (tmp_path / directory / "replay").glob("rows-*"))

    assert len(replays(tmp_path / "many")) == 5
    assert rows("many") < 1.15 * rows("one")
    for step in range(3, 8):
        loaded = make_buffer(3000)
        assert restored_step(tmp_path / "many", loaded, step=step) == step
        assert len(loaded) == 20 * 101 + 6 * step


def test_the_same_step_again(tmp_path: Path) -> None:
    checkpoints, replay = Checkpoints(tmp_path), make_buffer(60)
    for number in range(3):
        replay.extend(make_episode(5))
        checkpoints.save(4, components={"a": Counter(number)}, replay=replay, score=float(number))
    counter, loaded = Counter(), make_buffer(60)
    Checkpoints(tmp_path).restore(components={"a": counter}, replay=loaded)
    assert (counter.step, len(loaded), steps(checkpoints), replays(tmp_path)) == (2, 18, [4], [4])


def test_a_course_that_was_given_up_is_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=3)
    for step in (10, 20, 30):
        save(checkpoints, step, score=float(step))
    with pytest.raises(ValueError, match=r"step=15, but .* later steps, \['checkpoint-000000000020'"):
        save(Checkpoints(tmp_path, keep_last=3), 15)
    checkpoints.restore(components={}, step=10)
    assert steps(checkpoints) == [10, 20, 30]
    save(checkpoints, 15)
    assert steps(checkpoints) == [10, 15]
    save(checkpoints, 25)
    assert steps(checkpoints) == [10, 15, 25]


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two checkpoints, 10 and 20, with replay."""
    directory = tmp_path_factory.mktemp("checkpoints")
    checkpoints, replay = Checkpoints(directory), make_buffer(60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "_SEGMENT_BYTES", 500)
        for step in (10, 20):
            replay.extend(make_episode(20, first=step))
            save(checkpoints, step, replay=replay, score=1.0, info={"step": step})
    return directory


@pytest.fixture
def copied(two: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two, tmp_path / "checkpoints"))


def damage_flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def damage_cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def damage_zeros(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def files_of_newest(directory: Path) -> list[Path]:
    """The files that only the newest checkpoint needs."""
    older = json.loads(next((directory / "replay").glob("checkpoint-000000000010-*.json")).read_text())
    newer_manifest = next((directory / "replay").glob("checkpoint-000000000020-*.json"))
    newer = json.loads(newer_manifest.read_text())
    names = [{entry["file"] for entry in (*content["segments"], content["state"])} for content in (older, newer)]
    rows = [directory / "replay" / name for name in sorted(names[1] - names[0])]
    return [directory / "checkpoint-000000000020", newer_manifest, *rows]


def damage_remove(file: Path) -> None:
    file.unlink()


def damage_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", [damage_flip, damage_cut, damage_zeros, damage_remove, damage_folder])
def test_each_file_in_turn(two: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    names = [file.relative_to(two) for file in files_of_newest(two)]
    assert len(names) >= 4
    for number, name in enumerate(names):
        directory = Path(shutil.copytree(two, tmp_path / str(number)))
        if name.name == "checkpoint-000000000020" and damage is damage_remove:
            continue  # then there is no such checkpoint
        damage(directory / name)
        replay = make_buffer(60)
        with pytest.warns(RuntimeWarning, match=f"checkpoint-000000000020 is passed over: .*{name.name}") as record:
            assert restored_step(directory, replay) == 10, name
        assert [warning.filename for warning in record] == [__file__]
        assert len(replay) == 21
        with pytest.raises(CheckpointNotRestored, match=f"checkpoint-000000000020: (.|\n)*{name.name}"):
            restored_step(directory, make_buffer(60), step=20)


def test_each_byte_of_the_file(two: Path, tmp_path: Path) -> None:
    """A flipped bit is noticed, wherever it is: nothing of the file is taken over then."""
    directory = Path(shutil.copytree(two, tmp_path / "checkpoints"))
    file = directory / "checkpoint-000000000020"
    whole = file.read_bytes()
    first_line = whole.index(b"\n") + 1
    for place in (*range(0, first_line), *range(first_line, len(whole), 41)):
        content = bytearray(whole)
        content[place] ^= 4
        file.write_bytes(content)
        with pytest.warns(RuntimeWarning, match="checkpoint-000000000020 is passed over"):
            restored = Checkpoints(directory).restore(components={"a": Counter()})
        assert (restored.step, restored.info) == (10, {"step": 10})


def test_none_left(copied: Path) -> None:
    damage_zeros(copied / "checkpoint-000000000020")
    damage_cut(copied / "checkpoint-000000000010")
    counter = Counter(-1)
    with pytest.warns(RuntimeWarning), pytest.raises(CheckpointNotRestored) as caught:
        Checkpoints(copied).restore(components={"a": counter})
    lines = str(caught.value).splitlines()
    assert lines[0] == f"no checkpoint in {copied} can be restored:"
    assert "checkpoint-000000000020: " in lines[1] and "is not a checkpoint of this program" in lines[1]
    assert "checkpoint-000000000010: " in lines[2] and "the state of 'b' was cut short" in lines[2]
    assert counter.step == -1  # "a" is whole, but nothing is taken over from a checkpoint that is not
    with pytest.raises(CheckpointNotRestored, match="there is no checkpoint in"):
        restored_step(copied / "elsewhere")


def test_a_disk_that_cannot_read_a_file(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_header = checkpoints_module._read_header

    def fail(path: Path) -> Any:
        if path.name == "checkpoint-000000000020":
            raise OSError(errno.EIO, "Input/output error")
        return read_header(path)

    monkeypatch.setattr(checkpoints_module, "_read_header", fail)
    assert steps(Checkpoints(copied)) == [10]
    with pytest.warns(RuntimeWarning, match="checkpoint-000000000020 is passed over: .*Input/output error"):
        assert restored_step(copied, make_buffer(60)) == 10


def test_going_on_after_damage(copied: Path) -> None:
    """A damaged checkpoint must not take the place of a whole one among the last."""
    damage_cut(copied / "checkpoint-000000000020")
    checkpoints, replay = Checkpoints(copied), make_buffer(60)
    with pytest.warns(RuntimeWarning):
        checkpoints.restore(components={"a": Counter()}, replay=replay)
    save(checkpoints, 30, replay=replay)
    assert (steps(checkpoints), replays(copied)) == ([10, 30], [10, 30])
    save(checkpoints, 40, replay=replay)
    assert steps(checkpoints) == [10, 30, 40]  # 10 has the best score
    assert no_debris(copied, replay)


def test_an_unreadable_checkpoint_does_not_stop_a_run(copied: Path) -> None:
    (copied / "checkpoint-000000000010").write_text("[]")
    checkpoints = Checkpoints(copied)
    save(checkpoints, 30)
    assert steps(checkpoints) == [20, 30]
    assert (copied / "checkpoint-000000000010").read_text() == "[]"  # a later release may read it
    assert restored_step(copied) == 30


# -- foreign and hostile -----------------------------------------------------------------------------------------------


class Payload:
    """Unpickling this creates a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.file), "w"))


@pytest.mark.parametrize("writer", ["pickle", "torch", "legacy torch"])
@pytest.mark.parametrize("signed", [False, True])
def test_no_code_is_run(copied: Path, tmp_path: Path, writer: str, signed: bool) -> None:
    victim = tmp_path / "executed"
    payload = {"step": 20, "x": Payload(victim)}
    evil = io.BytesIO()
    if writer == "pickle":
        pickle.dump(payload, evil)
    else:
        torch.save(payload, evil, _use_new_zipfile_serialization=writer != "legacy torch")

    for step in (10, 20):
        replace_states(copied / f"checkpoint-0000000000{step}", evil.getvalue(), signed=signed)
    pickle.loads(pickle.dumps(payload))
    assert victim.exists()  # the payload works
    victim.unlink()
    counter = Counter(-1)
    reason = "refused, nothing in it was run" if signed else "cut short or changed"
    with pytest.warns(RuntimeWarning, match=reason), pytest.raises(CheckpointNotRestored, match=reason):
        Checkpoints(copied).restore(components={"a": counter})
    assert not victim.exists()
    assert counter.step == -1


def test_links_are_refused(copied: Path, tmp_path: Path) -> None:
    linked = copied / "checkpoint-000000000020"
    linked.rename(tmp_path / "outside")
    linked.symlink_to(tmp_path / "outside")
    with pytest.raises(CheckpointNotRestored, match="not a regular file"):
        restored_step(copied, step=20)


def test_a_pipe_keeps_nobody_waiting(copied: Path) -> None:
    (copied / "checkpoint-000000000020").unlink()
    os.mkfifo(copied / "checkpoint-000000000020")
    with pytest.raises(CheckpointNotRestored, match="not a regular file"):
        restored_step(copied, step=20)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"replay": "../elsewhere"}, "it names the replay '../elsewhere'"),
        ({"step": 10}, "it is of step 10"),
        ({"more": 1}, "unexpected keyword argument 'more'"),
        (b"[]", "not a checkpoint of this program"),
        (b"{}", "missing 5 required"),
        (b"[" * 100_000, "recursion"),
    ],
    ids=["a replay elsewhere", "another step", "one more key", "a list", "nothing", "nested"],
)
def test_a_first_line_that_no_checkpoint_has(copied: Path, change: dict[str, Any] | bytes, says: str) -> None:
    file = copied / "checkpoint-000000000020"
    text = change if isinstance(change, bytes) else json.dumps({**read_first_line(file), **change}).encode()
    replace_first_line(file, text)
    with pytest.raises(CheckpointNotRestored, match=says):
        restored_step(copied, make_buffer(60), step=20)
    assert steps(Checkpoints(copied)) == [10]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not a checkpoint of this program"),
        ("no checkpoint", "not a checkpoint of this program"),
        ("mcurl_torchrl.checkpoint", "has format version ''; this release reads 2"),
        ("mcurl_torchrl.checkpoint 99 0123 {}\n", "has format version '99'; this release reads 2"),
        ("mcurl_torchrl.checkpoint 2 0123 {}\n", "first line is not the one that was saved"),
        ("torch", "not a checkpoint of this program"),
        ("torchrl", "a folder, the format of version 1; this release reads files of version 2"),
    ],
)
def test_foreign_files(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "checkpoint-000000000007"
    if content == "torchrl":
        Checkpoint(a=torch.nn.Linear(2, 2)).save(path)
    elif content == "torch":
        torch.save(torch.nn.Linear(2, 2).state_dict(), path)
    else:
        path.write_text(content)
    with pytest.raises(CheckpointNotRestored, match=says):
        Checkpoints(tmp_path).restore(components={"a": torch.nn.Linear(2, 2)})
    with pytest.warns(RuntimeWarning, match=says) if path.is_dir() else contextlib.nullcontext():
        assert Checkpoints(tmp_path).list() == ()


# -- no room -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["component", "replay"])
def test_no_room(copied: Path, part: str) -> None:
    checkpoints, replay = Checkpoints(copied), make_buffer(20_000)
    replay.extend(make_episode(15_000 if part == "replay" else 10))
    big = torch.nn.Linear(300, 300 if part == "component" else 1)
    components = {"a": Counter(30), "b": Counter(30), "z": big}
    before = files_in(copied)
    for _ in range(2):
        with files_at_most(100_000), pytest.raises(CheckpointNotSaved) as caught:
            checkpoints.save(30, components=components, replay=replay)
        assert caught.value.errno == errno.EFBIG
        assert isinstance(caught.value, OSError)
        assert str(copied) in str(caught.value)
        if part == "component":
            assert caught.value.needed is not None and caught.value.needed > 300 * 300 * 4
            assert f"needs {caught.value.needed:,} bytes" in str(caught.value)
        assert files_in(copied) == before
    assert restored_step(copied, make_buffer(60)) == 20
    checkpoints.save(30, components=components, replay=replay)  # there is room again
    loaded = make_buffer(20_000)
    assert restored_step(copied, loaded) == 30
    assert len(loaded) == len(replay)


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting needs more rights than there are")
    try:
        checkpoints, replay = Checkpoints(disk / "checkpoints"), make_buffer(1000)
        replay.extend(make_episode(20))
        save(checkpoints, 10, replay=replay)
        before = files_in(disk)
        for component, rows in ((torch.nn.Linear(1000, 1000), 20), (Counter(), 90_000)):
            replay = make_buffer(200_000)
            replay.extend(make_episode(rows))
            with pytest.raises(CheckpointNotSaved, match="No space left") as caught:
                checkpoints.save(20, components={"a": component}, replay=replay)
            assert caught.value.errno == errno.ENOSPC
            assert files_in(disk) == before
        loaded = make_buffer(1000)
        assert restored_step(disk / "checkpoints", loaded) == 10
        assert len(loaded) == 21
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_no_room_once_the_replay_is_saved(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, before_rename: Callable[[], None]) -> None:
        before_rename()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(CheckpointNotSaved, match="No space left on device"):
        patch.setattr(checkpoints_module, "write_file", fail)
        save(Checkpoints(copied), 30, replay=make_buffer(60))
    assert replays(copied) == [10, 20]
    assert restored_step(copied, make_buffer(60)) == 20


def test_trouble_with_pruning_is_no_failed_save(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise PermissionError(errno.EACCES, "not allowed")

    checkpoints = Checkpoints(copied)
    monkeypatch.setattr(checkpoints, "_prune", fail)
    with pytest.warns(UserWarning, match="is saved, but older checkpoints could not be removed"):
        save(checkpoints, 30)
    assert restored_step(copied) == 30


def test_an_error_after_publishing_does_not_take_the_replay_away(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_and_fail(target: Path, content: bytes, *, before_rename: Callable[[], None]) -> None:
        before_rename()
        target.write_bytes(content)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(checkpoints_module, "write_file", write_and_fail)
    with pytest.raises(CheckpointNotSaved, match="Input/output error"):
        save(Checkpoints(copied), 30, replay=make_buffer(60))
    assert restored_step(copied, make_buffer(60)) == 30


def test_all_is_on_disk_before_older_ones_are_removed(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(copied)
    synced = set()
    monkeypatch.setattr(os, "fsync", lambda file: synced.add((os.fstat(file).st_dev, os.fstat(file).st_ino)))
    missing = []

    def prune(given_up: object) -> None:
        replay = copied / "replay"
        for part in (copied, copied / "checkpoint-000000000030", replay, *replay.glob("*-000000000030-*")):
            if (part.stat().st_dev, part.stat().st_ino) not in synced:
                missing.append(part)

    monkeypatch.setattr(checkpoints, "_prune", prune)
    save(checkpoints, 30, replay=make_buffer(60))
    assert synced and not missing


# -- killed ------------------------------------------------------------------------------------------------------------


def make_before(directory: Path) -> FrameReplayBuffer:
    """A folder with checkpoints 100 (the best, without a replay), 200 and 300, and the buffer of the last."""
    replay = make_buffer(60)
    checkpoints = Checkpoints(directory)
    for step in (100, 200, 300):
        replay.extend(make_episode(step // 10 - 1, first=step))
        save(checkpoints, step, replay=replay, score=1.0 if step == 100 else None)
    return replay


def save_more(directory: Path, step: int, component: Any = None) -> None:
    """Goes on from step 300, and saves a component that says 999 and a replay of 64 rows."""
    checkpoints, replay = Checkpoints(directory), make_buffer(60)
    checkpoints.restore(components={}, replay=replay)
    replay.extend(make_episode(3, first=900))
    checkpoints.save(step, components={"a": Counter(999), "b": component or Counter(999)}, replay=replay)


def assert_one_of_the_two(directory: Path, step: int) -> bool:
    """Checks that all is from before, or all is new, and that saving goes on; returns whether it is new."""
    counter, other, replay = Counter(), Counter(), make_buffer(60)
    checkpoints = Checkpoints(directory)
    restored = checkpoints.restore(components={"a": counter, "b": other}, replay=replay)
    new = counter.step == 999
    rows = replay.writer.written.item()
    assert (restored.step, other.step, rows) == ((step, 999, 64) if new else (300, 300, 60)), directory
    replay.extend(make_episode(3, first=1000))
    save(checkpoints, 500, replay=replay)
    assert steps(checkpoints) == [100, restored.step, 500], directory
    assert replays(directory) == [restored.step, 500], directory
    assert no_debris(directory, replay), directory
    return new


@pytest.mark.parametrize("step", [400, 300], ids=["the next step", "the same step again"])
def test_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """A copy of the folder before each change is what a process that is killed then leaves behind."""
    directory = tmp_path / "checkpoints"
    make_before(directory)
    moments: list[Path] = []

    originals = {name: getattr(os, name) for name in ("replace", "unlink", "rmdir", "mkdir")}
    # The paths of Python 3.10 hold these functions themselves.
    holders = [os, *([pathlib._NormalAccessor] if hasattr(pathlib, "_NormalAccessor") else [])]

    def set_all(patch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
        for holder, (name, original) in itertools.product(holders, originals.items()):
            patch.setattr(holder, name, staticmethod(change(original)) if holder is not os else change(original))

    def copying(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with monkeypatch.context() as patch:
                set_all(patch, lambda original: original)
                moments.append(Path(shutil.copytree(directory, tmp_path / str(len(moments)), symlinks=True)))
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        set_all(patch, copying)
        save_more(directory, step)
    outcomes = [assert_one_of_the_two(moment, step) for moment in (*moments, directory)]
    assert outcomes == sorted(outcomes), "once it is there it stays"
    assert sum(not new for new in outcomes) > 8 and sum(outcomes) > 2


class Deadly(Counter):
    """A component that kills the process when it is saved."""

    def state_dict(self) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}


def save_and_die(directory: Path, where: str) -> None:
    """Saves, and is killed in a component, in the replay's dump after its rows were written, or in the last file."""
    if where == "component":
        save_more(directory, 400, Deadly())
    write_file = archive.write_file

    def write_and_die(target: Path, content: bytes, **options: Any) -> None:
        if target.suffix != ".safetensors":
            target.with_name(f".{target.name}.part").write_bytes(content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        write_file(target, content, **options)

    (archive if where == "replay" else checkpoints_module).write_file = write_and_die
    save_more(directory, 400)


def test_killed(tmp_path: Path) -> None:
    places = ("component", "replay", "file")
    for where in places:
        make_before(tmp_path / where)
    program = """
import os, sys, torch
from pathlib import Path
from tests.training.test_checkpoints import save_and_die
torch.set_num_threads(1)
for folder in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            save_and_die(Path(folder), Path(folder).name)
        finally:
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
    done = run_python("-c", program, *(tmp_path / where for where in places), cwd=REPO)
    assert re.findall("(?m)^-?[0-9]+$", done.stdout) == ["-9", "-9", "-9"], done.stderr
    assert list((tmp_path / "file").glob(".checkpoint-*.part"))
    assert list((tmp_path / "replay" / "replay").glob(".*.json.part"))
    for where in places:
        assert not assert_one_of_the_two(tmp_path / where, 400)
