"""ContextTransformer against an independent, plain version."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mcurl_torchrl import ContextTransformer
from mcurl_torchrl.modules import sinusoidal_positions


@pytest.mark.parametrize("dim", [1, 2, 7, 10, 50])
def test_positions_against_the_formula(dim: int) -> None:
    positions = sinusoidal_positions(300, dim)
    for position in (0, 1, 2, 31, 127, 128, 299):
        for place in range(dim):
            angle = position / 10_000 ** ((place - place % 2) / dim)
            expected = math.sin(angle) if place % 2 == 0 else math.cos(angle)
            assert abs(positions[position, place].item() - expected) < 1e-4


def layer_norm(vector: list[float], weight: Tensor, bias: Tensor) -> Tensor:
    values = torch.tensor(vector, dtype=torch.float64)
    mean = values.sum() / len(values)
    variance = ((values - mean) ** 2).sum() / len(values)
    return (values - mean) / (variance + 1e-5).sqrt() * weight + bias


def plain_transformer(context: ContextTransformer, latents: Tensor, *, num_heads: int, scaled: bool) -> Tensor:
    """The same with loops over time and heads, from the description alone, one slice ``[T, d]``."""
    length, dim = latents.shape
    size = dim // num_heads
    x = latents.double() + sinusoidal_positions(length, dim).double()
    for layer in context.layers:
        weights = {name: value.detach().double() for name, value in layer.named_parameters()}
        projected = x @ weights["in_projection.weight"].T + weights["in_projection.bias"]
        q, k, v = projected[:, :dim], projected[:, dim : 2 * dim], projected[:, 2 * dim :]
        attended = torch.zeros_like(x)
        for head in range(num_heads):
            part = slice(head * size, (head + 1) * size)
            for t in range(length):
                scores = torch.stack([(q[t, part] * k[s, part]).sum() for s in range(length)])
                if scaled:
                    scores = scores / math.sqrt(size)
                shares = scores.exp() / scores.exp().sum()
                attended[t, part] = sum(share * v[s, part] for s, share in enumerate(shares))
        x = torch.stack(
            [
                layer_norm(
                    (x[t] + attended[t]).tolist(), weights["attention_norm.weight"], weights["attention_norm.bias"]
                )
                for t in range(length)
            ]
        )
        inner = (x @ weights["ffn_in.weight"].T + weights["ffn_in.bias"]).clamp(min=0)
        changed = inner @ weights["ffn_out.weight"].T + weights["ffn_out.bias"]
        x = torch.stack(
            [
                layer_norm((x[t] + changed[t]).tolist(), weights["ffn_norm.weight"], weights["ffn_norm.bias"])
                for t in range(length)
            ]
        )
    return x


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize(
    ("dim", "num_heads", "num_layers", "ffn_dim"), [(10, 1, 2, None), (7, 1, 1, 5), (12, 3, 3, None)]
)
def test_against_a_plain_version(dim: int, num_heads: int, num_layers: int, ffn_dim: int | None, scaled: bool) -> None:
    context = ContextTransformer(
        dim, num_layers=num_layers, num_heads=num_heads, ffn_dim=ffn_dim, dropout=0.1, scale_attention=scaled
    ).eval()
    for parameter in context.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    latents = torch.randn(2, 6, dim)
    expected = torch.stack([plain_transformer(context, one, num_heads=num_heads, scaled=scaled) for one in latents])
    torch.testing.assert_close(context(latents).double(), expected, rtol=1e-4, atol=1e-5)


def test_any_length_and_leading_dimensions() -> None:
    context = ContextTransformer(10).eval()
    assert context(torch.randn(2, 256, 10)).shape == (2, 256, 10)
    latents = torch.randn(2, 3, 5, 10)
    torch.testing.assert_close(context(latents).flatten(0, 1), context(latents.flatten(0, 1)))
    torch.testing.assert_close(context(latents[0, 0]), context(latents)[0, 0])


def test_it_looks_both_ways() -> None:
    context = ContextTransformer(10).eval()
    latents = torch.randn(1, 5, 10, requires_grad=True)
    context(latents)[0, 2].sum().backward()
    assert (latents.grad[0].abs().sum(-1) > 0).all()


def test_dropout_is_on_the_two_branches_only() -> None:
    """With both branches dropped (nearly always), a layer is LayerNorm twice, whatever the attention says."""
    context = ContextTransformer(10, num_layers=1, dropout=0.999999).train()
    latents = torch.randn(1, 4, 10)
    layer = context.layers[0]
    expected = layer.ffn_norm(layer.attention_norm(latents + sinusoidal_positions(4, 10)))
    torch.testing.assert_close(context(latents), expected)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="num_heads=3 does not divide feature_dim=50"):
        ContextTransformer(50, num_heads=3)
    with pytest.raises(ValueError, match=r"dropout=1\.0; it must be at least 0 and below 1"):
        ContextTransformer(50, dropout=1.0)
    with pytest.raises(ValueError, match="num_layers=0; it must be at least 1"):
        ContextTransformer(50, num_layers=0)
    with pytest.raises(ValueError, match=r"latents must be \[\*, T, 50\]; got \(4, 8, 49\)"):
        ContextTransformer(50)(torch.zeros(4, 8, 49))


def test_padding_changes_nothing_for_the_others() -> None:
    context = ContextTransformer(8, num_heads=2, dropout=0.0)
    latents = torch.randn(3, 6, 8)
    lengths = torch.tensor([6, 4, 0])
    valid = torch.arange(6) < lengths[:, None]
    found = context(latents, valid=valid)
    assert found.isfinite().all()
    for number, length in enumerate(lengths.tolist()):
        if length:
            torch.testing.assert_close(found[number, :length], context(latents[number : number + 1, :length])[0])
    torch.testing.assert_close(context(latents, valid=torch.ones(3, 6, dtype=torch.bool)), context(latents))
