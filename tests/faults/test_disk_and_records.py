"""Full disks, storages on disk, files that were changed while a run was stopped, and files that nothing needs."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from mcurl_torchrl.training import Checkpoints, RunDirectory
from mcurl_torchrl.training.checkpoints import CheckpointNotSaved
from recipes.building import ReservedMemmapStorage
from tests.faults.stopping import RUN, TRAINING, never, press, resumed, saved, stopped
from tests.no_room import files_at_most
from tests.recipes.running import SMALL, results, settings, train


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train(tmp_path_factory.mktemp("finished") / "run", *RUN)


@pytest.fixture
def run(finished: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A finished run that the test may change."""
    return RunDirectory(shutil.copytree(finished.path, tmp_path / "run"))


ENVS = {"sac_mcurl": ["env=cartpole-swingup"], "rainbow_mcurl": ["env=Breakout"], "ppo_mcurl": ["env=Breakout"]}
LONGER = ["total_env_steps=60", "resume_changed=true"]


# -- storages on disk --------------------------------------------------------------------------------------------------


def test_a_run_with_its_replay_on_disk_is_resumed(finished: RunDirectory, fault, tmp_path: Path):
    fault(press("SIGTERM", TRAINING, 25))
    stopped(tmp_path / "run", "replay.memmap=true")
    assert not (tmp_path / "run" / "replay_storage").exists()  # the checkpoint has its rows
    (tmp_path / "run" / "replay_storage").mkdir()
    (tmp_path / "run" / "replay_storage" / "pixels.memmap").touch()  # as a killed process leaves it
    fault(never)
    assert results(resumed(tmp_path / "run", "replay.memmap=true")) == results(finished)
    assert not (tmp_path / "run" / "replay_storage").exists()


def test_a_replay_for_which_there_is_no_room_is_refused_at_the_start(tmp_path: Path):
    row = 2**20
    storage = ReservedMemmapStorage(shutil.disk_usage(tmp_path).free // row + 1024, scratch_dir=tmp_path / "rows")
    with pytest.raises(OSError, match=r"replay.memmap=true: no room for [0-9,]+ bytes of .*pixels.memmap"):
        storage.set(0, TensorDict({"pixels": torch.zeros(row, dtype=torch.uint8)}))


@pytest.mark.parametrize("recipe", list(ENVS))
def test_a_replay_without_room_is_refused_before_anything_is_played(recipe: str, tmp_path: Path):
    given = [*SMALL, *ENVS[recipe], "replay.memmap=true"]
    frame = settings(*given, recipe=recipe).env.image_size ** 2
    capacity = 16 * (shutil.disk_usage(tmp_path).free // (8 * frame))  # PPO wants a multiple of its environments
    with pytest.raises(SystemExit, match=r"replay.memmap=true: no room for [0-9,]+ bytes") as ended:
        train(tmp_path / "run", *given, f"replay.capacity={capacity}", recipe=recipe)
    assert str(ended.value).endswith("nothing was saved yet")


def test_the_room_of_a_replay_is_taken_at_once(tmp_path: Path):
    storage = ReservedMemmapStorage(1000, scratch_dir=tmp_path / "rows")
    storage.set(0, TensorDict({"pixels": torch.zeros(4096, dtype=torch.uint8)}))
    (file,) = (tmp_path / "rows").rglob("pixels.memmap")
    assert os.stat(file).st_blocks * 512 >= 1000 * 4096


# -- no room -----------------------------------------------------------------------------------------------------------


def test_no_room_before_the_first_checkpoint(tmp_path: Path):
    with files_at_most(8_000), pytest.warns(UserWarning) as warned, pytest.raises(SystemExit) as ended:
        train(tmp_path / "run", *RUN)
    assert str(ended.value) == "trained to the end, but the last checkpoint could not be saved; nothing was saved yet"
    said = [str(warning.message) for warning in warned]
    assert any("NO CHECKPOINT at agent step 0" in line and line.endswith("; there is none") for line in said)


def test_the_message_of_a_full_disk_does_not_contradict_itself(tmp_path: Path):
    error = OSError(errno.ENOSPC, "No space left on device")
    free = shutil.disk_usage(tmp_path).free
    assert "free" not in str(CheckpointNotSaved(error, tmp_path, needed=10))
    assert "free" not in str(CheckpointNotSaved(error, tmp_path))
    assert "bytes are free" in str(CheckpointNotSaved(error, tmp_path, needed=2 * free))


# -- files that were changed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["metrics.csv", "eval.csv"])
@pytest.mark.parametrize("change", ["edited", "removed"])
def test_a_table_that_was_changed_is_noticed(name: str, change: str, run: RunDirectory):
    file = run.path / name
    if change == "removed":
        file.unlink()
    else:
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join([*lines[:1], lines[1].replace("0", "7"), *lines[2:]]))
    with pytest.warns(UserWarning, match=f"{name} does not have the rows"):
        resumed(run.path, *LONGER)
    assert run.read_manifest()["resumed"][-1]["changed_tables"] == [name]


def test_tables_that_were_not_changed_are_not_complained_about(run: RunDirectory, recwarn):
    resumed(run.path, *LONGER)
    assert not [line for line in recwarn if "does not have the rows" in str(line.message)]
    assert "changed_tables" not in run.read_manifest()["resumed"][-1]


@pytest.mark.parametrize("place", [10, -10], ids=["first line", "states"])
def test_a_flipped_byte_in_an_older_checkpoint_is_said(place: int, run: RunDirectory):
    older = Checkpoints(run.checkpoints).list()[-2].path
    content = bytearray(older.read_bytes())
    content[place] ^= 1
    older.write_bytes(content)
    with pytest.warns(RuntimeWarning, match=f"an older checkpoint cannot be used: {older}"):
        resumed(run.path, *LONGER)
    assert max(saved(run.path)) == 60


# -- files that nothing needs ------------------------------------------------------------------------------------------


def test_every_file_of_the_saved_replay_is_named_by_a_manifest(finished: RunDirectory):
    folder, named = finished.checkpoints / "replay", set()
    for manifest in folder.glob("*.json"):
        content = json.loads(manifest.read_text())
        named |= {entry["file"] for entry in [*content["segments"], content["state"]]}
    assert named and {file.name for file in folder.iterdir() if file.suffix != ".json"} == named


# -- a busy machine ----------------------------------------------------------------------------------------------------


def test_a_busy_machine_is_said_once(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (100.0, 100.0, 100.0))
    short = [*RUN, "total_env_steps=20", "sac.random_agent_steps=19"]  # beside other tests, two threads are slow
    train(tmp_path / "run", *short, "threads=2")
    assert capsys.readouterr().err.count("this machine is busy (a load of 100.0") == 1
    train(tmp_path / "single", *short, "threads=1")
    assert "is busy" not in capsys.readouterr().err
