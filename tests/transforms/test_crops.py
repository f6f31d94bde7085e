"""Crops against slicing by hand, where they fall, and TorchRL's contracts."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tensordict import TensorDict
from torchrl.envs import Compose

from mcurl_torchrl import CenterCrop, RandomCrop, RandomShift
from mcurl_torchrl.transforms import center_crop, crop, shift

TRANSFORMS = [
    lambda **kw: RandomCrop(6, **kw),
    lambda **kw: CenterCrop(6, **kw),
    lambda **kw: RandomShift(margin=1, padding=2, **kw),
]
IDS = ["RandomCrop", "CenterCrop", "RandomShift"]
DTYPES = [torch.uint8, torch.float32, torch.bfloat16]


def numbered_images(*lead: int, size: int = 100) -> torch.Tensor:
    """Images ``[*lead, 2, size, size]`` whose pixels tell their row and column."""
    place = torch.arange(size, dtype=torch.uint8)
    rows, columns = place[:, None].expand(size, size), place.expand(size, size)
    return torch.stack([rows, columns]).expand(*lead, 2, size, size)


def corners(images: torch.Tensor) -> torch.Tensor:
    """Reads where crops of numbered images begin: ``[*, 2]``."""
    return images[..., 0, 0].long()


@given(
    number=st.integers(0, 6),
    channels=st.integers(1, 4),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    data=st.data(),
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_crop_is_slicing(dtype: torch.dtype, number: int, channels: int, height: int, width: int, data) -> None:
    size = data.draw(st.tuples(st.integers(1, height), st.integers(1, width)))
    top = data.draw(st.lists(st.integers(0, height - size[0]), min_size=number, max_size=number))
    left = data.draw(st.lists(st.integers(0, width - size[1]), min_size=number, max_size=number))
    images = torch.randint(256, (number, channels, height, width)).to(dtype)
    cut = crop(images, torch.tensor(top, dtype=torch.int64), torch.tensor(left, dtype=torch.int64), size)
    assert cut.shape == (number, channels, *size)
    for image, t, c, found in zip(images, top, left, cut, strict=True):
        assert torch.equal(found, image[:, t : t + size[0], c : c + size[1]])


def test_crop_of_images_that_are_not_contiguous() -> None:
    images = torch.randint(256, (4, 3, 10, 10)).transpose(0, 1)
    top, left = torch.tensor([0, 2, 4]), torch.tensor([1, 3, 4])
    expected = torch.stack([image[:, t : t + 6, c : c + 6] for image, t, c in zip(images, top, left, strict=True)])
    assert torch.equal(crop(images, top, left, 6), expected)


class TestRandomCrop:
    def test_every_place_occurs_equally_often(self) -> None:
        random_crop = RandomCrop(84, generator=torch.Generator().manual_seed(0))
        places = torch.cat([corners(random_crop(numbered_images(1000))) for _ in range(20)])
        counts = torch.bincount(places[:, 0] * 17 + places[:, 1], minlength=289)
        assert len(counts) == 289 and (counts > 0).all()
        assert stats.chisquare(counts).pvalue > 1e-3

    def test_one_place_per_stack_and_independent_views(self) -> None:
        batch = TensorDict({"pixels": numbered_images(400).repeat(1, 3, 1, 1)}, [400])  # three frames of two channels
        views = Compose(
            RandomCrop(84, in_keys=["pixels"], out_keys=["query"]), RandomCrop(84, in_keys=["pixels"], out_keys=["key"])
        )(batch)
        frames = corners(views["query"].unflatten(1, (3, 2)))
        assert (frames == frames[:, :1]).all()
        assert torch.equal(batch["pixels"], numbered_images(400).repeat(1, 3, 1, 1))
        query, key = frames[:, 0], corners(views["key"][:, :2])
        assert (query == key).all(-1).float().mean() < 0.03  # 1 in 289
        assert abs(torch.corrcoef(torch.stack([query[:, 0].float(), key[:, 0].float()]))[0, 1]) < 0.2

    @pytest.mark.parametrize("flat", [False, True])
    def test_one_place_per_slice(self, flat: bool) -> None:
        images = numbered_images(30, 8)
        transform = RandomCrop(84, per="slice", slice_len=8 if flat else None)
        places = corners(transform(images.flatten(0, 1) if flat else images)).view(30, 8, 2)
        assert (places == places[:, :1]).all()
        assert len(places[:, 0].unique(dim=0)) > 20

    def test_the_crop_is_the_images_part_at_that_place(self) -> None:
        images = torch.randint(256, (50, 3, 20, 24), dtype=torch.uint8)
        marked = torch.cat([images, numbered_images(50, size=24)[:, :, :20]], 1)
        out = RandomCrop(16)(marked)
        for image, cut, (top, left) in zip(images, out[:, :3], corners(out[:, 3:]).tolist(), strict=True):
            assert torch.equal(cut, image[:, top : top + 16, left : left + 16])

    def test_as_large_as_the_image(self) -> None:
        images = numbered_images(3)
        assert torch.equal(RandomCrop(100)(images), images)


class TestRandomShift:
    def test_by_hand(self) -> None:
        """All shifts of a small image, made by hand, and no other."""
        image = torch.arange(36, dtype=torch.uint8).view(1, 1, 6, 6)
        possible = set()
        for top in range(3):
            for left in range(3):
                inner = image[..., top : top + 4, left : left + 4].float()
                padded = torch.nn.functional.pad(inner, (2, 2, 2, 2), mode="replicate").to(torch.uint8)
                for down in range(3):
                    for right in range(3):
                        possible.add(bytes(padded[..., down : down + 6, right : right + 6].flatten().tolist()))
        shifted = RandomShift(margin=1, padding=2)(image.expand(3000, 1, 6, 6))
        assert {bytes(one.flatten().tolist()) for one in shifted} == possible

    def test_curls_sizes(self) -> None:
        images = numbered_images(500, size=84)
        shifted = RandomShift()(images)
        assert shifted.shape == images.shape
        # 80 of 84 kept, moved by -4..4: the middle is always there.
        assert set(shifted[:, 0, 42, 0].tolist()) == set(range(38, 47))


def plain_shift(image: torch.Tensor, top: int, left: int, size: tuple, padding: int, down: int, right: int):
    inner = image[None, :, top : top + size[0], left : left + size[1]].double()
    padded = torch.nn.functional.pad(inner, (padding,) * 4, mode="replicate")[0].to(image.dtype)
    height, width = image.shape[-2:]
    return padded[:, down : down + height, right : right + width]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES)
class TestOneByOne:
    """Every image against cutting it out by itself, whatever comes first in memory."""

    def test_crop(self, dtype: torch.dtype, channels: int, layout: torch.memory_format) -> None:
        images = torch.randint(256, (40, channels, 9, 11)).to(dtype).contiguous(memory_format=layout)
        top, left = torch.randint(9 - 5 + 1, (40,)), torch.randint(11 - 5 + 1, (40,))
        top[0] = left[0] = 0
        top[-1], left[-1] = 4, 6  # the two ends of memory
        cut = crop(images, top, left, 5)
        for number, image in enumerate(images):
            assert torch.equal(cut[number], image[:, top[number] :, left[number] :][:, :5, :5])
        assert cut.is_contiguous(memory_format=layout) and cut.dtype == dtype

    @pytest.mark.parametrize(("size", "padding"), [(7, 3), (7, 1), (9, 0), (5, 2)])
    def test_shift(
        self, dtype: torch.dtype, channels: int, layout: torch.memory_format, size: int, padding: int
    ) -> None:
        images = torch.randint(256, (60, channels, 9, 12)).to(dtype).contiguous(memory_format=layout)
        first, second = 9 - size + 1, size + 2 * padding - 9 + 1
        places = [torch.randint(below, (60,)) for below in (first, first, second, second)]
        for place, below in zip(places, (first, first, second, second), strict=True):
            place[0], place[-1] = 0, below - 1
        top, left, down, right = places
        moved = shift(images, top, left, (size, size + 3), padding, down, right)
        for number, image in enumerate(images):
            place = [int(places[k][number]) for k in range(4)]
            expected = plain_shift(image, *place[:2], (size, size + 3), padding, *place[2:])
            assert torch.equal(moved[number], expected)
        assert moved.is_contiguous(memory_format=layout) and moved.dtype == dtype


def test_center_crop() -> None:
    assert corners(CenterCrop(84)(numbered_images(1)))[0].tolist() == [8, 8]
    assert corners(center_crop(numbered_images(1, size=9), 4))[0].tolist() == [2, 2]
    assert corners(CenterCrop((84, 50))(numbered_images(1)))[0].tolist() == [8, 25]


def test_rectangles() -> None:
    assert RandomCrop((6, 4))(torch.zeros(2, 3, 8, 8)).shape == (2, 3, 6, 4)
    places = corners(RandomCrop((98, 96))(numbered_images(300)))
    assert set(places[:, 0].tolist()) == set(range(3)) and set(places[:, 1].tolist()) == set(range(5))
    rows = torch.arange(10, dtype=torch.uint8)[:, None].expand(300, 1, 10, 20)
    columns = torch.arange(20, dtype=torch.uint8).expand(300, 1, 10, 20)
    moved = RandomShift(margin=1, padding=2)(torch.cat([rows, columns], 1))
    assert moved.shape == (300, 2, 10, 20)
    assert set(moved[:, 0, 5, 10].tolist()) == set(range(3, 8))
    assert set(moved[:, 1, 5, 10].tolist()) == set(range(8, 13))


@pytest.mark.parametrize("make", TRANSFORMS, ids=IDS)
class TestTensorsAndShapes:
    """What is special to transforms of images; the rest of TorchRL's contract: tests/contract/test_transforms.py."""

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
    @pytest.mark.parametrize("lead", [(), (5,), (2, 3)])
    def test_a_tensor_alone(self, make, lead: tuple, dtype: torch.dtype) -> None:
        out = make()(torch.zeros(*lead, 3, 8, 8, dtype=dtype))
        assert out.shape[:-2] == (*lead, 3) and out.dtype == dtype

    def test_missing_keys_and_shapes(self, make) -> None:
        name = type(make()).__name__
        with pytest.raises(KeyError, match=f"{name} needs 'pixels'; the tensordict has .*'image'"):
            make()(TensorDict({"image": torch.zeros(3, 8, 8)}))
        with pytest.raises(ValueError, match=r"takes images \[\*, C, H, W\]; got shape \(8, 8\)"):
            make()(torch.zeros(8, 8))
        with pytest.raises(ValueError, match="must have the length of in_keys"):
            make(in_keys=["a"], out_keys=["a", "b"])


