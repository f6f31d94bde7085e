"""The network of Rainbow agents, and the policy that acts with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mcurl_torchrl.modules.dueling import DuelingHead
from mcurl_torchrl.modules.encoders import AtariEncoder
from mcurl_torchrl.modules.policy import Policy

__all__ = ["RainbowNetwork", "RainbowPolicy", "expected_value", "refuse_another_support"]


def expected_value(log_probabilities: Tensor, support: Tensor) -> Tensor:
    """Returns the mean ``[*]`` of distributions ``[*, N]`` over the N values of a support."""
    # Not a matrix product: autocast would round it, and rounding could change the choice of actions.
    return (log_probabilities.exp() * support).sum(-1)


def refuse_another_support(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Refuses to load weights that were learned with another support: their probabilities belong to other returns."""
    ours, saved = module.get_buffer("support"), state.get(f"{prefix}support")
    if isinstance(saved, Tensor) and (ours.shape != saved.shape or not torch.equal(ours, saved.to(ours))):
        raise ValueError(f"the state was saved with returns of {_range(saved)}; this one has {_range(ours)}")


def _range(support: Tensor) -> str:
    return f"{support[0].item():g} to {support[-1].item():g} in {len(support)} atoms"


class RainbowNetwork(nn.Module):
    """Encoder and head of a Rainbow agent (https://arxiv.org/abs/1710.02298): pixels to distributions of returns.

    The head takes the features of the convolutions. A contrastive loss that gets ``network.encoder``, alone or in a
    :class:`~mcurl_torchrl.modules.ProjectedEncoder` with another projection, trains the same convolutions.

    Args:
        encoder (AtariEncoder): the encoder, or any other one with ``features()`` and ``num_features``.
        head (DuelingHead): the head, which takes ``num_features`` features.

    Keyword Args:
        value_bounds (tuple of float): the lowest and the highest return. Defaults to (-10, 10).

    Attributes:
        support (torch.Tensor): ``[num_atoms]``, the returns to which a distribution gives probabilities.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl import AtariEncoder
        >>> from mcurl_torchrl.modules import DuelingHead, RainbowNetwork
        >>> encoder = AtariEncoder()
        >>> network = RainbowNetwork(encoder, DuelingHead(encoder.num_features, 6))
        >>> pixels = torch.zeros(2, 4, 84, 84, dtype=torch.uint8)
        >>> network(pixels).shape  # log-probabilities
        torch.Size([2, 6, 51])
        >>> network.values(pixels).shape
        torch.Size([2, 6])
    """

    support: Tensor

    def __init__(
        self, encoder: AtariEncoder, head: DuelingHead, *, value_bounds: tuple[float, float] = (-10.0, 10.0)
    ) -> None:
        super().__init__()
        low, high = value_bounds
        if not low < high:
            raise ValueError(f"value_bounds={tuple(value_bounds)}; the first must be below the second")
        if head.num_atoms < 2:
            raise ValueError(f"num_atoms={head.num_atoms}; a support has at least 2")
        self.encoder = encoder
        self.head = head
        self.register_buffer("support", torch.linspace(low, high, head.num_atoms))
        self.register_load_state_dict_pre_hook(refuse_another_support)

    def forward(self, pixels: Tensor) -> Tensor:
        """Returns log-probabilities ``[*, num_actions, num_atoms]`` for pixels ``[*, C, H, W]``."""
        return self.head(self.encoder.features(pixels))

    def values(self, pixels: Tensor) -> Tensor:
        """Returns the expected return of each action, ``[*, num_actions]``."""
        return expected_value(self(pixels), self.support)

    def reset_noise(self, generator: torch.Generator | None = None) -> None:
        """Draws new noise for every noisy layer, in place; without noisy layers it does nothing."""
        self.head.reset_noise(generator)


