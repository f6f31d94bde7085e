"""PPOPolicy: the policy of PPO from pixels, for discrete and for continuous actions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.modules.encoders import AtariEncoder
from mcurl_torchrl.modules.heads import normal_like, orthogonal_linear
from mcurl_torchrl.modules.policy import Policy

__all__ = ["PPOPolicy"]


class PPOPolicy(Policy):
    """Encoder, one hidden layer and a linear head: stacked frames to actions (https://arxiv.org/abs/1707.06347).

    The critic of PPO shares the encoder and the hidden layer: :meth:`latent` returns the input of both heads. All
    layers start orthogonal, with ReLU gain, and the head with a gain of 0.01: the first policy is nearly uniform.

    Args:
        observation_shape (sequence of int): ``[C, H, W]`` with H = W, all frames of a stack together.

    Keyword Args:
        num_actions (int, optional): the number of discrete actions; give this or ``action_dim``.
        action_dim (int, optional): the size of a continuous action in [-1, 1]: a Gaussian, squashed by tanh, whose
            scale does not depend on the observation.
        architecture (str): the encoder's, as in :class:`~mcurl_torchrl.AtariEncoder`. Defaults to ``"nature"``.
        hidden_dim (int): the width of the hidden layer. Defaults to 512.

    Attributes:
        encoder (AtariEncoder): the convolutions, which an auxiliary task may train, too.
        head (nn.Module): latents to logits, or to location and scale.

    Raises:
        ValueError: if both or neither of ``num_actions`` and ``action_dim`` are given, and if images are not square.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.modules import PPOPolicy
        >>> policy = PPOPolicy([4, 84, 84], num_actions=6)
        >>> pixels = torch.zeros(2, 4, 84, 84, dtype=torch.uint8)
        >>> policy(pixels).shape, policy.sample(pixels).shape  # the most likely actions; sampled actions
        (torch.Size([2]), torch.Size([2]))
        >>> PPOPolicy([4, 84, 84], action_dim=3).sample(pixels).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        observation_shape: Sequence[int],
        *,
        num_actions: int | None = None,
        action_dim: int | None = None,
        architecture: str = "nature",
        hidden_dim: int = 512,
    ) -> None:
        super().__init__()
        self.settings = {
            "observation_shape": list(observation_shape),
            "num_actions": num_actions,
            "action_dim": action_dim,
            "architecture": architecture,
            "hidden_dim": check_count("hidden_dim", hidden_dim),
        }
        if (num_actions is None) == (action_dim is None):
            raise ValueError(f"num_actions={num_actions} and action_dim={action_dim}; give one of them")
        if len(observation_shape) != 3 or observation_shape[1] != observation_shape[2]:
            raise ValueError(f"observation_shape={list(observation_shape)}; it must be [C, H, W] with H = W")
        self.encoder = AtariEncoder(observation_shape[0], observation_shape[1], architecture=architecture)
        _make_orthogonal(self.encoder.convs)
        self.hidden = nn.Sequential(orthogonal_linear(self.encoder.num_features, hidden_dim, math.sqrt(2)), nn.ReLU())
        self.head: nn.Module
        if num_actions is not None:
            self.head = orthogonal_linear(hidden_dim, check_count("num_actions", num_actions), 0.01)
        else:
            self.head = _GaussianHead(hidden_dim, check_count("action_dim", action_dim))

    @property
    def discrete(self) -> bool:
        """Whether actions are indices."""
        return self.settings["num_actions"] is not None

    def latent(self, pixels: Tensor) -> Tensor:
        """Returns the input of the actor's and the critic's head, ``[*, hidden_dim]``, for pixels ``[*, C, H, W]``."""
        return self.hidden(self.encoder.features(pixels))

    def forward(self, pixels: Tensor) -> Tensor:
        """Returns the most likely action ``[*]``, or the one at the Gaussian's location, ``[*, action_dim]``."""
        out = self.head(self.latent(pixels))
        return out.argmax(-1) if self.discrete else torch.tanh(out[0])

    def sample(self, pixels: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draws an action, ``[*]`` or ``[*, action_dim]``."""
        out = self.head(self.latent(pixels))
        if not self.discrete:
            loc, scale = out
            return torch.tanh(loc + scale * normal_like(loc, generator))
        chances = out.softmax(-1)
        flat = chances.reshape(-1, chances.shape[-1])
        flat = flat if generator is None else flat.to(generator.device)
        return flat.multinomial(1, generator=generator).view(chances.shape[:-1]).to(chances.device)


def _make_orthogonal(convs: nn.Module) -> None:
    for conv in convs.modules():
        if isinstance(conv, nn.Conv2d):
            # Into a new tensor: orthogonal_ cannot write to a weight in channels-last layout.
            drawn = nn.init.orthogonal_(torch.empty(conv.weight.shape), math.sqrt(2))
            with torch.no_grad():
                conv.weight.copy_(drawn)
                conv.bias.zero_()  # type: ignore[union-attr]


class _GaussianHead(nn.Module):
    """Latents to location and scale of a Gaussian; the scale is one parameter per dimension, 1 at first."""

    def __init__(self, hidden_dim: int, action_dim: int) -> None:
        super().__init__()
        self.loc = orthogonal_linear(hidden_dim, action_dim, 0.01)
        self.log_scale = nn.Parameter(torch.zeros(action_dim))

    def forward(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        loc = self.loc(latent)
        return loc, self.log_scale.exp().expand_as(loc)
