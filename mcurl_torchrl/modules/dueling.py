"""Noisy linear layers, and Rainbow's dueling head of such layers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mcurl_torchrl.checks import check_count, check_number

__all__ = ["DuelingHead", "HeadProjection", "NoisyLinear"]


class NoisyLinear(nn.Module):
    """A linear layer with learned factorized Gaussian noise on its weights (https://arxiv.org/abs/1706.10295).

    ``weight = weight_mu + weight_sigma * outer(noise_out, noise_in)``; the bias has ``noise_out`` alone. Only
    :meth:`reset_noise` draws noise: all calls between two draws see the same weights. In evaluation mode (``.eval()``)
    there is no noise.

    TorchRL's :class:`~torchrl.modules.NoisyLinear` draws noise from torch's global generator alone, and its bias starts
    with ``sigma_init / sqrt(out_features)`` where the paper has ``sqrt(in_features)``.

    Args:
        in_features (int): the size of an input.
        out_features (int): the size of an output.

    Keyword Args:
        sigma_init (float): all sigmas start at ``sigma_init / sqrt(in_features)``. Defaults to 0.1, the value of
            data-efficient Rainbow (https://arxiv.org/abs/1906.05243); Rainbow uses 0.5.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.modules import NoisyLinear
        >>> layer, inputs = NoisyLinear(4, 2), torch.ones(3, 4)
        >>> before = layer(inputs)
        >>> torch.equal(layer(inputs), before)
        True
        >>> layer.reset_noise()
        >>> torch.equal(layer(inputs), before)
        False
    """

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, in_features: int, out_features: int, *, sigma_init: float = 0.1) -> None:
        super().__init__()
        if not sigma_init >= 0:
            raise ValueError(f"sigma_init={sigma_init}; it must be at least 0")
        self.in_features = check_count("in_features", in_features)
        self.out_features = check_count("out_features", out_features)
        self.sigma_init = sigma_init
        self.weight_mu = nn.Parameter(torch.empty(out_features, in_features))
        self.weight_sigma = nn.Parameter(torch.empty(out_features, in_features))
        self.bias_mu = nn.Parameter(torch.empty(out_features))
        self.bias_sigma = nn.Parameter(torch.empty(out_features))
        self.register_buffer("noise_in", torch.empty(in_features))
        self.register_buffer("noise_out", torch.empty(out_features))
        self.reset_parameters()
        self.reset_noise()

    def reset_parameters(self) -> None:
        """Draws new means and sets the sigmas to their initial value."""
        bound = 1 / math.sqrt(self.in_features)
        for mean in (self.weight_mu, self.bias_mu):
            nn.init.uniform_(mean, -bound, bound)
        # Departs from TorchRL and from the released code of CURL, which divide the bias's sigma by the square root of
        # out_features; the paper divides both sigmas by the square root of in_features.
        for sigma in (self.weight_sigma, self.bias_sigma):
            nn.init.constant_(sigma, self.sigma_init * bound)

    @torch.no_grad()
    def reset_noise(self, generator: torch.Generator | None = None) -> None:
        """Draws new noise, in place; the generator may be on another device than the layer."""
        for noise in (self.noise_in, self.noise_out):
            device = noise.device if generator is None else generator.device
            drawn = torch.randn(noise.shape, generator=generator, device=device, dtype=noise.dtype)
            noise.copy_(drawn.abs().sqrt_().copysign_(drawn))

    def forward(self, inputs: Tensor) -> Tensor:
        """Turns ``[*, in_features]`` into ``[*, out_features]``."""
        if not self.training:
            return F.linear(inputs, self.weight_mu, self.bias_mu)
        weight = torch.addcmul(self.weight_mu, self.weight_sigma, torch.outer(self.noise_out, self.noise_in))
        return F.linear(inputs, weight, torch.addcmul(self.bias_mu, self.bias_sigma, self.noise_out))

    def extra_repr(self) -> str:
        """Returns the layer's sizes."""
        return f"{self.in_features}, {self.out_features}, sigma_init={self.sigma_init}"


class DuelingHead(nn.Module):
    """Turns latents into the distribution of each action's return, from a value and an advantage branch.

    ``logits = value + advantage - mean over actions of advantage`` (https://arxiv.org/abs/1511.06581), atom by atom, as
    in Rainbow (https://arxiv.org/abs/1710.02298). Each branch has one hidden layer; all layers are noisy. For ablations
    of Rainbow, the noise and the second branch can be left out.

    Args:
        feature_dim (int): the size of a latent.
        num_actions (int): the number of actions.

    Keyword Args:
        num_atoms (int): the number of values that a return may have. Defaults to 51.
        hidden_dim (int): the width of the hidden layers. Defaults to 256.
        sigma_init (float): of :class:`NoisyLinear`. Defaults to 0.1.
        noisy (bool): whether layers are :class:`NoisyLinear`. False makes plain layers: ``sigma_init`` has no effect,
            and :meth:`reset_noise` does nothing. Defaults to True.
        dueling (bool): whether there are two branches. False makes one branch, which gives the logits of all actions.
            Defaults to True.
        gradient_scale (float): a factor of the gradient that leaves the head for the encoder. Dueling networks
            (https://arxiv.org/abs/1511.06581) have 1 / sqrt(2), data-efficient Rainbow and the default have 1. Values,
            and the gradients of :meth:`hidden`, do not depend on it.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.modules import DuelingHead
        >>> log_probabilities = DuelingHead(576, 6)(torch.randn(32, 576))
        >>> log_probabilities.shape
        torch.Size([32, 6, 51])
        >>> bool(torch.allclose(log_probabilities.exp().sum(-1), torch.ones(32, 6)))
        True
    """

    def __init__(
        self,
        feature_dim: int,
        num_actions: int,
        *,
        num_atoms: int = 51,
        hidden_dim: int = 256,
        sigma_init: float = 0.1,
        noisy: bool = True,
        dueling: bool = True,
        gradient_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.gradient_scale = check_number("gradient_scale", gradient_scale, above=0)
        self.num_actions = check_count("num_actions", num_actions)
        self.num_atoms = check_count("num_atoms", num_atoms)
        check_count("hidden_dim", hidden_dim)

        def linear(in_features: int, out_features: int) -> nn.Module:
            if noisy:
                return NoisyLinear(in_features, out_features, sigma_init=sigma_init)
            return nn.Linear(in_features, out_features)

        def branch(outputs: int) -> nn.Sequential:
            return nn.Sequential(linear(feature_dim, hidden_dim), nn.ReLU(), linear(hidden_dim, outputs * num_atoms))

        self.value = branch(1 if dueling else num_actions)
        self.advantage = branch(num_actions) if dueling else None

    def forward(self, latent: Tensor) -> Tensor:
        """Returns log-probabilities ``[*, num_actions, num_atoms]``."""
        if self.gradient_scale != 1:
            fixed = latent.detach()
            latent = fixed + self.gradient_scale * (latent - fixed)  # the same numbers: the difference is 0
        logits = self.value(latent).unflatten(-1, (-1, self.num_atoms))
        if self.advantage is not None:
            advantage = self.advantage(latent).unflatten(-1, (self.num_actions, self.num_atoms))
            logits = logits + advantage - advantage.mean(-2, keepdim=True)
        return F.log_softmax(logits.to(self.dtype), dim=-1)

    @property
    def hidden_dim(self) -> int:
        """The size of the output of :meth:`hidden`: the hidden layers of all branches together."""
        return sum(branch[0].out_features for branch in self._branches())  # type: ignore[misc]

    def hidden(self, latent: Tensor) -> Tensor:
        """Returns the outputs of the first layers, before ReLU and without noise, ``[*, hidden_dim]``.

        SPR (https://arxiv.org/abs/2007.05929) projects latents with them: value branch first, then advantage branch.
        """
        return torch.cat([_without_noise(branch[0], latent) for branch in self._branches()], dim=-1)

    def _branches(self) -> list[nn.Sequential]:
        return [self.value] if self.advantage is None else [self.value, self.advantage]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights and, under autocast too, of the probabilities."""
        first = self.value[0]
        weight: Tensor = first.weight_mu if isinstance(first, NoisyLinear) else first.weight  # type: ignore[assignment]
        return weight.dtype

    def reset_noise(self, generator: torch.Generator | None = None) -> None:
        """Draws new noise for every noisy layer."""
        for module in self.modules():
            if isinstance(module, NoisyLinear):
                module.reset_noise(generator)


def _without_noise(layer: nn.Module, inputs: Tensor) -> Tensor:
    if isinstance(layer, NoisyLinear):
        return F.linear(inputs, layer.weight_mu, layer.bias_mu)
    return layer(inputs)


class HeadProjection(nn.Module):
    """The first layers of a head as a projection of latents, without noise: :meth:`DuelingHead.hidden` as a module.

    Args:
        head (DuelingHead): the head. It is shared, not copied.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.modules import DuelingHead, HeadProjection
        >>> HeadProjection(DuelingHead(576, 6, hidden_dim=256))(torch.randn(32, 576)).shape
        torch.Size([32, 512])
    """

    def __init__(self, head: DuelingHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, latent: Tensor) -> Tensor:
        """Turns latents ``[*, feature_dim]`` into ``[*, head.hidden_dim]``."""
        return self.head.hidden(latent)
