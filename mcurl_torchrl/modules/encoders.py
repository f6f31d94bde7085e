"""Encoders: observations with any leading dimensions to latents; convolutions and projection are separate methods."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from mcurl_torchrl.checks import check_choice, check_count
from mcurl_torchrl.modules.precision import full_precision
from mcurl_torchrl.modules.projections import LinearProjection

__all__ = ["AtariEncoder", "PixelEncoder", "StateEncoder", "rescale_latents"]

# Output channels, kernel size and stride of each convolution.
_ATARI_CONVS = {
    "data_efficient": ((32, 5, 5), (64, 5, 5)),
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
}


def rescale_latents(latents: Tensor) -> Tensor:
    """Rescales each latent of ``[*, d]`` to the range from 0 to 1, as SPR does; d equal numbers become 0.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.modules.encoders import rescale_latents
        >>> rescale_latents(torch.tensor([[2.0, 4.0, 3.0], [5.0, 5.0, 5.0]])).tolist()
        [[0.0, 1.0, 0.5], [0.0, 0.0, 0.0]]
    """
    latents = full_precision(latents)  # in bfloat16, rounding errors would dominate the differences
    low, high = latents.min(-1, keepdim=True).values, latents.max(-1, keepdim=True).values
    return (latents - low) / (high - low).clamp(min=torch.finfo(latents.dtype).tiny)


class _ConvEncoder(nn.Module):
    """Convolutions with ReLU, then a projection.

    :meth:`features` runs the convolutions and flattens their output; :meth:`project` turns it into a latent. They are
    separate, so that several heads (for example an actor and a critic) can run the convolutions once and then use
    different projections.

    Attributes:
        settings (dict): the arguments that build the same encoder, as JSON.
        feature_shape (tuple of int): the features' shape before they are flattened.
    """

    settings: dict[str, Any]
    feature_dim: int

    def __init__(self, convs: list[nn.Conv2d], in_channels: int, image_size: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(*(layer for conv in convs for layer in (conv, nn.ReLU(inplace=True))))
        self.in_channels = in_channels
        self.image_size = image_size
        smallest = 1
        for conv in reversed(convs):
            smallest = (smallest - 1) * conv.stride[0] + conv.kernel_size[0]
        if image_size < smallest:
            raise ValueError(
                f"image_size={image_size} is too small for {len(convs)} convolutions; it must be at least {smallest}"
            )
        side = image_size
        for conv in convs:
            side = (side - conv.kernel_size[0]) // conv.stride[0] + 1
        self.feature_shape = (convs[-1].out_channels, side, side)
        self.num_features = math.prod(self.feature_shape)
        # Convolutions are fastest in this memory layout, on a CPU and on a GPU; the values do not depend on it.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def features(self, pixels: Tensor) -> Tensor:
        """Runs the convolutions.

        Args:
            pixels (torch.Tensor): ``[*, C, H, W]``, uint8 (0 to 255, divided by 255 here) or floating point (not
                scaled).

        Returns:
            ``[*, num_features]``.
        """
        expected = (self.in_channels, self.image_size, self.image_size)
        if pixels.ndim < 3 or tuple(pixels.shape[-3:]) != expected:
            raise ValueError(f"pixels must be [*, {', '.join(map(str, expected))}]; got {tuple(pixels.shape)}")
        lead = pixels.shape[:-3]
        images = pixels.reshape(-1, *expected)
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise ValueError(f"pixels must be uint8 or floating point; got {pixels.dtype}")
        images = images.contiguous(memory_format=torch.channels_last)
        images = images.to(self.dtype).div_(255.0) if images.dtype == torch.uint8 else images.to(self.dtype)
        # Flattened channel by channel, for any layout in memory.
        return self.convs(images).flatten(1).view(*lead, self.num_features)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights. They may be plain tensors, because a loss module replaces parameters by its own."""
        weight: Tensor = self.convs[0].weight  # type: ignore[assignment]
        return weight.dtype

    def project(self, features: Tensor) -> Tensor:
        """Turns features ``[*, num_features]`` into latents ``[*, feature_dim]``."""
        raise NotImplementedError

    def forward(self, pixels: Tensor) -> Tensor:
        """Turns pixels ``[*, C, H, W]`` into latents ``[*, feature_dim]``."""
        return self.project(self.features(pixels))


