"""Effective rank, spread and gradient norm, against closed forms; the check for finite losses."""

from __future__ import annotations

import math

import pytest
import torch

from mcurl_torchrl.agents import NonFiniteLoss, check_finite, effective_rank, gradient_norm, latent_spread
from mcurl_torchrl.scalars import stack_scalars


def both_ways(sizes: list[float]) -> torch.Tensor:
    """Two latents, plus and minus ``size``, on each axis: centred, with singular values proportional to the sizes."""
    axes = torch.diag(torch.tensor(sizes))
    return torch.cat([axes, -axes])


class TestEffectiveRank:
    def test_of_an_isotropic_set_is_d(self) -> None:
        torch.testing.assert_close(effective_rank(both_ways([1.0] * 7)), torch.tensor(7.0))

    def test_of_a_line_is_one(self) -> None:
        line = torch.linspace(-1, 1, 9)[:, None] * torch.randn(1, 5)
        torch.testing.assert_close(effective_rank(line), torch.tensor(1.0))

    def test_closed_form_of_unequal_axes(self) -> None:
        shares = [3 / 4, 1 / 4]
        expected = math.exp(-sum(share * math.log(share) for share in shares))
        torch.testing.assert_close(effective_rank(both_ways([3.0, 1.0])), torch.tensor(expected))

    def test_neither_offset_nor_scale_matters(self) -> None:
        latents = torch.randn(40, 6, dtype=torch.float64)
        torch.testing.assert_close(effective_rank(3 * latents + 10), effective_rank(latents))

    @pytest.mark.parametrize("value", [0.0, 1e-3, 0.1, 1234.567])
    def test_of_equal_latents_is_zero(self, value: float) -> None:
        assert effective_rank(torch.full((33, 50), value)) == 0

    def test_flattens_leading_dimensions(self) -> None:
        latents = torch.randn(4, 8, 5)
        torch.testing.assert_close(effective_rank(latents), effective_rank(latents.reshape(32, 5)))

    def test_not_finite_gives_nan_and_no_error(self) -> None:
        latents = torch.randn(8, 4)
        latents[3, 2] = torch.inf
        assert effective_rank(latents).isnan()

    def test_half_precision_and_no_gradient(self) -> None:
        rank = effective_rank(both_ways([1.0] * 4).bfloat16().requires_grad_())
        assert rank.dtype == torch.float32 and not rank.requires_grad
        torch.testing.assert_close(rank, torch.tensor(4.0))

    def test_names_a_wrong_shape(self) -> None:
        with pytest.raises(ValueError, match=r"\[5\]"):
            effective_rank(torch.zeros(5))
        with pytest.raises(ValueError, match=r"\[0, 5\]"):
            effective_rank(torch.zeros(0, 5))


class TestLatentSpread:
    def test_closed_form(self) -> None:
        latents = torch.tensor([[1.0, 0.0, 7.0], [-1.0, 4.0, 7.0]])  # deviations 1, 2, 0
        torch.testing.assert_close(latent_spread(latents), torch.tensor(1.0))
        torch.testing.assert_close(latent_spread(latents.reshape(2, 1, 3)), torch.tensor(1.0))

    def test_of_one_latent_is_zero(self) -> None:
        assert latent_spread(torch.randn(1, 5)) == 0


class TestGradientNorm:
    def test_over_all_parameters(self) -> None:
        first, second, without = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
        first.grad, second.grad = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0])
        norm = gradient_norm(parameter for parameter in (first, second, without))
        torch.testing.assert_close(norm, torch.tensor(5.0))
        assert first.grad.tolist() == [1.0, 2.0]

    def test_without_gradients_is_zero(self) -> None:
        assert gradient_norm([torch.nn.Parameter(torch.zeros(2))]) == 0
        assert gradient_norm([]) == 0

    def test_keeps_no_graph(self) -> None:
        weight = torch.nn.Parameter(torch.ones(3))
        (weight.grad,) = torch.autograd.grad(weight.pow(3).sum(), weight, create_graph=True)
        assert not gradient_norm([weight]).requires_grad


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

    def test_numbers_of_two_devices_go_to_the_accelerator(self) -> None:
        """The meta device stands for a GPU: a loss of an agent without a task is on the CPU."""
        both = stack_scalars([torch.zeros(()), torch.zeros(1, device="meta"), torch.zeros(())])
        assert both.device.type == "meta" and both.shape == (3,)
        assert stack_scalars([torch.ones(1), torch.tensor(2.0, requires_grad=True)]).tolist() == [1, 2]

    def test_refuses_more_than_one_number(self) -> None:
        with pytest.raises(ValueError, match=r"loss_actor has the shape \[3\]"):
            check_finite(1, loss_actor=torch.zeros(3))
