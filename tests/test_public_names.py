"""The public names: each has a docstring with an example."""

from __future__ import annotations

import pytest

import mcurl_torchrl

PROMISED = {
    "AtariEncoder",
    "AuxiliaryTask",
    "CategoricalDQNLoss",
    "CenterCrop",
    "ContextTransformer",
    "ContrastiveLoss",
    "ContrastiveTask",
    "EpisodeSliceSampler",
    "FrameReplayBuffer",
    "LatentSAC",
    "MaskObservations",
    "MaskedContrastiveLoss",
    "MaskedContrastiveTask",
    "PixelEncoder",
    "PrioritizedTransitionSampler",
    "RandomCrop",
    "RandomShift",
    "StackFrames",
    "TransitionSampler",
    "inverse_sqrt_warmup",
    "joint_parameters",
    "load_policy",
    "make_atari_env",
    "make_dmc_env",
    "make_pixel_env",
}


def test_all_names_are_there() -> None:
    assert set(mcurl_torchrl.__all__) == PROMISED


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_each_has_a_docstring_with_an_example(name: str) -> None:
    docstring = getattr(mcurl_torchrl, name).__doc__
    assert docstring is not None
    assert ">>> " in docstring  # and make test runs it
