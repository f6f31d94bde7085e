"""Models of transitions: they predict the next features, or the next latent, from the current one and the action."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchrl.data import TensorSpec

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.modules.actions import ActionVectors
from mcurl_torchrl.modules.batch_norm import RankedBatchNorm2d
from mcurl_torchrl.modules.encoders import rescale_latents
from mcurl_torchrl.ranks import ALONE, Ranks

__all__ = ["ConvTransition", "LatentTransition"]


class ConvTransition(nn.Module):
    """Predicts the next features of convolutions, from the features and a discrete action (SPR).

    The action is a one-hot vector, which becomes planes of zeros and ones beside the features. A 3x3 convolution, ReLU,
    BatchNorm, a 3x3 convolution, ReLU; the result is rescaled to the range from 0 to 1. See
    https://arxiv.org/abs/2007.05929.

    Args:
        feature_shape (sequence of int): ``[C, H, W]``, the features before they are flattened, such as
            ``encoder.feature_shape``.
        num_actions (int): the number of actions.

    Keyword Args:
        ranks (Ranks): the ranks that share each batch; BatchNorm takes the statistics of the whole batch. Defaults to
            one process.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl import AtariEncoder
        >>> from mcurl_torchrl.modules import ConvTransition
        >>> encoder = AtariEncoder(architecture="nature")
        >>> model = ConvTransition(encoder.feature_shape, 6)
        >>> model(torch.rand(32, encoder.num_features), torch.randint(6, (32,))).shape
        torch.Size([32, 3136])
    """

    def __init__(self, feature_shape: Sequence[int], num_actions: int, *, ranks: Ranks = ALONE) -> None:
        super().__init__()
        self.feature_shape = tuple(feature_shape)
        self.num_features = math.prod(self.feature_shape)
        self.num_actions = check_count("num_actions", num_actions)
        channels = self.feature_shape[0]
        self.layers = nn.Sequential(
            nn.Conv2d(channels + num_actions, channels, 3, padding=1),
            nn.ReLU(),
            RankedBatchNorm2d(channels, ranks=ranks),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
        )

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """Turns features ``[B, num_features]`` and actions ``[B]`` into the next features ``[B, num_features]``."""
        maps = features.view(-1, *self.feature_shape)
        planes = F.one_hot(action.view(-1).long(), self.num_actions)[..., None, None].to(maps.dtype)
        maps = self.layers(torch.cat([maps, planes.expand(-1, -1, *self.feature_shape[1:])], dim=1))
        return rescale_latents(maps.flatten(1))


class LatentTransition(nn.Module):
    """Predicts the next latent from the current latent and the action, continuous or discrete.

    A linear layer on both, LayerNorm, ReLU, a linear layer: the model of SPR with SAC in PlayVirtual
    (https://arxiv.org/abs/2106.04152).

    Args:
        action_spec (TensorSpec): ``env.action_spec``: a :class:`~torchrl.data.Categorical`, or vectors ``[A]``.
        feature_dim (int): the size of a latent.

    Keyword Args:
        hidden_dim (int): the width of the hidden layer. Defaults to 512.

    Raises:
        ValueError: on actions of another kind, and on numbers out of range.

    Examples:
        >>> import torch
        >>> from torchrl.data import Bounded
        >>> from mcurl_torchrl.modules import LatentTransition
        >>> model = LatentTransition(Bounded(-1, 1, shape=(6,)), 50)
        >>> model(torch.rand(128, 50), torch.rand(128, 6)).shape
        torch.Size([128, 50])
    """

    def __init__(self, action_spec: TensorSpec, feature_dim: int, *, hidden_dim: int = 512) -> None:
        super().__init__()
        check_count("feature_dim", feature_dim)
        check_count("hidden_dim", hidden_dim)
        self.vectors = ActionVectors(action_spec)
        self.layers = nn.Sequential(
            nn.Linear(feature_dim + self.vectors.size, hidden_dim),
            nn.LayerNorm(hidden_dim),
            nn.ReLU(),
            nn.Linear(hidden_dim, feature_dim),
        )

    def forward(self, latent: Tensor, action: Tensor) -> Tensor:
        """Turns latents ``[B, feature_dim]`` and actions ``[B]`` or ``[B, A]`` into the next latents."""
        return self.layers(torch.cat([latent, self.vectors(action).to(latent.dtype)], dim=-1))