class RainbowPolicy(Policy):
    """The policy of Rainbow and data-efficient Rainbow: stacked frames to the index of the best action.

    In training mode it acts, and ``policy.network`` learns, with the noise of the last :meth:`reset_noise`; after
    ``.eval()`` there is no noise. TorchRL's ``set_exploration_type`` has no effect.

    Args:
        observation_shape (sequence of int): ``[C, H, W]``, all frames of a stack together.
        num_actions (int): the number of actions.

    Keyword Args:
        architecture (str): the encoder's, as in :class:`~mcurl_torchrl.AtariEncoder`. Defaults to ``"data_efficient"``.
        hidden_dim (int): the head's. Defaults to 256.
        num_atoms (int): the number of values that a return may have. Defaults to 51.
        value_bounds (tuple of float): the lowest and the highest of them. Defaults to (-10, 10).
        sigma_init (float): the initial scale of the noise. Defaults to 0.1.
        noisy (bool): whether the head's layers are noisy. If False, :meth:`reset_noise` does nothing, and only
            ``epsilon`` explores. Defaults to True.
        dueling (bool): whether the head has a value and an advantage branch; False gives one branch. Defaults to True.
        gradient_scale (float): as in :class:`~mcurl_torchrl.modules.DuelingHead`. Defaults to 1.
        rescale (bool): whether features are rescaled to the range from 0 to 1, as in
            :class:`~mcurl_torchrl.AtariEncoder`. Defaults to False.

    Attributes:
        settings (dict): the arguments with which ``RainbowPolicy(**settings)`` builds the same network, as JSON.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.modules.rainbow import RainbowPolicy
        >>> policy = RainbowPolicy([4, 84, 84], 6)
        >>> policy.reset_noise()
        >>> pixels = torch.zeros(2, 4, 84, 84, dtype=torch.uint8)
        >>> policy(pixels).shape, policy(pixels[0]).shape
        (torch.Size([2]), torch.Size([]))
        >>> policy.act_without_noise(pixels, epsilon=0.001).shape
        torch.Size([2])
    """

    def __init__(
        self,
        observation_shape: Sequence[int],
        num_actions: int,
        *,
        architecture: str = "data_efficient",
        hidden_dim: int = 256,
        num_atoms: int = 51,
        value_bounds: tuple[float, float] = (-10.0, 10.0),
        sigma_init: float = 0.1,
        noisy: bool = True,
        dueling: bool = True,
        gradient_scale: float = 1.0,
        rescale: bool = False,
    ) -> None:
        super().__init__()
        head_settings: dict[str, Any] = {
            "hidden_dim": hidden_dim,
            "num_atoms": num_atoms,
            "sigma_init": sigma_init,
            "noisy": noisy,
            "dueling": dueling,
            "gradient_scale": gradient_scale,
        }
        self.settings = {
            "observation_shape": list(observation_shape),
            "num_actions": num_actions,
            "architecture": architecture,
            "value_bounds": list(value_bounds),
            "rescale": rescale,
            **head_settings,
        }
        if len(observation_shape) != 3 or observation_shape[1] != observation_shape[2]:
            raise ValueError(f"observation_shape={list(observation_shape)}; it must be [C, H, W] with H = W")
        encoder = AtariEncoder(observation_shape[0], observation_shape[1], architecture=architecture, rescale=rescale)
        head = DuelingHead(encoder.num_features, num_actions, **head_settings)
        self.network = RainbowNetwork(encoder, head, value_bounds=value_bounds)

    def forward(self, pixels: Tensor) -> Tensor:
        """Returns the index of the action with the highest expected return, ``[*]``."""
        return self.network.values(pixels).argmax(-1)

    def act(self, observation: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Returns the best actions without noise; there is no distribution to draw from."""
        return (
            self.act_without_noise(observation) if generator is None else super().act(observation, generator=generator)
        )

    def act_without_noise(
        self, pixels: Tensor, *, epsilon: float = 0.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """Acts as in evaluation, in any mode: without noise, at random with probability ``epsilon``.

        Args:
            pixels (torch.Tensor): ``[*, C, H, W]``.

        Keyword Args:
            epsilon (float): Defaults to 0; then no random number is drawn.
            generator (torch.Generator, optional): the source of random numbers.

        Returns:
            Action indices ``[*]``.

        Raises:
            ValueError: if ``epsilon`` is not a probability.
        """
        if not 0 <= epsilon <= 1:
            raise ValueError(f"epsilon={epsilon}; it must be between 0 and 1")
        was_training = self.training
        self.eval()
        try:
            action = self(pixels)
        finally:
            self.train(was_training)
        if epsilon == 0:
            return action
        device = action.device if generator is None else generator.device
        explores = torch.rand(action.shape, generator=generator, device=device) < epsilon
        anything = torch.randint(self.settings["num_actions"], action.shape, generator=generator, device=device)
        return torch.where(explores.to(action.device), anything.to(action.device), action)

    def reset_noise(self, generator: torch.Generator | None = None) -> None:
        """Draws the noise of the next agent step, in place."""
        self.network.reset_noise(generator)

    def for_acting(self) -> RainbowPolicy:
        """Returns the policy with plain layers in place of the noisy ones: half of the weights, the same actions."""
        if not self.settings["noisy"]:
            return self
        plain = RainbowPolicy(**{**self.settings, "noisy": False})
        means = {
            name.removesuffix("_mu"): value
            for name, value in self.state_dict().items()
            if not name.endswith(("_sigma", "noise_in", "noise_out"))
        }
        plain.load_state_dict(means)
        return plain.to(self.network.support.device).eval()
