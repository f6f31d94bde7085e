"""MaskCubes and RandomIntensity: which pixels are hidden, in which observations, and how bright the rest is."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from mcurl_torchrl.transforms import MaskCubes, RandomIntensity

QUERY, CUBES = ("mcurl", "query_pixels"), ("mcurl", "cubes")


def make_batch(slices: int = 3, length: int = 8, size: int = 20) -> TensorDict:
    pixels = torch.randint(1, 256, (slices, length, 2, size, size), dtype=torch.uint8)
    return TensorDict({"pixels": pixels}, [slices, length])


def patches_of(cubes: Tensor, patch: int) -> Tensor:
    """Checks that patches are hidden as a whole, and returns which, ``[T, rows, columns]``, of the first slice."""
    assert all(torch.equal(cubes[0], other) for other in cubes)
    tiles = cubes[0].unfold(1, patch, patch).unfold(2, patch, patch).flatten(3)
    assert (tiles.all(-1) | ~tiles.any(-1)).all()
    return tiles.any(-1)


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.5, 1.0])
def test_whole_patches_for_whole_blocks_of_time(ratio: float) -> None:
    original = make_batch()
    batch = MaskCubes(ratio, patch_size=5, block_len=4)(original.clone())
    patches = patches_of(batch[CUBES], 5)
    assert patches.shape == (8, 4, 4)
    assert (patches.flatten(1).sum(-1) == int(ratio * 16)).all()  # the same number in every observation
    for block in patches.split(4):
        assert all(torch.equal(block[0], other) for other in block)
    if 0 < ratio < 1:
        assert not torch.equal(patches[0], patches[4])
    hidden = batch[CUBES].unsqueeze(2).expand_as(original["pixels"])
    assert (batch[QUERY][hidden] == 0).all()
    assert torch.equal(batch[QUERY][~hidden], original["pixels"][~hidden])
    assert torch.equal(batch["pixels"], original["pixels"])  # targets see the whole image


def test_all_sets_of_patches_are_equally_likely() -> None:
    transform = MaskCubes(0.5, patch_size=10, block_len=1, generator=torch.Generator().manual_seed(0))
    patches = patches_of(transform(make_batch(1, 3000))[CUBES], 10).flatten(1)
    number = (patches * torch.tensor([1, 2, 4, 8])).sum(-1)
    counts = number.bincount(minlength=16)
    pairs = [3, 5, 6, 9, 10, 12]  # two of four patches
    assert counts[pairs].sum() == 3000
    assert all(abs(count - 500) < 4 * math.sqrt(500) for count in counts[pairs].tolist())


def test_sizes_that_do_not_divide() -> None:
    batch = MaskCubes(0.5, patch_size=7, block_len=5)(make_batch())  # a grid of 2 x 2, blocks of 5 and 3
    cubes = batch[CUBES]
    assert (patches_of(cubes, 10).flatten(1).sum(-1) == 2).all()
    assert torch.equal(cubes[0, 0], cubes[0, 4]) and torch.equal(cubes[0, 5], cubes[0, 7])


def test_a_flat_batch_of_slices() -> None:
    flat = make_batch().reshape(-1)
    cubes = MaskCubes(0.5, patch_size=5, block_len=4, slice_len=8)(flat)[CUBES]
    patches_of(cubes.view(3, 8, 20, 20), 5)


def test_the_generator_decides_also_after_a_copy() -> None:
    first = MaskCubes(0.5, patch_size=5, generator=torch.Generator().manual_seed(3))
    second = pickle.loads(pickle.dumps(first))
    batch = make_batch()
    assert torch.equal(first(batch.clone())[CUBES], second(batch.clone())[CUBES])


def test_bad_sizes_name_themselves() -> None:
    with pytest.raises(ValueError, match="patch_size=30 is larger than the images, 20x20"):
        MaskCubes(0.5, patch_size=30)(make_batch())
    with pytest.raises(ValueError, match="24 observations are not a whole number of slices of slice_len=5"):
        MaskCubes(0.5, slice_len=5)(make_batch())
    with pytest.raises(ValueError, match="mask_ratio=2; it must be"):
        MaskCubes(2)
    with pytest.raises(RuntimeError, match="not for environments"):
        MaskCubes(0.5)._call(make_batch())


def test_intensity_is_one_factor_per_observation_of_the_right_size() -> None:
    images = torch.full((4000, 2, 3, 3), 255, dtype=torch.uint8)
    bright = RandomIntensity(0.05, generator=torch.Generator().manual_seed(0))(images)
    factor = bright[:, 0, 0, 0]
    assert torch.equal(bright, factor.view(-1, 1, 1, 1).expand_as(bright))
    drawn = (factor - 1) / 0.05
    assert drawn.abs().max() <= 2 + 1e-4 and (drawn.abs() > 1.9999).float().mean() > 0.02  # cut at two
    assert abs(drawn.mean()) < 0.07 and 0.9 < drawn.std() < 1.0
    floats = RandomIntensity(0.05, generator=torch.Generator().manual_seed(0))(images.float() / 255)
    torch.testing.assert_close(floats, bright)
    with pytest.raises(RuntimeError, match="not for environments"):
        RandomIntensity()._call(TensorDict({"pixels": images}, [4000]))
