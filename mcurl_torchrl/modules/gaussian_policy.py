"""GaussianPolicy: the policy of SAC from pixels, the only network that is needed after training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mcurl_torchrl.modules.encoders import PixelEncoder, StateEncoder
from mcurl_torchrl.modules.heads import GaussianHead, LatentProjection, normal_like
from mcurl_torchrl.modules.policy import Policy
from mcurl_torchrl.transforms import center_crop

__all__ = ["GaussianPolicy"]


class GaussianPolicy(Policy):
    """Encoder and actor: raw observations to actions in [-1, 1].

    Images are cropped at their center and go through the encoder's convolutions (in training the critic uses them too),
    the actor's own linear layer with LayerNorm, and a :class:`~mcurl_torchrl.modules.GaussianHead`. Observations
    without height and width (low-level states) go to the head unchanged.

    Args:
        observation_shape (sequence of int): ``[C, H, W]``, all frames of a stack together, or ``[D]``.
        action_dim (int): the size of an action.

    Keyword Args:
        crop_size (int, optional): an image's height and width after the crop. Defaults to None: no crop.
        num_layers, num_filters, feature_dim (int): the encoder's, as in :class:`~mcurl_torchrl.PixelEncoder`. Default
            to 4, 32 and 50.
        hidden_dim (int): the head's. Defaults to 1024.
        log_std_bounds (tuple of float): the head's. Defaults to (-10, 2).

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.modules import GaussianPolicy
        >>> policy = GaussianPolicy([9, 100, 100], 6, crop_size=84)
        >>> policy(torch.zeros(2, 9, 100, 100, dtype=torch.uint8)).shape  # the mean action
        torch.Size([2, 6])
        >>> policy.sample(torch.zeros(2, 9, 100, 100, dtype=torch.uint8)).shape
        torch.Size([2, 6])
    """

    def __init__(
        self,
        observation_shape: Sequence[int],
        action_dim: int,
        *,
        crop_size: int | None = None,
        num_layers: int = 4,
        num_filters: int = 32,
        feature_dim: int = 50,
        hidden_dim: int = 1024,
        log_std_bounds: tuple[float, float] = (-10.0, 2.0),
    ) -> None:
        super().__init__()
        self.settings = {
            "observation_shape": list(observation_shape),
            "action_dim": action_dim,
            "crop_size": crop_size,
            "num_layers": num_layers,
            "num_filters": num_filters,
            "feature_dim": feature_dim,
            "hidden_dim": hidden_dim,
            "log_std_bounds": list(log_std_bounds),
        }
        self.crop_size = crop_size
        self.encoder: PixelEncoder | StateEncoder
        self.projection: nn.Module
        if len(observation_shape) == 3:
            channels, height, width = observation_shape
            if crop_size is None and height != width:
                raise ValueError(f"images are {height}x{width}; the encoder takes square images: set crop_size")
            if crop_size is not None and not 1 <= crop_size <= min(height, width):
                raise ValueError(f"crop_size={crop_size}; it must be between 1 and the image's {min(height, width)}")
            self.encoder = PixelEncoder(
                channels,
                height if crop_size is None else crop_size,
                num_layers=num_layers,
                num_filters=num_filters,
                feature_dim=feature_dim,
            )
            self.projection = LatentProjection(self.encoder.num_features, feature_dim)
        elif len(observation_shape) == 1:
            self.encoder = StateEncoder(observation_shape[0])
            self.projection = nn.Identity()
        else:
            raise ValueError(f"observation_shape={list(observation_shape)}; it must be [C, H, W] or [D]")
        self.head = GaussianHead(
            self.encoder.feature_dim, action_dim, hidden_dim=hidden_dim, log_std_bounds=log_std_bounds
        )

    def distribution(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Returns location and scale of the Gaussian, each ``[*, action_dim]``."""
        if self.crop_size is not None:
            observation = center_crop(observation, self.crop_size)
        return self.head(self.projection(self.encoder.features(observation)))

    def forward(self, observation: Tensor) -> Tensor:
        """Returns the action at the Gaussian's location, ``[*, action_dim]``."""
        return torch.tanh(self.distribution(observation)[0])

    def sample(self, observation: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draws an action, ``[*, action_dim]``."""
        loc, scale = self.distribution(observation)
        return torch.tanh(loc + scale * normal_like(loc, generator))
