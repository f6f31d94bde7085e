"""Policy: the network with which a trained agent acts, together with the settings that build it again."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

__all__ = ["Policy"]


class Policy(nn.Module):
    """A network from observations to actions that keeps the settings it was built with.

    Checkpoints store the class name and ``settings`` of a policy, and :func:`~mcurl_torchrl.load_policy` calls
    ``cls(**settings)`` again. Every subclass is known by its name as soon as its module is imported: a new agent needs
    no entry in any list, and a file can name no class that the program did not import.

    Attributes:
        settings (dict): the keyword arguments that build the same network, values that JSON can hold.
            ``observation_shape`` is one of them.
        kinds (dict): all subclasses that are imported, by name.
    """

    settings: dict[str, Any]
    kinds: ClassVar[dict[str, type[Policy]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Policy.kinds[cls.__name__] = cls

    def forward(self, observation: Tensor) -> Tensor:
        """Returns the actions ``[*, ...]`` for observations ``[*, ...]``."""
        raise NotImplementedError

    def act(self, observation: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Returns the actions of an evaluation: the best or most likely ones, or with a generator drawn ones."""
        return self(observation) if generator is None else self.sample(observation, generator=generator)

    def sample(self, observation: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draws actions, with a generator on any device; an error if this kind of policy has no distribution."""
        raise ValueError(f"a {type(self).__name__} has no distribution to draw actions from")

    def for_acting(self) -> Policy:
        """Returns a policy that acts like this one in evaluation mode, without the weights that only training needs."""
        return self