class PixelEncoder(_ConvEncoder):
    """The encoder of SAC from pixels (https://arxiv.org/abs/1910.01741) as CURL and M-CURL use it.

    3x3 convolutions, the first with stride 2, ReLU after each; a linear layer; LayerNorm. Convolutions start
    delta-orthogonal (https://arxiv.org/abs/1806.05393) with ReLU gain, the linear layer orthogonal, biases at 0.

    Args:
        in_channels (int): channels of an observation, all frames together.
        image_size (int): its height and width. Defaults to 84.

    Keyword Args:
        num_layers (int): the number of convolutions. Defaults to 4.
        num_filters (int): the channels of each convolution. Defaults to 32.
        feature_dim (int): the size of a latent. Defaults to 50.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl import PixelEncoder
        >>> encoder = PixelEncoder(9)
        >>> pixels = torch.randint(256, (2, 5, 9, 84, 84), dtype=torch.uint8)
        >>> encoder(pixels).shape
        torch.Size([2, 5, 50])
        >>> bool((encoder.project(encoder.features(pixels)) == encoder(pixels)).all())
        True
    """

    def __init__(
        self,
        in_channels: int,
        image_size: int = 84,
        *,
        num_layers: int = 4,
        num_filters: int = 32,
        feature_dim: int = 50,
    ) -> None:
        for name, value in (("in_channels", in_channels), ("num_layers", num_layers), ("num_filters", num_filters)):
            check_count(name, value)
        convs = [
            nn.Conv2d(in_channels if layer == 0 else num_filters, num_filters, 3, stride=2 if layer == 0 else 1)
            for layer in range(num_layers)
        ]
        super().__init__(convs, in_channels, image_size)
        self.settings = {
            "in_channels": in_channels,
            "image_size": image_size,
            "num_layers": num_layers,
            "num_filters": num_filters,
            "feature_dim": feature_dim,
        }
        self.feature_dim = check_count("feature_dim", feature_dim)
        self.linear = nn.Linear(self.num_features, feature_dim)
        self.norm = nn.LayerNorm(feature_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights."""
        for conv in self.convs:
            if not isinstance(conv, nn.Conv2d):
                continue
            nn.init.zeros_(conv.weight)
            center = conv.kernel_size[0] // 2
            kernel = torch.empty(conv.weight.shape[:2], device=conv.weight.device)
            with torch.no_grad():
                conv.weight[:, :, center, center] = nn.init.orthogonal_(kernel, nn.init.calculate_gain("relu"))
            if conv.bias is not None:
                nn.init.zeros_(conv.bias)
        nn.init.orthogonal_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.norm.reset_parameters()

    def project(self, features: Tensor) -> Tensor:
        """Turns features ``[*, num_features]`` into latents ``[*, feature_dim]``: linear, LayerNorm."""
        return self.norm(self.linear(features))


class AtariEncoder(_ConvEncoder):
    """The convolutions of Rainbow agents on Atari, ReLU after each, with PyTorch's default initialization.

    ``"data_efficient"`` is the small network of data-efficient Rainbow (https://arxiv.org/abs/1906.05243): 5x5
    convolutions with stride 5 to 32 and 64 channels, which give 576 features of an 84x84 image. ``"nature"`` is DQN's
    network (https://doi.org/10.1038/nature14236): 8x8 with stride 4 to 32, 4x4 with stride 2 to 64, 3x3 to 64 channels,
    3,136 features.

    Args:
        in_channels (int): the frames of an observation. Defaults to 4.
        image_size (int): its height and width. Defaults to 84.

    Keyword Args:
        architecture (str): ``"data_efficient"`` or ``"nature"``. Defaults to ``"data_efficient"``.
        feature_dim (int, optional): adds a :class:`~mcurl_torchrl.modules.LinearProjection` to this number of features.
            Defaults to None: the raw features are the latent.
        rescale (bool): whether the features of each observation are rescaled to the range from 0 to 1, as in SPR
            (https://arxiv.org/abs/2007.05929). Defaults to False.

    Raises:
        ValueError: on an unknown architecture, and on images that are too small for it.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl import AtariEncoder
        >>> pixels = torch.zeros(32, 4, 84, 84, dtype=torch.uint8)
        >>> AtariEncoder()(pixels).shape
        torch.Size([32, 576])
        >>> AtariEncoder(architecture="nature")(pixels).shape
        torch.Size([32, 3136])
    """

    def __init__(
        self,
        in_channels: int = 4,
        image_size: int = 84,
        *,
        architecture: str = "data_efficient",
        feature_dim: int | None = None,
        rescale: bool = False,
    ) -> None:
        channels = check_count("in_channels", in_channels)
        check_choice("architecture", architecture, tuple(_ATARI_CONVS))
        convs = []
        for out_channels, kernel_size, stride in _ATARI_CONVS[architecture]:
            convs.append(nn.Conv2d(channels, out_channels, kernel_size, stride=stride))
            channels = out_channels
        super().__init__(convs, in_channels, image_size)
        self.settings = {
            "in_channels": in_channels,
            "image_size": image_size,
            "architecture": architecture,
            "feature_dim": feature_dim,
            "rescale": rescale,
        }
        self.rescale = rescale
        self.projection: nn.Module = nn.Identity()
        self.feature_dim = self.num_features
        if feature_dim is not None:
            self.projection = LinearProjection(self.num_features, feature_dim)
            self.feature_dim = feature_dim

    def features(self, pixels: Tensor) -> Tensor:
        """Runs the convolutions: pixels ``[*, C, H, W]`` to features ``[*, num_features]``."""
        features = super().features(pixels)
        return rescale_latents(features) if self.rescale else features

    def project(self, features: Tensor) -> Tensor:
        """Turns features ``[*, num_features]`` into latents ``[*, feature_dim]``."""
        return self.projection(features)


class StateEncoder(nn.Module):
    """The encoder of low-level states, which returns them unchanged.

    Args:
        state_dim (int): the size of a state, which is the latent.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.modules import StateEncoder
        >>> StateEncoder(5)(torch.ones(2, 5)).shape
        torch.Size([2, 5])
    """

    def __init__(self, state_dim: int) -> None:
        super().__init__()
        self.feature_dim = self.num_features = check_count("state_dim", state_dim)

    def features(self, state: Tensor) -> Tensor:
        """Returns the state ``[*, state_dim]`` unchanged."""
        if state.shape[-1:] != (self.feature_dim,):
            raise ValueError(f"states must be [*, {self.feature_dim}]; got {tuple(state.shape)}")
        return state

    def project(self, features: Tensor) -> Tensor:
        """Returns the features unchanged."""
        return features

    def forward(self, state: Tensor) -> Tensor:
        """Returns the state ``[*, state_dim]`` unchanged."""
        return self.project(self.features(state))
