"""The check for finite losses."""

from __future__ import annotations

import math

import pytest
import torch

from mcurl_torchrl.training import NonFiniteLoss, check_finite


class TestCheckFinite:
    def test_finite_losses_pass(self) -> None:
        check_finite(1, loss_actor=torch.tensor(1.0, requires_grad=True), loss_critic=torch.tensor([2.0]), loss_alpha=3)
        check_finite(1)

    def test_names_the_step_each_bad_part_and_the_checkpoint(self) -> None:
        losses = {
            "loss_actor": torch.tensor(torch.nan),
            "loss_critic": torch.tensor(1.0),
            "loss_alpha": -math.inf,
            "loss_contrastive": torch.tensor(torch.inf, dtype=torch.bfloat16),
        }
        with pytest.raises(NonFiniteLoss) as caught:
            check_finite(700, last_good="checkpoints/500", **losses)
        assert str(caught.value) == (
            "non-finite loss at step 700: loss_actor=nan, loss_alpha=-inf, loss_contrastive=inf; "
            "the last good checkpoint is checkpoints/500"
        )
        assert isinstance(caught.value, FloatingPointError)

    def test_without_a_checkpoint(self) -> None:
        with pytest.raises(NonFiniteLoss) as caught:
            check_finite(7, loss_actor=torch.tensor(torch.nan))
        assert str(caught.value) == "non-finite loss at step 7: loss_actor=nan"

    def test_one_transfer_for_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        transfers = []
        to_list = torch.Tensor.tolist
        monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: transfers.append(tensor) or to_list(tensor))
        for reader in ("item", "__float__", "__bool__"):
            monkeypatch.setattr(torch.Tensor, reader, lambda tensor: pytest.fail("read one by one"))
        check_finite(1, a=torch.tensor(1.0), b=torch.tensor(2.0), c=torch.tensor(3.0))
        assert len(transfers) == 1

    def test_refuses_more_than_one_number(self) -> None:
        with pytest.raises(ValueError, match=r"loss_actor has the shape \[3\]"):
            check_finite(1, loss_actor=torch.zeros(3))
