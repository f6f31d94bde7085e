"""Augmentations by name against what they are made of, and the transform of RL's batches."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from tensordict import TensorDict

from mcurl_torchrl import CenterCrop, RandomCrop, RandomShift
from mcurl_torchrl.transforms import RandomIntensity, augment_transitions, make_augmentation


def draw_images(count: int = 12, size: int = 24) -> torch.Tensor:
    return torch.randint(256, (count, 2, size, size), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("kind", "options", "steps"),
    [
        ("none", {"crop_size": 20}, [CenterCrop(20)]),
        ("none", {"intensity_scale": 0.05}, [RandomIntensity(0.05)]),
        ("crop", {"crop_size": 20}, [RandomCrop(20)]),
        ("crop", {"crop_size": 20, "intensity_scale": 0.05}, [RandomCrop(20), RandomIntensity(0.05)]),
        ("shift", {}, [RandomShift(margin=0, padding=4)]),
        ("shift", {"crop_size": 20}, [CenterCrop(20), RandomShift(margin=0, padding=4)]),
        ("shift", {"intensity_scale": 0.1}, [RandomShift(margin=0, padding=4), RandomIntensity(0.1)]),
        ("curl_shift", {}, [RandomShift()]),
    ],
)
def test_a_name_stands_for_these_transforms_in_this_order(kind: str, options: dict, steps: list) -> None:
    images = draw_images()
    torch.manual_seed(3)
    made = make_augmentation(kind, **options)(images)
    torch.manual_seed(3)
    for step in steps:
        images = step(images)
    assert made.dtype == images.dtype and torch.equal(made, images)


def test_none_is_none() -> None:
    assert make_augmentation() is make_augmentation("none", intensity_scale=0.0) is None
    assert augment_transitions(None) is None


def test_a_shift_is_by_up_to_4_pixels_each_as_often_and_repeats_the_border() -> None:
    image = draw_images(1, size=10)
    padded = F.pad(image.float(), (4, 4, 4, 4), mode="replicate").byte()[0]
    places = {padded[:, top : top + 10, left : left + 10].numpy().tobytes(): 0 for top in range(9) for left in range(9)}
    assert len(places) == 81
    torch.manual_seed(0)
    for found in make_augmentation("shift")(image.expand(4000, -1, -1, -1)):
        places[found.numpy().tobytes()] += 1  # another image would be no key
    assert stats.chisquare(list(places.values())).pvalue > 1e-3


def test_names_and_sizes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"kind='flip'.*'curl_shift'"):
        make_augmentation("flip")
    with pytest.raises(ValueError, match="needs a crop_size"):
        make_augmentation("crop")
    with pytest.raises(ValueError, match="intensity_scale=-1"):
        make_augmentation("shift", intensity_scale=-1)


def test_observations_next_observations_and_a_second_view_have_draws_of_their_own() -> None:
    augmentation = make_augmentation("shift")
    for second_next in (False, True):
        now, following = draw_images(), draw_images()
        batch = TensorDict({"pixels": now, "next": {"pixels": following}}, [12])
        torch.manual_seed(5)
        batch = augment_transitions(augmentation, second_next=second_next)(batch)
        torch.manual_seed(5)
        assert torch.equal(batch["pixels"], augmentation(now))
        assert torch.equal(batch["next", "pixels"], augmentation(following))
        assert (("next", "second_pixels") in batch.keys(True)) == second_next
        if second_next:
            assert torch.equal(batch["next", "second_pixels"], augmentation(following))
            assert not torch.equal(batch["next", "second_pixels"], batch["next", "pixels"])
