"""ReconstructionTransformer: the decoder of MLR. It sees the latents of partly hidden observations and all actions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.modules.actions import ActionEmbedding
from mcurl_torchrl.modules.context import sinusoidal_positions

__all__ = ["ReconstructionTransformer", "SmallNetwork"]


def _initialize_small(module: nn.Module) -> None:
    """Draws the weights of linear layers from a normal distribution (std 0.02, truncated at 0.02); biases are 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.02, a=-0.02, b=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class SmallNetwork(nn.Sequential):
    """Two linear layers with ReLU between them, which start with small weights: MLR's projection and its predictor."""

    def __init__(self, size: int, hidden_dim: int) -> None:
        super().__init__(nn.Linear(size, check_count("hidden_dim", hidden_dim)), nn.ReLU(), nn.Linear(hidden_dim, size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights."""
        _initialize_small(self)


class _PreNormLayer(nn.Module):
    """Self-attention, then two linear layers with GELU; LayerNorm before each of the two branches."""

    def __init__(self, dim: int, num_heads: int, ffn_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(dim)
        self.in_projection = nn.Linear(dim, 3 * dim, bias=False)
        self.out_projection = nn.Linear(dim, dim)
        self.ffn_norm = nn.LayerNorm(dim)
        self.ffn_in = nn.Linear(dim, ffn_dim)
        self.ffn_out = nn.Linear(ffn_dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.out_projection(self._attend(self.attention_norm(tokens)))
        return tokens + self.ffn_out(F.gelu(self.ffn_in(self.ffn_norm(tokens))))

    def _attend(self, tokens: Tensor) -> Tensor:
        # [B, T, 3d] -> 3 x [B, heads, T, d / heads]
        parts = self.in_projection(tokens).unflatten(-1, (3, self.num_heads, -1)).movedim(-3, 0).transpose(-3, -2)
        query, key, value = parts.unbind(0)
        return F.scaled_dot_product_attention(query, key, value).transpose(-3, -2).flatten(-2)


class ReconstructionTransformer(nn.Module):
    """Reconstructs the latents of partly hidden observations, from all of them and from all actions (MLR).

    Latents and vectors of actions are tokens; a latent and the action taken there have the same sinusoidal position.
    Layers have LayerNorm first, one linear layer for q, k and v without bias, and GELU; no dropout. See
    https://arxiv.org/abs/2201.12096. The result depends on the positions of tokens, not on their order: the layouts of
    the released code, interleaved for DMControl and observations first for Atari, are the same network here.

    Args:
        embedding (ActionEmbedding): actions to vectors of the size of a latent.
        feature_dim (int): d, the size of a latent.

    Keyword Args:
        num_layers (int): Defaults to 2.
        num_heads (int): attention heads; d must be a multiple of this number. Defaults to 1.

    Raises:
        ValueError: on numbers out of range, and if ``num_heads`` does not divide d.

    Examples:
        >>> import torch
        >>> from torchrl.data import Categorical
        >>> from mcurl_torchrl.modules import ActionEmbedding, ReconstructionTransformer
        >>> network = ReconstructionTransformer(ActionEmbedding(Categorical(4), 50), 50)
        >>> action, final = torch.randint(4, (8, 16)), torch.zeros(8, 16, dtype=torch.bool)
        >>> network(torch.randn(8, 16, 50), action, final).shape
        torch.Size([8, 16, 50])
    """

    def __init__(
        self, embedding: ActionEmbedding, feature_dim: int, *, num_layers: int = 2, num_heads: int = 1
    ) -> None:
        super().__init__()
        for name, value in (("feature_dim", feature_dim), ("num_layers", num_layers), ("num_heads", num_heads)):
            check_count(name, value)
        if feature_dim % num_heads:
            raise ValueError(f"num_heads={num_heads} does not divide feature_dim={feature_dim}")
        self.feature_dim = feature_dim
        self.embedding = embedding
        layers = [_PreNormLayer(feature_dim, num_heads, 2 * feature_dim) for _ in range(num_layers)]
        self.layers = nn.ModuleList(layers)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights."""
        _initialize_small(self)

    def forward(self, latents: Tensor, action: Tensor, final: Tensor) -> Tensor:
        """Reconstructs latents ``[B, T, d]`` from latents and actions; ``final`` ``[B, T]``: no action was taken."""
        length = latents.shape[-2]
        positions = sinusoidal_positions(length, self.feature_dim, device=latents.device).to(latents.dtype)
        actions = self.embedding(action) * ~final.view(*latents.shape[:-1], 1)
        tokens = torch.cat([latents + positions, actions + positions], dim=-2)
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens[..., :length, :]
