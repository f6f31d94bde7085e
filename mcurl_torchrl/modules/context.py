"""ContextTransformer: a small bidirectional Transformer that reconstructs hidden latents from their neighbors."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mcurl_torchrl.checks import check_count

__all__ = ["ContextTransformer", "sinusoidal_positions"]


def sinusoidal_positions(length: int, dim: int, *, device: torch.device | None = None) -> Tensor:
    """Returns the position encodings of https://arxiv.org/abs/1706.03762: ``sin`` at even indices, ``cos`` at odd ones.

    Args:
        length (int): the number of positions, from 0.
        dim (int): the size of an encoding, even or odd.
        device (torch.device, optional): the device of the result. Defaults to the CPU.

    Returns:
        ``[length, dim]``, float32.

    Examples:
        >>> from mcurl_torchrl.modules import sinusoidal_positions
        >>> sinusoidal_positions(2, 3)[0].tolist()
        [0.0, 1.0, 0.0]
    """
    position = torch.arange(length, device=device, dtype=torch.float32)[:, None]
    place = torch.arange(dim, device=device)
    angle = position * torch.exp((place // 2 * 2).float() * (-math.log(10_000.0) / dim))
    return torch.where(place % 2 == 0, angle.sin(), angle.cos())


class _ContextLayer(nn.Module):
    """Self-attention without an output projection, then two linear layers; LayerNorm after each residual sum."""

    def __init__(self, dim: int, num_heads: int, ffn_dim: int, dropout: float, scale: float | None) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.scale = scale
        self.in_projection = nn.Linear(dim, 3 * dim)
        self.attention_norm = nn.LayerNorm(dim)
        self.ffn_in = nn.Linear(dim, ffn_dim)
        self.ffn_out = nn.Linear(ffn_dim, dim)
        self.ffn_norm = nn.LayerNorm(dim)

    def forward(self, latents: Tensor, seen: Tensor | None = None) -> Tensor:
        attended = F.dropout(self._attend(latents, seen), self.dropout, self.training)
        latents = self.attention_norm(latents + attended)
        changed = F.dropout(self.ffn_out(self.ffn_in(latents).relu()), self.dropout, self.training)
        return self.ffn_norm(latents + changed)

    def _attend(self, latents: Tensor, seen: Tensor | None) -> Tensor:
        # [B, T, 3d] -> 3 x [B, heads, T, d / heads]
        parts = self.in_projection(latents).unflatten(-1, (3, self.num_heads, -1)).movedim(-3, 0).transpose(-3, -2)
        query, key, value = parts.unbind(0)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=self.scale)
        return attended.transpose(-3, -2).flatten(-2)


class ContextTransformer(nn.Module):
    """Reconstructs latents from their neighbors in time, in both directions (https://arxiv.org/abs/2010.07470).

    Fixed sinusoidal positions are added to the latents; each layer is self-attention and a two-layer network with ReLU,
    LayerNorm after each residual sum (post-LN), dropout on the two branches only. The attention has no output
    projection, as in the authors' released code. The initialization is PyTorch's default.

    Args:
        feature_dim (int): d, the size of a latent.

    Keyword Args:
        num_layers (int): Defaults to 2.
        num_heads (int): attention heads; d must be a multiple of this number. Defaults to 1.
        ffn_dim (int, optional): the inner size of the two-layer network. Defaults to 2d.
        dropout (float): Defaults to 0.1, as in the published command.
        scale_attention (bool): whether attention logits are divided by the square root of a head's size, as in the
            released code; the paper does not divide them. Defaults to True.

    Raises:
        ValueError: on numbers out of range, if ``num_heads`` does not divide d, and on latents of another size.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl import ContextTransformer
        >>> ContextTransformer(50)(torch.randn(16, 32, 50)).shape
        torch.Size([16, 32, 50])
    """

    def __init__(
        self,
        feature_dim: int,
        *,
        num_layers: int = 2,
        num_heads: int = 1,
        ffn_dim: int | None = None,
        dropout: float = 0.1,
        scale_attention: bool = True,
    ) -> None:
        super().__init__()
        for name, value in (("feature_dim", feature_dim), ("num_layers", num_layers), ("num_heads", num_heads)):
            check_count(name, value)
        ffn_dim = 2 * feature_dim if ffn_dim is None else check_count("ffn_dim", ffn_dim)
        if feature_dim % num_heads:
            raise ValueError(f"num_heads={num_heads} does not divide feature_dim={feature_dim}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout}; it must be at least 0 and below 1")
        self.feature_dim = feature_dim
        scale = None if scale_attention else 1.0
        self.layers = nn.ModuleList(
            [_ContextLayer(feature_dim, num_heads, ffn_dim, dropout, scale) for _ in range(num_layers)]
        )

    def forward(self, latents: Tensor, valid: Tensor | None = None) -> Tensor:
        """Turns latents ``[*, T, d]`` into reconstructions ``[*, T, d]``, for any T.

        Args:
            latents (torch.Tensor): the latents.
            valid (torch.Tensor, optional): bool ``[*, T]``, False at padding, to which no other position attends.
                Defaults to None: no padding.
        """
        if latents.ndim < 2 or latents.shape[-1] != self.feature_dim:
            raise ValueError(f"latents must be [*, T, {self.feature_dim}]; got {tuple(latents.shape)}")
        positions = sinusoidal_positions(latents.shape[-2], self.feature_dim, device=latents.device)
        context = (latents + positions.to(latents.dtype)).reshape(-1, *latents.shape[-2:])
        seen = None
        if valid is not None:
            # Each position attends to itself, so that no row of the mask is empty.
            itself = torch.eye(latents.shape[-2], dtype=torch.bool, device=latents.device)
            seen = valid.reshape(-1, 1, 1, latents.shape[-2]) | itself
        for layer in self.layers:
            context = layer(context, seen)
        return context.view(latents.shape)
