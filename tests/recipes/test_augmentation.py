"""The setting augmentation=: what each algorithm has, what RL's batches and the task's views become, and old keys."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical

from mcurl_torchrl import FrameReplayBuffer
from mcurl_torchrl.transforms import KEY_VIEW, QUERY_VIEW, make_augmentation
from recipes import ppo_mcurl, rainbow_mcurl, sac_mcurl
from recipes.schema import PPORecipeConfig, RainbowRecipeConfig, SACRecipeConfig
from tests.recipes import running
from tests.recipes.test_objective_updates import SIZES, fill

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SCHEMAS = {"sac_mcurl": SACRecipeConfig, "rainbow_mcurl": RainbowRecipeConfig, "ppo_mcurl": PPORecipeConfig}
PLAIN = ("none", 0.0)


def augmentation_of(recipe: str, *overrides: str) -> tuple[Any, ...]:
    found = running.settings(*overrides, recipe=recipe).augmentation
    return (found.batch, found.batch_intensity), (found.views, found.views_intensity), found.second_next


@pytest.mark.parametrize(
    ("recipe", "overrides", "batch", "views"),
    [
        ("sac_mcurl", "", ("crop", 0.0), ("crop", 0.0)),
        ("sac_mcurl", "algo=curl", ("crop", 0.0), ("crop", 0.0)),
        ("sac_mcurl", "algo=rad", ("crop", 0.0), ("crop", 0.0)),
        ("sac_mcurl", "algo=sac", PLAIN, ("crop", 0.0)),
        ("sac_mcurl", "algo=mlr", ("crop", 0.0), ("crop", 0.05)),  # the released code changes no brightness for SAC
        ("sac_mcurl", "algo=sac augmentation=shift_intensity", ("shift", 0.05), ("shift", 0.05)),
        ("rainbow_mcurl", "", PLAIN, ("curl_shift", 0.0)),
        ("rainbow_mcurl", "algo=rainbow", PLAIN, ("curl_shift", 0.0)),
        ("rainbow_mcurl", "algo=rad", ("shift", 0.0), ("curl_shift", 0.0)),
        ("rainbow_mcurl", "algo=spr", PLAIN, ("curl_shift", 0.05)),
        ("rainbow_mcurl", "algo=mlr", PLAIN, ("curl_shift", 0.05)),
        ("rainbow_mcurl", "algo=spr reference=spr", ("shift", 0.05), ("shift", 0.05)),
        ("rainbow_mcurl", "algo=mlr reference=spr", ("shift", 0.05), ("shift", 0.05)),
        ("rainbow_mcurl", "algo=spr reference=sr_spr", ("shift", 0.05), ("shift", 0.05)),
        ("rainbow_mcurl", "algo=spr reference=spr augmentation=none", PLAIN, PLAIN),
        ("rainbow_mcurl", "algo=mcurl augmentation=shift", ("shift", 0.0), ("shift", 0.0)),
        ("ppo_mcurl", "", PLAIN, ("curl_shift", 0.0)),
        ("ppo_mcurl", "algo=mlr", PLAIN, ("curl_shift", 0.05)),
        ("ppo_mcurl", "algo=rad", ("shift", 0.0), ("curl_shift", 0.0)),
    ],
)
def test_what_each_algorithm_has(recipe: str, overrides: str, batch: tuple, views: tuple) -> None:
    found = augmentation_of(recipe, *overrides.split())
    assert found[:2] == (batch, views)
    assert found[2] == ("reference=spr" in overrides)


def test_augmentation_alone_is_an_algorithm_of_every_recipe() -> None:
    for recipe in SCHEMAS:
        cfg = running.settings("algo=rad", recipe=recipe)
        assert cfg.algo_name == "rad" and cfg.objective.name == "none" and cfg.augmentation.batch != "none"


# -- what becomes of images --------------------------------------------------------------------------------------------


def sample(recipe: str, folder: Path, *overrides: str) -> TensorDict:
    """Draws a batch as a recipe does; the same seeds give the same transitions, however they are augmented."""
    module, discrete = {"sac_mcurl": sac_mcurl, "rainbow_mcurl": rainbow_mcurl}[recipe], recipe == "rainbow_mcurl"
    cfg = running.settings("preset=smoke", "algo=curl", *SIZES[recipe], *overrides, recipe=recipe)
    size, channels = cfg.env.image_size, 1 if discrete else 3
    spaces = SimpleNamespace(
        observation_spec={"pixels": torch.empty(channels * cfg.env.num_frames, size, size, device="meta")},
        action_spec=Categorical(6) if discrete else Bounded(-1, 1, shape=(2,)),
    )
    buffer: FrameReplayBuffer = module.make_replay(cfg, folder)
    torch.manual_seed(0)
    fill(buffer, channels, size, torch.randint(6, (40,)) if discrete else torch.rand(40, 2))
    module.make_agent(cfg, spaces, buffer, torch.device("cpu"))  # CURL's task adds its views to the batch
    torch.manual_seed(1)
    return buffer.sample(8)


@pytest.mark.parametrize(
    ("recipe", "word", "kind", "scale"),
    [
        ("sac_mcurl", "none", "none", 0.0),
        ("sac_mcurl", "crop", "crop", 0.0),
        ("sac_mcurl", "shift_intensity", "shift", 0.05),
        ("rainbow_mcurl", "shift", "shift", 0.0),
        ("rainbow_mcurl", "shift_intensity", "shift", 0.05),
    ],
)
def test_one_word_augments_rls_batch_and_the_views(
    recipe: str, word: str, kind: str, scale: float, tmp_path: Path
) -> None:
    sac = recipe == "sac_mcurl"
    whole = ["encoder.crop_size=24"] if sac else []  # SAC's encoder sees all of an image: nothing is cut off
    share = ["objective.share_query=false"] if sac else []
    plain = sample(recipe, tmp_path, "augmentation=none", *whole, *share)  # and from here on draw as the buffer does
    augment = make_augmentation(kind, intensity_scale=scale, crop_size=20 if sac else None)
    now, following = plain["pixels"], plain["next", "pixels"]
    expected = [augment(images) for images in (now, now, now, following)]
    batch = sample(recipe, tmp_path, f"augmentation={word}", *share)
    for key, images in zip((QUERY_VIEW, KEY_VIEW, "pixels", ("next", "pixels")), expected, strict=True):
        assert batch[key].dtype == images.dtype and torch.equal(batch[key], images), key
    assert torch.equal(expected[0], expected[1]) == (word == "none")


def test_rainbow_itself_learns_from_plain_images_by_default(tmp_path: Path) -> None:
    plain, batch = sample("rainbow_mcurl", tmp_path, "augmentation=none"), sample("rainbow_mcurl", tmp_path)
    for key in ("pixels", ("next", "pixels")):
        assert torch.equal(batch[key], plain[key])
    assert torch.equal(plain[QUERY_VIEW], plain["pixels"]) and torch.equal(plain[KEY_VIEW], plain["pixels"])
    assert not torch.equal(batch[QUERY_VIEW], plain["pixels"])


def test_spr_chooses_the_next_action_on_a_view_of_its_own(tmp_path: Path) -> None:
    spr = sample("rainbow_mcurl", tmp_path, "reference=spr", "augmentation.views=none")
    assert spr["next", "second_pixels"].dtype == torch.float32
    assert not torch.equal(spr["next", "second_pixels"], spr["next", "pixels"])
    sr_spr = sample("rainbow_mcurl", tmp_path, "reference=sr_spr")
    assert ("next", "second_pixels") not in sr_spr.keys(True)


def test_ppo_augments_its_minibatches_and_nothing_else_of_them(tmp_path: Path) -> None:
    def minibatches(word: str) -> list[TensorDict]:
        cfg = running.settings("preset=smoke", "algo=ppo", f"augmentation={word}", recipe="ppo_mcurl")
        spaces = SimpleNamespace(observation_spec={"pixels": torch.empty(4, 36, 36)}, action_spec=Categorical(3))
        torch.manual_seed(0)
        agent = ppo_mcurl.make_agent(cfg, spaces, ppo_mcurl.make_replay(cfg, tmp_path), torch.device("cpu"))
        pixels, flags = torch.randint(256, (2, 21, 4, 36, 36), dtype=torch.uint8), torch.zeros(2, 20, 1).bool()
        outcome = {"pixels": pixels[:, 1:], "reward": torch.rand(2, 20, 1), "done": flags, "terminated": flags}
        rollout = {"pixels": pixels[:, :-1], "action": torch.randint(3, (2, 20)), "next": outcome}
        torch.manual_seed(1)
        return list(agent.minibatches(TensorDict(rollout, [2, 20])))

    plain, shifted = minibatches("none")[0], minibatches("shift")[0]
    torch.manual_seed(1)
    torch.randperm(40)
    assert torch.equal(shifted["pixels"], make_augmentation("shift")(plain["pixels"]))
    assert not torch.equal(shifted["pixels"], plain["pixels"])
    for key in ("action", "action_log_prob", "advantage", "value_target"):
        assert torch.equal(shifted[key], plain[key]), key
