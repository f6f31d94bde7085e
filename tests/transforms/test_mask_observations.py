"""MaskObservations: what is hidden, how often, by what, and what is left alone."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import LazyTensorStorage
from torchrl.envs import Compose

from mcurl_torchrl import FrameReplayBuffer, MaskObservations, RandomCrop
from mcurl_torchrl.transforms import RandomIntensity
from tests.replay.episodes import make_buffer, make_episode, numbers_in

QUERY, KEY, MASKED, ZEROED = (("mcurl", name) for name in ("query_pixels", "key_pixels", "masked", "zeroed"))


def make_batch(slices: int = 200, length: int = 10) -> TensorDict:
    """Observations of two frames, each pixel of which is the observation's own number, none 0."""
    numbers = torch.arange(1, slices * length + 1).view(slices, length, 1, 1, 1)
    pixels = numbers.expand(slices, length, 2, 3, 3).to(torch.int32).clone()
    return TensorDict({"mcurl": {"query_pixels": pixels, "key_pixels": pixels.clone()}}, [slices, length])


def is_likely(count: int, trials: int, probability: float) -> bool:
    """Tells whether a count is within four standard deviations of what is expected."""
    return abs(count - trials * probability) <= 4 * math.sqrt(trials * probability * (1 - probability)) + 1e-9


@pytest.mark.parametrize(
    ("ratio", "zero", "replace"), [(0.5, 0.8, 0.1), (0.15, 0.2, 0.5), (1.0, 1.0, 0.0), (1.0, 0.0, 1.0)]
)
def test_how_often(ratio: float, zero: float, replace: float) -> None:
    counts = dict.fromkeys(("shown", "zeroed", "replaced", "kept"), 0)
    trials = 0
    transform = MaskObservations(ratio, zero=zero, replace=replace)
    for _ in range(10):
        original = make_batch()
        batch = transform(original.clone())
        changed = (batch[QUERY] != original[QUERY]).flatten(2).any(-1)
        masked, zeroed = batch[MASKED], batch[ZEROED]
        assert (masked | ~zeroed).all() and (masked | ~changed).all()
        assert torch.equal(zeroed, (batch[QUERY] == 0).flatten(2).all(-1))
        counts["shown"] += int((~masked).sum())
        counts["zeroed"] += int(zeroed.sum())
        counts["replaced"] += int((changed & ~zeroed).sum())
        counts["kept"] += int((masked & ~changed).sum())
        trials += masked.numel()
    expected = {"shown": 1 - ratio, "zeroed": ratio * zero, "replaced": ratio * replace}
    expected["kept"] = 1 - sum(expected.values())
    for name, probability in expected.items():
        assert is_likely(counts[name], trials, probability), (name, counts[name], trials * probability)


def test_whole_observations_and_the_key_view() -> None:
    original = make_batch()
    batch = MaskObservations(0.5)(original.clone())
    pixels = batch[QUERY].flatten(2)
    assert (pixels == pixels[..., :1]).all()  # all frames and pixels of an observation share its fate
    assert torch.equal(batch[KEY], original[KEY])


def test_places_are_independent() -> None:
    masked = torch.stack([MaskObservations(0.5)(make_batch(300, 6))[MASKED] for _ in range(10)]).flatten(0, 1).float()
    correlation = torch.corrcoef(masked.T) - torch.eye(6)
    assert correlation.abs().max() < 0.09


