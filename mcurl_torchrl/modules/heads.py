"""The heads of SAC on latents: the actor's Gaussian head and the Q head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.modules.precision import full_precision

__all__ = ["GaussianHead", "LatentProjection", "QHead", "orthogonal_linear"]


class _OrthogonalLinear(nn.Linear):
    """A linear layer with orthogonal weights and zero biases."""

    def __init__(self, in_features: int, out_features: int, gain: float) -> None:
        self.gain = gain  # before nn.Linear draws weights
        super().__init__(in_features, out_features)

    def reset_parameters(self) -> None:
        """Draws new weights."""
        super().reset_parameters()  # draws the same random numbers as nn.Linear, so that later draws do not change
        nn.init.orthogonal_(self.weight, self.gain)
        nn.init.zeros_(self.bias)


def orthogonal_linear(in_features: int, out_features: int, gain: float = 1.0) -> nn.Linear:
    """Makes a linear layer with orthogonal weights, times a gain, and zero biases, as SAC from pixels starts."""
    return _OrthogonalLinear(in_features, out_features, gain)


def normal_like(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draws standard normal numbers in the shape of a tensor, with a generator on any device."""
    device = like.device if generator is None else generator.device
    return torch.randn(like.shape, generator=generator, device=device, dtype=like.dtype).to(like.device)


def _two_hidden_layers(in_features: int, hidden_dim: int, out_features: int) -> nn.Sequential:
    check_count("hidden_dim", hidden_dim)
    return nn.Sequential(
        orthogonal_linear(in_features, hidden_dim),
        nn.ReLU(),
        orthogonal_linear(hidden_dim, hidden_dim),
        nn.ReLU(),
        orthogonal_linear(hidden_dim, out_features),
    )


class LatentProjection(nn.Sequential):
    """Linear layer and LayerNorm from an encoder's features to the actor's latent.

    Args:
        num_features (int): the number of features that the convolutions give.
        feature_dim (int): the size of a latent.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.modules import LatentProjection
        >>> LatentProjection(512, 50)(torch.randn(4, 512)).shape
        torch.Size([4, 50])
    """

    def __init__(self, num_features: int, feature_dim: int) -> None:
        super().__init__(orthogonal_linear(num_features, feature_dim), nn.LayerNorm(feature_dim))
        self.num_features = num_features
        self.feature_dim = feature_dim


class GaussianHead(nn.Module):
    """Turns latents into location and scale of a Gaussian over actions, before tanh squashes the actions.

    The logarithm of the scale is squashed by tanh into its bounds (https://arxiv.org/abs/1910.01741).

    Args:
        feature_dim (int): the size of a latent.
        action_dim (int): the size of an action.

    Keyword Args:
        hidden_dim (int): the width of both hidden layers. Defaults to 1024.
        log_std_bounds (tuple of float): defaults to (-10, 2).

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.modules import GaussianHead
        >>> loc, scale = GaussianHead(50, 6)(torch.randn(4, 50))
        >>> loc.shape, bool((scale > 0).all())
        (torch.Size([4, 6]), True)
    """

    def __init__(
        self,
        feature_dim: int,
        action_dim: int,
        *,
        hidden_dim: int = 1024,
        log_std_bounds: tuple[float, float] = (-10.0, 2.0),
    ) -> None:
        super().__init__()
        self.low, self.high = log_std_bounds
        if not self.low < self.high:
            raise ValueError(f"log_std_bounds={tuple(log_std_bounds)}; the first must be below the second")
        self.layers = _two_hidden_layers(feature_dim, hidden_dim, 2 * check_count("action_dim", action_dim))

    def forward(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Returns location and scale, each ``[*, action_dim]``."""
        loc, log_std = full_precision(self.layers(latent)).chunk(2, dim=-1)
        log_std = self.low + 0.5 * (self.high - self.low) * (torch.tanh(log_std) + 1)
        return loc, log_std.exp()


class QHead(nn.Module):
    """Turns a latent and an action into a value, ``[*, 1]``.

    Args:
        feature_dim (int): the size of a latent.
        action_dim (int): the size of an action.

    Keyword Args:
        hidden_dim (int): the width of both hidden layers. Defaults to 1024.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.modules import QHead
        >>> QHead(50, 6)(torch.randn(4, 50), torch.randn(4, 6)).shape
        torch.Size([4, 1])
    """

    def __init__(self, feature_dim: int, action_dim: int, *, hidden_dim: int = 1024) -> None:
        super().__init__()
        self.layers = _two_hidden_layers(feature_dim + check_count("action_dim", action_dim), hidden_dim, 1)

    def forward(self, latent: Tensor, action: Tensor) -> Tensor:
        """Returns the value of an action."""
        return full_precision(self.layers(torch.cat([latent, action], dim=-1)))
