"""Batches: drawn when they are needed, or ahead by a thread, in an order that does not depend on time."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import LazyTensorStorage

from mcurl_torchrl import ContrastiveTask, FrameReplayBuffer, MaskedContrastiveTask, PixelEncoder, RandomCrop
from mcurl_torchrl.objectives import AuxiliaryTask, NoTask
from mcurl_torchrl.replay import PrioritizedTransitionSampler, copy_to
from mcurl_torchrl.training import Batches
from mcurl_torchrl.transforms import make_augmentation

CPU = torch.device("cpu")


def make_steps(count: int, first: int = 0) -> TensorDict:
    """Steps of one endless episode; the reward of each is its number."""
    generator = torch.Generator().manual_seed(first)
    pixels = torch.randint(256, (count + 1, 3, 20, 20), dtype=torch.uint8, generator=generator)
    reward = torch.arange(first, first + count).float()[:, None]
    flags = {name: torch.zeros(count, 1, dtype=torch.bool) for name in ("terminated", "truncated")}
    following = {"pixels": pixels[1:], "reward": reward, **flags}
    return TensorDict({"pixels": pixels[:-1], "action": torch.zeros(count, 2), "next": following}, [count])


def make_buffer(**options) -> FrameReplayBuffer:
    crop = RandomCrop(16, in_keys=["pixels", ("next", "pixels")])
    buffer = FrameReplayBuffer(storage=LazyTensorStorage(200), batch_size=6, transform=crop, **options)
    buffer.extend(make_steps(40))
    return buffer


def make_task(buffer: FrameReplayBuffer, kind: type[AuxiliaryTask] = MaskedContrastiveTask) -> AuxiliaryTask:
    torch.manual_seed(0)
    encoder = PixelEncoder(3, 16, num_layers=2, num_filters=4, feature_dim=8)
    slices = {"num_slices": 2, "slice_len": 5} if kind is MaskedContrastiveTask else {}
    return kind(encoder, buffer, augmentation=RandomCrop(16), **slices)


def make_batches(kind: type[AuxiliaryTask] = MaskedContrastiveTask, *, ahead: int, **options) -> Batches:
    buffer = make_buffer(**options)
    return Batches(buffer, make_task(buffer, kind), device=CPU, ahead=ahead, seed=3)


def write(batches: Batches, number: int) -> None:
    batches.buffer.extend(make_steps(1, first=40 + number))


def run(batches: Batches, updates: range, *, writes: bool = True) -> list[tuple[TensorDictBase, TensorDictBase]]:
    """Takes updates that draw random numbers, each after one more step."""
    seen = []
    for number in updates:
        if writes:
            write(batches, number)
        drawn = batches.next()
        with batches.drawing():
            torch.rand(100)  # as dropout does
        seen.append(drawn)
        batches.buffer.update_tensordict_priority(drawn[0].set("td_error", torch.full((6,), float(number))))
    return seen


def assert_same(ours: list, expected: list) -> None:
    assert len(ours) == len(expected)
    for pair in zip(ours, expected, strict=True):
        for one, other in zip(*pair, strict=True):
            assert set(one.keys(True, True)) == set(other.keys(True, True))
            assert (one == other).all()
            assert all(one[key].stride() == other[key].stride() for key in one.keys(True, True))


def with_priorities() -> dict[str, object]:
    return {"sampler": PrioritizedTransitionSampler()}


@pytest.mark.parametrize("kind", [MaskedContrastiveTask, ContrastiveTask, NoTask])
@pytest.mark.parametrize("ahead", [1, 3])
def test_the_same_numbers_each_time(kind: type[AuxiliaryTask], ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(make_batches(kind, ahead=ahead, **with_priorities()), range(6))
    drawn_now = Batches._draw

    def late(self: Batches):
        time.sleep(0.02)  # another time, not another order
        return drawn_now(self)

    monkeypatch.setattr(Batches, "_draw", late)
    torch.rand(7)
    assert_same(run(make_batches(kind, ahead=ahead, **with_priorities()), range(6)), first)


def test_equals_the_plain_loop_where_nothing_is_written() -> None:
    """The same generator, the same rows: ahead or not, the draws are the same ones."""
    plain = make_batches(ahead=1)
    plain.ahead = 0  # its generator stays
    assert_same(
        run(make_batches(ahead=2), range(5), writes=False),
        run(plain, range(5), writes=False),
    )


def test_without_ahead_torchs_own_generator_draws() -> None:
    batches = make_batches(ahead=0)
    torch.manual_seed(5)
    drawn = [batches.next() for _ in range(2)]
    torch.manual_seed(5)
    expected = []
    for _ in range(2):
        batch = batches.buffer.sample()
        expected.append((batch, batches.task.sample(batch)))
    assert_same(drawn, expected)
    assert batches.components() == {}


@pytest.mark.parametrize("ahead", [1, 2])
def test_the_rows_and_priorities_that_a_draw_sees(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/gpu.md states: for update k, what was there when update k - N began."""
    batches, seen = make_batches(NoTask, ahead=ahead, **with_priorities()), []
    draw = Batches._draw

    def noting(self: Batches):
        seen.append((len(self.buffer), float(self.buffer.sampler.tree.total)))
        return draw(self)

    monkeypatch.setattr(Batches, "_draw", noting)
    expected = []
    for number in range(5):
        write(batches, number)
        begins = (len(batches.buffer), float(batches.buffer.sampler.tree.total))
        expected += [begins] * (1 + ahead if number == 0 else 1)
        batch, _ = batches.next()
        with batches.drawing():
            pass
        batches.buffer.update_tensordict_priority(batch.set("td_error", torch.full((6,), 10.0 + number)))
    assert seen == expected
    assert len(set(expected)) == 5  # rows and priorities changed all the time


