"""MaskedContrastiveLoss against what the authors' released code computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mcurl_torchrl.objectives.parameters import call_with
from tests.objectives.golden import (
    CONTEXT_NAMES,
    ENCODER_NAMES,
    golden_batch,
    load_golden,
    make_golden_loss,
    released_name,
)


def assert_golden(found: Tensor, expected: Tensor, name: str = "") -> None:
    """Compares as the contract says: the largest difference against the largest value."""
    difference = (found.double() - expected.double()).abs().max()
    assert difference <= 1e-5 * expected.double().abs().max(), (name, difference)


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return load_golden()


def test_the_golden_batch_covers_all_cases(golden: dict[str, Tensor]) -> None:
    zeroed = golden_batch(golden, with_zeroed=True)["mcurl", "zeroed"]
    assert 0 < zeroed.sum() < golden["mask"].sum() < 15


@pytest.mark.parametrize("with_zeroed", [False, True], ids=["plain", "zeros-once"])
@pytest.mark.parametrize("paper", [False, True], ids=["code", "paper"])
def test_loss_and_every_gradient(golden: dict[str, Tensor], paper: bool, with_zeroed: bool) -> None:
    loss = make_golden_loss(golden, paper=paper)
    prefix = "paper_" if paper else ""
    value = loss(golden_batch(golden, with_zeroed=with_zeroed))["loss_contrastive"]
    assert_golden(value, golden[f"{prefix}loss"])
    value.backward()
    compared = 0
    for network, part, names in (
        (loss.encoder_network_params, "encoder", ENCODER_NAMES),
        (loss.context_network_params, "transformer", CONTEXT_NAMES),
    ):
        for key, parameter in network.items(True, True):
            name = released_name(key if isinstance(key, str) else ".".join(key), names)
            assert_golden(parameter.grad, golden[f"{prefix}grad/{part}/{name}"], name)
            compared += 1
    assert compared == len([name for name in golden if name.startswith(f"{prefix}grad/")])
    assert all(parameter.grad is None for parameter in loss.target_encoder_network.parameters())


def test_the_slices_own_negatives_with_scaled_attention(golden: dict[str, Tensor]) -> None:
    loss = make_golden_loss(golden, negatives="sequence", reduction="sum")
    value = loss(golden_batch(golden, with_zeroed=True))["loss_contrastive"]
    assert_golden(value, golden["loss_sequence_sum"])


@pytest.mark.parametrize("paper", [False, True], ids=["code", "paper"])
def test_latents_queries_keys_and_logits(golden: dict[str, Tensor], paper: bool) -> None:
    loss = make_golden_loss(golden, paper=paper)
    with torch.no_grad():
        latents = loss.encode(golden["obs_masked"])
        queries = call_with(loss.context_network_params, loss.context_network, latents)
        keys = loss.encode_keys(golden["obs"])
    assert_golden(latents, golden["latents"])
    assert_golden(queries, golden["paper_queries" if paper else "queries"])
    assert_golden(keys, golden["keys"])
    if not paper:
        logits = queries.flatten(0, 1)[golden["mask"].flatten()] @ keys.flatten(0, 1).T
        assert_golden(logits, golden["logits"])


def test_no_reduction_is_zero_where_nothing_is_hidden(golden: dict[str, Tensor]) -> None:
    losses = make_golden_loss(golden, reduction="none")(golden_batch(golden, with_zeroed=True))["loss_contrastive"]
    assert losses.shape == (3, 5)
    assert torch.equal(losses != 0, golden["mask"])
    assert_golden(losses.sum() / golden["mask"].sum(), golden["loss"])