@pytest.mark.parametrize("make", [TRANSFORMS[0], TRANSFORMS[2]], ids=[IDS[0], IDS[2]])
def test_all_random_numbers_come_from_the_generator(make) -> None:
    images = torch.randint(256, (50, 3, 8, 8), dtype=torch.uint8)
    before = torch.get_rng_state()
    first, second = (make(generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first(images), second(images))
    restored = pickle.loads(pickle.dumps(first))
    assert torch.equal(first(images), restored(images))
    assert torch.equal(torch.get_rng_state(), before)


def test_bad_input() -> None:
    for transform in (RandomCrop(84), CenterCrop(84)):
        with pytest.raises(ValueError, match="size=84 is larger than the images, 64x90"):
            transform(torch.zeros(1, 64, 90))
    with pytest.raises(ValueError, match=r"per='batch'; choose one of \['sample', 'slice'\]"):
        RandomCrop(84, per="batch")
    with pytest.raises(ValueError, match="per='slice' needs images"):
        RandomCrop(84, per="slice")(torch.zeros(4, 3, 84, 84))
    with pytest.raises(ValueError, match="10 images are not a whole number of slices of slice_len=4"):
        RandomCrop(84, per="slice", slice_len=4)(torch.zeros(10, 3, 84, 84))
    with pytest.raises(ValueError, match="size=0; it must be at least 1"):
        RandomCrop(0)
    with pytest.raises(ValueError, match="margin=3, padding=2"):
        RandomShift(margin=3, padding=2)
    with pytest.raises(ValueError, match="takes images larger than 4; got 8x4"):
        RandomShift()(torch.zeros(1, 8, 4))
    with pytest.raises(ValueError, match=r"size=\(84, 91\) is larger than the images, 84x90"):
        RandomCrop((84, 91))(torch.zeros(1, 84, 90))
    with pytest.raises(ValueError, match=r"size=\(1, 2, 3\); it must be a whole number, or height and width"):
        CenterCrop((1, 2, 3))
