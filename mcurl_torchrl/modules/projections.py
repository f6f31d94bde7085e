"""Projections of an encoder's features to the latents of a contrastive loss, and an encoder with such a projection."""

from __future__ import annotations

from torch import Tensor, nn

from mcurl_torchrl.checks import check_choice, check_count

__all__ = ["CurlProjection", "LinearProjection", "ProjectedEncoder", "project_encoder"]

PROJECTIONS = ("none", "linear", "curl")


class LinearProjection(nn.Sequential):
    """Linear layer and LayerNorm from an encoder's features to a latent, with PyTorch's default initialization.

    Args:
        num_features (int): the number of features that the convolutions give.
        feature_dim (int): the size of a latent.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.modules import LinearProjection
        >>> LinearProjection(576, 128)(torch.randn(4, 576)).shape
        torch.Size([4, 128])
    """

    def __init__(self, num_features: int, feature_dim: int) -> None:
        check_count("num_features", num_features)
        check_count("feature_dim", feature_dim)
        super().__init__(nn.Linear(num_features, feature_dim), nn.LayerNorm(feature_dim))
        self.num_features = num_features
        self.feature_dim = feature_dim


class CurlProjection(nn.Sequential):
    """The projection of CURL on Atari (https://arxiv.org/abs/2004.04136), as in its authors' released code.

    Linear layer, LayerNorm, ReLU, linear layer, LayerNorm. The norms have no parameters; weights start uniform in
    [0, 1), biases at 0.

    Args:
        num_features (int): the number of features that the convolutions give.
        hidden_dim (int): the width of the hidden layer. Defaults to 256.
        feature_dim (int): the size of a latent. Defaults to 128.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.modules import CurlProjection
        >>> CurlProjection(576)(torch.randn(4, 576)).shape
        torch.Size([4, 128])
    """

    def __init__(self, num_features: int, hidden_dim: int = 256, feature_dim: int = 128) -> None:
        sizes = {"num_features": num_features, "hidden_dim": hidden_dim, "feature_dim": feature_dim}
        for name, size in sizes.items():
            check_count(name, size)
        super().__init__(
            nn.Linear(num_features, hidden_dim),
            nn.LayerNorm(hidden_dim, elementwise_affine=False),
            nn.ReLU(),
            nn.Linear(hidden_dim, feature_dim),
            nn.LayerNorm(feature_dim, elementwise_affine=False),
        )
        self.num_features = num_features
        self.feature_dim = feature_dim
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights."""
        for layer in self:
            if isinstance(layer, nn.Linear):
                nn.init.uniform_(layer.weight)
                nn.init.zeros_(layer.bias)


class ProjectedEncoder(nn.Module):
    """An encoder whose own projection is replaced by another one.

    With it a contrastive loss trains a policy's convolutions through a projection that the policy does not use. Encoder
    and projection are shared, not copied.

    Args:
        encoder (nn.Module): an encoder with ``features()``, like :class:`~mcurl_torchrl.AtariEncoder`.
        projection (nn.Module): features ``[*, num_features]`` to latents ``[*, feature_dim]``, with an attribute
            ``feature_dim``, like :class:`CurlProjection`.

    Attributes:
        feature_dim (int): the size of a latent, the projection's.

    Raises:
        TypeError: if the encoder has no ``features()`` or the projection no ``feature_dim``.
        ValueError: if the projection is for another number of features.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl import ContrastiveLoss
        >>> from mcurl_torchrl.modules import CurlProjection, ProjectedEncoder, RainbowPolicy
        >>> convolutions = RainbowPolicy([4, 84, 84], 6).network.encoder
        >>> encoder = ProjectedEncoder(convolutions, CurlProjection(convolutions.num_features))
        >>> encoder(torch.zeros(2, 5, 4, 84, 84, dtype=torch.uint8)).shape
        torch.Size([2, 5, 128])
        >>> loss = ContrastiveLoss(encoder, latent_dim=encoder.feature_dim)
    """

    def __init__(self, encoder: nn.Module, projection: nn.Module) -> None:
        super().__init__()
        if not hasattr(encoder, "features"):
            raise TypeError(f"{type(encoder).__name__} has no features(pixels)")
        if not isinstance(getattr(projection, "feature_dim", None), int):
            raise TypeError(f"{type(projection).__name__} has no feature_dim, the size of a latent")
        sizes = [getattr(module, "num_features", None) for module in (encoder, projection)]
        if None not in sizes and sizes[0] != sizes[1]:
            raise ValueError(f"the encoder has num_features={sizes[0]}, the projection takes {sizes[1]}")
        self.encoder = encoder
        self.projection = projection
        self.feature_dim: int = projection.feature_dim  # type: ignore[assignment]

    def features(self, pixels: Tensor) -> Tensor:
        """Runs the convolutions: ``[*, C, H, W]`` to ``[*, num_features]``."""
        return self.encoder.features(pixels)  # type: ignore[operator]

    def project(self, features: Tensor) -> Tensor:
        """Turns features ``[*, num_features]`` into latents ``[*, feature_dim]``."""
        return self.projection(features)

    def forward(self, pixels: Tensor) -> Tensor:
        """Turns pixels ``[*, C, H, W]`` into latents ``[*, feature_dim]``."""
        return self.project(self.features(pixels))


def project_encoder(encoder: nn.Module, projection: str, *, feature_dim: int = 128, hidden_dim: int = 256) -> nn.Module:
    """Puts a projection on the convolutions of an encoder, or returns the encoder as it is.

    Args:
        encoder (nn.Module): the encoder, with ``features()`` and ``num_features`` if it gets a projection.
        projection (str): ``"none"``, ``"linear"`` (:class:`LinearProjection`) or ``"curl"`` (:class:`CurlProjection`).

    Keyword Args:
        feature_dim (int): the size of a projected latent. Defaults to 128.
        hidden_dim (int): the width of the hidden layer of ``"curl"``. Defaults to 256.

    Raises:
        ValueError: on another projection.
    """
    if check_choice("projection", projection, PROJECTIONS) == "none":
        return encoder
    num_features: int = encoder.num_features  # type: ignore[assignment]
    made: nn.Module
    if projection == "linear":
        made = LinearProjection(num_features, feature_dim)
    else:
        made = CurlProjection(num_features, hidden_dim=hidden_dim, feature_dim=feature_dim)
    return ProjectedEncoder(encoder, made.to(next(encoder.parameters()).device))


def own_projection(projected: nn.Module, encoder: nn.Module) -> dict[str, nn.Module]:
    """Returns the projection that :func:`project_encoder` added, as ``{"projection": ...}``; if none, an empty dict."""
    return {} if projected is encoder else {"projection": projected.projection}  # type: ignore[dict-item]