def test_saved_and_restored_with_what_was_drawn(tmp_path) -> None:
    whole = run(make_batches(ahead=2, **with_priorities()), range(7))
    first = make_batches(ahead=2, **with_priorities())
    run(first, range(4))
    torch.save(first.components()["batches"].state_dict(), tmp_path / "batches")
    first.buffer.dumps(tmp_path / "replay")
    second = make_batches(ahead=2, **with_priorities())
    second.buffer.loads(tmp_path / "replay")
    second.load_state_dict(torch.load(tmp_path / "batches", weights_only=True))
    assert_same(run(second, range(4, 7)), whole[4:])


def test_views_that_are_the_batch_stay_the_batch() -> None:
    first = make_batches(ContrastiveTask, ahead=1)
    run(first, range(2))
    second = make_batches(ContrastiveTask, ahead=1)
    second.load_state_dict(first.state_dict())
    batch, views = second.next()
    assert views is batch


class TestThread:
    def test_draws_while_the_update_is_computed_and_is_gone_then(self) -> None:
        batches, began = make_batches(NoTask, ahead=1), threading.Event()
        batches.task.sample = lambda batch: began.set() or batch
        batches.next()
        began.clear()
        with batches.drawing():
            assert began.wait(timeout=60)  # inside: at the same time
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("sample_ahead")]

    def test_its_error_reaches_the_loop(self) -> None:
        batches = make_batches(NoTask, ahead=1)
        batches.next()
        batches.buffer.empty()
        with pytest.raises(RuntimeError, match="the replay buffer is empty"), batches.drawing():
            pass
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("sample_ahead")]

    def test_an_error_of_the_update_is_the_one_that_is_told(self) -> None:
        batches = make_batches(NoTask, ahead=1)
        batches.next()
        batches.buffer.empty()
        with pytest.raises(KeyError, match="of the update"), batches.drawing():
            raise KeyError("of the update")
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("sample_ahead")]


class GlobalNoise(NoTask):
    def sample(self, batch: TensorDictBase | None = None) -> TensorDictBase:
        return TensorDict({"noise": torch.rand(3)})


def test_draws_from_the_global_generator_are_refused() -> None:
    with pytest.raises(RuntimeError, match="GlobalNoise or a transform draws from torch's global one"):
        make_batches(GlobalNoise, ahead=1).next()
    make_batches(GlobalNoise, ahead=0).next()


def test_transforms_inside_of_augmentations_are_found() -> None:
    buffer = make_buffer()
    augment = make_augmentation("crop", crop_size=16, intensity_scale=0.1)
    task = make_task(buffer)
    task.read_slices(buffer, num_slices=1, slice_len=3, transform=RandomCrop(16))
    task.more = augment  # as SPR holds its own
    task.sample = lambda batch: TensorDict({"views": augment(torch.ones(2, 3, 20, 20))})
    Batches(buffer, task, device=CPU, ahead=1).next()


def test_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="ahead=-1; it must be at least 0"):
        make_batches(NoTask, ahead=-1)


def test_a_copy_to_the_same_device_changes_nothing() -> None:
    batch = make_buffer(channels_last=True).sample()
    copied = copy_to(batch, CPU)
    assert copied is batch
    moved = copy_to(TensorDict({"pixels": batch["pixels"]}, [6]), CPU)  # a batch that names no device
    assert moved.device == CPU
    assert torch.equal(moved["pixels"], batch["pixels"]) and moved["pixels"].stride() == batch["pixels"].stride()