@pytest.mark.parametrize("flat", [False, True])
def test_replacements_come_from_other_slices(flat: bool) -> None:
    batch = make_batch(20, 10)
    original = batch[QUERY].clone()
    seen = set()
    for _ in range(30):
        transform = MaskObservations(1.0, zero=0.0, replace=1.0, slice_len=10 if flat else None)
        out = transform(batch.clone().reshape(-1) if flat else batch.clone())[QUERY].view(20, 10, -1)[..., 0]
        own_slice = torch.arange(20)[:, None]
        assert ((out - 1) // 10 != own_slice).all()
        seen |= set(out.flatten().tolist())
    assert seen == set(original[..., 0, 0, 0].flatten().tolist())


@pytest.mark.parametrize(("slices", "length"), [(1, 6), (1, 1), (3, 1)])
def test_small_batches(slices: int, length: int) -> None:
    for _ in range(20):
        out = MaskObservations(1.0, zero=0.0, replace=1.0)(make_batch(slices, length))[QUERY][..., 0, 0, 0].flatten()
        own = torch.arange(1, slices * length + 1)
        assert (out == own).all() if len(own) == 1 else (out != own).all()


def test_replacements_come_from_the_buffer_with_crops_of_their_own() -> None:
    buffer = make_buffer(1000, num_frames=2)
    buffer.extend(make_episode(300, first=5000))
    drawn = []

    def source(count: int) -> torch.Tensor:
        drawn.append(buffer.observations(count))
        return drawn[-1]

    pixels = torch.ones(40, 10, 2, 1, 1, dtype=torch.uint8)
    batch = TensorDict({"mcurl": {"query_pixels": pixels}}, [40, 10])
    out = MaskObservations(0.5, zero=0.0, replace=1.0, source=source, augment=RandomCrop(1))(batch)
    replaced = out[QUERY][out[MASKED]]
    # A crop of one pixel is one byte of the frame's number: each is a byte of the observation drawn for it, at one
    # place.
    assert len(drawn) == 1 and len(drawn[0]) == len(replaced) == int(out[MASKED].sum())
    candidates = drawn[0].flatten(2)
    matches = (candidates == replaced.flatten(2)).all(1)
    assert matches.any(-1).all()
    assert (numbers_in(drawn[0]) >= 5000).all() and (numbers_in(drawn[0]) <= 5300).all()
    assert (out[QUERY][~out[MASKED]] == 1).all()


def test_observations_of_the_buffer_are_uniform_and_whole() -> None:
    buffer = make_buffer(60, num_frames=3)
    buffer.extend(make_episode(80, first=100))
    numbers = torch.cat([numbers_in(buffer.observations(500)) for _ in range(10)])
    assert (numbers.diff(dim=1) == 1).all()
    assert set(numbers[:, -1].tolist()) == set(range(123, 181))  # 60 rows are left, the first two lack their past
    counts = torch.bincount(numbers[:, -1] - 123).double()
    assert ((counts - counts.mean()).pow(2) / counts.mean()).sum() < 100


def test_in_the_slices_of_a_frame_buffer() -> None:
    buffer = FrameReplayBuffer(storage=LazyTensorStorage(500), num_frames=2, stacked_input=False, batch_size=8)
    pipeline = Compose(
        RandomCrop(2, out_keys=[QUERY]),
        RandomCrop(2, out_keys=[KEY]),
        MaskObservations(0.5, source=buffer.observations, augment=RandomCrop(2)),
    )
    slices = buffer.slices(num_slices=4, slice_len=6, transform=pipeline, prefetch=2)
    buffer.extend(make_episode(100, first=1))
    for _ in range(20):
        batch = slices.sample().reshape(4, 6)
        assert batch[QUERY].shape == batch[KEY].shape == (4, 6, 2, 2, 2)
        assert torch.equal(batch[KEY], batch["pixels"])  # frames of 2x2: the crop is the whole
        assert torch.equal(batch[QUERY][~batch[MASKED]], batch[KEY][~batch[MASKED]])
    slices.shutdown()  # else the batches under way would draw random numbers in the middle of the next test


def test_replacements_are_augmented_one_by_one() -> None:
    """Also by a transform that has one place for a whole slice."""
    numbered = torch.arange(100, dtype=torch.uint8).view(1, 10, 10)
    augment = RandomCrop(2, per="slice", slice_len=10, generator=torch.Generator().manual_seed(0))
    mask = MaskObservations(
        1.0, zero=0.0, replace=1.0, source=lambda n: numbered.expand(n, 2, 10, 10), augment=augment, slice_len=10
    )
    assert augment.per == "slice" and mask.augment.generator is augment.generator
    batch = TensorDict({"mcurl": {"query_pixels": torch.zeros(50, 2, 2, 2, dtype=torch.uint8)}}, [50])
    corners = mask(batch)[QUERY][:, 0, 0, 0].tolist()
    assert len(set(corners)) > 20
    MaskObservations(1.0, zero=0.0, replace=0.5, source=lambda n: numbered.expand(n, 2, 10, 10), augment=augment)(batch)


def test_replacements_are_augmented_one_by_one_by_each_part_of_an_augmentation() -> None:
    options = {"per": "slice", "slice_len": 10}
    augment = nn.Sequential(RandomCrop(2, **options), RandomIntensity(0.05, **options))
    source = torch.randint(256, (1, 10, 10), dtype=torch.uint8)
    mask = MaskObservations(1.0, zero=0.0, replace=1.0, source=lambda n: source.expand(n, 1, 10, 10), augment=augment)
    mask(TensorDict({"mcurl": {"query_pixels": torch.zeros(13, 1, 2, 2)}}, [13]))
    assert [part.per for part in augment] == ["slice", "slice"]


def test_keys_of_ones_own() -> None:
    batch = make_batch().rename_key_(QUERY, "seen")
    out = MaskObservations(0.5, in_key="seen", out_key="hidden", masked_key="where", zeroed_key=("a", "zero"))(batch)
    assert torch.equal(out["seen"], make_batch()[QUERY])
    assert out["where"].dtype == out["a", "zero"].dtype == torch.bool
    assert (out["hidden"][out["a", "zero"]] == 0).all()


def test_all_random_numbers_come_from_the_generator() -> None:
    before = torch.get_rng_state()
    first, second = (MaskObservations(0.5, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert (first(make_batch()) == second(make_batch())).all()
    restored = pickle.loads(pickle.dumps(first))
    assert (first(make_batch()) == restored(make_batch())).all()
    assert torch.equal(torch.get_rng_state(), before)


def test_copies() -> None:
    transform = MaskObservations(0.3, zero=0.5, replace=0.2)
    for twin in (copy.deepcopy(transform), pickle.loads(pickle.dumps(transform)), transform.clone()):
        torch.manual_seed(0)
        expected = transform(make_batch())
        torch.manual_seed(0)
        assert (twin(make_batch()) == expected).all()


def test_bad_input() -> None:
    for ratio in (-0.1, 1.5):
        with pytest.raises(ValueError, match=f"mask_ratio={ratio}; it must be between 0 and 1"):
            MaskObservations(ratio)
    with pytest.raises(ValueError, match="zero=0.8 and replace=0.4 .* their sum is above 1"):
        MaskObservations(0.5, zero=0.8, replace=0.4)
    with pytest.raises(KeyError, match="MaskObservations needs .*query_pixels.*the tensordict has .*'pixels'"):
        MaskObservations(0.5)(TensorDict({"pixels": torch.zeros(3)}, [3]))
    with pytest.raises(ValueError, match="give an augment that crops them"):
        MaskObservations(1.0, zero=0.0, replace=1.0, source=lambda n: torch.zeros(n, 2, 9, 9))(make_batch())
    with pytest.raises(ValueError, match="not a whole number of slices of slice_len=7"):
        MaskObservations(1.0, zero=0.0, replace=1.0, slice_len=7)(make_batch(2, 10))
    with pytest.raises(RuntimeError, match="not for environments"):
        MaskObservations(0.5)._reset(None, None)
