"""InfoNCE against closed forms and a loop."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mcurl_torchrl.objectives import info_nce, masked_info_nce, reduce_masked


def test_closed_form() -> None:
    keys = 2.0 * torch.eye(4)  # logits 4 * I
    expected = torch.log1p(3 * torch.tensor(-4.0).exp())
    torch.testing.assert_close(masked_info_nce(keys, keys, masked=torch.ones(4, dtype=torch.bool)), expected)
    colder = masked_info_nce(keys, keys, masked=torch.ones(4, dtype=torch.bool), temperature=0.5)
    torch.testing.assert_close(colder, torch.log1p(3 * torch.tensor(-8.0).exp()))


def plain_losses(queries: Tensor, keys: Tensor, negatives: str, temperature: float) -> tuple[Tensor, Tensor]:
    """One position at a time."""
    slices, length, _ = queries.shape
    losses, correct = torch.zeros(slices, length), torch.zeros(slices, length, dtype=torch.bool)
    for b in range(slices):
        for t in range(length):
            candidates = [(b, s) for s in range(length)]
            if negatives == "batch":
                candidates = [(c, s) for c in range(slices) for s in range(length)]
            scores = {place: float(queries[b, t] @ keys[place]) / temperature for place in candidates}
            top = max(scores.values())
            total = sum(math.exp(score - top) for score in scores.values())
            losses[b, t] = math.log(total) + top - scores[b, t]
            correct[b, t] = scores[b, t] == top
    return losses, correct


@pytest.mark.parametrize("negatives", ["batch", "sequence"])
@given(
    slices=st.integers(1, 4),
    length=st.integers(1, 5),
    dim=st.integers(1, 4),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_against_a_loop(negatives: str, slices: int, length: int, dim: int, temperature: float) -> None:
    queries, keys = torch.randn(slices, length, dim), torch.randn(slices, length, dim)
    losses, correct = info_nce(queries, keys, negatives=negatives, temperature=temperature)
    expected, expected_correct = plain_losses(queries, keys, negatives, temperature)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(correct, expected_correct)


def test_large_logits_do_not_overflow() -> None:
    queries = torch.randn(2, 3, 4) * 1e4
    assert info_nce(queries, queries)[0].isfinite().all()


def test_reductions() -> None:
    losses = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    masked = torch.tensor([[True, False], [True, False]])
    assert reduce_masked(losses, masked, "mean") == 2
    assert reduce_masked(losses, masked, "sum") == 4
    assert reduce_masked(losses, masked, "none").tolist() == [[1, 0], [3, 0]]
    nothing = reduce_masked(losses, torch.zeros_like(masked), "mean")
    nothing.backward()
    assert nothing == 0 and (losses.grad == 0).all()


def test_float32_under_autocast() -> None:
    queries = torch.randn(2, 3, 4, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses, _ = info_nce(queries, queries)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, info_nce(queries.float(), queries.float())[0])


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"negatives='others'; choose one of \['batch', 'sequence'\]"):
        info_nce(torch.zeros(1, 2, 3), torch.zeros(1, 2, 3), negatives="others")
    with pytest.raises(ValueError, match=r"reduction='max'; choose one of \['mean', 'sum', 'none'\]"):
        reduce_masked(torch.zeros(2), torch.ones(2, dtype=torch.bool), "max")
    with pytest.raises(ValueError, match=r"queries \(1, 2, 3\) and keys \(1, 2, 4\) must have the same shape"):
        info_nce(torch.zeros(1, 2, 3), torch.zeros(1, 2, 4))


def test_queries_of_a_share_have_the_losses_that_they_have_in_the_whole():
    queries, keys, valid = torch.randn(4, 3, 5), torch.randn(4, 3, 5), torch.rand(4, 3) < 0.7
    whole = info_nce(queries, keys, valid=valid)
    share = info_nce(queries[2:], keys, valid=valid, first_key=2)
    for ours, expected in zip(share, whole, strict=True):
        assert torch.equal(ours, expected[2:])


@pytest.mark.parametrize("options", [{}, {"first_key": 3}, {"first_key": 2, "negatives": "sequence"}])
def test_more_keys_than_queries_are_refused_but_where_they_are_said_to_be(options):
    with pytest.raises(ValueError, match="must have the same shape"):
        info_nce(torch.randn(2, 3, 5), torch.randn(4, 3, 5), **options)
