"""Saving and loading: exact, a part at a time, whole or not at all."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import shutil
import signal
import threading
import zlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torchrl.data import LazyMemmapStorage

from mcurl_torchrl import FrameReplayBuffer, PrioritizedTransitionSampler
from mcurl_torchrl import files as files_module
from mcurl_torchrl.replay import archive
from tests.replay.episodes import make_buffer, make_episode, make_episodes, numbers_in
from tests.warm_start import run_python


def make_pair(capacity: int = 60, **options):
    """A buffer with priorities and its slices."""
    buffer = make_buffer(capacity, num_frames=3, n_step=2, sampler=PrioritizedTransitionSampler(), **options)
    return buffer, buffer.slices(num_slices=3, slice_len=4, prefetch=options.get("prefetch"))


def assert_same_future(first: tuple, second: tuple, rounds: int = 5) -> None:
    """Draws from both, writes to both, and compares all that comes out."""
    for number in range(rounds):
        for one, other in zip(first, second, strict=True):
            batch, same = one.sample(), other.sample()
            assert (batch == same).all()
        for buffer, _ in (first, second):
            buffer.update_priority(torch.arange(10), torch.arange(10.0) + number)
            buffer.extend(make_episode(7, first=1000 + 10 * number))


@pytest.mark.parametrize("prefetch", [None, 2])
@pytest.mark.parametrize("capacity", [200, 60], ids=["half-full", "full"])
def test_the_same_next_samples(tmp_path: Path, capacity: int, prefetch: int | None) -> None:
    original = make_pair(capacity, prefetch=prefetch)
    original[0].extend(make_episodes([20, 30, 40]))
    original[0].extend(make_episode(5, first=500, ended=False))
    original[0].update_priority(torch.arange(30), torch.rand(30))
    for reader in original:
        reader.sample()
    original[0].dumps(tmp_path)
    loaded = make_pair(capacity, prefetch=prefetch)
    loaded[0].loads(tmp_path)
    if prefetch is None:
        assert_same_future(original, loaded)
    else:  # What was prefetched is given back; from then on the order of draws is up to the threads.
        for one, other in zip(original, loaded, strict=True):
            for _ in range(prefetch):
                assert (one.sample() == other.sample()).all()


def test_batched_environments(tmp_path: Path) -> None:
    original, loaded = (make_buffer(300, ndim=2, num_frames=2) for _ in range(2))
    original.extend(torch.stack([make_episodes([9, 2, 4]), make_episodes([15]), make_episode(15, 90, ended=False)]))
    original.dumps(tmp_path)
    loaded.loads(tmp_path)
    more = torch.stack([make_episode(5), make_episode(5, 20), make_episode(5, 105)])
    for buffer in (original, loaded):
        buffer.extend(more.clone())
    assert (original.sample() == loaded.sample()).all()
    assert torch.equal(original.writer.written, loaded.writer.written)


def test_state_dict(tmp_path: Path) -> None:
    original, loaded = make_pair(), make_pair()
    original[0].extend(make_episodes([20, 30, 40]))
    torch.save(original[0].state_dict(), tmp_path / "state.pt")
    loaded[0].load_state_dict(torch.load(tmp_path / "state.pt"))
    assert (original[0].sample() == loaded[0].sample()).all()


def test_memory_mapped_and_an_empty_buffer(tmp_path: Path) -> None:
    buffer = FrameReplayBuffer(storage=LazyMemmapStorage(100), stacked_input=False, batch_size=4)
    buffer.dumps(tmp_path)
    buffer.extend(make_episode(9))
    buffer.loads(tmp_path)
    assert len(buffer) == 0 and not buffer.can_sample()
    buffer.extend(make_episode(9))
    buffer.dumps(tmp_path)
    other = FrameReplayBuffer(storage=LazyMemmapStorage(100), stacked_input=False, batch_size=4)
    other.loads(tmp_path)
    assert (other.storage[:] == buffer.storage[:]).all()


def test_an_empty_state_with_priorities(tmp_path: Path) -> None:
    buffer, _ = make_pair()
    buffer.dumps(tmp_path)
    buffer.extend(make_episode(20))
    buffer.loads(tmp_path)
    buffer.extend(make_episode(5))
    assert buffer.sampler.tree.total == 5


def test_views_with_generators_of_their_own(tmp_path: Path) -> None:
    def make():
        buffer = make_buffer(100)
        options = {"num_slices": 3, "slice_len": 4}
        return buffer, [buffer.slices(**options, generator=torch.Generator().manual_seed(seed)) for seed in (7, 8)]

    original, views = make()
    original.extend(make_episode(50))
    for view in views:
        view.sample()
    original.dumps(tmp_path)
    loaded, loaded_views = make()
    loaded.loads(tmp_path)
    for view, same in zip(views, loaded_views, strict=True):
        assert (view.sample() == same.sample()).all()


def test_prefetched_batches_of_other_settings_are_dropped(tmp_path: Path) -> None:
    buffer = make_buffer(100, prefetch=2)
    buffer.extend(make_episode(50))
    buffer.sample()
    buffer.dumps(tmp_path)
    for options in ({"batch_size": 16}, {"num_frames": 2}, {"n_step": 3}, {"prefetch": 1}):
        other = make_buffer(100, **{"prefetch": 2, **options})
        other.loads(tmp_path)
        batch = other.sample()
        assert batch.shape == (options.get("batch_size", 8),)
        assert batch["pixels"].shape[1] == options.get("num_frames", 1)


def test_state_dict_with_views_and_prefetch() -> None:
    def make():
        buffer = make_buffer(100, prefetch=1)
        return buffer, buffer.slices(num_slices=2, slice_len=3, prefetch=2)

    original, _ = make()
    original.extend(make_episode(50))
    loaded, view = make()
    loaded.extend(make_episode(50, first=1000))
    for reader in (loaded, view):
        reader.sample()
    generator = loaded._rng
    loaded.load_state_dict(original.state_dict())
    assert loaded._rng is generator and view._rng is generator
    for _ in range(5):
        assert (numbers_in(view.sample()["pixels"]) < 1000).all()
    with pytest.raises(ValueError, match="room for 100 rows; this buffer for 200"):
        make_buffer(200).load_state_dict(original.state_dict())


def test_copies_and_pickles_have_no_part_in_the_views() -> None:
    buffer = make_buffer(100)
    view = buffer.slices(num_slices=2, slice_len=3)
    buffer.extend(make_episode(50))
    for twin in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        assert (twin.storage[:] == buffer.storage[:]).all()
        twin.extend(make_episode(5, first=1000))
        assert len(twin) == 57 and twin.sample().shape == (8,)
    assert len(buffer) == 51 and len(view.sample()) == 6


class TestIncremental:
    def rows_saved(self, path: Path, name: str = "latest") -> list[int]:
        segments = json.loads((path / f"{name}.json").read_text())["segments"]
        return [sum(segment["last"]) - sum(segment["first"]) for segment in segments]

    def test_only_new_rows_are_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(archive, "_SEGMENT_BYTES", 2000)
        buffer = make_buffer(500)
        buffer.extend(make_episode(199))
        buffer.dumps(tmp_path)
        before = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("rows-*")}
        buffer.extend(make_episode(9, first=300))
        buffer.dumps(tmp_path)
        after = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("rows-*")}
        assert set(before) <= set(after) and all(after[name] == time for name, time in before.items())
        assert len(after) == len(before) + 1
        assert self.rows_saved(tmp_path)[-1] == 10 + 2  # and the two newest rows, which could have changed

    def test_the_folder_stays_small(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(archive, "_SEGMENT_BYTES", 1000)
        buffer, first = make_buffer(100), 0
        sizes = []
        for _ in range(60):  # six times around the ring, and many saves
            buffer.extend(make_episode(9, first))
            first += 10
            buffer.dumps(tmp_path)
            sizes.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
        assert max(sizes[30:]) < 1.3 * sizes[12]
        loaded = make_buffer(100)
        loaded.loads(tmp_path)
        assert (loaded.storage[:] == buffer.storage[:]).all()

    def test_states_under_several_names_share_their_rows(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(archive, "_SEGMENT_BYTES", 1000)
        buffer = make_buffer(200)
        buffer.extend(make_episode(99))
        buffer.dumps(tmp_path, "first")
        rows = buffer.storage[:].clone()
        size = sum(file.stat().st_size for file in tmp_path.glob("rows-*"))
        buffer.extend(make_episode(20, first=500))
        buffer.dumps(tmp_path, "second")
        assert sum(file.stat().st_size for file in tmp_path.glob("rows-*")) < 1.5 * size
        for name, expected in (("first", rows), ("second", buffer.storage[:])):
            loaded = make_buffer(200)
            loaded.loads(tmp_path, name)
            assert (loaded.storage[:] == expected).all()

    def test_going_on_from_an_earlier_state_does_not_mix_with_what_came_after_it(self, tmp_path: Path) -> None:
        buffer = make_buffer(200)
        buffer.extend(make_episode(50))
        buffer.dumps(tmp_path, "early")
        buffer.extend(make_episode(50, first=100))
        buffer.dumps(tmp_path, "late")
        late = buffer.storage[:].clone()
        other = make_buffer(200)
        other.loads(tmp_path, "early")
        other.extend(make_episode(50, first=900))
        other.dumps(tmp_path, "other")
        for name, expected in (("late", late), ("other", other.storage[:])):
            loaded = make_buffer(200)
            loaded.loads(tmp_path, name)
            assert (loaded.storage[:] == expected).all()

    def test_an_end_that_became_known_after_the_save(self, tmp_path: Path) -> None:
        buffer, loaded = make_buffer(200), make_buffer(200)
        buffer.extend(make_episode(5, ended=False))
        buffer.dumps(tmp_path)
        buffer.extend(make_episode(5, first=90))  # cuts the episode: its last row is now truncated
        buffer.dumps(tmp_path)
        loaded.loads(tmp_path)
        assert loaded.storage[:]["next", "truncated"].flatten().tolist() == [
            *[False] * 4,
            True,
            *[False] * 5,
            True,
            False,
        ]

    def test_files_that_disappeared_are_written_again(self, tmp_path: Path) -> None:
        buffer, loaded = make_buffer(200), make_buffer(200)
        buffer.extend(make_episode(50))
        buffer.dumps(tmp_path)
        shutil.rmtree(tmp_path)
        buffer.dumps(tmp_path)
        loaded.loads(tmp_path)
        assert (loaded.storage[:] == buffer.storage[:]).all()


class TestFaults:
    """Whatever goes wrong, what was saved before can be loaded, and what is in a buffer stays."""

    def test_killed_in_the_middle_of_a_save(self, tmp_path: Path) -> None:
        original = make_buffer(50)
        original.extend(make_episodes([20, 40]))
        original.dumps(tmp_path / "start")
        countdowns = [*range(45), 1000]
        for countdown in countdowns:
            shutil.copytree(tmp_path / "start", tmp_path / str(countdown))
        root = Path(__file__).parents[2]
        output = run_python("-m", "tests.replay.dying_save", tmp_path, *map(str, countdowns), cwd=root)
        assert output.returncode == 0, output.stderr
        outcomes = []
        statuses = [
            int(line.removeprefix("signal ")) for line in output.stdout.splitlines() if line.startswith("signal ")
        ]
        for countdown, status in zip(countdowns, statuses, strict=True):
            folder = tmp_path / str(countdown)
            loaded = make_buffer(50)
            loaded.loads(folder)
            outcomes.append((status, bool((loaded.storage[:] == original.storage[:]).all())))
            # And the folder is fit for the next save.
            loaded.extend(make_episode(5, first=700))
            loaded.dumps(folder)
            again = make_buffer(50)
            again.loads(folder)
            assert (again.storage[:] == loaded.storage[:]).all()
            assert not list(folder.glob(".*.part"))
        assert outcomes[0] == (signal.SIGKILL, True)
        assert outcomes[-1] == (0, False)
        # Up to some call the old state is there, from there on the new one.
        kept = [old for _, old in outcomes]
        assert kept == sorted(kept, reverse=True) and 5 < sum(kept) < 45
        assert outcomes[sum(kept)][0] == signal.SIGKILL

    def test_a_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        buffer = make_buffer(200)
        buffer.extend(make_episode(50))
        buffer.dumps(tmp_path)
        saved = buffer.storage[:].clone()
        files = {file.name for file in tmp_path.iterdir()}
        buffer.extend(make_episode(50, first=100))

        class FullDisk(io.FileIO):
            def write(self, content) -> int:
                super().write(content[:10])
                raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(files_module, "open", FullDisk, raising=False)
            with pytest.raises(OSError, match="No space left"):
                buffer.dumps(tmp_path)
        assert {file.name for file in tmp_path.iterdir()} == files
        loaded = make_buffer(200)
        loaded.loads(tmp_path)
        assert (loaded.storage[:] == saved).all()
        buffer.dumps(tmp_path)  # there is room again
        loaded.loads(tmp_path)
        assert (loaded.storage[:] == buffer.storage[:]).all()

    @pytest.mark.parametrize("after", [False, True])
    def test_interrupted_anywhere_in_a_save(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
        """Ctrl-C, unlike a kill, runs the clean-up: it must not remove what a manifest already names."""
        monkeypatch.setattr(archive, "_SEGMENT_BYTES", 500)
        finished = False
        for countdown in range(60):
            folder = tmp_path / str(countdown)
            buffer = make_buffer(50)
            buffer.extend(make_episodes([20, 40]))
            buffer.dumps(folder)
            states = [buffer.storage[:].clone()]
            buffer.extend(make_episode(33, first=100))
            states.append(buffer.storage[:].clone())
            calls = 0

            def interrupted(function, countdown=countdown):
                def call(*args, **kwargs):
                    nonlocal calls
                    calls += 1
                    if after:
                        function(*args, **kwargs)
                    if calls == countdown + 1:
                        raise KeyboardInterrupt
                    return None if after else function(*args, **kwargs)

                return call

            with monkeypatch.context() as patch:
                for owner, name in ((os, "replace"), (os, "fsync"), (Path, "unlink")):
                    patch.setattr(owner, name, interrupted(getattr(owner, name)))
                try:
                    buffer.dumps(folder)
                    finished = True
                except KeyboardInterrupt:
                    pass
            loaded = make_buffer(50)
            loaded.loads(folder)
            assert any(bool((loaded.storage[:] == state).all()) for state in states), countdown
        assert finished

    def test_a_disk_error_after_the_manifest_is_in_place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        buffer, loaded = make_buffer(50), make_buffer(50)
        buffer.extend(make_episode(9))
        fsync, calls = os.fsync, []

        def failing(descriptor: int) -> None:
            calls.append(descriptor)
            if len(calls) == 6:  # the folder's, after the manifest's rename
                raise OSError(5, "Input/output error")
            fsync(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing)
            with pytest.raises(OSError, match="Input/output error"):
                buffer.dumps(tmp_path)
        loaded.loads(tmp_path)
        assert (loaded.storage[:] == buffer.storage[:]).all()

    def test_other_files_in_the_folder_are_left_alone(self, tmp_path: Path) -> None:
        others = {
            "model.safetensors": b"weights",
            "config.json": b"{}",
            "rows-of-mine.safetensors": b"x",
            "notes.json": b"[]",
        }
        for name, content in others.items():
            (tmp_path / name).write_bytes(content)
        buffer = make_buffer(50)
        for first in range(0, 300, 10):
            buffer.extend(make_episode(9, first))
            buffer.dumps(tmp_path)
        assert {name: (tmp_path / name).read_bytes() for name in others} == others
        assert len(list(tmp_path.iterdir())) <= len(others) + 4  # and what is out of date is removed all the same

    def test_two_buffers_that_save_to_one_folder(self, tmp_path: Path) -> None:
        buffers = [make_buffer(100) for _ in range(3)]
        for number, buffer in enumerate(buffers):
            buffer.extend(make_episode(60, first=1000 * number))

        def save(number: int) -> None:
            for repetition in range(5):
                buffers[number].extend(make_episode(20, first=1000 * number + 100 * repetition))
                buffers[number].dumps(tmp_path, f"state-{number}")

        threads = [threading.Thread(target=save, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, buffer in enumerate(buffers):
            loaded = make_buffer(100)
            loaded.loads(tmp_path, f"state-{number}")
            assert (loaded.storage[:] == buffer.storage[:]).all()

    def refuses(self, path: Path, error: type[Exception], match: str, **options) -> None:
        buffer = make_buffer(**{"capacity": 200, **options})
        buffer.extend(make_episode(7, first=60))
        rows, rng = buffer.storage[:].clone(), buffer._rng.get_state()
        with pytest.raises(error, match=match):
            buffer.loads(path)
        assert (buffer.storage[:] == rows).all()
        assert torch.equal(buffer._rng.get_state(), rng)
        assert buffer.sample().shape == (8,)

    @pytest.fixture
    def saved(self, tmp_path: Path) -> Path:
        buffer = make_buffer(200)
        buffer.extend(make_episode(50))
        buffer.dumps(tmp_path)
        return tmp_path

    def edit(self, saved: Path, change) -> None:
        manifest = json.loads((saved / "latest.json").read_text())
        change(manifest)
        manifest["crc32"] = archive._checksum(manifest)
        (saved / "latest.json").write_text(json.dumps(manifest))

    @pytest.mark.parametrize("stem", ["rows", "state"])
    def test_cut_short(self, saved: Path, stem: str) -> None:
        file = next(saved.glob(f"{stem}-*"))
        size = file.stat().st_size
        os.truncate(file, size - 1)
        self.refuses(saved, ValueError, f"{file.name} was cut short or changed: it has {size - 1} bytes, {size} were")

    @pytest.mark.parametrize("stem", ["rows", "state"])
    def test_one_bit_flipped(self, saved: Path, stem: str) -> None:
        file = next(saved.glob(f"{stem}-*"))
        content = bytearray(file.read_bytes())
        content[-7] ^= 1
        file.write_bytes(content)
        self.refuses(saved, ValueError, f"{file.name} is damaged: the checksum of its content is not the saved one")

    def rewrite_state(self, saved: Path, change) -> None:
        """Changes the saved state and updates its checksum."""
        file = next(saved.glob("state-*"))
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)
        content = file.read_bytes()
        self.edit(saved, lambda manifest: manifest["state"].update(size=len(content), crc32=zlib.crc32(content)))

    @pytest.mark.parametrize("part", ["writer", "sampler", "readers"])
    def test_a_part_missing(self, saved: Path, part: str) -> None:
        self.edit(saved, lambda manifest: manifest["scalars"].pop(part))
        self.refuses(saved, ValueError, f"is damaged: .*{part}")

    def test_inconsistent_parts(self, saved: Path) -> None:
        self.edit(saved, lambda manifest: manifest["scalars"]["writer"].update(write_count=None))
        self.refuses(saved, ValueError, "its write_count is None")
        self.edit(saved, lambda manifest: manifest["scalars"]["writer"].update(write_count=50))
        self.rewrite_state(saved, lambda tensors: tensors.update({"writer/written": torch.tensor([50])}))
        self.refuses(saved, ValueError, "its segments do not end where its rows do")
        self.rewrite_state(saved, lambda tensors: tensors.update({"writer/written": torch.tensor([51, 51])}))
        self.refuses(saved, ValueError, r"its written is torch.int64 \(2,\)")
        self.rewrite_state(saved, lambda tensors: tensors.pop("writer/next_step"))
        self.refuses(saved, ValueError, "is damaged|its written")
        self.edit(saved, lambda manifest: manifest["segments"][0].update(first=[-3]))
        self.refuses(saved, ValueError, "does not fit 1 columns")
        self.edit(saved, lambda manifest: manifest["segments"][0].update(first=[0, 0], last=[51, 0]))
        self.refuses(saved, ValueError, "does not fit 1 columns")

    @pytest.mark.parametrize("name", ["a/b", "", "../a", ".hidden"])
    def test_names_that_are_no_file_names(self, saved: Path, name: str) -> None:
        for call in (make_buffer(200).dumps, make_buffer(200).loads):
            with pytest.raises(ValueError, match="it must be a plain file name"):
                call(saved, name)

    def test_a_file_missing(self, saved: Path) -> None:
        next(saved.glob("rows-*")).unlink()
        self.refuses(saved, FileNotFoundError, "the saved replay buffer is incomplete: .* is missing")

    def test_a_damaged_manifest(self, saved: Path) -> None:
        text = (saved / "latest.json").read_text()
        (saved / "latest.json").write_text(text[: len(text) // 2])
        self.refuses(saved, ValueError, "latest.json is damaged: it is not JSON")
        (saved / "latest.json").write_text(text.replace('"crc32": ', '"crc32": 1', 1))
        self.refuses(saved, ValueError, "latest.json is damaged: the checksum of its content is not the saved one")
        (saved / "latest.json").write_text("{}")
        self.refuses(saved, ValueError, "is not a saved FrameReplayBuffer")

    def test_another_version(self, saved: Path) -> None:
        self.edit(saved, lambda manifest: manifest.update(version=99))
        self.refuses(saved, ValueError, "has format version 99; this release reads version 2")

    def test_another_name(self, saved: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"no saved replay buffer 'best' in .*\['latest'\]"):
            make_buffer(200).loads(saved, "best")
        with pytest.raises(FileNotFoundError, match="no saved replay buffer 'latest' in .*nowhere"):
            make_buffer(200).loads(saved / "nowhere")

    def test_another_shape(self, saved: Path) -> None:
        self.refuses(saved, ValueError, "has rows 200; this one has 100", capacity=100)
        with pytest.raises(ValueError, match="has rows 200; this one has 100"):
            make_buffer(100).loads(saved)
        with pytest.raises(ValueError, match=r"has keys .*; this one has"):
            buffer = make_buffer(200, extra_keys=["skill"])
            buffer.extend(make_episode(3).set("skill", torch.zeros(3)))
            buffer.loads(saved)
        with pytest.raises(ValueError, match=r"has keys .*; this one has .*skill"):
            make_buffer(200, extra_keys=["skill"]).loads(saved)

    def test_another_sampler(self, saved: Path) -> None:
        with pytest.raises(
            ValueError, match="saved with a TransitionSampler; this one has a PrioritizedTransitionSampler"
        ):
            make_buffer(200, sampler=PrioritizedTransitionSampler()).loads(saved)

    @pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/hostname"])
    def test_a_manifest_that_points_elsewhere(self, saved: Path, name: str) -> None:
        self.edit(saved, lambda manifest: manifest["segments"][0].update(file=name))
        self.refuses(saved, ValueError, "must be in the folder itself")

    def test_no_code_is_run(self, saved: Path, tmp_path: Path) -> None:
        class Evil:
            def __reduce__(self):
                return (os.system, (f"touch {tmp_path}/ran",))

        for file in saved.glob("*.safetensors"):
            size = file.stat().st_size
            file.write_bytes(pickle.dumps(Evil()).ljust(size, b"\0"))
        self.refuses(saved, ValueError, "is damaged")
        assert not (tmp_path / "ran").exists()
